//! The part of the Protocol Buffers wire format that ONNX uses. Fields are read in sequence, without copies; [`Writer`]
//! appends them.

use gradus_tensor::{Error, ErrorKind, Result};

/// The deepest nesting of messages that is read. A sub-graph takes three levels.
const MAX_DEPTH: usize = 100;

/// The value of a field, as it stands in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// A message that is being read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    rest: &'a [u8],
    depth: usize,
}

#[cold]
pub(crate) fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, "onnx", message).help("the file is cut, damaged, or not an ONNX file")
}

impl<'a> Message<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Message { rest: bytes, depth: 0 }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(n) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(malformed(format!("a field of {n} bytes, where {} are left", self.rest.len()))),
        }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(malformed("a number that does not end"))
    }

    /// The number and value of the next field, or `None` at the end of the message.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default())),
            2 => {
                let n = self.varint()?;
                Field::Bytes(self.take(usize::try_from(n).unwrap_or(usize::MAX))?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default())),
            other => return Err(malformed(format!("a field of wire type {other}"))),
        };
        match key >> 3 {
            0 => Err(malformed("a field with the number 0")),
            number => Ok(Some((number, field))),
        }
    }

    /// The message in a field of this one.
    pub(crate) fn inner(&self, field: Field<'a>) -> Result<Message<'a>> {
        match self.depth < MAX_DEPTH {
            true => Ok(Message { rest: field.bytes()?, depth: self.depth + 1 }),
            false => Err(malformed(format!("messages within messages, more than {MAX_DEPTH} deep"))),
        }
    }
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            other => Err(malformed(format!("{other:?}, where bytes belong"))),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a name that is not UTF-8"))
    }

    pub(crate) fn int(self) -> Result<i64> {
        match self {
            Field::Varint(value) => Ok(value as i64),
            other => Err(malformed(format!("{other:?}, where an integer belongs"))),
        }
    }

    pub(crate) fn float(self) -> Result<f32> {
        match self {
            Field::Fixed32(bits) => Ok(f32::from_bits(bits)),
            other => Err(malformed(format!("{other:?}, where a float belongs"))),
        }
    }

    /// Appends the integers of a repeated field, packed or not.
    pub(crate) fn ints(self, to: &mut Vec<i64>) -> Result<()> {
        let Field::Bytes(bytes) = self else {
            to.push(self.int()?);
            return Ok(());
        };
        let mut packed = Message::new(bytes);
        while !packed.rest.is_empty() {
            to.push(packed.varint()? as i64);
        }
        Ok(())
    }

    /// Appends the bytes of the fixed-size numbers (of `size` bytes) of a repeated field, packed or not.
    pub(crate) fn fixed(self, size: usize, to: &mut Vec<u8>) -> Result<()> {
        match self {
            Field::Bytes(bytes) if bytes.len() % size == 0 => to.extend_from_slice(bytes),
            Field::Fixed32(bits) if size == 4 => to.extend_from_slice(&bits.to_le_bytes()),
            Field::Fixed64(bits) if size == 8 => to.extend_from_slice(&bits.to_le_bytes()),
            other => return Err(malformed(format!("{other:?}, where numbers of {size} bytes belong"))),
        }
        Ok(())
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value as u64);
    }

    pub(crate) fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u64, bytes: impl AsRef<[u8]>) {
        self.varint(field << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend_from_slice(bytes.as_ref());
    }

    /// A message in a field of this one.
    pub(crate) fn message(&mut self, field: u64, write: impl FnOnce(&mut Writer)) {
        let mut inner = Writer::default();
        write(&mut inner);
        self.bytes(field, inner.0);
    }
}
