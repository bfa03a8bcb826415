//! `conv1d`, `conv2d`, `conv3d`: cross-correlation of `x [n, c, spatial..]` with `w [k, c / groups, kernel..]`.
//!
//! Convolution is bilinear. Together with its two adjoints (the gradients with respect to the input and the weight), it
//! forms a family that is closed under differentiation: the gradients of each member are the other two members, so
//! gradients of every order are convolutions again. The adjoint for the input is the transposed convolution.

use gradus_backend::{Backend, DType, Error, Here, Result, Shape, View, ViewMut, Window};

use super::operand_rules::{affine_dtype, cast, cast_some};
use super::{Context, ConvOptions, Flow, Grads, InputSpec, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// The forward convolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Stride, padding, dilation and kernel size.
    pub window: Window,
    /// Number of groups of channels.
    pub groups: usize,
}

/// The gradient of [`Conv`] with respect to its input. Inputs: `g [n, k, positions..]`, the gradient of the result, and
/// the weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvBackwardInput {
    /// The convolution.
    pub conv: Conv,
    /// Shape of the convolution's input.
    pub input: Shape,
}

/// The gradient of [`Conv`] with respect to its weight. Inputs: the input of the convolution, and
/// `g [n, k, positions..]`, the gradient of the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvBackwardWeight {
    /// The convolution.
    pub conv: Conv,
    /// Shape of the weight.
    pub weight: Shape,
}

/// The number of f32 in a line of a cache.
const LINE: usize = 16;

impl Conv {
    /// Copies a weight `[k, c / groups, kernel..]`. The copy has the same shape, but its output channels are adjacent in
    /// memory. A backend on which products gain by [panels](gradus_backend::BackendInfo::f32_panel) reads such a weight in
    /// place. The channels of successive elements of the kernel are an odd number of cache lines apart, so that they do not
    /// compete for a few sets of a cache.
    ///
    /// # Errors
    /// Fails if the weight has no axes.
    #[track_caller]
    pub fn adjacent_channels(weight: &Tensor) -> Result<Tensor> {
        let rows = weight.movedim(&[0], &[-1])?;
        let (k, mut shape) = (weight.shape()[0], rows.shape().to_vec());
        shape.pop();
        shape.push((k.div_ceil(LINE) | 1) * LINE);
        let copy = Tensor::zeros(shape, weight.dtype(), weight.device())?.narrow(-1, 0, k)?;
        copy.copy_(&rows)?;
        copy.movedim(&[-1], &[0])
    }

    #[track_caller]
    fn backward_input(&self, g: &Tensor, w: &Tensor, input: Shape) -> Result<Tensor> {
        apply_one(ConvBackwardInput { conv: self.clone(), input }, &[g, w])
    }

    #[track_caller]
    fn backward_weight(&self, x: &Tensor, g: &Tensor, weight: Shape) -> Result<Tensor> {
        apply_one(ConvBackwardWeight { conv: self.clone(), weight }, &[x, g])
    }
}

impl Operation for Conv {
    fn name(&self) -> &str {
        ["conv1d", "conv2d", "conv3d"][self.window.rank - 1]
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["input", "weight", "bias"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (x, w) = (inputs[0], inputs[1]);
        let positions = self.window.output(self.name(), &x.shape[2..])?;
        let mut dims = vec![x.shape[0], w.shape[0]];
        dims.extend(&positions[..self.window.rank]);
        Ok(one(Shape::new(&dims)?, x.dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv(&self.window, self.groups, inputs[0], inputs[1], inputs.get(2).copied(), &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::from_elem(None, ctx.input_count())) };
        let mut out = Grads::from_elem(None, ctx.input_count());
        if ctx.needs(0) {
            out[0] = Some(self.backward_input(g, &ctx.input(1)?, ctx.input_spec(0)?.shape)?);
        }
        if ctx.needs(1) {
            out[1] = Some(self.backward_weight(&ctx.input(0)?, g, ctx.input_spec(1)?.shape)?);
        }
        if ctx.needs(2) {
            let axes: Vec<isize> = (0..g.rank() as isize).filter(|&a| a != 1).collect();
            out[2] = Some(g.sum(&axes, false)?);
        }
        Ok(out)
    }
}

impl Operation for ConvBackwardInput {
    fn name(&self) -> &str {
        ["conv1d_backward_input", "conv2d_backward_input", "conv3d_backward_input"][self.conv.window.rank - 1]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv_backward_input(&self.conv.window, self.conv.groups, inputs[0], inputs[1], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None, None])) };
        let mut out = [None, None];
        if ctx.needs(0) {
            out[0] = Some(apply_one(self.conv.clone(), &[h, &ctx.input(1)?])?);
        }
        if ctx.needs(1) {
            out[1] = Some(self.conv.backward_weight(h, &ctx.input(0)?, ctx.input_spec(1)?.shape)?);
        }
        Ok(grads(out))
    }
}

