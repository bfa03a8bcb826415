//! The directives of a module: variables, functions, kernels.

use std::collections::HashMap;

use super::lexer::{Kind, Number, Token, tokens};
use super::{Function, ParseError, Type};
use crate::module::{Param, Space, Variable};

/// All that a text declares.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    /// The names of the source files by their numbers.
    pub(crate) files: HashMap<u32, String>,
}

/// The tokens and the place in them.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    at: usize,
}

impl Cursor {
    pub(super) fn kind(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// The token after the next.
    pub(super) fn second(&self) -> &Kind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn next(&mut self) -> Kind {
        let kind = self.kind().clone();
        if kind != Kind::End {
            self.at += 1;
        }
        kind
    }

    pub(super) fn error<T>(&self, wanted: &str) -> Result<T, ParseError> {
        let found = match self.kind() {
            Kind::Word(word) => format!("`{word}`"),
            Kind::Number(number) => format!("the number {number:?}"),
            Kind::Text(text) => format!("the string \"{text}\""),
            Kind::Sign(sign) => format!("`{sign}`"),
            Kind::End => "the end".into(),
        };
        Err(ParseError::new(self.line(), format!("expected {wanted}, found {found}")))
    }

    pub(super) fn takes(&mut self, sign: char) -> bool {
        let found = *self.kind() == Kind::Sign(sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn need(&mut self, sign: char) -> Result<(), ParseError> {
        if self.takes(sign) { Ok(()) } else { self.error(&format!("`{sign}`")) }
    }

    pub(super) fn word(&mut self) -> Result<String, ParseError> {
        match self.kind() {
            Kind::Word(_) => {
                let Kind::Word(word) = self.next() else { return self.error("a name") };
                Ok(word)
            }
            _ => self.error("a name"),
        }
    }

    pub(super) fn int(&mut self) -> Result<u64, ParseError> {
        match *self.kind() {
            Kind::Number(Number::Int(value)) => {
                self.at += 1;
                Ok(value)
            }
            _ => self.error("a whole number"),
        }
    }

    pub(super) fn int_u32(&mut self) -> Result<u32, ParseError> {
        let line = self.line();
        u32::try_from(self.int()?).map_err(|_| ParseError::new(line, "the number is too large"))
    }

    /// Skips the rest of the line.
    pub(super) fn skip_line(&mut self) {
        let line = self.line();
        while self.line() == line && *self.kind() != Kind::End {
            self.at += 1;
        }
    }

    /// Skips what follows up to the end of the statement.
    pub(super) fn skip_statement(&mut self) {
        while !self.takes(';') && *self.kind() != Kind::End {
            self.at += 1;
        }
    }

    /// Skips a part in braces.
    fn skip_braces(&mut self) -> Result<(), ParseError> {
        self.need('{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Kind::Sign('{') => depth += 1,
                Kind::Sign('}') => depth -= 1,
                Kind::End => return self.error("`}`"),
                _ => {}
            }
        }
        Ok(())
    }

    fn three(&mut self) -> Result<[u32; 3], ParseError> {
        let mut sizes = [1; 3];
        for (at, size) in sizes.iter_mut().enumerate() {
            if at > 0 && !self.takes(',') {
                break;
            }
            *size = self.int_u32()?;
        }
        Ok(sizes)
    }
}

/// Reads a text.
pub(crate) fn parse(text: &str) -> Result<Unit, ParseError> {
    let mut cursor = Cursor { tokens: tokens(text)?, at: 0 };
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
    Ok(Function { name, line, is_kernel, results, params, max_threads, required_threads, body })
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
