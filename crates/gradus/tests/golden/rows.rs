//! The rows of `docs/op-matrix.md`, shared by the tests of gradients and of kinks.

use std::collections::BTreeSet;
use std::path::Path;

/// The operations on the page that can be differentiated: those whose second column from the end is not `0`.
pub(crate) fn differentiable() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/op-matrix.md");
    let text = std::fs::read_to_string(page).unwrap();
    let cells = text.lines().map(|l| l.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = cells.filter(|c| c.len() > 4 && c[1].starts_with('`') && c[c.len() - 3] != "0");
    let rows: BTreeSet<String> = rows.map(|c| c[1].trim_matches('`').to_owned()).collect();
    assert!(rows.len() > 200, "docs/op-matrix.md has only {} rows with a gradient", rows.len());
    rows
}
