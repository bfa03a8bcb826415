//! [`Checkpoint`]: the state of a run between two steps.

use std::collections::BTreeMap;

use gradus_nn::{Module, Optimizer, RandomState, StateDict, Strict};
use gradus_tensor::{Error, Generator, Here, Result, no_grad_guard};

use crate::History;

const OP: &str = "checkpoint";

/// The largest number of differences that an error lists.
const MOST_LISTED: usize = 20;

/// The state of a run between two steps: from it, the run continues with the same bits as if it had not been
/// interrupted.
///
/// [`of`](Checkpoint::of) copies the model and the optimiser. The caller fills in the other fields: the position in the
/// data, generators, and any other state under names of your choice. [`Checkpoints`](crate::Checkpoints) writes
/// checkpoints to a folder, and reads them. [`restore`](Checkpoint::restore) puts everything back.
///
/// ```
/// # use gradus_cpu::CpuBackend; use std::sync::Arc; use gradus_tensor::{DType, Device, Error, Generator, Tensor};
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let dir = tempfile::tempdir().unwrap();
/// use gradus_nn::{AdamConfig, AdamW, Init, Linear, Module};
/// use gradus_train::{Checkpoint, Checkpoints};
///
/// let mut rng = Generator::new(0);
/// let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
/// let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
///
/// let folder = Checkpoints::open(dir.path())?;
/// let mut checkpoint = Checkpoint::of(&model, &optimizer)?;
/// checkpoint.step = 17;
/// checkpoint.generators.insert("noise".into(), rng.clone());
/// folder.save(checkpoint)?; // returns at once: a thread writes the files
/// folder.wait()?;
///
/// let Some(saved) = folder.newest(&device)? else { panic!("nothing was saved") };
/// saved.restore(&mut model, &mut optimizer)?;
/// assert_eq!((saved.step, saved.generators["noise"].offset()), (17, rng.offset()));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The number of completed steps, from which a [`Schedule`](gradus_nn::Schedule) continues.
    pub step: u64,
    /// The epoch, as passed to [`DataLoader::epoch`](gradus_data::DataLoader::epoch).
    pub epoch: u64,
    /// The number of completed batches of the epoch.
    pub batch: u64,
    /// Whether this is the best state so far. If so, it is kept until there is a better one.
    pub best: bool,
    /// The parameters and buffers of the model.
    pub model: StateDict,
    /// The state of the optimiser.
    pub optimizer: StateDict,
    /// The random numbers of layers, such as dropout, under the names that
    /// [`named_random_states`](Module::named_random_states) gives them.
    pub random: BTreeMap<String, Generator>,
    /// Generators of your own.
    pub generators: BTreeMap<String, Generator>,
    /// Any other state of your own, as tensors and texts: a loss scaler, running averages of the weights. The names have
    /// letters, digits, `_` and `-`.
    pub states: BTreeMap<String, StateDict>,
    /// Texts of your own.
    pub texts: BTreeMap<String, String>,
    /// The settings of the run, for [`check_config`](Checkpoint::check_config).
    pub config: BTreeMap<String, String>,
    /// The metrics of the run so far.
    pub history: History,
    /// An error for each newer checkpoint that could not be used, newest first. It says which file is damaged and how.
    /// [`Checkpoints::newest`](crate::Checkpoints::newest) fills this list; it is not saved.
    pub passed_over: Vec<Error>,
    /// The tensors of which this has some elements, as a vector, by their names in the file. Only what a rank writes has
    /// such.
    pub(crate) cuts: BTreeMap<String, Cut>,
}

/// Which elements of a tensor of this shape a vector has: those from `start` on, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) start: usize,
    pub(crate) shape: Vec<usize>,
}

impl Checkpoint {
    /// Copies the parameters, buffers and random numbers of a model and the state of an optimiser. Later steps do not
    /// change the copy.
    #[track_caller]
    pub fn of<M: Module + ?Sized>(model: &M, optimizer: &dyn Optimizer) -> Result<Checkpoint> {
        let random = model.named_random_states().into_iter().map(|(name, state)| (name, state.get()));
        Ok(Checkpoint {
            model: model.state_dict()?,
            optimizer: optimizer.state_dict()?,
            random: random.collect(),
            ..Checkpoint::default()
        })
    }

