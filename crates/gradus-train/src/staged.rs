//! [`StagedFiles`]: files that appear together. [`rescue`]: saves files that cannot be written to their place.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gradus_file::sync_folder;
use gradus_tensor::{Error, Here, Result};

use crate::RunFolder;

/// The files of a [`RunFolder`] that are first written to a hidden folder and then appear together on
/// [`publish`](StagedFiles::publish). Without that call, none of them appears.
///
/// A file may be written again before that; the new version overwrites the old one in place. A run can write its files
/// in their final size before the work starts, and so reserve the disk space that it needs at the end. (File systems
/// that never write in place, such as btrfs and ZFS, do not guarantee this.)
#[derive(Debug)]
pub struct StagedFiles<'a> {
    folder: &'a RunFolder,
    files: Vec<Staged>,
}

#[derive(Debug)]
struct Staged {
    name: String,
    /// Where the contents are stored until they are published.
    path: PathBuf,
    file: File,
}

impl RunFolder {
    /// Writes a file in the folder, whole or not at all. A file that this run did not write is replaced only if
    /// `overwrite` is set.
    #[track_caller]
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<PathBuf> {
        let mut files = self.stage();
        files.write(name, contents)?;
        files.publish()?;
        Ok(self.file(name))
    }

    /// Creates an empty set of files that will appear together.
    pub fn stage(&self) -> StagedFiles<'_> {
        StagedFiles::new(self)
    }
}

impl<'a> StagedFiles<'a> {
    fn new(folder: &'a RunFolder) -> Self {
        StagedFiles { folder, files: Vec::new() }
    }

    /// Stages a file with these contents, and flushes it to the disk.
    #[track_caller]
    pub fn write(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.folder.file(name);
        self.write_with(name, |out| out.write_all(contents).map_err(|e| failed(&path, e)).here())
    }

    /// Stages a file that `f` writes, and flushes it to the disk.
    #[track_caller]
    pub fn write_with(&mut self, name: &str, f: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
        let path = self.folder.file(name);
        let failed = |e| failed(&path, e);
        // The file is not in the list while it is written, because a partly written file must not be published.
        let known = self.files.iter().position(|staged| staged.name == name).map(|at| self.files.remove(at));
        let mut staged = match known {
            Some(staged) => staged,
            None => self.open(name).map_err(failed)?,
        };
        write_to(&mut staged.file, f, &path)?;
        self.files.push(staged);
        Ok(())
    }

    #[track_caller]
    fn open(&self, name: &str) -> std::io::Result<Staged> {
        // Files with the same name may be staged several times at once.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = self.folder.work_file(&format!("{}-{name}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Staged { name: name.to_owned(), path, file })
    }

    /// Moves all files to their final names. If this fails, no file remains that did not exist before.
    #[track_caller]
    pub fn publish(mut self) -> Result<()> {
        let names: Vec<&str> = self.files.iter().map(|staged| &*staged.name).collect();
        self.folder.check(&names)?;
        let mut appeared = Vec::new();
        for staged in &self.files {
            let path = self.folder.file(&staged.name);
            let is_new = fs::symlink_metadata(&path).is_err();
            if let Err(e) = fs::rename(&staged.path, &path) {
                appeared.iter().for_each(|path| drop(fs::remove_file(path)));
                return Err(failed(&path, e));
            }
            appeared.extend(is_new.then_some(path));
        }
        sync_folder(self.folder.path());
        self.folder.wrote(self.files.drain(..).map(|staged| staged.name.clone()));
        Ok(())
    }
}

/// Removes the temporary file. After publishing, no file has that name, and nothing happens.
impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Lets `f` write a whole file, and flushes it to the disk. Errors name `path`.
#[track_caller]
fn write_to(file: &mut File, f: impl FnOnce(&mut dyn Write) -> Result<()>, path: &Path) -> Result<()> {
    let failed = |e| failed(path, e);
    file.rewind().map_err(failed)?;
    let mut out = BufWriter::new(&mut *file);
    f(&mut out).map_err(|e| e.note(format!("while writing {}", path.display())))?;
    out.flush().map_err(failed)?;
    drop(out);
    // Cuts off the rest of a longer, earlier version.
    let end = file.stream_position().map_err(failed)?;
    file.set_len(end).and_then(|()| file.sync_all()).map_err(failed)
}

#[track_caller]
fn failed(path: &Path, e: std::io::Error) -> Error {
    Error::io("write", path.display(), e).help("check that the folder is still there, can be written to and has room")
}

