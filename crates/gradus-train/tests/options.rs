//! Tests the options of the trainer that have no checkpoints to do with.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig, StateDict};
use gradus_tensor::{DType, Device, Generator, Reduction, Result, Tensor};
use gradus_train::{Event, LrRange, Monitor, OnNonFinite, Outcome, Run, Task, Trainer};

type Batch = (Tensor, Tensor);

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// A linear model of four inputs, its optimiser, and 12 samples in batches of `batch_size`.
fn line(lr: f64, batch_size: usize) -> (Linear, Sgd, DataLoader<TensorDataset>) {
    let device = device();
    let x = Tensor::randn([12, 4], DType::F64, &device, &mut Generator::new(1)).unwrap();
    let y = x.sum(&[1], true).unwrap();
    let loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), &device).batch_size(batch_size).build().unwrap();
    let model = Linear::new(4, 1, &mut Init::new(DType::F64, &device, &mut Generator::new(2))).unwrap();
    let optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr, ..Default::default() }).unwrap();
    (model, optimizer, loader)
}

fn squared(model: &Linear, (x, y): &Batch) -> Result<Outcome> {
    let loss = model.forward(x)?.mse_loss(y, Reduction::Mean)?;
    Ok(Outcome { loss, samples: x.shape()[0], correct: None })
}

fn fit(
    trainer: &Trainer,
    (model, optimizer, loader): &mut (Linear, Sgd, DataLoader<TensorDataset>),
) -> (Run, Vec<f64>) {
    let mut norms = Vec::new();
    let mut listen = |event: Event<'_>| {
        if let Event::Step(step) = event {
            norms.extend(step.grad_norm);
        }
        Ok(())
    };
    let run = trainer.fit(model, optimizer, loader, None, &squared, &mut [&mut listen]).unwrap();
    (run, norms)
}

fn weights(model: &Linear) -> Vec<f64> {
    model.weight.to_vec::<f64>().unwrap()
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    let (mut large, mut small) = (line(0.1, 6), line(0.1, 2));
    fit(&Trainer::new(3).unwrap(), &mut large);
    let (run, _) = fit(&Trainer::new(3).unwrap().accumulate(3).unwrap(), &mut small);
    assert_eq!((run.steps, run.epochs[0].steps, run.epochs[0].samples), (6, 2, 12));
    for (a, b) in weights(&large.0).iter().zip(weights(&small.0)) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
    // Batches of 5, 5 and 2 samples are weighted by their numbers of samples.
    let (mut large, mut small) = (line(0.1, 12), line(0.1, 5));
    fit(&Trainer::new(3).unwrap(), &mut large);
    fit(&Trainer::new(3).unwrap().accumulate(3).unwrap(), &mut small);
    for (a, b) in weights(&large.0).iter().zip(weights(&small.0)) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
    // The remaining batches at the end of an epoch make a step too.
    let (run, _) = fit(&Trainer::new(1).unwrap().accumulate(4).unwrap(), &mut line(0.1, 2));
    assert_eq!((run.steps, run.samples), (2, 12));
    assert!(Trainer::new(1).unwrap().accumulate(0).is_err());
}

