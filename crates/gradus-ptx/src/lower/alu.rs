//! Integer and logic instructions.

use super::{Fun, Lower, Mods};
use crate::code::{Dst, Op, Src};
use crate::parse::{Instruction, Number, Operand, ParseError, Type};

impl<'a> Lower<'a> {
    pub(super) fn alu_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        let name = i.opcode[0].as_str();
        let is_float = i.opcode[1..].iter().any(|part| Type::named(part).is_some_and(Type::is_float));
        if is_float {
            return Ok(false);
        }
        let carries = i.opcode.iter().any(|part| part == "cc");
        match name {
            "addc" | "subc" => self.carry_add(i, name, mods)?,
            "add" | "sub" if carries => self.carry_add(i, name, mods)?,
            "madc" => self.carry_mad(i, name, mods)?,
            "mad" if carries => self.carry_mad(i, name, mods)?,
            "mul" | "mad" => self.product(i, mods)?,
            "mov" | "and" | "or" | "xor" | "not" if i.opcode.iter().any(|part| part == "pred") => {
                self.logic(i, mods)?
            }
            "shl" | "shr" => self.shift(i, mods)?,
            "shf" => self.funnel(i, mods)?,
            "popc" | "clz" | "bfind" => self.counted(i, mods)?,
            "bfe" | "bfi" => self.field(i, mods)?,
            "lop3" => self.lop3(i, mods)?,
            "prmt" => self.prmt(i, mods)?,
            "dp4a" | "dp2a" => self.dot(i, mods)?,
            "mul24" | "mad24" => self.product24(i, mods)?,
            _ => return self.plain(i, mods),
        }
        Ok(true)
    }

    /// Emits an operation on operands of one type, the first of which is the result.
    pub(super) fn typed(&mut self, operands: &[Operand], kind: Type, count: usize, run: Fun) -> Result<(), ParseError> {
        self.count(operands, count + 1)?;
        let d = self.dst(&operands[0])?;
        let from = operands[1..].iter().map(|one| self.src(one, kind)).collect::<Result<Vec<_>, _>>()?;
        self.alu(run, d, &from);
        Ok(())
    }

    fn plain(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        let name = i.opcode[0].as_str();
        let known =
            ["add", "sub", "div", "rem", "min", "max", "abs", "neg", "and", "or", "xor", "not", "cnot", "brev", "sad"];
        if !known.contains(&name) {
            return Ok(false);
        }
        let kind = mods.kind()?;
        if matches!(name, "add" | "sub") && mods.takes("sat") {
            let run = match (name, kind) {
                ("add", Type::S32) => v!(|x, y, _| (x as i32).saturating_add(y as i32) as u32),
                ("sub", Type::S32) => v!(|x, y, _| (x as i32).saturating_sub(y as i32) as u32),
                _ => return self.error("`.sat` is for s32 only"),
            };
            self.typed(&i.operands, kind, 2, run)?;
            return Ok(true);
        }
        if matches!(name, "min" | "max") && mods.takes("relu") {
            return self.error("`.relu` is not supported here");
        }
        let (count, run) = match name {
            "add" => (2, ints!(kind, |x, y, _| T x.wrapping_add(y))),
            "sub" => (2, ints!(kind, |x, y, _| T x.wrapping_sub(y))),
            "div" => (2, ints!(kind, |x, y, _| T if y == 0 { !0 } else { x.wrapping_div(y) })),
            "rem" => (2, ints!(kind, |x, y, _| T if y == 0 { !0 } else { x.wrapping_rem(y) })),
            "min" => (2, ints!(kind, |x, y, _| T x.min(y))),
            "max" => (2, ints!(kind, |x, y, _| T x.max(y))),
            "abs" => (1, absolute(kind)),
            "neg" => (1, ints!(kind, |x, _, _| T(0 as T).wrapping_sub(x))),
            "and" => (2, ints!(kind, |x, y, _| T x & y)),
            "or" => (2, ints!(kind, |x, y, _| T x | y)),
            "xor" => (2, ints!(kind, |x, y, _| T x ^ y)),
            "not" => (1, ints!(kind, |x, _, _| T !x)),
            "cnot" => (1, ints!(kind, |x, _, _| T T::from(x == 0))),
            "brev" => (1, ints!(kind, |x, _, _| T x.reverse_bits())),
            _ => {
                (3, ints!(kind, |x, y, z| T z.wrapping_add(if x < y { y.wrapping_sub(x) } else { x.wrapping_sub(y) })))
            }
        };
        let Some(run) = run else { return self.error(format!("`{name}` has no type {kind:?}")) };
        self.typed(&i.operands, kind, count, run)?;
        Ok(true)
    }

    fn carry_add(&mut self, i: &'a Instruction, name: &str, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let writes = mods.takes("cc");
        let kind = mods.kind()?;
        self.count(&i.operands, 3)?;
        let d = self.dst(&i.operands[0])?;
        let (a, b) = (self.src(&i.operands[1], kind)?, self.src(&i.operands[2], kind)?);
        let c = self.constant(0);
        let run: fn(u64, u64, u64, u64) -> (u64, u64) = match (name.starts_with("add"), kind.size()) {
            (true, 4) => |a, b, _, carry| {
                let sum = u64::from(a as u32) + u64::from(b as u32) + carry;
                (sum & 0xffff_ffff, sum >> 32)
            },
            (true, 8) => |a, b, _, carry| {
                let sum = u128::from(a) + u128::from(b) + u128::from(carry);
                (sum as u64, (sum >> 64) as u64)
            },
            // The carry holds the borrow.
            (false, 4) => |a, b, _, borrow| {
                let rest = u64::from(a as u32).wrapping_sub(u64::from(b as u32)).wrapping_sub(borrow);
                (rest & 0xffff_ffff, rest >> 63)
            },
            (false, 8) => |a, b, _, borrow| {
                let rest = u128::from(a).wrapping_sub(u128::from(b)).wrapping_sub(u128::from(borrow));
                (rest as u64, (rest >> 127) as u64)
            },
            _ => return self.error("carries are for 32 and 64 bits"),
        };
        self.emit(Op::Carry { run, d, from: [a, b, c], reads: name.ends_with('c'), writes });
        Ok(())
    }

    fn carry_mad(&mut self, i: &'a Instruction, name: &str, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let writes = mods.takes("cc");
        let high = mods.one_of(&["lo", "hi"]) == Some("hi");
        let kind = mods.kind()?;
        self.count(&i.operands, 4)?;
        let d = self.dst(&i.operands[0])?;
        let mut from = [self.constant(0); 3];
        for (at, operand) in i.operands[1..].iter().enumerate() {
            from[at] = self.src(operand, kind)?;
        }
        let run: fn(u64, u64, u64, u64) -> (u64, u64) = match (kind, high) {
            (Type::U32 | Type::S32, false) => |a, b, c, carry| {
                let sum = u64::from((a as u32).wrapping_mul(b as u32)) + u64::from(c as u32) + carry;
                (sum & 0xffff_ffff, sum >> 32)
            },
            (Type::U32, true) => |a, b, c, carry| {
                let product = (u64::from(a as u32) * u64::from(b as u32)) >> 32;
                let sum = product + u64::from(c as u32) + carry;
                (sum & 0xffff_ffff, sum >> 32)
            },
            (Type::S32, true) => |a, b, c, carry| {
                let product = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32;
                let sum = u64::from(product) + u64::from(c as u32) + carry;
                (sum & 0xffff_ffff, sum >> 32)
            },
            (Type::U64 | Type::S64, false) => |a, b, c, carry| {
                let sum = u128::from(a.wrapping_mul(b)) + u128::from(c) + u128::from(carry);
                (sum as u64, (sum >> 64) as u64)
            },
            (Type::U64, true) => |a, b, c, carry| {
                let sum = ((u128::from(a) * u128::from(b)) >> 64) + u128::from(c) + u128::from(carry);
                (sum as u64, (sum >> 64) as u64)
            },
            _ => return self.error(format!("`{name}` with a carry has no type {kind:?}")),
        };
        self.emit(Op::Carry { run, d, from, reads: name == "madc", writes });
        Ok(())
    }

    fn product(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let part = mods.one_of(&["lo", "hi", "wide"]);
        let kind = mods.kind()?;
        let adds = i.opcode[0] == "mad";
        if adds && part == Some("hi") && mods.takes("sat") {
            return self.error("`.sat` is not supported here");
        }
        let run = match part {
            Some("lo") => ints!(kind, |x, y, z| T x.wrapping_mul(y).wrapping_add(z)),
            Some("hi") => match kind {
                Type::U16 => Some(v!(|x, y, z| ((x * y) >> 16).wrapping_add(z) & 0xffff)),
                Type::S16 => Some(v!(|x, y, z| ((i32::from(x as i16) * i32::from(y as i16)) >> 16)
                    .wrapping_add(z as i32) as u32
                    & 0xffff)),
                Type::U32 => Some(v!(|x, y, z| (((u64::from(x) * u64::from(y)) >> 32) as u32).wrapping_add(z))),
                Type::S32 => {
                    Some(v!(|x, y, z| (((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32).wrapping_add(z)))
                }
                Type::U64 => Some(w!(|x, y, z, _| (((u128::from(x) * u128::from(y)) >> 64) as u64).wrapping_add(z))),
                Type::S64 => Some(w!(
                    |x, y, z, _| (((i128::from(x as i64) * i128::from(y as i64)) >> 64) as u64).wrapping_add(z)
                )),
                _ => None,
            },
            Some("wide") => match kind {
                Type::U16 => Some(v!(|x, y, z| ((x & 0xffff) * (y & 0xffff)).wrapping_add(z))),
                Type::S16 => {
                    Some(v!(|x, y, z| (i32::from(x as i16) * i32::from(y as i16)).wrapping_add(z as i32) as u32))
                }
                Type::U32 => Some(w!(|x, y, z, _| (u64::from(x as u32) * u64::from(y as u32)).wrapping_add(z))),
                Type::S32 => {
                    Some(w!(|x, y, z, _| (i64::from(x as i32) * i64::from(y as i32)).wrapping_add(z as i64) as u64))
                }
                _ => None,
            },
            _ => None,
        };
        let Some(run) = run else {
            return self.error("a product needs `.lo`, `.hi` or `.wide` and a type that has it");
        };
        if !adds {
            return self.typed(&i.operands, kind, 2, run);
        }
        self.count(&i.operands, 4)?;
        let d = self.dst(&i.operands[0])?;
        let (a, b) = (self.src(&i.operands[1], kind)?, self.src(&i.operands[2], kind)?);
        // The summand of a wide product has twice the width.
        let wide = if part == Some("wide") { if kind.size() == 2 { Type::B32 } else { Type::B64 } } else { kind };
        let c = self.src(&i.operands[3], wide)?;
        self.alu(run, d, &[a, b, c]);
        Ok(())
    }

    fn product24(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let high = mods.one_of(&["lo", "hi"]) == Some("hi");
        let kind = mods.kind()?;
        let run = match (kind, high) {
            (Type::U32, false) => v!(|x, y, z| (x & 0xff_ffff).wrapping_mul(y & 0xff_ffff).wrapping_add(z)),
            (Type::S32, false) => {
                v!(|x, y, z| (((x as i32) << 8 >> 8).wrapping_mul((y as i32) << 8 >> 8) as u32).wrapping_add(z))
            }
            (Type::U32, true) => {
                v!(|x, y, z| (((u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff)) >> 16) as u32).wrapping_add(z))
            }
            (Type::S32, true) => v!(|x, y, z| {
                let product = i64::from((x as i32) << 8 >> 8) * i64::from((y as i32) << 8 >> 8);
                ((product >> 16) as u32).wrapping_add(z)
            }),
            _ => return self.error("24-bit products are for u32 and s32"),
        };
        self.typed(&i.operands, kind, if i.opcode[0] == "mad24" { 3 } else { 2 }, run)
    }

    fn logic(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.kind()?;
        let (count, run): (usize, fn(u32, u32) -> u32) = match i.opcode[0].as_str() {
            "mov" => (1, |a, _| a),
            "not" => (1, |a, _| !a),
            "and" => (2, |a, b| a & b),
            "or" => (2, |a, b| a | b),
            _ => (2, |a, b| a ^ b),
        };
        self.count(&i.operands, count + 1)?;
        let d = self.pred_to(&i.operands[0])?;
        let a = self.pred(&i.operands[1])?;
        let b = if count == 2 { self.pred(&i.operands[2])? } else { a };
        self.emit(Op::Logic { run, d, a, b });
        Ok(())
    }

    fn shift(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        self.count(&i.operands, 3)?;
        let d = self.dst(&i.operands[0])?;
        let (a, by) = (self.src(&i.operands[1], kind)?, self.src(&i.operands[2], Type::U32)?);
        let right = i.opcode[0] == "shr";
        let run = match (kind, right) {
            (Type::B16 | Type::U16 | Type::S16, false) => v!(|x, by, _| if by > 15 { 0 } else { x << by & 0xffff }),
            (Type::B32 | Type::U32 | Type::S32, false) => v!(|x, by, _| if by > 31 { 0 } else { x << by }),
            (Type::B64 | Type::U64 | Type::S64, false) => {
                w!(|x, by, _, _| if by as u32 > 63 { 0 } else { x << (by as u32) })
            }
            (Type::B16 | Type::U16, true) => v!(|x, by, _| if by > 15 { 0 } else { (x & 0xffff) >> by }),
            (Type::S16, true) => v!(|x, by, _| (i32::from(x as i16) >> by.min(15)) as u32 & 0xffff),
            (Type::B32 | Type::U32, true) => v!(|x, by, _| if by > 31 { 0 } else { x >> by }),
            (Type::S32, true) => v!(|x, by, _| (x as i32 >> by.min(31)) as u32),
            (Type::B64 | Type::U64, true) => w!(|x, by, _, _| if by as u32 > 63 { 0 } else { x >> (by as u32) }),
            (Type::S64, true) => w!(|x, by, _, _| (x as i64 >> (by as u32).min(63)) as u64),
            _ => return self.error(format!("a shift has no type {kind:?}")),
        };
        self.alu(run, d, &[a, by]);
        Ok(())
    }

    fn funnel(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let left = mods.one_of(&["l", "r"]) == Some("l");
        let clamp = mods.one_of(&["clamp", "wrap"]) == Some("clamp");
        let kind = mods.kind()?;
        let run = match (left, clamp) {
            (true, true) => v!(|low, high, by| ((u64::from(high) << 32 | u64::from(low)) << by.min(32) >> 32) as u32),
            (true, false) => v!(|low, high, by| ((u64::from(high) << 32 | u64::from(low)) << (by & 31) >> 32) as u32),
            (false, true) => v!(|low, high, by| ((u64::from(high) << 32 | u64::from(low)) >> by.min(32)) as u32),
            (false, false) => v!(|low, high, by| ((u64::from(high) << 32 | u64::from(low)) >> (by & 31)) as u32),
        };
        self.typed(&i.operands, kind, 3, run)
    }

    fn counted(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let amount = mods.takes("shiftamt");
        let kind = mods.kind()?;
        let run = match (i.opcode[0].as_str(), kind, amount) {
            ("popc", Type::B32, false) => v!(|x, _, _| x.count_ones()),
            ("popc", Type::B64, false) => w!(|x, _, _, _| x.count_ones().into()),
            ("clz", Type::B32, false) => v!(|x, _, _| x.leading_zeros()),
            ("clz", Type::B64, false) => w!(|x, _, _, _| x.leading_zeros().into()),
            ("bfind", Type::U32, false) => v!(|x, _, _| 31u32.wrapping_sub(x.leading_zeros())),
            ("bfind", Type::U32, true) => v!(|x, _, _| if x == 0 { !0 } else { x.leading_zeros() }),
            ("bfind", Type::S32, false) => {
                v!(|x, _, _| 31u32.wrapping_sub((x ^ (x as i32 >> 31) as u32).leading_zeros()))
            }
            ("bfind", Type::S32, true) => v!(|x, _, _| {
                let bits = x ^ (x as i32 >> 31) as u32;
                if bits == 0 { !0 } else { bits.leading_zeros() }
            }),
            ("bfind", Type::U64, false) => w!(|x, _, _, _| u64::from(63u32.wrapping_sub(x.leading_zeros()))),
            ("bfind", Type::S64, false) => {
                w!(|x, _, _, _| u64::from(63u32.wrapping_sub((x ^ (x as i64 >> 63) as u64).leading_zeros())))
            }
            ("bfind", Type::U64, true) => w!(|x, _, _, _| if x == 0 { 0xffff_ffff } else { x.leading_zeros().into() }),
            (name, ..) => return self.error(format!("`{name}` has no type {kind:?}")),
        };
        self.typed(&i.operands, kind, 1, run)
    }

    fn field(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        let inserts = i.opcode[0] == "bfi";
        let run = match (inserts, kind) {
            (false, Type::U32) => v!(|x, at, len| extract(x.into(), at, len, 32, false) as u32),
            (false, Type::S32) => v!(|x, at, len| extract(x.into(), at, len, 32, true) as u32),
            (false, Type::U64) => w!(|x, at, len, _| extract(x, at as u32, len as u32, 64, false)),
            (false, Type::S64) => w!(|x, at, len, _| extract(x, at as u32, len as u32, 64, true)),
            (true, Type::B32) => w!(|x, y, at, len| insert(x, y, at as u32, len as u32, 32)),
            (true, Type::B64) => w!(|x, y, at, len| insert(x, y, at as u32, len as u32, 64)),
            _ => return self.error(format!("a bit field has no type {kind:?}")),
        };
        self.count(&i.operands, if inserts { 5 } else { 4 })?;
        let d = self.dst(&i.operands[0])?;
        let values = if inserts { 2 } else { 1 };
        let mut from = Vec::new();
        for (at, operand) in i.operands[1..].iter().enumerate() {
            from.push(self.src(operand, if at < values { kind } else { Type::U32 })?);
        }
        self.alu(run, d, &from);
        Ok(())
    }

    fn lop3(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.kind()?;
        self.count(&i.operands, 5)?;
        if !matches!(i.operands[4], Operand::Number(Number::Int(_))) {
            return self.error("the table of lop3 must be a constant");
        }
        let run = w!(|x, y, z, table| {
            let mut out = 0;
            for row in 0..8 {
                let (p, q, r) =
                    (0u64.wrapping_sub(row >> 2 & 1), 0u64.wrapping_sub(row >> 1 & 1), 0u64.wrapping_sub(row & 1));
                out |= !(x ^ p) & !(y ^ q) & !(z ^ r) & 0u64.wrapping_sub(table >> row & 1);
            }
            out & 0xffff_ffff
        });
        self.typed(&i.operands, Type::B32, 4, run)
    }

    fn prmt(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        self.typed(&i.operands, kind, 3, v!(|x, y, selector| permute(x, y, selector)))
    }

    fn dot(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let low = match (i.opcode[0].as_ref(), mods.one_of(&["lo", "hi"])) {
            ("dp4a", None) => None,
            ("dp2a", Some(half)) => Some(half == "lo"),
            _ => return self.error("dp2a takes the lower or the upper bytes, .lo or .hi, and dp4a all"),
        };
        macro_rules! run {
            ($a:expr, $half:expr, $b:expr) => {
                match low {
                    None => v!(|x, y, z| sum(z, x.to_le_bytes().map($a), y.to_le_bytes().map($b))),
                    Some(true) => v!(|x, y, z| sum(z, halves(x).map($half), y.to_le_bytes().map($b))),
                    Some(false) => v!(|x, y, z| sum(z, halves(x).map($half), (y >> 16).to_le_bytes().map($b))),
                }
            };
        }
        let run = match (mods.kind()?, mods.kind()?) {
            (Type::U32, Type::U32) => run!(i32::from, i32::from, i32::from),
            (Type::U32, Type::S32) => run!(i32::from, i32::from, |b| i32::from(b as i8)),
            (Type::S32, Type::U32) => run!(|a| i32::from(a as i8), |a| i32::from(a as i16), i32::from),
            (Type::S32, Type::S32) => run!(|a| i32::from(a as i8), |a| i32::from(a as i16), |b| i32::from(b as i8)),
            _ => return self.error("the factors are u32 and s32"),
        };
        self.typed(&i.operands, Type::B32, 3, run)
    }

    /// A copy of a register to a new one of the same kind, for instructions that need an operand twice.
    pub(super) fn result_src(d: Dst) -> Option<Src> {
        match d {
            Dst::Half(at) | Dst::Row(at) => Some(Src::Row(at)),
            Dst::Wide(at) => Some(Src::Wide(at)),
            Dst::None => None,
        }
    }
}

