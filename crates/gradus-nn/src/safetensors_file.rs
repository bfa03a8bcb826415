//! The safetensors format: eight bytes with the length of the header (little endian), a JSON header with the name,
//! dtype, shape and position of each tensor, then the tensors, row-major and little endian, without gaps.

mod header;
mod index;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use self::header::{HeaderError, LOAD, MAX_HEADER, read_header};
pub use self::index::{SafetensorsIndex, StoredElements, StoredTensor};
use crate::StateDict;
use crate::places::Places;

const SAVE: &str = "save_safetensors";

/// The metadata key for tied tensors. Its value is a JSON object that maps each name that is not stored to the stored
/// name of the same tensor. All other metadata is plain text and is never interpreted.
const TIED: &str = "gradus.tied";

const HELP_FORMAT: &str = "give a complete safetensors file: is it cut off, or of another format? (what torch.save wrote is \
                           converted in Python, with safetensors.torch.save_file)";

/// Turns an I/O error from reading a file into an error with advice.
#[track_caller]
fn not_read(path: &Path, e: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let kind = e.kind();
    let e = Error::io(LOAD, path.display(), e);
    match kind {
        Io::NotFound => e.help(match path.is_absolute() {
            true => "is the path spelled right, and was the file saved?",
            false => "is the path spelled right? It is relative to the current folder",
        }),
        Io::NotADirectory => e.help("a part of the path is a file, not a folder"),
        Io::PermissionDenied => e.help("may you read the file, and enter its folder?"),
        Io::UnexpectedEof => e.help("the file became shorter while it was read; load it when it is complete"),
        _ => e.help("copy the file to a local disk, and load the copy"),
    }
}

impl StateDict {
    /// Writes a safetensors file. Names that share one tensor store it once, under the first of them; the metadata
    /// `gradus.tied`, a JSON object, maps the other names to that one. The data is written to a temporary file beside
    /// `path` and then renamed, so that a crash leaves either the old file or the new one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if the file cannot be written.
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if metadata is named `gradus.tied` or
    /// has the name of a tensor, or if a tensor is named `__metadata__`.
    #[track_caller]
    pub fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()> {
        save(self, path.as_ref())
    }

    /// Writes to `out` the bytes that [`save_safetensors`](StateDict::save_safetensors) writes to a file.
    ///
    /// # Errors
    /// The same as for `save_safetensors`. Errors from `out` are [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io).
    #[track_caller]
    pub fn write_safetensors(&self, out: &mut dyn Write) -> Result<()> {
        write(self, out)
    }

    /// Reads a safetensors file onto `device`, in pieces of at most half a MiB of host memory. Names tied by
    /// `gradus.tied` share one tensor; all other metadata is plain text.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if the file cannot be read.
    /// [`ErrorKind::Format`](gradus_tensor::ErrorKind::Format) if the file is truncated, damaged, not a safetensors
    /// file, or contains a dtype that Gradus does not have; the error names the file and the fault.
    /// [`ErrorKind::OutOfMemory`](gradus_tensor::ErrorKind::OutOfMemory), before any tensor is read, if the tensors
    /// together do not fit into memory. Each error says what to do.
    #[track_caller]
    pub fn load_safetensors(path: impl AsRef<Path>, device: &Device) -> Result<StateDict> {
        load(path.as_ref(), device)
    }

    /// Like [`load_safetensors`](StateDict::load_safetensors), for the bytes of a file, such as one that
    /// `include_bytes!` put into the program.
    ///
    /// # Errors
    /// The same, but none of reading.
    #[track_caller]
    pub fn from_safetensors(bytes: &[u8], device: &Device) -> Result<StateDict> {
        parse(&mut &bytes[..], bytes.len() as u64, Path::new("the bytes"), device)
    }
}

const DTYPES: [(DType, Dtype, &str); 13] = [
    (DType::F64, Dtype::F64, "F64"),
    (DType::F32, Dtype::F32, "F32"),
    (DType::F16, Dtype::F16, "F16"),
    (DType::BF16, Dtype::BF16, "BF16"),
    (DType::I64, Dtype::I64, "I64"),
    (DType::I32, Dtype::I32, "I32"),
    (DType::I16, Dtype::I16, "I16"),
    (DType::I8, Dtype::I8, "I8"),
    (DType::U64, Dtype::U64, "U64"),
    (DType::U32, Dtype::U32, "U32"),
    (DType::U16, Dtype::U16, "U16"),
    (DType::U8, Dtype::U8, "U8"),
    (DType::Bool, Dtype::BOOL, "BOOL"),
];

