//! What the documentation of each operation with a kink says of its slope there, word for word, and the slopes that it means.
//!
//! Both are written by hand: a sentence or a slope that changes fails the test. Look whether they still say the same.

/// A sentence, and the rows of the table whose operations have it in their documentation, with their slopes as the page
/// prints them.
pub(crate) type Said = (&'static str, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
pub(crate) const SAID: &[Said] = &[
    ("The slope at 0 is 0.", &[("abs relu", "0, 0")]),
    ("The slopes where `self` is 0 are 0.", &[("relu_mul", "0; 0")]),
    ("The slope at 0 is alpha.", &[("leaky_relu", "0.1"), ("elu", "0.7")]),
    ("The slope at 0 is the weight.", &[("prelu", "0.25; 0")]),
    ("The slope at 0 is that of the left side.", &[("selu", "1.7581")]),
    ("The slope at 0 is 1.", &[("celu", "1")]),
    ("The slope at 0 is 1, the second derivative there 0.", &[("softsign", "1")]),
    ("The slope at 0 and 6 is 0.", &[("relu6", "0, 0")]),
    ("with slope 0 at the ends.", &[("hardtanh", "0, 0")]),
    ("The slope at both ends is 1.", &[("clamp", "1, 1")]),
    ("The slope at -3 and 3 is 0.", &[("hardsigmoid", "0, 0")]),
    ("The slope at -3 is 0, at 3 it is 1.", &[("hardswish", "0, 1")]),
    ("The slope at both ends is 0.", &[("hardshrink softshrink", "0, 0")]),
    ("The slope at the threshold is 0.", &[("threshold", "0")]),
    ("The slope at 0 is 0, that for `other` 0 everywhere.", &[("copysign", "0, 0; 0, 0")]),
    ("Replaced elements have gradient 0.", &[("nan_to_num", "0, 0, 0")]),
    ("The branch not taken gets an exact zero gradient.", &[("where_", "0; 1"), ("where_/steep", "NaN")]),
    ("At the centre of a pixel the slope is that of the pixels from there on, where a border begins it is 0; with the nearest pixel it is 0 everywhere.", &[
        ("grid_sample/bilinear", "3"),
        ("grid_sample/border", "0, 0"),
        ("grid_sample/nearest", "0"),
    ]),
    ("Equal operands share the gradient.", &[("maximum minimum fmax fmin", "0.5; 0.5")]),
    ("Equal ones share the gradient.", &[("max", "0, 0.5, 0.5"), ("min", "0.5, 0.5, 0")]),
    ("Equal extremes share the gradient.", &[("aminmax", "1.5, 1.5")]),
    ("The gradient goes to the element at the index", &[
        ("max_with_indices", "0, 1, 0"),
        ("min_with_indices", "1, 0, 0"),
    ]),
    ("The gradient goes to the element of the index, also among equal ones.", &[("sort", "2, 1, 3")]),
    ("Of equal elements the first are taken, and get the gradient.", &[("topk", "1, 2, 0")]),
    ("The gradient goes to the element of the index.", &[("kthvalue", "0, 1, 0")]),
    ("The gradient of a value goes to its first occurrence.", &[("unique", "1, 0")]),
    ("The gradient goes to the elements at these indices.", &[("cummax cummin", "1, 5, 0")]),
    ("Of equal elements the first gets the gradient.", &[
        ("max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", "0, 1, 0"),
    ]),
    ("The gradient goes to the element that won.", &[
        ("max_pool2d_with_indices max_pool1d_with_indices max_pool3d_with_indices", "0, 1, 0"),
    ]),
    ("The gradient of an extreme is split evenly among the elements that attain it.", &[
        ("scatter_reduce/amax scatter_reduce/amin", "0.3333, 1; 0.3333, 0.3333"),
    ]),
    ("Where the function has a kink at 0 its gradient is 0", &[
        ("norm/zero norm/two norm/three norm/inf norm/lowest", "0, 0"),
        ("norm/half norm/one", "0, 1"),
    ]),
    ("Equal extremes share the gradient.", &[("norm/inf_ties", "0.5, -0.5, 0")]),
    ("Where it is 0 its gradient is 0.", &[("std", "0, 0")]),
    ("Slopes at the origin are 0.", &[("hypot atan2", "0; 0")]),
    ("Points that coincide have gradient 0.", &[
        ("cdist/one", "0, -1; 0, 1"),
        ("cdist/two cdist/three cdist/inf", "0, 0; 0, 0"),
    ]),
    ("points that coincide have gradient 0 with it 0.", &[("pairwise_distance", "0, 0; 0, 0")]),
    ("0, with the gradient of a constant length `eps`.", &[("cosine_similarity", "6, 8; 0, 0")]),
    ("Those shorter than `eps` are divided by `eps`, with the gradient of a constant length.", &[
        ("normalize/two", "10, 20"),
        ("normalize/inf", "-0.1667, 0.1667"),
    ]),
    ("The slope is 0 everywhere.", &[("sign floor ceil round round_half_away trunc", "0, 0")]),
    ("The gradient is 0.", &[("round_decimals", "0, 0")]),
    ("The slope is 1 everywhere.", &[("frac", "1, 1")]),
    ("The slopes are 0.", &[("floor_div trunc_div", "0; 0")]),
    ("The slopes are 1 and less the whole quotient, also where it steps.", &[("fmod", "1, 1; -2, 2")]),
    ("The slopes are 1 and less the floored quotient, also where it steps.", &[("remainder", "1, 1; -2, 3")]),
    ("The slope at 0 is infinite.", &[("sqrt log log2 log10", "inf")]),
    ("The slope at 0 is -inf.", &[("rsqrt", "-inf"), ("recip", "-inf, -inf")]),
    ("The slope at -1 is infinite.", &[("log1p", "inf")]),
    ("The slope at -1 and 1 is infinite.", &[("asin atanh", "inf, inf")]),
    ("The slope at -1 and 1 is -inf.", &[("acos", "-inf, -inf")]),
    ("The slope at 1 is infinite.", &[("acosh", "inf")]),
    ("By 0 the slopes are infinite or NaN.", &[("div", "inf; -inf")]),
    ("The slope in the exponent is 0 where the base is 0 (as at `0^0`, where both are), NaN where it is negative.", &[
        ("pow/square pow/zero", "0; 0"),
        ("pow/one", "1; 0"),
        ("pow/half", "inf; 0"),
        ("pow/negative", "-4; NaN"),
    ]),
    ("Where `self` is 0 and `other` too, slopes are 0.", &[("xlogy/zero", "0; 0"), ("xlogy/one", "0.6931; 0")]),
    ("the slope at 0 is 0.", &[("l1_loss", "0; 0")]),
    ("Both sides have one slope where they meet; the second derivative there is that of the inside.", &[
        ("smooth_l1_loss", "1; -1"),
        ("smooth_l1_loss/zero", "0; 0"),
        ("huber_loss", "0.5; -0.5"),
    ]),
    ("At exactly the margin the slope is that of a violated one.", &[
        ("margin_ranking_loss", "-1; 1"),
        ("cosine_embedding_loss", "0, 1; 1, 0"),
        ("triplet_margin_loss", "0; 1; -1"),
    ]),
    ("At exactly the margin the slope is -1.", &[("hinge_embedding_loss", "-1")]),
    ("Each logarithm is at least -100, and has slope 0 where that bound holds;", &[("binary_cross_entropy", "0, 0")]),
    ("Where the bound `eps` (above 0) holds, the variance has no slope;", &[("gaussian_nll_loss", "10; 0")]),
    ("Where the target is 0 the term is 0, without slope.", &[("kl_div", "0; 0")]),
    ("A target of 0 has no slope.", &[("kl_div_batch_mean", "0; 0")]),
    ("A rate of 0 has an infinite slope with `eps` 0, and for a count of 0 the slope NaN.", &[
        ("poisson_nll_loss", "NaN"),
    ]),
    ("A sequence too short for its labels has loss infinity with gradient 0;", &[("ctc_loss", "0, 0")]),
    ("Two of inf share the gradient, two of -inf have gradient 0.", &[
        ("logaddexp/nothing", "0; 0"),
        ("logaddexp/infinite", "0.5; 0.5"),
        ("logaddexp/one", "0; 1"),
    ]),
    ("All -inf, and nothing at all, give -inf with gradient 0.", &[("logsumexp/nothing", "0, 0")]),
    ("A +inf gives +inf, and equal shares of the gradient to the elements that are.", &[
        ("logsumexp/infinite", "0.5, 0.5, 0"),
    ]),
    ("While all are -inf the result is -inf with gradient 0;", &[("logcumsumexp", "0, 1")]),
    ("a whole row of which nothing is left, which has gradient 0.", &[("masked_softmax", "0, 0")]),
    ("A query that may see no key gives 0, and has gradient 0.", &[("scaled_dot_product_attention", "0; 0; 0")]),
    ("-inf, with gradient 0, where a query may see no key.", &[("attention_with_lse", "0; 0; 0")]),
    ("The gradient is right at zeros, to any order.", &[("prod", "6, 0, 0; 0, 0, 0"), ("cumprod", "1, 8, 0")]),
    ("NaN wins; of equal elements the first, which gets the gradient.", &[
        ("adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices", "0, 1, 0"),
    ]),
];
