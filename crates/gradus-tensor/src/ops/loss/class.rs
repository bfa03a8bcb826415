//! Classification losses: `cross_entropy` of logits and `nll_loss` of log-probabilities.
//!
//! Cross-entropy of class indices is the fused operation of `ops/cross_entropy.rs`; its losses are multiplied by the
//! class weights if there are any. Class weights with label smoothing, and targets that are probabilities, are composed
//! of `log_softmax`.

use std::borrow::Cow;

use gradus_backend::{CrossEntropyParams, Error, ErrorKind, Here, Result, Scalar};

use super::{Reduction, parameter, same_shape};
use crate::Tensor;
use crate::ops::autocast::computed;
use crate::ops::operand_rules::{as_index, cast, common_dtype};
use crate::ops::{Class, CrossEntropy, Elementwise, Operand, apply};

/// The target with which the rows of logits `[n, c, ..]` are compared.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// The index of the right class as an integer, `[n, ..]`.
    Classes(&'a Tensor),
    /// A probability for each class, `[n, c, ..]`, in a float dtype.
    Probabilities(&'a Tensor),
}

impl<'a> From<&'a Tensor> for Target<'a> {
    fn from(classes: &'a Tensor) -> Self {
        Target::Classes(classes)
    }
}

/// Operands: log-probability, probability. Returns their product, but 0 where both say that a class is impossible.
static SHARE: Elementwise = Elementwise::new("cross_entropy", Class::Float, 2, |v| {
    let impossible = v[1].eq(0.0).and(v[0].eq(f64::NEG_INFINITY));
    vec![impossible.select(0.0, impossible.select(0.0, v[0]) * v[1])]
});

/// Class indices, checked for shape and dtype.
struct Classes<'a> {
    op: &'static str,
    input: &'a Tensor,
    target: Cow<'a, Tensor>,
    /// The target that marks rows which do not count.
    ignore_index: Option<i64>,
    /// A mask of the rows that count; `None` if all do.
    counts: Option<Tensor>,
    /// The targets, with class 0 in rows that do not count.
    safe: Tensor,
    /// The class weights in the compute dtype.
    weight: Option<Tensor>,
}

impl<'a> Classes<'a> {
    #[track_caller]
    fn new(
        op: &'static str,
        input: &'a Tensor,
        target: &'a Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
    ) -> Result<Self> {
        let fail = |e: Error| target.describe(input.describe(e, "input"), "target");
        check_input(op, input)?;
        if !target.dtype().is_int() {
            let e = fail(Error::dtype(op, target.dtype(), "class indices of an integer dtype"));
            return Err(e.help("for a probability for each class pass Target::Probabilities to cross_entropy_with"));
        }
        let indices = as_index(op, target)?;
        if target.rank() + 1 != input.rank()
            || target.shape()[0] != input.shape()[0]
            || target.shape()[1..] != input.shape()[2..]
        {
            return Err(fail(Error::shape(op, "the input is [n, c, ..], targets [n, ..]")));
        }
        if input.shape()[1] == 0 && target.numel() > 0 {
            return Err(fail(Error::shape(op, "there are no classes")));
        }
        let weight = match weight {
            Some(w) => Some(class_weight(op, input, w)?),
            None => None,
        };
        // An index that the targets' dtype cannot hold occurs in no row, so no row is ignored.
        let ignore_index = ignore_index.filter(|&i| Scalar::Int(i).check(indices.dtype()).is_ok());
        let (counts, safe) = match ignore_index {
            Some(i) => {
                let counts = indices.ne(i)?;
                let safe = counts.where_(&*indices, 0)?;
                (Some(counts), safe)
            }
            None => (None, indices.clone().into_owned()),
        };
        Ok(Classes { op, input, target: indices, ignore_index, counts, safe, weight })
    }

    /// The weight of each row's class.
    #[track_caller]
    fn row_weights(&self) -> Result<Option<Tensor>> {
        let Some(weight) = &self.weight else { return Ok(None) };
        let flat = self.safe.reshape([self.safe.numel()])?;
        let rows = weight.index_select(0, &flat).map_err(|e| self.out_of_range(e)).here()?;
        rows.reshape(self.target.shape()).map(Some)
    }

    /// `-x[target]` of each row.
    #[track_caller]
    fn negative_log_likelihood(&self, log_probabilities: &Tensor) -> Result<Tensor> {
        let picked = log_probabilities.gather(1, &self.safe.unsqueeze(1)?).map_err(|e| self.out_of_range(e)).here()?;
        picked.squeeze(1)?.neg()
    }

