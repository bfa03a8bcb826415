// Adds the parts of products whose inner axis was cut, in their order, and stores the result.

extern "C" __global__ void __launch_bounds__(256) gemm_sum(const A* __restrict__ parts, C* c, const __grid_constant__ Gemm p) {
    // Here `tasks` is the number of results. The parts lie one after the other, each contiguous.
    for (i64 at = (i64)blockIdx.x * 256 + threadIdx.x; at < p.tasks; at += (i64)gridDim.x * 256) {
        A sum = parts[at];
        for (int part = 1; part < p.parts; part++) sum += parts[at + part * p.tasks];
        Task t;
        int col = (int)(at % p.n);
        i64 rest = at / p.n;
        int row = (int)(rest % p.m);
        i64 matrix = rest / p.m;
        t.c = 0;
#pragma unroll
        for (int axis = BATCH - 1; axis >= 0; axis--) {
            t.c += matrix % p.dims[axis] * p.c_step[axis];
            matrix /= p.dims[axis];
        }
        store(p, c, t, row, col, sum);
    }
}
