//! [`Zip`]: reads the entries of a zip archive, as NumPy and PyTorch write them: stored or deflated, including archives
//! beyond 4 GiB.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Take};
use std::path::Path;

use flate2::Crc;
use flate2::read::DeflateDecoder;
use gradus_tensor::{Error, ErrorKind, Here, Result};

use crate::memory::reserve_exact;

/// The largest size of the directory of an archive, in bytes. An entry takes less than 100 bytes.
const MOST_DIRECTORY: u64 = 1 << 28;

/// Deflate expands one byte to at most this many.
const MOST_EXPANSION: u64 = 1032;

/// The length of the record at the end of an archive, and of the two records before it in archives beyond 4 GiB.
const END: usize = 22;
const END64: usize = 56;
const LOCATOR64: usize = 20;

/// A file in an archive.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) deflated: bool,
    /// The checksum of its contents.
    crc: u32,
    stored_size: u64,
    /// The size of its contents.
    pub(crate) size: u64,
    header: u64,
}

/// An archive that is open for reading.
pub(crate) struct Zip {
    file: BufReader<File>,
    length: u64,
    name: String,
    op: &'static str,
    entries: Vec<Entry>,
}

/// A number of `size` little-endian bytes.
pub(crate) fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

impl Zip {
    /// Opens an archive and reads its directory. `file` is a regular file.
    #[track_caller]
    pub(crate) fn open(file: File, path: &Path, op: &'static str) -> Result<Self> {
        let name = path.display().to_string();
        let length = file.metadata().map_err(|e| Error::io(op, &name, e)).here()?.len();
        let mut zip = Zip { file: BufReader::new(file), length, name, op, entries: Vec::new() };
        zip.read_directory().here()?;
        Ok(zip)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    #[track_caller]
    fn bad(&self, what: impl Into<String>) -> Error {
        let m = format!("{}: the zip archive {}", self.name, what.into());
        Error::new(ErrorKind::Format, self.op, m).help("is the file whole? Copy it again")
    }

    #[track_caller]
    fn at(&mut self, start: u64, size: u64) -> Result<Vec<u8>> {
        if start.checked_add(size).is_none_or(|end| end > self.length) {
            return Err(self.bad("refers to a place beyond its end"));
        }
        let mut bytes = Vec::new();
        reserve_exact(&mut bytes, usize::try_from(size).unwrap_or(usize::MAX), self.op, &self.name)?;
        let failed = |e| Error::io(self.op, &self.name, e);
        self.file.seek(SeekFrom::Start(start)).map_err(failed).here()?;
        self.file.by_ref().take(size).read_to_end(&mut bytes).map_err(failed).here()?;
        if bytes.len() as u64 != size {
            return Err(self.bad("ends too early"));
        }
        Ok(bytes)
    }

    #[track_caller]
    fn read_directory(&mut self) -> Result<()> {
        // The last record may be followed by a comment of up to 65,535 bytes.
        let tail_size = self.length.min((END + LOCATOR64 + 0xffff) as u64);
        let tail_start = self.length - tail_size;
        let tail = self.at(tail_start, tail_size)?;
        let end = (0..tail.len().saturating_sub(END - 1)).rev().find(|&at| tail[at..].starts_with(b"PK\x05\x06"));
        let end = end.ok_or_else(|| self.bad("has no directory at its end")).here()?;
        let field = |at: usize, size: usize| number(&tail, end + at, size).unwrap_or(0);
        let (mut count, mut size, mut start) = (field(10, 2), field(12, 4), field(16, 4));
        let locator = end.checked_sub(LOCATOR64).filter(|&at| tail[at..].starts_with(b"PK\x06\x07"));
        if let Some(locator) = locator {
            let record = self.at(number(&tail, locator + 8, 8).unwrap_or(0), END64 as u64)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(self.bad("has a damaged directory"));
            }
            let field = |at: usize| number(&record, at, 8).unwrap_or(0);
            (count, size, start) = (field(32), field(40), field(48));
        }
        if size > MOST_DIRECTORY {
            return Err(self.bad(format!("has a directory of {size} bytes; at most {MOST_DIRECTORY} are read")));
        }
        let directory = self.at(start, size)?;
        let (mut rest, mut stored) = (&directory[..], 0u64);
        while !rest.is_empty() {
            let (entry, length) = entry(rest).ok_or_else(|| self.bad("has a damaged directory")).here()?;
            if entry.size > entry.stored_size.saturating_mul(if entry.deflated { MOST_EXPANSION } else { 1 }) {
                let m = format!("promises {} bytes for {:?}, more than it can hold", entry.size, entry.name);
                return Err(self.bad(m));
            }
            // Entries that share bytes could together be far larger than the file.
            stored = stored.saturating_add(entry.stored_size);
            if stored > self.length {
                return Err(self.bad("promises more bytes than it has"));
            }
            crate::memory::room(&mut self.entries, self.op, &self.name)?;
            self.entries.push(entry);
            rest = &rest[length..];
        }
        if self.entries.len() as u64 != count {
            return Err(self.bad(format!("promises {count} entries and has {}", self.entries.len())));
        }
        Ok(())
    }

