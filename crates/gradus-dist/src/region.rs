//! The operations at the borders of divided layers. Each is the gradient of another, so that gradients exist to any
//! order.
//!
//! A tensor is *whole*, the same on all ranks, or *divided*: each rank has another. The loss is whole, and all ranks
//! compute the same one. The gradient of a whole tensor is then whole, and that of a divided tensor is the gradient of
//! what this rank has. Operations on whole tensors give whole ones. A whole tensor must enter before it meets a divided
//! one: what each rank makes of it differs, so that its gradient is a sum over the ranks.

use std::ops::Range;
use std::sync::Arc;

use gradus_nn::Parameter;
use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::{CustomOp, DType, Error, Result, Tensor, apply_custom, autocast_dtype, is_grad_enabled};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// A step over the border, along an axis where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Border {
    /// Whole to divided: the tensor as it is.
    Enter,
    /// Divided to whole: the sum over the ranks.
    Sum,
    /// Whole to divided: this rank's part of so many elements.
    Split(usize, usize),
    /// Divided to whole: the parts of all ranks joined, so many elements.
    Join(usize, usize),
    /// Divided to divided: the parts of all ranks joined, of which each rank makes something else.
    Gather(usize),
    /// Divided to divided: this rank's part of the sum over the ranks.
    ReduceScatter(usize),
}

impl Border {
    fn name(self) -> &'static str {
        match self {
            Border::Enter => "enter_ranks",
            Border::Sum => "sum_over_ranks",
            Border::Split(..) => "split_over_ranks",
            Border::Join(..) => "join_over_ranks",
            Border::Gather(_) => "gather_sequence",
            Border::ReduceScatter(_) => "reduce_scatter_sequence",
        }
    }

    /// The step whose values are the gradients of this one.
    fn gradient(self) -> Border {
        match self {
            Border::Enter => Border::Sum,
            Border::Sum => Border::Enter,
            Border::Split(axis, n) => Border::Join(axis, n),
            Border::Join(axis, n) => Border::Split(axis, n),
            Border::Gather(axis) => Border::ReduceScatter(axis),
            Border::ReduceScatter(axis) => Border::Gather(axis),
        }
    }

    fn values(self, x: &Tensor, comm: &dyn Communicator, line: Line) -> Result<Tensor> {
        match self {
            Border::Enter => Ok(x.clone()),
            Border::Sum => comm.run(Collective::AllReduce(Reduce::Sum), x, line),
            Border::Split(axis, n) => {
                let own = range(n, comm.rank(), comm.size());
                // A copy, since a view would hold the memory of the whole.
                x.narrow(axis as isize, own.start, own.len())?.copy()
            }
            Border::Join(axis, n) => joined(x, axis, n, comm, line),
            Border::Gather(axis) => along(Collective::AllGather, axis, x, comm, line),
            Border::ReduceScatter(axis) => along(Collective::ReduceScatter(Reduce::Sum), axis, x, comm, line),
        }
    }
}

/// A collective of axis 0 along another one.
pub(crate) fn along(
    collective: Collective,
    axis: usize,
    x: &Tensor,
    comm: &dyn Communicator,
    line: Line,
) -> Result<Tensor> {
    if axis == 0 {
        return comm.run(collective, &x.contiguous()?, line);
    }
    let axis = axis as isize;
    comm.run(collective, &x.transpose(0, axis)?.contiguous()?, line)?.transpose(0, axis)?.contiguous()
}

/// A [`Border`] as an operation of the graph.
struct Crossing {
    border: Border,
    comm: Arc<dyn Communicator>,
    line: Line,
}

impl CustomOp for Crossing {
    fn name(&self) -> &str {
        self.border.name()
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.border.values(&x[0], &*self.comm, self.line)?])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(cross(self.border.gradient(), &self.comm, g, self.line)?)])
    }
}

/// Takes a tensor over a border, and records it.
pub(crate) fn cross(border: Border, comm: &Arc<dyn Communicator>, x: &Tensor, line: Line) -> Result<Tensor> {
    if !(x.requires_grad() && is_grad_enabled()) {
        return border.values(x, &**comm, line);
    }
    let op = Arc::new(Crossing { border, comm: comm.clone(), line });
    apply_custom(&op, &[x]).map_err(|e| e.at(line))?.pop().ok_or_else(|| Error::argument(op.name(), "no output"))
}

/// What a divided layer computes with: `x`, or all parts of it along the axis `sequence`.
pub(crate) fn enter(x: &Tensor, sequence: Option<isize>, comm: &Arc<dyn Communicator>, line: Line) -> Result<Tensor> {
    let border = match sequence {
        Some(axis) => Border::Gather(sequence_axis(x, axis)?),
        None => Border::Enter,
    };
    cross(border, comm, x, line)
}

