//! [`Schedule`]: the learning rate as a function of the step.

mod cycle;

use std::fmt;
use std::sync::Arc;

use gradus_tensor::{Error, Result};

use crate::Optimizer;
pub use cycle::{Anneal, CyclicConfig, CyclicMode, OneCycleConfig};
use cycle::{between, check_divisor, check_momentum, height, one_cycle, power, share};

/// A factor on the learning rates of an optimiser, as a function of the step. Steps are counted from 0.
///
/// A schedule is a pure function without state: to resume a run, apply it at the step at which the run resumes. The
/// factors are those by which PyTorch's schedulers multiply the initial learning rate. [`one_cycle`](Schedule::one_cycle)
/// and [`cyclic`](Schedule::cyclic) may also give the [`momentum`](Schedule::momentum). For a learning rate that depends
/// on what was reached see [`ReduceLrOnPlateau`](crate::ReduceLrOnPlateau).
///
/// ```
/// # use gradus_nn::Schedule; use gradus_tensor::Result;
/// let schedule = Schedule::cosine(100, 0.1)?.after_warmup(10);
/// assert_eq!(schedule.factor(0), 1.0 / 11.0);
/// assert_eq!(schedule.factor(10), 1.0);
/// assert!((schedule.factor(110) - 0.1).abs() < 1e-12);
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    warmup: u64,
    /// How many levels of schedules are inside.
    depth: u32,
    shape: Shape,
}

/// The greatest nesting depth of schedules.
const MAX_DEPTH: u32 = 100;

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Constant { factor: f64, steps: u64 },
    Linear { start: f64, end: f64, steps: u64 },
    Step { every: u64, gamma: f64 },
    MultiStep { milestones: Vec<u64>, gamma: f64 },
    Exponential { gamma: f64 },
    Polynomial { steps: u64, power: f64 },
    Cosine { steps: u64, min_factor: f64 },
    CosineRestarts { first: u64, multiplier: u64, min_factor: f64 },
    InverseSqrt { timescale: f64 },
    OneCycle { steps: u64, config: OneCycleConfig },
    Cyclic { config: CyclicConfig },
    Function(Function),
    Product(Vec<Schedule>),
    Sequence { parts: Vec<Schedule>, milestones: Vec<u64> },
}

/// A function of the user's. It equals its clones only.
#[derive(Clone)]
struct Function(Arc<dyn Fn(u64) -> f64 + Send + Sync>);

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[track_caller]
fn check_factor(name: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(Error::argument("schedule", format!("{name} is {value}; it is finite and at least 0")))
}

#[track_caller]
fn at_least_one(name: &str, value: u64) -> Result<u64> {
    if value > 0 { Ok(value) } else { Err(Error::argument("schedule", format!("{name} is 0; it is at least 1"))) }
}

#[track_caller]
fn rising(milestones: Vec<u64>) -> Result<Vec<u64>> {
    if milestones.is_sorted() {
        return Ok(milestones);
    }
    Err(Error::argument("schedule", format!("milestones {milestones:?} do not rise")))
}

impl Schedule {
    fn new(shape: Shape) -> Self {
        Schedule { warmup: 0, depth: 0, shape }
    }

    /// The depth of a schedule with these inside.
    #[track_caller]
    fn depth_around(parts: &[Schedule]) -> Result<u32> {
        let depth = parts.iter().map(|part| part.depth + 1).max().unwrap_or(0);
        if depth <= MAX_DEPTH {
            return Ok(depth);
        }
        Err(Error::argument("schedule", format!("schedules are nested {depth} deep; at most {MAX_DEPTH} are possible")))
    }

    /// A factor of 1 at every step.
    pub fn constant() -> Self {
        Self::new(Shape::Constant { factor: 1.0, steps: 0 })
    }

    /// `factor` for `steps` steps, then 1 (`ConstantLR`).
    #[track_caller]
    pub fn constant_for(steps: u64, factor: f64) -> Result<Self> {
        Ok(Self::new(Shape::Constant { factor: check_factor("factor", factor)?, steps }))
    }

    /// A straight line from `start` to `end` in `steps` steps, then `end` (`LinearLR`).
    ///
    /// # Errors
    /// Fails if `steps` is 0, or if a factor is negative or not finite.
    #[track_caller]
    pub fn linear(steps: u64, start: f64, end: f64) -> Result<Self> {
        let (start, end) = (check_factor("start", start)?, check_factor("end", end)?);
        Ok(Self::new(Shape::Linear { start, end, steps: at_least_one("steps", steps)? }))
    }

