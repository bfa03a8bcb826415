//! [`Fields`]: splits the text of a CSV file into values.

use std::borrow::Cow;

/// A value and its position.
pub(super) struct Field<'a> {
    pub(super) text: Cow<'a, str>,
    /// The line on which the value begins.
    pub(super) line: usize,
    /// Whether it is the last value of its row.
    pub(super) last: bool,
}

/// The rest of a file.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    delimiter: u8,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str, delimiter: u8) -> Self {
        Fields { text, at: 0, line: 1, delimiter }
    }

    /// The number of the current line.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Skips empty lines. Returns whether a row follows.
    pub(super) fn start_row(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                None => return false,
                Some(b'\n') => self.line += 1,
                Some(b'\r') => {}
                Some(_) => return true,
            }
            self.at += 1;
        }
    }

    /// The next value of the row. The error is the part of the message that describes the problem.
    pub(super) fn next(&mut self) -> Result<Field<'a>, String> {
        let bytes = self.text.as_bytes();
        let line = self.line;
        if bytes.get(self.at) == Some(&b'"') {
            let text = self.quoted()?;
            let last = self.end();
            return match last {
                Some(last) => Ok(Field { text, line, last }),
                None => Err(format!("line {}: text follows a closing quote; double a quote within quotes", self.line)),
            };
        }
        let rest = &bytes[self.at..];
        let length = rest.iter().position(|&b| b == self.delimiter || b == b'\n').unwrap_or(rest.len());
        let mut text = &self.text[self.at..self.at + length];
        self.at += length;
        if !matches!(bytes.get(self.at), Some(&b) if b == self.delimiter) {
            text = text.strip_suffix('\r').unwrap_or(text);
        }
        let last = self.end().unwrap_or(true);
        Ok(Field { text: Cow::Borrowed(text), line, last })
    }

    /// Skips the delimiter or line break after a value. Returns whether the row ends, or `None` if neither follows.
    fn end(&mut self) -> Option<bool> {
        let bytes = self.text.as_bytes();
        match bytes.get(self.at..).unwrap_or(&[]) {
            [] => Some(true),
            [b, ..] if *b == self.delimiter => {
                self.at += 1;
                Some(false)
            }
            [b'\n', ..] => {
                (self.at, self.line) = (self.at + 1, self.line + 1);
                Some(true)
            }
            [b'\r', b'\n', ..] => {
                (self.at, self.line) = (self.at + 2, self.line + 1);
                Some(true)
            }
            [b'\r'] => {
                self.at += 1;
                Some(true)
            }
            _ => None,
        }
    }

    /// The text between quotes. Two quotes in it stand for one quote.
    fn quoted(&mut self) -> Result<Cow<'a, str>, String> {
        let opened = self.line;
        self.at += 1;
        let mut text = Cow::Borrowed("");
        loop {
            let Some(length) = self.text[self.at..].find('"') else {
                return Err(format!("line {opened}: the file ends before a quote that opens there is closed"));
            };
            let piece = &self.text[self.at..self.at + length];
            self.line += piece.bytes().filter(|&b| b == b'\n').count();
            self.at += length + 1;
            let again = self.text.as_bytes().get(self.at) == Some(&b'"');
            if text.is_empty() && !again {
                return Ok(Cow::Borrowed(piece));
            }
            text.to_mut().push_str(piece);
            if !again {
                return Ok(text);
            }
            text.to_mut().push('"');
            self.at += 1;
        }
    }
}
