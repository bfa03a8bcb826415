__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter;
extern __shared__ float dynamic[];

__device__ __noinline__ float slow(float x, int *p) {
    *p = 3;
    return sinf(x);
}

extern "C" __global__ void __launch_bounds__(256) reduce(const float *__restrict__ x, float *y, int n) {
    __shared__ float sums[256];
    float sum = 0;
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) sum += x[i] * table[i & 3];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int offset = 128; offset > 0; offset >>= 1) {
        if (threadIdx.x < offset) sums[threadIdx.x] += sums[threadIdx.x + offset];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        int three;
        y[blockIdx.x] = slow(sums[0], &three) + three;
        atomicAdd(&counter, 1);
        dynamic[0] = sum;
        printf("block %d of %d: %5.2f\n", blockIdx.x, gridDim.x, sums[0]);
    }
    if (n < 0) asm volatile("trap;");
}

extern "C" __global__ void functions(const double *x, double *y, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= n) return;
    double v = x[i];
    switch (i % 10) {
    case 0: v = sin(v); break;
    case 1: v = exp(v); break;
    case 2: v = log(fabs(v)); break;
    case 3: v = pow(fabs(v), 1.5); break;
    case 4: v = tanh(v); break;
    case 5: v = erf(v); break;
    case 6: v = cbrt(v); break;
    case 7: v = atan(v); break;
    case 8: v = lgamma(fabs(v) + 1); break;
    case 9: v = 1 / v; break;
    }
    y[i] = v;
}

extern "C" __global__ void functions32(const float *x, float *y, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= n) return;
    float v = x[i];
    switch (i % 10) {
    case 0: v = sinf(v); break;
    case 1: v = expf(v); break;
    case 2: v = logf(fabsf(v)); break;
    case 3: v = powf(fabsf(v), 1.5f); break;
    case 4: v = tanhf(v); break;
    case 5: v = erff(v); break;
    case 6: v = cbrtf(v); break;
    case 7: v = atanf(v); break;
    case 8: v = sqrtf(fabsf(v)); break;
    case 9: v = 1 / v; break;
    }
    y[i] = v;
}
