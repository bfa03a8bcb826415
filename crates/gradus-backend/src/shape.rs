//! [`Shape`]: up to eight axis sizes, stored inline; [`Axes`]: a set of axes.

use std::fmt;
use std::ops::Deref;

use crate::{Error, ErrorKind, Here, Result};

/// The highest rank of a tensor.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's axes, outermost first. Dereferences to `[usize]`.
#[derive(Clone, Copy, Eq)]
pub struct Shape {
    rank: u8,
    // Entries from `rank` on are 0.
    dims: [usize; MAX_RANK],
}

impl PartialEq for Shape {
    // Loops over the few axes in use; the derived version would call `memcmp` on all eight entries.
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        self.rank == other.rank && self.iter().zip(other.iter()).all(|(a, b)| a == b)
    }
}

impl std::hash::Hash for Shape {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.dims().hash(state);
    }
}

impl Shape {
    /// The shape of a scalar: rank 0, one element.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [0; MAX_RANK] };

    /// Creates a shape from its sizes. Returns an error if the rank exceeds 8, or if the product of the nonzero sizes
    /// exceeds `isize::MAX / 8`.
    #[track_caller]
    pub fn new(dims: &[usize]) -> Result<Self> {
        if dims.len() > MAX_RANK {
            let m = format!("rank {} is above the highest rank {MAX_RANK}", dims.len());
            return Err(Error::argument("shape", m));
        }
        let mut shape = Shape { rank: dims.len() as u8, dims: [0; MAX_RANK] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        // A size of 0 does not excuse an overflow among the other sizes: strides are computed from all of them.
        let mut n = 1usize;
        for &d in dims {
            n = n
                .checked_mul(d.max(1))
                .filter(|&n| n <= isize::MAX as usize / 8)
                .ok_or_else(|| {
                    let m = format!("{} has more elements than memory can address", Shape::display(dims));
                    Error::new(ErrorKind::Overflow, "shape", m)
                })
                .here()?;
        }
        Ok(shape)
    }

    /// Creates a shape from sizes that are known to be legal because they derive from a checked shape.
    pub(crate) fn new_unchecked(dims: &[usize]) -> Self {
        let mut shape = Shape { rank: dims.len() as u8, dims: [0; MAX_RANK] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// The sizes as a slice.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    /// Every index in row-major order; only the first `rank` entries of each array are used. For tests and slow paths.
    pub fn indices(&self) -> impl Iterator<Item = [usize; MAX_RANK]> + use<> {
        let shape = *self;
        (0..shape.numel()).map(move |flat| {
            let (mut index, mut rest) = ([0; MAX_RANK], flat);
            for axis in (0..shape.rank()).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            index
        })
    }

    /// This shape with the size of `axis` replaced.
    #[track_caller]
    pub fn with(&self, axis: usize, size: usize) -> Result<Self> {
        let mut dims = self.dims;
        dims[axis] = size;
        Shape::new(&dims[..self.rank()])
    }

    /// This shape with `axes` reduced to size 1 (`keepdim`) or removed.
    pub fn reduced(&self, axes: Axes, keepdim: bool) -> Self {
        let mut dims = [0; MAX_RANK];
        let mut rank = 0;
        for (i, &d) in self.iter().enumerate() {
            if !axes.contains(i) {
                dims[rank] = d;
                rank += 1;
            } else if keepdim {
                dims[rank] = 1;
                rank += 1;
            }
        }
        Shape::new_unchecked(&dims[..rank])
    }

    /// The NumPy broadcast of two shapes, aligned from the right. A size of 1 is broadcast to any other size, even 0.
    #[track_caller]
    pub fn broadcast(op: &str, a: &[usize], b: &[usize]) -> Result<Self> {
        let rank = a.len().max(b.len());
        let mut dims = [0; MAX_RANK];
        for i in 0..rank {
            let at = |s: &[usize]| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
            dims[i] = match (at(a), at(b)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                (x, y) => {
                    let (sa, sb) = (Shape::display(a), Shape::display(b));
                    let m = format!("shapes {sa} and {sb} do not broadcast: axis {i} is {x} and {y}");
                    return Err(Error::new(ErrorKind::Broadcast, op, m)
                        .help("sizes must be equal or 1, aligned from the right; use unsqueeze or expand"));
                }
            };
        }
        Shape::new(&dims[..rank])
    }

    /// Displays any sizes as `[2, 3]`.
    pub fn display(dims: &[usize]) -> impl fmt::Display + '_ {
        struct D<'a>(&'a [usize]);
        impl fmt::Display for D<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
        D(dims)
    }
}

impl Deref for Shape {
    type Target = [usize];
    #[inline]
    fn deref(&self) -> &[usize] {
        self.dims()
    }
}

impl AsRef<[usize]> for Shape {
    fn as_ref(&self) -> &[usize] {
        self.dims()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self.dims() == other
    }
}
impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}

