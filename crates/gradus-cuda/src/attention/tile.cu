// What the kernels on tensor cores share. A warp has STRIPS strips of 16 rows. Rows of shared memory are 16 bytes longer than
// a tile, so that the 8 rows of a matrix lie in different banks.

#define ROW(size) ((size) + 8)

struct Lanes {
    int lane, warp;
    int low, high;              // the row of a left factor that this lane addresses
    int other_low, other_high;  // the same of a right factor that is stored by columns
};

INLINE Lanes lanes() {
    const int lane = threadIdx.x % 32;
    return {lane, (int)threadIdx.x / 32, (lane / 8 & 1) * 8 + lane % 8, lane / 16 * 8, lane / 16 * 8 + lane % 8, (lane / 8 & 1) * 8};
}

// As factors, weights of f16 are multiplied by this, since f16 does not reach far down. They are at most 2^8 before.
#define RAISED (BF16 ? 1.0f : 128.0f)

// Whether all queries from `query` on see the `count` keys from `key` on, and no score changes.
INLINE bool sees_all(const Attention& p, int query, int key, int count) {
    return MASK == 0 && key + count <= p.lk && (!CAUSAL || key + count - 1 - query <= p.lk - p.lq);
}

template <bool IS_BF16> INLINE f32 low_half(u32 word) {
    return IS_BF16 ? __uint_as_float(word << 16) : wide(f16{(u16)word});
}
template <bool IS_BF16> INLINE f32 high_half(u32 word) {
    return IS_BF16 ? __uint_as_float(word & 0xffff0000u) : wide(f16{(u16)(word >> 16)});
}

// The same number, of which the compiler does not know what was computed from it before: that is then computed once more,
// rather than held in registers through a loop.
INLINE int again(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Copies rows of a head to shared memory; those after the last one are 0.
template <int LINES, int SIZE, bool GROUPS>
INLINE void load_rows(u16* to, const T* from, int line0, int lines, int size, const i64* steps) {
    if constexpr (GROUPS) {
        if (line0 + LINES <= lines && size == SIZE) {
            constexpr int ACROSS = SIZE / 8, COUNT = LINES * ACROSS;
            if constexpr (128 % ACROSS == 0 && COUNT % 128 == 0) {
                const int line = threadIdx.x / ACROSS, fast = threadIdx.x % ACROSS * 8;
                const T* at = from + (line0 + line) * steps[2] + fast;
#pragma unroll
                for (int i = 0; i < LINES; i += 128 / ACROSS, at += 128 / ACROSS * steps[2]) copy_async<16>(to + (line + i) * ROW(SIZE) + fast, at, 16);
            } else {
#pragma unroll 1
                for (int at = threadIdx.x; at < COUNT; at += 128) {
                    const int line = at / ACROSS, fast = at % ACROSS * 8;
                    copy_async<16>(to + line * ROW(SIZE) + fast, from + (line0 + line) * steps[2] + fast, 16);
                }
            }
            return;
        }
    }
    load_tile<128, LINES, SIZE, GROUPS, 1>(to, from, line0, lines, 0, size, steps[2], steps[3]);
}

// Changes the signs of a tile in shared memory.
template <int LINES, int SIZE> INLINE void negate_rows(u16* tile) {
    for (int at = threadIdx.x; at < LINES * SIZE / 2; at += 128) ((u32*)(tile + at / (SIZE / 2) * ROW(SIZE)))[at % (SIZE / 2)] ^= 0x80008000u;
}
