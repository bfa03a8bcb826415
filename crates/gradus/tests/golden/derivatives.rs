//! First, second and third derivatives of a call, in other layouts, through `checkpoint`, stretched, and along a line.

use gradus::prelude::*;
use gradus::{BackwardOptions, autograd, grad};

use crate::values;

/// A call as the checks vary it.
pub(crate) type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// How the elements of every operand lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lay {
    Plain,
    Transposed,
    EverySecond,
    Flipped,
    Offset,
}

pub(crate) const LAYOUTS: [Lay; 4] = [Lay::Transposed, Lay::EverySecond, Lay::Flipped, Lay::Offset];

impl Lay {
    /// The same values, lying so.
    pub(crate) fn of(self, t: &Tensor) -> Result<Tensor> {
        let rank = t.rank() as isize;
        match self {
            Lay::Plain => Ok(t.clone()),
            Lay::Transposed if rank < 2 => Ok(t.clone()),
            Lay::Transposed => t.transpose(0, -1)?.copy()?.transpose(0, -1),
            Lay::EverySecond => Tensor::stack(&[t, t], rank)?.select(rank, 1),
            Lay::Flipped => {
                let back = |t: &Tensor| (0..rank).try_fold(t.clone(), |t, axis| t.flip(axis));
                back(&back(t)?.copy()?)
            }
            Lay::Offset => {
                let flat = t.reshape([t.numel()])?;
                let padded = Tensor::cat(&[&flat, &flat, &flat], 0)?;
                padded.narrow(0, t.numel(), t.numel())?.reshape(t.shape())
            }
        }
    }
}

/// Irregular numbers in the shape and dtype of a tensor: no entry can hide behind another.
pub(crate) fn irregular(like: &Tensor, salt: usize) -> Result<Tensor> {
    let number = |i: usize| 0.3 + ((i + 7 * salt) as f64 * 1.7 + 0.9).sin();
    let numbers: Vec<f64> = (0..like.numel()).map(number).collect();
    Tensor::from_vec(numbers, like.shape(), like.device())?.to_dtype(like.dtype())
}

/// What the outputs and the first gradients are weighted with, by number: that of the file, or irregular numbers.
pub(crate) struct Weights<'a> {
    pub(crate) of_output: &'a dyn Fn(usize) -> Option<Tensor>,
    pub(crate) of_gradient: &'a dyn Fn(usize) -> Option<Tensor>,
}

/// Outputs, and first and second gradients of the leaves, zeros where nothing flows.
pub(crate) struct Found {
    pub(crate) outputs: Vec<Tensor>,
    /// The first gradients as numbers: where an operation has a fused kernel, its.
    pub(crate) plain: Vec<Tensor>,
    /// The first gradients as they are differentiated again.
    pub(crate) first: Vec<Tensor>,
    pub(crate) second: Vec<Tensor>,
}

/// The gradients of `roots`, each weighted with the seed beside it.
fn pull(roots: &[(&Tensor, Tensor)], points: &[&Tensor], options: BackwardOptions) -> Result<Vec<Tensor>> {
    let zeros = |p: &&Tensor| p.detach().zeros_like();
    if roots.is_empty() {
        return points.iter().map(zeros).collect();
    }
    let outputs: Vec<&Tensor> = roots.iter().map(|r| r.0).collect();
    let seeds: Vec<&Tensor> = roots.iter().map(|r| &r.1).collect();
    let found = grad(&outputs, points, Some(&seeds), options)?;
    found.into_iter().zip(points).map(|(g, p)| g.map_or_else(|| zeros(p), Ok)).collect()
}

/// Runs a call on inputs that lie as `lay` says, and differentiates it twice; the incoming gradients lie so too.
pub(crate) fn derivatives(
    call: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
    weights: &Weights<'_>,
    lay: Lay,
) -> Result<Found> {
    let mut inputs = inputs.iter().map(|t| lay.of(t)).collect::<Result<Vec<_>>>()?;
    for &i in leaves {
        inputs[i] = inputs[i].require_grad()?;
    }
    let points: Vec<&Tensor> = leaves.iter().map(|&i| &inputs[i]).collect();
    let outputs = call(&inputs)?;
    let mut roots = vec![];
    for (i, y) in outputs.iter().enumerate().filter(|(_, y)| y.requires_grad()) {
        let seed = (weights.of_output)(i).map_or_else(|| irregular(y, i), Ok)?;
        roots.push((y, lay.of(&seed)?));
    }
    let plain = pull(&roots, &points, BackwardOptions::new().retain_graph())?;
    let first = pull(&roots, &points, BackwardOptions::new().create_graph())?;
    let mut roots = vec![];
    for (&i, g) in leaves.iter().zip(&first).filter(|(_, g)| g.requires_grad()) {
        let seed = (weights.of_gradient)(i).map_or_else(|| irregular(g, i + 3), Ok)?;
        roots.push((g, lay.of(&seed)?));
    }
    let second = pull(&roots, &points, BackwardOptions::new())?;
    Ok(Found { outputs, plain, first, second })
}

