//! [`SafetensorsIndex`]: what a file holds, to read some of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gradus_tensor::{DType, Device, Error, Here, Result};

use super::{TIED, damaged, described, dtype_of, not_read, open, reorder, tied};

/// What a safetensors file holds, by name: the header of the file without its tensors, of which any elements can be read.
/// This is for files of which a process needs a part, such as the checkpoints of several ranks.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let dir = tempfile::tempdir().unwrap();
/// use gradus_nn::{SafetensorsIndex, StateDict};
///
/// let mut state = StateDict::new();
/// state.insert("weight", Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?);
/// let path = dir.path().join("a.safetensors");
/// state.save_safetensors(&path)?;
///
/// let index = SafetensorsIndex::open(&path, &device)?;
/// assert_eq!(index.tensors()["weight"].shape, [2, 2]);
/// let mut elements = index.elements("weight", 1)?;
/// let two = Tensor::from_pieces([2], DType::F32, &device, |piece| elements.read(piece))?;
/// assert_eq!(two.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SafetensorsIndex {
    path: PathBuf,
    /// The first byte of the tensors.
    start: u64,
    tensors: BTreeMap<String, StoredTensor>,
    tied: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
}

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
    /// Its first byte, counted from that of the first tensor.
    at: u64,
}

/// Elements of a tensor in a file, in row-major order.
#[derive(Debug)]
pub struct StoredElements {
    file: BufReader<File>,
    path: PathBuf,
    name: String,
    dtype: DType,
    /// The bytes that are left of the tensor.
    left: usize,
}

impl SafetensorsIndex {
    /// Reads the header of a file, whose tensors are to be read onto `device`.
    ///
    /// # Errors
    /// Those of [`StateDict::load_safetensors`](crate::StateDict::load_safetensors), except for those of the tensors
    /// themselves.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, device: &Device) -> Result<SafetensorsIndex> {
        let path = path.as_ref();
        let (mut reader, length) = open(path)?;
        let header = described(&mut reader, length, path, device, false)?;
        let mut tensors = BTreeMap::new();
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let dtype = dtype_of(path, &name, info.dtype)?;
            let stored = StoredTensor { dtype, shape: info.shape.clone(), at: info.data_offsets.0 as u64 };
            tensors.insert(name, stored);
        }
        let tied = tied(path, &header)?;
        let texts = header.metadata().iter().flatten().filter(|(key, _)| *key != TIED);
        let metadata = texts.map(|(key, text)| (key.clone(), text.clone())).collect();
        let start = length - header.data_len() as u64;
        Ok(SafetensorsIndex { path: path.to_owned(), start, tensors, tied, metadata })
    }

    /// The tensors that are stored, by name.
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// The names that are not stored, each with the name in [`tensors`](SafetensorsIndex::tensors) of the same tensor.
    pub fn tied(&self) -> &BTreeMap<String, String> {
        &self.tied
    }

    /// The metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The elements of a tensor from element `first` on, in row-major order.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if no tensor of this name is stored, or
    /// if it has fewer elements, and [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if the file cannot be read.
    #[track_caller]
    pub fn elements(&self, name: &str, first: usize) -> Result<StoredElements> {
        let missing = || Error::argument("safetensors_index", format!("{name:?} has no element {first}"));
        let stored = self.tensors.get(name).ok_or_else(missing)?;
        let left = stored.shape.iter().product::<usize>().checked_sub(first).ok_or_else(missing)?;
        let at = self.start + stored.at + (first * stored.dtype.size()) as u64;
        let (mut file, _) = open(&self.path)?;
        file.seek(SeekFrom::Start(at)).map_err(|e| not_read(&self.path, e)).here()?;
        let (path, dtype) = (self.path.clone(), stored.dtype);
        Ok(StoredElements { file, path, name: name.to_owned(), dtype, left: left * dtype.size() })
    }
}

impl StoredElements {
    /// Reads the next elements: as many bytes as `piece` has, in the byte order of the machine.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if the file cannot be read, and
    /// [`ErrorKind::Format`](gradus_tensor::ErrorKind::Format) if booleans are not 0 or 1.
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if the tensor ends before that.
    #[track_caller]
    pub fn read(&mut self, piece: &mut [u8]) -> Result<()> {
        let ends = || {
            let m = format!("{} bytes of {:?}, which has {} more", piece.len(), self.name, self.left);
            Error::argument("safetensors_index", m)
        };
        self.left = self.left.checked_sub(piece.len()).ok_or_else(ends)?;
        self.file.read_exact(piece).map_err(|e| not_read(&self.path, e)).here()?;
        if self.dtype == DType::Bool && piece.iter().any(|&b| b > 1) {
            let name = &self.name;
            return Err(
                damaged(&self.path, format!("tensor {name:?} is bool, but has bytes other than 0 and 1")).here()
            );
        }
        reorder(piece, self.dtype);
        Ok(())
    }
}
