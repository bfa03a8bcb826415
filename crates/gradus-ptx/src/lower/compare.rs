//! Comparisons and selections.

use super::scope::UNWANTED;
use super::{Lower, Mods};
use crate::code::{ALWAYS, Combine, Compare, Op, Pred, Src, V, W};
use crate::num::{bf16_in, f16_in, f32_in};
use crate::parse::{Instruction, Operand, ParseError, Type};

/// The lanes for which something holds.
fn lanes(holds: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..32 {
        mask |= u32::from(holds(lane)) << lane;
    }
    mask
}

/// A comparison of numbers that may be NaN, by its name. `as f64` keeps the order of all types.
macro_rules! floats {
    ($name:expr, |$x:ident| $value:expr) => {
        match $name {
            "eq" => floats!(|$x| $value, |x, y| x == y),
            "ne" => floats!(|$x| $value, |x, y| x < y || x > y),
            "lt" => floats!(|$x| $value, |x, y| x < y),
            "le" => floats!(|$x| $value, |x, y| x <= y),
            "gt" => floats!(|$x| $value, |x, y| x > y),
            "ge" => floats!(|$x| $value, |x, y| x >= y),
            "equ" => floats!(|$x| $value, |x, y| !(x < y || x > y)),
            "neu" => floats!(|$x| $value, |x, y| x != y),
            "ltu" => floats!(|$x| $value, |x, y| !(x >= y)),
            "leu" => floats!(|$x| $value, |x, y| !(x > y)),
            "gtu" => floats!(|$x| $value, |x, y| !(x <= y)),
            "geu" => floats!(|$x| $value, |x, y| !(x < y)),
            "num" => floats!(|$x| $value, |x, y| !x.is_nan() && !y.is_nan()),
            "nan" => floats!(|$x| $value, |x, y| x.is_nan() || y.is_nan()),
            _ => None,
        }
    };
    (|$v:ident| $value:expr, |$x:ident, $y:ident| $e:expr) => {
        Some(|a, b| {
            lanes(|lane| {
                let $x = {
                    let $v = a[lane];
                    $value
                };
                let $y = {
                    let $v = b[lane];
                    $value
                };
                #[allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
                let holds = $e;
                holds
            })
        })
    };
}

/// A comparison of integers by its name.
macro_rules! integers {
    ($name:expr, $signed:ty, $unsigned:ty, $is_signed:expr) => {
        match ($name, $is_signed) {
            ("eq", _) => integers!(|x: $unsigned, y| x == y),
            ("ne", _) => integers!(|x: $unsigned, y| x != y),
            ("lt", true) => integers!(|x: $signed, y| x < y),
            ("le", true) => integers!(|x: $signed, y| x <= y),
            ("gt", true) => integers!(|x: $signed, y| x > y),
            ("ge", true) => integers!(|x: $signed, y| x >= y),
            ("lt" | "lo", false) => integers!(|x: $unsigned, y| x < y),
            ("le" | "ls", false) => integers!(|x: $unsigned, y| x <= y),
            ("gt" | "hi", false) => integers!(|x: $unsigned, y| x > y),
            ("ge" | "hs", false) => integers!(|x: $unsigned, y| x >= y),
            _ => None,
        }
    };
    (|$x:ident: $t:ty, $y:ident| $e:expr) => {
        Some(|a, b| {
            lanes(|lane| {
                let ($x, $y) = (a[lane] as $t, b[lane] as $t);
                $e
            })
        })
    };
}

/// One comparison, or one for each half.
enum Found {
    One(Compare),
    Two(fn(&V, &V) -> u32, fn(&V, &V) -> u32),
}