#[test]
fn gradients_are_clipped_and_their_norm_before_that_is_reported() {
    let (mut free, mut clipped) = (line(0.1, 12), line(0.1, 12));
    let start = weights(&free.0);
    let (_, norms) = fit(&Trainer::new(1).unwrap().log_grad_norm(), &mut free);
    let (_, same) = fit(&Trainer::new(1).unwrap().clip_norm(0.01).unwrap(), &mut clipped);
    assert_eq!(norms, same);
    let moved = |to: &Linear, bias: f64| {
        let weight: f64 = weights(to).iter().zip(&start).map(|(a, b)| (a - b) * (a - b)).sum();
        (weight + bias * bias).sqrt() / 0.1
    };
    let bias = |m: &Linear, before: f64| m.bias.as_ref().unwrap().to_vec::<f64>().unwrap()[0] - before;
    let before = line(0.1, 12).0.bias.as_ref().unwrap().to_vec::<f64>().unwrap()[0];
    assert!((moved(&free.0, bias(&free.0, before)) - norms[0]).abs() < 1e-9);
    assert!((moved(&clipped.0, bias(&clipped.0, before)) - 0.01).abs() < 1e-6);
    let mut clamped = line(0.1, 12);
    fit(&Trainer::new(1).unwrap().clip_value(1e-3).unwrap(), &mut clamped);
    assert!(weights(&clamped.0).iter().zip(&start).all(|(a, b)| (a - b).abs() <= 1e-4 + 1e-12));
    let both = Trainer::new(1).unwrap().clip_value(1e-3).unwrap().clip_norm(1e-4).unwrap();
    let mut small = line(0.1, 12);
    assert_eq!(fit(&both, &mut small).1, norms);
    assert!(weights(&small.0).iter().zip(&start).all(|(a, b)| (a - b).abs() <= 1e-5 + 1e-12));
    for bad in [0.0, -1.0, f64::NAN] {
        assert!(Trainer::new(1).unwrap().clip_norm(bad).is_err() && Trainer::new(1).unwrap().clip_value(bad).is_err());
    }
}

#[test]
fn a_gradient_that_is_infinite_is_skipped_also_if_its_elements_are_clamped() {
    let (model, optimizer, loader) = &mut line(0.1, 12);
    let start = weights(model);
    // The loss is 0, and its derivatives are infinite.
    let root = |model: &Linear, (x, _): &Batch| {
        let loss = model.weight.sub(model.weight.detach())?.sqrt()?.sum_all()?;
        Ok(Outcome { loss, samples: x.shape()[0], correct: None })
    };
    let trainer = Trainer::new(1).unwrap().clip_value(1.0).unwrap().on_non_finite(OnNonFinite::Skip);
    let e = trainer.fit(model, optimizer, loader, None, &root, &mut []).unwrap_err().to_string();
    assert!(e.contains("no step of epoch 1 could be done"), "{e}");
    assert_eq!(weights(model), start);
}

#[test]
fn a_monitored_number_that_there_is_not_is_an_error() {
    let (model, optimizer, loader) = &mut line(0.1, 12);
    for monitor in [Monitor::ValidationLoss, Monitor::ValidationAccuracy, Monitor::Accuracy] {
        let trainer = Trainer::new(1).unwrap().monitor(monitor);
        let e = trainer.fit(model, optimizer, loader, None, &squared, &mut []).unwrap_err().to_string();
        assert!(e.contains(&format!("the monitored number is {monitor:?}")), "{e}");
    }
}

#[test]
fn bad_and_repeated_names_of_states_are_errors_before_the_first_step() {
    let (model, optimizer, loader) = &mut line(0.1, 12);
    let start = weights(model);
    for (names, text) in [(["a", "a"], "two states are called \"a\""), (["a", "b.c"], "a state is called \"b.c\"")] {
        let with = |trainer: Trainer, name: &str| trainer.state(name, || Ok(StateDict::new()), |_| Ok(()));
        let trainer = names.into_iter().fold(Trainer::new(1).unwrap(), with);
        let e = trainer.fit(model, optimizer, loader, None, &squared, &mut []).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
    }
    assert_eq!(weights(model), start);
}

#[test]
fn a_fast_run_is_one_step_and_saves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("checkpoints");
    let (model, optimizer, loader) = &mut line(0.1, 2);
    let trainer = Trainer::new(9).unwrap().checkpoints(&folder).fast_dev_run();
    let run = trainer.fit(model, optimizer, loader, Some(&*loader), &squared, &mut []).unwrap();
    assert_eq!((run.steps, run.epochs.len(), run.epochs[0].validation.unwrap().samples, run.stopped), (1, 1, 2, false));
    assert!(!folder.exists());
}

