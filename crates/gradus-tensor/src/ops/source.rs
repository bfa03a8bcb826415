//! [`Source`]: numbers that an operation takes from the host and that differ from call to call.

use std::cell::RefCell;
use std::sync::Arc;

use gradus_backend::{Error, Result};

use super::{Effect, Op};
use crate::autograd::is_traced;
use crate::{Generator, WeakState};

/// Host state that determines parameters of an operation: a learning rate, the number of a step, a position in a stream
/// of random numbers. A replay of traced operations asks it for the parameters of each call.
pub trait Source: Send + Sync {
    /// A number that is unique among the sources that are alive.
    fn id(&self) -> usize;

    /// Whether the source determines the parameters of this operation.
    fn serves(&self, op: &Op) -> bool;

    /// Sets the parameters of the traced operation `op` to those of the next call, and advances the state as an eager
    /// call does.
    fn renew(&self, op: &mut Op) -> Result<()>;

    /// The current state, as numbers.
    fn save(&self) -> [u64; 2];

    /// Restores a state that [`save`](Source::save) returned.
    fn restore(&self, saved: [u64; 2]);

    /// Takes the call back that a failed replay began, given the state `saved` before it. Of the `all` operations that
    /// the source serves, `begun` were begun and `done` ended. By default, the state is restored.
    fn fail(&self, saved: [u64; 2], _begun: usize, _done: usize, _all: usize) {
        self.restore(saved);
    }

    /// Whether the state still belongs to something that eager calls use, and replays may go on with it.
    fn is_alive(&self) -> bool {
        true
    }
}

/// The stream of a layer's random numbers, which a replay advances as far as the traced draws did.
impl Source for WeakState<Generator> {
    fn id(&self) -> usize {
        WeakState::id(self)
    }

    fn is_alive(&self) -> bool {
        self.upgrade().is_some()
    }

    fn serves(&self, op: &Op) -> bool {
        op.effect() == Effect::Draws
    }

    fn renew(&self, op: &mut Op) -> Result<()> {
        let Op::Random(random) = op else { return Ok(()) };
        let spec = random.spec;
        let Some(state) = self.upgrade() else {
            return Err(Error::argument("replay", "the layer whose random numbers the step draws is gone"));
        };
        (random.seed, random.offset) = state.lock().advance(random.distribution, spec.dtype, spec.shape.numel());
        Ok(())
    }

    fn save(&self) -> [u64; 2] {
        self.upgrade().map_or([0; 2], |state| [state.get().seed(), state.get().offset()])
    }

    fn restore(&self, [seed, offset]: [u64; 2]) {
        if let Some(state) = self.upgrade() {
            state.set(Generator::at(seed, offset));
        }
    }
}

/// Whether these draws, one after the other and without gaps, move a generator from `start` to `end`.
pub fn draws_lead(start: &Generator, ops: &[&Op], end: &Generator) -> bool {
    let mut generator = start.clone();
    let continues = ops.iter().all(|op| match op {
        Op::Random(r) => {
            let spec = r.spec;
            generator.advance(r.distribution, spec.dtype, spec.shape.numel()) == (r.seed, r.offset)
        }
        _ => false,
    });
    continues && generator == *end
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Source>>> = const { RefCell::new(None) };
}

/// While the guard exists, traced operations of its thread are reported with a source; see [`source_guard`].
#[must_use = "the source is unset when the guard is dropped: bind it, `let _source = source_guard(..);`"]
pub struct SourceGuard(Option<Option<Arc<dyn Source>>>);

impl Drop for SourceGuard {
    fn drop(&mut self) {
        if let Some(outer) = self.0.take() {
            // The old source is dropped when `CURRENT` is no longer borrowed.
            drop(CURRENT.replace(outer));
        }
    }
}

/// Until the guard is dropped, traced operations are reported with the source that `source` returns. `source` is not
/// called if nothing is traced.
pub fn source_guard(source: impl FnOnce() -> Arc<dyn Source>) -> SourceGuard {
    SourceGuard(is_traced().then(|| CURRENT.replace(Some(source()))))
}

/// The source of the operation that is running.
pub(super) fn current() -> Option<Arc<dyn Source>> {
    CURRENT.with_borrow(Clone::clone)
}
