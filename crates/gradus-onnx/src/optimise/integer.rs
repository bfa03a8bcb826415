//! Integer products and convolutions with a constant matrix or kernel: its zero point is subtracted once. Matrices become
//! integers of 8 or 16 bits whose columns are contiguous, as products read them. Kernels become f32 if no sum can exceed
//! 2^24, up to which f32 has all integers.

use gradus_tensor::{DType, Result, Tensor};

use super::links::{Links, add_constant};
use crate::graph::{Graph, Node, State};
use crate::ops::{CENTRED, CENTRED_CONV};

/// The largest magnitude of an 8-bit number without its zero point.
const LARGEST: f32 = 255.0;

/// Up to here, f32 has all integers.
const EXACT: f32 = 16_777_216.0;

/// Prepares the constant operands of `MatMulInteger` and `ConvInteger`.
pub(super) fn prepare_operands(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let Some(w) = centred(&links, &graph.nodes[at], state) else { continue };
        let is_product = graph.nodes[at].row.name == "MatMulInteger";
        let columns = || by_rows(&w.transpose(-2, -1)?)?.transpose(-2, -1);
        let prepared = if is_product { columns().ok() } else { exact(&w) };
        let Some(w) = prepared else { continue };
        let w = add_constant(graph, w.into());
        let node = &mut graph.nodes[at];
        node.row = if is_product { &CENTRED } else { &CENTRED_CONV };
        node.inputs[1] = Some(w);
        node.inputs.truncate(3);
    }
}

/// Matrices of i16, as i8 if that has all their numbers, with contiguous rows.
pub(super) fn by_rows(w: &Tensor) -> Result<Tensor> {
    let fits = w.to_vec::<i16>()?.iter().all(|&v| i8::try_from(v).is_ok());
    w.to_dtype(if fits { DType::I8 } else { DType::I16 })?.contiguous()
}

/// A kernel in f32, if the sum of the magnitudes that a result is multiplied with is small enough.
fn exact(w: &Tensor) -> Option<Tensor> {
    let w = w.to_dtype(DType::F32).ok()?;
    let axes: Vec<isize> = (1..w.rank() as isize).collect();
    let sums = w.abs().and_then(|w| w.sum(&axes, false)?.to_vec::<f32>()).ok()?;
    sums.iter().all(|sum| sum * LARGEST < EXACT).then_some(w)
}

/// The second operand of an integer product without its zero point, as i16, if both are constants.
fn centred(links: &Links, node: &Node, state: &State<'_>) -> Option<Tensor> {
    let is_prepared = [&CENTRED, &CENTRED_CONV].iter().any(|row| std::ptr::eq(node.row, *row));
    if is_prepared || !matches!(node.row.name, "MatMulInteger" | "ConvInteger") {
        return None;
    }
    let constant = |input: usize| links.constant_input(node, input)?.tensor(state.device).ok();
    let w = constant(1).filter(|w| w.rank() >= 2 && matches!(w.dtype(), DType::I8 | DType::U8))?;
    let zero = match node.inputs.get(3).copied().flatten() {
        Some(_) => constant(3)?,
        None => Tensor::zeros([1], DType::I16, state.device).ok()?,
    };
    // One zero point, or one for each column of a matrix or output channel of a kernel.
    let along = if node.row.name == "MatMulInteger" { w.rank() - 1 } else { 0 };
    if zero.numel() != 1 && (zero.rank() != 1 || zero.numel() != w.shape()[along]) {
        return None;
    }
    let mut shape = vec![1; w.rank()];
    shape[along] = zero.numel();
    let centred = || -> Result<Tensor> { w.to_dtype(DType::I16)?.sub(zero.to_dtype(DType::I16)?.reshape(shape)?) };
    centred().ok()
}
