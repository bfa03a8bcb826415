//! `repeat`, `tile` and `repeat_interleave`: copies of a tensor side by side. The gradient is summed over the copies.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Error, ErrorKind, Here, Result, Shape};

use crate::Tensor;

impl Tensor {
    /// Repeats the tensor `counts[i]` times along axis `i`. There must be a count for every axis. If there are more
    /// counts than axes, new axes are added in front.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2i64], [2], &device)?;
    /// assert_eq!(x.repeat(&[3])?.to_vec::<i64>()?, [1, 2, 1, 2, 1, 2]);
    /// assert_eq!(x.repeat_interleave(3, 0)?.to_vec::<i64>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor> {
        if counts.len() < self.rank() {
            let m = format!("{} counts for {} axes", counts.len(), self.rank());
            let e = Error::argument("repeat", m).help("name a count an axis, or use tile, which puts 1 in front");
            return Err(self.describe(e, "self"));
        }
        let lead = counts.len() - self.rank();
        let dims: Vec<usize> = std::iter::repeat_n(1, lead).chain(self.shape().iter().copied()).collect();
        // The size of the whole result is checked before any part is allocated.
        let whole: Option<Vec<usize>> = dims.iter().zip(counts).map(|(&d, &n)| d.checked_mul(n)).collect();
        Shape::new(&whole.ok_or_else(|| self.too_large("repeat")).here()?)?;
        let mut y = self.reshape(&dims)?;
        // Counts of 0 come first, since the intermediate results are then empty too.
        let (none, more): (Vec<usize>, Vec<usize>) =
            (0..counts.len()).rev().filter(|&i| counts[i] != 1).partition(|&i| counts[i] == 0);
        for axis in none.into_iter().chain(more) {
            y = y.copies("repeat", axis, counts[axis], true)?;
        }
        y.apart_from(self)
    }

    /// [`repeat`](Tensor::repeat) with a count of 1 for leading axes that `counts` does not cover.
    #[track_caller]
    pub fn tile(&self, counts: &[usize]) -> Result<Tensor> {
        let missing = self.rank().saturating_sub(counts.len());
        let all: Vec<usize> = std::iter::repeat_n(1, missing).chain(counts.iter().copied()).collect();
        self.repeat(&all)
    }

    /// Repeats each slice along an axis `n` times, with the copies of a slice next to each other.
    #[track_caller]
    pub fn repeat_interleave(&self, n: usize, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("repeat_interleave", axis, self.rank())?;
        self.copies("repeat_interleave", axis, n, false)?.apart_from(self)
    }

    /// `n` copies along an axis: of the whole axis, or of each of its slices.
    #[track_caller]
    fn copies(&self, op: &str, axis: usize, n: usize, whole: bool) -> Result<Tensor> {
        let (dims, len) = (self.shape(), self.shape()[axis]);
        let shape = self.layout().shape().with(axis, len.checked_mul(n).ok_or_else(|| self.too_large(op)).here()?)?;
        let (outer, inner): (usize, usize) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
        let rows = self.reshape([outer, len, inner])?;
        let stretched = if whole {
            rows.unsqueeze(1)?.expand([outer, n, len, inner])?
        } else {
            rows.unsqueeze(2)?.expand([outer, len, n, inner])?
        };
        stretched.reshape(shape)
    }

    #[track_caller]
    fn too_large(&self, op: &str) -> Error {
        self.describe(Error::new(ErrorKind::Overflow, op, "the result is too large"), "self")
    }
}
