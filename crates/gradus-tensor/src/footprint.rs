//! [`Footprint`]: the bytes that a view's elements occupy, and whether two views overlap.

use std::ops::Range;

use gradus_backend::{Layout, MAX_RANK};
use smallvec::SmallVec;

/// The maximum number of runs that are compared one by one if the strides do not settle whether two footprints overlap.
const RUNS: usize = 1024;

/// The maximum number of blocks visited for one answer: enough for [`RUNS`] runs of a grid whose blocks do not
/// interleave.
const BLOCKS: usize = RUNS * MAX_RANK;

/// The bytes that a view's elements occupy: runs of `run` bytes, one for each index of a grid.
///
/// **Invariant**: the axes are sorted by stride. The blocks of one axis may interleave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footprint {
    bytes: Range<usize>,
    run: usize,
    /// The stride in bytes and the count of each axis, smallest stride first. Empty if the bytes are dense.
    axes: SmallVec<[(usize, usize); 2]>,
}

impl Footprint {
    /// The footprint that consists of all of `bytes`.
    pub(crate) fn dense(bytes: Range<usize>) -> Self {
        Footprint { run: bytes.len(), bytes, axes: SmallVec::new() }
    }

    /// The footprint of a view with elements of `size` bytes.
    #[inline]
    pub(crate) fn new(layout: &Layout, size: usize) -> Self {
        let span = layout.span();
        let bytes = span.start * size..span.end * size;
        if layout.is_contiguous() { Self::dense(bytes) } else { Self::strided(layout, size, bytes) }
    }

    fn strided(layout: &Layout, size: usize, bytes: Range<usize>) -> Self {
        let steps = layout.dims().iter().zip(layout.strides());
        // An axis of one element is never stepped along, and axes of stride 0 add no bytes.
        let mut steps: SmallVec<[(usize, usize); 8]> =
            steps.map(|(&n, s)| (s.unsigned_abs() * size, n)).filter(|&(s, n)| s > 0 && n > 1).collect();
        steps.sort_unstable();
        let mut axes: SmallVec<[(usize, usize); 2]> = SmallVec::new();
        let mut run = size;
        for (s, n) in steps {
            match axes.last_mut() {
                None if s <= run => run += (n - 1) * s,
                // This axis continues the steps of the previous one, so both form one longer axis.
                Some((t, m)) if s % *t == 0 && s / *t <= *m => *m += (n - 1) * (s / *t),
                _ => axes.push((s, n)),
            }
        }
        Footprint { bytes, run, axes }
    }

    /// The range from the first byte to the last.
    #[inline]
    pub(crate) fn bytes(&self) -> &Range<usize> {
        &self.bytes
    }

    /// Whether the footprint contains every byte of its range.
    #[inline]
    pub(crate) fn is_dense(&self) -> bool {
        self.axes.is_empty()
    }

    /// Whether the two footprints share a byte. The answer may wrongly be `true` in two cases: if the strides do not
    /// settle it and both have many runs, or if the blocks of many axes interleave. Otherwise it is exact.
    pub(crate) fn meets(&self, other: &Footprint) -> bool {
        if self.bytes.is_empty() || other.bytes.is_empty() {
            return false;
        }
        if !self.touches(&other.bytes) || !other.touches(&self.bytes) {
            return false;
        }
        if self.is_dense() || other.is_dense() {
            return true;
        }
        if self.apart(other) {
            return false;
        }
        let (few, many) = if self.runs() < other.runs() { (self, other) } else { (other, self) };
        let mut left = BLOCKS;
        few.runs() > RUNS || (0..few.runs()).any(|i| many.touches_within(&few.run_at(i), &mut left))
    }

    /// Whether this footprint certainly contains every byte of `other`. May be `false` even if it does.
    pub(crate) fn covers(&self, other: &Footprint) -> bool {
        let (mine, theirs) = (&self.bytes, &other.bytes);
        let within = self.is_dense() && mine.start <= theirs.start && theirs.end <= mine.end;
        within || self == other || theirs.is_empty()
    }

    /// A footprint that contains every byte that the two share, and possibly more. `None` if they share none.
    pub(crate) fn common(&self, other: &Footprint) -> Option<Footprint> {
        if self.covers(other) {
            return Some(other.clone());
        }
        if !self.meets(other) {
            return None;
        }
        let (a, b) = (&self.bytes, &other.bytes);
        Some(match (self.is_dense(), other.is_dense()) {
            (true, true) => Footprint::dense(a.start.max(b.start)..a.end.min(b.end)),
            (true, false) => other.clone(),
            _ => self.clone(),
        })
    }

