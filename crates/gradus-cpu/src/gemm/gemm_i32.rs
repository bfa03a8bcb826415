//! Products of integers of 8 and 16 bits, summed in i32.
//!
//! The rows of A and the columns of B are read along `k`, because one instruction multiplies 16 pairs of numbers and adds
//! neighbouring products. Sums wrap, so their order does not matter. The rows of A are widened to 16 bits first, except
//! that with AVX-512 VNNI one instruction multiplies 64 pairs of u8 and i8. Columns of B are read in place if their
//! numbers are adjacent, as those of a transposed weight `[n, k]` are; others are copied.

use gradus_backend::{Backend, DType, Error, Result, Scalar, View, ViewMut};

use super::block::MatMut;
use super::plan::Plan;
use crate::access::{Plain, check_dtype, load_strided};
use crate::check::check_output;
use crate::isa::{Isa, Level};
use crate::{CpuBackend, scratch};

const OP: &str = "gemm_i32";

/// The number of products of 16 bits that one instruction computes.
pub(super) const STEP: usize = 16;

/// The number of products of 8 bits that one instruction computes with AVX-512 VNNI.
pub(super) const BYTES: usize = 64;

/// The number of sums that are computed at once: of four rows of A and two columns of B, or of one row and eight columns.
const SUMS: usize = 8;

/// The number of sums that are computed at once with AVX-512 VNNI: of four rows and four columns, or of one row and 16 columns.
const MORE_SUMS: usize = 16;

/// The number of multiply-adds that a task should perform.
const TASK: usize = 1 << 18;

/// The largest number of rows of a task.
const TASK_ROWS: usize = 64;

/// The number of numbers that a task should copy.
pub(super) const COPY: usize = 1 << 15;

/// Some rows of A times some columns of B.
#[derive(Clone, Copy)]
pub(super) struct Tile<A, B> {
    /// Row `i` of A is the `width` numbers from `a[i * width]` on: `k` of A, and then zeros. `width` is `k` rounded up to a
    /// whole number of steps.
    pub(super) a: *const A,
    pub(super) width: usize,
    pub(super) rows: usize,
    /// Column `j` of B is the `k` numbers from `b[j * apart]` on.
    pub(super) b: *const B,
    pub(super) apart: isize,
    pub(super) columns: usize,
    pub(super) k: usize,
    /// Element `(i, j)` of C is `c[i * steps[0] + j * steps[1]]`.
    pub(super) c: *mut i32,
    pub(super) steps: [isize; 2],
}

/// A function that computes a tile.
///
/// # Safety
/// As for [`Small::multiply`].
pub(super) type Multiply<A, B> = unsafe fn(Isa, &Tile<A, B>);

impl<A, B> Tile<A, B> {
    /// # Safety
    /// The fields describe memory that is readable, and for C writable. The element is one of the tile.
    #[inline(always)]
    unsafe fn set(&self, i: usize, j: usize, sum: i32) {
        // SAFETY: guaranteed by the caller.
        unsafe { *self.c.offset(self.steps[0] * i as isize + self.steps[1] * j as isize) = sum }
    }
}

impl<B: Small> Tile<i16, B> {
    /// Computes the tile on any processor.
    ///
    /// # Safety
    /// As for [`Small::multiply`].
    unsafe fn portable(&self) {
        for i in 0..self.rows {
            for j in 0..self.columns {
                // SAFETY: row `i`, column `j` and their element of C are parts of the tile.
                unsafe {
                    let row = std::slice::from_raw_parts(self.a.add(i * self.width), self.k);
                    let column = std::slice::from_raw_parts(self.b.offset(self.apart * j as isize), self.k);
                    let products = row.iter().zip(column).map(|(&a, &b)| i32::from(a) * i32::from(b.into()));
                    self.set(i, j, products.fold(0, i32::wrapping_add));
                }
            }
        }
    }
}

/// An integer that fits into 16 bits.
pub(super) trait Small: Plain + Into<i16> {
    /// Computes a tile.
    ///
    /// # Safety
    /// The fields of the tile describe memory that is readable, and for C writable; nothing else accesses C.
    unsafe fn multiply(isa: Isa, tile: &Tile<i16, Self>);
}

/// The totals of the elements of each vector.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn totals(sums: &[std::arch::x86_64::__m256i; SUMS]) -> [i32; SUMS] {
    use std::arch::x86_64::*;
    let mut totals = [0; SUMS];
    for (totals, sums) in totals.chunks_exact_mut(4).zip(sums.chunks_exact(4)) {
        let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
        let total = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        // SAFETY: there are four totals.
        unsafe { _mm_storeu_si128(totals.as_mut_ptr().cast(), total) };
    }
    totals
}

