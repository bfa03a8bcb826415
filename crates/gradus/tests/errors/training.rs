//! Loops, metrics and the trainer. In the snippets, `run(device, rows, nan)` makes a model, its optimiser and a loader of
//! that many rows, the first of which is NaN if `nan` is true.

use crate::page::page;
use gradus::prelude::*;
use gradus::train::{Accuracy, ConfusionMatrix, Metric, Monitor, OnNonFinite, RocAuc};

page! {
    "Training":
    the_loss_is_not_finite,
    no_batch_is_full,
    zero_epochs,
    validation_is_monitored_and_there_is_none,
    rolling_back_needs_checkpoints,
    an_evaluation_of_nothing,
    a_metric_without_samples,
    a_metric_of_one_class,
    a_metric_sees_a_label_that_is_no_class,
    a_class_is_outside_the_confusion_matrix,
}

/// A model of two inputs, its optimiser, and a loader of `rows` rows, the first of which is NaN if `nan` is true.
fn run(device: &Device, rows: usize, nan: bool) -> Result<(Linear, AdamW, DataLoader<TensorDataset>)> {
    let mut rng = Generator::new(1);
    let x = Tensor::randn([rows, 2], DType::F32, device, &mut rng)?;
    let y = x.sum(&[1], false)?.gt(0.0)?.to_dtype(DType::I64)?;
    if nan {
        x.narrow(0, 0, 1)?.fill_(f64::NAN)?;
    }
    let model = Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut rng))?;
    let optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
    Ok((model, optimizer, DataLoader::new(TensorDataset::new(x, y)?, device).batch_size(4).build()?))
}

/// The loss of a batch is NaN or infinite. The trainer runs the batch again with checks, and the error names the first
/// operation whose result is not finite, or the sample. Nothing of the step was applied.
///
/// Mend: clean the data, or lower the learning rate. `on_non_finite` can skip such batches or go back to a checkpoint.
fn the_loss_is_not_finite(device: &Device) -> Result<Error> {
    let (mut model, mut optimizer, data) = run(device, 16, true)?;
    let task = Classification::default();
    let error = Trainer::new(1)?.fit(&mut model, &mut optimizer, &data, None, &task, &mut []).unwrap_err();

    let trainer = Trainer::new(1)?.on_non_finite(OnNonFinite::Skip);
    trainer.fit(&mut model, &mut optimizer, &data, None, &task, &mut [])?;
    Ok(error)
}

/// With `drop_last` an incomplete batch is left out, and the only batch was incomplete.
///
/// Mend: give more samples, or a smaller batch size.
fn no_batch_is_full(device: &Device) -> Result<Error> {
    let (mut model, mut optimizer, data) = run(device, 3, false)?;
    let short = DataLoader::new(data.dataset().clone(), device).batch_size(4).drop_last(true).build()?;
    let (task, trainer) = (Classification::default(), Trainer::new(1)?);
    let error = trainer.fit(&mut model, &mut optimizer, &short, None, &task, &mut []).unwrap_err();

    trainer.fit(&mut model, &mut optimizer, &data, None, &task, &mut [])?;
    Ok(error)
}

/// A trainer for no epochs is a mistake of a command line or a configuration.
///
/// Mend: at least 1. To measure a model, call `evaluate`.
fn zero_epochs(_: &Device) -> Result<Error> {
    let error = Trainer::new(0).unwrap_err();

    Trainer::new(1)?;
    Ok(error)
}

/// The best epoch is chosen by a number that is not computed: one of validation, without a validation set.
///
/// Mend: pass a validation set, or monitor the training loss.
fn validation_is_monitored_and_there_is_none(device: &Device) -> Result<Error> {
    let (mut model, mut optimizer, data) = run(device, 16, false)?;
    let (task, trainer) = (Classification::default(), Trainer::new(1)?.monitor(Monitor::ValidationLoss));
    let error = trainer.fit(&mut model, &mut optimizer, &data, None, &task, &mut []).unwrap_err();

    trainer.fit(&mut model, &mut optimizer, &data, Some(&data), &task, &mut [])?;
    Ok(error)
}

/// The policy is to go back to the last checkpoint, and none are saved.
///
/// Mend: name a folder with `checkpoints` or `resume`.
fn rolling_back_needs_checkpoints(device: &Device) -> Result<Error> {
    let (mut model, mut optimizer, data) = run(device, 16, false)?;
    let task = Classification::default();
    let trainer = Trainer::new(1)?.on_non_finite(OnNonFinite::RollBack);
    let error = trainer.fit(&mut model, &mut optimizer, &data, None, &task, &mut []).unwrap_err();

    let trainer = Trainer::new(1)?.on_non_finite(OnNonFinite::RollBack).checkpoints("rolled-back");
    trainer.fit(&mut model, &mut optimizer, &data, None, &task, &mut [])?;
    Ok(error)
}

/// A mean over no samples is not defined.
///
/// Mend: look for the filter, or the split, that left no sample.
fn an_evaluation_of_nothing(device: &Device) -> Result<Error> {
    let (mut model, _, data) = run(device, 16, false)?;
    let none = DataLoader::new(data.dataset().clone().subset(vec![])?, device).build()?;
    let error = evaluate(&mut model, &none, &Classification::default()).unwrap_err();

    evaluate(&mut model, &data, &Classification::default())?;
    Ok(error)
}

/// A metric is read before any sample was counted.
///
/// Mend: call `update` for each batch, or `measure`, which does so.
fn a_metric_without_samples(device: &Device) -> Result<Error> {
    let mut accuracy = Accuracy::default();
    let error = accuracy.value().unwrap_err();

    let logits = Tensor::from_vec(vec![2.0f32, 1.0], [1, 2], device)?;
    accuracy.update(&logits, &Tensor::from_vec(vec![0i64], [1], device)?)?;
    assert_eq!(accuracy.value()?, 1.0);
    Ok(error)
}

/// The area under the ROC curve compares samples of two classes, and there is one.
///
/// Mend: stratify the split, so that each part has samples of all classes.
fn a_metric_of_one_class(device: &Device) -> Result<Error> {
    let (mut auc, scores) = (RocAuc::default(), Tensor::from_vec(vec![0.2f32, 0.7], [2], device)?);
    auc.update(&scores, &Tensor::from_vec(vec![1i64, 1], [2], device)?)?;
    let error = auc.value().unwrap_err();

    auc.update(&scores, &Tensor::from_vec(vec![0i64, 1], [2], device)?)?;
    auc.value()?;
    Ok(error)
}

/// A label is no class of the outputs.
///
/// Mend: let labels count from 0; leave rows without a label out.
fn a_metric_sees_a_label_that_is_no_class(device: &Device) -> Result<Error> {
    let logits = Tensor::from_vec(vec![2.0f32, 1.0], [1, 2], device)?;
    let error = Accuracy::default().update(&logits, &Tensor::from_vec(vec![2i64], [1], device)?).unwrap_err();

    Accuracy::default().update(&logits, &Tensor::from_vec(vec![1i64], [1], device)?)?;
    Ok(error)
}

/// A confusion matrix has a row and a column for each class, and this class has none.
///
/// Mend: pass the number of all classes.
fn a_class_is_outside_the_confusion_matrix(_: &Device) -> Result<Error> {
    let error = ConfusionMatrix::new(3)?.add(3, 0).unwrap_err();

    ConfusionMatrix::new(4)?.add(3, 0)?;
    Ok(error)
}
