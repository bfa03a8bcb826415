//! Sequences and optional values.

use std::sync::Arc;

use gradus_tensor::{Error, Result, Tensor};

use crate::elem::Elem;
use crate::graph::{Call, Row, axis, row, size, unsupported};
use crate::value::{Array, OnnxValue};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("SequenceEmpty", &[11], |c| {
        c.skip(&["dtype"]);
        sequence(Vec::new())
    }),
    row("SequenceConstruct", &[11], |c| {
        sequence((0..c.inputs.len()).map(|i| c.input(i).cloned()).collect::<Result<_>>()?)
    }),
    row("SequenceLength", &[11], |c| Ok(vec![c.upload(Elem::I64, vec![], vec![c.sequence(0)?.len() as i64])])),
    row("SequenceAt", &[11], |c| {
        let values = c.sequence(0)?;
        let at = place(c, 1, values.len())?.unwrap_or(0);
        Ok(vec![values.get(at).cloned().ok_or_else(|| Error::argument("onnx", "an empty sequence"))?])
    }),
    row("SequenceInsert", &[11], |c| {
        let mut values = c.sequence(0)?.to_vec();
        // The position may be the end of the sequence.
        let at = match c.number(2)? {
            None => values.len(),
            Some(at) if at as i64 == values.len() as i64 => values.len(),
            Some(at) => axis(at as i64, values.len())?,
        };
        values.insert(at, c.input(1)?.clone());
        sequence(values)
    }),
    row("SequenceErase", &[11], |c| {
        let mut values = c.sequence(0)?.to_vec();
        let last = values.len().saturating_sub(1);
        let at = place(c, 1, values.len())?.unwrap_or(last);
        if at < values.len() {
            values.remove(at);
        }
        sequence(values)
    }),
    row("SplitToSequence", &[11, 24], split),
    row("ConcatFromSequence", &[11], concat),
    row("Optional", &[15], |c| {
        c.skip(&["type"]);
        Ok(vec![OnnxValue::Optional(c.given(0).cloned().map(Arc::new))])
    }),
    row("OptionalHasElement", &[15, 18], |c| {
        let has = !matches!(c.given(0), None | Some(OnnxValue::Optional(None)));
        Ok(vec![c.upload(Elem::Bool, vec![], vec![has.into()])])
    }),
    row("OptionalGetElement", &[15, 18], |c| match c.input(0)? {
        OnnxValue::Optional(Some(value)) => Ok(vec![(**value).clone()]),
        OnnxValue::Optional(None) => Err(Error::argument("onnx", "an empty optional has no element")),
        other => Ok(vec![other.clone()]),
    }),
];

fn sequence(values: Vec<OnnxValue>) -> Values {
    Ok(vec![OnnxValue::Sequence(Arc::new(values))])
}

/// A position in a sequence of length `n`, if the input is present.
fn place(c: &Call<'_>, input: usize, n: usize) -> Result<Option<usize>> {
    c.number(input)?.map(|at| axis(at as i64, n)).transpose()
}

fn split(c: &Call<'_>) -> Values {
    let (elem, x) = c.stored(0)?;
    let at = axis(c.int("axis", 0)?, x.rank())? as isize;
    let keep = c.flag("keepdims", true)?;
    c.state.take_rounds(x.shape().get(at as usize).copied().unwrap_or(0) as u64)?;
    let parts = match c.optional_array(1)? {
        None if keep => x.split(1, at)?,
        None => x.unbind(at)?,
        Some(n) if n.shape().is_empty() => {
            let n = size(n.number()? as i64)?;
            if n == 0 {
                return Err(Error::argument("onnx", "parts of size 0"));
            }
            x.split(n, at)?
        }
        Some(sizes) => x.split_with_sizes(&crate::graph::sizes(&sizes.ints()?)?, at)?,
    };
    sequence(parts.into_iter().map(|t| OnnxValue::Tensor(Array::stored(elem, t))).collect())
}

fn concat(c: &Call<'_>) -> Values {
    let mut elem = Elem::F32;
    let mut tensors = Vec::new();
    for value in c.sequence(0)?.iter() {
        let OnnxValue::Tensor(array) = value else {
            return Err(unsupported("a sequence of other values than tensors of numbers is not joined"));
        };
        elem = array.elem();
        tensors.push(array.raw(c.device)?);
    }
    let all: Vec<&Tensor> = tensors.iter().collect();
    let along = c.int("axis", 0)? as isize;
    let y = if c.flag("new_axis", false)? { Tensor::stack(&all, along)? } else { Tensor::cat(&all, along)? };
    Ok(vec![OnnxValue::Tensor(Array::stored(elem, y))])
}
