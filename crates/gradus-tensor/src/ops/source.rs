//! [`Source`]: numbers that an operation takes from the host and that differ from call to call.

use std::cell::RefCell;
use std::sync::Arc;

use gradus_backend::Result;

use super::{Effect, Op};
use crate::autograd::is_traced;
use crate::{Generator, State};

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

    /// Whether a trace advanced the state as [`renew`](Source::renew) does. Called just after the trace has ended;
    /// `ops` are the operations of the trace that this source served, in order.
    fn follows(&self, _ops: &[&Op]) -> bool {
        true
    }

    /// Whether the state still belongs to something that eager calls use.
    fn is_alive(&self) -> bool {
        true
    }
}

/// The stream of a layer's random numbers, which a replay advances as far as the traced draws did.
impl Source for State<Generator> {
    fn id(&self) -> usize {
        State::id(self)
    }

    fn serves(&self, op: &Op) -> bool {
        op.effect() == Effect::Draws
    }

    fn renew(&self, op: &mut Op) -> Result<()> {
        let Op::Random(random) = op else { return Ok(()) };
        let spec = random.spec;
        (random.seed, random.offset) = self.lock().advance(random.distribution, spec.dtype, spec.shape.numel());
        Ok(())
    }

    fn save(&self) -> [u64; 2] {
        let generator = self.get();
        [generator.seed(), generator.offset()]
    }

    fn restore(&self, [seed, offset]: [u64; 2]) {
        self.set(Generator::at(seed, offset));
    }

    fn follows(&self, ops: &[&Op]) -> bool {
        let Some(Op::Random(first)) = ops.first() else { return true };
        let mut generator = Generator::at(first.seed, first.offset);
        let continues = ops.iter().all(|op| match op {
            Op::Random(r) => {
                let spec = r.spec;
                generator.advance(r.distribution, spec.dtype, spec.shape.numel()) == (r.seed, r.offset)
            }
            _ => false,
        });
        continues && generator == self.get()
    }
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
