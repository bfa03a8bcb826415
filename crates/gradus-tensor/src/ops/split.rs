//! `split`, `split_with_sizes`, `chunk` and `unbind`: an axis cut into pieces, each a view.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Error, Result};

use crate::Tensor;

impl Tensor {
    /// The pieces of `size` elements along an axis; the last one is shorter where they do not come out even. Views.
    ///
    /// A size of 0 cuts an axis of size 0 only.
    #[track_caller]
    pub fn split(&self, size: usize, axis: isize) -> Result<Vec<Tensor>> {
        let at = resolve_axis("split", axis, self.rank())?;
        let len = self.shape()[at];
        if size == 0 && len > 0 {
            let e = Error::argument("split", format!("pieces of 0 elements never fill axis {at} of size {len}"));
            return Err(self.describe(e, "self").help("a piece has at least 1 element"));
        }
        if len == 0 {
            return Ok(vec![self.narrow(axis, 0, 0)?]);
        }
        (0..len).step_by(size).map(|start| self.narrow(axis, start, size.min(len - start))).collect()
    }

    /// Pieces of the given sizes along an axis, which they fill exactly. Views.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2, 3, 4, 5i64], [5], &device)?;
    /// let parts = x.split_with_sizes(&[2, 3], 0)?;
    /// assert_eq!(parts[1].to_vec::<i64>()?, [3, 4, 5]);
    /// assert!(x.split_with_sizes(&[2, 2], 0).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[usize], axis: isize) -> Result<Vec<Tensor>> {
        let at = resolve_axis("split_with_sizes", axis, self.rank())?;
        let total = sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s));
        if total != Some(self.shape()[at]) {
            let m = format!("pieces of {sizes:?} do not fill axis {at} of size {}", self.shape()[at]);
            return Err(self.describe(Error::shape("split_with_sizes", m), "self"));
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&size| {
                let piece = self.narrow(axis, start, size);
                start += size;
                piece
            })
            .collect()
    }

    /// At most `n` pieces of equal size along an axis; the last one is shorter where they do not come out even, and there
    /// are fewer where fewer fill the axis: one of an empty axis. Views.
    #[track_caller]
    pub fn chunk(&self, n: usize, axis: isize) -> Result<Vec<Tensor>> {
        let at = resolve_axis("chunk", axis, self.rank())?;
        if n == 0 {
            let e = Error::argument("chunk", "0 chunks hold nothing");
            return Err(self.describe(e, "self").help("ask for at least 1"));
        }
        match self.shape()[at] {
            0 => Ok(vec![self.narrow(axis, 0, 0)?]),
            len => self.split(len.div_ceil(n), axis),
        }
    }

    /// The slices of an axis, without it. Views.
    #[track_caller]
    pub fn unbind(&self, axis: isize) -> Result<Vec<Tensor>> {
        let at = resolve_axis("unbind", axis, self.rank())?;
        (0..self.shape()[at]).map(|i| self.narrow(axis, i, 1)?.squeeze(axis)).collect()
    }
}