    /// The contents of an entry. They must be read to the end, where the checksum is verified.
    #[track_caller]
    pub(crate) fn contents(&mut self, entry: &Entry) -> Result<Contents<'_>> {
        let header = self.at(entry.header, 30)?;
        let (name, extra) = (number(&header, 26, 2).unwrap_or(0), number(&header, 28, 2).unwrap_or(0));
        let start = entry.header.saturating_add(30 + name + extra);
        if !header.starts_with(b"PK\x03\x04") || start.saturating_add(entry.stored_size) > self.length {
            return Err(self.bad(format!("is damaged at {:?}", entry.name)));
        }
        self.file.seek(SeekFrom::Start(start)).map_err(|e| Error::io(self.op, &self.name, e)).here()?;
        let stored = self.file.by_ref().take(entry.stored_size);
        let source = if entry.deflated { Data::Deflated(DeflateDecoder::new(stored)) } else { Data::Stored(stored) };
        let name = format!("{}: {:?}", self.name, entry.name);
        Ok(Contents { source, left: entry.size, crc: Crc::new(), expected: entry.crc, name, op: self.op })
    }

    /// All contents of an entry of at most `most` bytes.
    #[track_caller]
    pub(crate) fn read(&mut self, entry: &Entry, most: u64) -> Result<Vec<u8>> {
        if entry.size > most {
            let m = format!("has {} bytes in {:?}; at most {most} are read", entry.size, entry.name);
            return Err(self.bad(m));
        }
        let mut bytes = Vec::new();
        reserve_exact(&mut bytes, entry.size as usize, self.op, &self.name)?;
        // At most `most` bytes, which are reserved.
        bytes.resize(entry.size as usize, 0);
        let mut contents = self.contents(entry)?;
        contents.fill(&mut bytes)?;
        contents.check()?;
        Ok(bytes)
    }
}

/// The first entry of a directory, and the length of its record.
fn entry(bytes: &[u8]) -> Option<(Entry, usize)> {
    let field = |at: usize, size: usize| number(bytes, at, size);
    if !bytes.starts_with(b"PK\x01\x02") {
        return None;
    }
    let (flags, method) = (field(8, 2)?, field(10, 2)?);
    // Bit 0 marks encryption. Methods are 0, stored, and 8, deflated.
    if flags & 1 == 1 || !matches!(method, 0 | 8) {
        return None;
    }
    let (name, extra, comment) = (field(28, 2)? as usize, field(30, 2)? as usize, field(32, 2)? as usize);
    let text = String::from_utf8_lossy(bytes.get(46..46 + name)?).into_owned();
    let (mut size, mut stored_size, mut header) = (field(24, 4)?, field(20, 4)?, field(42, 4)?);
    // Values that do not fit into 32 bits are in an extra field, in this order.
    let mut extras = bytes.get(46 + name..46 + name + extra)?;
    while extras.len() >= 4 {
        let (id, length) = (number(extras, 0, 2)?, number(extras, 2, 2)? as usize);
        if id == 1 {
            let wide = [&mut size, &mut stored_size, &mut header].into_iter().filter(|n| **n == 0xffff_ffff);
            for (i, field) in wide.enumerate() {
                *field = number(extras.get(4..4 + length)?, 8 * i, 8)?;
            }
        }
        extras = extras.get(4 + length..)?;
    }
    let crc = field(16, 4)? as u32;
    let length = 46 + name + extra + comment;
    let entry = Entry { name: text, deflated: method == 8, crc, stored_size, size, header };
    (length <= bytes.len()).then_some((entry, length))
}

enum Data<'a> {
    Stored(Take<&'a mut BufReader<File>>),
    Deflated(DeflateDecoder<Take<&'a mut BufReader<File>>>),
}

/// The contents of an entry, read from front to back.
pub(crate) struct Contents<'a> {
    source: Data<'a>,
    left: u64,
    crc: Crc,
    expected: u32,
    /// The file and the entry, for errors.
    pub(crate) name: String,
    op: &'static str,
}

impl Contents<'_> {
    /// The number of bytes that have not been read.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Fills `bytes` with the next bytes.
    #[track_caller]
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = match &mut self.source {
            Data::Stored(source) => source.read_exact(bytes),
            Data::Deflated(source) => source.read_exact(bytes),
        };
        if bytes.len() as u64 > self.left || read.is_err() {
            let m = format!("{} is cut off or damaged", self.name);
            return Err(Error::new(ErrorKind::Format, self.op, m).help("is the file whole? Copy it again"));
        }
        self.left -= bytes.len() as u64;
        self.crc.update(bytes);
        Ok(())
    }

    /// Errors unless all bytes were read and their checksum is correct.
    #[track_caller]
    pub(crate) fn check(&self) -> Result<()> {
        if self.left == 0 && self.crc.sum() == self.expected {
            return Ok(());
        }
        let m = format!("{} is damaged: its checksum does not fit", self.name);
        Err(Error::new(ErrorKind::Format, self.op, m).help("is the file whole? Copy it again"))
    }
}
