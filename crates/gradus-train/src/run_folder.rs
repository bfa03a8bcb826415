//! [`RunFolder`]: where a run leaves its files. Files appear whole or not at all, and nothing is overwritten unasked.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

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

/// The file that marks a folder as one that a run is at work in.
const MARKER: &str = ".gradus-run";

/// A folder for the files of one run.
///
/// It is made at once, so that a bad place is known before the work, and a file `.gradus-run` in it keeps other runs out
/// until it is dropped. If nothing is ever written, dropping it removes the folders that it made.
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
    /// What this run's marker holds; `None` before it is made.
    mark: Option<String>,
    /// The files that this run wrote; it may replace them.
    written: Mutex<Vec<String>>,
}

/// What became of an attempt to take a folder.
enum Attempt {
    Made(RunFolder),
    /// Something is there already.
    Taken(Error),
}

impl RunFolder {
    /// The folder at `path`, made if need be. A folder that holds anything, such as another run at work, is an error unless
    /// `overwrite`; even then only files of the same names are replaced, when they are written.
    ///
    /// `.` and `..` in `path` are resolved first, so that no folder is made for them.
    pub fn create(path: impl AsRef<Path>, overwrite: bool) -> Result<Self> {
        match RunFolder::attempt(path.as_ref(), overwrite)? {
            Attempt::Made(folder) => Ok(folder),
            Attempt::Taken(e) => Err(e),
        }
    }

    /// The first of `base`, `base-2`, `base-3`, .. that is unused.
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
            Ok(_) if !overwrite => {
                if let Some(e) = use_of(&path, false)? {
                    return Ok(Attempt::Taken(e));
                }
            }
            _ => {}
        }
        let mut made: Vec<PathBuf> =
            path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).map(PathBuf::from).collect();
        made.reverse();
        let mut folder = RunFolder { path, overwrite, made, mark: None, written: Mutex::default() };
        let path = folder.path.clone();
        let failed = |e| Error::io("out", path.display(), e).help("name a folder that can be made and written to");
        // From here on dropping `folder` cleans up.
        fs::create_dir_all(&path).map_err(failed)?;
        let marker = folder.file(MARKER);
        if overwrite {
            // Whoever left it there: this run takes over.
            if let Err(e) = fs::remove_file(&marker)
                && e.kind() != IoKind::NotFound
            {
                return Err(failed(e));
            }
        }
        let mut file = match OpenOptions::new().write(true).create_new(true).open(&marker) {
            Err(e) if e.kind() == IoKind::AlreadyExists => return Ok(Attempt::Taken(in_use(&path))),
            opened => opened.map_err(failed)?,
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mark = format!("process {}, {} ns\n", std::process::id(), since.as_nanos());
        let marked = file.write_all(mark.as_bytes());
        folder.mark = Some(mark);
        if let Err(e) = marked {
            // It does not hold the mark that dropping looks for.
            let _ = fs::remove_file(&marker);
            return Err(failed(e));
        }
        // Another run may have come and gone since the first look.
        if !overwrite && let Some(e) = use_of(&path, true)? {
            return Ok(Attempt::Taken(e));
        }
        Ok(Attempt::Made(folder))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in it in one piece; a file that this run did not write is replaced only with `overwrite`.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<PathBuf> {
        let mut files = self.stage();
        files.write(name, contents)?;
        files.publish()?;
        Ok(self.file(name))
    }

    /// Begins to write files that appear together.
    pub fn stage(&self) -> StagedFiles<'_> {
        StagedFiles { folder: self, files: Vec::new() }
    }

    /// Checks that files of these names can be written: nothing is in their place, or something that may be replaced.
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

    /// Ends the claim on the folder and removes the folders that it made, if they are empty. Dropping does the same; this is
    /// for a handler that ends the program without dropping anything.
    pub fn release(&self) {
        if let Some(mark) = &self.mark {
            let marker = self.file(MARKER);
            // A run that was allowed to overwrite may have taken over.
            if fs::read_to_string(&marker).is_ok_and(|found| found == *mark) {
                let _ = fs::remove_file(marker);
            }
        }
        for folder in self.made.iter().rev() {
            // Removes empty folders only, which is what is meant.
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        self.release();
    }
}

/// Files of a [`RunFolder`] that are written under other names first and then appear together; without
/// [`publish`](StagedFiles::publish) none of them does.
#[derive(Debug)]
pub struct StagedFiles<'a> {
    folder: &'a RunFolder,
    /// Names, and where the contents are so far.
    files: Vec<(String, PathBuf)>,
}

