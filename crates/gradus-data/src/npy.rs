//! NumPy's files: `.npy` holds one array, and `.npz` is a zip archive of named arrays.
//!
//! All dtypes are read that NumPy and Gradus have in common, in either byte order, in row-major or Fortran order.
//! Structured arrays, texts, complex numbers and Python objects are errors. Files are written in row-major order and
//! little endian; bf16, which NumPy does not have, is an error. [`Rows`] is an array that may be larger
//! than memory.
//!
//! ```
//! # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! # let dir = tempfile::tempdir().unwrap();
//! use gradus_data::npy;
//! let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
//! let path = dir.path().join("x.npy");
//! npy::save(&path, &x)?; // as numpy.save
//! assert_eq!(npy::load(&path, &device)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
//! let path = dir.path().join("all.npz");
//! npy::save_npz(&path, [("x", &x), ("y", &x.t()?)])?; // as numpy.savez
//! assert_eq!(npy::load_npz(&path, &device)?["y"].to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! # Ok::<(), Error>(())
//! ```

mod header;
mod rows;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::Crc;
use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use self::header::{Header, MAGIC, header_of};
pub use self::rows::Rows;
use crate::zip::Zip;

const LOAD: &str = "load_npy";
const SAVE: &str = "save_npy";
const LOAD_NPZ: &str = "load_npz";
const SAVE_NPZ: &str = "save_npz";

/// The largest header that is read. NumPy's own limit is 10,000 bytes.
const MOST_HEADER: usize = 1 << 16;

/// Opens a regular file.
#[track_caller]
pub(crate) fn open(path: &Path, op: &str, what: &str) -> Result<File> {
    let failed = |e| Error::io(op, path.display(), e).help(format!("give the path of {what} that can be read"));
    // The type of the file is checked first: opening a named pipe would block until a writer opens it.
    let found = std::fs::metadata(path).map_err(failed).here()?;
    gradus_file::check_regular(op, path, &found).map_err(|e| e.help(format!("give the path of {what}")))?;
    File::open(path).map_err(failed).here()
}

/// Reads an `.npy` file.
///
/// # Errors
/// [`ErrorKind::Io`] if the file cannot be read. [`ErrorKind::Format`] if it is cut off, damaged or not a `.npy` file, or
/// holds a dtype that Gradus does not have. [`ErrorKind::OutOfMemory`] if the tensor does not fit into memory.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
    let path = path.as_ref();
    let file = open(path, LOAD, "a .npy file")?;
    let failed = |e| Error::io(LOAD, path.display(), e);
    let length = file.metadata().map_err(failed).here()?.len();
    let mut file = BufReader::new(file);
    let early = |_| {
        let m = format!("{} ends too early", path.display());
        Error::new(ErrorKind::Format, LOAD, m).help("is the file whole? Copy it again")
    };
    array(LOAD, &path.display().to_string(), length, device, |piece| file.read_exact(piece).map_err(early)).here()
}

/// Writes an `.npy` file. It appears whole or not at all.
///
/// # Errors
/// [`ErrorKind::Io`] if the file cannot be written. [`ErrorKind::DTypeMismatch`] if the tensor is bf16.
#[track_caller]
pub fn save(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let (path, bytes) = (path.as_ref(), contents(SAVE, tensor)?);
    gradus_file::write(SAVE, path, true, |out| {
        bytes.iter().try_for_each(|part| out.write_all(part)).map_err(|e| gradus_file::failed(SAVE, path, e))
    })
}

