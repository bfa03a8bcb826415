//! `max_pool1d` to `max_pool3d` and `avg_pool1d` to `avg_pool3d` over `[n, c, spatial..]`.
//!
//! In max pooling, the gradient goes to the element that won, and is summed where windows overlap. NaN wins; of equal
//! elements the first does. Average pooling is linear; it and its adjoint are each other's gradient.

use gradus_backend::{Backend, DType, Error, Result, Shape, View, ViewMut, Window};
use smallvec::smallvec;

use super::pad::PadMode;
use super::{
    Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, PoolOptions, Spec, apply, apply_one, grads, one,
};
use crate::Tensor;

/// The largest number of elements in a pooling window.
pub(super) const MAX_WINDOW: usize = 1 << 24;

/// The largest element in each window, and its position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool {
    /// The window.
    pub window: Window,
}

/// The mean of each window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPool {
    /// The window.
    pub window: Window,
    /// Whether padding counts as zeros in the mean.
    pub count_include_pad: bool,
}

/// The adjoint of [`AvgPool`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPoolBackward {
    /// The average pooling.
    pub pool: AvgPool,
    /// The shape of the pooling's input.
    pub input: Shape,
}

#[track_caller]
fn pooled(name: &str, window: &Window, x: &[usize]) -> Result<Shape> {
    let positions = window.output(name, &x[2..])?;
    Shape::new(&[&x[..2], &positions[..window.rank]].concat())
}

impl Operation for MaxPool {
    fn name(&self) -> &str {
        ["max_pool1d", "max_pool2d", "max_pool3d"][self.window.rank - 1]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let shape = pooled(self.name(), &self.window, inputs[0].shape)?;
        Ok(smallvec![Spec { shape, dtype: inputs[0].dtype }, Spec { shape, dtype: DType::I64 }])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (values, indices) = outputs.split_at_mut(1);
        backend.max_pool(&self.window, inputs[0], &mut values[0], &mut indices[0])
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE.and_outputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let shape = ctx.input_spec(0)?.shape;
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
        ["avg_pool1d", "avg_pool2d", "avg_pool3d"][self.window.rank - 1]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(pooled(self.name(), &self.window, inputs[0].shape)?, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.avg_pool(&self.window, self.count_include_pad, inputs[0], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let backward = AvgPoolBackward { pool: self.clone(), input: ctx.input_spec(0)?.shape };
        Ok(grads([Some(apply_one(backward, &[g])?)]))
    }
}

impl Operation for AvgPoolBackward {
    fn name(&self) -> &str {
        ["avg_pool1d_backward", "avg_pool2d_backward", "avg_pool3d_backward"][self.pool.window.rank - 1]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.avg_pool_backward(&self.pool.window, self.pool.count_include_pad, inputs[0], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn vjp(&self, _: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None])) };
        Ok(grads([Some(apply_one(self.pool.clone(), &[h])?)]))
    }
}

macro_rules! pools {
    ($($n:literal $input:literal $positions:literal $max:ident $max_with_indices:ident $avg:ident;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("Largest element under each window: `[n, c, ", $input, "]` to the values `[n, c, ", $positions,
                    "]` and their i64 positions in the flattened spatial axes.")]
                ///
                /// Windows may overlap. Padding never wins, but NaN does. Of equal elements, the first wins. Any dtype
                /// but bool. The gradient goes to the element that won.
                ///
                /// # Errors
                #[doc = concat!("A rank other than ", $n, " + 2, a kernel, stride or dilation of 0, padding of more than half the")]
                /// kernel, or a window that is larger than the padded input or covers only padding.
                #[track_caller]
                pub fn $max_with_indices(&self, kernel: [usize; $n], options: PoolOptions<$n>) -> Result<(Tensor, Tensor)> {
                    self.max_pooled(stringify!($max), kernel, options)
                }

                #[doc = concat!("Largest element under each window: `[n, c, ", $input, "]` to `[n, c, ", $positions,
                    "]`, the values of [`", stringify!($max_with_indices), "`](Tensor::", stringify!($max_with_indices), ").")]
                ///
                /// Of equal elements the first gets the gradient.
                #[track_caller]
                pub fn $max(&self, kernel: [usize; $n], options: PoolOptions<$n>) -> Result<Tensor> {
                    Ok(self.max_pooled(stringify!($max), kernel, options)?.0)
                }

                #[doc = concat!("Mean under each window: `[n, c, ", $input, "]` to `[n, c, ", $positions, "]`, floats only.")]
                ///
                /// Padding counts as zeros if `count_include_pad`, and not at all otherwise. With `ceil_mode`, the part
                /// of a window that lies beyond the padding never counts. Differentiable to any order. Fails where the
                /// maximum does.
                #[track_caller]
                pub fn $avg(&self, kernel: [usize; $n], options: PoolOptions<$n>, count_include_pad: bool) -> Result<Tensor> {
                    self.avg_pooled(stringify!($avg), kernel, options, count_include_pad)
                }
            )*
        }
    };
}

