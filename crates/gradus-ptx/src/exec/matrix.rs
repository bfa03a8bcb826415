//! `mma.sync` and `ldmatrix`.
//!
//! The layouts are those of the PTX manual's figures: lane `l` belongs to group `g = l / 4` and is number `t = l % 4` in it.
//! Registers of A hold rows `g` and `g + 8`; those of B hold column `g`; those of the sums hold rows `g` and `g + 8` and
//! columns `2 t` and `2 t + 1`.

use super::race::Access;
use super::warp::Warp;
use super::{Context, Mistake};
use crate::code::{Address, Dst, Factor, Matrix, Src, V, Window};
use crate::num::{Format, Mode, bf16_in, f16_in, f32_bits, round};

/// The number in a register of a factor; `half` is which half of the register.
fn number(factor: Factor, register: u32, half: usize) -> f64 {
    match factor {
        Factor::F16 => f16_in(register >> (16 * half) & 0xffff),
        Factor::BF16 => bf16_in(register >> (16 * half) & 0xffff),
        // The lower 13 bits of a tf32 number do not count.
        Factor::TF32 => f32::from_bits(register & !0x1fff).into(),
    }
}

impl Warp {
    fn rows(&self, context: &Context<'_>, from: &[Src]) -> Vec<V> {
        let mut buffer = [0; 32];
        from.iter().map(|src| *self.v(context, *src, &mut buffer)).collect()
    }

    /// 16 x 8 sums of products of 16 x `k` and `k` x 8 factors, each rounded once.
    pub(super) fn matrix(&mut self, context: &mut Context<'_>, matrix: &Matrix) {
        let (a, b) = (self.rows(context, &matrix.a), self.rows(context, &matrix.b));
        let c = self.rows(context, &matrix.c);
        let k = matrix.k;
        // How many numbers a register holds, and how many columns of A a pair of registers covers.
        let per = if matrix.factor == Factor::TF32 { 1 } else { 2 };
        let span = 4 * per;
        let mut left = [[0.0; 16]; 16];
        let mut right = [[0.0; 16]; 8];
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for (at, register) in a.iter().enumerate() {
                for half in 0..per {
                    let (row, column) = (g + 8 * (at % 2), at / 2 * span + t * per + half);
                    left[row][column] = number(matrix.factor, register[lane], half);
                }
            }
            for (at, register) in b.iter().enumerate() {
                for half in 0..per {
                    right[g][at * span + t * per + half] = number(matrix.factor, register[lane], half);
                }
            }
        }
        let mut out = [[0u32; 32]; 4];
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for at in 0..4 {
                let (row, column) = (g + 8 * (at / 2), 2 * t + at % 2);
                let start = if matrix.half_in {
                    f16_in(c[at / 2][lane] >> (16 * (at % 2)) & 0xffff)
                } else {
                    f32::from_bits(c[at][lane]).into()
                };
                let products = left[row][..k].iter().zip(&right[column][..k]).map(|(x, y)| x * y);
                let sum = start + products.sum::<f64>();
                if matrix.half_out {
                    out[at / 2][lane] |= round(sum, Format::F16, Mode::Near) << (16 * (at % 2));
                } else {
                    out[at][lane] = f32_bits::<false>(sum as f32);
                }
            }
        }
        for (d, value) in matrix.d.iter().zip(&out) {
            self.put_narrow(*d, u32::MAX, value);
        }
    }

    /// 8 x 8 matrices of 16-bit numbers: lanes `8 m` to `8 m + 7` give the addresses of the rows of matrix `m`.
    pub(super) fn load_matrix(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        address: &Address,
        to: &[Dst],
        transposed: bool,
    ) -> Result<(), Box<Mistake>> {
        let addresses = self.addresses(context, address);
        for (matrix, d) in to.iter().enumerate() {
            let mut rows = [[0u32; 4]; 8];
            for (row, words) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                let at = addresses[lane];
                context.aligned(pc, lane as u32, at, 16)?;
                let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
                for (part, word) in words.iter_mut().enumerate() {
                    let target = super::access::target(Window::Shared, at + 4 * part as u64);
                    *word = self.read_part(context, access, target, 4)?;
                }
            }
            let half = |row: usize, column: usize| rows[row][column / 2] >> (16 * (column % 2)) & 0xffff;
            let value: V = std::array::from_fn(|lane| {
                let (g, t) = (lane / 4, lane % 4);
                if transposed { half(2 * t, g) | half(2 * t + 1, g) << 16 } else { rows[g][t] }
            });
            self.put_narrow(*d, u32::MAX, &value);
        }
        Ok(())
    }
}
