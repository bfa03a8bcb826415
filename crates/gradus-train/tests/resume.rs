//! Tests runs that go on from a checkpoint.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_nn::{AdamConfig, AdamW, Dropout, Init, Linear, Module, Optimizer, Relu, Schedule, Sequential, StateDict};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor};
use gradus_train::{Classification, CsvLogger, EarlyStopping, Event, Logger, OnNonFinite, Run, Trainer, Validation};

struct Training {
    model: Sequential,
    optimizer: AdamW,
    loader: DataLoader<TensorDataset>,
}

fn training(seed: u64, batch_size: usize) -> Training {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let mut rng = Generator::new(1);
    let x = Tensor::randn([40, 3], DType::F32, &device, &mut rng).unwrap();
    let y = x.argmax(1, false).unwrap();
    let data = TensorDataset::new(x, y).unwrap();
    let loader = DataLoader::new(data, &device).batch_size(batch_size).shuffle(3).build().unwrap();
    let mut rng = Generator::new(seed);
    let dropout = Dropout::new(0.3, &mut rng).unwrap();
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let model = Sequential::new()
        .add(Linear::new(3, 8, &mut init).unwrap())
        .add(Relu)
        .add(dropout)
        .add(Linear::new(8, 3, &mut init).unwrap());
    let optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.05, ..Default::default() }).unwrap();
    Training { model, optimizer, loader }
}

impl Training {
    fn fit(&mut self, trainer: &Trainer, loggers: &mut [&mut dyn Logger]) -> Result<Run> {
        let validation: &dyn Validation<Sequential, Classification> = &self.loader;
        let task = Classification::default();
        trainer.fit(&mut self.model, &mut self.optimizer, &self.loader, Some(validation), &task, loggers)
    }

    fn bits(&self) -> Vec<(String, Vec<u8>)> {
        let mut bits = Vec::new();
        for state in [self.model.state_dict().unwrap(), self.optimizer.state_dict().unwrap()] {
            bits.extend(state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap())));
            bits.extend(state.iter_metadata().map(|(name, text)| (name.to_owned(), text.into())));
        }
        bits.push(("random".into(), format!("{:?}", self.model.named_random_states()).into_bytes()));
        bits
    }
}

fn trainer() -> Trainer {
    Trainer::new(4).unwrap().schedule(Schedule::cosine(24, 0.1).unwrap().after_warmup(3))
}

/// The run without the time that it took.
fn untimed(mut run: Run) -> Run {
    run.seconds = 0.0;
    run.epochs.iter_mut().for_each(|e| e.seconds = 0.0);
    run
}

/// Fails after `steps` steps, counted over all runs that share the counter.
fn fails_after(steps: u64) -> impl FnMut(Event<'_>) -> Result<()> {
    let mut done = 0;
    move |event: Event<'_>| {
        done += u64::from(matches!(event, Event::Step(_)));
        if done == steps { Err(Error::argument("logger", "enough")) } else { Ok(()) }
    }
}

#[test]
fn a_run_that_failed_goes_on_to_the_same_bits_wherever_it_failed() {
    let mut whole = training(5, 7);
    let want = untimed(whole.fit(&trainer(), &mut []).unwrap());
    assert_eq!(want.steps, 24);
    for (every, steps) in [(1, 1), (1, 5), (1, 6), (1, 7), (2, 3), (3, 12), (5, 23), (4, 24), (100, 9)] {
        let dir = tempfile::tempdir().unwrap();
        let saving = trainer().resume(dir.path()).save_every(every).unwrap();
        assert!(training(5, 7).fit(&saving, &mut [&mut fails_after(steps)]).is_err());
        let mut second = training(99, 7);
        let mut resumed = None;
        let mut listen = |event: Event<'_>| {
            if let Event::Resumed { step, epoch, .. } = event {
                resumed = Some((step, epoch));
            }
            Ok(())
        };
        let run = second.fit(&saving, &mut [&mut listen]);
        // The step that fails is not saved.
        let done = steps - 1;
        if done < every.min(6) {
            // Nothing was saved, and the second run began with other weights.
            assert_eq!(resumed, None, "every {every}, {steps} steps");
            continue;
        }
        // Which steps are saved depends on the disk.
        assert!(resumed.is_some_and(|(step, _)| (1..=done).contains(&step)), "{resumed:?}");
        assert_eq!(untimed(run.unwrap()), want, "every {every}, {steps} steps");
        assert_eq!(second.bits(), whole.bits(), "every {every}, {steps} steps");
        // A run that is over does nothing when it is resumed.
        let mut third = training(7, 7);
        assert_eq!(untimed(third.fit(&saving, &mut []).unwrap()), want);
        assert_eq!(third.bits(), whole.bits());
    }
}

