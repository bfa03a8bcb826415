//! [`Measured`]: how good predictions are.

use gradus_tensor::{DType, Error, Result, Tensor};
use gradus_train::Metric as _;
use gradus_train::{Average, ClassScore, ConfusionMatrix, R2, RegressionError, RocAuc};

use crate::Metric;

/// How good the predictions for a data set are.
#[derive(Debug, Clone)]
pub struct Measured {
    /// For classes: accuracy, macro F1 and the area under the ROC curve (of each class against the others, averaged),
    /// which is left out if all samples are of one class. For numbers: the mean absolute error, the root of the mean
    /// squared error, and R2. For texts: the mean loss of a token in nats, perplexity, and bits per byte.
    pub metrics: Vec<Metric>,
    /// The confusion matrix, if classes are predicted.
    pub confusion: Option<ConfusionMatrix>,
    /// The loss of each sample: minus the logarithm of the probability of its class, the absolute error, or the mean
    /// loss of a section of a text.
    pub losses: Vec<f64>,
}

impl Measured {
    /// Compares logits `[n, classes]` with labels, i64 `[n]`. Errors if an output is NaN or a label is no class.
    #[track_caller]
    pub fn of_classes(logits: &Tensor, labels: &Tensor) -> Result<Measured> {
        let classes = logits.size(-1)?;
        let mut confusion = ConfusionMatrix::new(classes)?;
        let mut f1 = ClassScore::f1(Average::Macro);
        confusion.update(logits, labels)?;
        f1.update(logits, labels)?;
        let mut metrics = vec![
            Metric::share("accuracy", "Accuracy", confusion.value()?),
            Metric::number("f1", "F1 (macro)", f1.value()?),
        ];
        let probabilities = logits.softmax(-1)?;
        let mut areas = Vec::with_capacity(classes);
        for class in 0..classes {
            let is_class = labels.eq(class as f64)?.to_dtype(DType::I64)?;
            let count = is_class.sum_all()?.item()?;
            if count > 0.0 && count < labels.numel() as f64 {
                let mut area = RocAuc::default();
                area.update(&probabilities.select(1, class as isize)?, &is_class)?;
                areas.push(area.value()?);
            }
        }
        if !areas.is_empty() {
            metrics.push(Metric::number("auc", "Area under ROC", areas.iter().sum::<f64>() / areas.len() as f64));
        }
        let all = logits.log_softmax(-1)?.to_vec::<f32>()?;
        let labels = labels.to_vec::<i64>()?;
        let losses = all.chunks_exact(classes).zip(labels).map(|(row, label)| -f64::from(row[label as usize]));
        Ok(Measured { metrics, confusion: Some(confusion), losses: losses.collect() })
    }

    /// Compares the logits of all batches with their labels, as [`of_classes`](Measured::of_classes) does.
    #[track_caller]
    pub(crate) fn of_batches(logits: &[Tensor], labels: &[Tensor]) -> Result<Measured> {
        let all = |parts: &[Tensor]| Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0);
        Measured::of_classes(&all(logits)?, &all(labels)?)
    }

    /// Compares numbers with others, one for each sample. Errors if one is not finite, or if their counts differ.
    #[track_caller]
    pub fn of_numbers(outputs: &[f64], targets: &[f64]) -> Result<Measured> {
        let (mut mae, mut rmse, mut r2) = (RegressionError::mae(), RegressionError::rmse(), R2::default());
        mae.update_numbers(outputs, targets)?;
        rmse.update_numbers(outputs, targets)?;
        r2.update_numbers(outputs, targets)?;
        let mut metrics = vec![
            Metric::number("mae", "Mean absolute error", mae.value()?),
            Metric::number("rmse", "Root mean squared error", rmse.value()?),
        ];
        // R2 is not defined for a single row.
        if targets.len() > 1 {
            metrics.push(Metric::number("r2", "R\u{b2}", r2.value()?));
        }
        if metrics.iter().any(|metric| !metric.value.is_finite()) {
            return Err(Error::argument("evaluate", "a prediction is not finite").help("train the model anew"));
        }
        let losses = outputs.iter().zip(targets).map(|(output, target)| (output - target).abs()).collect();
        Ok(Measured { metrics, confusion: None, losses })
    }
}
