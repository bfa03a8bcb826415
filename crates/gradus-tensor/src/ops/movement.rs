//! Views that move axes and elements without touching them: `reshape`, `flatten`, `permute`, `transpose`, `expand`,
//! `flip`, `squeeze`, `unsqueeze`. The gradient of each is the move back (of expand: the sum).

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Backend, Error, Layout, Result, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::{Context, Grads, Keep, Operation, Outputs, apply_view, grads, one};
use crate::Tensor;

/// The same elements in row-major order under another shape.
#[derive(Debug, Clone)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

/// The axes in another order.
#[derive(Debug, Clone)]
pub struct Permute {
    /// For each new axis the old one.
    pub axes: SmallVec<[isize; 8]>,
}

/// Axes of size 1 stretched, and new ones in front.
#[derive(Debug, Clone)]
pub struct Expand {
    /// The new shape.
    pub shape: Shape,
}

/// One axis in reverse order.
#[derive(Debug, Clone)]
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

            fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
                Ok(one(*self.layout(inputs[0].layout())?.shape(), inputs[0].dtype()))
            }

            fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
                backend.copy_strided(inputs[0].with(&self.layout(&inputs[0].layout)?), &mut outputs[0])
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
        |t, layout| layout.reshape(t.shape).ok_or_else(|| Error::shape("reshape", "the strides need a copy first")),
        |_t, g, ctx| g.reshape(ctx.input_spec(0).shape)?;
    Permute "permute", |t, layout| layout.permute(&t.axes), |t, g, _ctx| g.permute(&t.inverse())?;
    Expand "expand", |t, layout| layout.expand(t.shape), |_t, g, ctx| g.sum_to(&ctx.input_spec(0).shape)?;
    Flip "flip", |t, layout| Ok(layout.flip(t.axis)), |t, g, _ctx| g.flip(t.axis as isize)?;
}

impl Tensor {
    #[track_caller]
    fn view<O: Operation + Into<super::Op>>(&self, op: O, layout: Result<Layout>) -> Result<Tensor> {
        Ok(apply_view(op, self, layout.map_err(|e| self.describe(e, "self"))?))
    }

    /// The same elements, in row-major order, under another shape of as many. A view where the strides allow it, else a
    /// copy.
    #[track_caller]
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape.as_ref())?;
        if shape.numel() != self.numel() {
            let m = format!("{} elements do not fill {shape}, which has {}", self.numel(), shape.numel());
            return Err(self.describe(Error::shape("reshape", m), "self"));
        }
        match self.layout().reshape(shape) {
            Some(layout) => Ok(apply_view(Reshape { shape }, self, layout)),
            None => self.copy()?.reshape(shape),
        }
    }

    /// The axes from `start` to `end`, both included, merged into one.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        if self.rank() == 0 {
            return self.reshape([1]);
        }
        let (a, b) = (resolve_axis("flatten", start, self.rank())?, resolve_axis("flatten", end, self.rank())?);
        if a > b {
            return Err(self.describe(Error::argument("flatten", format!("axis {a} comes after axis {b}")), "self"));
        }
        let merged: usize = self.shape()[a..=b].iter().product();
        self.reshape([&self.shape()[..a], &[merged], &self.shape()[b + 1..]].concat())
    }

    /// The axes in the order `axes`, each named once. A view.
    #[track_caller]
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        let layout = self.layout().permute(axes);
        let rank = self.rank() as isize;
        let axes = axes.iter().map(|&a| if a < 0 { a + rank } else { a }).collect();
        self.view(Permute { axes }, layout)
    }

    /// Two axes swapped. A view.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (resolve_axis("transpose", a, self.rank())?, resolve_axis("transpose", b, self.rank())?);
        let mut axes: SmallVec<[isize; 8]> = (0..self.rank() as isize).collect();
        axes.swap(a, b);
        self.permute(&axes)
    }

    /// A matrix transposed. A view.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            let e = Error::shape("t", format!("rank {} where 2 is needed", self.rank()));
            return Err(self.describe(e, "self").help("use transpose or permute"));
        }
        self.transpose(0, 1)
    }

    /// Stretched to `shape` by the broadcasting rule. A view: stretched axes have stride 0.
    #[track_caller]
    pub fn expand(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = Shape::new(shape.as_ref())?;
        if self.shape() == shape.dims() {
            return Ok(self.clone());
        }
        self.view(Expand { shape }, self.layout().expand(shape))
    }

    /// One axis in reverse order. A view.
    #[track_caller]
    pub fn flip(&self, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("flip", axis, self.rank())?;
        self.view(Flip { axis }, Ok(self.layout().flip(axis)))
    }

    /// Without an axis of size 1. A view.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("squeeze", axis, self.rank())?;
        let layout = self.layout().squeeze(axis).map_err(|e| self.describe(e, "self"))?;
        Ok(apply_view(Reshape { shape: *layout.shape() }, self, layout))
    }

    /// With a new axis of size 1 at `axis` (negative ones count from the end of the result). A view.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("unsqueeze", axis, self.rank() + 1)?;
        let layout = self.layout().unsqueeze(axis).map_err(|e| self.describe(e, "self"))?;
        Ok(apply_view(Reshape { shape: *layout.shape() }, self, layout))
    }
}
