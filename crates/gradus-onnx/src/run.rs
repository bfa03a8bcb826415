//! Runs a graph: the nodes one after the other, each by its row of the table.

use std::cell::Cell;

use gradus_tensor::{Error, Result};

use crate::graph::{Call, Graph, Node, Slot, State, unsupported};
use crate::value::OnnxValue;

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
        let results = run_node(node, &values, state)
            .map_err(|e| e.note(format!("in the node \"{}\" ({})", node.name, node.row.name)))?;
        for &slot in &node.frees {
            values[slot] = None;
        }
        for (slot, value) in node.outputs.iter().zip(results) {
            if let Some(slot) = slot {
                values[*slot] = Some(value);
            }
        }
    }
    let output = |(name, slot): &(String, usize)| {
        values[*slot].clone().ok_or_else(|| Error::argument("onnx", format!("the output \"{name}\" has no value")))
    };
    graph.outputs.iter().map(output).collect()
}

fn run_node(node: &Node, values: &[Option<OnnxValue>], state: &State<'_>) -> Result<Vec<OnnxValue>> {
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
