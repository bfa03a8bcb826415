//! The cycles of [`Schedule::one_cycle`](super::Schedule::one_cycle) and [`cyclic`](super::Schedule::cyclic), and the
//! curves that schedules are made of.

use std::f64::consts::PI;

use gradus_tensor::{Error, Result};

/// The options of [`Schedule::one_cycle`](super::Schedule::one_cycle).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycleConfig {
    /// The share of the steps in which the learning rate rises, 0 to 1. Default 0.3.
    pub pct_start: f64,
    /// The shape of rise and fall, default a half cosine.
    pub anneal: Anneal,
    /// The first factor is `1 / div_factor`. Default 25.
    pub div_factor: f64,
    /// The last factor is `1 / (div_factor * final_div_factor)`. Default 10000.
    pub final_div_factor: f64,
    /// Whether the fall to the first factor takes as long as the rise, and what is below it the rest of the steps.
    /// Default false: one fall takes the rest.
    pub three_phase: bool,
    /// The least and the greatest momentum: it falls while the learning rate rises, and rises while that falls. Default
    /// none, which leaves the momentum as it is; PyTorch's is `[0.85, 0.95]`.
    pub momentum: Option<[f64; 2]>,
}

impl Default for OneCycleConfig {
    fn default() -> Self {
        OneCycleConfig {
            pct_start: 0.3,
            anneal: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
            momentum: None,
        }
    }
}

/// The shape in which [`Schedule::one_cycle`](super::Schedule::one_cycle) goes from one factor to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    Cos,
    /// A straight line.
    Linear,
}

/// The options of [`Schedule::cyclic`](super::Schedule::cyclic).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CyclicConfig {
    /// The factor at the top of the first cycle; the one at the bottom is 1.
    pub max_factor: f64,
    /// The number of steps up, default 2000.
    pub step_size_up: u64,
    /// The number of steps down, by default as many as up.
    pub step_size_down: Option<u64>,
    /// How the height of the cycles changes. Default not at all.
    pub mode: CyclicMode,
    /// The least and the greatest momentum: the greatest goes with the lowest learning rate. Default none, which leaves
    /// the momentum as it is; PyTorch's is `[0.8, 0.9]`.
    pub momentum: Option<[f64; 2]>,
}

impl Default for CyclicConfig {
    /// `max_factor` is 10, which PyTorch has no default for.
    fn default() -> Self {
        let (mode, step_size_up) = (CyclicMode::Triangular, 2000);
        CyclicConfig { max_factor: 10.0, step_size_up, step_size_down: None, mode, momentum: None }
    }
}

/// How the height of the cycles of [`Schedule::cyclic`](super::Schedule::cyclic) changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CyclicMode {
    /// It stays the same.
    Triangular,
    /// Each cycle has half the height of the one before.
    Triangular2,
    /// It is multiplied by this number at each step.
    ExpRange(f64),
}

#[track_caller]
pub(super) fn check_divisor(name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::argument("schedule", format!("{name} is {value}; it is finite and above 0")))
}

/// Refuses a range of momenta that is not from 0 to below 1.
#[track_caller]
pub(super) fn check_momentum(range: Option<[f64; 2]>) -> Result<()> {
    match range {
        Some([least, greatest]) if !(0.0 <= least && least <= greatest && greatest < 1.0) => {
            let m = format!("the momentum goes from {least} to {greatest}; both are at least 0 and below 1, in order");
            Err(Error::argument("schedule", m))
        }
        _ => Ok(()),
    }
}

/// `gamma^n`. `powf` accepts any `n`, which `powi` does not.
pub(super) fn power(gamma: f64, n: u64) -> f64 {
    gamma.powf(n as f64)
}

/// `step / steps`, at most 1.
pub(super) fn share(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { step as f64 / steps as f64 }
}

/// The factor at a share of the way from `start` to `end`.
pub(super) fn between(anneal: Anneal, start: f64, end: f64, share: f64) -> f64 {
    match anneal {
        Anneal::Linear => start + (end - start) * share,
        // The end is hit exactly.
        Anneal::Cos if share == 1.0 => end,
        Anneal::Cos => end + (start - end) * (1.0 + (PI * share).cos()) / 2.0,
    }
}

/// A number that goes from `start` to `top`, back, and to `end`, in two or three phases.
pub(super) fn one_cycle(step: u64, steps: u64, config: &OneCycleConfig, [start, top, end]: [f64; 3]) -> f64 {
    let (last, at_top) = (steps as f64 - 1.0, config.pct_start * steps as f64 - 1.0);
    let phases: &[(f64, f64, f64)] = match config.three_phase {
        false => &[(at_top, start, top), (last, top, end)],
        true => &[(at_top, start, top), (2.0 * at_top, top, start), (last, start, end)],
    };
    let step = (step as f64).min(last);
    let (mut begin, mut value) = (0.0, start);
    for &(end, from, to) in phases {
        if end > begin {
            value = between(config.anneal, from, to, ((step - begin) / (end - begin)).min(1.0));
        }
        if step <= end {
            break;
        }
        begin = end;
    }
    value
}

/// How far a cycle is up at a step: 0 at the bottom, 1 at the top of the first.
pub(super) fn height(step: u64, config: &CyclicConfig) -> f64 {
    let up = config.step_size_up as f64;
    let size = up + config.step_size_down.map_or(up, |down| down as f64);
    let cycle = (1.0 + step as f64 / size).floor();
    let at = 1.0 + step as f64 / size - cycle;
    let ratio = up / size;
    let height = if at <= ratio { at / ratio } else { (at - 1.0) / (ratio - 1.0) };
    let scale = match config.mode {
        CyclicMode::Triangular => 1.0,
        CyclicMode::Triangular2 => (1.0 - cycle).exp2(),
        CyclicMode::ExpRange(gamma) => power(gamma, step),
    };
    height * scale
}
