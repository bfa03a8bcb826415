//! The table of operators: one row each, in files by family.

mod control;
mod elementwise;
mod host;
mod index;
mod movement;
mod reduce;

use crate::graph::Row;

const DEFAULT: &[&[Row]] = &[control::ROWS, elementwise::ROWS, index::ROWS, movement::ROWS, reduce::ROWS];

/// The row of an operator.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static Row> {
    let families = match domain {
        "" => DEFAULT,
        _ => return None,
    };
    families.iter().flat_map(|rows| rows.iter()).find(|row| row.name == name)
}
