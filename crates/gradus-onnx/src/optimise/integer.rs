//! Integer products and convolutions with a constant matrix or kernel: its zero point is subtracted once. Matrices become
//! integers of 8 or 16 bits whose columns are contiguous, as products read them. Kernels become f32 if no sum can exceed
//! 2^24, up to which f32 has all integers.

use gradus_tensor::{DType, Error, Result, Tensor};

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
        let Some((w, zero)) = constants(&links, &graph.nodes[at], state) else { continue };
        let is_product = graph.nodes[at].row.name == "MatMulInteger";
        let columns = || turned(&w, &zero)?.0.transpose(-2, -1);
        let prepared = if is_product { columns().ok() } else { exact(&w, &zero) };
        let Some(w) = prepared else { continue };
        let w = add_constant(graph, w.into());
        let node = &mut graph.nodes[at];
        node.row = if is_product { &CENTRED } else { &CENTRED_CONV };
        node.inputs[1] = Some(w);
        node.inputs.truncate(3);
    }
}

/// The number of columns that are turned into rows at a time: so many rows that are written stay in the L1 cache.
const TURNED: usize = 32;

/// Matrices `[.., rows, columns]` of 8-bit integers without their zero points, which expand to the matrices, with
/// columns as contiguous rows `[.., columns, rows]`: as i8 if that has all their numbers, else as i16. Also the sum of
/// each column, in i32. It is done on the host, because each step on the device would store wider numbers.
pub(super) fn turned(w: &Tensor, zero: &Tensor) -> Result<(Tensor, Tensor)> {
    let &[ref lead @ .., rows, columns] = w.shape() else {
        return Err(Error::shape("onnx", format!("a matrix of shape {:?}", w.shape())));
    };
    let zero = zero.to_dtype(DType::I16)?.expand([lead, &[1, columns]].concat())?.to_vec::<i16>()?;
    let turned = match w.dtype() {
        DType::U8 => centred_columns(&w.to_vec::<u8>()?, rows, columns, &zero),
        _ => centred_columns(&w.to_vec::<i8>()?, rows, columns, &zero),
    };
    let sum = |row: &[i16]| row.iter().map(|&v| i32::from(v)).sum();
    let sums: Vec<i32> = if rows == 0 { vec![0; zero.len()] } else { turned.chunks_exact(rows).map(sum).collect() };
    let (shape, device) = ([lead, &[columns, rows]].concat(), w.device());
    let bytes: Option<Vec<i8>> = match turned.iter().all(|&v| i8::try_from(v).is_ok()) {
        true => Some(turned.iter().map(|&v| v as i8).collect()),
        false => None,
    };
    let turned = match bytes {
        Some(bytes) => Tensor::from_vec(bytes, shape, device)?,
        None => Tensor::from_vec(turned, shape, device)?,
    };
    Ok((turned, Tensor::from_vec(sums, [lead, &[columns]].concat(), device)?))
}

/// The columns of matrices, each without its zero point, one after the other.
fn centred_columns<T: Copy + Into<i16>>(w: &[T], rows: usize, columns: usize, zero: &[i16]) -> Vec<i16> {
    let mut turned = vec![0; w.len()];
    let size = (rows * columns).max(1);
    for ((w, to), zero) in w.chunks(size).zip(turned.chunks_mut(size)).zip(zero.chunks(columns.max(1))) {
        for first in (0..columns).step_by(TURNED) {
            let part = first..columns.min(first + TURNED);
            let to = &mut to[part.start * rows..part.end * rows];
            for (i, row) in w.chunks_exact(columns).enumerate() {
                for (j, (&w, &zero)) in row[part.clone()].iter().zip(&zero[part.clone()]).enumerate() {
                    to[j * rows + i] = w.into().wrapping_sub(zero);
                }
            }
        }
    }
    turned
}

/// A kernel without its zero points in f32, if the sum of the magnitudes that a result is multiplied with is small
/// enough.
fn exact(w: &Tensor, zero: &Tensor) -> Option<Tensor> {
    let centred = || w.to_dtype(DType::F32)?.sub(zero.to_dtype(DType::F32)?);
    let w = centred().ok()?;
    let axes: Vec<isize> = (1..w.rank() as isize).collect();
    let sums = w.abs().and_then(|w| w.sum(&axes, false)?.to_vec::<f32>()).ok()?;
    sums.iter().all(|sum| sum * LARGEST < EXACT).then_some(w)
}

/// The second operand of an integer product and its zero points, which expand to it, if both are constants.
fn constants(links: &Links, node: &Node, state: &State<'_>) -> Option<(Tensor, Tensor)> {
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
    let zero = zero.reshape(shape).ok()?;
    Some((w, zero))
}
