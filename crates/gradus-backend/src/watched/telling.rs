//! When a call is reported to a watching function: at the end of the call, or later if its operands are still locked
//! then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::call::{Call, Operands, Tell};

/// Number of functions that watch any backend. While it is 0, no report has to be postponed.
pub(super) static WATCHING: AtomicUsize = AtomicUsize::new(0);

/// A call that has ended and will be reported later.
struct Ended {
    tell: Arc<Tell>,
    /// The watching functions that were running when the call ended. They made the call, so it is not reported to them.
    within: Vec<Arc<Tell>>,
    name: String,
    inputs: Operands,
    outputs: Operands,
    operations: u64,
    began: Instant,
    took: Duration,
    succeeded: bool,
}

thread_local! {
    /// Number of live guards returned by [`postpone`].
    static POSTPONED: Cell<usize> = const { Cell::new(0) };
    static ENDED: RefCell<VecDeque<Ended>> = const { RefCell::new(VecDeque::new()) };
    /// Whether postponed calls are being reported at the moment.
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
    /// The watching functions that are running on this thread.
    static TELLING: RefCell<Vec<Arc<Tell>>> = const { RefCell::new(vec![]) };
}

/// While this guard is alive, calls that end on its thread are not reported. They are reported when the last guard of
/// the thread is dropped.
#[must_use = "calls are put off until the guard is dropped: bind it, `let _told = postpone();`"]
#[derive(Debug)]
pub struct Postponed(PhantomData<*const ()>);

/// Postpones the reports to [watching](crate::Watched) functions on this thread until the guard is dropped. A caller
/// that holds locks while it calls a backend needs this, so that a watching function can take the same locks. The cost
/// is one atomic load if no backend is watched.
#[inline]
pub fn postpone() -> Option<Postponed> {
    if WATCHING.load(Ordering::Relaxed) == 0 { None } else { Some(begin()) }
}

#[cold]
fn begin() -> Postponed {
    POSTPONED.set(POSTPONED.get() + 1);
    Postponed(PhantomData)
}

impl Drop for Postponed {
    fn drop(&mut self) {
        POSTPONED.set(POSTPONED.get() - 1);
        // After a panic, postponed calls are reported with the next call. Calls that end while a watching function runs
        // are reported after it.
        if POSTPONED.get() == 0 && !std::thread::panicking() && !DELIVERS.get() {
            deliver();
        }
    }
}

fn deliver() {
    let next = || ENDED.with_borrow_mut(VecDeque::pop_front);
    while let Some(e) = next() {
        let Ended { tell, within, name, inputs, outputs, operations, began, took, succeeded } = e;
        DELIVERS.set(true);
        let outer = TELLING.replace(within);
        let _done = OnDrop(|| {
            DELIVERS.set(false);
            drop(TELLING.replace(outer.clone()));
        });
        let (name, inputs, outputs) = (&*name, &inputs[..], &outputs[..]);
        run(&tell, &Call { name, inputs, outputs, operations, began, took, succeeded });
    }
}

/// Runs a function when dropped, even if a user's function panics.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Reports to `tell` that a call has ended, now or later, unless `tell` made the call itself.
pub(super) fn ended(tell: &Arc<Tell>, call: &Call<'_>) {
    if TELLING.with_borrow(|telling| telling.iter().any(|t| Arc::ptr_eq(t, tell))) {
        return;
    }
    if POSTPONED.get() == 0 {
        return run(tell, call);
    }
    let Call { name, inputs, outputs, operations, began, took, succeeded } = *call;
    let (tell, within, name) = (tell.clone(), TELLING.with_borrow(Vec::clone), name.to_owned());
    let (inputs, outputs) = (inputs.into(), outputs.into());
    let ended = Ended { tell, within, name, inputs, outputs, operations, began, took, succeeded };
    ENDED.with_borrow_mut(|all| all.push_back(ended));
}

fn run(tell: &Arc<Tell>, call: &Call<'_>) {
    TELLING.with_borrow_mut(|telling| telling.push(tell.clone()));
    let _done = OnDrop(|| {
        TELLING.with_borrow_mut(Vec::pop);
    });
    tell(call);
}
