//! The kinks: points where an operation has no slope, or an infinite one, and the slopes that Gradus returns there.

use gradus::Reduction::{None as Each, Sum};
use gradus::ops::table::Kink;
use gradus::ops::{GridPadding, GridSample, RecurrentCell, RecurrentOptions, Sampling, ScatterReduction};
use gradus::prelude::*;

/// A kink of an operation that is not in the table of elementwise operations. That table lists the kinks of its own
/// entries.
pub(crate) struct Row {
    /// The name of the operation.
    pub(crate) of: &'static str,
    pub(crate) kink: Kink,
    /// The function to differentiate. The slopes are those of the sum of its outputs.
    pub(crate) call: fn(&[Tensor]) -> Result<Tensor>,
    /// A Python expression that computes the same in PyTorch, from the operands `a`, `b`, `c` and what `pytorch.py`
    /// defines. Empty if PyTorch has no such function.
    pub(crate) torch: &'static str,
    /// What the documentation of the operation says about the slope, verbatim.
    pub(crate) says: &'static str,
}

/// A section of the page.
pub(crate) type Section = (&'static str, &'static [Row]);

macro_rules! kinks {
    ($({
        of: $of:literal, at: $at:literal, inputs: [$($input:expr),*],
        call: |$x:ident| $call:expr,
        torch: $torch:literal,
        slopes: $slopes:literal, says: $says:literal,
        why: $why:literal,
    })*) => {
        &[$(Row {
            of: $of,
            kink: Kink { at: $at, inputs: &[$(&$input),*], slopes: $slopes, why: $why },
            call: |$x| $call,
            torch: $torch,
            says: $says,
        },)*]
    };
}

const INF: f64 = f64::INFINITY;

/// Multiplies the outputs by 1, 2, 3, .. so that their slopes can be distinguished.
fn counted(y: &Tensor) -> Result<Tensor> {
    let numbers = Tensor::arange(1, y.numel() as i64 + 1, 1, DType::F64, y.device())?;
    y.mul(&numbers.reshape(y.shape())?)
}

fn row(x: &Tensor) -> Result<Tensor> {
    x.reshape([1, x.numel()])
}

/// Reshapes to `[1, 1, n]`.
fn signal(x: &Tensor) -> Result<Tensor> {
    x.reshape([1, 1, x.numel()])
}

/// Reshapes to `[1, 1, 1, n]` for an image or `[1, 1, 1, 1, n]` for a volume.
fn spatial(x: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank + 1];
    shape.push(x.numel());
    x.reshape(shape)
}

/// One step of an RNN with ReLU, from a state of 0 and with weights of 1.
fn relu_step(x: &Tensor) -> Result<Tensor> {
    let one = spatial(x, 1)?.ones_like()?;
    let options = RecurrentOptions::new(RecurrentCell::RnnRelu);
    let [state, weight] = [one.zeros_like()?.squeeze(0)?, one.squeeze(0)?];
    Ok(spatial(x, 1)?.recurrent(options, &[&state], [&weight, &weight], None)?.swap_remove(0))
}

fn labels(x: &Tensor, values: &[f64]) -> Result<Tensor> {
    Tensor::from_vec(values, [values.len()], x.device())
}

fn places(x: &Tensor, values: &[i64]) -> Result<Tensor> {
    Tensor::from_vec(values, [values.len()], x.device())
}

/// Samples the image `[0, 1, 4]` at positions along its axis, in pixels.
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
    ("Losses", LOSSES),
    ("Nothing there: masks, infinities, bounds", NOTHING),
];

