// The gradient of attention of half precision on tensor cores. A block has 4 warps, each with 16 rows (queries for dq,
// keys for dk and dv), and goes through the columns (keys, or queries) in tiles of INNER, two of which are in flight.
// Weights and gradients of scores stay in registers; as factors they are sums of TERMS numbers of half precision.
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

// Two f32 as halves in one word, and what is left of them.
INLINE u32 halves(A& x, A& y) {
    const T a = narrow<T>(x), b = narrow<T>(y);
    x -= widen(a);
    y -= widen(b);
    return (u32)a.bits | (u32)b.bits << 16;
}

// Adds the product of a tile of factors, which are used up, and a tile in shared memory with SIZE elements in a row.
template <int SIZE> INLINE void add_product(A (&sum)[SIZE / 8][4], A (&s)[INNER / 8][4], const u16* tile, const Lanes& l) {
#pragma unroll
    for (int j = 0; j < INNER / 16; j++) {
        u32 f[TERMS][4];
#pragma unroll
        for (int term = 0; term < TERMS; term++) {
            f[term][0] = halves(s[2 * j][0], s[2 * j][1]);
            f[term][1] = halves(s[2 * j][2], s[2 * j][3]);
            f[term][2] = halves(s[2 * j + 1][0], s[2 * j + 1][1]);
            f[term][3] = halves(s[2 * j + 1][2], s[2 * j + 1][3]);
        }
#pragma unroll
        for (int e = 0; e < SIZE / 8; e += 2) {
            u32 g[4];
            load_matrices_transposed(g, tile + (j * 16 + l.low) * ROW(SIZE) + e * 8 + l.high);
#pragma unroll
            for (int term = 0; term < TERMS; term++) {
                multiply_matrices<BF16>(sum[e], f[term], g);
                multiply_matrices<BF16>(sum[e + 1], f[term], g + 2);
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

extern "C" __global__ void __launch_bounds__(128, 1) attention_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ lse, const A* __restrict__ delta, T* __restrict__ dq, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const qs = shared;
    u16* const gs = qs + OUTER * ROW(D);
    u16* const ks = gs + OUTER * ROW(DV);
    u16* const vs = ks + 2 * INNER * ROW(D);
    const Lanes l = lanes();
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * OUTER;
        const int keys = keys_of(p, q0 + OUTER);
        load_tile<128, OUTER, D, Q_GROUPS>(qs, at.q, q0, p.lq, 0, p.d, p.q[2], p.q[3]);
        load_tile<128, OUTER, DV, G_GROUPS>(gs, g + at.g, q0, p.lq, 0, p.dv, p.g[2], p.g[3]);
        auto load = [&](int k0, int stage) {
            load_tile<128, INNER, D, K_GROUPS>(ks + stage * INNER * ROW(D), at.k, k0, p.lk, 0, p.d, p.k[2], p.k[3]);
            load_tile<128, INNER, DV, V_GROUPS>(vs + stage * INNER * ROW(DV), at.v, k0, p.lk, 0, p.dv, p.v[2], p.v[3]);
        };
        if (keys > 0) load(0, 0);
        commit_copies();
        A shift[2], minus[2], sum[D / 8][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = q0 + l.warp * 16 + half * 8 + l.lane / 4;
            shift[half] = query < p.lq ? lse[at.lse + query * p.lse[2]] : -infinity();
            minus[half] = query < p.lq ? delta[at.row + query] : (A)0;
        }
        int stage = 0;
        for (int k0 = 0; k0 < keys; k0 += INNER, stage ^= 1) {
            if (k0 + INNER < keys) load(k0 + INNER, stage ^ 1);
            commit_copies();
            wait_for_copies<1>();
            __syncthreads();
            A s[INNER / 8][4], ds[INNER / 8][4];
            products<D>(s, qs, ks + stage * INNER * ROW(D), l);
            products<DV>(ds, gs, vs + stage * INNER * ROW(DV), l);
#pragma unroll
            for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int query = q0 + l.warp * 16 + i / 2 * 8 + l.lane / 4, key = k0 + j * 8 + l.lane % 4 * 2 + i % 2;
                    const A w = weight_of(masked(p, at, query, key, s[j][i]), shift[i / 2]);
                    ds[j][i] = w * (ds[j][i] - minus[i / 2]);
                }
            add_product<D>(sum, ds, ks + stage * INNER * ROW(D), l);
            __syncthreads();
        }
        wait_for_copies<0>();
        __syncthreads();
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
