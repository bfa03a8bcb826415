//! Writes programs as one line of text, and parses them.
//!
//! ```text
//! %1=leaf(7,2,3); %2=slice(%1;1,0,2,1); %4=ckpt(%2){%3=sin(%2)}(%3); %5=sum(%4;3,0); %6=grad(%5,_,%1;1,1)
//! ```
//! A statement consists of the tensors that it defines, a name, the tensors that it uses, its numbers and, for a block,
//! the body and the tensors that it returns.

use std::fmt;

use crate::program::{NONE, Name, Program, Slot, Statement};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.twice {
            f.write_str("twice ")?;
        }
        write(f, &self.statements)
    }
}

fn write(f: &mut fmt::Formatter<'_>, statements: &[Statement]) -> fmt::Result {
    for (i, s) in statements.iter().enumerate() {
        if i > 0 {
            f.write_str("; ")?;
        }
        slots(f, &s.outs)?;
        if !s.outs.is_empty() {
            f.write_str("=")?;
        }
        f.write_str(s.name.text())?;
        f.write_str("(")?;
        slots(f, &s.of)?;
        for (i, n) in s.numbers.iter().enumerate() {
            write!(f, "{}{n}", if i == 0 { ";" } else { "," })?;
        }
        f.write_str(")")?;
        if s.name.is_mode() || s.name == Name::Checkpoint {
            f.write_str("{")?;
            write(f, &s.body)?;
            f.write_str("}(")?;
            slots(f, &s.gives)?;
            f.write_str(")")?;
        }
    }
    Ok(())
}

fn slots(f: &mut fmt::Formatter<'_>, slots: &[Slot]) -> fmt::Result {
    for (i, &s) in slots.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        if s == NONE { write!(f, "{comma}_")? } else { write!(f, "{comma}%{s}")? }
    }
    Ok(())
}

/// Parses a program. The error says where the text is wrong.
pub(crate) fn parse(text: &str) -> Result<Program, String> {
    let text = text.trim();
    let (twice, rest) = match text.strip_prefix("twice ") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut reader = Reader { rest };
    let statements = reader.statements(0)?;
    match reader.peek() {
        None => Ok(Program { statements, twice }),
        Some(_) => Err(reader.wrong("the end")),
    }
}

struct Reader<'a> {
    rest: &'a str,
}

/// The deepest permitted nesting of blocks.
const DEEPEST: usize = 20;
/// Tensor numbers must be below this.
const SLOTS: Slot = 10_000;

impl Reader<'_> {
    fn wrong(&self, wanted: &str) -> String {
        let near: String = self.rest.chars().take(30).collect();
        format!("{wanted} was expected at `{near}`")
    }

    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.rest = &self.rest[c.len_utf8()..];
        }
        found
    }

    fn need(&mut self, c: char) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(self.wrong(&format!("`{c}`"))) }
    }

    fn statements(&mut self, depth: usize) -> Result<Vec<Statement>, String> {
        let mut statements = vec![];
        if depth > DEEPEST {
            return Err("blocks lie too deep in one another".into());
        }
        while !matches!(self.peek(), None | Some('}')) {
            statements.push(self.statement(depth)?);
            if !self.eat(';') {
                break;
            }
        }
        Ok(statements)
    }

    fn statement(&mut self, depth: usize) -> Result<Statement, String> {
        let outs = self.slots()?;
        if !outs.is_empty() {
            self.need('=')?;
        }
        self.peek();
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        let name = Name::from_text(&self.rest[..end]).ok_or_else(|| self.wrong("the name of a statement"))?;
        self.rest = &self.rest[end..];
        self.need('(')?;
        let of = self.slots()?;
        let mut numbers = vec![];
        if self.eat(';') {
            while self.peek() != Some(')') {
                numbers.push(self.number()?);
                if !self.eat(',') {
                    break;
                }
            }
        }
        self.need(')')?;
        let (mut body, mut gives) = (vec![], vec![]);
        if name.is_mode() || name == Name::Checkpoint {
            self.need('{')?;
            body = self.statements(depth + 1)?;
            self.need('}')?;
            self.need('(')?;
            gives = self.slots()?;
            self.need(')')?;
        }
        Ok(Statement { name, outs, of, numbers, body, gives })
    }

    fn slots(&mut self) -> Result<Vec<Slot>, String> {
        let mut slots = vec![];
        loop {
            if self.eat('_') {
                slots.push(NONE);
            } else if self.eat('%') {
                let n = self.number()?;
                let slot = Slot::try_from(n).ok().filter(|&n| n < SLOTS);
                slots.push(slot.ok_or_else(|| format!("%{n}: tensors are numbered 0 to {}", SLOTS - 1))?);
            } else {
                break;
            }
            if !self.eat(',') {
                break;
            }
        }
        Ok(slots)
    }

    fn number(&mut self) -> Result<i64, String> {
        self.peek();
        let end = self.rest.find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse().map_err(|_| self.wrong("a number"))?;
        self.rest = &self.rest[end..];
        Ok(number)
    }
}
