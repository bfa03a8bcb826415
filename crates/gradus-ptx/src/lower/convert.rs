//! `cvt`.

use super::{Fun, Lower, Mods};
use crate::code::{Convert, Dst, Op};
use crate::num::{Format, Mode, f16_in, f32_bits, round};
use crate::parse::{Instruction, ParseError, Type};

impl<'a> Lower<'a> {
    pub(super) fn convert(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let (to, from) = (mods.kind()?, mods.kind()?);
        let mode = mods.mode();
        let spec = Convert {
            from,
            to,
            mode: mode.unwrap_or(Mode::Near),
            whole: mods.whole(),
            ftz: mods.takes("ftz"),
            sat: mods.takes("sat"),
            relu: mods.takes("relu"),
        };
        let two = matches!(to, Type::F16x2 | Type::BF16x2);
        if matches!(from, Type::F16x2 | Type::BF16x2 | Type::TF32 | Type::Pred) || (two && from != Type::F32) {
            return self.error(format!("there is no conversion from {from:?} to {to:?}"));
        }
        if from.is_float() && !to.is_float() && spec.whole.is_none() {
            return self.error("a conversion to a whole number needs a rounding mode");
        }
        let narrows = to.is_float() && from.is_float() && to.size() < from.size() || to == Type::TF32 || two;
        let from_whole = to.is_float() && !from.is_float();
        if (narrows || from_whole) && mode.is_none() {
            return self.error("the conversion needs a rounding mode");
        }
        self.count(&i.operands, if two { 3 } else { 2 })?;
        let d = self.dst(&i.operands[0])?;
        let a = self.src(&i.operands[1], from)?;
        if two {
            let b = self.src(&i.operands[2], from)?;
            self.emit(Op::Convert { spec, d, a, b: Some(b) });
        } else if let Some(run) = plain(spec, d) {
            self.alu(run, d, &[a]);
        } else {
            self.emit(Op::Convert { spec, d, a, b: None });
        }
        Ok(())
    }
}

/// The code of the conversions that occur most.
fn plain(spec: Convert, d: Dst) -> Option<Fun> {
    let Convert { from, to, mode, whole, ftz, sat, relu } = spec;
    if ftz || sat || relu || mode != Mode::Near {
        return None;
    }
    let wide = matches!(d, Dst::Wide(_));
    Some(match (from, to, wide) {
        (Type::F16, Type::F32, _) => v!(|x, _, _| f32_bits::<false>(f16_in(x & 0xffff) as f32)),
        (Type::BF16, Type::F32, _) => v!(|x, _, _| f32_bits::<false>(f32::from_bits(x << 16))),
        (Type::F32, Type::F16, _) => v!(|x, _, _| round(f32::from_bits(x).into(), Format::F16, Mode::Near)),
        (Type::F32, Type::BF16, _) => v!(|x, _, _| round(f32::from_bits(x).into(), Format::BF16, Mode::Near)),
        (Type::F32, Type::F64, _) => w!(|x, _, _, _| f64::from(f32::from_bits(x as u32)).to_bits()),
        (Type::F64, Type::F32, _) => w!(|x, _, _, _| f32_bits::<false>(f64::from_bits(x) as f32).into()),
        (Type::S32, Type::F32, _) => v!(|x, _, _| (x as i32 as f32).to_bits()),
        (Type::U32, Type::F32, _) => v!(|x, _, _| (x as f32).to_bits()),
        (Type::F32, Type::S32, false) if whole == Some(Mode::Zero) => v!(|x, _, _| f32::from_bits(x) as i32 as u32),
        (Type::F32, Type::U32, false) if whole == Some(Mode::Zero) => v!(|x, _, _| f32::from_bits(x) as u32),
        (Type::U32 | Type::B32, Type::U64 | Type::S64, true) => w!(|x, _, _, _| x & 0xffff_ffff),
        (Type::S32, Type::S64 | Type::U64, true) => w!(|x, _, _, _| x as u32 as i32 as u64),
        (Type::U64 | Type::S64, Type::U32 | Type::S32, false) => w!(|x, _, _, _| x & 0xffff_ffff),
        (Type::U16, Type::U32 | Type::S32, false) => v!(|x, _, _| x & 0xffff),
        (Type::S16, Type::U32 | Type::S32, false) => v!(|x, _, _| x as i16 as u32),
        (Type::U32 | Type::S32, Type::U16 | Type::S16, false) => v!(|x, _, _| x & 0xffff),
        _ => return None,
    })
}
