//! A finished model, and its bytes. The numbers of the fields are those in `proto`.

use std::path::Path;

use gradus_tensor::{Result, Tensor};

use crate::decode::native_order;
use crate::elem::Elem;
use crate::wire::Writer;

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attr {
    Int(i64),
    Float(f32),
    Text(&'static str),
    Texts(Vec<&'static str>),
    Ints(Vec<i64>),
}

/// A node of the model.
#[derive(Debug, Clone)]
pub(super) struct OutNode {
    pub(super) op: &'static str,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<(&'static str, Attr)>,
    /// The first opset in which the operator has this form.
    pub(super) since: i64,
}

/// The elements of an initialiser.
#[derive(Debug, Clone)]
pub(super) enum Data {
    Tensor(Tensor),
    /// In the byte order of this machine.
    Bytes(Vec<u8>),
}

/// A tensor of the model.
#[derive(Debug, Clone)]
pub(super) struct Initializer {
    pub(super) name: String,
    pub(super) elem: Elem,
    pub(super) shape: Vec<usize>,
    pub(super) data: Data,
}

/// A size of an input or output: a number, or a name if it may be any.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Dim {
    Size(i64),
    Name(String),
    Unknown,
}

/// An input or output.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) elem: Elem,
    pub(super) dims: Vec<Dim>,
}

/// A model that is ready to be written.
pub(super) struct OutModel {
    pub(super) opset: i64,
    pub(super) nodes: Vec<OutNode>,
    pub(super) initializers: Vec<Initializer>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    pub(super) metadata: Vec<(String, String)>,
}

/// The bytes of a model, and those of the file beside it that holds large tensors.
pub(super) struct Files {
    pub(super) model: Vec<u8>,
    pub(super) data: Option<Vec<u8>>,
}

/// Tensors of fewer bytes stay in the model when others are stored beside it.
const SMALL: usize = 1024;

/// Where tensors beside the model begin: at multiples of this, so that they can be mapped.
const ALIGNMENT: usize = 64;

/// `IR_VERSION` of the release of ONNX that introduced an opset.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=14 => 7,
        15..=18 => 8,
        19 | 20 => 9,
        21 | 22 => 10,
        _ => 11,
    }
}

impl Initializer {
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>().saturating_mul(self.elem.bits() / 8)
    }

    fn raw(&self) -> Result<Vec<u8>> {
        let bytes = match &self.data {
            Data::Tensor(t) => t.to_bytes()?,
            Data::Bytes(bytes) => bytes.clone(),
        };
        Ok(native_order(bytes.into(), self.elem.bits() / 8).into_owned())
    }
}

impl OutModel {
    /// The model as bytes. If its tensors have more than `most` bytes together, the larger ones are stored in another
    /// file, called `beside`.
    pub(super) fn files(&self, most: usize, beside: &Path) -> Result<Files> {
        let total: usize = self.initializers.iter().map(Initializer::bytes).sum();
        let mut data = (total > most).then(Vec::new);
        let location = beside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut tensors = Vec::new();
        for initializer in &self.initializers {
            tensors.push(tensor(initializer, data.as_mut(), &location)?);
        }
        let mut w = Writer::default();
        w.int(1, ir_version(self.opset));
        w.bytes(2, "gradus");
        w.bytes(3, env!("CARGO_PKG_VERSION"));
        w.message(7, |g| {
            self.nodes.iter().enumerate().for_each(|(i, n)| g.message(1, |w| node(w, n, i)));
            g.bytes(2, "main");
            tensors.iter().for_each(|t| g.bytes(5, t));
            self.inputs.iter().for_each(|p| g.message(11, |w| port(w, p)));
            self.outputs.iter().for_each(|p| g.message(12, |w| port(w, p)));
        });
        w.message(8, |w| {
            w.bytes(1, "");
            w.int(2, self.opset);
        });
        for (key, value) in &self.metadata {
            w.message(14, |w| entry(w, key, value));
        }
        Ok(Files { model: w.0, data })
    }
}

fn entry(w: &mut Writer, key: &str, value: &str) {
    w.bytes(1, key);
    w.bytes(2, value);
}

fn tensor(t: &Initializer, data: Option<&mut Vec<u8>>, location: &str) -> Result<Vec<u8>> {
    let mut w = Writer::default();
    t.shape.iter().for_each(|&n| w.int(1, n as i64));
    w.int(2, t.elem.number());
    w.bytes(8, &t.name);
    match data {
        Some(data) if t.bytes() > SMALL => {
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
            let (offset, raw) = (data.len(), t.raw()?);
            data.extend_from_slice(&raw);
            let entries =
                [("location", location.to_owned()), ("offset", offset.to_string()), ("length", raw.len().to_string())];
            entries.iter().for_each(|(key, value)| w.message(13, |w| entry(w, key, value)));
            w.int(14, 1);
        }
        _ => w.bytes(9, t.raw()?),
    }
    Ok(w.0)
}

fn node(w: &mut Writer, n: &OutNode, number: usize) {
    n.inputs.iter().for_each(|name| w.bytes(1, name));
    n.outputs.iter().for_each(|name| w.bytes(2, name));
    w.bytes(3, format!("{}_{number}", n.op));
    w.bytes(4, n.op);
    for (name, value) in &n.attributes {
        w.message(5, |w| {
            w.bytes(1, name);
            let kind = match value {
                Attr::Float(v) => {
                    w.float(2, *v);
                    1
                }
                Attr::Int(v) => {
                    w.int(3, *v);
                    2
                }
                Attr::Text(v) => {
                    w.bytes(4, v);
                    3
                }
                Attr::Ints(v) => {
                    v.iter().for_each(|&v| w.int(8, v));
                    7
                }
                Attr::Texts(v) => {
                    v.iter().for_each(|v| w.bytes(9, v));
                    8
                }
            };
            w.int(20, kind);
        });
    }
}

fn port(w: &mut Writer, p: &Port) {
    w.bytes(1, &p.name);
    let shape = |w: &mut Writer| {
        for dim in &p.dims {
            w.message(1, |w| match dim {
                Dim::Size(n) => w.int(1, *n),
                Dim::Name(name) => w.bytes(2, name),
                Dim::Unknown => {}
            });
        }
    };
    w.message(2, |w| {
        w.message(1, |w| {
            w.int(1, p.elem.number());
            w.message(2, shape);
        });
    });
}
