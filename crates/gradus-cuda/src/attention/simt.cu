// Attention and its gradient in tiles of BQ queries and BK keys, with sums in A. A block has 128 threads: 16 along the
// queries (rows) and 8 along the keys or the elements of a head (columns). The scores of a tile are in shared memory
// only; the sum of a row's exponentials is corrected whenever its largest score grows.
//
// T: element type. A: type of sums. M: element type of the mask. D, DV: sizes of a key and of a value, rounded up to a
// multiple of 8, or of 16 with HALF. MASK: 0 for none, 1 for bool, 2 for a float that is added. CAUSAL: query i sees the keys
// j <= i + lk - lq. HALF: whether T is f16 or bf16, of which this is the gradient only; then BF16 says which.

// Copies rows to shared memory; elements outside are 0.
template <int ROWS, int FAST> INLINE void load_rows(A* to, const T* from, int row0, int rows, int size, const i64* step) {
    for (int at = threadIdx.x; at < ROWS * FAST; at += 128) {
        int row = at / FAST, e = at % FAST;
        bool inside = row0 + row < rows && e < size;
        to[row * (FAST + 1) + e] = inside ? widen(from[(row0 + row) * step[2] + e * step[3]]) : (A)0;
    }
}

// The scores of a tile that this thread computes: rows ty + 16 * i, columns tx + 8 * j.
#define RQ (BQ / 16)
#define CK (BK / 8)

// The products of rows of `SIZE` elements of two tiles.
template <int SIZE> INLINE void products_of(A (&s)[RQ][CK], const A* qs, const A* ks, int ty, int tx) {
#pragma unroll
    for (int i = 0; i < RQ; i++)
#pragma unroll
        for (int j = 0; j < CK; j++) s[i][j] = 0;
#pragma unroll 4
    for (int e = 0; e < SIZE; e++) {
        A x[RQ], y[CK];
#pragma unroll
        for (int i = 0; i < RQ; i++) x[i] = qs[(ty + 16 * i) * (SIZE + 1) + e];
#pragma unroll
        for (int j = 0; j < CK; j++) y[j] = ks[(tx + 8 * j) * (SIZE + 1) + e];
#pragma unroll
        for (int i = 0; i < RQ; i++)
#pragma unroll
            for (int j = 0; j < CK; j++) s[i][j] = multiply_add(x[i], y[j], s[i][j]);
    }
}

#if FORWARD
extern "C" __global__ void __launch_bounds__(128, 1) attention(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, T* __restrict__ out, A* __restrict__ stats, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) unsigned char shared[];
    A* const qs = (A*)shared;
    A* const ks = qs + BQ * (D + 1);
    A* const vs = ks + BK * (D + 1);
    A* const ps = vs + BK * (DV + 1);
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * BQ;
        load_rows<BQ, D>(qs, at.q, q0, p.lq, p.d, p.q);
        A sum[RQ][DV / 8], largest[RQ], total[RQ];
#pragma unroll
        for (int i = 0; i < RQ; i++) {
            largest[i] = -infinity();
            total[i] = 0;
#pragma unroll
            for (int e = 0; e < DV / 8; e++) sum[i][e] = 0;
        }
        const int keys = keys_of(p, q0 + BQ);
        for (int k0 = 0; k0 < keys; k0 += BK) {
            load_rows<BK, D>(ks, at.k, k0, p.lk, p.d, p.k);
            load_rows<BK, DV>(vs, at.v, k0, p.lk, p.dv, p.v);
            __syncthreads();
            A s[RQ][CK];
            products_of<D>(s, qs, ks, ty, tx);
#pragma unroll
            for (int i = 0; i < RQ; i++) {
                A top = largest[i];
#pragma unroll
                for (int j = 0; j < CK; j++) {
                    s[i][j] = masked(p, at, q0 + ty + 16 * i, k0 + tx + 8 * j, s[i][j], p.scale);
                    top = larger(top, s[i][j]);
                }
#pragma unroll
                for (int apart = 4; apart > 0; apart /= 2) top = larger(top, __shfl_xor_sync(EVERY, top, apart));
                const A shift = top == -infinity() ? (A)0 : top;
                const A correction = exp_of(largest[i] - shift);
                largest[i] = top;
                A part = 0;
#pragma unroll
                for (int j = 0; j < CK; j++) {
                    A e = exp_of(s[i][j] - shift);
                    part += e;
                    ps[(ty + 16 * i) * (BK + 1) + tx + 8 * j] = e;
                }
                total[i] = total[i] * correction + part;
#pragma unroll
                for (int e = 0; e < DV / 8; e++) sum[i][e] *= correction;
            }
            // A row of exponentials is written and read by the same 8 threads of a warp.
            __syncwarp();
#pragma unroll 2
            for (int j = 0; j < BK; j++) {
#pragma unroll
                for (int i = 0; i < RQ; i++) {
                    const A e = ps[(ty + 16 * i) * (BK + 1) + j];
#pragma unroll
                    for (int c = 0; c < DV / 8; c++) sum[i][c] = multiply_add(e, vs[j * (DV + 1) + tx + 8 * c], sum[i][c]);
                }
            }
            __syncthreads();
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RQ; i++) {
            A all = total[i];
#pragma unroll
            for (int apart = 4; apart > 0; apart /= 2) all += __shfl_xor_sync(EVERY, all, apart);
            const int row = q0 + ty + 16 * i;
            if (row >= p.lq) continue;
            if (tx == 0) {
                A* const to = stats + at.stats + row * p.stats[2];
                to[0] = largest[i];
                to[p.stats[3]] = all;
            }
#pragma unroll
            for (int c = 0; c < DV / 8; c++) {
                const int e = tx + 8 * c;
                if (e < p.dv) out[at.out + row * p.out[2] + e * p.out[3]] = narrow<T>(all == 0 ? (A)0 : sum[i][c] / all);
            }
        }
    }
}
#endif

