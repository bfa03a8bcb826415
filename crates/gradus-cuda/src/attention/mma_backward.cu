// The gradient of attention of half precision on tensor cores. A block has 4 warps, each with 16 rows (queries for dq,
// keys for dk and dv), and goes through the columns (keys, or queries) in tiles of INNER, two of which are in flight.
// Weights and gradients of scores stay in registers. As factors they are sums of two bf16, whatever T is: f16 does not
// reach as far down as gradients of scores. The other factor is then also bf16, or the sum of two such numbers for an f16.
//
// D, DV: sizes of a key and of a value, rounded up to a multiple of 16, at most 128. Q_GROUPS, K_GROUPS, V_GROUPS,
// G_GROUPS: elements of a head are contiguous in aligned groups of 16 bytes.

#define OUTER 64
#define ROW(size) ((size) + 8)

struct Lanes {
    int lane, warp;
    int low, high;              // the row of a left factor that this lane addresses
    int other_low, other_high;  // the same of a right factor that is stored by columns
};

INLINE Lanes lanes() {
    const int lane = threadIdx.x % 32;
    return {lane, (int)threadIdx.x / 32, (lane / 8 & 1) * 8 + lane % 8, lane / 16 * 8, lane / 16 * 8 + lane % 8, (lane / 8 & 1) * 8};
}

// The products of this warp's 16 rows and all columns of a tile; both are stored with SIZE elements in a row.
template <int SIZE> INLINE void products(A (&s)[INNER / 8][4], const u16* rows, const u16* columns, const Lanes& l) {
#pragma unroll
    for (int j = 0; j < INNER / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = 0;
#pragma unroll(SIZE > 64 ? 2 : SIZE / 16)
    for (int e = 0; e < SIZE; e += 16) {
        u32 f[4];
        load_matrices(f, rows + (l.warp * 16 + l.low) * ROW(SIZE) + e + l.high);
#pragma unroll
        for (int j = 0; j < INNER / 8; j += 2) {
            u32 g[4];
            load_matrices(g, columns + (j * 8 + l.other_low) * ROW(SIZE) + e + l.other_high);
            multiply_matrices<BF16>(s[j], f, g);
            multiply_matrices<BF16>(s[j + 1], f, g + 2);
        }
    }
}

// Two f32 as bf16 in one word, and what is left of them.
INLINE u32 bf16_of(A& x, A& y) {
    const bf16 a = narrow<bf16>(x), b = narrow<bf16>(y);
    x -= widen(a);
    y -= widen(b);
    return (u32)a.bits | (u32)b.bits << 16;
}

// Two elements in one word as bf16, and for f16 the word of what is left of them, which is bf16 too.
INLINE u32 bf16_of(u32 elements, u32& rest) {
#if BF16
    return elements;
#else
    A x = wide(f16{(u16)elements}), y = wide(f16{(u16)(elements >> 16)});
    const u32 first = bf16_of(x, y);
    rest = bf16_of(x, y);
    return first;
#endif
}

// Adds the product of a tile of factors, which are used up, and a tile in shared memory with SIZE elements in a row.
template <int SIZE> INLINE void add_product(A (&sum)[SIZE / 8][4], A (&s)[INNER / 8][4], const u16* tile, const Lanes& l) {
#pragma unroll
    for (int j = 0; j < INNER / 16; j++) {
        u32 f[2][4];
#pragma unroll
        for (int term = 0; term < 2; term++) {
            f[term][0] = bf16_of(s[2 * j][0], s[2 * j][1]);
            f[term][1] = bf16_of(s[2 * j][2], s[2 * j][3]);
            f[term][2] = bf16_of(s[2 * j + 1][0], s[2 * j + 1][1]);
            f[term][3] = bf16_of(s[2 * j + 1][2], s[2 * j + 1][3]);
        }
#pragma unroll
        for (int e = 0; e < SIZE / 8; e += 2) {
            u32 g[4], rest[4];
            load_matrices_transposed(g, tile + (j * 16 + l.low) * ROW(SIZE) + e * 8 + l.high);
#pragma unroll
            for (int i = 0; i < 4; i++) g[i] = bf16_of(g[i], rest[i]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                A* to = sum[e + part];
                multiply_matrices<true>(to, f[0], g + 2 * part);
                multiply_matrices<true>(to, f[1], g + 2 * part);
                // The product of what is left of both is below the last place of the largest term.
                if constexpr (!BF16) multiply_matrices<true>(to, f[0], rest + 2 * part);
            }
        }
    }
}

INLINE A weight_of(A score, A shift) { return shift == -infinity() ? (A)0 : exp_of(score - shift); }

template <int SIZE> INLINE void store_rows(T* to, const i64* step, const A (&sum)[SIZE / 8][4], A factor, int row0, int rows, int size, const Lanes& l) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + l.warp * 16 + half * 8 + l.lane / 4;
        if (row >= rows) continue;
#pragma unroll
        for (int e = 0; e < SIZE / 8; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = e * 8 + l.lane % 4 * 2 + i;
                if (column < size) to[row * step[2] + column * step[3]] = narrow<T>(factor * sum[e][half * 2 + i]);
            }
    }
}

