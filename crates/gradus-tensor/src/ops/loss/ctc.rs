//! `ctc_loss`: connectionist temporal classification (Graves et al., 2006).
//!
//! The states `s` of a sequence are its labels with blanks around them. `alpha_t(s)` is the logarithm of the summed
//! probability of all paths that are in state `s` after step `t`:
//! `alpha_t(s) = ln(e^alpha(s) + e^alpha(s-1) + e^alpha(s-2)) + log_prob_t(s)`. The exponential with `s-2` is included
//! only if `s` is a label that differs from the label of `s-2`. Each step is one kernel, and gradients of every order
//! are those of the steps.

use std::ops::Range;

use gradus_backend::{DType, Error, ErrorKind, Expr, HostVec, Result, Scalar, Shape};

use super::Reduction;
use crate::Tensor;
use crate::ops::operand_rules::as_index;
use crate::ops::{Class, Elementwise, Operand};

const OP: &str = "ctc_loss";

/// Operands: whether the sequence is still running, whether a path may skip the blank, alpha(s), alpha(s-1),
/// alpha(s-2), log_prob.
static STEP: Elementwise = Elementwise::new(OP, Class::Float, 6, |v| {
    let skipped = v[1].select(v[4], f64::NEG_INFINITY);
    vec![v[0].select(log_sum_exp(&[v[2], v[3], skipped]) + v[5], v[2])]
})
.conditions(0b11);

/// Operands: alpha of the two states in which a path may end.
static END: Elementwise = Elementwise::new(OP, Class::Float, 2, |v| vec![-log_sum_exp(v)]);

/// `ln(sum e^x)`. If every x is -inf, the result is -inf with slope 0.
fn log_sum_exp<'k>(x: &[Expr<'k>]) -> Expr<'k> {
    let largest = x.iter().skip(1).fold(x[0], |m, &v| m.max(v));
    let dead = largest.eq(f64::NEG_INFINITY);
    let shift = dead.select(0.0, largest);
    let sum = x.iter().skip(1).fold((x[0] - shift).exp(), |s, &v| s + (v - shift).exp());
    dead.select(f64::NEG_INFINITY, dead.select(1.0, sum).log() + shift)
}

/// Reads the targets, padded `[n, s]` or concatenated `[sum of lengths]`, and checks them. Returns all labels, and the
/// range of each sequence among them.
#[track_caller]
fn labels(
    targets: &Tensor,
    lengths: &[usize],
    blank: usize,
    classes: usize,
) -> Result<(HostVec<i64>, Vec<Range<usize>>)> {
    let fail = |e: Error| targets.describe(e, "targets");
    let indices = as_index(OP, targets)?;
    let total = lengths.iter().try_fold(0usize, |sum, &l| sum.checked_add(l));
    let fits = match *targets.shape() {
        [n, s] => n == lengths.len() && lengths.iter().all(|&l| l <= s),
        [all] => total == Some(all),
        _ => false,
    };
    if !fits {
        let e = Error::shape(OP, "targets are [n, s] with lengths up to s, or [the sum of the lengths]");
        return Err(fail(e));
    }
    let all = indices.detach().to_dtype(DType::I64)?.host::<i64>(OP)?;
    let mut start = 0;
    let mut found = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let row = start..start + length;
        for (&index, pos) in all[row.clone()].iter().zip(row.clone()) {
            let size = classes;
            match usize::try_from(index) {
                Ok(label) if label == blank => {
                    let m = format!("the target at position {pos} is the blank {blank}");
                    return Err(fail(Error::argument(OP, m).help("labels are the classes other than the blank")));
                }
                Ok(label) if label < classes => {}
                _ => {
                    let kind = ErrorKind::IndexOutOfBounds { pos, index, size };
                    let m = format!("target {index} at position {pos} is outside {size} classes");
                    return Err(fail(Error::new(kind, OP, m)));
                }
            }
        }
        found.push(row);
        start += if let [_, s] = *targets.shape() { s } else { length };
    }
    Ok((all, found))
}