#if BACKWARD
// The numbers of a tile's rows in shared memory: a weight is e^(score - shift) times the factor. Rows outside and rows that
// see no key have the factor 0 and a shift that is finite, and their scores are -inf. With HALF, `row_of` makes the first two
// numbers, and the shift of such rows is infinite.
struct Statistics {
    A* shifts;
    A* factors;
    A* deltas;
};
INLINE Statistics statistics(A* shared) { return {shared, shared + BQ, shared + 2 * BQ}; }

INLINE void load_statistics(const Statistics& to, const A* stats, const A* delta, const Attention& p, const Head& at, int q0) {
    for (int row = threadIdx.x; row < BQ; row += 128) {
        const bool inside = q0 + row < p.lq;
        const A* const from = stats + at.stats + (q0 + row) * p.stats[2];
        const A shift = inside ? from[0] : (A)0, sum = inside ? from[p.stats[3]] : (A)0;
#if HALF
        row_of(shift, sum, to.shifts[row], to.factors[row]);
#else
        to.shifts[row] = sum != 0 ? shift : (A)0;
        to.factors[row] = sum != 0 ? 1 / sum : (A)0;
#endif
        to.deltas[row] = inside && delta ? delta[at.row + q0 + row] : (A)0;
    }
}

#if HALF
// The products of the rows of two tiles by the instruction of the forward pass, in its order: any other way would round them
// differently. Each warp has some of the 16 x 8 parts, which pass through shared memory with BK + 1 numbers in a row.
INLINE void forward_products(A (&s)[RQ][CK], const A* qs, const A* ks, A* through, int ty, int tx) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int part = threadIdx.x / 32; part < RQ * CK; part += 4) {
        const int q0 = part % RQ * 16, k0 = part / RQ * 8;
        A sums[4] = {};
#pragma unroll 2
        for (int e = 0; e < D; e += 16) {
            u32 f[4], g[2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const A* const from = qs + (q0 + i % 2 * 8 + row) * (D + 1) + e + i / 2 * 8 + column;
                f[i] = halves<BF16>(from[0], from[1]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const A* const from = ks + (k0 + row) * (D + 1) + e + i * 8 + column;
                g[i] = halves<BF16>(from[0], from[1]);
            }
            multiply_matrices<BF16>(sums, f, g);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) through[(q0 + i / 2 * 8 + row) * (BK + 1) + k0 + column + i % 2] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RQ; i++)
#pragma unroll
        for (int j = 0; j < CK; j++) s[i][j] = through[(ty + 16 * i) * (BK + 1) + tx + 8 * j];
}
#endif

