//! Disks that fail: one that is full or writes less than it is asked to, and one whose power is cut.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradus::Generator;
use gradus::train::{Disk, DiskFile, Os};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk with room for some bytes, which writes at most 1000 bytes at a time.
#[derive(Debug)]
pub(crate) struct Full {
    room: Arc<Mutex<usize>>,
}

impl Full {
    pub(crate) fn with_room(bytes: usize) -> Full {
        Full { room: Arc::new(Mutex::new(bytes)) }
    }
}

struct FullFile {
    file: Box<dyn DiskFile>,
    room: Arc<Mutex<usize>>,
}

impl Disk for Full {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(FullFile { file: Os.create(path)?, room: self.room.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Os.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Os.hard_link(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        Os.remove(path)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        Os.sync_folder(path)
    }
}

impl Write for FullFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut room = locked(&self.room);
        let n = bytes.len().min(1000).min(*room);
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let done = self.file.write(&bytes[..n])?;
        *room -= done;
        Ok(done)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for FullFile {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

/// What happens when the power is cut.
type OnCut = dyn Fn(&PowerCut) + Send + Sync;

/// A disk of one folder that knows what would be left after a power cut.
///
/// The contents of a file are safe up to its last flush. What was written later may be there, in part, as zeros, or
/// not at all. A name that was made, moved or removed is safe once the folder is flushed. Until then, each such change
/// may be lost for itself, whatever became of the others: this is harsher than file systems with a journal.
///
/// Everything is done on the real disk too, so that the program can read it.
pub(crate) struct PowerCut {
    /// The number of calls after which the power is cut.
    calls: u64,
    /// If false, flushing does nothing: a test that the test notices.
    flushes: bool,
    on_cut: Arc<OnCut>,
    pub(crate) state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    calls: u64,
    files: Vec<Contents>,
    /// The names that are there for the running program, and those that are safe, each with its file.
    now: BTreeMap<PathBuf, usize>,
    safe: BTreeMap<PathBuf, usize>,
    /// The changes of names since the folder was flushed.
    changes: Vec<Change>,
}

#[derive(Debug, Default)]
struct Contents {
    bytes: Vec<u8>,
    /// The length that is safe.
    safe: usize,
}

#[derive(Debug, Clone)]
enum Change {
    Put(PathBuf, usize),
    Move(PathBuf, PathBuf, usize),
    Remove(PathBuf),
}

impl PowerCut {
    /// The disk of a folder, whose files are safe now. After `calls` calls the power is cut, and `on_cut` is called;
    /// every later call fails.
    pub(crate) fn new(folder: &Path, calls: u64, flushes: bool, on_cut: Box<OnCut>) -> PowerCut {
        let mut state = State::default();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if let Ok(bytes) = fs::read(entry.path()) {
                state.safe.insert(entry.path(), state.files.len());
                let safe = bytes.len();
                state.files.push(Contents { bytes, safe });
            }
        }
        state.now = state.safe.clone();
        PowerCut { calls, flushes, on_cut: on_cut.into(), state: Arc::new(Mutex::new(state)) }
    }

    fn call(&self) -> io::Result<()> {
        let mut state = locked(&self.state);
        state.calls += 1;
        let (is_now, is_over) = (state.calls == self.calls, state.calls >= self.calls);
        drop(state);
        if is_now {
            (self.on_cut)(self);
        }
        if is_over { Err(io::Error::other("the power is cut")) } else { Ok(()) }
    }

    /// Fills the folder `to` with what may be left.
    pub(crate) fn left(&self, to: &Path, rng: &mut Generator) -> io::Result<()> {
        let state = locked(&self.state);
        let mut names = state.safe.clone();
        for change in &state.changes {
            if rng.below(2) == 0 {
                continue;
            }
            match change.clone() {
                Change::Put(name, file) => drop(names.insert(name, file)),
                Change::Move(from, name, file) => {
                    names.remove(&from);
                    names.insert(name, file);
                }
                Change::Remove(name) => drop(names.remove(&name)),
            }
        }
        fs::create_dir_all(to)?;
        for (name, file) in names {
            let contents = &state.files[file];
            let mut bytes = contents.bytes.clone();
            let lost = contents.safe + rng.below(bytes.len() - contents.safe + 1);
            match rng.below(4) {
                0 => bytes.truncate(contents.safe),
                1 => bytes.truncate(lost),
                2 => bytes[lost..].fill(0),
                _ => {}
            }
            fs::write(to.join(name.file_name().unwrap_or_default()), bytes)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for PowerCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PowerCut after {} calls", self.calls)
    }
}

struct Recorded {
    file: Box<dyn DiskFile>,
    number: usize,
    disk: PowerCut,
}

impl PowerCut {
    fn handle(&self) -> PowerCut {
        PowerCut { calls: self.calls, flushes: self.flushes, on_cut: self.on_cut.clone(), state: self.state.clone() }
    }

    fn change(&self, f: impl FnOnce(&mut State)) {
        f(&mut locked(&self.state));
    }
}

impl Disk for PowerCut {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.call()?;
        let file = Os.create(path)?;
        let mut state = locked(&self.state);
        let number = state.files.len();
        state.files.push(Contents::default());
        state.now.insert(path.into(), number);
        state.changes.push(Change::Put(path.into(), number));
        Ok(Box::new(Recorded { file, number, disk: self.handle() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        Os.rename(from, to)?;
        self.change(|state| {
            if let Some(file) = state.now.remove(from) {
                state.now.insert(to.into(), file);
                state.changes.push(Change::Move(from.into(), to.into(), file));
            }
        });
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        Os.hard_link(from, to)?;
        self.change(|state| {
            if let Some(&file) = state.now.get(from) {
                state.now.insert(to.into(), file);
                state.changes.push(Change::Put(to.into(), file));
            }
        });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        Os.remove(path)?;
        self.change(|state| {
            state.now.remove(path);
            state.changes.push(Change::Remove(path.into()));
        });
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        Os.sync_folder(path)?;
        if self.flushes {
            self.change(|state| {
                state.safe = state.now.clone();
                state.changes.clear();
            });
        }
        Ok(())
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.call()?;
        let done = self.file.write(bytes)?;
        self.disk.change(|state| state.files[self.number].bytes.extend(&bytes[..done]));
        Ok(done)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for Recorded {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.call()?;
        self.file.sync()?;
        if self.disk.flushes {
            self.disk.change(|state| state.files[self.number].safe = state.files[self.number].bytes.len());
        }
        Ok(())
    }
}
