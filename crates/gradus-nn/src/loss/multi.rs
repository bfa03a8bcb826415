//! Losses of several classes with a margin, and of several labels.

use gradus_tensor::{DType, Error, Here, Reduction, Result, Tensor, fused};

use super::{losses, tensor_of};
use crate::Buffer;

losses! {
    /// The margin loss of one class, see [`multi_margin`].
    MultiMarginLoss {
        /// The exponent, 1 or 2. Default 1.
        p: u32 = 1,
        /// The lead from which a class costs nothing. Default 1.
        margin: f64 = 1.0,
        /// The weights of the classes, `[c]`. Default none.
        weight: Option<Buffer> = None,
    }: |it, input, target| {
        multi_margin(input, target, it.p, it.margin, tensor_of(&it.weight).as_ref(), it.reduction)
    };
    /// The margin loss of several classes, see [`multilabel_margin`].
    MultiLabelMarginLoss {}: |it, input, target| multilabel_margin(input, target, it.reduction);
    /// Binary cross-entropy of the logits of several labels, see [`multilabel_soft_margin`].
    MultiLabelSoftMarginLoss {
        /// Factors of the labels, which broadcast to the input. Default none.
        weight: Option<Buffer> = None,
    }: |it, input, target| multilabel_soft_margin(input, target, tensor_of(&it.weight).as_ref(), it.reduction);
}

#[track_caller]
fn wrong(op: &str, message: &str, input: &Tensor, target: &Tensor) -> Error {
    let e = Error::shape(op, message).operand("input", input.shape(), input.dtype(), input.device());
    e.operand("target", target.shape(), target.dtype(), target.device())
}

/// `weight[t] / c * sum over i != t of max(0, margin - x[t] + x[i])^p`, for scores `input [n, c]` and classes `target
/// [n]` (integers), or `[c]` and `[]`. One loss for each row, combined as `reduction` says. The weights `[c]` are 1 if
/// absent. Exactly at the margin the slope is 0.
///
/// # Errors
/// Fails if `p` is not 1 or 2, if the margin is not finite, if the shapes do not fit, or if a class is outside `0..c`.
#[track_caller]
pub fn multi_margin(
    input: &Tensor,
    target: &Tensor,
    p: u32,
    margin: f64,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    const OP: &str = "multi_margin_loss";
    if !(1..=2).contains(&p) {
        return Err(Error::argument(OP, format!("p is {p}; it is 1 or 2")));
    }
    if !margin.is_finite() {
        return Err(Error::argument(OP, format!("margin is {margin}; it is finite")));
    }
    let rank = input.rank();
    if !(1..=2).contains(&rank) || target.shape() != &input.shape()[..rank - 1] || !target.dtype().is_int() {
        return Err(wrong(OP, "the input is [n, c] and the target [n], integers, or [c] and []", input, target));
    }
    let classes = input.shape()[rank - 1];
    if let Some(weight) = weight.filter(|w| w.shape() != [classes]) {
        let e = Error::shape(OP, "the weight is [c], one number for each class");
        let e = e.operand("input", input.shape(), input.dtype(), input.device());
        return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
    }
    let target = target.unsqueeze(-1)?;
    let right = input.gather(-1, &target)?;
    let own = Tensor::arange(0, classes as i64, 1, DType::I64, input.device())?.eq(&target)?;
    let violation = fused!(|x, right, own, margin| {
        let v = margin - right + x;
        own.ne(0.0).or(v.le(0.0)).select(0.0, v)
    })(input, &right, &own, margin)?;
    let terms = if p == 2 { violation.square()? } else { violation };
    let mut losses = terms.sum(&[-1], false)?.div(classes as f64)?;
    if let Some(weight) = weight {
        let factors = weight.index_select(0, &target.flatten(0, -1)?)?;
        losses = losses.mul(&factors.reshape(losses.shape())?)?;
    }
    reduction.apply(&losses)
}

/// `1 / c * sum over labels t, and i that is no label, of max(0, 1 - x[t] + x[i])`, for scores `input [n, c]` and labels
/// `target [n, c]` (integers), or `[c]` both. The labels of a row end before its first negative number. One loss for
/// each row, combined as `reduction` says. Exactly at the margin the slope is 0. Takes memory for `n c c` numbers.
///
/// # Errors
/// Fails if the shapes differ, if the target holds no integers, or if a label is `c` or above.
#[track_caller]
pub fn multilabel_margin(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    const OP: &str = "multilabel_margin_loss";
    let rank = input.rank();
    if !(1..=2).contains(&rank) || target.shape() != input.shape() || !target.dtype().is_int() {
        return Err(wrong(OP, "input and target have one shape, [n, c] or [c], the target integers", input, target));
    }
    let target = target.to_dtype(DType::I64)?;
    let counts = target.lt(0)?.to_dtype(DType::I64)?.cumsum(-1)?.eq(0)?;
    let labels = counts.where_(&target, 0)?;
    let right = input.gather(-1, &labels)?;
    let is_label = counts.to_dtype(DType::I64)?.zeros_like()?;
    let is_label = is_label.scatter_add(-1, &labels, &counts.to_dtype(DType::I64)?)?.gt(0)?;
    let terms = fused!(|x, right, counts, is_label| {
        let v = 1.0 - right + x;
        counts.eq(0.0).or(is_label.ne(0.0)).or(v.le(0.0)).select(0.0, v)
    })(&input.unsqueeze(-2)?, &right.unsqueeze(-1)?, &counts.unsqueeze(-1)?, &is_label.unsqueeze(-2)?)?;
    let losses = terms.sum(&[-1, -2], false)?.div(input.size(-1).here()? as f64)?;
    reduction.apply(&losses)
}

/// The mean over the labels of `weight * (ln(1 + e^x) - t x)`, for logits `input [n, c]` and targets of the same shape,
/// 0 or 1. One loss for each row, combined as `reduction` says. The weights broadcast to the input and are 1 if absent.
/// Errors if the shapes differ, or if the input is a scalar.
#[track_caller]
pub fn multilabel_soft_margin(
    input: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    if input.rank() == 0 {
        return Err(wrong("multilabel_soft_margin_loss", "the input is [.., c]", input, target));
    }
    let terms = input.bce_with_logits(target, weight, None, Reduction::None)?;
    reduction.apply(&terms.mean(&[-1], false)?)
}
