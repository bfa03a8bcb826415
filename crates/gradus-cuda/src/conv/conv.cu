// Convolution and its gradients as products of matrices. One factor is read through the window, so nothing is unfolded
// in memory. There is one product for each group; `taps` are the elements of a window:
// * KIND 0, forward: out [filters, samples * positions] = w [filters, channels * taps] @ x [channels * taps, ..];
// * KIND 1, gradient of x: dx [channels, samples * elements] = w^T [channels, filters * taps] @ g [filters * taps, ..];
// * KIND 2, gradient of w: dw [filters, channels * taps] = g [filters, samples * positions] @ x [.., channels * taps].
//
// T: element type. A: type of sums. C: type of the result. RANK: number of spatial axes. BM, BN, BK: sizes of a tile.
// MMA: tensor cores, with WM x WN warps, otherwise registers, with TM x TN elements for each thread. BF16: whether T is
// bf16. BIAS: whether a bias is added. STRIDED: whether any stride is not 1 (for KIND 1).

#define FORWARD (KIND == 0)
#define INPUT (KIND == 1)
#define WEIGHT (KIND == 2)
#if MMA
#define THREADS (WM * WN * 32)
#define FM (BM / WM / 16)
#define FN (BN / WN / 8)
#define OWN (FM * FN * 4)   // results of a thread
typedef u16 Kept;           // an element in shared memory
#else
#define THREADS ((BM / TM) * (BN / TN))
#define OWN (TM * TN)
typedef A Kept;
#endif

struct Conv {
    i64 tasks;
    i64 part_step;          // distance between the results of two parts of k
    i64 x[2], x_at[RANK];   // steps along samples, channels and elements
    i64 w[2], w_at[RANK];   // steps along filters, channels and taps
    i64 y[2], y_at[RANK];   // steps along samples, filters and positions
    i64 bias;
    int m, n, k;
    int tiles_m, tiles_n;
    int parts, depth;
    int channels, filters;  // of a group
    int size[RANK], kernel[RANK], stride[RANK], dilation[RANK], pad[RANK], positions[RANK];
};

// A row or column of the factor that is read through the window, or a step of k.
struct Entry {
    i64 from;               // its part of the position in that factor
    i64 other;              // its part of the position in the other factor, or in the result
    int at[RANK];           // its part of the coordinates
    int inside;
};

// Number j of the taps of all channels (filters for KIND 1).
INLINE Entry of_taps(const Conv& p, int j, int end) {
    Entry e;
    e.inside = j < end;
    e.other = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const int tap = j % p.kernel[axis];
        j /= p.kernel[axis];
        e.at[axis] = INPUT ? -tap * p.dilation[axis] : tap * p.dilation[axis];
        e.other += tap * p.w_at[axis];
    }
    e.from = j * (INPUT ? p.y[1] : p.x[1]);
    e.other += j * (INPUT ? p.w[0] : p.w[1]);
    return e;
}

// Number j of the positions (elements of x for KIND 1) of all samples.
INLINE Entry of_places(const Conv& p, int j, int end) {
    Entry e;
    e.inside = j < end;
    e.other = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        const int count = INPUT ? p.size[axis] : p.positions[axis];
        const int place = j % count;
        j /= count;
        e.at[axis] = INPUT ? place + p.pad[axis] : place * p.stride[axis] - p.pad[axis];
        e.other += place * (INPUT ? p.x_at[axis] : p.y_at[axis]);
    }
    e.from = j * (INPUT ? p.y[0] : p.x[0]);
    e.other += j * (INPUT ? p.x[0] : p.y[0]);
    return e;
}

INLINE Entry of_lane(const Conv& p, int j) { return WEIGHT ? of_taps(p, j, p.n) : of_places(p, j, p.n); }
INLINE Entry of_step(const Conv& p, int j, int end) { return WEIGHT ? of_places(p, j, end) : of_taps(p, j, end); }

// Whether a lane and a step meet in an element, and where it is.
INLINE bool meet(const Conv& p, const Entry& lane, const Entry& step, i64& from) {
    bool inside = lane.inside && step.inside;
    from = lane.from + step.from;
#pragma unroll
    for (int axis = 0; axis < RANK; axis++) {
        int at = lane.at[axis] + step.at[axis];
#if INPUT && STRIDED
        inside = inside && at >= 0 && at % p.stride[axis] == 0;
        at /= p.stride[axis];
#endif
        inside = inside && at >= 0 && at < (INPUT ? p.positions[axis] : p.size[axis]);
        from += at * (INPUT ? p.y_at[axis] : p.x_at[axis]);
    }
    return inside;
}

// The element where a lane and a step meet, or 0 outside.
INLINE T element(const Conv& p, const T* b, const Entry& lane, const Entry& step) {
    i64 from;
    return meet(p, lane, step, from) ? b[from] : zero();
}