const CORNERS: &[Row] = kinks! {
    {
        of: "prelu", at: "0, weight 0.25", inputs: [[0.0], [0.25]], call: |x| x[0].prelu(&x[1]), torch: "F.prelu(a, b)",
        slopes: "0.25; 0", says: "The slope at 0 is the weight.", why: "as leaky_relu",
    }
    {
        of: "nan_to_num", at: "NaN, inf, -inf", inputs: [[f64::NAN, INF, -INF]],
        call: |x| x[0].nan_to_num(0.0, None, None), torch: "torch.nan_to_num(a)",
        slopes: "0, 0, 0", says: "Replaced elements have gradient 0.", why: "replaced by constants",
    }
    {
        of: "where_", at: "false: the branch not taken is NaN", inputs: [[f64::NAN], [2.0]],
        call: |x| x[0].eq(0.0)?.where_(&x[0], &x[1]), torch: "torch.where(a == 0, a, b)",
        slopes: "0; 1", says: "The branch not taken gets an exact zero gradient.",
        why: "a branch that is not taken gets an exact 0",
    }
    {
        of: "where_", at: "false: the branch not taken is sqrt(0)", inputs: [[0.0]],
        call: |x| x[0].gt(0.0)?.where_(&x[0].sqrt()?, &x[0]), torch: "torch.where(a > 0, a.sqrt(), a)",
        slopes: "NaN", says: "The branch not taken gets an exact zero gradient.",
        why: "the exact 0 meets the infinite slope of sqrt: choose its operand instead",
    }
    {
        of: "grid_sample", at: "a pixel's centre: slope 1 before, 3 after", inputs: [[1.0]],
        call: |x| pixel(&x[0], Sampling::Bilinear, GridPadding::Zeros), torch: "pixel(a, 'bilinear', 'zeros')",
        slopes: "3", says: "At the centre of a pixel, the slope is that of the interval that begins there; where a border begins, it is 0. With the nearest pixel it is 0 everywhere.",
        why: "the pixels from the centre on",
    }
    {
        of: "grid_sample", at: "the centres of the first and last pixel", inputs: [[0.0, 2.0]],
        call: |x| pixel(&x[0], Sampling::Bilinear, GridPadding::Border), torch: "pixel(a, 'bilinear', 'border')",
        slopes: "0, 0", says: "At the centre of a pixel, the slope is that of the interval that begins there; where a border begins, it is 0. With the nearest pixel it is 0 everywhere.",
        why: "flat at the ends, as hardtanh",
    }
};

