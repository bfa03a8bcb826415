//! The kinks: where an operation has no slope, or an infinite one, and which Gradus takes.

use gradus::Reduction::{None as Each, Sum};
use gradus::ops::{GridPadding, GridSample, Sampling, ScatterReduction};
use gradus::prelude::*;

/// A point on a kink, and why its slope is what it is. The slopes themselves are computed.
pub(crate) struct Kink {
    /// The operation, and after a `/` what tells its rows apart.
    pub(crate) name: &'static str,
    /// The place in words.
    pub(crate) place: &'static str,
    /// The operands, as lists.
    pub(crate) inputs: &'static [&'static [f64]],
    /// The slopes are those of the sum of what this gives.
    pub(crate) call: fn(&[Tensor]) -> Result<Tensor>,
    /// The reason.
    pub(crate) why: &'static str,
}

/// A section of the page.
pub(crate) type Section = (&'static str, &'static [Kink]);

macro_rules! kinks {
    ($($name:literal, $place:literal, [$($input:expr),*], |$x:ident| $call:expr, $why:literal;)*) => {
        &[$(Kink { name: $name, place: $place, inputs: &[$(&$input),*], call: |$x| $call, why: $why },)*]
    };
}

const INF: f64 = f64::INFINITY;

/// 1, 2, 3, ..: tells the outputs apart.
fn counted(y: &Tensor) -> Result<Tensor> {
    let numbers = Tensor::arange(1, y.numel() as i64 + 1, 1, DType::F64, y.device())?;
    y.mul(&numbers.reshape(y.shape())?)
}

fn row(x: &Tensor) -> Result<Tensor> {
    x.reshape([1, x.numel()])
}

/// As `[1, 1, n]`.
fn signal(x: &Tensor) -> Result<Tensor> {
    x.reshape([1, 1, x.numel()])
}

/// As `[1, 1, 1, n]` for an image or `[1, 1, 1, 1, n]` for a volume.
fn spatial(x: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank + 1];
    shape.push(x.numel());
    x.reshape(shape)
}

fn labels(x: &Tensor, values: &[f64]) -> Result<Tensor> {
    Tensor::from_vec(values, [values.len()], x.device())
}

fn places(x: &Tensor, values: &[i64]) -> Result<Tensor> {
    Tensor::from_vec(values, [values.len()], x.device())
}

/// The value of the image `[0, 1, 4]` at a point of its axis, in pixels.
fn pixel(x: &Tensor, mode: Sampling, padding: GridPadding) -> Result<Tensor> {
    let image = Tensor::from_vec([0.0, 1.0, 4.0], [1, 1, 1, 3], x.device())?;
    let along = x.reshape([1, 1, x.numel(), 1])?.sub(1.0)?;
    let grid = Tensor::cat(&[&along, &along.zeros_like()?], 3)?;
    image.grid_sample(&grid, GridSample { mode, padding, align_corners: true })
}

pub(crate) const SECTIONS: &[Section] = &[
    ("Corners", CORNERS),
    ("Ties", TIES),
    ("Lengths and distances", LENGTHS),
    ("Steps", STEPS),
    ("Infinite slopes", STEEP),
    ("Losses", LOSSES),
    ("Nothing there: masks, infinities, bounds", NOTHING),
];

