//! The directives of a module: variables, functions, kernels.

use std::collections::HashMap;

use super::cursor::Cursor;
use super::declare::variable;
use super::lexer::Kind;
use super::{Function, ParseError};
use crate::variable::{Param, Variable};

/// All that a text declares.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    /// The names of the source files by their numbers.
    pub(crate) files: HashMap<u32, String>,
}

/// Reads a text.
pub(crate) fn parse(text: &str) -> Result<Unit, ParseError> {
    let mut cursor = Cursor::new(text)?;
    let mut unit = Unit::default();
    let mut functions: Vec<Function> = Vec::new();
    loop {
        let line = cursor.line();
        let word = match cursor.kind() {
            Kind::End => break,
            Kind::Word(word) => word.clone(),
            _ => return cursor.error("a directive"),
        };
        match word.as_str() {
            ".version" | ".target" | ".address_size" => cursor.skip_line(),
            ".file" => file(&mut cursor, &mut unit.files)?,
            ".loc" => cursor.skip_line(),
            ".pragma" => cursor.skip_statement(),
            ".section" => {
                cursor.word()?;
                cursor.word()?;
                cursor.skip_braces()?;
            }
            ".visible" | ".extern" | ".weak" | ".common" => {
                cursor.word()?;
            }
            ".func" | ".entry" => functions.push(function(&mut cursor, word == ".entry")?),
            ".global" | ".const" | ".shared" => unit.variables.push(variable(&mut cursor)?),
            _ => return Err(ParseError::new(line, format!("unknown directive `{word}`"))),
        }
    }
    // A function may be declared before it is defined.
    let defined: Vec<String> = functions.iter().filter(|one| one.body.is_some()).map(|one| one.name.clone()).collect();
    functions.retain(|one| one.body.is_some() || !defined.contains(&one.name));
    unit.functions = functions;
    Ok(unit)
}

fn file(cursor: &mut Cursor, files: &mut HashMap<u32, String>) -> Result<(), ParseError> {
    let line = cursor.line();
    cursor.word()?;
    let number = cursor.int_u32()?;
    let Kind::Text(name) = cursor.next() else { return cursor.error("a file name") };
    files.insert(number, name);
    if cursor.line() == line {
        cursor.skip_line();
    }
    Ok(())
}

fn function(cursor: &mut Cursor, is_kernel: bool) -> Result<Function, ParseError> {
    let line = cursor.line();
    cursor.word()?;
    while matches!(cursor.kind(), Kind::Word(word) if word == ".attribute") {
        cursor.word()?;
        cursor.need('(')?;
        while !cursor.takes(')') {
            cursor.next();
        }
    }
    let results = if cursor.takes('(') { params(cursor)? } else { Vec::new() };
    let name = cursor.word()?;
    let params = if cursor.takes('(') { params(cursor)? } else { Vec::new() };
    let (mut max_threads, mut required_threads) = (None, None);
    while let Kind::Word(word) = cursor.kind().clone() {
        cursor.next();
        match word.as_str() {
            ".maxntid" => max_threads = Some(cursor.three()?),
            ".reqntid" => required_threads = Some(cursor.three()?),
            ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
                cursor.int()?;
            }
            ".noreturn" => {}
            ".pragma" => cursor.skip_statement(),
            _ => return Err(ParseError::new(line, format!("unknown directive `{word}` of function `{name}`"))),
        }
    }
    let body = if cursor.takes(';') { None } else { Some(super::body::body(cursor)?) };
    Ok(Function { name, is_kernel, results, params, max_threads, required_threads, body })
}

/// Parameters up to the closing parenthesis.
fn params(cursor: &mut Cursor) -> Result<Vec<Param>, ParseError> {
    let mut params = Vec::new();
    let mut end = 0u64;
    while !cursor.takes(')') {
        if !params.is_empty() {
            cursor.need(',')?;
        }
        let declared = variable(cursor)?;
        let offset = end.next_multiple_of(declared.align);
        end = offset + declared.size;
        params.push(Param { name: declared.name, offset, size: declared.size, align: declared.align });
    }
    Ok(params)
}