    /// Multiplies by `gamma` every `every` steps: `gamma^floor(step / every)` (`StepLR`). Fails if `every` is 0.
    #[track_caller]
    pub fn step(every: u64, gamma: f64) -> Result<Self> {
        Ok(Self::new(Shape::Step { every: at_least_one("every", every)?, gamma: check_factor("gamma", gamma)? }))
    }

    /// Multiplies by `gamma` at each of the `milestones`, which must be in ascending order (`MultiStepLR`).
    #[track_caller]
    pub fn multi_step(milestones: impl Into<Vec<u64>>, gamma: f64) -> Result<Self> {
        let milestones = rising(milestones.into())?;
        Ok(Self::new(Shape::MultiStep { milestones, gamma: check_factor("gamma", gamma)? }))
    }

    /// Multiplies by `gamma` at every step: `gamma^step` (`ExponentialLR`).
    #[track_caller]
    pub fn exponential(gamma: f64) -> Result<Self> {
        Ok(Self::new(Shape::Exponential { gamma: check_factor("gamma", gamma)? }))
    }

    /// `(1 - step / steps)^power` for `steps` steps (at least 1), then 0 (`PolynomialLR`).
    #[track_caller]
    pub fn polynomial(steps: u64, power: f64) -> Result<Self> {
        let (steps, power) = (at_least_one("steps", steps)?, check_factor("power", power)?);
        Ok(Self::new(Shape::Polynomial { steps, power }))
    }

    /// Falls from 1 to `min_factor` along half a cosine in `steps` steps (at least 1), and stays at `min_factor` from
    /// then on: `min + (1 - min) (1 + cos(pi step / steps)) / 2` (Loshchilov and Hutter, 2017). PyTorch's
    /// `CosineAnnealingLR` rises again after that. To reach a given lowest learning rate, divide it by the optimiser's
    /// learning rate.
    #[track_caller]
    pub fn cosine(steps: u64, min_factor: f64) -> Result<Self> {
        let (steps, min_factor) = (at_least_one("steps", steps)?, check_factor("min_factor", min_factor)?);
        Ok(Self::new(Shape::Cosine { steps, min_factor }))
    }

    /// [`cosine`](Schedule::cosine) that begins again at 1 after `first` steps, and then after `multiplier` times as
    /// many steps as the last time (`CosineAnnealingWarmRestarts`). Both are at least 1.
    #[track_caller]
    pub fn cosine_restarts(first: u64, multiplier: u64, min_factor: f64) -> Result<Self> {
        let (first, multiplier) = (at_least_one("first", first)?, at_least_one("multiplier", multiplier)?);
        let min_factor = check_factor("min_factor", min_factor)?;
        Ok(Self::new(Shape::CosineRestarts { first, multiplier, min_factor }))
    }

    /// `sqrt(timescale / (timescale + step))`. After a warm-up of `timescale` steps this is the schedule of the first
    /// transformer (Vaswani et al., 2017).
    #[track_caller]
    pub fn inverse_sqrt(timescale: u64) -> Result<Self> {
        Ok(Self::new(Shape::InverseSqrt { timescale: at_least_one("timescale", timescale)? as f64 }))
    }

    /// Rises to 1 and falls far below the first factor, in `steps` steps (`OneCycleLR`; Smith and Topin, 2018). The
    /// learning rate of the optimiser is the highest one. After the last step it stays.
    ///
    /// # Errors
    /// Fails if `steps` is 0, `pct_start` is outside 0 to 1, a divisor is not above 0, or a momentum is not from 0 to
    /// below 1.
    #[track_caller]
    pub fn one_cycle(steps: u64, config: OneCycleConfig) -> Result<Self> {
        if !(0.0..=1.0).contains(&config.pct_start) {
            return Err(Error::argument("schedule", format!("pct_start is {}; it is 0 to 1", config.pct_start)));
        }
        check_divisor("div_factor", config.div_factor)?;
        check_divisor("final_div_factor", config.final_div_factor)?;
        check_momentum(config.momentum)?;
        Ok(Self::new(Shape::OneCycle { steps: at_least_one("steps", steps)?, config }))
    }

