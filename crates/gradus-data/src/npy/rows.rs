//! [`Rows`]: the rows of an array in a file, as a dataset.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use super::header::Header;
use super::{head, in_order, open};
use crate::Dataset;
use crate::dataset::check_index;

const OP: &str = "npy_rows";

/// The rows of an `.npy` file that may be larger than memory: sample `i` is the tensor at index `i` of the first axis,
/// read when it is asked for. Clones share the file.
///
/// The file is read and not mapped into memory: if another program changes it meanwhile, a sample has the new elements, and
/// if the file becomes shorter, it is an error. With a map, the first would be undefined behaviour and the second would
/// end the program.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("x.npy");
/// use gradus_data::{DataLoader, Dataset, npy};
/// npy::save(&path, &Tensor::arange(0, 12, 1, DType::I64, &device)?.reshape([6, 2])?)?;
/// let rows = npy::Rows::open(&path, &device)?;
/// assert_eq!((rows.len(), rows.get(2)?.to_vec::<i64>()?), (6, vec![4, 5]));
/// let pairs = rows.map(|row| Ok((row.narrow(0, 0, 1)?, row.narrow(0, 1, 1)?)));
/// let loader = DataLoader::new(pairs, &device).batch_size(4).build()?;
/// # assert_eq!(loader.len(), 2);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Rows {
    file: Arc<Mutex<File>>,
    name: Arc<str>,
    header: Arc<Header>,
    /// The bytes before the first row.
    before: u64,
    device: Device,
}

impl Rows {
    /// Opens a file. Its samples will be on `device`.
    ///
    /// # Errors
    /// Those of [`load`](super::load), as far as the header and the length of the file show them.
    /// [`ErrorKind::Format`] also if the array has no axis, or more than one in Fortran order.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, device: &Device) -> Result<Rows> {
        let path = path.as_ref();
        let (mut file, name) = (open(path, OP, "a .npy file")?, path.display().to_string());
        let failed = |e| Error::io(OP, &name, e);
        let length = file.metadata().map_err(failed).here()?.len();
        let bad = |what: &str| Error::new(ErrorKind::Format, OP, format!("{name} {what}"));
        let (header, before) = head(OP, &name, length, &mut |piece| {
            file.read_exact(piece).map_err(|_| bad("ends too early").help("is the file whole? Copy it again"))
        })
        .here()?;
        match header.shape[..] {
            [] => return Err(bad("is one number without rows").help("load it with npy::load")),
            [_, _, ..] if header.fortran => {
                let e = bad("is in Fortran order, in which a row is not in one piece");
                return Err(e.help("save numpy.ascontiguousarray(x), or load the file whole with npy::load"));
            }
            _ => {}
        }
        let (file, name) = (Arc::new(Mutex::new(file)), name.into());
        Ok(Rows { file, name, header: Arc::new(header), before, device: device.clone() })
    }

    /// The shape of a sample.
    pub fn shape(&self) -> &[usize] {
        self.header.shape.get(1..).unwrap_or_default()
    }

    /// The dtype of the samples.
    pub fn dtype(&self) -> DType {
        self.header.dtype
    }
}

impl Dataset for Rows {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.header.shape.first().copied().unwrap_or(0)
    }

    #[track_caller]
    fn get(&self, index: usize) -> Result<Tensor> {
        check_index(OP, index, self.len())?;
        // At most the length of the file, which the header was checked against.
        let bytes = self.shape().iter().fold(self.dtype().size() as u64, |bytes, &n| bytes * n as u64);
        let mut at = self.before + index as u64 * bytes;
        let tensor = Tensor::from_pieces(self.shape(), self.dtype(), &self.device, |piece| {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(piece));
            read.map_err(|e| Error::io(OP, &self.name, e).help("was the file changed while it was read?")).here()?;
            at += piece.len() as u64;
            in_order(OP, &self.name, &self.header, piece)
        });
        tensor.here()
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({}: {} of {:?}, {})", self.name, self.len(), self.shape(), self.dtype())
    }
}
