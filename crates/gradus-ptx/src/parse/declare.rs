//! Declarations of variables and parameters.

use super::cursor::Cursor;
use super::lexer::{Kind, Number};
use super::{ParseError, Type};
use crate::variable::{Space, Variable};

/// A declaration with its state space; the sign that ends it is taken where it is `;`.
pub(super) fn variable(cursor: &mut Cursor) -> Result<Variable, ParseError> {
    let line = cursor.line();
    let mut space = None;
    let mut declared_type = None;
    let mut align = None;
    let mut lanes = 1;
    loop {
        let Kind::Word(word) = cursor.kind() else { return cursor.error("a name") };
        let Some(word) = word.strip_prefix('.') else { break };
        let word = word.to_owned();
        cursor.word()?;
        match word.as_str() {
            "global" => space = Some(Space::Global),
            "const" => space = Some(Space::Const),
            "shared" => space = Some(Space::Shared),
            "local" => space = Some(Space::Local),
            "param" => space = Some(Space::Param),
            "align" => align = Some(cursor.int()?),
            "v2" => lanes = 2,
            "v4" => lanes = 4,
            // What a kernel's pointer points to: `.ptr .global .align 4`.
            "ptr" => pointer(cursor)?,
            "attribute" => {
                cursor.need('(')?;
                while !cursor.takes(')') {
                    cursor.next();
                }
            }
            _ => match Type::named(&word) {
                Some(found) => declared_type = Some(found),
                None => return Err(ParseError::new(line, format!("unknown word `.{word}` in a declaration"))),
            },
        }
    }
    let name = cursor.word()?;
    let (Some(space), Some(declared_type)) = (space, declared_type) else {
        return Err(ParseError::new(line, format!("`{name}` has no state space or no type")));
    };
    let one = u64::from(declared_type.size());
    let mut size = Some(one * lanes);
    while cursor.takes('[') {
        let count = if *cursor.kind() == Kind::Sign(']') { 0 } else { cursor.int()? };
        size = size.and_then(|size| size.checked_mul(count));
        cursor.need(']')?;
    }
    let size = size.filter(|size| *size < 1 << 40);
    let size = size.ok_or_else(|| ParseError::new(line, format!("`{name}` is too large")))?;
    let mut init = Vec::new();
    let mut addresses = Vec::new();
    if cursor.takes('=') {
        initial(cursor, one as usize, &mut init, &mut addresses)?;
        if init.len() as u64 > size {
            return Err(ParseError::new(line, format!("`{name}` has more initial values than elements")));
        }
    }
    let align = align.unwrap_or(one * lanes).max(1);
    if !align.is_power_of_two() {
        return Err(ParseError::new(line, format!("the alignment of `{name}` is not a power of two")));
    }
    if space != Space::Param {
        cursor.need(';')?;
    } else {
        cursor.takes(';');
    }
    Ok(Variable { name, space, size, align, init, addresses })
}

fn pointer(cursor: &mut Cursor) -> Result<(), ParseError> {
    while let Kind::Word(word) = cursor.kind() {
        match word.as_str() {
            ".global" | ".const" | ".shared" | ".local" => {
                cursor.word()?;
            }
            ".align" => {
                cursor.word()?;
                cursor.int()?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Initial values: numbers, names of variables, and lists of them.
fn initial(
    cursor: &mut Cursor,
    size: usize,
    bytes: &mut Vec<u8>,
    addresses: &mut Vec<(u64, String, i64)>,
) -> Result<(), ParseError> {
    if cursor.takes('{') {
        while !cursor.takes('}') {
            initial(cursor, size, bytes, addresses)?;
            cursor.takes(',');
        }
        return Ok(());
    }
    let negative = cursor.takes('-');
    let value = match cursor.next() {
        Kind::Number(Number::Int(value)) if negative => value.wrapping_neg(),
        Kind::Number(Number::Int(value)) => value,
        Kind::Number(Number::F32(bits)) => bits.into(),
        Kind::Number(Number::F64(value)) if size == 4 => (value as f32).to_bits().into(),
        Kind::Number(Number::F64(value)) => value.to_bits(),
        Kind::Word(word) => {
            let name = if word == "generic" {
                cursor.need('(')?;
                let name = cursor.word()?;
                cursor.need(')')?;
                name
            } else {
                word
            };
            let plus = if cursor.takes('+') { cursor.int()? as i64 } else { 0 };
            addresses.push((bytes.len() as u64, name, plus));
            0
        }
        _ => return cursor.error("an initial value"),
    };
    bytes.extend(&value.to_le_bytes()[..size.min(8)]);
    Ok(())
}
