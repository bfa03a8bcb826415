//! `layer_norm`, `rms_norm`, `batch_norm`, `group_norm` and `instance_norm`: `(x - mean) / sqrt(var + eps) * scale + shift`
//! over a set of axes.
//!
//! Gradients, with `n = (x - mean) * rstd` and `h = g * scale`: `dx = rstd * (h - mean(h) - n * mean(h * n))`, `dscale
//! = sum(g * n)`, `dshift = sum(g)`. In `rms_norm` the mean and the term `mean(h)` are 0. A gradient that must itself
//! be differentiable is computed as the gradient of the decomposition. It is NaN where squares overflow, which in f32
//! happens for finite numbers from 1.8e19 on. Other gradients are correct even there.

use std::borrow::Cow;

use gradus_backend::{Axes, Backend, DType, Error, Here, Result, Shape, View, ViewMut};
use smallvec::{SmallVec, smallvec};

use super::norm::inverse_root;
use super::operand_rules::{cast, common_dtype};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, Spec, apply, apply_one, one};
use crate::Tensor;
use crate::autograd::{BackwardOptions, grad};

/// A kind of normalisation, which determines the name and whether the mean is subtracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Norm {
    Layer,
    /// Divides by the root mean square, without subtracting the mean.
    Rms,
    Batch,
    Group,
    Instance,
}

impl Norm {
    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Norm::Layer => "layer_norm",
            Norm::Rms => "rms_norm",
            Norm::Batch => "batch_norm",
            Norm::Group => "group_norm",
            Norm::Instance => "instance_norm",
        }
    }
}

/// Normalisation over axes. Inputs: x, then scale and shift if there are any, each broadcast with x. Outputs: the
/// result, the mean and `1 / sqrt(var + eps)`. The latter two carry no gradient.
#[derive(Debug, Clone)]
pub struct Normalize {
    /// The kind of normalisation.
    pub norm: Norm,
    /// The axes over which the statistics are computed.
    pub axes: Axes,
    /// A number that is added to the variance.
    pub eps: f64,
    /// Whether there is a scale.
    pub scale: bool,
    /// Whether there is a shift.
    pub shift: bool,
}

gradus_backend::eq_by_bits!(Normalize { norm, axes, scale, shift } floats { eps });

impl Normalize {
    fn is_rms(&self) -> bool {
        self.norm == Norm::Rms
    }

    fn parts<T: Copy>(&self, inputs: &[T]) -> (Option<T>, Option<T>) {
        let scale = self.scale.then(|| inputs[1]);
        (scale, self.shift.then(|| inputs[1 + usize::from(self.scale)]))
    }

    /// The result without the shift, computed with simpler operations. NaN where squares overflow.
    #[track_caller]
    fn decompose(&self, x: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
        let axes: Vec<isize> = self.axes.iter().map(|a| a as isize).collect();
        let dtype = x.dtype();
        let wide = x.to_dtype(dtype.compute())?;
        let centred = if self.is_rms() { wide } else { wide.sub(&wide.mean(&axes, true)?)? };
        let rstd = inverse_root(&centred.square()?.mean(&axes, true)?, self.eps)?;
        let y = centred.mul(&rstd)?;
        match scale {
            Some(s) => y.mul(s)?,
            None => y,
        }
        .to_dtype(dtype)
    }
}

impl Operation for Normalize {
    fn name(&self) -> &str {
        self.norm.name()
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let x = inputs[0];
        let shape = *x.shape;
        let statistic = Spec { shape: shape.reduced(self.axes, true), dtype: x.dtype.compute() };
        Ok(smallvec![Spec { shape, dtype: x.dtype }, statistic, statistic])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (scale, shift) = self.parts(inputs);
        let [y, mean, rstd] = outputs else {
            return Err(Error::argument(self.norm.name(), "three outputs are needed"));
        };
        backend.normalize(self.is_rms(), self.axes, self.eps, inputs[0], scale, shift, y, mean, rstd)
    }

