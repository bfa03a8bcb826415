//! Products of floats, rounded to 8 bits, with integers of 8 bits, and the numbers that they stand for.
//!
//! The rows of `x` are rounded once, and then multiplied as those of `gemm_i32` are. Each task keeps its sums in a cache
//! until it has scaled them. Operands whose rows or columns are not contiguous are left to the default.

use gradus_backend::{Layout, Result, View, ViewMut, composite};

#[cfg(target_arch = "x86_64")]
use super::gemm_i32::{BYTES, bytes_vnni, has_vnni};
use super::gemm_i32::{COPY, Multiply, STEP, Small, Tile, multiply};
use crate::access::Plain;
use crate::check::check_output;
use crate::extreme::Extreme;
use crate::isa::{Isa, per_isa};
use crate::map::to_u8;
use crate::parallel::Disjoint;
use crate::{CpuBackend, scratch};

const OP: &str = "linear_i8";

/// The number of floats whose range is computed at once.
const LANES: usize = 32;

/// What a group of floats is divided by, and the integer that 0 becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rounding {
    scale: f32,
    zero: f32,
}

impl Rounding {
    /// The rounding of numbers in this range, which includes 0.
    fn of([lo, hi]: [f32; 2]) -> Rounding {
        let range = (hi - lo) / 255.0;
        let scale = if range == 0.0 { 1.0 } else { range };
        Rounding { scale, zero: (-lo / scale).round_ties_even().larger(0.0).smaller(255.0) }
    }
}

per_isa! {
    /// The smallest and the largest of 0 and the elements of `x`, or NaN.
    fn range(x: &[f32]) -> [f32; 2] = range_body;
    fn round_to_u8(x: &[f32], to: Rounding, out: &mut [u8]) = |x, to, out| round(x, to, out, |v| v);
    fn round_to_i16(x: &[f32], to: Rounding, out: &mut [i16]) = |x, to, out| round(x, to, out, i16::from);
    /// Sets `out`, or adds to it, the numbers that sums of products with rounded numbers stand for.
    fn scale_sums(add: bool, from: Rounding, sums: &[i32], columns: Columns<'_>, out: &mut [f32]) = scale_body;
}

#[inline(always)]
fn range_body(x: &[f32]) -> [f32; 2] {
    let (mut lo, mut hi) = ([0f32; LANES], [0f32; LANES]);
    let mut add = |x: &[f32]| {
        for ((lo, hi), &x) in lo.iter_mut().zip(&mut hi).zip(x) {
            (*lo, *hi) = (lo.smaller(x), hi.larger(x));
        }
    };
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    chunks.for_each(&mut add);
    add(rest);
    [lo.into_iter().fold(0.0, f32::smaller), hi.into_iter().fold(0.0, f32::larger)]
}

#[inline(always)]
fn round<R>(x: &[f32], to: Rounding, out: &mut [R], cast: impl Fn(u8) -> R) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = cast(to_u8((x / to.scale).round_ties_even() + to.zero));
    }
}

/// What belongs to each column of a product.
#[derive(Clone, Copy)]
struct Columns<'a> {
    sums: &'a [i32],
    scale: &'a [f32],
    bias: &'a [f32],
}

#[inline(always)]
fn scale_body(add: bool, from: Rounding, sums: &[i32], columns: Columns<'_>, out: &mut [f32]) {
    let zero = from.zero as i32;
    let n = out.len();
    let (sums, weights) = (&sums[..n], &columns.sums[..n]);
    let (scale, bias) = (&columns.scale[..n], &columns.bias[..n]);
    for j in 0..n {
        let sum = sums[j].wrapping_sub(zero.wrapping_mul(weights[j]));
        let y = sum as f32 * (from.scale * scale[j]) + bias[j];
        out[j] = if add { out[j] + y } else { y };
    }
}

/// A type of rounded numbers.
trait Rounded: Plain {
    fn round(isa: Isa, x: &[f32], to: Rounding, out: &mut [Self]);
}

impl Rounded for u8 {
    fn round(isa: Isa, x: &[f32], to: Rounding, out: &mut [u8]) {
        round_to_u8(isa, x, to, out);
    }
}

impl Rounded for i16 {
    fn round(isa: Isa, x: &[f32], to: Rounding, out: &mut [i16]) {
        round_to_i16(isa, x, to, out);
    }
}

/// See [`Backend::linear_i8`](gradus_backend::Backend::linear_i8).
pub(crate) fn linear_i8(
    cpu: &CpuBackend,
    add: bool,
    x: View<'_>,
    w: View<'_>,
    sums: View<'_>,
    scale: View<'_>,
    bias: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let sizes @ [groups, m, k, n] = composite::linear_i8::check(cpu, x, w, sums, scale, bias, out.as_view())?;
    check_output(OP, "out", out.layout)?;
    let adjacent = [x.layout, out.layout].iter().all(|l| l.strides()[2] == 1)
        && [sums, scale, bias].iter().all(|v| v.layout.strides()[1] == 1)
        && w.layout.strides()[1] == 1;
    if groups * m * n * k == 0 || !adjacent {
        return composite::linear_i8::linear_i8(cpu, add, x, w, sums, scale, bias, out);
    }
    #[cfg(target_arch = "x86_64")]
    if has_vnni(cpu) {
        // SAFETY: the machine has AVX-512 VNNI, `product` fills up the rows, and whoever calls a `Multiply` vouches for the tile.
        let multiply: Multiply<u8, i8> = |_, tile| unsafe { bytes_vnni(tile) };
        return product(cpu, add, sizes, x, w, [sums, scale, bias], out, BYTES, multiply);
    }
    product::<i16>(cpu, add, sizes, x, w, [sums, scale, bias], out, STEP, i8::multiply)
}

