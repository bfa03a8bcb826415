//! Captures every operation of the matrix as a step with its first and second gradients, and compares the replays with
//! eager calls, bit by bit, for three sizes of the inputs.

use std::collections::BTreeSet;

use gradus::prelude::*;

use crate::{Call, File, orders};

/// The calls with the first sizes: two are traced, the third is verified in debug builds, the fourth is a plain replay.
const FIRST: usize = 4;

/// The calls with each of the other sizes: one or two are traced, the others are replayed.
const OTHERS: usize = 3;

/// By how much some axes of the inputs are longer in the other sizes. The second is more than a vector has elements.
const LONGER: [usize; 2] = [1, 17];

/// The results of a call, their gradients and the gradients of these, all outside the graph.
fn derivatives(call: Call, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let point = |t: &Tensor| if t.dtype().is_float() { t.with_grad() } else { Ok(t.clone()) };
    let inputs = inputs.iter().map(point).collect::<Result<Vec<_>>>()?;
    let leaves: Vec<&Tensor> = inputs.iter().filter(|t| t.requires_grad()).collect();
    let mut last = call(&inputs)?;
    let mut found: Vec<Tensor> = last.iter().map(Tensor::detach).collect();
    for order in 0..2 {
        let mut total: Option<Tensor> = None;
        for y in last.iter().filter(|y| y.requires_grad()) {
            let part = y.sin()?.sum_all()?;
            total = Some(total.map_or(Ok(part.clone()), |t| t.add(&part))?);
        }
        let Some(total) = total else { break };
        let options = if order == 0 { BackwardOptions::new().create_graph() } else { BackwardOptions::new() };
        last = grad(&[&total], &leaves, None, options)?.into_iter().flatten().collect();
        found.extend(last.iter().map(Tensor::detach));
    }
    Ok(found)
}

/// The inputs of call number `i`: the floats are other ones in each call.
fn moved(inputs: &[Tensor], dtype: DType, i: usize) -> Result<Vec<Tensor>> {
    let one = |t: &Tensor| match t.dtype().is_float() {
        true => t.mul(1.0 - 0.03 * i as f64)?.to_dtype(dtype),
        false => t.copy(),
    };
    inputs.iter().map(one).collect()
}

/// The inputs with these axes, each an input and an axis of it, longer by `by`. What is added repeats what is there, so
/// that indices stay in range.
fn longer(inputs: &[Tensor], axes: &[(usize, usize)], by: usize) -> Result<Vec<Tensor>> {
    let mut found = inputs.to_vec();
    for &(i, axis) in axes {
        let size = inputs[i].shape()[axis];
        let places: Vec<i64> = (0..size + by).map(|k| (k % size) as i64).collect();
        let places = Tensor::from_vec(places, [size + by], inputs[i].device())?;
        found[i] = found[i].index_select(axis as isize, &places)?;
    }
    Ok(found)
}

/// The inputs in up to three sizes: their own, then two with some longer axes. Which axes can grow together depends on the
/// operation, so several choices are tried: the first axis of each input, all axes of one size, and each axis alone. The
/// one that the call accepts in most sizes counts.
fn in_sizes(call: Call, inputs: &[Tensor]) -> Vec<Vec<Tensor>> {
    let axes = || {
        let of_one = |(i, t): (usize, &Tensor)| (0..t.rank()).map(move |axis| (i, axis));
        inputs.iter().enumerate().flat_map(of_one).filter(|&(i, axis)| inputs[i].shape()[axis] > 0)
    };
    let sizes: BTreeSet<usize> = axes().map(|(i, axis)| inputs[i].shape()[axis]).collect();
    let mut choices: Vec<Vec<(usize, usize)>> = vec![axes().filter(|&(_, axis)| axis == 0).collect()];
    choices.extend(sizes.iter().map(|&size| axes().filter(|&(i, axis)| inputs[i].shape()[axis] == size).collect()));
    choices.extend(axes().map(|at| vec![at]));
    let taken = |axes: &Vec<(usize, usize)>| {
        let of_size = |by: usize| longer(inputs, axes, by).ok().filter(|x| derivatives(call, x).is_ok());
        if axes.is_empty() { vec![] } else { LONGER.into_iter().map_while(of_size).collect::<Vec<_>>() }
    };
    let most = choices.iter().map(taken).reduce(|a, b| if b.len() > a.len() { b } else { a });
    [inputs.to_vec()].into_iter().chain(most.unwrap_or_default()).collect()
}

