//! Pooling of quantised numbers.

use gradus_tensor::{Result, Tensor};

use super::super::pool::averaged;
use super::quantised::{quantised, value};
use crate::graph::{Call, Row, row};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] =
    &[row("QLinearGlobalAveragePool", &[1], global), row("QLinearAveragePool", &[1], average)];

/// The values of the input, with the channels in front, and what puts a result of these back.
fn first(c: &Call<'_>) -> Result<(Tensor, bool)> {
    let (x, last) = (value(c, 0)?, c.flag("channels_last", false)?);
    Ok((if last { x.movedim(&[-1], &[1])? } else { x }, last))
}

fn back(y: Tensor, last: bool) -> Result<Tensor> {
    if last { y.movedim(&[1], &[-1]) } else { Ok(y) }
}

fn global(c: &Call<'_>) -> Values {
    let (x, last) = first(c)?;
    let axes: Vec<isize> = (2..x.rank() as isize).collect();
    Ok(vec![quantised(c, &back(x.mean(&axes, true)?, last)?, 3)?])
}

fn average(c: &Call<'_>) -> Values {
    let (x, last) = first(c)?;
    Ok(vec![quantised(c, &back(averaged(c, &x)?, last)?, 3)?])
}
