//! Writes image files.

use std::path::Path;

use gradus_tensor::{DType, Error, ErrorKind, Here, Result, Tensor};

use super::{Format, jpeg, png};
use crate::convert::{to_bytes, to_hwc};

const OP: &str = "save image";

/// Options for [`save`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveOptions {
    /// Whether to replace an existing file. If not, an existing file is an error.
    pub overwrite: bool,
    /// The quality of a JPEG file, 1 to 100.
    pub quality: u8,
}

impl Default for SaveOptions {
    fn default() -> Self {
        SaveOptions { overwrite: true, quality: 90 }
    }
}

/// Writes an image `[c, h, w]` in the format that the file name indicates. Floats (clamped to 0 to 1) and `u8` are
/// written with 8 bits per channel, and `u16` with 16 bits (PNG only). The file appears whole or not at all: it is
/// written under a temporary name, flushed to the disk and renamed.
///
/// # Errors
/// Returns an error if the name indicates no format; if `x` is not an image, or contains NaN; if a JPEG would have an
/// alpha channel or 16 bits per channel; if an existing file may not be replaced; or if the path cannot be written to.
#[track_caller]
pub fn save(path: impl AsRef<Path>, x: &Tensor, options: SaveOptions) -> Result<()> {
    let path = path.as_ref();
    let bytes = encode(x, Format::of_name(path)?, options.quality)?;
    gradus_file::write(OP, path, options.overwrite, |out| {
        out.write_all(&bytes).map_err(|e| gradus_file::failed(OP, path, e))
    })
}

/// Encodes an image `[c, h, w]` as [`save`] writes it. The `quality` (1 to 100) applies to JPEG only.
///
/// # Errors
/// The errors of [`save`], except those of the file system.
#[track_caller]
pub fn encode(x: &Tensor, format: Format, quality: u8) -> Result<Vec<u8>> {
    let shown = |e: Error| e.operand("image", x.shape(), x.dtype(), x.device());
    let &[channels @ (1 | 3 | 4), h, w] = x.shape() else {
        let e = shown(Error::shape(OP, "this is no image [c, h, w] of 1, 3 or 4 channels"));
        return Err(e.help("write the images of a batch one by one: x.select(0, i)?"));
    };
    if h == 0 || w == 0 {
        return Err(shown(Error::argument(OP, "the image has no pixels")));
    }
    if format == Format::Jpeg && channels == 4 {
        let e = shown(Error::argument(OP, "JPEG has no alpha channel"));
        return Err(e.help("write a .png, or leave alpha out: x.narrow(-3, 0, 3)?"));
    }
    if format == Format::Jpeg && x.dtype() == DType::U16 {
        return Err(shown(Error::argument(OP, "JPEG has 8 bits a channel")).help("write a .png"));
    }
    if !(1..=100).contains(&quality) {
        return Err(Error::argument(OP, format!("the quality {quality}")).help("give one from 1 to 100"));
    }
    let rows = to_hwc(&x.detach())?;
    let (bytes, deep) = match x.dtype() {
        DType::U8 => (rows.to_vec::<u8>()?, false),
        DType::U16 => (rows.to_vec::<u16>()?.into_iter().flat_map(u16::to_be_bytes).collect(), true),
        d if d.is_float() => {
            if rows.isnan()?.to_vec::<bool>()?.contains(&true) {
                return Err(shown(Error::argument(OP, "the image has NaN, which is no colour")));
            }
            (to_bytes(&rows)?.to_vec::<u8>()?, false)
        }
        d => return Err(shown(Error::dtype(OP, d, "u8, u16, or floats from 0 to 1"))),
    };
    let failed = |e: &dyn std::error::Error| Error::new(ErrorKind::Format, OP, e.to_string());
    let large = || shown(Error::argument(OP, "the image is too large for a file"));
    match format {
        Format::Png => {
            let (Ok(w), Ok(h)) = (u32::try_from(w), u32::try_from(h)) else { return Err(large().here()) };
            png::write(&bytes, [w, h], channels, deep).map_err(|e| failed(&e).with_source(e)).here()
        }
        Format::Jpeg => {
            let (Ok(w), Ok(h)) = (u16::try_from(w), u16::try_from(h)) else { return Err(large().here()) };
            jpeg::write(&bytes, [w, h], channels, quality).map_err(|e| failed(&e).with_source(e)).here()
        }
    }
}
