// What the kernels of half precision share: how a score becomes a weight, and two helpers. The gradient computes the weights of the forward pass
// again, and its scores and exponents are rounded as there: where scores are large, the weights would otherwise be others.

// 2^x, with a relative error of at most 2^-22; a result below 2^-126 is 0.
INLINE f32 exp2_near(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// Scores are positive multiples of products, so that the largest score is that of the largest product, and a masked score,
// which is -inf, stays so. A negative scale has changed the sign of the queries. With a mask that is added, a score has the scale
// already.
INLINE f32 scale_of(const Attention& p) { return MASK == 2 ? 1.0f : fmaxf(fabsf(p.scale), 1e-45f); }

INLINE A score_of(const Attention& p, const Head& at, int query, int key, A product) {
    return masked(p, at, query, key, product, MASK == 2 ? fabsf(p.scale) : (A)1);
}

// Whether weights are relative to a shift so large that rounding LOG2_E times it costs too many digits. The shift is then
// subtracted from the score first, which is exact near the largest score.
INLINE bool is_far(f32 shift) { return MASK == 2 || fabsf(shift) > 64.0f; }

// What `exponent_of` takes for a shift: usually a number that one multiply-add subtracts.
INLINE f32 subtracted(f32 shift, bool far) { return far ? shift : LOG2_E * shift; }

// e^(scale * score - shift) is 2 to this power.
INLINE f32 exponent_of(f32 score, f32 scale, f32 by, bool far) {
    return MASK == 2 || far ? LOG2_E * (scale * score - by) : multiply_add(score, scale * LOG2_E, -by);
}

// The numbers with which the gradient computes the weights of a row, from those that the forward pass wrote: what is subtracted,
// and a factor, which is negative if the row is far. A row that sees no key has no weights.
INLINE void row_of(f32 shift, f32 sum, f32& by, f32& factor) {
    const bool far = is_far(shift);
    by = sum == 0 ? infinity() : subtracted(shift, far);
    factor = sum == 0 ? 0 : far ? -1 / sum : 1 / sum;
}

// A constant that a lambda takes.
template <bool IS> struct Flag {
    static constexpr bool value = IS;
};

// Two f32 as halves in one word.
template <bool IS_BF16> INLINE u32 halves(f32 x, f32 y) {
    u32 word;
    if constexpr (IS_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    }
    return word;
}