impl StagedFiles<'_> {
    /// Writes a file to the disk.
    pub fn write(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        self.write_with(name, |path| {
            let failed = |e| Error::io("write", path.display(), e).help("is the disk full?");
            let mut file = File::create(path).map_err(failed)?;
            file.write_all(contents).and_then(|()| file.sync_all()).map_err(failed)
        })
    }

    /// Has `f` write a file at the path that it is given, to the disk.
    pub fn write_with(&mut self, name: &str, f: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let path = self.folder.file(name);
        let failed = |e| Error::io("write", path.display(), e).help("check that the folder can be written to");
        let (_, temporary) = temporary_beside(&path).map_err(failed)?;
        self.files.push((name.to_owned(), temporary.clone()));
        f(&temporary)
    }

    /// Gives all files their names. After an error none of those that were not there before is.
    pub fn publish(mut self) -> Result<()> {
        let names: Vec<&str> = self.files.iter().map(|(name, _)| &**name).collect();
        self.folder.check(&names)?;
        let mut appeared = Vec::new();
        for (name, temporary) in &self.files {
            let path = self.folder.file(name);
            let is_new = fs::symlink_metadata(&path).is_err();
            if let Err(e) = fs::rename(temporary, &path) {
                appeared.iter().for_each(|path| drop(fs::remove_file(path)));
                return Err(Error::io("write", path.display(), e).help("check that the folder can be written to"));
            }
            appeared.extend(is_new.then_some(path));
        }
        // The renames are safe once the folder is; systems that cannot flush a folder need no help here.
        if let Ok(folder) = File::open(&self.folder.path) {
            let _ = folder.sync_all();
        }
        let mut written = self.folder.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.extend(self.files.drain(..).map(|(name, _)| name));
        Ok(())
    }
}

impl Drop for StagedFiles<'_> {
    fn drop(&mut self) {
        for (_, temporary) in &self.files {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// The path without `.`, and without `..` where it undoes a name that is no link.
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

/// Why the folder is not free, if it is not; `marked` if it holds the caller's marker.
fn use_of(path: &Path, marked: bool) -> Result<Option<Error>> {
    let failed = |e| Error::io("out", path.display(), e).help("name a folder that can be read and written to");
    let mut is_empty = true;
    for entry in fs::read_dir(path).map_err(failed)? {
        if entry.map_err(failed)?.file_name() != MARKER {
            is_empty = false;
        } else if !marked {
            return Ok(Some(in_use(path)));
        }
    }
    Ok((!is_empty).then(|| {
        Error::new(ErrorKind::Io, "out", format!("{} is not empty", path.display()))
            .help("name another folder, or allow replacing the files in it (--force)")
    }))
}

fn in_use(path: &Path) -> Error {
    let marker = path.join(MARKER);
    Error::new(ErrorKind::Io, "out", format!("another run is at work in {}", path.display())).help(format!(
        "name another folder; if that run was killed, remove {} or allow replacing files (--force)",
        marker.display()
    ))
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
        let e = RunFolder::create(&base, false).unwrap_err().to_string();
        assert!(e.contains("at work") && e.contains(MARKER) && e.contains("--force"), "{e}");
        // One that is forced takes over, and the end of the first does not end its claim.
        let forced = RunFolder::create(&base, true).unwrap();
        drop(first);
        assert_eq!(names(&base), [MARKER]);
        drop((forced, second));
        // The first run made the folder, and could not remove it while the forced one was at work in it: it stays, free.
        assert_eq!(names(&dir.path().join("out")), ["a"]);
        assert_eq!(names(&base), Vec::<String>::new());
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| RunFolder::next_free(dir.path().join("b")))).collect();
            threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
        });
        let paths: std::collections::HashSet<_> = made.iter().map(|run| run.path()).collect();
        assert_eq!(paths.len(), 8);
    }

    #[test]
    fn staged_files_appear_together_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create(dir.path(), false).unwrap();
        let mut files = run.stage();
        files.write("a", b"1").unwrap();
        assert!(files.write_with("b", |_| Err(Error::argument("b", "no"))).is_err());
        drop(files);
        fs::write(dir.path().join("b"), "theirs").unwrap();
        fs::create_dir(dir.path().join("c")).unwrap();
        for other in ["b", "c"] {
            let mut files = run.stage();
            files.write("a", b"1").unwrap();
            files.write(other, b"2").unwrap();
            let e = files.publish().unwrap_err().to_string();
            assert!(e.contains(other), "{e}");
            assert_eq!(names(dir.path()), [MARKER, "b", "c"]);
        }
        // A run may replace what it wrote.
        run.write("a", b"1").unwrap();
        run.write("a", b"2").unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"2");
        drop(run);
        assert_eq!(names(dir.path()), ["a", "b", "c"]);
        let forced = RunFolder::create(dir.path(), true).unwrap();
        assert!(forced.check(&["a", "b", "new"]).is_ok() && forced.check(&["c"]).is_err());
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
