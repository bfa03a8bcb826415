//! [`RunFolder`]: the folder to which a run writes its files. Files appear whole or not at all, and nothing is
//! overwritten unless the caller allows it.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::claim::{self, Claim, WORK};

/// A folder for the files of one run.
///
/// The folder is created immediately, so that a bad path is an error before the work starts. It is also claimed: no
/// other run can use it until the `RunFolder` is dropped or the program ends, however it ends. The claim is a locked
/// file in a folder `.gradus-run`, which also contains files until they are complete. If nothing was written, dropping
/// removes the folders that were created.
///
/// On a file system without locks, a claim that a killed program left cannot be distinguished from one that is held. It
/// is respected, unless files may be overwritten.
///
/// ```
/// use gradus_train::RunFolder;
/// # let dir = tempfile::tempdir().unwrap();
/// let out = dir.path().join("out/digits");
/// let run = RunFolder::create(&out, false)?;
/// run.write("metrics.csv", b"epoch,loss\n")?;
/// assert!(RunFolder::create(&out, false).is_err(), "a used folder is kept");
/// assert!(RunFolder::next_free(&out)?.path().ends_with("out/digits-2"));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    overwrite: bool,
    /// Folders that did not exist before, outermost first.
    made: Vec<PathBuf>,
    claim: Claim,
    /// The names of the files that this run wrote and may replace.
    written: Mutex<Vec<String>>,
}

/// The result of an attempt to claim a folder.
enum Attempt {
    Made(RunFolder),
    /// The path is already in use.
    Taken(Error),
}

impl RunFolder {
    /// Opens the folder at `path`, which is created if it does not exist. A folder that is not empty is an error unless
    /// `overwrite` is set. Even then, only files with the same names are replaced, when they are written. A folder that
    /// another run is using is always an error.
    ///
    /// `.` and `..` in `path` are resolved first, so that no folders are created for them.
    #[track_caller]
    pub fn create(path: impl AsRef<Path>, overwrite: bool) -> Result<Self> {
        match RunFolder::attempt(path.as_ref(), overwrite)? {
            Attempt::Made(folder) => Ok(folder),
            Attempt::Taken(e) => Err(e),
        }
    }

    /// Opens the first folder of `base`, `base-2`, `base-3`, .. that is unused.
    #[track_caller]
    pub fn next_free(base: impl AsRef<Path>) -> Result<Self> {
        let base = base.as_ref();
        for number in 1..10_000 {
            let mut path = base.as_os_str().to_owned();
            if number > 1 {
                path.push(format!("-{number}"));
            }
            if let Attempt::Made(folder) = RunFolder::attempt(Path::new(&path), false)? {
                return Ok(folder);
            }
        }
        Err(Error::new(ErrorKind::Io, "out", format!("{} and its numbered successors are all used", base.display()))
            .help("remove old runs, or name another folder"))
    }

    #[track_caller]
    fn attempt(path: &Path, overwrite: bool) -> Result<Attempt> {
        if path.as_os_str().is_empty() {
            return Err(Error::argument("out", "the path of the output folder is empty").help("name a folder"));
        }
        let path = normal(path);
        match fs::metadata(&path) {
            Ok(meta) if !meta.is_dir() => {
                let m = format!("{} is a file, not a folder", path.display());
                let e = Error::new(ErrorKind::Io, "out", m).help("name a folder that does not exist yet");
                return Ok(Attempt::Taken(e));
            }
            Ok(_) if !overwrite && !is_empty(&path)? => return Ok(Attempt::Taken(not_empty(&path))),
            _ => {}
        }
        let mut made: Vec<PathBuf> =
            path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).map(PathBuf::from).collect();
        made.reverse();
        let claim = match Claim::take(&path, overwrite, File::try_lock) {
            Ok(claim::Attempt::Claimed(claim)) => claim,
            Ok(claim::Attempt::Held(process)) => return Ok(Attempt::Taken(in_use(&path, process))),
            Ok(claim::Attempt::Unknown(e)) => return Ok(Attempt::Taken(perhaps_in_use(&path, e))),
            Err(e) => {
                remove_empty(&made);
                let e = Error::io("out", path.display(), e);
                return Err(e.help("name a folder that can be made and written to"));
            }
        };
        // From here on, dropping `folder` cleans up.
        let folder = RunFolder { path, overwrite, made, claim, written: Mutex::default() };
        // Another run may have written files since the first check.
        if !overwrite && !is_empty(&folder.path)? {
            return Ok(Attempt::Taken(not_empty(&folder.path)));
        }
        Ok(Attempt::Made(folder))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path at which a file is stored until it is published.
    pub(crate) fn work_file(&self, name: &str) -> PathBuf {
        self.claim.path(name)
    }

