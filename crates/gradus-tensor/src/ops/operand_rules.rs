//! Rules that all operations share for their operands: common dtypes, indices, axes.
//!
//! **Dtypes.** Operands of several dtypes promote by the lattice of [`DType::promote`] in every operation that computes
//! one result from them. There are three exceptions: a write in place keeps the dtype of its tensor; the flat buffers
//! of `gemm` must have the same dtype; and the running statistics of `batch_norm_eval` and the mask of attention do not
//! affect the dtype of the result.
//!
//! Inside [`autocast`](crate::autocast) some operations compute in another dtype than that; `autocast.rs` lists them.
//!
//! **Indices** are integers of any dtype. Backends accept i64, i32 and u32; other dtypes are converted to i64 here.
//!
//! **Axes.** In most operations a scalar counts as a vector of one element, so 0 and -1 name its axis. Operations that
//! split an axis or join tensors along one reject these axes, because a scalar has nothing to split or join.

use std::borrow::Cow;

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Axes, DType, Error, Here, Result};
use smallvec::SmallVec;

use super::autocast;
use crate::Tensor;

/// The dtype that operands share, or in which [`autocast`](crate::autocast) computes the operation. Errors show the
/// operands by `names`, or by number if they have no name.
#[track_caller]
pub(super) fn common_dtype(op: &str, operands: &[&Tensor], names: &[&str]) -> Result<DType> {
    let mut common = operands[0].dtype();
    for t in &operands[1..] {
        if t.dtype() != common {
            common = common
                .promote(t.dtype())
                .map_err(|e| {
                    let e = Error::new(e.kind().clone(), op, e.message());
                    let e = e.help("cast one operand first, for example x.to_dtype(DType::I64)?");
                    let number = |i: usize| format!("operand {i}");
                    let all = operands.iter().enumerate();
                    all.fold(e, |e, (i, t)| t.describe(e, &names.get(i).map_or_else(|| number(i), |&n| n.to_owned())))
                })
                .here()?;
        }
    }
    Ok(autocast::computed(op, common))
}

/// The dtype that an input shares with weight and bias.
#[track_caller]
pub(super) fn affine_dtype(op: &str, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<DType> {
    let mut operands: SmallVec<[&Tensor; 3]> = SmallVec::from_slice(&[x, weight]);
    operands.extend(bias);
    common_dtype(op, &operands, &["input", "weight", "bias"])
}

/// An operand in a dtype, borrowed if it has that dtype already.
#[track_caller]
pub(super) fn cast(t: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>> {
    if t.dtype() == dtype { Ok(Cow::Borrowed(t)) } else { t.to_dtype(dtype).map(Cow::Owned) }
}

/// [`cast`] of an operand that may be absent.
#[track_caller]
pub(super) fn cast_some(t: Option<&Tensor>, dtype: DType) -> Result<Option<Cow<'_, Tensor>>> {
    match t {
        Some(t) => cast(t, dtype).map(Some),
        None => Ok(None),
    }
}

/// An index in a dtype that backends accept.
#[track_caller]
pub(super) fn as_index<'a>(op: &str, index: &'a Tensor) -> Result<Cow<'a, Tensor>> {
    match index.dtype() {
        DType::I64 | DType::I32 | DType::U32 => Ok(Cow::Borrowed(index)),
        // Numbers that i64 cannot hold are outside every axis, and remain so when they are clamped.
        DType::U64 => index.detach().minimum(i64::MAX)?.to_dtype(DType::I64).map(Cow::Owned),
        d if d.is_int() => index.detach().to_dtype(DType::I64).map(Cow::Owned),
        d => {
            let e = index.describe(Error::dtype(op, d, "indices of an integer dtype"), "index");
            Err(if d == DType::Bool { e.help("for a mask use index or masked_select") } else { e })
        }
    }
}

/// [`as_index`] for a list of positions. A scalar counts as a list of one position.
#[track_caller]
pub(super) fn as_index_list<'a>(op: &str, index: &'a Tensor) -> Result<Cow<'a, Tensor>> {
    if index.rank() > 1 {
        return Err(index.describe(Error::shape(op, "the index has one axis"), "index"));
    }
    match as_index(op, index)? {
        index if index.rank() == 0 => index.reshape([1]).map(Cow::Owned),
        index => Ok(index),
    }
}

/// The axes of a reduction. A scalar has none, since it is its own sum.
#[track_caller]
pub(super) fn reduced_axes(op: &str, axes: &[isize], rank: usize) -> Result<Axes> {
    if rank > 0 {
        return Axes::resolve(op, axes, rank);
    }
    axes.iter().try_for_each(|&axis| axis_of(op, axis, 0).map(|_| ())).here()?;
    Axes::resolve(op, axes, 1).map(|_| Axes::NONE)
}

/// Resolves an axis. Axis 0 or -1 of a scalar is resolved as for a vector of one element.
#[track_caller]
pub(super) fn axis_of(op: &str, axis: isize, rank: usize) -> Result<usize> {
    match (rank, axis) {
        (0, 0 | -1) => Ok(0),
        (0, _) => {
            let help = "a scalar counts as a vector of one element, whose axis is 0 or -1";
            resolve_axis(op, axis, 0).map_err(|e| e.help(help))
        }
        _ => resolve_axis(op, axis, rank),
    }
}

impl Tensor {
    /// This tensor, with a scalar turned into a vector of one element, and the resolved axis.
    #[track_caller]
    pub(super) fn along(&self, op: &str, axis: isize) -> Result<(Cow<'_, Tensor>, usize)> {
        let axis = axis_of(op, axis, self.rank())?;
        Ok((self.as_vector()?, axis))
    }

    /// This tensor, with a scalar turned into a vector of one element.
    #[track_caller]
    pub(super) fn as_vector(&self) -> Result<Cow<'_, Tensor>> {
        if self.rank() == 0 { self.reshape([1]).map(Cow::Owned) } else { Ok(Cow::Borrowed(self)) }
    }

    /// Turns a vector of one element into a scalar if `like` is a scalar.
    #[track_caller]
    pub(super) fn back_to(self, like: &Tensor) -> Result<Tensor> {
        if like.rank() == 0 { self.reshape([]) } else { Ok(self) }
    }
}
