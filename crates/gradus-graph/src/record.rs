//! Runs a step and records its operations.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use gradus_tensor::ops::{Closed, Effect, Made, Op, Source, StateUse, Traced, Uses, storage_of_values, trace_closed};
use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Layout, Result, Storage, Tensor, WeakState};

use crate::graph::{Node, Place};

/// What one call of a step did.
pub(crate) struct Trace {
    pub(crate) device: Device,
    pub(crate) memories: Vec<Seen>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) results: Vec<Place>,
    pub(crate) states: Vec<Used>,
    /// The random states that were used, each with its positions before the first use and after the step.
    pub(crate) randoms: Vec<(WeakState<Generator>, Generator, Generator)>,
    pub(crate) made: Vec<Made>,
    pub(crate) switches: Vec<(Arc<AtomicBool>, bool)>,
    /// Operations that need no kernel, because their results have no elements, but whose sources advance.
    pub(crate) idle: Vec<(Op, Arc<dyn Source>)>,
}

/// A state that holds a tensor, and that a step used.
pub(crate) struct Used {
    pub(crate) state: WeakState<Tensor>,
    /// The number of the memory of the tensor that it held at first.
    pub(crate) held: usize,
    /// The last tensor that was assigned to it.
    pub(crate) assigned: Option<Place>,
    /// Whether an operation read the memory by another handle than that of the state, which existed before the step.
    pub(crate) is_shared: bool,
}

/// What a traced call of a step returned, with its trace or the reason why it cannot be replayed.
pub(crate) struct Recorded<D> {
    pub(crate) results: Vec<Tensor>,
    pub(crate) data: D,
    pub(crate) trace: Result<Trace>,
}

/// A storage that occurs in a trace. The weak handle does not keep its bytes, but keeps its address from being reused.
pub(crate) struct Seen {
    pub(crate) storage: Weak<Storage>,
    pub(crate) bytes: usize,
    pub(crate) first: First,
    /// The version of the storage when it was first seen.
    pub(crate) stamp: u64,
    /// The number of writes in place.
    pub(crate) version: u32,
    /// The smallest offset of the arguments in this storage, to which places are relative.
    pub(crate) base: usize,
    /// The tensors over this storage that operations read, apart from the views that the step made itself.
    handles: Vec<usize>,
}

/// The first occurrence of a storage in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// As an argument of the step.
    Input(usize),
    /// As the result of an operation.
    Computed,
    /// Any other occurrence: the storage existed before the step, or was created from host numbers.
    Outside,
}

#[derive(Default)]
struct Recorder {
    known: HashMap<*const Storage, usize>,
    memories: Vec<Seen>,
    /// The devices of `memories`, each once.
    devices: Vec<Device>,
    /// The tensors that the step made as views of others.
    views: HashSet<usize>,
    nodes: Vec<Node>,
    idle: Vec<(Op, Arc<dyn Source>)>,
    /// The first reason why the step cannot be replayed.
    refused: Option<Error>,
}

impl Trace {
    /// The number of the memory of a tensor.
    pub(crate) fn memory_of(&self, t: &Tensor) -> Option<usize> {
        self.memories.iter().position(|seen| is(&seen.storage, t.storage()))
    }
}

/// Runs `f` on `inputs` and records the operations that run.
#[track_caller]
pub(crate) fn record<D>(
    closed: Closed,
    f: &mut impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
    inputs: &[Tensor],
) -> Result<Recorded<D>> {
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    let refs: Vec<&Tensor> = inputs.iter().collect();
    for (i, t) in inputs.iter().enumerate() {
        let memory = recorder.borrow_mut().memory(t, First::Input(i));
        recorder.borrow_mut().memories[memory].base = base(&refs, i);
    }
    let seen = recorder.clone();
    let (returned, uses) = trace_closed(closed, move |ran| seen.borrow_mut().ran(ran), || f(inputs));
    let (results, data) = returned?;
    let trace = traced(recorder.take(), uses, inputs, &results);
    Ok(Recorded { results, data, trace })
}