impl Tensor {
    /// The negative log-likelihood of label sequences under the log-probabilities `self [t, n, c]`, summed over all
    /// alignments with blanks and repetitions (Graves et al., 2006). There is one loss for each sequence, in at least
    /// f32; the losses are combined as `reduction` says.
    ///
    /// `targets` (integers) are padded `[n, s]` or concatenated `[sum of target_lengths]`, and are read on the host.
    /// `input_lengths` and `target_lengths` have `n` entries. `blank` is a class that is not a label. The mean first
    /// divides each loss by the length of its target (at least 1).
    ///
    /// A sequence that is too short for its labels has an infinite loss with gradient 0; `zero_infinity` replaces that
    /// loss by 0. The gradient is that of the formula, without assuming that the log-probabilities are normalised.
    /// Through [`log_softmax`](Tensor::log_softmax) it is the usual CTC gradient.
    ///
    /// # Errors
    /// Fails if shapes or lengths do not fit, if a label is not a class or is the blank, or if the log-probabilities
    /// are not floats.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// // Two steps with two equally likely classes. The label sequence "1" is read from the paths 11, 01 and 10.
    /// let log_probs = Tensor::full([2, 1, 2], 0.5f64.ln(), DType::F64, &device)?;
    /// let target = Tensor::from_vec([1i64], [1, 1], &device)?;
    /// let loss = log_probs.ctc_loss(&target, &[2], &[1], 0, false, Reduction::Sum)?;
    /// assert!((loss.item()? + 0.75f64.ln()).abs() < 1e-12);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: &Tensor,
        input_lengths: &[usize],
        target_lengths: &[usize],
        blank: usize,
        zero_infinity: bool,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let fail = |e: Error| self.describe(e, "log_probs");
        let [steps, n, classes] = *self.shape() else {
            return Err(
                fail(Error::shape(OP, "log-probabilities are [t, n, c]")).help("unsqueeze axis 1 for one sequence")
            );
        };
        if !self.dtype().is_float() {
            return Err(fail(Error::dtype(OP, self.dtype(), "float log-probabilities")));
        }
        if blank >= classes {
            return Err(fail(Error::argument(OP, format!("blank {blank} is outside {classes} classes"))));
        }
        for (name, lengths) in [("input_lengths", input_lengths), ("target_lengths", target_lengths)] {
            if lengths.len() != n {
                let m = format!("{name} has {} entries for {n} sequences", lengths.len());
                return Err(fail(Error::argument(OP, m)));
            }
        }
        if let Some(l) = input_lengths.iter().find(|&&l| l > steps) {
            return Err(fail(Error::argument(OP, format!("input length {l} is above the {steps} steps"))));
        }
        if self.device() != targets.device() {
            let e = Error::new(ErrorKind::DeviceMismatch, OP, "operands live on different devices");
            return Err(self.device().tell_apart(targets.device(), targets.describe(fail(e), "targets")));
        }
        let (labels, rows) = labels(targets, target_lengths, blank, classes)?;

        let (device, dtype) = (self.device(), self.dtype().compute());
        let states = 2 * rows.iter().map(Range::len).max().unwrap_or(0) + 1;
        // The class of each state, and whether a path may skip the state before it, which it may if that is a blank
        // between two different labels. No path to the end of a sequence passes through states beyond that end.
        let count = n.saturating_mul(states);
        let mut class = HostVec::with_capacity(device.backend(), OP, count)?;
        let mut skip = HostVec::with_capacity(device.backend(), OP, count)?;
        for row in rows {
            let row = &labels[row];
            for s in 0..states {
                let label = if s % 2 == 1 { row.get(s / 2) } else { None };
                class.push(OP, label.copied().unwrap_or(blank as i64))?;
                skip.push(OP, s > 1 && label.is_some() && label != row.get(s / 2 - 1))?;
            }
        }
        let class = Tensor::from_vec(class, [1, n, states], device)?.expand([steps, n, states])?;
        let skip = Tensor::from_vec(skip, [n, states], device)?;
        let runs = (0..steps * n).map(|k| k / n < input_lengths[k % n]);
        let runs = HostVec::collect(device.backend(), OP, runs)?;
        let runs = Tensor::from_vec(runs, [steps, n, 1], device)?;

        // Two columns of -inf in front make alpha(s-1) and alpha(s-2) views. Before the first step, every path is in
        // state 0.
        let nowhere = Tensor::full([n, 2], f64::NEG_INFINITY, dtype, device)?;
        let start = Tensor::zeros([n, 1], dtype, device)?;
        let rest = Tensor::full([n, states - 1], f64::NEG_INFINITY, dtype, device)?;
        let mut alpha = Tensor::cat(&[&nowhere, &start, &rest], 1)?;
        let log_probs = self.to_dtype(dtype)?.gather(2, &class)?;
        let mut rows = HostVec::with_capacity(device.backend(), OP, steps)?;
        unbind(&log_probs, &mut rows)?;
        for (t, log_prob) in rows.iter().enumerate() {
            let (stay, one, two) =
                (alpha.narrow(1, 2, states)?, alpha.narrow(1, 1, states)?, alpha.narrow(1, 0, states)?);
            let runs = runs.narrow(0, t, 1)?.squeeze(0)?;
            let operands = [&runs, &skip, &stay, &one, &two, log_prob].map(Operand::Tensor);
            alpha = Tensor::cat(&[&nowhere, &STEP.apply(&operands)?], 1)?;
        }
        // The last blank and the last label. Without labels, the index of the label points to a column of -inf in
        // front.
        let ends: Vec<i64> = target_lengths.iter().flat_map(|&l| [2 * l as i64 + 2, 2 * l as i64 + 1]).collect();
        let ends = alpha.gather(1, &Tensor::from_vec(ends, [n, 2], device)?)?;
        let mut losses = END.apply(&[(&ends.select(1, 0)?).into(), (&ends.select(1, 1)?).into()])?;
        if zero_infinity {
            losses = losses.eq(f64::INFINITY)?.where_(0.0, &losses)?;
        }
        if reduction == Reduction::Mean {
            let lengths = target_lengths.iter().map(|&l| Scalar::Float(l.max(1) as f64));
            losses = losses.div(&Tensor::from_scalars(lengths, Shape::new(&[n])?, dtype, device)?)?;
        }
        reduction.apply(&losses)
    }
}

/// Splits the first axis into its parts by repeated halving. The backward pass then writes each element a logarithmic
/// number of times instead of once for each part.
#[track_caller]
fn unbind(x: &Tensor, parts: &mut HostVec<Tensor>) -> Result<()> {
    match x.shape().first().copied().unwrap_or(0) {
        0 => Ok(()),
        1 => parts.push(OP, x.squeeze(0)?),
        n => {
            unbind(&x.narrow(0, 0, n / 2)?, parts)?;
            unbind(&x.narrow(0, n / 2, n - n / 2)?, parts)
        }
    }
}