#[test]
fn checkpoints_by_time_need_neither_a_number_of_steps_nor_the_end_of_an_epoch() {
    let mut whole = training(5, 7);
    let want = untimed(whole.fit(&trainer(), &mut []).unwrap());
    for (interval, saves) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
        let dir = tempfile::tempdir().unwrap();
        let saving = trainer().resume(dir.path()).save_interval(interval).save_epochs(false);
        assert!(training(5, 7).fit(&saving, &mut [&mut fails_after(15)]).is_err());
        let mut resumed = false;
        let mut second = training(if saves { 99 } else { 5 }, 7);
        let mut listen = |event: Event<'_>| {
            resumed |= matches!(event, Event::Resumed { .. });
            Ok(())
        };
        let run = second.fit(&saving, &mut [&mut listen]).unwrap();
        assert_eq!((resumed, untimed(run)), (saves, want.clone()), "{interval:?}");
        assert_eq!(second.bits(), whole.bits());
        // The end of the run is saved in any case.
        let mut third = training(7, 7);
        assert_eq!(untimed(third.fit(&saving, &mut [&mut fails_after(1)]).unwrap()), want);
    }
    // A run that is stopped is saved as well, in the middle of an epoch and at its end.
    for stop_at in [9, 12] {
        let dir = tempfile::tempdir().unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        let saving = trainer().resume(dir.path()).save_epochs(false).stop_when(flag.clone());
        let mut steps = 0;
        let mut stop = |event: Event<'_>| {
            steps += u64::from(matches!(event, Event::Step(_)));
            flag.store(steps == stop_at, Ordering::Relaxed);
            Ok(())
        };
        let run = fit_without_validation(&mut training(5, 7), &saving, &mut stop).unwrap();
        assert_eq!((run.stopped, run.steps), (true, stop_at));
        flag.store(false, Ordering::Relaxed);
        let mut second = training(99, 7);
        let run = fit_without_validation(&mut second, &saving, &mut |_: Event<'_>| Ok(())).unwrap();
        assert_eq!((run.stopped, run.steps), (false, 24));
        assert_eq!(second.bits(), whole.bits());
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_and_its_table_has_all_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = training(5, 7);
    let want = untimed(whole.fit(&trainer(), &mut []).unwrap());
    let (flag, table) = (Arc::new(AtomicBool::new(false)), dir.path().join("metrics.csv"));
    let folder = dir.path().join("checkpoints");
    let trainer = trainer().resume(&folder).stop_when(flag.clone());
    for (at, steps, epochs) in [((2, 3), 9, 2), ((3, 6), 18, 3), ((9, 9), 24, 4)] {
        flag.store(false, Ordering::Relaxed);
        let mut stop = |event: Event<'_>| {
            if let Event::Step(step) = event
                && (step.epoch, step.step) == at
            {
                flag.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        // Only the first run begins; the others take their weights from the checkpoint.
        let mut second = training(if steps == 9 { 5 } else { steps }, 7);
        let run = second.fit(&trainer, &mut [&mut stop, &mut CsvLogger::new(&table)]).unwrap();
        assert_eq!((run.steps, run.epochs.len(), run.stopped), (steps, epochs, steps < 24));
        let rows = std::fs::read_to_string(&table).unwrap();
        assert_eq!(rows.lines().count(), epochs + 1, "{rows}");
        if steps == 24 {
            assert_eq!((untimed(run), second.bits()), (want.clone(), whole.bits()));
        }
    }
}

#[test]
fn other_settings_are_an_error_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let saving = trainer().checkpoints(dir.path()).config("seed", 5);
    training(5, 7).fit(&saving, &mut []).unwrap();
    let fails = |trainer: &Trainer, batch_size: usize| {
        let mut training = training(5, batch_size);
        let before = training.bits();
        let e = training.fit(trainer, &mut []).unwrap_err().to_string();
        assert_eq!(training.bits(), before);
        e
    };
    let e = fails(&saving, 7);
    assert!(e.contains("has checkpoints of another run already") && e.contains("resume"), "{e}");
    let e = fails(&trainer().resume(dir.path()).config("seed", 6), 8);
    for text in ["batch_size was 7 and is 8 now", "batches was 6 and is 5 now", "seed was 5 and is 6 now"] {
        assert!(e.contains(text), "{e}");
    }
    let mut other = training(5, 7);
    let device = other.loader.device().clone();
    let data = TensorDataset::new(
        Tensor::zeros([40, 3], DType::F32, &device).unwrap(),
        Tensor::zeros([40], DType::I64, &device).unwrap(),
    );
    other.loader = DataLoader::new(data.unwrap(), &device).batch_size(7).shuffle(4).drop_last(true).build().unwrap();
    let e = other.fit(&trainer().resume(dir.path()).config("seed", 5), &mut []).unwrap_err().to_string();
    for text in ["shuffle_seed was 3 and is 4 now", "drop_last was false and is true now"] {
        assert!(e.contains(text), "{e}");
    }
    other.loader = DataLoader::new(other.loader.dataset().clone(), &device).batch_size(7).build().unwrap();
    let e = other.fit(&trainer().resume(dir.path()).config("seed", 5), &mut []).unwrap_err().to_string();
    assert!(e.contains("sampler was Shuffled and is Sequential now"), "{e}");
    let other = Trainer::new(4).unwrap().accumulate(2).unwrap().resume(dir.path());
    let e = fails(&other, 7);
    for text in ["accumulate was 1 and is 2 now", "schedule was", "seed was 5 and is not set now"] {
        assert!(e.contains(text), "{e}");
    }
}