fn code(dtype: DType) -> &'static str {
    DTYPES.iter().find(|(d, ..)| *d == dtype).map_or("", |(.., code)| code)
}

/// Converts between the machine's byte order and little endian.
fn reorder(bytes: &mut [u8], dtype: DType) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
}

#[track_caller]
fn save(state: &StateDict, path: &Path) -> Result<()> {
    let contents = Contents::of(state)?;
    gradus_file::write(SAVE, path, true, |out| contents.write(out, |e| gradus_file::failed(SAVE, path, e)))
}

/// Writes the bytes of a safetensors file to `out`.
#[track_caller]
fn write(state: &StateDict, out: &mut dyn Write) -> Result<()> {
    Contents::of(state)?.write(out, |e| Error::io(SAVE, "the writer", e))
}

/// The contents of a file: the header and the tensors in file order.
struct Contents<'a> {
    header: Vec<u8>,
    stored: Vec<(&'a str, &'a Tensor)>,
}

impl<'a> Contents<'a> {
    #[track_caller]
    fn of(state: &'a StateDict) -> Result<Self> {
        let mut metadata: BTreeMap<&str, &str> = state.iter_metadata().collect();
        if let Some(key) = metadata.keys().find(|key| **key == TIED || state.get(key).is_some()) {
            let what = if *key == TIED { "reserved for tied tensors" } else { "the name of a tensor" };
            let e = Error::argument(SAVE, format!("metadata {key:?} cannot be saved: it is {what}"));
            return Err(e.help("give the metadata another name"));
        }
        let mut stored: Vec<(&str, &Tensor)> = Vec::new();
        let mut tied: BTreeMap<&str, &str> = BTreeMap::new();
        let mut places: Places<&str> = Places::default();
        for (name, tensor) in state.iter() {
            if let Some(twin) = places.find(tensor) {
                tied.insert(name, twin);
                continue;
            }
            places.insert(tensor, name);
            stored.push((name, tensor));
        }
        let tied = if tied.is_empty() { None } else { Some(object(&tied)?) };
        metadata.extend(tied.as_deref().map(|text| (TIED, text)));
        // Widest dtypes first, so that each tensor is aligned. The sort is stable, so tensors of equal width stay
        // sorted by name.
        stored.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype().size()));
        Ok(Contents { header: header(&stored, &metadata)?, stored })
    }

    #[track_caller]
    fn write(&self, out: &mut dyn Write, failed: impl Fn(std::io::Error) -> Error) -> Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes()).map_err(&failed)?;
        out.write_all(&self.header).map_err(&failed)?;
        for (_, tensor) in &self.stored {
            let mut bytes = tensor.to_bytes()?;
            reorder(&mut bytes, tensor.dtype());
            out.write_all(&bytes).map_err(&failed)?;
        }
        Ok(())
    }
}

#[track_caller]
fn json(text: &str) -> Result<String> {
    serde_json::to_string(text).map_err(|e| Error::new(ErrorKind::Format, SAVE, format!("{text:?}: {e}"))).here()
}

/// Formats the pairs as a JSON object.
#[track_caller]
fn object(pairs: &BTreeMap<&str, &str>) -> Result<String> {
    let pairs = pairs.iter().map(|(k, v)| Ok(format!("{}:{}", json(k)?, json(v)?)));
    Ok(format!("{{{}}}", pairs.collect::<Result<Vec<_>>>().here()?.join(",")))
}

/// The JSON header, padded with spaces to a multiple of 8 bytes.
#[track_caller]
fn header(stored: &[(&str, &Tensor)], metadata: &BTreeMap<&str, &str>) -> Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(stored.len() + 1);
    if !metadata.is_empty() {
        entries.push(format!("\"__metadata__\":{}", object(metadata)?));
    }
    let mut start = 0usize;
    for (name, tensor) in stored {
        if *name == "__metadata__" {
            let e = Error::argument(SAVE, "a tensor cannot be named __metadata__, which the format reserves");
            return Err(e.help("give the tensor another name"));
        }
        let bytes = tensor.numel() * tensor.dtype().size();
        let Some(end) = start.checked_add(bytes) else {
            let e = Error::argument(SAVE, format!("the tensors up to {name:?} have more bytes than a file can"));
            return Err(e.help("save what a stretched tensor was made from"));
        };
        let (name, dtype, shape) = (json(name)?, code(tensor.dtype()), format!("{:?}", tensor.shape()));
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{start},{end}]}}",
            shape.replace(' ', "")
        ));
        start = end;
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    // Adds at most 7 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        let e = Error::argument(SAVE, format!("the header of {} bytes is too long", header.len()));
        return Err(e.help(format!("shorten names and metadata: at most {MAX_HEADER} bytes are allowed")));
    }
    Ok(header)
}

