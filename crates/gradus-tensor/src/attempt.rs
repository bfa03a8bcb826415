//! [`all_or_nothing`]: a failed pass changes nothing, because the values of every [`State`] that it changed are
//! restored.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use gradus_backend::{Error, Result};

/// The maximum nesting depth of forward passes: far more than any model needs, and small enough for a thread's stack.
const MAX_PASSES: usize = 128;

/// The changes that one attempt made to states, by the id of the state.
type Changes = BTreeMap<usize, Change>;

struct Change {
    /// How many times the attempt changed the state.
    times: u64,
    /// Restores the value from before the attempt if nobody else has changed the state: its counter must have risen by
    /// exactly `times`. Returns whether the value was restored. Restoring counts as another change.
    undo: Box<dyn Fn(u64) -> bool>,
}

thread_local! {
    /// The open attempts of this thread, the innermost last, each with a unique number.
    static OPEN: RefCell<Vec<(u64, Changes)>> = const { RefCell::new(Vec::new()) };
    /// The number of the next attempt.
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// The number of open attempts that are forward passes.
    static PASSES: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f`. If `f` fails or panics, every [`State`] that it changed on this thread gets its old value back. The
/// buffers (running statistics) and the generators of layers are such states.
///
/// The forward pass of a module already behaves like this. Use this function to treat several passes, or a pass
/// together with other code, as one unit:
///
/// ```
/// # use gradus_tensor::{Error, State, all_or_nothing};
/// let seen = State::new(0);
/// let step = |batch: i64| {
///     all_or_nothing(|| {
///         seen.set(seen.get() + 1);
///         if batch < 0 { Err(Error::argument("step", "a bad batch")) } else { Ok(()) }
///     })
/// };
/// assert!(step(1).is_ok() && step(-1).is_err());
/// assert_eq!(seen.get(), 1);
/// ```
///
/// Calls nest: if the outer call fails, it also restores what an inner call had changed. The function does not restore
/// tensors that `f` writes in place, or anything that `f` does on other threads. Nor does it restore a state that
/// another thread changed after `f` did, since the value that it would have without `f` is unknown. Some devices report
/// an error only in a later call. Read the loss inside `f`, so that such an error makes `f` fail.
///
/// # Errors
/// The errors of `f`.
#[track_caller]
pub fn all_or_nothing<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let attempt = Attempt::begin();
    let result = f();
    attempt.end(result)
}

/// [`all_or_nothing`] split into its two steps, for code whose errors and operations must carry the line of its caller,
/// which a closure would hide. An attempt that is dropped without [`end`](Attempt::end) restores everything. When an
/// attempt ends, so do all attempts that began inside it.
#[must_use = "an attempt ends with its result"]
#[derive(Debug)]
pub struct Attempt {
    number: u64,
    is_pass: bool,
    // Makes the type neither `Send` nor `Sync`: an attempt belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl Attempt {
    /// Starts recording changes of states.
    pub fn begin() -> Attempt {
        let number = NEXT.replace(NEXT.get() + 1);
        // A thread that is shutting down has nothing to restore.
        let _ = OPEN.try_with(|open| open.borrow_mut().push((number, Changes::new())));
        Attempt { number, is_pass: false, _not_send: PhantomData }
    }

    /// Starts an attempt at the forward pass of a module.
    ///
    /// # Errors
    /// Fails if 128 forward passes are already open on this thread, since the stack could overflow.
    #[track_caller]
    pub fn forward() -> Result<Attempt> {
        let passes = PASSES.get() + 1;
        if passes > MAX_PASSES {
            let e = Error::argument("forward", format!("modules are nested more than {MAX_PASSES} deep"));
            return Err(e.help("does a module compute itself, without end? Layers in one Sequential are not nested"));
        }
        PASSES.set(passes);
        let mut attempt = Attempt::begin();
        attempt.is_pass = true;
        Ok(attempt)
    }

    /// Keeps the changes if `result` is `Ok` and restores everything if it is an error. Returns `result`.
    #[track_caller]
    pub fn end<R>(self, result: Result<R>) -> Result<R> {
        if result.is_ok() {
            merge_into_outer(self.take());
        }
        result
    }

    /// Ends this attempt and returns its changes: none if an enclosing attempt has already ended it.
    fn take(&self) -> Changes {
        let from_here = |open: &RefCell<Vec<(u64, Changes)>>| {
            let mut open = open.borrow_mut();
            let at = open.iter().rposition(|(number, _)| *number == self.number)?;
            Some(open.split_off(at))
        };
        let ended = OPEN.try_with(from_here).ok().flatten().unwrap_or_default();
        ended.into_iter().rev().fold(Changes::new(), |inner, (_, mut changes)| {
            drop(merge(&mut changes, inner));
            changes
        })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // If the attempt has been ended, there are no changes left here.
        let mut changes = self.take();
        for change in changes.values_mut() {
            change.times += u64::from((change.undo)(change.times));
        }
        merge_into_outer(changes);
        if self.is_pass {
            PASSES.set(PASSES.get() - 1);
        }
    }
}

