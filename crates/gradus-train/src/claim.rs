//! The claim of a run on its folder: a lock that the system releases when the program ends, however it ends.
//!
//! While a run uses a folder, the subfolder `.gradus-run` contains the lock file and the files that are not complete
//! yet. If the program is killed, both stay, but the lock is released. The next run that claims the folder removes
//! them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The working folder of a run, within its folder.
pub(crate) const WORK: &str = ".gradus-run";

/// The file in [`WORK`] that is locked.
const LOCK: &str = "lock";

/// The function that locks a file: [`File::try_lock`], except in tests.
pub(crate) type TryLock = fn(&File) -> Result<(), TryLockError>;

/// A claim on a folder.
#[derive(Debug)]
pub(crate) struct Claim {
    work: PathBuf,
    /// `None` after the claim is released.
    lock: Mutex<Option<File>>,
}

/// The result of an attempt to claim a folder.
#[derive(Debug)]
pub(crate) enum Attempt {
    Claimed(Claim),
    /// Another run is using the folder. Its process is included if it is known.
    Held(Option<String>),
    /// There is a claim, but the file system has no locks, so it is unknown whether the claim is still held.
    Unknown(std::io::Error),
}

impl Claim {
    /// Claims `folder`, creating it if needed. If the file system has no locks, an existing claim is respected unless
    /// `take_over` is set.
    #[track_caller]
    pub(crate) fn take(folder: &Path, take_over: bool, try_lock: TryLock) -> std::io::Result<Attempt> {
        let work = folder.join(WORK);
        let path = work.join(LOCK);
        // Another run may end and remove what this run has just created, found or opened. Then this run tries again.
        let mut last = std::io::Error::new(IoKind::ResourceBusy, "other runs claim it and give it back all the time");
        for _ in 0..1000 {
            // The contents of this folder are removed below, so it must be a real folder, not a link to another one.
            if fs::symlink_metadata(&work).is_ok_and(|found| !found.is_dir()) {
                return Err(std::io::Error::new(IoKind::NotADirectory, format!("{WORK} in it is no folder")));
            }
            let opened = fs::create_dir_all(&work).and_then(|()| open(&path));
            let (mut file, is_new) = match opened {
                Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::AlreadyExists) => {
                    last = e;
                    continue;
                }
                opened => opened?,
            };
            match try_lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let read = file.read_to_string(&mut holder);
                    return Ok(Attempt::Held(read.ok().map(|_| holder).filter(|text| !text.is_empty())));
                }
                Err(TryLockError::Error(e)) if !is_new && !take_over => return Ok(Attempt::Unknown(e)),
                Err(TryLockError::Error(_)) => {}
            }
            if !is_at(&file, &path) {
                continue;
            }
            let claim = Claim { work, lock: Mutex::default() };
            claim.clear(|name| name != LOCK);
            // The process number is for error messages; nothing depends on it.
            let _ = file.set_len(0).and_then(|()| write!(file, "process {}", std::process::id()));
            *claim.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            return Ok(Attempt::Claimed(claim));
        }
        Err(last)
    }

    /// The path of a file in the working folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Ends the claim and removes the working folder.
    pub(crate) fn release(&self) {
        let Some(file) = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.clear(|name| name != LOCK);
        let lock = self.path(LOCK);
        if cfg!(windows) {
            // On Windows, a file that any run has open cannot be removed.
            drop(file);
            let _ = fs::remove_file(&lock);
        } else {
            // The file is removed while it is locked, so that the lock of another run is never removed.
            let _ = fs::remove_file(&lock);
            drop(file);
        }
        let _ = fs::remove_dir(&self.work);
    }

    /// Removes the files in the working folder whose names satisfy `meant` or are not Unicode.
    fn clear(&self, meant: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.work).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_none_or(&meant) {
                // Files that cannot be removed stay in this hidden folder.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

/// Opens the file for reading and writing. Also returns whether this call created it.
#[track_caller]
fn open(path: &Path) -> std::io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(windows)]
    {
        // Others may read and write the file (1 and 2) while it is open, but not delete it (4).
        std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 3);
    }
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(e) if e.kind() == IoKind::AlreadyExists => {
            if !fs::symlink_metadata(path)?.is_file() {
                return Err(std::io::Error::new(IoKind::InvalidInput, format!("{WORK}/{LOCK} in it is no file")));
            }
            Ok((options.open(path)?, false))
        }
        Err(e) => Err(e),
    }
}

