//! `diagonal`, `diag`, `diag_embed` and `trace`: the diagonals of the plane of two axes. `tril` and `triu`: the parts
//! below and above a diagonal. Diagonal `k` holds the elements whose column is their row plus `k`.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Axes, Backend, DType, Error, Here, Layout, Result, Scalar, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, apply_view, grads, one};
use crate::Tensor;

/// A diagonal of the plane of two axes. The two axes are removed, and the diagonal becomes the last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Diagonal {
    /// The number of the diagonal: 0 for the main diagonal, positive above it.
    pub offset: isize,
    /// The axes of rows and columns.
    pub axes: [usize; 2],
}

/// The adjoint of [`Diagonal`]: zeros with the input on the diagonal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DiagonalBackward {
    /// The diagonal.
    pub diagonal: Diagonal,
    /// The shape of the tensor with this diagonal.
    pub input: Shape,
}

impl Diagonal {
    #[track_caller]
    fn layout(&self, x: &Layout) -> Result<Layout> {
        let [a, b] = self.axes;
        let shift = self.offset.unsigned_abs();
        let (down, across) = if self.offset < 0 { (shift, 0) } else { (0, shift) };
        let len = x.dims()[a].saturating_sub(down).min(x.dims()[b].saturating_sub(across));
        let kept = || (0..x.rank()).filter(|i| !self.axes.contains(i));
        let mut dims: SmallVec<[usize; 8]> = kept().map(|i| x.dims()[i]).collect();
        let mut strides: SmallVec<[isize; 8]> = kept().map(|i| x.strides()[i]).collect();
        dims.push(len);
        strides.push(x.strides()[a] + x.strides()[b]);
        let shape = Shape::new(&dims)?;
        let mut start = x.offset();
        // The offset of an empty view is never used, and moving it could leave the buffer.
        if shape.numel() > 0 {
            start = start.wrapping_add_signed(down as isize * x.strides()[a] + across as isize * x.strides()[b]);
        }
        Layout::from_parts(shape, &strides, start, x.span().end)
    }
}

impl Operation for Diagonal {
    fn name(&self) -> &str {
        "diagonal"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*self.layout(&Layout::contiguous(*inputs[0].shape))?.shape(), inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.copy_strided(inputs[0].with(&self.layout(inputs[0].layout)?), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let backward = DiagonalBackward { diagonal: self.clone(), input: ctx.input_spec(0)?.shape };
        Ok(grads([Some(apply_one(backward, &[g])?)]))
    }
}

impl Operation for DiagonalBackward {
    fn name(&self) -> &str {
        "diag_embed"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let part = self.diagonal.layout(outputs[0].layout)?;
        backend.fill(&mut outputs[0], Scalar::Int(0))?;
        if part.numel() == 0 {
            return Ok(());
        }
        backend.copy_strided(inputs[0], &mut outputs[0].with(&part))
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, _: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None])) };
        let [a, b] = self.diagonal.axes;
        Ok(grads([Some(h.diagonal(self.diagonal.offset, a as isize, b as isize)?)]))
    }
}

impl Tensor {
    /// Diagonal `offset` of the plane of two axes. It lies above the main diagonal if `offset` is positive, and below
    /// if it is negative. The two axes are removed, and the diagonal becomes the last axis, of size 0 if it lies
    /// outside the plane. The result is a view.
    #[track_caller]
    pub fn diagonal(&self, offset: isize, axis1: isize, axis2: isize) -> Result<Tensor> {
        Axes::resolve("diagonal", &[axis1, axis2], self.rank()).map_err(|e| self.describe(e, "self"))?;
        let axes = [resolve_axis("diagonal", axis1, self.rank())?, resolve_axis("diagonal", axis2, self.rank())?];
        let op = Diagonal { offset, axes };
        let layout = op.layout(self.layout()).map_err(|e| self.describe(e, "self"))?;
        apply_view(op, self, layout)
    }

    /// Places the last axis on diagonal `offset` of the plane of two new axes, with zeros elsewhere. `axis1` and
    /// `axis2` are axes of the result. This is the inverse of [`diagonal`](Tensor::diagonal).
    #[track_caller]
    pub fn diag_embed(&self, offset: isize, axis1: isize, axis2: isize) -> Result<Tensor> {
        let rank = self.rank() + 1;
        let Some((&len, lead)) = self.shape().split_last() else {
            let e = Error::shape("diag_embed", "a scalar has no axis to lay on a diagonal");
            return Err(self.describe(e, "self").help("use unsqueeze(0)"));
        };
        Axes::resolve("diag_embed", &[axis1, axis2], rank).map_err(|e| self.describe(e, "self"))?;
        let axes = [resolve_axis("diag_embed", axis1, rank)?, resolve_axis("diag_embed", axis2, rank)?];
        // If the sum overflows, it saturates to more than any shape allows, so the shape is refused.
        let side = len.saturating_add(offset.unsigned_abs());
        let mut lead = lead.iter();
        let dims: SmallVec<[usize; 9]> =
            (0..rank).map(|i| if axes.contains(&i) { side } else { lead.next().copied().unwrap_or(1) }).collect();
        let input = Shape::new(&dims).map_err(|e| self.describe(e, "self"))?;
        apply_one(DiagonalBackward { diagonal: Diagonal { offset, axes }, input }, &[self])
    }

    /// For a vector, the matrix with the vector on diagonal `k`. For a matrix, its diagonal `k` as a view.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2i64], [2], &device)?;
    /// let y = x.diag(1)?;
    /// assert_eq!((y.shape(), y.to_vec::<i64>()?), (&[3, 3][..], vec![0, 1, 0, 0, 0, 2, 0, 0, 0]));
    /// assert_eq!(y.diag(1)?.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn diag(&self, k: isize) -> Result<Tensor> {
        match self.rank() {
            1 => self.diag_embed(k, 0, 1),
            2 => self.diagonal(k, 0, 1),
            rank => {
                let e = Error::shape("diag", format!("rank {rank} where 1 or 2 is needed"));
                Err(self.describe(e, "self").help("use diagonal or diag_embed, which name their axes"))
            }
        }
    }

    /// The sum of the main diagonal of a matrix, as a scalar. Integers and booleans are summed in 64 bits.
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            let e = Error::shape("trace", format!("rank {} where 2 is needed", self.rank()));
            return Err(self.describe(e, "self").help("use diagonal and sum for batches"));
        }
        self.diagonal(0, 0, 1)?.sum_all()
    }

    /// The part of each matrix (the last two axes) on and below diagonal `k`, with zeros above it.
    #[track_caller]
    pub fn tril(&self, k: isize) -> Result<Tensor> {
        let above = self.columns_past_rows("tril")?.gt(k as i64)?;
        self.masked_fill(&above, 0)
    }

    /// The part of each matrix (the last two axes) on and above diagonal `k`, with zeros below it.
    #[track_caller]
    pub fn triu(&self, k: isize) -> Result<Tensor> {
        let below = self.columns_past_rows("triu")?.lt(k as i64)?;
        self.masked_fill(&below, 0)
    }

    /// The column minus the row (i64) at each position of the last two axes.
    #[track_caller]
    fn columns_past_rows(&self, op: &str) -> Result<Tensor> {
        let &[.., rows, columns] = self.shape() else {
            let e = Error::shape(op, format!("rank {} where at least 2 is needed", self.rank()));
            return Err(self.describe(e, "self"));
        };
        let count = |n: usize| Tensor::arange(0, n as i64, 1, DType::I64, self.device());
        count(columns).here()?.sub(&count(rows).here()?.unsqueeze(1)?)
    }
}
