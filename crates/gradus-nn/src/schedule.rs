//! [`Schedule`]: the learning rate as a function of the step.

use std::f64::consts::PI;

use gradus_tensor::{Error, Result};

use crate::Optimizer;

/// A factor on the learning rates of an optimiser, as a function of the step. Steps are counted from 0.
///
/// A schedule is a pure function without state: to resume a run, apply it at the step at which the run resumes.
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
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Constant,
    Step { every: u64, gamma: f64 },
    MultiStep { milestones: Vec<u64>, gamma: f64 },
    Exponential { gamma: f64 },
    Cosine { steps: u64, min_factor: f64 },
}

#[track_caller]
fn check_factor(name: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(Error::argument("schedule", format!("{name} is {value}; it is finite and at least 0")))
}

/// `gamma^n`. `powf` accepts any `n`, which `powi` does not.
fn power(gamma: f64, n: u64) -> f64 {
    gamma.powf(n as f64)
}

impl Schedule {
    fn new(shape: Shape) -> Self {
        Schedule { warmup: 0, shape }
    }

    /// A factor of 1 at every step.
    pub fn constant() -> Self {
        Self::new(Shape::Constant)
    }

    /// Multiplies by `gamma` every `every` steps: `gamma^floor(step / every)`. Errors if `every` is 0.
    #[track_caller]
    pub fn step(every: u64, gamma: f64) -> Result<Self> {
        if every == 0 {
            return Err(Error::argument("schedule", "every 0 steps is no interval; it is at least 1"));
        }
        Ok(Self::new(Shape::Step { every, gamma: check_factor("gamma", gamma)? }))
    }

    /// Multiplies by `gamma` at each of the `milestones`, which must be in ascending order.
    #[track_caller]
    pub fn multi_step(milestones: impl Into<Vec<u64>>, gamma: f64) -> Result<Self> {
        let milestones = milestones.into();
        if !milestones.is_sorted() {
            return Err(Error::argument("schedule", format!("milestones {milestones:?} do not rise")));
        }
        Ok(Self::new(Shape::MultiStep { milestones, gamma: check_factor("gamma", gamma)? }))
    }

    /// Multiplies by `gamma` at every step: `gamma^step`.
    #[track_caller]
    pub fn exponential(gamma: f64) -> Result<Self> {
        Ok(Self::new(Shape::Exponential { gamma: check_factor("gamma", gamma)? }))
    }

    /// Falls from 1 to `min_factor` along half a cosine in `steps` steps (at least 1), and stays at `min_factor` from
    /// then on: `min + (1 - min) (1 + cos(pi step / steps)) / 2` (Loshchilov and Hutter, 2017). To reach a given lowest
    /// learning rate, divide it by the optimiser's learning rate.
    #[track_caller]
    pub fn cosine(steps: u64, min_factor: f64) -> Result<Self> {
        if steps == 0 {
            return Err(Error::argument("schedule", "a cosine over 0 steps has no shape; it is at least 1"));
        }
        Ok(Self::new(Shape::Cosine { steps, min_factor: check_factor("min_factor", min_factor)? }))
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

    /// Sets the optimiser's learning-rate factor for `step`. Call it before [`Optimizer::step`].
    #[track_caller]
    pub fn apply(&self, step: u64, optimizer: &mut dyn Optimizer) -> Result<()> {
        optimizer.set_lr_factor(self.factor(step))
    }
}

impl Shape {
    fn factor(&self, step: u64) -> f64 {
        match self {
            Shape::Constant => 1.0,
            Shape::Step { every, gamma } => power(*gamma, step / every),
            Shape::MultiStep { milestones, gamma } => power(*gamma, milestones.partition_point(|&m| m <= step) as u64),
            Shape::Exponential { gamma } => power(*gamma, step),
            Shape::Cosine { steps, min_factor } if step >= *steps => *min_factor,
            Shape::Cosine { steps, min_factor } => {
                min_factor + (1.0 - min_factor) * (1.0 + (PI * step as f64 / *steps as f64).cos()) / 2.0
            }
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