// Goes through the keys that 64 queries from `q0` see. For each tile, `each` gets this thread's weights and their gradients, and
// the tile of keys.
template <typename Each> INLINE void through_keys(u16* shared, const Attention& p, const Head& at, const T* g, const A* lse, int q0, const Lanes& l, Each each) {
    u16* const qs = shared;
    u16* const gs = qs + OUTER * ROW(D);
    u16* const ks = gs + OUTER * ROW(DV);
    u16* const vs = ks + 2 * INNER * ROW(D);
    const int keys = keys_of(p, q0 + OUTER);
    load_tile<128, OUTER, D, Q_GROUPS>(qs, at.q, q0, p.lq, 0, p.d, p.q[2], p.q[3]);
    load_tile<128, OUTER, DV, G_GROUPS>(gs, g + at.g, q0, p.lq, 0, p.dv, p.g[2], p.g[3]);
    auto load = [&](int k0, int stage) {
        load_tile<128, INNER, D, K_GROUPS>(ks + stage * INNER * ROW(D), at.k, k0, p.lk, 0, p.d, p.k[2], p.k[3]);
        load_tile<128, INNER, DV, V_GROUPS>(vs + stage * INNER * ROW(DV), at.v, k0, p.lk, 0, p.dv, p.v[2], p.v[3]);
    };
    if (keys > 0) load(0, 0);
    commit_copies();
    A shift[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int query = q0 + l.warp * 16 + half * 8 + l.lane / 4;
        shift[half] = query < p.lq ? lse[at.lse + query * p.lse[2]] : -infinity();
    }
    int stage = 0;
    for (int k0 = 0; k0 < keys; k0 += INNER, stage ^= 1) {
        if (k0 + INNER < keys) load(k0 + INNER, stage ^ 1);
        commit_copies();
        wait_for_copies<1>();
        __syncthreads();
        A w[INNER / 8][4], dw[INNER / 8][4];
        products<D>(w, qs, ks + stage * INNER * ROW(D), l);
        products<DV>(dw, gs, vs + stage * INNER * ROW(DV), l);
#pragma unroll
        for (int j = 0; j < INNER / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int query = q0 + l.warp * 16 + i / 2 * 8 + l.lane / 4, key = k0 + j * 8 + l.lane % 4 * 2 + i % 2;
                w[j][i] = weight_of(masked(p, at, query, key, w[j][i]), shift[i / 2]);
            }
        each(w, dw, ks + stage * INNER * ROW(D));
        __syncthreads();
    }
    wait_for_copies<0>();
    __syncthreads();
}

// delta [b, h, lq]: the sum of weights times the gradients of weights for each query. It is not computed from the
// result, whose rounding error would be too large where gradients of scores nearly cancel, and its factors have the bits
// that they have where it is subtracted, so that a query that sees one key has no gradient.
extern "C" __global__ void __launch_bounds__(128, 1) attention_delta(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ lse, A* __restrict__ delta, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    const Lanes l = lanes();
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * OUTER;
        A sum[2] = {};
        through_keys(shared, p, at, g, lse, q0, l, [&](A (&w)[INNER / 8][4], A (&dw)[INNER / 8][4], const u16*) {
#pragma unroll
            for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[i / 2] += w[j][i] * dw[j][i];
        });
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(EVERY, sum[half], 1);
            sum[half] += __shfl_xor_sync(EVERY, sum[half], 2);
            const int query = q0 + l.warp * 16 + half * 8 + l.lane / 4;
            if (l.lane % 4 == 0 && query < p.lq) delta[at.row + query] = sum[half];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 1) attention_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ lse, const A* __restrict__ delta, T* __restrict__ dq, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    const Lanes l = lanes();
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * OUTER;
        A minus[2], sum[D / 8][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = q0 + l.warp * 16 + half * 8 + l.lane / 4;
            minus[half] = query < p.lq ? delta[at.row + query] : (A)0;
        }
        through_keys(shared, p, at, g, lse, q0, l, [&](A (&w)[INNER / 8][4], A (&dw)[INNER / 8][4], const u16* keys) {
#pragma unroll
            for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) dw[j][i] = w[j][i] * (dw[j][i] - minus[i / 2]);
            add_product<D>(sum, dw, keys, l);
        });
        store_rows<D>(dq + at.dq, p.dq, sum, p.scale, q0, p.lq, p.d, l);
    }
}

