//! Instructions on f16, bf16 and pairs of them.

use super::{Fun, Lower, Mods};
use crate::num::{self, Format, Mode, bf16_in, f16_in, round};
use crate::parse::{Instruction, ParseError, Type};

/// An operation on each half, for the type at hand. Results are rounded to nearest from what is rounded to odd.
macro_rules! halves {
    ($kind:expr, |$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        match $kind {
            Type::F16 => halves!(one f16_in, Format::F16, |$x, $y, $z| $e),
            Type::BF16 => halves!(one bf16_in, Format::BF16, |$x, $y, $z| $e),
            Type::F16x2 => halves!(two f16_in, Format::F16, |$x, $y, $z| $e),
            _ => halves!(two bf16_in, Format::BF16, |$x, $y, $z| $e),
        }
    };
    (one $in:path, $format:expr, |$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        v!(|x, y, z| {
            let ($x, $y, $z) = ($in(x), $in(y), $in(z));
            let result: f64 = $e;
            round(result, $format, Mode::Near)
        })
    };
    (two $in:path, $format:expr, |$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        v!(|x, y, z| {
            let low = { let ($x, $y, $z) = ($in(x & 0xffff), $in(y & 0xffff), $in(z & 0xffff)); let result: f64 = $e; result };
            let high = { let ($x, $y, $z) = ($in(x >> 16), $in(y >> 16), $in(z >> 16)); let result: f64 = $e; result };
            round(low, $format, Mode::Near) | round(high, $format, Mode::Near) << 16
        })
    };
}

impl<'a> Lower<'a> {
    pub(super) fn half_instruction(
        &mut self,
        i: &'a Instruction,
        name: &str,
        kind: Type,
        mods: &mut Mods<'_>,
    ) -> Result<(), ParseError> {
        let approx = matches!(name, "ex2" | "tanh") && mods.takes("approx");
        let is_f16 = matches!(kind, Type::F16 | Type::F16x2);
        // `.ftz` concerns subnormal operands and results. For ex2 of bf16 it is always written; a subnormal bf16 operand
        // gives 1 all the same, and results are flushed below.
        let ftz = mods.takes("ftz");
        let flushes = ftz && name == "ex2";
        if ftz && !flushes {
            return self.error(format!("`.ftz` of `{name}` is not supported for halves"));
        }
        let mode = mods.mode().unwrap_or(Mode::Near);
        let (sat, relu) = (mods.takes("sat"), name == "fma" && mods.takes("relu"));
        let nan = matches!(name, "min" | "max") && mods.takes("NaN");
        if mode != Mode::Near || (sat && (!is_f16 || !matches!(name, "add" | "sub" | "mul" | "fma"))) {
            return self.error(format!("`{name}` of halves has no such modifier"));
        }
        let (count, run) = match name {
            "add" => (2, halves!(kind, |x, y, _| num::add_odd(x, y))),
            "sub" => (2, halves!(kind, |x, y, _| num::add_odd(x, -y))),
            "mul" => (2, halves!(kind, |x, y, _| x * y)),
            "fma" => (3, halves!(kind, |x, y, z| num::fma_odd(x, y, z))),
            "min" if nan => (2, halves!(kind, |x, y, _| num::min::<true>(x, y))),
            "max" if nan => (2, halves!(kind, |x, y, _| num::max::<true>(x, y))),
            "min" => (2, halves!(kind, |x, y, _| num::min::<false>(x, y))),
            "max" => (2, halves!(kind, |x, y, _| num::max::<false>(x, y))),
            "ex2" if approx => (1, halves!(kind, |x, _, _| x.exp2())),
            "tanh" if approx => (1, halves!(kind, |x, _, _| x.tanh())),
            "abs" => (1, signs(kind, true)),
            "neg" => (1, signs(kind, false)),
            _ => return self.error(format!("`{name}` has no type {kind:?}")),
        };
        self.typed(&i.operands, kind, count, run)?;
        let d = self.dst(&i.operands[0])?;
        if sat {
            self.saturate(
                d,
                halves!(kind, |x, _, _| if x >= 1.0 {
                    1.0
                } else if x > 0.0 {
                    x
                } else {
                    0.0
                }),
            );
        }
        if relu {
            self.saturate(d, halves!(kind, |x, _, _| if x.is_nan() || x > 0.0 { x } else { 0.0 }));
        }
        if flushes {
            let run = if is_f16 {
                halves!(kind, |x, _, _| if x.abs() < 2f64.powi(-14) { 0.0 } else { x })
            } else {
                halves!(kind, |x, _, _| if x.abs() < 2f64.powi(-126) { 0.0 } else { x })
            };
            self.saturate(d, run);
        }
        Ok(())
    }
}

/// The absolute value or the negation.
fn signs(kind: Type, absolute: bool) -> Fun {
    match (kind, absolute) {
        (Type::F16 | Type::BF16, true) => v!(|x, _, _| x & 0x7fff),
        (Type::F16 | Type::BF16, false) => v!(|x, _, _| x & 0xffff ^ 0x8000),
        (_, true) => v!(|x, _, _| x & 0x7fff_7fff),
        (_, false) => v!(|x, _, _| x ^ 0x8000_8000),
    }
}