/// Calls `block::<ROWS, COLUMNS>(t, i, j)`, an unsafe function, for all parts of the tile `t`: of four rows and `$few` columns,
/// or of one row and `$many` columns, or of one column.
#[cfg(target_arch = "x86_64")]
macro_rules! in_blocks {
    ($t:ident, $block:ident, $few:literal, $many:literal) => {
        // SAFETY: the rows and columns of each call are parts of the tile.
        unsafe {
            let (mut i, mut j) = (0, 0);
            while i + 4 <= $t.rows {
                while j + $few <= $t.columns {
                    $block::<4, $few>($t, i, j);
                    j += $few;
                }
                while j < $t.columns {
                    $block::<4, 1>($t, i, j);
                    j += 1;
                }
                (i, j) = (i + 4, 0);
            }
            while i < $t.rows {
                while j + $many <= $t.columns {
                    $block::<1, $many>($t, i, j);
                    j += $many;
                }
                while j < $t.columns {
                    $block::<1, 1>($t, i, j);
                    j += 1;
                }
                (i, j) = (i + 1, 0);
            }
        }
    };
}

macro_rules! small {
    ($($t:ty, $avx2:ident, $from:ident => $load:expr;)*) => {$(
        impl Small for $t {
            #[inline]
            unsafe fn multiply(isa: Isa, tile: &Tile<i16, Self>) {
                // SAFETY: guaranteed by the caller; an `Isa` of the first two levels exists only if this machine was found
                // to have AVX2.
                unsafe {
                    match isa.level() {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 | Level::Avx2 => $avx2(tile),
                        Level::Portable => tile.portable(),
                    }
                }
            }
        }

        /// # Safety
        /// As for [`Small::multiply`].
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        unsafe fn $avx2(t: &Tile<i16, $t>) {
            use std::arch::x86_64::*;

            /// Computes `R` rows, from `i` on, times `C` columns, from `j` on.
            ///
            /// # Safety
            /// As for [`Small::multiply`]; these rows and columns are parts of the tile.
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn block<const R: usize, const C: usize>(t: &Tile<i16, $t>, i: usize, j: usize) {
                let mut sums = [_mm256_setzero_si256(); SUMS];
                // Adds the products of a step: rows from position `at` on, columns from these places on.
                let mut add = |at: usize, columns: [*const $t; C]| {
                    let mut rows = [_mm256_setzero_si256(); R];
                    for r in 0..R {
                        // SAFETY: row `i + r` has a whole step from `at` on.
                        rows[r] = unsafe { _mm256_loadu_si256(t.a.add((i + r) * t.width + at).cast()) };
                    }
                    for c in 0..C {
                        let $from = columns[c];
                        // SAFETY: the places have a whole step each.
                        let column = unsafe { $load };
                        for r in 0..R {
                            sums[r * C + c] = _mm256_add_epi32(sums[r * C + c], _mm256_madd_epi16(rows[r], column));
                        }
                    }
                };
                let mut columns = [t.b; C];
                for c in 0..C {
                    columns[c] = t.b.wrapping_offset(t.apart * (j + c) as isize);
                }
                let whole = t.k / STEP * STEP;
                for at in (0..whole).step_by(STEP) {
                    add(at, columns.map(|column| column.wrapping_add(at)));
                }
                if whole < t.k {
                    // The ends of the columns, filled up with zeros.
                    let mut ends = [[0; STEP]; C];
                    for c in 0..C {
                        // SAFETY: the column has `k` numbers, and there are fewer than `STEP` left.
                        unsafe { columns[c].add(whole).copy_to_nonoverlapping(ends[c].as_mut_ptr(), t.k - whole) };
                    }
                    add(whole, ends.each_ref().map(|end| end.as_ptr()));
                }
                let totals = totals(&sums);
                for r in 0..R {
                    for c in 0..C {
                        // SAFETY: an element of the tile.
                        unsafe { t.set(i + r, j + c, totals[r * C + c]) };
                    }
                }
            }

            in_blocks!(t, block, 2, 8);
        }
    )*};
}
small! {
    i8, i8_avx2, from => _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
    u8, u8_avx2, from => _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
    i16, i16_avx2, from => _mm256_loadu_si256(from.cast());
}

/// The totals of the elements of each vector, in order.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn more_totals(sums: &[std::arch::x86_64::__m512i; MORE_SUMS]) -> [i32; MORE_SUMS] {
    use std::arch::x86_64::*;
    // Each step adds halves of quarters, then of vectors, of two neighbours.
    let pairs: [_; 8] = std::array::from_fn(|i| {
        let (a, b) = (sums[2 * i], sums[2 * i + 1]);
        _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    });
    let quarters: [_; 4] = std::array::from_fn(|i| {
        let (a, b) = (pairs[2 * i], pairs[2 * i + 1]);
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    });
    let halves = |a, b| _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let all = halves(halves(quarters[0], quarters[1]), halves(quarters[2], quarters[3]));
    let mut totals = [0; MORE_SUMS];
    // SAFETY: there are 16 totals.
    unsafe { _mm512_storeu_si512(totals.as_mut_ptr().cast(), all) };
    totals
}

