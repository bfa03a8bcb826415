//! One way to use several threads: [`CpuBackend::parallel_for`], over rayon's workers.
//!
//! Work is cut by size, never by the number of threads: the ranges that a body sees depend on `items` and `grain` alone,
//! so what it computes for each is the same for any number of threads. The calling thread works too, and takes part
//! at once; workers join as they wake, and linger for a moment after, so that the next operation finds them awake. A
//! single range runs inline and touches no rayon at all, which is how small operations stay small.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gradus_backend::{Error, ErrorKind, Result};

use crate::{CpuBackend, scratch};

/// How long a worker looks out for the next job before it goes back to rayon, which lets it sleep.
const LINGER: Duration = Duration::from_micros(30);

/// The workers of a backend.
#[derive(Debug)]
pub(crate) struct Threads {
    /// `None`: rayon's global pool, or no workers beside the caller.
    pool: Option<rayon::ThreadPool>,
    count: usize,
    mail: Arc<Mail>,
}

impl Threads {
    /// Rayon's global pool, whatever its size.
    pub(crate) fn global() -> Threads {
        Threads { pool: None, count: rayon::current_num_threads(), mail: Arc::default() }
    }

    /// The caller and a pool that makes it this many threads, at least 1.
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

    /// Number of threads that work on one operation.
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

