//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::path::{Path, PathBuf};

use gradus_tensor::{Error, ErrorKind, Here, Result};

/// Writes a file in one piece: into a temporary file beside it, which is flushed to the disk and then renamed. A reader
/// finds the old contents or the new ones, and after an error the old ones. If `path` is a link to a file, it stays one.
///
/// # Errors
/// [`ErrorKind::Io`] if something other than a file is there (a folder, a pipe, a device), or the file cannot be written.
#[track_caller]
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
    let path = target(path.as_ref())?;
    let failed = |e| failed(&path, e);
    let (mut file, temporary) = temporary_beside(&path).map_err(failed)?;
    let written = file.write_all(contents).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, &path));
    if let Err(e) = written {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        return Err(failed(e));
    }
    sync_folder(path.parent());
    Ok(())
}

/// Whether [`write_file`] can write to `path`, as far as one can tell before: for work that takes long before there is
/// something to write.
///
/// # Errors
/// As those of [`write_file`].
#[track_caller]
pub fn check_file(path: impl AsRef<Path>) -> Result<()> {
    let path = target(path.as_ref())?;
    let (_, temporary) = temporary_beside(&path).map_err(|e| failed(&path, e)).here()?;
    fs::remove_file(&temporary).map_err(|e| failed(&path, e)).here()
}

/// The file to replace: `path`, or what it links to.
#[track_caller]
fn target(path: &Path) -> Result<PathBuf> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let e = Error::new(ErrorKind::Io, "write", format!("{} exists and is not a regular file", path.display()));
        return Err(e.help("give the path of a file"));
    }
    Ok(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
}

#[track_caller]
fn failed(path: &Path, e: std::io::Error) -> Error {
    Error::io("write", path.display(), e).help("check that the folder exists, can be written to and has room")
}

/// A rename is safe once the folder is; systems that cannot flush a folder need no help here.
pub(crate) fn sync_folder(folder: Option<&Path>) {
    if let Some(Ok(folder)) = folder.filter(|p| !p.as_os_str().is_empty()).map(File::open) {
        let _ = folder.sync_all();
    }
}

/// A new, empty file in the folder of `path`, and its path.
#[track_caller]
fn temporary_beside(path: &Path) -> std::io::Result<(File, PathBuf)> {
    let name =
        path.file_name().ok_or_else(|| std::io::Error::new(IoKind::InvalidInput, "the path has no file name"))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::tests::names;

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
        assert!(write_file("", b"x").is_err());
        assert_eq!(names(dir.path()), ["taken"]);
    }

    #[test]
    fn a_place_is_checked_before_there_are_contents() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        assert!(check_file(dir.path()).is_err());
        assert!(check_file(dir.path().join("none/a")).is_err());
        check_file(dir.path().join("a")).unwrap();
        check_file(dir.path().join("b")).unwrap();
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"old");
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_not_replaced_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link, file) = (dir.path().join("pipe"), dir.path().join("link"), dir.path().join("file"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(write_file(&pipe, b"x").unwrap_err().to_string().contains("not a regular file"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }
}
