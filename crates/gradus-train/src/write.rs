//! Writes files atomically, so that they appear whole or not at all.

use std::path::Path;

use gradus_tensor::Result;

const OP: &str = "write";

/// Writes a file atomically: a reader sees the old contents or the new ones, and after an error the old ones. If `path`
/// is a link to a file, the link stays.
///
/// # Errors
/// Returns [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if `path` is something other than a file (a folder, a pipe,
/// a device), or if the file cannot be written.
#[track_caller]
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
    let path = path.as_ref();
    gradus_file::write(OP, path, true, |out| out.write_all(contents).map_err(|e| gradus_file::failed(OP, path, e)))
}

/// Checks as far as possible whether [`write_file`] will be able to write to `path`. Call it before long work whose
/// result is to be written.
///
/// # Errors
/// The same as those of [`write_file`].
#[track_caller]
pub fn check_file(path: impl AsRef<Path>) -> Result<()> {
    gradus_file::check(OP, path.as_ref(), true)
}
