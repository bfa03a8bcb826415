//! Values saved for the gradient, and the check that nothing has overwritten them.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{DType, Error, ErrorKind, Here, Result};
use smallvec::SmallVec;

use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::guard::guarded::{Guarded, Pin, Slot, Value};
use crate::autograd::mode::{COPY_ON_WRITE, PACK, REFUSE_WRITES, STRICT, is_grad_enabled, is_set};
use crate::tensor::Spec;
use crate::write_log::Write;
use crate::{Storage, Tensor};

/// A saved tensor and the version of its storage when it was saved.
#[derive(Clone)]
pub(in crate::autograd) struct SavedTensor {
    pub(in crate::autograd) what: Which,
    /// An output is saved without its edge, which would form a cycle. The edge is restored when the value is used.
    pub(in crate::autograd) tensor: Tensor,
    pub(in crate::autograd) version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::autograd) enum Which {
    Input(usize),
    Output(usize),
    /// A value that a checkpointed region reads in place.
    Read,
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Input(i) => write!(f, "input {i}"),
            Which::Output(i) => write!(f, "output {i}"),
            Which::Read => f.write_str("captured value"),
        }
    }
}

/// The inputs and outputs that an operation's gradient reads, as bit masks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Bit `i` stands for input `i`.
    pub inputs: u64,
    /// Bit `i` stands for output `i`.
    pub outputs: u64,
}

impl Keep {
    /// No inputs and no outputs.
    pub const NONE: Keep = Keep { inputs: 0, outputs: 0 };

    /// The inputs with these indices.
    pub fn inputs(indices: impl IntoIterator<Item = usize>) -> Self {
        Keep { inputs: indices.into_iter().fold(0, mask), outputs: 0 }
    }

    /// Adds the outputs with these indices.
    #[must_use]
    pub fn and_outputs(mut self, indices: impl IntoIterator<Item = usize>) -> Self {
        self.outputs = indices.into_iter().fold(self.outputs, mask);
        self
    }
}

/// Returns `mask` with bit `i` set. Indices above 63 are ignored, as such values cannot be saved.
fn mask(mask: u64, i: usize) -> u64 {
    mask | if i < 64 { 1 << i } else { 0 }
}

/// The saved values of one node.
#[derive(Clone, Default)]
pub(crate) struct Saved {
    values: SmallVec<[SavedTensor; 2]>,
    /// The data that the thread's switches added, and the values that they moved here from `values`.
    guarded: Option<Arc<Guarded>>,
}

impl Saved {
    /// `versions` are the versions of the inputs' storages from before the operation read them. Outputs are new, so
    /// their version is 0.
    pub(crate) fn new(keep: Keep, inputs: &[&Tensor], versions: &[u64], outputs: &[Tensor]) -> Self {
        let mut values = SmallVec::new();
        if keep == Keep::NONE {
            return Saved { values, guarded: None };
        }
        let mut push = |what, tensor: Tensor, version| values.push(SavedTensor { what, tensor, version });
        for (i, &t) in inputs.iter().enumerate().take(64).filter(|(i, _)| keep.inputs >> i & 1 == 1) {
            push(Which::Input(i), t.clone(), versions[i]);
        }
        for (i, t) in outputs.iter().enumerate().take(64).filter(|(i, _)| keep.outputs >> i & 1 == 1) {
            push(Which::Output(i), t.detach(), 0);
        }
        Saved { values, guarded: None }
    }

    /// Saves inputs and outputs by index, each with the version of its storage. The outputs must carry no edge.
    pub(in crate::autograd) fn with_versions(
        inputs: impl IntoIterator<Item = (usize, Tensor, u64)>,
        outputs: impl IntoIterator<Item = (usize, Tensor, u64)>,
    ) -> Self {
        let input = |(i, tensor, version)| SavedTensor { what: Which::Input(i), tensor, version };
        let output = |(i, tensor, version)| SavedTensor { what: Which::Output(i), tensor, version };
        Saved { values: inputs.into_iter().map(input).chain(outputs.into_iter().map(output)).collect(), guarded: None }
    }