/// The cell of an operation: ● if one of its calls is replayed in three sizes and all in their own with the same bits, ·
/// if one is refused because it reads numbers on the host.
pub(crate) fn cell(
    file: &File<'_>,
    family: &str,
    call: Call,
    inputs: &[Tensor],
) -> std::result::Result<&'static str, String> {
    let (mut most, mut refused) = (0, false);
    for (call, inputs) in [(call, inputs.to_vec())].into_iter().chain(orders::more(file, family)) {
        let sizes = in_sizes(call, &inputs);
        for dtype in [DType::F64, DType::F32] {
            match replays(call, &sizes, dtype).map_err(|e| format!("captured in {dtype}: {e}"))? {
                Some(true) => most = most.max(sizes.len()),
                Some(false) => refused = true,
                None => {}
            }
        }
    }
    match (refused, most) {
        (true, _) => Ok("·"),
        (_, 0) => Err("captured: no dtype has an eager result".to_owned()),
        (_, 3) => Ok("●"),
        (_, n) => Err(format!("captured: no call of the tests takes more than {n} sizes")),
    }
}

/// Whether the call can be replayed with inputs of these sizes; `None` if it fails even when it runs eagerly. The error
/// describes a replay whose results differ from eager ones.
fn replays(call: Call, sizes: &[Vec<Tensor>], dtype: DType) -> std::result::Result<Option<bool>, String> {
    let text = |e: Error| e.to_string();
    let mut step = capture(|x| derivatives(call, x));
    // A turn: which sizes, how many calls, and how many of them at least are replayed. At the end the first sizes once
    // more, whose plan was kept.
    let others = (1..sizes.len()).map(|k| (k, OTHERS, OTHERS - 2));
    let turns = [(0, FIRST, FIRST - 2)].into_iter().chain(others).chain([(0, 1, 1)]);
    let mut i = 0;
    for (k, calls, least) in turns {
        let before = step.replays();
        for _ in 0..calls {
            let x = moved(&sizes[k], dtype, i).map_err(text)?;
            let want = derivatives(call, &x);
            let got = step.call(&x.iter().collect::<Vec<_>>());
            let (got, want) = match (got, want) {
                (Ok(got), Ok(want)) => (got, want),
                (Err(e), Ok(_)) if e.message().contains("read on the host") => return Ok(Some(false)),
                (Err(_), Err(_)) if i == 0 => return Ok(None),
                (Err(a), Err(b)) => return Err(format!("{a}\neagerly {b}")),
                (Err(e), Ok(_)) => return Err(format!("refused: {e}")),
                (Ok(_), Err(e)) => return Err(format!("only the eager call fails: {e}")),
            };
            same(&got, &want).map_err(|e| format!("call {i}, with sizes {k}: {e}"))?;
            i += 1;
        }
        if step.replays() - before < least as u64 {
            return Err(format!("{} replays of {calls} calls with sizes {k}", step.replays() - before));
        }
    }
    Ok(Some(true))
}

/// The bytes of a number; of any NaN the same.
fn number(x: f64) -> [u8; 8] {
    if x.is_nan() { f64::NAN.to_ne_bytes() } else { x.to_ne_bytes() }
}

/// Compares shapes and bits, except those of a NaN, which may be another NaN in a replay.
fn same(got: &[Tensor], want: &[Tensor]) -> std::result::Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} tensors, eagerly {}", got.len(), want.len()));
    }
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        let bits = |t: &Tensor| match t.dtype().is_float() {
            true => Ok(t.to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().flat_map(number).collect()),
            false => t.to_bytes(),
        };
        let bits = |t: &Tensor| bits(t).map_err(|e| e.to_string());
        if got.shape() != want.shape() || bits(got)? != bits(want)? {
            return Err(format!("tensor {n}: {got}\neagerly {want}"));
        }
    }
    Ok(())
}
