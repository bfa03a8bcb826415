//! Metrics of probabilities: perplexity and calibration error.

use gradus_tensor::{Error, Result, Tensor};

use super::metric::{Metric, Rows, largest, mean, nothing};

/// The perplexity `exp(mean of -ln p)`, where `p` is the probability that the model assigns to the target. Outputs are
/// logits `[.., classes]`, targets `[..]` of integers.
#[derive(Debug, Clone, Default)]
pub struct Perplexity {
    sum: f64,
    samples: u64,
}

/// The logarithm of the sum of the exponentials.
fn log_sum_exp(scores: &[f64]) -> f64 {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !most.is_finite() {
        return most;
    }
    most + scores.iter().map(|score| (score - most).exp()).sum::<f64>().ln()
}

impl Metric for Perplexity {
    fn name(&self) -> &str {
        "perplexity"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of("perplexity", outputs, targets)?;
        for (scores, label) in rows.iter() {
            self.sum += log_sum_exp(scores) - scores.get(label).copied().unwrap_or(f64::NAN);
        }
        self.samples += rows.labels.len() as u64;
        Ok(())
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        mean("perplexity", self.sum, self.samples).map(f64::exp)
    }

    fn reset(&mut self) {
        *self = Perplexity::default();
    }
}

/// The expected calibration error (Guo et al., 2017): samples are sorted into bins `(i/bins, (i+1)/bins]` of equal width
/// by the largest probability of their softmax. The value is the mean over samples of the distance between a bin's
/// accuracy and its mean probability. Outputs are logits `[.., classes]`, targets `[..]`.
#[derive(Debug, Clone)]
pub struct CalibrationError {
    bins: Vec<Bin>,
}

#[derive(Debug, Clone, Default)]
struct Bin {
    samples: u64,
    correct: u64,
    confidence: f64,
}

impl CalibrationError {
    /// The metric with this many bins, from 1 to 10,000; 15 is usual.
    #[track_caller]
    pub fn new(bins: usize) -> Result<Self> {
        if !(1..=10_000).contains(&bins) {
            return Err(Error::argument("calibration_error", format!("{bins} bins; it takes 1 to 10000")));
        }
        Ok(CalibrationError { bins: vec![Bin::default(); bins] })
    }
}

impl Metric for CalibrationError {
    fn name(&self) -> &str {
        "calibration_error"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of("calibration_error", outputs, targets)?;
        if rows.scores.contains(&f64::INFINITY) {
            return Err(Error::argument("calibration_error", "a logit is infinite, and has no probability"));
        }
        let bins = self.bins.len();
        for (scores, label) in rows.iter() {
            let class = largest(scores);
            let confidence = (scores.get(class).copied().unwrap_or(f64::NAN) - log_sum_exp(scores)).exp();
            let at = ((confidence * bins as f64).ceil() as usize).clamp(1, bins) - 1;
            if let Some(bin) = self.bins.get_mut(at) {
                bin.samples += 1;
                bin.correct += u64::from(class == label);
                bin.confidence += confidence;
            }
        }
        Ok(())
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        let samples: u64 = self.bins.iter().map(|bin| bin.samples).sum();
        if samples == 0 {
            return Err(nothing("calibration_error"));
        }
        Ok(self.bins.iter().map(|bin| (bin.correct as f64 - bin.confidence).abs()).sum::<f64>() / samples as f64)
    }

    fn reset(&mut self) {
        self.bins.fill(Bin::default());
    }
}