// One task for each tile of keys of each key head: it goes through the queries of all heads that share the key head.
extern "C" __global__ void __launch_bounds__(128, 1) attention_backward_kv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ lse, const A* __restrict__ delta, T* __restrict__ dk, T* __restrict__ dv, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const ks = shared;
    u16* const vs = ks + OUTER * ROW(D);
    u16* const qs = vs + OUTER * ROW(DV);
    u16* const gs = qs + 2 * INNER * ROW(D);
    __shared__ A lses[2][INNER];
    __shared__ A deltas[2][INNER];
    const Lanes l = lanes();
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const i64 key_head = task / p.k_tiles;
        const int k0 = (int)(task % p.k_tiles) * OUTER;
        Head at = head_of(p, key_head * p.group, q, k, v, mask);
        const i64 to_k = at.dk, to_v = at.dv;
        load_tile<128, OUTER, D, K_GROUPS>(ks, at.k, k0, p.lk, 0, p.d, p.k[2], p.k[3]);
        load_tile<128, OUTER, DV, V_GROUPS>(vs, at.v, k0, p.lk, 0, p.dv, p.v[2], p.v[3]);
        A sum_k[D / 8][4] = {}, sum_v[DV / 8][4] = {};
        const int first = first_query(p, k0) / INNER * INNER;
        for (int head = 0; head < p.group; head++) {
            at = head_of(p, key_head * p.group + head, q, k, v, mask);
            auto load = [&](int q0, int stage) {
                load_tile<128, INNER, D, Q_GROUPS>(qs + stage * INNER * ROW(D), at.q, q0, p.lq, 0, p.d, p.q[2], p.q[3]);
                load_tile<128, INNER, DV, G_GROUPS>(gs + stage * INNER * ROW(DV), g + at.g, q0, p.lq, 0, p.dv, p.g[2], p.g[3]);
                // Rows outside have no weights.
                for (int i = threadIdx.x; i < INNER; i += 128) {
                    const bool inside = q0 + i < p.lq;
                    lses[stage][i] = inside ? lse[at.lse + (q0 + i) * p.lse[2]] : -infinity();
                    deltas[stage][i] = inside ? delta[at.row + q0 + i] : (A)0;
                }
            };
            int stage = 0;
            if (first < p.lq) load(first, 0);
            commit_copies();
            for (int q0 = first; q0 < p.lq; q0 += INNER, stage ^= 1) {
                if (q0 + INNER < p.lq) load(q0 + INNER, stage ^ 1);
                commit_copies();
                wait_for_copies<1>();
                __syncthreads();
                const u16* queries = qs + stage * INNER * ROW(D);
                const u16* slopes = gs + stage * INNER * ROW(DV);
                A w[INNER / 8][4], ds[INNER / 8][4];
                products<D>(w, ks, queries, l);
                products<DV>(ds, vs, slopes, l);
#pragma unroll
                for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int column = j * 8 + l.lane % 4 * 2 + i % 2, key = k0 + l.warp * 16 + i / 2 * 8 + l.lane / 4;
                        w[j][i] = weight_of(masked(p, at, q0 + column, key, w[j][i]), lses[stage][column]);
                        ds[j][i] = w[j][i] * (ds[j][i] - deltas[stage][column]);
                    }
                add_product<DV>(sum_v, w, slopes, l);
                add_product<D>(sum_k, ds, queries, l);
                __syncthreads();
            }
        }
        wait_for_copies<0>();
        __syncthreads();
        store_rows<D>(dk + to_k, p.dk, sum_k, p.scale, k0, p.lk, p.d, l);
        store_rows<DV>(dv + to_v, p.dv_, sum_v, (A)1, k0, p.lk, p.dv, l);
    }
}
