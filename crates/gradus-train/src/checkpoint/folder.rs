//! [`Checkpoints`]: a folder of checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus_file::{Disk, Os};
use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

use super::file::{self, Listed};
use super::state::Checkpoint;
use super::stored::{Stored, Wanted};
use super::writer::{Place, Writer, after, manifests, numbers};
use crate::claim::{Attempt, Claim};

const OP: &str = "checkpoints";

/// A folder of checkpoints that survives a kill, a full disk and a power cut at any instant.
///
/// A checkpoint is a safetensors file with all tensors and texts, and a small JSON file, the manifest, with its length
/// and checksum. (Ranks of a [`Trainer`](crate::Trainer) that divide the parameters write a safetensors file each, and are
/// read as a whole here.) Each is written under a temporary name, flushed and renamed, and the folder is flushed; the manifest
/// comes last. So a checkpoint exists completely or not at all, and no file is ever overwritten. The newest checkpoints
/// are kept (2, unless set by [`keep`](Checkpoints::keep)), and so is the best one.
///
/// Opening the folder claims it for this process, until the value is dropped or the process ends, however it ends.
/// Incomplete files of a killed process are removed before the first checkpoint is written.
///
/// Checkpoints are written by a thread. If steps are faster than the disk, a checkpoint that is still waiting is
/// replaced by a newer one, so the run never waits. Dropping the value waits for the thread; to see its last error,
/// call [`wait`](Checkpoints::wait) first.
#[derive(Debug)]
pub struct Checkpoints {
    // The first field, so that it is dropped first: the thread must end before the claim does.
    writer: Writer,
    place: Arc<Mutex<Place>>,
    path: PathBuf,
    _claim: Claim,
}

