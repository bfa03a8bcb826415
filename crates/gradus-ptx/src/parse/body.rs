//! The body of a function.

use super::cursor::Cursor;
use super::declare::variable;
use super::lexer::{Kind, Number};
use super::{Declared, Instruction, Operand, ParseError, Statement, Type};

/// The statements between braces.
pub(super) fn body(cursor: &mut Cursor) -> Result<Vec<Statement>, ParseError> {
    cursor.need('{')?;
    let mut statements = Vec::new();
    let mut depth = 1;
    let mut source = (0, 0);
    while depth > 0 {
        match cursor.kind().clone() {
            Kind::Sign('{') => {
                cursor.next();
                depth += 1;
                statements.push(Statement::Open);
            }
            Kind::Sign('}') => {
                cursor.next();
                depth -= 1;
                if depth > 0 {
                    statements.push(Statement::Close);
                }
            }
            Kind::Sign(';') => {
                cursor.next();
            }
            Kind::Word(word) if word == ".loc" => {
                let line = cursor.line();
                cursor.next();
                source = (cursor.int_u32()?, cursor.int_u32()?);
                if cursor.line() == line {
                    cursor.skip_line();
                }
            }
            Kind::Word(word) if word == ".pragma" => cursor.skip_statement(),
            Kind::Word(word) if word == ".reg" => statements.push(registers(cursor)?),
            Kind::Word(word) if matches!(word.as_str(), ".local" | ".shared" | ".param") => {
                let found = variable(cursor)?;
                let (name, space, size, align) = (found.name, found.space, found.size, found.align);
                statements.push(Statement::Variable(Declared { name, space, size, align }));
            }
            Kind::Word(word) if *cursor.second() == Kind::Sign(':') && !word.starts_with('.') => {
                cursor.next();
                cursor.next();
                statements.push(label(cursor, word)?);
            }
            Kind::Word(_) | Kind::Sign('@') => statements.push(Statement::Instruction(instruction(cursor, source)?)),
            _ => return cursor.error("a statement"),
        }
    }
    Ok(statements)
}

/// A label, or a list of targets that has one as its name.
fn label(cursor: &mut Cursor, name: String) -> Result<Statement, ParseError> {
    if !matches!(cursor.kind(), Kind::Word(word) if word == ".branchtargets") {
        return Ok(Statement::Label(name));
    }
    cursor.next();
    let mut targets = vec![cursor.word()?];
    while cursor.takes(',') {
        targets.push(cursor.word()?);
    }
    cursor.need(';')?;
    Ok(Statement::Targets(name, targets))
}

fn registers(cursor: &mut Cursor) -> Result<Statement, ParseError> {
    cursor.next();
    let line = cursor.line();
    let word = cursor.word()?;
    let Some(found) = word.strip_prefix('.').and_then(Type::named) else {
        return Err(ParseError::new(line, format!("unknown register type `{word}`")));
    };
    let mut names = Vec::new();
    loop {
        let name = cursor.word()?;
        let count = if cursor.takes('<') {
            let count = cursor.int_u32()?;
            cursor.need('>')?;
            Some(count)
        } else {
            None
        };
        names.push((name, count));
        if !cursor.takes(',') {
            break;
        }
    }
    cursor.need(';')?;
    Ok(Statement::Registers(found, names))
}

fn instruction(cursor: &mut Cursor, source: (u32, u32)) -> Result<Instruction, ParseError> {
    let line = cursor.line();
    let mut guard = None;
    if cursor.takes('@') {
        let negated = cursor.takes('!');
        guard = Some((cursor.word()?, negated));
    }
    let opcode = cursor.word()?.split('.').map(str::to_owned).collect();
    let mut operands = Vec::new();
    while !cursor.takes(';') {
        if !operands.is_empty() {
            cursor.need(',')?;
        }
        operands.push(operand(cursor)?);
    }
    Ok(Instruction { line, source, guard, opcode, operands })
}

fn list(cursor: &mut Cursor, end: char) -> Result<Vec<Operand>, ParseError> {
    let mut all = Vec::new();
    while !cursor.takes(end) {
        if !all.is_empty() {
            cursor.need(',')?;
        }
        all.push(operand(cursor)?);
    }
    Ok(all)
}

fn operand(cursor: &mut Cursor) -> Result<Operand, ParseError> {
    match cursor.kind().clone() {
        Kind::Word(name) => {
            cursor.next();
            if cursor.takes('|') {
                return Ok(Operand::Pair(name, cursor.word()?));
            }
            let offset = offset(cursor)?;
            Ok(if offset == 0 { Operand::Name(name) } else { Operand::Offset(name, offset) })
        }
        Kind::Number(number) => {
            cursor.next();
            Ok(Operand::Number(number))
        }
        Kind::Sign('-') => {
            cursor.next();
            match cursor.next() {
                Kind::Number(Number::Int(value)) => Ok(Operand::Number(Number::Int(value.wrapping_neg()))),
                Kind::Number(Number::F32(bits)) => Ok(Operand::Number(Number::F32(bits ^ 1 << 31))),
                Kind::Number(Number::F64(value)) => Ok(Operand::Number(Number::F64(-value))),
                _ => cursor.error("a number"),
            }
        }
        Kind::Sign('!') => {
            cursor.next();
            Ok(Operand::Not(cursor.word()?))
        }
        Kind::Sign('{') => {
            cursor.next();
            Ok(Operand::Vector(list(cursor, '}')?))
        }
        Kind::Sign('(') => {
            cursor.next();
            Ok(Operand::List(list(cursor, ')')?))
        }
        Kind::Sign('[') => {
            cursor.next();
            let base = match cursor.kind() {
                Kind::Word(_) => Some(cursor.word()?),
                _ => None,
            };
            let offset = if base.is_none() { cursor.int()? as i64 } else { offset(cursor)? };
            cursor.need(']')?;
            Ok(Operand::Address(base, offset))
        }
        _ => cursor.error("an operand"),
    }
}

/// `+4`, `-4` or `+-4`, or nothing.
fn offset(cursor: &mut Cursor) -> Result<i64, ParseError> {
    let plus = cursor.takes('+');
    let minus = cursor.takes('-');
    if !plus && !minus {
        return Ok(0);
    }
    let value = cursor.int()? as i64;
    Ok(if minus { value.wrapping_neg() } else { value })
}