/// The output of a divided layer from this rank's share of it: the sum of the shares and a whole bias, or this rank's
/// part of that along the axis `sequence`.
pub(crate) fn leave(
    share: &Tensor,
    bias: Option<&Parameter>,
    sequence: Option<isize>,
    comm: &Arc<dyn Communicator>,
    line: Line,
) -> Result<Tensor> {
    let border = match sequence {
        Some(axis) => Border::ReduceScatter(divided_axis(share, axis, &**comm)?),
        None => Border::Sum,
    };
    let y = cross(border, comm, share, line)?;
    let Some(bias) = bias else { return Ok(y) };
    let bias = match sequence {
        Some(_) => cross(Border::Enter, comm, bias, line)?,
        None => bias.tensor().clone(),
    };
    // As in a product under autocast, the bias does not decide the dtype.
    y.add(&if autocast_dtype().is_some() { bias.to_dtype(y.dtype())? } else { bias })
}

/// Resolves the axis of a sequence, which is not the last: that has the features.
pub(crate) fn sequence_axis(x: &Tensor, axis: isize) -> Result<usize> {
    let rank = x.rank() as isize;
    let at = if axis < 0 { axis + rank } else { axis };
    if (0..rank - 1).contains(&at) {
        return Ok(at as usize);
    }
    let m =
        format!("axis {axis} is not an axis of the sequence: those lie before the last one, which has the features");
    Err(Error::argument("sequence_parallel", m).operand("x", x.shape(), x.dtype(), x.device()))
}

/// [`sequence_axis`] of a tensor that is divided along it.
pub(crate) fn divided_axis(x: &Tensor, axis: isize, comm: &dyn Communicator) -> Result<usize> {
    let (axis, ranks) = (sequence_axis(x, axis)?, comm.size());
    if x.shape()[axis].is_multiple_of(ranks) {
        return Ok(axis);
    }
    let m = format!("a sequence of {} does not divide among {ranks} ranks", x.shape()[axis]);
    let e = Error::shape("sequence_parallel", m).operand("x", x.shape(), x.dtype(), x.device());
    Err(e.help("pad the sequence, or take another number of ranks"))
}

/// What of `n` belongs to a rank. The numbers of two ranks differ by at most 1.
pub(crate) fn range(n: usize, rank: usize, ranks: usize) -> Range<usize> {
    let at = |rank: usize| (n as u128 * rank as u128 / ranks as u128) as usize;
    at(rank)..at(rank + 1)
}

/// The tensor `n` long on an axis of which each rank has its [`range`].
pub(crate) fn joined(part: &Tensor, axis: usize, n: usize, comm: &dyn Communicator, line: Line) -> Result<Tensor> {
    let ranks = comm.size();
    if n.is_multiple_of(ranks) {
        return along(Collective::AllGather, axis, part, comm, line);
    }
    let longest = n.div_ceil(ranks);
    let mut shape = part.shape().to_vec();
    shape[axis] = longest - part.shape()[axis];
    let rest = Tensor::zeros(&shape, part.dtype(), part.device())?;
    let all = along(Collective::AllGather, axis, &Tensor::cat(&[part, &rest], axis as isize)?, comm, line)?;
    let pieces = (0..ranks).map(|rank| all.narrow(axis as isize, rank * longest, range(n, rank, ranks).len()));
    Tensor::cat(&pieces.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>(), axis as isize)
}

/// The rows `ids` of a table of so many, of which this rank has `weight`, and of which one may receive no gradient.
#[track_caller]
pub(crate) fn looked_up(
    weight: &Tensor,
    ids: &Tensor,
    (rows, padding): (usize, Option<usize>),
    sequence: Option<isize>,
    comm: &Arc<dyn Communicator>,
    line: Line,
) -> Result<Tensor> {
    // An index outside of all rows is the error that it is in a whole table. This one takes the memory of one element.
    let _ = Tensor::zeros([1, 1], weight.dtype(), ids.device())?.expand([rows, 1])?.embedding(ids, None)?;
    let own = range(rows, comm.rank(), comm.size());
    let padding = padding.filter(|row| own.contains(row)).map(|row| row - own.start);
    let (inside, local) = within(ids, own)?;
    let share = inside.unsqueeze(-1)?.where_(&weight.embedding(&local, padding)?, 0.0)?;
    leave(&share, None, sequence, comm, line)
}

/// Which indices are in a range, and their places in it, with 0 for the others.
#[track_caller]
pub(crate) fn within(ids: &Tensor, range: Range<usize>) -> Result<(Tensor, Tensor)> {
    let ids = match ids.dtype() {
        DType::I64 | DType::I32 | DType::U32 => ids.detach(),
        _ => ids.detach().to_dtype(DType::I64)?,
    };
    let (start, end) = (range.start as i64, range.end as i64);
    let inside = ids.ge(start)?.logical_and(&ids.lt(end)?)?;
    let local = inside.where_(&ids, start)?.sub(start)?;
    Ok((inside, local))
}
