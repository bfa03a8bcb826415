//! Checks of gradients against finite differences.

use gradus_backend::{DType, Error, ErrorKind, Here, HostVec, Result};

use crate::Tensor;
use crate::autograd::mode::refuse_inference;
use crate::autograd::{BackwardOptions, Nested, enable_grad_guard, grad, no_grad_guard};

/// Options of [`gradcheck_with`] and [`gradgradcheck_with`]. An entry of a gradient passes if
/// `|analytic - numeric| <= atol + rtol * (|numeric| + largest)`, where `largest` is the largest absolute value of the
/// finite entries of the gradient. An entry that is not finite does not pass.
#[must_use = "options do nothing until they are passed to a check, and setting one gives new options"]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradcheckOptions {
    eps: f64,
    atol: f64,
    rtol: f64,
    seed: u64,
}

impl Default for GradcheckOptions {
    fn default() -> Self {
        GradcheckOptions { eps: 1e-5, atol: 1e-6, rtol: 1e-6, seed: 0 }
    }
}

impl GradcheckOptions {
    /// The default: an `eps` of 1e-5, tolerances of 1e-6, and seed 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the step of the finite differences, `(f(x + h) - f(x - h)) / (2 h)` with `h = eps * max(1, |x|)`, so that
    /// even a large element changes. Their error is of the order of `h^2` times the third derivative, plus `1e-16 / h`
    /// times the value.
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets the absolute tolerance.
    pub fn atol(mut self, atol: f64) -> Self {
        self.atol = atol;
        self
    }

    /// Sets the relative tolerance.
    pub fn rtol(mut self, rtol: f64) -> Self {
        self.rtol = rtol;
        self
    }

    /// Sets the seed of the weights with which the elements of a result are summed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    #[track_caller]
    fn checked(self, name: &str) -> Result<Self> {
        let GradcheckOptions { eps, atol, rtol, .. } = self;
        if !(eps.is_finite() && eps > 0.0) {
            return Err(Error::argument(name, format!("eps is {eps}; a step is finite and above 0")));
        }
        if ![atol, rtol].iter().all(|t| t.is_finite() && *t >= 0.0) {
            let m = format!("atol is {atol} and rtol {rtol}; tolerances are finite and at least 0");
            return Err(Error::argument(name, m));
        }
        Ok(self)
    }

    /// Fixed irregular weights for the elements of tensor number `of`. They have either sign and magnitudes from 0.5 to
    /// 1.5, so that errors in different elements, or in the same element of different tensors, do not cancel.
    #[track_caller]
    fn weights(&self, of: usize, like: &Tensor) -> Result<Tensor> {
        // splitmix64 (Steele, Lea and Flood, 2014) of the seed, the number of the tensor and the index of the element.
        let mix = |state: u64| {
            let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let start = mix(mix(self.seed).wrapping_add(of as u64));
        let weight = |i: usize| {
            let bits = mix(start.wrapping_add(i as u64));
            let size = 0.5 + (bits >> 11) as f64 / (1u64 << 53) as f64;
            if bits & 1 == 0 { size } else { -size }
        };
        let w = HostVec::collect(like.device().backend(), "gradcheck", (0..like.numel()).map(weight))?;
        Tensor::from_vec(w, like.shape(), like.device())
    }
}

/// The weighted sum of a tensor's elements. The weights are f64.
#[track_caller]
fn weighted(y: &Tensor, weights: &Tensor) -> Result<Tensor> {
    y.mul(&weights.to_dtype(y.dtype())?)?.sum_all()
}

#[track_caller]
fn require_float(name: &str, y: &Tensor) -> Result<()> {
    if y.dtype().is_float() {
        return Ok(());
    }
    let e = Error::dtype(name, y.dtype(), "floats: a function that gives others has no derivative to check");
    Err(y.describe(e, "result"))
}

/// Compares the gradient of `f` with central finite differences at `inputs`, which must be f64. The correct gradient of
/// a smooth function passes; a wrong gradient is an error that names the entry. Uses the default options of
/// [`gradcheck_with`].
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_tensor::autograd::gradcheck;
///
/// let x = Tensor::from_vec(vec![0.5f64, -1.0, 2.0], [3], &device)?;
/// gradcheck(|x| x[0].sin()?.mul(&x[0]), &[x.clone()])?;
/// // A gradient that was cut off by `detach` is not the derivative:
/// let e = gradcheck(|x| x[0].sin()?.mul(&x[0].detach()), &[x]).unwrap_err();
/// println!("{e}");
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) -> Result<()> {
    gradcheck_with(f, inputs, GradcheckOptions::new())
}

