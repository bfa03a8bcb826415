// The gradient of attention of half precision on tensor cores. A warp has STRIPS strips of 16 rows (queries for dq, keys
// for dk and dv), and a block goes through the columns (keys, or queries) in tiles of INNER, two of which are in flight.
// Weights and gradients of scores stay in registers. As factors they are rounded like the operands are; but f16 does not
// reach as far down as gradients of scores, which are then sums of two bf16, and so is the other factor.
//
// D, DV: sizes of a key and of a value, rounded up to a multiple of 16, at most 128. Q_GROUPS, K_GROUPS, V_GROUPS,
// G_GROUPS: elements of a head are contiguous in aligned groups of 16 bytes.

#define OUTER (64 * STRIPS)

// A product of each row and column: this thread's of strip m are [m][j][i], in row i / 2 * 8 + lane / 4 and column
// j * 8 + lane % 4 * 2 + i % 2.
typedef A Scores[STRIPS][INNER / 8][4];

// Begins a step of a loop over the elements of a head. Long heads of f16 leave registers for the factors of one step only, and the
// barrier keeps the compiler from loading those of later ones.
template <int SIZE> INLINE void begin_step() {
    if (!BF16 && SIZE > 64) __syncwarp();
}

// The products of this warp's rows and all columns of a tile; both are stored with SIZE elements in a row.
template <int SIZE> INLINE void products(Scores& s, const u16* rows, const u16* columns, const Lanes& l) {
#pragma unroll
    for (int e = 0; e < SIZE; e += 16) {
        begin_step<SIZE>();
        u32 f[STRIPS][4];
#pragma unroll
        for (int m = 0; m < STRIPS; m++) load_matrices(f[m], rows + ((l.warp * STRIPS + m) * 16 + l.low) * ROW(SIZE) + e + l.high);
#pragma unroll
        for (int j = 0; j < INNER / 8; j += 2) {
            u32 g[4];
            load_matrices(g, columns + (j * 8 + l.other_low) * ROW(SIZE) + e + l.other_high);
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    if (e == 0) multiply_first<BF16>(s[m][j + part], f[m], g + 2 * part);
                    else multiply_matrices<BF16>(s[m][j + part], f[m], g + 2 * part);
                }
        }
    }
}

// Two numbers as bf16 in one word, and the word of what is left of them, which is bf16 too. An infinity leaves nothing.
INLINE u32 bf16_of(f32 x, f32 y, u32& rest) {
    const u32 word = halves<true>(x, y);
    const f32 a = low_half<true>(word), b = high_half<true>(word);
    rest = halves<true>(fabsf(a) == infinity() ? 0 : x - a, fabsf(b) == infinity() ? 0 : y - b);
    return word;
}

// The words of the left factors of strip m at column j * 16: word i has two of this thread's numbers.
INLINE const A* pair(const Scores& s, int m, int j, int i) { return &s[m][2 * j + i / 2][i % 2 * 2]; }

// Adds RAISED times the product of a tile of weights and a tile in shared memory with SIZE elements in a row.
template <int SIZE> INLINE void add_weights(A (&sum)[STRIPS][SIZE / 8][4], const Scores& weights, const u16* tile, const Lanes& l) {
#pragma unroll
    for (int j = 0; j < INNER / 16; j++) {
        u32 f[STRIPS][4];
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) f[m][i] = halves<BF16>(RAISED * pair(weights, m, j, i)[0], RAISED * pair(weights, m, j, i)[1]);
#pragma unroll
        for (int e = 0; e < SIZE / 8; e += 2) {
            u32 g[4];
            load_matrices_transposed(g, tile + (j * 16 + l.low) * ROW(SIZE) + e * 8 + l.high);
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int part = 0; part < 2; part++) multiply_matrices<BF16>(sum[m][e + part], f[m], g + 2 * part);
        }
    }
}

