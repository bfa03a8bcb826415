//! The samples of a picture: what a decoder returns, how much memory they take, and why they cannot be read.

use gradus_tensor::{DType, Error, ErrorKind};

use super::orientation::Orientation;

/// What errors name as the operation.
pub(super) const OP: &str = "load image";

/// A decoded picture: samples of `depth` bytes, in the byte order of the machine, `[h, w, c]`.
pub(super) struct Samples {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    pub(super) depth: usize,
    pub(super) values: Vec<u8>,
    pub(super) orientation: Option<Orientation>,
}

/// The size of a picture, from which the memory that it takes follows.
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    /// Bytes of a sample.
    pub(super) depth: usize,
    /// Bytes that the decoder takes beside the samples.
    pub(super) beside: usize,
}

impl Size {
    /// The most bytes that are held at one time when a file of `file` bytes becomes a tensor of `dtype`.
    pub(super) fn needed(&self, file: usize, dtype: DType) -> usize {
        let pixels = self.width.saturating_mul(self.height);
        let bytes = |channels: usize, size: usize| pixels.saturating_mul(channels * size);
        let decoded = bytes(self.channels, self.depth);
        // Grey with transparency becomes colours.
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

/// Bytes of an element of the intermediate tensor between samples of 16 or 8 bits and `dtype`, and of the result if that is
/// another step.
fn conversion(deep: bool, dtype: DType) -> (usize, usize) {
    match (deep, dtype) {
        (true, DType::U8) => (8, 1),
        (_, DType::U8 | DType::U16 | DType::F32 | DType::F64) => (dtype.size(), 0),
        _ => (4, dtype.size()),
    }
}

/// Why a picture cannot be read.
pub(super) enum Unreadable {
    /// What is wrong with the file, as the rest of a sentence about it.
    Bad(String),
    /// What the file has that is not supported.
    Foreign(&'static str),
    Other(Error),
}

impl From<String> for Unreadable {
    fn from(what: String) -> Self {
        Unreadable::Bad(what)
    }
}

/// A vector of `length` zeros; an error if there is no memory for it.
#[track_caller]
pub(super) fn zeros<T: Clone + Default>(length: usize) -> Result<Vec<T>, Unreadable> {
    let mut values = Vec::new();
    let bytes = length.saturating_mul(size_of::<T>());
    values.try_reserve_exact(length).map_err(|_| Unreadable::Other(no_memory("the picture", bytes)))?;
    // At most what was just reserved.
    values.resize(length, T::default());
    Ok(values)
}

#[track_caller]
pub(super) fn no_memory(name: &str, requested: usize) -> Error {
    let m = format!("{name}: there is no memory for {}", shown(requested));
    Error::new(ErrorKind::OutOfMemory { requested }, OP, m).help("make the picture smaller, or free memory")
}

/// A number of bytes, with a unit, for people to read.
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
        // The file, its decoder and the samples.
        assert_eq!(size(3, 1, 5000).needed(2000, DType::U8), 10_000);
        // The samples twice; then as floats; through f32 to halves.
        assert_eq!(size(3, 1, 0).needed(10, DType::U8), 6000);
        assert_eq!(size(3, 1, 0).needed(10, DType::F32), 15_000);
        assert_eq!(size(1, 1, 0).needed(10, DType::F16), 6000);
        assert_eq!(size(2, 2, 0).needed(10, DType::F64), 8000 + 32_000);
        let vast = Size { width: usize::MAX, height: 2, channels: 4, depth: 2, beside: usize::MAX };
        assert_eq!(vast.needed(usize::MAX, DType::F64), usize::MAX);
    }
}
