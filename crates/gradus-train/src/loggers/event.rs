//! [`Logger`]: receives the [`Event`]s of a run.

use gradus_tensor::{Error, Result};

use crate::report::{EpochReport, Run, StepReport};

/// An event of a run. More kinds may be added.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The run begins.
    Start {
        /// The number of epochs that were requested.
        epochs: usize,
        /// The number of steps in an epoch.
        steps: usize,
        /// The number of samples in an epoch.
        samples: usize,
    },
    /// The run resumes from a checkpoint.
    Resumed {
        /// The number of the epoch, counted from 1.
        epoch: usize,
        /// The number of completed steps.
        step: u64,
        /// The run so far.
        run: &'a Run,
        /// An error for each newer checkpoint that could not be used. It says which file is damaged and how.
        damaged: &'a [Error],
    },
    /// An epoch begins or is resumed.
    EpochStart {
        /// The number of the epoch, counted from 1.
        epoch: usize,
    },
    /// A step is done.
    Step(&'a StepReport),
    /// A step was skipped because its loss or gradient is not finite.
    Skipped {
        /// The number of the epoch, counted from 1.
        epoch: usize,
        /// The number that the step would have had in its epoch.
        step: usize,
        /// The loss, or NaN if the gradient is not finite.
        value: f64,
    },
    /// A checkpoint could not be saved, and the run goes on without further ones.
    Unsaved {
        /// Why it could not be saved.
        error: &'a Error,
    },
    /// An epoch is done.
    EpochEnd(&'a EpochReport),
    /// The run is done or was stopped.
    End(&'a Run),
}

/// Receives the events of a run. If it returns an error, the run ends.
pub trait Logger {
    /// Handles an event.
    fn log(&mut self, event: Event<'_>) -> Result<()>;
}

impl<F: FnMut(Event<'_>) -> Result<()>> Logger for F {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        self(event)
    }
}
