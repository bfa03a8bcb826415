//! Control: branches, calls, ends.

use super::scope::{Scope, Variable};
use super::{Lower, Mods};
use crate::code::{ALWAYS, Op, Pred};
use crate::parse::{Instruction, Operand, ParseError, Type};

impl<'a> Lower<'a> {
    pub(super) fn control(&mut self, i: &'a Instruction, mods: &mut Mods<'_>) -> Result<bool, ParseError> {
        match i.opcode[0].as_str() {
            "bra" => {
                mods.takes("uni");
                self.count(&i.operands, 1)?;
                let Operand::Name(name) = &i.operands[0] else { return self.error("expected a label") };
                let to = self.label(name)? as u32;
                self.emit(Op::Branch { to });
            }
            "brx" => {
                mods.skip(&["uni", "idx"]);
                self.count(&i.operands, 2)?;
                let index = self.src(&i.operands[0], Type::U32)?;
                let Operand::Name(name) = &i.operands[1] else { return self.error("expected a list of targets") };
                let to = self.targets(name)?;
                self.emit(Op::BranchIndex { index, to });
            }
            "call" => {
                mods.takes("uni");
                self.call(&i.operands)?;
            }
            "ret" => {
                mods.takes("uni");
                match self.returns.last().copied().flatten() {
                    Some(label) => self.emit(Op::Branch { to: label as u32 }),
                    None => self.emit(Op::Exit),
                }
            }
            "exit" => self.emit(Op::Exit),
            "trap" => self.emit(Op::Trap),
            "nanosleep" => {
                mods.kind()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn call(&mut self, operands: &'a [Operand]) -> Result<(), ParseError> {
        let (results, rest) = match operands {
            [Operand::List(results), rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (name, arguments) = match rest {
            [Operand::Name(name)] => (name.as_str(), &[][..]),
            [Operand::Name(name), Operand::List(arguments)] => (name.as_str(), arguments.as_slice()),
            _ => return self.error("this form of call is not supported: functions cannot be called through pointers"),
        };
        let results = results.iter().map(|one| self.argument(one)).collect::<Result<Vec<_>, _>>()?;
        let arguments = arguments.iter().map(|one| self.argument(one)).collect::<Result<Vec<_>, _>>()?;
        match (name, results.as_slice(), arguments.as_slice()) {
            ("vprintf", _, [format, values]) => {
                let result = results.first().copied();
                self.emit(Op::Print { format: *format, arguments: *values, result });
                return Ok(());
            }
            ("__assertfail", _, [message, file, line, ..]) => {
                self.emit(Op::AssertFail { message: *message, file: *file, line: *line });
                return Ok(());
            }
            _ => {}
        }
        let found = self.unit.functions.iter().find(|one| one.name == name && !one.is_kernel);
        let Some(function) = found.filter(|one| one.body.is_some()) else {
            return self.error(format!("the function `{name}` is not defined in this module"));
        };
        if self.active.contains(&name) {
            return self.error(format!("the function `{name}` calls itself, which is not supported"));
        }
        if function.params.len() != arguments.len() || function.results.len() != results.len() {
            return self.error(format!("the call of `{name}` has other parameters or results than the function"));
        }
        let mut scope = Scope::default();
        let params = function.params.iter().zip(arguments).chain(function.results.iter().zip(results));
        for (param, place) in params {
            scope.variables.insert(&param.name, Variable::Param(place));
        }
        let end = self.new_label();
        let place = self.place;
        if self.guard != ALWAYS {
            let guard = self.guard;
            self.guard = Pred { negated: !guard.negated, ..guard };
            self.emit(Op::Branch { to: end as u32 });
            self.guard = ALWAYS;
        }
        self.function(function, scope, Some(end))?;
        self.place = place;
        self.set_label(end);
        Ok(())
    }

    /// The place of an argument or a result.
    fn argument(&mut self, operand: &Operand) -> Result<u64, ParseError> {
        match operand {
            Operand::Name(name) => self.param_place(name),
            _ => self.error("arguments and results must be parameters"),
        }
    }
}