#[test]
fn a_state_of_the_user_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let with_counter = |counter: Rc<Cell<u64>>| {
        let (read, put) = (counter.clone(), counter);
        trainer().resume(dir.path()).save_every(1).unwrap().state(
            "counter",
            move || {
                let mut state = StateDict::new();
                state.set_metadata("count", read.get().to_string());
                Ok(state)
            },
            move |state| {
                put.set(state.metadata("count").and_then(|text| text.parse().ok()).unwrap_or(0));
                Ok(())
            },
        )
    };
    let first = Rc::new(Cell::new(0));
    let counted = first.clone();
    let mut count = |event: Event<'_>| {
        counted.set(counted.get() + u64::from(matches!(event, Event::Step(_))));
        if counted.get() == 10 { Err(Error::argument("logger", "enough")) } else { Ok(()) }
    };
    assert!(training(5, 7).fit(&with_counter(first), &mut [&mut count]).is_err());
    let second = Rc::new(Cell::new(0));
    let counted = second.clone();
    let mut count = |event: Event<'_>| {
        counted.set(counted.get() + u64::from(matches!(event, Event::Step(_))));
        Ok(())
    };
    training(5, 7).fit(&with_counter(second.clone()), &mut [&mut count]).unwrap();
    assert_eq!(second.get(), 24);
    // Without the state, the run still resumes; with a state that was not saved, it does not.
    let e =
        training(5, 7).fit(&trainer().resume(dir.path()).state("ema", || Ok(StateDict::new()), |_| Ok(())), &mut []);
    assert!(e.unwrap_err().to_string().contains("the checkpoint has no state \"ema\""));
}

#[test]
fn early_stopping_counts_on_after_a_break() {
    let rule = EarlyStopping { patience: 2, min_delta: 10.0 };
    let stopping = || Trainer::new(50).unwrap().early_stopping(rule);
    let run = training(5, 7).fit(&stopping(), &mut []).unwrap();
    assert_eq!((run.epochs.len(), run.stopped_early, run.stopped), (3, true, false));
    let dir = tempfile::tempdir().unwrap();
    let saving = stopping().resume(dir.path()).save_every(1).unwrap();
    assert!(training(5, 7).fit(&saving, &mut [&mut fails_after(14)]).is_err());
    let again = training(5, 7).fit(&saving, &mut []).unwrap();
    assert_eq!(untimed(again), untimed(run));
}

/// A dataset whose batch number `bad` (of 6) has a NaN.
fn with_nan(bad: usize) -> Training {
    let mut t = training(5, 7);
    let device = t.loader.device().clone();
    let mut rng = Generator::new(1);
    let mut x = Tensor::randn([40, 3], DType::F32, &device, &mut rng).unwrap().to_vec::<f32>().unwrap();
    x[bad * 21] = f32::NAN;
    let x = Tensor::from_vec(x, [40, 3], &device).unwrap();
    let y = Tensor::zeros([40], DType::I64, &device).unwrap();
    t.loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), &device).batch_size(7).build().unwrap();
    t
}

