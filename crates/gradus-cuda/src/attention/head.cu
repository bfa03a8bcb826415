// What all kernels of attention share: their parameters, where a head lies, and which scores are masked.

struct Attention {
    i64 tasks;
    i64 rows;               // b * h * lq
    // Strides of [b, h, l, d].
    i64 q[4], k[4], v[4], mask[4], out[4], stats[4], g[4], dq[4], dk[4], dv_[4];
    A scale;
    int h, group;           // query heads, and how many of them share a key head
    int lq, lk, d, dv;
    int q_tiles, k_tiles;
};

#define EVERY 0xffffffffu

struct Head {
    const T* q;
    const T* k;
    const T* v;
    const M* mask;
    i64 out, stats, g, dq, dk, dv;
    i64 row;                // the first row of the head in a contiguous [b, h, lq]
};

// Query head `head` of all samples, and the key head that it uses.
template <class I> INLINE Head head_of(const Attention& p, I head, const T* q, const T* k, const T* v, const M* mask) {
    const i64 b = head / p.h;
    const int h = (int)(head % p.h), hk = h / p.group;
    Head at;
    at.q = q + b * p.q[0] + h * p.q[1];
    at.k = k + b * p.k[0] + hk * p.k[1];
    at.v = v + b * p.v[0] + hk * p.v[1];
    at.mask = mask + b * p.mask[0] + h * p.mask[1];
    at.out = b * p.out[0] + h * p.out[1];
    at.stats = b * p.stats[0] + h * p.stats[1];
    at.g = b * p.g[0] + h * p.g[1];
    at.dq = b * p.dq[0] + h * p.dq[1];
    at.dk = b * p.dk[0] + hk * p.dk[1];
    at.dv = b * p.dv_[0] + hk * p.dv_[1];
    at.row = (i64)head * p.lq;
    return at;
}

// The number of keys that any query before `query` sees.
INLINE int keys_of(const Attention& p, int query) {
#if CAUSAL
    return (int)min((i64)p.lk, max((i64)0, (i64)min(query, p.lq) + p.lk - p.lq));
#else
    return p.lk;
#endif
}

// The first query that sees key `key`.
INLINE int first_query(const Attention& p, int key) {
#if CAUSAL
    return (int)max((i64)0, (i64)key - p.lk + p.lq);
#else
    return 0;
#endif
}

INLINE A infinity() { return (A)__uint_as_float(0x7f800000u); }
// A NaN is passed over here and shows in the sum of the exponentials.
INLINE f32 larger(f32 a, f32 b) { return fmaxf(a, b); }
INLINE f64 larger(f64 a, f64 b) { return fmax(a, b); }

// Whether the query sees the key.
INLINE bool sees(const Attention& p, int query, int key) {
    return query < p.lq && key < p.lk && (!CAUSAL || key - query <= p.lk - p.lq);
}

// The score of a query and a key, scaled and masked; -inf if there are none such.
INLINE A masked(const Attention& p, const Head& at, int query, int key, A product, A scale) {
    if (!sees(p, query, key)) return -infinity();
    A s = scale * product;
#if MASK == 1
    if (!wide(at.mask[query * p.mask[2] + key * p.mask[3]])) s = -infinity();
#elif MASK == 2
    s += widen(at.mask[query * p.mask[2] + key * p.mask[3]]);
#endif
    return s;
}
