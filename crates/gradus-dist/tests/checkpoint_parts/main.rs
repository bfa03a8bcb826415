//! Checkpoints of which each rank writes a part: what is in them, who reads them, and what failures leave behind.
#![allow(clippy::unwrap_used)]

mod damage;
mod stalled;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_dist::{Communicator, DataParallel, FullyShardedDataParallel, Options, threads};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Dropout, Init, Linear, Module, Relu, Sequential, StateDict,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};
use gradus_train::{Checkpoints, Classification, Disk, DiskFile, Event, Logger, Os, Ranks, Run, Trainer};

/// The steps of an epoch, and the epochs.
const STEPS: u64 = 3;
const EPOCHS: usize = 3;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// A network with running statistics, random numbers and sizes that no number of ranks divides.
fn network(device: &Device, seed: u64, width: usize) -> Result<Sequential> {
    let mut rng = Generator::new(seed);
    let norm = BatchNorm1d::new(5, BatchNormConfig::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let dropout = Dropout::new(0.3, &mut rng)?;
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (first, second) = (Linear::new(5, width, &mut init)?, Linear::new(width, 3, &mut init)?);
    Ok(Sequential::new().add(norm).add(first).add(Relu).add(dropout).add(second))
}

/// Ends the run after so many steps, and notes the largest memory in use at a step.
struct Watch<'a> {
    stop_after: u64,
    stop: Arc<AtomicBool>,
    device: Device,
    most: usize,
    rank: usize,
    on: &'a OnEvent<'a>,
}

/// What a rank does at an event.
type OnEvent<'a> = dyn Fn(usize, &Event<'_>, &Device) -> Result<()> + Sync + 'a;

impl Logger for Watch<'_> {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        (self.on)(self.rank, &event, &self.device)?;
        if let Event::Step(_) = event {
            self.stop_after = self.stop_after.saturating_sub(1);
            self.stop.store(self.stop_after == 0, Ordering::Relaxed);
            self.most = self.most.max(self.device.memory_stats().in_use);
        }
        Ok(())
    }
}

/// A training.
#[derive(Clone, Copy)]
struct Job<'a> {
    shards: bool,
    /// Stops after so many steps.
    stop: Option<u64>,
    width: usize,
    trainer: &'a (dyn Fn(Trainer, usize) -> Trainer + Sync),
    on: &'a OnEvent<'a>,
}

const JOB: Job<'static> =
    Job { shards: true, stop: None, width: 7, trainer: &|trainer, _| trainer, on: &|_, _, _| Ok(()) };

/// What a rank ends with.
struct Ended {
    model: Vec<u8>,
    run: Run,
    most: usize,
}

impl Job<'_> {
    fn rank(&self, comm: &Arc<dyn Communicator>) -> Result<Ended> {
        let device = device()?;
        let mut rng = Generator::new(3);
        let x = Tensor::randn([96, 5], DType::F32, &device, &mut rng)?;
        let y = x.narrow(1, 0, 3)?.argmax(1, false)?.to_dtype(DType::I64)?;
        let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).shuffle(5).build()?;
        let mut model = network(&device, 1 + comm.rank() as u64, self.width)?;
        // The second bias stays whole.
        model.named_parameters().iter().filter(|(name, _)| name == "4.bias").for_each(|(_, p)| p.freeze());
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.05, ..AdamConfig::default() })?;
        let parallel = DataParallel::new(comm.clone())?;
        let ranks: Arc<dyn Ranks> = match self.shards {
            true => Arc::new(FullyShardedDataParallel::new(parallel)?),
            false => Arc::new(parallel),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stop_after = self.stop.unwrap_or(u64::MAX);
        let (rank, device) = (comm.rank(), device.clone());
        let mut watch = Watch { stop_after, stop: stop.clone(), device, most: 0, rank, on: self.on };
        let trainer = (self.trainer)(Trainer::new(EPOCHS)?.ranks(ranks).stop_when(stop), comm.rank());
        let task = Classification::default();
        let run = trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut [&mut watch])?;
        let model = model.state_dict()?.iter().map(|(_, t)| t.to_bytes()).collect::<Result<Vec<_>>>()?.concat();
        Ok(Ended { model, run, most: watch.most })
    }

    /// Runs on so many ranks. Each rank's outcome is its own.
    fn outcomes(&self, ranks: usize) -> Vec<Result<Ended>> {
        threads(ranks, Options::default(), |comm| Ok(self.rank(comm))).unwrap()
    }

    fn model(&self, ranks: usize) -> Vec<u8> {
        self.outcomes(ranks).swap_remove(0).unwrap().model
    }

    /// Saves into a folder that rank 0 alone knows, or goes on from it.
    fn in_folder<R>(self, folder: &Path, f: impl FnOnce(Job<'_>) -> R) -> R {
        let trainer = |trainer: Trainer, rank: usize| {
            (self.trainer)(if rank == 0 { trainer.resume(folder) } else { trainer }, rank)
        };
        f(Job { trainer: &trainer, ..self })
    }
}

