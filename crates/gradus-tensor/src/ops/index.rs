//! `index`, `index_put` and `index_assign`: elements picked or replaced by a list of positions, ranges, masks and index
//! tensors, one for each axis, as in Python's `x[..., 3, 1:4, idx]`.
//!
//! Positions, ranges and new axes produce a view. Index tensors and masks then pick from that view: the axes that they
//! index are moved to the front and merged, and the broadcast index tensors become one index into the merged axis. The
//! gradients are those of `index_select` and `scatter`.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use gradus_backend::{DType, Error, ErrorKind, Here, Result, ScatterOp, Shape};
use smallvec::SmallVec;

use super::gather::index_along;
use super::operand::{AsOperand, Operand};
use super::operand_rules::{as_index, cast, common_dtype};
use super::scatter::Scatter;
use crate::Tensor;

/// An index of one or several axes in [`Tensor::index`], converted with `From` from the types listed there.
#[derive(Debug, Clone, Copy)]
pub struct Index<'a>(Kind<'a>);

/// Integers of any type are stored exactly, as i128. Negative ones count from the end.
#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    At(i128),
    Range { start: Option<i128>, end: Option<i128>, step: i128 },
    Ellipsis,
    NewAxis,
    Tensor(&'a Tensor),
}

/// In [`Tensor::index`], stands for all axes that the other indices leave, each in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ellipsis;

/// In [`Tensor::index`], stands for a new axis of size 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAxis;

/// In [`Tensor::index`], selects every `step`-th element from `start` up to, but not including, `end`. If an end is
/// `None`, the range extends to the end of the axis on that side. A negative step goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// The first element; negative numbers count from the end.
    pub start: Option<isize>,
    /// The end, not included; negative numbers count from the end.
    pub end: Option<isize>,
    /// The step from one element to the next, not 0.
    pub step: isize,
}

/// The arguments of [`Tensor::index`]: one index, or a tuple (of up to 8), array, slice or vector of indices.
pub trait IntoIndex<'a> {
    /// The indices, in the order of the axes.
    fn into_index(self) -> Vec<Index<'a>>;
}

macro_rules! index_from {
    ($($t:ty, |$v:ident| $kind:expr;)*) => {$(
        impl<'a> From<$t> for Index<'a> {
            fn from($v: $t) -> Self {
                Index($kind)
            }
        }
        impl<'a> IntoIndex<'a> for $t {
            fn into_index(self) -> Vec<Index<'a>> {
                vec![self.into()]
            }
        }
    )*};
}

index_from! {
    RangeFull, |_v| Kind::Range { start: None, end: None, step: 1 };
    Strided, |v| Kind::Range { start: v.start.map(|s| s as i128), end: v.end.map(|e| e as i128), step: v.step as i128 };
    Ellipsis, |_v| Kind::Ellipsis;
    NewAxis, |_v| Kind::NewAxis;
    &'a Tensor, |v| Kind::Tensor(v);
}

/// Returns the exclusive end for an inclusive one. `None` for the last element (-1), since nothing comes after it.
fn past(end: i128) -> Option<i128> {
    if end == -1 { None } else { Some(end + 1) }
}

macro_rules! index_from_integers {
    ($($t:ty)*) => {$(
        index_from! {
            $t, |v| Kind::At(v as i128);
            Range<$t>, |v| Kind::Range { start: Some(v.start as i128), end: Some(v.end as i128), step: 1 };
            RangeFrom<$t>, |v| Kind::Range { start: Some(v.start as i128), end: None, step: 1 };
            RangeTo<$t>, |v| Kind::Range { start: None, end: Some(v.end as i128), step: 1 };
            RangeInclusive<$t>, |v| Kind::Range {
                start: Some(*v.start() as i128), end: past(*v.end() as i128), step: 1
            };
            RangeToInclusive<$t>, |v| Kind::Range { start: None, end: past(v.end as i128), step: 1 };
        }
    )*};
}

index_from_integers! { i32 i64 isize usize }

impl<'a> IntoIndex<'a> for Index<'a> {
    fn into_index(self) -> Vec<Index<'a>> {
        vec![self]
    }
}
impl<'a, T: Into<Index<'a>>, const N: usize> IntoIndex<'a> for [T; N] {
    fn into_index(self) -> Vec<Index<'a>> {
        self.into_iter().map(Into::into).collect()
    }
}
impl<'a> IntoIndex<'a> for &[Index<'a>] {
    fn into_index(self) -> Vec<Index<'a>> {
        self.to_vec()
    }
}
impl<'a> IntoIndex<'a> for Vec<Index<'a>> {
    fn into_index(self) -> Vec<Index<'a>> {
        self
    }
}