/// Whether `path` still refers to this open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata().map(place), fs::metadata(path).map(place)), (Ok(a), Ok(b)) if a == b)
}

/// Whether `path` still refers to this open file. On this system a file cannot be removed while it is open.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::tests::names;

    fn no_locks(_: &File) -> Result<(), TryLockError> {
        Err(TryLockError::Error(IoKind::Unsupported.into()))
    }

    fn take(folder: &Path) -> Attempt {
        Claim::take(folder, false, File::try_lock).unwrap()
    }

    #[test]
    fn a_claim_is_held_until_it_is_released_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let Attempt::Claimed(claim) = take(dir.path()) else { panic!() };
        fs::write(claim.path("a"), "1").unwrap();
        for take_over in [false, true] {
            let held = Claim::take(dir.path(), take_over, File::try_lock).unwrap();
            let Attempt::Held(Some(process)) = held else { panic!("{held:?}") };
            assert_eq!(process, format!("process {}", std::process::id()));
        }
        claim.release();
        assert_eq!(names(dir.path()), [""; 0]);
        let Attempt::Claimed(next) = take(dir.path()) else { panic!() };
        // Dropping the first claim after its release does not end the second one.
        drop(claim);
        assert!(matches!(take(dir.path()), Attempt::Held(_)));
        drop(next);
    }

    #[test]
    fn what_a_killed_run_leaves_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join(WORK);
        fs::create_dir(&work).unwrap();
        fs::write(work.join(LOCK), "process 1").unwrap();
        fs::write(work.join("0-model"), "half").unwrap();
        let Attempt::Claimed(claim) = take(dir.path()) else { panic!() };
        assert_eq!(names(&work), [LOCK]);
        drop(claim);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn without_locks_a_claim_is_respected_unless_it_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let Attempt::Claimed(first) = Claim::take(dir.path(), false, no_locks).unwrap() else { panic!() };
        assert!(matches!(Claim::take(dir.path(), false, no_locks).unwrap(), Attempt::Unknown(_)));
        let Attempt::Claimed(second) = Claim::take(dir.path(), true, no_locks).unwrap() else { panic!() };
        drop((first, second));
        assert_eq!(names(dir.path()), [""; 0]);
        assert!(matches!(Claim::take(dir.path(), false, no_locks).unwrap(), Attempt::Claimed(_)));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (other, file) = (dir.path().join("other"), dir.path().join("file"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("a"), "mine").unwrap();
        fs::write(&file, "mine").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(WORK)).unwrap();
        assert!(Claim::take(dir.path(), true, File::try_lock).is_err());
        fs::create_dir(other.join(WORK)).unwrap();
        std::os::unix::fs::symlink(&file, other.join(WORK).join(LOCK)).unwrap();
        assert!(Claim::take(&other, true, File::try_lock).is_err());
        assert_eq!(
            (fs::read(other.join("a")).unwrap(), fs::read(&file).unwrap()),
            (b"mine".to_vec(), b"mine".to_vec())
        );
    }

    #[test]
    fn of_many_threads_one_at_a_time_holds_the_claim() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let (holders, claims) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while claims.load(Ordering::SeqCst) < 200 {
                        if let Attempt::Claimed(_claim) = take(dir.path()) {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            claims.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                        }
                    }
                });
            }
        });
        assert_eq!(names(dir.path()), [""; 0]);
    }
}
