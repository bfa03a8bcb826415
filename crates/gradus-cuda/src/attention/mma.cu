// Attention of half precision on tensor cores, in tiles of BQ queries and BK keys, two of which are in flight. The scores
// and their weights stay in registers. A weight is f32; as a factor it is the sum of two numbers of half precision, so
// that the product with the values is nearly as precise as in f32, and the result is rounded once.
//
// D, DV: sizes of a key and of a value, rounded up to a multiple of 16. Q_GROUPS, K_GROUPS, V_GROUPS: elements of a head
// are contiguous in aligned groups of 16 bytes.

#define BQ (64 * STRIPS)
// 2^8 as a power of e.
#define RISE (8.0f * LN_2)

// The left factors of this warp's rows at column `e`.
INLINE void load_left(u32 (&f)[STRIPS][4], const u16* rows, int e, const Lanes& l) {
#pragma unroll
    for (int m = 0; m < STRIPS; m++) load_matrices(f[m], rows + (l.warp * 16 * STRIPS + m * 16 + l.low) * ROW(D) + e + l.high);
}

extern "C" __global__ void __launch_bounds__(128, 2) attention(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, T* __restrict__ out, A* __restrict__ stats, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const qs = shared;
    u16* const ks = qs + BQ * ROW(D);
    u16* const vs = ks + 2 * BK * ROW(D);
    const Lanes l = lanes();
    const A scale = scale_of(p);
    const int task = blockIdx.x;
    Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
    // The last queries have the most keys under a causal mask. They come first, so that no long task is left at the end.
    const int q0 = (p.q_tiles - 1 - task % p.q_tiles) * BQ;
    const int first = q0 + l.warp * 16 * STRIPS, keys = keys_of(p, q0 + BQ);
    auto load = [&](int k0, int stage) {
        load_rows<BK, D, K_GROUPS>(ks + stage * BK * ROW(D), at.k, k0, p.lk, p.d, p.k);
        load_rows<BK, DV, V_GROUPS>(vs + stage * BK * ROW(DV), at.v, k0, p.lk, p.dv, p.v);
    };
    load_rows<BQ, D, Q_GROUPS>(qs, at.q, q0, p.lq, p.d, p.q);
    load(0, 0);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (p.scale < 0) {
        negate_rows<BQ, D>(qs);
        __syncthreads();
    }
    // Few enough are kept in registers.
    constexpr bool KEPT = D <= 64;
    u32 kept[KEPT ? D / 16 : 1][STRIPS][4];
    if constexpr (KEPT) {
#pragma unroll
        for (int e = 0; e < D / 16; e++) load_left(kept[e], qs, e * 16, l);
    }
    // Whether any row of the warp is far.
    bool far = MASK == 2;
    A sum[STRIPS][DV / 8][4] = {}, shift[STRIPS][2], total[STRIPS][2] = {};
#pragma unroll
    for (int m = 0; m < STRIPS; m++) shift[m][0] = shift[m][1] = -infinity();
    int stage = 0;
    for (int k0 = 0; k0 < keys; k0 += BK, stage ^= 1) {
        if (k0 + BK < keys) load(k0 + BK, stage ^ 1);
        commit_copies();
        const u16* const tile_k = ks + stage * BK * ROW(D) + l.other_low * ROW(D) + l.other_high;
        const u16* const tile_v = vs + stage * BK * ROW(DV) + l.low * ROW(DV) + l.high;
        A s[STRIPS][BK / 8][4];
        if constexpr (D > 128) {
#pragma unroll
            for (int j = 0; j < BK / 8 * 4; j++) s[0][j / 4][j % 4] = 0;
        }
#pragma unroll(D > 128 ? 2 : D / 16)
        for (int e = 0; e < D / 16; e++) {
            u32 read[STRIPS][4];
            if constexpr (!KEPT) load_left(read, qs, e * 16, l);
#pragma unroll
            for (int j = 0; j < BK / 8; j += 2) {
                u32 g[4];
                load_matrices(g, tile_k + j * 8 * ROW(D) + e * 16);
#pragma unroll
                for (int m = 0; m < STRIPS; m++) {
                    const u32* f = KEPT ? kept[KEPT ? e : 0][m] : read[m];
                    if (D <= 128 && e == 0) {
                        multiply_first<BF16>(s[m][j], f, g);
                        multiply_first<BF16>(s[m][j + 1], f, g + 2);
                    } else {
                        multiply_matrices<BF16>(s[m][j], f, g);
                        multiply_matrices<BF16>(s[m][j + 1], f, g + 2);
                    }
                }
            }
        }
        if (!sees_all(p, first, k0, BK)) {
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int j = 0; j < BK / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) s[m][j][i] = score_of(p, at, first + m * 16 + i / 2 * 8 + l.lane / 4, k0 + j * 8 + l.lane % 4 * 2 + i % 2, s[m][j][i]);
        }
        // A shift that is less than the largest score by at most RISE stays: weights then reach 2^8.
        A top[STRIPS][2];
        bool rises = false;
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                A& most = top[m][half];
                most = -infinity();
#pragma unroll
                for (int j = 0; j < BK / 8; j++) most = larger(most, larger(s[m][j][half * 2], s[m][j][half * 2 + 1]));
                most = larger(most, __shfl_xor_sync(EVERY, most, 1));
                most = scale * larger(most, __shfl_xor_sync(EVERY, most, 2));
                rises |= most - shift[m][half] > RISE;
            }
        if (__any_sync(EVERY, rises)) {
            bool any = false;
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    A& last = shift[m][half];
                    const A next = top[m][half];
                    if (next - last > RISE) {
                        const bool either = is_far(last) || is_far(next);
                        const A correction = exp2_near(either ? LOG2_E * (last - next) : LOG2_E * last - LOG2_E * next);
                        last = next;
                        total[m][half] *= correction;
#pragma unroll
                        for (int e = 0; e < DV / 8; e++)
#pragma unroll
                            for (int i = 0; i < 2; i++) sum[m][e][half * 2 + i] *= correction;
                    }
                    any |= last != -infinity() && is_far(last);
                }
            far = MASK == 2 || __any_sync(EVERY, any);
        }
        auto find_exponents = [&](auto with_far) {
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const A from = shift[m][half] == -infinity() ? (A)0 : shift[m][half];
                    const bool is = decltype(with_far)::value && is_far(from);
                    const A by = subtracted(from, is);
#pragma unroll
                    for (int j = 0; j < BK / 8; j++)
#pragma unroll
                        for (int i = half * 2; i < half * 2 + 2; i++) s[m][j][i] = exponent_of(s[m][j][i], scale, by, is);
                }
        };
        if (far) find_exponents(Flag<true>());
        else find_exponents(Flag<false>());
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                A part = 0;
#pragma unroll
                for (int j = 0; j < BK / 8; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        A& x = s[m][j][half * 2 + i];
                        x = exp2_near(x);
                        part += x;
                    }
                total[m][half] += part;
            }