    #[track_caller]
    fn out_of_range(&self, e: Error) -> Error {
        let ErrorKind::IndexOutOfBounds { pos, index, .. } = *e.kind() else { return e };
        let size = self.input.shape()[1];
        let m = format!("target {index} at position {pos} is outside {size} classes");
        let e = Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, self.op, m);
        let e = self.target.describe(self.input.describe(e, "input"), "target");
        e.help("classes count from 0; pass ignore_index to leave rows out")
    }

    /// `rows` with 0 for each row that does not count.
    #[track_caller]
    fn counted(&self, rows: Tensor) -> Result<Tensor> {
        match &self.counts {
            Some(counts) => counts.where_(&rows, 0.0),
            None => Ok(rows),
        }
    }

    /// Combines the losses of the rows. The mean divides by the total weight of the rows that count.
    #[track_caller]
    fn combine(&self, losses: Tensor, weights: Option<Tensor>, reduction: Reduction) -> Result<Tensor> {
        let losses = self.counted(losses)?;
        if reduction != Reduction::Mean || (weights.is_none() && self.counts.is_none()) {
            return reduction.apply(&losses);
        }
        let total = match (weights, &self.counts) {
            (Some(w), _) => self.counted(w)?.sum_all()?,
            (None, Some(counts)) => counts.sum_all()?.to_dtype(losses.dtype())?,
            (None, None) => return losses.mean_all(),
        };
        losses.sum_all()?.div(&total)
    }

    /// The fused cross-entropy of each row, without class weights.
    #[track_caller]
    fn fused(&self, label_smoothing: f64) -> Result<Tensor> {
        let (rank, classes, rows) = (self.input.rank() as isize, self.input.shape()[1], self.target.numel());
        let (logits, flat) = if rank == 2 {
            (self.input.clone(), self.target.clone().into_owned())
        } else {
            let last: Vec<isize> = (0..rank).filter(|&a| a != 1).chain([1]).collect();
            (self.input.permute(&last)?.reshape([rows, classes])?, self.target.reshape([rows])?)
        };
        let params = CrossEntropyParams { ignore_index: self.ignore_index, label_smoothing };
        let losses = apply(CrossEntropy { params }, &[&logits, &flat])?.swap_remove(0);
        if rank == 2 { Ok(losses) } else { losses.reshape(self.target.shape()) }
    }
}

/// Fails unless the input is a float `[n, c, ..]`.
#[track_caller]
fn check_input(op: &str, input: &Tensor) -> Result<()> {
    if !input.dtype().is_float() {
        return Err(input.describe(Error::dtype(op, input.dtype(), "a float input"), "input"));
    }
    if input.rank() < 2 {
        return Err(input
            .describe(Error::shape(op, "the input is [n, c, ..]"), "input")
            .help("unsqueeze a batch axis"));
    }
    Ok(())
}

/// The input in the dtype that it shares with the class weights.
#[track_caller]
fn with_weight<'a>(op: &str, input: &'a Tensor, weight: Option<&Tensor>) -> Result<Cow<'a, Tensor>> {
    match weight {
        Some(w) => cast(input, common_dtype(op, &[input, w], &["input", "weight"])?),
        None => cast(input, computed(op, input.dtype())),
    }
}

/// Class weights `[c]` in the compute dtype of the input.
#[track_caller]
fn class_weight(op: &str, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if weight.shape() != &input.shape()[1..2] || !weight.dtype().is_float() {
        let e = Error::shape(op, "weight is [c], one float for each class");
        return Err(weight.describe(input.describe(e, "input"), "weight"));
    }
    weight.to_dtype(input.dtype().compute())
}

/// Class weights `[c]` reshaped to `[c, 1, ..]`, which broadcasts with `[n, c, ..]`.
#[track_caller]
fn along_classes(weight: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = vec![1; rank - 1];
    shape[0] = weight.numel();
    weight.reshape(shape)
}

