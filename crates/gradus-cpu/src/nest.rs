//! Walks several layouts of the same shape together.

use gradus_backend::Layout;
use gradus_backend::shape::MAX_RANK;

/// At most `N` layouts of the same shape, walked together in row-major order. Axes of size 1 are dropped, and
/// neighbouring axes are merged where all of the layouts allow it.
#[derive(Debug, Clone)]
pub(crate) struct Nest<const N: usize> {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [[isize; N]; MAX_RANK],
    offsets: [usize; N],
}

impl<const N: usize> Nest<N> {
    /// Builds the nest from at most `N` layouts, all of the same shape. If there are fewer than `N`, the unused strides
    /// and offsets are 0.
    pub(crate) fn new(layouts: &[&Layout]) -> Self {
        let dims = layouts.first().map_or(&[][..], |l| l.dims());
        debug_assert!(layouts.len() <= N && layouts.iter().all(|l| l.dims() == dims));
        let mut nest = Nest { rank: 0, dims: [1; MAX_RANK], strides: [[0; N]; MAX_RANK], offsets: [0; N] };
        for (o, l) in nest.offsets.iter_mut().zip(layouts) {
            *o = l.offset();
        }
        // Goes from the innermost axis outwards; the axes are reversed at the end.
        for axis in (0..dims.len()).rev() {
            let size = dims[axis];
            if size == 1 {
                continue;
            }
            let mut strides = [0; N];
            for (s, l) in strides.iter_mut().zip(layouts) {
                *s = l.strides()[axis];
            }
            let last = nest.rank.wrapping_sub(1);
            if nest.rank > 0
                && (0..N).all(|k| strides[k] == nest.strides[last][k].wrapping_mul(nest.dims[last] as isize))
            {
                nest.dims[last] *= size;
            } else {
                nest.dims[nest.rank] = size;
                nest.strides[nest.rank] = strides;
                nest.rank += 1;
            }
        }
        nest.dims[..nest.rank].reverse();
        nest.strides[..nest.rank].reverse();
        nest
    }

    /// Returns the sizes of the merged axes, outermost first. A single element has no axes.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Returns the strides of the layouts along a merged axis.
    pub(crate) fn strides(&self, axis: usize) -> [isize; N] {
        self.strides[axis]
    }

    /// Returns the number of elements.
    pub(crate) fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// Splits off the innermost axis. Returns a nest that walks the starts of the rows, and the size and strides of the
    /// axis. A single element is a row of length 1.
    pub(crate) fn split_inner(mut self) -> (Self, usize, [isize; N]) {
        if self.rank == 0 {
            return (self, 1, [0; N]);
        }
        self.rank -= 1;
        let (len, strides) = (self.dims[self.rank], self.strides[self.rank]);
        (self, len, strides)
    }

    /// Returns the same nest starting at position 0, for computing positions relative to another nest.
    pub(crate) fn at_zero(mut self) -> Self {
        self.offsets = [0; N];
        self
    }

    /// Splits off any axis, as [`split_inner`](Nest::split_inner) does with the innermost one.
    pub(crate) fn without(mut self, axis: usize) -> (Self, usize, [isize; N]) {
        let (len, strides) = (self.dims[axis], self.strides[axis]);
        self.dims[axis..self.rank].rotate_left(1);
        self.strides[axis..self.rank].rotate_left(1);
        self.rank -= 1;
        (self, len, strides)
    }

    /// Returns the positions of element `i` in row-major order. The element must exist.
    pub(crate) fn at(&self, mut i: usize) -> [usize; N] {
        let mut at = self.offsets;
        for axis in (0..self.rank).rev() {
            let (size, k) = (self.dims[axis], i % self.dims[axis].max(1));
            i /= size.max(1);
            advance(&mut at, &self.strides[axis], k as isize);
        }
        at
    }