fn find(name: &str, kind: Type, ftz: bool) -> Option<Found> {
    type Narrow = Option<fn(&V, &V) -> u32>;
    let narrow: Narrow = match kind {
        Type::F32 if ftz => floats!(name, |x| f32_in::<true>(x)),
        Type::F32 => floats!(name, |x| f32_in::<false>(x)),
        Type::F16 | Type::F16x2 => floats!(name, |x| f16_in(x & 0xffff)),
        Type::BF16 | Type::BF16x2 => floats!(name, |x| bf16_in(x & 0xffff)),
        Type::B16 | Type::U16 | Type::S16 => integers!(name, i16, u16, kind.is_signed()),
        Type::B32 | Type::U32 | Type::S32 => integers!(name, i32, u32, kind.is_signed()),
        Type::F64 => {
            let wide: Option<fn(&W, &W) -> u32> = floats!(name, |x| f64::from_bits(x));
            return wide.map(|run| Found::One(Compare::W(run)));
        }
        Type::B64 | Type::U64 | Type::S64 => {
            let wide: Option<fn(&W, &W) -> u32> = integers!(name, i64, u64, kind.is_signed());
            return wide.map(|run| Found::One(Compare::W(run)));
        }
        _ => None,
    };
    let high: Narrow = match kind {
        Type::F16x2 => floats!(name, |x| f16_in(x >> 16)),
        Type::BF16x2 => floats!(name, |x| bf16_in(x >> 16)),
        _ => None,
    };
    match high {
        Some(high) => narrow.map(|low| Found::Two(low, high)),
        None => narrow.map(|run| Found::One(Compare::V(run))),
    }
}

const NAMES: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs",
];

