#include <cuda_fp16.h>

extern "C" {

// c = a b for square matrices; tiles of 64 x 64 in shared memory, 4 x 4 sums a thread.
__global__ void __launch_bounds__(256) gemm(const float *a, const float *b, float *c, int n) {
    __shared__ float ta[16][64 + 4], tb[16][64 + 4];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int row = blockIdx.y * 64, col = blockIdx.x * 64;
    float sums[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            ta[i % 16][i / 16] = a[(row + i / 16) * n + k + i % 16];
            tb[i / 64][i % 64] = b[(k + i / 64) * n + col + i % 64];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float4 x = *(float4 *)&ta[j][ty * 4], y = *(float4 *)&tb[j][tx * 4];
            float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 4; s++) sums[r][s] += xs[r] * ys[s];
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        for (int s = 0; s < 4; s++) c[(row + ty * 4 + r) * n + col + tx * 4 + s] = sums[r][s];
}

__global__ void gelu(const float4 *x, float4 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    auto f = [](float v) { return 0.5f * v * (1 + tanhf(0.797884561f * (v + 0.044715f * v * v * v))); };
    y[i] = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
}

__global__ void add_half(const __half2 *x, const __half2 *y, __half2 *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = __hfma2(x[i], y[i], x[i]);
}
}
