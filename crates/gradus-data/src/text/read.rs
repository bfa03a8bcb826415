//! [`read_text`]: a text file whole.

use std::path::Path;

use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::memory::read_file;

const OP: &str = "read_text";

/// Reads a text file, which must be UTF-8.
///
/// # Errors
/// Fails if the path is not that of a file that can be read, or if its bytes are not UTF-8. The error then states the
/// first byte that is not, and its line.
#[track_caller]
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let bytes = read_file(path, OP, "a text file")?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
        let m = format!("{}: byte {at}, in line {line}, is not UTF-8", path.display());
        Error::new(ErrorKind::Format, OP, m).help("convert the file to UTF-8, for example by iconv")
    });
    text.here()
}