const CORNERS: &[Kink] = kinks! {
    "abs", "0, -0", [[0.0, -0.0]], |x| x[0].abs(), "the middle of -1 and 1";
    "relu", "0, -0", [[0.0, -0.0]], |x| x[0].relu(), "a dead unit stays dead";
    "relu_mul", "first factor 0", [[0.0], [3.0]], |x| x[0].relu_mul(&x[1]), "as relu";
    "leaky_relu", "0, alpha 0.1", [[0.0]], |x| x[0].leaky_relu(0.1), "x > 0 takes the right side, all else the left";
    "prelu", "0, weight 0.25", [[0.0], [0.25]], |x| x[0].prelu(&x[1]), "as leaky_relu";
    "elu", "0, alpha 0.7", [[0.0]], |x| x[0].elu(0.7), "the left side, as leaky_relu";
    "selu", "0", [[0.0]], |x| x[0].selu(), "the left side, as leaky_relu";
    "celu", "0, alpha 1.3: the second derivative jumps", [[0.0]], |x| x[0].celu(1.3), "both sides have slope 1";
    "softsign", "0: the second derivative jumps", [[0.0]], |x| x[0].softsign(), "both sides have slope 1";
    "relu6", "0, 6", [[0.0, 6.0]], |x| x[0].relu6(), "flat at the ends, as relu";
    "hardtanh", "the ends -1, 1", [[-1.0, 1.0]], |x| x[0].hardtanh(-1.0, 1.0), "flat at the ends, as relu";
    "clamp", "the ends -1, 1", [[-1.0, 1.0]], |x| x[0].clamp(-1.0, 1.0), "the value there is still x: a parameter at its bound can leave it";
    "hardsigmoid", "-3, 3", [[-3.0, 3.0]], |x| x[0].hardsigmoid(), "flat at the ends";
    "hardswish", "-3, 3", [[-3.0, 3.0]], |x| x[0].hardswish(), "the outer side";
    "hardshrink", "-0.5, 0.5 (a step)", [[-0.5, 0.5]], |x| x[0].hardshrink(0.5), "the value there is 0";
    "softshrink", "-0.5, 0.5", [[-0.5, 0.5]], |x| x[0].softshrink(0.5), "the value there is 0";
    "threshold", "at the threshold 0.1 (a step)", [[0.1]], |x| x[0].threshold(0.1, 20.0), "the value there is the constant";
    "copysign", "a zero, signs + and -", [[0.0, 0.0], [1.0, -1.0]], |x| x[0].copysign(x[1].detach()), "that of abs";
    "nan_to_num", "NaN, inf, -inf", [[f64::NAN, INF, -INF]], |x| x[0].nan_to_num(0.0, None, None), "replaced by constants";
    "where_", "false: the branch not taken is NaN", [[f64::NAN], [2.0]], |x| x[0].eq(0.0)?.where_(&x[0], &x[1]), "a branch that is not taken gets an exact 0";
    "where_/steep", "false: the branch not taken is sqrt(0)", [[0.0]], |x| x[0].gt(0.0)?.where_(&x[0].sqrt()?, &x[0]), "the exact 0 meets the infinite slope of sqrt: choose its operand instead";
    "grid_sample/bilinear", "a pixel's centre: slope 1 before, 3 after", [[1.0]], |x| pixel(&x[0], Sampling::Bilinear, GridPadding::Zeros), "the pixels from the centre on";
    "grid_sample/border", "the centres of the first and last pixel", [[0.0, 2.0]], |x| pixel(&x[0], Sampling::Bilinear, GridPadding::Border), "flat at the ends, as hardtanh";
};

