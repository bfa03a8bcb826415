//! Builds a graph from two traces of a step if they agree; otherwise reports how they differ.

use std::sync::{Arc, Weak};

use gradus_tensor::ops::{Contiguous, Op, draws_lead, over_storage};
use gradus_tensor::{DType, Error, ErrorKind, Layout, Result, Shape, Storage, Tensor};

use crate::graph::{Graph, Memory, Node, Origin, Place};
use crate::record::{First, Seen, Trace, Used, is, two_devices};

/// What two traces of a step must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sameness {
    /// Everything but what a replay renews.
    Exact,
    /// The traces are of arguments of other sizes. Two traces of the first sizes have agreed already, so what is equal
    /// in them does not change from call to call. The second trace must use the same memories in the same order by the
    /// same operations, whose parameters and shapes may follow the sizes.
    OtherSizes,
}

/// Returns the graph of a step that was traced twice, which is that of the second trace. Fails at the first difference
/// that a replay could not reproduce.
#[track_caller]
pub(crate) fn agree(first: &Trace, second: &Trace, sameness: Sameness) -> Result<Graph> {
    if first.device != second.device {
        return Err(two_devices(&first.device, &second.device));
    }
    for (a, b) in first.nodes.iter().zip(&second.nodes) {
        same_node(a, b, sameness)?;
    }
    let more = |n: &Trace, at: usize| n.nodes.get(at).map(|node| format!("{:?} at {}", node.op, node.location));
    let at = first.nodes.len().min(second.nodes.len());
    match (more(first, at), more(second, at)) {
        (None, None) => {}
        (a, b) => {
            let shown = |op: Option<String>| op.unwrap_or_else(|| "nothing more".to_owned());
            return Err(differs(second.nodes.get(at), "what runs", shown(a), shown(b)));
        }
    }
    let idle = |trace: &Trace| trace.idle.iter().map(|(_, source)| source.id()).collect::<Vec<_>>();
    if idle(first) != idle(second) {
        let named = |trace: &Trace| trace.idle.iter().map(|(op, _)| op.name()).collect::<Vec<_>>().join(", ");
        let what = "the layer or optimiser behind an operation without elements";
        return Err(differs(None, what, named(first), format!("{} of others", named(second))));
    }
    if !same_places(&first.results, &second.results, sameness) {
        return Err(differs(None, "the results", shapes(&first.results), shapes(&second.results)));
    }
    let (earlier, states) = (&first.states, &second.states);
    if earlier.iter().map(|used| used.state.id()).ne(states.iter().map(|used| used.state.id())) {
        let shown = |states: &[Used]| format!("{} of them", states.len());
        return Err(differs(None, "which buffers are used", shown(earlier), format!("{} others", states.len())));
    }
    alone(second)?;
    followed(second)?;
    if first.switches.iter().map(|s| s.1).ne(second.switches.iter().map(|s| s.1)) {
        let frozen = |trace: &Trace| trace.switches.iter().filter(|s| s.1).count();
        let shown = |trace: &Trace| format!("{} of {} are frozen", frozen(trace), trace.switches.len());
        let what = "which parameters are used or frozen";
        return Err(differs(None, what, shown(first), format!("{}, and they are others", shown(second))));
    }
    let mut memories = Vec::with_capacity(second.memories.len()); // at most one for each storage that was seen
    for (i, seen) in second.memories.iter().enumerate() {
        let origin = origin((first, second), first.memories.get(i), seen, i, sameness)?;
        let is_steady = first.memories.get(i).is_some_and(|before| before.stamp == seen.stamp);
        memories.push(Memory { origin, bytes: seen.bytes, is_steady });
    }
    let replaced = states.iter().filter_map(|used| Some((used.state.clone(), used.assigned?)));
    let mut graph = Graph {
        device: second.device.clone(),
        replaced: replaced.collect(),
        memories,
        nodes: second.nodes.clone(),
        results: second.results.clone(),
    };
    copy_constants(&mut graph);
    Ok(graph)
}