/// Passes the changes of an ended attempt on to the enclosing attempt.
fn merge_into_outer(changes: Changes) {
    // Superfluous entries are dropped only at the end, when nothing is borrowed.
    let _superfluous = OPEN.try_with(|open| match open.borrow_mut().last_mut() {
        Some((_, outer)) => merge(outer, changes),
        None => changes.into_values().collect(),
    });
}

/// Adds the changes of an inner attempt to those of the enclosing one. If both changed a state, the outer entry's undo
/// function is kept. The entries with the other undo functions are returned.
fn merge(outer: &mut Changes, mut inner: Changes) -> Vec<Change> {
    // Merges the smaller map into the larger one, so that the cost of deep nesting grows with the number of changes.
    let outer_is_smaller = outer.len() < inner.len();
    if outer_is_smaller {
        mem::swap(outer, &mut inner);
    }
    let mut superfluous = Vec::new();
    for (id, mut change) in inner {
        match outer.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(change);
            }
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                known.times += change.times;
                if outer_is_smaller {
                    mem::swap(&mut known.undo, &mut change.undo);
                }
                superfluous.push(change);
            }
        }
    }
    superfluous
}

/// A value that forward passes change, such as a position in a stream of random numbers. [`all_or_nothing`] restores it
/// when a pass fails. A clone refers to the same state.
///
/// It works like a `Mutex`: while a thread holds the guard that [`lock`](State::lock) returns, every other use waits.
/// So drop the guard before the same thread uses the state again or ends an attempt that changed it.
#[derive(Debug)]
pub struct State<T>(Arc<Mutex<Inner<T>>>);

#[derive(Debug)]
struct Inner<T> {
    value: T,
    /// The number of changes so far, including restores. It never decreases.
    changes: u64,
}

/// A handle to a [`State`] that does not keep it alive. [`State::downgrade`] makes it.
#[derive(Debug)]
pub struct WeakState<T>(Weak<Mutex<Inner<T>>>);

impl<T> Clone for WeakState<T> {
    fn clone(&self) -> Self {
        WeakState(self.0.clone())
    }
}

impl<T> WeakState<T> {
    /// The state, unless all its owners have dropped it.
    pub fn upgrade(&self) -> Option<State<T>> {
        self.0.upgrade().map(State)
    }

    /// The identifier of the state: see [`State::id`]. No other state has it as long as this handle exists.
    pub fn id(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        State(self.0.clone())
    }
}

impl<T: Clone + 'static> State<T> {
    /// Creates a state with this value.
    pub fn new(value: T) -> Self {
        State(Arc::new(Mutex::new(Inner { value, changes: 0 })))
    }

    /// A handle that does not keep the state alive.
    pub fn downgrade(&self) -> WeakState<T> {
        WeakState(Arc::downgrade(&self.0))
    }

    /// Returns a copy of the value.
    pub fn get(&self) -> T {
        self.inner().value.clone()
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        *self.lock() = value;
    }

    /// Locks the value for changes.
    pub fn lock(&self) -> StateGuard<'_, T> {
        let inner = self.inner();
        self.note(inner)
    }

    /// Returns a copy of the value and the number of changes so far.
    pub fn versioned(&self) -> (T, u64) {
        let inner = self.inner();
        (inner.value.clone(), inner.changes)
    }

    /// Replaces the value if the number of changes is still `changes`, and returns whether it did. With this method and
    /// [`versioned`](State::versioned), a new value can be computed from the old one without making other threads wait.
    pub fn replace(&self, value: T, changes: u64) -> bool {
        let inner = self.inner();
        let current = inner.changes == changes;
        if current {
            *self.note(inner) = value;
        }
        current
    }

    /// An identifier that clones share and that no other living state has.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Saves the value for the innermost attempt of this thread before the value is changed.
    fn note<'a>(&self, mut inner: MutexGuard<'a, Inner<T>>) -> StateGuard<'a, T> {
        let (id, found) = (self.id(), inner.changes);
        let known = OPEN.try_with(|open| open.borrow().last().map(|(_, changes)| changes.contains_key(&id)));
        let change = match known {
            Ok(Some(false)) => {
                let (state, before) = (self.clone(), inner.value.clone());
                let undo = move |times: u64| {
                    let mut inner = state.inner();
                    let mine = inner.changes == found + times;
                    if mine {
                        inner.value = before.clone();
                        inner.changes += 1;
                    }
                    mine
                };
                Some(Change { times: 0, undo: Box::new(undo) })
            }
            _ => None,
        };
        let count = |changes: &mut Changes| {
            changes.extend(change.map(|change| (id, change)));
            changes.entry(id).and_modify(|change| change.times += 1);
        };
        let _ = OPEN.try_with(|open| open.borrow_mut().last_mut().map(|(_, changes)| count(changes)));
        inner.changes += 1;
        StateGuard(inner)
    }
}

