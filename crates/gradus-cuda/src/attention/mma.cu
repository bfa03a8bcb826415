// Attention of half precision on tensor cores, in tiles of 64 queries and BK keys. Each of the 4 warps of a block has 16
// queries. The scores and their exponentials stay in registers. An exponential is f32; as a factor it is the sum of
// TERMS numbers of half precision, so that the product with the values is as precise as in f32.
//
// D, DV: sizes of a key and of a value, rounded up to a multiple of 16. Q_GROUPS, K_GROUPS, V_GROUPS: elements of a head
// are contiguous in aligned groups of 16 bytes.

#define BQ 64
#define ROW(size) ((size) + 8)

// Two f32 as halves in one word, and what is left of them.
INLINE u32 halves(A& x, A& y) {
    const T a = narrow<T>(x), b = narrow<T>(y);
    x -= widen(a);
    y -= widen(b);
    return (u32)a.bits | (u32)b.bits << 16;
}

extern "C" __global__ void __launch_bounds__(128, 1) attention(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, T* __restrict__ out, A* __restrict__ lse, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const qs = shared;
    u16* const ks = qs + BQ * ROW(D);
    u16* const vs = ks + BK * ROW(D);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int low = (lane / 8 & 1) * 8 + lane % 8, high = lane / 16 * 8;
    const int other_low = lane / 16 * 8 + lane % 8, other_high = (lane / 8 & 1) * 8;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * BQ;
        const int keys = keys_of(p, q0 + BQ);
        load_tile<128, BQ, D, Q_GROUPS>(qs, at.q, q0, p.lq, 0, p.d, p.q[2], p.q[3]);
        load_tile<128, BK, D, K_GROUPS>(ks, at.k, 0, p.lk, 0, p.d, p.k[2], p.k[3]);
        commit_copies();
        load_tile<128, BK, DV, V_GROUPS>(vs, at.v, 0, p.lk, 0, p.dv, p.v[2], p.v[3]);
        commit_copies();
        A sum[DV / 8][4], largest[2] = {-infinity(), -infinity()}, total[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < DV / 8; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[e][i] = 0;
        for (int k0 = 0; k0 < keys; k0 += BK) {
            // The keys have arrived; the values may be on their way.
            wait_for_copies<1>();
            __syncthreads();
            A s[BK / 8][4];
#pragma unroll
            for (int j = 0; j < BK / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[j][i] = 0;
#pragma unroll(D > 128 ? 2 : D / 16)
            for (int e = 0; e < D; e += 16) {
                u32 f[4];
                load_matrices(f, qs + (warp * 16 + low) * ROW(D) + e + high);
#pragma unroll
                for (int j = 0; j < BK / 8; j += 2) {
                    u32 g[4];
                    load_matrices(g, ks + (j * 8 + other_low) * ROW(D) + e + other_high);
                    multiply_matrices<BF16>(s[j], f, g);
                    multiply_matrices<BF16>(s[j + 1], f, g + 2);
                }
            }
            __syncthreads();
            if (k0 + BK < keys) load_tile<128, BK, D, K_GROUPS>(ks, at.k, k0 + BK, p.lk, 0, p.d, p.k[2], p.k[3]);
            commit_copies();
            A correction[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int query = q0 + warp * 16 + half * 8 + lane / 4;
                A top = largest[half];
#pragma unroll
                for (int j = 0; j < BK / 8; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        A& x = s[j][half * 2 + i];
                        x = masked(p, at, query, k0 + j * 8 + lane % 4 * 2 + i, x);
                        top = larger(top, x);
                    }
                top = larger(top, __shfl_xor_sync(EVERY, top, 1));
                top = larger(top, __shfl_xor_sync(EVERY, top, 2));
                const A shift = top == -infinity() ? (A)0 : top;
                correction[half] = exp_of(largest[half] - shift);
                largest[half] = top;
                A part = 0;
#pragma unroll
                for (int j = 0; j < BK / 8; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        A& x = s[j][half * 2 + i];
                        x = exp_of(x - shift);
                        part += x;
                    }
                total[half] = multiply_add(total[half], correction[half], part);
            }
#pragma unroll
            for (int e = 0; e < DV / 8; e++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[e][i] *= correction[i / 2];
            wait_for_copies<1>();
            __syncthreads();
#pragma unroll
            for (int j = 0; j < BK / 16; j++) {
                u32 f[TERMS][4];
#pragma unroll
                for (int term = 0; term < TERMS; term++) {
                    f[term][0] = halves(s[2 * j][0], s[2 * j][1]);
                    f[term][1] = halves(s[2 * j][2], s[2 * j][3]);
                    f[term][2] = halves(s[2 * j + 1][0], s[2 * j + 1][1]);
                    f[term][3] = halves(s[2 * j + 1][2], s[2 * j + 1][3]);
                }
#pragma unroll
                for (int e = 0; e < DV / 8; e += 2) {
                    u32 g[4];
                    load_matrices_transposed(g, vs + (j * 16 + low) * ROW(DV) + e * 8 + high);
#pragma unroll
                    for (int term = 0; term < TERMS; term++) {
                        multiply_matrices<BF16>(sum[e], f[term], g);
                        multiply_matrices<BF16>(sum[e + 1], f[term], g + 2);
                    }
                }
            }
            __syncthreads();
            if (k0 + BK < keys) load_tile<128, BK, DV, V_GROUPS>(vs, at.v, k0 + BK, p.lk, 0, p.dv, p.v[2], p.v[3]);
            commit_copies();
        }
        wait_for_copies<0>();
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            A all = total[half];
            all += __shfl_xor_sync(EVERY, all, 1);
            all += __shfl_xor_sync(EVERY, all, 2);
            const int query = q0 + warp * 16 + half * 8 + lane / 4;
            if (query >= p.lq) continue;
            if (lane % 4 == 0) lse[at.lse + query * p.lse[2]] = largest[half] + log_of(all);
#pragma unroll
            for (int e = 0; e < DV / 8; e++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int column = e * 8 + lane % 4 * 2 + i;
                    if (column < p.dv) out[at.out + query * p.out[2] + column * p.out[3]] = narrow<T>(all == 0 ? (A)0 : sum[e][half * 2 + i] / all);
                }
        }
    }
}