/// Rejects states that share a storage with another state, an argument or another tensor that the step reads, because a
/// trace does not show which of them an operation reads.
#[track_caller]
fn alone(trace: &Trace) -> Result<()> {
    for (i, used) in trace.states.iter().enumerate() {
        let with = match trace.memories[used.held].first {
            First::Input(_) => "an argument",
            _ if trace.states[..i].iter().any(|other| other.held == used.held) => "another buffer",
            _ if used.is_shared => "another tensor that the step uses, such as a parameter",
            _ => continue,
        };
        let m = format!("a buffer of the step shares its memory with {with}");
        return Err(Error::argument("capture", m).help("give it a copy: Buffer::new(t.copy()?)"));
    }
    Ok(())
}

/// Rejects a step in which a random state moved otherwise than by the traced draws, one after the other.
#[track_caller]
fn followed(trace: &Trace) -> Result<()> {
    for (state, start, end) in &trace.randoms {
        let served = |n: &&Node| n.repeats.is_none() && n.source.as_ref().is_some_and(|s| s.id() == state.id());
        let nodes: Vec<&Node> = trace.nodes.iter().filter(served).collect();
        let ops: Vec<&Op> = nodes.iter().map(|n| &n.op).collect();
        if !draws_lead(start, &ops, end) {
            let m = "a random state is moved in a way that a replay cannot follow";
            let e = Error::argument("capture", m);
            let e = match nodes.first() {
                Some(node) => e.note(format!("{} draws from it at {}", node.op.name(), node.location)),
                None => e.note("the host sets it or draws from it, and no operation does"),
            };
            return Err(e.help("draw tensors from it, one after the other, and leave it where they end"));
        }
    }
    Ok(())
}

/// Replaces each constant that the step writes or returns by a computed memory, into which each replay first copies the
/// constant.
fn copy_constants(graph: &mut Graph) {
    for m in 0..graph.memories.len() {
        let Origin::Constant(values) = graph.memories[m].origin.clone() else { continue };
        let written = graph.nodes.iter().any(|n| n.outputs.iter().any(|o| o.memory == m));
        if !written && !graph.leaves(m) {
            continue;
        }
        let source = graph.memories.len();
        let place = |memory| Place { memory, version: 0, layout: *values.layout(), dtype: values.dtype() };
        let copy = Node {
            op: Contiguous.into(),
            inputs: vec![place(source)],
            outputs: vec![place(m)],
            in_place: false,
            source: None,
            repeats: None,
            location: std::panic::Location::caller(),
        };
        graph.memories.push(graph.memories[m].clone());
        graph.memories[m].origin = Origin::Computed;
        if values.numel() > 0 {
            graph.nodes.insert(0, copy);
            graph.nodes.iter_mut().for_each(|n| n.repeats = n.repeats.map(|r| r + 1));
        }
    }
}

fn shapes(places: &[Place]) -> String {
    let shown: Vec<String> = places.iter().map(|p| format!("{}{:?}", p.dtype, p.layout.dims())).collect();
    shown.join(", ")
}