    /// Checks that files with these names can be written: they must not exist yet, unless they may be replaced.
    #[track_caller]
    pub fn check(&self, names: &[&str]) -> Result<()> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let path = self.file(name);
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                let m = format!("{} is a folder; a file is to be written there", path.display());
                return Err(Error::new(ErrorKind::Io, "out", m).help("move it away, or name another output folder"));
            }
            if !self.overwrite && !written.iter().any(|w| w == name) {
                let m = format!("{} appeared during the run; it is kept", path.display());
                return Err(Error::new(ErrorKind::Io, "out", m)
                    .help("name another folder, or allow replacing the files in it (--force)"));
            }
        }
        Ok(())
    }

    /// Records that this run wrote these files.
    pub(crate) fn wrote(&self, names: impl IntoIterator<Item = String>) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
    }

    /// Ends the claim on the folder, and removes the folders that it created if they are empty. Dropping does the same.
    /// This method is for a handler that ends the program without dropping anything.
    pub fn release(&self) {
        self.claim.release();
        remove_empty(&self.made);
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        self.release();
    }
}

/// Removes the empty ones among `folders`, innermost first. The list starts with the outermost folder.
fn remove_empty(folders: &[PathBuf]) {
    for folder in folders.iter().rev() {
        // `remove_dir` removes only empty folders, as intended.
        let _ = fs::remove_dir(folder);
    }
}

/// The path without `.`, and without `..` where it cancels a component that is not a link.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match (part, out.components().next_back()) {
            (Component::CurDir, _) | (Component::ParentDir, Some(Component::RootDir)) => {}
            (Component::ParentDir, Some(Component::Normal(_))) if !out.is_symlink() => drop(out.pop()),
            _ => out.push(part),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

/// Whether the folder is empty, apart from the claim of a run.
#[track_caller]
fn is_empty(path: &Path) -> Result<bool> {
    let failed = |e| Error::io("out", path.display(), e).help("name a folder that can be read and written to");
    for entry in fs::read_dir(path).map_err(failed).here()? {
        if entry.map_err(failed).here()?.file_name() != WORK {
            return Ok(false);
        }
    }
    Ok(true)
}

#[track_caller]
fn not_empty(path: &Path) -> Error {
    Error::new(ErrorKind::Io, "out", format!("{} is not empty", path.display()))
        .help("name another folder, or allow replacing the files in it (--force)")
}

#[track_caller]
fn in_use(path: &Path, process: Option<String>) -> Error {
    let who = process.map(|process| format!(" ({process})")).unwrap_or_default();
    Error::new(ErrorKind::Io, "out", format!("another run is at work in {}{who}", path.display()))
        .help("name another folder, or wait until that run has ended")
}

#[track_caller]
fn perhaps_in_use(path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "out", format!("another run is, or was, at work in {}", path.display()))
        .note(format!("the file system cannot tell which: locking a file there failed ({e})"))
        .with_source(e)
        .help("name another folder; if that run was killed, allow replacing the files in it (--force)")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_without_files_leaves_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        drop(RunFolder::create(dir.path().join("a/b/c"), false).unwrap());
        assert_eq!(names(dir.path()), Vec::<String>::new());
        let run = RunFolder::create(dir.path().join("a/b/c"), false).unwrap();
        run.write("x", b"1").unwrap();
        drop(run);
        assert_eq!(names(&dir.path().join("a/b/c")), ["x"]);
    }

    #[test]
    fn a_used_folder_or_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x"), "old").unwrap();
        let e = RunFolder::create(dir.path(), false).unwrap_err().to_string();
        assert!(e.contains("is not empty") && e.contains("--force"), "{e}");
        let run = RunFolder::create(dir.path(), true).unwrap();
        run.write("y", b"new").unwrap();
        drop(run);
        assert_eq!(names(dir.path()), ["x", "y"]);
        for path in [dir.path().join("x"), dir.path().join("x/y"), PathBuf::new()] {
            assert!(RunFolder::create(&path, true).is_err(), "{}", path.display());
        }
        let e = RunFolder::create("a\0b", false).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Io);
    }

    #[test]
    fn two_runs_never_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("out/a");
        let first = RunFolder::next_free(&base).unwrap();
        let second = RunFolder::next_free(&base).unwrap();
        assert!(first.path() == base && second.path() == dir.path().join("out/a-2"));
        for overwrite in [false, true] {
            let e = RunFolder::create(&base, overwrite).unwrap_err().to_string();
            assert!(e.contains("at work") && e.contains(&std::process::id().to_string()), "{e}");
        }
        drop((first, second));
        // The first run created the parent folder, but could not remove it, because the folder of the second run was
        // still there.
        assert_eq!(names(&dir.path().join("out")), [""; 0]);
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| RunFolder::next_free(dir.path().join("b")))).collect();
            threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
        });
        let paths: std::collections::HashSet<_> = made.iter().map(|run| run.path()).collect();
        assert_eq!(paths.len(), 8);
    }

    #[test]
    fn dots_make_no_folders() {
        let dir = tempfile::tempdir().unwrap();
        for (path, want) in [("a/.", "a"), ("./new/../b", "b"), ("c/d/../../e/", "e")] {
            let run = RunFolder::create(dir.path().join(path), false).unwrap();
            assert_eq!(run.path(), dir.path().join(want));
            assert_eq!(names(dir.path()), [want]);
            drop(run);
            assert_eq!(names(dir.path()), Vec::<String>::new());
        }
        for (path, want) in [("./.", "."), ("a/../..", ".."), ("../../a", "../../a"), ("/../a", "/a"), ("a/..", ".")] {
            assert_eq!(normal(Path::new(path)), Path::new(want), "{path}");
        }
    }
}
