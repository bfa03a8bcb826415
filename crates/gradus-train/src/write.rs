//! Files that appear whole or not at all.

use std::path::Path;

use gradus_tensor::Result;

const OP: &str = "write";

/// Writes a file in one piece: a reader finds the old contents or the new ones, and after an error the old ones. If `path` is a
/// link to a file, it stays one.
///
/// # Errors
/// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if something other than a file is there (a folder, a pipe, a device), or the
/// file cannot be written.
#[track_caller]
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
    let path = path.as_ref();
    gradus_file::write(OP, path, true, |out| out.write_all(contents).map_err(|e| gradus_file::failed(OP, path, e)))
}

/// Checks whether [`write_file`] could write to `path`, as far as that is known in advance. For long work whose result is
/// written at the end.
///
/// # Errors
/// Those of [`write_file`].
#[track_caller]
pub fn check_file(path: impl AsRef<Path>) -> Result<()> {
    gradus_file::check(OP, path.as_ref(), true)
}
