//! Files that appear whole or not at all. [`write()`] is the function with which Gradus writes a file to a path that the
//! user gave. Loggers then append to their files.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable
//! between releases.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod disk;

use std::fs::{self, Metadata};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gradus_backend::{Error, ErrorKind, Here, Result};

pub use disk::{Disk, DiskFile, Os};

/// The longest chain of symbolic links that is followed, the same as on Linux.
const MAX_LINKS: usize = 40;

/// Writes a file atomically: `contents` writes a temporary file in the same folder, which is flushed to the disk and
/// renamed. A reader sees the old contents or the new ones, and after an error the old ones. If `path` is a symbolic
/// link, the link stays and its target is written. The new file has the permissions of the file that it replaces. If
/// `replace` is false, an existing file is an error. On a file system without hard links, however, a file that another
/// program creates at the last moment may still be replaced.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// let path = dir.path().join("a.txt");
/// let one = b"one";
/// gradus_file::write("save", &path, true, |out| out.write_all(one).map_err(|e| gradus_file::failed("save", &path, e)))?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"one");
/// assert!(gradus_file::write("save", &path, false, |_| Ok(())).is_err());
/// # Ok::<(), gradus_backend::Error>(())
/// ```
///
/// # Errors
/// Returns [`ErrorKind::Io`], which names `op`, if `path` is not a regular file (a folder, a pipe, a device), if it
/// exists and `replace` is false, or if it cannot be written. Also returns the errors of `contents`. If a failing disk
/// cannot flush the folder in the end, the new contents are there, and the error says so.
#[track_caller]
pub fn write(op: &str, path: &Path, replace: bool, contents: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_on(&Os, op, path, replace, contents)
}

/// [`write()`] on a disk of your own.
///
/// # Errors
/// The same as those of [`write()`].
#[track_caller]
pub fn write_on(
    disk: &dyn Disk,
    op: &str,
    path: &Path,
    replace: bool,
    contents: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let failed = |e| failed(op, path, e);
    let (target, old) = target(op, path, replace)?;
    let (file, mut temporary) = beside(disk, &target).map_err(failed).here()?;
    let mut out = BufWriter::new(file);
    contents(&mut out).here()?;
    let mut file = out.into_inner().map_err(|e| failed(e.into_error())).here()?;
    if let Some(old) = old {
        // Not every file system has permissions.
        let _ = fs::set_permissions(&temporary.path, old.permissions());
    }
    file.sync().map_err(failed).here()?;
    drop(file);
    if replace || disk.hard_link(&temporary.path, &target).is_err() {
        // Another program has just created a file of this name, or the file system has no hard links.
        if !replace && fs::symlink_metadata(&target).is_ok() {
            return Err(taken(op, path));
        }
        disk.rename(&temporary.path, &target).map_err(failed).here()?;
        // The temporary name is free now, and another program may have taken it: it must not be removed again.
        temporary.path.clear();
    }
    drop(temporary);
    disk.sync_folder(folder_of(&target))
        .map_err(|e| failed(e).note("the new file is there, but may not survive a crash"))
}

/// Checks as far as possible whether [`write()`] will be able to write to `path`. Call it before long work whose result
/// is to be written.
///
/// # Errors
/// The same as those of [`write()`].
#[track_caller]
pub fn check(op: &str, path: &Path, replace: bool) -> Result<()> {
    beside(&Os, &target(op, path, replace)?.0).map_err(|e| failed(op, path, e)).here().map(drop)
}

/// Rejects a path that exists but is not a regular file: a folder, a pipe, a device.
///
/// # Errors
/// Returns [`ErrorKind::Io`] for such a path.
#[track_caller]
pub fn check_regular(op: &str, path: &Path, found: &Metadata) -> Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() { "a folder" } else { "not a regular file" };
    Err(Error::new(ErrorKind::Io, op, format!("{} is {what}", path.display())))
}

/// The error for a file that could not be written, with advice on what to do.
#[track_caller]
pub fn failed(op: &str, path: &Path, e: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let kind = e.kind();
    let e = Error::io(op, path.display(), e);
    match kind {
        Io::NotFound => e.help(format!("make the folder {} first", folder_of(path).display())),
        Io::NotADirectory => e.help("a part of the path is a file, not a folder"),
        Io::PermissionDenied => e.help("write to a folder that you have permission to write to"),
        Io::StorageFull | Io::QuotaExceeded => {
            e.help("make room, or write to another disk; a file that was there before is unchanged")
        }
        Io::ReadOnlyFilesystem => e.help("write to another folder: this disk is read only"),
        _ => e.help("write to another folder or disk; a file that was there before is unchanged"),
    }
}

/// Flushes a folder, so that a rename in it survives a crash, as far as the system can.
pub fn sync_folder(folder: &Path) {
    let _ = Os.sync_folder(folder);
}

/// The file to write (`path`, or its target if it is a link) and its metadata, if it exists.
#[track_caller]
fn target(op: &str, path: &Path, replace: bool) -> Result<(PathBuf, Option<Metadata>)> {
    let found = fs::metadata(path).ok();
    if let Some(found) = &found {
        check_regular(op, path, found).map_err(|e| e.help("give the path of a file"))?;
        if !replace {
            return Err(taken(op, path));
        }
    }
    if path.file_name().is_none() {
        let e = Error::argument(op, format!("{:?} names no file", path.display()));
        return Err(e.help("give the path of a file"));
    }
    Ok((resolved(path).map_err(|e| failed(op, path, e)).here()?, found))
}