const TIES: &[Row] = kinks! {
    {
        of: "max", at: "two of three are the largest", inputs: [[1.0, 3.0, 3.0]], call: |x| x[0].max(&[0], false),
        torch: "a.amax(0)", slopes: "0, 0.5, 0.5", says: "Equal ones share the gradient.",
        why: "shared evenly: no order is preferred",
    }
    {
        of: "min", at: "two of three are the smallest", inputs: [[1.0, 1.0, 3.0]], call: |x| x[0].min(&[0], false),
        torch: "a.amin(0)", slopes: "0.5, 0.5, 0", says: "Equal ones share the gradient.", why: "shared evenly",
    }
    {
        of: "aminmax", at: "all equal: min + 2 max", inputs: [[2.0, 2.0]],
        call: |x| { let (a, b) = x[0].aminmax(&[0], false)?; a.add(&b.mul(2.0)?) },
        torch: "(lambda r: r.min + 2 * r.max)(a.aminmax(dim=0))",
        slopes: "1.5, 1.5", says: "Equal extremes share the gradient.", why: "shared evenly, as max and min",
    }
    {
        of: "max_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(x[0].max_with_indices(0, false)?.0), torch: "a.max(0).values",
        slopes: "0, 1, 0", says: "The gradient goes to the element at the index",
        why: "the element of the index: the first",
    }
    {
        of: "min_with_indices", at: "two of three", inputs: [[1.0, 1.0, 3.0]],
        call: |x| Ok(x[0].min_with_indices(0, false)?.0), torch: "a.min(0).values",
        slopes: "1, 0, 0", says: "The gradient goes to the element at the index",
        why: "the element of the index: the first",
    }
    {
        of: "sort", at: "ties, outputs weighted 1, 2, 3", inputs: [[2.0, 1.0, 2.0]],
        call: |x| counted(&x[0].sort(0, false)?.0), torch: "counted(a.sort(stable=True).values)",
        slopes: "2, 1, 3", says: "The gradient goes to the element of the index, also among equal ones.",
        why: "stable: equal elements keep their order",
    }
    {
        of: "topk", at: "two of three, k = 2, weighted 1, 2", inputs: [[3.0, 3.0, 3.0]],
        call: |x| counted(&x[0].topk(2, 0, true, true)?.0), torch: "counted(a.topk(2).values)",
        slopes: "1, 2, 0", says: "Of equal elements the first are taken, and get the gradient.",
        why: "the first of equals",
    }
    {
        of: "kthvalue", at: "k = 2 of three equal", inputs: [[3.0, 3.0, 3.0]],
        call: |x| Ok(x[0].kthvalue(2, 0, false)?.0), torch: "a.kthvalue(2).values",
        slopes: "0, 1, 0", says: "The gradient goes to the element of the index.",
        why: "the element of the index, in stable order",
    }
    {
        of: "unique", at: "an element that occurs twice", inputs: [[2.0, 2.0]],
        call: |x| Ok(x[0].unique(true, false, false)?.values), torch: "",
        slopes: "1, 0", says: "The gradient of a value goes to its first occurrence.", why: "its first occurrence",
    }
    {
        of: "cummax", at: "ties, outputs weighted 1, 2, 3", inputs: [[2.0, 2.0, 1.0]],
        call: |x| counted(&x[0].cummax(0)?.0), torch: "counted(a.cummax(0).values)",
        slopes: "1, 5, 0", says: "The gradient goes to the elements at these indices.",
        why: "the latest, as its index says",
    }
    {
        of: "cummin", at: "ties, outputs weighted 1, 2, 3", inputs: [[1.0, 1.0, 2.0]],
        call: |x| counted(&x[0].cummin(0)?.0), torch: "counted(a.cummin(0).values)",
        slopes: "1, 5, 0", says: "The gradient goes to the elements at these indices.",
        why: "the latest, as its index says",
    }
    {
        of: "max_pool1d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| signal(&x[0])?.max_pool1d([3], PoolOptions::new()), torch: "F.max_pool1d(spatial(a, 1), 3)",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the window",
    }
    {
        of: "max_pool2d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| spatial(&x[0], 2)?.max_pool2d([1, 3], PoolOptions::new()),
        torch: "F.max_pool2d(spatial(a, 2), (1, 3))",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the window",
    }
    {
        of: "max_pool2d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(spatial(&x[0], 2)?.max_pool2d_with_indices([1, 3], PoolOptions::new())?.0),
        torch: "F.max_pool2d(spatial(a, 2), (1, 3), return_indices=True)[0]",
        slopes: "0, 1, 0", says: "The gradient goes to the element that won.",
        why: "the element of the index: the first",
    }
    {
        of: "max_pool1d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(signal(&x[0])?.max_pool1d_with_indices([3], PoolOptions::new())?.0),
        torch: "F.max_pool1d(spatial(a, 1), 3, return_indices=True)[0]",
        slopes: "0, 1, 0", says: "The gradient goes to the element that won.",
        why: "the element of the index: the first",
    }
    {
        of: "max_pool3d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(spatial(&x[0], 3)?.max_pool3d_with_indices([1, 1, 3], PoolOptions::new())?.0),
        torch: "F.max_pool3d(spatial(a, 3), (1, 1, 3), return_indices=True)[0]",
        slopes: "0, 1, 0", says: "The gradient goes to the element that won.",
        why: "the element of the index: the first",
    }
    {
        of: "adaptive_max_pool1d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(signal(&x[0])?.adaptive_max_pool1d_with_indices([1])?.0),
        torch: "F.adaptive_max_pool1d(spatial(a, 1), 1, return_indices=True)[0]",
        slopes: "0, 1, 0", says: "NaN wins; of equal elements the first, which gets the gradient.",
        why: "the element of the index: the first",
    }
    {
        of: "adaptive_max_pool2d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(spatial(&x[0], 2)?.adaptive_max_pool2d_with_indices([1, 1])?.0),
        torch: "F.adaptive_max_pool2d(spatial(a, 2), 1, return_indices=True)[0]",
        slopes: "0, 1, 0", says: "NaN wins; of equal elements the first, which gets the gradient.",
        why: "the element of the index: the first",
    }
    {
        of: "adaptive_max_pool3d_with_indices", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| Ok(spatial(&x[0], 3)?.adaptive_max_pool3d_with_indices([1, 1, 1])?.0),
        torch: "F.adaptive_max_pool3d(spatial(a, 3), 1, return_indices=True)[0]",
        slopes: "0, 1, 0", says: "NaN wins; of equal elements the first, which gets the gradient.",
        why: "the element of the index: the first",
    }
    {
        of: "max_pool3d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| spatial(&x[0], 3)?.max_pool3d([1, 1, 3], PoolOptions::new()),
        torch: "F.max_pool3d(spatial(a, 3), (1, 1, 3))",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the window",
    }
    {
        of: "adaptive_max_pool1d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| signal(&x[0])?.adaptive_max_pool1d([1]), torch: "F.adaptive_max_pool1d(spatial(a, 1), 1)",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the bin",
    }
    {
        of: "adaptive_max_pool2d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| spatial(&x[0], 2)?.adaptive_max_pool2d([1, 1]), torch: "F.adaptive_max_pool2d(spatial(a, 2), 1)",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the bin",
    }
    {
        of: "adaptive_max_pool3d", at: "two of three", inputs: [[1.0, 3.0, 3.0]],
        call: |x| spatial(&x[0], 3)?.adaptive_max_pool3d([1, 1, 1]), torch: "F.adaptive_max_pool3d(spatial(a, 3), 1)",
        slopes: "0, 1, 0", says: "Of equal elements the first gets the gradient.", why: "the first of the bin",
    }
    {
        of: "scatter_reduce", at: "the largest: two 2 are sent to a 2", inputs: [[2.0, 1.0], [2.0, 2.0]],
        call: |x| x[0].scatter_reduce(0, &places(&x[0], &[0, 0])?, &x[1], ScatterReduction::Amax, true),
        torch: "reduced(a, b, 'amax')",
        slopes: "0.3333, 1; 0.3333, 0.3333", says: "The gradient of an extreme is split evenly among the elements that attain it.",
        why: "shared evenly among those that attain it",
    }
    {
        of: "scatter_reduce", at: "the smallest: two 2 are sent to a 2", inputs: [[2.0, 1.0], [2.0, 2.0]],
        call: |x| x[0].scatter_reduce(0, &places(&x[0], &[0, 0])?, &x[1], ScatterReduction::Amin, true),
        torch: "reduced(a, b, 'amin')",
        slopes: "0.3333, 1; 0.3333, 0.3333", says: "The gradient of an extreme is split evenly among the elements that attain it.",
        why: "shared evenly among those that attain it",
    }
};

