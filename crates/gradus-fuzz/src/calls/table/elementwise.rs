//! Elementwise operations.

use gradus::ops::table::TABLE;
use gradus::prelude::*;
use gradus::{Operand, fused};

use super::{Call, LONG, Row, SHORT, rows};
use crate::calls::Draw;
use samples::Input;

#[allow(dead_code)] // other programs use the rest of this file
#[path = "../../../../gradus/tests/golden/samples.rs"]
mod samples;

/// One row for each entry of the table of elementwise operations. The last tensor operand may be replaced by a number,
/// and the scalars are arbitrary.
pub(super) fn entries() -> impl Iterator<Item = Row> {
    TABLE.iter().map(|entry| {
        let call = move |d: &mut Draw| {
            let mut tensors = vec![d.any()?];
            if entry.condition {
                tensors.push(tensors[0].clone());
                tensors[0] = d.mask(&tensors[0])?;
            }
            let number = tensors.len() < entry.tensors && d.once_in(3);
            while tensors.len() < entry.tensors - usize::from(number) {
                tensors.push(d.like(&tensors[tensors.len() - 1])?);
            }
            let mut operands: Vec<Operand<'_>> = tensors.iter().map(Operand::Tensor).collect();
            let scalars = entry.scalars.len() + usize::from(number);
            operands.extend((0..scalars).map(|_| Operand::Scalar(d.scalar())));
            Ok(vec![entry.op.apply(&operands)?])
        };
        Row { name: entry.op.name(), huge: LONG, call: Call::Of(Box::new(call)) }
    })
}

/// One row for each remaining sample, with inputs of the sample's shapes and of any dtype.
pub(super) fn samples() -> impl Iterator<Item = Row> {
    samples::others().into_iter().map(|sample| {
        let call = move |d: &mut Draw| {
            let dtype = d.dtype();
            let input = |input: &Input| match *input {
                _ if d.once_in(10) => d.any(),
                Input::Floats(_, _, shape) => d.sized(shape, dtype),
                Input::Bools(shape) => d.sized(shape, DType::Bool),
            };
            let inputs = sample.inputs.iter().map(input).collect::<Result<Vec<_>>>()?;
            (sample.call)(&inputs)
        };
        Row { name: sample.name, huge: SHORT, call: Call::Of(Box::new(call)) }
    })
}

const OTHERS: &[Row] = rows! { LONG any;
    lerp |x, d| if d.flag() { x.lerp(&d.like(&x)?, d.number()) } else { x.lerp(&d.like(&x)?, &d.like(&x)?) };
    round_decimals |x, d| x.round_decimals(d.int() as i32);
    nan_to_num |x, d| x.nan_to_num(d.number(), Some(d.number()), None);
    prelu |x, d| x.prelu(&d.sized(&[x.shape().get(1).copied().unwrap_or(1)], x.dtype())?);
    glu |x, d| x.glu(d.axis(x.rank()));
    masked_fill |x, d| x.masked_fill(&d.mask(&x)?, d.scalar());
    to_dtype |x, d| x.to_dtype(d.dtype());
    dropout |x, d| { let p = d.fraction(); x.dropout(p, &mut d.generator) };
    operators::all |x, d| {
        let y = d.like(&x)?;
        (&(&x + &y)? - &(&x * &y)?).and_then(|z| &z / &y)
    };
    fused::three |x, d| fused!(|a, b, c| (a * b).silu() + c.tanh())(&x, &d.like(&x)?, d.number());
};

pub(super) const ROWS: &[&[Row]] = &[OTHERS];
