// What kernels that work along lines of a tensor share: where the elements lie, who handles them, and sums over a line.
//
// T: element type. A: type of sums. OPERANDS: number of operands. KEPT, INNER: number of axes across and along a line.
// THREADS: threads of a block. LANES: threads that share a line. COLUMNS: neighbouring threads have neighbouring lines
// (32 of them in a block), otherwise neighbouring elements of one line; then LANES is 32 or THREADS.
// WIDE: a thread handles this many neighbouring elements at a time. More than 1 needs operands whose lines are neighbouring
// elements and begin at multiples of 16 bytes, and lines of a multiple of WIDE elements.
// PER: if not 0, a line has at most PER * LANES * WIDE elements, which are kept in registers.

struct Rows {
    i64 lines;
    u32 n;                  // elements of a line
    u32 parts, depth;       // lines are cut into parts of this many elements
    u32 kept[KEPT + 1], inner[INNER + 1];
    i64 kept_step[OPERANDS][KEPT + 1], inner_step[OPERANDS][INNER + 1];
    A numbers[3];
    i64 ignore;
};

#define EVERY 0xffffffffu
#define LINES (COLUMNS ? 32 : THREADS / LANES)

struct Line {
    i64 base[OPERANDS];     // where the line begins in each operand
    i64 number;             // which line it is
    u32 part;
    u32 first, end;         // its elements in this part; none for threads without a line
    u32 lane;
};

// The line of this thread, for block `block` of all lines and parts.
INLINE Line line_of(const Rows& p, i64 block) {
    Line l;
    i64 blocks = (p.lines + LINES - 1) / LINES;
    l.part = (u32)(block / blocks);
    i64 line = block % blocks * LINES + (COLUMNS ? threadIdx.x % 32 : threadIdx.x / LANES);
    l.lane = COLUMNS ? threadIdx.x / 32 : threadIdx.x % LANES;
    bool live = line < p.lines;
    l.number = line;
    l.first = l.part * p.depth;
    l.end = live ? min(p.n, l.first + p.depth) : l.first;
    i64 rest = live ? line : 0;
#pragma unroll
    for (int o = 0; o < OPERANDS; o++) l.base[o] = 0;
#pragma unroll
    for (int axis = KEPT - 1; axis >= 0; axis--) {
        i64 at = rest % p.kept[axis];
        rest /= p.kept[axis];
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) l.base[o] += at * p.kept_step[o][axis];
    }
    return l;
}

INLINE bool is_first(const Line& l) { return l.end > l.first && l.lane == 0; }

// The position of element j of a line in an operand.
INLINE i64 at(const Rows& p, const Line& l, int operand, u32 j) {
    if (INNER <= 1) return l.base[operand] + (i64)j * p.inner_step[operand][0];
    i64 position = l.base[operand];
#pragma unroll
    for (int axis = INNER - 1; axis > 0; axis--) {
        position += (i64)(j % p.inner[axis]) * p.inner_step[operand][axis];
        j /= p.inner[axis];
    }
    return position + (i64)j * p.inner_step[operand][0];
}

// Neighbouring elements of a line, as sums take them.
struct Elements { A v[WIDE]; };
#define ALL(k) _Pragma("unroll") for (int k = 0; k < WIDE; k++)

INLINE Elements load(const T* __restrict__ from, i64 position) {
    Elements e;
#if WIDE > 1
    const Pack<T, WIDE> pack = *(const Pack<T, WIDE>*)(from + position);
    ALL(k) e.v[k] = widen(pack.v[k]);
#else
    e.v[0] = widen(from[position]);
#endif
    return e;
}

INLINE void store(T* __restrict__ to, i64 position, const Elements& e) {
#if WIDE > 1
    Pack<T, WIDE> pack;
    ALL(k) pack.v[k] = narrow<T>(e.v[k]);
    *(Pack<T, WIDE>*)(to + position) = pack;
#else
    to[position] = narrow<T>(e.v[0]);
#endif
}

// Calls f(j, i) for the elements of this thread, j being the first of WIDE of them; i counts the calls if PER is set.
template <typename F> INLINE void each(const Line& l, F f) {
#if PER
#pragma unroll
    for (int i = 0; i < PER; i++) {
        u32 j = l.first + (l.lane + i * LANES) * WIDE;
        if (j < l.end) f(j, i);
    }
#else
    for (u32 j = l.first + l.lane * WIDE; j < l.end; j += LANES * WIDE) f(j, 0);
#endif
}

// Elements in registers if PER is set, or else loaded again.
#if PER
#define HELD(name) Elements name[PER]
#define HOLD(name, i, value) (name[i] = (value))
#define AGAIN(name, i, value) name[i]
#else
#define HELD(name)
#define HOLD(name, i, value) (value)
#define AGAIN(name, i, value) (value)
#endif

struct Plus { template <typename V> static INLINE V of(V a, V b) { return a + b; } };
// NaN wins.
struct Larger { template <typename V> static INLINE V of(V a, V b) { return a != a || a > b ? a : b; } };

// Combines a value of each thread of a line in a fixed tree; every thread of the line gets the result. All threads of
// the block must call this.
template <typename Op> INLINE A combined(A v) {
#if LANES == 1
    return v;
#elif COLUMNS
    __shared__ A all[LANES][32];
    all[threadIdx.x / 32][threadIdx.x % 32] = v;
    __syncthreads();
    v = all[0][threadIdx.x % 32];
#pragma unroll
    for (int lane = 1; lane < LANES; lane++) v = Op::of(v, all[lane][threadIdx.x % 32]);
    __syncthreads();
    return v;
#else
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v = Op::of(v, __shfl_xor_sync(EVERY, v, apart));
#if LANES > 32
    __shared__ A all[LANES / 32];
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = v;
    __syncthreads();
    v = all[0];
#pragma unroll
    for (int warp = 1; warp < LANES / 32; warp++) v = Op::of(v, all[warp]);
    __syncthreads();
#endif
    return v;
#endif
}

INLINE A sum_of(A v) { return combined<Plus>(v); }
INLINE A largest_of(A v) { return combined<Larger>(v); }

INLINE bool finite(A v) { return v - v == 0; }
INLINE A infinity() { return (A)__uint_as_float(0x7f800000u); }

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define PARAMETERS const __grid_constant__ Rows p
#define FOR_EACH_LINE(l) \
    for (i64 block = blockIdx.x, blocks = (p.lines + LINES - 1) / LINES * p.parts; block < blocks; block += gridDim.x) \
        if (const Line l = line_of(p, block); true)
