//! Loads, stores, atomic operations, asynchronous copies, fences.

use super::{Lower, Mods};
use crate::code::{Address, Atomic, CopyAsync, Dst, Load, Op, Src, Store, Window, base};
use crate::num::{self, Format, Mode, bf16_in, f16_in, round};
use crate::parse::{Instruction, Operand, ParseError, Type};

/// What only guides caches.
const HINTS: [&str; 14] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "unified",
    "L1::evict_normal",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_unchanged",
    "L1::no_allocate",
];

/// The scopes in which an operation is ordered.
const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];

impl<'a> Lower<'a> {
    pub(super) fn memory_instruction(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        match i.opcode[0].as_str() {
            "ld" | "ldu" => self.load(i, mods)?,
            "st" => self.store(i, mods)?,
            "atom" | "red" => self.atomic(i, mods)?,
            "cp" => return self.copy(i, mods),
            "fence" | "membar" => {
                mods.skip(&["sc", "acq_rel", "acquire", "release", "gl"]);
                mods.skip(&SCOPES);
                self.emit(Op::Fence);
            }
            // These only guide caches.
            "prefetch" | "prefetchu" => {
                mods.skip(&["global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal"]);
                mods.skip_prefix("L2::");
            }
            "createpolicy" => {
                mods.skip(&["fractional", "range", "cvt", "L2", "global"]);
                mods.skip_prefix("L2::");
                mods.kind()?;
                let Some(first) = i.operands.first() else { return self.error("createpolicy has no operands") };
                let (d, a) = (self.dst(first)?, self.constant(0));
                self.emit(Op::MoveWide { d, a });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The space that an opcode names.
    fn window(&self, mods: &mut Mods<'_>) -> Result<Window, ParseError> {
        let known = ["global", "const", "shared", "shared::cta", "local", "param", "param::entry", "param::func"];
        Ok(match mods.one_of(&known) {
            None => Window::Generic,
            Some("global" | "const") => Window::Global,
            Some("shared" | "shared::cta") => Window::Shared,
            Some("local") => Window::Local,
            Some(_) => Window::Param,
        })
    }

    /// Takes what guides caches; says whether an operand holds a policy.
    fn hints(mods: &mut Mods<'_>) -> bool {
        let policy = mods.takes("L2::cache_hint");
        mods.skip(&HINTS);
        mods.skip_prefix("L2::");
        policy
    }

    /// Whether accesses are ordered among their like.
    fn strong(mods: &mut Mods<'_>) -> bool {
        let strong = mods.one_of(&["volatile", "relaxed", "acquire", "release", "mmio"]).is_some();
        mods.takes("weak");
        mods.skip(&SCOPES);
        strong
    }

    fn operand_list(operand: &Operand) -> &[Operand] {
        match operand {
            Operand::Vector(all) => all,
            one => std::slice::from_ref(one),
        }
    }

    fn load(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let strong = Self::strong(mods);
        let window = self.window(mods)?;
        let policy = Self::hints(mods);
        let lanes = mods.one_of(&["v2", "v4", "v8"]).map_or(1, |name| usize::from(name.as_bytes()[1] - b'0'));
        let kind = mods.kind()?;
        self.count(&i.operands, 2 + usize::from(policy))?;
        let to = Self::operand_list(&i.operands[0]).iter().map(|one| self.dst(one)).collect::<Result<Vec<_>, _>>()?;
        if to.len() != lanes || !matches!(kind.size(), 1 | 2 | 4 | 8) {
            return self.error("the registers of the load do not fit its type");
        }
        let address = self.address(&i.operands[1], window)?;
        self.emit(Op::Load(Box::new(Load { address, size: kind.size(), signed: kind.is_signed(), strong, to })));
        Ok(())
    }

    fn store(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let strong = Self::strong(mods);
        let window = self.window(mods)?;
        let policy = Self::hints(mods);
        let lanes = mods.one_of(&["v2", "v4", "v8"]).map_or(1, |name| usize::from(name.as_bytes()[1] - b'0'));
        let kind = mods.kind()?;
        self.count(&i.operands, 2 + usize::from(policy))?;
        let address = self.address(&i.operands[0], window)?;
        let from = Self::operand_list(&i.operands[1]).iter();
        let from = from.map(|one| self.src(one, kind)).collect::<Result<Vec<_>, _>>()?;
        if from.len() != lanes || !matches!(kind.size(), 1 | 2 | 4 | 8) {
            return self.error("the registers of the store do not fit its type");
        }
        self.emit(Op::Store(Box::new(Store { address, size: kind.size(), strong, from })));
        Ok(())
    }

    fn atomic(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        mods.skip(&["relaxed", "acquire", "release", "acq_rel", "noftz"]);
        mods.skip(&SCOPES);
        let window = self.window(mods)?;
        let policy = Self::hints(mods);
        let names = ["add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec"];
        let Some(name) = mods.one_of(&names) else { return self.error("unknown atomic operation") };
        let kind = mods.kind()?;
        let Some(update) = update(name, kind) else {
            return self.error(format!("there is no atomic `{name}` of type {kind:?}"));
        };
        let gives = i.opcode[0] == "atom";
        let count = 2 + usize::from(gives) + usize::from(name == "cas") + usize::from(policy);
        self.count(&i.operands, count)?;
        let (to, rest) =
            if gives { (self.dst(&i.operands[0])?, &i.operands[1..]) } else { (Dst::None, &i.operands[..]) };
        let address = self.address(&rest[0], window)?;
        let b = self.src(&rest[1], kind)?;
        let c = if name == "cas" { self.src(&rest[2], kind)? } else { b };
        self.emit(Op::Atomic(Box::new(Atomic { address, size: kind.size(), update, to, b, c })));
        Ok(())
    }

    fn copy(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        if !mods.takes("async") {
            return Ok(false);
        }
        if mods.takes("commit_group") {
            self.emit(Op::CopyCommit);
        } else if mods.takes("wait_all") {
            self.emit(Op::CopyCommit);
            self.emit(Op::CopyWait(0));
        } else if mods.takes("wait_group") {
            self.count(&i.operands, 1)?;
            let count = self.immediate(&i.operands[0])?;
            self.emit(Op::CopyWait(count));
        } else {
            mods.skip(&["ca", "cg"]);
            if mods.one_of(&["shared", "shared::cta"]).is_none() || !mods.takes("global") {
                return self.error("cp.async copies from global to shared memory");
            }
            let policy = Self::hints(mods);
            let given = i.operands.len() - usize::from(policy && i.operands.len() > 3);
            if !(3..=4).contains(&given) {
                return self.error("cp.async has two addresses and one or two sizes");
            }
            let size = self.immediate(&i.operands[2])?;
            if !matches!(size, 4 | 8 | 16) {
                return self.error("cp.async copies 4, 8 or 16 bytes");
            }
            let to = self.address(&i.operands[0], Window::Shared)?;
            let from = self.address(&i.operands[1], Window::Global)?;
            let source_size = if given == 4 { Some(self.src(&i.operands[3], Type::U32)?) } else { None };
            self.emit(Op::CopyAsync(Box::new(CopyAsync { to, from, size, source_size })));
        }
        Ok(true)
    }

    pub(super) fn immediate(&mut self, operand: &Operand) -> Result<u32, ParseError> {
        match self.src(operand, Type::U32)? {
            Src::Const(at) => Ok(self.code.constants[at as usize] as u32),
            _ => self.error("expected a constant"),
        }
    }

    /// `cvta`: from a space to generic addresses, or back.
    pub(super) fn cvta(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let back = mods.takes("to");
        let window = self.window(mods)?;
        let kind = mods.kind()?;
        self.count(&i.operands, 2)?;
        if window == Window::Generic || kind.size() != 8 {
            return self.error("cvta needs a state space and 64-bit addresses");
        }
        let d = self.dst(&i.operands[0])?;
        let a = self.src(&i.operands[1], kind)?;
        let start = self.constant(base(window));
        if base(window) == 0 {
            self.emit(Op::MoveWide { d, a });
        } else if back {
            self.alu(w!(|x, start, _, _| x.wrapping_sub(start)), d, &[a, start]);
        } else {
            self.alu(w!(|x, start, _, _| x.wrapping_add(start)), d, &[a, start]);
        }
        Ok(())
    }

    pub(super) fn isspacep(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<(), ParseError> {
        let window = self.window(mods)?;
        self.count(&i.operands, 2)?;
        let p = self.pred_to(&i.operands[0])?;
        let a = self.src(&i.operands[1], Type::U64)?;
        self.emit(Op::IsSpace { p, a, window });
        Ok(())
    }

    /// A shared address, for instructions that have no other.
    pub(super) fn shared_address(&mut self, operand: &Operand) -> Result<Address, ParseError> {
        self.address(operand, Window::Shared)
    }
}

/// What an atomic operation computes.
fn update(name: &str, kind: Type) -> Option<crate::code::Update> {
    macro_rules! halves {
        ($in:path, $format:expr) => {
            |old, b, _| {
                let sum = |at: u32| {
                    let (x, y) = ((old >> at & 0xffff) as u32, (b >> at & 0xffff) as u32);
                    u64::from(round(num::add_odd($in(x), $in(y)), $format, Mode::Near)) << at
                };
                sum(0) | sum(16)
            }
        };
    }
    Some(match (name, kind) {
        ("add", Type::U32 | Type::S32) => |old, b, _| (old as u32).wrapping_add(b as u32).into(),
        ("add", Type::U64 | Type::S64) => |old, b, _| old.wrapping_add(b),
        ("add", Type::F32) => {
            |old, b, _| num::f32_bits::<false>(f32::from_bits(old as u32) + f32::from_bits(b as u32)).into()
        }
        ("add", Type::F64) => |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        ("add", Type::F16) => {
            |old, b, _| round(num::add_odd(f16_in(old as u32), f16_in(b as u32)), Format::F16, Mode::Near).into()
        }
        ("add", Type::BF16) => {
            |old, b, _| round(num::add_odd(bf16_in(old as u32), bf16_in(b as u32)), Format::BF16, Mode::Near).into()
        }
        ("add", Type::F16x2) => halves!(f16_in, Format::F16),
        ("add", Type::BF16x2) => halves!(bf16_in, Format::BF16),
        ("and", Type::B32 | Type::B64) => |old, b, _| old & b,
        ("or", Type::B32 | Type::B64) => |old, b, _| old | b,
        ("xor", Type::B32 | Type::B64) => |old, b, _| old ^ b,
        ("exch", Type::B32 | Type::B64) => |_, b, _| b,
        ("cas", Type::B16 | Type::B32 | Type::B64) => |old, b, c| if old == b { c } else { old },
        ("min", Type::U32 | Type::U64) => |old, b, _| old.min(b),
        ("max", Type::U32 | Type::U64) => |old, b, _| old.max(b),
        ("min", Type::S32) => |old, b, _| (old as i32).min(b as i32) as u32 as u64,
        ("max", Type::S32) => |old, b, _| (old as i32).max(b as i32) as u32 as u64,
        ("min", Type::S64) => |old, b, _| (old as i64).min(b as i64) as u64,
        ("max", Type::S64) => |old, b, _| (old as i64).max(b as i64) as u64,
        ("inc", Type::U32) => |old, b, _| if old >= b { 0 } else { old + 1 },
        ("dec", Type::U32) => |old, b, _| if old == 0 || old > b { b } else { old - 1 },
        _ => return None,
    })
}
