//! From statements to compact code. Device functions are put where they are called.

#[macro_use]
mod lanes;

mod alu;
mod call;
mod compare;
mod convert;
mod float;
mod half;
mod memory;
mod mods;
mod names;
mod registers;
mod scope;
mod transfer;
mod warp;

use std::collections::HashMap;

use crate::code::{ALWAYS, Code, Dst, Inst, Op, Place, Pred, Src, V, W};
use crate::parse::{Function, Instruction, ParseError, Statement, Unit};

use mods::Mods;
use scope::{DYNAMIC, GAP, Scope, Variable};

/// More instructions than this come from functions that call others too often.
const MOST: usize = 4_000_000;

/// An operation on all lanes.
#[derive(Debug, Clone, Copy)]
enum Fun {
    V(fn(&V, &V, &V) -> V),
    W(fn(&W, &W, &W, &W) -> W),
}

/// What is known while a kernel is lowered.
struct Lower<'a> {
    unit: &'a Unit,
    code: Code,
    /// For each function that is being lowered, its scopes.
    frames: Vec<Vec<Scope<'a>>>,
    /// The functions that are being lowered.
    active: Vec<&'a str>,
    /// The label to which the current function returns; none in a kernel.
    returns: Vec<Option<usize>>,
    /// Where each label is, by its number.
    labels: Vec<Option<u32>>,
    constants: HashMap<u64, u32>,
    /// The places of shared variables by their index in the unit.
    shared: HashMap<usize, u64>,
    place: Place,
    guard: Pred,
}

/// The code of a kernel.
pub(crate) fn lower(unit: &Unit, function: &Function) -> Result<Code, ParseError> {
    let mut lower = Lower {
        unit,
        // Predicate 0 always holds; predicate 1 is the carry; predicate 2 takes results that are not wanted.
        code: Code { preds: 3, ..Code::default() },
        frames: Vec::new(),
        active: Vec::new(),
        returns: Vec::new(),
        labels: Vec::new(),
        constants: HashMap::new(),
        shared: HashMap::new(),
        place: Place::default(),
        guard: ALWAYS,
    };
    let mut scope = Scope::default();
    for param in &function.params {
        scope.variables.insert(&param.name, Variable::KernelParam(param.offset));
    }
    lower.function(function, scope, None)?;
    lower.finish()
}