/// [`gradcheck`] with options.
///
/// `f` may return a tensor of any shape. Its elements are summed with fixed irregular weights, so that no error can
/// hide another. Every input becomes a leaf that keeps its layout. `f` is called many times and must return the same
/// result for the same inputs. The check records gradients even inside [`no_grad`](crate::autograd::no_grad).
///
/// # Errors
/// - `f` or its gradient fails.
/// - An input is not f64, or has an element that is not finite.
/// - `f` returns integers or booleans, or different values when it is called again.
/// - An option is out of range.
/// - The check runs inside [`inference`](crate::autograd::inference).
/// - An entry of a gradient differs by more than the tolerance. For the first such entry, the error states the input
///   and the element, the gradient, the finite difference, and a likely cause.
#[track_caller]
pub fn gradcheck_with(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    let options = options.checked("gradcheck")?;
    let _nested = Nested::enter("gradcheck")?;
    let sum = |x: &[Tensor]| {
        let y = f(x).here()?;
        require_float("gradcheck", &y)?;
        weighted(&y, &options.weights(0, &y)?)
    };
    check("gradcheck", &sum, inputs, inputs.len(), options)
}

/// Compares the second derivatives of `f` with finite differences of its gradient. Otherwise like [`gradcheck`].
#[track_caller]
pub fn gradgradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor]) -> Result<()> {
    gradgradcheck_with(f, inputs, GradcheckOptions::new())
}

/// [`gradgradcheck`] with options. Applies [`gradcheck_with`] to the weighted sum of the entries of all gradients, as a
/// function of the inputs and of the gradient of the result. It therefore also checks how each rule depends on the
/// gradient of the result.
#[track_caller]
pub fn gradgradcheck_with(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    options: GradcheckOptions,
) -> Result<()> {
    const NAME: &str = "gradgradcheck";
    let options = options.checked(NAME)?;
    let _nested = Nested::enter(NAME)?;
    require_f64(NAME, inputs)?;
    let seed = {
        let _mode = no_grad_guard();
        let y = f(&inputs.iter().map(Tensor::detach).collect::<Vec<_>>())?;
        require_float(NAME, &y)?;
        options.weights(0, &y)?
    };
    let directional = |all: &[Tensor]| -> Result<Tensor> {
        // `all` holds plain tensors when finite differences are computed, and leaves when the gradient is computed.
        // Both cases need a graph.
        let _mode = enable_grad_guard();
        let leaf = |t: &Tensor| if t.requires_grad() { Ok(t.clone()) } else { t.with_grad() };
        let all: Vec<Tensor> = all.iter().map(leaf).collect::<Result<_>>().here()?;
        let Some((seed, leaves)) = all.split_last() else { return Err(Error::argument(NAME, "there is no seed")) };
        let y = f(leaves).here()?;
        if y.shape() != seed.shape() {
            let m =
                format!("the function gives a result {:?}, and when it is called again {:?}", seed.shape(), y.shape());
            return Err(Error::argument(NAME, m).help(SEEDED));
        }
        let refs: Vec<&Tensor> = leaves.iter().collect();
        let mut total = Tensor::zeros([], DType::F64, y.device())?;
        if y.requires_grad() {
            let loss = weighted(&y, seed)?;
            let found = grad(&[&loss], &refs, None, BackwardOptions::new().create_graph())?;
            for (i, g) in found.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?))) {
                total = total.add(&weighted(g, &options.weights(1 + i, g)?)?)?;
            }
        }
        Ok(total)
    };
    let all: Vec<Tensor> = inputs.iter().cloned().chain([seed]).collect();
    check(NAME, &directional, &all, inputs.len(), options)
}

const SEEDED: &str = "it must depend on its inputs alone; seed its random numbers";

#[track_caller]
fn require_f64(name: &str, inputs: &[Tensor]) -> Result<()> {
    refuse_inference(name)?;
    match inputs.iter().find(|t| t.dtype() != DType::F64) {
        Some(t) => {
            let e = Error::dtype(name, t.dtype(), "f64, since finite differences need the precision");
            Err(t.describe(e, "input"))
        }
        None => Ok(()),
    }
}

/// The name of tensor `i` in errors: an input if `i` is below `count`, otherwise the gradient of the result.
fn called(i: usize, count: usize) -> String {
    if i < count { format!("input {i}") } else { "the gradient of the result".into() }
}