    /// Calls `f` with the index and the positions of each element in a range of the row-major order. The elements must
    /// exist.
    #[inline]
    pub(crate) fn for_each(&self, range: std::ops::Range<usize>, mut f: impl FnMut(usize, [usize; N])) {
        let mut i = range.start;
        if i >= range.end {
            return;
        }
        let mut row = self.row(i);
        loop {
            let mut at = row.at;
            let end = range.end.min(i + row.left);
            loop {
                f(i, at);
                i += 1;
                if i >= end {
                    break;
                }
                advance(&mut at, &row.steps, 1);
            }
            if i >= range.end {
                return;
            }
            self.next_row(&mut row);
        }
    }

    /// Returns the rest of a row from element `i` on. The element must exist.
    fn row(&self, mut i: usize) -> Row<N> {
        let mut row = Row { at: self.offsets, left: 1, steps: [0; N], index: [0; MAX_RANK] };
        for axis in (0..self.rank).rev() {
            row.index[axis] = i % self.dims[axis];
            i /= self.dims[axis];
            advance(&mut row.at, &self.strides[axis], row.index[axis] as isize);
        }
        if let Some(last) = self.rank.checked_sub(1) {
            (row.left, row.steps) = (self.dims[last] - row.index[last], self.strides[last]);
        }
        row
    }

    /// Moves on to the next row, which must exist.
    fn next_row(&self, row: &mut Row<N>) {
        for axis in (0..self.rank).rev() {
            if axis + 1 < self.rank && row.index[axis] + 1 < self.dims[axis] {
                row.index[axis] += 1;
                advance(&mut row.at, &self.strides[axis], 1);
                break;
            }
            advance(&mut row.at, &self.strides[axis], -(row.index[axis] as isize));
            row.index[axis] = 0;
        }
        row.left = self.dims[self.rank - 1];
    }
}

/// The rest of a row along the innermost axis, starting at any element.
struct Row<const N: usize> {
    /// The positions of the first element.
    at: [usize; N],
    /// The number of elements.
    left: usize,
    /// The steps from one element to the next.
    steps: [isize; N],
    /// The index of the first element along each axis.
    index: [usize; MAX_RANK],
}

/// Moves positions by `k` steps. Intermediate positions may lie outside a buffer, so the sums wrap.
#[inline(always)]
fn advance<const N: usize>(at: &mut [usize; N], strides: &[isize; N], k: isize) {
    for (a, s) in at.iter_mut().zip(strides) {
        *a = a.wrapping_add_signed(s.wrapping_mul(k));
    }
}

#[cfg(test)]
mod tests {
    use gradus_backend::Shape;

    use super::*;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::new(dims).unwrap())
    }

    #[test]
    fn nest_visits_the_positions_of_every_layout_in_row_major_order() {
        let base = layout(&[2, 3, 4]);
        let stretched = layout(&[3, 1]).expand(Shape::new(&[2, 3, 4]).unwrap()).unwrap();
        let views = [
            base,
            base.flip(1),
            stretched,
            layout(&[4, 3, 2]).permute(&[2, 1, 0]).unwrap(),
            layout(&[4, 6, 4]).slice(0, 1, 4, 2).unwrap().slice(1, 0, 6, 2).unwrap(),
        ];
        for a in &views {
            for b in &views {
                let nest = Nest::<3>::new(&[a, b]);
                assert_eq!(nest.numel(), 24);
                let want: Vec<_> = a.positions().zip(b.positions()).collect();
                let mut got = Vec::new();
                for range in [0..7, 7..8, 8..24] {
                    nest.for_each(range, |i, p| got.push((i, (p[0], p[1]))));
                }
                assert_eq!(got, want.iter().copied().enumerate().collect::<Vec<_>>());
                assert!((0..24).all(|i| (nest.at(i)[0], nest.at(i)[1]) == want[i]));
            }
        }
        assert_eq!(Nest::<1>::new(&[&base]).dims(), [24]);
        assert_eq!(Nest::<2>::new(&[&base, &stretched]).dims(), [2, 3, 4]);
        assert_eq!(Nest::<1>::new(&[&layout(&[1, 1])]).dims(), [0usize; 0]);
        assert_eq!(Nest::<1>::new(&[&layout(&[2, 0])]).numel(), 0);
    }
}
