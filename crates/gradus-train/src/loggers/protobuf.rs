//! The small part of Protocol Buffers that TensorBoard's events need.

/// A message under construction. Fields are appended in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    /// An integer. 0, the default, is left out, as the reference implementation does.
    pub(super) fn int(mut self, field: u64, value: i64) -> Self {
        if value != 0 {
            self.key(field, 0);
            self.varint(value as u64);
        }
        self
    }

    /// A double. 0 is left out.
    pub(super) fn double(mut self, field: u64, value: f64) -> Self {
        if value.to_bits() != 0 {
            self.key(field, 1);
            self.0.extend(value.to_le_bytes());
        }
        self
    }

    /// A float in a `oneof`, which is written even if it is 0.
    pub(super) fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub(super) fn message(self, field: u64, message: Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// Doubles, packed into one field.
    pub(super) fn doubles(self, field: u64, values: &[f64]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, &bytes)
    }
}