// Adds the product of a tile of gradients of scores; with WEIGHTS, RAISED times that of weights is added to `other`.
template <int SIZE, bool WEIGHTS = false>
INLINE void add_gradients(A (&sum)[STRIPS][SIZE / 8][4], const Scores& ds, const u16* tile, const Lanes& l, A (*other)[SIZE / 8][4] = nullptr, const Scores* weights = nullptr) {
#pragma unroll
    for (int j = 0; j < INNER / 16; j++) {
        u32 f[STRIPS][4], rest[STRIPS][4], w[STRIPS][4];
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const A* const x = pair(ds, m, j, i);
                f[m][i] = BF16 ? halves<true>(x[0], x[1]) : bf16_of(x[0], x[1], rest[m][i]);
                if constexpr (WEIGHTS) w[m][i] = halves<BF16>(RAISED * pair(*weights, m, j, i)[0], RAISED * pair(*weights, m, j, i)[1]);
            }
#pragma unroll
        for (int e = 0; e < SIZE / 8; e += 2) {
            begin_step<SIZE>();
            u32 g[4], first[4], second[4];
            load_matrices_transposed(g, tile + (j * 16 + l.low) * ROW(SIZE) + e * 8 + l.high);
#pragma unroll
            for (int i = 0; i < 4; i++) first[i] = BF16 ? g[i] : bf16_of(low_half<BF16>(g[i]), high_half<BF16>(g[i]), second[i]);
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    A* const to = sum[m][e + part];
                    multiply_matrices<true>(to, f[m], first + 2 * part);
                    if constexpr (!BF16) {
                        // The product of what is left of both is below the last place of the largest term.
                        multiply_matrices<true>(to, rest[m], first + 2 * part);
                        multiply_matrices<true>(to, f[m], second + 2 * part);
                    }
                    if constexpr (WEIGHTS) multiply_matrices<BF16>(other[m][e + part], w[m], g + 2 * part);
                }
        }
    }
}

template <int SIZE> INLINE void store_rows(T* to, const i64* step, const A (&sum)[STRIPS][SIZE / 8][4], A factor, int row0, int rows, int size, const Lanes& l) {
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row0 + (l.warp * STRIPS + m) * 16 + half * 8 + l.lane / 4;
            if (row >= rows) continue;
#pragma unroll
            for (int e = 0; e < SIZE / 8; e++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int column = e * 8 + l.lane % 4 * 2 + i;
                    if (column < size) to[row * step[2] + column * step[3]] = narrow<T>(factor * sum[m][e][half * 2 + i]);
                }
        }
}

#if QUERIES
// The sums of the result times its gradient for the 16 rows of a strip: the diagonal of the product of g and out. It is
// taken by the instruction that multiplies g and v: the result of a query that sees one key is that key's value, and the
// difference of the two products is then exactly 0.
INLINE void diagonal(A (&delta)[2], const T* out, const Attention& p, const u16* slopes, int row0, const Lanes& l) {
    A s[2][4] = {};
#pragma unroll
    for (int e = 0; e < DV; e += 16) {
        u32 f[4], o[4];
        load_matrices(f, slopes + l.low * ROW(DV) + e + l.high);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = row0 + i / 2 * 8 + l.lane / 4, column = e + i % 2 * 8 + l.lane % 4 * 2;
            const T* const from = out + row * p.out[2] + column * p.out[3];
            const u32 low = row < p.lq && column < p.dv ? from[0].bits : 0;
            const u32 high = row < p.lq && column + 1 < p.dv ? from[p.out[3]].bits : 0;
            o[i] = low | high << 16;
        }
        multiply_matrices<BF16>(s[0], f, o);
        multiply_matrices<BF16>(s[1], f, o + 2);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Row r of a half has its diagonal element in the lane that holds columns r / 2 * 2 and the next.
        const int row = l.lane / 4;
        const A mine = row % 2 ? s[half][half * 2 + 1] : s[half][half * 2];
        delta[half] = __shfl_sync(EVERY, mine, row * 4 + row / 2);
    }
}

