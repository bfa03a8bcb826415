//! Rows of numbers in the compute type: how they are loaded, stored, and summed in a fixed tree.
//!
//! A row is summed in 16 partial sums. Element `i` is added to partial sum `i % 16`, and the partial sums are added as
//! a tree at the end. The result therefore has the same bits on every instruction set, and each of them can use
//! vectors.

use crate::access::{Float, load_strided, store_strided};
use crate::gemm::Real;
use crate::halve::Halve;
use crate::isa::{Isa, per_isa_256};
use crate::lanes::{LANES, first_lanes, halved, larger};
use crate::math;
use crate::parallel::Disjoint;
use crate::vectors::{Vectorized, Vectors};

/// A compute type with the functions that rows need.
pub(crate) trait Elementary:
    Real
    + Halve
    + Vectorized
    + std::ops::Sub<Output = Self>
    + std::ops::Div<Output = Self>
    + PartialOrd
    + std::ops::Neg<Output = Self>
{
    const NEG_INFINITY: Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn is_finite(self) -> bool;
    fn to_f64(self) -> f64;
}

impl Elementary for f32 {
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> Self {
        math::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        math::log(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Elementary for f64 {
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> Self {
        libm::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        libm::log(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// The number of elements in a block. Rounding errors grow with the length of a chain of additions, so longer rows are
/// reduced in blocks, whose results are combined in order.
const BLOCK: usize = 1 << 13;

/// Reduces rows of the same length in the fixed tree. `map(elements, so_far)` adds the elements of the rows at one
/// position to a partial result, and `combine` then joins the partial results.
#[inline(always)]
pub(crate) fn tree<T: Copy, const N: usize>(
    rows: [&[T]; N],
    start: T,
    map: impl Fn([T; N], T) -> T,
    combine: impl Fn(T, T) -> T,
) -> T {
    let n = rows[0].len();
    let mut so_far = None;
    for first in (0..n.max(1)).step_by(BLOCK) {
        // The chunks have a constant length because LLVM vectorises loops over them, but not loops over positions.
        let block = rows.map(|row| row[first..n.min(first + BLOCK)].as_chunks::<LANES>());
        let mut lanes = [start; LANES];
        for i in 0..block[0].0.len() {
            let chunk = block.map(|(whole, _)| &whole[i]);
            for (l, lane) in lanes.iter_mut().enumerate() {
                *lane = map(chunk.map(|c| c[l]), *lane);
            }
        }
        for (l, lane) in lanes.iter_mut().enumerate().take(block[0].1.len()) {
            *lane = map(block.map(|(_, rest)| rest[l]), *lane);
        }
        let found = halved(lanes, &combine);
        so_far = Some(so_far.map_or(found, |so_far| combine(so_far, found)));
    }
    so_far.unwrap_or(start)
}

/// Consecutive rows of the same length, divided into chunks. The last chunk of a row reaches into the next row, whose
/// elements are ignored, so that every chunk is a whole vector. If too few elements follow a row, its last chunk is a
/// copy.
///
/// Call the methods in plain loops and not in closures, which would be compiled without the instruction set of their
/// caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunked {
    len: usize,
    /// The number of elements in all chunks of a row except the last.
    body: usize,
    /// 1 for each element of the last chunk that belongs to the row, and 0 for the others.
    counts: &'static [u32; LANES],
}

/// A row in chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a, T> {
    body: &'a [[T; LANES]],
    last: &'a [T; LANES],
}

/// A writable row in chunks.
#[derive(Debug)]
pub(crate) struct RowMut<'a, T> {
    body: &'a mut [[T; LANES]],
    last: &'a mut [T; LANES],
}

impl<T> RowMut<'_, T> {
    /// Returns the row for reading.
    #[inline(always)]
    pub(crate) fn row(&self) -> Row<'_, T> {
        Row { body: self.body, last: self.last }
    }
}

impl Chunked {
    /// Creates the description of rows of `len` elements, which must be at least 1.
    #[inline(always)]
    pub(crate) fn new(len: usize) -> Chunked {
        Chunked { len, body: (len - 1) / LANES * LANES, counts: first_lanes((len - 1) % LANES + 1) }
    }