    /// Guards or packs the values according to the switches of this thread. Called only if
    /// [`guards_saved`](crate::autograd::guards_saved) is true.
    ///
    /// `versions` are the versions of the inputs' storages from before the operation read them.
    #[cold]
    #[track_caller]
    pub(crate) fn guard(self, op: &str, inputs: &[&Tensor], versions: &[u64]) -> Result<Self> {
        self.guard_pinned(op, inputs, versions, vec![])
    }

    /// Like [`guard`](Saved::guard), for an operation whose gradient also reads the memory of `pins` again.
    #[cold]
    #[track_caller]
    pub(in crate::autograd) fn guard_pinned(
        mut self,
        op: &str,
        inputs: &[&Tensor],
        versions: &[u64],
        pins: Vec<Pin>,
    ) -> Result<Self> {
        if self.values.is_empty() && pins.is_empty() && !is_set(STRICT) {
            return Ok(self);
        }
        let takes = is_set(PACK | REFUSE_WRITES | COPY_ON_WRITE);
        let values = if takes { std::mem::take(&mut self.values) } else { SmallVec::new() };
        self.guarded = Some(Guarded::new(op, values, inputs, versions, pins)?);
        Ok(self)
    }

    /// Whether a hook has packed one of the values.
    pub(in crate::autograd) fn is_packed(&self) -> bool {
        let slots = self.guarded.iter().flat_map(|g| &g.slots);
        slots.into_iter().any(|slot| matches!(slot.value, Value::Packed { .. }))
    }

    /// Whether the node has only plain saved values: no switch guards or packs anything.
    pub(in crate::autograd) fn is_plain(&self) -> bool {
        self.guarded.is_none()
    }

    /// The parts that could recurse when dropped: tensors with edges, and packed values.
    pub(in crate::autograd) fn into_parts(self) -> (impl Iterator<Item = Tensor>, Option<Arc<Guarded>>) {
        (self.values.into_iter().map(|s| s.tensor), self.guarded)
    }

    /// The storages of the values, including the storages of the tensors that hooks packed them into.
    pub(in crate::autograd) fn storages(&self) -> Vec<Arc<Storage>> {
        let slots = || self.guarded.iter().flat_map(|g| &g.slots);
        let guarded = slots().filter_map(|slot| slot.value.kept()).map(|(t, _)| t);
        let held = self.values.iter().map(|s| s.tensor.clone()).chain(guarded);
        let packed =
            slots().filter_map(|slot| if let Value::Packed { packed, .. } = &slot.value { Some(packed) } else { None });
        let packed = packed.flat_map(|packed| packed.tensors()).map(|t| t.storage().clone());
        held.map(|t| t.storage().clone()).chain(packed).collect()
    }

    /// The saved inputs, each with its index, except those that hooks packed.
    pub(in crate::autograd) fn inputs(&self) -> Vec<(usize, Tensor)> {
        let slots = self.guarded.iter().flat_map(|g| &g.slots);
        let guarded = slots.filter_map(|slot| Some((slot.what, slot.value.kept()?.0)));
        let all = self.values.iter().map(|s| (s.what, s.tensor.clone())).chain(guarded);
        all.filter_map(|(what, t)| if let Which::Input(i) = what { Some((i, t)) } else { None }).collect()
    }

    pub(in crate::autograd) fn describe(&self) -> Vec<(String, Vec<usize>, DType, u64)> {
        let one = |s: &SavedTensor| (s.what.to_string(), s.tensor.shape().to_vec(), s.tensor.dtype(), s.version);
        self.values.iter().map(one).chain(self.guarded.iter().flat_map(|g| g.describe())).collect()
    }

    /// The values that have been overwritten since they were saved, each with its latest write.
    pub(in crate::autograd) fn stale(&self) -> Vec<(String, Write)> {
        let slots = self.guarded.iter().flat_map(|g| &g.slots);
        let guarded = slots.filter_map(|slot| slot.value.kept().map(|(t, version)| (slot.what, t, version)));
        let all = self.values.iter().map(|s| (s.what, s.tensor.clone(), s.version)).chain(guarded);
        all.filter_map(|(what, t, version)| Some((what.to_string(), t.overwritten(version)?))).collect()
    }
}

