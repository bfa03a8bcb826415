//! A model ready to run: its nodes in order, whose inputs and outputs are slots. [`Call`] is what an operator receives.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

use gradus_tensor::{Device, Error, ErrorKind, Generator, Result, Tensor};

use crate::elem::Elem;
use crate::profile::OnnxTime;
use crate::value::{Array, OnnxValue, Strings};

/// An operator: one row of the table in `ops`.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The opset versions that changed the operator, in ascending order.
    pub(crate) since: &'static [i64],
    pub(crate) run: fn(&Call<'_>) -> Result<Vec<OnnxValue>>,
    /// The operator for small integers on the host; `None` if it has no such form.
    pub(crate) host: Option<fn(&Call<'_>) -> Option<Array>>,
}

/// A row without a function for the host.
pub(crate) const fn row(
    name: &'static str,
    since: &'static [i64],
    run: fn(&Call<'_>) -> Result<Vec<OnnxValue>>,
) -> Row {
    Row { name, since, run, host: None }
}

impl Row {
    pub(crate) const fn host(mut self, host: fn(&Call<'_>) -> Option<Array>) -> Row {
        self.host = Some(host);
        self
    }
}

/// The index of a value while a graph runs.
pub(crate) type Slot = usize;

/// A graph or sub-graph.
#[derive(Clone)]
pub(crate) struct Graph {
    pub(crate) slots: usize,
    pub(crate) inputs: Vec<(String, Slot)>,
    pub(crate) outputs: Vec<(String, Slot)>,
    /// Initialisers and constants, with their names in the file.
    pub(crate) constants: Vec<(String, Slot, OnnxValue)>,
    /// Values taken from the enclosing graph, as `(slot there, slot here)`.
    pub(crate) captures: Vec<(Slot, Slot)>,
    pub(crate) nodes: Vec<Node>,
}

/// A node, in the order in which they run.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) row: &'static Row,
    /// The version of the opset that the model imports for the operator's domain.
    pub(crate) opset: i64,
    pub(crate) inputs: Vec<Option<Slot>>,
    pub(crate) outputs: Vec<Option<Slot>>,
    pub(crate) attributes: Vec<(String, Attribute)>,
    /// The slots that no later node reads.
    pub(crate) frees: Vec<Slot>,
}

/// The value of an attribute.
#[derive(Clone)]
pub(crate) enum Attribute {
    Int(i64),
    Float(f32),
    Text(String),
    Value(OnnxValue),
    Graph(Arc<Graph>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
    /// An attribute of a kind that no operator of the table reads.
    Other,
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// An integer attribute; `None` if there is none of this name and kind.
    pub(crate) fn int_attribute(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A float attribute; `None` if there is none of this name and kind.
    pub(crate) fn float_attribute(&self, name: &str) -> Option<f64> {
        match self.attribute(name)? {
            Attribute::Float(value) => Some(f64::from(*value)),
            _ => None,
        }
    }

    /// A text attribute; `None` if there is none of this name and kind.
    pub(crate) fn text_attribute(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Attribute::Text(value) => Some(value),
            _ => None,
        }
    }
}

/// The state of a run that all nodes share.
pub(crate) struct State<'a> {
    pub(crate) device: &'a Device,
    /// The model's generator of random numbers.
    pub(crate) random: &'a Mutex<Generator>,
    /// How many iterations the loops of this run may still make.
    pub(crate) rounds: Cell<u64>,
    /// The time of each node that has run, if times are measured.
    pub(crate) times: Option<&'a RefCell<Vec<OnnxTime>>>,
    /// How many bytes the values of a graph may have together.
    pub(crate) max_bytes: usize,
}

impl State<'_> {
    /// Deducts `n` loop iterations from those that the run has left. Fails if too few are left.
    pub(crate) fn take_rounds(&self, n: u64) -> Result<()> {
        match self.rounds.get().checked_sub(n) {
            Some(left) => {
                self.rounds.set(left);
                Ok(())
            }
            None => {
                Err(unsupported("the loops of the model take too many rounds")
                    .help("OnnxModel::max_rounds allows more"))
            }
        }
    }
}

/// One run of a node.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) inputs: Vec<Option<OnnxValue>>,
    /// The values of the graph that contains the node, for its sub-graphs.
    pub(crate) around: &'a [Option<OnnxValue>],
    pub(crate) device: &'a Device,
    pub(crate) state: &'a State<'a>,
    /// A bit for each attribute that was read.
    pub(crate) read: Cell<u64>,
}

pub(crate) fn one(tensor: Tensor) -> Vec<OnnxValue> {
    vec![tensor.into()]
}

pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, "onnx", message)
}

impl<'a> Call<'a> {
    /// The version of the opset.
    pub(crate) fn opset(&self) -> i64 {
        self.node.opset
    }