fn absolute(kind: Type) -> Option<Fun> {
    Some(match kind {
        Type::S16 => v!(|x, _, _| (x as i16).unsigned_abs().into()),
        Type::S32 => v!(|x, _, _| (x as i32).unsigned_abs()),
        Type::S64 => w!(|x, _, _, _| (x as i64).unsigned_abs()),
        _ => return None,
    })
}

fn halves(x: u32) -> [u16; 2] {
    [x as u16, (x >> 16) as u16]
}

/// `z`, and the products of as many elements as the shorter list has.
fn sum<const N: usize>(z: u32, x: [i32; N], y: [i32; 4]) -> u32 {
    z.wrapping_add(x.into_iter().zip(y).map(|(x, y)| x * y).sum::<i32>() as u32)
}

/// `bfe`: the position and the length are taken modulo 256.
fn extract(x: u64, at: u32, len: u32, bits: u32, signed: bool) -> u64 {
    let (at, len) = (at & 0xff, len & 0xff);
    let top = bits - 1;
    let sign = signed && len > 0 && x >> (at + len - 1).min(top) & 1 == 1;
    let taken = if at > top { 0 } else { len.min(bits - at) };
    let field = if taken == 0 { 0 } else { x >> at & (u64::MAX >> (64 - taken)) };
    let all = u64::MAX >> (64 - bits);
    if !sign || taken >= bits { field } else { (field | u64::MAX << taken) & all }
}

