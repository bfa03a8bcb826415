//! Integer products and convolutions with a constant matrix or kernel: its zero point is subtracted once. Matrices become
//! integers of 8 bits whose columns are contiguous, as products read them, with the sums of the columns, which take the place of
//! subtracting the zero point of the other operand if that is of u8. Kernels become f32 if no sum can exceed 2^24, up to which f32 has all
//! integers.

use gradus_tensor::{DType, Device, Error, Result, Tensor};

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
        let prepared = if is_product { in_bytes(&w, &zero).ok() } else { exact(&w, &zero).map(|w| (w, vec![])) };
        let Some((w, more)) = prepared else { continue };
        let w = add_constant(graph, w.into());
        let more: Vec<_> = more.into_iter().map(|t| Some(add_constant(graph, t.into()))).collect();
        let node = &mut graph.nodes[at];
        node.row = if is_product { &CENTRED } else { &CENTRED_CONV };
        node.inputs[1] = Some(w);
        node.inputs.resize(3, None);
        node.inputs.extend(more);
    }
}

/// The matrix as [`CENTRED`] takes it, in i8 with contiguous columns, and that row's further inputs, from input 3 on.
fn in_bytes(w: &Tensor, zero: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
    let columns = Columns::of(w, zero)?;
    let sums = columns.sums()?.unsqueeze(-2)?;
    let centred = columns.tensor()?;
    if centred.dtype() == DType::I8 {
        return Ok((centred.transpose(-2, -1)?, vec![sums]));
    }
    let middle = if w.dtype() == DType::U8 { 128 } else { 0 };
    let middle = Tensor::full([1], middle, DType::I16, w.device())?;
    let to = middle.sub(zero.to_dtype(DType::I16)?)?.to_dtype(DType::I32)?;
    let ones = Tensor::ones([w.shape()[w.rank() - 2], 1], DType::I8, w.device())?;
    Ok((Columns::of(w, &middle)?.tensor()?.transpose(-2, -1)?, vec![sums, to, ones]))
}

/// The number of columns that are turned into rows at a time: so many rows that are written stay in the L1 cache.
const TURNED: usize = 32;

/// The columns of matrices of 8-bit integers, one after the other, with the zero point of each column subtracted. They are
/// computed on the host, because on a device each step would need a tensor of 16-bit or 64-bit numbers.
pub(super) struct Columns {
    values: Vec<i16>,
    /// `[.., columns, rows]`.
    shape: Vec<usize>,
    device: Device,
}

impl Columns {
    /// The columns of `w [.., rows, columns]`. The zero points expand to `[.., 1, columns]`.
    pub(super) fn of(w: &Tensor, zero: &Tensor) -> Result<Columns> {
        let &[ref lead @ .., rows, columns] = w.shape() else {
            return Err(Error::shape("onnx", format!("a matrix of shape {:?}", w.shape())));
        };
        let zero = zero.to_dtype(DType::I16)?.expand([lead, &[1, columns]].concat())?.to_vec::<i16>()?;
        let values = match w.dtype() {
            DType::U8 => turned(&w.to_vec::<u8>()?, rows, columns, &zero),
            _ => turned(&w.to_vec::<i8>()?, rows, columns, &zero),
        };
        Ok(Columns { values, shape: [lead, &[columns, rows]].concat(), device: w.device().clone() })
    }

    /// The sum of each, `[.., columns]` in i32.
    pub(super) fn sums(&self) -> Result<Tensor> {
        let (&rows, across) = self.shape.split_last().unwrap_or((&0, &[]));
        let sum = |row: &[i16]| row.iter().fold(0i32, |sum, &v| sum.wrapping_add(v.into()));
        let sums = match rows {
            0 => vec![0; across.iter().product()],
            _ => self.values.chunks_exact(rows).map(sum).collect(),
        };
        Tensor::from_vec(sums, across, &self.device)
    }

    /// A tensor `[.., columns, rows]`: of i8 if all numbers fit, otherwise of i16.
    pub(super) fn tensor(self) -> Result<Tensor> {
        if self.values.iter().all(|&v| i8::try_from(v).is_ok()) {
            let bytes: Vec<i8> = self.values.iter().map(|&v| v as i8).collect();
            return Tensor::from_vec(bytes, self.shape, &self.device);
        }
        Tensor::from_vec(self.values, self.shape, &self.device)
    }
}

/// The columns of matrices, one after the other, with the zero point of each column subtracted.
fn turned<T: Copy + Into<i16>>(w: &[T], rows: usize, columns: usize, zero: &[i16]) -> Vec<i16> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_a_plain_loop() -> Result<()> {
        let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
        let shapes: [&[usize]; 8] =
            [&[2, 3, 70], &[33, 32], &[5, 33], &[2, 2, 4, 65], &[1, 1], &[2, 0, 3], &[3, 0], &[0, 2, 3]];
        for (shape, number) in shapes.into_iter().zip(1i64..) {
            let &[ref lead @ .., rows, columns] = shape else { unreachable!("all are matrices") };
            let matrices: usize = lead.iter().product();
            for (of_w, of_zero, narrow) in [
                (DType::U8, DType::U8, false),
                (DType::I8, DType::I8, false),
                (DType::I8, DType::U8, false),
                (DType::U8, DType::I8, false),
                (DType::I8, DType::I8, true),
            ] {
                // Every 8-bit number comes, also the farthest from their zero points, or only small ones.
                let byte = |i: usize, by: i64, dtype: DType| {
                    let byte = (i as i64 * by + 128 * number).rem_euclid(if narrow { 8 } else { 256 });
                    if dtype == DType::U8 { byte } else { byte - if narrow { 4 } else { 128 } }
                };
                let w: Vec<i64> = (0..matrices * rows * columns).map(|i| byte(i, 85, of_w)).collect();
                let zero: Vec<i64> = (0..matrices * columns).map(|i| byte(i, 51, of_zero)).collect();
                let mut expected = vec![];
                for (matrix, column) in (0..matrices).flat_map(|m| (0..columns).map(move |column| (m, column))) {
                    let at = |row: usize| w[(matrix * rows + row) * columns + column];
                    expected.extend((0..rows).map(|row| at(row) - zero[matrix * columns + column]));
                }
                let tensor = |values: Vec<i64>, shape: Vec<usize>, dtype: DType| {
                    Tensor::from_vec(values, shape, &device)?.to_dtype(dtype)
                };
                let (w, zero) =
                    (tensor(w, shape.to_vec(), of_w)?, tensor(zero, [lead, &[1, columns]].concat(), of_zero)?);
                let made = Columns::of(&w, &zero)?;
                let sums = made.sums()?;
                assert_eq!(sums.shape(), [lead, &[columns]].concat());
                let sum = |column: usize| expected[column * rows..(column + 1) * rows].iter().sum::<i64>() as i32;
                assert_eq!(sums.to_vec::<i32>()?, (0..matrices * columns).map(sum).collect::<Vec<_>>());
                let made = made.tensor()?;
                assert_eq!(made.shape(), [lead, &[columns, rows]].concat());
                let fits = expected.iter().all(|v| i8::try_from(*v).is_ok());
                assert_eq!((fits, made.dtype()), (fits, if fits { DType::I8 } else { DType::I16 }));
                assert!(fits || !narrow, "small numbers have bytes");
                assert_eq!(made.to_dtype(DType::I64)?.to_vec::<i64>()?, expected, "{shape:?} of {of_w} and {of_zero}");
            }
        }
        Ok(())
    }
}