const LENGTHS: &[Row] = kinks! {
    {
        of: "norm", at: "p = 0, elements 0 and 2", inputs: [[0.0, 2.0]], call: |x| x[0].norm(0.0, &[0], false),
        torch: "norm(0)(a)", slopes: "0, 0", says: "Where the function has a kink at 0 its gradient is 0",
        why: "a count: slope 0 everywhere",
    }
    {
        of: "norm", at: "p = 0.5, an element 0 beside 4", inputs: [[0.0, 4.0]], call: |x| x[0].norm(0.5, &[0], false),
        torch: "norm(0.5)(a)", slopes: "0, 1", says: "Where the function has a kink at 0 its gradient is 0",
        why: "infinite from both sides; 0 keeps others finite",
    }
    {
        of: "norm", at: "p = 1, elements 0 and 2", inputs: [[0.0, 2.0]], call: |x| x[0].norm(1.0, &[0], false),
        torch: "norm(1)(a)", slopes: "0, 1", says: "Where the function has a kink at 0 its gradient is 0",
        why: "as abs",
    }
    {
        of: "norm", at: "p = 2, the zero vector", inputs: [[0.0, 0.0]], call: |x| x[0].norm(2.0, &[0], false),
        torch: "norm(2)(a)", slopes: "0, 0", says: "Where the function has a kink at 0 its gradient is 0",
        why: "the middle of all directions",
    }
    {
        of: "norm", at: "p = 3, the zero vector", inputs: [[0.0, 0.0]], call: |x| x[0].norm(3.0, &[0], false),
        torch: "norm(3)(a)", slopes: "0, 0", says: "Where the function has a kink at 0 its gradient is 0",
        why: "the middle of all directions",
    }
    {
        of: "norm", at: "p = inf, the zero vector", inputs: [[0.0, 0.0]], call: |x| x[0].norm(INF, &[0], false),
        torch: "norm(inf)(a)", slopes: "0, 0", says: "Where the function has a kink at 0 its gradient is 0",
        why: "as abs",
    }
    {
        of: "norm", at: "p = inf, magnitudes tie", inputs: [[3.0, -3.0, 1.0]], call: |x| x[0].norm(INF, &[0], false),
        torch: "norm(inf)(a)", slopes: "0.5, -0.5, 0", says: "Equal extremes share the gradient.",
        why: "shared evenly, as max",
    }
    {
        of: "norm", at: "p = -inf, an element 0", inputs: [[0.0, 3.0]], call: |x| x[0].norm(-INF, &[0], false),
        torch: "norm(-inf)(a)", slopes: "0, 0", says: "Where the function has a kink at 0 its gradient is 0",
        why: "as abs",
    }
    {
        of: "std", at: "all elements equal", inputs: [[2.0, 2.0]], call: |x| x[0].std(&[0], 1, false), torch: "a.std()",
        slopes: "0, 0", says: "Where it is 0 its gradient is 0.", why: "a length of 0, as norm",
    }
    {
        of: "cdist", at: "points that share a coordinate, p = 1", inputs: [[0.0, 0.0], [0.0, 2.0]],
        call: |x| row(&x[0])?.cdist(&row(&x[1])?, 1.0), torch: "cdist(1.0)(a, b)",
        slopes: "0, -1; 0, 1", says: "Points that coincide have gradient 0.", why: "as norm",
    }
    {
        of: "cdist", at: "points that coincide, p = 2", inputs: [[1.0, 2.0], [1.0, 2.0]],
        call: |x| row(&x[0])?.cdist(&row(&x[1])?, 2.0), torch: "cdist(2.0)(a, b)",
        slopes: "0, 0; 0, 0", says: "Points that coincide have gradient 0.", why: "as norm",
    }
    {
        of: "cdist", at: "points that coincide, p = 3", inputs: [[1.0, 2.0], [1.0, 2.0]],
        call: |x| row(&x[0])?.cdist(&row(&x[1])?, 3.0), torch: "cdist(3.0)(a, b)",
        slopes: "0, 0; 0, 0", says: "Points that coincide have gradient 0.", why: "as norm",
    }
    {
        of: "cdist", at: "points that coincide, p = inf", inputs: [[1.0, 2.0], [1.0, 2.0]],
        call: |x| row(&x[0])?.cdist(&row(&x[1])?, INF), torch: "cdist(inf)(a, b)",
        slopes: "0, 0; 0, 0", says: "Points that coincide have gradient 0.", why: "as norm",
    }
    {
        of: "pairwise_distance", at: "points that coincide, eps 0", inputs: [[1.0, 2.0], [1.0, 2.0]],
        call: |x| x[0].pairwise_distance(&x[1], 2.0, 0.0, false), torch: "F.pairwise_distance(a, b, 2.0, 0.0)",
        slopes: "0, 0; 0, 0", says: "If `eps` is 0, points that coincide have gradient 0.", why: "as norm",
    }
    {
        of: "cosine_similarity", at: "a zero vector beside (3, 4), eps 0.1", inputs: [[0.0, 0.0], [3.0, 4.0]],
        call: |x| x[0].cosine_similarity(&x[1], 0, 0.1), torch: "F.cosine_similarity(a, b, 0, 0.1)",
        slopes: "6, 8; 0, 0", says: "0, with the gradient of a constant length `eps`.",
        why: "the length is eps there, a constant",
    }
    {
        of: "normalize", at: "the zero vector, eps 0.1", inputs: [[0.0, 0.0]],
        call: |x| counted(&x[0].normalize(2.0, 0, 0.1)?), torch: "counted(F.normalize(a, 2.0, 0, 0.1))",
        slopes: "10, 20", says: "Those shorter than `eps` are divided by `eps`, with the gradient of a constant length.",
        why: "divided by eps, a constant",
    }
    {
        of: "normalize", at: "magnitudes tie, p = inf", inputs: [[3.0, 3.0]],
        call: |x| counted(&x[0].normalize(INF, 0, 0.1)?), torch: "counted(F.normalize(a, inf, 0, 0.1))",
        slopes: "-0.1667, 0.1667", says: "Those shorter than `eps` are divided by `eps`, with the gradient of a constant length.",
        why: "the largest is shared, as max",
    }
};

