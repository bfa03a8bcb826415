//! [`Source`]: numbers that an operation takes from the host and that differ from call to call.

use std::any::Any;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{Backend, Binding, Error, Result};

use super::trace::{Traced, traced};
use super::{Dispatch, Effect, HostCall, Op};
use crate::autograd::is_traced;
use crate::{Generator, State, WeakState};

/// A state that a [`Source`] noted, as numbers: for random numbers, seed and offset, and those of the whole if it is a
/// [part](Generator::part).
pub type Saved = ([u64; 2], Option<[u64; 2]>);

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
    fn save(&self) -> Saved;

    /// Restores a state that [`save`](Source::save) returned.
    fn restore(&self, saved: Saved);

    /// Takes the call back that a failed replay began, given the state `saved` before it. Of the `all` operations that
    /// the source serves, `begun` were begun and `done` ended. By default, the state is restored.
    fn fail(&self, saved: Saved, _begun: usize, _done: usize, _all: usize) {
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
        op.effect() == Effect::Draws || Jump::of(op).is_some()
    }

    fn renew(&self, op: &mut Op) -> Result<()> {
        let Some(state) = self.upgrade() else {
            return Err(Error::argument("replay", "the layer whose random numbers the step draws is gone"));
        };
        let mut generator = state.lock();
        if let Some(jump) = Jump::of(op) {
            *generator = jump.from(&generator);
        } else if let Op::Random(random) = op {
            let spec = random.spec;
            (random.seed, random.offset) = generator.advance(random.distribution, spec.dtype, spec.shape.numel());
        }
        Ok(())
    }

    fn save(&self) -> Saved {
        self.upgrade().map_or_else(Saved::default, |state| state.get().numbers())
    }

    fn restore(&self, saved: Saved) {
        if let Some(state) = self.upgrade() {
            state.set(Generator::of_numbers(saved));
        }
    }
}

/// A move of a random state from where it is, by no draw. In a trace it is a call of the host without operands, so that a
/// replay moves the state too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jump {
    /// To [`Generator::part`].
    Part(u64),
    /// To [`Generator::after_parts`].
    AfterParts,
}

impl Jump {
    /// The jump that an operation is, if it is one.
    fn of(op: &Op) -> Option<&Jump> {
        (op.host_call()? as &dyn Any).downcast_ref()
    }

    fn from(self, generator: &Generator) -> Generator {
        match self {
            Jump::Part(key) => generator.part(key),
            Jump::AfterParts => generator.after_parts(),
        }
    }

    /// Moves a random state.
    #[track_caller]
    pub fn make(self, state: &State<Generator>) {
        super::note_random(state);
        let moved = self.from(&state.get());
        state.set(moved);
        if is_traced() {
            let source: Arc<dyn Source> = Arc::new(state.downgrade());
            traced(&Traced {
                op: &Dispatch::of_host(Arc::new(self), std::iter::empty()).into(),
                inputs: &[],
                outputs: &[],
                in_place: true,
                kernel: true,
                location: Location::caller(),
                source: Some(&source),
            });
        }
    }
}

impl HostCall for Jump {
    fn name(&self) -> &str {
        "jump"
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }

    // The source of the operation moves the state, and takes that back.
    fn is_seen(&self) -> bool {
        false
    }

    fn call(&self, _: &dyn Backend, _: &mut [Binding<'_>]) -> Result<()> {
        Ok(())
    }
}

/// Whether these draws and jumps, one after the other and without gaps, move a generator from `start` to `end`.
pub fn draws_lead(start: &Generator, ops: &[&Op], end: &Generator) -> bool {
    let mut generator = start.clone();
    let continues = ops.iter().all(|op| match (op, Jump::of(op)) {
        (_, Some(jump)) => {
            generator = jump.from(&generator);
            true
        }
        (Op::Random(r), None) => {
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
