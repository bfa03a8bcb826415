//! Constant matrices of products in f32 are laid out once in the panels that the device reads in place.

use std::sync::Arc;

use gradus_tensor::ops::LinearPanels;
use gradus_tensor::{DType, Error, Result, Tensor};

use super::bias::PRODUCT;
use super::links::{Links, add_constant};
use crate::graph::{Attribute, Call, Graph, Node, Row, Slot, State, one, row};
use crate::value::OnnxValue;

/// A product with a matrix in [panels](LinearPanels), and an optional summand.
static PANELS: Row = row("MatMul+panels", &[1], |c: &Call<'_>| -> Result<Vec<OnnxValue>> {
    let (x, panels, bias) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?);
    let n = c.int("n", 0)?.unsigned_abs() as usize;
    Ok(one(product(&x, &panels, n, bias.as_ref())?))
});

/// Lays out the matrices of `MatMul`, with or without a bias, and of `Gemm`.
pub(super) fn into_panels(graph: &mut Graph, state: &State<'_>) {
    let Some(columns) = state.device.info().f32_panel else { return };
    let links = Links::of(graph);
    // Several nodes may read one matrix, by one name or by several.
    let mut known: Vec<(Tensor, Slot)> = Vec::new();
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if !is_plain(node) {
            continue;
        }
        let Some(matrix) = links.constant_input(node, 1).and_then(|a| a.tensor(state.device).ok()) else { continue };
        let n = matrix.shape().last().copied().unwrap_or(0);
        let same = |from: &Tensor| Arc::ptr_eq(from.storage(), matrix.storage()) && from.layout() == matrix.layout();
        let panels = match known.iter().find(|(from, _)| same(from)) {
            Some(&(_, panels)) => panels,
            None => {
                let Some(panels) = in_panels(&matrix, columns) else { continue };
                let panels = add_constant(graph, panels.into());
                known.push((matrix, panels));
                panels
            }
        };
        let node = &mut graph.nodes[at];
        node.row = &PANELS;
        node.inputs[1] = Some(panels);
        node.attributes = vec![("n".to_owned(), Attribute::Int(n as i64))];
    }
}

/// Whether a node is `a @ b` or `a @ b + c`.
fn is_plain(node: &Node) -> bool {
    let neutral = |(name, value): &(String, Attribute)| match (&**name, value) {
        ("transA" | "transB", Attribute::Int(flag)) => *flag == 0,
        ("alpha" | "beta", Attribute::Float(factor)) => *factor == 1.0,
        _ => false,
    };
    match (node.row.name, node.inputs.len()) {
        ("MatMul", 2) => node.attributes.is_empty(),
        ("Gemm", 2 | 3) => node.attributes.iter().all(neutral),
        _ => std::ptr::eq(node.row, &PRODUCT),
    }
}

/// A matrix `[k, n]` in panels, if that is worth it.
fn in_panels(matrix: &Tensor, columns: usize) -> Option<Tensor> {
    let &[k, n] = matrix.shape() else { return None };
    if matrix.dtype() != DType::F32 || !LinearPanels::is_worth_it(k, n, columns) {
        return None;
    }
    LinearPanels::pack(matrix, columns).ok()
}

fn product(x: &Tensor, panels: &Tensor, n: usize, bias: Option<&Tensor>) -> Result<Tensor> {
    let &[count, k, columns] = panels.shape() else {
        return Err(Error::shape("onnx", format!("panels of shape {:?}", panels.shape())));
    };
    let lead = match x.shape() {
        [lead @ .., last] if *last == k && x.dtype() == DType::F32 => lead,
        // What only an invalid model asks for gets what the product with the matrix gives, most often an error.
        _ => {
            let matrix = panels.transpose(0, 1)?.reshape([k, count * columns])?.narrow(1, 0, n)?;
            let y = x.matmul(&matrix)?;
            return if let Some(bias) = bias { y.add(bias) } else { Ok(y) };
        }
    };
    let x = x.reshape([lead.iter().product(), k])?;
    let along = bias.filter(|b| b.shape() == [n]);
    let y = LinearPanels { n }.apply(&x, panels, along)?.reshape([lead, &[n]].concat())?;
    match bias {
        Some(bias) if along.is_none() => y.add(bias),
        _ => Ok(y),
    }
}