/// Read and write access to the value of a [`State`].
#[derive(Debug)]
pub struct StateGuard<'a, T>(MutexGuard<'a, Inner<T>>);

impl<T> Deref for StateGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for StateGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails<R>(f: impl FnOnce() -> R) -> Result<R> {
        all_or_nothing(|| {
            f();
            Err(Error::argument("test", "it fails"))
        })
    }

    #[test]
    fn attempts_nest() {
        let (a, b) = (State::new(0), State::new(10));
        all_or_nothing(|| {
            a.set(1);
            assert!(fails(|| (a.set(2), b.set(20))).is_err());
            assert_eq!((a.get(), b.get()), (1, 10));
            all_or_nothing(|| {
                a.set(3);
                a.set(4);
                b.set(40);
                Ok(())
            })
        })
        .unwrap();
        assert_eq!((a.get(), b.get()), (4, 40));
        assert!(fails(|| all_or_nothing(|| Ok((a.set(5), a.set(6), b.set(60))))).is_err());
        assert_eq!((a.get(), b.get()), (4, 40));
        // The inner attempts restore the value, and then the outer attempt restores it again.
        assert!(fails(|| (fails(|| a.set(7)), fails(|| a.set(8)), a.set(9))).is_err());
        assert!(fails(|| (a.set(7), fails(|| fails(|| a.set(8))), a.set(9))).is_err());
        assert_eq!((a.get(), b.get()), (4, 40));
        // Works whether the inner or the outer attempt changed more states.
        let many: Vec<State<usize>> = (0..9).map(State::new).collect();
        let inner = || {
            all_or_nothing(|| {
                many.iter().for_each(|s| *s.lock() += 100);
                Ok(())
            })
        };
        assert!(fails(|| (many[4].set(50), inner())).is_err());
        assert!(fails(|| (inner(), many[4].set(50), inner())).is_err());
        assert!(many.iter().map(State::get).eq(0..9));
    }

    #[test]
    fn a_panic_puts_back() {
        let a = State::new("before");
        let panics = std::panic::AssertUnwindSafe(|| {
            all_or_nothing(|| -> Result<()> {
                a.set("after");
                panic!("user")
            })
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(a.get(), "before");
        a.set("after");
        assert_eq!(a.get(), "after");
    }

    #[test]
    fn what_another_thread_changed_meanwhile_stays() {
        let a = State::new(0);
        let add = |n| *a.lock() += n;
        let other = || std::thread::scope(|s| s.spawn(|| add(10)).join().unwrap());
        assert!(fails(|| (add(1), other())).is_err());
        assert_eq!(a.get(), 11);
        // A change that came before the attempt's own does not prevent restoring.
        assert!(fails(|| (other(), add(1))).is_err());
        assert_eq!(a.get(), 21);
        let (value, changes) = a.versioned();
        other();
        assert!(!a.replace(value + 1, changes) && a.get() == 31);
        // The same holds if an inner attempt was restored in between.
        assert!(fails(|| (fails(|| a.set(0)), other())).is_err());
        assert_eq!(a.get(), 41);
    }

    #[test]
    fn an_attempt_that_outlives_the_one_around_it_touches_no_other() {
        let a = State::new(0);
        let (outer, inner) = (Attempt::begin(), Attempt::begin());
        a.set(1);
        outer.end(Ok(())).unwrap();
        let (next, last) = (Attempt::begin(), Attempt::begin());
        a.set(2);
        // `inner` ended together with `outer`, so it does not own what `last` changed.
        drop(inner);
        assert_eq!(a.get(), 2);
        drop(last);
        assert_eq!(a.get(), 1);
        next.end(Ok(())).unwrap();
        assert_eq!(a.get(), 1);
    }

    #[test]
    fn passes_without_end_are_an_error() {
        fn inside(n: usize) -> Result<usize> {
            let attempt = Attempt::forward()?;
            attempt.end(if n == 0 { Ok(0) } else { inside(n - 1).map(|m| m + 1) })
        }
        assert_eq!(inside(MAX_PASSES - 1).unwrap(), MAX_PASSES - 1);
        let e = inside(MAX_PASSES).unwrap_err().to_string();
        assert!(e.contains("more than 128 deep"), "{e}");
        assert_eq!(inside(3).unwrap(), 3);
    }
}
