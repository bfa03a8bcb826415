//! How much working memory a thread lacked.

use std::cell::Cell;

thread_local! {
    /// Bytes that this thread asked for in vain since [`take_missing`]; 0 if it got all that it asked for.
    static MISSING: Cell<usize> = const { Cell::new(0) };
}

/// Notes that work was left out for want of so many bytes.
#[cold]
pub(crate) fn note_missing(bytes: usize) {
    let _ = MISSING.try_with(|missing| missing.set(missing.get().max(bytes)));
}

/// Bytes that this thread missed since it was asked last.
#[inline]
pub(crate) fn take_missing() -> usize {
    MISSING.try_with(|missing| missing.replace(0)).unwrap_or(0)
}
