// Matrices of half precision in registers of a warp. `load_matrices` reads four 8 x 8 matrices from shared memory: lane
// l gives the address of row l % 8 of matrix l / 8, and receives the elements 2 * (l % 4) and the next of row l / 4 of
// each. `multiply_matrices` adds the product of a 16 x 16 and a 16 x 8 matrix to a 16 x 8 matrix of f32.

INLINE void load_matrices(u32* to, const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}
// The same with each matrix transposed.
INLINE void load_matrices_transposed(u32* to, const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// d = a * b + c; `c` may be `d`.
template <bool IS_BF16> INLINE void multiply_matrices(f32* d, const u32* a, const u32* b, f32 c0, f32 c1, f32 c2, f32 c3) {
    if constexpr (IS_BF16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
    }
}
template <bool IS_BF16> INLINE void multiply_matrices(f32* c, const u32* a, const u32* b) {
    multiply_matrices<IS_BF16>(c, a, b, c[0], c[1], c[2], c[3]);
}
// The same without a sum before it.
template <bool IS_BF16> INLINE void multiply_first(f32* c, const u32* a, const u32* b) {
    multiply_matrices<IS_BF16>(c, a, b, 0, 0, 0, 0);
}

// Copies a tile of LINES x FAST elements to shared memory; those outside the tensor are 0. Rows of shared memory are 16
// bytes longer than the tile, so that the 8 rows of a matrix lie in different banks. With GROUPS, the fast axis is
// contiguous, its groups of 8 elements are aligned, and the copy is asynchronous.
template <int THREADS_IN_BLOCK, int LINES, int FAST, bool GROUPS, int UNROLL = LINES, typename T>
INLINE void load_tile(u16* to, const T* from, int line0, int lines, int fast0, int fasts, i64 line_step, i64 fast_step) {
    const int across = FAST / 8;
#pragma unroll UNROLL
    for (int at = threadIdx.x; at < LINES * across; at += THREADS_IN_BLOCK) {
        int line = at / across, fast = at % across * 8;
        u16* into = to + line * (FAST + 8) + fast;
        int count = line0 + line < lines ? min(max(fasts - fast0 - fast, 0), 8) : 0;
        const u16* first = (const u16*)from + (line0 + line) * line_step + (fast0 + fast) * fast_step;
        if constexpr (GROUPS) {
            copy_async<16>(into, count > 0 ? (const void*)first : (const void*)from, count * 2);
        } else {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 low = 2 * i < count ? first[2 * i * fast_step] : 0;
                u32 high = 2 * i + 1 < count ? first[(2 * i + 1) * fast_step] : 0;
                words[i] = low | high << 16;
            }
            *(uint4*)into = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}
