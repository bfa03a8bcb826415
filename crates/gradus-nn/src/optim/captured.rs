//! Optimiser steps inside captured steps: the numbers that a replay needs, computed again for each call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use gradus_tensor::ops::{Effect, Op, Saved, Source, collect_updates};
use gradus_tensor::{DType, Device, Error, Result, Tensor};

use super::rule::{Hyper, Rule};

/// A number that an optimiser shares with the replays of its steps: a learning rate, or a count of steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Number(Arc<AtomicU64>);

impl Number {
    pub(super) fn of(value: f64) -> Self {
        Number(Arc::new(AtomicU64::new(value.to_bits())))
    }

    pub(super) fn counted(count: u64) -> Self {
        Number(Arc::new(AtomicU64::new(count)))
    }

    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Release);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// An even number that is the same for all clones, and differs from that of any other `Number` alive.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub(super) fn set_count(&self, count: u64) {
        self.0.store(count, Ordering::Release);
    }
}

/// The message about a step that failed halfway, if there is one. Replays share it with their optimiser.
#[derive(Debug, Clone, Default)]
pub(super) struct Unfinished(Arc<Mutex<Option<String>>>);

impl Unfinished {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub(super) fn set(&self, message: Option<String>) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = message;
    }
}

/// What determines the hyper-parameters of a parameter's next step.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    pub(super) lr: Number,
    pub(super) factor: Number,
    pub(super) weight_decay: Number,
    pub(super) momentum: Number,
    /// The number of completed steps.
    pub(super) step: Number,
}

impl Rates {
    /// The hyper-parameters of the next step.
    pub(super) fn next(&self) -> Hyper {
        let (lr, step) = (self.lr.get() * self.factor.get(), self.step.count().saturating_add(1));
        Hyper { lr, weight_decay: self.weight_decay.get(), momentum: self.momentum.get(), step }
    }
}

/// The two phases of a parameter's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// [`Rule::prepare`].
    Prepare,
    /// [`Rule::update`], which ends the step.
    Update,
}

/// The updates of one phase of a parameter's step. To find them, the rule runs on stand-in tensors of the same shapes,
/// and its updates are collected instead of run.
pub(super) struct Updates<R> {
    /// The rule, which the optimiser holds.
    rule: Weak<R>,
    unfinished: Unfinished,
    phase: Phase,
    rates: Rates,
    /// Shape, dtype and device of the target, the gradient, the state and the scratch tensors. The tensors themselves are not held,
    /// since it would go unnoticed if they were replaced.
    like: Vec<(Vec<usize>, DType, Device)>,
    left: Mutex<Left>,
}

/// What the latest collection found.
#[derive(Default)]
struct Left {
    /// Tensors of the shape and dtype of the target, the gradient and the state, without memory for each element.
    stand_ins: Vec<Tensor>,
    /// The updates that no operation has taken yet.
    updates: VecDeque<Op>,
}

impl<R: Rule> Updates<R> {
    pub(super) fn new<'t>(
        (rule, unfinished): (&Arc<R>, &Unfinished),
        phase: Phase,
        rates: &Rates,
        tensors: impl IntoIterator<Item = &'t Tensor>,
    ) -> Self {
        let like = |t: &Tensor| (t.shape().to_vec(), t.dtype(), t.device().clone());
        Updates {
            rule: Arc::downgrade(rule),
            unfinished: unfinished.clone(),
            phase,
            rates: rates.clone(),
            like: tensors.into_iter().map(like).collect(),
            left: Mutex::default(),
        }
    }

    fn collect(&self, left: &mut Left) -> Result<()> {
        let Some(rule) = self.rule.upgrade() else {
            return Err(Error::argument("replay", "the optimiser of the step is gone"));
        };
        let hyper = self.rates.next();
        if left.stand_ins.is_empty() {
            let like =
                |(shape, dtype, device): &(Vec<usize>, DType, Device)| Tensor::zeros([], *dtype, device)?.expand(shape);
            left.stand_ins = self.like.iter().map(like).collect::<Result<_>>()?;
        }
        let [target, gradient, slots @ ..] = &left.stand_ins[..] else { return Ok(()) };
        let (done, updates) = collect_updates(|| match self.phase {
            Phase::Prepare => rule.prepare(hyper, target, gradient, slots),
            Phase::Update => rule.update(hyper, target, gradient, slots),
        });
        done?;
        if self.phase == Phase::Update {
            self.rates.step.set_count(hyper.step);
        }
        left.updates = updates.into();
        Ok(())
    }
}

impl<R: Rule> Source for Updates<R> {
    fn id(&self) -> usize {
        self.rates.step.id() ^ usize::from(self.phase == Phase::Update)
    }

    fn serves(&self, op: &Op) -> bool {
        op.effect() == Effect::Updates
    }

    fn is_alive(&self) -> bool {
        self.rule.strong_count() > 0 && self.unfinished.get().is_none()
    }

    fn renew(&self, op: &mut Op) -> Result<()> {
        let mut left = self.left.lock().unwrap_or_else(|e| e.into_inner());
        if left.updates.is_empty() {
            self.collect(&mut left)?;
        }
        if let Some(next) = left.updates.pop_front() {
            *op = next;
        }
        Ok(())
    }

    fn save(&self) -> Saved {
        ([self.rates.step.count(), 0], None)
    }

    fn restore(&self, ([count, _], _): Saved) {
        self.rates.step.set_count(count);
        // What is left was collected for the step that is taken back.
        self.left.lock().unwrap_or_else(|e| e.into_inner()).updates.clear();
    }

    fn fail(&self, saved: Saved, begun: usize, done: usize, all: usize) {
        if self.phase == Phase::Update && begun > 0 && done == all {
            return; // The parameter has been stepped.
        }
        self.restore(match self.phase {
            Phase::Prepare => self.save(), // The count is that of the update.
            Phase::Update => saved,
        });
        if self.phase == Phase::Update && begun > 0 {
            self.unfinished.set(Some("something failed in the middle of a captured step".to_owned()));
        }
    }
}
