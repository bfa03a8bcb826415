//! Metrics of predicted classes: accuracy, top-k accuracy, precision, recall and F1.

use std::collections::BTreeMap;

use gradus_tensor::{Error, Result, Tensor};

use super::metric::{Metric, Rows, largest, mean, nothing};

/// The share of samples whose class has the largest output. Outputs are `[.., classes]`, targets `[..]` of integers. If
/// outputs are equal, the first counts as the largest.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_train::{Accuracy, Metric};
/// let outputs = Tensor::from_vec([0.1f32, 0.9, 0.8, 0.2], [2, 2], &device)?;
/// let mut accuracy = Accuracy::default();
/// accuracy.update(&outputs, &Tensor::from_vec([1i64, 1], [2], &device)?)?;
/// assert_eq!(accuracy.value()?, 0.5);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Accuracy {
    correct: u64,
    samples: u64,
}

impl Metric for Accuracy {
    fn name(&self) -> &str {
        "accuracy"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of("accuracy", outputs, targets)?;
        self.correct += rows.iter().filter(|(scores, label)| largest(scores) == *label).count() as u64;
        self.samples += rows.labels.len() as u64;
        Ok(())
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        mean("accuracy", self.correct as f64, self.samples)
    }

    fn reset(&mut self) {
        *self = Accuracy::default();
    }
}

/// The share of samples whose class is among the `k` with the largest outputs. Outputs are `[.., classes]`, targets
/// `[..]`. If outputs are equal, later classes count as larger, as in `sklearn.metrics.top_k_accuracy_score`.
#[derive(Debug, Clone)]
pub struct TopK {
    k: usize,
    name: String,
    hits: u64,
    samples: u64,
}

impl TopK {
    /// The metric for the `k` largest outputs. Errors if `k` is 0.
    #[track_caller]
    pub fn new(k: usize) -> Result<Self> {
        if k == 0 {
            return Err(Error::argument("top_k", "k is 0; it is at least 1"));
        }
        Ok(TopK { k, name: format!("top_{k}"), hits: 0, samples: 0 })
    }
}

impl Metric for TopK {
    fn name(&self) -> &str {
        &self.name
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of("top_k", outputs, targets)?;
        let is_hit = |scores: &[f64], label: usize| {
            let own = scores.get(label).copied().unwrap_or(f64::NAN);
            let before = scores.iter().enumerate().filter(|&(class, &s)| s > own || (s == own && class > label));
            before.count() < self.k
        };
        self.hits += rows.iter().filter(|(scores, label)| is_hit(scores, *label)).count() as u64;
        self.samples += rows.labels.len() as u64;
        Ok(())
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        mean("top_k", self.hits as f64, self.samples)
    }

    fn reset(&mut self) {
        (self.hits, self.samples) = (0, 0);
    }
}

/// How the scores of classes become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Average {
    /// The score of the counts summed over all classes. With one label per sample, this is the accuracy.
    Micro,
    /// The mean of the scores of the classes that occur among targets or predictions.
    Macro,
}

#[derive(Debug, Clone, Copy)]
enum Score {
    Precision,
    Recall,
    F1,
}

/// How often a class is the target, how often it is predicted, and how often both.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    targets: u64,
    predicted: u64,
    both: u64,
}

/// Precision, recall or F1. The predicted class of a sample is the one with the largest output. Outputs are `[..,
/// classes]`, targets `[..]`.
///
/// - precision of a class: the share of its predictions that are correct,
/// - recall of a class: the share of its samples that are predicted as this class,
/// - F1: the harmonic mean of both, `2 both / (targets + predicted)`.
///
/// A share of nothing is 0, as in scikit-learn (`zero_division=0`).
#[derive(Debug, Clone)]
pub struct ClassScore {
    score: Score,
    average: Average,
    counts: BTreeMap<usize, Counts>,
}

impl ClassScore {
    /// The precision, as `sklearn.metrics.precision_score`.
    pub fn precision(average: Average) -> Self {
        ClassScore { score: Score::Precision, average, counts: BTreeMap::new() }
    }

    /// The recall, as `sklearn.metrics.recall_score`.
    pub fn recall(average: Average) -> Self {
        ClassScore { score: Score::Recall, ..ClassScore::precision(average) }
    }

    /// F1, as `sklearn.metrics.f1_score`.
    pub fn f1(average: Average) -> Self {
        ClassScore { score: Score::F1, ..ClassScore::precision(average) }
    }

    /// The score of one class; 0 if it does not occur.
    pub fn of_class(&self, class: usize) -> f64 {
        self.counts.get(&class).map_or(0.0, |counts| self.score_of(counts))
    }

    fn score_of(&self, c: &Counts) -> f64 {
        let (part, whole) = match self.score {
            Score::Precision => (c.both, c.predicted),
            Score::Recall => (c.both, c.targets),
            Score::F1 => (2 * c.both, c.targets + c.predicted),
        };
        if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
    }
}

impl Metric for ClassScore {
    fn name(&self) -> &str {
        match (self.score, self.average) {
            (Score::Precision, Average::Micro) => "precision_micro",
            (Score::Precision, Average::Macro) => "precision_macro",
            (Score::Recall, Average::Micro) => "recall_micro",
            (Score::Recall, Average::Macro) => "recall_macro",
            (Score::F1, Average::Micro) => "f1_micro",
            (Score::F1, Average::Macro) => "f1_macro",
        }
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of(self.name(), outputs, targets)?;
        for (scores, label) in rows.iter() {
            let predicted = largest(scores);
            self.counts.entry(label).or_default().targets += 1;
            self.counts.entry(predicted).or_default().predicted += 1;
            self.counts.entry(label).or_default().both += u64::from(label == predicted);
        }
        Ok(())
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        if self.counts.is_empty() {
            return Err(nothing(self.name()));
        }
        Ok(match self.average {
            Average::Micro => self.score_of(&self.counts.values().fold(Counts::default(), |a, b| Counts {
                targets: a.targets + b.targets,
                predicted: a.predicted + b.predicted,
                both: a.both + b.both,
            })),
            Average::Macro => self.counts.values().map(|c| self.score_of(c)).sum::<f64>() / self.counts.len() as f64,
        })
    }

    fn reset(&mut self) {
        self.counts.clear();
    }
}