const STEPS: &[Row] = kinks! {
    {
        of: "round_decimals", at: "0.25 to one decimal, and elsewhere", inputs: [[0.25, 1.22]],
        call: |x| x[0].round_decimals(1), torch: "a.round(decimals=1)", slopes: "0, 0", says: "The gradient is 0.",
        why: "flat on both sides",
    }
    {
        of: "grid_sample", at: "between two pixels", inputs: [[0.5]],
        call: |x| pixel(&x[0], Sampling::Nearest, GridPadding::Zeros), torch: "pixel(a, 'nearest', 'zeros')",
        slopes: "0", says: "At the centre of a pixel, the slope is that of the interval that begins there; where a border begins, it is 0. With the nearest pixel it is 0 everywhere.",
        why: "flat on both sides",
    }
};

const LOSSES: &[Row] = kinks! {
    {
        of: "l1_loss", at: "prediction = target", inputs: [[1.0], [1.0]], call: |x| x[0].l1_loss(&x[1], Sum),
        torch: "F.l1_loss(a, b)", slopes: "0; 0", says: "the slope at 0 is 0.", why: "as abs",
    }
    {
        of: "smooth_l1_loss", at: "a difference of beta = 0.5", inputs: [[1.5], [1.0]],
        call: |x| x[0].smooth_l1_loss(&x[1], 0.5, Sum), torch: "F.smooth_l1_loss(a, b, beta=0.5)",
        slopes: "1; -1", says: "Both pieces have the same slope where they meet; the second derivative there is that of the inner piece.",
        why: "both sides agree; the second derivative jumps",
    }
    {
        of: "smooth_l1_loss", at: "beta 0, prediction = target", inputs: [[1.0], [1.0]],
        call: |x| x[0].smooth_l1_loss(&x[1], 0.0, Sum), torch: "F.smooth_l1_loss(a, b, beta=0.0)",
        slopes: "0; 0", says: "Both pieces have the same slope where they meet; the second derivative there is that of the inner piece.",
        why: "as abs",
    }
    {
        of: "huber_loss", at: "a difference of delta = 0.5", inputs: [[1.5], [1.0]],
        call: |x| x[0].huber_loss(&x[1], 0.5, Sum), torch: "F.huber_loss(a, b, delta=0.5)",
        slopes: "0.5; -0.5", says: "Both pieces have the same slope where they meet; the second derivative there is that of the inner piece.",
        why: "both sides agree; the second derivative jumps",
    }
    {
        of: "margin_ranking_loss", at: "exactly the margin", inputs: [[1.5], [1.0]],
        call: |x| x[0].margin_ranking_loss(&x[1], &labels(&x[0], &[1.0])?, 0.5, Sum),
        torch: "F.margin_ranking_loss(a, b, label(1.0), 0.5)",
        slopes: "-1; 1", says: "Exactly at the margin, the slope is the same as for a violated margin.",
        why: "the margin is not passed yet: still pushed",
    }
    {
        of: "hinge_embedding_loss", at: "exactly the margin", inputs: [[0.5]],
        call: |x| x[0].hinge_embedding_loss(&labels(&x[0], &[-1.0])?, 0.5, Sum),
        torch: "F.hinge_embedding_loss(a, label(-1.0), 0.5)",
        slopes: "-1", says: "Exactly at the margin, the slope is -1.", why: "the margin is not passed yet: still pushed",
    }
    {
        of: "cosine_embedding_loss", at: "exactly the margin (0: a right angle)", inputs: [[1.0, 0.0], [0.0, 1.0]],
        call: |x| row(&x[0])?.cosine_embedding_loss(&row(&x[1])?, &labels(&x[0], &[-1.0])?, 0.0, Sum),
        torch: "F.cosine_embedding_loss(a[None], b[None], label(-1.0))",
        slopes: "0, 1; 1, 0", says: "Exactly at the margin, the slope is the same as for a violated margin.",
        why: "the margin is not passed yet: still pushed",
    }
    {
        of: "triplet_margin_loss", at: "exactly the margin, p = 1", inputs: [[0.0], [1.0], [2.0]],
        call: |x| x[0].triplet_margin_loss(&x[1], &x[2], 1.0, 1.0, false, Sum),
        torch: "F.triplet_margin_loss(a, b, c, p=1.0)",
        slopes: "0; 1; -1", says: "Exactly at the margin, the slope is the same as for a violated margin.",
        why: "the margin is not passed yet: still pushed",
    }
    {
        of: "binary_cross_entropy", at: "probability 0 and 1, target 1 and 0: the bound -100 holds", inputs: [[0.0, 1.0]],
        call: |x| x[0].binary_cross_entropy(&labels(&x[0], &[1.0, 0.0])?, None, Each),
        torch: "F.binary_cross_entropy(a, label(1.0, 0.0), reduction='sum')",
        slopes: "0, 0", says: "Each logarithm is at least -100, and has slope 0 where that bound holds;",
        why: "a constant loss has slope 0",
    }
    {
        of: "gaussian_nll_loss", at: "a variance below eps = 0.1", inputs: [[1.0], [0.01]],
        call: |x| x[0].gaussian_nll_loss(&x[0].zeros_like()?, &x[1], false, 0.1, Sum),
        torch: "F.gaussian_nll_loss(a, torch.zeros(1), b, eps=0.1)",
        slopes: "10; 0", says: "Where the bound `eps` (above 0) holds, the variance has no slope;",
        why: "the variance is a constant there",
    }
    {
        of: "kl_div", at: "target 0", inputs: [[-1.0], [0.0]], call: |x| x[0].kl_div(&x[1], false, Sum),
        torch: "F.kl_div(a, b, reduction='sum')",
        slopes: "0; 0", says: "Where the target is 0, the term and its slope are 0.",
        why: "0 ln 0 counts as a constant 0",
    }
    {
        of: "kl_div_batch_mean", at: "target 0", inputs: [[-1.0], [0.0]],
        call: |x| x[0].kl_div_batch_mean(&x[1], false), torch: "F.kl_div(a, b, reduction='batchmean')",
        slopes: "0; 0", says: "The slope at a target of 0 is 0.", why: "as kl_div",
    }
    {
        of: "poisson_nll_loss", at: "rate 0 of a count 0, eps 0", inputs: [[0.0]],
        call: |x| x[0].poisson_nll_loss(&x[0].zeros_like()?, false, false, 0.0, Sum),
        torch: "F.poisson_nll_loss(a, torch.zeros(1), log_input=False, eps=0.0)",
        slopes: "NaN", says: "With `eps` 0, the slope at a rate of 0 is infinite, or NaN if the count is 0 too.",
        why: "0 / 0: choose eps above 0",
    }
    {
        of: "ctc_loss", at: "a sequence too short for its labels", inputs: [[-0.5, -0.9]],
        call: |x| spatial(&x[0], 1)?.ctc_loss(&places(&x[0], &[1, 1])?.reshape([1, 2])?, &[1], &[2], 0, false, Sum),
        torch: "F.ctc_loss(spatial(a, 1), torch.tensor([[1, 1]]), (1,), (2,), reduction='sum')",
        slopes: "0, 0", says: "A sequence that is too short for its labels has an infinite loss with gradient 0;",
        why: "the loss is infinite whatever the input",
    }
};