impl<'a> Lower<'a> {
    fn error<T>(&self, text: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError::new(self.place.line, text))
    }

    /// Appends an instruction with the current guard.
    fn emit(&mut self, op: Op) {
        let strong = match &op {
            Op::Atomic(_) => true,
            Op::Load(load) => load.strong,
            Op::Store(store) => store.strong,
            _ => false,
        };
        self.code.insts.push(Inst { guard: self.guard, op });
        self.code.places.push(self.place);
        self.code.strong.push(strong);
    }

    /// Appends an instruction without a guard.
    fn emit_always(&mut self, op: Op) {
        let guard = std::mem::replace(&mut self.guard, ALWAYS);
        self.emit(op);
        self.guard = guard;
    }

    /// Appends an operation on all lanes.
    fn alu(&mut self, run: Fun, d: Dst, from: &[Src]) {
        let zero = self.constant(0);
        let at = |index: usize| from.get(index).copied().unwrap_or(zero);
        match (run, d) {
            (Fun::V(run), Dst::Row(d) | Dst::Half(d)) => self.emit(Op::Alu { run, d, from: [at(0), at(1), at(2)] }),
            (Fun::V(run), _) => {
                let row = self.new_row();
                self.emit(Op::Alu { run, d: row, from: [at(0), at(1), at(2)] });
                self.emit(Op::MoveWide { d, a: Src::Row(row) });
            }
            (Fun::W(run), d) => self.emit(Op::AluWide { run, d, from: [at(0), at(1), at(2), at(3)] }),
        }
    }

    /// The statements of a function. `returns` is the label behind an inlined function.
    fn function(&mut self, function: &'a Function, scope: Scope<'a>, returns: Option<usize>) -> Result<(), ParseError> {
        let Some(body) = &function.body else {
            return self.error(format!("the function `{}` has no body", function.name));
        };
        self.frames.push(vec![scope]);
        self.active.push(&function.name);
        self.returns.push(returns);
        let end = self.statements(body, 0)?;
        debug_assert_eq!(end, body.len());
        self.returns.pop();
        self.active.pop();
        self.frames.pop();
        if returns.is_none() {
            self.emit_always(Op::Exit);
        }
        Ok(())
    }

    /// Lowers from an index to the end of the scope and gives the index behind it.
    fn statements(&mut self, body: &'a [Statement], start: usize) -> Result<usize, ParseError> {
        let mut scope = Scope::default();
        let mut depth = 0;
        for statement in &body[start..] {
            match statement {
                Statement::Open => depth += 1,
                Statement::Close if depth == 0 => break,
                Statement::Close => depth -= 1,
                Statement::Label(name) if depth == 0 => {
                    scope.labels.insert(name, self.labels.len());
                    self.labels.push(None);
                }
                Statement::Targets(name, targets) if depth == 0 => {
                    scope.targets.insert(name, targets);
                }
                _ => {}
            }
        }
        self.scopes().push(scope);
        let mut at = start;
        while let Some(statement) = body.get(at) {
            at += 1;
            match statement {
                Statement::Open => at = self.statements(body, at)?,
                Statement::Close => break,
                Statement::Registers(kind, names) => self.declare_registers(*kind, names),
                Statement::Variable(declared) => self.declare_variable(declared),
                Statement::Label(name) => {
                    let label = self.label(name)?;
                    self.set_label(label);
                }
                Statement::Targets(..) => {}
                Statement::Instruction(instruction) => self.guarded(instruction)?,
            }
        }
        self.scopes().pop();
        Ok(at)
    }

    /// Puts a label here.
    fn set_label(&mut self, label: usize) {
        self.labels[label] = Some(self.code.insts.len() as u32);
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn guarded(&mut self, instruction: &'a Instruction) -> Result<(), ParseError> {
        self.place = Place { line: instruction.line, source: instruction.source };
        self.guard = match &instruction.guard {
            Some((name, negated)) => Pred { at: self.predicate(name)?, negated: *negated },
            None => ALWAYS,
        };
        if self.code.insts.len() > MOST {
            return self.error("the kernel has too many instructions once its functions are put where they are called");
        }
        self.instruction(instruction)
    }

    fn instruction(&mut self, i: &'a Instruction) -> Result<(), ParseError> {
        let mut mods = Mods::new(i);
        let known = self.control(i, &mut mods)?
            || self.alu_instruction(i, &mut mods)?
            || self.float_instruction(i, &mut mods)?
            || self.compare_instruction(i, &mut mods)?
            || self.memory_instruction(i, &mut mods)?
            || self.transfer_instruction(i, &mut mods)?
            || self.warp_instruction(i, &mut mods)?;
        if !known {
            return self.error(format!("unknown instruction `{}`", i.opcode.join(".")));
        }
        mods.finish()
    }

    /// Puts in where the labels are, and what is only known now.
    fn finish(mut self) -> Result<Code, ParseError> {
        let labels = &self.labels;
        let resolve = |to: &mut u32| *to = labels[*to as usize].unwrap_or(0);
        for inst in &mut self.code.insts {
            match &mut inst.op {
                Op::Branch { to } => resolve(to),
                Op::BranchIndex { to, .. } => to.iter_mut().for_each(resolve),
                _ => {}
            }
        }
        let end = self.code.shared.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        self.code.dynamic = if self.code.shared.is_empty() { 0 } else { (end + GAP).next_multiple_of(128) };
        for constant in &mut self.code.constants {
            if *constant >= DYNAMIC && *constant - DYNAMIC < 1 << 32 {
                *constant = *constant - DYNAMIC + self.code.dynamic;
            }
        }
        registers::compact(&mut self.code);
        Ok(self.code)
    }
}
