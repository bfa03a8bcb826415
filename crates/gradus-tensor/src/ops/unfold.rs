//! `unfold` and `fold`: the elements under every window as columns (im2col), and columns summed back into the places
//! that they came from (col2im). Each is the adjoint of the other, and therefore its gradient.

use gradus_backend::{Backend, DType, Error, Here, Result, Scalar, Shape, View, ViewMut, Window};

use super::{Context, ConvOptions, Flow, Grads, InputSpec, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// Converts `x [n, c, spatial..]` to `[n, c * kernel, positions]`, with zeros in the padding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unfold {
    /// The window.
    pub window: Window,
}

/// Sums `[n, c * kernel, positions]` into `[n, c, spatial..]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fold {
    /// The window.
    pub window: Window,
    /// The shape `[n, c, spatial..]` of the result.
    pub input: Shape,
}

/// The shape `[n, c, kernel.., positions..]` for an input `[n, c, spatial..]`.
#[track_caller]
fn unfolded(op: &str, window: &Window, x: &[usize]) -> Result<Shape> {
    let positions = window.output(op, &x[2..])?;
    Shape::new(&[&x[..2], &window.kernel[..window.rank], &positions[..window.rank]].concat())
}

/// The shape `[n, c * kernel, positions]` for an input `[n, c, spatial..]`.
#[track_caller]
fn columns(op: &str, window: &Window, x: &[usize]) -> Result<Shape> {
    let dims = unfolded(op, window, x)?;
    let (rows, positions) = dims[1..].split_at(1 + window.rank);
    Shape::new(&[x[0], rows.iter().product(), positions.iter().product()])
}

/// The error if the columns cannot be viewed as windows. It never occurs, since splitting axes needs no copy.
#[track_caller]
fn split_failed() -> Error {
    Error::shape("unfold", "the columns do not split into window and positions")
}

impl Operation for Unfold {
    fn name(&self) -> &str {
        "unfold"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(columns("unfold", &self.window, inputs[0].shape)?, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let split = unfolded("unfold", &self.window, inputs[0].layout.dims())?;
        let split = outputs[0].layout.reshape(split).ok_or_else(split_failed)?;
        backend.unfold(&self.window, inputs[0], Scalar::Int(0), &mut outputs[0].with(&split))
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let fold = Fold { window: self.window, input: ctx.input_spec(0)?.shape };
        Ok(grads([Some(apply_one(fold, &[g])?)]))
    }
}

impl Operation for Fold {
    fn name(&self) -> &str {
        "fold"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let split = unfolded("fold", &self.window, &self.input)?;
        let split = inputs[0].layout.reshape(split).ok_or_else(split_failed)?;
        backend.fold(&self.window, inputs[0].with(&split), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn vjp(&self, _: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None])) };
        Ok(grads([Some(apply_one(Unfold { window: self.window }, &[h])?)]))
    }
}

impl Tensor {
    /// Copies the elements under every position of a window into columns (im2col). `self [n, c, spatial..]`, with 1 to
    /// 3 spatial axes, becomes `[n, c * kernel, positions]`, with the channels outermost and zeros in the padding. Any
    /// dtype but bool.
    ///
    /// A convolution is the product of its weight with these columns.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [1, 1, 4], &device)?;
    /// let y = x.unfold([2], ConvOptions::new())?;
    /// assert_eq!(y.shape(), [1, 2, 3]);
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]);
    /// assert_eq!(y.fold([4], [2], ConvOptions::new())?.to_vec::<f32>()?, [1.0, 4.0, 6.0, 4.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the rank is not `N + 2`, if a kernel, stride or dilation is 0, if a window is larger than the padded
    /// input, or if the options contain groups or output padding.
    #[track_caller]
    pub fn unfold<const N: usize>(&self, kernel: [usize; N], options: ConvOptions<N>) -> Result<Tensor> {
        let window = self.folding("unfold", kernel, options)?;
        if self.rank() != N + 2 {
            return Err(self.describe(Error::shape("unfold", format!("the input has {N} axes after [n, c]")), "self"));
        }
        window.output("unfold", &self.shape()[2..]).map_err(|e| self.describe(e, "self"))?;
        apply_one(Unfold { window }, &[self])
    }

    /// Sums columns into the places from which [`unfold`](Tensor::unfold) copies them (col2im).
    /// `self [n, c * kernel, positions]` becomes `[n, c, output..]`; the padding is left out. Half precision is summed
    /// in f32.
    ///
    /// # Errors
    /// Fails if the number of rows is not a multiple of the kernel's elements, if the number of positions is not that
    /// of the window over `output`, or where `unfold` fails because of the kernel or the options.
    #[track_caller]
    pub fn fold<const N: usize>(
        &self,
        output: [usize; N],
        kernel: [usize; N],
        options: ConvOptions<N>,
    ) -> Result<Tensor> {
        let window = self.folding("fold", kernel, options)?;
        let refuse = |m: String| Err(self.describe(Error::shape("fold", m), "self"));
        let &[n, rows, positions] = self.shape() else {
            return refuse("the input is [n, c * kernel, positions]".into()).here();
        };
        let places = window.output("fold", &output).map_err(|e| self.describe(e, "self"))?;
        let taps = kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k));
        let Some(taps) = taps.filter(|&t| rows.is_multiple_of(t)) else {
            return refuse(format!("{rows} rows are no multiple of the kernel {kernel:?}")).here();
        };
        let input = Shape::new(&[&[n, rows / taps], &output[..]].concat())?;
        let Some(want) = places[..N].iter().try_fold(1usize, |n, &p| n.checked_mul(p)) else {
            return refuse(format!("the window has more positions over {output:?} than memory can hold")).here();
        };
        if positions != want {
            return refuse(format!("{positions} positions where the window has {want} over {output:?}")).here();
        }
        apply_one(Fold { window, input }, &[self])
    }

    #[track_caller]
    fn folding<const N: usize>(&self, op: &str, kernel: [usize; N], options: ConvOptions<N>) -> Result<Window> {
        options.refuse_groups(op)?;
        options.refuse_output_padding(op)?;
        if self.dtype() == DType::Bool {
            return Err(self.describe(Error::dtype(op, DType::Bool, "numbers; cast first"), "self"));
        }
        options.window(op, &kernel).map_err(|e| self.describe(e, "self"))
    }
}