impl Operation for ConvBackwardWeight {
    fn name(&self) -> &str {
        ["conv1d_backward_weight", "conv2d_backward_weight", "conv3d_backward_weight"][self.conv.window.rank - 1]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(self.weight, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv_backward_weight(&self.conv.window, self.conv.groups, inputs[0], inputs[1], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None, None])) };
        let mut out = [None, None];
        if ctx.needs(0) {
            out[0] = Some(self.conv.backward_input(&ctx.input(1)?, h, ctx.input_spec(0)?.shape)?);
        }
        if ctx.needs(1) {
            out[1] = Some(apply_one(self.conv.clone(), &[&ctx.input(0)?, h])?);
        }
        Ok(grads(out))
    }
}

/// Checks what all convolutions require: that input and weight have rank `rank`, and that the operands are not
/// booleans. Returns the dtype that the operands share.
#[track_caller]
pub(super) fn check_operands(
    op: &str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    rank: usize,
) -> Result<DType> {
    if x.rank() != rank || weight.rank() != rank {
        return Err(describe(Error::shape(op, format!("input and weight have rank {rank}")), x, weight, bias));
    }
    match affine_dtype(op, x, weight, bias)? {
        DType::Bool => Err(describe(Error::dtype(op, DType::Bool, "numbers; cast first"), x, weight, bias)),
        dtype => Ok(dtype),
    }
}

/// Adds the operands of a convolution to an error.
#[track_caller]
pub(super) fn describe(e: Error, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Error {
    let e = weight.describe(x.describe(e, "input"), "weight");
    if let Some(b) = bias { b.describe(e, "bias") } else { e }
}

impl Tensor {
    /// Convolution (cross-correlation) over one axis of `self [n, c, l]` with `weight [k, c / groups, kernel]` and
    /// `bias [k]`. Returns `[n, k, positions]`. For the details see [`conv2d`](Tensor::conv2d).
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<1>) -> Result<Tensor> {
        self.convolve("conv1d", weight, bias, options)
    }

    /// Convolution (cross-correlation) over two axes of `self [n, c, h, w]` with `weight [k, c / groups, kh, kw]` and
    /// `bias [k]`. Returns `[n, k, oh, ow]`, where the size of each spatial axis is
    /// `(size + before + after - dilation (kernel - 1) - 1) / stride + 1`, rounded down.
    ///
    /// Any dtype but bool is accepted; dtypes promote. Half precision accumulates in f32, and integers wrap.
    /// Differentiable to any order.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::ones([1, 1, 3, 3], DType::F32, &device)?;
    /// let w = Tensor::ones([1, 1, 2, 2], DType::F32, &device)?;
    /// let y = x.conv2d(&w, None, ConvOptions::new().padding_sides([(1, 0), (0, 0)]))?;
    /// assert_eq!(y.shape(), [1, 1, 3, 2]);
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 2.0, 4.0, 4.0, 4.0, 4.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if ranks or channels do not fit together, if `groups` does not divide `c` and `k`, if a stride or dilation
    /// is 0, if a window is larger than the padded input, or if an output padding is set.
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<2>) -> Result<Tensor> {
        self.convolve("conv2d", weight, bias, options)
    }

    /// Convolution (cross-correlation) over three axes of `self [n, c, d, h, w]` with
    /// `weight [k, c / groups, kd, kh, kw]` and `bias [k]`. Returns `[n, k, od, oh, ow]`. For the details see
    /// [`conv2d`](Tensor::conv2d).
    #[track_caller]
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<3>) -> Result<Tensor> {
        self.convolve("conv3d", weight, bias, options)
    }

    #[track_caller]
    fn convolve<const N: usize>(
        &self,
        name: &'static str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: ConvOptions<N>,
    ) -> Result<Tensor> {
        options.refuse_output_padding(name)?;
        let dtype = check_operands(name, self, weight, bias, N + 2)?;
        let (x, weight, bias) = (&*cast(self, dtype)?, &*cast(weight, dtype)?, &cast_some(bias, dtype)?);
        let bias = bias.as_deref();
        let refuse = |m: String| {
            let e = describe(Error::shape(name, m), x, weight, bias);
            Err(e.help("input is [n, c, spatial..], weight [k, c / groups, kernel..] and bias [k]"))
        };
        let groups = options.groups;
        let (c, k) = (x.shape()[1], weight.shape()[0]);
        if groups == 0 || !c.is_multiple_of(groups) || !k.is_multiple_of(groups) {
            return refuse(format!("{groups} groups do not divide {c} input and {k} output channels")).here();
        }
        let per_group = c / groups;
        if weight.shape()[1] != per_group {
            return refuse(format!("the weight takes {} channels a group, not {per_group}", weight.shape()[1])).here();
        }
        if bias.is_some_and(|b| b.shape() != [k]) {
            return refuse(format!("the bias is not [{k}]")).here();
        }
        let window = options.window(name, &weight.shape()[2..])?;
        window.output(name, &x.shape()[2..]).map_err(|e| describe(e, x, weight, bias))?;
        let op = Conv { window, groups };
        match bias {
            Some(b) => apply_one(op, &[x, weight, b]),
            None => apply_one(op, &[x, weight]),
        }
    }
}
