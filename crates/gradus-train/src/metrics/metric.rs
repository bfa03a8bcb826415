//! [`Metric`]: the trait of all metrics. [`measure`]: computes metrics on a dataset.

use gradus_data::{DataLoader, Dataset, Sample};
use gradus_nn::Forward;
use gradus_tensor::{DType, Error, Here, Result, Tensor, no_grad_guard};

/// A number that measures how good the outputs of a model are. The outputs are added batch by batch. The value is
/// computed over all samples together; it is not the mean of the values of the batches.
pub trait Metric {
    /// A short name, such as `accuracy`.
    fn name(&self) -> &str;

    /// Adds the outputs and targets of a batch. Errors if the metric does not accept their shapes or dtypes, or if a
    /// number is outside its domain. In that case, the batch does not count.
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()>;

    /// The value so far. Errors if it is undefined, for example because there are no samples.
    fn value(&self) -> Result<f64>;

    /// Forgets all batches.
    fn reset(&mut self);
}

/// Computes metrics on all batches of `loader`, after resetting them. Leaves the model in evaluation mode.
///
/// ```no_run
/// # use gradus_train::*; use gradus_tensor::Result; use gradus_data::*; use gradus_nn::*;
/// # fn f(model: &mut Linear, loader: &DataLoader<TensorDataset>) -> Result<()> {
/// let (mut top, mut f1) = (TopK::new(5)?, ClassScore::f1(Average::Macro));
/// measure(model, loader, &mut [&mut top, &mut f1])?;
/// println!("{} {}", top.value()?, f1.value()?);
/// # Ok(()) }
/// ```
#[track_caller]
pub fn measure<M, D>(model: &mut M, loader: &DataLoader<D>, metrics: &mut [&mut dyn Metric]) -> Result<()>
where
    M: Forward + ?Sized,
    D: Dataset + 'static,
    D::Item: Sample<Batch = (Tensor, Tensor)>,
{
    metrics.iter_mut().for_each(|metric| metric.reset());
    model.eval();
    let _guard = no_grad_guard();
    for batch in loader.epoch(0)? {
        let (inputs, targets) = batch.here()?;
        let outputs = model.forward(&inputs)?;
        metrics.iter_mut().try_for_each(|metric| metric.update(&outputs, &targets)).here()?;
    }
    Ok(())
}

/// The values of a tensor as f64.
#[track_caller]
pub(crate) fn floats(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.detach();
    match tensor.dtype() {
        DType::F64 => tensor.to_vec::<f64>(),
        DType::U64 => Ok(tensor.to_vec::<u64>()?.into_iter().map(|n| n as f64).collect()),
        // f32 holds whole numbers only up to 2^24.
        dtype if !dtype.is_float() => {
            Ok(tensor.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(|n| n as f64).collect())
        }
        _ => Ok(tensor.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
    }
}

/// The labels of a batch, which have an integer dtype.
#[track_caller]
pub(super) fn labels(name: &str, targets: &Tensor) -> Result<Vec<i64>> {
    if targets.dtype().is_float() {
        return Err(Error::dtype(name, targets.dtype(), "integers as targets"));
    }
    targets.to_dtype(DType::I64)?.to_vec::<i64>()
}

/// The scores `[n, classes]` of a batch as rows, and its labels `[n]`, each of which is a class.
pub(super) struct Rows {
    pub(super) scores: Vec<f64>,
    pub(super) classes: usize,
    pub(super) labels: Vec<usize>,
}

impl Rows {
    #[track_caller]
    pub(super) fn of(name: &str, outputs: &Tensor, targets: &Tensor) -> Result<Rows> {
        let wrong = |m: &str| {
            Err(Error::shape(name, m)
                .operand("outputs", outputs.shape(), outputs.dtype(), outputs.device())
                .operand("targets", targets.shape(), targets.dtype(), targets.device())
                .help("outputs are [.., classes], and targets have their shape without the last axis"))
        };
        let Some((&classes, rest)) = outputs.shape().split_last() else {
            return wrong("the outputs are a scalar").here();
        };
        if rest != targets.shape() || rest.is_empty() || classes == 0 {
            return wrong("the shapes do not fit").here();
        }
        let labels = labels(name, targets)?;
        let class = |label: &i64| usize::try_from(*label).ok().filter(|&c| c < classes);
        let Some(classes_of) = labels.iter().map(class).collect::<Option<Vec<_>>>() else {
            let bad = labels.iter().find(|label| class(label).is_none()).copied().unwrap_or_default();
            return Err(Error::argument(name, format!("the label {bad} is not one of {classes} classes")));
        };
        let scores = floats(outputs)?;
        if scores.iter().any(|score| score.is_nan()) {
            return Err(Error::argument(name, "an output is NaN").help("look for the operation with `find_nan`"));
        }
        Ok(Rows { scores, classes, labels: classes_of })
    }

    /// The scores and the label of each sample.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[f64], usize)> {
        self.scores.chunks_exact(self.classes.max(1)).zip(self.labels.iter().copied())
    }
}

/// The first class with the largest score.
pub(super) fn largest(scores: &[f64]) -> usize {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if scores.get(best).is_some_and(|most| score > most) {
            best = class;
        }
    }
    best
}

/// `part / whole`, or an error if there is nothing yet.
#[track_caller]
pub(super) fn mean(name: &str, part: f64, whole: u64) -> Result<f64> {
    if whole == 0 { Err(nothing(name)) } else { Ok(part / whole as f64) }
}

#[track_caller]
pub(super) fn nothing(name: &str) -> Error {
    Error::argument(name, "there are no samples yet").help("call `update` before `value`")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_tensor::Device;

    use super::*;

    #[test]
    fn whole_numbers_are_not_rounded() {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let big = Tensor::from_vec([16_777_217i64, -16_777_219], [2], &device).unwrap();
        assert_eq!(floats(&big).unwrap(), [16_777_217.0, -16_777_219.0]);
        let big = Tensor::from_vec([(1u64 << 63) + 4096], [1], &device).unwrap();
        assert_eq!(floats(&big).unwrap(), [((1u64 << 63) + 4096) as f64]);
        let bools = Tensor::from_vec([true, false], [2], &device).unwrap();
        assert_eq!(floats(&bools).unwrap(), [1.0, 0.0]);
    }
}
