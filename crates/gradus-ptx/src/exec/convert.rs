//! Conversions between numbers of all types, lane by lane.

use super::warp::Warp;
use super::{Context, lanes};
use crate::code::{Convert, Dst, Src};
use crate::num::{Format, Mode, NAN32, bf16_in, directed, f16_in, round};
use crate::parse::Type;

impl Warp {
    pub(super) fn convert(
        &mut self,
        context: &Context<'_>,
        active: u32,
        spec: &Convert,
        d: Dst,
        a: Src,
        b: Option<Src>,
    ) {
        let (mut high, mut low, mut out) = ([0; 32], [0; 32], [0; 32]);
        self.w(context, a, &mut high);
        if let Some(b) = b {
            self.w(context, b, &mut low);
        }
        for lane in lanes(active) {
            out[lane] = match b {
                // The first operand becomes the upper half.
                Some(_) => convert(spec, high[lane]) << 16 | convert(spec, low[lane]),
                None => convert(spec, high[lane]),
            };
        }
        // Whole numbers are extended to the register's width, as their type's sign says.
        if !spec.to.is_float() {
            for value in &mut out {
                *value = extended(spec.to, *value);
            }
        }
        self.put_w(d, active, &out);
    }
}

/// The bits of a whole number of a type, extended to 64.
fn extended(kind: Type, bits: u64) -> u64 {
    match kind {
        Type::S8 => bits as i8 as u64,
        Type::S16 => bits as i16 as u64,
        Type::S32 => bits as i32 as u64,
        Type::U8 | Type::B8 => bits & 0xff,
        Type::U16 | Type::B16 => bits & 0xffff,
        Type::U32 | Type::B32 => bits & 0xffff_ffff,
        _ => bits,
    }
}

/// The least and the greatest whole number of a type.
fn range(kind: Type) -> (i128, i128) {
    let bits = 8 * kind.size();
    if kind.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// One conversion.
fn convert(spec: &Convert, bits: u64) -> u64 {
    let Convert { from, to, mode, whole, ftz, sat, relu } = *spec;
    if !from.is_float() {
        let value = extended(from, bits);
        let value = if from.is_signed() { i128::from(value as i64) } else { i128::from(value) };
        if !to.is_float() {
            let (least, most) = range(to);
            return if sat { value.clamp(least, most) as u64 } else { value as u64 };
        }
        // The nearest f64 and what it lacks make a number rounded to odd.
        let near = value as f64;
        let error = value - near as i128;
        if to == Type::F64 {
            return directed(near, error as f64, mode).to_bits();
        }
        let odd = crate::num::odd(near, error as f64);
        return finished(odd, to, mode, ftz, sat, relu);
    }
    let mut x = match from {
        Type::F16 => f16_in(bits as u32 & 0xffff),
        Type::BF16 => bf16_in(bits as u32 & 0xffff),
        Type::F32 => f32::from_bits(bits as u32).into(),
        _ => f64::from_bits(bits),
    };
    if ftz && from == Type::F32 && x.abs() < f64::from(f32::MIN_POSITIVE) {
        x = 0f64.copysign(x);
    }
    if let Some(whole) = whole {
        x = match whole {
            Mode::Near | Mode::Away => x.round_ties_even(),
            Mode::Zero => x.trunc(),
            Mode::Down => x.floor(),
            Mode::Up => x.ceil(),
        };
    }
    if to.is_float() {
        return finished(x, to, mode, ftz, sat, relu);
    }
    if x.is_nan() {
        let is_long = from == Type::F64 || matches!(to, Type::S64 | Type::U64);
        return if is_long { 1 << (8 * to.size() - 1) } else { 0 };
    }
    let (least, most) = range(to);
    (x as i128).clamp(least, most) as u64
}

/// A number in its format, clamped where that is asked for.
fn finished(mut x: f64, to: Type, mode: Mode, ftz: bool, sat: bool, relu: bool) -> u64 {
    if sat {
        x = if x >= 1.0 {
            1.0
        } else if x > 0.0 {
            x
        } else {
            0.0
        };
    }
    if relu && x <= 0.0 {
        x = 0.0;
    }
    let format = match to {
        Type::F64 => return x.to_bits(),
        Type::F16 | Type::F16x2 => Format::F16,
        Type::BF16 | Type::BF16x2 => Format::BF16,
        Type::TF32 if x.is_nan() => return NAN32.into(),
        Type::TF32 => return u64::from(round(x, Format::TF32, mode)) << 13,
        _ => Format::F32,
    };
    let bits = round(x, format, mode);
    let subnormal = ftz && to == Type::F32 && bits & 0x7f80_0000 == 0;
    u64::from(if subnormal { bits & 1 << 31 } else { bits })
}
