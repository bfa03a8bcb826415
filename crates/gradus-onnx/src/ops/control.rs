//! Operators with sub-graphs, which the host runs (`If`, `Loop`, `Scan`, `SequenceMap`), and constants.

use std::sync::Arc;

use gradus_tensor::{Error, Result, Tensor};

use super::host;
use crate::elem::Elem;
use crate::graph::{Call, Row, axis, one, row, size, sizes, unsupported};
use crate::run::run;
use crate::value::{Array, OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("If", &[1, 11, 13, 16, 19, 21, 23, 24, 25], if_),
    row("Loop", &[1, 11, 13, 16, 19, 21, 23, 24, 25], loop_),
    row("Scan", &[8, 9, 11, 16, 19, 21, 23, 24, 25], scan),
    row("SequenceMap", &[17], sequence_map),
    row("Constant", &[1, 9, 11, 12, 13, 19, 21, 23, 24, 25], constant),
    row("ConstantOfShape", &[9, 20, 21, 23, 24, 25], constant_of_shape).host(host::constant_of_shape),
    row("Identity", &[1, 13, 14, 16, 19, 21, 23, 24, 25], |c| Ok(vec![c.input(0)?.clone()])),
];

fn branch(c: &Call<'_>, name: &str, inputs: Vec<OnnxValue>) -> Values {
    run(c.graph(name)?, inputs.into_iter().map(Some).collect(), c.around, c.state)
}

fn is_true(value: &OnnxValue) -> Result<bool> {
    match value {
        OnnxValue::Tensor(array) => Ok(array.number()? != 0.0),
        other => Err(Error::argument("onnx", format!("a condition that is {}", other.describe()))),
    }
}

fn if_(c: &Call<'_>) -> Values {
    c.skip(&["then_branch", "else_branch"]);
    branch(c, if is_true(c.input(0)?)? { "then_branch" } else { "else_branch" }, Vec::new())
}

/// The values of one output in all iterations, joined along a new axis.
fn stacked(c: &Call<'_>, rounds: &[OnnxValue], axis: usize) -> Result<OnnxValue> {
    let mut tensors = Vec::new();
    let mut elem = Elem::F32;
    for value in rounds {
        let OnnxValue::Tensor(array) = value else {
            return Err(unsupported("an output that is collected over rounds must be a tensor of numbers"));
        };
        elem = array.elem();
        tensors.push(array.raw(c.device)?);
    }
    let all: Vec<&Tensor> = tensors.iter().collect();
    if all.is_empty() {
        return Err(unsupported("a loop without a round has outputs of unknown shape"));
    }
    Ok(OnnxValue::Tensor(Array::stored(elem, Tensor::stack(&all, axis as isize)?)))
}

fn loop_(c: &Call<'_>) -> Values {
    let body = c.graph("body")?;
    let limit = c.given(0).map(|_| c.host_ints(0)).transpose()?.map(|n| n.first().copied().unwrap_or(0));
    let mut go = c.given(1).map(is_true).transpose()?.unwrap_or(true);
    let mut state: Vec<OnnxValue> = Vec::new();
    for i in 2..c.inputs.len() {
        state.push(c.input(i)?.clone());
    }
    let carried = state.len();
    let collected = body.outputs.len().checked_sub(1 + carried).ok_or_else(|| {
        Error::argument(
            "onnx",
            format!("the body has {} outputs, for a condition and {carried} values", body.outputs.len()),
        )
    })?;
    let mut rounds: Vec<Vec<OnnxValue>> = (0..collected).map(|_| Vec::new()).collect();
    let mut round = 0;
    while go && limit.is_none_or(|limit| round < limit) {
        c.state.take_rounds(1)?;
        let mut inputs = vec![c.upload(Elem::I64, vec![], vec![round]), c.upload(Elem::Bool, vec![], vec![1])];
        inputs.append(&mut state);
        let mut outputs = run(body, inputs.into_iter().map(Some).collect(), c.around, c.state)?;
        for (to, value) in rounds.iter_mut().zip(outputs.split_off(1 + carried)) {
            to.push(value);
        }
        state = outputs.split_off(1);
        go = outputs.first().map(is_true).transpose()?.unwrap_or(true);
        round += 1;
    }
    for values in &rounds {
        state.push(stacked(c, values, 0)?);
    }
    Ok(state)
}

