//! From text to statements.

mod body;
mod cursor;
mod declare;
mod lexer;
mod tree;
mod unit;

use std::fmt;

pub(crate) use lexer::Number;
pub(crate) use tree::{Declared, Function, Instruction, Operand, Statement, Type};
pub(crate) use unit::{Unit, parse};

/// PTX that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line of the PTX, counted from 1.
    pub line: u32,
    /// What is wrong.
    pub text: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the PTX: {}", self.line, self.text)
    }
}

impl std::error::Error for ParseError {}
