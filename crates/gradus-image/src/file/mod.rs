//! PNG and JPEG files.

mod jpeg;
mod orientation;
mod png;
mod raster;
mod read;
mod samples;
mod write;

use std::path::Path;

use gradus_tensor::{Error, Result};

pub(crate) use jpeg::nearest;
pub(crate) use raster::{Sized, head, section, whole};
pub(crate) use read::read_whole;
pub use read::{LoadOptions, decode, load};
pub use write::{SaveOptions, encode, save};

/// A format of image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Portable Network Graphics: lossless; 1, 3 or 4 channels of 8 or 16 bits.
    Png,
    /// JPEG: small, but lossy; 1 or 3 channels of 8 bits.
    Jpeg,
}

impl Format {
    /// The format that the extension of a file name indicates: `.png`, `.jpg` or `.jpeg`, in upper or lower case.
    ///
    /// # Errors
    /// Returns an error if the name has a different extension.
    #[track_caller]
    pub fn of_name(path: impl AsRef<Path>) -> Result<Format> {
        let path = path.as_ref();
        let end = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match end.as_deref() {
            Some("png") => Ok(Format::Png),
            Some("jpg" | "jpeg") => Ok(Format::Jpeg),
            _ => {
                let e = Error::argument("image", format!("{}: the name says no format", path.display()));
                Err(e.help("end the name with .png, .jpg or .jpeg"))
            }
        }
    }

    /// The format that the first bytes of a file indicate.
    fn of_bytes(bytes: &[u8]) -> Option<Format> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Format::Png)
        } else if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Format::Jpeg)
        } else {
            None
        }
    }
}
