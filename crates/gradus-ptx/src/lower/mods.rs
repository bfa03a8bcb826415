//! The modifiers of an opcode. Each must be taken by the instruction that knows it.

use crate::num::Mode;
use crate::parse::{Instruction, ParseError, Type};

/// What is left of an opcode's modifiers.
pub(super) struct Mods<'a> {
    line: u32,
    opcode: &'a [String],
    left: Vec<&'a str>,
}

impl<'a> Mods<'a> {
    pub(super) fn new(instruction: &'a Instruction) -> Self {
        let left = instruction.opcode[1..].iter().map(String::as_str).collect();
        Self { line: instruction.line, opcode: &instruction.opcode, left }
    }

    /// Whether the modifier was there; it is taken.
    pub(super) fn takes(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|one| *one == name);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes all of these that are there.
    pub(super) fn skip(&mut self, names: &[&str]) {
        self.left.retain(|one| !names.contains(one));
    }

    /// Takes all with such a beginning.
    pub(super) fn skip_prefix(&mut self, prefix: &str) {
        self.left.retain(|one| !one.starts_with(prefix));
    }

    /// Takes the first of these that is there.
    pub(super) fn one_of(&mut self, names: &[&str]) -> Option<&'a str> {
        let at = self.left.iter().position(|one| names.contains(one))?;
        Some(self.left.remove(at))
    }

    /// Takes the next type.
    pub(super) fn kind(&mut self) -> Result<Type, ParseError> {
        let at = self.left.iter().position(|one| Type::named(one).is_some());
        match at.and_then(|at| Type::named(self.left.remove(at))) {
            Some(kind) => Ok(kind),
            None => Err(ParseError::new(self.line, format!("`{}` has no type", self.opcode.join(".")))),
        }
    }

    /// Takes the rounding mode of a result.
    pub(super) fn mode(&mut self) -> Option<Mode> {
        self.one_of(&["rn", "rna", "rz", "rm", "rp"]).map(|name| match name {
            "rna" => Mode::Away,
            "rz" => Mode::Zero,
            "rm" => Mode::Down,
            "rp" => Mode::Up,
            _ => Mode::Near,
        })
    }

    /// Takes how a number is rounded to a whole one.
    pub(super) fn whole(&mut self) -> Option<Mode> {
        self.one_of(&["rni", "rzi", "rmi", "rpi"]).map(|name| match name {
            "rzi" => Mode::Zero,
            "rmi" => Mode::Down,
            "rpi" => Mode::Up,
            _ => Mode::Near,
        })
    }

    /// An error if a modifier is left.
    pub(super) fn finish(self) -> Result<(), ParseError> {
        match self.left.first() {
            Some(left) => {
                let text = format!("the modifier `.{left}` of `{}` is not supported", self.opcode.join("."));
                Err(ParseError::new(self.line, text))
            }
            None => Ok(()),
        }
    }
}