    /// Restores the state of a model and an optimiser, which must have been created in the same way as those of the
    /// checkpoint. Either all of it is restored or nothing, unless a device fails partway; the error then says so.
    ///
    /// # Errors
    /// Fails if the parameters, buffers, random states or the optimiser differ from those of the checkpoint. The error
    /// names them.
    #[track_caller]
    pub fn restore<M: Module + ?Sized>(&self, model: &mut M, optimizer: &mut dyn Optimizer) -> Result<()> {
        let note = |e: Error| e.note(format!("while going on from step {} of a checkpoint", self.step));
        let states = model.named_random_states();
        self.check_random(&states).map_err(note)?;
        let before = model.state_dict()?;
        model.load_state_dict(&self.model, Strict::Yes).map_err(note)?;
        if let Err(e) = optimizer.load_state_dict(&self.optimizer, Strict::Yes) {
            model.load_state_dict(&before, Strict::Yes)?;
            return Err(note(e));
        }
        for (name, state) in states {
            if let Some(generator) = self.random.get(&name) {
                state.set(generator.clone());
            }
        }
        Ok(())
    }

    /// Errors unless the checkpoint has the random numbers of these states and no others.
    #[track_caller]
    pub(crate) fn check_random(&self, states: &[(String, RandomState)]) -> Result<()> {
        let missing = states.iter().map(|(name, _)| name).filter(|name| !self.random.contains_key(*name));
        let missing = listed(missing.map(|name| format!("the checkpoint has no random state {name}")));
        let more = self.random.keys().filter(|name| !states.iter().any(|(known, _)| known == *name));
        let more = listed(more.map(|name| format!("the model has no random state {name}")));
        let Some(m) = [missing, more].into_iter().flatten().reduce(|a, b| format!("{a}; {b}")) else { return Ok(()) };
        Err(Error::argument(OP, m).help("make the model in the same way as the one that was saved"))
    }

    /// Errors if `now` has other settings than the checkpoint. The error lists each setting that differs with both
    /// values.
    ///
    /// ```
    /// let mut checkpoint = gradus_train::Checkpoint::default();
    /// checkpoint.config.insert("batch_size".into(), "32".into());
    /// let e = checkpoint.check_config(&[("batch_size".into(), "64".into())].into()).unwrap_err();
    /// assert!(e.to_string().contains("batch_size was 32 and is 64 now"));
    /// ```
    #[track_caller]
    pub fn check_config(&self, now: &BTreeMap<String, String>) -> Result<()> {
        let Some(differs) = self.differences(now) else { return Ok(()) };
        Err(Error::argument(OP, format!("the settings of the run that was saved differ: {differs}")).help(
            "use the settings of that run; to begin a run of other settings from its weights, load the model alone",
        ))
    }

    /// Each setting that differs, with both values.
    pub(crate) fn differences(&self, now: &BTreeMap<String, String>) -> Option<String> {
        let names: std::collections::BTreeSet<&String> = self.config.keys().chain(now.keys()).collect();
        let differs = names.into_iter().filter_map(|name| match (self.config.get(name), now.get(name)) {
            (a, b) if a == b => None,
            (Some(a), Some(b)) => Some(format!("{name} was {a} and is {b} now")),
            (Some(a), None) => Some(format!("{name} was {a} and is not set now")),
            (None, b) => Some(format!("{name} was not set and is {} now", b.map_or("", String::as_str))),
        });
        listed(differs)
    }

    /// Copies the tensors of the user's states, which may be written in place before a thread has saved them. Errors if
    /// the name of a state could not be read back.
    #[track_caller]
    pub(crate) fn detached(mut self) -> Result<Checkpoint> {
        let _guard = no_grad_guard();
        self.states.keys().try_for_each(|name| check_state_name(OP, name)).here()?;
        for state in self.states.values_mut() {
            let mut copy = StateDict::new();
            for (name, tensor) in state.iter() {
                copy.insert(name, tensor.copy().here()?);
            }
            for (name, text) in state.iter_metadata() {
                copy.set_metadata(name, text);
            }
            *state = copy;
        }
        Ok(self)
    }
}

/// Errors if a state with this name could not be distinguished from others in a file.
#[track_caller]
pub(crate) fn check_state_name(op: &'static str, name: &str) -> Result<()> {
    if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) {
        return Ok(());
    }
    let e = Error::argument(op, format!("a state is called {name:?}"));
    Err(e.help("the name of a state has letters, digits, _ and -"))
}

/// The items, separated by semicolons; `None` if there are none.
pub(crate) fn listed(items: impl Iterator<Item = String>) -> Option<String> {
    let mut items: Vec<String> = items.collect();
    let more = items.len().saturating_sub(MOST_LISTED);
    items.truncate(MOST_LISTED);
    if more > 0 {
        items.push(format!("and {more} more"));
    }
    (!items.is_empty()).then(|| items.join("; "))
}