const TIES: &[Kink] = kinks! {
    "maximum", "equal operands", [[2.0], [2.0]], |x| x[0].maximum(&x[1]), "half to each: symmetric";
    "minimum", "equal operands", [[2.0], [2.0]], |x| x[0].minimum(&x[1]), "half to each: symmetric";
    "fmax", "equal operands", [[2.0], [2.0]], |x| x[0].fmax(&x[1]), "half to each, as maximum";
    "fmin", "equal operands", [[2.0], [2.0]], |x| x[0].fmin(&x[1]), "half to each, as minimum";
    "max", "two of three are the largest", [[1.0, 3.0, 3.0]], |x| x[0].max(&[0], false), "shared evenly: no order is preferred";
    "min", "two of three are the smallest", [[1.0, 1.0, 3.0]], |x| x[0].min(&[0], false), "shared evenly";
    "aminmax", "all equal: min + 2 max", [[2.0, 2.0]], |x| { let (a, b) = x[0].aminmax(&[0], false)?; a.add(&b.mul(2.0)?) }, "shared evenly, as max and min";
    "max_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(x[0].max_with_indices(0, false)?.0), "the element of the index: the first";
    "min_with_indices", "two of three", [[1.0, 1.0, 3.0]], |x| Ok(x[0].min_with_indices(0, false)?.0), "the element of the index: the first";
    "sort", "ties, outputs weighted 1, 2, 3", [[2.0, 1.0, 2.0]], |x| counted(&x[0].sort(0, false)?.0), "stable: equal elements keep their order";
    "topk", "two of three, k = 2, weighted 1, 2", [[3.0, 3.0, 3.0]], |x| counted(&x[0].topk(2, 0, true, true)?.0), "the first of equals";
    "kthvalue", "k = 2 of three equal", [[3.0, 3.0, 3.0]], |x| Ok(x[0].kthvalue(2, 0, false)?.0), "the element of the index, in stable order";
    "unique", "an element that occurs twice", [[2.0, 2.0]], |x| Ok(x[0].unique(true, false, false)?.values), "its first occurrence";
    "cummax", "ties, outputs weighted 1, 2, 3", [[2.0, 2.0, 1.0]], |x| counted(&x[0].cummax(0)?.0), "the latest, as its index says";
    "cummin", "ties, outputs weighted 1, 2, 3", [[1.0, 1.0, 2.0]], |x| counted(&x[0].cummin(0)?.0), "the latest, as its index says";
    "max_pool1d", "two of three", [[1.0, 3.0, 3.0]], |x| signal(&x[0])?.max_pool1d([3], PoolOptions::new()), "the first of the window";
    "max_pool2d", "two of three", [[1.0, 3.0, 3.0]], |x| spatial(&x[0], 2)?.max_pool2d([1, 3], PoolOptions::new()), "the first of the window";
    "max_pool2d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(spatial(&x[0], 2)?.max_pool2d_with_indices([1, 3], PoolOptions::new())?.0), "the element of the index: the first";
    "max_pool1d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(signal(&x[0])?.max_pool1d_with_indices([3], PoolOptions::new())?.0), "the element of the index: the first";
    "max_pool3d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(spatial(&x[0], 3)?.max_pool3d_with_indices([1, 1, 3], PoolOptions::new())?.0), "the element of the index: the first";
    "adaptive_max_pool1d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(signal(&x[0])?.adaptive_max_pool1d_with_indices([1])?.0), "the element of the index: the first";
    "adaptive_max_pool2d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(spatial(&x[0], 2)?.adaptive_max_pool2d_with_indices([1, 1])?.0), "the element of the index: the first";
    "adaptive_max_pool3d_with_indices", "two of three", [[1.0, 3.0, 3.0]], |x| Ok(spatial(&x[0], 3)?.adaptive_max_pool3d_with_indices([1, 1, 1])?.0), "the element of the index: the first";
    "max_pool3d", "two of three", [[1.0, 3.0, 3.0]], |x| spatial(&x[0], 3)?.max_pool3d([1, 1, 3], PoolOptions::new()), "the first of the window";
    "adaptive_max_pool1d", "two of three", [[1.0, 3.0, 3.0]], |x| signal(&x[0])?.adaptive_max_pool1d([1]), "the first of the bin";
    "adaptive_max_pool2d", "two of three", [[1.0, 3.0, 3.0]], |x| spatial(&x[0], 2)?.adaptive_max_pool2d([1, 1]), "the first of the bin";
    "adaptive_max_pool3d", "two of three", [[1.0, 3.0, 3.0]], |x| spatial(&x[0], 3)?.adaptive_max_pool3d([1, 1, 1]), "the first of the bin";
    "scatter_reduce/amax", "the largest: two 2 are sent to a 2", [[2.0, 1.0], [2.0, 2.0]], |x| x[0].scatter_reduce(0, &places(&x[0], &[0, 0])?, &x[1], ScatterReduction::Amax, true), "shared evenly among those that attain it";
    "scatter_reduce/amin", "the smallest: two 2 are sent to a 2", [[2.0, 1.0], [2.0, 2.0]], |x| x[0].scatter_reduce(0, &places(&x[0], &[0, 0])?, &x[1], ScatterReduction::Amin, true), "shared evenly among those that attain it";
};

