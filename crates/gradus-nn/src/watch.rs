//! Tells [`summary`](crate::summary) which module runs: the innermost forward pass that is open on this thread.
//!
//! A thread that does not watch pays one test for each forward pass.

use std::cell::{Cell, RefCell};

use gradus_tensor::Tensor;

use crate::failed_layer::Place;

/// What happens in a forward pass.
pub(crate) enum Event<'a> {
    /// The forward pass of the module at this place begins.
    Begins(Place),
    /// The innermost forward pass ends, with its output unless it failed.
    Ends(Option<&'a Tensor>),
}

type Watcher = Box<dyn FnMut(Event<'_>)>;

thread_local! {
    static WATCHES: Cell<bool> = const { Cell::new(false) };
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Runs `f`, and calls `seen` with what happens in forward passes on this thread meanwhile. An outer watch sees nothing
/// of it.
pub(crate) fn watch<R>(seen: impl FnMut(Event<'_>) + 'static, f: impl FnOnce() -> R) -> R {
    let _outer = Outer { watches: WATCHES.replace(true), watcher: WATCHER.replace(Some(Box::new(seen))) };
    f()
}

/// Restores the outer watch when it is dropped.
struct Outer {
    watches: bool,
    watcher: Option<Watcher>,
}

impl Drop for Outer {
    fn drop(&mut self) {
        WATCHES.set(self.watches);
        drop(WATCHER.replace(self.watcher.take()));
    }
}

/// A forward pass that is open.
#[must_use]
pub(crate) struct Pass(bool);

impl Pass {
    /// Begins the forward pass of the module at `place`.
    #[inline]
    pub(crate) fn begin(place: impl FnOnce() -> Place) -> Pass {
        let watched = WATCHES.get();
        if watched {
            tell(Event::Begins(place()));
        }
        Pass(watched)
    }

    /// Ends the forward pass with its output.
    #[inline]
    pub(crate) fn end(mut self, output: &Tensor) {
        if self.0 {
            self.0 = false;
            tell(Event::Ends(Some(output)));
        }
    }
}

impl Drop for Pass {
    /// Ends a forward pass that failed.
    fn drop(&mut self) {
        if self.0 {
            tell(Event::Ends(None));
        }
    }
}

#[cold]
fn tell(event: Event<'_>) {
    // The watcher is taken out while it runs, since it may run forward passes of its own.
    let Some(mut watcher) = WATCHER.take() else { return };
    let watches = WATCHES.replace(false);
    watcher(event);
    WATCHES.set(watches);
    drop(WATCHER.replace(Some(watcher)));
}
