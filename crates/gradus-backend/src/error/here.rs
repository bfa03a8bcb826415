//! [`Here`]: how an error receives the line of the user code that caused it.
//!
//! Every fallible function is `#[track_caller]`, and so are the constructors of [`Error`]. An error created in such a
//! function, however deep inside Gradus, therefore records the line of the first caller outside Gradus. The chain
//! breaks in closures, behind `dyn` and in functions without `#[track_caller]`; an error created there has no line
//! until [`Here::here`] sets it.

use std::cell::Cell;
use std::panic::Location;

use super::{Error, Result, is_of_user};

thread_local! {
    static CALL: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Runs `call`, which calls a backend on behalf of the operation at `line`.
#[doc(hidden)]
#[inline]
pub fn with_line_of_call<R>(line: &'static Location<'static>, call: impl FnOnce() -> R) -> R {
    let outer = CALL.replace(Some(line));
    let result = call();
    CALL.set(outer);
    result
}

/// The line of user code whose operation is calling the backend on this thread; `None` if it is not known. This is for
/// backends that discover an error only after the call has returned; they attach the line with [`Error::late`].
pub fn line_of_call() -> Option<&'static Location<'static>> {
    CALL.get().filter(|line| is_of_user(line))
}

/// Attaches the caller's line to an error that has no line yet.
pub trait Here {
    /// Sets the line of the failed call to the caller's line, unless a line is already known.
    #[must_use]
    #[track_caller]
    fn here(self) -> Self;
}

impl<T> Here for Result<T> {
    #[inline]
    fn here(mut self) -> Self {
        if let Err(e) = &mut self {
            e.locate(Location::caller());
        }
        self
    }
}

impl Here for Error {
    #[inline]
    fn here(mut self) -> Self {
        self.locate(Location::caller());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> Result<()> {
        Err(Error::argument("op", "m"))
    }

    #[test]
    fn the_first_line_of_a_user_stays() {
        // This file counts as part of Gradus, so its lines are not recorded.
        let e = fails().here().unwrap_err();
        assert_eq!(e.location(), None);
        assert!(!e.to_string().contains("at "));
    }
}
