//! The positions of the elements under a window. Convolution, pooling, unfold and fold share this arithmetic.

use std::ops::Range;

use gradus_backend::{Error, Layout, Result, Window};

/// A window over three spatial axes. If there are fewer, the missing axes come first and have size 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    /// The sizes of the input.
    pub(crate) input: [usize; 3],
    /// Number of positions.
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    /// The padding before the first element. It is negative if the first window starts after that element.
    pub(crate) pad: [isize; 3],
}

impl Geometry {
    /// Creates the geometry of a window over spatial axes of these sizes. Fails as [`Window::output`] does.
    pub(crate) fn new(op: &str, w: &Window, spatial: &[usize]) -> Result<Geometry> {
        let out = w.output(op, spatial)?;
        let skip = 3 - w.rank;
        let mut g =
            Geometry { input: [1; 3], output: [1; 3], kernel: [1; 3], stride: [1; 3], dilation: [1; 3], pad: [0; 3] };
        g.input[skip..].copy_from_slice(spatial);
        g.output[skip..].copy_from_slice(&out[..w.rank]);
        g.kernel[skip..].copy_from_slice(&w.kernel[..w.rank]);
        g.stride[skip..].copy_from_slice(&w.stride[..w.rank]);
        g.dilation[skip..].copy_from_slice(&w.dilation[..w.rank]);
        for i in 0..w.rank {
            g.pad[skip + i] = w.pad_before[i] as isize;
        }
        Ok(g)
    }

    /// The number of elements in a channel of the input.
    pub(crate) fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Number of positions.
    pub(crate) fn positions(&self) -> usize {
        self.output.iter().product()
    }

    /// The number of elements of the window.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Whether windows have one element each, so that the unfolded input is the input itself.
    pub(crate) fn is_identity(&self) -> bool {
        self.taps() == 1 && self.stride == [1; 3] && self.pad == [0; 3] && self.input == self.output
    }

    /// Whether every window lies inside the input.
    pub(crate) fn is_inside(&self) -> bool {
        let last = |i: usize| (self.output[i] - 1) * self.stride[i] + (self.kernel[i] - 1) * self.dilation[i];
        self.pad == [0; 3] && (0..3).all(|i| self.output[i] > 0 && last(i) < self.input[i])
    }

    /// The index of a tap on each axis.
    pub(crate) fn tap(&self, t: usize) -> [usize; 3] {
        let [_, h, w] = self.kernel;
        [t / (h * w), t / w % h, t % w]
    }

    /// The taps on an axis, except those that lie before the input at every position or beyond it at every position.
    fn reached_on(&self, axis: usize) -> Range<usize> {
        let Some(last) = self.output[axis].checked_sub(1) else { return 0..0 };
        let (dilation, before) = (self.dilation[axis], self.pad[axis] - (last * self.stride[axis]) as isize);
        let begin = before.max(0).unsigned_abs().div_ceil(dilation);
        let room = (self.input[axis] as isize + self.pad[axis]).max(0).unsigned_abs();
        let end = room.div_ceil(dilation).min(self.kernel[axis]);
        begin.min(end)..end
    }

    /// Returns the taps in order, numbered as for [`Geometry::tap`]. A window may be far larger than the input, so taps
    /// that [`reached_on`](Geometry::reached_on) excludes on some axis are left out.
    pub(crate) fn reached(&self) -> impl Iterator<Item = usize> {
        let [_, h, w] = self.kernel;
        let [zs, ys, xs] = [0, 1, 2].map(|axis| self.reached_on(axis));
        zs.flat_map(move |z| {
            let xs = xs.clone();
            ys.clone().flat_map(move |y| xs.clone().map(move |x| (z * h + y) * w + x))
        })
    }

    /// The positions of an axis for which a tap is inside the input.
    fn inside(&self, axis: usize, tap: usize) -> Range<usize> {
        // At position `o`, the tap lies at `o * stride + first`.
        let (stride, first) = (self.stride[axis], (tap * self.dilation[axis]) as isize - self.pad[axis]);
        let begin = if first < 0 { first.unsigned_abs().div_ceil(stride) } else { 0 };
        let room = self.input[axis] as isize - first;
        let end = if room <= 0 { 0 } else { (room as usize).div_ceil(stride).min(self.output[axis]) };
        begin.min(end)..end
    }

