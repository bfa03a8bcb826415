//! `split`, `split_with_sizes`, `chunk` and `unbind`: an axis cut into pieces, each a view.
//!
//! The pieces are outputs of one operation, so its gradient is a single [`Cat`](super::Cat), however many pieces there
//! are.

use gradus_backend::host_vec::check_room;
use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, Here, Layout, Result, View, ViewMut};

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, Spec, apply_views, grads};
use crate::Tensor;

/// Cuts an axis into pieces that fill it, as views.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Split {
    /// The axis.
    pub axis: usize,
    /// Sizes of the pieces along the axis.
    pub sizes: Vec<usize>,
}

impl Split {
    /// The layout of each piece within the whole.
    #[track_caller]
    fn layouts(&self, whole: &Layout) -> Result<Vec<Layout>> {
        let mut start = 0;
        let piece = |&size: &usize| {
            let layout = whole.narrow(self.axis, start, size);
            start += size;
            layout
        };
        self.sizes.iter().map(piece).collect()
    }
}

impl Operation for Split {
    fn name(&self) -> &str {
        "split"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let spec = |l: Layout| Spec { shape: *l.shape(), dtype: inputs[0].dtype };
        Ok(self.layouts(&Layout::contiguous(*inputs[0].shape))?.into_iter().map(spec).collect())
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let pieces = self.layouts(inputs[0].layout)?;
        pieces.iter().zip(outputs).try_for_each(|(piece, out)| backend.copy_strided(inputs[0].with(piece), out))
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(any) = g.iter().flatten().next() else { return Ok(grads([None])) };
        let whole = ctx.input_spec(0)?;
        // The gradient of a piece that has none is zeros, expanded from one element so that they take no memory.
        let zero = Tensor::zeros([], whole.dtype, any.device())?;
        let piece = |(g, &size): (&Option<Tensor>, &usize)| match g {
            Some(g) => Ok(g.clone()),
            None => zero.expand(whole.shape.with(self.axis, size)?),
        };
        let pieces = g.iter().zip(&self.sizes).map(piece).collect::<Result<Vec<_>>>().here()?;
        Ok(grads([Some(Tensor::cat(&pieces.iter().collect::<Vec<_>>(), self.axis as isize)?)]))
    }
}

/// The maximum number of bytes that a piece needs on the host, including its entry in the graph.
const PIECE_BYTES: usize = 1024;

impl Tensor {
    /// Splits an axis into pieces of `size` elements. The last piece is shorter if the axis does not divide evenly. The
    /// pieces are views.
    ///
    /// A size of 0 is allowed only for an axis of size 0.
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
        self.pieces("split", at, (0..len).step_by(size).map(|start| size.min(len - start)))
    }

    /// Splits an axis into pieces of the given sizes, which must add up to the size of the axis. The pieces are views.
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
        self.pieces("split_with_sizes", at, sizes.iter().copied())
    }

    /// The pieces of an axis with these sizes, which add up to the size of the axis.
    #[track_caller]
    fn pieces(&self, op: &str, axis: usize, sizes: impl ExactSizeIterator<Item = usize>) -> Result<Vec<Tensor>> {
        check_room(self.device().backend(), op, sizes.len(), PIECE_BYTES).map_err(|e| self.describe(e, "self"))?;
        let op = Split { axis, sizes: sizes.collect() };
        let layouts = op.layouts(self.layout()).map_err(|e| self.describe(e, "self"))?;
        Ok(apply_views(op, self, &layouts)?.into_vec())
    }

    /// Splits an axis into at most `n` pieces of equal size. The last piece may be shorter, and there are fewer pieces
    /// if fewer fill the axis. An empty axis has one piece. The pieces are views.
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

    /// The slices of an axis, each without the axis. They are views.
    #[track_caller]
    pub fn unbind(&self, axis: isize) -> Result<Vec<Tensor>> {
        let at = resolve_axis("unbind", axis, self.rank())?;
        let mut slices = self.pieces("unbind", at, std::iter::repeat_n(1, self.shape()[at]))?;
        for slice in &mut slices {
            *slice = slice.squeeze(axis)?;
        }
        Ok(slices)
    }
}
