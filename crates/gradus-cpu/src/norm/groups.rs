//! The groups of a normalisation, as runs of elements.

use gradus_backend::{Axes, Error, Layout, Result};

use crate::nest::Nest;

/// The maximum number of elements in a run.
pub(super) const BLOCK: usize = 1024;
/// The number of elements that a task should process.
pub(super) const TASK: usize = 1 << 13;

/// The groups of several layouts of the same shape.
pub(super) struct Groups<const N: usize> {
    /// Where the groups start.
    pub(super) starts: Nest<N>,
    /// Where the runs of the first group start; `len` and `steps` are the length and the strides of a run.
    pub(super) runs: Nest<N>,
    pub(super) len: usize,
    pub(super) steps: [isize; N],
    /// The number of elements in a group.
    pub(super) count: usize,
}

impl<const N: usize> Groups<N> {
    /// Creates the groups. The positions of a missing layout are 0. The first layout must be present.
    pub(super) fn new(axes: Axes, layouts: [Option<Layout>; N]) -> Result<Self> {
        let shape = *layouts[0].as_ref().map_or(&gradus_backend::Shape::SCALAR, Layout::shape);
        let none = Layout::contiguous(gradus_backend::Shape::new(&[1])?).reshape(gradus_backend::Shape::SCALAR);
        let none = none.map_or(Err(Error::shape("normalize", "no scalar layout")), |l| l.expand(shape))?;
        let layouts = layouts.map(|l| l.unwrap_or(none));
        let numel = shape.numel();
        // Narrows the reduced axes (or, if `reduced` is false, all other axes) to their first index.
        let hold = |l: &Layout, reduced: bool| {
            (0..l.rank())
                .filter(|&a| axes.contains(a) == reduced)
                .try_fold(*l, |l, a| l.narrow(a, 0, l.dims()[a].min(1)))
        };
        let mut outer = layouts;
        let mut inner = layouts;
        for (l, (o, i)) in layouts.iter().zip(outer.iter_mut().zip(&mut inner)) {
            (*o, *i) = (hold(l, true)?, hold(l, false)?);
        }
        let count = axes.iter().map(|a| shape[a]).product();
        let starts = Nest::new(&outer.each_ref()[..]);
        let (runs, len, steps) = Nest::new(&inner.each_ref()[..]).split_inner();
        debug_assert!(numel == 0 || starts.numel() * runs.numel() * len == numel);
        Ok(Groups { starts, runs, len, steps, count })
    }

    /// Returns the number of groups per task.
    pub(super) fn grain(&self) -> usize {
        (TASK / self.count.max(1)).max(1)
    }

    /// Calls `f` with the positions and the length of each run of the group that starts at `at`.
    #[inline]
    pub(super) fn for_each_run(&self, at: [usize; N], mut f: impl FnMut([usize; N], usize)) {
        // Runs are relative to the start of the first group.
        let zero = self.runs.at(0);
        self.runs.for_each(0..self.runs.numel(), |_, run| {
            let mut from: [usize; N] = std::array::from_fn(|k| at[k].wrapping_add(run[k]).wrapping_sub(zero[k]));
            let mut left = self.len;
            while left > 0 {
                let n = left.min(BLOCK);
                f(from, n);
                for (p, s) in from.iter_mut().zip(self.steps) {
                    *p = p.wrapping_add_signed(s.wrapping_mul(n as isize));
                }
                left -= n;
            }
        });
    }
}

/// Broadcasts the layout of a statistic to the shape of `x`.
pub(super) fn stretch(v: &Layout, x: &Layout) -> Result<Option<Layout>> {
    v.expand(*x.shape()).map(Some)
}
