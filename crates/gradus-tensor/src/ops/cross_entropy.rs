//! The fused cross-entropy of logits and class indices: the negative log-likelihood of a class under `softmax(logits)`.
//!
//! With the log-sum-exp `lse` and the label smoothing `s`, the loss of a row is
//! `lse - (1 - s) * x[target] - s * mean(x)`. Its gradient, `softmax(x) - (1 - s) * onehot - s / c`, is computed in the
//! backward pass. The methods are in `ops/loss/class.rs`.

use gradus_backend::{Backend, CrossEntropyParams, Result, View, ViewMut};
use smallvec::smallvec;

use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, Spec, apply_one, grads, one};
use crate::Tensor;

/// The loss of each row of logits. Outputs: the losses, and the log-sum-exps, which carry no gradient.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropy {
    /// The ignored target and the label smoothing.
    pub params: CrossEntropyParams,
}

impl CrossEntropy {
    /// The gradient of the logits as a tracked expression. `g [n]` is the gradient of the losses.
    #[track_caller]
    fn gradient(&self, logits: &Tensor, target: &Tensor, g: &Tensor) -> Result<Tensor> {
        let (c, dtype) = (logits.shape()[1], logits.dtype());
        let logits = &logits.to_dtype(dtype.compute())?;
        let s = self.params.label_smoothing;
        let classes = Tensor::arange(0, c as i64, 1, target.dtype(), logits.device())?;
        let target = target.unsqueeze(1)?;
        let hit = target.eq(&classes)?.to_dtype(logits.dtype())?;
        let distribution = hit.mul(1.0 - s)?.add(s / c as f64)?;
        let g = g.unsqueeze(1)?;
        let Some(ignored) = self.params.ignore_index else {
            return logits.softmax(1)?.sub(&distribution)?.mul(&g)?.to_dtype(dtype);
        };
        // An ignored row has gradient 0 at every order, even if its logits are infinite or NaN.
        let counts = target.ne(ignored)?;
        let softmax = counts.where_(logits, 0.0)?.softmax(1)?;
        let dx = softmax.sub(&distribution)?.mul(&g)?;
        counts.where_(&dx, 0.0)?.to_dtype(dtype)
    }
}

impl Operation for CrossEntropy {
    fn name(&self) -> &str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let spec = Spec {
            shape: inputs[0].shape.reduced(gradus_backend::Axes::one(1), false),
            dtype: inputs[0].dtype.compute(),
        };
        Ok(smallvec![spec, spec])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (loss, lse) = outputs.split_at_mut(1);
        backend.cross_entropy(&self.params, inputs[0], inputs[1], &mut loss[0], &mut lse[0])
    }

    fn differentiable(&self, output: usize) -> bool {
        output == 0
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([0, 1]).and_outputs([1])
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None, None])) };
        let (logits, target) = (ctx.input(0)?, ctx.input(1)?);
        let dx = if ctx.create_graph() {
            self.gradient(&logits, &target, g)?
        } else {
            let lse = ctx.output(1)?;
            apply_one(CrossEntropyBackward { params: self.params }, &[&logits, &target, &lse, g])?
        };
        Ok(grads([Some(dx), None]))
    }
}

/// The fused gradient of [`CrossEntropy`] with respect to the logits. Inputs: logits, targets, log-sum-exps, and the
/// gradient of the losses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropyBackward {
    /// The ignored target and the label smoothing.
    pub params: CrossEntropyParams,
}

impl Operation for CrossEntropyBackward {
    fn name(&self) -> &str {
        "cross_entropy_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[0].shape, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, x: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.cross_entropy_backward(&self.params, x[0], x[1], x[2], x[3], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}
