//! `--overfit-batch` and `--find-lr`: short trainings that answer a question and save nothing.

use gradus::prelude::*;
use gradus::train::LrRange;

use super::job::Job;
use super::session::Session;
use crate::output::say;

/// The number of steps on the single batch.
const OVERFIT_STEPS: usize = 100;

/// The share of its first value to which the loss on a single batch falls if the model can learn. It does not fall to 0
/// where labels are smoothed.
const LEARNS: f64 = 0.3;

pub(super) fn overfit_batch<M, D, T>(session: &Session<'_>, mut job: Job<'_, M, D, T>) -> Result<()>
where
    M: Module,
    D: Dataset + 'static,
    D::Item: Sample,
    T: Task<M, <D::Item as Sample>::Batch>,
{
    let Job { model, optimizer, loader, task, trainer, .. } = &mut job;
    let losses =
        session.team.share(trainer.clone()).overfit_batch(model, &mut **optimizer, loader, task, OVERFIT_STEPS)?;
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else {
        return Err(Error::argument("train", "no step was done"));
    };
    let learns = *last <= LEARNS * first;
    say(&format!("the loss on one batch went from {first:.4} to {last:.4} in {} steps", losses.len()))?;
    say(if learns {
        "the model can learn"
    } else {
        "the model learns slowly or not at all: try another learning rate (--find-lr), and look at the labels"
    })?;
    session.say_json(serde_json::json!({
        "first_loss": first, "last_loss": last, "steps": losses.len(), "learns": learns,
    }))
}

pub(super) fn find_lr<M, D, T>(session: &Session<'_>, mut job: Job<'_, M, D, T>) -> Result<()>
where
    M: Module,
    D: Dataset + 'static,
    D::Item: Sample,
    T: Task<M, <D::Item as Sample>::Batch>,
{
    let Job { model, optimizer, loader, task, trainer, .. } = &mut job;
    let found =
        session.team.share(trainer.clone()).find_lr(model, &mut **optimizer, loader, task, LrRange::default())?;
    let every = found.curve.len().div_ceil(20).max(1);
    for point in found.curve.iter().step_by(every) {
        say(&format!("  lr {:9.2e}  loss {:.4}", point.lr, point.smoothed))?;
    }
    match found.suggestion {
        Some(lr) => say(&format!("the loss falls fastest at {lr:.1e}: try --lr {lr:.1e}"))?,
        None => say("the loss never falls; look at the data and the labels")?,
    }
    session.say_json(serde_json::json!({ "suggested_lr": found.suggestion, "steps": found.curve.len() }))
}
