//! [`Writer`]: a thread that writes checkpoints while the run continues.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind as IoKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use gradus_file::Disk;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use super::file;
use super::state::Checkpoint;

const OP: &str = "save_checkpoint";

/// After a write, the thread counts as resting for this many times as long as the write took. A checkpoint that is
/// passed to it meanwhile is written regardless.
pub(crate) const REST: u32 = 19;

/// The thread, and the queue of checkpoints to write. Dropping it waits until all are written.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The waiting checkpoints: at most one that is the best so far, and one that is not.
    waiting: Vec<Checkpoint>,
    is_writing: bool,
    /// The time at which the thread has rested enough.
    rests_until: Option<Instant>,
    is_closed: bool,
    /// The first error that has not been returned yet.
    error: Option<Error>,
}

/// What the thread knows about the folder.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    pub(super) keep: usize,
    /// The checkpoints in the folder, and whether each was the best when it was written.
    pub(super) saved: BTreeMap<u64, bool>,
    /// The number of the next checkpoint.
    pub(super) next: u64,
    /// Whether the incomplete files of a killed process have been removed.
    pub(super) is_clean: bool,
}

impl Writer {
    #[track_caller]
    pub(super) fn start(place: Arc<Mutex<Place>>) -> Result<Writer> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("gradus-checkpoints".into());
        let thread = thread.spawn(move || of_thread.run(&place)).map_err(|e| Error::io(OP, "a thread", e)).here()?;
        Ok(Writer { shared, thread: Some(thread) })
    }

    /// Passes a checkpoint to the thread. It replaces one that is still waiting, unless only that one is the best.
    /// Returns an error of an earlier checkpoint; this one is written regardless.
    #[track_caller]
    pub(super) fn save(&self, checkpoint: Checkpoint) -> Result<()> {
        let mut queue = self.shared.lock();
        queue.waiting.retain(|other| other.best && !checkpoint.best);
        queue.waiting.push(checkpoint);
        self.shared.changed.notify_all();
        queue.error.take().map_or(Ok(()), Err).here()
    }

    /// Whether the thread is writing or resting.
    pub(super) fn is_busy(&self) -> bool {
        let queue = self.shared.lock();
        let rests = queue.rests_until.is_some_and(|end| Instant::now() < end);
        queue.is_writing || !queue.waiting.is_empty() || rests
    }

    /// Waits until everything is written.
    #[track_caller]
    pub(super) fn wait(&self) -> Result<()> {
        let mut queue = self.shared.lock();
        while queue.is_writing || !queue.waiting.is_empty() {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.error.take().map_or(Ok(()), Err).here()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, place: &Mutex<Place>) {
        let mut queue = self.lock();
        loop {
            if queue.waiting.is_empty() {
                if queue.is_closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let checkpoint = queue.waiting.remove(0);
            queue.is_writing = true;
            drop(queue);
            let start = Instant::now();
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            let written = catch_unwind(AssertUnwindSafe(|| place.write(&checkpoint)));
            drop(place);
            let written = written.unwrap_or_else(|_| Err(Error::new(ErrorKind::Backend, OP, "the device panicked")));
            queue = self.lock();
            queue.is_writing = false;
            queue.rests_until = Instant::now().checked_add(start.elapsed() * REST);
            if let Err(e) = written {
                let note = format!("the checkpoint of step {} is not saved; those before it are", checkpoint.step);
                queue.error.get_or_insert(e.note(note));
            }
            self.changed.notify_all();
        }
    }
}

impl Place {
    /// Writes a checkpoint, then removes those beyond the number to keep.
    #[track_caller]
    fn write(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let number = self.begin()?;
        let names = [file::data_name(number, None), file::manifest_name(number)];
        let is_taken = names.iter().any(|name| fs::symlink_metadata(self.folder.join(name)).is_ok());
        match file::write(&*self.disk, &self.folder, number, checkpoint) {
            // Files that existed before are kept.
            Err(e) if is_taken => Err(e),
            written => self.settle(number, checkpoint.best, written),
        }
    }

    /// The number of the next checkpoint. It is used up even if the checkpoint fails, so that no file is ever written twice.
    #[track_caller]
    pub(super) fn begin(&mut self) -> Result<u64> {
        let number = self.next;
        self.next = after(number)?;
        if !self.is_clean {
            remove_leftovers(&*self.disk, &self.folder).map_err(|e| gradus_file::failed(OP, &self.folder, e)).here()?;
            self.is_clean = true;
        }
        Ok(number)
    }

    /// After an attempt to write a checkpoint: removes it if that failed, and those beyond the number to keep otherwise.
    #[track_caller]
    pub(super) fn settle(&mut self, number: u64, best: bool, written: Result<()>) -> Result<()> {
        if let Err(e) = written {
            // The manifest may exist even though the folder could not be flushed.
            let _ = self.remove(number);
            return Err(e);
        }
        self.saved.insert(number, best);
        let newest = self.saved.keys().rev().take(self.keep);
        let best = self.saved.iter().rev().find(|(_, best)| **best);
        let kept: BTreeSet<u64> = newest.copied().chain(best.map(|(number, _)| *number)).collect();
        self.saved.retain(|number, _| kept.contains(number));
        // The new checkpoint is safe. A file that cannot be removed only takes up space, and the next checkpoint tries
        // again.
        for number in manifests(&self.folder).unwrap_or_default() {
            if !kept.contains(&number) {
                let _ = self.remove(number);
            }
        }
        Ok(())
    }

    /// Removes a checkpoint, its manifest first: without a manifest, the other files do not count as a checkpoint.
    #[track_caller]
    pub(super) fn remove(&self, number: u64) -> Result<()> {
        let mut paths = vec![self.folder.join(file::manifest_name(number))];
        let failed = |e| gradus_file::failed(OP, &self.folder, e);
        for entry in fs::read_dir(&self.folder).map_err(failed).here()? {
            let name = entry.map_err(failed).here()?.file_name();
            if name.to_str().and_then(file::number) == Some((number, false)) {
                paths.push(self.folder.join(name));
            }
        }
        for path in paths {
            match self.disk.remove(&path) {
                Err(e) if e.kind() != IoKind::NotFound => return Err(gradus_file::failed(OP, &path, e)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The number of the checkpoint after this one.
#[track_caller]
pub(super) fn after(number: u64) -> Result<u64> {
    let m = || Error::argument(OP, format!("the checkpoint before has the number {number}, the largest there is"));
    number.checked_add(1).ok_or_else(|| m().help("name another folder, or rename the files of that checkpoint"))
}

/// The numbers of the files of checkpoints in a folder, in ascending order.
#[track_caller]
pub(super) fn numbers(folder: &Path) -> std::io::Result<Vec<u64>> {
    found(folder, |_| true)
}

/// The numbers of the manifests in a folder, in ascending order.
#[track_caller]
pub(super) fn manifests(folder: &Path) -> std::io::Result<Vec<u64>> {
    found(folder, |is_manifest| is_manifest)
}

#[track_caller]
fn found(folder: &Path, wanted: impl Fn(bool) -> bool) -> std::io::Result<Vec<u64>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let known = entry?.file_name().to_str().and_then(file::number);
        found.extend(known.filter(|(_, is_manifest)| wanted(*is_manifest)).map(|(number, _)| number));
    }
    Ok(found.into_iter().collect())
}

/// Removes the incomplete files of a killed process: temporary files, and the tensors of checkpoints without a
/// manifest.
#[track_caller]
fn remove_leftovers(disk: &dyn Disk, folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let alone = matches!(file::number(name), Some((number, false))
            if fs::symlink_metadata(folder.join(file::manifest_name(number))).is_err() && file::is_ours(&entry.path()));
        if alone || gradus_file::is_temporary(name) {
            // A file that cannot be removed only takes up space.
            let _ = disk.remove(&entry.path());
        }
    }
    Ok(())
}