const LENGTHS: &[Kink] = kinks! {
    "norm/zero", "p = 0, elements 0 and 2", [[0.0, 2.0]], |x| x[0].norm(0.0, &[0], false), "a count: slope 0 everywhere";
    "norm/half", "p = 0.5, an element 0 beside 4", [[0.0, 4.0]], |x| x[0].norm(0.5, &[0], false), "infinite from both sides; 0 keeps others finite";
    "norm/one", "p = 1, elements 0 and 2", [[0.0, 2.0]], |x| x[0].norm(1.0, &[0], false), "as abs";
    "norm/two", "p = 2, the zero vector", [[0.0, 0.0]], |x| x[0].norm(2.0, &[0], false), "the middle of all directions";
    "norm/three", "p = 3, the zero vector", [[0.0, 0.0]], |x| x[0].norm(3.0, &[0], false), "the middle of all directions";
    "norm/inf", "p = inf, the zero vector", [[0.0, 0.0]], |x| x[0].norm(INF, &[0], false), "as abs";
    "norm/inf_ties", "p = inf, magnitudes tie", [[3.0, -3.0, 1.0]], |x| x[0].norm(INF, &[0], false), "shared evenly, as max";
    "norm/lowest", "p = -inf, an element 0", [[0.0, 3.0]], |x| x[0].norm(-INF, &[0], false), "as abs";
    "std", "all elements equal", [[2.0, 2.0]], |x| x[0].std(&[0], 1, false), "a length of 0, as norm";
    "hypot", "the origin", [[0.0], [0.0]], |x| x[0].hypot(&x[1]), "a length of 0, as norm";
    "atan2", "the origin", [[0.0], [0.0]], |x| x[0].atan2(&x[1]), "no direction, so no turn";
    "cdist/one", "points that share a coordinate, p = 1", [[0.0, 0.0], [0.0, 2.0]], |x| row(&x[0])?.cdist(&row(&x[1])?, 1.0), "as norm";
    "cdist/two", "points that coincide, p = 2", [[1.0, 2.0], [1.0, 2.0]], |x| row(&x[0])?.cdist(&row(&x[1])?, 2.0), "as norm";
    "cdist/three", "points that coincide, p = 3", [[1.0, 2.0], [1.0, 2.0]], |x| row(&x[0])?.cdist(&row(&x[1])?, 3.0), "as norm";
    "cdist/inf", "points that coincide, p = inf", [[1.0, 2.0], [1.0, 2.0]], |x| row(&x[0])?.cdist(&row(&x[1])?, INF), "as norm";
    "pairwise_distance", "points that coincide, eps 0", [[1.0, 2.0], [1.0, 2.0]], |x| x[0].pairwise_distance(&x[1], 2.0, 0.0, false), "as norm";
    "cosine_similarity", "a zero vector beside (3, 4), eps 0.1", [[0.0, 0.0], [3.0, 4.0]], |x| x[0].cosine_similarity(&x[1], 0, 0.1), "the length is eps there, a constant";
    "normalize/two", "the zero vector, eps 0.1", [[0.0, 0.0]], |x| counted(&x[0].normalize(2.0, 0, 0.1)?), "divided by eps, a constant";
    "normalize/inf", "magnitudes tie, p = inf", [[3.0, 3.0]], |x| counted(&x[0].normalize(INF, 0, 0.1)?), "the largest is shared, as max";
};

const STEPS: &[Kink] = kinks! {
    "sign", "0 and elsewhere", [[0.0, 1.5]], |x| x[0].sign(), "a step is flat on both sides";
    "floor", "1 and elsewhere", [[1.0, 1.5]], |x| x[0].floor(), "flat on both sides";
    "ceil", "1 and elsewhere", [[1.0, 1.5]], |x| x[0].ceil(), "flat on both sides";
    "round", "0.5 and elsewhere", [[0.5, 1.2]], |x| x[0].round(), "flat on both sides";
    "round_half_away", "0.5 and elsewhere", [[0.5, 1.2]], |x| x[0].round_half_away(), "flat on both sides";
    "round_decimals", "0.25 to one decimal, and elsewhere", [[0.25, 1.22]], |x| x[0].round_decimals(1), "flat on both sides";
    "trunc", "1 and elsewhere", [[1.0, 1.5]], |x| x[0].trunc(), "flat on both sides";
    "frac", "1 and elsewhere", [[1.0, 1.5]], |x| x[0].frac(), "x less a step";
    "floor_div", "6 by 3", [[6.0], [3.0]], |x| x[0].floor_div(&x[1]), "flat on both sides";
    "trunc_div", "6 by 3", [[6.0], [3.0]], |x| x[0].trunc_div(&x[1]), "flat on both sides";
    "fmod", "6 by 3, -7 by 3", [[6.0, -7.0], [3.0, 3.0]], |x| x[0].fmod(&x[1]), "1, and less the whole quotient";
    "remainder", "6 by 3, -7 by 3", [[6.0, -7.0], [3.0, 3.0]], |x| x[0].remainder(&x[1]), "1, and less the floored quotient";
    "grid_sample/nearest", "between two pixels", [[0.5]], |x| pixel(&x[0], Sampling::Nearest, GridPadding::Zeros), "flat on both sides";
};

