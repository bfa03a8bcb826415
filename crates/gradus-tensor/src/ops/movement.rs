//! Views that rearrange axes and elements without copying: `reshape`, `flatten`, `unflatten`, `permute`, `movedim`,
//! `transpose`, `expand`, `flip`, `squeeze`, `unsqueeze`. The gradient undoes the rearrangement; for `expand`, it is
//! summed.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, Here, Layout, Result, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::operand_rules::{axis_of, reduced_axes};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_view, grads, one};
use crate::Tensor;

/// A size in the shape passed to [`reshape`](Tensor::reshape) that is to be computed from the number of elements.
pub const INFER: usize = usize::MAX;

/// The same elements in row-major order under another shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

/// The axes in another order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Permute {
    /// The old axis of each new axis.
    pub axes: SmallVec<[isize; 8]>,
}

/// Expands axes of size 1 and adds new axes in front.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expand {
    /// The new shape.
    pub shape: Shape,
}

/// One axis in reverse order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flip {
    /// The axis.
    pub axis: usize,
}

impl Permute {
    fn inverse(&self) -> SmallVec<[isize; 8]> {
        let mut inverse = SmallVec::from_elem(0, self.axes.len());
        for (new, &old) in self.axes.iter().enumerate() {
            inverse[old as usize] = new as isize;
        }
        inverse
    }
}

macro_rules! view_operation {
    ($($op:ident $name:literal, |$this:ident, $layout:ident| $view:expr, |$t:ident, $g:ident, $ctx:ident| $back:expr;)*) => {$(
        impl $op {
            fn layout(&self, $layout: &Layout) -> Result<Layout> {
                let $this = self;
                $view
            }
        }

        impl Operation for $op {
            fn name(&self) -> &str {
                $name
            }

            fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
                Ok(one(*self.layout(&Layout::contiguous(*inputs[0].shape))?.shape(), inputs[0].dtype))
            }

            fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
                backend.copy_strided(inputs[0].with(&self.layout(&inputs[0].layout)?), &mut outputs[0])
            }

            fn flow(&self) -> Flow {
                Flow::Moves
            }

            fn keeps(&self, _: &[bool]) -> Keep {
                Keep::NONE
            }

            fn vjp(&self, $ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
                let Some($g) = &g[0] else { return Ok(grads([None])) };
                let $t = self;
                Ok(grads([Some($back)]))
            }
        }
    )*};
}

view_operation! {
    Reshape "reshape",
        |t, layout| layout.reshape(t.shape).ok_or_else(|| Error::shape("reshape", "the strides need a copy first")).here(),
        |_t, g, ctx| g.reshape(ctx.input_spec(0)?.shape)?;
    Permute "permute", |t, layout| layout.permute(&t.axes), |t, g, _ctx| g.permute(&t.inverse())?;
    Expand "expand", |t, layout| layout.expand(t.shape), |_t, g, ctx| g.sum_to(&ctx.input_spec(0)?.shape)?;
    Flip "flip", |t, layout| Ok(layout.flip(t.axis)), |t, g, _ctx| g.flip(t.axis as isize)?;
}

impl Tensor {
    #[track_caller]
    fn view<O: Operation + Into<super::Op>>(&self, op: O, layout: Result<Layout>) -> Result<Tensor> {
        apply_view(op, self, layout.map_err(|e| self.describe(e, "self"))?)
    }

