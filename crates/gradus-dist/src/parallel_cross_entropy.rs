//! [`parallel_cross_entropy`]: cross-entropy of logits whose classes are divided among the ranks.

use std::panic::Location;
use std::sync::Arc;

use gradus_nn::CrossEntropyLoss;
use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::backend::Scalar;
use gradus_tensor::{CustomOp, DType, Error, Here, Reduction, Result, Tensor, apply_custom};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;
use crate::region::{Border, cross, range, within};

const OP: &str = "parallel_cross_entropy";

/// [`CrossEntropyLoss`] of logits of which each rank has some classes (Shoeybi et al., 2019), as
/// [`ParallelEmbedding::head`](crate::ParallelEmbedding::head) and [`ColumnLinear`](crate::ColumnLinear) give them. The
/// logits are never gathered: ranks exchange three numbers for each row.
///
/// `logits` is this rank's part `[n, c, ..]` of the logits of all `classes`: rank `r` of `R` has the classes from
/// `classes * r / R` up to `classes * (r + 1) / R`, rounded down. `targets [n, ..]` are class indices, the same on all
/// ranks. The loss is the same on all ranks and in at least f32, with gradients to any order. The class weights of
/// `options` are those of all classes.
///
/// # Errors
/// Those of [`Tensor::cross_entropy_with`] and of the communicator, and
/// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the logits are not those of this rank's
/// classes.
#[track_caller]
pub fn parallel_cross_entropy(
    logits: &Tensor,
    targets: &Tensor,
    classes: usize,
    comm: &Arc<dyn Communicator>,
    options: &CrossEntropyLoss,
) -> Result<Tensor> {
    loss(logits, targets, classes, comm, options, Location::caller()).here()
}

fn loss(
    logits: &Tensor,
    targets: &Tensor,
    classes: usize,
    comm: &Arc<dyn Communicator>,
    options: &CrossEntropyLoss,
    line: Line,
) -> Result<Tensor> {
    let own = range(classes, comm.rank(), comm.size());
    check(logits, &own, classes, comm.size(), options)?;
    let wide = logits.dtype().compute();
    let weight = options.weight.as_ref().map(|weight| weight.tensor());
    // The weight of each row's class, and 0 for rows that do not count. It fails as the whole loss does, and reads one
    // logit of -1.
    let mut all = logits.shape().to_vec();
    all[1] = classes;
    let rows = Tensor::full([1], -1.0, wide, logits.device())?
        .reshape(vec![1; all.len()])?
        .expand(&all)?
        .nll_loss(targets, weight.as_ref(), Some(options.ignore_index), Reduction::None)
        .map_err(|e| named(e, logits, targets))?;
    let targets = match targets.dtype() {
        DType::I64 | DType::I32 | DType::U32 => targets.detach(),
        _ => targets.detach().to_dtype(DType::I64)?,
    };
    // An index that the dtype cannot hold occurs in no row.
    let counts = match Scalar::Int(options.ignore_index).check(targets.dtype()).is_ok() {
        true => targets.ne(options.ignore_index)?,
        false => targets.eq(&targets)?,
    };

    let largest = logits.detach().max(&[1], true)?.to_dtype(wide)?;
    let largest = comm.run(Collective::AllReduce(Reduce::Max), &largest, line)?;
    let op = Arc::new(LogSumExp { comm: comm.clone(), line });
    let log = apply_custom(&op, &[logits, &largest, &counts.unsqueeze(1)?])?.swap_remove(0).squeeze(1)?;

    // With `lp = x - largest - log`, the loss is `log` times the weights of all `lp` in it, less those of `x - largest`.
    let s = options.label_smoothing;
    let (inside, local) = within(&targets, own.clone())?;
    let picked = logits.gather(1, &local.unsqueeze(1)?)?.to_dtype(wide)?.sub(&largest)?.squeeze(1)?;
    let inside = inside.logical_and(&counts)?;
    let mut share = inside.where_(&picked, 0.0)?.mul(&rows)?.mul(1.0 - s)?;
    let mut total = rows.mul(1.0 - s)?;
    if s > 0.0 {
        let mut centred = logits.to_dtype(wide)?.sub(&largest)?;
        let each = s / classes as f64;
        match &weight {
            Some(weight) => {
                let weight = weight.to_dtype(wide)?;
                let mut along = vec![1; logits.rank()];
                along[1] = own.len();
                centred = centred.mul(&weight.narrow(0, own.start, own.len())?.reshape(along)?)?;
                total = total.add(&weight.sum_all()?.mul(each)?)?;
            }
            None => total = total.add(s)?,
        }
        share = share.add(&centred.sum(&[1], false)?.mul(each)?)?;
    }
    let losses = log.mul(&total)?.sub(&cross(Border::Sum, comm, &share, line)?)?;
    let losses = counts.where_(&losses, 0.0)?;
    match options.reduction {
        Reduction::Mean => losses.sum_all()?.div(&rows.sum_all()?),
        other => other.apply(&losses),
    }
}