/// The `n` values of an attribute; zeros if it is missing.
fn each(c: &Call<'_>, name: &str, n: usize) -> Result<Vec<i64>> {
    match c.ints(name)? {
        None => Ok([0].into_iter().cycle().take(n).collect()),
        Some(values) if values.len() == n => Ok(values.to_vec()),
        Some(values) => Err(Error::argument("onnx", format!("`{name}` has {} values for {n}", values.len()))),
    }
}

fn scan(c: &Call<'_>) -> Values {
    let body = c.graph("body")?;
    let scans = size(c.int("num_scan_inputs", 0)?)?;
    if c.opset() < 9 {
        return scan_of_batches(c, scans);
    }
    let all: Vec<OnnxValue> = (0..c.inputs.len()).map(|i| c.input(i).cloned()).collect::<Result<_>>()?;
    let axes = each(c, "scan_input_axes", scans)?;
    let reversed = each(c, "scan_input_directions", scans)?;
    let carried = all.len().checked_sub(scans).ok_or_else(|| Error::argument("onnx", "too few inputs"))?;
    let collected = body.outputs.len().saturating_sub(carried);
    let (out_axes, out_reversed) =
        (each(c, "scan_output_axes", collected)?, each(c, "scan_output_directions", collected)?);
    scanned(c, all, carried, &axes, &reversed, &out_axes, &out_reversed)
}

/// `Scan` of opset 8: all values have a leading batch axis, and each element of the batch is scanned separately.
fn scan_of_batches(c: &Call<'_>, scans: usize) -> Values {
    if c.given(0).is_some() {
        return Err(unsupported("Scan of opset 8 with sequence lengths is not supported"));
    }
    let reversed = each(c, "directions", scans)?;
    let carried = c.inputs.len().checked_sub(scans + 1).ok_or_else(|| Error::argument("onnx", "too few inputs"))?;
    let zeros: Vec<i64> = c.graph("body")?.outputs.iter().map(|_| 0).collect();
    let tensors: Vec<Tensor> = (1..c.inputs.len()).map(|i| c.tensor(i)).collect::<Result<_>>()?;
    let batch = tensors.first().and_then(|t| t.shape().first().copied()).unwrap_or(0);
    let mut results: Vec<Vec<Tensor>> = zeros.iter().map(|_| Vec::new()).collect();
    for b in 0..batch {
        let inputs: Result<Vec<OnnxValue>> = tensors.iter().map(|t| Ok(t.select(0, b as isize)?.into())).collect();
        let axes: Vec<i64> = reversed.iter().map(|_| 0).collect();
        let outputs = scanned(c, inputs?, carried, &axes, &reversed, &zeros, &zeros)?;
        for (to, value) in results.iter_mut().zip(outputs) {
            let OnnxValue::Tensor(array) = value else { return Err(unsupported("Scan of other values than tensors")) };
            to.push(array.tensor(c.device)?);
        }
    }
    results.iter().map(|r| Ok(Tensor::stack(&r.iter().collect::<Vec<_>>(), 0)?.into())).collect()
}

