//! [`Node`]: one recorded operation, or a leaf.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use gradus_backend::error::is_of_user;
use gradus_backend::{DType, Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::autograd::graph::saved::Saved;
use crate::autograd::guard::guarded::Guarded;
use crate::autograd::pass::hooks::Hooks;
use crate::ops::{Op, Rule};
use crate::tensor::Spec;
use crate::write_log::Write;
use crate::{Device, Storage, Tensor};

/// One output of a node, to which the gradient of a tensor flows.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) output: usize,
}

impl Edge {
    /// Shape and dtype of the tensor with this edge.
    pub(crate) fn spec(&self) -> &Spec {
        &self.node.outputs[self.output]
    }

    /// Whether both edges lead to the same output of the same node.
    pub(in crate::autograd) fn is(&self, other: &Edge) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.output == other.output
    }
}

/// A recorded operation with the values that its gradient needs, or a leaf that requires a gradient.
pub struct Node {
    /// The position in the order of recording. The inputs of a node always have lower numbers.
    pub(in crate::autograd) seq: u64,
    /// `None` for a leaf.
    pub(in crate::autograd) op: Option<Op>,
    /// For each tracked input, the edge to which its gradient flows.
    pub(in crate::autograd) inputs: SmallVec<[Option<Edge>; 2]>,
    /// The shape and dtype of each output.
    pub(in crate::autograd) outputs: SmallVec<[Spec; 1]>,
    /// The device of the outputs. The inputs live on the devices of their own nodes.
    pub(in crate::autograd) device: Device,
    pub(in crate::autograd) location: &'static Location<'static>,
    /// Once a backward pass has freed the graph, `Err` with the source line that called the pass.
    saved: Mutex<Kept>,
    /// Created by the first hook.
    pub(in crate::autograd) hooks: OnceLock<Box<Hooks>>,
}

/// The saved values of a node, or the line that called the backward pass that freed them.
type Kept = Result<Saved, &'static Location<'static>>;

/// Returns a number above those of all nodes recorded so far.
pub(in crate::autograd) fn next_seq() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    /// The line of the node whose gradient is being recorded.
    static LINE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// The line to record for `caller`: its own line or, inside a recorded backward pass, the line of the node that is
/// being differentiated.
#[inline]
pub(crate) fn line(caller: &'static Location<'static>) -> &'static Location<'static> {
    LINE.get().unwrap_or(caller)
}

/// While it lives, every recorded operation gets the source line of `node`.
pub(in crate::autograd) struct AtLineOf(Option<&'static Location<'static>>);

impl AtLineOf {
    pub(in crate::autograd) fn new(node: &Node) -> Self {
        AtLineOf(LINE.replace(Some(node.location)))
    }
}