/// Saves files that could not be written to their place because of `error`. For this, `write` writes them to a new
/// folder in the system's temporary folder. Returns `error` with a note that names that folder, or that says why the
/// files could not be saved.
///
/// ```
/// use gradus_train::{RunFolder, rescue};
/// # let dir = tempfile::tempdir().unwrap();
/// let run = RunFolder::create(dir.path().join("run"), false)?;
/// std::fs::remove_dir_all(run.path()).unwrap();
/// let e = run.write("model", b"weights").map_err(|e| rescue(e, |files| files.write("model", b"weights"))).unwrap_err();
/// assert!(e.to_string().contains("saved in"), "{e}");
/// # let folder = e.to_string().split("saved in ").nth(1).unwrap().split(": ").next().unwrap().to_owned();
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn rescue(error: Error, write: impl FnOnce(&mut StagedFiles<'_>) -> Result<()>) -> Error {
    let base = std::env::temp_dir();
    match rescued(&base, write) {
        Ok((path, names, failure)) => {
            let error = error.note(format!("it was saved in {}: {}", path.display(), names.join(", ")));
            match failure {
                Some(e) => error.note(format!("the rest could not be saved there: {}", e.message())),
                None => error,
            }
        }
        Err(e) => error.note(format!("it could not be saved in the temporary folder either: {}", e.message())),
    }
}

/// Returns the new folder in `base`, the names of the files that were written there, and the error that prevented the
/// rest, if there was one.
#[allow(clippy::type_complexity)]
#[track_caller]
fn rescued(
    base: &Path,
    write: impl FnOnce(&mut StagedFiles<'_>) -> Result<()>,
) -> Result<(PathBuf, Vec<String>, Option<Error>)> {
    let path = new_folder(base).map_err(|e| failed(base, e)).here()?;
    let written = RunFolder::create(&path, false).and_then(|folder| {
        let mut files = folder.stage();
        let failure = write(&mut files).err();
        let names: Vec<String> = files.files.iter().map(|staged| staged.name.clone()).collect();
        match failure {
            Some(e) if names.is_empty() => Err(e),
            failure => files.publish().map(|()| (names, failure)),
        }
    });
    if written.is_err() {
        // The folder is empty, so it can be removed.
        let _ = fs::remove_dir(&path);
    }
    written.map(|(names, failure)| (path, names, failure)).here()
}

/// Creates a new folder in `base`. On Unix, only the current user may access it.
#[track_caller]
fn new_folder(base: &Path) -> std::io::Result<PathBuf> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    for attempt in 0.. {
        let path = base.join(format!("gradus-saved-{}-{attempt}", std::process::id()));
        match builder.create(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => {}
            made => return made.map(|()| path),
        }
    }
    Err(std::io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::WORK;
    use crate::run_folder::tests::names;

    #[test]
    fn staged_files_appear_together_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create(dir.path(), false).unwrap();
        let mut files = run.stage();
        files.write("a", b"1").unwrap();
        assert!(files.write_with("b", |_| Err(Error::argument("b", "no"))).is_err());
        drop(files);
        // A file is not published if writing a later version of it fails.
        let mut files = run.stage();
        files.write("a", b"1").unwrap();
        assert!(files.write_with("a", |_| Err(Error::argument("a", "no"))).is_err());
        // The same holds if writing it panics.
        let panics = std::panic::AssertUnwindSafe(|| files.write_with("a", |_| panic!("user")));
        assert!(std::panic::catch_unwind(panics).is_err());
        files.publish().unwrap();
        assert_eq!(names(dir.path()), [WORK]);
        fs::write(dir.path().join("b"), "theirs").unwrap();
        fs::create_dir(dir.path().join("c")).unwrap();
        for other in ["b", "c"] {
            let mut files = run.stage();
            files.write("a", b"1").unwrap();
            files.write(other, b"2").unwrap();
            let e = files.publish().unwrap_err().to_string();
            assert!(e.contains(other), "{e}");
            assert_eq!(names(dir.path()), [WORK, "b", "c"]);
        }
        // A run may replace the files that it wrote.
        run.write("a", b"1").unwrap();
        run.write("a", b"2").unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"2");
        drop(run);
        assert_eq!(names(dir.path()), ["a", "b", "c"]);
        let forced = RunFolder::create(dir.path(), true).unwrap();
        assert!(forced.check(&["a", "b", "new"]).is_ok() && forced.check(&["c"]).is_err());
    }

    #[test]
    fn a_file_that_is_written_again_takes_the_place_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create(dir.path(), false).unwrap();
        let mut files = run.stage();
        files.write("a", &[1; 100_000]).unwrap();
        let before = fs::metadata(&files.files[0].path).unwrap();
        files.write("a", &[2; 70_000]).unwrap();
        let after = fs::metadata(&files.files[0].path).unwrap();
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&before), std::os::unix::fs::MetadataExt::ino(&after));
        assert_eq!((before.len(), after.len()), (100_000, 70_000));
        files.publish().unwrap();
        drop(run);
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), [2; 70_000]);
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn what_cannot_be_written_is_saved_elsewhere_or_the_error_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, saved, failure) = rescued(dir.path(), |files| files.write("a", b"1")).unwrap();
        assert_eq!((names(&path), saved), (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert!(failure.is_none());
        // If one file fails, the files that are complete are still saved.
        let part = rescued(dir.path(), |files| {
            files.write("a", b"1")?;
            files.write_with("b", |_| Err(Error::argument("b", "no")))
        });
        let (path, saved, failure) = part.unwrap();
        assert_eq!((names(&path), saved), (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert_eq!(failure.unwrap().message(), "no");
        assert!(rescued(dir.path(), |_| Err(Error::argument("a", "no"))).is_err());
        assert!(rescued(&dir.path().join("none"), |files| files.write("a", b"1")).is_err());
        assert_eq!(names(dir.path()).len(), 2);
        let e = rescue(Error::argument("first", "full"), |_| Err(Error::argument("second", "no")));
        assert!(e.message() == "full" && e.to_string().contains("either: no"), "{e}");
    }
}