fn scanned(
    c: &Call<'_>,
    mut all: Vec<OnnxValue>,
    carried: usize,
    axes: &[i64],
    reversed: &[i64],
    out_axes: &[i64],
    out_reversed: &[i64],
) -> Values {
    let body = c.graph("body")?;
    let mut parts: Vec<(Elem, Vec<Tensor>)> = Vec::new();
    for (value, (&along, &reversed)) in all.split_off(carried).iter().zip(axes.iter().zip(reversed)) {
        let OnnxValue::Tensor(array) = value else { return Err(unsupported("Scan of other values than tensors")) };
        let tensor = array.raw(c.device)?;
        c.state.take_rounds(tensor.shape().get(axis(along, tensor.rank())?).copied().unwrap_or(0) as u64)?;
        let mut slices = tensor.unbind(axis(along, tensor.rank())? as isize)?;
        if reversed != 0 {
            slices.reverse();
        }
        parts.push((array.elem(), slices));
    }
    let length = parts.first().map_or(0, |(_, slices)| slices.len());
    if parts.iter().any(|(_, slices)| slices.len() != length) {
        return Err(Error::shape("onnx", "the scanned inputs have different lengths"));
    }
    let mut state = all;
    let collected = body.outputs.len().saturating_sub(carried);
    let mut rounds: Vec<Vec<OnnxValue>> = (0..collected).map(|_| Vec::new()).collect();
    for round in 0..length {
        let mut inputs = state;
        for (elem, slices) in &parts {
            inputs.push(OnnxValue::Tensor(Array::stored(*elem, slices[round].clone())));
        }
        state = run(body, inputs.into_iter().map(Some).collect(), c.around, c.state)?;
        for (to, value) in rounds.iter_mut().zip(state.split_off(carried.min(state.len()))) {
            to.push(value);
        }
    }
    for (i, mut values) in rounds.into_iter().enumerate() {
        if out_reversed.get(i).is_some_and(|&r| r != 0) {
            values.reverse();
        }
        let rank = match values.first() {
            Some(OnnxValue::Tensor(array)) => array.shape().len() + 1,
            _ => 1,
        };
        state.push(stacked(c, &values, axis(out_axes.get(i).copied().unwrap_or(0), rank)?)?);
    }
    Ok(state)
}

fn sequence_map(c: &Call<'_>) -> Values {
    let body = c.graph("body")?;
    let length = c.sequence(0)?.len();
    c.state.take_rounds(length as u64)?;
    let mut results: Vec<Vec<OnnxValue>> = body.outputs.iter().map(|_| Vec::new()).collect();
    for round in 0..length {
        let mut inputs = Vec::new();
        for i in 0..c.inputs.len() {
            inputs.push(match c.input(i)? {
                OnnxValue::Sequence(values) => values.get(round).cloned(),
                other => Some(other.clone()),
            });
        }
        if inputs.iter().any(Option::is_none) {
            return Err(Error::shape("onnx", "the sequences have different lengths"));
        }
        let outputs = run(body, inputs, c.around, c.state)?;
        for (to, value) in results.iter_mut().zip(outputs) {
            to.push(value);
        }
    }
    Ok(results.into_iter().map(|values| OnnxValue::Sequence(Arc::new(values))).collect())
}

fn constant(c: &Call<'_>) -> Values {
    let host = |elem, shape: Vec<usize>, values: &[i64]| Ok(vec![c.upload(elem, shape, values.to_vec())]);
    let strings = |shape, values| Ok(vec![OnnxValue::Strings(Arc::new(Strings { shape, values }))]);
    if let Some(value) = c.value("value")? {
        return Ok(vec![value.clone()]);
    }
    if c.has("value_int") {
        return host(Elem::I64, vec![], &[c.int("value_int", 0)?]);
    }
    if let Some(values) = c.ints("value_ints")? {
        return host(Elem::I64, vec![values.len()], values);
    }
    if c.has("value_float") {
        return Ok(one(Tensor::scalar(c.float("value_float", 0.0)? as f32, c.device)?));
    }
    if let Some(values) = c.floats("value_floats")? {
        return Ok(one(Tensor::from_vec(values, [values.len()], c.device)?));
    }
    if c.has("value_string") {
        return strings(vec![], vec![c.text("value_string", "")?.to_owned()]);
    }
    if let Some(values) = c.texts("value_strings")? {
        return strings(vec![values.len()], values.to_vec());
    }
    Err(unsupported("a constant without a value, or with a sparse one"))
}

fn constant_of_shape(c: &Call<'_>) -> Values {
    let shape = sizes(&c.host_ints(0)?)?;
    let Some(value) = c.value("value")? else {
        return Ok(one(Tensor::zeros(shape, gradus_tensor::DType::F32, c.device)?));
    };
    let OnnxValue::Tensor(array) = value else { return Err(unsupported("a tensor of equal strings")) };
    let value = array.raw(c.device)?.reshape([1usize; 0])?;
    // The result is copied into memory of its own, because other operators may write to it.
    Ok(vec![OnnxValue::Tensor(Array::stored(array.elem(), value.expand(shape)?.contiguous()?))])
}
