//! `max_pool2d` and `avg_pool2d` over `[n, c, h, w]`.
//!
//! Max pooling sends the gradient to the element that won (the first of equals; NaN wins), adding where windows overlap.
//! Average pooling is linear; it and its adjoint are each other's gradient.

use gradus_backend::{Backend, DType, Error, Result, Shape, View, ViewMut, Window};
use smallvec::smallvec;

use super::{Context, Grads, Keep, Operation, Outputs, Spec, apply, apply_one, grads, one};
use crate::Tensor;

/// Most elements of a pooling window.
const MAX_WINDOW: usize = 1 << 24;

/// The largest element under each window, and where it is.
#[derive(Debug, Clone)]
pub struct MaxPool {
    /// The window.
    pub window: Window,
}

/// The mean under each window.
#[derive(Debug, Clone)]
pub struct AvgPool {
    /// The window.
    pub window: Window,
    /// Whether padding counts as zeros.
    pub count_include_pad: bool,
}

/// The adjoint of [`AvgPool`].
#[derive(Debug, Clone)]
pub struct AvgPoolBackward {
    /// The pooling.
    pub pool: AvgPool,
    /// Shape of the pooling's input.
    pub input: Shape,
}

fn pooled(name: &str, window: &Window, x: &[usize]) -> Result<Shape> {
    let positions = window.output(name, &x[2..])?;
    Shape::new(&[&x[..2], &positions[..window.rank]].concat())
}

impl Operation for MaxPool {
    fn name(&self) -> &str {
        "max_pool2d"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        let shape = pooled("max_pool2d", &self.window, inputs[0].shape())?;
        Ok(smallvec![Spec { shape, dtype: inputs[0].dtype() }, Spec { shape, dtype: DType::I64 }])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (values, indices) = outputs.split_at_mut(1);
        backend.max_pool(&self.window, inputs[0], &mut values[0], &mut indices[0])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE.and_outputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let shape = ctx.input_spec(0).shape;
        let (n, c) = (shape[0], shape[1]);
        let windows: usize = g.shape()[2..].iter().product();
        let flat = [n, c, windows];
        let index = ctx.output(1)?.reshape(flat)?;
        let dx = g.reshape(flat)?.scatter_add_into(2, &index, shape[2..].iter().product())?;
        Ok(grads([Some(dx.reshape(shape)?)]))
    }
}

impl Operation for AvgPool {
    fn name(&self) -> &str {
        "avg_pool2d"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        Ok(one(pooled("avg_pool2d", &self.window, inputs[0].shape())?, inputs[0].dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.avg_pool(&self.window, self.count_include_pad, inputs[0], &mut outputs[0])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let backward = AvgPoolBackward { pool: self.clone(), input: ctx.input_spec(0).shape };
        Ok(grads([Some(apply_one(backward, &[g])?)]))
    }
}

impl Operation for AvgPoolBackward {
    fn name(&self) -> &str {
        "avg_pool2d_backward"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.avg_pool_backward(&self.pool.window, self.pool.count_include_pad, inputs[0], &mut outputs[0])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn vjp(&self, _: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None])) };
        Ok(grads([Some(apply_one(self.pool.clone(), &[h])?)]))
    }
}

impl Tensor {
    fn check_pool(&self, op: &str, kernel: [usize; 2], padding: [usize; 2]) -> Result<()> {
        if self.rank() != 4 {
            return Err(self.describe(Error::shape(op, "pooling takes [n, c, h, w]"), "self"));
        }
        if kernel[0].checked_mul(kernel[1]).is_none_or(|n| n > MAX_WINDOW) {
            let m = format!("a window of {kernel:?} has more than {MAX_WINDOW} elements");
            return Err(self
                .describe(Error::argument(op, m), "self")
                .help("reduce over the axes with max or mean instead"));
        }
        if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
            let m = format!("padding {padding:?} is more than half of the kernel {kernel:?}");
            return Err(self.describe(Error::argument(op, m), "self").help("a window must not lie in padding only"));
        }
        Ok(())
    }

    /// Largest element under each window: `[n, c, h, w]` to the values `[n, c, oh, ow]` and their i64 positions in the
    /// flattened `h * w`. Windows may overlap; padding never wins; NaN does.
    #[track_caller]
    pub fn max_pool2d_with_indices(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Result<(Tensor, Tensor)> {
        self.check_pool("max_pool2d", kernel, padding)?;
        if self.dtype() == DType::Bool {
            return Err(self.describe(Error::dtype("max_pool2d", self.dtype(), "numbers"), "self"));
        }
        let window = Window::new2d(kernel).stride2d(stride).padding2d(padding);
        let mut y = apply(MaxPool { window }, &[self])?;
        let indices = y.swap_remove(1);
        Ok((y.swap_remove(0), indices))
    }

    /// Largest element under each window, the values of [`max_pool2d_with_indices`](Tensor::max_pool2d_with_indices).
    #[track_caller]
    pub fn max_pool2d(&self, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<Tensor> {
        Ok(self.max_pool2d_with_indices(kernel, stride, padding)?.0)
    }

    /// Mean under each window: `[n, c, h, w]` to `[n, c, oh, ow]`, floats only. Padding counts as zeros if
    /// `count_include_pad`, else not at all.
    #[track_caller]
    pub fn avg_pool2d(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
    ) -> Result<Tensor> {
        self.check_pool("avg_pool2d", kernel, padding)?;
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype("avg_pool2d", self.dtype(), "floats"), "self"));
        }
        let window = Window::new2d(kernel).stride2d(stride).padding2d(padding);
        apply_one(AvgPool { window, count_include_pad }, &[self])
    }
}