const NOTHING: &[Row] = kinks! {
    {
        of: "logsumexp", at: "all -inf", inputs: [[-INF, -INF]], call: |x| x[0].logsumexp(&[0], false),
        torch: "a.logsumexp(0)", slopes: "0, 0", says: "If all elements are -inf, or there are none, the result is -inf with gradient 0.",
        why: "nothing there to share",
    }
    {
        of: "logsumexp", at: "two of three inf", inputs: [[INF, INF, 1.0]], call: |x| x[0].logsumexp(&[0], false),
        torch: "a.logsumexp(0)",
        slopes: "0.5, 0.5, 0", says: "If an element is +inf, so is the result, and the elements that are +inf share the gradient equally.",
        why: "shared by the infinite ones",
    }
    {
        of: "logcumsumexp", at: "-inf first, then 0", inputs: [[-INF, 0.0]], call: |x| x[0].logcumsumexp(0),
        torch: "a.logcumsumexp(0)", slopes: "0, 1", says: "While all are -inf the result is -inf with gradient 0;",
        why: "-inf adds nothing",
    }
    {
        of: "masked_softmax", at: "a row with nothing kept", inputs: [[1.0, 2.0]],
        call: |x| counted(&row(&x[0])?.masked_softmax(&row(&x[0])?.gt(9.0)?, 1)?),
        torch: "counted(F.softmax(a[None].masked_fill(a[None] <= 9, -inf), 1))",
        slopes: "0, 0", says: "A row in which nothing else is left becomes 0 and has gradient 0.",
        why: "the weights are a constant 0",
    }
    {
        of: "scaled_dot_product_attention", at: "a query that may see no key: query, key, value", inputs: [[1.0], [2.0], [3.0]],
        call: |x| spatial(&x[0], 2)?.scaled_dot_product_attention(&spatial(&x[1], 2)?, &spatial(&x[2], 2)?, AttentionOptions::new().mask(&spatial(&x[0], 2)?.gt(9.0)?)),
        torch: "attention(a, b, c)",
        slopes: "0; 0; 0", says: "A query that may see no key yields 0 and has gradient 0.",
        why: "the result is a constant 0",
    }
    {
        of: "attention_with_lse", at: "a query that may see no key: query, key, value", inputs: [[1.0], [2.0], [3.0]],
        call: |x| Ok(spatial(&x[0], 2)?.attention_with_lse(&spatial(&x[1], 2)?, &spatial(&x[2], 2)?, AttentionOptions::new().mask(&spatial(&x[0], 2)?.gt(9.0)?))?.0),
        torch: "attention(a, b, c)", slopes: "0; 0; 0", says: "For a query that may see no key it is -inf, with gradient 0.",
        why: "the result is a constant 0",
    }
    {
        of: "recurrent", at: "relu of 0", inputs: [[0.0]], call: |x| relu_step(&x[0]),
        torch: "torch.rnn_relu_cell(a[None], torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1))",
        slopes: "0", says: "The slope of ReLU at 0 is 0.", why: "as relu",
    }
    {
        of: "prod", at: "one zero, two zeros", inputs: [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]],
        call: |x| x[0].prod(&[0], false)?.add(&x[1].prod(&[0], false)?), torch: "a.prod() + b.prod()",
        slopes: "6, 0, 0; 0, 0, 0", says: "The gradient is right at zeros, to any order.",
        why: "smooth: products of the others, without division",
    }
    {
        of: "cumprod", at: "a zero", inputs: [[2.0, 0.0, 3.0]], call: |x| x[0].cumprod(0), torch: "a.cumprod(0)",
        slopes: "1, 8, 0", says: "The gradient is right at zeros, to any order.", why: "smooth: without division",
    }
};

/// The other operations that have a row in the op matrix and are not in the table. They have no kink at finite values.
pub(crate) const SMOOTH: &str = "
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d addmm affine_grid avg_pool1d avg_pool2d avg_pool3d
    baddbmm batch_norm batch_norm_eval bce_with_logits bincount broadcast_tensors cast cat chunk conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d cross cross_entropy cumsum diag diag_embed diagonal
    dot dropout einsum embedding expand flatten flip fold gather glu group_norm index index_add index_assign
    index_copy index_fill index_put index_select instance_norm interpolate kron layer_norm lerp linear
    local_response_norm log_softmax masked_fill masked_select matmul mean meshgrid movedim mse_loss narrow nll_loss
    outer pad permute repeat repeat_interleave reshape rms_norm roll rot90 scatter scatter_add select slice
    soft_margin_loss softmax softmin split split_with_sizes squeeze stack sum tensordot tile trace transpose tril
    triu unbind unflatten unfold unfold_axis unsqueeze var var_mean";
