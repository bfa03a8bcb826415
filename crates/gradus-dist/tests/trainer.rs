//! A `Trainer` whose steps several ranks share: the same bits for any number of them, and one end for all.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, Dataset, TensorDataset};
use gradus_dist::{Communicator, DataParallel, FullyShardedDataParallel, Options, threads};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Dropout, Flatten, Init, Linear, Module, NonFinite, Optimizer,
    Parameter, Relu, Schedule, Sequential, Sgd, SgdConfig,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};
use gradus_train::{Classification, Event, Logger, LrRange, OnNonFinite, Ranks, Run, Trainer, Validation};

const CLASSES: usize = 3;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// A network with running statistics and random numbers.
fn network(device: &Device, seed: u64) -> Result<Sequential> {
    let mut rng = Generator::new(seed);
    let norm = BatchNorm1d::new(4, BatchNormConfig::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let dropout = Dropout::new(0.3, &mut rng)?;
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (first, second) = (Linear::new(12, 8, &mut init)?, Linear::new(8, CLASSES, &mut init)?);
    Ok(Sequential::new().add(norm).add(Flatten::default()).add(first).add(Relu).add(dropout).add(second))
}

/// Samples of three classes: 100, so that the last batch of 32 has 4 and leaves shards empty.
fn points(device: &Device) -> Result<TensorDataset> {
    let x = Tensor::randn([100, 4, 3], DType::F32, device, &mut Generator::new(3))?;
    TensorDataset::new(x.clone(), x.narrow(1, 0, CLASSES)?.select(2, 0)?.argmax(1, false)?.to_dtype(DType::I64)?)
}

/// Passes samples on, and fails at one of them.
struct Failing {
    inner: TensorDataset,
    at: Option<usize>,
}

impl Dataset for Failing {
    type Item = <TensorDataset as Dataset>::Item;

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn get(&self, index: usize) -> Result<Self::Item> {
        if self.at == Some(index) {
            return Err(Error::argument("failing", "this sample cannot be read"));
        }
        self.inner.get(index)
    }
}

/// The ranks, with divided parameters or with whole ones.
fn ranks(comm: &Arc<dyn Communicator>, shards: bool) -> Result<Arc<dyn Ranks>> {
    let parallel = DataParallel::new(comm.clone())?.bucket_bytes(64);
    Ok(if shards { Arc::new(FullyShardedDataParallel::new(parallel)?) } else { Arc::new(parallel) })
}

/// What a rank did.
struct Rank<'a> {
    comm: &'a Arc<dyn Communicator>,
    seed: u64,
    failing: Option<usize>,
    shards: bool,
    loggers: &'a mut [&'a mut dyn Logger],
}

impl Rank<'_> {
    /// Trains with this trainer, and returns the bytes of the state with the report.
    fn fit(self, trainer: &Trainer) -> Result<(Vec<u8>, Run)> {
        let device = device()?;
        let train = Failing { inner: points(&device)?, at: self.failing };
        let train = DataLoader::new(train, &device).batch_size(32).shuffle(5).workers(1).build()?;
        let validation = DataLoader::new(points(&device)?, &device).batch_size(16).build()?;
        let mut model = network(&device, self.seed)?;
        let config = AdamConfig { lr: 0.05, ..AdamConfig::default() };
        let mut optimizer = AdamW::new(model.named_parameters(), config)?;
        let trainer = trainer.clone().ranks(ranks(self.comm, self.shards)?);
        let task = Classification::default();
        let mut run = trainer.fit(&mut model, &mut optimizer, &train, Some(&validation), &task, self.loggers)?;
        // Ranks do not take the same time.
        run.seconds = 0.0;
        run.epochs.iter_mut().for_each(|epoch| epoch.seconds = 0.0);
        let state = model.state_dict()?;
        Ok((state.iter().map(|(_, tensor)| tensor.to_bytes()).collect::<Result<Vec<_>>>()?.concat(), run))
    }
}

fn trainer() -> Result<Trainer> {
    Ok(Trainer::new(3)?.schedule(Schedule::cosine(12, 0.1)?).clip_norm(1.0)?.log_grad_norm())
}

/// The state after training on so many ranks, which begin with different weights. Those of rank 0 count.
fn trained(ranks: usize, trainer: impl Fn(usize) -> Result<Trainer> + Sync) -> Result<(Vec<u8>, Run)> {
    trained_on(ranks, false, trainer)
}

/// [`trained`], with divided parameters or with whole ones.
fn trained_on(ranks: usize, shards: bool, trainer: impl Fn(usize) -> Result<Trainer> + Sync) -> Result<(Vec<u8>, Run)> {
    let mut all = threads(ranks, Options::default(), |comm| {
        let seed = 1 + comm.rank() as u64;
        Rank { comm, seed, failing: None, shards, loggers: &mut [] }.fit(&trainer(comm.rank())?)
    })?;
    let first = all.swap_remove(0);
    assert!(all.iter().all(|other| other.0 == first.0 && other.1 == first.1), "ranks differ");
    Ok(first)
}

