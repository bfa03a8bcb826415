//! Runs a graph: the nodes one after the other, each by its row of the table.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use gradus_tensor::{Error, ErrorKind, Result};

use crate::graph::{Attribute, Call, Graph, Node, Slot, State, unsupported};
use crate::profile::OnnxTime;
use crate::value::{OnnxValue, bytes_of};

/// Runs a graph on its inputs. For an input that is `None`, the initialiser of that name is used. `around` holds the
/// values of the enclosing graph.
pub(crate) fn run(
    graph: &Graph,
    inputs: Vec<Option<OnnxValue>>,
    around: &[Option<OnnxValue>],
    state: &State<'_>,
) -> Result<Vec<OnnxValue>> {
    run_with(graph, Vec::new(), inputs, around, state)
}

/// Like [`run`], but with other values for some constants.
pub(crate) fn run_with(
    graph: &Graph,
    replaced: Vec<(Slot, OnnxValue)>,
    inputs: Vec<Option<OnnxValue>>,
    around: &[Option<OnnxValue>],
    state: &State<'_>,
) -> Result<Vec<OnnxValue>> {
    if inputs.len() != graph.inputs.len() {
        let m = format!("{} values for the {} inputs of a graph", inputs.len(), graph.inputs.len());
        return Err(Error::argument("onnx", m));
    }
    let mut values: Vec<Option<OnnxValue>> = Vec::new();
    // At most one for each name in the file.
    values.resize(graph.slots, None);
    for (_, slot, value) in &graph.constants {
        values[*slot] = Some(value.clone());
    }
    for (slot, value) in replaced {
        values[slot] = Some(value);
    }
    for (value, (_, slot)) in inputs.into_iter().zip(&graph.inputs) {
        if value.is_some() {
            values[*slot] = value;
        }
    }
    for &(outer, inner) in &graph.captures {
        values[inner] = around.get(outer).cloned().flatten();
    }
    for node in &graph.nodes {
        let results = timed(node, state, || run_node(node, &values, state))
            .map_err(|e| e.note(format!("in the node \"{}\" ({})", node.name, node.row.name)))?;
        for &slot in &node.frees {
            values[slot] = None;
        }
        let made: usize = results.iter().map(bytes_of).fold(0, usize::saturating_add);
        for (slot, value) in node.outputs.iter().zip(results) {
            if let Some(slot) = slot {
                values[*slot] = Some(value);
            }
        }
        if made >= COUNTED {
            check_bytes(&values, graph, state.max_bytes)
                .map_err(|e| e.note(format!("in the node \"{}\" ({})", node.name, node.row.name)))?;
        }
    }
    let output = |(name, slot): &(String, usize)| {
        values[*slot].clone().ok_or_else(|| Error::argument("onnx", format!("the output \"{name}\" has no value")))
    };
    graph.outputs.iter().map(output).collect()
}

/// Runs a node, and adds its time if times are measured and it has no sub-graphs.
fn timed<T>(node: &Node, state: &State<'_>, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(times) = state.times else { return run() };
    let start = Instant::now();
    let result = run()?;
    state.device.synchronize()?;
    if !node.attributes.iter().any(|(_, a)| matches!(a, Attribute::Graph(_))) {
        times.borrow_mut().push(OnnxTime { node: node.name.clone(), operator: node.row.name, time: start.elapsed() });
    }
    Ok(result)
}

/// Runs a node on the values of its graph.
pub(crate) fn run_node(node: &Node, values: &[Option<OnnxValue>], state: &State<'_>) -> Result<Vec<OnnxValue>> {
    let mut inputs = Vec::new();
    for slot in &node.inputs {
        inputs.push(slot.and_then(|slot| values[slot].clone()));
    }
    let call = Call { node, inputs, around: values, device: state.device, state, read: Cell::new(0) };
    if let Some(host) = node.row.host
        && let Some(array) = host(&call)
    {
        return Ok(vec![OnnxValue::Tensor(array)]);
    }
    let results = (node.row.run)(&call)?;
    results.iter().try_for_each(check_empty)?;
    if let Some(name) = call.unread() {
        return Err(Error::argument("onnx", format!("the attribute `{name}` is not known to this operator")));
    }
    for (i, slot) in node.outputs.iter().enumerate() {
        if slot.is_some() && i >= results.len() {
            return Err(Error::argument("onnx", format!("output {i} is asked for, which this operator does not give")));
        }
    }
    Ok(results)
}

/// From how many bytes of results on the values of a graph are counted.
const COUNTED: usize = 1 << 20;

/// Fails if the values of a graph, besides its constants, have more bytes together than allowed. Views of the same
/// memory count once.
fn check_bytes(values: &[Option<OnnxValue>], graph: &Graph, most: usize) -> Result<()> {
    let storage = |(_, _, value): &(String, Slot, OnnxValue)| match value {
        OnnxValue::Tensor(a) => a.storage().map(Arc::as_ptr),
        _ => None,
    };
    let mut storages: HashSet<_> = graph.constants.iter().filter_map(storage).collect();
    let mut bytes = 0usize;
    let mut open: Vec<&OnnxValue> = values.iter().flatten().collect();
    while let Some(value) = open.pop() {
        bytes = bytes.saturating_add(match value {
            OnnxValue::Tensor(a) => match a.storage() {
                Some(storage) if storages.insert(Arc::as_ptr(storage)) => storage.bytes(),
                Some(_) => 0,
                None => bytes_of(value),
            },
            OnnxValue::Strings(_) | OnnxValue::Map(_) => bytes_of(value),
            OnnxValue::Sequence(values) => {
                open.extend(values.iter());
                0
            }
            OnnxValue::Optional(inner) => {
                open.extend(inner.as_deref());
                0
            }
        });
    }
    if bytes <= most {
        return Ok(());
    }
    let m = format!("the values of the graph have {bytes} bytes, where at most {most} are allowed");
    Err(Error::new(ErrorKind::OutOfMemory { requested: bytes }, "onnx", m).help("OnnxModel::max_bytes allows more"))
}

/// The largest product of the non-zero sizes of a tensor without elements. The host may build lists of that length.
const MOST_PLACES: usize = 1 << 24;

/// Fails if a tensor without elements has enormous axes.
pub(crate) fn check_empty(value: &OnnxValue) -> Result<()> {
    let OnnxValue::Tensor(array) = value else { return Ok(()) };
    let places = array.shape().iter().filter(|&&n| n > 0).try_fold(1usize, |all, &n| all.checked_mul(n));
    if array.shape().contains(&0) && places.is_none_or(|places| places > MOST_PLACES) {
        return Err(unsupported(format!("a tensor without elements of shape {:?}", array.shape())));
    }
    Ok(())
}
