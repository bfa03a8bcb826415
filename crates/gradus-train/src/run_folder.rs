//! [`RunFolder`]: where a run leaves its files. Files appear whole or not at all, and nothing is overwritten unasked.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::path::{Path, PathBuf};

use gradus_tensor::{Error, ErrorKind, Result};

/// Writes a file in one piece: into a temporary file beside it, which is flushed to the disk and then renamed. A reader
/// finds the old contents or the new ones, and after an error the old ones.
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let failed = |e| Error::io("write", path.display(), e).help("check that the folder exists and can be written to");
    let (mut file, temporary) = temporary_beside(path).map_err(failed)?;
    let written = file.write_all(contents).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if let Err(e) = written {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        return Err(failed(e));
    }
    // The rename itself is safe once the folder is; systems that cannot flush a folder need no help here.
    if let Some(Ok(folder)) = path.parent().filter(|p| !p.as_os_str().is_empty()).map(File::open) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// A new, empty file in the folder of `path`, and its path.
fn temporary_beside(path: &Path) -> std::io::Result<(File, PathBuf)> {
    let name = path.file_name().ok_or_else(|| std::io::Error::new(IoKind::InvalidInput, "no file name"))?;
    for attempt in 0.. {
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Err(e) if e.kind() == IoKind::AlreadyExists && attempt < 100 => {}
            opened => return Ok((opened?, temporary)),
        }
    }
    Err(IoKind::AlreadyExists.into())
}

/// A folder for the files of one run.
///
/// It is made at once, so that a bad place is known before the work. If nothing is ever written, dropping it removes
/// the folders that it made.
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
    /// Folders that did not exist before, outermost first.
    made: Vec<PathBuf>,
}

impl RunFolder {
    /// The folder at `path`, made if need be. A folder that holds anything is an error unless `overwrite`; even then only
    /// files of the same names are replaced, one by one, when they are written.
    pub fn create(path: impl AsRef<Path>, overwrite: bool) -> Result<Self> {
        let path = path.as_ref();
        if path.as_os_str().is_empty() {
            return Err(Error::argument("out", "the path of the output folder is empty").help("name a folder"));
        }
        match fs::metadata(path) {
            Ok(meta) if !meta.is_dir() => {
                let m = format!("{} is a file, not a folder", path.display());
                return Err(Error::new(ErrorKind::Io, "out", m).help("name a folder that does not exist yet"));
            }
            Ok(_) if !overwrite && is_used(path)? => {
                let m = format!("{} is not empty", path.display());
                return Err(Error::new(ErrorKind::Io, "out", m)
                    .help("name another folder, or allow replacing the files in it (--force)"));
            }
            _ => {}
        }
        let mut missing: Vec<PathBuf> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).map(PathBuf::from).collect();
        missing.reverse();
        let folder = RunFolder { path: path.to_owned(), made: missing };
        let failed = |e| Error::io("out", path.display(), e).help("name a folder that can be made and written to");
        // From here on dropping `folder` cleans up.
        fs::create_dir_all(path).map_err(failed)?;
        let (probe, probe_path) = temporary_beside(&folder.file("probe")).map_err(failed)?;
        drop(probe);
        fs::remove_file(probe_path).map_err(failed)?;
        Ok(folder)
    }

    /// The first of `base`, `base-2`, `base-3`, .. that is unused.
    pub fn next_free(base: impl AsRef<Path>) -> Result<Self> {
        let base = base.as_ref();
        for number in 1..10_000 {
            let mut path = base.as_os_str().to_owned();
            if number > 1 {
                path.push(format!("-{number}"));
            }
            let path = PathBuf::from(path);
            let free = match fs::metadata(&path) {
                Ok(meta) => meta.is_dir() && !is_used(&path)?,
                Err(_) => true,
            };
            if free {
                return RunFolder::create(path, false);
            }
        }
        Err(Error::new(ErrorKind::Io, "out", format!("{} and its numbered successors are all used", base.display()))
            .help("remove old runs, or name another folder"))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in it in one piece: see [`write_file`].
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<PathBuf> {
        let path = self.file(name);
        write_file(&path, contents)?;
        Ok(path)
    }
}

fn is_used(path: &Path) -> Result<bool> {
    let mut entries = fs::read_dir(path).map_err(|e| Error::io("out", path.display(), e))?;
    Ok(entries.next().is_some())
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // Removes empty folders only, which is what is meant.
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("taken/inside")).unwrap();
        let e = write_file(dir.path().join("taken"), b"x").unwrap_err();
        assert!(e.to_string().contains("taken"), "{e}");
        assert!(write_file(dir.path().join("none/a"), b"x").is_err());
        assert!(write_file("/", b"x").is_err());
        assert_eq!(names(dir.path()), ["taken"]);
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
        assert_eq!(names(dir.path()), ["x", "y"]);
        for path in [dir.path().join("x"), dir.path().join("x/y"), PathBuf::new()] {
            assert!(RunFolder::create(&path, true).is_err(), "{}", path.display());
        }
        let e = RunFolder::create("a\0b", false).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Io);
    }
}
