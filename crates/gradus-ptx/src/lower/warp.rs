//! Instructions of a warp or a block: barriers, shuffles, votes, matrices.

use super::scope::UNWANTED;
use super::{Lower, Mods};
use crate::code::{Barrier, BarrierReduce, Dst, Factor, Matrix, Op, Shuffle, Vote};
use crate::parse::{Instruction, Operand, ParseError, Type};

impl<'a> Lower<'a> {
    pub(super) fn warp_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        match i.opcode[0].as_str() {
            "bar" | "barrier" => self.barrier(i, mods)?,
            "shfl" => self.shuffle(i, mods)?,
            "vote" => self.vote(i, mods)?,
            "activemask" => {
                mods.kind()?;
                self.count(&i.operands, 1)?;
                let d = self.dst(&i.operands[0])?;
                self.emit(Op::ActiveMask { d });
            }
            "match" => self.matches(i, mods)?,
            "redux" => self.redux(i, mods)?,
            "ldmatrix" => self.ldmatrix(i, mods)?,
            "mma" => self.mma(i, mods)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.skip(&["cta", "aligned"]);
        if mods.takes("warp") {
            mods.takes("sync");
            self.count(&i.operands, 1)?;
            let mask = self.src(&i.operands[0], Type::B32)?;
            self.emit(Op::WarpBarrier { mask });
            return Ok(());
        }
        let all = i.operands.as_slice();
        let (waits, reduce, id, count) = match mods.one_of(&["sync", "arrive", "red"]) {
            Some("sync") => (true, None, all.first(), all.get(1)),
            Some("arrive") => (false, None, all.first(), all.get(1)),
            Some(_) => {
                let how = mods.one_of(&["popc", "and", "or"]);
                mods.kind()?;
                let (Some(d), Some(p)) = (all.first(), all.last()) else { return self.error("bar.red needs operands") };
                let reduce = match how {
                    Some("popc") => BarrierReduce::Count(self.dst(d)?),
                    Some("and") => BarrierReduce::And(self.pred_to(d)?),
                    Some(_) => BarrierReduce::Or(self.pred_to(d)?),
                    None => return self.error("unknown reduction of a barrier"),
                };
                let p = self.pred(p)?;
                (true, Some((reduce, p)), all.get(1), if all.len() > 3 { all.get(2) } else { None })
            }
            None => return self.error("unknown barrier"),
        };
        let Some(id) = id else { return self.error("the barrier has no number") };
        let id = self.src(id, Type::U32)?;
        let count = count.map(|count| self.src(count, Type::U32)).transpose()?;
        if !waits && count.is_none() {
            return self.error("bar.arrive needs a number of threads");
        }
        self.emit(Op::Barrier(Box::new(Barrier { id, count, waits, reduce })));
        Ok(())
    }