/// Resolves an axis of a tensor of this rank. A negative axis counts from the end (-1 is the last axis).
#[track_caller]
pub fn resolve_axis(op: &str, axis: isize, rank: usize) -> Result<usize> {
    let resolved = if axis < 0 { axis + rank as isize } else { axis };
    if resolved >= 0 && (resolved as usize) < rank {
        return Ok(resolved as usize);
    }
    let m = match rank {
        0 => format!("axis {axis} of a scalar, which has no axes"),
        _ => format!("axis {axis} is outside rank {rank}"),
    };
    let e = Error::new(ErrorKind::InvalidAxis, op, m);
    Err(if rank == 0 { e } else { e.help(format!("axes run from 0 to {}, or from -{rank} to -1", rank - 1)) })
}

/// A set of axes of one tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Axes(u8);

impl Axes {
    /// The empty set.
    pub const NONE: Axes = Axes(0);

    /// Every axis of a tensor of this rank.
    pub fn all(rank: usize) -> Self {
        Axes(((1u16 << rank.min(MAX_RANK)) - 1) as u8)
    }

    /// A set with one axis, which must already be resolved.
    pub fn one(axis: usize) -> Self {
        debug_assert!(axis < MAX_RANK);
        Axes(1 << axis)
    }

    /// Resolves axes that may count from the end. An axis that is outside the rank or named twice is an error.
    #[track_caller]
    pub fn resolve(op: &str, axes: &[isize], rank: usize) -> Result<Self> {
        if rank > MAX_RANK {
            let e = Error::new(ErrorKind::InvalidAxis, op, format!("axes of a tensor of rank {rank}"));
            return Err(e.help(format!("a tensor has at most {MAX_RANK} axes")));
        }
        let mut set = Axes::NONE;
        for &axis in axes {
            let a = resolve_axis(op, axis, rank)?;
            if set.contains(a) {
                return Err(Error::new(ErrorKind::InvalidAxis, op, format!("axis {a} is named twice in {axes:?}")));
            }
            set = set.with(a);
        }
        Ok(set)
    }

    /// This set with one more axis.
    #[must_use]
    pub fn with(self, axis: usize) -> Self {
        Axes(self.0 | Axes::one(axis).0)
    }

    /// Whether the axis is in the set.
    pub fn contains(self, axis: usize) -> bool {
        axis < MAX_RANK && self.0 & (1 << axis) != 0
    }

    /// Number of axes in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The axes in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = usize> {
        (0..MAX_RANK).filter(move |&a| self.contains(a))
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_stretches_ones_also_against_zero() {
        assert_eq!(Shape::broadcast("add", &[3, 1], &[4]).unwrap(), [3, 4]);
        assert_eq!(Shape::broadcast("add", &[1], &[0]).unwrap(), [0]);
        assert_eq!(Shape::broadcast("add", &[], &[2, 0]).unwrap(), [2, 0]);
        assert_eq!(Shape::broadcast("add", &[2], &[3]).unwrap_err().kind(), &ErrorKind::Broadcast);
    }

    #[test]
    fn sizes_are_checked_even_beside_a_zero() {
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        assert!(Shape::new(&[usize::MAX, 2, 0]).is_err());
        assert!(Shape::new(&[1; 9]).is_err());
        assert_eq!(Shape::new(&[3, 0]).unwrap().numel(), 0);
        assert_eq!(Shape::SCALAR.numel(), 1);
    }

    #[test]
    fn axes_resolve_from_the_end_and_refuse_repeats() {
        assert_eq!(Axes::resolve("sum", &[-1, 0], 3).unwrap(), Axes::one(2).with(0));
        assert_eq!(Axes::resolve("sum", &[0, -3], 3).unwrap_err().kind(), &ErrorKind::InvalidAxis);
        assert_eq!(resolve_axis("sum", 3, 3).unwrap_err().kind(), &ErrorKind::InvalidAxis);
        assert_eq!(Axes::all(8).len(), 8);
    }
}