#if MMA
INLINE Kept kept(T v) { return v.bits; }
#define LDA (BK + 8)
#define LDB ((WEIGHT ? BK : BN) + 8)
#define A_SIZE (BM * LDA)
#define B_SIZE ((WEIGHT ? BN : BK) * LDB)
#define A_AT(lane, kk) ((lane) * LDA + (kk))
#define B_AT(lane, kk) (WEIGHT ? (lane) * LDB + (kk) : (kk) * LDB + (lane))
#else
INLINE Kept kept(T v) { return widen(v); }
#define LDA (BM + 4)
#define LDB (BN + 4)
#define A_SIZE (BK * LDA)
#define B_SIZE (BK * LDB)
#define A_AT(lane, kk) ((kk) * LDA + (lane))
#define B_AT(lane, kk) ((kk) * LDB + (lane))
#endif
#define A_EACH (BM * BK / THREADS)
#define B_EACH (BN * BK / THREADS)
// Neighbouring threads read a along k, and b along the axis that is contiguous in memory.
#define A_LANE(at) ((at) / BK)
#define A_K(at) ((at) % BK)
#define B_LANE(at) (WEIGHT ? (at) / BK : (at) % BN)
#define B_K(at) (WEIGHT ? (at) % BK : (at) / BN)

INLINE void fetch(T (&x)[A_EACH], T (&y)[B_EACH], const Conv& p, const T* a, const T* b, int row, i64 a_m, const Entry* lanes, const Entry* steps) {
#pragma unroll
    for (int i = 0; i < A_EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        const Entry& step = steps[A_K(at)];
        const int lane = row + A_LANE(at);
        x[i] = step.inside && lane < p.m ? a[lane * a_m + step.other] : zero();
    }
#pragma unroll
    for (int i = 0; i < B_EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        y[i] = element(p, b, lanes[B_LANE(at)], steps[B_K(at)]);
    }
}

INLINE void put(Kept* as, Kept* bs, const T (&x)[A_EACH], const T (&y)[B_EACH]) {
#pragma unroll
    for (int i = 0; i < A_EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        as[A_AT(A_LANE(at), A_K(at))] = kept(x[i]);
    }
#pragma unroll
    for (int i = 0; i < B_EACH; i++) {
        const int at = threadIdx.x + i * THREADS;
        bs[B_AT(B_LANE(at), B_K(at))] = kept(y[i]);
    }
}

#if INPUT
// The sum over those taps only that reach an element of x from some position. In a tile, the others add their weight
// times 0, which is NaN if the weight is not finite.
INLINE A directly(const Conv& p, const T* a, const T* b, const Entry& lane) {
    A sum = 0;
    for (int j = 0; j < p.k; j++) {
        const Entry step = of_step(p, j, p.k);
        i64 from;
        if (meet(p, lane, step, from)) sum = multiply_add(widen(a[step.other]), widen(b[from]), sum);
    }
    return sum;
}
#endif

INLINE void store(const Conv& p, C* c, const T* bias, i64 c_m, int row, const Entry& lane, A sum) {
    if (row >= p.m || !lane.inside) return;
#if BIAS
    sum += widen(bias[row * p.bias]);
#endif
    c[row * c_m + lane.other] = narrow<C>(sum);
}

// The row and the column of result number e of a thread, in the tile.
#if MMA
INLINE int first_row() { return threadIdx.x / 32 / WN * (FM * 16); }
INLINE int first_col() { return threadIdx.x / 32 % WN * (FN * 8); }
INLINE int own_row(int e) { return first_row() + e / (FN * 4) * 16 + threadIdx.x % 32 / 4 + e / 2 % 2 * 8; }
INLINE int own_col(int e) { return first_col() + e / 4 % FN * 8 + threadIdx.x % 4 * 2 + e % 2; }
#else
INLINE int own_row(int e) { return threadIdx.x / (BN / TN) + e / TN * (BM / TM); }
INLINE int own_col(int e) { return threadIdx.x % (BN / TN) + e % TN * (BN / TN); }
#endif

