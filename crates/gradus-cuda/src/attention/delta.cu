// delta [b, h, lq]: for each query the sum of g * out, which the gradient of its scores needs. A warp has one query.

extern "C" __global__ void __launch_bounds__(256) attention_delta(const T* __restrict__ out, const T* __restrict__ g, A* __restrict__ delta, const __grid_constant__ Attention p) {
    const int lane = threadIdx.x % 32;
    // Here `tasks` is the number of queries of all heads.
    for (i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32; row < p.tasks; row += (i64)gridDim.x * 8) {
        const i64 head = row / p.lq, query = row % p.lq, b = head / p.h, h = head % p.h;
        const T* o = out + b * p.out[0] + h * p.out[1] + query * p.out[2];
        const T* slope = g + b * p.g[0] + h * p.g[1] + query * p.g[2];
        A sum = 0;
        for (int e = lane; e < p.dv; e += 32) sum = multiply_add(widen(o[e * p.out[3]]), widen(slope[e * p.g[3]]), sum);
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(EVERY, sum, apart);
        if (lane == 0) delta[row] = sum;
    }
}
