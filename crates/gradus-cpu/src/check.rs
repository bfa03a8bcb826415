//! Checks of operands that are shared by several operations.

use gradus_backend::{Error, Layout, Result};

/// Errors if two elements of an output share a position, since threads would race to write it.
#[inline]
pub(crate) fn check_output(op: &str, name: &str, layout: &Layout) -> Result<()> {
    if layout.is_contiguous() || !layout.overlaps_itself() {
        return Ok(());
    }
    Err(Error::argument(op, format!("elements of the output {name} share memory: {layout:?}")))
}
