// Products of matrices in tiles of BM x BN. Each thread computes TM x TN elements, half of its rows (columns) in each
// half of the tile, so that neighbouring threads read neighbouring elements of shared memory.
//
// BM, BN, BK: sizes of a tile. TM, TN: elements of a thread. ASYNC: copy to shared memory without registers (T is A).
// A_ROWS: a is contiguous along m in aligned groups of 16 bytes; B_COLS: likewise b along n.
// A_ALONG_K, B_ALONG_K: neighbouring threads read a (b) along k.

#define THREADS ((BM / TM) * (BN / TN))
#define GROUP (16 / (int)sizeof(T))
#define LDA (BM + GROUP)
#define LDB (BN + GROUP)

// Element `lane` (a row of a, a column of b) at k, or 0 outside.
INLINE void load_one(A* to, const T* from, int lane, int lanes, int k, int end, i64 lane_step, i64 k_step) {
    bool inside = lane < lanes && k < end;
    const T* at = inside ? from + lane * lane_step + k * k_step : from;
#if ASYNC
    copy_async<sizeof(T)>(to, at, inside ? sizeof(T) : 0);
#else
    *to = inside ? widen(*at) : (A)0;
#endif
}

#if ASYNC
INLINE void load_group(A* to, const T* from, int lane, int lanes, int k, int end, i64 k_step) {
    int count = k < end ? min(max(lanes - lane, 0), GROUP) : 0;
    copy_async<16>(to, count > 0 ? from + lane + k * k_step : from, count * (int)sizeof(T));
}
#endif

template <int LANES, int LD, bool GROUPS, bool ALONG_K>
INLINE void load_tile(A* to, const T* from, int lane0, int lanes, int k0, int end, i64 lane_step, i64 k_step) {
#if ASYNC
    if constexpr (GROUPS) {
        const int across = LANES / GROUP;
#pragma unroll
        for (int at = threadIdx.x; at < BK * across; at += THREADS) {
            int kk = at / across, lane = at % across * GROUP;
            load_group(to + kk * LD + lane, from, lane0 + lane, lanes, k0 + kk, end, k_step);
        }
    } else
#endif
#if ASYNC
    // Asynchronous copies overlap without unrolling, and each further address takes registers.
#pragma unroll 2
#else
#pragma unroll
#endif
    for (int at = threadIdx.x; at < BK * LANES; at += THREADS) {
        int kk = ALONG_K ? at % BK : at / LANES, lane = ALONG_K ? at / BK : at % LANES;
        load_one(to + kk * LD + lane, from, lane0 + lane, lanes, k0 + kk, end, lane_step, k_step);
    }
}

// Without this minimum of blocks, the compiler spills registers to fit more blocks.
extern "C" __global__ void __launch_bounds__(THREADS, TM == 8 ? 2 : 1) gemm(const T* __restrict__ a, const T* __restrict__ b, C* c, const __grid_constant__ Gemm p) {
    __shared__ __align__(16) A as[2][BK * LDA];
    __shared__ __align__(16) A bs[2][BK * LDB];
    // Needed only at the end, so it is kept in shared memory rather than in registers.
    __shared__ Task results;
    const int ty = threadIdx.x / (BN / TN), tx = threadIdx.x % (BN / TN);
    const int HM = TM / 2, HN = TN / 2;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Task t = task_of(p, a, b, task);
        if (threadIdx.x == 0) results = t;
        A sum[TM][TN];
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) sum[i][j] = 0;
        load_tile<BM, LDA, A_ROWS, A_ALONG_K>(as[0], t.a, t.row, p.m, t.first, t.end, p.a_m, p.a_k);
        load_tile<BN, LDB, B_COLS, B_ALONG_K>(bs[0], t.b, t.col, p.n, t.first, t.end, p.b_n, p.b_k);
        commit_copies();
        int at = 0;
        for (int k0 = t.first; k0 < t.end; k0 += BK, at ^= 1) {
            if (k0 + BK < t.end) {
                load_tile<BM, LDA, A_ROWS, A_ALONG_K>(as[at ^ 1], t.a, t.row, p.m, k0 + BK, t.end, p.a_m, p.a_k);
                load_tile<BN, LDB, B_COLS, B_ALONG_K>(bs[at ^ 1], t.b, t.col, p.n, k0 + BK, t.end, p.b_n, p.b_k);
            }
            commit_copies();
            wait_for_copies<1>();
            __syncthreads();
#pragma unroll
            for (int kk = 0; kk < BK; kk++) {
                A x[TM], y[TN];
#pragma unroll
                for (int i = 0; i < HM; i++) {
                    x[i] = as[at][kk * LDA + ty * HM + i];
                    x[HM + i] = as[at][kk * LDA + BM / 2 + ty * HM + i];
                }
#pragma unroll
                for (int j = 0; j < HN; j++) {
                    y[j] = bs[at][kk * LDB + tx * HN + j];
                    y[HN + j] = bs[at][kk * LDB + BN / 2 + tx * HN + j];
                }
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) sum[i][j] = multiply_add(x[i], y[j], sum[i][j]);
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) {
                int row = results.row + (i < HM ? ty * HM + i : BM / 2 + ty * HM + i - HM);
                int col = results.col + (j < HN ? tx * HN + j : BN / 2 + tx * HN + j - HN);
                store(p, c, results, row, col, sum[i][j]);
            }
        // The next task overwrites them.
        __syncthreads();
    }
}