// Without this minimum of blocks, the compiler spills registers to fit more blocks.
extern "C" __global__ void __launch_bounds__(THREADS, 1) conv(const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ bias, C* __restrict__ c, const __grid_constant__ Conv p) {
    __shared__ __align__(16) Kept as[2][A_SIZE];
    __shared__ __align__(16) Kept bs[2][B_SIZE];
    __shared__ Entry lanes[BN];
    __shared__ Entry steps[2][BK];
    // Needed only at the end, so it is kept in shared memory rather than in registers.
    __shared__ C* to;
    __shared__ const T* from_bias;
    // The steps along the rows of the first factor and of the result.
    const i64 a_m = FORWARD ? p.w[0] : INPUT ? p.w[1] : p.y[1];
    const i64 c_m = FORWARD ? p.y[1] : INPUT ? p.x[1] : p.w[0];
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const i64 cells = (i64)p.tiles_m * p.tiles_n, cell = task % cells, rest = task / cells;
        const int row = (int)(cell % p.tiles_m) * BM, col = (int)(cell / p.tiles_m) * BN;
        const int part = (int)(rest % p.parts);
        const i64 group = rest / p.parts;
        const int first = part * p.depth, end = min(p.k, first + p.depth);
        const i64 x_group = group * p.channels * p.x[1], w_group = group * p.filters * p.w[0], y_group = group * p.filters * p.y[1];
        const T* from_a = a + (WEIGHT ? y_group : w_group);
        const T* from_b = b + (INPUT ? y_group : x_group);
        if (threadIdx.x == 0) {
            to = c + (FORWARD ? y_group : INPUT ? x_group : w_group) + part * p.part_step;
            from_bias = bias + group * p.filters * p.bias;
        }
        for (int i = threadIdx.x; i < BN; i += THREADS) lanes[i] = of_lane(p, col + i);
        for (int i = threadIdx.x; i < 2 * BK; i += THREADS) steps[i / BK][i % BK] = of_step(p, first + i, end);
        __syncthreads();
#if MMA
        const int lane = threadIdx.x % 32, row0 = first_row(), col0 = first_col();
        const int low = (lane / 8 & 1) * 8 + lane % 8, high = lane / 16 * 8;
        const int other_low = lane / 16 * 8 + lane % 8, other_high = (lane / 8 & 1) * 8;
#else
        const int ty = threadIdx.x / (BN / TN), tx = threadIdx.x % (BN / TN);
#endif
        A sum[OWN] = {};
        T x[A_EACH], y[B_EACH];
        fetch(x, y, p, from_a, from_b, row, a_m, lanes, steps[0]);
        put(as[0], bs[0], x, y);
        __syncthreads();
        int at = 0;
        for (int k0 = first; k0 < end; k0 += BK, at ^= 1) {
            if (k0 + BK < end) fetch(x, y, p, from_a, from_b, row, a_m, lanes, steps[at ^ 1]);
            // The steps of this tile are used no more.
            for (int i = threadIdx.x; i < BK; i += THREADS) steps[at][i] = of_step(p, min(k0 + 2 * BK, end) + i, end);
#if MMA
#pragma unroll
            for (int kk = 0; kk < BK; kk += 16) {
                u32 f[FM][4], g[FN][2];
#pragma unroll
                for (int i = 0; i < FM; i++) load_matrices(f[i], as[at] + (row0 + i * 16 + low) * LDA + kk + high);
#pragma unroll
                for (int j = 0; j < FN; j += 2) {
                    u32 four[4];
                    if constexpr (WEIGHT) {
                        load_matrices(four, bs[at] + (col0 + j * 8 + other_low) * LDB + kk + other_high);
                    } else {
                        load_matrices_transposed(four, bs[at] + (kk + low) * LDB + col0 + j * 8 + high);
                    }
                    g[j][0] = four[0]; g[j][1] = four[1]; g[j + 1][0] = four[2]; g[j + 1][1] = four[3];
                }
#pragma unroll
                for (int i = 0; i < FM; i++)
#pragma unroll
                    for (int j = 0; j < FN; j++) multiply_matrices<BF16>(sum + (i * FN + j) * 4, f[i], g[j]);
            }
#else
#pragma unroll
            for (int kk = 0; kk < BK; kk++) {
                A f[TM], g[TN];
#pragma unroll
                for (int i = 0; i < TM; i++) f[i] = as[at][kk * LDA + ty + i * (BM / TM)];
#pragma unroll
                for (int j = 0; j < TN; j++) g[j] = bs[at][kk * LDB + tx + j * (BN / TN)];
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) sum[i * TN + j] = multiply_add(f[i], g[j], sum[i * TN + j]);
            }
#endif
            if (k0 + BK < end) put(as[at ^ 1], bs[at ^ 1], x, y);
            __syncthreads();
        }
#if INPUT
        u64 again = 0; // the results that are not finite, one bit each
#endif
#pragma unroll
        for (int e = 0; e < OWN; e++) {
            store(p, to, from_bias, c_m, row + own_row(e), lanes[own_col(e)], sum[e]);
#if INPUT
            if (!(sum[e] - sum[e] == 0)) again |= (u64)1 << e;
#endif
        }
#if INPUT
#pragma unroll 1
        for (int e = 0; again != 0; e++, again >>= 1) {
            const int r = row + own_row(e);
            const Entry& place = lanes[own_col(e)];
            if ((again & 1) && r < p.m && place.inside) store(p, to, from_bias, c_m, r, place, directly(p, from_a + r * a_m, from_b, place));
        }
#endif
        // The next task overwrites the lanes, and where the results go.
        __syncthreads();
    }
}
