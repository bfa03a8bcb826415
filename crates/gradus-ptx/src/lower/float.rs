//! Instructions on f32 and f64.

use super::{Fun, Lower, Mods};
use crate::code::Dst;
use crate::num::{self, Format, Mode, NAN32, f32_bits, f32_in, round};
use crate::parse::{Instruction, ParseError, Type};

/// An f32 operation that gives an f32, with and without flushing.
macro_rules! f32_op {
    ($ftz:expr, |$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        if $ftz {
            f32_op!(one true, |$x, $y, $z| $e)
        } else {
            f32_op!(one false, |$x, $y, $z| $e)
        }
    };
    (one $ftz:literal, |$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        v!(|x, y, z| {
            let ($x, $y, $z) = (f32_in::<$ftz>(x), f32_in::<$ftz>(y), f32_in::<$ftz>(z));
            let result: f32 = $e;
            f32_bits::<$ftz>(result)
        })
    };
}

/// An f32 operation with a rounding mode: `near` gives the result to nearest, `odd` an f64 rounded to odd.
macro_rules! f32_modes {
    ($mode:expr, $ftz:expr, |$x:ident, $y:ident, $z:ident| $near:expr, $odd:expr) => {
        match $mode {
            Mode::Near | Mode::Away => f32_op!($ftz, |$x, $y, $z| $near),
            Mode::Zero => f32_op!($ftz, |$x, $y, $z| directed($odd, Mode::Zero)),
            Mode::Down => f32_op!($ftz, |$x, $y, $z| directed($odd, Mode::Down)),
            Mode::Up => f32_op!($ftz, |$x, $y, $z| directed($odd, Mode::Up)),
        }
    };
}

/// An f64 operation that gives an f64.
macro_rules! f64_op {
    (|$x:pat_param, $y:pat_param, $z:pat_param| $e:expr) => {
        w!(|x, y, z, _| {
            let ($x, $y, $z) = (f64::from_bits(x), f64::from_bits(y), f64::from_bits(z));
            let result: f64 = $e;
            result.to_bits()
        })
    };
}

/// An f64 operation with a rounding mode: `near` gives the result to nearest, `at` takes the mode.
macro_rules! f64_modes {
    ($mode:expr, |$x:ident, $y:ident, $z:ident| $near:expr, $at:expr) => {
        match $mode {
            Mode::Near | Mode::Away => f64_op!(|$x, $y, $z| $near),
            Mode::Zero => f64_op!(|$x, $y, $z| $at(Mode::Zero)),
            Mode::Down => f64_op!(|$x, $y, $z| $at(Mode::Down)),
            Mode::Up => f64_op!(|$x, $y, $z| $at(Mode::Up)),
        }
    };
}

fn directed(odd: f64, mode: Mode) -> f32 {
    f32::from_bits(round(odd, Format::F32, mode))
}

/// A zero sum is negative when rounding down, unless both summands are positive zeros.
fn add_odd(x: f32, y: f32, mode_down: bool) -> f64 {
    let sum = num::add_odd(x.into(), y.into());
    let mixed = x.is_sign_negative() != y.is_sign_negative();
    if sum == 0.0 && mixed && mode_down { -0.0 } else { sum }
}

/// `x * y + z` with the zero of [`add_odd`].
fn fma_odd(x: f32, y: f32, z: f32, mode_down: bool) -> f64 {
    let product = f64::from(x) * f64::from(y);
    let sum = num::fma_odd(x.into(), y.into(), z.into());
    let mixed = product.is_sign_negative() != z.is_sign_negative();
    if sum == 0.0 && mixed && mode_down { -0.0 } else { sum }
}

fn fma(x: f32, y: f32, z: f32) -> f32 {
    num::fma_odd(x.into(), y.into(), z.into()) as f32
}

