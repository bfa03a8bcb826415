//! Computes how long an ELF file must be according to its headers.
//!
//! The loaders of Linux and the BSDs map a library according to its headers without checking the length of the file, so
//! that the first read beyond the end of a truncated file kills the process. The loaders of macOS and Windows check the
//! length themselves, so Mach-O and PE files are not checked here.
#![forbid(unsafe_code)]

use std::io::{Read, Result, Seek, SeekFrom};

/// The positions of the header fields, for words of 32 or 64 bits.
struct Class {
    /// Number of bytes of an offset or a size.
    word: usize,
    /// Number of bytes of the file header.
    header: usize,
    /// For each table, the positions of two fields: the table's offset, and the size of an entry. The number of entries
    /// follows the size.
    segments: (usize, usize),
    sections: (usize, usize),
    /// For each table, the size of an entry, and the positions within an entry of two fields: the offset and the length
    /// of the bytes that it describes.
    segment: [usize; 3],
    section: [usize; 3],
}

const CLASS_32: Class =
    Class { word: 4, header: 52, segments: (28, 42), sections: (32, 46), segment: [32, 4, 16], section: [40, 16, 20] };

const CLASS_64: Class =
    Class { word: 8, header: 64, segments: (32, 54), sections: (40, 58), segment: [56, 8, 32], section: [64, 24, 32] };

/// The offset of the type in a section header. Sections of the types `NULL` and `NO_BITS` have no bytes in the file.
const SECTION_TYPE: usize = 4;
const NULL: u64 = 0;
const NO_BITS: u64 = 8;

/// Reads the numbers in a header, whose byte order is big-endian if `big` is set.
struct Numbers {
    big: bool,
}

impl Numbers {
    fn read(&self, bytes: &[u8], at: usize, size: usize) -> u64 {
        let bytes = bytes.get(at..at + size).unwrap_or_default().iter();
        let push = |n: u64, &byte: &u8| n << 8 | u64::from(byte);
        if self.big { bytes.fold(0, push) } else { bytes.rev().fold(0, push) }
    }
}

/// The minimum length of this file according to its headers; `None` if it is not an ELF file. `length` is its actual
/// length.
pub(crate) fn needed(file: &mut (impl Read + Seek), length: u64) -> Result<Option<u64>> {
    let mut start = Vec::new();
    file.by_ref().take(CLASS_64.header as u64).read_to_end(&mut start)?;
    let [0x7f, b'E', b'L', b'F', class, order, ..] = start[..] else { return Ok(None) };
    let class = match class {
        1 => CLASS_32,
        2 => CLASS_64,
        _ => return Ok(None),
    };
    let numbers = Numbers { big: order == 2 };
    let mut needed = class.header as u64;
    if start.len() < class.header {
        return Ok(Some(needed));
    }
    for ((table, sizes), [least, offset, size], sections) in
        [(class.segments, class.segment, false), (class.sections, class.section, true)]
    {
        let table = numbers.read(&start, table, class.word);
        let (entry, count) = (numbers.read(&start, sizes, 2), numbers.read(&start, sizes + 2, 2));
        let end = table.saturating_add(entry * count);
        if table == 0 || count == 0 {
            continue;
        }
        needed = needed.max(end);
        if end > length || (entry as usize) < least {
            continue;
        }
        let mut bytes = vec![0; least];
        for i in 0..count {
            file.seek(SeekFrom::Start(table + i * entry))?;
            file.read_exact(&mut bytes)?;
            let kind = numbers.read(&bytes, SECTION_TYPE, 4);
            let size = numbers.read(&bytes, size, class.word);
            if size > 0 && !(sections && matches!(kind, NULL | NO_BITS)) {
                needed = needed.max(numbers.read(&bytes, offset, class.word).saturating_add(size));
            }
        }
    }
    Ok(Some(needed))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A file that consists of headers alone, with words of `word` bytes. The headers describe a segment of 100 bytes
    /// at offset 1000, a section of 50 bytes at 2000, and a section without bytes at 9000. The tables follow the file
    /// header.
    fn elf(word: usize, big: bool) -> Vec<u8> {
        let number = |n: u64, size: usize| {
            let bytes = n.to_le_bytes()[..size].to_vec();
            if big { bytes.into_iter().rev().collect::<Vec<u8>>() } else { bytes }
        };
        let w = |n| number(n, word);
        let (header, segment, section) = if word == 8 { (64, 56, 64) } else { (52, 32, 40) };
        let mut file = vec![0x7f, b'E', b'L', b'F', word as u8 / 4, 1 + u8::from(big), 1];
        file.resize(16 + 8, 0);
        // The entry point, the offsets of the two tables, the flags and the sizes.
        file.extend([w(0), w(header), w(header + segment), number(0, 4), number(header, 2)].concat());
        file.extend([number(segment, 2), number(1, 2), number(section, 2), number(3, 2), number(0, 2)].concat());
        assert_eq!(file.len() as u64, header);
        // The fields of the segment, whose order depends on the word size.
        file.extend(number(1, 4));
        if word == 8 {
            file.extend([number(5, 4), w(1000), w(0), w(0), w(100), w(300), w(8)].concat());
        } else {
            file.extend([w(1000), w(0), w(0), w(100), w(300), w(5), w(8)].concat());
        }
        for (kind, offset, size) in [(0, 7000, 1), (1, 2000, 50), (8, 9000, 100)] {
            file.extend([number(0, 4), number(kind, 4), w(0), w(0), w(offset), w(size)].concat());
            file.extend([number(0, 4), number(0, 4), w(0), w(0)].concat());
        }
        file
    }

    #[test]
    fn the_end_of_the_last_section_counts_for_words_and_orders_of_all_kinds() {
        for word in [4, 8] {
            for big in [false, true] {
                let file = elf(word, big);
                let of = |length| needed(&mut Cursor::new(&file), length).unwrap();
                assert_eq!(of(3000), Some(2050), "{word} {big}");
                // If the file ends within its tables, the length that it needs includes them.
                assert_eq!(of(file.len() as u64 - 1), Some(1100.max(file.len() as u64)));
            }
        }
    }

    #[test]
    fn what_is_no_elf_file_has_no_length() {
        for bytes in [&b""[..], b"\x7fELF", b"not a library", b"\x7fELF\x03\x01\x01", b"MZ", b"\xcf\xfa\xed\xfe"] {
            assert_eq!(needed(&mut Cursor::new(bytes), bytes.len() as u64).unwrap(), None, "{bytes:?}");
        }
        assert_eq!(needed(&mut Cursor::new(b"\x7fELF\x02\x01"), 6).unwrap(), Some(64));
    }

    #[test]
    fn no_numbers_overflow() {
        for at in 16..elf(8, false).len() {
            let mut file = elf(8, false);
            let end = file.len().min(at + 8);
            file[at..end].fill(0xff);
            let length = file.len() as u64;
            let _ = needed(&mut Cursor::new(&file), length).unwrap();
        }
    }
}
