//! The checkpoints of a run.

use std::collections::{BTreeMap, BTreeSet};

use gradus_nn::{Module, Optimizer, StateDict};
use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

use super::options::{OnNonFinite, Trainer};
use super::progress::Progress;
use crate::checkpoint::check_state_name;
use crate::ranks::dividing;
use crate::{Checkpoint, Checkpoints, Run};

/// The checkpoints of a run, and the last good state.
pub(super) struct Saving {
    folder: Checkpoints,
    /// The last checkpoint, to roll back to. It shares its tensors with the checkpoint that is being written.
    pub(super) last: Checkpoint,
    /// The progress of the saved run, if this run resumes from it.
    pub(super) resumed: Option<(Progress, Run)>,
}

impl Trainer {
    /// All settings of the run. `loader` are those of the loader.
    pub(super) fn all_settings(&self, loader: &[(&str, String)]) -> BTreeMap<String, String> {
        let mut config = self.config.clone();
        config.extend(loader.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        config.insert("accumulate".into(), self.accumulate.to_string());
        config.insert("schedule".into(), format!("{:?}", self.schedule));
        config.insert("clip_norm".into(), format!("{:?}", self.clip_norm));
        config.insert("clip_value".into(), format!("{:?}", self.clip_value));
        config.insert("on_non_finite".into(), format!("{:?}", self.on_non_finite));
        config
    }

    /// Opens the folder, if this process saves. Restores its newest checkpoint, if the run resumes and there is one.
    /// `config` are the settings of the run.
    #[track_caller]
    pub(super) fn open<M: Module + ?Sized>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        config: &BTreeMap<String, String>,
    ) -> Result<Option<Saving>> {
        let Some(path) = self.folder.as_ref().filter(|_| self.saves() && !self.fast_dev_run) else { return Ok(None) };
        let folder = Checkpoints::open_on(self.disk.clone(), path)?.keep(self.keep);
        let found = folder.newest(device)?;
        let Some(found) = found else {
            let now = self.now(model, optimizer)?;
            let last = Checkpoint { config: config.clone(), ..now };
            return Ok(Some(Saving { folder, last, resumed: None }));
        };
        if !self.resumes {
            let m = format!("{} has checkpoints of another run already", path.display());
            return Err(Error::new(ErrorKind::Io, "trainer", m).help("go on with `resume`, or name another folder"));
        }
        let from = |e: Error| e.note(format!("checkpoints: {}", path.display()));
        // A checkpoint of another loop has none of a trainer's settings, which would be a long list.
        let progress = Progress::of(&found).map_err(from)?;
        found.check_config(config).map_err(from)?;
        let missing = self.states.iter().find(|own| !found.states.contains_key(&own.name));
        if let Some(own) = missing {
            let m = format!("the checkpoint has no state {:?}", own.name);
            return Err(from(Error::argument("trainer", m).help("set the same states as the run that was saved")));
        }
        found.restore(model, optimizer).map_err(from)?;
        for own in &self.states {
            if let Some(state) = found.states.get(&own.name) {
                (own.put)(state).map_err(from)?;
            }
        }
        Ok(Some(Saving { folder, last: found, resumed: Some(progress) }))
    }

    /// Errors if this process shall roll back to checkpoints and writes none.
    #[track_caller]
    pub(super) fn check_rolls_back(&self) -> Result<()> {
        if self.on_non_finite != OnNonFinite::RollBack || self.folder.is_some() || !self.saves() {
            return Ok(());
        }
        let e = Error::argument("trainer", "rolling back needs checkpoints to go back to");
        Err(e.help("name a folder with `checkpoints`"))
    }

    /// Errors if two states of the user have the same name, or one has a name that a checkpoint cannot have.
    #[track_caller]
    pub(super) fn check_states(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        self.states.iter().try_for_each(|own| match seen.insert(&own.name) {
            true => check_state_name("trainer", &own.name),
            false => Err(Error::argument("trainer", format!("two states are called {:?}", own.name))
                .help("give each state a name of its own")),
        })
    }

    /// A checkpoint of the current state.
    #[track_caller]
    pub(super) fn now<M: Module + ?Sized>(&self, model: &M, optimizer: &dyn Optimizer) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::of(model, optimizer)?;
        for own in &self.states {
            checkpoint.states.insert(own.name.clone(), (own.read)().here()?);
        }
        Ok(checkpoint)
    }

    /// Whether rank 0 wants to save now. Ranks that divide the parameters all take part.
    pub(super) fn agrees_to_save(&self, wanted: bool, saving: &Option<Saving>) -> Result<bool> {
        let mine = wanted && saving.is_some();
        let Some(ranks) = dividing(&self.ranks) else { return Ok(mine) };
        let mut count = [f64::from(u8::from(mine))];
        ranks.sum(&mut count)?;
        Ok(count[0] > 0.0)
    }

    /// Passes a checkpoint to the writing thread, if this process saves. Errors of ranks are not errors of saving.
    #[track_caller]
    pub(super) fn save<M: Module + ?Sized>(
        &self,
        saving: &mut Option<Saving>,
        model: &M,
        optimizer: &dyn Optimizer,
        progress: &Progress,
        run: &Run,
        best: bool,
    ) -> Result<Result<()>> {
        let whole = dividing(&self.ranks).map(|ranks| ranks.whole(optimizer, saving.is_some())).transpose()?;
        let Some(saving) = saving else { return Ok(Ok(())) };
        Ok(self.save_here(saving, (model, optimizer, whole), progress, run, best))
    }

    /// Passes a checkpoint to the writing thread. If there is a whole state, it takes the place of the optimiser's.
    #[track_caller]
    fn save_here<M: Module + ?Sized>(
        &self,
        saving: &mut Saving,
        (model, optimizer, whole): (&M, &dyn Optimizer, Option<StateDict>),
        progress: &Progress,
        run: &Run,
        best: bool,
    ) -> Result<()> {
        let mut checkpoint = self.now(model, optimizer)?;
        if let Some(whole) = whole {
            checkpoint.optimizer = whole;
        }
        progress.put_into(&mut checkpoint, run)?;
        checkpoint.best = best;
        checkpoint.config = saving.last.config.clone();
        saving.last = checkpoint.clone();
        saving.folder.save(checkpoint)
    }

    /// Restores the last good state.
    #[track_caller]
    pub(super) fn roll_back<M: Module + ?Sized>(
        &self,
        saving: &Saving,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
    ) -> Result<()> {
        saving.last.restore(model, optimizer)?;
        let own = self.states.iter().filter_map(|own| Some((own, saving.last.states.get(&own.name)?)));
        own.into_iter().try_for_each(|(own, state)| (own.put)(state)).here()
    }
}

impl Saving {
    /// Whether a checkpoint would slow the run down and may be skipped.
    pub(super) fn is_busy(&self) -> bool {
        self.folder.is_busy()
    }

    /// Waits until all checkpoints are written.
    #[track_caller]
    pub(super) fn finish(self) -> Result<()> {
        self.folder.wait()
    }

    /// The errors of damaged checkpoints that were skipped.
    pub(super) fn passed_over(&self) -> &[Error] {
        &self.last.passed_over
    }
}