pools! {
    1 "l" "positions" max_pool1d max_pool1d_with_indices avg_pool1d;
    2 "h, w" "oh, ow" max_pool2d max_pool2d_with_indices avg_pool2d;
    3 "d, h, w" "od, oh, ow" max_pool3d max_pool3d_with_indices avg_pool3d;
}

impl Tensor {
    /// The window, and the additional padding that rounding up requires at the end.
    #[track_caller]
    fn pool_window<const N: usize>(
        &self,
        op: &str,
        kernel: [usize; N],
        options: PoolOptions<N>,
    ) -> Result<(Window, [usize; 3])> {
        if self.rank() != N + 2 {
            let e = Error::shape(op, format!("pooling takes [n, c] and {N} spatial axes"));
            return Err(self.describe(e, "self"));
        }
        if kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).is_none_or(|n| n > MAX_WINDOW) {
            let m = format!("a window of {kernel:?} has more than {MAX_WINDOW} elements");
            let e = self.describe(Error::argument(op, m), "self");
            return Err(e.help("reduce over the axes with max or mean instead"));
        }
        options.window(op, kernel, &self.shape()[2..]).map_err(|e| self.describe(e, "self"))
    }

    #[track_caller]
    pub(super) fn max_pooled<const N: usize>(
        &self,
        op: &str,
        kernel: [usize; N],
        options: PoolOptions<N>,
    ) -> Result<(Tensor, Tensor)> {
        let (mut window, more) = self.pool_window(op, kernel, options)?;
        if self.dtype() == DType::Bool {
            return Err(self.describe(Error::dtype(op, self.dtype(), "numbers"), "self"));
        }
        widen(&mut window, more);
        window.check_pool(op, &self.shape()[2..]).map_err(|e| self.describe(e, "self"))?;
        let mut y = apply(MaxPool { window }, &[self])?;
        let indices = y.swap_remove(1);
        Ok((y.swap_remove(0), indices))
    }

    #[track_caller]
    fn avg_pooled<const N: usize>(
        &self,
        op: &str,
        kernel: [usize; N],
        options: PoolOptions<N>,
        count_include_pad: bool,
    ) -> Result<Tensor> {
        let (mut window, more) = self.pool_window(op, kernel, options)?;
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype(op, self.dtype(), "floats"), "self"));
        }
        if !count_include_pad || more == [0; 3] {
            widen(&mut window, more);
            if !count_include_pad {
                window.check_pool(op, &self.shape()[2..]).map_err(|e| self.describe(e, "self"))?;
            }
            return apply_one(AvgPool { window, count_include_pad }, &[self]);
        }
        // The padding is turned into elements, which count in the mean. Positions beyond the padding do not count.
        let side = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        let sides: Vec<_> = (0..N).map(|i| (side(window.pad_before[i]), side(window.pad_after[i]))).collect();
        let x = self.pad(&sides, PadMode::Constant(0.into()))?;
        (window.pad_before, window.pad_after) = ([0; 3], more);
        apply_one(AvgPool { window, count_include_pad: false }, &[&x])
    }
}

fn widen(window: &mut Window, more: [usize; 3]) {
    window.pad_after.iter_mut().zip(more).for_each(|(p, m)| *p += m);
}
