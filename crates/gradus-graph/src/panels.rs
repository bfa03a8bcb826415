//! [`Panels`]: a matrix that products of a step read in panels, copied again after it has changed.

use std::sync::{Mutex, PoisonError, Weak};

use gradus_tensor::ops::{LinearPanels, over_storage};
use gradus_tensor::{DType, Error, ErrorKind, Layout, Result, Shape, Storage, Tensor, no_grad};

/// A matrix `[k, n]` of f32 that outlives the calls of a step, and its copy in [panels](LinearPanels). Plans for arguments
/// of other sizes share it.
#[derive(Debug)]
pub struct Panels {
    storage: Weak<Storage>,
    /// The matrix in the storage.
    matrix: Layout,
    /// The number of columns of a panel.
    width: usize,
    /// The version of the storage that was copied, and the copy.
    copied: Mutex<Option<(u64, Tensor)>>,
}

impl Panels {
    /// The matrix that lies so in `storage`. It is copied when it is first read.
    pub(crate) fn new(storage: Weak<Storage>, matrix: Layout, width: usize) -> Panels {
        Panels { storage, matrix, width, copied: Mutex::new(None) }
    }

    /// Whether `other` is the same matrix.
    pub(crate) fn is_same(&self, other: &Panels) -> bool {
        self.storage.ptr_eq(&other.storage) && (self.matrix, self.width) == (other.matrix, other.width)
    }

    /// The shape of the copy.
    pub(crate) fn shape(&self) -> Result<Shape> {
        let n = self.matrix.dims()[1];
        Shape::new(&[n.div_ceil(self.width), self.matrix.dims()[0], self.width])
    }

    /// The panels of the matrix as it is now. That there is no memory for them is not an error of the device, which would
    /// end the call: the function may do without.
    #[track_caller]
    pub(crate) fn now(&self) -> Result<Tensor> {
        let storage = self.storage.upgrade();
        let storage = storage.ok_or_else(|| Error::argument("replay", "a tensor of the step is gone"))?;
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        // A write that comes after this line is seen by the next call.
        let version = storage.version();
        if let Some((_, panels)) = copied.as_ref().filter(|(of, _)| *of == version) {
            return Ok(panels.clone());
        }
        // The old copy is freed first.
        *copied = None;
        let pack = || LinearPanels::pack(&over_storage(storage, self.matrix, DType::F32)?, self.width);
        let panels = no_grad(pack).map_err(|e| match e.kind() {
            ErrorKind::OutOfMemory { .. } => Error::argument("replay", "there is no memory for a copy of a weight"),
            _ => e,
        })?;
        *copied = Some((version, panels.clone()));
        Ok(panels)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_tensor::{DType, Device, Result, Tensor};

    use super::Panels;

    #[test]
    fn a_matrix_is_copied_once_and_again_after_a_write() -> Result<()> {
        let device = Device::from_backend(Arc::new(CpuBackend::new()?));
        let w = Tensor::arange(0, 12, 1, DType::F32, &device)?.reshape([2, 6])?;
        let panels = Panels::new(Arc::downgrade(w.storage()), *w.layout(), 4);
        let (first, second) = (panels.now()?, panels.now()?);
        assert!(Arc::ptr_eq(first.storage(), second.storage()));
        let want = |by: f32| [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, -1, -1, 10, 11, -1, -1].map(|v| (v as f32 * by).max(0.0));
        assert_eq!((first.shape(), first.to_vec::<f32>()?), (&[2, 2, 4][..], want(1.0).to_vec()));
        w.mul_(2.0)?;
        assert_eq!(panels.now()?.to_vec::<f32>()?, want(2.0));
        drop(w);
        assert!(panels.now().is_err());
        Ok(())
    }
}
