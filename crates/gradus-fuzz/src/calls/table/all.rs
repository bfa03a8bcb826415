//! Collects the rows of all families.

use super::{Row, autograd, create, elementwise, index, inplace, loss, nn, picture, product, reduce, shape, window};

/// All rows.
pub fn all() -> Vec<&'static Row> {
    let all = [
        autograd::ROWS,
        create::ROWS,
        elementwise::ROWS,
        index::ROWS,
        inplace::ROWS,
        loss::ROWS,
        nn::ROWS,
        picture::ROWS,
        product::ROWS,
        reduce::ROWS,
        shape::ROWS,
        window::ROWS,
    ];
    let samples: &'static [Row] = Vec::leak(elementwise::entries().chain(elementwise::samples()).collect());
    all.into_iter().flatten().copied().flatten().chain(samples).collect()
}

/// Rows with planted bugs, to test that the search detects each kind of failure.
pub fn planted() -> Vec<&'static Row> {
    super::planted::ROWS.iter().copied().flatten().collect()
}