/// The trace of a call that ran to its end; fails if the call cannot be replayed.
#[track_caller]
fn traced(mut recorder: Recorder, uses: Uses, inputs: &[Tensor], results: &[Tensor]) -> Result<Trace> {
    let leaves_filled = uses.leaves_filled();
    if let Some(e) = uses.refused.or(recorder.refused.take()) {
        return Err(e.here());
    }
    if leaves_filled {
        let m = "memory that a captured step fills is not given back at its end";
        return Err(Error::argument("capture", m)
            .note("a replay computes the values in memory of its own, and would leave those of an earlier call there")
            .help("give it back before the step ends: x.storage().give_back()?"));
    }
    let Uses { states, randoms, made, switches, .. } = uses;
    if let Some(t) = results.iter().find(|t| t.requires_grad()) {
        let m = "a captured step returns a tensor that requires a gradient";
        return Err(Error::new(ErrorKind::Autograd, "capture", m)
            .operand("result", t.shape(), t.dtype(), t.device())
            .note("a replay records no graph, so no gradient could flow back into the step")
            .help("compute the gradient inside of the step, and return t.detach()"));
    }
    let places = results.iter().map(|t| recorder.place(t, First::Outside)).collect();
    // Tensors that were assigned to states belong to the step, even if no operation computed them.
    let mut used: Vec<Used> = vec![];
    for StateUse { state, before, after, is_shared } in states {
        let held = recorder.memory(&before, First::Outside);
        let assigned = after.map(|after| recorder.place(&after, First::Outside));
        if let Some(known) = used.iter_mut().find(|known| known.state.id() == state.id()) {
            known.assigned = assigned.or(known.assigned);
            continue;
        }
        let is_shared = is_shared && recorder.memories[held].handles.iter().any(|&handle| handle != handle_of(&before));
        used.push(Used { state: state.downgrade(), held, assigned, is_shared });
    }
    let randoms = randoms.into_iter().map(|(state, start)| (state.downgrade(), start, state.get())).collect();
    let Some(device) = inputs.first().or(results.first()).map(|t| t.device().clone()).or_else(|| recorder.device())
    else {
        return Err(Error::argument("capture", "the step runs no operation"));
    };
    if let Some(other) = recorder.devices.iter().find(|other| **other != device) {
        return Err(two_devices(&device, other)).here();
    }
    let Recorder { memories, nodes, idle, .. } = recorder;
    Ok(Trace { device, memories, nodes, results: places, states: used, randoms, made, switches, idle })
}

#[track_caller]
pub(crate) fn two_devices(a: &Device, b: &Device) -> Error {
    let m = format!("a captured step runs on one device, and this one uses {a} and {b}");
    let e = Error::new(ErrorKind::DeviceMismatch, "capture", m).help("move the tensors before the step");
    a.tell_apart(b, e)
}

impl Recorder {
    fn device(&self) -> Option<Device> {
        self.devices.first().cloned()
    }

    /// The number of a tensor's memory.
    fn memory(&mut self, t: &Tensor, first: First) -> usize {
        let storage = t.storage();
        // A storage that the step filled stands for the memory of the values that filled it.
        let of_values = storage_of_values(storage);
        *self.known.entry(of_values.as_ptr()).or_insert_with(|| {
            if !self.devices.contains(storage.device()) {
                self.devices.push(storage.device().clone());
            }
            let (bytes, stamp) = (storage.bytes(), storage.version());
            self.memories.push(Seen { storage: of_values, bytes, first, stamp, version: 0, base: 0, handles: vec![] });
            self.memories.len() - 1
        })
    }

    /// Notes that an operation read `t`, if its storage existed before the step.
    fn note_handle(&mut self, t: &Tensor) {
        let (memory, handle) = (self.memory(t, First::Outside), handle_of(t));
        let Seen { first, handles, .. } = &mut self.memories[memory];
        if *first == First::Outside && !self.views.contains(&handle) && !handles.contains(&handle) {
            handles.push(handle);
        }
    }

    fn place(&mut self, t: &Tensor, first: First) -> Place {
        let memory = self.memory(t, first);
        let Seen { version, base, .. } = self.memories[memory];
        let relative = moved(t.layout(), base, 0, t);
        let layout = relative.unwrap_or_else(|| {
            let m = "an argument lies inside of a tensor that the step also uses by itself";
            let e = Error::argument("capture", m).help("pass a copy: x.copy()?");
            self.refused.get_or_insert(e);
            *t.layout()
        });
        Place { memory, version, layout, dtype: t.dtype() }
    }

