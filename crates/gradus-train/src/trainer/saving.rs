//! The checkpoints of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use gradus_nn::{Module, Optimizer};
use gradus_tensor::{Device, Error, ErrorKind, Here, Result};
use serde::{Deserialize, Serialize};

use super::options::{OnNonFinite, Trainer};
use super::parts::Parts;
use super::progress::Progress;
use super::{divided, resuming};
use crate::checkpoint::{Stored, check_state_name};
use crate::ranks::{Piece, Ranks, all_have, dividing};
use crate::{Checkpoint, Checkpoints, Run};

/// The checkpoints of a run.
pub(super) struct Saving {
    files: Files,
    /// The settings of the run.
    config: BTreeMap<String, String>,
    /// The last good state, if the run rolls back to it. It shares its tensors with the checkpoint that is being written.
    last: Option<Checkpoint>,
    /// The errors of damaged checkpoints that were skipped.
    passed_over: Vec<Error>,
    /// The progress of the saved run, if this run resumes from it.
    pub(super) resumed: Option<(Progress, Run)>,
    /// Whether the run goes on without checkpoints if one cannot be saved.
    pub(super) may_fail: bool,
}

/// Who writes checkpoints.
enum Files {
    /// This process.
    Whole(Checkpoints),
    /// All ranks, a part each.
    Parts(Box<Parts>),
    /// All ranks, which do not know the folder yet. This is the first, and goes on from the checkpoint of this number.
    First(Checkpoints, Option<u64>),
}

/// What rank 0 tells the others about its checkpoints.
#[derive(Serialize, Deserialize)]
struct Told {
    folder: String,
    /// The checkpoint to go on from.
    number: Option<u64>,
    may_fail: bool,
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

    /// Opens the folder, if this process saves. Restores its newest checkpoint, if the run resumes and there is one, unless
    /// parameters are divided: then all ranks look for it, and [`open_parts`](Trainer::open_parts) restores it. `config` are
    /// the settings of the run.
    #[track_caller]
    pub(super) fn open<M: Module + ?Sized>(
        &self,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        config: &BTreeMap<String, String>,
    ) -> Result<Option<Saving>> {
        let path = self.folder.as_ref().filter(|_| self.saves() && !self.fast_dev_run);
        let folder = path.map(|path| Ok(Checkpoints::open_on(self.disk.clone(), path)?.keep(self.keep))).transpose();
        let divides = dividing(&self.ranks);
        let (folder, found) = match divides {
            Some(ranks) => {
                let of_rank_0 = folder.as_ref().map(Option::as_ref).map_err(Clone::clone);
                let found = resuming::newest(ranks, of_rank_0, device)?;
                (folder?, found)
            }
            None => {
                let folder = folder?;
                let found = folder.as_ref().map(|folder| folder.newest(device)).transpose()?.flatten();
                (folder, found.map(|found| (0, found)))
            }
        };
        let (Some(path), Some(folder)) = (path, folder) else { return Ok(None) };
        let divides = divides.is_some();
        let (number, found) = found.unzip();
        let mut saving = Saving {
            files: if divides { Files::First(folder, number) } else { Files::Whole(folder) },
            config: config.clone(),
            last: None,
            passed_over: vec![],
            resumed: None,
            may_fail: self.checkpoints_may_fail,
        };
        let Some(mut found) = found else {
            if self.on_non_finite == OnNonFinite::RollBack && !divides {
                saving.last = Some(self.now(model, optimizer)?);
            }
            return Ok(Some(saving));
        };
        if !self.resumes {
            let m = format!("{} has checkpoints of another run already", path.display());
            return Err(Error::new(ErrorKind::Io, "trainer", m).help("go on with `resume`, or name another folder"));
        }
        let from = |e: Error| e.note(format!("checkpoints: {}", path.display()));
        // A checkpoint of another loop has none of a trainer's settings, which would be a long list.
        saving.resumed = Some(Progress::of(&found).map_err(from)?);
        found.check_config(config).map_err(from)?;
        let missing = self.states.iter().find(|own| !found.states.contains_key(&own.name));
        if let Some(own) = missing {
            let m = format!("the checkpoint has no state {:?}", own.name);
            return Err(from(Error::argument("trainer", m).help("set the same states as the run that was saved")));
        }
        saving.passed_over = std::mem::take(&mut found.passed_over);
        if !divides {
            found.restore(model, optimizer).map_err(from)?;
            self.put_states(&found).map_err(from)?;
            saving.last = Some(found).filter(|_| self.on_non_finite == OnNonFinite::RollBack);
        }
        Ok(Some(saving))
    }