impl Checkpoints {
    /// Opens the folder at `path`, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails if the folder or a manifest in it cannot be read, if the folder cannot be created, or if another process
    /// uses it.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Checkpoints::open_on(Arc::new(Os), path)
    }

    /// Like [`open`](Checkpoints::open), with all writes going to the given disk. It is meant for tests: the example
    /// `kill_test` fills disks and cuts their power.
    #[track_caller]
    pub fn open_on(disk: Arc<dyn Disk>, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |e| Error::io(OP, path.display(), e).help("name a folder that can be made and written to");
        make_folder(&*disk, path).map_err(failed).here()?;
        let claim = match Claim::take(path, true, File::try_lock).map_err(failed).here()? {
            Attempt::Claimed(claim) => claim,
            Attempt::Held(process) => {
                let who = process.map(|process| format!(" ({process})")).unwrap_or_default();
                let m = format!("another run saves its checkpoints in {}{who}", path.display());
                return Err(Error::new(ErrorKind::Io, OP, m).help("name another folder, or wait until that run ends"));
            }
            Attempt::Unknown(e) => return Err(failed(e)),
        };
        let all = numbers(path).map_err(failed).here()?;
        let mut saved = BTreeMap::new();
        for number in manifests(path).map_err(failed).here()? {
            match file::read_manifest(path, number) {
                Ok(manifest) => drop(saved.insert(number, manifest.best)),
                // A manifest of a later version counts, so that its checkpoint is kept until there are enough newer
                // ones.
                Err(e) if *e.kind() == ErrorKind::Unsupported => drop(saved.insert(number, false)),
                Err(e) if *e.kind() == ErrorKind::Format => {}
                Err(e) => return Err(e),
            }
        }
        let next = all.last().map_or(Ok(1), |&last| after(last))?;
        let place = Place { disk, folder: path.to_owned(), keep: 2, saved, next, is_clean: false };
        let place = Arc::new(Mutex::new(place));
        Ok(Checkpoints { writer: Writer::start(place.clone())?, place, path: path.to_owned(), _claim: claim })
    }

    /// Sets how many of the newest checkpoints are kept, at least 1; the best one is kept as well. With two, one may be
    /// damaged by a failing disk.
    #[must_use]
    pub fn keep(self, newest: usize) -> Self {
        self.place().keep = newest.max(1);
        self
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Passes a checkpoint to the writing thread, and returns immediately. If it is the best so far
    /// ([`Checkpoint::best`]), it is kept until there is a better one.
    ///
    /// # Errors
    /// Returns the first error of an earlier checkpoint that has not been returned yet. This checkpoint is written
    /// regardless.
    #[track_caller]
    pub fn save(&self, checkpoint: Checkpoint) -> Result<()> {
        self.writer.save(checkpoint.detached()?)
    }

    /// Whether the thread is busy: it is writing, or has not yet rested for 19 times as long as the last checkpoint
    /// took. A program that saves often should skip a checkpoint while this is true, before copying the state; saving
    /// then takes at most about a twentieth of the time of one processor core. A checkpoint that is passed to
    /// [`save`](Checkpoints::save) is written in any case.
    pub fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Waits until every checkpoint is written.
    ///
    /// # Errors
    /// Returns the first error of a checkpoint that has not been returned yet.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.writer.wait()
    }

    /// The newest checkpoint that is not damaged, with its tensors on `device`; `None` if there are no checkpoints.
    /// Damaged ones are listed in [`Checkpoint::passed_over`].
    ///
    /// # Errors
    /// Fails if all checkpoints are damaged, if one has a later version of the format or cannot currently be read, or
    /// if there is not enough memory. Also returns the error of an earlier [`save`](Checkpoints::save).
    #[track_caller]
    pub fn newest(&self, device: &Device) -> Result<Option<Checkpoint>> {
        Ok(self.find(device, |_| true, None, Wanted::Whole)?.map(|(_, found)| found))
    }

    /// The best checkpoint that exists and is not damaged; otherwise like [`newest`](Checkpoints::newest).
    #[track_caller]
    pub fn best(&self, device: &Device) -> Result<Option<Checkpoint>> {
        Ok(self.find(device, |is_best| is_best, None, Wanted::Whole)?.map(|(_, found)| found))
    }

    /// The number of the checkpoint that [`newest`](Checkpoints::newest) returns, and its texts. `verify` compares the
    /// checksums of the files of one, as [`Stored::verify`] does.
    #[track_caller]
    pub(crate) fn newest_texts(
        &self,
        device: &Device,
        verify: impl Fn(u64) -> Result<()>,
    ) -> Result<Option<(u64, Checkpoint)>> {
        self.find(device, |_| true, Some(&verify), Wanted::Nothing)
    }

    /// The number of a checkpoint whose files are to be written by others.
    #[track_caller]
    pub(crate) fn begin(&self) -> Result<u64> {
        self.place().begin()
    }

    /// Lets a checkpoint exist whose files others have written, in the order of ranks. `at` has its position. If this
    /// fails, nothing of it is left.
    #[track_caller]
    pub(crate) fn publish(&self, number: u64, at: &Checkpoint, files: Vec<Listed>) -> Result<()> {
        let mut place = self.place();
        let written = file::write_manifest(&*place.disk, &self.path, number, at, files);
        place.settle(number, at.best, written)
    }

    /// Removes the files of a checkpoint that was not published.
    pub(crate) fn discard(&self, number: u64) {
        // What cannot be removed is a leftover, which the next run removes.
        let _ = self.place().remove(number);
    }

    #[track_caller]
    fn find(
        &self,
        device: &Device,
        wanted: impl Fn(bool) -> bool,
        verify: Option<&dyn Fn(u64) -> Result<()>>,
        tensors: Wanted,
    ) -> Result<Option<(u64, Checkpoint)>> {
        self.wait()?;
        let mut place = self.place();
        let mut passed_over = Vec::new();
        // A manifest that cannot be read may be that of any checkpoint.
        let all = manifests(&self.path).map_err(|e| Error::io(OP, self.path.display(), e)).here()?;
        for number in all.into_iter().rev() {
            if place.saved.get(&number).is_some_and(|&is_best| !wanted(is_best)) {
                continue;
            }
            let verified = match verify {
                Some(verify) => verify(number),
                None => Stored::verify(&self.path, number, |_| true),
            };
            let opened = match verified {
                Ok(()) => Stored::open(&self.path, number, device),
                Err(e) => Err(e),
            };
            let found = opened.and_then(|stored| match wanted(stored.is_best()) {
                true => stored.read(device, |_, _| tensors.clone()).map(Some),
                false => Ok(None),
            });
            match found {
                Ok(Some(found)) => return Ok(Some((number, Checkpoint { passed_over, ..found }))),
                Ok(None) => {}
                Err(e) if *e.kind() == ErrorKind::Format => {
                    // A damaged checkpoint does not count towards the number to keep.
                    place.saved.remove(&number);
                    passed_over.push(e);
                }
                Err(e) => return Err(e),
            }
        }
        let Some(first) = passed_over.first() else { return Ok(None) };
        let m = format!("no checkpoint in {} can be used: {}", self.path.display(), first.message());
        let e = Error::new(ErrorKind::Format, OP, m).help("copy the files from a backup, or begin the run again");
        Err(passed_over[1..].iter().fold(e, |e, other| e.note(other.message())))
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a folder and its missing parents, and flushes them so that they survive a power cut.
#[track_caller]
fn make_folder(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path)?;
    missing.into_iter().rev().try_for_each(|folder| disk.sync_folder(gradus_file::folder_of(folder)))
}
