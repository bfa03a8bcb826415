// Products of matrices of half precision on tensor cores, in tiles of BM x BN x BK, summed in f32. WM x WN warps share
// a tile; STAGES tiles of each factor are in flight.
//
// BF16: whether T is bf16. A_ROWS: the tile of a is stored with its rows as the fast axis, otherwise with k; B_COLS:
// likewise b. A_GROUPS, B_GROUPS: the fast axis is contiguous, and its groups of 8 elements are aligned.
// PAIRS: two neighbouring columns of c can be stored at once.

#define THREADS (WM * WN * 32)
#define FM (BM / WM / 16)
#define FN (BN / WN / 8)
#define A_LINES (A_ROWS ? BK : BM)
#define A_FAST (A_ROWS ? BM : BK)
#define B_LINES (B_COLS ? BK : BN)
#define B_FAST (B_COLS ? BN : BK)
#define LDA (A_FAST + 8)
#define LDB (B_FAST + 8)
#define A_SIZE (A_LINES * LDA)
#define B_SIZE (B_LINES * LDB)

INLINE void load_tiles(u16* as, u16* bs, const Gemm& p, const Task& t, int k0) {
    if constexpr (A_ROWS) {
        load_tile<THREADS, BK, BM, A_GROUPS>(as, t.a, k0, t.end, t.row, p.m, p.a_k, p.a_m);
    } else {
        load_tile<THREADS, BM, BK, A_GROUPS>(as, t.a, t.row, p.m, k0, t.end, p.a_m, p.a_k);
    }
    if constexpr (B_COLS) {
        load_tile<THREADS, BK, BN, B_GROUPS>(bs, t.b, k0, t.end, t.col, p.n, p.b_k, p.b_n);
    } else {
        load_tile<THREADS, BN, BK, B_GROUPS>(bs, t.b, t.col, p.n, k0, t.end, p.b_n, p.b_k);
    }
}

INLINE void store_pair(const Gemm& p, C* c, const Task& t, int row, int col, A x, A y) {
#if PAIRS
    if (row < p.m && col + 1 < p.n && !p.added) {
        if (p.scaled) { x = p.alpha * x; y = p.alpha * y; }
        *(u32*)(c + t.c + row * p.c_m + col) = (u32)narrow<C>(x).bits | (u32)narrow<C>(y).bits << 16;
        return;
    }
#endif
    store(p, c, t, row, col, x);
    store(p, c, t, row, col + 1, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm(const T* __restrict__ a, const T* __restrict__ b, C* c, const __grid_constant__ Gemm p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const as = shared;
    u16* const bs = shared + STAGES * A_SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = warp / WN * (FM * 16), col0 = warp % WN * (FN * 8);
    // The row of an 8 x 8 matrix whose address this lane gives to ldmatrix.
    const int low = (lane / 8 & 1) * 8 + lane % 8, high = lane / 16 * 8;
    const int other_low = lane / 16 * 8 + lane % 8, other_high = (lane / 8 & 1) * 8;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Task t = task_of(p, a, b, task);
        A sum[FM][FN][4];
#pragma unroll
        for (int i = 0; i < FM; i++)
#pragma unroll
            for (int j = 0; j < FN; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (t.first + s * BK < t.end) load_tiles(as + s * A_SIZE, bs + s * B_SIZE, p, t, t.first + s * BK);
            commit_copies();
        }
        int at = 0;
        for (int k0 = t.first; k0 < t.end; k0 += BK) {
            wait_for_copies<STAGES - 2>();
            // All threads have finished with the stage that is overwritten next.
            __syncthreads();
            int next = at == 0 ? STAGES - 1 : at - 1;
            if (k0 + (STAGES - 1) * BK < t.end) load_tiles(as + next * A_SIZE, bs + next * B_SIZE, p, t, k0 + (STAGES - 1) * BK);
            commit_copies();
            const u16* x = as + at * A_SIZE;
            const u16* y = bs + at * B_SIZE;
#pragma unroll
            for (int kk = 0; kk < BK; kk += 16) {
                u32 f[FM][4], g[FN][2];
#pragma unroll
                for (int i = 0; i < FM; i++) {
                    if constexpr (A_ROWS) {
                        load_matrices_transposed(f[i], x + (kk + other_low) * LDA + row0 + i * 16 + other_high);
                    } else {
                        load_matrices(f[i], x + (row0 + i * 16 + low) * LDA + kk + high);
                    }
                }
#pragma unroll
                for (int j = 0; j < FN; j += 2) {
                    u32 four[4];
                    if constexpr (B_COLS) {
                        load_matrices_transposed(four, y + (kk + low) * LDB + col0 + j * 8 + high);
                    } else {
                        load_matrices(four, y + (col0 + j * 8 + other_low) * LDB + kk + other_high);
                    }
                    g[j][0] = four[0]; g[j][1] = four[1]; g[j + 1][0] = four[2]; g[j + 1][1] = four[3];
                }
#pragma unroll
                for (int i = 0; i < FM; i++)
#pragma unroll
                    for (int j = 0; j < FN; j++) multiply_matrices<BF16>(sum[i][j], f[i], g[j]);
            }
            at = at == STAGES - 1 ? 0 : at + 1;
        }
        wait_for_copies<0>();
        // The next task overwrites the first stages.
        __syncthreads();
#pragma unroll
        for (int i = 0; i < FM; i++)
#pragma unroll
            for (int j = 0; j < FN; j++) {
                int row = t.row + row0 + i * 16 + lane / 4, col = t.col + col0 + j * 8 + lane % 4 * 2;
                store_pair(p, c, t, row, col, sum[i][j][0], sum[i][j][1]);
                store_pair(p, c, t, row + 8, col, sum[i][j][2], sum[i][j][3]);
            }
    }
}