// The weights of a tile and the gradients of its scores, for the elements of this thread. With HALF, all of `through`, which has
// room for a tile, is overwritten: every thread of the block calls this, and none still reads `through`.
INLINE void gradients_of(A (&w)[RQ][CK], A (&ds)[RQ][CK], const Attention& p, const Head& at, const A* qs, const A* ks, const A* vs, const A* gs, A* through, const Statistics& rows, int q0, int k0, int ty, int tx) {
#if HALF
    forward_products(w, qs, ks, through, ty, tx);
#else
    products_of<D>(w, qs, ks, ty, tx);
#endif
    products_of<DV>(ds, gs, vs, ty, tx);
#pragma unroll
    for (int i = 0; i < RQ; i++)
#pragma unroll
        for (int j = 0; j < CK; j++) {
            const int row = ty + 16 * i, query = q0 + row, key = k0 + tx + 8 * j;
#if HALF
            const A s = score_of(p, at, query, key, p.scale < 0 ? -w[i][j] : w[i][j]);
            const A factor = rows.factors[row];
            w[i][j] = fabsf(factor) * exp2_near(exponent_of(s, scale_of(p), rows.shifts[row], factor < 0));
#else
            w[i][j] = exp_of(masked(p, at, query, key, w[i][j], p.scale) - rows.shifts[row]) * rows.factors[row];
#endif
            ds[i][j] = w[i][j] * (ds[i][j] - rows.deltas[row]);
        }
}

// delta [b, h, lq]: the sum of weights times the gradients of weights for each query. It is not computed from the
// result, whose rounding error would be too large where gradients of scores nearly cancel.
extern "C" __global__ void __launch_bounds__(128, 1) attention_delta(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ stats, A* __restrict__ delta, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) unsigned char shared[];
    A* const qs = (A*)shared;
    A* const gs = qs + BQ * (D + 1);
    A* const ks = gs + BQ * (DV + 1);
    A* const vs = ks + BK * (D + 1);
    A* const through = vs + BK * (DV + 1);
    const Statistics rows = statistics(through + BQ * (BK + 1));
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * BQ;
        load_rows<BQ, D>(qs, at.q, q0, p.lq, p.d, p.q);
        load_rows<BQ, DV>(gs, g + at.g, q0, p.lq, p.dv, p.g);
        load_statistics(rows, stats, nullptr, p, at, q0);
        A sum[RQ] = {};
        const int keys = keys_of(p, q0 + BQ);
        for (int k0 = 0; k0 < keys; k0 += BK) {
            load_rows<BK, D>(ks, at.k, k0, p.lk, p.d, p.k);
            load_rows<BK, DV>(vs, at.v, k0, p.lk, p.dv, p.v);
            __syncthreads();
            A w[RQ][CK], ds[RQ][CK];
            gradients_of(w, ds, p, at, qs, ks, vs, gs, through, rows, q0, k0, ty, tx);
#pragma unroll
            for (int i = 0; i < RQ; i++)
#pragma unroll
                for (int j = 0; j < CK; j++) sum[i] += ds[i][j];
            __syncthreads();
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RQ; i++) {
#pragma unroll
            for (int apart = 4; apart > 0; apart /= 2) sum[i] += __shfl_xor_sync(EVERY, sum[i], apart);
            const int row = q0 + ty + 16 * i;
            if (tx == 0 && row < p.lq) delta[at.row + row] = sum[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 1) attention_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ stats, const A* __restrict__ delta, T* __restrict__ dq, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) unsigned char shared[];
    A* const qs = (A*)shared;
    A* const gs = qs + BQ * (D + 1);
    A* const ks = gs + BQ * (DV + 1);
    A* const vs = ks + BK * (D + 1);
    A* const dss = vs + BK * (DV + 1);
    const Statistics rows = statistics(dss + BQ * (BK + 1));
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
        const int q0 = (int)(task % p.q_tiles) * BQ;
        load_rows<BQ, D>(qs, at.q, q0, p.lq, p.d, p.q);
        load_rows<BQ, DV>(gs, g + at.g, q0, p.lq, p.dv, p.g);
        load_statistics(rows, stats, delta, p, at, q0);
        A sum[RQ][D / 8];
#pragma unroll
        for (int i = 0; i < RQ; i++)
#pragma unroll
            for (int c = 0; c < D / 8; c++) sum[i][c] = 0;
        const int keys = keys_of(p, q0 + BQ);
        for (int k0 = 0; k0 < keys; k0 += BK) {
            load_rows<BK, D>(ks, at.k, k0, p.lk, p.d, p.k);
            load_rows<BK, DV>(vs, at.v, k0, p.lk, p.dv, p.v);
            __syncthreads();
            A w[RQ][CK], ds[RQ][CK];
            gradients_of(w, ds, p, at, qs, ks, vs, gs, dss, rows, q0, k0, ty, tx);
#pragma unroll
            for (int i = 0; i < RQ; i++)
#pragma unroll
                for (int j = 0; j < CK; j++) dss[(ty + 16 * i) * (BK + 1) + tx + 8 * j] = ds[i][j];
            __syncwarp();
#pragma unroll 2
            for (int j = 0; j < BK; j++) {
#pragma unroll
                for (int i = 0; i < RQ; i++) {
                    const A e = dss[(ty + 16 * i) * (BK + 1) + j];
#pragma unroll
                    for (int c = 0; c < D / 8; c++) sum[i][c] = multiply_add(e, ks[j * (D + 1) + tx + 8 * c], sum[i][c]);
                }
            }
            __syncthreads();
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RQ; i++)
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                const int row = q0 + ty + 16 * i, e = tx + 8 * c;
                if (row < p.lq && e < p.d) dq[at.dq + row * p.dq[2] + e * p.dq[3]] = narrow<T>(p.scale * sum[i][c]);
            }
    }
}