/// Reads all arrays of an `.npz` file, stored or compressed, by name.
///
/// # Errors
/// The errors of [`load`], with the name of the array.
#[track_caller]
pub fn load_npz(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    let mut zip = Zip::open(open(path, LOAD_NPZ, "a .npz file")?, path, LOAD_NPZ)?;
    let mut arrays = BTreeMap::new();
    for entry in zip.entries().to_vec() {
        let mut contents = zip.contents(&entry)?;
        let name = entry.name.strip_suffix(".npy").unwrap_or(&entry.name).to_owned();
        let (file, size) = (contents.name.clone(), contents.left());
        let array = array(LOAD_NPZ, &file, size, device, |piece| contents.fill(piece)).here()?;
        contents.check()?;
        if arrays.insert(name, array).is_some() {
            let m = format!("{file} is there twice");
            return Err(Error::new(ErrorKind::Format, LOAD_NPZ, m).help("give a file of numpy.savez"));
        }
    }
    Ok(arrays)
}

/// Writes arrays with names to an `.npz` file, not compressed. It appears whole or not at all.
///
/// # Errors
/// The errors of [`save`]. [`ErrorKind::InvalidArgument`] if a name occurs twice or is longer than 65,000 bytes, if
/// there are 65,535 arrays or more, or if their total size is 4 GiB or more; use a safetensors file for those.
#[track_caller]
pub fn save_npz<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (impl AsRef<str>, &'a Tensor)>,
) -> Result<()> {
    let path = path.as_ref();
    let named: Vec<(String, &Tensor)> = arrays.into_iter().map(|(n, t)| (format!("{}.npy", n.as_ref()), t)).collect();
    let bad = |m: String| Error::argument(SAVE_NPZ, m);
    let mut names: Vec<&String> = named.iter().map(|(name, _)| name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(bad(format!("two arrays are written as {:?}", twice[0])).help("give them different names"));
    }
    if names.iter().any(|name| name.len() > 65_000) || names.len() >= 0xffff {
        return Err(bad("there are too many arrays, or a name is too long".into()).help("save a safetensors file"));
    }
    // The contents with a header of at most 64 KiB, and two records with the name.
    let size = |(name, t): &(String, &Tensor)| (t.numel() * t.dtype().size() + (1 << 16) + 200 + 2 * name.len()) as u64;
    if named.iter().fold(0u64, |sum, one| sum.saturating_add(size(one))) > u64::from(u32::MAX) {
        return Err(bad("the arrays have more than 4 GiB".into()).help("save a safetensors file"));
    }
    gradus_file::write(SAVE_NPZ, path, true, |out| {
        let failed = |e| gradus_file::failed(SAVE_NPZ, path, e);
        let (mut directory, mut at) = (Vec::new(), 0u32);
        for (name, tensor) in &named {
            let parts = contents(SAVE_NPZ, tensor).map_err(|e| e.note(format!("array: {name:?}")))?;
            let mut crc = Crc::new();
            parts.iter().for_each(|part| crc.update(part));
            let size = parts.iter().map(Vec::len).sum::<usize>() as u32;
            // Version 2.0, UTF-8 names, stored, at midnight of 1 January 1980.
            let mut common = vec![20, 0, 0, 8, 0, 0, 0, 0, 0x21, 0];
            [crc.sum(), size, size].iter().for_each(|n| common.extend(n.to_le_bytes()));
            common.extend((name.len() as u16).to_le_bytes());
            common.extend([0, 0]);
            let local = [&b"PK\x03\x04"[..], &common, name.as_bytes()].concat();
            let record = [&b"PK\x01\x02\x14\0"[..], &common, &[0; 10], &at.to_le_bytes(), name.as_bytes()].concat();
            directory.extend(record);
            out.write_all(&local).map_err(failed).here()?;
            parts.iter().try_for_each(|part| out.write_all(part)).map_err(failed).here()?;
            at += local.len() as u32 + size;
        }
        let (count, size) = ((named.len() as u16).to_le_bytes(), (directory.len() as u32).to_le_bytes());
        let end = [&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &size, &at.to_le_bytes(), &[0, 0]].concat();
        out.write_all(&directory).and_then(|()| out.write_all(&end)).map_err(failed).here()
    })
}