    /// Returns the [`runs`](Geometry::runs) of all positions, with little work per row, for rows that are short.
    #[inline(always)]
    pub(crate) fn rows(&self, tap: [usize; 3]) -> impl Iterator<Item = (Range<usize>, usize)> {
        let g = *self;
        let [zs, ys, xs] = [0, 1, 2].map(|axis| g.inside(axis, tap[axis]));
        let at = move |axis: usize, o: usize| {
            ((o * g.stride[axis] + tap[axis] * g.dilation[axis]) as isize - g.pad[axis]) as usize
        };
        let zs = if xs.is_empty() { 0..0 } else { zs };
        zs.flat_map(move |z| {
            let (plane, rows, first) = (at(0, z) * g.input[1], z * g.output[1], at(2, xs.start));
            let (begin, end) = (xs.start, xs.end);
            ys.clone().map(move |y| {
                let row = (rows + y) * g.output[2];
                (row + begin..row + end, (plane + at(1, y)) * g.input[2] + first)
            })
        })
    }

    /// Calls `f` for each run of positions in one row of the output at which this tap is inside the input. The
    /// arguments are the positions, relative to `positions.start`, and the offset in the channel of the element at the
    /// first of them. The elements at the following positions are `stride[2]` apart. At positions that are in no run,
    /// the tap is in the padding.
    #[inline(always)]
    pub(crate) fn runs(&self, tap: [usize; 3], positions: Range<usize>, mut f: impl FnMut(Range<usize>, usize)) {
        let [_, oh, ow] = self.output;
        let at =
            |axis: usize, o: usize| (o * self.stride[axis] + tap[axis] * self.dilation[axis]) as isize - self.pad[axis];
        let (mut p, end) = (positions.start, positions.end);
        let (mut z, mut y, mut x) = (p / (oh * ow), p / ow % oh, p % ow);
        while p < end {
            let len = (ow - x).min(end - p);
            let (iz, iy) = (at(0, z), at(1, y));
            let inside = |i: isize, axis: usize| i >= 0 && (i as usize) < self.input[axis];
            if inside(iz, 0) && inside(iy, 1) {
                let (first, step) = (at(2, x), self.stride[2]);
                // Positions `lo..hi` are those with `0 <= first + i * step < width`.
                let lo = if first < 0 { first.unsigned_abs().div_ceil(step) } else { 0 };
                let room = self.input[2] as isize - first;
                let hi = if room <= 0 { 0 } else { (room as usize).div_ceil(step).min(len) };
                if lo < hi {
                    let row = (iz as usize * self.input[1] + iy as usize) * self.input[2];
                    let src = row + (first + (lo * step) as isize) as usize;
                    let begin = p - positions.start;
                    f(begin + lo..begin + hi, src);
                }
            }
            p += len;
            x = 0;
            y += 1;
            if y == oh {
                (y, z) = (0, z + 1);
            }
        }
    }

    /// Returns an error if there are so many positions and taps that sizes computed from them could overflow. Valid
    /// layouts do not rule this out.
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        let n = self.positions().checked_mul(self.taps()).filter(|&n| n <= isize::MAX as usize / 8);
        n.map(drop)
            .ok_or_else(|| Error::new(gradus_backend::ErrorKind::Overflow, op, "the window has too many elements"))
    }
}

/// Returns the batch size, the number of channels and the spatial sizes of `[n, c, spatial..]`. Returns an error unless
/// there are `rank` spatial axes.
pub(crate) fn split<'a>(op: &str, name: &str, layout: &'a Layout, rank: usize) -> Result<(usize, usize, &'a [usize])> {
    match layout.dims() {
        [n, c, spatial @ ..] if spatial.len() == rank => Ok((*n, *c, spatial)),
        dims => {
            let m = format!("{name} has shape {dims:?}, where [batch, channels] and {rank} spatial axes are needed");
            Err(Error::shape(op, m))
        }
    }
}