/// The target of a link, even if it does not exist yet.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => path = folder_of(&path).join(fs::read_link(&path)?),
            Ok(_) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(path),
            Err(e) => return Err(e),
        }
    }
    Err(std::io::Error::other("the links lead in a circle"))
}

#[track_caller]
fn taken(op: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Io, op, format!("{} is there already", path.display())).help("allow it to be replaced")
}

/// The folder of a file, which is `.` for a path that is only a name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is removed on drop, unless the path has been cleared.
struct Temporary<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = self.disk.remove(&self.path);
        }
    }
}

/// Whether a file of this name is one that [`write()`] has not completed: a killed program left it, unless a program is
/// writing it now.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with(".gradus-") && name.ends_with(".tmp")
}

/// Creates a file in the folder of `path`. Its name is short, because a name that contains that of `path` could exceed
/// the system's limit.
fn beside<'a>(disk: &'a dyn Disk, path: &Path) -> std::io::Result<(Box<dyn DiskFile>, Temporary<'a>)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".gradus-{}-{next}.tmp", std::process::id()));
        match disk.create(&temporary) {
            Ok(file) => return Ok((file, Temporary { disk, path: temporary })),
            // A killed process with the same process number left this file. The next name is tried.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &str = "write";

    fn put(path: &Path, replace: bool, text: &str) -> Result<()> {
        write(OP, path, replace, |out| out.write_all(text.as_bytes()).map_err(|e| failed(OP, path, e)))
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        put(&path, false, "one").unwrap();
        put(&path, true, "two").unwrap();
        assert!(put(&path, false, "three").unwrap_err().to_string().contains("is there already"));
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let half = |out: &mut dyn Write| {
            out.write_all(b"half").unwrap();
            Err(Error::argument("user", "no"))
        };
        assert_eq!(write(OP, &path, true, half).unwrap_err().message(), "no");
        let panics = std::panic::AssertUnwindSafe(|| write(OP, &path, true, |_| panic!("user")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        put(&dir.path().join("n".repeat(250)), true, "long").unwrap();
        assert_eq!(names(dir.path()), ["a.txt".to_owned(), "n".repeat(250)]);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("taken/inside")).unwrap();
        fs::write(dir.path().join("file"), "old").unwrap();
        for (name, says) in [
            ("taken", ["taken is a folder", "give the path of a file"]),
            ("none/a", ["none/a: ", "make the folder"]),
            ("file/inside", ["file/inside: ", "is a file, not a folder"]),
            ("", ["is a folder", "give the path of a file"]),
        ] {
            let path = dir.path().join(name);
            for error in [put(&path, true, "x").unwrap_err(), check(OP, &path, true).unwrap_err()] {
                assert_eq!(error.kind(), &ErrorKind::Io);
                let text = error.to_string();
                assert!(says.iter().all(|s| text.contains(s)) && !text.contains(".gradus-"), "{says:?} in: {text}");
            }
        }
        assert!(put(Path::new("/"), true, "x").is_err() && put(Path::new(""), true, "x").is_err());
        assert_eq!(names(dir.path()), ["file", "taken"]);
    }

    #[test]
    fn a_place_is_checked_before_there_are_contents() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        check(OP, &dir.path().join("a"), true).unwrap();
        assert!(check(OP, &dir.path().join("a"), false).is_err());
        check(OP, &dir.path().join("b"), false).unwrap();
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"old");
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_not_replaced_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link, file) = (dir.path().join("pipe"), dir.path().join("link"), dir.path().join("file"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for special in [pipe.as_path(), Path::new("/dev/null")] {
            assert!(put(special, true, "x").unwrap_err().to_string().contains("is not a regular file"));
        }
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        put(&link, true, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        // The same holds if the target does not exist yet, is reached through a second link, or is relative to the
        // link's folder.
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::os::unix::fs::symlink("second", &first).unwrap();
        std::os::unix::fs::symlink("absent", &second).unwrap();
        check(OP, &first, false).unwrap();
        put(&first, false, "made").unwrap();
        assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
        assert_eq!(fs::read(dir.path().join("absent")).unwrap(), b"made");
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        assert!(put(&dir.path().join("circle"), true, "x").unwrap_err().to_string().contains("circle"));
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_those_of_the_file_before() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        put(&path, true, "one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        put(&path, true, "two").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(dir.path()), ["secret"]);
    }

    #[test]
    fn a_folder_that_is_gone_cannot_be_flushed() {
        let dir = tempfile::tempdir().unwrap();
        Os.sync_folder(dir.path()).unwrap();
        assert!(Os.sync_folder(&dir.path().join("none")).is_err());
        assert_eq!([folder_of(Path::new("a")), folder_of(Path::new("a/b"))], [Path::new("."), Path::new("a")]);
    }

    #[test]
    fn errors_have_the_line_of_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        // The tests of this crate count as code of Gradus, so the error records no line of the user.
        let e = check(OP, &dir.path().join("none/a"), true).unwrap_err();
        assert!(e.location().is_none(), "{e}");
    }
}
