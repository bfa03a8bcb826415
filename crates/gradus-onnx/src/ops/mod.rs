//! The table of operators: one row for each, grouped into files by family.

mod attention;
mod cast;
mod classify;
mod control;
mod conv;
mod elementwise;
mod features;
mod host;
mod index;
mod linear;
mod loss;
mod microsoft;
mod ml;
mod movement;
mod norm;
mod old_trees;
mod pool;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod sample;
mod sequence;
mod signal;
mod text;
mod training;
mod trees;

pub(crate) use quantise::{CENTRED, CENTRED_CONV};
pub(crate) use recurrent::{CENTRED_LSTM, zero_points};
pub(crate) use training::GRADIENT;

use crate::graph::Row;

/// The default domain.
const DEFAULT: &[&[Row]] = &[
    attention::ROWS,
    cast::ROWS,
    control::ROWS,
    conv::ROWS,
    elementwise::ROWS,
    index::ROWS,
    linear::ROWS,
    loss::ROWS,
    movement::ROWS,
    norm::ROWS,
    pool::ROWS,
    quantise::ROWS,
    random::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    resize::ROWS,
    sample::ROWS,
    sequence::ROWS,
    signal::ROWS,
    text::ROWS,
];

/// The row of an operator.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static Row> {
    let families: [&[&'static [Row]]; 2] = match domain {
        "" => [DEFAULT, &[]],
        "ai.onnx.ml" => [&[ml::ROWS, trees::ROWS, old_trees::ROWS], &[classify::ROWS, features::ROWS]],
        "com.microsoft" => [microsoft::FAMILIES, &[recurrent::MICROSOFT]],
        "ai.onnx.preview" => [&[attention::PREVIEW], &[]],
        "ai.onnx.preview.training" => [&[training::ROWS], &[]],
        _ => return None,
    };
    families.into_iter().flatten().flat_map(|rows| rows.iter()).find(|row| row.name == name)
}
