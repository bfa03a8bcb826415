// Products in which one factor has few rows or columns: sums of products without tiles, because most of a tile would be
// empty. The long factor is a if BY_ROWS is set, else b. A block computes 8 of its rows (columns), one for each warp, if
// ALONG_K says that it is contiguous along k, and otherwise 32, one for each lane, and the 8 warps share k. Of the other
// factor it takes SHORT columns (rows).

#define SHORT (BY_ROWS ? BN : BM)

// Without a minimum of blocks, the compiler spills registers of sums of 8 bytes to fit more blocks. 0 is no minimum.
extern "C" __global__ void __launch_bounds__(256, sizeof(A) == 8 ? 1 : 0) gemm(const T* __restrict__ a, const T* __restrict__ b, C* c, const __grid_constant__ Gemm p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 x_long = BY_ROWS ? p.a_m : p.b_n, x_k = BY_ROWS ? p.a_k : p.b_k;
    const i64 y_k = BY_ROWS ? p.b_k : p.a_k, y_short = BY_ROWS ? p.b_n : p.a_m;
    const int longs = BY_ROWS ? p.m : p.n, shorts = BY_ROWS ? p.n : p.m;
#if !ALONG_K
    __shared__ A sums[8][SHORT][32];
#endif
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Task t = task_of(p, a, b, task);
        const int long0 = BY_ROWS ? t.row : t.col, short0 = BY_ROWS ? t.col : t.row;
        const int own = long0 + (ALONG_K ? warp : lane);
        // Rows (columns) past the end repeat the last one; their results are not stored.
        const T* x = (BY_ROWS ? t.a : t.b) + min(own, longs - 1) * x_long;
        const T* y = (BY_ROWS ? t.b : t.a) + short0 * y_short;
        A sum[SHORT];
#pragma unroll
        for (int s = 0; s < SHORT; s++) sum[s] = 0;
        const int step = ALONG_K ? 32 : 8;
#pragma unroll 2
        for (int k = t.first + (ALONG_K ? lane : warp); k < t.end; k += step) {
            A factor = widen(x[k * x_k]);
#pragma unroll
            for (int s = 0; s < SHORT; s++)
                if (short0 + s < shorts) sum[s] = multiply_add(factor, widen(y[k * y_k + s * y_short]), sum[s]);
        }
#if ALONG_K
#pragma unroll
        for (int s = 0; s < SHORT; s++) {
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) sum[s] += __shfl_xor_sync(0xffffffffu, sum[s], apart);
            if (lane == 0 && own < longs) store(p, c, t, BY_ROWS ? own : short0 + s, BY_ROWS ? short0 + s : own, sum[s]);
        }
#else
#pragma unroll
        for (int s = 0; s < SHORT; s++) sums[warp][s][lane] = sum[s];
        __syncthreads();
        for (int s = warp; s < SHORT; s += 8) {
            A all = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) all += sums[w][s][lane];
            if (own < longs) store(p, c, t, BY_ROWS ? own : short0 + s, BY_ROWS ? short0 + s : own, all);
        }
        __syncthreads();
#endif
    }
}