/// The names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn bytes(state: &StateDict) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    state.iter().map(|(name, t)| (name.to_owned(), (t.shape().to_vec(), t.to_bytes().unwrap()))).collect()
}

#[test]
fn parts_together_are_the_checkpoint_that_one_process_writes() {
    let device = device().unwrap();
    let saved = |ranks: usize, shards: bool| {
        let dir = tempfile::tempdir().unwrap();
        let job = Job { shards, stop: Some(4), ..JOB };
        job.in_folder(dir.path(), |job| job.outcomes(ranks).into_iter().for_each(|ended| drop(ended.unwrap())));
        let found = Checkpoints::open(dir.path()).unwrap().newest(&device).unwrap().unwrap();
        (names(dir.path()), found)
    };
    let (_, whole) = saved(1, false);
    for ranks in [1, 2, 4, 16] {
        let (files, found) = saved(ranks, true);
        let part =
            |number: usize| (0..ranks).map(move |r| format!("checkpoint-{number:06}.part-{r}-of-{ranks}.safetensors"));
        let mut expected: Vec<String> = (1..=2).flat_map(part).collect();
        expected.extend((1..=2).map(|number| format!("checkpoint-{number:06}.json")));
        expected.sort();
        assert_eq!(files, expected);
        assert_eq!((found.step, found.epoch, found.batch), (5, 2, 2));
        assert_eq!(bytes(&found.model), bytes(&whole.model), "{ranks} ranks");
        assert_eq!(bytes(&found.optimizer), bytes(&whole.optimizer), "{ranks} ranks");
        assert!(found.optimizer.iter_metadata().eq(whole.optimizer.iter_metadata()));
        let at = |found: &gradus_train::Checkpoint| {
            found.random.iter().map(|(n, g)| (n.clone(), g.seed(), g.offset())).collect::<Vec<_>>()
        };
        assert_eq!(at(&found), at(&whole));
        assert_eq!(found.config, whole.config);
    }
}

#[test]
fn any_number_of_ranks_goes_on_from_parts_with_and_without_dividing() {
    let whole = JOB.model(1);
    let dir = tempfile::tempdir().unwrap();
    // Each stops after a step or two, and the next has another number of ranks.
    let runs = [(4, true, Some(1)), (2, true, Some(1)), (1, false, Some(1)), (8, true, None)];
    for (ranks, shards, stop) in runs {
        let job = Job { shards, stop, ..JOB };
        let model = job.in_folder(dir.path(), |job| job.model(ranks));
        assert_eq!(model == whole, stop.is_none(), "{ranks} ranks");
    }
}

