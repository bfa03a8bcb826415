//! [`Node`]: one recorded operation, or a leaf.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use gradus_backend::{DType, Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::hooks::Hooks;
use super::saved::Saved;
use crate::ops::{Op, Rule};
use crate::tensor::Spec;
use crate::{Device, Storage, Tensor};

/// One output of a node: where the gradient of a tensor goes.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) output: usize,
}

impl Edge {
    /// What the tensor with this edge is.
    pub(crate) fn spec(&self) -> &Spec {
        &self.node.outputs[self.output]
    }
}

/// One recorded operation with the values that its gradient needs, or a leaf that requires a gradient.
pub struct Node {
    /// Position in the order of recording: inputs always have lower numbers.
    pub(super) seq: u64,
    /// `None` for a leaf.
    pub(super) op: Option<Op>,
    /// For each input the edge that its gradient flows to, if it is tracked.
    pub(super) inputs: SmallVec<[Option<Edge>; 2]>,
    /// What each output is.
    pub(super) outputs: SmallVec<[Spec; 1]>,
    pub(super) device: Device,
    pub(super) location: &'static Location<'static>,
    /// `None` once the graph was freed by a backward pass.
    pub(super) saved: Mutex<Option<Saved>>,
    /// Made with the first hook.
    pub(super) hooks: OnceLock<Box<Hooks>>,
}

/// A number above those of all nodes recorded before.
pub(super) fn next_seq() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Node {
    #[track_caller]
    pub(crate) fn leaf(tensor: &Tensor) -> Edge {
        let node = Node {
            seq: next_seq(),
            op: None,
            inputs: SmallVec::new(),
            outputs: SmallVec::from_elem(tensor.spec(), 1),
            device: tensor.device().clone(),
            location: Location::caller(),
            saved: Mutex::new(Some(Saved::default())),
            hooks: OnceLock::new(),
        };
        Edge { node: Arc::new(node), output: 0 }
    }

    #[track_caller]
    pub(crate) fn record(op: Op, inputs: &[&Tensor], outputs: SmallVec<[Spec; 1]>, saved: Saved) -> Arc<Node> {
        let mut edges = SmallVec::new();
        for t in inputs {
            edges.push(t.edge().cloned());
        }
        Arc::new(Node {
            seq: next_seq(),
            op: Some(op),
            inputs: edges,
            outputs,
            device: inputs[0].device().clone(),
            location: Location::caller(),
            saved: Mutex::new(Some(saved)),
            hooks: OnceLock::new(),
        })
    }

    /// Records a rule that is no kernel, with any edges as inputs.
    #[track_caller]
    pub(super) fn rule(
        rule: Arc<dyn Rule>,
        inputs: impl IntoIterator<Item = Option<Edge>>,
        outputs: SmallVec<[Spec; 1]>,
        device: Device,
        saved: Saved,
    ) -> Arc<Node> {
        Arc::new(Node {
            seq: next_seq(),
            op: Some(Op::Rule(rule)),
            inputs: inputs.into_iter().collect(),
            outputs,
            device,
            location: Location::caller(),
            saved: Mutex::new(Some(saved)),
            hooks: OnceLock::new(),
        })
    }

    /// Whether this is a leaf that requires a gradient.
    pub fn is_leaf(&self) -> bool {
        self.op.is_none()
    }

    /// The operation; `None` for a leaf.
    pub fn op(&self) -> Option<&Op> {
        self.op.as_ref()
    }

    /// The operation's name; `leaf` for a leaf.
    pub fn name(&self) -> &str {
        self.op.as_ref().map_or("leaf", |op| op.name())
    }

    /// The line of the user's code that recorded the operation.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// The nodes that made the inputs; `None` where an input is not tracked.
    pub fn inputs(&self) -> impl Iterator<Item = Option<&Arc<Node>>> {
        self.inputs.iter().map(|e| e.as_ref().map(|e| &e.node))
    }

    /// Shape and dtype of each output.
    pub fn output_specs(&self) -> impl Iterator<Item = (&[usize], DType)> {
        self.outputs.iter().map(|s| (s.shape.dims(), s.dtype))
    }

    /// The values kept for the gradient, as (what, shape, dtype, version of the storage when kept).
    pub fn saved(&self) -> Vec<(String, Vec<usize>, DType, u64)> {
        let saved = self.saved.lock().unwrap_or_else(|e| e.into_inner());
        saved.as_ref().map(Saved::describe).unwrap_or_default()
    }

    /// The kept values, and whether they stay for another pass.
    pub(super) fn take_saved(&self, retain: bool) -> Result<Saved> {
        let mut slot = self.saved.lock().unwrap_or_else(|e| e.into_inner());
        let found = if retain { slot.clone() } else { slot.take() };
        found.ok_or_else(|| {
            let m = format!("backward of {}: the graph was freed by an earlier backward pass", self.name());
            Error::new(ErrorKind::Autograd, "backward", m)
                .note(format!("{} recorded at {}", self.name(), self.location))
                .help("keep it with BackwardOptions::new().retain_graph() in the first pass, or compute the loss again")
        })
    }

    /// The storages that the kept values hold.
    pub(super) fn saved_storages(&self) -> Vec<Arc<Storage>> {
        let saved = self.saved.lock().unwrap_or_else(|e| e.into_inner());
        saved.as_ref().map(Saved::storages).unwrap_or_default()
    }

    /// Lets the kept values go.
    pub(super) fn free(&self) {
        self.saved.lock().unwrap_or_else(|e| e.into_inner()).take();
    }

    /// Moves everything that this node keeps alive into `parts`.
    fn unlink(&mut self, parts: &mut Parts) {
        parts.nodes.extend(self.inputs.drain(..).flatten().map(|e| e.node));
        let saved = self.saved.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        for tensor in saved.into_iter().flat_map(Saved::into_tensors) {
            parts.nodes.extend(tensor.into_inner().and_then(|inner| inner.into_edge()).map(|e| e.node));
        }
        // What a function captured can hold nodes that nobody sees.
        if matches!(self.op, Some(Op::Rule(_))) {
            parts.rules.extend(self.op.take());
        }
    }
}