/// The position of the element with this index along the first axes, and 0 along others.
fn place(l: &Layout, index: &[usize]) -> usize {
    index.iter().zip(l.strides()).fold(l.offset(), |at, (&i, &stride)| at.wrapping_add_signed(stride * i as isize))
}

/// The product, with rows of `R` that are filled up to a multiple of `step` with zeros.
fn product<R: Rounded>(
    cpu: &CpuBackend,
    add: bool,
    [groups, m, k, n]: [usize; 4],
    x: View<'_>,
    w: View<'_>,
    [sums, scale, bias]: [View<'_>; 3],
    out: &mut ViewMut<'_>,
    step: usize,
    run: Multiply<R, i8>,
) -> Result<()> {
    let (x_layout, w_layout, out_layout) = (x.layout, w.layout, out.layout);
    let vectors = [sums, scale, bias].map(|v| v.layout);
    let (x, w) = (cpu.slice::<f32>(OP, x)?, cpu.slice::<i8>(OP, w)?);
    let (sums, scale, bias) = (cpu.slice::<i32>(OP, sums)?, cpu.slice::<f32>(OP, scale)?, cpu.slice::<f32>(OP, bias)?);
    let out = Disjoint::new(cpu.slice_mut::<f32>(OP, out)?);
    let row = |i: usize| {
        let at = place(x_layout, &[i / m, i % m]);
        &x[at..at + k]
    };
    // The number of numbers in a rounded row, and how many rows a task rounds.
    let width = k.next_multiple_of(step);
    let some = COPY.div_ceil(width);
    scratch::large(cpu, 2 * groups * m, |numbers: &mut [f32]| {
        // The range of each row, and then, at the beginning of each group, its rounding.
        cpu.parallel_chunks(numbers, 2 * some, |chunk, ranges| {
            for (i, to) in ranges.chunks_exact_mut(2).enumerate() {
                to.copy_from_slice(&range(cpu.isa(), row(chunk * some + i)));
            }
        });
        for rows in numbers.chunks_exact_mut(2 * m) {
            let ranges = rows.chunks_exact(2);
            let all = ranges.fold([0.0f32; 2], |[lo, hi], row| [lo.smaller(row[0]), hi.larger(row[1])]);
            let rounding = Rounding::of(all);
            (rows[0], rows[1]) = (rounding.scale, rounding.zero);
        }
        let rounding = |group: usize| Rounding { scale: numbers[2 * group * m], zero: numbers[2 * group * m + 1] };
        scratch::large(cpu, groups * m * width, |rows: &mut [R]| {
            cpu.parallel_chunks(rows, some * width, |chunk, rows| {
                for (i, to) in rows.chunks_exact_mut(width).enumerate() {
                    let i = chunk * some + i;
                    R::round(cpu.isa(), row(i), rounding(i / m), &mut to[..k]);
                    to[k..].fill(R::default());
                }
            });
            let whole = |group: usize| Tile {
                a: rows.as_ptr().wrapping_add(group * m * width),
                width,
                rows: m,
                b: w.as_ptr().wrapping_add(place(w_layout, &[group])),
                apart: w_layout.strides()[2],
                columns: n,
                k,
                c: std::ptr::null_mut(),
                steps: [0; 2],
            };
            multiply(cpu, groups, whole, |group, [i, j], tile| {
                let count = tile.columns;
                scratch::with(tile.rows * count, |totals: &mut [i32]| {
                    let tile = Tile { c: totals.as_mut_ptr(), steps: [count as isize, 1], ..*tile };
                    // SAFETY: `check` compared the sizes, and `slice` checked that the elements of every view lie inside its
                    // data, which stays borrowed. Rows are whole, and only this task has its totals.
                    unsafe { run(cpu.isa(), &tile) };
                    let [of_sums, of_scale, of_bias] = vectors.map(|l| place(l, &[group]) + j);
                    let columns = Columns {
                        sums: &sums[of_sums..of_sums + count],
                        scale: &scale[of_scale..of_scale + count],
                        bias: &bias[of_bias..of_bias + count],
                    };
                    for (r, totals) in totals.chunks_exact(count).enumerate() {
                        let at = place(out_layout, &[group, i + r]) + j;
                        // SAFETY: no two elements of the output share a place, and each belongs to one task.
                        let out = unsafe { out.slice(at..at + count) };
                        scale_sums(cpu.isa(), add, rounding(group), totals, columns, out);
                    }
                });
            });
        });
    });
    Ok(())
}

#[cfg(test)]
#[path = "linear_i8_tests.rs"]
mod tests;