#[test]
fn one_batch_is_learnt_by_heart() {
    let (model, optimizer, loader) = &mut line(0.1, 3);
    let losses = Trainer::new(1).unwrap().overfit_batch(model, optimizer, loader, &squared, 300).unwrap();
    assert_eq!(losses.len(), 300);
    assert!(losses[299] < 1e-4 * losses[0], "{} {}", losses[0], losses[299]);
    let (model, optimizer, loader) = &mut line(1e200, 3);
    let e = Trainer::new(1).unwrap().overfit_batch(model, optimizer, loader, &squared, 300).unwrap_err().to_string();
    assert!(e.contains("the loss is"), "{e}");
}

#[test]
fn the_search_for_a_rate_finds_one_that_learns_and_changes_nothing() {
    let (model, optimizer, loader) = &mut line(0.5, 3);
    let before = (weights(model), optimizer.state_dict().unwrap().iter_metadata().count(), optimizer.lr());
    let found = Trainer::new(1).unwrap().find_lr(model, optimizer, loader, &squared, LrRange::default()).unwrap();
    assert_eq!((weights(model), optimizer.state_dict().unwrap().iter_metadata().count(), optimizer.lr()), before);
    let rates: Vec<f64> = found.curve.iter().map(|p| p.lr).collect();
    assert!(rates.len() > 50 && rates.windows(2).all(|w| w[0] < w[1]), "{rates:?}");
    assert!((rates[0] - 1e-7).abs() < 1e-18);
    let best = found.suggestion.unwrap();
    assert!((1e-3..1.0).contains(&best), "{best} {:#?}", found.curve);
    let first = found.curve[0];
    assert_eq!(first.loss, first.smoothed);
    // The curve ends where the loss has grown.
    let least = found.curve.iter().map(|p| p.smoothed).fold(f64::INFINITY, f64::min);
    assert!(found.curve.last().unwrap().smoothed > 4.0 * least || rates.len() == 100);
    for range in [(0.0, 1.0, 9), (1.0, 1.0, 9), (1.0, f64::INFINITY, 9), (1e-3, 1.0, 1), (f64::NAN, 1.0, 9)] {
        let range = LrRange { from: range.0, to: range.1, steps: range.2 };
        assert!(Trainer::new(1).unwrap().find_lr(model, optimizer, loader, &squared, range).is_err(), "{range:?}");
    }
}

/// A task whose training batches are pairs, and whose validation batches are single tensors.
struct Two;

impl Task<Linear, Batch> for Two {
    fn run(&self, model: &Linear, batch: &Batch) -> Result<Outcome> {
        squared(model, batch)
    }
}

impl Task<Linear, Tensor> for Two {
    fn run(&self, model: &Linear, x: &Tensor) -> Result<Outcome> {
        Ok(Outcome { loss: model.forward(x)?.square()?.mean_all()?, samples: x.shape()[0], correct: None })
    }
}

/// Five points at the origin, one by one.
struct Points(Device);

impl gradus_data::Dataset for Points {
    type Item = Tensor;
    fn len(&self) -> usize {
        5
    }
    fn get(&self, _: usize) -> Result<Tensor> {
        Tensor::zeros([4], DType::F64, &self.0)
    }
}

#[test]
fn the_validation_set_may_have_batches_of_another_type() {
    let (model, optimizer, loader) = &mut line(0.1, 3);
    let points = DataLoader::new(Points(loader.device().clone()), loader.device()).batch_size(2).build().unwrap();
    let run = Trainer::new(1).unwrap().fit(model, optimizer, loader, Some(&points), &Two, &mut []).unwrap();
    let bias = model.bias.as_ref().unwrap().to_vec::<f64>().unwrap()[0];
    let found = run.epochs[0].validation.unwrap();
    assert_eq!(found.samples, 5);
    assert!((found.loss - bias * bias).abs() < 1e-12);
}
