//! When a function that watches is told of a call: at its end, or, while what the call worked on is locked, after that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::call::{Call, Operands, Tell};

/// Functions that watch any backend: while there is none, nothing has to be put off.
pub(super) static WATCHING: AtomicUsize = AtomicUsize::new(0);

/// A call that has ended, for later.
struct Ended {
    tell: Arc<Tell>,
    /// The functions that ran when it ended: it is theirs too, and they are not told of what comes of it.
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
    /// Living guards of [`postpone`].
    static POSTPONED: Cell<usize> = const { Cell::new(0) };
    static ENDED: RefCell<VecDeque<Ended>> = const { RefCell::new(VecDeque::new()) };
    /// Whether what has ended is told now.
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
    /// The functions that run on this thread now.
    static TELLING: RefCell<Vec<Arc<Tell>>> = const { RefCell::new(vec![]) };
}

/// While this lives, calls that end on its thread are not told of; when the last one is dropped, they are.
#[must_use = "calls are put off until the guard is dropped: bind it, `let _told = postpone();`"]
#[derive(Debug)]
pub struct Postponed(PhantomData<*const ()>);

/// Puts off what [watching](crate::Watched) functions are told on this thread until the guard is dropped: for who holds locks
/// while it calls a backend, so that such a function may use what was locked. Costs one load where nobody watches.
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
        // After a panic the next call tells of these too. And what ends in a function that is told waits for its turn.
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

/// Runs a function when it is dropped, also where a function of the user panics.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A call has ended of which `tell` is to be told: now or later; but not of what it does itself.
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
