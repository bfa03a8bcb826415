//! [`Layout`]: how a tensor's elements are arranged in a buffer.

use std::fmt;
use std::ops::Range;

use crate::shape::{MAX_RANK, resolve_axis};
use crate::{Error, ErrorKind, Here, Result, Shape};

/// Shape, signed strides and offset, all in elements.
///
/// **Invariant**: every element lies at a non-negative position, `offset + sum(index * stride)`. Views are created only
/// by the methods here, each of which preserves the invariant. A broadcast axis has stride 0; a flipped axis has a
/// negative stride.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: [isize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The row-major layout of a shape, starting at position 0.
    pub fn contiguous(shape: Shape) -> Self {
        let mut layout = Layout { shape, strides: [0; MAX_RANK], offset: 0 };
        let mut step = 1isize;
        for (stride, &size) in layout.strides.iter_mut().zip(shape.iter()).rev() {
            *stride = step;
            step *= size.max(1) as isize;
        }
        layout
    }

    /// Creates a layout from its parts. Returns an error if the ranks differ or an element would lie outside
    /// `0..elements`.
    #[track_caller]
    pub fn from_parts(shape: Shape, strides: &[isize], offset: usize, elements: usize) -> Result<Self> {
        if strides.len() != shape.rank() {
            let m = format!("{} strides for shape {shape}", strides.len());
            return Err(Error::argument("layout", m));
        }
        let (mut lo, mut hi) = (offset as i128, offset as i128);
        for (&d, &s) in shape.iter().zip(strides) {
            let reach = (d.max(1) as i128 - 1) * s as i128;
            *(if reach < 0 { &mut lo } else { &mut hi }) += reach;
        }
        if shape.numel() > 0 && (lo < 0 || hi >= elements as i128) {
            let m = format!("{shape} with strides {strides:?} from {offset} leaves the buffer of {elements} elements");
            return Err(Error::argument("layout", m));
        }
        let mut all = [0; MAX_RANK];
        all[..strides.len()].copy_from_slice(strides);
        Ok(Layout { shape, strides: all, offset })
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Sizes of the axes.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Strides of the axes, in elements.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.rank()]
    }

    /// Position of the first element.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Whether the elements follow one another in row-major order, at any offset.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        if self.numel() == 0 {
            return true;
        }
        let mut step = 1isize;
        for i in (0..self.rank()).rev() {
            let d = self.shape[i];
            if d != 1 {
                if self.strides[i] != step {
                    return false;
                }
                step *= d as isize;
            }
        }
        true
    }

    /// The smallest range of positions that contains every element; `0..0` if there are no elements, regardless of the
    /// offset.
    pub fn span(&self) -> Range<usize> {
        if self.numel() == 0 {
            return 0..0;
        }
        let (mut lo, mut hi) = (self.offset as isize, self.offset as isize);
        for (&d, &s) in self.dims().iter().zip(self.strides()) {
            let reach = (d as isize - 1) * s;
            *(if reach < 0 { &mut lo } else { &mut hi }) += reach;
        }
        lo as usize..hi as usize + 1
    }

    /// The position of the element at `index`, which holds one number per axis, each less than the size of the axis.
    pub fn position(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.rank());
        let at: isize = index.iter().zip(self.strides()).map(|(&i, &s)| i as isize * s).sum();
        (self.offset as isize + at) as usize
    }

    /// The positions of all elements in row-major order. For tests and slow paths.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        let mut index = [0usize; MAX_RANK];
        let mut next = self.offset as isize;
        (0..self.numel()).map(move |_| {
            let at = next;
            for axis in (0..self.rank()).rev() {
                index[axis] += 1;
                if index[axis] < self.shape[axis] {
                    next += self.strides[axis];
                    break;
                }
                next -= self.strides[axis] * (self.shape[axis] as isize - 1);
                index[axis] = 0;
            }
            at as usize
        })
    }

    /// The same elements under another shape with the same number of elements, or `None` if that needs a copy.
    ///
    /// The rule is NumPy's: a run of axes can be split or merged if it is evenly strided.
    pub fn reshape(&self, shape: Shape) -> Option<Self> {
        debug_assert_eq!(shape.numel(), self.numel());
        if self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // Old axes of size 1 impose no constraint. Walk both shapes from the left, in chunks with equal element counts.
        let old: Vec<(usize, isize)> =
            self.dims().iter().copied().zip(self.strides().iter().copied()).filter(|&(d, _)| d != 1).collect();
        let mut strides = [0isize; MAX_RANK];
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut n_old, mut n_new, i0, j0) = (old[i].0, 1usize, i, j);
            while j < shape.rank() && (n_new < n_old || shape[j] == 1) {
                n_new *= shape[j];
                j += 1;
                while n_new > n_old && i + 1 < old.len() {
                    i += 1;
                    n_old *= old[i].0;
                }
            }
            if n_old != n_new {
                return None;
            }
            if old[i0..=i].windows(2).any(|w| w[0].1 != w[1].0 as isize * w[1].1) {
                return None;
            }
            let mut step = old[i].1;
            for k in (j0..j).rev() {
                strides[k] = step;
                step *= shape[k] as isize;
            }
            i += 1;
        }
        Some(Layout { shape, strides, offset: self.offset })
    }

    /// The axes in the order `perm`, which names each axis once (negative numbers count from the end).
    #[track_caller]
    pub fn permute(&self, perm: &[isize]) -> Result<Self> {
        let axes = crate::Axes::resolve("permute", perm, self.rank())?;
        if axes.len() != self.rank() {
            let m = format!("{perm:?} names {} of {} axes", perm.len(), self.rank());
            return Err(Error::new(ErrorKind::InvalidAxis, "permute", m));
        }
        let (mut dims, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for (i, &p) in perm.iter().enumerate() {
            let p = resolve_axis("permute", p, self.rank())?;
            dims[i] = self.shape[p];
            strides[i] = self.strides[p];
        }
        Ok(Layout { shape: Shape::new_unchecked(&dims[..self.rank()]), strides, offset: self.offset })
    }

    /// Swaps two axes.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let (a, b) = (resolve_axis("transpose", a, self.rank())?, resolve_axis("transpose", b, self.rank())?);
        let (mut dims, mut strides) = ([0; MAX_RANK], self.strides);
        dims[..self.rank()].copy_from_slice(self.dims());
        dims.swap(a, b);
        strides.swap(a, b);
        Ok(Layout { shape: Shape::new_unchecked(&dims[..self.rank()]), strides, offset: self.offset })
    }

    /// Every `step`-th element of an axis, from `start` up to but not including `end`; `step` must be at least 1.
    #[track_caller]
    pub fn slice(&self, axis: usize, start: usize, end: usize, step: usize) -> Result<Self> {
        let size = self.shape[axis];
        if step == 0 {
            return Err(
                Error::argument("slice", "step 0 never ends").help("a step is at least 1; use flip for reverse order")
            );
        }
        if start > end || end > size {
            let m = format!("{start}..{end} is outside axis {axis} of size {size} in {}", self.shape);
            return Err(Error::argument("slice", m));
        }
        let len = (end - start).div_ceil(step);
        let mut out = *self;
        out.shape = self.shape.with(axis, len)?;
        // An empty layout keeps its offset: positions mean nothing there, and stepping back from 0 would underflow.
        if out.shape.numel() > 0 {
            out.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
            // An axis with a single element is never stepped along. Its stride stays unchanged, so that `stride * step`
            // cannot overflow.
            out.strides[axis] *= if len > 1 { step as isize } else { 1 };
        }
        Ok(out)
    }

    /// The `len` elements of an axis that begin at `start`.
    #[track_caller]
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let end = start.checked_add(len).ok_or_else(|| Error::argument("narrow", "start + len overflows")).here()?;
        self.slice(axis, start, end, 1)
    }

    /// One element of an axis; the axis is removed.
    #[track_caller]
    pub fn select(&self, axis: usize, index: usize) -> Result<Self> {
        let end = index.checked_add(1).ok_or_else(|| Error::argument("select", "index overflows")).here()?;
        self.slice(axis, index, end, 1)?.squeeze(axis)
    }

    /// Removes an axis of size 1.
    #[track_caller]
    pub fn squeeze(&self, axis: usize) -> Result<Self> {
        if self.shape[axis] != 1 {
            let m = format!("axis {axis} of {} has size {}, not 1", self.shape, self.shape[axis]);
            return Err(Error::shape("squeeze", m));
        }
        let (mut dims, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for (to, from) in (0..self.rank()).filter(|&i| i != axis).enumerate() {
            dims[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        Ok(Layout { shape: Shape::new_unchecked(&dims[..self.rank() - 1]), strides, offset: self.offset })
    }

    /// Inserts a new axis of size 1 before `axis`, which may equal the rank.
    #[track_caller]
    pub fn unsqueeze(&self, axis: usize) -> Result<Self> {
        let rank = self.rank();
        if rank == MAX_RANK || axis > rank {
            return Err(Error::new(ErrorKind::InvalidAxis, "unsqueeze", format!("axis {axis} of {}", self.shape))
                .help(format!("a tensor has at most {MAX_RANK} axes; the new one goes at 0 to {rank}")));
        }
        let (mut dims, mut strides) = ([1; MAX_RANK], [1; MAX_RANK]);
        for from in 0..rank {
            let to = from + usize::from(from >= axis);
            dims[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        Ok(Layout { shape: Shape::new_unchecked(&dims[..rank + 1]), strides, offset: self.offset })
    }

    /// Broadcasts to `shape`: new axes and axes of size 1 that grow have stride 0.
    #[track_caller]
    pub fn expand(&self, shape: Shape) -> Result<Self> {
        let lead = shape.rank().checked_sub(self.rank());
        let fits = lead.is_some_and(|lead| (0..self.rank()).all(|i| [1, shape[i + lead]].contains(&self.shape[i])));
        let Some(lead) = lead.filter(|_| fits) else {
            let m = format!("{} does not stretch to {shape}", self.shape);
            return Err(Error::new(ErrorKind::Broadcast, "expand", m)
                .help("axes align from the right; only axes of size 1 stretch"));
        };
        let mut strides = [0; MAX_RANK];
        for i in 0..self.rank() {
            strides[i + lead] = if self.shape[i] == shape[i + lead] { self.strides[i] } else { 0 };
        }
        Ok(Layout { shape, strides, offset: self.offset })
    }

    /// Reverses one axis.
    pub fn flip(&self, axis: usize) -> Self {
        let mut out = *self;
        out.strides[axis] = -self.strides[axis];
        if self.numel() > 0 {
            let last = self.shape[axis] as isize - 1;
            out.offset = (self.offset as isize + last * self.strides[axis]) as usize;
        }
        out
    }

    /// Whether two elements share a position, as on a broadcast axis; such a layout must not be written to. The answer
    /// is exact unless the axes interleave in so many ways that a bounded search cannot decide; then it is `true`.
    pub fn overlaps_itself(&self) -> bool {
        if self.is_contiguous() {
            return false;
        }
        // The absolute stride and the size of each axis. They are sorted by stride below.
        let mut axes = [(0isize, 0isize); MAX_RANK];
        let mut count = 0;
        for (&size, &stride) in self.dims().iter().zip(self.strides()).filter(|(size, _)| **size > 1) {
            axes[count] = (stride.unsigned_abs() as isize, size as isize);
            count += 1;
        }
        let axes = &mut axes[..count];
        axes.sort_unstable();
        // Suppose that two different indices lead to the same position. Of the axes on which they differ, take the one
        // with the largest stride; let them differ by `d` steps there. Only the axes with smaller strides can make up
        // for that distance.
        let (mut within, mut steps) = (0isize, STEPS);
        for k in 0..count {
            let (stride, size) = axes[k];
            if stride == 0 {
                return true;
            }
            for d in 1..=(size - 1).min(within / stride) {
                if reaches(&axes[..k], within, d * stride, &mut steps) {
                    return true;
                }
            }
            within = within.saturating_add(stride.saturating_mul(size - 1));
        }
        false
    }
}

/// The maximum number of steps in the search for two elements at one position.
const STEPS: usize = 1 << 16;

/// Whether steps along `axes`, forwards or backwards, can add up to `distance`; also true if `left` search steps cannot
/// decide it. `within` is the greatest distance that the axes can cover together.
fn reaches(axes: &[(isize, isize)], within: isize, distance: isize, left: &mut usize) -> bool {
    let Some((&(stride, size), inner)) = axes.split_last() else { return distance == 0 };
    if *left == 0 {
        return true;
    }
    *left -= 1;
    let rest = within - stride * (size - 1);
    // The steps along this axis that leave a distance which the remaining axes can cover.
    let (low, high) = ((distance - rest + stride - 1).div_euclid(stride), (distance + rest).div_euclid(stride));
    (low.max(1 - size)..=high.min(size - 1)).any(|d| reaches(inner, rest, distance - d * stride, left))
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}+{}", self.shape, self.strides(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::new(dims).unwrap())
    }

    #[test]
    fn views_address_the_elements_that_numpy_would() {
        let x = layout(&[2, 3, 4]);
        let y = x.permute(&[2, 0, -2]).unwrap();
        assert_eq!(y.position(&[3, 1, 2]), x.position(&[1, 2, 3]));
        let z = x.slice(2, 1, 4, 2).unwrap().flip(2);
        assert_eq!(z.positions().take(4).collect::<Vec<_>>(), [3, 1, 7, 5]);
        assert_eq!(z.span(), 1..24);
        assert_eq!(x.select(1, 2).unwrap().positions().collect::<Vec<_>>(), [8, 9, 10, 11, 20, 21, 22, 23]);
    }

    #[test]
    fn reshape_is_a_view_exactly_where_numpy_makes_one() {
        let base = layout(&[2, 3, 4]);
        let swapped = base.transpose(0, 1).unwrap();
        let rows = layout(&[4, 3, 4]).slice(0, 0, 4, 2).unwrap();
        let stretched = layout(&[2, 3, 1]).expand(Shape::new(&[2, 3, 4]).unwrap()).unwrap();
        let reversed = base.flip(0).flip(1).flip(2);
        let views: &[(Layout, &[usize])] = &[
            (base, &[24]),
            (base, &[4, 6]),
            (base, &[1, 2, 1, 12, 1]),
            (base.flip(0), &[2, 12]),
            (base.flip(2), &[6, 4]),
            (base.flip(2), &[6, 2, 2]),
            (reversed, &[24]),
            (swapped, &[3, 2, 2, 2]),
            (swapped, &[3, 1, 2, 4, 1]),
            (swapped, &[1, 3, 2, 4]),
            (rows, &[2, 12]),
            (rows, &[2, 2, 6]),
            (stretched, &[6, 4]),
            (stretched, &[6, 2, 2]),
            (base.transpose(0, 2).unwrap(), &[2, 2, 3, 2]),
            (layout(&[0, 3]).transpose(0, 1).unwrap(), &[5, 0]),
        ];
        for (from, to) in views {
            let r = from.reshape(Shape::new(to).unwrap());
            let r = r.unwrap_or_else(|| panic!("{from:?} -> {to:?} must be a view"));
            assert!(r.positions().eq(from.positions()), "{from:?} -> {r:?}");
        }
        let copies: &[(Layout, &[usize])] = &[
            (base.flip(0), &[24]),
            (base.flip(0), &[6, 4]),
            (base.flip(1), &[2, 12]),
            (swapped, &[24]),
            (swapped, &[3, 8]),
            (swapped, &[6, 4]),
            (rows, &[24]),
            (rows, &[6, 4]),
            (stretched, &[2, 12]),
            (stretched, &[24]),
            (base.transpose(0, 2).unwrap(), &[4, 6]),
        ];
        for (from, to) in copies {
            assert!(from.reshape(Shape::new(to).unwrap()).is_none(), "{from:?} -> {to:?} must be a copy");
        }
    }

    #[test]
    fn expand_refuses_what_does_not_broadcast() {
        let x = layout(&[3, 1]);
        assert_eq!(x.expand(Shape::new(&[2, 3, 5]).unwrap()).unwrap().strides(), [0, 1, 0]);
        assert!(x.expand(Shape::new(&[4, 5]).unwrap()).is_err());
        assert!(x.expand(Shape::new(&[3]).unwrap()).is_err());
        assert!(layout(&[1]).expand(Shape::new(&[0]).unwrap()).unwrap().is_contiguous());
    }

    #[test]
    fn overlap_is_seen() {
        assert!(!layout(&[2, 3]).transpose(0, 1).unwrap().overlaps_itself());
        assert!(layout(&[1, 3]).expand(Shape::new(&[2, 3]).unwrap()).unwrap().overlaps_itself());
        assert!(!layout(&[4]).flip(0).overlaps_itself());
        let nothing = Layout::from_parts(Shape::new(&[4, 0, 2]).unwrap(), &[isize::MAX, 2, 0], 0, 0).unwrap();
        assert!(!nothing.overlaps_itself());
    }

    #[test]
    fn axes_that_interleave_overlap_exactly_where_two_elements_share_a_place() {
        let mut state = 1u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut apart, mut interleaved) = (0, 0);
        for _ in 0..20_000 {
            let rank = 2 + next(3);
            let (mut dims, mut strides, mut offset) = (vec![], vec![], 0);
            for _ in 0..rank {
                let (size, stride) = (1 + next(5), next(30));
                let down = next(2) == 0;
                dims.push(size);
                strides.push(if down { -(stride as isize) } else { stride as isize });
                offset += if down { (size - 1) * stride } else { 0 };
            }
            let l = Layout::from_parts(Shape::new(&dims).unwrap(), &strides, offset, 1000).unwrap();
            let mut places: Vec<usize> = l.positions().collect();
            places.sort_unstable();
            let shared = places.windows(2).any(|w| w[0] == w[1]);
            assert_eq!(l.overlaps_itself(), shared, "{l:?}");
            let mut steps: Vec<(isize, usize)> = strides.iter().map(|s| s.abs()).zip(dims).collect();
            steps.sort_unstable();
            let reach = |k: usize| steps[..k].iter().map(|(s, n)| s * (*n as isize - 1)).sum::<isize>();
            let nested = (0..rank).all(|k| steps[k].1 == 1 || steps[k].0 > reach(k));
            apart += usize::from(!shared);
            interleaved += usize::from(!shared && !nested);
        }
        assert!(apart > 5_000 && interleaved > 2_000, "{apart} {interleaved}");
        // These layouts are large, but the search needs only a few steps for them.
        let large = |sizes: [usize; 2], strides: [isize; 2]| {
            Layout::from_parts(Shape::new(&sizes).unwrap(), &strides, 0, usize::MAX).unwrap().overlaps_itself()
        };
        assert!(!large([50_000, 50_001], [50_001, 50_000]));
        assert!(large([50_001, 50_002], [50_001, 50_000]));
        assert!(large([1 << 30, 1 << 20], [3, 2]) && !large([1 << 20, 1 << 20], [1 << 20, 1]));
        // A layout that the search cannot decide within its limit counts as overlapping.
        assert!(large([1_000_000, 1_000_001], [1_000_001, 1_000_000]));
    }

    #[test]
    fn views_without_elements_stay_where_they_are() {
        let layout = Layout::contiguous(Shape::new(&[0, 1, 9, 9]).unwrap());
        assert_eq!(layout.flip(2).narrow(2, 4, 1).unwrap().offset(), 0);
        let wide = Layout::contiguous(Shape::new(&[0, 1 << 20, 1 << 20]).unwrap());
        let part = wide.flip(1).slice(1, 7, 1 << 20, 1 << 10).unwrap();
        assert_eq!((part.shape().dims(), part.offset()), (&[0, 1 << 10, 1 << 20][..], 0));
    }

    #[test]
    fn parts_outside_the_buffer_are_refused() {
        let s = Shape::new(&[2, 3]).unwrap();
        assert!(Layout::from_parts(s, &[3, 1], 0, 6).is_ok());
        assert!(Layout::from_parts(s, &[3, 1], 1, 6).is_err());
        assert!(Layout::from_parts(s, &[-3, 1], 0, 6).is_err());
        assert!(Layout::from_parts(s, &[isize::MAX, 1], 0, 6).is_err());
    }
}
