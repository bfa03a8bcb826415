//! Computes the first, second and third derivatives of a call: in other layouts, through `checkpoint`, with broadcast
//! inputs, and along a line.

use gradus::prelude::*;

use crate::values;

/// The type of the calls that are checked.
pub(crate) type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// The memory layout of every operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lay {
    Plain,
    Transposed,
    EverySecond,
    Flipped,
    Offset,
}

pub(crate) const EVERY: [Lay; 5] = [Lay::Plain, Lay::Transposed, Lay::EverySecond, Lay::Flipped, Lay::Offset];
pub(crate) const LAYOUTS: [Lay; 4] = [Lay::Transposed, Lay::EverySecond, Lay::Flipped, Lay::Offset];

impl Lay {
    /// The same values in this layout.
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

    /// For layouts that permute or flip axes, the view that does so, which is its own inverse. For other layouts, the
    /// tensor itself.
    fn turned(self, t: &Tensor) -> Result<Tensor> {
        match self {
            Lay::Transposed if t.rank() > 1 => t.transpose(0, -1),
            Lay::Flipped => (0..t.rank() as isize).try_fold(t.clone(), |t, axis| t.flip(axis)),
            _ => Ok(t.clone()),
        }
    }

    /// Applies `f` to each element of `y` in such a way that the gradient that reaches `y` has this layout.
    fn through(self, y: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Lay::Transposed | Lay::Flipped => self.turned(&f(&self.turned(y)?)?),
            _ => f(&self.of(y)?),
        }
    }
}

/// A call with each float output `y` replaced by `sin(y + c)`, for irregular `c`.
///
/// No derivative of the composition is constant, even if the call is linear: its second derivative tests the gradient
/// of the call's gradient, and its third derivative tests the next order. The incoming gradient of the call has the
/// layout `lay`.
pub(crate) fn curved(
    call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    lay: Lay,
) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> {
    move |x| {
        let bent = |y: &Tensor| match y.dtype().is_float() {
            true => lay.through(&y.add(&irregular(y, 11)?)?, Tensor::sin),
            false => Ok(y.clone()),
        };
        call(x)?.iter().map(bent).collect()
    }
}

/// Irregular numbers with the shape and dtype of a tensor.
pub(crate) fn irregular(like: &Tensor, salt: usize) -> Result<Tensor> {
    numbered(like, |i| 0.3 + wave(i, salt))
}

/// Weights with magnitudes between 0.5 and 1.5: every entry contributes to the weighted sum.
pub(crate) fn weight(like: &Tensor, salt: usize) -> Result<Tensor> {
    numbered(like, |i| wave(i, salt) + 0.5f64.copysign(wave(i, salt)))
}

fn wave(i: usize, salt: usize) -> f64 {
    ((i + 7 * salt) as f64 * 1.7 + 0.9).sin()
}

fn numbered(like: &Tensor, number: impl Fn(usize) -> f64) -> Result<Tensor> {
    let numbers: Vec<f64> = (0..like.numel()).map(number).collect();
    Tensor::from_vec(numbers, like.shape(), like.device())?.to_dtype(like.dtype())
}

/// Functions that return, by index, the weight of an output or of a first gradient. Where they return `None`, irregular
/// numbers are used.
pub(crate) struct Weights<'a> {
    pub(crate) of_output: &'a dyn Fn(usize) -> Option<Tensor>,
    pub(crate) of_gradient: &'a dyn Fn(usize) -> Option<Tensor>,
}

pub(crate) const IRREGULAR: Weights<'static> = Weights { of_output: &|_| None, of_gradient: &|_| None };

/// The outputs, and the first and second gradients of the leaves; zeros where a leaf has no influence.
pub(crate) struct Found {
    pub(crate) outputs: Vec<Tensor>,
    /// The first gradients without `create_graph`, as fused kernels compute them.
    pub(crate) plain: Vec<Tensor>,
    /// The first gradients with `create_graph`, which are differentiated again.
    pub(crate) first: Vec<Tensor>,
    pub(crate) second: Vec<Tensor>,
}

/// The gradients of the sum of `roots`, each weighted with its seed.
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

