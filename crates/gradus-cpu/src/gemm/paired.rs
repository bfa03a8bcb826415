//! Products of bf16 with the instruction that performs two steps at once, if the processor has it.
//!
//! The instruction adds two products to a sum and rounds after each. The product of the upper halves of two words comes
//! first. With an even step in the upper half and the next step in the lower half, a word extends a chain (see
//! [`kernel`](super::kernel)) by exactly two steps. The only difference is that the instruction treats subnormal
//! numbers as zero. [`fits`] finds the products in which none occurs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use gradus_backend::{DType, Result, View, bf16};

use super::OP;
use super::block::STEPS;
use super::kernel::{Micro, Real, Store};
use super::pack::{Mat, Pack, pack_panel, pack_strided, round};
use super::plan::Plan;
use crate::CpuBackend;
use crate::access::{Float, Plain};
use crate::half_float::{bf16_from_f32, bf16_to_f32};
use crate::isa::{Isa, per_isa_256};

/// A bf16 whose products are computed in pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
pub(crate) struct Paired(bf16);

// SAFETY: this is a transparent wrapper of bf16.
unsafe impl Plain for Paired {
    fn holds(dtype: DType) -> bool {
        dtype == DType::BF16
    }
}

impl Float for Paired {
    type Compute = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        bf16_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Paired {
        Paired(bf16_from_f32(x))
    }
}

/// Two adjacent steps. Widening them yields the word that the instruction reads, which does not represent a number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
struct Word([u16; 2]);

// SAFETY: this is a transparent wrapper of two u16, and no dtype is stored as it.
unsafe impl Plain for Word {
    fn holds(_: DType) -> bool {
        false
    }
}

impl Float for Word {
    type Compute = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        word(self.0[0], self.0[1])
    }

    #[inline(always)]
    fn narrow(x: f32) -> Word {
        Word([(x.to_bits() >> 16) as u16, x.to_bits() as u16])
    }
}

/// Combines an even step and the odd step after it into a word.
#[inline(always)]
fn word(even: u16, odd: u16) -> f32 {
    f32::from_bits(u32::from(even) << 16 | u32::from(odd))
}