const STEEP: &[Kink] = kinks! {
    "sqrt", "0", [[0.0]], |x| x[0].sqrt(), "the limit from the right";
    "rsqrt", "0", [[0.0]], |x| x[0].rsqrt(), "the limit from the right";
    "recip", "0, -0", [[0.0, -0.0]], |x| x[0].recip(), "the limit from either side";
    "log", "0", [[0.0]], |x| x[0].log(), "the limit from the right";
    "log2", "0", [[0.0]], |x| x[0].log2(), "the limit from the right";
    "log10", "0", [[0.0]], |x| x[0].log10(), "the limit from the right";
    "log1p", "-1", [[-1.0]], |x| x[0].log1p(), "the limit from the right";
    "asin", "-1, 1", [[-1.0, 1.0]], |x| x[0].asin(), "the limit from inside";
    "acos", "-1, 1", [[-1.0, 1.0]], |x| x[0].acos(), "the limit from inside";
    "acosh", "1", [[1.0]], |x| x[0].acosh(), "the limit from the right";
    "atanh", "-1, 1", [[-1.0, 1.0]], |x| x[0].atanh(), "the limit from inside";
    "div", "1 by 0", [[1.0], [0.0]], |x| x[0].div(&x[1]), "IEEE division";
    "pow/square", "0^2", [[0.0], [2.0]], |x| x[0].pow(&x[1]), "smooth in the base; 0^y is flat in y";
    "pow/one", "0^1", [[0.0], [1.0]], |x| x[0].pow(&x[1]), "smooth in the base; 0^y is flat in y";
    "pow/half", "0^0.5", [[0.0], [0.5]], |x| x[0].pow(&x[1]), "as sqrt; 0^y is flat in y";
    "pow/zero", "0^0", [[0.0], [0.0]], |x| x[0].pow(&x[1]), "1 for every base; the step in y counts as flat";
    "pow/negative", "(-2)^2", [[-2.0], [2.0]], |x| x[0].pow(&x[1]), "no power of a negative base beside whole exponents";
    "xlogy/zero", "0 ln 0", [[0.0], [0.0]], |x| x[0].xlogy(&x[1]), "the value is a constant 0 there";
    "xlogy/one", "0 ln 2", [[0.0], [2.0]], |x| x[0].xlogy(&x[1]), "smooth: the slope is ln 2";
};

const LOSSES: &[Kink] = kinks! {
    "l1_loss", "prediction = target", [[1.0], [1.0]], |x| x[0].l1_loss(&x[1], Sum), "as abs";
    "smooth_l1_loss", "a difference of beta = 0.5", [[1.5], [1.0]], |x| x[0].smooth_l1_loss(&x[1], 0.5, Sum), "both sides agree; the second derivative jumps";
    "smooth_l1_loss/zero", "beta 0, prediction = target", [[1.0], [1.0]], |x| x[0].smooth_l1_loss(&x[1], 0.0, Sum), "as abs";
    "huber_loss", "a difference of delta = 0.5", [[1.5], [1.0]], |x| x[0].huber_loss(&x[1], 0.5, Sum), "both sides agree; the second derivative jumps";
    "margin_ranking_loss", "exactly the margin", [[1.5], [1.0]], |x| x[0].margin_ranking_loss(&x[1], &labels(&x[0], &[1.0])?, 0.5, Sum), "the margin is not passed yet: still pushed";
    "hinge_embedding_loss", "exactly the margin", [[0.5]], |x| x[0].hinge_embedding_loss(&labels(&x[0], &[-1.0])?, 0.5, Sum), "the margin is not passed yet: still pushed";
    "cosine_embedding_loss", "exactly the margin (0: a right angle)", [[1.0, 0.0], [0.0, 1.0]], |x| row(&x[0])?.cosine_embedding_loss(&row(&x[1])?, &labels(&x[0], &[-1.0])?, 0.0, Sum), "the margin is not passed yet: still pushed";
    "triplet_margin_loss", "exactly the margin, p = 1", [[0.0], [1.0], [2.0]], |x| x[0].triplet_margin_loss(&x[1], &x[2], 1.0, 1.0, false, Sum), "the margin is not passed yet: still pushed";
    "binary_cross_entropy", "probability 0 and 1, target 1 and 0: the bound -100 holds", [[0.0, 1.0]], |x| x[0].binary_cross_entropy(&labels(&x[0], &[1.0, 0.0])?, None, Each), "a constant loss has slope 0";
    "gaussian_nll_loss", "a variance below eps = 0.1", [[1.0], [0.01]], |x| x[0].gaussian_nll_loss(&x[0].zeros_like()?, &x[1], false, 0.1, Sum), "the variance is a constant there";
    "kl_div", "target 0", [[-1.0], [0.0]], |x| x[0].kl_div(&x[1], false, Sum), "0 ln 0 counts as a constant 0";
    "kl_div_batch_mean", "target 0", [[-1.0], [0.0]], |x| x[0].kl_div_batch_mean(&x[1], false), "as kl_div";
    "poisson_nll_loss", "rate 0 of a count 0, eps 0", [[0.0]], |x| x[0].poisson_nll_loss(&x[0].zeros_like()?, false, false, 0.0, Sum), "0 / 0: choose eps above 0";
    "ctc_loss", "a sequence too short for its labels", [[-0.5, -0.9]], |x| spatial(&x[0], 1)?.ctc_loss(&places(&x[0], &[1, 1])?.reshape([1, 2])?, &[1], &[2], 0, false, Sum), "the loss is infinite whatever the input";
};

