//! The limit on how deeply user functions may be nested, so that they cannot overflow the stack.

use std::cell::Cell;
use std::marker::PhantomData;

use gradus_backend::{Error, ErrorKind, Result};

/// The maximum depth to which calls that run user functions may be nested on a thread, in any combination. A deeper
/// call returns an error. The calls are backward passes (which run hooks and gradients of custom operations),
/// [`checkpoint`](super::checkpoint), [`apply_custom`](super::apply_custom), [`vmap`](super::vmap), [`vjp`](super::vjp)
/// and its relatives, [`gradcheck`](super::gradcheck), [`explain_grad`](super::explain_grad),
/// [`find_nonfinite`](super::find_nonfinite), [`once`](super::once),
/// [`saved_tensors_hooks`](super::saved_tensors_hooks) and [`dispatch_compute`](crate::Device::dispatch_compute).
///
/// Each level uses up to 4 KB of stack, or 12 KB in an unoptimised build, plus what the functions themselves use. All
/// levels together fit in the 2 MiB that a thread has by default. Chains are not nested and have no limit: a graph, or
/// a sequence of checkpointed regions, may be as long as memory allows.
pub const MAX_NESTING: usize = 100;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A guard that is held while a user function runs.
pub(crate) struct Nested(PhantomData<*const ()>);

impl Nested {
    /// Fails if [`MAX_NESTING`] levels are already open.
    #[inline]
    #[track_caller]
    pub(crate) fn enter(op: &str) -> Result<Self> {
        let depth = DEPTH.get();
        if depth >= MAX_NESTING {
            return Err(too_deep(op));
        }
        DEPTH.set(depth + 1);
        Ok(Nested(PhantomData))
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cold]
#[track_caller]
fn too_deep(op: &str) -> Error {
    let m = format!("more than {MAX_NESTING} calls that run functions of the user are nested");
    Error::new(ErrorKind::Autograd, op, m)
        .note("these are backward passes, checkpoint, apply_custom, vmap, vjp and the like: see autograd::MAX_NESTING")
        .help(
            "run one after the other instead of inside of it; a hook that takes gradients of its own graph runs itself",
        )
}
