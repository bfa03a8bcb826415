//! Worker threads that prepare batches in advance.
//!
//! Worker `w` of `n` makes the batches `w`, `w + n`, `w + 2 n`, .. and sends them through its own bounded channel. The
//! receiver takes batch `i` from channel `i mod n`: batches arrive in order without sorting, and a slow receiver makes
//! the workers wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use gradus_tensor::{Error, ErrorKind, Here, Result};

/// The workers of one epoch. Dropping this stops them and joins their threads.
pub(crate) struct Workers<B> {
    channels: Vec<Receiver<Result<B>>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl<B: Send + 'static> Workers<B> {
    /// Starts `workers` threads (at least one) for `count` batches. Each holds at most `prefetch` finished batches
    /// ready. `make` returns `None` once it is told to stop.
    #[track_caller]
    pub(crate) fn start(
        workers: usize,
        prefetch: usize,
        count: usize,
        make: impl Fn(usize, &dyn Fn() -> bool) -> Option<Result<B>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (workers, make) = (workers.max(1), Arc::new(make));
        // A channel allocates its whole capacity, so the capacity is at most the number of batches.
        let prefetch = prefetch.min(count.div_ceil(workers)).max(1);
        // Filled in place: if a thread cannot start, dropping `all` stops the threads that did.
        let mut all = Workers { channels: Vec::new(), threads: Vec::new(), stop: Arc::new(AtomicBool::new(false)) };
        for worker in 0..workers {
            let (sender, receiver) = sync_channel(prefetch);
            let (make, stop) = (make.clone(), all.stop.clone());
            let body = move || work(&sender, (worker..count).step_by(workers), &stop, &*make);
            let thread = std::thread::Builder::new().name(format!("gradus-data-{worker}")).spawn(body);
            let failed =
                |e| Error::new(ErrorKind::Backend, "data_loader", "a worker thread could not start").with_source(e);
            all.threads.push(thread.map_err(failed).here()?);
            all.channels.push(receiver);
        }
        Ok(all)
    }
}

impl<B> Workers<B> {
    /// Batch `i`; batches must be received in order. `None` if its worker has ended.
    pub(crate) fn receive(&self, i: usize) -> Option<Result<B>> {
        self.channels.get(i % self.channels.len().max(1))?.recv().ok()
    }
}

fn work<B>(
    sender: &SyncSender<Result<B>>,
    batches: impl Iterator<Item = usize>,
    stop: &AtomicBool,
    make: &(impl Fn(usize, &dyn Fn() -> bool) -> Option<Result<B>> + ?Sized),
) {
    let stopped = || stop.load(Ordering::Relaxed);
    for batch in batches {
        let Some(made) = make(batch, &stopped) else { return };
        let failed = made.is_err();
        if sender.send(made).is_err() || failed {
            return;
        }
    }
}

impl<B> Drop for Workers<B> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Once the receivers are gone, every blocked `send` returns.
        self.channels.clear();
        for thread in self.threads.drain(..) {
            // A worker catches its own panics, so there is nothing to report here.
            let _ = thread.join();
        }
    }
}
