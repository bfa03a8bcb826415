//! `broadcast_tensors` and `meshgrid`: tensors expanded to a common shape, as views.

use gradus_backend::{Error, Here, Result, Shape};

use super::operand_rules::{cast, common_dtype};
use super::same_device;
use crate::Tensor;

/// Which of the first two axes of a [`meshgrid`](Tensor::meshgrid) belongs to the first tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Indexing {
    /// Axis `i` of the results belongs to tensor `i`: matrix order.
    #[default]
    Ij,
    /// Axis 1 belongs to the first tensor and axis 0 to the second: the order of x and y in an image.
    Xy,
}

impl Tensor {
    /// The tensors expanded to the shape that they broadcast to. The results are views.
    #[track_caller]
    pub fn broadcast_tensors(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut shape = Shape::SCALAR;
        for t in tensors {
            shape = Shape::broadcast("broadcast_tensors", &shape, t.shape()).map_err(|e| t.describe(e, "operand"))?;
        }
        let mut stretched = Vec::with_capacity(tensors.len());
        for t in tensors {
            stretched.push(t.expand(shape)?);
        }
        Ok(stretched)
    }

    /// The coordinates of all points of a grid, given the coordinates along each axis. These are tensors of rank 1, or
    /// of rank 0 for a single coordinate. Result `i` varies along the axis of tensor `i`. The results are views.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::{*, ops::Indexing}; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let a = Tensor::from_vec(vec![1, 2i64], [2], &device)?;
    /// let b = Tensor::from_vec(vec![5, 6, 7i64], [3], &device)?;
    /// let grid = Tensor::meshgrid(&[&a, &b], Indexing::Ij)?;
    /// assert_eq!(grid[0].to_vec::<i64>()?, [1, 1, 1, 2, 2, 2]);
    /// assert_eq!(grid[1].to_vec::<i64>()?, [5, 6, 7, 5, 6, 7]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn meshgrid(tensors: &[&Tensor], indexing: Indexing) -> Result<Vec<Tensor>> {
        if tensors.is_empty() {
            return Err(Error::argument("meshgrid", "no tensors").help("pass the coordinates of at least one axis"));
        }
        same_device("meshgrid", tensors)?;
        let fail = |e: Error, t: &Tensor| Err(t.describe(tensors[0].describe(e, "first"), "operand"));
        if let Some(t) = tensors.iter().find(|t| t.rank() > 1) {
            return fail(Error::shape("meshgrid", "coordinates have one axis"), t).here();
        }
        let dtype = common_dtype("meshgrid", tensors, &[])?;
        let dims: Vec<usize> = tensors.iter().map(|t| t.numel()).collect();
        let mut grid = Vec::with_capacity(tensors.len());
        for (i, t) in tensors.iter().enumerate() {
            let mut column = vec![1; dims.len()];
            column[i] = dims[i];
            let full = cast(t, dtype)?.reshape(column)?.expand(&dims)?;
            grid.push(if indexing == Indexing::Xy && dims.len() > 1 { full.transpose(0, 1)? } else { full });
        }
        Ok(grid)
    }
}