/// The call behind a checkpoint.
pub(crate) fn checkpointed(call: crate::Call) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> {
    move |x| autograd::checkpoint(call, &x.iter().collect::<Vec<_>>())
}

/// `phi(t) = sum(w * f(x + t u))` and its derivatives up to `order`, each the gradient of the one before.
fn along(call: Function<'_>, inputs: &[Tensor], leaves: &[usize], t: f64, order: usize) -> Result<Vec<f64>> {
    let t = Tensor::scalar(t, inputs[0].device())?.require_grad()?;
    let mut moved = inputs.to_vec();
    for &i in leaves {
        let u = irregular(&moved[i].to_dtype(DType::F64)?, i + 5)?.mul(0.4)?;
        moved[i] = moved[i].add(&u.mul(&t)?)?;
    }
    let mut total = t.mul(0.0)?;
    for (i, y) in call(&moved)?.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
        total = total.add(&y.mul(&irregular(y, i)?)?.sum_all()?.to_dtype(DType::F64)?)?;
    }
    let mut found = vec![total.item()?];
    for _ in 0..order {
        if total.requires_grad() {
            let options = BackwardOptions::new().create_graph();
            total = match grad(&[&total], &[&t], None, options)?.remove(0) {
                Some(g) => g,
                None => t.detach().mul(0.0)?,
            };
        } else {
            total = t.detach().mul(0.0)?;
        }
        found.push(total.item()?);
    }
    Ok(found)
}

/// The derivatives up to `order` along a line through the point, each against the central difference of the one before; in
/// words what differs.
///
/// The difference of fourth order, `(8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h`, is off by `h^4 f^(5) / 30` and by the
/// rounding of `f` divided by `h`: with h = 1e-3 and f64 about 3e-14 f^(5) and 1e-12 f. The tolerance 1e-8 leaves room
/// for logarithms and roots near 0, whose high derivatives are large. Where a smaller step agrees the larger one had met a
/// kink.
pub(crate) fn differences(
    call: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
    order: usize,
) -> Result<Option<String>> {
    let at = along(call, inputs, leaves, 0.0, order)?;
    let mut wrong = None;
    for h in [1e-3, 1e-4, 1e-5] {
        let around = [-2.0, -1.0, 1.0, 2.0]
            .map(|k| along(call, inputs, leaves, k * h, order.saturating_sub(1)))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        wrong = (1..=order).find_map(|k| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| around[i][k - 1]);
            let numeric = (8.0 * (c - b) - (d - a)) / (12.0 * h);
            let scale = 1.0 + at[k].abs() + at[k - 1].abs();
            let close = (at[k] - numeric).abs() <= 1e-8 * scale || at[k - 1].is_nan();
            (!close).then(|| format!("derivative {k} along a line is {}, finite differences say {numeric}", at[k]))
        });
        if wrong.is_none() {
            break;
        }
    }
    Ok(wrong)
}

/// The derivatives of two calls along the same line; in words what differs.
pub(crate) fn same_along(
    a: Function<'_>,
    b: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
) -> Result<Option<String>> {
    let (a, b) = (along(a, inputs, leaves, 0.0, 3)?, along(b, inputs, leaves, 0.0, 3)?);
    let far = |x: f64, y: f64| (x - y).abs() > 1e-11 * (1.0 + x.abs()) || x.is_nan() != y.is_nan();
    let at = (0..4).find(|&k| far(a[k], b[k]));
    Ok(at.map(|k| format!("derivative {k} along a line is {}, not {}", b[k], a[k])))
}

/// The bits of an f64 tensor, for equality that knows NaN and the sign of zero.
pub(crate) fn bits(t: &Tensor) -> Vec<u64> {
    values(t).into_iter().map(f64::to_bits).collect()
}