    /// Rises and falls between 1 and `max_factor` along straight lines, again and again (`CyclicLR`; Smith, 2017). The
    /// learning rate of the optimiser is the lowest one.
    ///
    /// # Errors
    /// Fails if a number of steps is 0, a number is negative or not finite, a momentum is not from 0 to below 1, or
    /// there is a momentum and the cycles grow (`ExpRange` above 1).
    #[track_caller]
    pub fn cyclic(config: CyclicConfig) -> Result<Self> {
        check_factor("max_factor", config.max_factor)?;
        check_momentum(config.momentum)?;
        at_least_one("step_size_up", config.step_size_up)?;
        at_least_one("step_size_down", config.step_size_down.unwrap_or(1))?;
        if let CyclicMode::ExpRange(gamma) = config.mode {
            check_factor("gamma", gamma)?;
            if gamma > 1.0 && config.momentum.is_some() {
                let m = format!("gamma is {gamma}, with which the momentum would leave its range");
                return Err(Error::argument("schedule", m).help("give a gamma of at most 1, or no momentum"));
            }
        }
        Ok(Self::new(Shape::Cyclic { config }))
    }

    /// The factor that `f` gives for a step (`LambdaLR`). One that is negative or not finite is an error of
    /// [`apply`](Schedule::apply).
    ///
    /// ```
    /// # use gradus_nn::Schedule;
    /// let schedule = Schedule::function(|step| 1.0 / (1.0 + step as f64));
    /// assert_eq!(schedule.factor(3), 0.25);
    /// ```
    pub fn function(f: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Self::new(Shape::Function(Function(Arc::new(f))))
    }

    /// The product of the factors of several schedules (`ChainedScheduler`).
    ///
    /// # Errors
    /// Fails if schedules are nested more than 100 deep.
    #[track_caller]
    pub fn chained(schedules: impl Into<Vec<Schedule>>) -> Result<Self> {
        let parts = schedules.into();
        Ok(Schedule { warmup: 0, depth: Self::depth_around(&parts)?, shape: Shape::Product(parts) })
    }

    /// One schedule after the other (`SequentialLR`): each begins with its step 0 at its milestone, and the first one
    /// at step 0.
    ///
    /// ```
    /// # use gradus_nn::Schedule;
    /// let schedule = Schedule::sequential([Schedule::linear(4, 0.5, 1.0)?, Schedule::exponential(0.5)?], [4])?;
    /// assert_eq!([0, 2, 4, 5].map(|step| schedule.factor(step)), [0.5, 0.75, 1.0, 0.5]);
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails unless there is one milestone less than there are schedules, in ascending order, and if schedules are
    /// nested more than 100 deep.
    #[track_caller]
    pub fn sequential(schedules: impl Into<Vec<Schedule>>, milestones: impl Into<Vec<u64>>) -> Result<Self> {
        let (parts, milestones) = (schedules.into(), rising(milestones.into())?);
        if parts.len() != milestones.len() + 1 {
            let m = format!("{} schedules need one milestone less, not {}", parts.len(), milestones.len());
            return Err(Error::argument("schedule", m));
        }
        let depth = Self::depth_around(&parts)?;
        Ok(Schedule { warmup: 0, depth, shape: Shape::Sequence { parts, milestones } })
    }

    /// Adds `steps` steps of linear warm-up before the schedule, which then starts from its beginning. The factor
    /// during warm-up is `(step + 1) / (steps + 1)` times the first factor of the schedule.
    #[must_use]
    pub fn after_warmup(mut self, steps: u64) -> Self {
        self.warmup = steps;
        self
    }

    /// The factor at `step`, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.shape.factor(0) * ((step as f64 + 1.0) / (self.warmup as f64 + 1.0));
        }
        self.shape.factor(step - self.warmup)
    }

    /// The momentum at `step`, of a schedule that cycles it; `None` leaves the momentum as it was made. Within
    /// [`chained`](Schedule::chained) it is that of the first part that has one, and within
    /// [`sequential`](Schedule::sequential) the last one goes on through parts that have none.
    pub fn momentum(&self, step: u64) -> Option<f64> {
        self.shape.momentum(step.saturating_sub(self.warmup))
    }

    /// Sets the optimiser's learning-rate factor for `step`, and its momentum, if the schedule has one. Call it before
    /// [`Optimizer::step`].
    ///
    /// # Errors
    /// Fails if the factor is negative or not finite, and if the schedule has a momentum but the optimiser none that
    /// can be set.
    #[track_caller]
    pub fn apply(&self, step: u64, optimizer: &mut dyn Optimizer) -> Result<()> {
        optimizer.set_lr_factor(self.factor(step))?;
        self.momentum(step).map_or(Ok(()), |momentum| optimizer.set_momentum(momentum))
    }
}

