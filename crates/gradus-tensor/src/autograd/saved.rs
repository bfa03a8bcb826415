//! Kept values and the check that they are still what they were.

use std::cell::Cell;
use std::sync::Arc;

use gradus_backend::{DType, Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::node::{Edge, Node};
use crate::tensor::Spec;
use crate::{Storage, Tensor};

/// A kept tensor and the version that its storage had.
#[derive(Clone)]
struct SavedTensor {
    what: Which,
    /// An output is kept without its edge, which would be a cycle; it is put back when used.
    tensor: Tensor,
    version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Input(usize),
    Output(usize),
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Input(i) => write!(f, "input {i}"),
            Which::Output(i) => write!(f, "output {i}"),
        }
    }
}

/// Which inputs and outputs an operation's gradient reads, as bit masks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Bit `i` for input `i`.
    pub inputs: u64,
    /// Bit `i` for output `i`.
    pub outputs: u64,
}

impl Keep {
    /// Nothing.
    pub const NONE: Keep = Keep { inputs: 0, outputs: 0 };

    /// These inputs.
    pub fn inputs(indices: impl IntoIterator<Item = usize>) -> Self {
        Keep { inputs: indices.into_iter().fold(0, mask), outputs: 0 }
    }

    /// And these outputs.
    #[must_use]
    pub fn and_outputs(mut self, indices: impl IntoIterator<Item = usize>) -> Self {
        self.outputs = indices.into_iter().fold(self.outputs, mask);
        self
    }
}

/// With bit `i`; indices above 63 cannot be kept.
fn mask(mask: u64, i: usize) -> u64 {
    mask | if i < 64 { 1 << i } else { 0 }
}

/// The kept values of one node.
#[derive(Clone, Default)]
pub(crate) struct Saved(SmallVec<[SavedTensor; 2]>);

impl Saved {
    /// `versions` are those of the inputs' storages from before they were read; the outputs are fresh.
    pub(crate) fn new(keep: Keep, inputs: &[&Tensor], versions: &[u64], outputs: &[Tensor]) -> Self {
        let mut saved = SmallVec::new();
        let mut push = |what, tensor: Tensor, version| saved.push(SavedTensor { what, tensor, version });
        for (i, &t) in inputs.iter().enumerate().take(64).filter(|(i, _)| keep.inputs >> i & 1 == 1) {
            push(Which::Input(i), t.clone(), versions[i]);
        }
        for (i, t) in outputs.iter().enumerate().take(64).filter(|(i, _)| keep.outputs >> i & 1 == 1) {
            push(Which::Output(i), t.detach(), 0);
        }
        Saved(saved)
    }

    /// Inputs and outputs by number, each with the version that its storage had. The outputs carry no edge.
    pub(super) fn with_versions(
        inputs: impl IntoIterator<Item = (usize, Tensor, u64)>,
        outputs: impl IntoIterator<Item = (usize, Tensor, u64)>,
    ) -> Self {
        let input = |(i, tensor, version)| SavedTensor { what: Which::Input(i), tensor, version };
        let output = |(i, tensor, version)| SavedTensor { what: Which::Output(i), tensor, version };
        Saved(inputs.into_iter().map(input).chain(outputs.into_iter().map(output)).collect())
    }

    pub(super) fn into_tensors(self) -> impl Iterator<Item = Tensor> {
        self.0.into_iter().map(|s| s.tensor)
    }

    pub(super) fn storages(&self) -> Vec<Arc<Storage>> {
        self.0.iter().map(|s| s.tensor.storage().clone()).collect()
    }

    pub(super) fn describe(&self) -> Vec<(String, Vec<usize>, DType, u64)> {
        let one = |s: &SavedTensor| (s.what.to_string(), s.tensor.shape().to_vec(), s.tensor.dtype(), s.version);
        self.0.iter().map(one).collect()
    }
}

/// What an operation's gradient sees: the kept values, checked, and which gradients are wanted.
pub struct Context<'a> {
    pub(super) node: &'a Arc<Node>,
    pub(super) saved: Saved,
    /// For each input whether its gradient is wanted.
    pub(super) needs: SmallVec<[bool; 8]>,
    pub(super) create_graph: bool,
    /// Bit `i` once kept value `i` was read.
    pub(super) read: Cell<u64>,
}

impl Context<'_> {
    /// Whether the gradient of input `i` is wanted.
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// Whether the gradient itself has to be differentiable.
    pub fn create_graph(&self) -> bool {
        self.create_graph
    }

    /// Number of inputs.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Shape and dtype of input `i`. Errors for one that requires no gradient.
    pub fn input_spec(&self, i: usize) -> Result<&Spec> {
        let edge = self.node.inputs.get(i).and_then(Option::as_ref);
        edge.map(Edge::spec).ok_or_else(|| {
            let m = format!("{} knows nothing of its input {i}, which requires no gradient", self.node.name());
            Error::new(ErrorKind::Autograd, "backward", m)
        })
    }

    /// Input `i` as it was; an error if it was overwritten since.
    pub fn input(&self, i: usize) -> Result<Tensor> {
        self.find(Which::Input(i))
    }

    /// Output `i` as it was; an error if it was overwritten since.
    pub fn output(&self, i: usize) -> Result<Tensor> {
        let t = self.find(Which::Output(i))?;
        let edge = Edge { node: self.node.clone(), output: i };
        Ok(if self.create_graph && t.dtype().is_float() { t.with_edge(edge) } else { t })
    }

    fn find(&self, what: Which) -> Result<Tensor> {
        let name = self.node.name();
        let Some(at) = self.saved.0.iter().position(|s| s.what == what) else {
            let m = format!("the gradient of {name} reads {what}, which was not kept");
            return Err(Error::new(ErrorKind::Autograd, "backward", m));
        };
        self.read.set(self.read.get() | 1 << at.min(63));
        self.checked(at)
    }

    /// Checks once more what the gradient has read: another thread may have written while it was computed.
    pub(super) fn check_read(&self) -> Result<()> {
        let read = |at: &usize| self.read.get() >> (*at).min(63) & 1 == 1;
        (0..self.saved.0.len()).filter(read).try_for_each(|at| self.checked(at).map(drop))
    }

    /// Kept value number `at`, if nothing has written over it.
    fn checked(&self, at: usize) -> Result<Tensor> {
        let (name, s) = (self.node.name(), &self.saved.0[at]);
        let what = s.what;
        let storage = s.tensor.storage();
        let Some(write) = storage.overwritten(s.version, &s.tensor.byte_span()) else { return Ok(s.tensor.clone()) };
        let m = format!("the gradient of {name} needs its {what}, which {} overwrote", write.op);
        let e = Error::new(ErrorKind::Autograd, "backward", m);
        Err(s
            .tensor
            .describe(e, &what.to_string())
            .note(format!("{name} was recorded at {}", self.node.location))
            .note(format!(
                "{} wrote at {} (version {} then, {} now)",
                write.op, write.location, s.version, write.version
            ))
            .help("write before the forward pass, write into a copy, or use the operation that makes a new tensor"))
    }
}
