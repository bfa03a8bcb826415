//! The samples of a picture, as a decoder returns them, the memory that they need, and the errors of decoding.

use gradus_tensor::{DType, Error, ErrorKind};

use super::orientation::Orientation;

/// The operation name in errors.
pub(super) const OP: &str = "load image";

/// A decoded picture: samples `[h, w, c]` of `depth` bytes each, in the byte order of the machine.
pub(super) struct Samples {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    pub(super) depth: usize,
    pub(super) values: Vec<u8>,
    pub(super) orientation: Option<Orientation>,
}

/// The size of a picture, which determines how much memory it needs.
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    /// The bytes per sample.
    pub(super) depth: usize,
    /// The bytes that the decoder needs in addition to the samples.
    pub(super) beside: usize,
}

impl Size {
    /// The largest number of bytes that are held at the same time when a file of `file` bytes becomes a tensor of
    /// `dtype`.
    pub(super) fn needed(&self, file: usize, dtype: DType) -> usize {
        let pixels = self.width.saturating_mul(self.height);
        let bytes = |channels: usize, size: usize| pixels.saturating_mul(channels * size);
        let decoded = bytes(self.channels, self.depth);
        // A grey picture with transparency becomes a colour picture with transparency.
        let channels = if self.channels == 2 { 4 } else { self.channels };
        let ordered = if self.channels == 2 { bytes(4, self.depth) } else { decoded };
        let (between, end) = conversion(self.depth == 2, dtype);
        [
            file.saturating_add(self.beside).saturating_add(decoded),
            decoded.saturating_add(decoded),
            decoded.saturating_add(ordered),
            ordered.saturating_add(bytes(channels, between)),
            bytes(channels, between + end),
        ]
        .into_iter()
        .fold(0, usize::max)
    }
}

/// The bytes per element of the intermediate tensor between samples of 16 or 8 bits and `dtype`, and those of the
/// result. If the result needs no further step, the second number is 0.
fn conversion(deep: bool, dtype: DType) -> (usize, usize) {
    match (deep, dtype) {
        (true, DType::U8) => (8, 1),
        (_, DType::U8 | DType::U16 | DType::F32 | DType::F64) => (dtype.size(), 0),
        _ => (4, dtype.size()),
    }
}

/// Why a picture cannot be read.
pub(super) enum Unreadable {
    /// What is wrong with the file, worded as the rest of a sentence that begins with its name.
    Bad(String),
    /// The unsupported feature of the file.
    Foreign(&'static str),
    Other(Error),
}

impl From<String> for Unreadable {
    fn from(what: String) -> Self {
        Unreadable::Bad(what)
    }
}

/// A vector of `length` zeros. Errors if there is not enough memory.
#[track_caller]
pub(super) fn zeros<T: Clone + Default>(length: usize) -> Result<Vec<T>, Unreadable> {
    let mut values = Vec::new();
    let bytes = length.saturating_mul(size_of::<T>());
    values.try_reserve_exact(length).map_err(|_| Unreadable::Other(no_memory("the picture", bytes)))?;
    // The length is at most what was just reserved.
    values.resize(length, T::default());
    Ok(values)
}

#[track_caller]
pub(super) fn no_memory(name: &str, requested: usize) -> Error {
    let m = format!("{name}: there is no memory for {}", shown(requested));
    Error::new(ErrorKind::OutOfMemory { requested }, OP, m).help("make the picture smaller, or free memory")
}

/// Formats a number of bytes with a unit, for people to read.
pub(super) fn shown(bytes: usize) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut number = bytes as f64;
    let mut unit = None;
    for next in units {
        if number < 1024.0 {
            break;
        }
        (number, unit) = (number / 1024.0, Some(next));
    }
    match unit {
        None => format!("{bytes} bytes"),
        Some(unit) if number.fract() == 0.0 => format!("{number} {unit}"),
        Some(unit) => format!("{number:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_a_fitting_unit() {
        let all = [0, 1023, 1024, 1536, 1 << 20, 1 << 30, (5 << 30) / 2, usize::MAX].map(shown);
        assert_eq!(all[..4], ["0 bytes", "1023 bytes", "1 KiB", "1.5 KiB"]);
        assert_eq!(all[4..], ["1 MiB", "1 GiB", "2.5 GiB", "16 EiB"]);
    }

    #[test]
    fn what_is_held_at_once_is_counted() {
        let size = |channels, depth, beside| Size { width: 10, height: 100, channels, depth, beside };
        // The file, the memory of its decoder, and the samples.
        assert_eq!(size(3, 1, 5000).needed(2000, DType::U8), 10_000);
        // Four cases: the samples twice; the samples and an f32 tensor; an f32 and an f16 tensor; and grey with alpha,
        // expanded to four channels, with an f64 tensor.
        assert_eq!(size(3, 1, 0).needed(10, DType::U8), 6000);
        assert_eq!(size(3, 1, 0).needed(10, DType::F32), 15_000);
        assert_eq!(size(1, 1, 0).needed(10, DType::F16), 6000);
        assert_eq!(size(2, 2, 0).needed(10, DType::F64), 8000 + 32_000);
        let vast = Size { width: usize::MAX, height: 2, channels: 4, depth: 2, beside: usize::MAX };
        assert_eq!(vast.needed(usize::MAX, DType::F64), usize::MAX);
    }
}