/// What dropped nodes held.
#[derive(Default)]
struct Parts {
    nodes: Vec<Arc<Node>>,
    rules: Vec<Op>,
}

thread_local! {
    /// While a rule is dropped: what the nodes held that went with it, for the drop that is under way to take.
    static LEFT: RefCell<Option<Parts>> = const { RefCell::new(None) };
}

/// Iterative, so that a chain of any length is freed without recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let mut parts = Parts::default();
        self.unlink(&mut parts);
        if parts.nodes.is_empty() && parts.rules.is_empty() {
            return;
        }
        let _ = LEFT.try_with(|left| {
            if let Some(outer) = left.borrow_mut().as_mut() {
                outer.nodes.append(&mut parts.nodes);
                outer.rules.append(&mut parts.rules);
            }
        });
        loop {
            while let Some(mut node) = parts.nodes.pop() {
                // Emptied where it lies; moved out only where another thread lets go of it at this moment.
                if let Some(node) = Arc::get_mut(&mut node) {
                    node.unlink(&mut parts);
                } else if let Some(mut node) = Arc::into_inner(node) {
                    node.unlink(&mut parts);
                }
            }
            let Some(rule) = parts.rules.pop() else { break };
            let open = LEFT.try_with(|left| left.replace(Some(Parts::default())));
            drop(rule);
            if open.is_ok() {
                let _ = LEFT.try_with(|left| {
                    if let Some(mut more) = left.take() {
                        parts.nodes.append(&mut more.nodes);
                        parts.rules.append(&mut more.rules);
                    }
                });
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "{op:?} at {}", self.location),
            None => write!(f, "leaf {} at {}", self.outputs[0].shape, self.location),
        }
    }
}