/// The data that a gradient rule receives: the saved values, which are checked on access, and which gradients are
/// wanted.
pub struct Context<'a> {
    pub(in crate::autograd) node: &'a Arc<Node>,
    pub(in crate::autograd) saved: Saved,
    /// Whether the gradient of each input is wanted.
    pub(in crate::autograd) needs: SmallVec<[bool; 8]>,
    pub(in crate::autograd) create_graph: bool,
    /// See [`Context::spares_grads`].
    pub(in crate::autograd) spares_grads: bool,
    pub(in crate::autograd) read: Read,
}

/// The saved values that the gradient rule has read so far.
#[derive(Default)]
pub(in crate::autograd) struct Read {
    /// Bit `i` is set once saved value `i` has been read.
    values: Cell<u64>,
    /// The guarded values that have been handed out, with their versions.
    guarded: RefCell<Vec<(Which, Tensor, u64)>>,
}

impl Context<'_> {
    /// Whether the gradient of input `i` is wanted.
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// Whether the gradient itself must be differentiable.
    pub fn create_graph(&self) -> bool {
        self.create_graph
    }

    /// Whether the rule runs only once and nothing else reads the gradients that it receives. If these gradients are
    /// also [spare](Tensor::is_spare), results may be written into their memory.
    pub(crate) fn spares_grads(&self) -> bool {
        self.spares_grads
    }

    /// The number of inputs.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// The shape and dtype of input `i`. Fails if that input requires no gradient.
    #[track_caller]
    pub fn input_spec(&self, i: usize) -> Result<&Spec> {
        let edge = self.node.inputs.get(i).and_then(Option::as_ref);
        edge.map(Edge::spec)
            .ok_or_else(|| {
                let m = format!("{} knows nothing of its input {i}, which requires no gradient", self.node.name());
                Error::new(ErrorKind::Autograd, "backward", m)
            })
            .here()
    }

    /// Input `i` as the forward pass read it. Fails if it has been overwritten.
    #[track_caller]
    pub fn input(&self, i: usize) -> Result<Tensor> {
        self.find(Which::Input(i))
    }

    /// Output `i` as the forward pass computed it. Fails if it has been overwritten. Also fails if the gradient
    /// itself must be differentiable but the output carries no gradient, since its dependence on the inputs would be
    /// lost.
    #[track_caller]
    pub fn output(&self, i: usize) -> Result<Tensor> {
        let t = self.find(Which::Output(i))?;
        if !self.create_graph || !t.dtype().is_float() {
            return Ok(t);
        }
        if self.node.op.as_ref().is_some_and(|op| !op.differentiable(i)) {
            if !is_grad_enabled() {
                return Ok(t);
            }
            let m = format!("the gradient of {} reads output {i}, which carries no gradient itself", self.node.name());
            let e = Error::new(ErrorKind::Autograd, "backward", m);
            return Err(e.help("with create_graph compute it again, from ctx.input(i)"));
        }
        let edge = Edge { node: self.node.clone(), output: i };
        Ok(t.with_edge(edge))
    }

    /// [`input`](Context::input) by reference where possible, which avoids a clone.
    #[track_caller]
    pub(crate) fn borrow_input(&self, i: usize) -> Result<Cow<'_, Tensor>> {
        match self.find_kept(Which::Input(i))? {
            Some(t) => Ok(Cow::Borrowed(t)),
            None => self.find(Which::Input(i)).map(Cow::Owned),
        }
    }

    /// Returns a saved value after checking its version. `None` if it was not saved, or if a switch guards or packs it.
    #[track_caller]
    fn find_kept(&self, what: Which) -> Result<Option<&Tensor>> {
        let Some(at) = self.saved.values.iter().position(|s| s.what == what) else { return Ok(None) };
        self.read.values.set(self.read.values.get() | 1 << at.min(63));
        let s = &self.saved.values[at];
        self.check(what, &s.tensor, s.version)?;
        Ok(Some(&s.tensor))
    }

    #[track_caller]
    fn find(&self, what: Which) -> Result<Tensor> {
        if let Some(t) = self.find_kept(what)? {
            return Ok(t.clone());
        }
        let mut slots = self.saved.guarded.iter().flat_map(|g| &g.slots);
        if let Some(slot) = slots.find(|slot| slot.what == what) {
            return self.find_guarded(slot);
        }
        let m = format!("the gradient of {} reads {what}, which was not kept", self.node.name());
        Err(Error::new(ErrorKind::Autograd, "backward", m))
    }

    /// The saved value of a slot, with its edge. A packed value is unpacked once per pass.
    #[cold]
    #[track_caller]
    fn find_guarded(&self, slot: &Slot) -> Result<Tensor> {
        let what = slot.what;
        if let Some((_, t, _)) = self.read.guarded.borrow().iter().find(|r| r.0 == what) {
            return Ok(t.clone());
        }
        let (t, version) = match &slot.value {
            Value::Packed { packed, spec, .. } => packed.unpack(self.node, what, spec)?,
            kept => kept
                .kept()
                .ok_or_else(|| Error::new(ErrorKind::Autograd, "backward", "the value is not kept"))
                .here()?,
        };
        let edge = match what {
            Which::Input(i) => self.node.inputs.get(i).and_then(Option::as_ref),
            Which::Output(_) | Which::Read => None,
        };
        let t = edge.map_or_else(|| t.clone(), |e| t.with_edge(e.clone()));
        self.read.guarded.borrow_mut().push((what, t.clone(), version));
        self.check(what, &t, version)?;
        Ok(t)
    }

    /// Checks again that the values that the rule has read are unchanged, since another thread may have written in the
    /// meantime. If the node is strict, its inputs are checked as well, even those that the rule has not read.
    #[track_caller]
    pub(in crate::autograd) fn check_read(&self) -> Result<()> {
        let values = self.read.values.get();
        for (at, s) in self.saved.values.iter().enumerate() {
            if values >> at.min(63) & 1 == 1 {
                self.check(s.what, &s.tensor, s.version)?;
            }
        }
        let Some(guarded) = &self.saved.guarded else { return Ok(()) };
        self.read.guarded.borrow().iter().try_for_each(|(what, t, version)| self.check(*what, t, *version)).here()?;
        guarded.check_inputs()
    }

    /// Forgets the handed-out values that a write has since replaced by copies, and returns whether there were any. A
    /// copy is never replaced again, so this happens at most once for each value.
    #[cold]
    pub(in crate::autograd) fn forget_replaced(&self) -> bool {
        let slots = || self.saved.guarded.iter().flat_map(|g| &g.slots);
        let mut handed = self.read.guarded.borrow_mut();
        let count = handed.len();
        handed.retain(|(what, t, _)| {
            let now = slots().find(|slot| slot.what == *what).and_then(|slot| slot.value.kept());
            now.is_none_or(|(now, _)| Arc::ptr_eq(now.storage(), t.storage()))
        });
        handed.len() < count
    }

    /// Fails if a saved value was overwritten since its storage had `version`.
    #[inline]
    #[track_caller]
    fn check(&self, what: Which, kept: &Tensor, version: u64) -> Result<()> {
        if kept.storage().version() == version { Ok(()) } else { self.check_written(what, kept, version) }
    }

    /// The slow path of [`check`](Context::check), taken if the storage has been written.
    #[cold]
    #[track_caller]
    fn check_written(&self, what: Which, kept: &Tensor, version: u64) -> Result<()> {
        let Some(write) = kept.overwritten(version) else { return Ok(()) };
        let name = self.node.name();
        let m = format!("the gradient of {name} needs its {what}, which {} overwrote", write.op);
        let e = kept.describe(Error::new(ErrorKind::Autograd, "backward", m), &what.to_string());
        Err(overwritten(e, name, self.node.location, what.to_string(), &write, version)
            .help("write before the forward pass, write into a copy, or use the operation that makes a new tensor"))
    }
}

/// Adds to an error which operation recorded the value at `version` and which operation overwrote it.
pub(in crate::autograd) fn overwritten(
    e: Error,
    op: &str,
    recorded: &'static Location<'static>,
    value: String,
    write: &Write,
    version: u64,
) -> Error {
    e.with_version_mismatch(write.mismatch(op, value, version, recorded))
        .note(format!("{op} was recorded at {recorded}"))
        .note(format!("{} wrote at {} (version {version} then, {} now)", write.op, write.location, write.version))
}