// One task for each tile of keys of each key head: it goes through the queries of all heads that share the key head.
extern "C" __global__ void __launch_bounds__(128, 1) attention_backward_kv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ stats, const A* __restrict__ delta, T* __restrict__ dk, T* __restrict__ dv, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) unsigned char shared[];
    A* const qs = (A*)shared;
    A* const gs = qs + BQ * (D + 1);
    A* const ks = gs + BQ * (DV + 1);
    A* const vs = ks + BK * (D + 1);
    A* const ws = vs + BK * (DV + 1);
    A* const dss = ws + BQ * (BK + 1);
    const Statistics rows = statistics(dss + BQ * (BK + 1));
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const int RK = BK / 16;
    for (i64 task = blockIdx.x; task < p.tasks; task += gridDim.x) {
        const i64 key_head = task / p.k_tiles;
        const int k0 = (int)(task % p.k_tiles) * BK;
        Head at = head_of(p, key_head * p.group, q, k, v, mask);
        const i64 to_k = at.dk, to_v = at.dv;
        load_rows<BK, D>(ks, at.k, k0, p.lk, p.d, p.k);
        load_rows<BK, DV>(vs, at.v, k0, p.lk, p.dv, p.v);
        A sum_k[RK][D / 8], sum_v[RK][DV / 8];
#pragma unroll
        for (int i = 0; i < RK; i++) {
#pragma unroll
            for (int c = 0; c < D / 8; c++) sum_k[i][c] = 0;
#pragma unroll
            for (int c = 0; c < DV / 8; c++) sum_v[i][c] = 0;
        }
        for (int head = 0; head < p.group; head++) {
            at = head_of(p, key_head * p.group + head, q, k, v, mask);
            for (int q0 = first_query(p, k0) / BQ * BQ; q0 < p.lq; q0 += BQ) {
                load_rows<BQ, D>(qs, at.q, q0, p.lq, p.d, p.q);
                load_rows<BQ, DV>(gs, g + at.g, q0, p.lq, p.dv, p.g);
                load_statistics(rows, stats, delta, p, at, q0);
                __syncthreads();
                A w[RQ][CK], ds[RQ][CK];
                gradients_of(w, ds, p, at, qs, ks, vs, gs, dss, rows, q0, k0, ty, tx);
#pragma unroll
                for (int i = 0; i < RQ; i++)
#pragma unroll
                    for (int j = 0; j < CK; j++) {
                        ws[(ty + 16 * i) * (BK + 1) + tx + 8 * j] = w[i][j];
                        dss[(ty + 16 * i) * (BK + 1) + tx + 8 * j] = ds[i][j];
                    }
                __syncthreads();
#pragma unroll 2
                for (int j = 0; j < BQ; j++) {
#pragma unroll
                    for (int i = 0; i < RK; i++) {
                        const A x = dss[j * (BK + 1) + ty + 16 * i], y = ws[j * (BK + 1) + ty + 16 * i];
#pragma unroll
                        for (int c = 0; c < D / 8; c++) sum_k[i][c] = multiply_add(x, qs[j * (D + 1) + tx + 8 * c], sum_k[i][c]);
#pragma unroll
                        for (int c = 0; c < DV / 8; c++) sum_v[i][c] = multiply_add(y, gs[j * (DV + 1) + tx + 8 * c], sum_v[i][c]);
                    }
                }
                __syncthreads();
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RK; i++) {
            const int row = k0 + ty + 16 * i;
            if (row >= p.lk) continue;
#pragma unroll
            for (int c = 0; c < D / 8; c++)
                if (tx + 8 * c < p.d) dk[to_k + row * p.dk[2] + (tx + 8 * c) * p.dk[3]] = narrow<T>(p.scale * sum_k[i][c]);
#pragma unroll
            for (int c = 0; c < DV / 8; c++)
                if (tx + 8 * c < p.dv) dv[to_v + row * p.dv_[2] + (tx + 8 * c) * p.dv_[3]] = narrow<T>(sum_v[i][c]);
        }
    }
}
#endif
