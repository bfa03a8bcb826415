//! What names stand for: registers, variables, labels, special registers.

use super::Lower;
use super::scope::{DYNAMIC, GAP, LOCAL_START, Register, Scope, UNWANTED, Variable};
use crate::code::{ALWAYS, Address, Dst, Late, Op, Pred, Special, Src, Window};
use crate::parse::{Declared, Number, Operand, ParseError, Type};
use crate::variable::Space;

impl<'a> Lower<'a> {
    pub(super) fn scopes(&mut self) -> &mut Vec<Scope<'a>> {
        if self.frames.is_empty() {
            self.frames.push(Vec::new());
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        let scopes = self.scopes();
        if scopes.is_empty() {
            scopes.push(Scope::default());
        }
        let last = scopes.len() - 1;
        &mut scopes[last]
    }

    pub(super) fn declare_registers(&mut self, kind: Type, names: &'a [(String, Option<u32>)]) {
        for (name, count) in names {
            match count {
                Some(count) => self.scope().prefixes.push((name, *count, kind)),
                None => {
                    let register = self.new_register(kind);
                    self.scope().registers.insert(name.clone(), register);
                }
            }
        }
    }

    pub(super) fn declare_variable(&mut self, declared: &'a Declared) {
        let place = match declared.space {
            Space::Shared if declared.size == 0 => Variable::Shared(DYNAMIC),
            Space::Shared => Variable::Shared(self.new_shared(declared.size, declared.align)),
            Space::Param => Variable::Param(self.new_local(declared.size, declared.align)),
            _ => Variable::Local(self.new_local(declared.size, declared.align)),
        };
        self.scope().variables.insert(&declared.name, place);
    }

    fn new_shared(&mut self, size: u64, align: u64) -> u64 {
        let end = self.code.shared.last().map_or(0, |(offset, size)| offset + size + GAP);
        let offset = end.next_multiple_of(align.max(GAP));
        self.code.shared.push((offset, size));
        offset
    }

    pub(super) fn new_local(&mut self, size: u64, align: u64) -> u64 {
        let end = self.code.local.last().map_or(LOCAL_START, |(offset, size)| offset + size + GAP);
        let offset = end.next_multiple_of(align.max(GAP));
        self.code.local.push((offset, size));
        offset
    }

    pub(super) fn new_row(&mut self) -> u32 {
        self.code.rows += 1;
        self.code.rows - 1
    }

    pub(super) fn new_wide(&mut self) -> u32 {
        self.code.rows += 2;
        self.code.rows - 2
    }

    fn new_register(&mut self, kind: Type) -> Register {
        match kind.size() {
            0 => {
                self.code.preds += 1;
                Register::Pred(self.code.preds - 1)
            }
            1 | 2 => Register::Half(self.new_row()),
            4 => Register::Row(self.new_row()),
            _ => Register::Wide(self.new_wide()),
        }
    }

    fn register(&mut self, name: &str) -> Option<Register> {
        let depth = self.scopes().len();
        for at in (0..depth).rev() {
            let scope = &mut self.scopes()[at];
            if let Some(found) = scope.registers.get(name) {
                return Some(*found);
            }
            let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let (prefix, number) = name.split_at(name.len() - digits);
            // A prefix may itself end with digits.
            let declared = scope.prefixes.iter().find_map(|(known, count, kind)| {
                let rest = name.strip_prefix(known)?;
                let index: u32 = if *known == prefix { number } else { rest }.parse().ok()?;
                (index < *count && *kind != Type::B128).then_some(*kind)
            });
            if let Some(kind) = declared {
                let register = self.new_register(kind);
                self.scopes()[at].registers.insert(name.into(), register);
                return Some(register);
            }
        }
        None
    }

    pub(super) fn constant(&mut self, value: u64) -> Src {
        let next = self.code.constants.len() as u32;
        let at = *self.constants.entry(value).or_insert(next);
        if at == next {
            self.code.constants.push(value);
        }
        Src::Const(at)
    }

    pub(super) fn label(&mut self, name: &str) -> Result<usize, ParseError> {
        let found = self.scopes().iter().rev().find_map(|scope| scope.labels.get(name).copied());
        match found {
            Some(label) => Ok(label),
            None => self.error(format!("unknown label `{name}`")),
        }
    }

    /// The labels that a list of targets names.
    pub(super) fn targets(&mut self, name: &str) -> Result<Vec<u32>, ParseError> {
        let found = self.scopes().iter().rev().find_map(|scope| scope.targets.get(name).copied());
        let Some(names) = found else { return self.error(format!("unknown list of targets `{name}`")) };
        names.iter().map(|name| self.label(name).map(|label| label as u32)).collect()
    }