// The gradient of a score is w (dw - delta), with weights w, their gradients dw, and delta = sum(w dw). The result, which
// is rounded, gives a delta that is near enough to take most of dw away, but not where the differences nearly cancel. Their
// sum over the keys, sum(w (dw - near)), is what is missing from `near`, and the sum of w k, times that, from dq.
//
// Also writes for each query what `row_of` makes of its numbers: what is subtracted, after those of all queries the factors, and
// after these the deltas.
extern "C" __global__ void __launch_bounds__(128, 2) attention_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ out, const A* __restrict__ stats, const T* __restrict__ g, A* __restrict__ rows, T* __restrict__ dq, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const qs = shared;
    u16* const gs = qs + OUTER * ROW(D);
    u16* const ks = gs + OUTER * ROW(DV);
    u16* const vs = ks + 2 * INNER * ROW(D);
    const Lanes l = lanes();
    const A scale = scale_of(p);
    const int task = blockIdx.x;
    Head at = head_of(p, task / p.q_tiles, q, k, v, mask);
    // The last queries have the most keys under a causal mask. They come first, so that no long task is left at the end.
    const int q0 = (p.q_tiles - 1 - task % p.q_tiles) * OUTER;
    const int first = q0 + l.warp * 16 * STRIPS, keys = keys_of(p, q0 + OUTER);
    auto load = [&](int k0, int stage) {
        load_rows<INNER, D, K_GROUPS>(ks + stage * INNER * ROW(D), at.k, k0, p.lk, p.d, p.k);
        load_rows<INNER, DV, V_GROUPS>(vs + stage * INNER * ROW(DV), at.v, k0, p.lk, p.dv, p.v);
    };
    load_rows<OUTER, D, Q_GROUPS>(qs, at.q, q0, p.lq, p.d, p.q);
    load_rows<OUTER, DV, G_GROUPS>(gs, g + at.g, q0, p.lq, p.dv, p.g);
    load(0, 0);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (p.scale < 0) {
        negate_rows<OUTER, D>(qs);
        __syncthreads();
    }
    A by[STRIPS][2], factor[STRIPS][2], near[STRIPS][2], missing[STRIPS][2] = {}, sum[STRIPS][D / 8][4] = {}, seen[STRIPS][D / 8][4] = {};
    bool any = false;
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
        diagonal(near[m], out + at.out, p, gs + (l.warp * STRIPS + m) * 16 * ROW(DV), first + m * 16, l);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = first + m * 16 + half * 8 + l.lane / 4;
            const A* const from = stats + at.stats + query * p.stats[2];
            row_of(0, 0, by[m][half], factor[m][half]);
            if (query >= p.lq) continue;
            row_of(from[0], from[p.stats[3]], by[m][half], factor[m][half]);
            any |= factor[m][half] < 0;
            if (l.lane % 4 != 0) continue;
            rows[at.row + query] = by[m][half];
            rows[p.rows + at.row + query] = factor[m][half];
        }
    }
    const bool far = MASK != 2 && __any_sync(EVERY, any);
    int stage = 0;
    for (int k0 = 0; k0 < keys; k0 += INNER, stage ^= 1) {
        if (k0 + INNER < keys) load(k0 + INNER, stage ^ 1);
        commit_copies();
        const u16* const tile = ks + stage * INNER * ROW(D);
        Scores w, dw;
        products<D>(w, qs, tile, l);
        products<DV>(dw, gs, vs + stage * INNER * ROW(DV), l);
        if (!sees_all(p, first, k0, INNER)) {
            const int query = again(first) + l.lane / 4;
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) w[m][j][i] = score_of(p, at, query + m * 16 + i / 2 * 8, k0 + j * 8 + l.lane % 4 * 2 + i % 2, w[m][j][i]);
        }
        auto find_exponents = [&](auto with_far) {
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const bool is = decltype(with_far)::value && factor[m][i / 2] < 0;
                        w[m][j][i] = exponent_of(w[m][j][i], scale, by[m][i / 2], is);
                    }
        };
        if (far) find_exponents(Flag<true>());
        else find_exponents(Flag<false>());
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    A &x = w[m][j][i], &ds = dw[m][j][i];
                    x = fabsf(factor[m][i / 2]) * exp2_near(x);
                    ds = x * (ds - near[m][i / 2]);
                    missing[m][i / 2] += ds;
                }
        add_gradients<D, true>(sum, dw, tile, l, seen, &w);
        wait_for_copies<0>();
        __syncthreads();
    }
    at = head_of(p, again(task / p.q_tiles), q, k, v, mask);
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            A& more = missing[m][half];
            more += __shfl_xor_sync(EVERY, more, 1);
            more += __shfl_xor_sync(EVERY, more, 2);
            const int query = first + m * 16 + half * 8 + l.lane / 4;
            if (l.lane % 4 == 0 && query < p.lq) rows[2 * p.rows + at.row + query] = near[m][half] + more;