macro_rules! index_from_tuples {
    ($($($t:ident)*;)*) => {$(
        #[allow(non_snake_case)]
        impl<'a, $($t: Into<Index<'a>>),*> IntoIndex<'a> for ($($t,)*) {
            fn into_index(self) -> Vec<Index<'a>> {
                let ($($t,)*) = self;
                vec![$($t.into()),*]
            }
        }
    )*};
}

index_from_tuples! {
    A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H;
}

/// An index tensor and the axis of the view that it picks from.
type Pick = (usize, Tensor);

/// Returns the view that positions, ranges and new axes produce, and the picks that remain to be made from it.
#[track_caller]
fn resolve(op: &str, x: &Tensor, items: &[Index<'_>]) -> Result<(Tensor, Vec<Pick>)> {
    let takes = |item: &Index<'_>| match item.0 {
        Kind::Ellipsis | Kind::NewAxis => 0,
        Kind::Tensor(t) if t.dtype() == DType::Bool => t.rank(),
        _ => 1,
    };
    let used: usize = items.iter().map(takes).sum();
    let fail = |e: Error| x.describe(e, "self");
    if used > x.rank() {
        return Err(fail(Error::argument(op, format!("indices for {used} axes of a tensor of rank {}", x.rank()))));
    }
    if items.iter().filter(|i| matches!(i.0, Kind::Ellipsis)).count() > 1 {
        let e = Error::argument(op, "more than one ellipsis: which axes each means is not said");
        return Err(fail(e.help("write .. for a full axis")));
    }
    let (mut view, mut picks, mut new_axes) = (x.clone(), Vec::new(), Vec::new());
    // `axis` counts axes of the view, `to` those of the view with the new axes, and `from` those of `x`, for errors.
    let (mut axis, mut to, mut from) = (0, 0, 0);
    for (pos, item) in items.iter().enumerate() {
        let taken = takes(item);
        match item.0 {
            Kind::NewAxis => {
                new_axes.push(to as isize);
                to += 1;
            }
            Kind::Ellipsis => {
                let rest = x.rank() - used;
                (axis, to, from) = (axis + rest, to + rest, from + rest);
            }
            Kind::At(at) => {
                let size = view.shape()[axis];
                let place = if at < 0 { at + size as i128 } else { at };
                if place < 0 || place >= size as i128 {
                    let index = i64::try_from(at).unwrap_or(if at < 0 { i64::MIN } else { i64::MAX });
                    let m = format!("index {at} (item {pos}) is outside axis {from} of size {size}");
                    return Err(fail(Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op, m)));
                }
                view = view.select(axis as isize, place as isize)?;
            }
            Kind::Range { start, end, step } => {
                let size = view.shape()[axis];
                let (first, last, step, backwards) = bounds(start, end, step, size).ok_or_else(|| {
                    let show = |v: Option<i128>| v.map_or(String::new(), |v| v.to_string());
                    let (start, end) = (show(start), show(end));
                    let m = format!(
                        "range {start}..{end} in steps of {step} (item {pos}) is not within axis {from} of size {size}"
                    );
                    let help =
                        "start and end are within the axis and in order, and a step is not 0; nothing is cut short";
                    fail(Error::argument(op, m).help(help))
                }).here()?;
                if (first, last, step) != (0, size, 1) {
                    view = view.slice(axis as isize, first, last, step)?;
                }
                if backwards {
                    view = view.flip(axis as isize)?;
                }
                (axis, to) = (axis + 1, to + 1);
            }
            Kind::Tensor(mask) if mask.dtype() == DType::Bool => {
                if taken == 0 || mask.shape() != &view.shape()[axis..axis + taken] {
                    let m = format!("the sizes of the mask (item {pos}) are not those of the axes from {from} on");
                    return Err(mask.describe(fail(Error::shape(op, m)), "mask"));
                }
                let places = mask.nonzero()?;
                for i in 0..taken {
                    picks.push((to + i, places.select(1, i as isize)?));
                }
                (axis, to) = (axis + taken, to + taken);
            }
            Kind::Tensor(index) => {
                let what = format!("item {pos}, axis {from}");
                picks.push((to, from_the_end(op, &what, index, view.shape()[axis]).map_err(fail)?));
                (axis, to) = (axis + 1, to + 1);
            }
        }
        from += taken;
    }
    for at in new_axes {
        view = view.unsqueeze(at)?;
    }
    Ok((view, picks))
}