/// Compares the gradient of `f` at `inputs` with finite differences. The first `count` inputs are the user's.
#[track_caller]
fn check(
    name: &str,
    f: &dyn Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    count: usize,
    options: GradcheckOptions,
) -> Result<()> {
    require_f64(name, inputs)?;
    // Each input keeps its layout, so that strided and broadcast inputs are checked as such.
    let leaves: Vec<Tensor> = inputs.iter().map(|t| t.detach().with_grad()).collect::<Result<_>>().here()?;
    let refs: Vec<&Tensor> = leaves.iter().collect();
    let _recording = enable_grad_guard();
    let y = f(&leaves).here()?;
    let analytic: Vec<Option<Tensor>> =
        if y.requires_grad() { grad(&[&y], &refs, None, BackwardOptions::new())? } else { vec![None; leaves.len()] };
    let _guard = no_grad_guard();
    let plain: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let (value, again) = (f(&plain).here()?.item()?, f(&plain).here()?.item()?);
    if value.to_bits() != again.to_bits() && !(value.is_nan() && again.is_nan()) && value != again {
        let m = format!("the function gives other values when it is called again: {value}, then {again}");
        return Err(Error::argument(name, m).help(SEEDED));
    }
    for (i, input) in inputs.iter().enumerate() {
        let values = input.host::<f64>(name)?;
        let gradient = match &analytic[i] {
            Some(g) => g.host::<f64>(name)?,
            None => HostVec::filled(input.device().backend(), name, 0.0, values.len())?,
        };
        let largest = gradient.iter().filter(|g| g.is_finite()).fold(0.0f64, |m, g| m.max(g.abs()));
        for k in 0..values.len() {
            let at = |to: f64| -> Result<f64> {
                let mut v = HostVec::collect(input.device().backend(), name, values.iter().copied())?;
                v[k] = to;
                let mut moved = plain.clone();
                moved[i] = Tensor::from_vec(v, input.shape(), input.device())?;
                f(&moved)?.item()
            };
            let (v, h) = (values[k], options.eps * values[k].abs().max(1.0));
            let (left, right) = (v - h, v + h);
            // The actual step, since adding `h` to a large number rounds.
            let step = right - left;
            if !(step.is_finite() && step > 0.0) {
                let (what, k) = (called(i, count), index(input, k));
                let m = format!("{what}, element {k:?} is {v}: no step of {h:e} leads away from it");
                let e = input.describe(Error::argument(name, m), &what);
                return Err(e.help("check at finite points, with an eps above 1e-15"));
            }
            let (above, below) = (at(right)?, at(left)?);
            let numeric = (above - below) / step;
            let allowed = options.atol + options.rtol * (numeric.abs() + largest);
            let difference = (numeric - gradient[k]).abs();
            // If one of the numbers is not finite, neither is the difference.
            if !(difference.is_finite() && difference <= allowed) {
                let sides = [(again - below) / (v - left), (above - again) / (right - v)];
                let m = Mismatch { analytic: gradient[k], none: analytic[i].is_none(), numeric, sides, allowed };
                return Err(m.error(name, &called(i, count), input, k));
            }
        }
    }
    Ok(())
}

/// The index of element `k` in row-major order.
fn index(input: &Tensor, k: usize) -> Vec<usize> {
    let (mut index, mut rest) = (vec![0; input.rank()], k);
    for (at, &size) in index.iter_mut().zip(input.shape()).rev() {
        (*at, rest) = (rest % size, rest / size);
    }
    index
}

/// An entry of a gradient that disagrees with finite differences.
struct Mismatch {
    analytic: f64,
    /// Whether no gradient arrived at all.
    none: bool,
    numeric: f64,
    /// The slopes on the left and on the right.
    sides: [f64; 2],
    allowed: f64,
}

impl Mismatch {
    #[track_caller]
    fn error(&self, name: &str, what: &str, input: &Tensor, k: usize) -> Error {
        let index = index(input, k);
        let (analytic, numeric) = (self.analytic, self.numeric);
        let m = format!("{what}, element {index:?}: the gradient is {analytic}, finite differences say {numeric}");
        let e = input.describe(Error::new(ErrorKind::Autograd, name, m), what);
        e.note(format!("they differ by {:e}; {:e} is allowed", (analytic - numeric).abs(), self.allowed))
            .help(self.hint())
    }

    /// A likely cause, guessed from the numbers.
    fn hint(&self) -> String {
        let [left, right] = self.sides;
        let ratio = self.analytic / self.numeric;
        let simple = [2.0, 0.5, -1.0, -2.0, 3.0, 4.0].into_iter().find(|r| (ratio - r).abs() < 1e-4);
        match simple {
            _ if !self.numeric.is_finite() => {
                "the function itself is not finite here: check at a point inside its domain".into()
            }
            _ if self.none => {
                "no gradient arrived: does the rule give None, or is the input detached? explain_grad tells where"
                    .into()
            }
            _ if !self.analytic.is_finite() => {
                "the gradient is not finite where the function is: find_nonfinite tells which operation made it so"
                    .into()
            }
            _ if (left - right).abs() > 1e-2 * (1.0 + left.abs().max(right.abs())) => format!(
                "the function has a kink or a jump here (slope {left:.4} on the left, {right:.4} on the right): check at \
                 a point farther from it than eps"
            ),
            _ if self.analytic == 0.0 => "the gradient leaves out a way from this input to the result".into(),
            Some(r) => format!("it is {r} times what it should be: a factor, a sign, or a term counted twice"),
            None => {
                "if they agree to some digits, try another eps or larger tolerances; else look at the rule's formula"
                    .into()
            }
        }
    }
}