/// `bfi`: the position and the length are taken modulo 256.
fn insert(x: u64, y: u64, at: u32, len: u32, bits: u32) -> u64 {
    let (at, len) = (at & 0xff, len & 0xff);
    if at >= bits || len == 0 {
        return y;
    }
    let mask = (u64::MAX >> (64 - len.min(bits - at))) << at;
    y & !mask | x << at & mask
}

fn permute(x: u32, y: u32, selector: u32) -> u32 {
    let bytes = (u64::from(y) << 32 | u64::from(x)).to_le_bytes();
    let pick = |at: u32| {
        let code = selector >> (4 * at);
        let byte = bytes[(code & 7) as usize];
        if code & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_follow_the_manual() {
        assert_eq!(extract(0xabcd_1234, 8, 12, 32, false), 0xd12);
        assert_eq!(extract(0xabcd_1234, 8, 12, 32, true), 0xffff_fd12);
        assert_eq!(extract(0x8000_0000, 40, 4, 32, true), 0xffff_ffff);
        assert_eq!(extract(0x8000_0000, 28, 9, 32, true), 0xffff_fff8);
        assert_eq!(extract(u64::MAX, 0, 0, 64, true), 0);
        assert_eq!(extract(1 << 63, 0, 64, 64, true), 1 << 63);
        assert_eq!(insert(0xab, 0, 8, 8, 32), 0xab00);
        assert_eq!(insert(0xab, 0xffff_ffff, 28, 8, 32), 0xbfff_ffff);
        assert_eq!(insert(1, 7, 64, 1, 64), 7);
        assert_eq!(permute(0x3322_1100, 0x7766_5544, 0x7531), 0x7755_3311);
        assert_eq!(permute(0x80, 0, 0x8888), 0xffff_ffff);
    }
}