    /// Whether the model uses this output.
    pub(crate) fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(Option::is_some)
    }

    fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        let at = self.node.attributes.iter().position(|(known, _)| known == name)?;
        self.read.set(self.read.get() | 1u64.checked_shl(at as u32).unwrap_or(0));
        self.node.attributes.get(at).map(|(_, value)| value)
    }

    /// Marks attributes as read that have no effect here.
    pub(crate) fn skip(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    /// The name of an attribute that the operator did not read.
    pub(crate) fn unread(&self) -> Option<&'a str> {
        let read = self.read.get();
        let unread = self.node.attributes.iter().take(64).enumerate().find(|(i, _)| read >> i & 1 == 0);
        unread.map(|(_, (name, _))| &**name)
    }

    #[cold]
    fn wrong(&self, name: &str, wanted: &str) -> Error {
        Error::argument("onnx", format!("the attribute `{name}` is not {wanted}"))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Int(value)) => Ok(*value),
            Some(_) => Err(self.wrong(name, "an integer")),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(crate) fn float(&self, name: &str, default: f64) -> Result<f64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Float(value)) => Ok(f64::from(*value)),
            Some(_) => Err(self.wrong(name, "a float")),
        }
    }

    pub(crate) fn text(&self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Text(value)) => Ok(value),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// The integers of an attribute. A single integer counts as a list of one.
    pub(crate) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(Attribute::Int(value)) => Ok(Some(std::slice::from_ref(value))),
            Some(_) => Err(self.wrong(name, "a list of integers")),
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Floats(values)) => Ok(Some(values)),
            // The kind of an empty list cannot be told from the file.
            Some(Attribute::Ints(values)) if values.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.wrong(name, "a list of floats")),
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<&'a [String]>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Texts(values)) => Ok(Some(values)),
            Some(Attribute::Ints(values)) if values.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.wrong(name, "a list of strings")),
        }
    }

    pub(crate) fn value(&self, name: &str) -> Result<Option<&'a OnnxValue>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Value(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(name, "a tensor")),
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&'a Arc<Graph>> {
        match self.attribute(name) {
            Some(Attribute::Graph(graph)) => Ok(graph),
            Some(_) => Err(self.wrong(name, "a graph")),
            None => Err(Error::argument("onnx", format!("the attribute `{name}` is missing"))),
        }
    }

    /// The element type whose number an attribute holds.
    pub(crate) fn elem_attribute(&self, name: &str) -> Result<Option<Elem>> {
        match self.int(name, 0)? {
            0 => Ok(None),
            number => Elem::of_number(number).map(Some),
        }
    }

    pub(crate) fn given(&self, input: usize) -> Option<&OnnxValue> {
        self.inputs.get(input).and_then(Option::as_ref)
    }

    pub(crate) fn input(&self, input: usize) -> Result<&OnnxValue> {
        self.given(input).ok_or_else(|| Error::argument("onnx", format!("input {input} is missing")))
    }

    pub(crate) fn array(&self, input: usize) -> Result<&Array> {
        match self.input(input)? {
            OnnxValue::Tensor(array) => Ok(array),
            other => {
                Err(Error::argument("onnx", format!("input {input} is {}, where numbers belong", other.describe())))
            }
        }
    }

    pub(crate) fn optional_array(&self, input: usize) -> Result<Option<&Array>> {
        self.given(input).map(|_| self.array(input)).transpose()
    }

    /// The tensor of an input.
    pub(crate) fn tensor(&self, input: usize) -> Result<Tensor> {
        self.array(input)?.tensor(self.device)
    }

    pub(crate) fn optional(&self, input: usize) -> Result<Option<Tensor>> {
        self.given(input).map(|_| self.tensor(input)).transpose()
    }

    /// The element type of an input and the tensor that stores it, for operators that only move elements.
    pub(crate) fn stored(&self, input: usize) -> Result<(Elem, Tensor)> {
        let array = self.array(input)?;
        Ok((array.elem(), array.raw(self.device)?))
    }

    /// The integers of an input, on the host.
    pub(crate) fn host_ints(&self, input: usize) -> Result<Arc<[i64]>> {
        self.array(input)?.ints()
    }

    pub(crate) fn optional_ints(&self, input: usize) -> Result<Option<Arc<[i64]>>> {
        self.given(input).map(|_| self.host_ints(input)).transpose()
    }

    /// The single number of an input, on the host.
    pub(crate) fn number(&self, input: usize) -> Result<Option<f64>> {
        match self.optional_array(input)? {
            Some(array) => array.number().map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn strings(&self, input: usize) -> Result<&Strings> {
        match self.input(input)? {
            OnnxValue::Strings(strings) => Ok(strings),
            other => {
                Err(Error::argument("onnx", format!("input {input} is {}, where strings belong", other.describe())))
            }
        }
    }

    pub(crate) fn sequence(&self, input: usize) -> Result<&Arc<Vec<OnnxValue>>> {
        match self.input(input)? {
            OnnxValue::Sequence(values) => Ok(values),
            other => {
                Err(Error::argument("onnx", format!("input {input} is {}, where a sequence belongs", other.describe())))
            }
        }
    }

    /// Creates a tensor from integers or booleans on the host.
    pub(crate) fn upload(&self, elem: Elem, shape: Vec<usize>, values: Vec<i64>) -> OnnxValue {
        OnnxValue::Tensor(Array::host(elem, shape, values))
    }
}

/// Resolves an axis, which counts from the end if it is negative.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    match at.and_then(|a| usize::try_from(a).ok()).filter(|&a| a < rank) {
        Some(axis) => Ok(axis),
        None => Err(Error::new(ErrorKind::InvalidAxis, "onnx", format!("axis {axis} of a tensor with {rank} axes"))),
    }
}

/// Converts a size, which must not be negative.
pub(crate) fn size(value: i64) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::argument("onnx", format!("{value} is not a size")))
}

/// The number of elements of a shape from a file. Fails on overflow.
pub(crate) fn volume(shape: &[usize]) -> Result<usize> {
    let volume = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    volume.ok_or_else(|| Error::new(ErrorKind::Overflow, "onnx", format!("a tensor of shape {shape:?}")))
}

/// Converts sizes, which must not be negative.
pub(crate) fn sizes(values: &[i64]) -> Result<Vec<usize>> {
    values.iter().map(|&v| size(v)).collect()
}
