//! Biases: a sum with one constant for each column, after a product with a constant matrix, becomes part of the product.

use gradus_tensor::{DType, Result};

use super::links::{Links, add_constant};
use crate::graph::{Call, Graph, Row, State, one, row};
use crate::value::OnnxValue;

/// A product with a matrix and a bias.
pub(super) static PRODUCT: Row = row("MatMul+Add", &[1], |c: &Call<'_>| -> Result<Vec<OnnxValue>> {
    let (x, w, bias) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    Ok(one(x.linear(&w.t()?, Some(&bias))?))
});

/// Stores the constant matrices of `Gemm` that are transposed the other way around, because products read their second
/// operand by rows.
pub(super) fn transpose_matrices(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if node.row.name != "Gemm" || node.int_attribute("transB").unwrap_or(0) == 0 {
            continue;
        }
        let matrix = links.constant_input(node, 1).and_then(|a| a.tensor(state.device).ok());
        let Some(b) = matrix.and_then(|b| b.t().ok()?.contiguous().ok()) else { continue };
        let b = add_constant(graph, b.into());
        let node = &mut graph.nodes[at];
        node.inputs[1] = Some(b);
        node.attributes.retain(|(name, _)| name != "transB");
    }
}

/// Moves biases into products. The product adds to the bias rather than the bias to the product, so sums are rounded in
/// another order.
pub(super) fn into_products(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    let mut removed = vec![false; graph.nodes.len()];
    for at in 0..graph.nodes.len() {
        let product = &graph.nodes[at];
        let matrix = |input: usize| {
            let array = links.constant_input(product, input)?;
            let tensor = array.tensor(state.device).ok()?;
            (tensor.dtype() == DType::F32 && tensor.rank() == 2).then_some(tensor)
        };
        let ("MatMul", Some(w), Some(next)) = (product.row.name, matrix(1), links.only_reader(graph, at)) else {
            continue;
        };
        let sum = &graph.nodes[next];
        let from = product.outputs.first().copied().flatten();
        if sum.row.name != "Add" || sum.opset < 7 || sum.inputs.len() != 2 {
            continue;
        }
        let other = if sum.inputs[0] == from { 1 } else { 0 };
        let columns = w.shape()[1];
        let bias = links.constant_input(sum, other).and_then(|a| a.tensor(state.device).ok()).filter(|b| {
            // The sum must not have more axes than the product, which has at least one.
            b.dtype() == DType::F32 && b.shape() == [columns]
        });
        let Some(bias) = bias else { continue };
        let outputs = sum.outputs.clone();
        let bias = add_constant(graph, bias.into());
        let product = &mut graph.nodes[at];
        product.row = &PRODUCT;
        product.inputs.truncate(2);
        product.inputs.push(Some(bias));
        product.outputs = outputs;
        removed[next] = true;
    }
    let mut removed = removed.into_iter();
    graph.nodes.retain(|_| !removed.next().unwrap_or(false));
}
