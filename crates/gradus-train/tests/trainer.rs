//! Tests the trainer: the events that it reports, and the ways in which a run ends.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_nn::{Forward, Init, Linear, Module, Schedule, Sgd, SgdConfig};
use gradus_tensor::{DType, Device, Error, Generator, Reduction, Result, Tensor};
use gradus_train::{Event, Outcome, Run, StepReport, Trainer, Validation, evaluate};

type Batch = (Tensor, Tensor);

/// A model that learns `y = 2 x` from 8 points, in batches of 3.
struct Line {
    model: Linear,
    optimizer: Sgd,
    loader: DataLoader<TensorDataset>,
}

fn line(lr: f64) -> Line {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let x = Tensor::linspace(-1.0, 1.0, 8, DType::F64, &device).unwrap().reshape([8, 1]).unwrap();
    let y = x.mul(2.0).unwrap();
    let loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), &device).batch_size(3).shuffle(1).build().unwrap();
    let model = Linear::new(1, 1, &mut Init::new(DType::F64, &device, &mut Generator::new(2))).unwrap();
    let optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr, ..Default::default() }).unwrap();
    Line { model, optimizer, loader }
}

fn squared(model: &Linear, (x, y): &Batch) -> Result<Outcome> {
    let loss = model.forward(x)?.mse_loss(y, Reduction::Mean)?;
    Ok(Outcome { loss, samples: x.shape()[0], correct: None })
}

impl Line {
    fn fit(&mut self, trainer: &Trainer, listen: &mut dyn FnMut(Event<'_>) -> Result<()>) -> Result<Run> {
        let mut logger = |event: Event<'_>| listen(event);
        let validation: Option<&dyn Validation<_, _>> = Some(&self.loader);
        trainer.fit(&mut self.model, &mut self.optimizer, &self.loader, validation, &squared, &mut [&mut logger])
    }
}

#[test]
fn events_come_in_order_and_their_numbers_add_up() {
    let mut heard = Vec::new();
    let run = line(0.3).fit(&Trainer::new(2).unwrap(), &mut |event| {
        heard.push(match event {
            Event::Start { epochs, steps, samples } => format!("start {epochs} {steps} {samples}"),
            Event::EpochStart { epoch } => format!("epoch {epoch}"),
            Event::Step(StepReport { epoch, step, samples, .. }) => format!("{epoch}.{step}: {samples}"),
            Event::EpochEnd(e) => format!("end of {}: {}", e.epoch, e.samples),
            Event::End(run) => format!("end {}", run.steps),
            _ => String::new(),
        });
        Ok(())
    });
    let epoch =
        |n: usize| ["epoch N", "N.1: 3", "N.2: 3", "N.3: 2", "end of N: 8"].map(|t| t.replace('N', &n.to_string()));
    let want = [&["start 2 3 8".to_owned()][..], &epoch(1), &epoch(2), &["end 6".to_owned()]].concat();
    assert_eq!(heard, want);
    let run = run.unwrap();
    assert_eq!((run.epochs.len(), run.steps, run.samples, run.stopped), (2, 6, 16, false));
}

#[test]
fn a_line_is_learnt_and_validated() {
    let mut line = line(0.5);
    let run = line.fit(&Trainer::new(60).unwrap(), &mut |_| Ok(())).unwrap();
    let last = run.epochs.last().unwrap();
    assert!(last.loss < 1e-6 && last.loss < run.epochs[0].loss / 100.0, "{last:?}");
    let again = evaluate(&mut line.model, &line.loader, &squared).unwrap();
    assert_eq!(last.validation, Some(again));
    assert!((line.model.weight.item().unwrap() - 2.0).abs() < 1e-3);
}

#[test]
fn the_schedule_decides_the_rate() {
    let mut line = line(0.5);
    let before = line.model.weight.item().unwrap();
    let still = Trainer::new(3).unwrap().schedule(Schedule::exponential(0.0).unwrap());
    let run = line.fit(&still, &mut |_| Ok(())).unwrap();
    // The first factor is 1, and all others are 0.
    assert_eq!(run.epochs[2].lr_factor, 0.0);
    assert_eq!(run.epochs[1].validation, run.epochs[2].validation);
    assert_ne!(line.model.weight.item().unwrap(), before);
}

#[test]
fn a_raised_flag_ends_the_run_before_the_next_step() {
    let flag = Arc::new(AtomicBool::new(false));
    let trainer = Trainer::new(100).unwrap().stop_when(flag.clone());
    let run = line(0.1).fit(&trainer, &mut |event| {
        if matches!(event, Event::Step(StepReport { epoch: 2, step: 2, .. })) {
            flag.store(true, Ordering::Relaxed);
        }
        Ok(())
    });
    let run = run.unwrap();
    assert_eq!((run.epochs.len(), run.steps, run.stopped), (2, 5, true));
    assert_eq!((run.epochs[1].steps, run.epochs[1].validation), (2, None));
    let none = line(0.1).fit(&trainer, &mut |_| Ok(())).unwrap();
    assert_eq!((none.steps, none.stopped), (0, true));
}

#[test]
fn a_loss_that_is_not_finite_names_epoch_and_step() {
    let e = line(1e200).fit(&Trainer::new(9).unwrap(), &mut |_| Ok(())).unwrap_err().to_string();
    assert!(e.contains("in epoch 1, step ") && e.contains("lower the learning rate"), "{e}");
}

#[test]
fn an_error_of_a_logger_ends_the_run() {
    let e = line(0.1).fit(&Trainer::new(9).unwrap(), &mut |event| match event {
        Event::EpochEnd(_) => Err(Error::argument("logger", "the disk is full")),
        _ => Ok(()),
    });
    let e = e.unwrap_err();
    assert!(e.to_string().contains("the disk is full"), "{e}");
}

#[test]
fn no_epochs_and_no_samples_are_errors() {
    assert!(Trainer::new(0).unwrap_err().to_string().contains("0 epochs"));
    let mut line = line(0.1);
    let device = line.loader.device().clone();
    let x = Tensor::zeros([0, 1], DType::F64, &device).unwrap();
    line.loader = DataLoader::new(TensorDataset::new(x.clone(), x).unwrap(), &device).build().unwrap();
    let e = line.fit(&Trainer::new(1).unwrap(), &mut |_| Ok(())).unwrap_err();
    assert!(e.to_string().contains("0 samples"), "{e}");
    assert!(evaluate(&mut line.model, &line.loader, &squared).is_err());
}