/// A disk that fails from a call on as if the process had been killed, becomes full, or puts files elsewhere.
#[derive(Debug, Default)]
struct Bad {
    calls: AtomicUsize,
    /// The number of the first call that fails.
    dies_at: Option<usize>,
    files: AtomicUsize,
    /// The number of the first file that it has no room for.
    full_from: Option<usize>,
    /// Where files appear in truth.
    elsewhere: Option<PathBuf>,
    /// Whether another run makes each file first.
    is_late: bool,
    /// The number of the first file that it takes a minute to make.
    stalls_from: Option<usize>,
}

impl Bad {
    fn call(&self) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if self.dies_at.is_some_and(|first| call >= first) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    fn place(&self, path: &Path) -> PathBuf {
        self.elsewhere.as_ref().map_or_else(|| path.to_owned(), |other| other.join(path.file_name().unwrap()))
    }
}

/// The contents of a file of another run.
const ANOTHER: &[u8] = b"of another run";

struct BadFile(Box<dyn DiskFile>, bool);

impl Write for BadFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1 { Err(io::ErrorKind::StorageFull.into()) } else { self.0.write(bytes) }
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl DiskFile for BadFile {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Disk for Bad {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.call()?;
        let file = self.files.fetch_add(1, Ordering::SeqCst);
        if self.stalls_from.is_some_and(|first| file >= first) {
            std::thread::sleep(Duration::from_secs(60));
        }
        let is_full = self.full_from.is_some_and(|first| file >= first);
        Ok(Box::new(BadFile(Os.create(&self.place(path))?, is_full)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        Os.rename(&self.place(from), &self.place(to))
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        if self.is_late {
            fs::write(to, ANOTHER)?;
        }
        Os.hard_link(&self.place(from), &self.place(to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        Os.remove(&self.place(path))
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        Os.sync_folder(path)
    }
}

/// Trains on `ranks` ranks where one has this disk.
fn with_disk(folder: &Path, ranks: usize, of: usize, disk: impl Fn() -> Bad + Sync) -> Vec<Result<Ended>> {
    let job =
        Job { trainer: &|trainer, rank| if rank == of { trainer.disk(Arc::new(disk())) } else { trainer }, ..JOB };
    job.in_folder(folder, |job| job.outcomes(ranks))
}

fn checkpoint(number: usize, ranks: usize) -> Vec<String> {
    let parts = (0..ranks).map(|r| format!("checkpoint-{number:06}.part-{r}-of-{ranks}.safetensors"));
    std::iter::once(format!("checkpoint-{number:06}.json")).chain(parts).collect()
}

#[test]
fn a_full_disk_of_one_rank_is_an_error_on_all_and_the_checkpoint_before_it_stays() {
    let whole = JOB.model(1);
    for of in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        // Of each checkpoint a rank writes its part, and rank 0 the manifest too.
        let full = || Bad { full_from: Some(if of == 0 { 2 } else { 1 }), ..Bad::default() };
        for (rank, outcome) in with_disk(dir.path(), 4, of, full).into_iter().enumerate() {
            let e = outcome.err().unwrap();
            let text = e.to_string();
            assert!(text.contains(&format!("checkpoint-000002.part-{of}-of-4.safetensors")), "{text}");
            assert!(text.contains("the checkpoint of step 6 is not saved; those before it are"), "{text}");
            if rank == of {
                assert!(*e.kind() == ErrorKind::Io && text.contains(&format!("this is rank {of} of 4")), "{text}");
            } else {
                assert!(*e.kind() == ErrorKind::Peer && text.contains(&format!("rank {of}: ")), "{text}");
            }
        }
        assert_eq!(names(dir.path()), checkpoint(1, 4));
        assert!(JOB.in_folder(dir.path(), |job| job.model(2)) == whole);
    }
}

#[test]
fn a_run_that_needs_no_checkpoints_goes_on_without_them_on_all_ranks() {
    let whole = JOB.model(1);
    let dir = tempfile::tempdir().unwrap();
    let trainer = |trainer: Trainer, rank: usize| match rank {
        0 => trainer.checkpoints_may_fail(),
        1 => trainer.disk(Arc::new(Bad { full_from: Some(0), ..Bad::default() })),
        _ => trainer,
    };
    let job = Job { trainer: &trainer, ..JOB };
    for ended in job.in_folder(dir.path(), |job| job.outcomes(4)) {
        let ended = ended.unwrap();
        assert!(ended.model == whole && ended.run.steps == STEPS * EPOCHS as u64);
    }
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_file_that_rank_0_does_not_see_is_an_error_on_all() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let elsewhere = || Bad { elsewhere: Some(other.path().to_owned()), ..Bad::default() };
    // The other ranks are told the path that rank 0 was given: on their machine a link may lead elsewhere.
    let folder = dir.path().join("link");
    fs::create_dir(dir.path().join("folder")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(dir.path().join("folder"), &folder).unwrap();
    for outcome in with_disk(&folder, 2, 1, elsewhere) {
        let text = outcome.err().unwrap().to_string();
        assert!(text.contains(&format!("rank 1 has written {}", folder.display())), "{text}");
        assert!(text.contains("rank 0 does not see it there"), "{text}");
    }
    assert_eq!(names(&folder), Vec::<String>::new());
}

#[test]
fn a_rank_leaves_the_file_of_another_run() {
    let dir = tempfile::tempdir().unwrap();
    let trainer = |trainer: Trainer, rank: usize| match rank {
        1 => trainer.disk(Arc::new(Bad { is_late: true, ..Bad::default() })),
        _ => trainer,
    };
    // Rank 0 ends while both write, so that it removes nothing of rank 1.
    let steps = AtomicUsize::new(0);
    let on = |rank: usize, event: &Event<'_>, _: &Device| match event {
        Event::Step(_) if rank == 0 && steps.fetch_add(1, Ordering::SeqCst) == STEPS as usize => {
            Err(Error::argument("test", "rank 0 ends"))
        }
        _ => Ok(()),
    };
    let outcomes = Job { trainer: &trainer, on: &on, ..JOB }.in_folder(dir.path(), |job| job.outcomes(2));
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(names(dir.path()), checkpoint(1, 2)[2..]);
    assert_eq!(fs::read(dir.path().join(&names(dir.path())[0])).unwrap(), ANOTHER);
}

#[test]
fn too_little_memory_for_a_copy_on_one_rank_is_an_error_of_saving_on_all() {
    let whole = JOB.model(1);
    let on = |rank: usize, event: &Event<'_>, device: &Device| match event {
        Event::EpochEnd(report) if (rank, report.epoch) == (1, 1) => {
            device.backend().set_memory_budget(Some(device.memory_stats().in_use))
        }
        Event::Unsaved { .. } if rank == 1 => device.backend().set_memory_budget(None),
        _ => Ok(()),
    };
    let dir = tempfile::tempdir().unwrap();
    for (rank, outcome) in (Job { on: &on, ..JOB }).in_folder(dir.path(), |job| job.outcomes(2)).into_iter().enumerate()
    {
        let e = outcome.err().unwrap();
        match rank {
            0 => assert!(*e.kind() == ErrorKind::Peer && e.message().starts_with("rank 1: "), "{e}"),
            _ => assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}"),
        }
    }
    let may_fail = |trainer: Trainer, _: usize| trainer.checkpoints_may_fail();
    let job = Job { on: &on, trainer: &may_fail, ..JOB };
    for ended in job.in_folder(dir.path(), |job| job.outcomes(2)) {
        assert!(ended.unwrap().model == whole);
    }
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn a_rank_whose_disk_ends_at_any_call_leaves_a_whole_checkpoint() {
    let whole = JOB.model(1);
    for of in [0, 1] {
        let mut ends = 0;
        for call in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let dies = || Bad { dies_at: Some(call), ..Bad::default() };
            let outcomes = with_disk(dir.path(), 2, of, dies);
            // What is left is as after a kill: nothing could be removed.
            if outcomes.iter().all(Result::is_ok) {
                ends = call;
                break;
            }
            assert!(outcomes.iter().all(Result::is_err), "call {call} of rank {of}");
            if call % 5 == 0 {
                assert!(JOB.in_folder(dir.path(), |job| job.model(2)) == whole, "call {call} of rank {of}");
            }
            let left = Checkpoints::open(dir.path()).unwrap();
            let newest = left.newest(&device().unwrap()).unwrap();
            assert!(newest.is_none_or(|found| found.passed_over.is_empty()), "call {call} of rank {of}");
        }
        // Three checkpoints of at least four calls.
        assert!(ends >= 12, "{ends} calls of rank {of}");
    }
}

#[test]
fn another_model_than_that_of_the_parts_is_an_error_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    Job { stop: Some(4), ..JOB }.in_folder(dir.path(), |job| drop(job.model(2)));
    for outcome in (Job { width: 8, ..JOB }).in_folder(dir.path(), |job| job.outcomes(2)) {
        let e = outcome.err().unwrap();
        assert!(e.to_string().contains("1.bias has the shape [7] there and [8] in the model"), "{e}");
    }
}

