//! `conv2d`: cross-correlation of `x [n, c, h, w]` with `w [k, c / groups, fh, fw]`.
//!
//! Convolution is bilinear. With its two adjoints (the gradients for input and weight) it forms a family that is closed
//! under differentiation: each is the gradient of the others, so every order is a convolution again.

use gradus_backend::{Backend, Error, Result, Shape, View, ViewMut, Window};

use super::{Context, Grads, Keep, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// The forward convolution.
#[derive(Debug, Clone)]
pub struct Conv {
    /// Stride, padding, dilation and kernel size.
    pub window: Window,
    /// Number of groups of channels.
    pub groups: usize,
}

/// The gradient of [`Conv`] for its input: of `g [n, k, positions..]` and the weight.
#[derive(Debug, Clone)]
pub struct ConvBackwardInput {
    /// The convolution.
    pub conv: Conv,
    /// Shape of the convolution's input.
    pub input: Shape,
}

/// The gradient of [`Conv`] for its weight: of the input and `g [n, k, positions..]`.
#[derive(Debug, Clone)]
pub struct ConvBackwardWeight {
    /// The convolution.
    pub conv: Conv,
    /// Shape of the weight.
    pub weight: Shape,
}

impl Conv {
    fn backward_input(&self, g: &Tensor, w: &Tensor, input: Shape) -> Result<Tensor> {
        apply_one(ConvBackwardInput { conv: self.clone(), input }, &[g, w])
    }

    fn backward_weight(&self, x: &Tensor, g: &Tensor, weight: Shape) -> Result<Tensor> {
        apply_one(ConvBackwardWeight { conv: self.clone(), weight }, &[x, g])
    }
}

impl Operation for Conv {
    fn name(&self) -> &str {
        "conv2d"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        let (x, w) = (inputs[0], inputs[1]);
        let positions = self.window.output("conv2d", &x.shape()[2..])?;
        let mut dims = vec![x.shape()[0], w.shape()[0]];
        dims.extend(&positions[..self.window.rank]);
        Ok(one(Shape::new(&dims)?, x.dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv(&self.window, self.groups, inputs[0], inputs[1], inputs.get(2).copied(), &mut outputs[0])
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::from_elem(None, ctx.input_count())) };
        let mut out = Grads::from_elem(None, ctx.input_count());
        if ctx.needs(0) {
            out[0] = Some(self.backward_input(g, &ctx.input(1)?, ctx.input_spec(0).shape)?);
        }
        if ctx.needs(1) {
            out[1] = Some(self.backward_weight(&ctx.input(0)?, g, ctx.input_spec(1).shape)?);
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
        "conv2d_backward_input"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        Ok(one(self.input, inputs[0].dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv_backward_input(&self.conv.window, self.conv.groups, inputs[0], inputs[1], &mut outputs[0])
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
            out[1] = Some(self.conv.backward_weight(h, &ctx.input(0)?, ctx.input_spec(1).shape)?);
        }
        Ok(grads(out))
    }
}

impl Operation for ConvBackwardWeight {
    fn name(&self) -> &str {
        "conv2d_backward_weight"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        Ok(one(self.weight, inputs[0].dtype()))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.conv_backward_weight(&self.conv.window, self.conv.groups, inputs[0], inputs[1], &mut outputs[0])
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(needs[1].then_some(0).into_iter().chain(needs[0].then_some(1)))
    }

    fn vjp(&self, ctx: &Context<'_>, h: &[Option<Tensor>]) -> Result<Grads> {
        let Some(h) = &h[0] else { return Ok(grads([None, None])) };
        let mut out = [None, None];
        if ctx.needs(0) {
            out[0] = Some(self.conv.backward_input(&ctx.input(1)?, h, ctx.input_spec(0).shape)?);
        }
        if ctx.needs(1) {
            out[1] = Some(apply_one(self.conv.clone(), &[&ctx.input(0)?, h])?);
        }
        Ok(grads(out))
    }
}

impl Tensor {
    /// 2-D convolution (cross-correlation) of `self [n, c, h, w]` with `weight [k, c / groups, fh, fw]` and `bias [k]` to
    /// `[n, k, oh, ow]`, `oh = (h + 2 padding - dilation (fh - 1) - 1) / stride + 1`. One float dtype for all.
    ///
    /// # Errors
    /// Ranks and channels that do not fit, `c` or `k` not divisible by `groups`, a stride or dilation of 0, a window
    /// larger than the padded input.
    #[track_caller]
    pub fn conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        groups: usize,
    ) -> Result<Tensor> {
        let refuse = |m: String| {
            let e = weight.describe(self.describe(Error::shape("conv2d", m), "input"), "weight");
            let e = if let Some(b) = bias { b.describe(e, "bias") } else { e };
            Err(e.help("input is [n, c, h, w], weight [k, c / groups, fh, fw] and bias [k]"))
        };
        if self.rank() != 4 || weight.rank() != 4 {
            return refuse("input and weight have rank 4".into());
        }
        let (c, k) = (self.shape()[1], weight.shape()[0]);
        if groups == 0 || c % groups != 0 || k % groups != 0 {
            return refuse(format!("{groups} groups do not divide {c} input and {k} output channels"));
        }
        if weight.shape()[1] != c / groups {
            return refuse(format!(
                "the weight takes {} channels a group, the input has {}",
                weight.shape()[1],
                c / groups
            ));
        }
        if bias.is_some_and(|b| b.shape() != [k]) {
            return refuse(format!("the bias is not [{k}]"));
        }
        for t in [Some(self), Some(weight), bias].into_iter().flatten() {
            if !t.dtype().is_float() {
                return Err(t.describe(Error::dtype("conv2d", t.dtype(), "floats"), "operand"));
            }
            if t.dtype() != self.dtype() {
                let m = "operands have different dtypes";
                let e = Error::new(gradus_backend::ErrorKind::DTypeMismatch, "conv2d", m);
                return Err(t.describe(self.describe(e, "input"), "operand").help("convert one with to_dtype"));
            }
        }
        let window = Window::new2d([weight.shape()[2], weight.shape()[3]])
            .stride2d(stride)
            .padding2d(padding)
            .dilation2d(dilation);
        let op = Conv { window, groups };
        match bias {
            Some(b) => apply_one(op, &[self, weight, b]),
            None => apply_one(op, &[self, weight]),
        }
    }
}
