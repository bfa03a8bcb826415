// Products of matrices of f32 on tensor cores, in tiles of BM x BN x BK: each factor is rounded to the 11 significant bits
// of tf32, products are exact, and sums are those of f32. WM x WN warps share a tile; STAGES tiles of each factor are in
// flight.
//
// A_ROWS: the tile of a is stored with its rows as the fast axis, otherwise with k; B_COLS: likewise b. A_GROUPS, B_GROUPS:
// the fast axis is contiguous, and its groups of 4 elements are aligned.

#define THREADS (WM * WN * 32)
#define FM (BM / WM / 16)
#define FN (BN / WN / 8)
// With these ends of rows of shared memory, the 32 elements that a warp reads at once lie in different banks.
#define LDA (A_ROWS ? BM + 8 : BK + 4)
#define LDB (B_COLS ? BN + 8 : BK + 4)
#define A_SIZE ((A_ROWS ? BK : BM) * LDA)
#define B_SIZE ((B_COLS ? BK : BN) * LDB)

// Copies a tile of LINES x FAST elements to shared memory, in rows of LD; those outside the tensor are 0.
template <int LINES, int FAST, int LD, bool GROUPS>
INLINE void load_tile(f32* to, const f32* from, int line0, int lines, int fast0, int fasts, i64 line_step, i64 fast_step) {
    if constexpr (GROUPS) {
        const int across = FAST / 4;
#pragma unroll
        for (int at = threadIdx.x; at < LINES * across; at += THREADS) {
            int line = at / across, fast = at % across * 4;
            int count = line0 + line < lines ? min(max(fasts - fast0 - fast, 0), 4) : 0;
            const f32* first = from + (line0 + line) * line_step + fast0 + fast;
            copy_async<16>(to + line * LD + fast, count > 0 ? first : from, count * 4);
        }
    } else {
#pragma unroll 2
        for (int at = threadIdx.x; at < LINES * FAST; at += THREADS) {
            int line = at / FAST, fast = at % FAST;
            bool inside = line0 + line < lines && fast0 + fast < fasts;
            const f32* one = from + (line0 + line) * line_step + (fast0 + fast) * fast_step;
            copy_async<4>(to + line * LD + fast, inside ? one : from, inside ? 4 : 0);
        }
    }
}

INLINE void load_tiles(f32* as, f32* bs, const Gemm& p, const Task& t, int k0) {
    if constexpr (A_ROWS) {
        load_tile<BK, BM, LDA, A_GROUPS>(as, t.a, k0, t.end, t.row, p.m, p.a_k, p.a_m);
    } else {
        load_tile<BM, BK, LDA, A_GROUPS>(as, t.a, t.row, p.m, k0, t.end, p.a_m, p.a_k);
    }
    if constexpr (B_COLS) {
        load_tile<BK, BN, LDB, B_GROUPS>(bs, t.b, k0, t.end, t.col, p.n, p.b_k, p.b_n);
    } else {
        load_tile<BN, BK, LDB, B_GROUPS>(bs, t.b, t.col, p.n, k0, t.end, p.b_n, p.b_k);
    }
}

// The nearest number of tf32, that with the larger magnitude if two are as near.
INLINE u32 rounded(f32 x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// Adds the product of a 16 x 8 and an 8 x 8 matrix to a 16 x 8 matrix. Lane l has the elements of rows l / 4 and l / 4 + 8,
// and of columns l % 4 and l % 4 + 4 (2 * (l % 4) and the next of the sums); of b, those of column l / 4.
INLINE void multiply_matrices(f32* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm(const T* __restrict__ a, const T* __restrict__ b, C* c, const __grid_constant__ Gemm p) {
    extern __shared__ __align__(16) f32 shared[];
    f32* const as = shared;
    f32* const bs = shared + STAGES * A_SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = warp / WN * (FM * 16) + lane / 4, col0 = warp % WN * (FN * 8) + lane / 4;
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
            const f32* x = as + at * A_SIZE;
            const f32* y = bs + at * B_SIZE;
#pragma unroll
            for (int kk = 0; kk < BK; kk += 8) {
                const int k = kk + lane % 4;
                u32 f[FM][4], g[FN][2];
#pragma unroll
                for (int i = 0; i < FM; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int row = row0 + i * 16 + e % 2 * 8, col = k + e / 2 * 4;
                        f[i][e] = rounded(A_ROWS ? x[col * LDA + row] : x[row * LDA + col]);
                    }
#pragma unroll
                for (int j = 0; j < FN; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int row = k + e * 4, col = col0 + j * 8;
                        g[j][e] = rounded(B_COLS ? y[row * LDB + col] : y[col * LDB + row]);
                    }
#pragma unroll
                for (int i = 0; i < FM; i++)
#pragma unroll
                    for (int j = 0; j < FN; j++) multiply_matrices(sum[i][j], f[i], g[j]);
            }
            at = at == STAGES - 1 ? 0 : at + 1;
        }
        wait_for_copies<0>();
        // The next task overwrites the first stages.
        __syncthreads();
#pragma unroll
        for (int i = 0; i < FM; i++)
#pragma unroll
            for (int j = 0; j < FN; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int row = t.row + row0 + i * 16 + e / 2 * 8, col = t.col + col0 - lane / 4 + j * 8 + lane % 4 * 2 + e % 2;
                    store(p, c, t, row, col, sum[i][j][e]);
                }
    }
}