impl Tensor {
    /// Mean cross-entropy of the logits `self [n, c]` and the class indices `target [n]`. For the details see
    /// [`cross_entropy_with`](Tensor::cross_entropy_with).
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(target, None, None, 0.0, Reduction::Mean)
    }

    /// Cross-entropy of the logits `self [n, c, ..]` and a [`Target`], which holds class indices `[n, ..]` or
    /// probabilities of the shape of the logits. There is one loss for each row, in at least f32.
    ///
    /// With class weights `w [c]` (1 if absent), label smoothing `s` and `lp = log_softmax(self)`, the loss of a row is
    /// `-(1 - s) w[t] lp[t] - s / c * sum_j w[j] lp[j]` for class `t`, and `-sum_j w[j] ((1 - s) p[j] + s / c) lp[j]`
    /// for probabilities `p`. Rows with target `ignore_index` do not count: their loss and gradient are 0.
    ///
    /// For class indices, the mean divides by the sum of `w[t]` over the rows that count; for probabilities, by the
    /// number of rows. The mean over no rows is NaN.
    ///
    /// # Errors
    /// Fails if a class is outside `0..c`, if the shapes do not fit together, if the smoothing is outside 0 to 1, or if
    /// `ignore_index` is given with probabilities.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::{*, ops::Target}; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let logits = Tensor::from_vec([2.0f32, 0.0, 1.0, 1.0], [2, 2], &device)?;
    /// let classes = Tensor::from_vec([0i64, -100], [2], &device)?;
    /// let hard = logits.cross_entropy_with(&classes, None, Some(-100), 0.1, Reduction::Mean)?;
    /// let soft = Tensor::from_vec([0.95f32, 0.05, 0.5, 0.5], [2, 2], &device)?;
    /// let rows = logits.cross_entropy_with(Target::Probabilities(&soft), None, None, 0.0, Reduction::None)?;
    /// assert!((hard.item()? - rows.select(0, 0)?.item()?).abs() < 1e-6);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn cross_entropy_with<'a>(
        &self,
        target: impl Into<Target<'a>>,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
        label_smoothing: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const OP: &str = "cross_entropy";
        let s = label_smoothing;
        parameter(OP, "label smoothing", s, (0.0..=1.0).contains(&s), "between 0 and 1")?;
        let target = match target.into() {
            Target::Probabilities(_) if ignore_index.is_some() => {
                let e = Error::argument(OP, "probabilities have no index to ignore");
                return Err(e.help("set the rows' probabilities to 0"));
            }
            Target::Probabilities(target) => return self.soft_cross_entropy(target, weight, s, reduction),
            Target::Classes(target) => target,
        };
        let input = &*with_weight(OP, self, weight)?;
        let rows = Classes::new(OP, input, target, weight, ignore_index)?;
        let (Some(weight), Some(row_weights)) = (&rows.weight, rows.row_weights()?) else {
            return rows.combine(rows.fused(s)?, None, reduction);
        };
        if s == 0.0 {
            return rows.combine(rows.fused(0.0)?.mul(&row_weights)?, Some(row_weights), reduction);
        }
        let mut logits = input.to_dtype(input.dtype().compute())?;
        if let Some(counts) = &rows.counts {
            logits = counts.unsqueeze(1)?.where_(&logits, 0.0)?;
        }
        let log = logits.log_softmax(1)?;
        let hit = rows.negative_log_likelihood(&log)?.mul(&row_weights)?.mul(1.0 - s)?;
        let spread = log.mul(&along_classes(weight, self.rank())?)?.sum(&[1], false)?;
        let losses = hit.sub(&spread.mul(s / self.shape()[1] as f64)?)?;
        rows.combine(losses, Some(row_weights), reduction)
    }

    /// The loss for [`Target::Probabilities`].
    #[track_caller]
    fn soft_cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        label_smoothing: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const OP: &str = "cross_entropy";
        check_input(OP, self)?;
        same_shape(OP, ("logits", self), ("probabilities", target))?;
        if !target.dtype().is_float() {
            return Err(target.describe(Error::dtype(OP, target.dtype(), "float probabilities"), "target"));
        }
        let logits = with_weight(OP, self, weight)?;
        let wide = common_dtype(OP, &[&logits, target], &["logits", "probabilities"])?.compute();
        let log = logits.to_dtype(wide)?.log_softmax(1)?;
        let mut target = target.to_dtype(wide)?;
        if label_smoothing > 0.0 {
            target = target.mul(1.0 - label_smoothing)?.add(label_smoothing / self.shape()[1] as f64)?;
        }
        if let Some(weight) = weight {
            target = target.mul(&along_classes(&class_weight(OP, self, weight)?, self.rank())?)?;
        }
        let shares = SHARE.apply(&[Operand::Tensor(&log), Operand::Tensor(&target)])?;
        reduction.apply(&shares.sum(&[1], false)?.neg()?)
    }

    /// The negative log-likelihood `-w[t] self[t]` of the log-probabilities `self [n, c, ..]` and the class indices
    /// `target [n, ..]` (integers), combined as `reduction` says. Computed in at least f32.
    ///
    /// The class weights `weight [c]` are 1 if absent. Rows with target `ignore_index` do not count. The mean divides
    /// by the total weight of the rows that count; over no rows it is NaN. Fails if a class is outside `0..c`.
    #[track_caller]
    pub fn nll_loss(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let input = &*with_weight("nll_loss", self, weight)?;
        let rows = Classes::new("nll_loss", input, target, weight, ignore_index)?;
        let losses = rows.negative_log_likelihood(&input.to_dtype(input.dtype().compute())?)?;
        let weights = rows.row_weights()?;
        let losses = match &weights {
            Some(w) => losses.mul(w)?,
            None => losses,
        };
        rows.combine(losses, weights, reduction)
    }
}