    /// Whether any byte of the footprint lies in `range`. The answer is exact unless the blocks of many axes
    /// interleave; then it may wrongly be `true`.
    pub(crate) fn touches(&self, range: &Range<usize>) -> bool {
        self.touches_within(range, &mut { BLOCKS })
    }

    fn touches_within(&self, range: &Range<usize>, left: &mut usize) -> bool {
        self.bytes.start < range.end && self.block(&self.axes, self.bytes.start, self.bytes.len(), range, left)
    }

    /// Whether a byte of a block lies in `range`. The block is spanned by `axes`, begins at `start`, which must lie
    /// before the end of `range`, and is `extent` bytes long. Also `true` if visiting `left` blocks does not settle the
    /// question.
    fn block(
        &self,
        axes: &[(usize, usize)],
        start: usize,
        extent: usize,
        range: &Range<usize>,
        left: &mut usize,
    ) -> bool {
        // The first byte of every block belongs to an element.
        if range.start <= start {
            return true;
        }
        let Some((&(stride, count), inner)) = axes.split_last() else { return range.start < start + self.run };
        let extent = extent - stride * (count - 1);
        // Visits the last block that begins no later than the range, and then the earlier blocks that reach into it.
        let mut i = ((range.start - start) / stride).min(count - 1);
        if i + 1 < count && start + (i + 1) * stride < range.end {
            return true;
        }
        while range.start < start + i * stride + extent {
            if *left == 0 || self.block(inner, start + i * stride, extent, range, left) {
                return true;
            }
            *left -= 1;
            if i == 0 {
                break;
            }
            i -= 1;
        }
        false
    }

    /// Whether the two footprints are certainly disjoint because they lie in different parts of a common period, like
    /// two columns of a matrix or two channels of a batch.
    fn apart(&self, other: &Footprint) -> bool {
        let strides = || self.axes.iter().chain(&other.axes).map(|a| a.0);
        let common = strides().fold(0, gcd);
        strides().chain([common]).any(|period| {
            let (a, b) = (self.within(period), other.within(period));
            let ahead = (other.bytes.start % period + period - self.bytes.start % period) % period;
            ahead >= a && period - ahead >= b
        })
    }

    /// The extent of a block without the axes whose strides are multiples of `period`.
    fn within(&self, period: usize) -> usize {
        let inner = self.axes.iter().filter(|a| a.0 % period != 0);
        self.run + inner.map(|&(stride, count)| (count - 1) * stride).sum::<usize>()
    }

    fn runs(&self) -> usize {
        self.axes.iter().map(|a| a.1).product()
    }

    fn run_at(&self, mut i: usize) -> Range<usize> {
        let mut start = self.bytes.start;
        for &(stride, count) in &self.axes {
            start += i % count * stride;
            i /= count;
        }
        start..start + self.run
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use gradus_backend::Shape;

    use super::*;

    fn base(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::new(dims).unwrap())
    }

    /// Pseudo-random numbers.
    pub(crate) fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn nothing_meets_nothing() {
        let all = base(&[4, 4]);
        let rows = Footprint::new(&all.slice(0, 2, 2, 1).unwrap(), 8);
        let columns = Footprint::new(&all.slice(1, 2, 2, 1).unwrap(), 8);
        let whole = Footprint::new(&all, 8);
        let middle = Footprint::dense(40..40);
        for empty in [&rows, &columns, &middle] {
            assert!(!empty.meets(&whole) && !whole.meets(empty) && !empty.meets(empty), "{empty:?}");
        }
    }

    #[test]
    fn blocks_that_interleave_are_told_apart() {
        let mut next = numbers(5);
        let mut view = |_: usize| {
            let dims: Vec<usize> = (0..1 + next(3)).map(|_| 1 + next(4)).collect();
            let strides: Vec<isize> = dims.iter().map(|_| next(12) as isize).collect();
            Layout::from_parts(Shape::new(&dims).unwrap(), &strides, next(12), 1000).unwrap()
        };
        let mut apart = 0;
        for _ in 0..20_000 {
            let views = [view(0), view(1)];
            let [a, b] = views.map(|l| Footprint::new(&l, 2));
            let [p, q] = views.map(|l| l.positions().collect::<HashSet<usize>>());
            let want = !p.is_disjoint(&q);
            assert_eq!((a.meets(&b), b.meets(&a)), (want, want), "{views:?}");
            apart += usize::from(!want && a.touches(b.bytes()) && b.touches(a.bytes()));
        }
        assert!(apart > 1000, "{apart}");
    }

