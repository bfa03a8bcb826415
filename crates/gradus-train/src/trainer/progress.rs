//! [`Progress`]: the progress of a run, as saved in its checkpoints.

use gradus_tensor::{Error, ErrorKind, Here, Result};
use serde::{Deserialize, Serialize};

use crate::task::Tally;
use crate::{Checkpoint, EpochReport, Evaluation, History, Run};

const OP: &str = "resume";

/// The name of the checkpoint text that holds the progress.
const TEXT: &str = "trainer";

/// The progress of a run, apart from the reports of its epochs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The epoch, counted from 1.
    pub(super) epoch: usize,
    /// The batches of the epoch that are done or skipped.
    pub(super) batches: usize,
    /// The steps of the epoch that are done.
    pub(super) steps_of_epoch: usize,
    pub(super) seconds_of_epoch: f64,
    pub(super) tally: Tally,
    pub(super) skipped: u64,
    /// The steps in a row that were not finite.
    pub(super) in_a_row: u32,
    /// The best value of the monitored metric so far, and the last value that improved on the previous one by more than
    /// `min_delta`.
    pub(super) best: Option<f64>,
    pub(super) best_by_delta: Option<f64>,
    pub(super) waited: usize,
    pub(super) is_done: bool,
}

impl Progress {
    #[track_caller]
    pub(super) fn put_into(&self, checkpoint: &mut Checkpoint, run: &Run) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|e| Error::new(ErrorKind::Format, OP, e.to_string())).here()?;
        checkpoint.texts.insert(TEXT.into(), text);
        checkpoint.history = history(&run.epochs);
        (checkpoint.step, checkpoint.epoch, checkpoint.batch) = (run.steps, self.epoch as u64, self.batches as u64);
        Ok(())
    }

    /// What [`put_into`](Progress::put_into) saved.
    #[track_caller]
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<(Progress, Run)> {
        let wrong = || {
            let e = Error::argument(OP, "the checkpoint is not one of a trainer");
            e.help("a checkpoint of a loop of your own goes on in that loop")
        };
        let text = checkpoint.texts.get(TEXT).ok_or_else(wrong).here()?;
        let progress: Progress = serde_json::from_str(text).map_err(|e| wrong().with_source(e)).here()?;
        let epochs = epochs(&checkpoint.history);
        let run = Run {
            steps: checkpoint.step,
            skipped: progress.skipped,
            samples: epochs.iter().map(|e| e.samples).sum(),
            seconds: epochs.iter().map(|e| e.seconds).sum(),
            stopped: false,
            stopped_early: false,
            epochs,
        };
        Ok((progress, run))
    }
}

/// The numbers of epochs as series.
fn history(epochs: &[EpochReport]) -> History {
    let mut history = History::default();
    for e in epochs {
        let mut add = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                history.push(name, e.epoch as u64, value);
            }
        };
        add("steps", Some(e.steps as f64));
        add("samples", Some(e.samples as f64));
        add("loss", Some(e.loss));
        add("accuracy", e.accuracy);
        add("lr_factor", Some(e.lr_factor));
        add("seconds", Some(e.seconds));
        add("validation_loss", e.validation.map(|v| v.loss));
        add("validation_accuracy", e.validation.and_then(|v| v.accuracy));
        add("validation_samples", e.validation.map(|v| v.samples as f64));
    }
    history
}

/// The reverse of [`history`].
fn epochs(history: &History) -> Vec<EpochReport> {
    let at = |name: &str, epoch: u64| history.get(name).iter().find(|(at, _)| *at == epoch).map(|(_, value)| *value);
    let count = |name: &str, epoch: u64| at(name, epoch).unwrap_or(0.0) as usize;
    let report = |&(epoch, steps): &(u64, f64)| EpochReport {
        epoch: epoch as usize,
        steps: steps as usize,
        samples: count("samples", epoch),
        loss: at("loss", epoch).unwrap_or(f64::NAN),
        accuracy: at("accuracy", epoch),
        lr_factor: at("lr_factor", epoch).unwrap_or(f64::NAN),
        seconds: at("seconds", epoch).unwrap_or(0.0),
        validation: at("validation_loss", epoch).map(|loss| Evaluation {
            loss,
            accuracy: at("validation_accuracy", epoch),
            samples: count("validation_samples", epoch),
        }),
    };
    history.get("steps").iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_epochs_come_back_from_their_history() {
        let validation = Some(Evaluation { loss: 0.25, accuracy: None, samples: 7 });
        let first = EpochReport {
            epoch: 1,
            steps: 3,
            samples: 90,
            loss: 1.0 / 3.0,
            accuracy: Some(0.5),
            lr_factor: 0.1,
            seconds: 2.5,
            validation,
        };
        let second = EpochReport { epoch: 2, accuracy: None, validation: None, ..first.clone() };
        let all = [first, second];
        assert_eq!(epochs(&history(&all)), all);
    }
}