    fn run(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let chunks = items.div_ceil(grain);
        if chunks <= 1 || self.count <= 1 {
            for c in 0..chunks {
                body(c * grain..items.min((c + 1) * grain));
            }
            return;
        }
        // SAFETY: only the lifetime changes, and it is a pointer that is kept.
        let body = unsafe {
            std::mem::transmute::<*const (dyn Fn(Range<usize>) + Sync), *const (dyn Fn(Range<usize>) + Sync)>(body)
        };
        let parties = self.count.min(chunks);
        let span = |p| Span { next: AtomicUsize::new(p * chunks / parties), end: (p + 1) * chunks / parties };
        let (joined, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // At most one a thread.
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
        job.work();
        let mut spins = 0u32;
        while job.done.load(Ordering::Acquire) < chunks {
            spins += 1;
            if spins < 2000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.mail.withdraw(&job);
        match job.missing.load(Ordering::Relaxed) {
            0 => {}
            bytes => scratch::note_missing(bytes),
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

/// Where workers that are awake find the newest job.
#[derive(Debug, Default)]
struct Mail {
    newest: Mutex<Option<Arc<Job>>>,
    /// Number of jobs posted so far.
    posted: AtomicUsize,
    /// Number of workers that look out. Only a hint: one may leave as a job is posted, and then the others do the work.
    awake: AtomicUsize,
}

impl Mail {
    /// Shows a job to the workers that are awake; their number.
    fn post(&self, job: &Arc<Job>) -> usize {
        *lock(&self.newest) = Some(job.clone());
        self.posted.fetch_add(1, Ordering::Release);
        self.awake.load(Ordering::Relaxed)
    }

    /// Forgets a job that is done.
    fn withdraw(&self, job: &Arc<Job>) {
        let mut newest = lock(&self.newest);
        if newest.as_ref().is_some_and(|n| Arc::ptr_eq(n, job)) {
            *newest = None;
        }
    }

    /// A worker's life: its job, then every job that is posted soon after the one before.
    fn work(&self, job: Arc<Job>) {
        job.work();
        drop(job);
        loop {
            let seen = self.posted.load(Ordering::Acquire);
            self.awake.fetch_add(1, Ordering::Relaxed);
            let until = Instant::now() + LINGER;
            while self.posted.load(Ordering::Acquire) == seen && Instant::now() < until {
                (0..16).for_each(|_| std::hint::spin_loop());
            }
            self.awake.fetch_sub(1, Ordering::Relaxed);
            if self.posted.load(Ordering::Acquire) == seen {
                return;
            }
            let newest = lock(&self.newest).clone();
            if let Some(job) = newest {
                job.work();
            }
        }
    }
}

/// Neighbouring chunks: `next..end` are left.
#[repr(align(64))]
struct Span {
    next: AtomicUsize,
    end: usize,
}

/// One `parallel_for` under way. A worker that comes late finds no chunk left and never looks at `body`.
struct Job {
    /// One for each thread, which begins with its own: memory is read and written fastest in long stretches.
    spans: Box<[Span]>,
    /// Threads that have begun.
    joined: AtomicUsize,
    done: AtomicUsize,
    items: usize,
    grain: usize,
    /// Valid until `done` has reached the number of chunks: `Threads::run` returns no earlier.
    body: *const (dyn Fn(Range<usize>) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Bytes of working memory that some thread missed.
    missing: AtomicUsize,
}

// SAFETY: the body may be called from any thread, and the rest is shared through atomics and a lock.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} items by {})", self.items, self.grain)
    }
}

impl Job {
    /// Works on the own span, then on what the others have not begun.
    fn work(&self) {
        let own = self.joined.fetch_add(1, Ordering::Relaxed) % self.spans.len();
        let (before, after) = self.spans.split_at(own);
        for span in after.iter().chain(before) {
            loop {
                let c = span.next.fetch_add(1, Ordering::Relaxed);
                if c >= span.end {
                    break;
                }
                let range = c * self.grain..self.items.min((c + 1) * self.grain);
                // SAFETY: chunk `c` is not counted in `done` yet, so the body is still there.
                let body = unsafe { &*self.body };
                if let Err(p) = catch_unwind(AssertUnwindSafe(|| body(range))) {
                    *lock(&self.panic) = Some(p);
                }
                let missing = scratch::take_missing();
                if missing > 0 {
                    self.missing.fetch_max(missing, Ordering::Relaxed);
                }
                // Release: what the body wrote is seen by the caller, which acquires.
                self.done.fetch_add(1, Ordering::Release);
            }
        }
    }
}

impl CpuBackend {
    /// Calls `body` for `0..grain`, `grain..2 * grain`, ..., up to `items`, on all threads; returns when all are done.
    pub(crate) fn parallel_for(&self, items: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
        #[cfg(not(unoptimized))]
        self.threads().run(items, grain.max(1), &body);
        #[cfg(unoptimized)]
        crate::unoptimized::watched(|| self.threads().run(items, grain.max(1), &body));
    }

    /// Calls `body` with the number and the contents of each chunk of `size` elements of `out`, on all threads.
    pub(crate) fn parallel_chunks<T: Send>(&self, out: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
        let size = size.max(1);
        let len = out.len();
        let parts = Disjoint::new(out);
        self.parallel_for(len, size, |range| {
            let c = range.start / size;
            // SAFETY: `parallel_for` hands out each range once, and ranges do not overlap.
            body(c, unsafe { parts.slice(range) });
        });
    }
}

/// A mutable slice of which tasks write parts that do not overlap.
pub(crate) struct Disjoint<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` handed out in parts; each element is reached by one thread at a time, as every method demands.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements `range`, which must lie within the slice (checked).
    ///
    /// # Safety
    /// While the result lives nothing else reads or writes these elements.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slice by the assertion; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }

    /// Writes element `i`, which must lie within the slice (checked).
    ///
    /// # Safety
    /// Nothing else reads or writes this element at the same time.
    pub(crate) unsafe fn write(&self, i: usize, value: T) {
        assert!(i < self.len);
        // SAFETY: inside the slice by the assertion; not raced by the caller's promise.
        unsafe { *self.ptr.add(i) = value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_visited_once_in_the_same_ranges_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let cpu = CpuBackend::with_threads(threads).unwrap();
            for (items, grain) in [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 7)] {
                let seen = Mutex::new(Vec::new());
                cpu.parallel_for(items, grain, |r| seen.lock().unwrap().push((r.start, r.end)));
                let mut seen = seen.into_inner().unwrap();
                seen.sort_unstable();
                let want: Vec<_> = (0..items).step_by(grain).map(|s| (s, items.min(s + grain))).collect();
                assert_eq!(seen, want);
            }
            let mut out = vec![0usize; 1000];
            cpu.parallel_chunks(&mut out, 64, |c, part| part.iter_mut().enumerate().for_each(|(i, v)| *v = c * 64 + i));
            assert!(out.iter().enumerate().all(|(i, &v)| i == v));
        }
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let cpu = CpuBackend::with_threads(3).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    cpu.parallel_for(50, 1, |_| {
                        cpu.parallel_for(10, 1, |r| {
                            total.fetch_add(r.len(), Ordering::Relaxed);
                        });
                    })
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 10);
    }

    #[test]
    fn a_panic_in_a_body_reaches_the_caller() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            cpu.parallel_for(100, 1, |r| assert!(r.start != 63, "here"));
        }));
        assert!(caught.is_err());
    }
}