    /// Returns row `i` of `x`. If too few elements follow the row, its last chunk is copied to `spare`.
    #[inline(always)]
    pub(crate) fn row<'a, T: Copy>(self, x: &'a [T], i: usize, spare: &'a mut [T; LANES]) -> Row<'a, T> {
        let (body, rest) = x[i * self.len..].split_at(self.body);
        let last = match rest.first_chunk() {
            Some(last) => last,
            None => {
                spare[..rest.len()].copy_from_slice(rest);
                spare
            }
        };
        Row { body: body.as_chunks().0, last }
    }

    /// Returns row `i` of `y` for writing. The caller writes whole chunks, and the next row overwrites the elements
    /// written beyond this one. If too few elements follow the row, `spare` serves as its last chunk and starts with
    /// the current contents. Call [`written`](Chunked::written) afterwards.
    #[inline(always)]
    pub(crate) fn row_mut<'a, T: Copy>(self, y: &'a mut [T], i: usize, spare: &'a mut [T; LANES]) -> RowMut<'a, T> {
        let (body, rest) = y[i * self.len..].split_at_mut(self.body);
        if rest.len() < LANES {
            spare[..rest.len()].copy_from_slice(rest);
        }
        let last = rest.first_chunk_mut().unwrap_or(spare);
        RowMut { body: body.as_chunks_mut().0, last }
    }

    /// Copies the last chunk of row `i` to `y` if [`row_mut`](Chunked::row_mut) used `spare` for it.
    #[inline(always)]
    pub(crate) fn written<T: Copy>(self, y: &mut [T], i: usize, spare: &[T; LANES]) {
        let rest = &mut y[i * self.len + self.body..];
        if rest.len() < LANES {
            let count = self.len - self.body;
            rest[..count].copy_from_slice(&spare[..count]);
        }
    }

    /// Returns a single row whose memory is padded to a whole chunk. Elements beyond the row are ignored.
    #[inline(always)]
    pub(crate) fn padded<T>(self, x: &[T]) -> Row<'_, T> {
        let (body, last) = x.split_at(self.body);
        Row { body: body.as_chunks().0, last: &last.as_chunks().0[0] }
    }