    /// Opens the folder of rank 0 on all ranks, which have divided the parameters, and restores the checkpoint that rank 0
    /// found.
    #[track_caller]
    pub(super) fn open_parts<M: Module + ?Sized>(
        &self,
        ranks: &Arc<dyn Ranks>,
        saving: Option<Saving>,
        model: &M,
        optimizer: &mut dyn Optimizer,
        config: &BTreeMap<String, String>,
    ) -> Result<Option<Saving>> {
        let mut mine = saving;
        let told = mine.as_ref().map(Saving::told).transpose();
        let Some(told) = all_have(&**ranks, "trainer", told)??.into_iter().next().flatten() else { return Ok(None) };
        let (checkpoints, passed_over) = match mine.take() {
            Some(Saving { files: Files::First(checkpoints, _), passed_over, .. }) => (Some(checkpoints), passed_over),
            _ => (None, vec![]),
        };
        let pieces = ranks.pieces()?;
        if let Some(number) = told.number {
            let opened = device_of(model).and_then(|device| {
                let stored = Stored::open(Path::new(&told.folder), number, &device)?;
                let wanted = divided::wanted(&stored, &pieces, model)?;
                Ok((stored, device, wanted))
            });
            let found = resuming::beside(&**ranks, move || {
                let (stored, device, wanted) = opened?;
                stored.read(&device, wanted)
            })?;
            let restored = found.and_then(|found| {
                divided::restore(&found, &pieces, model, optimizer)?;
                self.put_states(&found)
            });
            let from = |e: Error| e.note(format!("checkpoints: {}", told.folder));
            all_have(&**ranks, "trainer", restored.map_err(from))??;
            ranks.stepped()?;
        }
        let rolls_back = self.on_non_finite == OnNonFinite::RollBack;
        let last = rolls_back.then(|| self.own_state(&pieces, model, optimizer)).transpose();
        all_have(&**ranks, "trainer", last.as_ref().map(drop).map_err(Clone::clone))??;
        let last = last?;
        let folder = told.folder.into();
        let parts = Parts::new(ranks.clone(), self.disk.clone(), folder, checkpoints, self.save_deadline);
        let files = Files::Parts(Box::new(parts));
        Ok(Some(Saving { files, config: config.clone(), last, passed_over, resumed: None, may_fail: told.may_fail }))
    }

    /// Restores the states of the user.
    #[track_caller]
    fn put_states(&self, found: &Checkpoint) -> Result<()> {
        let own = self.states.iter().filter_map(|own| Some((own, found.states.get(&own.name)?)));
        own.into_iter().try_for_each(|(own, state)| (own.put)(state)).here()
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
        self.with_states(Checkpoint::of(model, optimizer)?)
    }

    /// What this rank holds of the current state.
    #[track_caller]
    fn own_state<M: Module + ?Sized>(
        &self,
        pieces: &[Piece],
        model: &M,
        optimizer: &dyn Optimizer,
    ) -> Result<Checkpoint> {
        self.with_states(divided::own_state(pieces, model, optimizer)?)
    }

    #[track_caller]
    fn with_states(&self, mut checkpoint: Checkpoint) -> Result<Checkpoint> {
        for own in &self.states {
            checkpoint.states.insert(own.name.clone(), (own.read)().here()?);
        }
        Ok(checkpoint)
    }

