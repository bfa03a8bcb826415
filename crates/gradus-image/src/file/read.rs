//! Reads image files.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use super::samples::{OP, Samples, Size, Unreadable, no_memory, shown};
use super::{Format, jpeg, png};
use crate::convert::{to_bytes, to_float};

/// Options for [`load`] and [`decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// The dtype of the result: a float dtype (0 to 1), `u8` (0 to 255) or `u16` (0 to 65535). `None` means `u8`, or
    /// f32 if the file has 16 bits per channel.
    pub dtype: Option<DType>,
    /// The largest number of bytes that reading may use; 1 GiB by default. A file that needs more is refused before
    /// memory is allocated for it. Everything that is held at the same time counts:
    /// * the file, and what its decoder keeps: metadata, a few rows, and for a progressive JPEG (or one whose channels are
    ///   stored one after the other) two bytes for each coefficient;
    /// * the decoded samples, of one byte or two bytes each;
    /// * the tensor of these samples, the result in its dtype, and intermediate tensors.
    pub max_memory: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions { dtype: None, max_memory: 1 << 30 }
    }
}

/// Reads a PNG or JPEG file as `[c, h, w]`. A grey image has 1 channel, and a colour image (also one with a palette)
/// has 3. With transparency, both have 4 channels. The format is detected from the contents, not from the name. The
/// Exif orientation is applied; colour profiles are not.
///
/// # Errors
/// Returns an error if the file cannot be read, is neither PNG nor JPEG, is cut off or damaged at any point, or needs
/// more memory than allowed. A dtype that is not supported is an error too.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Result<Tensor> {
    let path = path.as_ref();
    let bytes = read_whole(path, options.max_memory)?;
    let samples = samples(&bytes, &path.display().to_string(), options)?;
    drop(bytes);
    tensor(samples, device, options.dtype)
}

/// The bytes of a file, which are at most `max_memory`.
#[track_caller]
pub(crate) fn read_whole(path: &Path, max_memory: usize) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let unreadable = |e| Error::io(OP, &name, e).help("give the path of a PNG or JPEG file that can be read");
    // The type of the file is checked before it is opened: opening a pipe waits for its other end.
    let about = std::fs::metadata(path).map_err(unreadable).here()?;
    gradus_file::check_regular(OP, path, &about).map_err(|e| e.help("give the path of a PNG or JPEG file"))?;
    let file = std::fs::File::open(path).map_err(unreadable).here()?;
    let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
    if length > max_memory {
        return Err(over(&name, format!("the file has {}", shown(length)), max_memory));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length + 1).map_err(|_| no_memory(&name, length)).here()?;
    file.take(length as u64 + 1).read_to_end(&mut bytes).map_err(unreadable).here()?;
    Ok(bytes)
}

/// [`load`] for the bytes of a file, which errors call `name`.
///
/// # Errors
/// The same as those of [`load`], except those of reading the file.
#[track_caller]
pub fn decode(bytes: &[u8], name: &str, device: &Device, options: LoadOptions) -> Result<Tensor> {
    tensor(samples(bytes, name, options)?, device, options.dtype)
}

/// The error for a picture of this size that needs too many bytes.
#[track_caller]
pub(super) fn too_large(name: &str, size: &Size, needed: usize, allowed: usize) -> Error {
    let Size { width, height, .. } = size;
    over(name, format!("{width} x {height} pixels take {}", shown(needed)), allowed)
}

#[track_caller]
fn over(name: &str, why: String, allowed: usize) -> Error {
    let m = format!("{name} needs more memory than the {} allowed: {why}", shown(allowed));
    Error::new(ErrorKind::Format, OP, m)
        .help("make it smaller first, or allow more: LoadOptions::max_memory, --max-memory")
}

/// The dtype of the result.
fn target(dtype: Option<DType>, deep: bool) -> DType {
    dtype.unwrap_or(if deep { DType::F32 } else { DType::U8 })
}

#[track_caller]
fn samples(bytes: &[u8], name: &str, options: LoadOptions) -> Result<Samples> {
    if let Some(dtype) = options.dtype.filter(|d| !d.is_float() && !matches!(d, DType::U8 | DType::U16)) {
        return Err(Error::dtype(OP, dtype, "u8, u16 or floats"));
    }
    let allow = |size: Size| {
        let needed = size.needed(bytes.len(), target(options.dtype, size.depth == 2));
        if needed <= options.max_memory {
            return Ok(());
        }
        Err(Unreadable::Other(too_large(name, &size, needed, options.max_memory)))
    };
    choose(bytes, name, |format| match format {
        Format::Png => png::decode(bytes, allow),
        Format::Jpeg => jpeg::decode(bytes, allow),
    })
}

/// Calls a decoder for the format of the file, and turns its errors into those that name the file.
#[track_caller]
pub(super) fn choose<T>(bytes: &[u8], name: &str, decode: impl FnOnce(Format) -> Result<T, Unreadable>) -> Result<T> {
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name} {what}"));
    let Some(format) = Format::of_bytes(bytes) else {
        return Err(bad("is neither a PNG nor a JPEG picture".into()).here().help("convert it to PNG first"));
    };
    // No file is known to make the decoders panic, but files have made earlier versions of them panic.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(format)))
        .unwrap_or_else(|_| Err(Unreadable::Bad("is damaged: its decoder panicked".into())));
    decoded
        .map_err(|e| match e {
            Unreadable::Bad(what) => bad(what).help("give a whole PNG or JPEG file"),
            Unreadable::Foreign(what) => {
                bad(format!("is of a kind that is not supported: {what}")).help("convert it to PNG first")
            }
            Unreadable::Other(e) => e,
        })
        .here()
}

/// The pixels as `[c, h, w]`, upright, in the requested dtype.
#[track_caller]
fn tensor(samples: Samples, device: &Device, dtype: Option<DType>) -> Result<Tensor> {
    let Samples { width, height, channels, depth, values, orientation } = samples;
    let deep = depth == 2;
    let own = if deep { DType::U16 } else { DType::U8 };
    let pixels = Tensor::from_bytes(&values, [height, width, channels], own, device)?;
    drop(values);
    let mut pixels = pixels.permute(&[2, 0, 1])?;
    if channels == 2 {
        let (grey, alpha) = (pixels.narrow(0, 0, 1)?, pixels.narrow(0, 1, 1)?);
        pixels = Tensor::cat(&[&grey, &grey, &grey, &alpha], 0)?;
    }
    let pixels = if let Some(orientation) = orientation { orientation.apply(pixels)? } else { pixels };
    match (deep, target(dtype, deep)) {
        (false, DType::U8) | (true, DType::U16) => pixels.contiguous(),
        (false, DType::U16) => {
            let wide = pixels.to_dtype(DType::U16)?;
            // 255 * 257 is 65535.
            wide.mul_(257)?;
            Ok(wide)
        }
        (true, DType::U8) => to_bytes(&pixels),
        (_, dtype) => to_float(&pixels, dtype),
    }
}