    /// Reduces rows in chunks as [`tree`] does.
    #[inline(always)]
    pub(crate) fn tree<T: Copy, const N: usize>(
        self,
        rows: [Row<'_, T>; N],
        start: T,
        map: impl Fn([T; N], T) -> T,
        combine: impl Fn(T, T) -> T,
    ) -> T {
        let count = self.body / LANES;
        let bodies = rows.map(|row| &row.body[..count]);
        let mut so_far = None;
        for first in (0..count.max(1)).step_by(BLOCK / LANES) {
            let end = count.min(first + BLOCK / LANES);
            let mut lanes = [start; LANES];
            for i in first..end {
                let chunk = bodies.map(|body| &body[i]);
                for l in 0..LANES {
                    lanes[l] = map(chunk.map(|c| c[l]), lanes[l]);
                }
            }
            if end == count {
                let chunk = rows.map(|row| row.last);
                let before = lanes;
                for l in 0..LANES {
                    let next = map(chunk.map(|c| c[l]), before[l]);
                    lanes[l] = if self.counts[l] != 0 { next } else { before[l] };
                }
            }
            let found = halved(lanes, &combine);
            so_far = Some(so_far.map_or(found, |so_far| combine(so_far, found)));
        }
        so_far.unwrap_or(start)
    }

    /// Returns a mask of the elements of the last chunk that belong to the row.
    #[inline(always)]
    fn mask<V: Vectors>(self, v: V) -> V::Mask {
        v.first(self.len - self.body)
    }

    /// Returns the partial results of [`tree`] for rows in chunks, before they are combined.
    #[inline(always)]
    pub(crate) fn lanes<V: Vectors, const N: usize>(
        self,
        v: V,
        rows: [Row<'_, V::Number>; N],
        start: V::Number,
        map: impl Fn([V::Vector; N], V::Vector) -> V::Vector,
    ) -> [V::Number; LANES] {
        let count = self.body / LANES;
        let bodies = rows.map(|row| &row.body[..count]);
        let mut lanes = v.splat(start);
        let mut chunk = [lanes; N];
        for i in 0..count {
            for (chunk, body) in chunk.iter_mut().zip(bodies) {
                *chunk = v.load(&body[i]);
            }
            lanes = map(chunk, lanes);
        }
        for (chunk, row) in chunk.iter_mut().zip(rows) {
            *chunk = v.load(row.last);
        }
        let mut out = [start; LANES];
        v.store(v.select(self.mask(v), map(chunk, lanes), lanes), &mut out);
        out
    }

    /// Sets each element of `y` to `f` of the elements of `x` at the same position.
    #[inline(always)]
    pub(crate) fn map<V: Vectors, const N: usize>(
        self,
        v: V,
        x: [Row<'_, V::Number>; N],
        y: &mut RowMut<'_, V::Number>,
        f: impl Fn([V::Vector; N]) -> V::Vector,
    ) {
        let bodies = x.map(|x| &x.body[..y.body.len()]);
        let mut chunk = [v.splat(V::Number::ZERO); N];
        for (i, y) in y.body.iter_mut().enumerate() {
            for (chunk, body) in chunk.iter_mut().zip(bodies) {
                *chunk = v.load(&body[i]);
            }
            v.store(f(chunk), y);
        }
        for (chunk, x) in chunk.iter_mut().zip(x) {
            *chunk = v.load(x.last);
        }
        v.store(f(chunk), y.last);
    }

    /// Divides each element of a row by `by`. The elements after the row are unchanged.
    #[inline(always)]
    pub(crate) fn divide<V: Vectors>(self, v: V, y: &mut RowMut<'_, V::Number>, by: V::Number) {
        let by = v.splat(by);
        for y in y.body.iter_mut() {
            v.store(v.load(y) / by, y);
        }
        let last = v.load(y.last);
        v.store(v.select(self.mask(v), last / by, last), y.last);
    }
}

/// Sets each element of `y` to `f` of the elements of `x` at the same position. All rows have the same length.
#[inline(always)]
pub(crate) fn map_chunks<T: Copy, const N: usize>(x: [Row<'_, T>; N], y: &mut RowMut<'_, T>, f: impl Fn([T; N]) -> T) {
    let bodies = x.map(|x| &x.body[..y.body.len()]);
    for (i, y) in y.body.iter_mut().enumerate() {
        map_chunk(bodies.map(|x| &x[i]), y, &f);
    }
    map_chunk(x.map(|x| x.last), y.last, &f);
}

#[inline(always)]
fn map_chunk<T: Copy, const N: usize>(x: [&[T; LANES]; N], y: &mut [T; LANES], f: &impl Fn([T; N]) -> T) {
    // `black_box` hides the chunk from LLVM, which would otherwise vectorise across chunks and gather their lanes.
    let y = std::hint::black_box(y);
    let mut made = *y;
    for l in 0..LANES {
        made[l] = f(x.map(|c| c[l]));
    }
    *y = made;
}

/// Divides each element by `by`.
#[inline(always)]
pub(crate) fn divide_chunks<T: Copy + std::ops::Div<Output = T>>(y: &mut RowMut<'_, T>, by: T) {
    for y in y.body.iter_mut().chain([&mut *y.last]) {
        // For the same reason as in `map_chunk`.
        let y = std::hint::black_box(y);
        let chunk = *y;
        for l in 0..LANES {
            y[l] = chunk[l] / by;
        }
    }
}

/// Returns the sum of a row.
#[inline(always)]
pub(crate) fn sum<T: Real>(x: &[T]) -> T {
    tree([x], T::ZERO, |[x], s| s + x, |a, b| a + b)
}

/// Returns the largest element of a row that is not NaN, or -inf if there is none.
#[inline(always)]
pub(crate) fn largest<T: Elementary>(x: &[T]) -> T {
    tree([x], T::NEG_INFINITY, |[x], m| larger(m, x), larger)
}

/// A storage type whose rows can be loaded and stored, on every instruction set.
pub(crate) trait Rows: Float<Compute: Elementary> {
    /// Sets `out[i] = x[at + i * step]`, widened. Panics if a position lies outside `x`.
    fn load(isa: Isa, x: &[Self], at: usize, step: isize, out: &mut [Self::Compute]);
    /// Sets `out[at + i * step] = x[i]`, rounded. Panics if a position lies outside `out`.
    fn store(isa: Isa, x: &[Self::Compute], out: &mut [Self], at: usize, step: isize);
    /// Returns the same elements if the storage type is the compute type, and otherwise `None`.
    fn lying(x: &[Self]) -> Option<&[Self::Compute]>;
    /// Returns the same elements if the storage type is the compute type, and otherwise `None`.
    fn lying_mut(x: &mut [Self]) -> Option<&mut [Self::Compute]>;

    /// Returns a row with the length of `work`: the elements of `x` themselves if possible, or else widened copies in
    /// `work`. Panics if a position lies outside `x`.
    #[inline]
    fn read<'a>(isa: Isa, x: &'a [Self], at: usize, step: isize, work: &'a mut [Self::Compute]) -> &'a [Self::Compute] {
        if step == 1
            && let Some(row) = Self::lying(&x[at..at + work.len()])
        {
            return row;
        }
        Self::load(isa, x, at, step, work);
        work
    }

    /// Lets `make` write a row with the length of `work`: directly to `out` if possible, or else to `work`, whose
    /// elements are then stored in `out`.
    ///
    /// # Safety
    /// Only the calling task may access the row.
    #[inline]
    unsafe fn write(
        isa: Isa,
        out: &Disjoint<'_, Self>,
        at: usize,
        step: isize,
        work: &mut [Self::Compute],
        make: impl FnOnce(&mut [Self::Compute]),
    ) {
        if step == 1 {
            // SAFETY: guaranteed by the caller.
            let to = unsafe { out.slice(at..at + work.len()) };
            if let Some(row) = Self::lying_mut(to) {
                return make(row);
            }
            make(work);
            return Self::store(isa, work, to, 0, 1);
        }
        make(work);
        for (i, &v) in work.iter().enumerate() {
            // SAFETY: as above.
            unsafe { out.write(at.wrapping_add_signed(step * i as isize), Self::narrow(v)) };
        }
    }
}

macro_rules! rows {
    ($($s:ty, $c:ty, $load:ident, $store:ident, $lying:expr, $lying_mut:expr;)*) => {$(
        per_isa_256! {
            fn $load(x: &[$s], at: usize, step: isize, out: &mut [$c]) =
                |x, at, step, out| load_strided(x, at, step, out, |v: $s| v.widen());
            fn $store(x: &[$c], out: &mut [$s], at: usize, step: isize) =
                |x, out, at, step| store_strided(x, out, at, step, |v: $c| <$s as Float>::narrow(v));
        }
        impl Rows for $s {
            #[inline]
            fn load(isa: Isa, x: &[$s], at: usize, step: isize, out: &mut [$c]) {
                $load(isa, x, at, step, out)
            }
            #[inline]
            fn store(isa: Isa, x: &[$c], out: &mut [$s], at: usize, step: isize) {
                $store(isa, x, out, at, step)
            }
            #[inline]
            fn lying(x: &[$s]) -> Option<&[$c]> {
                $lying(x)
            }
            #[inline]
            fn lying_mut(x: &mut [$s]) -> Option<&mut [$c]> {
                $lying_mut(x)
            }
        }
    )*};
}
rows! {
    f32, f32, load_f32, store_f32, Some, Some;
    f64, f64, load_f64, store_f64, Some, Some;
    gradus_backend::f16, f32, load_f16, store_f16, |_| None, |_| None;
    gradus_backend::bf16, f32, load_bf16, store_bf16, |_| None, |_| None;
}

#[cfg(test)]
mod tests {
    #[test]
    fn sums_follow_the_tree_whatever_the_length() {
        for n in [0usize, 1, 15, 16, 17, 100] {
            let x: Vec<f64> = (0..n).map(|i| i as f64).collect();
            assert_eq!(super::sum(&x), (n * n.saturating_sub(1) / 2) as f64);
            assert_eq!(super::largest(&x), if n == 0 { f64::NEG_INFINITY } else { n as f64 - 1.0 });
        }
        assert_eq!(super::largest(&[1.0, f64::NAN, 3.0]), 3.0);
    }

    #[test]
    fn sums_of_long_rows_keep_their_digits() {
        for n in [super::BLOCK, super::BLOCK + 1, 3 * super::BLOCK, 10_000_003] {
            let x = vec![0.1f32; n];
            let chunked = super::Chunked::new(n);
            let mut spare = [0.0; super::LANES];
            let row = chunked.row(&x, 0, &mut spare);
            let sums = [super::sum(&x), chunked.tree([row], 0.0, |[x], s| s + x, |a, b| a + b)];
            for sum in sums {
                let exact = f64::from(0.1f32) * n as f64;
                assert!((f64::from(sum) / exact - 1.0).abs() < 2e-5, "{sum} of {n} for {exact}");
            }
        }
    }
}