/// Whether this backend uses the instructions of [`bytes_vnni`], which this machine then has.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_vnni(cpu: &CpuBackend) -> bool {
    cpu.isa().level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Computes a tile of products of u8 and i8. No sum of four products leaves i32.
///
/// # Safety
/// As for [`Small::multiply`]; this machine has AVX-512 VNNI, and `width` is a multiple of [`BYTES`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn bytes_vnni(t: &Tile<u8, i8>) {
    use std::arch::x86_64::*;

    /// Computes `R` rows, from `i` on, times `C` columns, from `j` on.
    ///
    /// # Safety
    /// As for [`bytes_vnni`]; these rows and columns are parts of the tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn block<const R: usize, const C: usize>(t: &Tile<u8, i8>, i: usize, j: usize) {
        let mut sums = [_mm512_setzero_si512(); MORE_SUMS];
        let column = |c: usize| t.b.wrapping_offset(t.apart * (j + c) as isize);
        // Adds the products of a step from position `at` on.
        let mut add = |at: usize, columns: [__m512i; C]| {
            for (r, sums) in sums.chunks_exact_mut(C).take(R).enumerate() {
                // SAFETY: row `i + r` has a whole step from `at` on.
                let row = unsafe { _mm512_loadu_si512(t.a.add((i + r) * t.width + at).cast()) };
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    *sum = _mm512_dpbusd_epi32(*sum, row, column);
                }
            }
        };
        let whole = t.k / BYTES * BYTES;
        for at in (0..whole).step_by(BYTES) {
            // SAFETY: the columns have a whole step from `at` on.
            let load = |c: usize| unsafe { _mm512_loadu_si512(column(c).add(at).cast()) };
            add(at, std::array::from_fn(load));
        }
        if whole < t.k {
            let mask = (1 << (t.k - whole)) - 1;
            // SAFETY: the columns have the numbers that the mask selects; others are not read.
            let load = |c: usize| unsafe { _mm512_maskz_loadu_epi8(mask, column(c).wrapping_add(whole)) };
            add(whole, std::array::from_fn(load));
        }
        let totals = more_totals(&sums);
        for (r, totals) in totals.chunks_exact(C).take(R).enumerate() {
            for (c, &total) in totals.iter().enumerate() {
                // SAFETY: an element of the tile.
                unsafe { t.set(i + r, j + c, total) };
            }
        }
    }

    in_blocks!(t, block, 4, 16);
}

/// See [`Backend::gemm_i32`](gradus_backend::Backend::gemm_i32).
pub(crate) fn gemm_i32(cpu: &CpuBackend, a: View<'_>, b: View<'_>, c: &mut ViewMut<'_>) -> Result<()> {
    check_dtype(OP, "c", c.dtype, DType::I32)?;
    let plan = &mut Plan::new(OP, &a, &b, c)?;
    check_output(OP, "c", c.layout)?;
    #[cfg(target_arch = "x86_64")]
    if (a.dtype, b.dtype) == (DType::U8, DType::I8) && has_vnni(cpu) {
        // SAFETY: the machine has AVX-512 VNNI, `product` fills up the rows, and whoever calls a `Multiply` vouches for the tile.
        let multiply: Multiply<u8, i8> = |_, tile| unsafe { bytes_vnni(tile) };
        return product::<u8, u8, i8>(cpu, plan, a, b, c, BYTES, multiply);
    }
    match a.dtype {
        DType::I8 => with_a::<i8>(cpu, plan, a, b, c),
        DType::U8 => with_a::<u8>(cpu, plan, a, b, c),
        DType::I16 => with_a::<i16>(cpu, plan, a, b, c),
        other => Err(unsupported(other)),
    }
}

fn with_a<A: Small>(cpu: &CpuBackend, plan: &mut Plan, a: View<'_>, b: View<'_>, c: &mut ViewMut<'_>) -> Result<()> {
    match b.dtype {
        DType::I8 => product::<A, i16, i8>(cpu, plan, a, b, c, STEP, i8::multiply),
        DType::U8 => product::<A, i16, u8>(cpu, plan, a, b, c, STEP, u8::multiply),
        DType::I16 => product::<A, i16, i16>(cpu, plan, a, b, c, STEP, i16::multiply),
        other => Err(unsupported(other)),
    }
}

#[cold]
fn unsupported(dtype: DType) -> Error {
    Error::dtype(OP, dtype, "i8, u8 and i16")
}