#[track_caller]
fn load(path: &Path, device: &Device) -> Result<StateDict> {
    let (mut reader, length) = open(path)?;
    parse(&mut reader, length, path, device)
}

/// Opens a file, and returns its length too.
#[track_caller]
fn open(path: &Path) -> Result<(BufReader<File>, u64)> {
    let failed = |e| not_read(path, e);
    // Check the metadata before opening the file, because opening a pipe waits for its writer.
    let found = std::fs::metadata(path).map_err(failed).here()?;
    gradus_file::check_regular(LOAD, path, &found).map_err(|e| e.help("give the path of a safetensors file"))?;
    let file = File::open(path).map_err(failed).here()?;
    let length = file.metadata().map_err(failed).here()?.len();
    Ok((BufReader::new(file), length))
}

/// The error of a file whose contents are wrong.
#[track_caller]
fn damaged(path: &Path, m: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Format, LOAD, format!("{}: {m}", path.display())).help(HELP_FORMAT)
}

/// The header of a file of `length` bytes, of which `all` is to be read or some.
#[track_caller]
fn described(reader: &mut impl Read, length: u64, path: &Path, device: &Device, all: bool) -> Result<Metadata> {
    let header = read_header(reader, length, device, all).map_err(|e| match e {
        HeaderError::Io(e) => not_read(path, e),
        HeaderError::Format(m) => damaged(path, m),
        HeaderError::Memory(e) => e.note(format!("file: {}", path.display())),
    });
    header.here()
}

/// The dtype of a tensor.
#[track_caller]
fn dtype_of(path: &Path, name: &str, code: Dtype) -> Result<DType> {
    let found = DTYPES.iter().find(|(_, d, _)| *d == code).map(|&(dtype, ..)| dtype);
    let unknown = || {
        let e = damaged(path, format!("tensor {name:?} has dtype {code:?}, which Gradus does not have"));
        e.help("convert the tensor where the file is made, to F32 for example")
    };
    found.ok_or_else(unknown).here()
}

/// The names that are not stored, each with the stored name of the same tensor.
#[track_caller]
fn tied(path: &Path, header: &Metadata) -> Result<BTreeMap<String, String>> {
    let Some(text) = header.metadata().as_ref().and_then(|m| m.get(TIED)) else { return Ok(BTreeMap::new()) };
    let tied: BTreeMap<String, String> =
        serde_json::from_str(text).map_err(|e| damaged(path, format!("the metadata {TIED} is damaged: {e}"))).here()?;
    for (name, stored) in &tied {
        if header.info(name).is_some() {
            return Err(damaged(path, format!("the metadata {TIED} names {name:?}, which is stored itself")).here());
        }
        if header.info(stored).is_none() {
            return Err(damaged(path, format!("the metadata {TIED} names {stored:?}, which is not stored")).here());
        }
    }
    Ok(tied)
}

/// Reads a file of `length` bytes, which errors call `path`.
#[track_caller]
fn parse(reader: &mut impl Read, length: u64, path: &Path, device: &Device) -> Result<StateDict> {
    let failed = |e| not_read(path, e);
    let header = described(reader, length, path, device, true)?;
    let tied = tied(path, &header)?;
    let mut state = StateDict::new();
    // In order of their data, so that the file is read once from front to back.
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let dtype = dtype_of(path, &name, info.dtype)?;
        let tensor = Tensor::from_pieces(&info.shape, dtype, device, |piece| {
            reader.read_exact(piece).map_err(failed)?;
            if dtype == DType::Bool && piece.iter().any(|&b| b > 1) {
                return Err(damaged(path, format!("tensor {name:?} is bool, but has bytes other than 0 and 1")));
            }
            reorder(piece, dtype);
            Ok(())
        });
        let tensor = tensor
            .map_err(|e| match e.kind() {
                // These errors already name the file.
                ErrorKind::Io | ErrorKind::Format => e,
                _ => e.note(format!("file: {}", path.display())).note(format!("tensor: {name:?}")),
            })
            .here()?;
        state.insert(name, tensor);
    }
    for (key, text) in header.metadata().iter().flatten().filter(|(key, _)| *key != TIED) {
        state.set_metadata(key.clone(), text.clone());
    }
    for (name, stored) in tied {
        if let Some(tensor) = state.get(&stored).cloned() {
            state.insert(name, tensor);
        }
    }
    Ok(state)
}