#pragma unroll
        for (int j = 0; j < BK / 16; j++) {
            u32 f[2][STRIPS][4];
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    A* const x = &s[m][2 * j + i / 2][i % 2 * 2];
                    x[0] *= RAISED;
                    x[1] *= RAISED;
                    f[0][m][i] = halves<BF16>(x[0], x[1]);
                    f[1][m][i] = halves<BF16>(x[0] - low_half<BF16>(f[0][m][i]), x[1] - high_half<BF16>(f[0][m][i]));
                }
#pragma unroll
            for (int e = 0; e < DV / 8; e += 2) {
                u32 g[4];
                load_matrices_transposed(g, tile_v + j * 16 * ROW(DV) + e * 8);
#pragma unroll
                for (int term = 0; term < 2; term++)
#pragma unroll
                    for (int m = 0; m < STRIPS; m++) {
                        multiply_matrices<BF16>(sum[m][e], f[term][m], g);
                        multiply_matrices<BF16>(sum[m][e + 1], f[term][m], g + 2);
                    }
            }
        }
        wait_for_copies<0>();
        __syncthreads();
    }
    at = head_of(p, again(task / p.q_tiles), q, k, v, mask);
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            A all = total[m][half];
            all += __shfl_xor_sync(EVERY, all, 1);
            all += __shfl_xor_sync(EVERY, all, 2);
            const int query = first + m * 16 + half * 8 + l.lane / 4;
            if (query >= p.lq) continue;
            if (l.lane % 4 == 0) {
                A* const to = stats + at.stats + query * p.stats[2];
                to[0] = shift[m][half];
                to[p.stats[3]] = all;
            }
            const A inverse = 1 / (RAISED * all);
#pragma unroll
            for (int e = 0; e < DV / 8; e++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int column = e * 8 + l.lane % 4 * 2 + i;
                    if (column < p.dv) out[at.out + query * p.out[2] + column * p.out[3]] = narrow<T>(all == 0 ? (A)0 : sum[m][e][half * 2 + i] * inverse);
                }
        }
}
