//! [`Panels`]: a matrix that products of a step read in panels, copied again after it has changed.

use std::sync::{Mutex, PoisonError, Weak};

use gradus_tensor::ops::{LinearPanels, over_storage};
use gradus_tensor::{DType, Error, Layout, Result, Shape, Storage, Tensor, no_grad};

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

    /// The panels of the matrix as it is now.
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
        let panels = no_grad(|| LinearPanels::pack(&over_storage(storage, self.matrix, DType::F32)?, self.width))?;
        *copied = Some((version, panels.clone()));
        Ok(panels)
    }
}
