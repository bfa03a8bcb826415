//! A small writer of the messages of `onnx.proto`, for files that no exporter would make.

/// A message under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn int(mut self, field: u64, value: i64) -> Message {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    pub(crate) fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    pub(crate) fn message(self, field: u64, message: Message) -> Message {
        self.bytes(field, message.0)
    }

    pub(crate) fn each(self, field: u64, messages: impl IntoIterator<Item = Message>) -> Message {
        messages.into_iter().fold(self, |m, inner| m.message(field, inner))
    }
}

pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str], name: &str) -> Message {
    let m = inputs.iter().fold(Message::default(), |m, input| m.bytes(1, input));
    let m = outputs.iter().fold(m, |m, output| m.bytes(2, output));
    m.bytes(3, name).bytes(4, op)
}

/// The declaration of an f32 value with these sizes.
pub(crate) fn value(name: &str, shape: &[i64]) -> Message {
    let dims = shape.iter().map(|&n| Message::default().int(1, n));
    let tensor = Message::default().int(1, 1).message(2, Message::default().each(1, dims));
    Message::default().bytes(1, name).message(2, Message::default().message(1, tensor))
}

/// A tensor of f32 in `raw_data`.
pub(crate) fn tensor(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let m = shape.iter().fold(Message::default(), |m, &n| m.int(1, n)).int(2, 1).bytes(8, name);
    m.bytes(9, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub(crate) struct Graph {
    pub(crate) nodes: Vec<Message>,
    pub(crate) initializers: Vec<Message>,
    pub(crate) inputs: Vec<Message>,
    pub(crate) outputs: Vec<Message>,
}

impl Graph {
    /// A model of opset 17.
    pub(crate) fn model(self) -> Message {
        let graph = Message::default().each(1, self.nodes).bytes(2, "g").each(5, self.initializers);
        let graph = graph.each(11, self.inputs).each(12, self.outputs);
        Message::default().int(1, 8).message(7, graph).message(8, Message::default().bytes(1, "").int(2, 17))
    }
}
