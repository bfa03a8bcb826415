//! Runs a graph: the nodes one after the other, each by its row of the table.

use std::cell::Cell;
use std::sync::Mutex;

use gradus_tensor::{Device, Error, Generator, Result};

use crate::graph::{Call, Graph, Node};
use crate::value::OnnxValue;

/// Runs a graph on its inputs; `None` leaves an initialiser of that name. `around` holds the values of the graph around
/// it.
pub(crate) fn run(
    graph: &Graph,
    inputs: Vec<Option<OnnxValue>>,
    around: &[Option<OnnxValue>],
    device: &Device,
    random: &Mutex<Generator>,
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
    for (value, (_, slot)) in inputs.into_iter().zip(&graph.inputs) {
        if value.is_some() {
            values[*slot] = value;
        }
    }
    for &(outer, inner) in &graph.captures {
        values[inner] = around.get(outer).cloned().flatten();
    }
    for node in &graph.nodes {
        let results = run_node(node, &values, device, random)
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

fn run_node(
    node: &Node,
    values: &[Option<OnnxValue>],
    device: &Device,
    random: &Mutex<Generator>,
) -> Result<Vec<OnnxValue>> {
    let mut inputs = Vec::new();
    for slot in &node.inputs {
        inputs.push(slot.and_then(|slot| values[slot].clone()));
    }
    let call = Call { node, inputs, around: values, device, random, read: Cell::new(0) };
    if let Some(host) = node.row.host
        && let Some(array) = host(&call)
    {
        return Ok(vec![OnnxValue::Tensor(array)]);
    }
    let results = (node.row.run)(&call)?;
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
