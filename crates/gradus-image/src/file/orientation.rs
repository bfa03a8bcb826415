//! The Exif orientation that a camera records.

use gradus_tensor::{Result, Tensor};

use crate::raster::Raster;

/// How to turn a stored picture upright: rows and columns are exchanged first, then flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orientation {
    exchange: bool,
    flip_rows: bool,
    flip_columns: bool,
}

/// The orientation that Exif metadata (TIFF tags, <https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf>) specify.
pub(super) fn orientation_of(exif: &[u8]) -> Option<Orientation> {
    const TAG: u16 = 0x112;
    const SHORT: u16 = 3;
    let big = match exif.get(..4)? {
        b"MM\0\x2a" => true,
        b"II\x2a\0" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = [*exif.get(at)?, *exif.get(at.checked_add(1)?)?];
        Some(if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| {
        let (first, second) = (u32::from(short(at)?), u32::from(short(at.checked_add(2)?)?));
        Some(if big { first << 16 | second } else { second << 16 | first })
    };
    // A directory is the number of its entries, followed by the entries. Each has 12 bytes: tag, type, count and value.
    let directory = usize::try_from(long(4)?).ok()?;
    let entries = usize::from(short(directory)?);
    let mut entry = directory.checked_add(2)?;
    for _ in 0..entries {
        if short(entry)? == TAG && short(entry + 2)? == SHORT && long(entry + 4)? == 1 {
            return Orientation::numbered(short(entry + 8)?);
        }
        entry = entry.checked_add(12)?;
    }
    None
}

impl Orientation {
    /// The orientation with this Exif number. The number says where the first row and the first column of the stored
    /// picture are in the upright picture.
    fn numbered(number: u16) -> Option<Self> {
        let (exchange, flip_rows, flip_columns) = match number {
            1 => (false, false, false), // top left
            2 => (false, false, true),  // top right
            3 => (false, true, true),   // bottom right
            4 => (false, true, false),  // bottom left
            5 => (true, false, false),  // left top
            6 => (true, false, true),   // right top
            7 => (true, true, true),    // right bottom
            8 => (true, true, false),   // left bottom
            _ => return None,
        };
        Some(Orientation { exchange, flip_rows, flip_columns })
    }

    /// Whether it changes the picture.
    pub(super) fn turns(self) -> bool {
        self.exchange || self.flip_rows || self.flip_columns
    }

    /// Turns a raster upright. `None` if there is no memory for a second one.
    pub(super) fn turn(self, x: &Raster) -> Option<Raster> {
        let Raster { height, width, channels, pixels } = x;
        let (rows, columns) = if self.exchange { (*width, *height) } else { (*height, *width) };
        let mut turned = Vec::new();
        turned.try_reserve_exact(pixels.len()).ok()?;
        for y in 0..rows {
            let y = if self.flip_rows { rows - 1 - y } else { y };
            turned.extend((0..columns).map(|x| {
                let x = if self.flip_columns { columns - 1 - x } else { x };
                if self.exchange { pixels[x * width + y] } else { pixels[y * width + x] }
            }));
        }
        Some(Raster { height: rows, width: columns, channels: *channels, pixels: turned })
    }

    /// Turns `[c, h, w]` upright. The result is a view.
    #[track_caller]
    pub(super) fn apply(self, x: Tensor) -> Result<Tensor> {
        let x = if self.exchange { x.transpose(-1, -2)? } else { x };
        let x = if self.flip_rows { x.flip(-2)? } else { x };
        if self.flip_columns { x.flip(-1) } else { Ok(x) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exif metadata with two entries, the second of which specifies an orientation.
    fn exif(big: bool, number: u16) -> Vec<u8> {
        let short = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let long = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let mut bytes = if big { b"MM\0\x2a".to_vec() } else { b"II\x2a\0".to_vec() };
        bytes.extend(long(10));
        bytes.extend([0; 2]);
        bytes.extend(short(2));
        for (tag, value) in [(0x100, 6), (0x112, number)] {
            bytes.extend([short(tag), short(3)].concat());
            bytes.extend(long(1));
            bytes.extend([short(value), short(0)].concat());
        }
        bytes
    }

    #[test]
    fn orientations_are_found_in_either_order_of_bytes() {
        for big in [true, false] {
            for number in 0..10 {
                assert_eq!(orientation_of(&exif(big, number)), Orientation::numbered(number));
                assert_eq!(Orientation::numbered(number).is_some(), (1..=8).contains(&number));
            }
            let whole = exif(big, 6);
            for end in 0..whole.len() - 2 {
                assert_eq!(orientation_of(&whole[..end]), None, "{end}");
            }
        }
    }
}