impl<'a> Lower<'a> {
    pub(super) fn float_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        let name = i.opcode[0].as_str();
        let known = [
            "add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh",
            "min", "max", "abs", "neg", "copysign",
        ];
        if !known.contains(&name) {
            return Ok(false);
        }
        let kind = mods.kind()?;
        match kind {
            Type::F32 => self.single(i, name, mods)?,
            Type::F64 => self.double(i, name, mods)?,
            Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2 => self.half_instruction(i, name, kind, mods)?,
            _ => return self.error(format!("`{name}` has no type {kind:?}")),
        }
        Ok(true)
    }

    fn single(&mut self, i: &'a Instruction, name: &str, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let (ftz, sat) = (mods.takes("ftz"), mods.takes("sat"));
        let approx = mods.one_of(&["approx", "full"]).is_some();
        let mode = mods.mode();
        let near = mode.unwrap_or(Mode::Near);
        let nan = matches!(name, "min" | "max") && mods.takes("NaN");
        if approx && mode.is_some() {
            return self.error("an approximate instruction has no rounding mode");
        }
        let down = near == Mode::Down;
        let (count, run) = match name {
            "add" if down => (2, f32_op!(ftz, |x, y, _| directed(add_odd(x, y, true), Mode::Down))),
            "sub" if down => (2, f32_op!(ftz, |x, y, _| directed(add_odd(x, -y, true), Mode::Down))),
            "fma" | "mad" if down => (3, f32_op!(ftz, |x, y, z| directed(fma_odd(x, y, z, true), Mode::Down))),
            "add" => (2, f32_modes!(near, ftz, |x, y, _z| x + y, add_odd(x, y, false))),
            "sub" => (2, f32_modes!(near, ftz, |x, y, _z| x - y, add_odd(x, -y, false))),
            "mul" => (2, f32_modes!(near, ftz, |x, y, _z| x * y, f64::from(x) * f64::from(y))),
            "fma" | "mad" if near == Mode::Near && !ftz => (3, Fun::V(num::fma_row)),
            "fma" | "mad" => (3, f32_modes!(near, ftz, |x, y, z| fma(x, y, z), fma_odd(x, y, z, false))),
            "div" => (2, f32_modes!(near, ftz, |x, y, _z| x / y, num::div_odd(x.into(), y.into()))),
            "rcp" => (1, f32_modes!(near, ftz, |x, _y, _z| 1.0 / x, num::div_odd(1.0, x.into()))),
            "sqrt" => (1, f32_modes!(near, ftz, |x, _y, _z| x.sqrt(), num::sqrt_odd(x.into()))),
            "rsqrt" => (1, f32_op!(ftz, |x, _, _| (1.0 / f64::from(x).sqrt()) as f32)),
            "ex2" => (1, f32_op!(ftz, |x, _, _| f64::from(x).exp2() as f32)),
            "lg2" => (1, f32_op!(ftz, |x, _, _| f64::from(x).log2() as f32)),
            "sin" => (1, f32_op!(ftz, |x, _, _| f64::from(x).sin() as f32)),
            "cos" => (1, f32_op!(ftz, |x, _, _| f64::from(x).cos() as f32)),
            "tanh" => (1, f32_op!(ftz, |x, _, _| f64::from(x).tanh() as f32)),
            "min" if nan => (2, f32_op!(ftz, |x, y, _| num::min::<true>(x.into(), y.into()) as f32)),
            "max" if nan => (2, f32_op!(ftz, |x, y, _| num::max::<true>(x.into(), y.into()) as f32)),
            "min" => (2, f32_op!(ftz, |x, y, _| num::min::<false>(x.into(), y.into()) as f32)),
            "max" => (2, f32_op!(ftz, |x, y, _| num::max::<false>(x.into(), y.into()) as f32)),
            "abs" => (
                1,
                if ftz {
                    v!(|x, _, _| f32_bits::<true>(f32_in::<true>(x & !(1 << 31))))
                } else {
                    v!(|x, _, _| x & !(1 << 31))
                },
            ),
            "neg" => (
                1,
                if ftz {
                    v!(|x, _, _| f32_bits::<true>(f32_in::<true>(x ^ 1 << 31)))
                } else {
                    v!(|x, _, _| x ^ 1 << 31)
                },
            ),
            _ => (2, v!(|x, y, _| x & 1 << 31 | y & !(1 << 31))),
        };
        let exact_only = ["rsqrt", "ex2", "lg2", "sin", "cos", "tanh"];
        if !approx && exact_only.contains(&name)
            || !approx && mode.is_none() && matches!(name, "div" | "rcp" | "sqrt" | "fma")
        {
            return self.error(format!("`{name}.f32` needs a rounding mode or `.approx`"));
        }
        self.typed(&i.operands, Type::F32, count, run)?;
        if sat {
            let d = self.dst(&i.operands[0])?;
            self.saturate(
                d,
                v!(|x, _, _| {
                    let x = f32::from_bits(x);
                    if x >= 1.0 {
                        1f32.to_bits()
                    } else if x > 0.0 {
                        x.to_bits()
                    } else {
                        0
                    }
                }),
            );
        }
        Ok(())
    }

    /// Applies an operation to a result.
    pub(super) fn saturate(&mut self, d: Dst, run: Fun) {
        if let Some(from) = Self::result_src(d) {
            self.alu(run, d, &[from]);
        }
    }

    fn double(&mut self, i: &'a Instruction, name: &str, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let ftz = mods.takes("ftz");
        let approx = mods.takes("approx");
        let mode = mods.mode();
        let near = mode.unwrap_or(Mode::Near);
        if (ftz && !approx) || (approx && !matches!(name, "rcp" | "rsqrt")) {
            return self.error(format!("`{name}.f64` has no such modifier"));
        }
        let (count, run) = match name {
            "add" => (2, f64_modes!(near, |x, y, _z| x + y, |mode| num::add64(x, y, mode))),
            "sub" => (2, f64_modes!(near, |x, y, _z| x - y, |mode| num::add64(x, -y, mode))),
            "mul" => (2, f64_modes!(near, |x, y, _z| x * y, |mode| num::mul64(x, y, mode))),
            "fma" | "mad" => (3, f64_modes!(near, |x, y, z| x.mul_add(y, z), |mode| num::fma64(x, y, z, mode))),
            "div" => (2, f64_modes!(near, |x, y, _z| x / y, |mode| num::div64(x, y, mode))),
            // The approximations give the upper half of the number.
            "rcp" if approx => (1, w!(|x, _, _, _| coarse(x, |x| 1.0 / x))),
            "rcp" => (1, f64_modes!(near, |x, _y, _z| 1.0 / x, |mode| num::div64(1.0, x, mode))),
            "sqrt" => (1, f64_modes!(near, |x, _y, _z| x.sqrt(), |mode| num::sqrt64(x, mode))),
            "rsqrt" if ftz => (1, w!(|x, _, _, _| coarse(x, |x| 1.0 / x.sqrt()))),
            "rsqrt" => (1, f64_op!(|x, _, _| 1.0 / x.sqrt())),
            "min" => (2, f64_op!(|x, y, _| num::min::<false>(x, y))),
            "max" => (2, f64_op!(|x, y, _| num::max::<false>(x, y))),
            "abs" => (1, w!(|x, _, _, _| x & !(1 << 63))),
            "neg" => (1, w!(|x, _, _, _| x ^ 1 << 63)),
            "copysign" => (2, w!(|x, y, _, _| x & 1 << 63 | y & !(1 << 63))),
            _ => return self.error(format!("`{name}` has no type f64")),
        };
        if !approx && mode.is_none() && matches!(name, "div" | "rcp" | "sqrt" | "fma" | "rsqrt") {
            return self.error(format!("`{name}.f64` needs a rounding mode or `.approx`"));
        }
        self.typed(&i.operands, Type::F64, count, run)
    }
}

/// An approximation in f64: subnormal operands and results are zero, the lower half of the bits is zero.
fn coarse(bits: u64, of: impl Fn(f64) -> f64) -> u64 {
    let flush = |bits: u64| if bits >> 52 & 0x7ff == 0 { bits & 1 << 63 } else { bits };
    let result = of(f64::from_bits(flush(bits)));
    if result.is_nan() { u64::from(NAN32) << 32 } else { flush(result.to_bits()) & !0xffff_ffff }
}
