//! [`Parts`]: checkpoints of which each rank writes a part.
//!
//! A thread of each rank writes a file. Once all ranks have told each other that theirs is there, rank 0 writes the
//! manifest, with which the checkpoint begins to exist. So a rank that is killed or has a full disk leaves the checkpoint
//! before it as the newest one.
//!
//! **Invariant**: a rank removes only a file that it has made itself, and if the others may have received its report, only if
//! it knows that no manifest will name the file.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gradus_file::Disk;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use super::resuming::LOOK;
use crate::checkpoint::{Listed, REST, data_name, write_data};
use crate::ranks::{Ranks, all_have};
use crate::{Checkpoint, Checkpoints};

const OP: &str = "save_checkpoint";

/// How long a file of another rank may take to be seen by rank 0.
const APPEARS: Duration = Duration::from_secs(5);

/// How long the end of a run that has failed waits for a file that is being written.
const ENDS: Duration = Duration::from_secs(5);

pub(super) struct Parts {
    pub(super) ranks: Arc<dyn Ranks>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    /// The folder as rank 0 holds it.
    pub(super) checkpoints: Option<Checkpoints>,
    /// The checkpoint that is being written, on all ranks or on none.
    writing: Option<Writing>,
    rests_until: Option<Instant>,
    /// How long a rank waits for the files of all ranks, where it has to.
    deadline: Duration,
}

/// A part that a thread writes. Dropping it before it was reported removes it, unless the disk stalls.
struct Writing {
    number: u64,
    /// The position of the checkpoint.
    at: Checkpoint,
    thread: Option<JoinHandle<(Result<Listed>, Duration)>>,
    disk: Arc<dyn Disk>,
    file: PathBuf,
    /// Whether this rank has made the file.
    is_made: bool,
    /// Whether the others may know that it is there.
    is_reported: bool,
}

impl Parts {
    pub(super) fn new(
        ranks: Arc<dyn Ranks>,
        disk: Arc<dyn Disk>,
        folder: PathBuf,
        checkpoints: Option<Checkpoints>,
        deadline: Duration,
    ) -> Parts {
        Parts { ranks, disk, folder, checkpoints, writing: None, rests_until: None, deadline }
    }

