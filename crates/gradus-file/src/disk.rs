//! [`Disk`]: the calls to the system that write files. Tests replace it, to fill a disk or to cut its power.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The calls to the system with which [`write_on`](crate::write_on) writes a file. [`Os`] makes them. A test wraps it:
/// to fail at some call, to write less than was requested, or to record what a disk would hold after a power cut.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a file and opens it for writing. A file of this name must not exist.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Moves a file over another one in the same folder, in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Flushes a folder, so that the names in it survive a power cut.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// A file that is open for writing.
pub trait DiskFile: Write + Send {
    /// Flushes the contents, so that they survive a power cut.
    fn sync(&mut self) -> io::Result<()>;
}

/// The disk of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Os;

impl Disk for Os {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Systems and folders that cannot be flushed do not fail.
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        use io::ErrorKind as Io;
        let folder = match File::open(path) {
            Err(e) if matches!(e.kind(), Io::Unsupported | Io::PermissionDenied) => return Ok(()),
            folder => folder?,
        };
        match folder.sync_all() {
            Err(e) if matches!(e.kind(), Io::InvalidInput | Io::Unsupported | Io::PermissionDenied) => Ok(()),
            done => done,
        }
    }
}

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
