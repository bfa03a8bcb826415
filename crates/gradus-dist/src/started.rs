//! [`Started`]: the calls of a communicator that go on in the background.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;

use gradus_tensor::backend::{Backend, Binding};
use gradus_tensor::ops::HostCall;
use gradus_tensor::{Error, ErrorKind, Result};

thread_local! {
    /// Whether this is a thread of a communicator, which makes the calls that were started.
    static MAKES_STARTED: Cell<bool> = const { Cell::new(false) };
}

/// What is to be done on the thread of a communicator.
type Job = Box<dyn FnOnce() + Send>;

/// The calls that were started. They are made one after the other, on a thread of their own.
#[derive(Debug, Default)]
pub(crate) struct Started {
    /// The thread, once there is one.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// The number of calls that have not ended.
    count: AtomicUsize,
}

impl Started {
    /// Makes the call `f` after all that were started. What `f` owns is dropped before the receiver has its result.
    pub(crate) fn start<R: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> io::Result<mpsc::Receiver<Result<R>>> {
        let (sender, receiver) = mpsc::channel();
        let this = self.clone();
        self.count.fetch_add(1, Ordering::SeqCst);
        let job = move || {
            let result = f();
            this.count.fetch_sub(1, Ordering::SeqCst);
            // Nobody waits for a result whose receiver was dropped.
            let _ = sender.send(result);
        };
        self.enqueue(Box::new(job)).inspect_err(|_| {
            self.count.fetch_sub(1, Ordering::SeqCst);
        })?;
        Ok(receiver)
    }

    /// Returns when all calls that were started have ended, unless this is the thread that makes them.
    pub(crate) fn settle(&self) {
        if self.count.load(Ordering::SeqCst) == 0 || MAKES_STARTED.get() {
            return;
        }
        let (sender, receiver) = mpsc::channel::<()>();
        // It ends when the sender is dropped, also where there is no thread.
        let _ = self.enqueue(Box::new(move || drop(sender)));
        let _ = receiver.recv();
    }

    fn enqueue(&self, job: Job) -> io::Result<()> {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = mpsc::channel::<Job>();
            thread::Builder::new().name("gradus-ranks".into()).spawn(move || {
                MAKES_STARTED.set(true);
                receiver.into_iter().for_each(|job| job());
            })?;
            *jobs = Some(sender);
        }
        // The thread ends only when the sender is dropped. If it has panicked, the waiting side finds its channel closed.
        let _ = jobs.as_ref().map(|sender| sender.send(job));
        Ok(())
    }
}

/// The end of a call that a captured step starts, of the trace or of the newest replay.
#[derive(Debug, Default)]
pub(crate) struct End(Mutex<Option<mpsc::Receiver<Result<()>>>>);

impl End {
    pub(crate) fn begin(&self, end: mpsc::Receiver<Result<()>>) {
        *lock(&self.0) = Some(end);
    }
}

/// Waits in a captured step for a call that it has started.
pub(crate) struct Wait(pub(crate) Arc<End>);

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wait for a call that was started")
    }
}

impl HostCall for Wait {
    fn name(&self) -> &str {
        "wait"
    }

    /// Two traces have ends of their own.
    fn is_same(&self, other: &dyn HostCall) -> bool {
        (other as &dyn Any).is::<Wait>()
    }

    fn call(&self, _: &dyn Backend, _: &mut [Binding<'_>]) -> Result<()> {
        let gone = || Error::new(ErrorKind::Peer, self.name(), "the thread that made a call has ended");
        match lock(&self.0.0).take() {
            Some(end) => end.recv().unwrap_or_else(|_| Err(gone())),
            // A rank alone makes no call.
            None => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