/// The product of views of `A` and `B`, with rows of `R` that are filled up to a multiple of `step` with zeros.
fn product<A: Small + Into<R>, R: Plain, B: Small>(
    cpu: &CpuBackend,
    plan: &mut Plan,
    a: View<'_>,
    b: View<'_>,
    c: &mut ViewMut<'_>,
    step: usize,
    run: Multiply<R, B>,
) -> Result<()> {
    let (a, b) = (cpu.slice::<A>(OP, a)?, cpu.slice::<B>(OP, b)?);
    if plan.k == 0 {
        return cpu.fill(c, Scalar::Int(0));
    }
    // SAFETY: the data stays borrowed mutably through `c`, and each element belongs to one task.
    let c = unsafe { MatMut::new(cpu.slice_mut::<i32>(OP, c)?.as_mut_ptr(), 0, 0, 0) };
    plan.fold_rows();
    let (m, n, k) = (plan.m, plan.n, plan.k);
    let (plan, count) = (&*plan, plan.count());
    if count == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let [[a_row, a_step], [b_step, b_column], steps] = plan.strides;
    let adjacent = b_step == 1 || k == 1;
    // All products may have the same B.
    let matrices = if plan.batch_strides.iter().all(|s| s[1] == 0) { 1 } else { count };
    // The number of numbers in a row of A, and how many rows and columns a task copies.
    let width = k.next_multiple_of(step);
    let (some_rows, some_columns) = (COPY.div_ceil(width), COPY.div_ceil(k));
    scratch::large(cpu, count * m * width, |rows: &mut [R]| {
        cpu.parallel_chunks(rows, some_rows * width, |chunk, rows| {
            for (r, row) in rows.chunks_exact_mut(width).enumerate() {
                let r = chunk * some_rows + r;
                let at = plan.starts(r / m)[0].wrapping_add_signed(a_row * (r % m) as isize);
                load_strided(a, at, a_step, &mut row[..k], A::into);
                row[k..].fill(R::default());
            }
        });
        let columns = if adjacent { 0 } else { matrices * n * k };
        scratch::large(cpu, columns, |columns: &mut [B]| {
            cpu.parallel_chunks(columns, some_columns * k, |chunk, columns| {
                for (j, column) in columns.chunks_exact_mut(k).enumerate() {
                    let j = chunk * some_columns + j;
                    let at = plan.starts(j / n)[1].wrapping_add_signed(b_column * (j % n) as isize);
                    load_strided(b, at, b_step, column, |x| x);
                }
            });
            let whole = |i: usize| {
                let [_, b_at, c_at] = plan.starts(i);
                let (b, apart) = if adjacent {
                    (b.as_ptr().wrapping_add(b_at), b_column)
                } else {
                    (columns.as_ptr().wrapping_add(if matrices == 1 { 0 } else { i * n * k }), k as isize)
                };
                let a = rows.as_ptr().wrapping_add(i * m * width);
                Tile { a, width, rows: m, b, apart, columns: n, k, c: c.matrix(c_at, 0, 0).as_ptr(), steps }
            };
            multiply(cpu, count, whole, |_, _, tile| {
                // SAFETY: `Plan::new` checked the sizes; `slice` and `slice_mut` that the elements of every view lie inside its
                // data, which stays borrowed, and that no two elements of C share a place. Copies have whole rows and columns.
                unsafe { run(cpu.isa(), tile) };
            });
        });
    });
    Ok(())
}

/// Divides `count` tiles of one size into tasks of some rows and columns of one of them. `run` receives the number of the
/// tile, the first row and column, and the part. No two parts have the same element of C.
pub(super) fn multiply<R: Plain, B: Small>(
    cpu: &CpuBackend,
    count: usize,
    whole: impl Fn(usize) -> Tile<R, B> + Sync,
    run: impl Fn(usize, [usize; 2], &Tile<R, B>) + Sync,
) {
    let Tile { rows: m, columns: n, width, .. } = whole(0);
    let rows = m.min(TASK_ROWS);
    let columns = (TASK / (rows * width)).clamp(1, n).next_multiple_of(MORE_SUMS);
    let (down, across) = (m.div_ceil(rows), n.div_ceil(columns));
    cpu.parallel_for(count * down * across, TASK / (rows * width * columns), |tasks| {
        for task in tasks {
            let at = task / (down * across);
            let whole = whole(at);
            let (i, j) = (task / across % down * rows, task % across * columns);
            let tile = Tile {
                a: whole.a.wrapping_add(i * width),
                rows: rows.min(m - i),
                b: whole.b.wrapping_offset(whole.apart * j as isize),
                columns: columns.min(n - j),
                c: whole.c.wrapping_offset(whole.steps[0] * i as isize + whole.steps[1] * j as isize),
                ..whole
            };
            run(at, [i, j], &tile);
        }
    });
}
