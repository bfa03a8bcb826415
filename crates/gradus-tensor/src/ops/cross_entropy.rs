//! `cross_entropy(logits, target)`: the negative log-likelihood of a class under `softmax(logits)`.
//!
//! A row's loss is `lse - (1 - s) * x[target] - s * mean(x)` with the log-sum-exp `lse` and the smoothing `s`; its
//! gradient is `softmax(x) - (1 - s) * onehot - s / c`. The gradient is computed when it is asked for.

use gradus_backend::{Backend, CrossEntropyParams, DType, Error, Result, Scalar, View, ViewMut};
use smallvec::smallvec;

use super::{Context, Grads, Keep, Operation, Outputs, Spec, apply, grads, run_one};
use crate::Tensor;

/// How the losses of the rows combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// The losses as they are.
    None,
    /// Their mean (over the rows that are not ignored; NaN if there are none).
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    /// Combines losses.
    #[track_caller]
    pub fn apply(self, losses: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::None => Ok(losses.clone()),
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
        }
    }
}

/// The losses of rows of logits. Outputs: the losses, and the log-sum-exps, which carry no gradient.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Ignored target and smoothing.
    pub params: CrossEntropyParams,
}

impl CrossEntropy {
    /// The gradient of the logits as a tracked expression: of `g [n]` and logits.
    fn gradient(&self, logits: &Tensor, target: &Tensor, g: &Tensor) -> Result<Tensor> {
        let c = logits.shape()[1];
        let s = self.params.label_smoothing;
        let classes = Tensor::arange(0, c as i64, 1, target.dtype(), logits.device())?;
        let target = target.unsqueeze(1)?;
        let hit = target.eq(&classes)?.to_dtype(logits.dtype())?;
        let distribution = hit.mul(1.0 - s)?.add(s / c as f64)?;
        let g = g.unsqueeze(1)?;
        let Some(ignored) = self.params.ignore_index else {
            return logits.softmax(1)?.sub(&distribution)?.mul(&g)?.to_dtype(logits.dtype());
        };
        // An ignored row has gradient 0 to every order, whatever its logits are.
        let counts = target.ne(ignored)?;
        let softmax = counts.where_(logits, 0.0)?.softmax(1)?;
        let dx = softmax.sub(&distribution)?.mul(&g)?;
        counts.where_(&dx, 0.0)?.to_dtype(logits.dtype())
    }
}

impl Operation for CrossEntropy {
    fn name(&self) -> &str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        let spec = Spec {
            shape: inputs[0].layout().shape().reduced(gradus_backend::Axes::one(1), false),
            dtype: inputs[0].dtype().compute(),
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
            let forward = |b: &dyn Backend, x: &[View<'_>], outs: &mut [ViewMut<'_>]| {
                b.cross_entropy_backward(&self.params, x[0], x[1], x[2], x[3], &mut outs[0])
            };
            run_one(logits.device(), &ctx.input_spec(0), &[&logits, &target, &lse, g], forward)?
        };
        Ok(grads([Some(dx), None]))
    }
}

impl Tensor {
    /// Mean cross-entropy of `self [n, c]` (logits) and `target [n]` (class indices): see
    /// [`cross_entropy_with`](Tensor::cross_entropy_with).
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(target, None, 0.0, Reduction::Mean)
    }

    /// Cross-entropy of logits `self [n, c]`, or `[n, c, ..]` with `target [n, ..]`, for class indices (i64, i32 or u32).
    /// Rows with target `ignore_index` do not count; `label_smoothing` spreads that share of the target's probability
    /// over all classes. The loss is in at least f32. A target outside `0..c` is an error.
    #[track_caller]
    pub fn cross_entropy_with(
        &self,
        target: &Tensor,
        ignore_index: Option<i64>,
        label_smoothing: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let fail = |e: Error| target.describe(self.describe(e, "logits"), "target");
        // One that the targets cannot hold ignores nothing.
        let ignore_index = ignore_index.filter(|&i| Scalar::Int(i).check(target.dtype()).is_ok());
        if !self.dtype().is_float() {
            return Err(fail(Error::dtype("cross_entropy", self.dtype(), "float logits")));
        }
        if !matches!(target.dtype(), DType::I64 | DType::I32 | DType::U32) {
            return Err(fail(Error::dtype("cross_entropy", target.dtype(), "i64, i32 or u32 class indices")));
        }
        if !(0.0..=1.0).contains(&label_smoothing) {
            return Err(fail(Error::argument(
                "cross_entropy",
                format!("label smoothing {label_smoothing} is outside 0 to 1"),
            )));
        }
        let fits = self.rank() >= 2
            && target.rank() + 1 == self.rank()
            && target.shape()[0] == self.shape()[0]
            && target.shape()[1..] == self.shape()[2..];
        if !fits {
            let e = Error::shape("cross_entropy", "logits are [n, c, ..], targets [n, ..]");
            return Err(fail(e));
        }
        let c = self.shape()[1];
        if c == 0 && target.numel() > 0 {
            return Err(fail(Error::shape("cross_entropy", "there are no classes")));
        }
        let shape = *target.layout().shape();
        let (logits, flat) = if self.rank() == 2 {
            (self.clone(), target.clone())
        } else {
            let mut perm: Vec<isize> = (0..self.rank() as isize).filter(|&a| a != 1).collect();
            perm.push(1);
            (self.permute(&perm)?.reshape([target.numel(), c])?, target.reshape([target.numel()])?)
        };
        let params = CrossEntropyParams { ignore_index, label_smoothing };
        let losses = apply(CrossEntropy { params }, &[&logits, &flat])?.swap_remove(0);
        match (reduction, ignore_index) {
            (Reduction::None, _) => losses.reshape(shape),
            (Reduction::Mean, Some(ignored)) => {
                let count = flat.ne(ignored)?.sum_all()?;
                losses.sum_all()?.div(&count.to_dtype(losses.dtype())?)
            }
            _ => reduction.apply(&losses),
        }
    }

    /// `(self - target)^2`, combined. Shapes are equal: nothing is broadcast.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        if self.shape() != target.shape() {
            let e = Error::shape("mse_loss", "shapes differ");
            return Err(target
                .describe(self.describe(e, "input"), "target")
                .help("a loss broadcasts nothing; reshape one"));
        }
        reduction.apply(&self.sub(target)?.square()?)
    }
}
