//! The table of operators: one row for each, grouped into files by family.

mod attention;
mod cast;
mod control;
mod conv;
mod elementwise;
mod host;
mod index;
mod linear;
mod loss;
mod ml;
mod movement;
mod norm;
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
    let families: &[&'static [Row]] = match domain {
        "" => DEFAULT,
        "ai.onnx.ml" => &[ml::ROWS, trees::ROWS],
        "com.microsoft" => &[recurrent::MICROSOFT],
        "ai.onnx.preview" => &[attention::PREVIEW],
        "ai.onnx.preview.training" => &[training::ROWS],
        _ => return None,
    };
    families.iter().flat_map(|rows| rows.iter()).find(|row| row.name == name)
}
