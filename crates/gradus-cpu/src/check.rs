//! A check of operands that several operations share.

use gradus_backend::{Error, Layout, Result};

/// Checks that no two elements of an output share a position, because threads would race to write there.
#[inline]
pub(crate) fn check_output(op: &str, name: &str, layout: &Layout) -> Result<()> {
    if layout.is_contiguous() || !layout.overlaps_itself() {
        return Ok(());
    }
    Err(Error::argument(op, format!("elements of the output {name} share memory: {layout:?}")))
}
