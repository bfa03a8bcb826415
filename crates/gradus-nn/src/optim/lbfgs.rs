//! The [`Lbfgs`] optimiser.

use gradus_tensor::{
    Error, Expr, Here, Result, Shape, Tensor, UpdateFn, enable_grad, no_autocast_guard, no_grad_guard,
};

use super::line_search::{Point, strong_wolfe};
use super::stepper::{OF_ELEMENTS, at_least_zero};
use crate::state_dict::moved;
use crate::{Parameter, StateDict};

const OP: &str = "lbfgs";

/// L-BFGS (Liu and Nocedal, 1989), as PyTorch's `LBFGS`: an optimiser for smooth losses of all data, which computes the
/// loss several times a step. So [`step`](Lbfgs::step) takes a function that computes it.
///
/// All parameters have the same dtype, f32 or f64, and are on the same device. The state takes `2 * history_size + 2`
/// times the memory of the parameters.
///
/// ```
/// # use gradus_nn::{Lbfgs, LbfgsConfig, LineSearch, Parameter}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// // The minimum of Rosenbrock's function is at (1, 1).
/// let p = Parameter::new(Tensor::from_vec([-1.2f64, 1.0], [2], &device)?)?;
/// let config = LbfgsConfig { line_search_fn: Some(LineSearch::StrongWolfe), ..Default::default() };
/// let mut lbfgs = Lbfgs::new([("p".to_owned(), p.clone())], config)?;
/// for _ in 0..5 {
///     lbfgs.step(|| {
///         let (x, y) = (p.narrow(0, 0, 1)?, p.narrow(0, 1, 1)?);
///         ((1.0 - &x)?.square()? + ((&y - x.square()?)?.square()? * 100.0)?)?.sum_all()
///     })?;
/// }
/// assert!(p.to_vec::<f64>()?.iter().all(|v| (v - 1.0).abs() < 1e-4));
/// # Ok::<(), Error>(())
/// ```
pub struct Lbfgs {
    config: LbfgsConfig,
    parameters: Vec<(String, Parameter)>,
    state: State,
}

/// Hyper-parameters of [`Lbfgs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LbfgsConfig {
    /// Learning rate, default 1.
    pub lr: f64,
    /// The largest number of iterations per step. Default 20.
    pub max_iter: usize,
    /// The largest number of evaluations of the loss per step. Default `max_iter * 5 / 4`.
    pub max_eval: Option<usize>,
    /// A step ends when no element of the gradient is larger. Default 1e-7.
    pub tolerance_grad: f64,
    /// A step ends when the loss, or every parameter, changes by less. Default 1e-9.
    pub tolerance_change: f64,
    /// The number of former steps that the Hessian is approximated from. Default 100.
    pub history_size: usize,
    /// How the length of an iteration is found. Default none: it is the learning rate.
    pub line_search_fn: Option<LineSearch>,
    /// Whether to look for a maximum. Default false.
    pub maximize: bool,
}

/// How [`Lbfgs`] finds the length of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineSearch {
    /// By a search for a point that satisfies the strong Wolfe conditions.
    StrongWolfe,
}

impl Default for LbfgsConfig {
    fn default() -> Self {
        LbfgsConfig {
            lr: 1.0,
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history_size: 100,
            line_search_fn: None,
            maximize: false,
        }
    }
}

/// A former iteration.
#[derive(Clone)]
struct Pair {
    /// The difference of the gradients.
    y: Tensor,
    /// The difference of the parameters.
    s: Tensor,
    /// `1 / (y . s)`.
    ro: f64,
}

/// Everything flat, over all parameters.
#[derive(Clone)]
struct State {
    n_iter: u64,
    func_evals: u64,
    /// The direction and gradient of the last iteration. `None` before the first one.
    last: Option<(Tensor, Tensor)>,
    /// The length of the last iteration.
    t: f64,
    pairs: Vec<Pair>,
    /// The diagonal of the first approximation of the inverse Hessian.
    h_diag: f64,
}

