//! Makes valid, truncated and damaged files, and checks the properties that must hold when they are read.

mod archive;
mod csv;
mod edit;
mod idx;
mod jpeg;
mod npy;
mod png;
mod pt;
mod safetensors;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gradus::data::{CsvOptions, Table, idx as images, npy as numpy, pt as torch};
use gradus::image::{self, LoadOptions};
use gradus::prelude::*;

use crate::random::Random;
use crate::{limited, panics};

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Model weights.
    Safetensors,
    /// Images and labels, plain and gzip-compressed.
    Idx,
    /// Tables.
    Csv,
    /// PNG images.
    Png,
    /// JPEG images.
    Jpeg,
    /// Arrays of NumPy.
    Npy,
    /// Archives of arrays of NumPy.
    Npz,
    /// Files of PyTorch.
    Pt,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 8] = [
        Format::Safetensors,
        Format::Idx,
        Format::Csv,
        Format::Png,
        Format::Jpeg,
        Format::Npy,
        Format::Npz,
        Format::Pt,
    ];

    /// The format's name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Idx => "idx",
            Format::Csv => "csv",
            Format::Png => "png",
            Format::Jpeg => "jpeg",
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Pt => "pt",
        }
    }
}

/// The expected outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The file is valid and must be accepted.
    Read,
    /// The file is truncated and must be rejected.
    Refused,
    /// The file is damaged: it may be accepted or rejected.
    Either,
}

/// A file.
#[derive(Debug)]
pub struct File {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// The length of the file, if it ends in a sparse run of zeros.
    pub sparse: Option<u64>,
    /// The expected outcome.
    pub expected: Expected,
}

/// File `number` of run `seed`.
pub fn make(format: Format, seed: u64, number: u64) -> File {
    let d = &mut Random::new(Generator::new(seed).fork(format as u64).fork(number));
    let (whole, cut, damaged): (Make, Make, Make) = match format {
        Format::Safetensors => (safetensors::whole, safetensors::cut, safetensors::damaged),
        Format::Idx => (idx::whole, idx::cut, idx::damaged),
        Format::Csv => (csv::whole, csv::cut, csv::damaged),
        Format::Png => (png::whole, png::cut, png::damaged),
        Format::Jpeg => (jpeg::whole, jpeg::cut, jpeg::damaged),
        Format::Npy => (npy::whole, npy::cut, npy::damaged),
        Format::Npz => (npy::whole_npz, npy::cut_npz, npy::damaged_npz),
        Format::Pt => (pt::whole, pt::cut, pt::damaged),
    };
    let (bytes, expected) = match d.below(20) {
        0 => (whole(d), Expected::Read),
        1 | 2 => (cut(d), Expected::Refused),
        _ => (damaged(d), Expected::Either),
    };
    let mut file = File { bytes, sparse: None, expected };
    if expected == Expected::Either && d.once_in(100) {
        file.sparse = Some(1 << (20 + d.below(24)));
        if format == Format::Safetensors
            && let Some(sparse) = file.sparse
        {
            file.bytes = safetensors::vast(sparse);
        }
    }
    file
}

type Make = fn(&mut Random) -> Vec<u8>;

/// The result of reading a file.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the file was accepted or rejected; an error describes a failure.
    pub end: Result<End, String>,
    /// How long the file took to read.
    pub took: Duration,
    /// The peak memory use, in bytes.
    pub peak: usize,
}

/// A permitted result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The file was accepted.
    Read,
    /// The file was rejected with an error.
    Refused,
}

/// Reads files.
#[derive(Debug)]
pub struct Reader {
    device: Device,
    /// The path of the file, for formats that are read by path.
    path: PathBuf,
}

impl Reader {
    /// A reader that writes its files to `folder`.
    pub fn new(folder: &Path) -> Result<Reader> {
        Ok(Reader { device: Device::cpu()?, path: folder.join(format!("gradus-fuzz-{}", std::process::id())) })
    }

