//! Files that appear whole or not at all: the one way in which Gradus writes a file whose name it is given.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gradus_backend::{Error, ErrorKind, Here, Result};

/// Links that are followed one after the other, as many as Linux follows.
const MAX_LINKS: usize = 40;

/// Has `contents` write a file in one piece: into a temporary file beside it, which is flushed to the disk and then renamed. A
/// reader finds the old contents or the new ones, and after an error the old ones. If `path` is a link, it stays one, and the file
/// that it points to is written. A file that is replaced passes its permissions on. `replace` says whether a file that is there
/// may be replaced; on a file system without hard links one that another program makes at the last moment may be. Errors are
/// those of `op`.
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
/// [`ErrorKind::Io`] if something other than a file is there (a folder, a pipe, a device), if there is a file that must
/// not be replaced, or if it cannot be written; and those of `contents`.
#[track_caller]
pub fn write(op: &str, path: &Path, replace: bool, contents: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let failed = |e| failed(op, path, e);
    let (target, old) = target(op, path, replace)?;
    let (file, mut temporary) = beside(&target).map_err(failed).here()?;
    let mut out = BufWriter::new(file);
    contents(&mut out).here()?;
    let file = out.into_inner().map_err(|e| failed(e.into_error())).here()?;
    if let Some(old) = old {
        // Not every file system has any.
        let _ = file.set_permissions(old.permissions());
    }
    file.sync_all().map_err(failed).here()?;
    drop(file);
    if replace || fs::hard_link(&temporary.0, &target).is_err() {
        // Another program took the name just now; or the file system knows no such links.
        if !replace && fs::symlink_metadata(&target).is_ok() {
            return Err(taken(op, path));
        }
        fs::rename(&temporary.0, &target).map_err(failed).here()?;
        // Its name is free now, and may be that of another program's file.
        temporary.0.clear();
    }
    drop(temporary);
    sync_folder(folder_of(&target));
    Ok(())
}

/// Whether [`write()`] can write to `path`, as far as one can tell before: for work that takes long before there is something
/// to write.
///
/// # Errors
/// As those of [`write()`].
#[track_caller]
pub fn check(op: &str, path: &Path, replace: bool) -> Result<()> {
    beside(&target(op, path, replace)?.0).map_err(|e| failed(op, path, e)).here().map(drop)
}

/// Refuses what is there but is not a regular file: a folder, a pipe, a device.
///
/// # Errors
/// [`ErrorKind::Io`].
#[track_caller]
pub fn check_regular(op: &str, path: &Path, found: &Metadata) -> Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() { "a folder" } else { "not a regular file" };
    Err(Error::new(ErrorKind::Io, op, format!("{} is {what}", path.display())))
}

/// The error of a file that could not be written, with what to do.
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

/// Flushes a folder, so that what was renamed in it survives a crash; systems that cannot do that need no help here.
pub fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// The file to write, `path` or what it links to, and what is there.
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

/// What a path links to, also if nothing is there yet.
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

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is removed when this is dropped, unless its name was taken out.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A new file in the folder of `path`. Its own name is short: a name that contains that of `path` could be longer than a
/// system allows.
fn beside(path: &Path) -> std::io::Result<(File, Temporary)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".gradus-{}-{next}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, Temporary(temporary))),
            // Of a process that was killed and had this number.
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
        // Also where it points to nothing yet, by way of another link, relative to its folder.
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
    fn errors_have_the_line_of_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        // A test of this crate is a line of it: nobody's.
        let e = check(OP, &dir.path().join("none/a"), true).unwrap_err();
        assert!(e.location().is_none(), "{e}");
    }
}
