//! The worker threads of a backend, built on rayon. This module decides which threads take part in a job, and when the
//! job has ended.
//!
//! The calling thread works too and starts at once. Workers join as they wake up and stay awake for a moment
//! afterwards, in case another operation follows. A job with a single range runs inline, without rayon, which keeps
//! small operations fast.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gradus_backend::{Error, ErrorKind, Result};

use crate::shortage;

/// How long a worker waits for the next job before it returns to rayon, which lets it sleep.
const LINGER: Duration = Duration::from_micros(30);

/// The workers of a backend.
#[derive(Debug)]
pub(crate) struct Threads {
    /// `None` means rayon's global pool or, if `count` is 1, no workers besides the caller.
    pool: Option<rayon::ThreadPool>,
    count: usize,
    mail: Arc<Mail>,
}

impl Threads {
    /// Uses rayon's global pool.
    pub(crate) fn global() -> Threads {
        Threads { pool: None, count: rayon::current_num_threads(), mail: Arc::default() }
    }

    /// Starts `count - 1` workers, which together with the caller make `count` threads (at least 1).
    pub(crate) fn own(count: usize) -> Result<Threads> {
        if count == 1 {
            return Ok(Threads { pool: None, count, mail: Arc::default() });
        }
        let failed =
            |e| Error::new(ErrorKind::Backend, "cpu", format!("{count} threads could not be started")).with_source(e);
        let name = |i| format!("gradus-{i}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count - 1).thread_name(name).build().map_err(failed)?;
        Ok(Threads { pool: Some(pool), count, mail: Arc::default() })
    }

    /// The number of threads that work on one operation.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn spawn(&self, job: Arc<Job>) {
        let mail = self.mail.clone();
        let work = move || mail.work(job);
        match &self.pool {
            Some(pool) => pool.spawn(work),
            None => rayon::spawn(work),
        }
    }

    pub(crate) fn run(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let chunks = items.div_ceil(grain);
        if chunks <= 1 || self.count <= 1 {
            for c in 0..chunks {
                body(c * grain..items.min((c + 1) * grain));
            }
            return;
        }
        // SAFETY: only the lifetime changes, and the result is kept as a raw pointer, which `Job::work` dereferences
        // only while the body is alive.
        let body = unsafe {
            std::mem::transmute::<*const (dyn Fn(Range<usize>) + Sync), *const (dyn Fn(Range<usize>) + Sync)>(body)
        };
        let parties = self.count.min(chunks);
        let span = |p| Span { next: AtomicUsize::new(p * chunks / parties), end: (p + 1) * chunks / parties };
        // The caller has the first span, so that in each job like this it finds the same data in its caches.
        let (joined, done) = (AtomicUsize::new(1), AtomicUsize::new(0));
        // There is at most one span per thread.
        let spans = (0..parties).map(span).collect();
        let job = Arc::new(Job {
            spans,
            joined,
            done,
            items,
            grain,
            body,
            panic: Mutex::new(None),
            missing: AtomicUsize::new(0),
        });
        let awake = self.mail.post(&job);
        for _ in awake.min(parties - 1)..parties - 1 {
            self.spawn(job.clone());
        }
        job.work(0);
        let mut spins = 0u32;
        while job.done.load(Ordering::Acquire) < chunks {
            spins += 1;
            if spins < 2000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.mail.withdraw(&job);
        match job.missing.load(Ordering::Relaxed) {
            0 => {}
            bytes => shortage::note_missing(bytes),
        }
        let panic = lock(&job.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where workers that are awake look for the newest job.
#[derive(Debug, Default)]
struct Mail {
    newest: Mutex<Option<Arc<Job>>>,
    /// Number of jobs posted so far.
    posted: AtomicUsize,
    /// The number of waiting workers. This is only a hint: a worker may stop waiting just as a job is posted, and then
    /// the other threads do its share.
    awake: AtomicUsize,
}

impl Mail {
    /// Posts a job for the workers that are awake, and returns their number.
    fn post(&self, job: &Arc<Job>) -> usize {
        *lock(&self.newest) = Some(job.clone());
        self.posted.fetch_add(1, Ordering::Release);
        self.awake.load(Ordering::Relaxed)
    }

    /// Removes a job that is done.
    fn withdraw(&self, job: &Arc<Job>) {
        let mut newest = lock(&self.newest);
        if newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, job)) {
            *newest = None;
        }
    }

    /// Runs a worker: works on `job`, then on every job that is posted within [`LINGER`] of the end of the previous
    /// one.
    fn work(&self, job: Arc<Job>) {
        job.join();
        drop(job);
        loop {
            let seen = self.posted.load(Ordering::Acquire);
            self.awake.fetch_add(1, Ordering::Relaxed);
            let (until, mut spins) = (Instant::now() + LINGER, 0u32);
            // A pause takes up to 50 ns, so a job is looked for after each.
            while self.posted.load(Ordering::Acquire) == seen && (spins % 16 > 0 || Instant::now() < until) {
                std::hint::spin_loop();
                spins += 1;
            }
            self.awake.fetch_sub(1, Ordering::Relaxed);
            if self.posted.load(Ordering::Acquire) == seen {
                return;
            }
            let newest = lock(&self.newest).clone();
            if let Some(job) = newest {
                job.join();
            }
        }
    }
}

/// A run of neighbouring chunks, of which `next..end` have not been started.
#[repr(align(64))]
struct Span {
    next: AtomicUsize,
    end: usize,
}

/// A `parallel_for` in progress. A worker that comes too late finds no chunks left and never uses `body`.
struct Job {
    /// One span for each thread. A thread starts with its own span because memory is read and written fastest in long
    /// runs.
    spans: Box<[Span]>,
    /// The number of threads that have begun, with the caller.
    joined: AtomicUsize,
    done: AtomicUsize,
    items: usize,
    grain: usize,
    /// Valid until `done` has reached the number of chunks: `Threads::run` does not return earlier.
    body: *const (dyn Fn(Range<usize>) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The size in bytes of the largest block of working memory that a thread could not allocate; 0 if none failed.
    missing: AtomicUsize,
}

// SAFETY: the body is `Sync`, so any thread may call it, and the rest is shared through atomics and a lock.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} items by {})", self.items, self.grain)
    }
}

impl Job {
    /// Works on the job as another thread than its caller.
    fn join(&self) {
        self.work(self.joined.fetch_add(1, Ordering::Relaxed) % self.spans.len());
    }

    /// Works on the thread's own span, then on chunks that other threads have not started.
    fn work(&self, own: usize) {
        let (before, after) = self.spans.split_at(own);
        for span in after.iter().chain(before) {
            loop {
                let c = span.next.fetch_add(1, Ordering::Relaxed);
                if c >= span.end {
                    break;
                }
                let range = c * self.grain..self.items.min((c + 1) * self.grain);
                // SAFETY: chunk `c` is not counted in `done` yet, so the body is still alive.
                let body = unsafe { &*self.body };
                if let Err(p) = catch_unwind(AssertUnwindSafe(|| body(range))) {
                    *lock(&self.panic) = Some(p);
                }
                let missing = shortage::take_missing();
                if missing > 0 {
                    self.missing.fetch_max(missing, Ordering::Relaxed);
                }
                // `Release` makes what the body wrote visible to the caller, which loads with `Acquire`.
                self.done.fetch_add(1, Ordering::Release);
            }
        }
    }
}