/// The origin of the contents of a memory of the second trace.
#[track_caller]
fn origin(
    (first, second): (&Trace, &Trace),
    before: Option<&Seen>,
    seen: &Seen,
    number: usize,
    sameness: Sameness,
) -> Result<Origin> {
    match (seen.first, before.map(|b| b.first)) {
        (now, Some(old)) if now != old => {
            return Err(differs(None, "the first use of a memory", format!("{old:?}"), format!("{now:?}")));
        }
        (First::Input(i), _) => return Ok(Origin::Input(i)),
        (First::Computed, _) => return Ok(Origin::Computed),
        (First::Outside, _) => {}
    }
    if let Some(used) = second.states.iter().find(|used| used.held == number) {
        return Ok(Origin::State(used.state.clone()));
    }
    let made = |trace: &Trace, storage: &Weak<Storage>| {
        trace.made.iter().find(|m| is(storage, m.tensor.storage())).map(|m| m.copy.clone())
    };
    match (before.and_then(|b| made(first, &b.storage)), made(second, &seen.storage)) {
        (Some(a), Some(b)) if a.dtype() == b.dtype() => {
            if sameness == Sameness::OtherSizes || a.to_bytes()? == b.to_bytes()? {
                return Ok(Origin::Constant(b));
            }
            return Err(other_constant());
        }
        (_, Some(_)) => return Err(other_constant()),
        (_, None) => {}
    }
    if before.is_some_and(|b| b.storage.ptr_eq(&seen.storage)) {
        return Ok(Origin::Held(seen.storage.clone()));
    }
    let computed = |m: &Seen| m.first == First::Computed && m.storage.ptr_eq(&seen.storage);
    let m = if first.memories.iter().any(computed) {
        "the step reads a tensor that its previous call computed"
    } else {
        "the step reads another tensor in each call, which is neither an input nor a result of its operations"
    };
    let memory = second.memories.iter().position(|m| std::ptr::eq(m, seen));
    let touches = |n: &&Node| n.inputs.iter().chain(&n.outputs).any(|p| Some(p.memory) == memory);
    let e = match second.nodes.iter().find(touches) {
        Some(node) => Error::argument("capture", m).note(format!("{} uses it at {}", node.op.name(), node.location)),
        None => Error::argument("capture", m),
    };
    Err(e
        .note("such a tensor is kept from one call for the next, or computed by another thread")
        .help("return the tensor and pass it to the next call, or write it in place: kept.copy_(&new)?"))
}

#[track_caller]
fn other_constant() -> Error {
    let m = "a tensor that the step makes from numbers of the host has other numbers in each call";
    Error::argument("capture", m)
        .note("a replay would go on with those of one call")
        .help("make the tensor outside of the step, and pass it as an input")
}

/// All bytes of a storage, as a tensor.
#[track_caller]
pub(crate) fn bytes_of(storage: &Arc<Storage>) -> Result<Tensor> {
    let layout = Layout::contiguous(Shape::new(&[storage.bytes()])?);
    over_storage(storage.clone(), layout, DType::U8)
}

#[track_caller]
fn same_node(a: &Node, b: &Node, sameness: Sameness) -> Result<()> {
    let id = |n: &Node| n.source.as_ref().map(|source| source.id());
    if id(a) != id(b) {
        return Err(differs(
            Some(b),
            "the state behind an operation",
            a.op.name(),
            "one of another layer or optimiser",
        ));
    }
    let sourced = a.source.is_some();
    let alike = sameness == Sameness::OtherSizes && (a.op.kind(), a.op.name()) == (b.op.kind(), b.op.name());
    let same = a.op == b.op || alike || sourced && a.op.same_form(&b.op);
    if !same {
        return Err(differs(Some(b), "an operation", format!("{:?}", a.op), format!("{:?}", b.op)));
    }
    let same_operands = same_places(&a.inputs, &b.inputs, sameness) && same_places(&a.outputs, &b.outputs, sameness);
    if !same_operands || a.in_place != b.in_place || a.repeats != b.repeats {
        let shown = |n: &Node| format!("{} of {}", n.op.name(), shapes(&n.inputs));
        return Err(differs(Some(b), "the operands of an operation", shown(a), shown(b)));
    }
    Ok(())
}

fn same_places(a: &[Place], b: &[Place], sameness: Sameness) -> bool {
    let alike = |(a, b): (&Place, &Place)| (a.memory, a.version, a.dtype) == (b.memory, b.version, b.dtype);
    a == b || sameness == Sameness::OtherSizes && a.len() == b.len() && a.iter().zip(b).all(alike)
}

#[track_caller]
pub(crate) fn differs(node: Option<&Node>, what: &str, a: impl std::fmt::Display, b: impl std::fmt::Display) -> Error {
    let m = format!("{what} differs between two calls of the step: {a}, then {b}");
    let e = Error::new(ErrorKind::InvalidArgument, "capture", m);
    let e = match node {
        Some(node) => e.note(format!("{} ran at {}", node.op.name(), node.location)),
        None => e,
    };
    e.help("a step does the same in every call; pass what changes as an input, or capture each form by itself")
}