/// The header and the elements of a file.
#[track_caller]
fn contents(op: &str, tensor: &Tensor) -> Result<[Vec<u8>; 2]> {
    let header = header_of(tensor.shape(), tensor.dtype()).ok_or_else(|| {
        let e = Error::dtype(op, tensor.dtype(), "a dtype that NumPy has");
        e.operand("tensor", tensor.shape(), tensor.dtype(), tensor.device()).help("convert it: to_dtype(DType::F32)?")
    });
    let mut elements = tensor.to_bytes()?;
    if cfg!(target_endian = "big") {
        elements.chunks_exact_mut(tensor.dtype().size()).for_each(<[u8]>::reverse);
    }
    Ok([header.here()?, elements])
}

/// Reads the header of an array of `length` bytes, and returns it with its size in bytes.
#[track_caller]
fn head(
    op: &'static str,
    name: &str,
    length: u64,
    fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
) -> Result<(Header, u64)> {
    let bad = |what: String| Error::new(ErrorKind::Format, op, format!("{name} {what}"));
    let mut start = [0; 8];
    fill(&mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(bad("is no .npy array".into()).help("give a file of numpy.save"));
    }
    let mut size = [0; 4];
    match start[6] {
        1 => fill(&mut size[..2])?,
        2 | 3 => fill(&mut size)?,
        other => return Err(bad(format!("is of version {other} of the format; 1, 2 and 3 are read"))),
    }
    let size = u32::from_le_bytes(size) as usize;
    if size > MOST_HEADER {
        return Err(bad(format!("has a header of {size} bytes; at most {MOST_HEADER} are read")));
    }
    // At most MOST_HEADER.
    let mut text = vec![0; size];
    fill(&mut text)?;
    let header = header::parse(&text).map_err(bad).here()?;
    let Header { dtype, shape, .. } = &header;
    let before = 8 + size as u64 + if start[6] == 1 { 2 } else { 4 };
    let promised = shape.iter().try_fold(dtype.size() as u64, |n, &s| n.checked_mul(s as u64));
    if promised != length.checked_sub(before) {
        let has = length.saturating_sub(before);
        let m = format!("promises {shape:?} elements of {dtype} and has {has} bytes behind its header");
        return Err(bad(m).help("is the file whole? Copy it again"));
    }
    Ok((header, before))
}

/// The elements of a piece of an array in the order of bytes of this computer.
#[track_caller]
fn in_order(op: &'static str, name: &str, header: &Header, piece: &mut [u8]) -> Result<()> {
    if header.swapped != cfg!(target_endian = "big") {
        piece.chunks_exact_mut(header.dtype.size()).for_each(<[u8]>::reverse);
    }
    if header.dtype == DType::Bool && piece.iter().any(|&b| b > 1) {
        let m = format!("{name} is bool, but has bytes other than 0 and 1");
        return Err(Error::new(ErrorKind::Format, op, m));
    }
    Ok(())
}

/// Reads an array of `length` bytes with its header.
#[track_caller]
fn array(
    op: &'static str,
    name: &str,
    length: u64,
    device: &Device,
    mut fill: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<Tensor> {
    let (header, _) = head(op, name, length, &mut fill)?;
    let (dtype, fortran, mut shape) = (header.dtype, header.fortran, header.shape.clone());
    if fortran {
        shape.reverse();
    }
    let tensor = Tensor::from_pieces(&shape, dtype, device, |piece| {
        fill(piece)?;
        in_order(op, name, &header, piece)
    });
    let tensor = tensor.map_err(|e| match e.kind() {
        ErrorKind::Io | ErrorKind::Format => e,
        _ => e.note(format!("file: {name}")),
    });
    let tensor = tensor.here()?;
    if fortran && shape.len() > 1 {
        let axes: Vec<isize> = (0..shape.len() as isize).rev().collect();
        return tensor.permute(&axes)?.contiguous();
    }
    Ok(tensor)
}
