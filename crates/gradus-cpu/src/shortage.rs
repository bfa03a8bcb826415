//! How much working memory a thread lacked.

use std::cell::Cell;

thread_local! {
    /// Bytes that this thread could not get since the last [`take_missing`]; 0 if it got everything.
    static MISSING: Cell<usize> = const { Cell::new(0) };
}

/// Records that work was skipped because this many bytes were missing.
#[cold]
pub(crate) fn note_missing(bytes: usize) {
    let _ = MISSING.try_with(|missing| missing.set(missing.get().max(bytes)));
}

/// Bytes that this thread could not get since the last call.
#[inline]
pub(crate) fn take_missing() -> usize {
    MISSING.try_with(|missing| missing.replace(0)).unwrap_or(0)
}