    /// Reads file `number` of run `seed`.
    pub fn read(&self, format: Format, seed: u64, number: u64) -> Outcome {
        let File { bytes, sparse, expected } = make(format, seed, number);
        let in_memory = matches!(format, Format::Csv | Format::Png | Format::Jpeg);
        let by_path = sparse.is_some() || !in_memory || number.is_multiple_of(16);
        if by_path && let Err(e) = self.put(&bytes, sparse) {
            let end = Err(format!("{}: {e}", self.path.display()));
            return Outcome { end, took: Duration::ZERO, peak: 0 };
        }
        let allowed = allowed(format, &bytes, sparse, number);
        // Empty the device's pool, so that all allocations for this file are counted.
        let trimmed = self.device.backend().trim();
        let (live, began) = (limited::live(), Instant::now());
        limited::reset_peak();
        limited::set_limit(live + 4 * allowed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            trimmed?;
            self.parse(format, &bytes, by_path, number)
        }));
        limited::set_limit(usize::MAX);
        let (took, peak) = (began.elapsed(), limited::peak().saturating_sub(live));
        let panic = panics::take();
        let end = match result {
            Err(_) => Err(panic),
            // The library caught a panic that it should not have raised.
            Ok(_) if !panic.is_empty() => Err(panic),
            Ok(_) if peak > 4 * allowed => Err(format!("took {peak} bytes, where {allowed} are allowed")),
            Ok(Ok(())) if expected == Expected::Refused => Err("something is missing, and it was read".into()),
            Ok(Ok(())) => Ok(End::Read),
            Ok(Err(e)) if expected == Expected::Read => Err(format!("it is whole, and was refused: {e}")),
            Ok(Err(e)) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) && sparse.is_none() => {
                Err(format!("wanted too much: {e}"))
            }
            Ok(Err(_)) => Ok(End::Refused),
        };
        Outcome { end, took, peak }
    }

    fn put(&self, bytes: &[u8], sparse: Option<u64>) -> std::io::Result<()> {
        std::fs::write(&self.path, bytes)?;
        sparse.map_or(Ok(()), |length| std::fs::OpenOptions::new().write(true).open(&self.path)?.set_len(length))
    }

    fn parse(&self, format: Format, bytes: &[u8], by_path: bool, number: u64) -> Result<()> {
        let dtypes = [None, Some(DType::U8), Some(DType::U16), Some(DType::F16), Some(DType::F32), Some(DType::F64)];
        let dtype = dtypes[(number / 2 % 6) as usize];
        let options = LoadOptions { dtype, max_memory: max_memory(number) };
        let _guard = gradus::no_grad_guard();
        match format {
            Format::Safetensors => StateDict::load_safetensors(&self.path, &self.device).map(drop),
            Format::Idx if bytes.get(3) == Some(&1) => images::read_labels(&self.path).map(drop),
            Format::Idx => {
                images::read_images(&self.path).map(drop).or_else(|_| images::read_labels(&self.path).map(drop))
            }
            Format::Csv => {
                let without_names = CsvOptions { header: false, ..Default::default() };
                // Two rows may be alike, and then they are no names of columns.
                let _ = Table::from_csv(bytes, "a table", &CsvOptions::default());
                if by_path {
                    Table::read_csv(&self.path, &without_names).map(drop)
                } else {
                    Table::from_csv(bytes, "a table", &without_names).map(drop)
                }
            }
            Format::Png | Format::Jpeg if by_path => image::load(&self.path, &self.device, options).map(drop),
            Format::Png | Format::Jpeg => image::decode(bytes, "a picture", &self.device, options).map(drop),
            Format::Npy => numpy::load(&self.path, &self.device).map(drop),
            Format::Npz => numpy::load_npz(&self.path, &self.device).map(drop),
            Format::Pt => torch::load(&self.path, &self.device).map(drop),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The file may never have been written.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The memory limit for reading an image.
fn max_memory(number: u64) -> usize {
    (1 << 20) << (number % 3)
}

/// The memory that reading this file may take.
fn allowed(format: Format, bytes: &[u8], sparse: Option<u64>, number: u64) -> usize {
    // Decoder tables, names, and other constant overhead.
    const BASE: usize = 128 << 10;
    match format {
        // The tensors and the parsed header. In the header, two bytes can become an eight-byte number.
        Format::Safetensors => BASE + 4 * bytes.len(),
        // The decompressed size.
        Format::Idx => BASE + expanded(bytes),
        // The file, and eight bytes for a number and four for its line, which may be two bytes of the file. Columns
        // have lists and a name, however few values they have.
        Format::Csv => {
            let columns = bytes.iter().filter(|&&b| b == b',').count().min(1 << 16);
            BASE + 8 * bytes.len() + 100 * columns + sparse.map_or(0, |length| length.min(1 << 20) as usize)
        }
        Format::Png | Format::Jpeg => max_memory(number),
        // The tensor, in both orders.
        Format::Npy => BASE + 2 * bytes.len(),
        // Deflate expands a byte to at most 1032, and an instruction of one byte makes an object.
        Format::Npz | Format::Pt => BASE + 1032 * bytes.len(),
    }
}

/// The decompressed size of a file; its own size if it is not compressed.
fn expanded(bytes: &[u8]) -> usize {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return bytes.len();
    }
    let mut all = flate2::read::MultiGzDecoder::new(bytes);
    let (mut buffer, mut count) = ([0; 1 << 14], 0);
    while let Ok(n @ 1..) = std::io::Read::read(&mut all, &mut buffer) {
        count += n;
    }
    count
}