impl Drop for AtLineOf {
    fn drop(&mut self) {
        LINE.set(self.0);
    }
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
            saved: Mutex::new(Ok(Saved::default())),
            hooks: OnceLock::new(),
        };
        Edge { node: Arc::new(node), output: 0 }
    }

    #[track_caller]
    pub(crate) fn record(
        op: Op,
        inputs: &[&Tensor],
        outputs: SmallVec<[Spec; 1]>,
        device: &Device,
        saved: Saved,
    ) -> Arc<Node> {
        let mut edges = SmallVec::new();
        for t in inputs {
            edges.push(t.edge().cloned());
        }
        Arc::new(Node {
            seq: next_seq(),
            op: Some(op),
            inputs: edges,
            outputs,
            device: device.clone(),
            location: line(Location::caller()),
            saved: Mutex::new(Ok(saved)),
            hooks: OnceLock::new(),
        })
    }

    /// Records an operation whose gradient is computed by a `Rule` instead of a kernel. The inputs may be any edges.
    #[track_caller]
    pub(in crate::autograd) fn rule(
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
            location: line(Location::caller()),
            saved: Mutex::new(Ok(saved)),
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

    /// The line of the user's code that recorded the operation. If one call records several operations, they all have
    /// the line of that call. Operations of a recorded backward pass have the line of the operation whose gradient they
    /// compute.
    ///
    /// A function that is passed by its path has no line in user code: `map(Tensor::exp)` records a line of `core`,
    /// while `map(|t| t.exp())` records the line of the closure.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// The nodes that computed the inputs; `None` for an input that is not tracked.
    pub fn inputs(&self) -> impl Iterator<Item = Option<&Arc<Node>>> {
        self.inputs.iter().map(|e| e.as_ref().map(|e| &e.node))
    }

    /// The shape and dtype of each output.
    pub fn output_specs(&self) -> impl Iterator<Item = (&[usize], DType)> {
        self.outputs.iter().map(|s| (s.shape.dims(), s.dtype))
    }

    /// The values saved for the gradient, as (what, shape, dtype, version of the storage when saved).
    pub fn saved(&self) -> Vec<(String, Vec<usize>, DType, u64)> {
        self.kept().as_ref().map(Saved::describe).unwrap_or_default()
    }

    /// The saved values that have been overwritten, each with its latest write. It is an error for a gradient to read
    /// one of them.
    pub fn stale(&self) -> Vec<(String, Write)> {
        self.kept().as_ref().map(Saved::stale).unwrap_or_default()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.saved.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the saved values for the pass called at line `pass`. With `retain`, the node keeps them for other passes.
    #[track_caller]
    pub(in crate::autograd) fn take_saved(&self, retain: bool, pass: &'static Location<'static>) -> Result<Saved> {
        let mut slot = self.kept();
        match &mut *slot {
            Err(pass) => Err(self.freed(pass)),
            Ok(saved) if retain => Ok(saved.clone()),
            Ok(saved) => {
                let taken = std::mem::take(saved);
                *slot = Err(pass);
                Ok(taken)
            }
        }
    }

    #[cold]
    fn freed(&self, pass: &'static Location<'static>) -> Error {
        let failure = self.hooks.get().and_then(|h| h.failure());
        let m = match failure {
            None => "the graph was freed by an earlier backward pass",
            Some(_) => "the graph was freed in part by a backward pass that failed",
        };
        let e = Error::new(ErrorKind::Autograd, "backward", m);
        let e = if is_of_user(pass) { e.note(format!("that pass ran at {pass}")) } else { e };
        let e = e.note(format!("freed is what was recorded at {}", self.location));
        match failure {
            None => e.help(
                "keep it with BackwardOptions::new().retain_graph() in the first pass, or compute the loss again",
            ),
            Some(why) => e.note(format!("that pass failed with {why}")).help(
                "compute the loss again; a pass with BackwardOptions::new().retain_graph() leaves the graph whole when it fails",
            ),
        }
    }

    /// Whether a backward pass without `retain_graph` has used this node and freed its saved values.
    pub fn is_freed(&self) -> bool {
        self.op.is_some() && self.kept().is_err()
    }

    /// Records why a pass failed, on every freed node for which `has_freed` holds. The error of the next pass reports
    /// it.
    #[cold]
    pub(in crate::autograd) fn note_failure(
        ends: &[Arc<Node>],
        why: &dyn fmt::Display,
        has_freed: impl Fn(&Node) -> bool,
    ) {
        let why: Arc<str> = why.to_string().into();
        let mut seen = HashSet::new();
        let mut stack: Vec<&Arc<Node>> = ends.iter().collect();
        while let Some(node) = stack.pop() {
            // Freed nodes can be reached only through freed nodes.
            if seen.insert(node.seq) && has_freed(node) && node.is_freed() {
                node.hooks.get_or_init(Default::default).note_failure(&why);
                stack.extend(node.inputs().flatten());
            }
        }
    }

    /// The storages that hold the saved values.
    pub(in crate::autograd) fn saved_storages(&self) -> Vec<Arc<Storage>> {
        self.kept().as_ref().map(Saved::storages).unwrap_or_default()
    }

    /// The saved inputs that are not tracked, each with its index.
    pub(in crate::autograd) fn kept_constants(&self) -> Vec<(usize, Tensor)> {
        let kept = self.kept().as_ref().map(Saved::inputs).unwrap_or_default();
        kept.into_iter().filter(|(i, _)| self.inputs.get(*i).is_some_and(Option::is_none)).collect()
    }

    /// Whether a hook has packed one of the saved values.
    pub(in crate::autograd) fn is_packed(&self) -> bool {
        self.kept().as_ref().is_ok_and(Saved::is_packed)
    }

    /// Frees the saved values after the pass called at line `pass`.
    pub(in crate::autograd) fn free(&self, pass: &'static Location<'static>) {
        let mut slot = self.kept();
        let saved = if slot.is_ok() { Some(std::mem::replace(&mut *slot, Err(pass))) } else { None };
        drop(slot);
        // The values are dropped outside the lock, since dropping a packed value may run user code that looks at this
        // node.
        drop(saved);
    }

    /// Moves everything that this node keeps alive into `parts`.
    fn unlink(&mut self, parts: &mut Parts) {
        parts.nodes.extend(self.inputs.drain(..).flatten().map(|e| e.node));
        let slot = self.saved.get_mut().unwrap_or_else(|e| e.into_inner());
        if let Ok(saved) = std::mem::replace(slot, Err(self.location)) {
            let (tensors, guarded) = saved.into_parts();
            for tensor in tensors {
                parts.nodes.extend(tensor.into_inner().and_then(|inner| inner.into_edge()).map(|e| e.node));
            }
            // A packed value can hold nodes, too.
            parts.guarded.extend(guarded);
        }
        // The closure of a rule can hold nodes that no edge leads to.
        if matches!(self.op, Some(Op::Rule(_))) {
            parts.rules.extend(self.op.take());
        }
    }
}

/// Everything that dropped nodes kept alive.
#[derive(Default)]
struct Parts {
    nodes: Vec<Arc<Node>>,
    rules: Vec<Op>,
    guarded: Vec<Arc<Guarded>>,
}

thread_local! {
    /// Set while a user function is being dropped. Collects the parts of the nodes dropped with it, for the enclosing
    /// drop.
    static LEFT: RefCell<Option<Parts>> = const { RefCell::new(None) };
}

/// When dropped, takes over the parts in [`LEFT`], even if a user function panics.
struct TakeLeft<'a>(&'a mut Parts);