#[test]
fn any_number_of_ranks_gives_the_same_bits_and_numbers() {
    let (state, run) = trained(1, |_| trainer()).unwrap();
    assert_eq!((run.steps, run.samples, run.epochs.len()), (12, 300, 3));
    let last = run.epochs.last().unwrap();
    assert!(last.accuracy > Some(0.4) && last.loss < run.epochs[0].loss, "{last:?}");
    assert_eq!(last.validation.unwrap().samples, 100);
    for ranks in [2, 4, 16] {
        let other = trained(ranks, |_| trainer()).unwrap();
        assert!(other.0 == state, "{ranks} ranks");
        assert_eq!(other.1, run);
    }
}

#[test]
fn divided_parameters_give_the_same_bits_and_numbers() {
    let (state, run) = trained(1, |_| trainer()).unwrap();
    for ranks in [1, 2, 4, 16] {
        let other = trained_on(ranks, true, |_| trainer()).unwrap();
        assert!(other.0 == state, "{ranks} ranks");
        assert_eq!(other.1, run);
    }
}

/// Trains one layer on two ranks, and evaluates it after that. Returns its weights and the mean loss.
fn layer(dtype: DType, shards: bool, trainer: impl Fn() -> Result<Trainer> + Sync) -> (Vec<u8>, f64) {
    let mut all = threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(3);
        let x = Tensor::randn([64, 6], dtype, &device, &mut rng)?;
        let y = x.narrow(1, 0, CLASSES)?.argmax(1, false)?.to_dtype(DType::I64)?;
        let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).build()?;
        let mut model = Linear::new(6, CLASSES, &mut Init::new(dtype, &device, &mut rng))?;
        let config = SgdConfig { lr: 0.02, ..SgdConfig::default() };
        let mut optimizer = Sgd::new(model.named_parameters(), config)?;
        let (ranks, task) = (ranks(comm, shards)?, Classification::default());
        let trainer = trainer()?.ranks(ranks.clone());
        trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut [])?;
        let after = loader.evaluate(&mut model, &task, None, Some(&*ranks))?;
        Ok(([model.weight.to_bytes()?, model.bias.as_ref().unwrap().to_bytes()?].concat(), after.loss))
    })
    .unwrap();
    all.swap_remove(0)
}

#[test]
fn divided_parameters_in_half_precision_keep_small_updates() {
    let trainer = || Trainer::new(4);
    assert!(layer(DType::BF16, true, trainer) == layer(DType::BF16, false, trainer));
}

#[test]
fn gradients_whose_values_are_clamped_are_clipped_by_their_norm_after_that() {
    let trainer = || Trainer::new(2)?.clip_value(0.02)?.clip_norm(0.03);
    assert!(layer(DType::F32, true, trainer) == layer(DType::F32, false, trainer));
    assert!(layer(DType::F32, true, trainer) != layer(DType::F32, true, || Trainer::new(2)?.clip_norm(0.03)));
}

/// Unfreezes a parameter after the first step.
struct Unfreezing(Parameter);

impl Logger for Unfreezing {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        if let Event::Step(_) = event {
            self.0.unfreeze();
        }
        Ok(())
    }
}

#[test]
fn parameters_unfrozen_while_the_others_are_divided_are_an_error() {
    let outcomes = threads(2, Options::default(), |comm| {
        let device = device()?;
        let loader = DataLoader::new(points(&device)?, &device).batch_size(32).build()?;
        let mut model = network(&device, 1)?;
        let first = model.parameters().remove(0);
        first.freeze();
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
        let trainer = Trainer::new(1)?.ranks(ranks(comm, true)?);
        let (task, mut logger) = (Classification::default(), Unfreezing(first));
        Ok(trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut [&mut logger]).unwrap_err())
    });
    for e in outcomes.unwrap() {
        assert!(e.message().contains("6 parameters that are trained"), "{e}");
        assert!(e.to_string().contains("before Trainer::fit"), "{e}");
    }
}