    /// The same elements, in row-major order, under another shape with the same number of elements. The result is a
    /// view if the strides allow it, and a copy otherwise. One size may be [`INFER`]; it follows from the number of
    /// elements.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, &device)?;
    /// assert_eq!(x.reshape([4, INFER])?.shape(), [4, 6]);
    /// assert!(x.reshape([5, INFER]).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = match shape.as_ref() {
            dims if dims.contains(&INFER) => self.inferred("reshape", dims, self.numel())?,
            dims => Shape::new(dims)?,
        };
        if shape.numel() != self.numel() {
            let m = format!("{} elements do not fill {shape}, which has {}", self.numel(), shape.numel());
            return Err(self.describe(Error::shape("reshape", m), "self"));
        }
        match self.layout().reshape(shape) {
            Some(layout) => apply_view(Reshape { shape }, self, layout),
            None => self.copy()?.reshape(shape),
        }
    }

    /// A shape in which the one [`INFER`] is replaced such that the shape has `numel` elements.
    #[track_caller]
    fn inferred(&self, op: &str, dims: &[usize], numel: usize) -> Result<Shape> {
        let known: SmallVec<[usize; 8]> = dims.iter().copied().filter(|&d| d != INFER).collect();
        let fail = |m: String| Err(self.describe(Error::shape(op, m), "self"));
        if known.len() + 1 < dims.len() {
            return fail(format!("{} sizes are to be inferred; one can be", dims.len() - known.len())).here();
        }
        let rest = Shape::new(&known)?;
        match rest.numel() {
            0 => fail(format!("beside {rest}, which has no elements, any size would do")).here(),
            n if !numel.is_multiple_of(n) => {
                fail(format!("{numel} elements do not divide by the {n} of {rest}")).here()
            }
            n => {
                let dims: SmallVec<[usize; 8]> = dims.iter().map(|&d| if d == INFER { numel / n } else { d }).collect();
                Shape::new(&dims)
            }
        }
    }

    /// Splits one axis into several with the same number of elements in total. One size may be [`INFER`]. This is the
    /// inverse of [`flatten`](Tensor::flatten).
    #[track_caller]
    pub fn unflatten(&self, axis: isize, sizes: impl AsRef<[usize]>) -> Result<Tensor> {
        let (axis, sizes) = (resolve_axis("unflatten", axis, self.rank())?, sizes.as_ref());
        let size = self.shape()[axis];
        let parts = if sizes.contains(&INFER) { self.inferred("unflatten", sizes, size)? } else { Shape::new(sizes)? };
        if parts.numel() != size || sizes.is_empty() {
            let m = format!("{parts} does not split axis {axis} of size {size}");
            return Err(self.describe(Error::shape("unflatten", m), "self"));
        }
        self.reshape([&self.shape()[..axis], &parts, &self.shape()[axis + 1..]].concat())
    }

    /// Moves the axes `source` to the positions `destination`. The other axes keep their order. The result is a view.
    #[track_caller]
    pub fn movedim(&self, source: &[isize], destination: &[isize]) -> Result<Tensor> {
        let rank = self.rank();
        if source.len() != destination.len() {
            let m = format!("{} axes for {} places", source.len(), destination.len());
            return Err(self.describe(Error::argument("movedim", m), "self"));
        }
        let moved = reduced_axes("movedim", source, rank).map_err(|e| self.describe(e, "self"))?;
        reduced_axes("movedim", destination, rank).map_err(|e| self.describe(e, "self"))?;
        if rank == 0 {
            return self.permute(&[]);
        }
        let mut order: SmallVec<[Option<isize>; 8]> = SmallVec::from_elem(None, rank);
        for (&from, &to) in source.iter().zip(destination) {
            order[resolve_axis("movedim", to, rank)?] = Some(resolve_axis("movedim", from, rank)? as isize);
        }
        let mut rest = (0..rank).filter(|&i| !moved.contains(i)).map(|i| i as isize);
        let order: SmallVec<[isize; 8]> = order.into_iter().filter_map(|o| o.or_else(|| rest.next())).collect();
        self.permute(&order)
    }

    /// Merges the axes from `start` to `end`, both included, into one.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        let (a, b) = (axis_of("flatten", start, self.rank())?, axis_of("flatten", end, self.rank())?);
        if self.rank() == 0 {
            return self.reshape([1]);
        }
        if a > b {
            return Err(self.describe(Error::argument("flatten", format!("axis {a} comes after axis {b}")), "self"));
        }
        let merged: usize = self.shape()[a..=b].iter().product();
        self.reshape([&self.shape()[..a], &[merged], &self.shape()[b + 1..]].concat())
    }

    /// Puts the axes in the order `axes`, which names each axis once. The result is a view.
    #[track_caller]
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        let layout = self.layout().permute(axes);
        let rank = self.rank() as isize;
        let axes = axes.iter().map(|&a| if a < 0 { a + rank } else { a }).collect();
        self.view(Permute { axes }, layout)
    }

    /// Swaps two axes. The result is a view.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (axis_of("transpose", a, self.rank())?, axis_of("transpose", b, self.rank())?);
        let mut axes: SmallVec<[isize; 8]> = (0..self.rank() as isize).collect();
        if a != b {
            axes.swap(a, b);
        }
        self.permute(&axes)
    }

    /// Transposes a matrix. The result is a view.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            let e = Error::shape("t", format!("rank {} where 2 is needed", self.rank()));
            return Err(self.describe(e, "self").help("use transpose or permute"));
        }
        self.transpose(0, 1)
    }

    /// Expands this tensor to `shape` by the broadcasting rule. The result is a view, in which expanded axes have
    /// stride 0.
    #[track_caller]
    pub fn expand(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape.as_ref())?;
        if self.shape() == shape.dims() {
            return Ok(self.clone());
        }
        self.view(Expand { shape }, self.layout().expand(shape))
    }

    /// Reverses the elements along an axis. The result is a view.
    #[track_caller]
    pub fn flip(&self, axis: isize) -> Result<Tensor> {
        let axis = axis_of("flip", axis, self.rank())?;
        if self.rank() == 0 {
            return self.permute(&[]);
        }
        self.view(Flip { axis }, Ok(self.layout().flip(axis)))
    }

    /// Removes an axis of size 1. A scalar stays as it is. The result is a view.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Result<Tensor> {
        let axis = axis_of("squeeze", axis, self.rank())?;
        if self.rank() == 0 {
            return self.permute(&[]);
        }
        let layout = self.layout().squeeze(axis).map_err(|e| self.describe(e, "self"))?;
        apply_view(Reshape { shape: *layout.shape() }, self, layout)
    }

    /// Inserts an axis of size 1 at `axis`. Negative numbers count from the end of the result. The result is a view.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("unsqueeze", axis, self.rank() + 1)?;
        let layout = self.layout().unsqueeze(axis).map_err(|e| self.describe(e, "self"))?;
        apply_view(Reshape { shape: *layout.shape() }, self, layout)
    }
}