impl<'a> Lower<'a> {
    pub(super) fn compare_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        match i.opcode[0].as_str() {
            "setp" => self.setp(i, mods)?,
            "set" => self.set(i, mods)?,
            "selp" => {
                let kind = mods.kind()?;
                self.count(&i.operands, 4)?;
                let d = self.dst(&i.operands[0])?;
                let (a, b) = (self.src(&i.operands[1], kind)?, self.src(&i.operands[2], kind)?);
                let p = self.pred(&i.operands[3])?;
                self.emit(Op::Select { d, a, b, p });
            }
            "slct" => self.slct(i, mods)?,
            "testp" => self.testp(i, mods)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The comparison, its operands, and the predicate with which it is combined.
    fn comparison(
        &mut self,
        operands: &'a [Operand],
        mods: &mut Mods<'_>,
        kind: Type,
    ) -> Result<(Found, [Src; 2], Combine, Pred), ParseError> {
        let ftz = mods.takes("ftz");
        let Some(name) = mods.one_of(&NAMES) else { return self.error("unknown comparison") };
        let combine = match mods.one_of(&["and", "or", "xor"]) {
            Some("or") => Some(Combine::Or),
            Some("xor") => Some(Combine::Xor),
            Some(_) => Some(Combine::And),
            None => None,
        };
        let Some(found) = find(name, kind, ftz) else {
            return self.error(format!("there is no comparison `{name}` of type {kind:?}"));
        };
        self.count(operands, if combine.is_some() { 3 } else { 2 })?;
        let from = [self.src(&operands[0], kind)?, self.src(&operands[1], kind)?];
        let with = if combine.is_some() { self.pred(&operands[2])? } else { ALWAYS };
        Ok((found, from, combine.unwrap_or(Combine::And), with))
    }

    fn setp(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        let Some((to, operands)) = i.operands.split_first() else { return self.error("setp has no operands") };
        let (p, q) = self.preds_to(to)?;
        let (found, from, combine, with) = self.comparison(operands, mods, kind)?;
        match found {
            Found::One(run) => self.emit(Op::Compare { run, from, combine, with, p, q }),
            Found::Two(low, high) => self.emit(Op::CompareHalves { low, high, from, combine, with, p, q }),
        }
        Ok(())
    }

    fn set(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let (to, kind) = (mods.kind()?, mods.kind()?);
        let Some((d, operands)) = i.operands.split_first() else { return self.error("set has no operands") };
        let d = self.dst(d)?;
        let (found, from, combine, with) = self.comparison(operands, mods, kind)?;
        let one = match to {
            Type::F32 => 1f32.to_bits(),
            Type::F16 | Type::F16x2 => 0x3c00,
            Type::BF16 | Type::BF16x2 => 0x3f80,
            Type::U16 | Type::S16 => 0xffff,
            Type::U32 | Type::S32 => u32::MAX,
            _ => return self.error(format!("set gives no {to:?}")),
        };
        let (low, high) = match found {
            Found::One(run) => {
                self.emit(Op::CompareTo { run, from, combine, with, d, yes: one });
                return Ok(());
            }
            Found::Two(low, high) => (low, high),
        };
        let halves = [self.new_row(), self.new_row()];
        for (row, run) in halves.into_iter().zip([low, high]) {
            let d = crate::code::Dst::Half(row);
            self.emit(Op::CompareTo { run: Compare::V(run), from, combine, with, d, yes: one & 0xffff });
        }
        self.alu(v!(|low, high, _| low | high << 16), d, &halves.map(Src::Row));
        Ok(())
    }

    fn slct(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let ftz = mods.takes("ftz");
        let (kind, by) = (mods.kind()?, mods.kind()?);
        self.count(&i.operands, 4)?;
        let d = self.dst(&i.operands[0])?;
        let (a, b) = (self.src(&i.operands[1], kind)?, self.src(&i.operands[2], kind)?);
        let c = self.src(&i.operands[3], by)?;
        let run: fn(&V, &V) -> u32 = match by {
            Type::S32 => |c, _| lanes(|lane| c[lane] as i32 >= 0),
            // A NaN selects the second.
            Type::F32 if ftz => |c, _| lanes(|lane| f32_in::<true>(c[lane]) >= 0.0),
            Type::F32 => |c, _| lanes(|lane| f32_in::<false>(c[lane]) >= 0.0),
            _ => return self.error("slct decides by s32 or f32"),
        };
        self.code.preds += 1;
        let p = self.code.preds - 1;
        self.emit(Op::Compare {
            run: Compare::V(run),
            from: [c, c],
            combine: Combine::And,
            with: ALWAYS,
            p,
            q: UNWANTED,
        });
        self.emit(Op::Select { d, a, b, p: Pred { at: p, negated: false } });
        Ok(())
    }

    fn testp(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        let name = mods.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
        self.count(&i.operands, 2)?;
        let p = self.pred_to(&i.operands[0])?;
        let a = self.src(&i.operands[1], kind)?;
        macro_rules! test {
            ($variant:ident, $float:ty) => {
                match name {
                    Some("finite") => Compare::$variant(|a, _| lanes(|lane| <$float>::from_bits(a[lane]).is_finite())),
                    Some("infinite") => {
                        Compare::$variant(|a, _| lanes(|lane| <$float>::from_bits(a[lane]).is_infinite()))
                    }
                    Some("number") => Compare::$variant(|a, _| lanes(|lane| !<$float>::from_bits(a[lane]).is_nan())),
                    Some("notanumber") => Compare::$variant(|a, _| lanes(|lane| <$float>::from_bits(a[lane]).is_nan())),
                    // Zero counts as normal.
                    Some("normal") => Compare::$variant(|a, _| {
                        lanes(|lane| <$float>::from_bits(a[lane]).is_normal() || <$float>::from_bits(a[lane]) == 0.0)
                    }),
                    Some(_) => Compare::$variant(|a, _| lanes(|lane| <$float>::from_bits(a[lane]).is_subnormal())),
                    None => return self.error("unknown test of a number"),
                }
            };
        }
        let run = match kind {
            Type::F32 => test!(V, f32),
            Type::F64 => test!(W, f64),
            _ => return self.error("testp is for f32 and f64"),
        };
        self.emit(Op::Compare { run, from: [a, a], combine: Combine::And, with: ALWAYS, p, q: UNWANTED });
        Ok(())
    }
}