const NOTHING: &[Kink] = kinks! {
    "logaddexp/nothing", "-inf and -inf", [[-INF], [-INF]], |x| x[0].logaddexp(&x[1]), "nothing there to share";
    "logaddexp/infinite", "inf and inf", [[INF], [INF]], |x| x[0].logaddexp(&x[1]), "shared by the infinite ones";
    "logaddexp/one", "-inf and 0", [[-INF], [0.0]], |x| x[0].logaddexp(&x[1]), "all to the one that counts";
    "logsumexp/nothing", "all -inf", [[-INF, -INF]], |x| x[0].logsumexp(&[0], false), "nothing there to share";
    "logsumexp/infinite", "two of three inf", [[INF, INF, 1.0]], |x| x[0].logsumexp(&[0], false), "shared by the infinite ones";
    "logcumsumexp", "-inf first, then 0", [[-INF, 0.0]], |x| x[0].logcumsumexp(0), "-inf adds nothing";
    "masked_softmax", "a row with nothing kept", [[1.0, 2.0]], |x| counted(&row(&x[0])?.masked_softmax(&row(&x[0])?.gt(9.0)?, 1)?), "the weights are a constant 0";
    "scaled_dot_product_attention", "a query that may see no key: query, key, value", [[1.0], [2.0], [3.0]],
        |x| spatial(&x[0], 2)?.scaled_dot_product_attention(&spatial(&x[1], 2)?, &spatial(&x[2], 2)?, AttentionOptions::new().mask(&spatial(&x[0], 2)?.gt(9.0)?)), "the result is a constant 0";
    "attention_with_lse", "a query that may see no key: query, key, value", [[1.0], [2.0], [3.0]],
        |x| Ok(spatial(&x[0], 2)?.attention_with_lse(&spatial(&x[1], 2)?, &spatial(&x[2], 2)?, AttentionOptions::new().mask(&spatial(&x[0], 2)?.gt(9.0)?))?.0), "the result is a constant 0";
    "prod", "one zero, two zeros", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]], |x| x[0].prod(&[0], false)?.add(&x[1].prod(&[0], false)?), "smooth: products of the others, without division";
    "cumprod", "a zero", [[2.0, 0.0, 3.0]], |x| x[0].cumprod(0), "smooth: without division";
};

/// The rows of the op matrix without a kink where they are finite.
pub(crate) const SMOOTH: &str = "
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d add addmm affine_grid asinh atan avg_pool1d avg_pool2d
    avg_pool3d baddbmm batch_norm batch_norm_eval bce_with_logits bincount broadcast_tensors cast cat chunk conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d cos cosh cross cross_entropy cumsum diag diag_embed diagonal dot
    dropout einsum embedding erf erfc exp exp2 expand expm1 flatten flip fold gather gelu gelu_mul gelu_tanh gelu_tanh_mul
    glu group_norm index index_add index_assign index_copy index_fill index_put index_select instance_norm interpolate kron
    layer_norm lerp linear local_response_norm log_sigmoid log_softmax masked_fill masked_select matmul mean meshgrid mish
    movedim mse_loss mul narrow neg nll_loss outer pad permute repeat repeat_interleave reshape rms_norm roll rot90 scatter
    scatter_add select sigmoid sigmoid_mul silu silu_mul sin sinh slice soft_margin_loss softmax softmin softplus split
    split_with_sizes square squeeze stack sub sum tan tanh tensordot tile trace transpose tril triu unbind unflatten unfold
    unfold_axis unsqueeze var var_mean";
