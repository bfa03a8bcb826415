//! Gather, scatter and embeddings, which select elements by an integer tensor.
//!
//! Each operation is one walk over three layouts of the same shape: the indices, the tensor that has their shape, and
//! the indexed tensor with its indexed axis held at position 0 (stride 0). An index then adds `index * stride` to the
//! position in the indexed tensor. If the index is constant along the innermost merged axis, as in `index_select` and
//! embeddings, whole rows are moved.

mod gather;
mod scatter;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_backend::{DType, Error, ErrorKind, Layout, Result, Shape, View};

pub(crate) use gather::{embedding, gather};
pub(crate) use scatter::{embedding_backward, scatter};

use crate::CpuBackend;
use crate::access::check_axis;
use crate::nest::Nest;

/// The number of elements that a task should process.
const TASK: usize = 1 << 14;

/// The buffer of an index tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Indices<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
    U32(&'a [u32]),
}

impl<'a> Indices<'a> {
    pub(crate) fn new(cpu: &CpuBackend, op: &str, index: View<'a>) -> Result<Self> {
        match index.dtype {
            DType::I64 => cpu.slice(op, index).map(Indices::I64),
            DType::I32 => cpu.slice(op, index).map(Indices::I32),
            DType::U32 => cpu.slice(op, index).map(Indices::U32),
            d => Err(Error::dtype(op, d, "i64, i32 and u32 as indices")),
        }
    }

    /// The index at a position of the buffer.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> i64 {
        match self {
            Indices::I64(v) => v[i],
            Indices::I32(v) => i64::from(v[i]),
            Indices::U32(v) => i64::from(v[i]),
        }
    }
}

/// How indices address an axis of another tensor.
#[derive(Debug, Clone)]
struct Walk {
    /// Where rows start in the indices, in the tensor with their shape, and in the indexed tensor.
    rows: Nest<3>,
    /// The length of a row, and its strides in the three tensors.
    len: usize,
    steps: [isize; 3],
    /// The size and stride of the indexed axis.
    size: usize,
    stride: isize,
    /// The number of elements for which each of the caller's indices is used.
    per_index: usize,
    /// The number of elements for each combination of positions along the axes before the indexed one.
    lead: usize,
}

impl Walk {
    /// Creates the walk for indices along an axis of `indexed`. `other` has the shape of `index`, which equals that of
    /// `indexed` except along the axis.
    fn along(op: &str, axis: usize, index: &Layout, other: &Layout, indexed: &Layout) -> Result<Walk> {
        let dims = other.dims();
        check_axis(op, axis, indexed.dims())?;
        let same = |i: usize| i == axis || dims[i] == indexed.dims()[i];
        if index.dims() != dims || dims.len() != indexed.rank() || !(0..dims.len()).all(same) {
            let m = format!(
                "along axis {axis} of {} the indices have shape {} and the other operand {}",
                indexed.shape(),
                index.shape(),
                other.shape()
            );
            return Err(Error::shape(op, m).help("both have the shape of the indexed tensor but for the indexed axis"));
        }
        let (size, stride) = (indexed.dims()[axis], indexed.strides()[axis]);
        let mut held = indexed.dims().to_vec();
        held[axis] = 1;
        // The indexed tensor with the axis held at 0. If the axis is empty, every index is an error, so nothing is
        // read.
        let base = if size == 0 { Layout::contiguous(Shape::new(&held)?) } else { indexed.narrow(axis, 0, 1)? };
        let lead = dims[axis..].iter().product();
        Ok(Walk::new(index, other, &base.expand(*other.shape())?, size, stride, lead, 1))
    }

    /// Creates the walk for rows of a matrix. `other` has shape `[.., d]`, `index` has this shape without the last
    /// axis, and `matrix` has shape `[size, d]`.
    fn rows(op: &str, index: &Layout, other: &Layout, matrix: &Layout) -> Result<Walk> {
        let fits = other.rank() == index.rank() + 1 && other.dims().starts_with(index.dims());
        if matrix.rank() != 2 || !fits || other.dims()[index.rank()] != matrix.dims()[1] {
            let m = format!(
                "the weight has shape {}, the indices {} and the rows {}",
                matrix.shape(),
                index.shape(),
                other.shape()
            );
            return Err(Error::shape(op, m).help("they are [v, d], [..] and [.., d]"));
        }
        let (size, stride) = (matrix.dims()[0], matrix.strides()[0]);
        let row = if size == 0 { Layout::contiguous(Shape::new(&matrix.dims()[1..])?) } else { matrix.select(0, 0)? };
        let index = index.unsqueeze(index.rank())?.expand(*other.shape())?;
        Ok(Walk::new(&index, other, &row.expand(*other.shape())?, size, stride, other.numel(), matrix.dims()[1]))
    }

    fn new(
        index: &Layout,
        other: &Layout,
        base: &Layout,
        size: usize,
        stride: isize,
        lead: usize,
        per_index: usize,
    ) -> Walk {
        let (rows, len, steps) = Nest::new(&[index, other, base]).split_inner();
        Walk { rows, len, steps, size, stride, per_index, lead }
    }

    /// Whether one index applies to a whole row.
    fn whole_rows(&self) -> bool {
        self.steps[0] == 0
    }

    /// Returns the number of rows per task.
    fn grain(&self) -> usize {
        (TASK / self.len.max(1)).max(1)
    }

    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool {
        self.len == 0 || self.rows.numel() == 0
    }

    /// Checks that every index lies on the axis. The error names the first index that does not.
    fn check(&self, cpu: &CpuBackend, op: &str, index: &Indices<'_>) -> Result<()> {
        let bad = AtomicUsize::new(usize::MAX);
        let count = if self.whole_rows() { 1 } else { self.len };
        let grain = (TASK / count.max(1)).max(1);
        cpu.parallel_for(if self.is_empty() { 0 } else { self.rows.numel() }, grain, |rows| {
            self.rows.for_each(rows, |row, at| {
                for i in 0..count {
                    if self.place(index.at(along(at[0], self.steps[0], i))).is_none() {
                        bad.fetch_min(row * self.len + i, Ordering::Relaxed);
                        return;
                    }
                }
            });
        });
        self.report(op, index, bad.into_inner())
    }

    /// Returns the error for the index of element number `bad`; `usize::MAX` means that no index is bad.
    fn report(&self, op: &str, index: &Indices<'_>, bad: usize) -> Result<()> {
        if bad == usize::MAX {
            return Ok(());
        }
        let at = self.rows.at(bad / self.len)[0];
        let value = index.at(along(at, self.steps[0], bad % self.len));
        let pos = bad / self.per_index.max(1);
        let kind = ErrorKind::IndexOutOfBounds { pos, index: value, size: self.size };
        let m = format!("index {value} (number {pos}) is outside an axis of size {}", self.size);
        Err(Error::new(kind, op, m).help("indices count from 0; negative ones are not taken from the end here"))
    }

    /// Returns the offset of an index from the start of the axis, or `None` if it is out of range.
    #[inline(always)]
    fn place(&self, index: i64) -> Option<isize> {
        let inside = usize::try_from(index).is_ok_and(|i| i < self.size);
        inside.then(|| (index as isize).wrapping_mul(self.stride))
    }
}

/// Returns the position `i` steps after `at`.
#[inline(always)]
fn along(at: usize, step: isize, i: usize) -> usize {
    at.wrapping_add_signed(step.wrapping_mul(i as isize))
}