fn fit_without_validation(t: &mut Training, trainer: &Trainer, logger: &mut dyn Logger) -> Result<Run> {
    let Training { model, optimizer, loader } = t;
    trainer.fit(model, optimizer, loader, None, &Classification::default(), &mut [logger])
}

#[test]
fn an_error_about_a_number_that_is_not_finite_names_the_operation_and_the_sample() {
    let e = fit_without_validation(&mut with_nan(2), &trainer(), &mut |_: Event<'_>| Ok(())).unwrap_err().to_string();
    for text in [
        "the loss is NaN in epoch 1, step 3",
        "first operation",
        "linear",
        "in the layer 0 (Linear)",
        "sample 0 of the batch",
    ] {
        assert!(e.to_lowercase().contains(&text.to_lowercase()), "{text} in: {e}");
    }
}

#[test]
fn steps_that_are_not_finite_are_skipped_or_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let skipping = trainer().on_non_finite(OnNonFinite::Skip);
    let mut skipped = Vec::new();
    let mut listen = |event: Event<'_>| {
        if let Event::Skipped { epoch, step, value } = event {
            skipped.push((epoch, step, value.is_nan()));
        }
        Ok(())
    };
    let mut t = with_nan(2);
    let run = fit_without_validation(&mut t, &skipping, &mut listen).unwrap();
    assert_eq!((run.steps, run.skipped, run.epochs[0].steps), (20, 4, 5));
    assert_eq!(skipped, [(1, 3, true), (2, 3, true), (3, 3, true), (4, 3, true)]);
    assert!(t.bits().iter().all(|(_, bytes)| !bytes.is_empty()));
    assert!(t.model.parameters()[0].to_vec::<f32>().unwrap().iter().all(|x| x.is_finite()));

    // Rolling back forgets the steps since the checkpoint: of the first two of an epoch nothing is left.
    let e =
        fit_without_validation(&mut with_nan(2), &trainer().on_non_finite(OnNonFinite::RollBack), &mut |_: Event<
            '_,
        >| {
            Ok(())
        });
    assert!(e.unwrap_err().to_string().contains("needs checkpoints"));
    let rolling = trainer().on_non_finite(OnNonFinite::RollBack).resume(dir.path());
    let (mut rolled, mut at_start, mut seen) = (with_nan(2), Vec::new(), Vec::new());
    let start = rolled.bits();
    let parameters = rolled.model.parameters();
    let mut listen = |event: Event<'_>| {
        match event {
            Event::EpochStart { .. } => at_start = parameters[0].to_bytes()?,
            Event::Skipped { .. } => seen.push(parameters[0].to_bytes()? == at_start),
            _ => {}
        }
        Ok(())
    };
    let run = fit_without_validation(&mut rolled, &rolling, &mut listen).unwrap();
    assert_eq!((seen, run.skipped), (vec![true; 4], 4));
    assert_ne!(rolled.bits(), start);
    // A run that fails and resumes rolls back to the same states.
    let other = tempfile::tempdir().unwrap();
    let rolling = trainer().on_non_finite(OnNonFinite::RollBack).resume(other.path());
    assert!(fit_without_validation(&mut with_nan(2), &rolling, &mut fails_after(8)).is_err());
    let mut again = with_nan(2);
    let resumed = fit_without_validation(&mut again, &rolling, &mut |_: Event<'_>| Ok(())).unwrap();
    assert_eq!((untimed(resumed), again.bits()), (untimed(run), rolled.bits()));
}

#[test]
fn ten_skipped_steps_in_a_row_are_an_error() {
    let mut t = with_nan(2);
    let device = t.loader.device().clone();
    let x = Tensor::full([100, 3], f64::NAN, DType::F32, &device).unwrap();
    let y = Tensor::zeros([100], DType::I64, &device).unwrap();
    t.loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), &device).batch_size(2).build().unwrap();
    let before = t.bits();
    let skipping = trainer().on_non_finite(OnNonFinite::Skip);
    let e = fit_without_validation(&mut t, &skipping, &mut |_: Event<'_>| Ok(())).unwrap_err().to_string();
    assert!(e.contains("10 in a row"), "{e}");
    assert_eq!(t.bits(), before);
}