    pub(super) fn variable(&mut self, name: &str) -> Option<(Window, Src)> {
        let local = self.scopes().iter().rev().find_map(|scope| scope.variables.get(name).copied());
        if let Some(variable) = local {
            let (window, offset) = match variable {
                Variable::Local(offset) | Variable::Param(offset) => (Window::Local, offset),
                Variable::Shared(offset) => (Window::Shared, offset),
                Variable::KernelParam(offset) => (Window::Param, offset),
            };
            return Some((window, self.constant(offset)));
        }
        let at = self.unit.variables.iter().position(|one| one.name == name)?;
        let variable = &self.unit.variables[at];
        if variable.space == Space::Shared {
            let (size, align) = (variable.size, variable.align);
            let known = self.shared.get(&at).copied();
            let offset = known.unwrap_or_else(|| if size == 0 { DYNAMIC } else { self.new_shared(size, align) });
            self.shared.insert(at, offset);
            return Some((Window::Shared, self.constant(offset)));
        }
        Some((Window::Global, self.late(at, 0)))
    }

    /// A constant with the address of a variable in global memory.
    fn late(&mut self, variable: usize, plus: i64) -> Src {
        let known = self.code.late.iter().find(|one| one.variable == variable && one.plus == plus);
        if let Some(known) = known {
            return Src::Const(known.constant);
        }
        let constant = self.code.constants.len() as u32;
        self.code.constants.push(0);
        self.code.late.push(Late { constant, variable, plus });
        Src::Const(constant)
    }

    /// The place of a parameter or result of a device function.
    pub(super) fn param_place(&mut self, name: &str) -> Result<u64, ParseError> {
        let found = self.scopes().iter().rev().find_map(|scope| scope.variables.get(name).copied());
        match found {
            Some(Variable::Param(offset)) => Ok(offset),
            _ => self.error(format!("`{name}` is not a parameter of a call")),
        }
    }

    pub(super) fn predicate(&mut self, name: &str) -> Result<u32, ParseError> {
        match self.register(name) {
            Some(Register::Pred(at)) => Ok(at),
            _ => self.error(format!("`{name}` is not a predicate")),
        }
    }

    /// A predicate that is read.
    pub(super) fn pred(&mut self, operand: &Operand) -> Result<Pred, ParseError> {
        match operand {
            Operand::Name(name) => Ok(Pred { at: self.predicate(name)?, negated: false }),
            Operand::Not(name) => Ok(Pred { at: self.predicate(name)?, negated: true }),
            Operand::Number(Number::Int(value)) => Ok(Pred { negated: *value == 0, ..ALWAYS }),
            _ => self.error("expected a predicate"),
        }
    }