impl Drop for TakeLeft<'_> {
    fn drop(&mut self) {
        let left = LEFT.try_with(|left| left.take());
        if let Ok(Some(mut more)) = left {
            self.0.nodes.append(&mut more.nodes);
            self.0.rules.append(&mut more.rules);
            self.0.guarded.append(&mut more.guarded);
        }
    }
}

/// Dropping is iterative, so that a chain of any length is freed without recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let mut parts = Parts::default();
        self.unlink(&mut parts);
        if parts.nodes.is_empty() && parts.rules.is_empty() && parts.guarded.is_empty() {
            return;
        }
        let _ = LEFT.try_with(|left| {
            if let Some(outer) = left.borrow_mut().as_mut() {
                outer.nodes.append(&mut parts.nodes);
                outer.rules.append(&mut parts.rules);
                outer.guarded.append(&mut parts.guarded);
            }
        });
        loop {
            while let Some(mut node) = parts.nodes.pop() {
                // Normally, the node is emptied in place. It is moved out only if another thread drops its handle at
                // this very moment.
                if let Some(node) = Arc::get_mut(&mut node) {
                    node.unlink(&mut parts);
                } else if let Some(mut node) = Arc::into_inner(node) {
                    node.unlink(&mut parts);
                }
            }
            let (rule, guarded) = (parts.rules.pop(), parts.guarded.pop());
            if rule.is_none() && guarded.is_none() {
                break;
            }
            let _ = LEFT.try_with(|left| left.replace(Some(Parts::default())));
            let left = TakeLeft(&mut parts);
            drop((rule, guarded));
            drop(left);
        }
    }
}

/// Prints one line; `{:#?}` adds the inputs, the outputs and the saved values.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "{op:?} at {}", self.location)?,
            None => write!(f, "leaf {} at {}", self.outputs[0].shape, self.location)?,
        }
        if f.alternate() { crate::autograd::graph::inspect::details(self, f) } else { Ok(()) }
    }
}