    fn shuffle(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        if !mods.takes("sync") {
            return self.error("shfl without `.sync` does not exist on this architecture");
        }
        let kind = match mods.one_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => Shuffle::Up,
            Some("down") => Shuffle::Down,
            Some("bfly") => Shuffle::Butterfly,
            Some(_) => Shuffle::Index,
            None => return self.error("unknown shuffle"),
        };
        mods.kind()?;
        self.count(&i.operands, 5)?;
        let (d, p) = self.value_and_predicate(&i.operands[0])?;
        let a = self.src(&i.operands[1], Type::B32)?;
        let b = self.src(&i.operands[2], Type::U32)?;
        let clamp = self.src(&i.operands[3], Type::U32)?;
        let mask = self.src(&i.operands[4], Type::B32)?;
        self.emit(Op::Shuffle { kind, d, p, a, b, clamp, mask });
        Ok(())
    }

    /// `d` or `d|p`.
    fn value_and_predicate(&mut self, operand: &Operand) -> Result<(Dst, u32), ParseError> {
        match operand {
            Operand::Pair(d, p) => {
                let (d, p) = (Operand::Name(d.clone()), Operand::Name(p.clone()));
                Ok((self.dst(&d)?, self.pred_to(&p)?))
            }
            _ => Ok((self.dst(operand)?, UNWANTED)),
        }
    }

    fn vote(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        if !mods.takes("sync") {
            return self.error("vote without `.sync` does not exist on this architecture");
        }
        let how = mods.one_of(&["all", "any", "uni", "ballot"]);
        mods.kind()?;
        self.count(&i.operands, 3)?;
        let kind = match how {
            Some("ballot") => Vote::Ballot(self.dst(&i.operands[0])?),
            Some("all") => Vote::All(self.pred_to(&i.operands[0])?),
            Some("any") => Vote::Any(self.pred_to(&i.operands[0])?),
            Some(_) => Vote::Uniform(self.pred_to(&i.operands[0])?),
            None => return self.error("unknown vote"),
        };
        let p = self.pred(&i.operands[1])?;
        let mask = self.src(&i.operands[2], Type::B32)?;
        self.emit(Op::Vote { kind, p, mask });
        Ok(())
    }

    fn matches(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let all = mods.one_of(&["all", "any"]) == Some("all");
        mods.takes("sync");
        let kind = mods.kind()?;
        self.count(&i.operands, 3)?;
        let (d, p) = self.value_and_predicate(&i.operands[0])?;
        let a = self.src(&i.operands[1], kind)?;
        let mask = self.src(&i.operands[2], Type::B32)?;
        self.emit(Op::Match { all, d, p, a, mask });
        Ok(())
    }

    fn redux(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.takes("sync");
        let name = mods.one_of(&["add", "min", "max", "and", "or", "xor"]);
        let kind = mods.kind()?;
        let run: fn(u32, u32) -> u32 = match (name, kind) {
            (Some("add"), Type::U32 | Type::S32) => |x, y| x.wrapping_add(y),
            (Some("min"), Type::U32) => |x, y| x.min(y),
            (Some("max"), Type::U32) => |x, y| x.max(y),
            (Some("min"), Type::S32) => |x, y| (x as i32).min(y as i32) as u32,
            (Some("max"), Type::S32) => |x, y| (x as i32).max(y as i32) as u32,
            (Some("and"), Type::B32) => |x, y| x & y,
            (Some("or"), Type::B32) => |x, y| x | y,
            (Some("xor"), Type::B32) => |x, y| x ^ y,
            _ => return self.error("there is no such reduction of a warp"),
        };
        self.count(&i.operands, 3)?;
        let d = self.dst(&i.operands[0])?;
        let a = self.src(&i.operands[1], kind)?;
        let mask = self.src(&i.operands[2], Type::B32)?;
        self.emit(Op::Reduce { run, d, a, mask });
        Ok(())
    }

    fn ldmatrix(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.skip(&["sync", "aligned"]);
        let is_shared = mods.one_of(&["shared", "shared::cta"]).is_some();
        if !mods.takes("m8n8") || !mods.takes("b16") || !is_shared {
            return self.error("ldmatrix is supported for m8n8 and b16 of shared memory");
        }
        let transposed = mods.takes("trans");
        let count = mods.one_of(&["x1", "x2", "x4"]).map_or(0, |name| usize::from(name.as_bytes()[1] - b'0'));
        self.count(&i.operands, 2)?;
        let Operand::Vector(to) = &i.operands[0] else { return self.error("ldmatrix gives registers in braces") };
        let to = to.iter().map(|one| self.dst(one)).collect::<Result<Vec<_>, _>>()?;
        if to.len() != count {
            return self.error("the registers of ldmatrix do not fit its number of matrices");
        }
        let address = self.shared_address(&i.operands[1])?;
        self.emit(Op::LoadMatrix { address, to, transposed });
        Ok(())
    }

    fn mma(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.skip(&["sync", "aligned"]);
        let k = match mods.one_of(&["m16n8k4", "m16n8k8", "m16n8k16"]) {
            Some("m16n8k4") => 4,
            Some("m16n8k8") => 8,
            Some(_) => 16,
            None => return self.error("mma is supported for m16n8k4, m16n8k8 and m16n8k16"),
        };
        if !mods.takes("row") || !mods.takes("col") {
            return self.error("mma needs `.row.col`");
        }
        let (d, a, b, c) = (mods.kind()?, mods.kind()?, mods.kind()?, mods.kind()?);
        let factor = match (a, k) {
            (Type::F16, 8 | 16) => Factor::F16,
            (Type::BF16, 8 | 16) => Factor::BF16,
            (Type::TF32, 4 | 8) => Factor::TF32,
            _ => return self.error(format!("mma has no factors of type {a:?} with {k} columns")),
        };
        let sums_fit = [c, d].iter().all(|kind| *kind == Type::F32 || (*kind == Type::F16 && factor == Factor::F16));
        if a != b || !sums_fit {
            return self.error("the types of mma do not fit together");
        }
        self.count(&i.operands, 4)?;
        // A register holds two halves, or one tf32 number; a warp has 32 of each.
        let per = if factor == Factor::TF32 { 1 } else { 2 };
        let sums = |kind: Type| if kind == Type::F16 { 2 } else { 4 };
        let counts = [sums(d), 16 * k / 32 / per, 8 * k / 32 / per, sums(c)];
        for (operand, count) in i.operands.iter().zip(counts) {
            if !matches!(operand, Operand::Vector(all) if all.len() == count) {
                return self.error(format!("mma needs {count} registers in braces here"));
            }
        }
        let list = |at: usize| match &i.operands[at] {
            Operand::Vector(all) => all.as_slice(),
            _ => &[],
        };
        let to = list(0).iter().map(|one| self.dst(one)).collect::<Result<Vec<_>, _>>()?;
        let mut read = |at: usize, kind| list(at).iter().map(|one| self.src(one, kind)).collect::<Result<Vec<_>, _>>();
        let (a, b, c_sums) = (read(1, Type::B32)?, read(2, Type::B32)?, read(3, Type::F32)?);
        let (half_in, half_out) = (c == Type::F16, d == Type::F16);
        self.emit(Op::Matrix(Box::new(Matrix { factor, k, half_in, half_out, d: to, a, b, c: c_sums })));
        Ok(())
    }
}