/// `p = start + t * d`
static MOVE: UpdateFn = UpdateFn::new("lbfgs", |x: &[Expr<'_>]| vec![x[0] + x[2] * x[1]]);

#[track_caller]
fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    a.mul(b)?.sum_all()?.item()
}

#[track_caller]
fn largest(t: &Tensor) -> Result<f64> {
    t.abs()?.max_all()?.item()
}

impl Lbfgs {
    /// Creates an optimiser for these parameters.
    ///
    /// # Errors
    /// Fails for impossible hyper-parameters, if two parameters have the same name, and for parameters of several
    /// dtypes or devices, in half precision, or divided among processes.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = (String, Parameter)>, config: LbfgsConfig) -> Result<Self> {
        at_least_zero(OP, "learning rate", config.lr)?;
        at_least_zero(OP, "tolerance_grad", config.tolerance_grad)?;
        at_least_zero(OP, "tolerance_change", config.tolerance_change)?;
        let mut kept: Vec<(String, Parameter)> = Vec::new();
        for (name, parameter) in parameters {
            if kept.iter().any(|(_, p)| p.is_same(&parameter)) {
                continue;
            }
            parameter.check_whole(OP).map_err(|e| e.help(OF_ELEMENTS))?;
            let (first, new) = (kept.first().map_or(&parameter, |(_, p)| p).values().clone(), parameter.values());
            if new.dtype() != new.dtype().compute() || new.dtype() != first.dtype() || new.device() != first.device() {
                let m = format!("{name} cannot be stepped with the others");
                let e = Error::argument(OP, m).operand("first", first.shape(), first.dtype(), first.device());
                let e = e.operand("parameter", new.shape(), new.dtype(), new.device());
                return Err(e.help("all parameters have the same dtype, f32 or f64, and device"));
            }
            if kept.iter().any(|(n, _)| *n == name) {
                return Err(Error::argument(OP, format!("two parameters have the name {name:?}")));
            }
            kept.push((name, parameter));
        }
        let state = State { n_iter: 0, func_evals: 0, last: None, t: 0.0, pairs: Vec::new(), h_diag: 1.0 };
        Ok(Lbfgs { config, parameters: kept, state })
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.parameters.iter().map(|(_, p)| p.clone()).collect()
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.config.lr
    }

    /// Sets the learning rate.
    #[track_caller]
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.config.lr = at_least_zero(OP, "learning rate", lr)?;
        Ok(())
    }

    /// The number of iterations, and of evaluations of the loss, in all steps so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.state.n_iter, self.state.func_evals)
    }

    /// Performs one step of up to `max_iter` iterations. `loss` computes the loss, a scalar, with the values that the
    /// parameters have when it is called. Returns the loss before the step. Frozen parameters stay as they are, and
    /// [`autocast`](gradus_tensor::autocast) is off unless `loss` turns it on.
    ///
    /// # Errors
    /// Fails if `loss` does, or if the loss or its gradient is not finite at the start or where an iteration ends.
    /// Parameters and state are then those before the step. If `loss` panics, the parameters are those of a trial.
    #[track_caller]
    pub fn step(&mut self, mut loss: impl FnMut() -> Result<Tensor>) -> Result<f64> {
        let _guards = (no_grad_guard(), no_autocast_guard());
        let start = self.copies()?;
        let before = self.state.clone();
        let done = self.iterate(&mut loss);
        if done.is_err() {
            self.state = before;
            for ((_, p), values) in self.parameters.iter().zip(&start) {
                p.set(values).map_err(|e| e.note("while the values before a failed step were put back"))?;
            }
        }
        done.here()
    }

    #[track_caller]
    fn copies(&self) -> Result<Vec<Tensor>> {
        self.parameters.iter().map(|(_, p)| p.values().copy()).collect::<Result<_>>().here()
    }

    /// The loss and its flat gradient. Both change their sign if a maximum is looked for.
    #[track_caller]
    fn evaluate(&mut self, loss: &mut dyn FnMut() -> Result<Tensor>) -> Result<(f64, Tensor)> {
        self.state.func_evals = self.state.func_evals.saturating_add(1);
        let loss = enable_grad(loss)?;
        let gradients = loss.backward()?;
        let mut parts = Vec::with_capacity(self.parameters.len());
        for (_, p) in &self.parameters {
            let values = p.values();
            parts.push(match gradients.get(p.tensor()) {
                Some(g) => g.detach().reshape([values.numel()])?,
                None => Tensor::zeros([values.numel()], values.dtype(), values.device())?,
            });
        }
        let flat = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let value = loss.item()?;
        Ok(if self.config.maximize { (-value, flat.neg()?) } else { (value, flat) })
    }

    /// Sets the parameters to `start + t * d`, except frozen ones.
    #[track_caller]
    fn go(&self, start: &[Tensor], d: &Tensor, t: f64) -> Result<()> {
        let mut offset = 0;
        for ((_, p), start) in self.parameters.iter().zip(start) {
            let numel = start.numel();
            if !p.is_frozen() {
                let d = d.narrow(0, offset, numel)?.reshape(start.shape())?;
                MOVE.apply(&[p.values()], &[start, &d], &[t])?;
            }
            offset += numel;
        }
        Ok(())
    }

    /// The direction of the next iteration, from the gradient.
    #[track_caller]
    fn direction(&mut self, gradient: &Tensor) -> Result<Tensor> {
        let Some((d, former)) = &self.state.last else { return gradient.neg() };
        let y = gradient.sub(former)?;
        let s = d.mul(self.state.t)?;
        let ys = dot(&y, &s)?;
        let state = &mut self.state;
        if ys > 1e-10 {
            state.h_diag = ys / dot(&y, &y)?;
            state.pairs.push(Pair { y, s, ro: 1.0 / ys });
            let extra = state.pairs.len().saturating_sub(self.config.history_size);
            state.pairs.drain(..extra);
        }
        let mut q = gradient.neg()?;
        let mut shares = Vec::with_capacity(state.pairs.len());
        for Pair { y, s, ro } in state.pairs.iter().rev() {
            let share = dot(s, &q)? * ro;
            q = q.sub(y.mul(share)?)?;
            shares.push(share);
        }
        let mut d = q.mul(state.h_diag)?;
        for (Pair { y, s, ro }, share) in state.pairs.iter().zip(shares.into_iter().rev()) {
            let back = dot(y, &d)? * ro;
            d = d.add(s.mul(share - back)?)?;
        }
        Ok(d)
    }

    /// The iterations of a step.
    #[track_caller]
    fn iterate(&mut self, closure: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
        let LbfgsConfig { lr, max_iter, tolerance_grad, tolerance_change, .. } = self.config;
        let max_eval = self.config.max_eval.unwrap_or(max_iter.saturating_mul(5) / 4);
        let sign = if self.config.maximize { -1.0 } else { 1.0 };
        if self.parameters.iter().all(|(_, p)| p.numel() == 0) {
            return enable_grad(closure)?.item();
        }
        let (first, mut gradient) = self.evaluate(closure)?;
        let mut loss = first;
        let steepest = largest(&gradient)?;
        finite(loss, steepest)?;
        if steepest <= tolerance_grad {
            return Ok(sign * first);
        }
        let mut evals = 1;
        for iteration in 1..=max_iter {
            self.state.n_iter = self.state.n_iter.saturating_add(1);
            let d = self.direction(&gradient)?;
            let mut t = match self.state.last {
                None => (1.0 / gradient.abs()?.sum_all()?.item()?).min(1.0) * lr,
                Some(_) => lr,
            };
            let former = loss;
            let slope = dot(&gradient, &d)?;
            self.state.last = Some((d.clone(), gradient.clone()));
            self.state.t = t;
            if slope > -tolerance_change {
                break;
            }
            let start = self.copies()?;
            let mut now = 0;
            if self.config.line_search_fn.is_some() {
                let mut trial = |t: f64| {
                    self.go(&start, &d, t)?;
                    let (loss, gradient) = self.evaluate(closure)?;
                    let slope = dot(&gradient, &d)?;
                    Ok(Point { t, loss, gradient, slope })
                };
                let from = Point { t: 0.0, loss, gradient, slope };
                let most = max_eval.saturating_sub(evals);
                let (found, trials) = strong_wolfe(&mut trial, &from, t, largest(&d)?, tolerance_change, most)?;
                (t, loss, gradient, now) = (found.t, found.loss, found.gradient, trials);
                self.go(&start, &d, t)?;
            } else {
                self.go(&start, &d, t)?;
                if iteration != max_iter {
                    // Nobody reads the loss after the last iteration.
                    (loss, gradient) = self.evaluate(closure)?;
                    now = 1;
                }
            }
            self.state.t = t;
            let steepest = largest(&gradient)?;
            finite(loss, steepest)?;
            evals += now;
            let stays = |change: f64| change.abs() <= tolerance_change;
            if evals >= max_eval
                || steepest <= tolerance_grad
                || stays(largest(&d.mul(t)?)?)
                || (loss - former).abs() < tolerance_change
            {
                break;
            }
        }
        Ok(sign * first)
    }

    /// A copy of the state: the flat tensors `direction`, `prev_flat_grad`, `old_dirs.{i}` and `old_stps.{i}`, and
    /// numbers as metadata. It loads into an optimiser of the same parameters, in the same order.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let State { n_iter, func_evals, last, t, pairs, h_diag } = &self.state;
        let mut state = StateDict::new();
        let names: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let texts = [
            ("optimizer", OP.to_owned()),
            ("lr", format!("{:?}", self.config.lr)),
            ("parameters", names.join("\n")),
            ("n_iter", n_iter.to_string()),
            ("func_evals", func_evals.to_string()),
            ("t", format!("{t:?}")),
            ("h_diag", format!("{h_diag:?}")),
            ("history", pairs.len().to_string()),
        ];
        texts.into_iter().for_each(|(name, text)| state.set_metadata(name, text));
        if let Some((d, gradient)) = last {
            state.insert("direction", d.copy()?);
            state.insert("prev_flat_grad", gradient.copy()?);
        }
        for (i, Pair { y, s, ro }) in pairs.iter().enumerate() {
            state.insert(format!("old_dirs.{i}"), y.copy()?);
            state.insert(format!("old_stps.{i}"), s.copy()?);
            state.set_metadata(format!("ro.{i}"), format!("{ro:?}"));
        }
        Ok(state)
    }

    /// Replaces the state, and the learning rate, by a saved one. Everything is checked before anything changes.
    ///
    /// # Errors
    /// Fails if the state is of another optimiser or of other parameters, or if a part is missing or of the wrong shape
    /// or dtype.
    #[track_caller]
    pub fn load_state_dict(&mut self, saved: &StateDict) -> Result<()> {
        const LOAD: &str = "load_state_dict";
        let _guard = no_grad_guard();
        let refuse = |m: String| Err(Error::argument(LOAD, m));
        let kind = saved.metadata("optimizer").unwrap_or("unknown");
        if kind != OP {
            return refuse(format!("the state is of optimiser {kind:?}, this one is {OP:?}")).here();
        }
        let names: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let found = saved.metadata("parameters").unwrap_or_default();
        if found != names.join("\n") {
            let found: Vec<&str> = found.lines().collect();
            return refuse(format!("the state is of the parameters {found:?}, these are {names:?}")).here();
        }
        let numel: usize = self.parameters.iter().map(|(_, p)| p.numel()).sum();
        let tensor = |name: &str| -> Result<Tensor> {
            let Some(t) = saved.get(name) else { return Err(Error::argument(LOAD, format!("{name} is missing"))) };
            if t.shape() != [numel] || !t.dtype().is_float() {
                let m = format!("{name} is {} {}, not [{numel}] floats", Shape::display(t.shape()), t.dtype());
                return Err(Error::argument(LOAD, m));
            }
            let values = self.parameters.first().map_or(t, |(_, p)| p.values());
            moved(t, values.device(), values.dtype())?.copy()
        };
        let n_iter: u64 = saved.required_number("n_iter")?;
        let last =
            if n_iter > 0 { Some((tensor("direction").here()?, tensor("prev_flat_grad").here()?)) } else { None };
        let history: usize = saved.required_number("history")?;
        let mut pairs = Vec::new();
        for i in 0..history {
            let (y, s) = (tensor(&format!("old_dirs.{i}")).here()?, tensor(&format!("old_stps.{i}")).here()?);
            pairs.push(Pair { y, s, ro: saved.required_number(&format!("ro.{i}"))? });
        }
        let lr = at_least_zero(LOAD, "lr", saved.required_number("lr")?)?;
        let (t, h_diag) = (saved.required_number("t")?, saved.required_number("h_diag")?);
        self.state = State { n_iter, func_evals: saved.required_number("func_evals")?, last, t, pairs, h_diag };
        self.config.lr = lr;
        Ok(())
    }
}

/// Refuses a loss or a gradient that is not finite.
#[track_caller]
fn finite(loss: f64, steepest: f64) -> Result<()> {
    if loss.is_finite() && steepest.is_finite() {
        return Ok(());
    }
    let m = format!("the loss is {loss}, and the largest element of its gradient is {steepest}");
    Err(Error::argument(OP, m).help("use LineSearch::StrongWolfe, or lower the learning rate"))
}
