// What kernels that work along lines of a tensor share: where the elements lie, who handles them, and sums over a line.
//
// T: element type. A: type of sums. OPERANDS: number of operands. KEPT, INNER: number of axes across and along a line.
// THREADS: threads of a block. LANES: threads that share a line. COLUMNS: neighbouring threads have neighbouring lines
// (32 of them in a block), otherwise neighbouring elements of one line; then LANES is 32 or THREADS.
// WIDE: a thread handles this many neighbouring elements at a time, a pack of 16 bytes. More than 1 needs operands whose lines
// are neighbouring elements. Unless PEELED is set, lines begin at multiples of 16 bytes and have a multiple of WIDE elements.
// PEELED: the packs of a line begin at its first multiple of 16 bytes, and the elements before and after them are handled one
// by one. The lines of all operands are equally far from a multiple.
// BESIDE: with COLUMNS, a thread may have this many neighbouring lines, which are counted as one.
// PER: if not 0, a line has at most PER * LANES * WIDE elements, which are kept in registers as they were loaded.

struct Rows {
    i64 lines;
    u32 n;                  // elements of a line
    u32 parts, depth;       // lines are cut into parts of this many elements
    u32 skew;               // how many elements after a multiple of 16 bytes the first operand begins
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
    l.part = 0;
    if (p.parts > 1) {
        i64 blocks = (p.lines + LINES - 1) / LINES;
        l.part = (u32)(block / blocks);
        block %= blocks;
    }
    i64 line = block * LINES + (COLUMNS ? threadIdx.x % 32 : threadIdx.x / LANES);
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
        i64 at = axis > 0 ? rest % p.kept[axis] : rest;
        if (axis > 0) rest /= p.kept[axis];
#pragma unroll
        for (int o = 0; o < OPERANDS; o++) l.base[o] += at * p.kept_step[o][axis];
    }
    return l;
}

INLINE bool is_first(const Line& l) { return l.end > l.first && l.lane == 0; }

// The position of element j of a line in an operand; with packs, in one whose lines are neighbouring elements.
INLINE i64 at(const Rows& p, const Line& l, int operand, u32 j) {
    if (WIDE > 1) return l.base[operand] + j;
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
template <int N> struct Elements { A v[N]; };
template <int N> struct Wide { static constexpr int count = N; };
#define WIDTH decltype(w)::count
#define ALL(k) _Pragma("unroll") for (int k = 0; k < WIDTH; k++)

template <int N> INLINE Pack<T, N> pack_of(Wide<N>, const T* __restrict__ from, i64 position) {
    return *(const Pack<T, N>*)(from + position);
}
template <int N> INLINE Elements<N> widened(const Pack<T, N>& pack) {
    Elements<N> e;
#pragma unroll
    for (int k = 0; k < N; k++) e.v[k] = widen(pack.get(k));
    return e;
}
template <int N> INLINE Elements<N> load(Wide<N> w, const T* __restrict__ from, i64 position) {
    return widened(pack_of(w, from, position));
}
template <int N> INLINE void store(T* __restrict__ to, i64 position, const Elements<N>& e) {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; k++) pack.v[k] = narrow<T>(e.v[k]);
    *(Pack<T, N>*)(to + position) = pack;
}

// Calls f(w, j, i) for the elements of this thread, j being the first of WIDTH of them; i counts the calls if PER is set.
template <typename F> INLINE void each(const Rows& p, const Line& l, F f) {
#if PER
#pragma unroll
    for (int i = 0; i < PER; i++) {
        u32 j = l.first + (l.lane + i * LANES) * WIDE;
        if (j < l.end) f(Wide<WIDE>(), j, i);
    }
#elif PEELED
    const u32 head = min(l.end, (0u - p.skew - (u32)l.base[0]) % WIDE), tail = head + (l.end - head) / WIDE * WIDE;
    if (l.lane < head) f(Wide<1>(), l.lane, 0);
    for (u32 j = head + l.lane * WIDE; j < tail; j += LANES * WIDE) f(Wide<WIDE>(), j, 0);
    if (l.lane < l.end - tail) f(Wide<1>(), tail + l.lane, 0);
#else
    for (u32 j = l.first + l.lane * WIDE; j < l.end; j += LANES * WIDE) f(Wide<WIDE>(), j, 0);
#endif
}
#define EACH(l) each(p, l, [&](auto w, u32 j, int i)

// What is kept of an operand if PER is set; otherwise it is loaded again. All loads begin before one is waited for.
#if PER
#define HELD(name, l, from, operand) \
    Pack<T, WIDE> name[PER]; \
    EACH(l) { name[i] = pack_of(w, from, at(p, l, operand, j)); })
#define AGAIN(name, l, from, operand) widened(name[i])
#else
#define HELD(name, l, from, operand)
#define AGAIN(name, l, from, operand) load(w, from, at(p, l, operand, j))
#endif

struct Plus { template <typename V> static INLINE V of(V a, V b) { return a + b; } };
// NaN wins.
struct Larger {
    static INLINE f32 of(f32 a, f32 b) { return max_or_nan(a, b); }
    static INLINE f64 of(f64 a, f64 b) { return a != a || a > b ? a : b; }
};

// Combines each of N values of the threads of a line in a fixed tree; every thread of the line gets the results. All threads
// of the block must call this.
template <typename Op, int N> INLINE void combine(A (&v)[N]) {
#if COLUMNS
    __shared__ A all[N][LANES][32];
#pragma unroll
    for (int k = 0; k < N; k++) all[k][threadIdx.x / 32][threadIdx.x % 32] = v[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = all[k][0][threadIdx.x % 32];
#pragma unroll
        for (int lane = 1; lane < LANES; lane++) v[k] = Op::of(v[k], all[k][lane][threadIdx.x % 32]);
    }
    __syncthreads();
#else
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = Op::of(v[k], __shfl_xor_sync(EVERY, v[k], apart));
    }
#if LANES > 32
    __shared__ A all[N][LANES / 32];
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int k = 0; k < N; k++) all[k][threadIdx.x / 32] = v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = all[k][0];
#pragma unroll
        for (int warp = 1; warp < LANES / 32; warp++) v[k] = Op::of(v[k], all[k][warp]);
    }
    __syncthreads();
#endif
#endif
}

INLINE A sum_of(A v) {
    A one[1] = {v};
    combine<Plus>(one);
    return one[0];
}
INLINE A largest_of(A v) {
    A one[1] = {v};
    combine<Larger>(one);
    return one[0];
}
// Whether a thread of the line says so; threads of other lines of the block may count too.
INLINE bool any_of(bool v) { return LANES == 32 && !COLUMNS ? __any_sync(EVERY, v) : __syncthreads_or(v); }

INLINE bool finite(A v) { return v - v == 0; }
INLINE A infinity() { return (A)__uint_as_float(0x7f800000u); }

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define PARAMETERS const __grid_constant__ Rows p
#define FOR_EACH_LINE(l) \
    for (i64 block = blockIdx.x, blocks = (p.lines + LINES - 1) / LINES * p.parts; block < blocks; block += gridDim.x) \
        if (const Line l = line_of(p, block); true)
