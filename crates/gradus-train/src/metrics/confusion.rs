//! [`ConfusionMatrix`]: counts how many samples of each class were predicted as each class.

use std::collections::BTreeMap;
use std::fmt;

use gradus_tensor::{Error, ErrorKind, Here, Result, Tensor};

use super::metric::{Metric, Rows, largest, nothing};

/// Counts of predictions: each row is a true class, and each column is a predicted class. `Display` prints a table.
///
/// ```
/// let mut matrix = gradus_train::ConfusionMatrix::new(2)?;
/// for (truth, predicted) in [(0, 0), (1, 1), (1, 0)] {
///     matrix.add(truth, predicted)?;
/// }
/// assert_eq!((matrix.count(1, 0), matrix.correct(), matrix.total()), (1, 2, 3));
/// assert_eq!(matrix.recall(1), Some(0.5));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// The counts of the pairs of true and predicted class that occurred.
    counts: BTreeMap<(usize, usize), u64>,
}

impl ConfusionMatrix {
    /// A matrix without predictions. Errors unless the number of classes is from 1 to 65,536.
    #[track_caller]
    pub fn new(classes: usize) -> Result<Self> {
        if !(1..=1 << 16).contains(&classes) {
            return Err(Error::argument("confusion_matrix", format!("{classes} classes; it takes 1 to 65536")));
        }
        Ok(ConfusionMatrix { classes, counts: BTreeMap::new() })
    }

    /// Counts one prediction. Errors if a class is out of range.
    #[track_caller]
    pub fn add(&mut self, truth: i64, predicted: i64) -> Result<()> {
        let place = |class: i64| {
            usize::try_from(class)
                .ok()
                .filter(|&c| c < self.classes)
                .ok_or_else(|| {
                    let kind = ErrorKind::IndexOutOfBounds { pos: 0, index: class, size: self.classes };
                    Error::new(kind, "confusion_matrix", format!("class {class} of {}", self.classes))
                })
                .here()
        };
        *self.counts.entry((place(truth).here()?, place(predicted).here()?)).or_default() += 1;
        Ok(())
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of samples of class `truth` that were predicted as `predicted`; 0 for classes that do not exist.
    pub fn count(&self, truth: usize, predicted: usize) -> u64 {
        self.counts.get(&(truth, predicted)).copied().unwrap_or(0)
    }

    /// The pairs of a true and a predicted class that occurred, with their counts, in ascending order.
    pub fn pairs(&self) -> impl Iterator<Item = ((usize, usize), u64)> {
        self.counts.iter().map(|(pair, count)| (*pair, *count))
    }

    /// The number of predictions.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The number of correct predictions.
    pub fn correct(&self) -> u64 {
        (0..self.classes).map(|c| self.count(c, c)).sum()
    }

    /// The share of correct predictions; `None` if there are no predictions.
    pub fn accuracy(&self) -> Option<f64> {
        share(self.correct(), self.total())
    }

    /// The share of the samples of true class `class` that were predicted correctly; `None` if there are no such
    /// samples.
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), (0..self.classes).map(|c| self.count(class, c)).sum())
    }

    /// The share of the predictions of class `class` that were correct; `None` if it was never predicted.
    pub fn precision(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), (0..self.classes).map(|c| self.count(c, class)).sum())
    }
}

/// Outputs are `[.., classes]`, targets `[..]` of integers; the value is the accuracy.
impl Metric for ConfusionMatrix {
    fn name(&self) -> &str {
        "accuracy"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let rows = Rows::of("confusion_matrix", outputs, targets)?;
        if rows.classes != self.classes {
            let m = format!("the outputs are of {} classes, and the matrix of {}", rows.classes, self.classes);
            return Err(Error::argument("confusion_matrix", m));
        }
        rows.iter().try_for_each(|(scores, label)| self.add(label as i64, largest(scores) as i64)).here()
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        self.accuracy().ok_or_else(|| nothing("confusion_matrix")).here()
    }

    fn reset(&mut self) {
        self.counts.clear();
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl fmt::Display for ConfusionMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.counts.values().max().copied().unwrap_or(0).max(self.classes as u64);
        let width = widest.to_string().len().max(2) + 1;
        write!(f, "{:>9}", "predicted")?;
        for class in 0..self.classes {
            write!(f, "{class:>width$}")?;
        }
        write!(f, "{:>9}", "recall")?;
        for truth in 0..self.classes {
            write!(f, "\ntrue {truth:>4}")?;
            for predicted in 0..self.classes {
                match self.count(truth, predicted) {
                    0 => write!(f, "{:>width$}", ".")?,
                    n => write!(f, "{n:>width$}")?,
                }
            }
            match self.recall(truth) {
                Some(recall) => write!(f, "{:>8.1}%", recall * 100.0)?,
                None => write!(f, "{:>9}", "-")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_out_of_range_are_errors() {
        let mut matrix = ConfusionMatrix::new(3).unwrap();
        for (truth, predicted) in [(3, 0), (0, -1), (i64::MIN, 0)] {
            assert!(matrix.add(truth, predicted).is_err());
        }
        assert_eq!((matrix.total(), matrix.accuracy(), matrix.count(9, 9)), (0, None, 0));
        // Pairs that did not occur use no memory.
        assert_eq!(ConfusionMatrix::new(1 << 16).unwrap().count(65_535, 65_535), 0);
        assert!(ConfusionMatrix::new(0).is_err() && ConfusionMatrix::new(usize::MAX).is_err());
    }

    #[test]
    fn it_prints_as_a_table() {
        let mut matrix = ConfusionMatrix::new(2).unwrap();
        (0..12).for_each(|_| matrix.add(0, 0).unwrap());
        matrix.add(0, 1).unwrap();
        let want = "predicted  0  1   recall\ntrue    0 12  1    92.3%\ntrue    1  .  .        -";
        assert_eq!(matrix.to_string(), want);
        assert_eq!((matrix.precision(0), matrix.precision(1)), (Some(1.0), Some(0.0)));
    }
}
