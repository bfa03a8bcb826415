//! Affine maps of channels after a convolution move into its weight and bias: inference batch normalisation, and
//! products and sums with one constant for each channel.
//!
//! The sums are then rounded in another order. ONNX promises no rounding, and ONNX Runtime does the same.

use gradus_tensor::{DType, Result, Tensor};

use super::links::{Links, add_constant};
use crate::graph::{Graph, Node, State};
use crate::value::Array;

/// `scale * y + shift` for each channel.
struct Affine {
    scale: Tensor,
    shift: Tensor,
}

/// Moves affine maps into the convolutions before them, as often as there are any.
pub(super) fn into_convolutions(graph: &mut Graph, state: &State<'_>) {
    loop {
        let links = Links::of(graph);
        let mut changed = false;
        let mut removed = vec![false; graph.nodes.len()];
        for at in 0..graph.nodes.len() {
            let Some((next, weight, bias)) = merged(graph, &links, at, state) else { continue };
            if removed[next] {
                continue;
            }
            let outputs = graph.nodes[next].outputs.clone();
            let (weight, bias) = (add_constant(graph, weight.into()), add_constant(graph, bias.into()));
            let conv = &mut graph.nodes[at];
            conv.inputs.resize(3, None);
            (conv.inputs[1], conv.inputs[2]) = (Some(weight), Some(bias));
            conv.outputs = outputs;
            (removed[next], changed) = (true, true);
        }
        let mut removed = removed.into_iter();
        graph.nodes.retain(|_| !removed.next().unwrap_or(false));
        if !changed {
            return;
        }
    }
}

/// The affine map after convolution `at`, and the weight and bias that contain it.
fn merged(graph: &Graph, links: &Links, at: usize, state: &State<'_>) -> Option<(usize, Tensor, Tensor)> {
    let conv = &graph.nodes[at];
    // The output channels are the first axis of the weight of a convolution, and the second of a transposed one.
    let axis = match conv.row.name {
        "Conv" => 0,
        "ConvTranspose" if conv.int_attribute("group").unwrap_or(1) == 1 => 1,
        _ => return None,
    };
    if conv.inputs.len() > 3 {
        return None;
    }
    let weight = tensor(links.constant_input(conv, 1)?, state)?;
    let bias = match conv.inputs.get(2).copied().flatten() {
        Some(_) => Some(tensor(links.constant_input(conv, 2)?, state)?),
        None => None,
    };
    let (&channels, rank) = (weight.shape().get(axis)?, weight.rank());
    if weight.dtype() != DType::F32 || rank < 3 {
        return None;
    }
    let next = links.only_reader(graph, at)?;
    let affine = affine(links, &graph.nodes[next], conv.outputs[0]?, [channels, rank], state)?;
    let result = || -> Result<(Tensor, Tensor)> {
        // The products are computed in f64, if the device has it, so that each weight is rounded once.
        let wide = wide(state);
        let mut shape = [1].repeat(rank);
        shape[axis] = channels;
        let scaled = weight.to_dtype(wide)?.mul(affine.scale.reshape(&shape[..])?)?.to_dtype(DType::F32)?;
        let moved = match &bias {
            Some(bias) => bias.to_dtype(wide)?.mul(&affine.scale)?.add(&affine.shift)?,
            None => affine.shift.clone(),
        };
        Ok((scaled, moved.to_dtype(DType::F32)?))
    };
    let (weight, bias) = result().ok()?;
    // The value of a sum with an infinite weight depends on the order.
    let finite = |t: &Tensor| t.to_vec::<f32>().is_ok_and(|values| values.iter().all(|v| v.is_finite()));
    (finite(&weight) && finite(&bias)).then_some((next, weight, bias))
}

fn wide(state: &State<'_>) -> DType {
    if state.device.backend().supports(DType::F64) { DType::F64 } else { DType::F32 }
}

fn tensor(array: &Array, state: &State<'_>) -> Option<Tensor> {
    let tensor = array.tensor(state.device).ok()?;
    (tensor.dtype() == DType::F32).then_some(tensor)
}

/// The map that a node computes of the channels of `from`.
fn affine(links: &Links, node: &Node, from: usize, [channels, rank]: [usize; 2], state: &State<'_>) -> Option<Affine> {
    let wide = wide(state);
    let constant = |input: usize| tensor(links.constant_input(node, input)?, state)?.to_dtype(wide).ok();
    let first = node.inputs.first().copied().flatten() == Some(from);
    if node.row.name == "BatchNormalization" {
        let flag = |name: &str| node.int_attribute(name);
        let training = flag("training_mode").unwrap_or(0) != 0;
        let known = ["epsilon", "momentum", "training_mode", "spatial", "is_test", "consumed_inputs"];
        let plain = node.attributes.iter().all(|(name, _)| known.contains(&&**name));
        let inference = node.opset >= 7 || flag("is_test").unwrap_or(0) != 0;
        if !first || training || !plain || !inference || flag("spatial") == Some(0) {
            return None;
        }
        let eps = node.float_attribute("epsilon").unwrap_or(1e-5);
        let (weight, bias, mean, var) = (constant(1)?, constant(2)?, constant(3)?, constant(4)?);
        let found = || -> Result<Affine> {
            let scale = weight.div(var.add(eps)?.sqrt()?)?;
            Ok(Affine { shift: bias.sub(mean.mul(&scale)?)?, scale })
        };
        return found().ok().filter(|a| a.scale.shape() == [channels] && a.shift.shape() == [channels]);
    }
    // Early opsets align operands by attributes.
    if node.opset < 7 || !matches!(node.row.name, "Mul" | "Add" | "Sub" | "Div") || node.inputs.len() != 2 {
        return None;
    }
    if !first && matches!(node.row.name, "Sub" | "Div") {
        return None;
    }
    let value = constant(if first { 1 } else { 0 })?;
    // One number for each channel, or for all, which is not spread along further axes.
    let (shape, rest) = (value.shape(), rank - 1);
    let along = shape.len() >= rest && shape[shape.len() - rest] == channels;
    let per_channel = shape.len() <= rank && (value.numel() == 1 || (along && value.numel() == channels));
    let spread = |v: &Tensor| v.reshape([v.numel()])?.expand([channels])?.contiguous();
    let found = || -> Result<Affine> {
        let value = spread(&value)?;
        let (zeros, ones) = (value.zeros_like()?, value.ones_like()?);
        Ok(match node.row.name {
            "Mul" => Affine { scale: value, shift: zeros },
            "Div" => Affine { scale: ones.div(&value)?, shift: zeros },
            "Add" => Affine { scale: ones, shift: value },
            _ => Affine { scale: ones, shift: value.neg()? },
        })
    };
    if !per_channel {
        return None;
    }
    found().ok()
}