/// Resolves a range to its first element, its end, an upward step, and whether the order is backwards. `None` if it is
/// invalid.
fn bounds(start: Option<i128>, end: Option<i128>, step: i128, size: usize) -> Option<(usize, usize, usize, bool)> {
    let n = size as i128;
    let resolved = |v: i128| if v < 0 { v + n } else { v };
    let by = usize::try_from(step.unsigned_abs()).ok().filter(|&s| s > 0)?;
    let within = |v: i128| usize::try_from(v).ok().filter(|&v| v <= size);
    if step > 0 {
        let (first, last) = (within(resolved(start.unwrap_or(0)))?, within(end.map_or(n, resolved))?);
        return (first <= last).then_some((first, last, by, false));
    }
    // The range runs backwards from `start` down to, but not including, `end`. Read upwards, the same elements start at
    // the last one that the range reaches.
    let top = start.map_or(n, |s| resolved(s) + 1);
    let stop = end.map_or(0, |e| resolved(e) + 1);
    let (top, stop) = (within(top)?, within(stop)?);
    if stop > top {
        return None;
    }
    let first = if top == stop { stop } else { top - 1 - (top - 1 - stop) / by * by };
    Some((first, top, by, true))
}

/// Converts an index tensor to i64, counting negative numbers from the end and checking every number.
#[track_caller]
fn from_the_end(op: &str, what: &str, index: &Tensor, size: usize) -> Result<Tensor> {
    let (index, n) = (as_index(op, index)?.detach().to_dtype(DType::I64)?, size as i64);
    let outside = index.lt(-n)?.logical_or(&index.ge(n)?)?;
    let axes: SmallVec<[isize; 8]> = (0..index.rank() as isize).collect();
    if outside.any(&axes, false)?.to_scalar::<bool>()? {
        let pos = outside.to_vec::<bool>()?.iter().position(|&b| b).unwrap_or(0);
        let value = index.to_vec::<i64>()?.get(pos).copied().unwrap_or(0);
        let m = format!("index {value} (number {pos} of {what}) is outside an axis of size {size}");
        let e = Error::new(ErrorKind::IndexOutOfBounds { pos, index: value, size }, op, m);
        return Err(index.describe(e.help(format!("indices run from 0 to {}, or back from -1", n - 1)), "index"));
    }
    index.lt(0)?.where_(&index.add(n)?, &index)
}

/// Combines several index tensors into one. Returns the index `[n]` into their merged axes, the shape that they
/// broadcast to, and the order of the view's axes that moves the merged axes to the front.
#[track_caller]
fn merged(op: &str, view: &Tensor, picks: &[Pick]) -> Result<(Tensor, Shape, SmallVec<[isize; 8]>)> {
    let mut shape = Shape::SCALAR;
    for (_, index) in picks {
        shape = Shape::broadcast(op, &shape, index.shape()).map_err(|e| index.describe(e, "index"))?;
    }
    let mut linear = Tensor::zeros([], DType::I64, view.device())?.expand(shape)?;
    let mut stride = 1i64;
    for (axis, index) in picks.iter().rev() {
        linear = linear.add(&index.mul(stride)?)?;
        stride = stride.saturating_mul(view.shape()[*axis] as i64);
    }
    let mut order: SmallVec<[isize; 8]> = picks.iter().map(|p| p.0 as isize).collect();
    order.extend((0..view.rank() as isize).filter(|a| picks.iter().all(|p| p.0 as isize != *a)));
    Ok((linear.reshape([shape.numel()])?, shape, order))
}

