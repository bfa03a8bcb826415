//! Reading.

use std::io::Read;
use std::path::Path;

use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Tensor};

use super::whole::is_whole;
use super::{Format, jpeg, png};
use crate::convert::{to_bytes, to_float};

const OP: &str = "load image";

/// The largest file that is read, in bytes.
const LARGEST_FILE: u64 = 1 << 30;

/// How [`load`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// The dtype of the result: a float dtype (0 to 1), `u8` (0 to 255) or `u16` (0 to 65535). `None` stands for `u8`, and
    /// for f32 if the file has 16 bits a channel.
    pub dtype: Option<DType>,
    /// A file with more pixels is refused before memory is taken for them.
    pub most_pixels: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { dtype: None, most_pixels: 100_000_000 }
    }
}

/// Reads a PNG or JPEG file as `[c, h, w]`: grey gives 1 channel, colours (also from a palette) 3, and with transparency
/// it is 4, of grey images too. The contents decide about the format, not the name. The orientation that a camera noted is
/// applied; colour profiles are not.
///
/// # Errors
/// A file that cannot be read, is neither, is cut off or damaged, or has too many pixels.
pub fn load(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Result<Tensor> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let unreadable = |e| Error::io(OP, &name, e).help("give the path of a PNG or JPEG file that can be read");
    // Before it is opened: opening a pipe waits for its other end.
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        let e = Error::new(ErrorKind::Io, OP, format!("{name} is not a file"));
        return Err(e.help("give the path of a PNG or JPEG file"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST_FILE {
        let e = Error::new(ErrorKind::Format, OP, format!("{name} has more than {LARGEST_FILE} bytes"));
        return Err(e.help("give a smaller file"));
    }
    decode(&bytes, &name, device, options)
}

/// [`load`] of a file's bytes; `name` is what errors call it.
///
/// # Errors
/// As [`load`].
pub fn decode(bytes: &[u8], name: &str, device: &Device, options: LoadOptions) -> Result<Tensor> {
    if let Some(dtype) = options.dtype.filter(|d| !d.is_float() && !matches!(d, DType::U8 | DType::U16)) {
        return Err(Error::dtype(OP, dtype, "u8, u16 or floats"));
    }
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name} {what}"));
    let Some(format) = Format::of_bytes(bytes) else {
        return Err(bad("is neither a PNG nor a JPEG picture".into()).help("convert it to PNG first"));
    };
    fn damaged(e: impl std::fmt::Display) -> String {
        format!("is damaged, or of a kind that is not supported: {e}")
    }
    let whole = |what| bad(what).help("give a whole PNG or JPEG file");
    let (width, height) = match format {
        Format::Png => png::size(bytes).map_err(damaged),
        Format::Jpeg => jpeg::size(bytes).map_err(damaged),
    }
    .map_err(whole)?;
    if u64::from(width) * u64::from(height) > options.most_pixels as u64 {
        let e = bad(format!("has {width} x {height} pixels, more than the {} allowed", options.most_pixels));
        return Err(e.help("make it smaller first, or allow more (LoadOptions::most_pixels)"));
    }
    if !is_whole(bytes, format) {
        return Err(bad("is cut off: its end is missing".into()).help("give a whole file"));
    }
    let picture = match format {
        // 8 bytes a pixel at most, and as much again for the decoder.
        Format::Png => {
            png::read(bytes, options.most_pixels.saturating_mul(16).saturating_add(1 << 20)).map_err(damaged)
        }
        Format::Jpeg => jpeg::read(bytes).map_err(damaged),
    }
    .map_err(whole)?;
    let deep = picture.dtype() == DType::U16;
    let pixels = picture.tensor(device)?;
    let dtype = options.dtype.unwrap_or(if deep { DType::F32 } else { DType::U8 });
    match (deep, dtype) {
        (false, DType::U8) | (true, DType::U16) => Ok(pixels),
        // 255 * 257 is 65535.
        (false, DType::U16) => pixels.to_dtype(DType::U16)?.mul(257),
        (true, DType::U8) => to_bytes(&pixels),
        _ => to_float(&pixels, dtype),
    }
}