impl Shape {
    fn factor(&self, step: u64) -> f64 {
        match self {
            Shape::Constant { factor, steps } => {
                if step < *steps {
                    *factor
                } else {
                    1.0
                }
            }
            Shape::Linear { start, end, steps } => start + (end - start) * share(step, *steps),
            Shape::Step { every, gamma } => power(*gamma, step / every),
            Shape::MultiStep { milestones, gamma } => power(*gamma, milestones.partition_point(|&m| m <= step) as u64),
            Shape::Exponential { gamma } => power(*gamma, step),
            Shape::Polynomial { steps, power } => (1.0 - share(step, *steps)).powf(*power),
            Shape::Cosine { steps, min_factor } => between(Anneal::Cos, 1.0, *min_factor, share(step, *steps)),
            Shape::CosineRestarts { first, multiplier, min_factor } => {
                let (mut step, mut steps) = (step, *first);
                if *multiplier == 1 {
                    step %= steps;
                }
                while step >= steps {
                    step -= steps;
                    steps = steps.saturating_mul(*multiplier);
                }
                between(Anneal::Cos, 1.0, *min_factor, share(step, steps))
            }
            Shape::InverseSqrt { timescale } => (timescale / (timescale + step as f64)).sqrt(),
            Shape::OneCycle { steps, config } => {
                let first = 1.0 / config.div_factor;
                one_cycle(step, *steps, config, [first, 1.0, first / config.final_div_factor])
            }
            Shape::Cyclic { config } => 1.0 + (config.max_factor - 1.0) * height(step, config),
            Shape::Function(f) => (f.0)(step),
            Shape::Product(parts) => parts.iter().map(|part| part.factor(step)).product(),
            Shape::Sequence { parts, milestones } => {
                let at = milestones.partition_point(|&m| m <= step);
                let begin = if at == 0 { 0 } else { milestones[at - 1] };
                parts[at].factor(step - begin)
            }
        }
    }

    fn momentum(&self, step: u64) -> Option<f64> {
        match self {
            Shape::OneCycle { steps, config } => {
                config.momentum.map(|[least, greatest]| one_cycle(step, *steps, config, [greatest, least, greatest]))
            }
            Shape::Cyclic { config } => {
                config.momentum.map(|[least, greatest]| greatest - (greatest - least) * height(step, config))
            }
            Shape::Product(parts) => parts.iter().find_map(|part| part.momentum(step)),
            Shape::Sequence { parts, milestones } => {
                let at = milestones.partition_point(|&m| m <= step);
                (0..=at).rev().find_map(|i| {
                    let begin = if i == 0 { 0 } else { milestones[i - 1] };
                    // The last step of a part that has ended.
                    let step = if i == at { step } else { milestones[i].saturating_sub(1) };
                    parts[i].momentum(step.saturating_sub(begin))
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn factors_follow_their_formulas() {
        let half = 0.5;
        let table: [(Schedule, &[(u64, f64)]); 6] = [
            (Schedule::constant(), &[(0, 1.0), (u64::MAX, 1.0)]),
            (Schedule::step(10, half).unwrap(), &[(0, 1.0), (9, 1.0), (10, 0.5), (25, 0.25)]),
            (Schedule::multi_step([3, 5, 5], half).unwrap(), &[(0, 1.0), (2, 1.0), (3, 0.5), (4, 0.5), (5, 0.125)]),
            (Schedule::exponential(half).unwrap(), &[(0, 1.0), (3, 0.125), (u64::MAX, 0.0)]),
            (Schedule::cosine(4, 0.2).unwrap(), &[(0, 1.0), (1, 0.8828427124746191), (2, 0.6), (4, 0.2), (9, 0.2)]),
            (
                Schedule::step(2, half).unwrap().after_warmup(3),
                &[(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0), (5, 0.5)],
            ),
        ];
        for (schedule, points) in table {
            for &(step, factor) in points {
                assert!((schedule.factor(step) - factor).abs() < 1e-12, "{schedule:?} at {step}");
            }
        }
    }

    #[test]
    fn impossible_schedules_are_refused() {
        assert!(Schedule::step(0, 0.5).is_err());
        assert!(Schedule::cosine(0, 0.0).is_err());
        assert!(Schedule::exponential(f64::NAN).is_err());
        assert!(Schedule::multi_step([5, 3], 0.1).is_err());
    }
}
