//! Captures every operation of the matrix as a step with its first and second gradients, and compares the replays with
//! eager calls, bit by bit.

use gradus::prelude::*;

use crate::{Call, File, orders};

/// The calls of a step: two are traced, the third is verified in debug builds, the fourth is a plain replay.
const CALLS: usize = 4;

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

/// The cell of an operation: ● if all of its calls are replayed with the same bits, · if one is refused because it reads
/// numbers on the host.
pub(crate) fn cell(
    file: &File<'_>,
    family: &str,
    call: Call,
    inputs: &[Tensor],
) -> std::result::Result<&'static str, String> {
    let (mut cell, mut replayed) = ("●", 0);
    for (call, inputs) in [(call, inputs.to_vec())].into_iter().chain(orders::more(file, family)) {
        for dtype in [DType::F64, DType::F32] {
            match replays(call, &inputs, dtype).map_err(|e| format!("captured in {dtype}: {e}"))? {
                Some(true) => replayed += 1,
                Some(false) => cell = "·",
                None => {}
            }
        }
    }
    if cell == "●" && replayed == 0 { Err("captured: no dtype has an eager result".to_owned()) } else { Ok(cell) }
}

/// Whether the call can be replayed; `None` if it fails eagerly. An error describes a replay with other results.
fn replays(call: Call, inputs: &[Tensor], dtype: DType) -> std::result::Result<Option<bool>, String> {
    let text = |e: Error| e.to_string();
    let mut step = capture(|x| derivatives(call, x));
    for i in 0..CALLS {
        let x = moved(inputs, dtype, i).map_err(text)?;
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
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            if got.shape() != want.shape() || got.to_bytes().map_err(text)? != want.to_bytes().map_err(text)? {
                return Err(format!("call {i}, tensor {k}: {got}\neagerly {want}"));
            }
        }
        if got.len() != want.len() {
            return Err(format!("{} tensors, eagerly {}", got.len(), want.len()));
        }
    }
    if step.replays() + 2 == CALLS as u64 { Ok(Some(true)) } else { Err(format!("{} replays", step.replays())) }
}