    /// Whether a checkpoint is being written, or the last one was a short time ago.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some() || self.rests_until.is_some_and(|end| Instant::now() < end)
    }

    /// Whether rank 0 wants to save. All ranks call it, after each step. A checkpoint that all have written is completed.
    /// The inner error is one of saving, which all ranks get.
    pub(super) fn agree(&mut self, wanted: bool) -> Result<Result<bool>> {
        self.look(wanted, false)
    }

    /// What [`agree`](Parts::agree) does. If the file of any rank is late, all ranks give this checkpoint up.
    fn look(&mut self, wanted: bool, is_late: bool) -> Result<Result<bool>> {
        let is_written = self.writing.as_ref().is_none_or(Writing::is_written);
        let mut counts = [wanted && self.ranks.rank() == 0, is_written, is_late].map(|is| f64::from(u8::from(is)));
        self.ranks.sum(&mut counts)?;
        let is_late = counts[2] > 0.0;
        let ends = self.writing.is_some() && (counts[1] == self.ranks.size() as f64 || is_late);
        let done = if ends { self.complete(is_late)? } else { Ok(()) };
        Ok(done.map(|()| counts[0] > 0.0))
    }

    /// Waits until the checkpoint is complete that is being written, if any. A file that is not there within `deadline` is an
    /// error on all ranks.
    #[track_caller]
    pub(super) fn finish(&mut self) -> Result<Result<()>> {
        let begun = Instant::now();
        while self.writing.is_some() {
            if let Err(e) = self.look(false, begun.elapsed() > self.deadline)? {
                return Ok(Err(e));
            }
            // Ranks whose disks are slow still answer the others.
            std::thread::sleep(if self.writing.is_some() { LOOK } else { Duration::ZERO });
        }
        Ok(Ok(()))
    }

    /// Begins to write this rank's part of a checkpoint, after the one before is complete. If a rank has none, no part is
    /// written.
    #[track_caller]
    pub(super) fn begin(&mut self, part: Result<Checkpoint>) -> Result<Result<()>> {
        if let Err(e) = self.finish()? {
            return Ok(Err(e));
        }
        let (name_it, named) = mpsc::channel::<String>();
        let (disk, folder) = (self.disk.clone(), self.folder.clone());
        let ready = part.and_then(Checkpoint::detached).and_then(|part| {
            let Checkpoint { step, epoch, batch, best, .. } = part;
            let at = Checkpoint { step, epoch, batch, best, ..Checkpoint::default() };
            let write = move || {
                let unwanted = |_| Error::argument(OP, "another rank has no part");
                let start = Instant::now();
                (
                    named.recv().map_err(unwanted).and_then(|name| write_data(&*disk, &folder, &name, &part)),
                    start.elapsed(),
                )
            };
            let thread = std::thread::Builder::new().name("gradus-checkpoints".into());
            let thread = thread.spawn(write).map_err(|e| Error::io(OP, "a thread", e)).here()?;
            Ok((at, thread, self.checkpoints.as_ref().map_or(Ok(0), Checkpoints::begin)?))
        });
        let number = ready.as_ref().map(|(.., number)| *number).map_err(Clone::clone);
        let number = match all_have(&*self.ranks, OP, number)? {
            Ok(numbers) => numbers.first().copied().unwrap_or(0),
            Err(e) => return Ok(Err(e)),
        };
        let (at, thread, _) = ready?;
        let name = data_name(number, Some((self.ranks.rank(), self.ranks.size())));
        let (thread, disk, file) = (Some(thread), self.disk.clone(), self.folder.join(&name));
        // The thread waits for it.
        let _ = name_it.send(name);
        self.writing = Some(Writing { number, at, thread, disk, file, is_made: false, is_reported: false });
        Ok(Ok(()))
    }

    /// Publishes the checkpoint once all ranks have written their files, or removes these if one of them failed. If one was
    /// late, the disk of rank 0 may stall as well, and files that nobody else removes stay.
    #[track_caller]
    fn complete(&mut self, is_late: bool) -> Result<Result<()>> {
        let Some(mut writing) = self.writing.take() else { return Ok(Ok(())) };
        let (number, step) = (writing.number, writing.at.step);
        let (written, took) = writing.outcome(self.deadline);
        self.rests_until = Instant::now().checked_add(took * REST);
        writing.is_reported = true;
        let done = match all_have(&*self.ranks, OP, written)? {
            Ok(files) => {
                let publish = |checkpoints: &Checkpoints| {
                    self.see(&files)?;
                    checkpoints.publish(number, &writing.at, files)
                };
                let published = self.checkpoints.as_ref().map_or(Ok(()), publish);
                all_have(&*self.ranks, OP, published)?.map(drop)
            }
            Err(e) => {
                writing.is_reported = false;
                Err(e)
            }
        };
        drop(writing);
        if let (Err(_), Some(checkpoints), false) = (&done, &self.checkpoints, is_late) {
            checkpoints.discard(number);
        }
        Ok(done.map_err(|e| e.note(format!("the checkpoint of step {step} is not saved; those before it are"))))
    }

    /// Fails unless rank 0 sees the files of all ranks.
    #[track_caller]
    fn see(&self, files: &[Listed]) -> Result<()> {
        let end = Instant::now() + APPEARS;
        for (rank, listed) in files.iter().enumerate() {
            let path = self.folder.join(&listed.file);
            while !fs::metadata(&path).is_ok_and(|found| found.len() == listed.bytes) {
                if Instant::now() > end {
                    let m = format!("rank {rank} has written {}, and rank 0 does not see it there", path.display());
                    let e = Error::new(ErrorKind::Io, OP, m);
                    return Err(e.help("put the run into a folder that all machines share, or train without --shard"));
                }
                std::thread::sleep(LOOK);
                // Some network file systems look again only when the folder is read.
                let _ = fs::read_dir(&self.folder).map(Iterator::count);
            }
        }
        Ok(())
    }
}

impl Writing {
    fn is_written(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What the thread has done. One that has not ended is left to itself, and so is what it writes: the next run removes it.
    fn outcome(&mut self, deadline: Duration) -> (Result<Listed>, Duration) {
        if !self.is_written() {
            self.thread = None;
            let m = format!("{} was not written within {deadline:?}: its disk stalls", self.file.display());
            let e =
                Error::new(ErrorKind::Io, OP, m).help("look at its file system; Trainer::save_deadline sets the time");
            return (Err(e), Duration::ZERO);
        }
        let panicked = || (Err(Error::new(ErrorKind::Backend, OP, "the device panicked")), Duration::ZERO);
        let outcome = self.thread.take().map_or_else(panicked, |thread| thread.join().unwrap_or_else(|_| panicked()));
        self.is_made = outcome.0.is_ok();
        outcome
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let end = Instant::now() + ENDS;
        while !self.is_written() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        if self.thread.is_some() && self.is_written() {
            // Its error no longer matters.
            let _ = self.outcome(Duration::ZERO);
        }
        // What stays, because the disk stalls or refuses, is a leftover, which the next run removes.
        if self.is_made && !self.is_reported {
            let _ = self.disk.remove(&self.file);
        }
    }
}