    fn ran(&mut self, ran: &Traced<'_>) {
        if ran.op.effect() == Effect::Crosses {
            let (from, to) = (ran.inputs[0].device(), ran.outputs[0].device());
            self.refused.get_or_insert_with(|| two_devices(from, to));
        }
        let is_view = |t: &&Tensor| ran.inputs.iter().any(|x| Arc::ptr_eq(x.storage(), t.storage()));
        if !ran.kernel && ran.outputs.iter().all(is_view) && ran.inputs.iter().any(|t| t.storage().is_given_back()) {
            // Views of what has no memory yet.
            self.views.extend(ran.outputs.iter().map(|t| handle_of(t)));
            return;
        }
        let updated = if ran.in_place && ran.op.effect().updates() { ran.outputs.len() } else { 0 };
        let inputs: Vec<Place> = ran.inputs[updated..].iter().map(|t| self.place(t, First::Outside)).collect();
        ran.inputs.iter().for_each(|t| self.note_handle(t));
        if matches!(ran.op, Op::Rule(_)) {
            return;
        }
        if ran.op.effect() == Effect::Calls {
            let m = format!("{} runs a function of its own, which a captured step cannot follow", ran.op.name());
            self.refused.get_or_insert_with(|| Error::argument("capture", m));
        }
        let source = ran.source.filter(|source| source.serves(ran.op)).cloned();
        if !ran.kernel {
            // Views share the memory of their input, and results without elements need no kernel.
            let first = if ran.in_place { First::Outside } else { First::Computed };
            for t in ran.outputs {
                self.memory(t, first);
                self.views.insert(handle_of(t));
            }
            self.idle.extend(source.map(|source| (ran.op.clone(), source)));
            return;
        }
        if ran.in_place {
            // Each storage is written once, however many of its views are.
            for t in ran.outputs {
                let memory = self.memory(t, First::Outside);
                self.memories[memory].version += 1;
            }
        }
        let first = if ran.in_place { First::Outside } else { First::Computed };
        let outputs = ran.outputs.iter().map(|t| self.place(t, first)).collect();
        // A stream yields the same numbers twice only if a region is recomputed.
        let id = source.as_ref().map(|source| source.id());
        let of_same = |node: &Node| node.source.as_ref().map(|source| source.id()) == id;
        let same = |node: &Node| of_same(node) && node.repeats.is_none() && node.op == *ran.op;
        let repeats = match (&source, ran.op.effect()) {
            (Some(_), Effect::Draws) => self.nodes.iter().position(same),
            _ => None,
        };
        let (op, in_place, location) = (ran.op.clone(), ran.in_place, ran.location);
        let at = self.place_of(ran);
        self.nodes.insert(at, Node { op, inputs, outputs, in_place, source, repeats, location });
    }

    /// The position of the operation in the list: the end, unless hooks have already packed its results. Such hooks run
    /// while the operation is being recorded, so their operations are reported before it.
    fn place_of(&mut self, ran: &Traced<'_>) -> usize {
        let mut at = self.nodes.len();
        if ran.in_place {
            return at;
        }
        for t in ran.outputs {
            let memory = self.memory(t, First::Computed);
            if self.memories[memory].first == First::Outside {
                self.memories[memory].first = First::Computed;
                let reads = |node: &Node| node.inputs.iter().any(|p| p.memory == memory);
                at = at.min(self.nodes.iter().position(reads).unwrap_or(at));
            }
        }
        for node in &mut self.nodes[at..] {
            node.repeats = node.repeats.map(|earlier| if earlier >= at { earlier + 1 } else { earlier });
        }
        at
    }
}

/// A layout in the storage of `t`, shifted by `to - from`; `None` if it would then reach beyond the storage.
pub(crate) fn moved(layout: &Layout, from: usize, to: usize, t: &Tensor) -> Option<Layout> {
    if from == to {
        return Some(*layout);
    }
    let offset = (layout.offset() + to).checked_sub(from)?;
    let elements = t.storage().bytes() / t.dtype().size();
    Layout::from_parts(*layout.shape(), layout.strides(), offset, elements).ok()
}

/// A number that clones of a tensor share, and that no other tensor alive has.
fn handle_of(t: &Tensor) -> usize {
    std::ptr::from_ref(t.layout()).addr()
}

/// Whether a weak handle refers to this storage.
pub(crate) fn is(weak: &Weak<Storage>, storage: &Arc<Storage>) -> bool {
    std::ptr::eq(weak.as_ptr(), Arc::as_ptr(storage))
}

/// The smallest offset of the arguments that share the storage of argument `i`.
pub(crate) fn base(inputs: &[&Tensor], i: usize) -> usize {
    let sharing = inputs.iter().filter(|t| Arc::ptr_eq(t.storage(), inputs[i].storage()));
    sharing.map(|t| t.layout().offset()).min().unwrap_or(0)
}
