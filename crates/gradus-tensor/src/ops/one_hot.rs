//! `one_hot(index)`: class numbers as rows with a single 1.

use gradus_backend::{DType, Error, ErrorKind, Here, Result};

use super::operand_rules::as_index;
use crate::Tensor;

impl Tensor {
    /// Converts class numbers (integers) `[..]` to `[.., classes]` of i64, with 1 at the number and 0 elsewhere. Fails
    /// if a number is outside `0..classes`.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![2, 0i64], [2], &device)?;
    /// assert_eq!(x.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// assert!(x.one_hot(2).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        let places = as_index("one_hot", self)?;
        let mut dims = self.shape().to_vec();
        dims.push(classes);
        let zeros = Tensor::zeros(dims, DType::I64, self.device())?;
        zeros
            .scatter(-1, &places.unsqueeze(-1)?, 1)
            .map_err(|e| match *e.kind() {
                ErrorKind::IndexOutOfBounds { pos, index, size } => {
                    let m = format!("class {index} (number {pos}) is outside 0..{size}");
                    self.describe(Error::new(e.kind().clone(), "one_hot", m), "self")
                }
                _ => e,
            })
            .here()
    }
}