impl Tensor {
    /// The elements that a list of indices selects. The first index is for the first axis, and so on; axes without an
    /// index stay whole.
    ///
    /// | index | selects |
    /// |---|---|
    /// | an integer | one element; the axis is removed; -1 is the last |
    /// | a range, `..`, [`Strided`] | a part of the axis; negative ends count from the end |
    /// | [`Ellipsis`] | all remaining axes, in full |
    /// | [`NewAxis`] | inserts an axis of size 1 |
    /// | `&index` (integers) | the elements that it names, in the shape of `index`; -1 is the last |
    /// | `&mask` (bool) | the elements where it is true; it covers as many axes as it has |
    ///
    /// Integers and ranges alone return a view. Several index tensors and masks broadcast together and select one
    /// element for each position of the broadcast shape. The axes of that shape replace the indexed axes if these are
    /// adjacent, and are put in front otherwise. (As in PyTorch, integers are applied first and do not count as index
    /// tensors.)
    ///
    /// Clippy reports a range of literals like `1..-1` as a mistake; use [`Strided`] instead.
    ///
    /// # Errors
    /// Fails if an index is outside its axis ([`ErrorKind::IndexOutOfBounds`]), if a range is not within its axis (it
    /// is not cut short), if the sizes of a mask differ from those of its axes, or if there are more indices than axes.
    /// Index tensors and masks are read on the host, which waits for them to be computed.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::arange(0, 24, 1, DType::I64, &device)?.reshape([2, 3, 4])?;
    /// assert_eq!(x.index((1, -1, 1..3))?.to_vec::<i64>()?, [21, 22]);
    /// let index = Tensor::from_vec(vec![0, -1i64], [2], &device)?;
    /// assert_eq!(x.index((.., 0, &index))?.to_vec::<i64>()?, [0, 3, 12, 15]);
    /// assert_eq!(x.index((Ellipsis, NewAxis, 0))?.shape(), [2, 3, 1]);
    /// assert_eq!(x.index(&x.gt(21)?)?.to_vec::<i64>()?, [22, 23]);
    /// assert!(x.index((2, 0)).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn index<'a>(&self, index: impl IntoIndex<'a>) -> Result<Tensor> {
        const OP: &str = "index";
        let (view, picks) = resolve(OP, self, &index.into_index())?;
        let Some(&(first, _)) = picks.first() else { return Ok(view) };
        if let [(axis, index)] = &picks[..] {
            let picked = view.index_select(*axis as isize, &index.reshape([index.numel()])?)?;
            let dims = [&view.shape()[..*axis], index.shape(), &view.shape()[axis + 1..]].concat();
            return picked.reshape(dims);
        }
        let (linear, shape, order) = merged(OP, &view, &picks)?;
        let front = view.permute(&order)?;
        let rest = &front.shape()[picks.len()..];
        let rows = front.reshape([front.shape()[..picks.len()].iter().product(), rest.iter().product()])?;
        let picked = rows.index_select(0, &linear)?.reshape([&shape, rest].concat())?;
        if picks.windows(2).any(|w| w[1].0 != w[0].0 + 1) {
            return Ok(picked);
        }
        let source: SmallVec<[isize; 8]> = (0..shape.rank() as isize).collect();
        let destination: SmallVec<[isize; 8]> = source.iter().map(|a| a + first as isize).collect();
        picked.movedim(&source, &destination)
    }

    /// A copy of this tensor with `values` at the places that the index tensors (integers; -1 is the last) or masks
    /// name on the first axes: `y[indices[0], indices[1], ..] = values`, or `+=` if `accumulate`.
    ///
    /// The indices broadcast together, and `values` broadcasts to their shape followed by the remaining axes. If
    /// several values go to the same place, the last one in row-major order is stored; with `accumulate` they add up.
    /// Dtypes promote. The gradients are those of [`scatter`](Tensor::scatter).
    #[track_caller]
    pub fn index_put(&self, indices: &[&Tensor], values: &Tensor, accumulate: bool) -> Result<Tensor> {
        const OP: &str = "index_put";
        if indices.is_empty() {
            return Err(self.describe(Error::argument(OP, "no indices").help("pass at least one"), "self"));
        }
        let items: Vec<Index<'_>> = indices.iter().map(|&t| t.into()).collect();
        let (_, picks) = resolve(OP, self, &items)?;
        let (linear, shape, _) = merged(OP, self, &picks)?;
        let (lead, rest) = self.shape().split_at(picks.len());
        let inner: usize = rest.iter().product();
        let dtype = common_dtype(OP, &[self, values], &["self", "values"])?;
        let values =
            self.fit(OP, &*cast(values, dtype)?, &[&shape, rest].concat())?.reshape([linear.numel(), inner])?;
        let rows = cast(self, dtype)?.reshape([lead.iter().product(), inner])?;
        let index = index_along(&linear, &[linear.numel(), inner], 0)?;
        let op = if accumulate { ScatterOp::Add } else { ScatterOp::Set };
        Scatter { axis: 0, op }.apply(&rows, &index, &values)?.reshape(self.shape())
    }

    /// A copy of this tensor with `values` (a tensor that broadcasts, or a number) in place of `self.index(index)`. If
    /// several values go to the same place, the last one in row-major order is stored. Dtypes promote.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([2, 3], DType::I64, &device)?;
    /// assert_eq!(x.index_assign((1, 1..), 5)?.to_vec::<i64>()?, [0, 0, 0, 0, 5, 5]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn index_assign<'a>(&self, index: impl IntoIndex<'a>, values: impl AsOperand) -> Result<Tensor> {
        const OP: &str = "index_assign";
        let count = self.numel();
        // The positions of all elements, indexed in the same way as the elements.
        let places =
            Tensor::arange(0, count as i64, 1, DType::I64, self.device())?.reshape(self.shape())?.index(index)?;
        let values = match values.as_operand()? {
            Operand::Tensor(t) => self.fit(OP, t, places.shape())?,
            Operand::Scalar(s) => self.stretched_value(OP, s, places.shape())?,
        };
        let n = places.numel();
        self.reshape([count])?.scatter(0, &places.reshape([n])?, &values.reshape([n])?)?.reshape(self.shape())
    }

    /// `values` expanded to the shape of their destination.
    #[track_caller]
    fn fit(&self, op: &str, values: &Tensor, shape: &[usize]) -> Result<Tensor> {
        values
            .expand(shape)
            .map_err(|e| {
                let m = format!("the values do not broadcast to the places, {}", Shape::display(shape));
                values.describe(self.describe(Error::new(e.kind().clone(), op, m), "self"), "values")
            })
            .here()
    }
}