/// Fails unless the logits are those of this rank's classes, and the smoothing is a share.
fn check(
    logits: &Tensor,
    own: &std::ops::Range<usize>,
    classes: usize,
    ranks: usize,
    options: &CrossEntropyLoss,
) -> Result<()> {
    let fail = |e: Error| Err(e.operand("logits", logits.shape(), logits.dtype(), logits.device()));
    // Before what may differ from rank to rank: an error on all of them.
    if classes < ranks {
        let m = format!("{classes} classes do not divide among {ranks} ranks");
        return fail(Error::shape(OP, m).help("each rank has at least one class; take fewer ranks"));
    }
    if !logits.dtype().is_float() {
        return fail(Error::dtype(OP, logits.dtype(), "float logits"));
    }
    if logits.rank() < 2 || logits.shape()[1] != own.len() {
        let m = format!(
            "this rank has the classes {}..{} of {classes}, and logits [n, {}, ..]",
            own.start,
            own.end,
            own.len()
        );
        return fail(Error::shape(OP, m).help("each rank has at least one class; ParallelEmbedding divides them so"));
    }
    let s = options.label_smoothing;
    if !(0.0..=1.0).contains(&s) {
        return Err(Error::argument(OP, format!("label smoothing is {s}; it is between 0 and 1")));
    }
    Ok(())
}

/// An error of the targets, under the name of this loss.
fn named(e: Error, logits: &Tensor, targets: &Tensor) -> Error {
    let e = Error::new(e.kind().clone(), OP, e.message());
    e.operand("logits", logits.shape(), logits.dtype(), logits.device())
        .operand("targets", targets.shape(), targets.dtype(), targets.device())
        .help("targets are class indices, and count from 0; rows with ignore_index are left out")
}

/// `log(sum of exp(x - largest))` over axis 1 and over the ranks, a whole tensor `[n, 1, ..]`. `largest` is a constant:
/// what is computed from the result has the same value and gradient whatever it is. Inputs: `x`, `largest`, and which rows
/// count; the others have no gradient.
struct LogSumExp {
    comm: Arc<dyn Communicator>,
    line: Line,
}

impl CustomOp for LogSumExp {
    fn name(&self) -> &str {
        OP
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let mine = x[0].to_dtype(x[1].dtype())?.sub(&x[1])?.exp()?.sum(&[1], true)?;
        Ok(vec![cross(Border::Sum, &self.comm, &mine, self.line)?.log()?])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([0, 1, 2]).and_outputs([0])
    }

    /// The gradient is the softmax of this rank's classes.
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None; 3]) };
        let (x, largest, counts, log) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.output(0)?);
        let enter = |t: &Tensor| cross(Border::Enter, &self.comm, t, self.line);
        let softmax = x.to_dtype(log.dtype())?.sub(&largest)?.sub(&enter(&log)?)?.exp()?;
        let dx = counts.where_(&softmax.mul(&enter(g)?)?, 0.0)?;
        Ok(vec![Some(dx.to_dtype(x.dtype())?), None, None])
    }
}
