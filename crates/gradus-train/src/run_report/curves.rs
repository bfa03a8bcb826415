//! [`StepCurves`]: a logger that keeps the metrics of steps for a report.

use gradus_tensor::Result;

use crate::{Event, History, Logger};

/// The largest number of points of a curve. If there are more, neighbours are averaged.
const MOST: usize = 800;

/// Collects loss, learning rate and gradient norm of each step for the curves of a report. For a long run, neighbouring
/// steps are averaged, so that a curve has at most 800 points.
#[derive(Debug, Clone, Default)]
pub struct StepCurves {
    /// The number of steps of the run.
    step: u64,
    loss: Curve,
    lr: Curve,
    grad_norm: Curve,
}

/// Means of `width` numbers each, and the sum of the numbers since the last mean.
#[derive(Debug, Clone)]
struct Curve {
    points: Vec<(u64, f64)>,
    width: u64,
    sum: f64,
    count: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Curve { points: Vec::new(), width: 1, sum: 0.0, count: 0 }
    }
}

impl Curve {
    fn push(&mut self, at: u64, value: f64) {
        self.sum += value;
        self.count += 1;
        if self.count < self.width {
            return;
        }
        self.points.push((at, self.sum / self.count as f64));
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() >= MOST {
            let pairs = self.points.chunks_exact(2);
            self.points = pairs.filter_map(|p| Some((p.last()?.0, (p.first()?.1 + p.last()?.1) / 2.0))).collect();
            self.width *= 2;
        }
    }
}

impl StepCurves {
    /// The curves: `loss`, `lr` and `grad_norm`, each point with the last step of its mean. A curve without points is
    /// left out.
    pub fn history(&self) -> History {
        let mut history = History::default();
        for (name, curve) in [("loss", &self.loss), ("lr", &self.lr), ("grad_norm", &self.grad_norm)] {
            curve.points.iter().for_each(|&(at, value)| history.push(name, at, value));
        }
        history
    }
}

impl Logger for StepCurves {
    #[track_caller]
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Start { .. } => *self = StepCurves::default(),
            Event::Resumed { step, .. } => self.step = step,
            Event::Step(step) => {
                self.step += 1;
                self.loss.push(self.step, step.loss);
                self.lr.push(self.step, step.lr);
                if let Some(norm) = step.grad_norm {
                    self.grad_norm.push(self.step, norm);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_means() {
        let mut curve = Curve::default();
        (1..=100_000).for_each(|at| curve.push(at, at as f64));
        assert!((MOST / 2..MOST).contains(&curve.points.len()));
        assert_eq!(curve.width, 128);
        for (i, (at, value)) in curve.points.iter().enumerate() {
            assert_eq!(*at, 128 * (i as u64 + 1));
            assert_eq!(*value, *at as f64 - 63.5);
        }
    }
}
