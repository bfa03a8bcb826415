//! Metrics of scores for two classes, which depend only on the order of the scores.

use gradus_tensor::{Error, Result, Tensor};

use super::metric::{Metric, floats, labels, nothing};

/// All scores and whether their sample is positive.
#[derive(Debug, Clone, Default)]
struct Scores(Vec<(f64, bool)>);

impl Scores {
    #[track_caller]
    fn add(&mut self, name: &str, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        if outputs.shape() != targets.shape() {
            return Err(Error::shape(name, "outputs and targets have different shapes")
                .operand("outputs", outputs.shape(), outputs.dtype(), outputs.device())
                .operand("targets", targets.shape(), targets.dtype(), targets.device())
                .help("give one score for each target; of two classes, the score of class 1"));
        }
        let (scores, targets) = (floats(outputs)?, labels(name, targets)?);
        if let Some(bad) = targets.iter().find(|label| !(0..=1).contains(*label)) {
            return Err(Error::argument(name, format!("the target {bad} is neither 0 nor 1")));
        }
        if scores.iter().any(|score| score.is_nan()) {
            return Err(Error::argument(name, "a score is NaN").help("look for the operation with `find_nan`"));
        }
        self.0.extend(scores.into_iter().zip(targets.into_iter().map(|label| label == 1)));
        Ok(())
    }

    /// The numbers of positive and negative samples of each score, from the largest score to the least.
    fn counts(&self) -> Vec<(u64, u64)> {
        let mut sorted = self.0.clone();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        // 0 and -0 count as the same score.
        let groups = sorted.chunk_by(|a, b| a.0 == b.0);
        let count = |group: &[(f64, bool)], what: bool| group.iter().filter(|(_, is)| *is == what).count() as u64;
        groups.map(|group| (count(group, true), count(group, false))).collect()
    }
}

/// The area under the ROC curve: the probability that a positive sample has a larger score than a negative one, where
/// equal scores count half. Outputs are scores of any shape, probabilities or logits; targets have the same shape and
/// are 0 or 1. As `sklearn.metrics.roc_auc_score`.
///
/// `value` is an error if all samples are of one class, because the area is then undefined.
#[derive(Debug, Clone, Default)]
pub struct RocAuc(Scores);

impl Metric for RocAuc {
    fn name(&self) -> &str {
        "roc_auc"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        self.0.add("roc_auc", outputs, targets)
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        let counts = self.0.counts();
        if counts.is_empty() {
            return Err(nothing("roc_auc"));
        }
        let (positive, negative) = counts.iter().fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
        if positive == 0 || negative == 0 {
            let only = u8::from(positive > 0);
            let e = Error::argument("roc_auc", format!("all targets are {only}: the area is not defined"));
            return Err(e.help("give samples of both classes"));
        }
        // Twice the number of pairs in the right order.
        let (mut above, mut pairs) = (0u128, 0u128);
        for (p, n) in counts {
            pairs += u128::from(n) * (2 * above + u128::from(p));
            above += u128::from(p);
        }
        Ok(pairs as f64 / (2 * u128::from(positive) * u128::from(negative)) as f64)
    }

    fn reset(&mut self) {
        self.0.0.clear();
    }
}

/// The average precision: the sum over thresholds of the precision times the step of the recall, without interpolation.
/// Outputs and targets are those of [`RocAuc`]. As `sklearn.metrics.average_precision_score`.
///
/// `value` is an error if no target is 1, because the recall is then undefined. (scikit-learn returns 0, with a
/// warning.)
#[derive(Debug, Clone, Default)]
pub struct AveragePrecision(Scores);

impl Metric for AveragePrecision {
    fn name(&self) -> &str {
        "average_precision"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        self.0.add("average_precision", outputs, targets)
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        let counts = self.0.counts();
        if counts.is_empty() {
            return Err(nothing("average_precision"));
        }
        let positive: u64 = counts.iter().map(|c| c.0).sum();
        if positive == 0 {
            let e = Error::argument("average_precision", "no target is 1: the recall is not defined");
            return Err(e.help("give at least one positive sample"));
        }
        let (mut above, mut all, mut sum) = (0, 0, 0.0);
        for (p, n) in counts {
            (above, all) = (above + p, all + p + n);
            sum += p as f64 / positive as f64 * (above as f64 / all as f64);
        }
        Ok(sum)
    }

    fn reset(&mut self) {
        self.0.0.clear();
    }
}