#[test]
fn optimisers_that_cannot_be_divided_are_refused_and_nothing_changes() {
    #[derive(Module)]
    struct Outer {
        weight: Parameter,
        inner: Linear,
    }
    #[derive(Module)]
    struct Halves(Vec<Parameter>);
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let ranks = ranks(comm, true)?;
        let inner = Linear::without_bias(3, 3, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
        let model = Outer { weight: Parameter::new(Tensor::zeros([3, 3], DType::F32, &device)?)?, inner };
        // Its only parameter has the name that another one has in the model.
        let mut optimizer = AdamW::new(model.inner.named_parameters(), AdamConfig::default())?;
        let e = ranks.divide(model.named_parameters(), &mut optimizer).unwrap_err();
        assert!(e.message().contains("the name weight for another parameter"), "{e}");
        assert!(e.message().contains("inner.weight") && optimizer.parameters()[0].is_same(&model.inner.weight), "{e}");
        // Each rank would look at its part of the gradients alone.
        for policy in [NonFinite::Skip, NonFinite::Error] {
            let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?.non_finite(policy);
            let e = ranks.divide(model.named_parameters(), &mut optimizer).unwrap_err();
            assert!(*e.kind() == ErrorKind::Unsupported && e.message().contains("NonFinite::"), "{e}");
        }
        let both = Tensor::zeros([2, 3], DType::F32, &device)?;
        let model = Halves(vec![Parameter::new(both.narrow(0, 0, 1)?)?, Parameter::new(both.narrow(0, 1, 1)?)?]);
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
        let e = ranks.divide(model.named_parameters(), &mut optimizer).unwrap_err();
        assert!(e.message().contains("shares its memory"), "{e}");
        assert!(optimizer.parameters()[0].is_same(&model.0[0]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn steps_of_several_batches_are_shared_too() {
    let accumulating = |_| trainer()?.accumulate(3);
    let one = trained(1, accumulating).unwrap();
    assert_eq!(one.1.steps, 6);
    assert!(trained(4, accumulating).unwrap().0 == one.0);
    assert!(trained_on(4, true, accumulating).unwrap().0 == one.0);
    assert!(trained(1, |_| trainer()).unwrap().0 != one.0);
}

/// Ends the run after so many steps.
struct StopAfter(u64, Arc<AtomicBool>);

impl Logger for StopAfter {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        if let Event::Step(_) = event {
            self.0 = self.0.saturating_sub(1);
            self.1.store(self.0 == 0, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Trains on `ranks` ranks with checkpoints; the last rank is told to stop after some steps, if at all.
fn with_checkpoints(folder: &Path, ranks: usize, shards: bool, stop: Option<u64>) -> (Vec<u8>, Run) {
    let mut all = threads(ranks, Options::default(), |comm| {
        let flag = Arc::new(AtomicBool::new(false));
        let mut trainer = trainer()?.stop_when(flag.clone());
        if comm.rank() == 0 {
            trainer = trainer.resume(folder);
        }
        let last = comm.rank() + 1 == comm.size();
        let mut stopping = StopAfter(stop.filter(|_| last).unwrap_or(u64::MAX), flag);
        Rank { comm, seed: 1, failing: None, shards, loggers: &mut [&mut stopping] }.fit(&trainer)
    })
    .unwrap();
    assert!(all.iter().all(|other| other.0 == all[0].0 && other.1.steps == all[0].1.steps));
    all.swap_remove(0)
}

#[test]
fn all_ranks_stop_after_the_next_step_and_another_number_goes_on_with_the_same_bits() {
    let whole = trained(1, |_| trainer()).unwrap();
    // What was saved with divided parameters goes on with whole ones, and the other way round.
    for first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        for (i, (stop, steps, ranks)) in [(Some(1), 2, 4), (Some(3), 6, 2), (None, 12, 8)].into_iter().enumerate() {
            let (state, run) = with_checkpoints(dir.path(), ranks, first != (i == 1), stop);
            assert_eq!((run.steps, run.stopped), (steps, stop.is_some()));
            assert_eq!(state == whole.0, stop.is_none());
        }
    }
}

#[test]
fn ranks_with_other_settings_are_an_error_on_all() {
    let data = |other: bool| Ok(trainer()?.config("data", if other { "b" } else { "a" }));
    let epochs = |other: bool| Trainer::new(if other { 2 } else { 3 });
    let different: [(&(dyn Fn(bool) -> Result<Trainer> + Sync), _); 2] =
        [(&data, "data was a and is b now"), (&epochs, "epochs was 3 and is 2 now")];
    for (trainer, difference) in different {
        let outcomes = threads(4, Options::default(), |comm| {
            let trainer = trainer(comm.rank() == 2)?;
            Ok(Rank { comm, seed: 1, failing: None, shards: false, loggers: &mut [] }.fit(&trainer).unwrap_err())
        });
        for (rank, e) in outcomes.unwrap().iter().enumerate() {
            let text = e.to_string();
            let said = if rank == 2 { difference } else { "rank 2: the settings of rank 0 differ" };
            assert!(text.contains(said), "rank {rank}: {text}");
            assert_eq!(*e.kind() == ErrorKind::Peer, rank != 2, "{text}");
        }
    }
}

#[test]
fn rolling_back_without_a_folder_is_named_by_all_ranks() {
    let outcomes = threads(2, Options::default(), |comm| {
        let trainer = trainer()?.on_non_finite(OnNonFinite::RollBack);
        Ok(Rank { comm, seed: 1, failing: None, shards: false, loggers: &mut [] }.fit(&trainer).unwrap_err())
    });
    let outcomes = outcomes.unwrap();
    assert!(outcomes[0].message().contains("rolling back needs checkpoints"), "{}", outcomes[0]);
    assert!(outcomes[1].message().contains("rank 0: rolling back needs checkpoints"), "{}", outcomes[1]);
}

#[test]
fn a_parameter_outside_the_model_is_an_error_on_all() {
    let outcomes = threads(2, Options::default(), |comm| {
        let device = device()?;
        let loader = DataLoader::new(points(&device)?, &device).batch_size(32).build()?;
        let (mut model, other) = (network(&device, 1)?, network(&device, 2)?);
        let all = [model.named_parameters(), other.named_parameters()].concat();
        let all = all.into_iter().enumerate().map(|(i, (name, p))| (format!("{i}.{name}"), p)).collect::<Vec<_>>();
        let mut optimizer = AdamW::new(all, AdamConfig::default())?;
        let trainer = Trainer::new(1)?.ranks(Arc::new(DataParallel::new(comm.clone())?));
        let task = Classification::default();
        Ok(trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut []).unwrap_err().to_string())
    });
    for text in outcomes.unwrap() {
        assert!(text.contains("the optimiser has a parameter that the model does not have"), "{text}");
    }
}

#[test]
fn a_rank_that_cannot_read_a_sample_is_an_error_on_all_at_once() {
    let options = Options { deadline: Duration::from_secs(30) };
    let begun = std::time::Instant::now();
    let e = threads(4, options, |comm| {
        // Each sample is read by one rank.
        Rank { comm, seed: 1, failing: Some(7), shards: false, loggers: &mut [] }.fit(&trainer()?)
    })
    .unwrap_err();
    assert!(e.to_string().contains("this sample cannot be read"), "{e}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_loss_that_is_not_finite_is_noticed_on_all_ranks() {
    let fit = |policy: OnNonFinite, shards: bool| {
        let dir = tempfile::tempdir().unwrap();
        threads(2, Options::default(), |comm| {
            let device = device()?;
            let mut x = vec![0.5f32; 64 * 4];
            x[3] = f32::NAN;
            let x = Tensor::from_vec(x, [64, 4], &device)?;
            let y = Tensor::zeros([64], DType::I64, &device)?;
            let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).build()?;
            let mut model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
            let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
            let mut trainer = Trainer::new(1)?.on_non_finite(policy).ranks(ranks(comm, shards)?);
            // The other rank saves nothing.
            if policy == OnNonFinite::RollBack && comm.rank() == 0 {
                trainer = trainer.checkpoints(dir.path());
            }
            let task = Classification::default();
            Ok(trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut []))
        })
        .unwrap()
    };
    for shards in [false, true] {
        for (rank, outcome) in fit(OnNonFinite::Error, shards).into_iter().enumerate() {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("the loss is NaN in epoch 1, step 1"), "{text}");
            // The rank that has the sample finds it.
            assert_eq!(text.contains("holds a value of NaN"), rank == 0, "{text}");
        }
        for policy in [OnNonFinite::Skip, OnNonFinite::RollBack] {
            for outcome in fit(policy, shards) {
                let run = outcome.unwrap();
                assert_eq!((run.steps, run.skipped), (1, 1));
            }
        }
    }
}

#[test]
fn short_trainings_are_shared() {
    let outcomes = threads(2, Options::default(), |comm| {
        let device = device()?;
        let loader = DataLoader::new(points(&device)?, &device).batch_size(32).build()?;
        let mut model = network(&device, 1)?;
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.02, ..AdamConfig::default() })?;
        let trainer = Trainer::new(1)?.ranks(Arc::new(DataParallel::new(comm.clone())?));
        let task = Classification::default();
        let found = trainer.find_lr(&mut model, &mut optimizer, &loader, &task, LrRange::default())?;
        Ok((found, trainer.overfit_batch(&mut model, &mut optimizer, &loader, &task, 20)?))
    })
    .unwrap();
    let (found, losses) = &outcomes[0];
    // They do not divide parameters.
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let loader = DataLoader::new(points(&device)?, &device).batch_size(32).build()?;
        let mut model = network(&device, 1)?;
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
        let trainer = Trainer::new(1)?.ranks(ranks(comm, true)?);
        let task = Classification::default();
        let e = trainer.overfit_batch(&mut model, &mut optimizer, &loader, &task, 20).unwrap_err();
        assert!(*e.kind() == ErrorKind::Unsupported && e.to_string().contains("take DataParallel"), "{e}");
        Ok(())
    })
    .unwrap();
    assert!(found.curve.len() > 20 && losses[19] < losses[0], "{losses:?}");
    assert_eq!(outcomes[0], outcomes[1]);
}
