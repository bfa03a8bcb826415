//! Products of vectors: `outer`, `dot`, `cross` and `kron`.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Error, MAX_RANK, Result, Shape};

use super::operand_rules::common_dtype;
use crate::Tensor;

impl Tensor {
    /// All products of the elements of two vectors `[m]` and `[n]`, as `[m, n]`.
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() != 1 || other.rank() != 1 {
            let e = Error::shape("outer", "both operands have one axis");
            return Err(other.describe(self.describe(e, "self"), "other"));
        }
        self.unsqueeze(1)?.mul(other)
    }

    /// The dot product of two vectors of the same length, as a scalar.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() != 1 || self.shape() != other.shape() {
            let e = Error::shape("dot", "both operands have one axis, of one size");
            return Err(other.describe(self.describe(e, "self"), "other").help("use matmul for matrices"));
        }
        self.matmul(other)
    }

    /// The cross product along an axis that has size 3 in both operands. The ranks must be equal; the other axes
    /// broadcast.
    #[track_caller]
    pub fn cross(&self, other: &Tensor, axis: isize) -> Result<Tensor> {
        let at = resolve_axis("cross", axis, self.rank())?;
        let fail = |e: Error| other.describe(self.describe(e, "self"), "other");
        if self.rank() != other.rank() || self.shape()[at] != 3 || other.shape()[at] != 3 {
            let m = format!("both operands have one rank, and size 3 at axis {at}");
            return Err(fail(Error::shape("cross", m)));
        }
        let shape = Shape::broadcast("cross", self.shape(), other.shape()).map_err(fail)?;
        let dtype = common_dtype("cross", &[self, other], &["self", "other"])?;
        let (a, b) = (self.expand(shape)?.to_dtype(dtype.compute())?, other.expand(shape)?.to_dtype(dtype.compute())?);
        let first = turned(&a, axis, 1)?.mul(&turned(&b, axis, 2)?)?;
        first.sub(&turned(&a, axis, 2)?.mul(&turned(&b, axis, 1)?)?)?.to_dtype(dtype)
    }

    /// The Kronecker product: every element of this tensor times all elements of `other`, laid out as blocks. The
    /// operand of lower rank is padded with leading axes of size 1. The rank is at most 4.
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Result<Tensor> {
        let rank = self.rank().max(other.rank());
        if 2 * rank > MAX_RANK {
            let e = Error::argument("kron", format!("rank {rank}; it takes ranks up to {}", MAX_RANK / 2));
            return Err(other.describe(self.describe(e, "self"), "other"));
        }
        let size = |t: &Tensor, k: usize| (k + t.rank()).checked_sub(rank).map_or(1, |k| t.shape()[k]);
        // The axes of this tensor and of the other alternate.
        let of_self: Vec<usize> = (0..rank).flat_map(|k| [size(self, k), 1]).collect();
        let of_other: Vec<usize> = (0..rank).flat_map(|k| [1, size(other, k)]).collect();
        let product = self.reshape(of_self)?.mul(&other.reshape(of_other)?)?;
        let joined: Vec<usize> = product.shape().chunks(2).map(|pair| pair.iter().product()).collect();
        product.reshape(joined)
    }
}

/// The components of an axis of size 3, rotated such that number `by` comes first.
#[track_caller]
fn turned(t: &Tensor, axis: isize, by: usize) -> Result<Tensor> {
    Tensor::cat(&[&t.narrow(axis, by, 3 - by)?, &t.narrow(axis, 0, by)?], axis)
}
