//! What ranks that share a run tell each other: its state at the start, and the batches of each.

use std::collections::BTreeMap;

use gradus_data::{Batches, DataLoader, Dataset, Parts, Sample};
use gradus_nn::{Module, Optimizer};
use gradus_tensor::{Device, Error, Here, Result};

use super::options::Trainer;
use super::progress::Progress;
use crate::Run;
use crate::checkpoint::{from_bytes, to_bytes};
use crate::ranks::{self, Ranks, all_have};

impl Trainer {
    /// The batches of an epoch without the first `skip`, as far as this process computes them.
    #[track_caller]
    pub(super) fn batches<D>(
        &self,
        train: &DataLoader<D>,
        epoch: u64,
        skip: usize,
    ) -> Result<Batches<Parts<<D::Item as Sample>::Batch>>>
    where
        D: Dataset + 'static,
        D::Item: Sample,
    {
        let ranks = self.ranks.clone();
        train.epoch_in_parts(epoch, skip, move |_, samples| ranks::parts(&ranks, samples))
    }

    /// An error that this process alone has, of which the other ranks are told.
    pub(super) fn told(&self, e: Error) -> Error {
        if let Some(ranks) = &self.ranks {
            ranks.give_up(e.message());
        }
        e
    }

    /// Gives all ranks the state of rank 0: model, optimiser, the user's states, and what was resumed.
    ///
    /// # Errors
    /// Fails on all ranks if one has another model, optimiser or settings, or if the optimiser has a parameter that is not
    /// the model's, whose gradient would not be that of all ranks.
    #[track_caller]
    pub(super) fn share<M: Module + ?Sized>(
        &self,
        ranks: &dyn Ranks,
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        config: &BTreeMap<String, String>,
        resumed: &mut Option<(Progress, Run)>,
    ) -> Result<()> {
        let shared = model.parameters();
        if optimizer.parameters().iter().any(|own| !shared.iter().any(|one| one.is_same(own))) {
            let e = Error::argument("trainer", "the optimiser has a parameter that the model does not have");
            return Err(e.help("on several ranks, all that is trained belongs to the model: put it into one module"));
        }
        // These may differ from those of the run that is resumed, but not among ranks.
        let mut config = config.clone();
        config.extend([
            ("epochs".to_owned(), self.epochs.to_string()),
            ("fast_dev_run".to_owned(), self.fast_dev_run.to_string()),
            ("early_stopping".to_owned(), format!("{:?}", self.early_stopping)),
            ("monitor".to_owned(), format!("{:?}", self.monitor)),
        ]);
        let mut bytes = Vec::new();
        if ranks.rank() == 0 {
            let mut state = self.now(model, optimizer)?;
            state.config.clone_from(&config);
            if let Some((progress, run)) = resumed {
                progress.put_into(&mut state, run)?;
            }
            bytes = to_bytes(&state)?;
        }
        let bytes = ranks.broadcast(0, bytes)?;
        let mine = match ranks.rank() {
            0 => self.check_rolls_back(),
            _ => self.take(&bytes, model, optimizer, device, &config, resumed),
        };
        all_have(ranks, "trainer", mine)?.map(drop)
    }

    /// Takes the state that rank 0 gave.
    #[track_caller]
    fn take<M: Module + ?Sized>(
        &self,
        bytes: &[u8],
        model: &mut M,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        config: &BTreeMap<String, String>,
        resumed: &mut Option<(Progress, Run)>,
    ) -> Result<()> {
        let state = from_bytes(bytes, device)?;
        if let Some(differs) = state.differences(config) {
            let m = format!("the settings of rank 0 differ: {differs}");
            return Err(Error::argument("trainer", m).help("start all ranks with the same options and data"));
        }
        state.restore(model, optimizer)?;
        for own in &self.states {
            let found = state.states.get(&own.name);
            let missing = || Error::argument("trainer", format!("rank 0 has no state {:?}", own.name));
            (own.put)(found.ok_or_else(missing)?).here()?;
        }
        *resumed = if state.texts.is_empty() { None } else { Some(Progress::of(&state)?) };
        Ok(())
    }
}
