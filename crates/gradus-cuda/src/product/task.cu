// What the two kernels of matrix products share: their parameters, the tile of a block, and how results are stored.
//
// T: element type. A: type of sums. C: type of the result. BATCH: number of batch axes. BM, BN: sizes of a tile.

struct Gemm {
    i64 tasks;                // tiles of all matrices and parts
    i64 a_m, a_k, b_k, b_n, c_m, c_n;
    i64 part_step;            // distance between the results of two parts of k
    A alpha, beta;
    int m, n, k;
    int tiles_m, tiles_n;
    int parts, depth;         // k is cut into parts of this many elements
    int scaled, added;        // alpha is not 1; beta is not 0
    u32 dims[BATCH + 1];
    i64 a_step[BATCH + 1], b_step[BATCH + 1], c_step[BATCH + 1];
};

struct Task {
    const T* a;
    const T* b;
    i64 c;
    int row, col, first, end;
};

// The tile of a task. Tiles that run at the same time share rows and columns: they are numbered in bands of 8 rows.
INLINE Task task_of(const Gemm& p, const T* a, const T* b, i64 task) {
    Task t;
    i64 cells = (i64)p.tiles_m * p.tiles_n;
    i64 cell = task % cells, rest = task / cells;
    i64 band = cell / (8 * (i64)p.tiles_n);
    i64 within = cell - band * 8 * p.tiles_n;
    int high = min(8, p.tiles_m - (int)band * 8);
    t.row = ((int)band * 8 + (int)(within % high)) * BM;
    t.col = (int)(within / high) * BN;
    int part = (int)(rest % p.parts);
    i64 matrix = rest / p.parts;
    t.first = part * p.depth;
    t.end = min(p.k, t.first + p.depth);
    t.a = a;
    t.b = b;
    t.c = part * p.part_step;
#pragma unroll
    for (int axis = BATCH - 1; axis >= 0; axis--) {
        i64 at = matrix % p.dims[axis];
        matrix /= p.dims[axis];
        t.a += at * p.a_step[axis];
        t.b += at * p.b_step[axis];
        t.c += at * p.c_step[axis];
    }
    return t;
}

INLINE void store(const Gemm& p, C* c, const Task& t, int row, int col, A sum) {
    if (row >= p.m || col >= p.n) return;
    C* to = c + t.c + row * p.c_m + col * p.c_n;
    if (p.scaled) sum = p.alpha * sum;
    if (p.added) sum = multiply_add(p.beta, widen(*to), sum);
    *to = narrow<C>(sum);
}