    #[test]
    fn the_time_of_an_answer_is_bounded() {
        // 10^12 elements that interleave along eight axes.
        let strides = [1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049].map(|s| s * 2);
        let shape = Shape::new(&[32; 8]).unwrap();
        let at = |offset| Footprint::new(&Layout::from_parts(shape, &strides, offset, usize::MAX).unwrap(), 1);
        assert!(at(0).meets(&at(2018)) && !at(0).meets(&at(1)));
        assert!(at(0).touches(&(400_001..400_002)), "in doubt");
    }

    /// A random view made by slices, flips, transpositions and sliding windows.
    fn view(next: &mut impl FnMut(usize) -> usize) -> Layout {
        let mut l = base(&[3 + next(3), 3 + next(4), 3 + next(5)]);
        for _ in 0..1 + next(4) {
            let axis = next(l.rank());
            let n = l.dims()[axis];
            l = match next(5) {
                0 | 1 => {
                    let from = next(n);
                    l.slice(axis, from, from + 1 + next(n - from), 1 + next(3)).unwrap()
                }
                2 => l.flip(axis),
                3 => l.transpose(0, 2).unwrap(),
                _ if n > 1 => {
                    // Windows of size 2, like those of `unfold`.
                    let (mut dims, mut strides) = (l.dims().to_vec(), l.strides().to_vec());
                    dims[axis] = n - 1;
                    dims.push(2);
                    strides.push(strides[axis]);
                    let shape = Shape::new(&dims).unwrap();
                    Layout::from_parts(shape, &strides, l.offset(), usize::MAX).unwrap()
                }
                _ => l,
            };
        }
        l
    }

    #[test]
    fn views_meet_exactly_if_they_share_an_element() {
        let (mut next, mut strided) = (numbers(1), 0);
        for _ in 0..20_000 {
            let views = [view(&mut next), view(&mut next)];
            let [a, b] = views.map(|l| Footprint::new(&l, 4));
            let [p, q] = views.map(|l| l.positions().collect::<HashSet<usize>>());
            let want = !p.is_disjoint(&q);
            assert_eq!((a.meets(&b), b.meets(&a)), (want, want), "{views:?}");
            strided += usize::from(!a.is_dense() && !b.is_dense());
            let range = next(400)..next(400);
            if range.start < range.end {
                let inside = p.iter().any(|&p| p * 4 < range.end && range.start < p * 4 + 4);
                assert_eq!(a.touches(&range), inside, "{views:?} {range:?}");
            }
        }
        assert!(strided > 4000, "{strided}");
    }

    #[test]
    fn dense_views_are_one_run() {
        let l = base(&[4, 5, 6]);
        for l in [l, l.transpose(0, 2).unwrap(), l.flip(1), l.narrow(0, 1, 2).unwrap()] {
            assert!(Footprint::new(&l, 8).is_dense(), "{l:?}");
        }
        let window = Layout::from_parts(Shape::new(&[5, 3]).unwrap(), &[2, 1], 0, 100).unwrap();
        assert_eq!(Footprint::new(&window, 8), Footprint::dense(0..88));
        assert!(Footprint::new(&base(&[0, 3]).flip(1), 8).bytes().is_empty());
    }

    #[test]
    fn large_views_are_told_apart_by_their_strides() {
        let l = base(&[1000, 16, 100, 100]);
        let part = |from, n| Footprint::new(&l.narrow(1, from, n).unwrap().narrow(3, 3, 50).unwrap(), 4);
        assert!(!part(0, 4).meets(&part(4, 8)) && part(0, 5).meets(&part(4, 8)));
        let column = |at, step| Footprint::new(&base(&[1_000_000, 10]).slice(1, at, 10, step).unwrap(), 4);
        assert!(!column(0, 2).meets(&column(9, 1)) && column(1, 2).meets(&column(9, 1)));
    }
}