    fn differentiable(&self, output: usize) -> bool {
        output == 0
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        let statistics = needs[0] || (self.scale && needs[1]);
        if statistics { Keep::inputs(0..1 + usize::from(self.scale)).and_outputs([1, 2]) } else { Keep::NONE }
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let mut out = Grads::from_elem(None, ctx.input_count());
        let Some(g) = &g[0] else { return Ok(out) };
        let shift = 1 + usize::from(self.scale);
        let shift_spec = if self.shift && ctx.needs(shift) { Some(*ctx.input_spec(shift)?) } else { None };
        let scale_spec = if self.scale && ctx.needs(1) { Some(*ctx.input_spec(1)?) } else { None };
        // If the shift has the scale's shape, its gradient is computed together with the scale's.
        let together = scale_spec.filter(|s| shift_spec.is_some_and(|t| s.shape == t.shape) && !ctx.create_graph());
        if let Some(spec) = shift_spec.filter(|_| together.is_none()) {
            out[shift] = Some(g.sum_to(&spec.shape)?);
        }
        if !(0..shift).any(|i| ctx.needs(i)) {
            return Ok(out);
        }
        // There are at most two inputs.
        let inputs: Vec<Tensor> = (0..shift).map(|i| ctx.input(i)).collect::<Result<_>>().here()?;
        if ctx.create_graph() {
            // Views of the inputs serve as separate points of the graph: the gradient is taken for them and goes no
            // further.
            let points: Vec<Tensor> = inputs
                .iter()
                .map(|t| if t.requires_grad() { t.reshape(t.shape()) } else { Ok(t.clone()) })
                .collect::<Result<_>>()
                .here()?;
            let y = self.decompose(&points[0], points.get(1))?;
            let wanted: Vec<usize> = (0..inputs.len()).filter(|&i| ctx.needs(i)).collect();
            let targets: Vec<&Tensor> = wanted.iter().map(|&i| &points[i]).collect();
            let found = grad(&[&y], &targets, Some(&[g]), BackwardOptions::new().create_graph())?;
            for (i, d) in wanted.into_iter().zip(found) {
                out[i] = d;
            }
            return Ok(out);
        }
        let (x, mean, rstd) = (&inputs[0], ctx.output(1)?, ctx.output(2)?);
        let scale = self.scale.then(|| &inputs[1]);
        if ctx.needs(0) {
            let mut operands = vec![g, x, &mean, &rstd];
            operands.extend(scale);
            out[0] = Some(apply_one(NormalizeBackward { rms: self.is_rms(), axes: self.axes }, &operands)?);
        }
        if let Some(spec) = scale_spec {
            // The scale's shape with leading axes of size 1, up to the rank of `x`, which is small.
            let mut dims = vec![1; x.rank() - spec.shape.rank()];
            dims.extend(spec.shape.iter());
            let shape = Shape::new(&dims).here()?;
            let op = NormalizeAffineBackward { shape, shift: together.is_some() };
            let found = apply(op, &[g, x, &mean, &rstd])?;
            for (i, d) in [1, shift].into_iter().zip(found) {
                out[i] = Some(d.reshape(spec.shape)?.to_dtype(spec.dtype)?);
            }
        }
        Ok(out)
    }
}

/// The fused gradient of [`Normalize`] with respect to x. Inputs: the gradient of the result, x, the mean,
/// `1 / sqrt(var + eps)` and, if there is one, the scale.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NormalizeBackward {
    /// Whether this is `rms_norm`, which does not subtract the mean.
    pub rms: bool,
    /// The axes that share a mean and a variance.
    pub axes: Axes,
}

impl Operation for NormalizeBackward {
    fn name(&self) -> &str {
        "normalize_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        Ok(one(*inputs[1].shape, inputs[1].dtype))
    }

