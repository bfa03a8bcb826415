//! A place in a text, and what is taken there.

use super::ParseError;
use super::lexer::{Kind, Number, Token, tokens};

/// The tokens and the place in them.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    at: usize,
}

impl Cursor {
    /// The start of a text.
    pub(super) fn new(text: &str) -> Result<Self, ParseError> {
        Ok(Self { tokens: tokens(text)?, at: 0 })
    }

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
    pub(super) fn skip_braces(&mut self) -> Result<(), ParseError> {
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

    pub(super) fn three(&mut self) -> Result<[u32; 3], ParseError> {
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