/// Runs a call on inputs in the layout `lay`, and differentiates it twice; the incoming gradients have this layout too.
pub(crate) fn derivatives(
    call: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
    weights: &Weights<'_>,
    lay: Lay,
) -> Result<Found> {
    let mut inputs = inputs.iter().map(|t| lay.of(t)).collect::<Result<Vec<_>>>()?;
    for &i in leaves {
        inputs[i] = inputs[i].with_grad()?;
    }
    let points: Vec<&Tensor> = leaves.iter().map(|&i| &inputs[i]).collect();
    let outputs = call(&inputs)?;
    let mut roots = vec![];
    for (i, y) in outputs.iter().enumerate().filter(|(_, y)| y.requires_grad()) {
        let seed = (weights.of_output)(i).map_or_else(|| weight(y, i), Ok)?;
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

/// The call inside a checkpoint.
pub(crate) fn checkpointed(
    call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> {
    move |x| checkpoint(call.clone(), &x.iter().collect::<Vec<_>>())
}

/// `phi(t) = sum(w * f(x + t u))` and its derivatives, each computed as the gradient of the previous one.
pub(crate) struct Line {
    values: Vec<f64>,
    /// The number of derivatives that were recorded.
    pub(crate) recorded: usize,
}

impl Line {
    /// The highest order whose derivative was recorded and is nonzero.
    pub(crate) fn reached(&self) -> usize {
        let something = |v: &&f64| v.is_finite() && **v != 0.0;
        self.values[1..=self.recorded].iter().take_while(something).count()
    }

    /// Describes the first difference.
    pub(crate) fn difference(&self, other: &Line, tolerance: f64) -> Option<String> {
        let far = |(x, y): (f64, f64)| (x - y).abs() > 10.0 * tolerance * (1.0 + x.abs()) || x.is_nan() != y.is_nan();
        let (a, b) = (&self.values, &other.values);
        let at = (0..a.len()).find(|&k| far((a[k], b[k])));
        at.map(|k| format!("derivative {k} along a line is {}, not {}", b[k], a[k]))
    }
}

/// The derivatives up to `order` along the line through the inputs, at `t`, with every operand in the layout `lay`.
pub(crate) fn along(
    call: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
    lay: Lay,
    t: f64,
    order: usize,
) -> Result<Line> {
    let t = Tensor::scalar(t, inputs[0].device())?.with_grad()?;
    let mut moved = inputs.to_vec();
    for &i in leaves {
        let u = irregular(&moved[i].to_dtype(DType::F64)?, i + 5)?.mul(0.4)?;
        moved[i] = moved[i].add(&u.mul(&t)?)?;
    }
    let moved = moved.iter().map(|x| lay.of(x)).collect::<Result<Vec<_>>>()?;
    let zero = t.detach().zeros_like()?;
    let mut total = zero.clone();
    for (i, y) in call(&moved)?.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
        total = total.add(&y.mul(&weight(y, i)?)?.sum_all()?.to_dtype(DType::F64)?)?;
    }
    let (mut values, mut recorded) = (vec![total.item()?], 0);
    for _ in 0..order {
        total = match total.requires_grad() {
            true => {
                recorded += 1;
                let found = grad(&[&total], &[&t], None, BackwardOptions::new().create_graph())?.remove(0);
                found.unwrap_or_else(|| zero.clone())
            }
            false => zero.clone(),
        };
        values.push(total.item()?);
    }
    Ok(Line { values, recorded })
}

/// The central difference of fourth order from the values at -2h, -h, h and 2h.
///
/// The error of `(8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h` is `h^4 f^(5) / 30` plus the rounding error of `f`
/// divided by `h`: with h = 1e-3 and f64, about 3e-14 f^(5) and 1e-12 f. The tolerance [`CLOSE`] is wide enough for
/// logarithms and roots near 0, whose high derivatives are large. If only a smaller step of [`STEPS`] agrees, the
/// larger one crossed a kink.
pub(crate) fn central([a, b, c, d]: [f64; 4], h: f64) -> f64 {
    (8.0 * (c - b) - (d - a)) / (12.0 * h)
}

const CLOSE: f64 = 1e-8;
pub(crate) const STEPS: [f64; 3] = [1e-3, 1e-4, 1e-5];
pub(crate) const AROUND: [f64; 4] = [-2.0, -1.0, 1.0, 2.0];

/// The derivatives up to `order` along a line through the point, each compared with the central difference of the
/// previous one. Returns a description of the first difference.
pub(crate) fn differences(
    call: Function<'_>,
    inputs: &[Tensor],
    leaves: &[usize],
    order: usize,
) -> Result<(Option<String>, Line)> {
    let line = along(call, inputs, leaves, Lay::Plain, 0.0, order)?;
    let at = &line.values;
    let mut wrong = None;
    for h in STEPS {
        let point = |k: f64| along(call, inputs, leaves, Lay::Plain, k * h, order.saturating_sub(1));
        let around = AROUND.map(point).into_iter().collect::<Result<Vec<_>>>()?;
        wrong = (1..=order).find_map(|k| {
            let numeric = central([0, 1, 2, 3].map(|i| around[i].values[k - 1]), h);
            let scale = 1.0 + at[k].abs() + at[k - 1].abs();
            let close = (at[k] - numeric).abs() <= CLOSE * scale || at[k - 1].is_nan();
            (!close).then(|| format!("derivative {k} along a line is {}, finite differences say {numeric}", at[k]))
        });
        if wrong.is_none() {
            break;
        }
    }
    Ok((wrong, line))
}

/// Compares every element of the second gradients (the gradients of `sum(u * g)`, where `g` are the first gradients)
/// with the central difference of `g` along `u`. The two agree because the Hessian is symmetric. Returns a description
/// of the first difference.
pub(crate) fn second_differences(call: Function<'_>, inputs: &[Tensor], leaves: &[usize]) -> Result<Option<String>> {
    let at = derivatives(call, inputs, leaves, &IRREGULAR, Lay::Plain)?;
    let mut wrong = None;
    for h in STEPS {
        let point = |k: f64| {
            let mut moved = inputs.to_vec();
            for &i in leaves {
                moved[i] = moved[i].add(&irregular(&moved[i], i + 3)?.mul(k * h)?)?;
            }
            derivatives(call, &moved, leaves, &IRREGULAR, Lay::Plain)
        };
        let around = AROUND.map(point).into_iter().collect::<Result<Vec<_>>>()?;
        wrong = (0..leaves.len()).find_map(|n| {
            let (second, first) = (values(&at.second[n]), values(&at.first[n]));
            let around: Vec<Vec<f64>> = around.iter().map(|f| values(&f.first[n])).collect();
            let largest = second.iter().chain(&first).filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
            second.iter().enumerate().find_map(|(e, &got)| {
                let numeric = central([0, 1, 2, 3].map(|i| around[i][e]), h);
                let close = (got - numeric).abs() <= CLOSE * largest || first[e].is_nan();
                let leaf = leaves[n];
                (!close).then(|| format!("element {e} of the second gradient of input {leaf} is {got}, not {numeric}"))
            })
        });
        if wrong.is_none() {
            break;
        }
    }
    Ok(wrong)
}

/// The bits of an f64 tensor, so that a comparison distinguishes NaN and the sign of zero.
pub(crate) fn bits(t: &Tensor) -> Vec<u64> {
    values(t).into_iter().map(f64::to_bits).collect()
}
