//! Records how much working memory a thread could not get.

use std::cell::Cell;

thread_local! {
    /// The size in bytes of the largest block that this thread could not get since the last [`take_missing`]; 0 if it
    /// got everything.
    static MISSING: Cell<usize> = const { Cell::new(0) };
}

/// Records that work was skipped because this many bytes could not be allocated.
#[cold]
pub(crate) fn note_missing(bytes: usize) {
    let _ = MISSING.try_with(|missing| missing.set(missing.get().max(bytes)));
}

/// Returns the size in bytes of the largest block that this thread could not get since the last call.
#[inline]
pub(crate) fn take_missing() -> usize {
    MISSING.try_with(|missing| missing.replace(0)).unwrap_or(0)
}