    /// A predicate that is written; `_` stands for none.
    pub(super) fn pred_to(&mut self, operand: &Operand) -> Result<u32, ParseError> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(UNWANTED),
            Operand::Name(name) => self.predicate(name),
            _ => self.error("expected a predicate"),
        }
    }

    /// One or two predicates that are written.
    pub(super) fn preds_to(&mut self, operand: &Operand) -> Result<(u32, u32), ParseError> {
        match operand {
            Operand::Pair(p, q) => {
                let (p, q) = (Operand::Name(p.clone()), Operand::Name(q.clone()));
                Ok((self.pred_to(&p)?, self.pred_to(&q)?))
            }
            _ => Ok((self.pred_to(operand)?, UNWANTED)),
        }
    }

    /// A register that is written; `_` stands for none.
    pub(super) fn dst(&mut self, operand: &Operand) -> Result<Dst, ParseError> {
        let Operand::Name(name) = operand else { return self.error("expected a register") };
        if name == "_" {
            return Ok(Dst::None);
        }
        match self.register(name) {
            Some(Register::Half(at)) => Ok(Dst::Half(at)),
            Some(Register::Row(at)) => Ok(Dst::Row(at)),
            Some(Register::Wide(at)) => Ok(Dst::Wide(at)),
            Some(Register::Pred(_)) => self.error(format!("`{name}` is a predicate where a number is needed")),
            None => self.error(format!("unknown register `{name}`")),
        }
    }

    /// A value of a type.
    pub(super) fn src(&mut self, operand: &Operand, kind: Type) -> Result<Src, ParseError> {
        match operand {
            Operand::Name(name) => self.named(name, 0),
            Operand::Offset(name, plus) => self.named(name, *plus),
            Operand::Number(number) => self.literal(*number, kind),
            _ => self.error("expected a register or a constant"),
        }
    }

    fn literal(&mut self, number: Number, kind: Type) -> Result<Src, ParseError> {
        let bits = match (number, kind) {
            (Number::Int(value), _) if !matches!(kind, Type::F32 | Type::F64) => match kind.size() {
                1 => value & 0xff,
                2 => value & 0xffff,
                _ => value,
            },
            (Number::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
            (Number::F32(bits), _) if kind.size() == 4 => bits.into(),
            (Number::F64(value), Type::F32) => (value as f32).to_bits().into(),
            (Number::F64(value), _) if kind.size() == 8 => value.to_bits(),
            _ => return self.error(format!("the constant {number:?} does not fit the type {kind:?}")),
        };
        Ok(self.constant(bits))
    }

    fn named(&mut self, name: &str, plus: i64) -> Result<Src, ParseError> {
        match self.register(name) {
            Some(Register::Half(at) | Register::Row(at)) if plus == 0 => return Ok(Src::Row(at)),
            Some(Register::Wide(at)) if plus == 0 => return Ok(Src::Wide(at)),
            Some(_) => return self.error(format!("`{name}` cannot be read as a number here")),
            None => {}
        }
        if let Some((_, place)) = self.variable(name) {
            let Src::Const(at) = place else { return Ok(place) };
            if plus == 0 {
                return Ok(place);
            }
            let late = self.code.late.iter().find(|late| late.constant == at).map(|late| late.variable);
            return Ok(match late {
                Some(variable) => self.late(variable, plus),
                None => self.constant(self.code.constants[at as usize].wrapping_add_signed(plus)),
            });
        }
        if name == "WARP_SZ" {
            return Ok(self.constant(32));
        }
        let Some(which) = special(name) else { return self.error(format!("unknown name `{name}`")) };
        if name.ends_with("64") || name == "%globaltimer" {
            let wide = self.new_wide();
            self.emit(Op::Special { d: Dst::Wide(wide), which });
            return Ok(Src::Wide(wide));
        }
        let row = self.new_row();
        self.emit(Op::Special { d: Dst::Row(row), which });
        Ok(Src::Row(row))
    }

    /// An address in brackets. `window` is the space that the opcode names.
    pub(super) fn address(&mut self, operand: &Operand, window: Window) -> Result<Address, ParseError> {
        let Operand::Address(base, offset) = operand else { return self.error("expected an address in brackets") };
        let Some(name) = base else {
            return Ok(Address { window, base: self.constant(0), offset: *offset });
        };
        match self.register(name) {
            Some(Register::Row(at)) => return Ok(Address { window, base: Src::Row(at), offset: *offset }),
            Some(Register::Wide(at)) => return Ok(Address { window, base: Src::Wide(at), offset: *offset }),
            Some(_) => return self.error(format!("`{name}` cannot hold an address")),
            None => {}
        }
        match self.variable(name) {
            Some((window, base)) => Ok(Address { window, base, offset: *offset }),
            None => self.error(format!("unknown name `{name}`")),
        }
    }

    /// The operands, of which there must be this many.
    pub(super) fn count(&self, operands: &[Operand], count: usize) -> Result<(), ParseError> {
        if operands.len() == count {
            return Ok(());
        }
        self.error(format!("the instruction has {} operands, expected {count}", operands.len()))
    }
}

/// The special register of this name.
fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        _ => None,
    };
    let of = |prefix: &str| name.strip_prefix(prefix).and_then(axis);
    if let Some(axis) = of("%tid") {
        return Some(Special::Tid(axis));
    }
    if let Some(axis) = of("%ntid") {
        return Some(Special::Ntid(axis));
    }
    if let Some(axis) = of("%ctaid") {
        return Some(Special::Ctaid(axis));
    }
    if let Some(axis) = of("%nctaid") {
        return Some(Special::Nctaid(axis));
    }
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" | "%gridid" | "%gridid64" => Special::Zero,
        "%nsmid" => Special::Ones,
        "%lanemask_eq" => Special::LaneMask(|lane| 1 << lane),
        "%lanemask_lt" => Special::LaneMask(|lane| (1 << lane) - 1),
        "%lanemask_le" => Special::LaneMask(|lane| (2u32 << lane).wrapping_sub(1)),
        "%lanemask_gt" => Special::LaneMask(|lane| !(2u32 << lane).wrapping_sub(1)),
        "%lanemask_ge" => Special::LaneMask(|lane| !((1 << lane) - 1)),
        "%clock" | "%clock64" | "%globaltimer" => Special::Clock,
        "%dynamic_smem_size" => Special::SharedBytes { dynamic: true },
        "%total_smem_size" => Special::SharedBytes { dynamic: false },
        _ => return None,
    })
}
