//! Integer products and convolutions with a constant matrix or kernel: its zero point is subtracted once, and it is kept
//! in f32. If no sum can exceed 2^24, up to which f32 has all integers, the whole product is computed in f32.

use gradus_tensor::{DType, Result, Tensor};

use super::links::{Links, add_constant};
use crate::graph::{Graph, Node, State};
use crate::ops::{CENTRED, CENTRED_CONV, CENTRED_SMALL};

/// The largest magnitude of an 8-bit number without its zero point.
const LARGEST: f32 = 255.0;

/// Up to here, f32 has all integers.
const EXACT: f32 = 16_777_216.0;

/// Prepares the constant operands of `MatMulInteger` and `ConvInteger`.
pub(super) fn prepare_operands(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let Some(w) = centred(&links, node, state) else { continue };
        // The sum of the magnitudes that each result is multiplied with.
        let axes: Vec<isize> = match node.row.name {
            "MatMulInteger" => vec![-2],
            _ => (1..w.rank() as isize).collect(),
        };
        let sums = w.abs().and_then(|w| w.sum(&axes, false)?.to_vec::<f32>());
        let small = sums.is_ok_and(|sums| sums.iter().all(|sum| sum * LARGEST < EXACT));
        let row = match (node.row.name, small) {
            ("MatMulInteger", true) => &CENTRED_SMALL,
            ("MatMulInteger", false) => &CENTRED,
            (_, true) => &CENTRED_CONV,
            (_, false) => continue,
        };
        let w = add_constant(graph, w.into());
        let node = &mut graph.nodes[at];
        node.row = row;
        node.inputs[1] = Some(w);
        node.inputs.truncate(3);
    }
}

/// The second operand of an integer product without its zero point, if both are constants.
fn centred(links: &Links, node: &Node, state: &State<'_>) -> Option<Tensor> {
    let is_prepared = [&CENTRED, &CENTRED_SMALL, &CENTRED_CONV].iter().any(|row| std::ptr::eq(node.row, *row));
    if is_prepared || !matches!(node.row.name, "MatMulInteger" | "ConvInteger") {
        return None;
    }
    let constant = |input: usize| links.constant_input(node, input)?.tensor(state.device).ok();
    let w = constant(1).filter(|w| w.rank() >= 2 && matches!(w.dtype(), DType::I8 | DType::U8))?;
    let zero = match node.inputs.get(3).copied().flatten() {
        Some(_) => constant(3)?,
        None => Tensor::zeros([1], DType::F32, state.device).ok()?,
    };
    // One zero point, or one for each column of a matrix or output channel of a kernel.
    let along = if node.row.name == "MatMulInteger" { w.rank() - 1 } else { 0 };
    if zero.numel() != 1 && (zero.rank() != 1 || zero.numel() != w.shape()[along]) {
        return None;
    }
    let mut shape = vec![1; w.rank()];
    shape[along] = zero.numel();
    let centred = || -> Result<Tensor> { w.to_dtype(DType::F32)?.sub(zero.to_dtype(DType::F32)?.reshape(shape)?) };
    centred().ok()
}
