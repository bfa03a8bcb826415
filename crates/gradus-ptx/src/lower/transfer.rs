//! Moves between registers, and conversions of addresses and numbers.

use super::{Lower, Mods};
use crate::code::{Dst, Op};
use crate::parse::{Instruction, Operand, ParseError, Type};

impl<'a> Lower<'a> {
    pub(super) fn transfer_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        match i.opcode[0].as_str() {
            "mov" => self.mov(i, mods)?,
            "cvt" => self.convert(i, mods)?,
            "cvta" => self.cvta(i, mods)?,
            "isspacep" => self.isspacep(i, mods)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let kind = mods.kind()?;
        self.count(&i.operands, 2)?;
        let bits = 8 * kind.size();
        match (&i.operands[0], &i.operands[1]) {
            (d, Operand::Vector(parts)) => {
                let part = self.part(bits, parts.len())?;
                let d = self.dst(d)?;
                let from = parts.iter().map(|one| self.src(one, part)).collect::<Result<Vec<_>, _>>()?;
                self.emit(Op::Pack { d, from, bits: 8 * part.size() });
            }
            (Operand::Vector(parts), a) => {
                let part = self.part(bits, parts.len())?;
                let from = self.src(a, kind)?;
                let d = parts.iter().map(|one| self.dst(one)).collect::<Result<Vec<_>, _>>()?;
                self.emit(Op::Unpack { d, from, bits: 8 * part.size() });
            }
            (d, a) => {
                let d = self.dst(d)?;
                let a = self.src(a, kind)?;
                match d {
                    Dst::Row(d) | Dst::Half(d) => self.emit(Op::Move { d, a }),
                    d => self.emit(Op::MoveWide { d, a }),
                }
            }
        }
        Ok(())
    }

    /// The type of a part of a vector of bits.
    fn part(&self, bits: u32, count: usize) -> Result<Type, ParseError> {
        match (bits, count) {
            (16, 2) | (32, 4) => Ok(Type::B8),
            (32, 2) | (64, 4) => Ok(Type::B16),
            (64, 2) => Ok(Type::B32),
            _ => self.error(format!("{bits} bits cannot be split into {count} parts")),
        }
    }
}