/// Returns the matrix of the words of `m` along axis 1 (if `across`) or axis 0. Elements must be adjacent along this
/// axis.
fn words(m: Mat<'_, Paired>, across: bool) -> Mat<'_, Word> {
    if across { m.cast(1, 2) } else { m.cast(2, 1) }
}

/// Writes `ks` steps of `cols` columns of `b` as words, with 0 for missing steps and columns. The result has `width`
/// words for each pair of steps.
///
/// # Safety
/// The elements lie inside `b`, where they are adjacent along a row, `cols <= width`, and `out` has room.
#[inline(always)]
unsafe fn interleave(b: Mat<'_, Paired>, ks: usize, cols: usize, width: usize, out: &mut [f32]) {
    for (p, out) in out[..ks.div_ceil(2) * width].chunks_exact_mut(width).enumerate() {
        // SAFETY: row `2 * p < ks` lies inside `b`.
        let even = unsafe { std::slice::from_raw_parts(b.from(2 * p, 0).as_ptr(), cols) };
        let (out, rest) = out.split_at_mut(cols);
        if 2 * p + 1 < ks {
            // SAFETY: the row after it lies inside `b` too.
            let odd = unsafe { std::slice::from_raw_parts(b.from(2 * p + 1, 0).as_ptr(), cols) };
            for ((o, even), odd) in out.iter_mut().zip(even).zip(odd) {
                *o = word(even.0.to_bits(), odd.0.to_bits());
            }
        } else {
            out.iter_mut().zip(even).for_each(|(o, even)| *o = word(even.0.to_bits(), 0));
        }
        rest.fill(0.0);
    }
}

/// See [`Pack::rows`].
///
/// # Safety
/// As for [`Pack::rows`].
#[inline(always)]
unsafe fn rows(isa: Isa, a: Mat<'_, Paired>, rows: usize, ks: usize, lda: usize, out: &mut [f32]) {
    // SAFETY: guaranteed by the caller. If rows are not adjacent, columns are, as `fits` checked.
    unsafe {
        for (i, out) in (0..rows).step_by(lda).zip(out.chunks_exact_mut(lda * ks)) {
            let (a, rows) = (a.from(i, 0), lda.min(rows - i));
            if a.has_adjacent_rows() {
                interleave(a.transposed(), ks, rows, lda, out);
                continue;
            }
            pack_strided(isa, words(a, true), rows, ks / 2, lda, &mut out[..ks / 2 * lda]);
            if ks % 2 == 1 {
                let last = &mut out[ks / 2 * lda..][..rows];
                last.iter_mut().enumerate().for_each(|(r, o)| *o = word(a.get(r, ks - 1).0.to_bits(), 0));
            }
        }
    }
}

/// See [`Pack::panel`].
///
/// # Safety
/// As for [`Pack::panel`].
#[inline(always)]
unsafe fn panel(isa: Isa, b: Mat<'_, Paired>, ks: usize, cols: usize, width: usize, out: &mut [f32]) {
    // SAFETY: as above.
    unsafe {
        if b.has_adjacent_cols() {
            interleave(b, ks, cols, width, out);
        } else {
            pack_panel(isa, words(b, false), ks / 2, cols, width, out);
            if ks % 2 == 1 {
                let last = &mut out[ks / 2 * width..][..width];
                last.fill(0.0);
                last[..cols].iter_mut().enumerate().for_each(|(j, o)| *o = word(b.get(ks - 1, j).0.to_bits(), 0));
            }
        }
    }
}

per_isa_256! {
    fn paired_rows(isa: Isa, a: Mat<'_, Paired>, count: usize, ks: usize, lda: usize, out: &mut [f32]) =
        // SAFETY: only `Pack::rows` calls this, and its caller upholds the contract.
        |isa, a, count, ks, lda, out| unsafe { rows(isa, a, count, ks, lda, out) };
    fn paired_panel(isa: Isa, b: Mat<'_, Paired>, ks: usize, cols: usize, width: usize, out: &mut [f32]) =
        // SAFETY: only `Pack::panel` calls this, and its caller upholds the contract.
        |isa, b, ks, cols, width, out| unsafe { panel(isa, b, ks, cols, width, out) };
    fn paired_round(from: &[f32], to: &mut [Paired]) = round::<Paired>;
    /// Returns one less than the bits of the smallest nonzero magnitude, or 65535 if all numbers are zero.
    fn smallest(x: &[bf16]) -> u16 = |x: &[bf16]| x.iter().fold(u16::MAX, |s, x| s.min((x.to_bits() & 0x7fff).wrapping_sub(1)));
}

impl Pack for Paired {
    unsafe fn rows(isa: Isa, a: Mat<'_, Self>, rows: usize, ks: usize, lda: usize, out: &mut [f32]) {
        paired_rows(isa, isa, a, rows, ks, lda, out)
    }

    unsafe fn panel(isa: Isa, b: Mat<'_, Self>, ks: usize, cols: usize, width: usize, out: &mut [f32]) {
        paired_panel(isa, isa, b, ks, cols, width, out)
    }

    fn round(isa: Isa, from: &[f32], to: &mut [Self]) {
        paired_round(isa, from, to)
    }

    fn steps(ks: usize) -> usize {
        ks.div_ceil(2)
    }

    unsafe fn run(_: Isa, j: &Micro<f32>) {
        // SAFETY: `fits` checked that the processor has the instruction. The rest is guaranteed by the caller.
        unsafe { run(j) }
    }
}

/// # Safety
/// As for [`Real::run`]. The processor must also have the instruction.
unsafe fn run(j: &Micro<f32>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller.
    unsafe {
        super::kernel::bf16_avx512(j);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no processor of this architecture has chains of pairs: {j:?}");
}

/// Returns whether the processor has the instruction, adds the upper product first and rounds after each product.
fn has_chains(isa: Isa) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    #[cfg(target_arch = "x86_64")]
    if isa.level() == crate::isa::Level::Avx512 {
        return *FOUND.get_or_init(|| is_x86_feature_detected!("avx512bf16") && rounds_in_order(isa));
    }
    let _ = (isa, &FOUND);
    false
}

/// Returns whether the instruction and fused multiply-adds compute the same product of one row.
fn rounds_in_order(isa: Isa) -> bool {
    const PAIRS: usize = 16;
    let width = <f32 as Real>::panel(isa);
    let mut state = 1u32;
    let mut number = |_| {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        // Any sign and mantissa, and an exponent within 2 of the exponent of 1.
        (state >> 16) as u16 & 0x807f | (125 + (state >> 9) as u16 % 4) << 7
    };
    let a: Vec<u16> = (0..2 * PAIRS).map(&mut number).collect();
    let b: Vec<u16> = (0..2 * PAIRS * width).map(&mut number).collect(); // at most a panel
    let wide = |x: u16| bf16_to_f32(bf16::from_bits(x));
    let chain = |j: usize| (0..2 * PAIRS).fold(0.0, |sum, p| wide(a[p]).fused(wide(b[p * width + j]), sum));
    let a_words: Vec<f32> = a.chunks_exact(2).map(|a| word(a[0], a[1])).collect();
    let b_word = |i: usize| word(b[i / width * 2 * width + i % width], b[(i / width * 2 + 1) * width + i % width]);
    let b_words: Vec<f32> = (0..PAIRS * width).map(b_word).collect(); // at most a panel
    let mut sums = vec![0.0; width]; // at most a panel
    let micro = Micro {
        rows: 1,
        vectors: 2,
        k: PAIRS,
        a: a_words.as_ptr(),
        row: 1,
        split: 0,
        gap: 0,
        steps: STEPS[1].as_ptr(),
        b: b_words.as_ptr(),
        ldb: width as isize,
        next: b_words.as_ptr(),
        next_by: 0,
        c: sums.as_mut_ptr(),
        ldc: width as isize,
        store: Store::Set,
        alpha: 1.0,
        beta: 0.0,
    };
    // SAFETY: the words are `PAIRS` steps of one row and of a panel, and `sums` is a row of the panel's width.
    unsafe { run(&micro) };
    (0..width).all(|j| sums[j].to_bits() == chain(j).to_bits())
}

/// The minimum number of rows and of columns for which it pays off to examine the operands of a product.
const WORTH: usize = 8;

/// Returns whether a product of bf16 can be computed in pairs with the same bits as the chains.
///
/// Every product of two elements is a multiple of the product of the operands' smallest units, and so is every rounded
/// sum of such products. If the product of the units is at least the smallest normal f32, no intermediate result is
/// subnormal.
pub(super) fn fits(cpu: &CpuBackend, plan: &Plan, a: &View<'_>, b: &View<'_>) -> Result<bool> {
    // Either the steps of an operand must be contiguous, or the rows of A and the columns of B.
    let lies_well = |along: isize, step: isize| step == 1 || along == 1;
    let [[ar, ac], [br, bc], _] = plan.strides;
    if plan.m.min(plan.n) < WORTH || !lies_well(ar, ac) || !lies_well(bc, br) {
        return Ok(false);
    }
    if !has_chains(cpu.isa()) {
        return Ok(false);
    }
    let exponent = |v: &View<'_>| -> Result<u32> {
        let all = &cpu.slice::<bf16>(OP, *v)?[v.layout.span()];
        if all.len() > 4 * v.layout.numel() {
            return Ok(0);
        }
        const CHUNK: usize = 1 << 16;
        let least = AtomicU16::new(u16::MAX);
        cpu.parallel_for(all.len().div_ceil(CHUNK), 1, |chunks| {
            for c in chunks {
                let chunk = &all[c * CHUNK..all.len().min((c + 1) * CHUNK)];
                least.fetch_min(smallest(cpu.isa(), chunk), Ordering::Relaxed);
            }
        });
        Ok((u32::from(least.into_inner()) + 1) >> 7)
    };
    // The unit of a number with exponent `e` is 2^(e - 134), and the smallest normal f32 is 2^-126.
    let (a, b) = (exponent(a)?, exponent(b)?);
    Ok(a > 0 && b > 0 && a + b >= 2 * 134 - 126)
}

#[cfg(test)]
mod tests {
    use gradus_backend::Backend;

    use super::*;
    use crate::testing::{Lie, Tensor, assert_same_bits, float, noise};

    #[test]
    fn words_keep_their_bits() {
        for pair in [[0, 0x8000], [0x7f80, 1], [0xffff, 0x3f80]] {
            assert_eq!(Word::narrow(Word(pair).widen()), Word(pair));
        }
    }

    /// The smallest numbers determine which kernel runs. Either way, the bits must equal those of the other instruction
    /// sets.
    #[test]
    fn pairs_change_no_bit_however_small_the_numbers() {
        for scale in [1.0, 2f64.powi(-50), 2f64.powi(-64), 2f64.powi(-68), 2f64.powi(-126), 2f64.powi(-130)] {
            for [m, n, k] in [[40, 50, 401], [9, 100, 2], [64, 33, 64]] {
                for (lie, to) in [(Lie::Contiguous, Lie::Transposed), (Lie::Transposed, Lie::Contiguous)] {
                    assert_same_bits(|cpu| {
                        let small = |seed| {
                            let mut f = noise(seed);
                            move |i| f(i) * scale
                        };
                        let a = Tensor::new(cpu, DType::BF16, &[m, k], lie, small(1));
                        let b = Tensor::new(cpu, DType::BF16, &[k, n], to, small(2));
                        let mut c = Tensor::new(cpu, DType::BF16, &[m, n], Lie::Contiguous, noise(3));
                        let alpha = float(scale.powi(-2).min(1e30));
                        cpu.gemm(alpha, a.view(), b.view(), float(0.5), &mut c.view_mut()).unwrap();
                        c.bytes(cpu)
                    });
                }
            }
        }
    }
}
