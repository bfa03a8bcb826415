//! Indexing by tensors.

use gradus::prelude::*;
use gradus::{Index, ScatterReduction, Strided};

use super::{LONG, Row, SHORT, rows};
use crate::calls::Draw;

/// The size of an axis; 3 if the axis does not exist.
pub(super) fn along(x: &Tensor, axis: isize) -> usize {
    x.size(axis).unwrap_or(3)
}

/// `axis`, counted from the start.
pub(super) fn at(x: &Tensor, axis: isize) -> usize {
    (if axis < 0 { axis.wrapping_add(x.rank() as isize) } else { axis }) as usize
}

/// An index tensor with the shape of `x`, except that it has size `n` along `axis`.
pub(super) fn index_like(d: &mut Draw, x: &Tensor, axis: isize, n: usize) -> Result<Tensor> {
    let mut dims = x.shape().to_vec();
    if let Some(size) = dims.get_mut(at(x, axis)) {
        *size = n;
    }
    d.indices(&dims, along(x, axis))
}

/// A few indices along one axis.
pub(super) fn few(d: &mut Draw, n: usize) -> Result<Tensor> {
    let count = d.below(6);
    d.indices(&[count], n)
}

/// Index tensors for several leading axes. They broadcast against each other.
pub(super) fn tuple(d: &mut Draw, x: &Tensor) -> Result<Vec<Tensor>> {
    let count = d.below(4);
    (0..x.rank().min(1 + d.below(3))).map(|k| d.indices(&[count], x.shape()[k])).collect()
}

/// The items of an index expression; `held` owns the tensors that they borrow.
pub(super) fn items<'a>(d: &mut Draw, x: &Tensor, held: &'a [Tensor]) -> Vec<Index<'a>> {
    let step = |d: &mut Draw| if d.once_in(8) { d.offset() } else { 1 };
    let one = |d: &mut Draw| match d.below(12) {
        0 => NewAxis.into(),
        1 => Ellipsis.into(),
        2 | 3 => (..).into(),
        4 => (d.offset()..d.offset()).into(),
        5 => Strided { start: Some(d.offset()), end: None, step: step(d) }.into(),
        6 => Strided { start: None, end: Some(d.offset()), step: step(d) }.into(),
        7 | 8 if !held.is_empty() => Index::from(&held[d.below(held.len())]),
        _ => Index::from(d.offset()),
    };
    (0..d.below(x.rank() + 2)).map(|_| one(d)).collect()
}

const READ: &[Row] = rows! { SHORT any;
    gather |x, d| { let (axis, n) = (d.axis(x.rank()), d.below(5)); x.gather(axis, &index_like(d, &x, axis, n)?) };
    index_select |x, d| { let axis = d.axis(x.rank()); x.index_select(axis, &few(d, along(&x, axis))?) };
    index |x, d| {
        let held = tuple(d, &x)?;
        x.index(items(d, &x, &held))
    };
    masked_select |x, d| x.masked_select(&d.mask(&x)?);
    embedding |x, d| {
        let (dims, padding) = (d.dims(), d.maybe(|d| Ok(d.size()))?);
        x.embedding(&d.indices(&dims, along(&x, 0))?, padding)
    };
    one_hot |x, d| {
        let (dims, classes) = (d.dims(), d.size());
        if d.once_in(4) { x.one_hot(classes) } else { d.indices(&dims, classes)?.one_hot(classes) }
    };
};

const WRITTEN: &[Row] = rows! { LONG any;
    index_put |x, d| {
        let indices = tuple(d, &x)?;
        x.index_put(&indices.iter().collect::<Vec<_>>(), &d.like(&x)?, d.flag())
    };
    index_assign |x, d| {
        let held = tuple(d, &x)?;
        let items = items(d, &x, &held);
        if d.flag() { x.index_assign(items, d.scalar()) } else { x.index_assign(items, &d.like(&x)?) }
    };
    scatter |x, d| {
        let (axis, n) = (d.axis(x.rank()), d.below(4));
        let index = index_like(d, &x, axis, n)?;
        if d.flag() { x.scatter(axis, &index, d.scalar()) } else { x.scatter(axis, &index, &d.sized(index.shape(), x.dtype())?) }
    };
    scatter_add |x, d| {
        let (axis, n) = (d.axis(x.rank()), d.below(4));
        let index = index_like(d, &x, axis, n)?;
        x.scatter_add(axis, &index, &d.sized(index.shape(), x.dtype())?)
    };
    scatter_reduce |x, d| {
        use ScatterReduction::*;
        let (axis, n) = (d.axis(x.rank()), d.below(4));
        let index = index_like(d, &x, axis, n)?;
        x.scatter_reduce(axis, &index, &d.sized(index.shape(), x.dtype())?, d.of(&[Sum, Prod, Mean, Amax, Amin]), d.flag())
    };
    index_add |x, d| {
        let axis = d.axis(x.rank());
        let index = few(d, along(&x, axis))?;
        x.index_add(axis, &index, &d.like_but(&x, &[(at(&x, axis), index.numel())])?)
    };
    index_copy |x, d| {
        let axis = d.axis(x.rank());
        let index = few(d, along(&x, axis))?;
        x.index_copy(axis, &index, &d.like_but(&x, &[(at(&x, axis), index.numel())])?)
    };
    index_fill |x, d| { let axis = d.axis(x.rank()); x.index_fill(axis, &few(d, along(&x, axis))?, d.scalar()) };
};

pub(super) const ROWS: &[&[Row]] = &[READ, WRITTEN];