    /// Saves a checkpoint if that is `wanted`: passes it to the writing thread. Where ranks divide the parameters, all call
    /// it after each step, and rank 0 decides. The inner result is whether there was one to save, or an error of saving;
    /// errors of ranks are not such.
    #[track_caller]
    pub(super) fn save_if<M: Module + ?Sized>(
        &self,
        wanted: bool,
        saving: &mut Option<Saving>,
        (model, optimizer): (&M, &dyn Optimizer),
        (progress, run): (&Progress, &Run),
        best: bool,
    ) -> Result<Result<bool>> {
        let Some(saving) = saving else { return Ok(Ok(false)) };
        let agreed = match &mut saving.files {
            Files::Parts(parts) => parts.agree(wanted)?,
            _ => Ok(wanted),
        };
        match agreed {
            Ok(true) => {}
            other => return Ok(other),
        }
        let complete = |checkpoint: &mut Checkpoint| {
            checkpoint.best = best;
            checkpoint.config.clone_from(&saving.config);
            progress.put_into(checkpoint, run)
        };
        let rolls_back = self.on_non_finite == OnNonFinite::RollBack;
        match &mut saving.files {
            Files::Parts(parts) => {
                let made = parts.ranks.pieces().and_then(|pieces| {
                    let mut own = self.own_state(&pieces, model, optimizer)?;
                    complete(&mut own)?;
                    Ok((divided::part(&own, &pieces, parts.ranks.rank() == 0)?, Some(own).filter(|_| rolls_back)))
                });
                let (part, own) = match made {
                    Ok((part, own)) => (Ok(part), own),
                    Err(e) => (Err(e), None),
                };
                let begun = parts.begin(part)?;
                if begun.is_ok() {
                    saving.last = own;
                }
                Ok(begun.map(|()| true))
            }
            Files::Whole(folder) | Files::First(folder, _) => {
                let mut checkpoint = self.now(model, optimizer)?;
                complete(&mut checkpoint)?;
                saving.last = rolls_back.then(|| checkpoint.clone());
                Ok(folder.save(checkpoint).map(|()| true))
            }
        }
    }

    /// Restores the last good state, as far as this process holds it.
    #[track_caller]
    pub(super) fn roll_back<M: Module + ?Sized>(
        &self,
        saving: &Saving,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
    ) -> Result<()> {
        let Some(last) = &saving.last else { return Ok(()) };
        match &saving.files {
            Files::Parts(parts) => {
                divided::restore(last, &parts.ranks.pieces()?, model, optimizer)?;
                parts.ranks.stepped()?;
            }
            _ => last.restore(model, optimizer)?,
        }
        self.put_states(last)
    }
}

/// The device of a model.
#[track_caller]
fn device_of<M: Module + ?Sized>(model: &M) -> Result<Device> {
    let none = || Error::argument("trainer", "the model has no parameters");
    model.parameters().first().map(|p| p.device().clone()).ok_or_else(none)
}

impl Saving {
    /// What the first rank tells the others.
    #[track_caller]
    fn told(&self) -> Result<Told> {
        let Files::First(folder, number) = &self.files else {
            return Err(Error::argument("trainer", "this process saves alone"));
        };
        Ok(Told { folder: resuming::path_for_all(folder)?, number: *number, may_fail: self.may_fail })
    }

    /// Whether a checkpoint would slow the run down and may be skipped.
    pub(super) fn is_busy(&self) -> bool {
        match &self.files {
            Files::Whole(folder) | Files::First(folder, _) => folder.is_busy(),
            Files::Parts(parts) => parts.is_busy(),
        }
    }

    /// Waits until all checkpoints are written. The inner error is one of saving.
    #[track_caller]
    pub(super) fn finish(&mut self) -> Result<Result<()>> {
        match &mut self.files {
            Files::Whole(folder) | Files::First(folder, _) => Ok(folder.wait()),
            Files::Parts(parts) => parts.finish(),
        }
    }

    /// The errors of damaged checkpoints that were skipped.
    pub(super) fn passed_over(&self) -> &[Error] {
        &self.passed_over
    }
}