/// Leaves a device hardly more memory than it uses.
struct Full(Device);

impl Logger for Full {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::EpochStart { .. } => self.0.backend().set_memory_budget(Some(self.0.memory_stats().in_use + 1000)),
            _ => Ok(()),
        }
    }
}

#[test]
fn out_of_memory_on_one_rank_is_an_error_on_all() {
    let outcomes = threads(2, Options::default(), |comm| {
        Ok((|| -> Result<()> {
            let device = device()?;
            let x = Tensor::ones([32, 64], DType::F32, &device)?;
            let y = Tensor::zeros([32], DType::I64, &device)?;
            let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).build()?;
            let mut model = Linear::new(64, 4096, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
            let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
            let ranks = FullyShardedDataParallel::new(DataParallel::new(comm.clone())?)?;
            let trainer = Trainer::new(1)?.ranks(Arc::new(ranks));
            let mut full = Full(device.clone());
            let mut loggers: Vec<&mut dyn Logger> = vec![&mut full];
            loggers.retain(|_| comm.rank() == 1);
            trainer.fit(&mut model, &mut optimizer, &loader, None, &Classification::default(), &mut loggers)?;
            Ok(())
        })())
    })
    .unwrap();
    let kinds: Vec<Error> = outcomes.into_iter().map(Result::unwrap_err).collect();
    assert!(*kinds[0].kind() == ErrorKind::Peer && kinds[0].to_string().contains("rank 1"), "{}", kinds[0]);
    assert!(matches!(kinds[1].kind(), ErrorKind::OutOfMemory { .. }), "{}", kinds[1]);
}

#[test]
fn rank_0_holds_no_copy_of_the_whole_state_for_its_checkpoints() {
    const WIDTH: usize = 60_000;
    let model = (5 * WIDTH + WIDTH + 3 * WIDTH) * 4;
    let most = |ranks: usize, folder: Option<&Path>| {
        let save = |trainer: Trainer, _: usize| trainer.save_every(1).unwrap();
        let job = Job { width: WIDTH, trainer: &save, ..JOB };
        let all = match folder {
            Some(folder) => job.in_folder(folder, |job| job.outcomes(ranks)),
            None => job.outcomes(ranks),
        };
        all.into_iter().map(|ended| ended.unwrap().most).collect::<Vec<_>>()
    };
    let dir = tempfile::tempdir().unwrap();
    let (without, with) = (most(4, None), most(4, Some(dir.path())));
    // A copy of its quarter of the weights and of two moments, while it is written.
    let quarter = 3 * model / 4;
    for (without, with) in without.iter().zip(&with) {
        assert!(*with <= without + quarter + quarter / 4, "{with} bytes, and {without} without checkpoints");
    }
}
