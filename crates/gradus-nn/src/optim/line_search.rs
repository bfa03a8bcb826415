//! The line search of L-BFGS: a step that satisfies the strong Wolfe conditions.
//!
//! It makes the same trials as `_strong_wolfe` of PyTorch's `torch/optim/lbfgs.py`, which follows minFunc (Schmidt,
//! 2005). A trial whose loss is NaN counts as an infinite loss, so the search goes back from it.

use gradus_tensor::{Result, Tensor};

/// The loss may fall by this share of what its slope promises.
const C1: f64 = 1e-4;
/// The slope must fall to this share.
const C2: f64 = 0.9;

/// A point on the line.
#[derive(Clone)]
pub(super) struct Point {
    /// Distance from the start, in steps.
    pub(super) t: f64,
    pub(super) loss: f64,
    /// The gradient, flat.
    pub(super) gradient: Tensor,
    /// The derivative of the loss along the line.
    pub(super) slope: f64,
}

/// The minimum of the cubic with the losses and slopes of two points, within `bounds`.
fn cubic(a: &Point, b: &Point, bounds: (f64, f64)) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    let d2 = square.sqrt();
    let at = if a.t <= b.t {
        b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2))
    } else {
        a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2.0 * d2))
    };
    // It is NaN if there is no minimum, or if a loss is infinite.
    if at.is_nan() { (bounds.0 + bounds.1) / 2.0 } else { at.max(bounds.0).min(bounds.1) }
}

/// Searches from `start`, where `t` is 0, beginning with step `t`. Returns the point found, and the number of trials.
/// `longest` is the largest absolute element of the direction.
#[track_caller]
pub(super) fn strong_wolfe(
    evaluate: &mut dyn FnMut(f64) -> Result<Point>,
    start: &Point,
    t: f64,
    longest: f64,
    tolerance_change: f64,
    most: usize,
) -> Result<(Point, usize)> {
    let mut trial = |t: f64| -> Result<Point> {
        let mut point = evaluate(t)?;
        if point.loss.is_nan() {
            point.loss = f64::INFINITY;
        }
        Ok(point)
    };
    let too_high = |p: &Point| p.loss > start.loss + C1 * p.t * start.slope;
    let flat = |p: &Point| p.slope.abs() <= -C2 * start.slope;

    // Find an interval that contains a point to accept.
    let mut last = start.clone();
    let mut new = trial(t)?;
    let mut iterations = 0;
    let mut bracket = loop {
        if iterations == most {
            break [start.clone(), new];
        }
        if too_high(&new) || (iterations > 1 && new.loss >= last.loss) {
            break [last, new];
        }
        if flat(&new) {
            return Ok((new, iterations + 1));
        }
        if new.slope >= 0.0 {
            break [last, new];
        }
        let next = cubic(&last, &new, (new.t + 0.01 * (new.t - last.t), new.t * 10.0));
        last = std::mem::replace(&mut new, trial(next)?);
        iterations += 1;
    };
    let mut trials = iterations + 1;

    // Narrow the interval.
    let mut stuck = false;
    let mut low = usize::from(bracket[0].loss > bracket[1].loss);
    while iterations < most {
        let (left, right) = (bracket[0].t.min(bracket[1].t), bracket[0].t.max(bracket[1].t));
        if (right - left) * longest < tolerance_change {
            break;
        }
        let mut t = cubic(&bracket[0], &bracket[1], (left, right));
        // A step that is close to an end of the interval is moved away from it, at the latest the second time.
        let margin = 0.1 * (right - left);
        if (right - t).min(t - left) < margin {
            if stuck || t >= right || t <= left {
                t = if (t - right).abs() < (t - left).abs() { right - margin } else { left + margin };
                stuck = false;
            } else {
                stuck = true;
            }
        } else {
            stuck = false;
        }
        let new = trial(t)?;
        trials += 1;
        iterations += 1;
        if too_high(&new) || new.loss >= bracket[low].loss {
            bracket[1 - low] = new;
            low = usize::from(bracket[0].loss > bracket[1].loss);
            continue;
        }
        let done = flat(&new);
        if !done && new.slope * (bracket[1 - low].t - bracket[low].t) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = new;
        if done {
            break;
        }
    }
    let [a, b] = bracket;
    Ok((if low == 0 { a } else { b }, trials))
}