    fn forward(&self, backend: &dyn Backend, x: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.normalize_backward(self.rms, self.axes, x[0], x[1], x.get(4).copied(), x[2], x[3], &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

/// The fused gradient of [`Normalize`] with respect to the scale and, if it has the same shape, the shift. Inputs: the
/// gradient of the result, x, the mean, and `1 / sqrt(var + eps)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NormalizeAffineBackward {
    /// The scale's shape, with leading axes of size 1 up to the rank of x.
    pub shape: Shape,
    /// Whether the gradient of the shift is computed too.
    pub shift: bool,
}

impl Operation for NormalizeAffineBackward {
    fn name(&self) -> &str {
        "normalize_affine_backward"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let spec = Spec { shape: self.shape, dtype: inputs[1].dtype.compute() };
        Ok(std::iter::repeat_n(spec, 1 + usize::from(self.shift)).collect())
    }

    fn forward(&self, backend: &dyn Backend, x: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (scale, shift) = outputs.split_at_mut(1);
        backend.normalize_affine_backward(x[0], x[1], x[2], x[3], &mut scale[0], shift.first_mut())
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

/// The statistics that [`Tensor::batch_norm`] returns.
#[derive(Debug, Clone)]
pub struct BatchStatistics {
    /// Mean of each channel, `[c]`, without a gradient.
    pub mean: Tensor,
    /// Unbiased variance of each channel, `[c]`, without a gradient.
    pub var: Tensor,
}

impl Tensor {
    /// Normalises over the axes. Returns the result, the mean and `1 / sqrt(var + eps)`.
    #[track_caller]
    fn normalized(
        &self,
        norm: Norm,
        axes: Axes,
        eps: f64,
        scale: Option<&Tensor>,
        shift: Option<&Tensor>,
    ) -> Result<[Tensor; 3]> {
        let dtype = self.check_affine(norm.name(), eps, scale, shift)?;
        let op = Normalize { norm, axes, eps, scale: scale.is_some(), shift: shift.is_some() };
        let mut operands: SmallVec<[Cow<'_, Tensor>; 3]> = SmallVec::new();
        for t in [Some(self), scale, shift].into_iter().flatten() {
            operands.push(cast(t, dtype)?);
        }
        let mut y = apply(op, &operands.iter().map(|t| &**t).collect::<SmallVec<[&Tensor; 3]>>())?;
        let rstd = y.swap_remove(2);
        let mean = y.swap_remove(1);
        Ok([y.swap_remove(0), mean, rstd])
    }

    /// Fails if eps is not above 0 and finite, or if a dtype is not a float. Returns the dtype that the operands share.
    #[track_caller]
    fn check_affine(&self, name: &str, eps: f64, scale: Option<&Tensor>, shift: Option<&Tensor>) -> Result<DType> {
        if !(eps > 0.0 && eps.is_finite()) {
            return Err(self.describe(Error::argument(name, format!("eps is {eps}; it is above 0 and finite")), "self"));
        }
        let operands: SmallVec<[&Tensor; 3]> = [Some(self), scale, shift].into_iter().flatten().collect();
        if let Some(t) = operands.iter().find(|t| !t.dtype().is_float()) {
            let e = Error::dtype(name, t.dtype(), "floats for input, weight and bias");
            return Err(t.describe(self.describe(e, "input"), "operand"));
        }
        let names = ["input", if scale.is_some() { "weight" } else { "bias" }, "bias"];
        common_dtype(name, &operands, &names)
    }

    /// Returns the trailing axes. They must have the shape `shape`, and so must weight and bias if they are given.
    #[track_caller]
    fn trailing(&self, op: &str, shape: &[usize], weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Axes> {
        let refuse = |t: &Tensor, what: &str| {
            let m = format!("{what} does not fit the normalised shape {}", Shape::display(shape));
            Err(t.describe(Error::shape(op, m), what))
        };
        if shape.is_empty() || !self.shape().ends_with(shape) {
            return refuse(self, "input").here();
        }
        for (t, what) in [(weight, "weight"), (bias, "bias")] {
            if let Some(t) = t.filter(|t| t.shape() != shape) {
                return refuse(t, what).here();
            }
        }
        Ok((self.rank() - shape.len()..self.rank()).fold(Axes::NONE, Axes::with))
    }

    /// Normalises the trailing axes `normalized_shape` to mean 0 and variance 1, then applies `weight` and `bias` of
    /// that shape. The variance is biased and is computed in two passes, in at least f32. Dtypes promote.
    #[track_caller]
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let axes = self.trailing(Norm::Layer.name(), normalized_shape, weight, bias)?;
        let [y, ..] = self.normalized(Norm::Layer, axes, eps, weight, bias)?;
        Ok(y)
    }

    /// Divides by the root of the mean square over the trailing axes `normalized_shape`, `x / sqrt(mean(x^2) + eps)`, then
    /// applies a `weight` of that shape (Zhang and Sennrich, 2019). Computed in at least f32.
    #[track_caller]
    pub fn rms_norm(&self, normalized_shape: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let axes = self.trailing(Norm::Rms.name(), normalized_shape, weight, None)?;
        let [y, ..] = self.normalized(Norm::Rms, axes, eps, weight, None)?;
        Ok(y)
    }

    /// Normalises each of `groups` groups of channels (axis 1) of each sample of `[n, c, ..]` to mean 0 and variance 1,
    /// then applies `weight` and `bias`, both `[c]` (Wu and He, 2018). The variance is biased and is computed in at
    /// least f32. Fails if `groups` does not divide `c`.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        self.grouped(Norm::Group, groups, weight, bias, eps)
    }

    /// Normalises each channel (axis 1) of each sample of `[n, c, spatial..]` to mean 0 and variance 1, then applies
    /// `weight` and `bias`, both `[c]` (Ulyanov et al., 2016). The variance is biased and is computed in at least f32.
    /// Fails if the spatial axes hold fewer than two elements, which have no variance.
    #[track_caller]
    pub fn instance_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        const OP: &str = Norm::Instance.name();
        if self.rank() < 3 {
            return Err(self.describe(Error::shape(OP, "the input is [n, c, spatial..]"), "input"));
        }
        let plane: usize = self.shape()[2..].iter().product();
        if plane < 2 {
            let e = Error::shape(OP, format!("{plane} values a plane have no variance"));
            return Err(self.describe(e, "input"));
        }
        self.grouped(Norm::Instance, self.shape()[1].max(1), weight, bias, eps)
    }

    #[track_caller]
    fn grouped(
        &self,
        norm: Norm,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        // Checks that there is a channel axis, and that weight and bias fit it.
        self.per_channel(norm.name(), weight, bias)?;
        let (n, c) = (self.shape()[0], self.shape()[1]);
        if groups == 0 || !c.is_multiple_of(groups) {
            let m = format!("{groups} groups do not divide {c} channels");
            return Err(self.describe(Error::argument(norm.name(), m), "input"));
        }
        let per_group = c / groups;
        let split = self.reshape([n, groups, per_group, self.shape()[2..].iter().product()])?;
        let mut affine = [None, None];
        for (view, t) in affine.iter_mut().zip([weight, bias]) {
            if let Some(t) = t {
                *view = Some(t.reshape([1, groups, per_group, 1])?);
            }
        }
        let axes = Axes::one(2).with(3);
        let [y, ..] = split.normalized(norm, axes, eps, affine[0].as_ref(), affine[1].as_ref())?;
        y.reshape(self.shape())
    }

    /// Normalises each channel (axis 1) of `[n, c, ..]` with the statistics of this batch, which are returned as well.
    /// `weight` and `bias` are `[c]`. Fails if a channel has fewer than two values, which have no variance.
    #[track_caller]
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, BatchStatistics)> {
        let (scale, shift) = self.per_channel("batch_norm", weight, bias)?;
        let c = self.shape()[1];
        let count = self.numel().checked_div(c).unwrap_or(0);
        if count < 2 {
            let e = Error::shape(
                "batch_norm",
                format!("training needs at least 2 values a channel, for their variance; there is {count}"),
            );
            return Err(self.describe(e, "input").help("use a larger batch, or evaluation mode"));
        }
        let axes = (0..self.rank()).filter(|&a| a != 1).fold(Axes::NONE, Axes::with);
        let [y, mean, _] = self.normalized(Norm::Batch, axes, eps, scale.as_ref(), shift.as_ref())?;
        let _guard = crate::no_grad_guard();
        // The variance is computed from the deviations, since `1 / rstd^2 - eps` would lose a variance that is far
        // below eps.
        let axes: Vec<isize> = axes.iter().map(|a| a as isize).collect();
        let var = self.sub(&mean)?.square()?.sum(&axes, false)?.div(count as f64 - 1.0)?;
        Ok((y, BatchStatistics { mean: mean.reshape([c])?, var }))
    }

    /// Normalises each channel (axis 1) of `[n, c, ..]` with given statistics `[c]`, as in evaluation. The statistics
    /// are floats of any dtype. Computed in at least f32. An infinite variance, for example of values whose squares
    /// overflow, yields NaN. Fails where [`batch_norm`](Tensor::batch_norm) does, except that any number of values is
    /// accepted.
    #[track_caller]
    pub fn batch_norm_eval(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let (scale, shift) = self.per_channel("batch_norm", weight, bias)?;
        let (mean, var) = self.per_channel("batch_norm", Some(mean), Some(var))?;
        let (Some(mean), Some(var)) = (mean, var) else { return Err(Error::argument("batch_norm", "no statistics")) };
        let result = self.check_affine("batch_norm", eps, scale.as_ref(), shift.as_ref())?;
        for (t, what) in [(&mean, "mean"), (&var, "var")] {
            if !t.dtype().is_float() {
                let e = Error::dtype("batch_norm", t.dtype(), "floats for the statistics");
                return Err(t.describe(self.describe(e, "input"), what));
            }
        }
        let dtype = result.promote(mean.dtype())?.promote(var.dtype())?.compute();
        let rstd = inverse_root(&var.to_dtype(dtype)?, eps)?;
        let factor = match &scale {
            Some(s) => rstd.mul(&s.to_dtype(dtype)?)?,
            None => rstd,
        };
        let y = self.to_dtype(dtype)?.sub(&mean.to_dtype(dtype)?)?.mul(&factor)?;
        match &shift {
            Some(s) => y.add(&s.to_dtype(dtype)?)?,
            None => y,
        }
        .to_dtype(result)
    }

    /// Vectors `[c]` reshaped to broadcast along axis 1.
    #[track_caller]
    fn per_channel(
        &self,
        op: &str,
        a: Option<&Tensor>,
        b: Option<&Tensor>,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        if self.rank() < 2 {
            return Err(self.describe(Error::shape(op, "the input has a batch and a channel axis"), "input"));
        }
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype(op, self.dtype(), "floats"), "input"));
        }
        let c = self.shape()[1];
        let mut shape = vec![1; self.rank()];
        shape[1] = c;
        let mut views = [None, None];
        for (view, t) in views.iter_mut().zip([a, b]) {
            let Some(t) = t else { continue };
            if t.shape() != [c] {
                let e = Error::shape(op, format!("a vector of {c} channels is needed"));
                return Err(t.describe(self.describe(e, "input"), "operand"));
            }
            *view = Some(t.reshape(&shape)?);
        }
        let [a, b] = views;
        Ok((a, b))
    }
}