#pragma unroll
            for (int e = 0; e < D / 8; e++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) sum[m][e][i] = multiply_add(-more / RAISED, seen[m][e][i], sum[m][e][i]);
        }
    store_rows<D>(dq + at.dq, p.dq, sum, p.scale, q0, p.lq, p.d, l);
}
#else
// One task for each tile of keys of each key head: it goes through the queries of all heads that share the key head.
extern "C" __global__ void __launch_bounds__(128, 2) attention_backward_kv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const M* __restrict__ mask, const T* __restrict__ g, const A* __restrict__ rows, T* __restrict__ dk, T* __restrict__ dv, const __grid_constant__ Attention p) {
    extern __shared__ __align__(16) u16 shared[];
    u16* const ks = shared;
    u16* const vs = ks + OUTER * ROW(D);
    u16* const qs = vs + OUTER * ROW(DV);
    u16* const gs = qs + 2 * INNER * ROW(D);
    __shared__ A subtractions[2][INNER], factors[2][INNER], deltas[2][INNER];
    const Lanes l = lanes();
    const A scale = scale_of(p);
    const int task = blockIdx.x;
    const int key_head = task / p.k_tiles;
    const int k0 = task % p.k_tiles * OUTER;
    Head at = head_of(p, key_head * p.group, q, k, v, mask);
    load_rows<OUTER, D, K_GROUPS>(ks, at.k, k0, p.lk, p.d, p.k);
    load_rows<OUTER, DV, V_GROUPS>(vs, at.v, k0, p.lk, p.dv, p.v);
    if (p.scale < 0) {
        // The signs of the keys are changed in place of those of the queries, whose tiles come and go.
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        negate_rows<OUTER, D>(ks);
    }
    A sum_k[STRIPS][D / 8][4] = {}, sum_v[STRIPS][DV / 8][4] = {};
    const int first = first_query(p, k0) / INNER * INNER, first_key = k0 + l.warp * 16 * STRIPS;
    for (int head = 0; head < p.group; head++) {
        at = head_of(p, key_head * p.group + head, q, k, v, mask);
        auto load = [&](int q0, int stage) {
            load_rows<INNER, D, Q_GROUPS>(qs + stage * INNER * ROW(D), at.q, q0, p.lq, p.d, p.q);
            load_rows<INNER, DV, G_GROUPS>(gs + stage * INNER * ROW(DV), g + at.g, q0, p.lq, p.dv, p.g);
            if (threadIdx.x < INNER) {
                const int valid = q0 + (int)threadIdx.x < p.lq ? 4 : 0;
                const A* const from = rows + (valid ? at.row + q0 + (int)threadIdx.x : 0);
                copy_async<4>(&subtractions[stage][threadIdx.x], from, valid);
                copy_async<4>(&factors[stage][threadIdx.x], from + p.rows, valid);
                copy_async<4>(&deltas[stage][threadIdx.x], from + 2 * p.rows, valid);
            }
        };
        if (first < p.lq) load(first, 0);
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        int stage = 0;
        for (int q0 = first; q0 < p.lq; q0 += INNER, stage ^= 1) {
            if (q0 + INNER < p.lq) load(q0 + INNER, stage ^ 1);
            commit_copies();
            const u16* const queries = qs + stage * INNER * ROW(D);
            const u16* const slopes = gs + stage * INNER * ROW(DV);
            Scores w, ds;
            products<D>(w, ks, queries, l);
            products<DV>(ds, vs, slopes, l);
            const bool all = q0 + INNER <= p.lq && sees_all(p, q0, first_key, 16 * STRIPS);
            if (!all) {
#pragma unroll
                for (int m = 0; m < STRIPS; m++)
#pragma unroll
                    for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                        for (int i = 0; i < 4; i++) w[m][j][i] = score_of(p, at, q0 + j * 8 + l.lane % 4 * 2 + i % 2, first_key + m * 16 + i / 2 * 8 + l.lane / 4, w[m][j][i]);
            }
            // There are no more queries in a tile than lanes.
            const bool far = MASK != 2 && __any_sync(EVERY, factors[stage][l.lane % INNER] < 0);
            auto find_exponents = [&](auto with_far) {
#pragma unroll
                for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int column = j * 8 + l.lane % 4 * 2 + i % 2;
                        const bool is = decltype(with_far)::value && factors[stage][column] < 0;
#pragma unroll
                        for (int m = 0; m < STRIPS; m++) w[m][j][i] = exponent_of(w[m][j][i], scale, subtractions[stage][column], is);
                    }
            };
            if (far) find_exponents(Flag<true>());
            else find_exponents(Flag<false>());
#pragma unroll
            for (int j = 0; j < INNER / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int column = j * 8 + l.lane % 4 * 2 + i % 2;
                    const A factor = fabsf(factors[stage][column]), delta = deltas[stage][column];
#pragma unroll
                    for (int m = 0; m < STRIPS; m++) {
                        A& x = w[m][j][i];
                        x = factor * exp2_near(x);
                        ds[m][j][i] = x * (ds[m][j][i] - delta);
                    }
                }
            add_weights<DV>(sum_v, w, slopes, l);
            add_gradients<D>(sum_k, ds, queries, l);
            wait_for_copies<0>();
            __syncthreads();
        }
    }
    at = head_of(p, again(key_head * p.group), q, k, v, mask);
    store_rows<D>(dk + at.dk, p.dk, sum_k, p.scale, k0, p.lk, p.d, l);
    store_rows<DV>(dv + at.dv, p.dv_, sum_v, 1 / RAISED, k0, p.lk, p.dv, l);
}
#endif
