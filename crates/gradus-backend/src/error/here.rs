//! [`Here`]: how an error gets the line of the user's code that it is about.
//!
//! Every function that can fail is `#[track_caller]`, and so are the constructors of [`Error`]: an error that is made in
//! such a function, however deep inside Gradus, has the line of the first caller outside. The chain breaks in closures,
//! behind `dyn`, and in functions without `#[track_caller]`; an error made there has no line until [`Here::here`] sets it.

use std::cell::Cell;
use std::panic::Location;

use super::{Error, Result, is_of_user};

thread_local! {
    static CALL: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Runs `call`, which calls a backend for the operation at `line`.
#[doc(hidden)]
#[inline]
pub fn with_line_of_call<R>(line: &'static Location<'static>, call: impl FnOnce() -> R) -> R {
    let outer = CALL.replace(Some(line));
    let result = call();
    CALL.set(outer);
    result
}

/// The line of the user's code whose operation calls the backend on this thread: for backends that find an error only
/// after the call has returned, and put the line on it with [`Error::late`]. `None` if it is not known.
pub fn line_of_call() -> Option<&'static Location<'static>> {
    CALL.get().filter(|line| is_of_user(line))
}

/// Gives an error that has no line yet the line of the caller.
pub trait Here {
    /// Sets the line of the failed call to that of the caller, if it is not known yet.
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
        // This file counts as Gradus, so no line is taken here.
        let e = fails().here().unwrap_err();
        assert_eq!(e.location(), None);
        assert!(!e.to_string().contains("at "));
    }
}
