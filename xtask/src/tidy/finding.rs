//! The findings of checks.

use std::fmt;

/// A broken rule and its place. It prints as `file:line: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) message: String,
}

impl Finding {
    /// `path` is relative to the root, with `/`; `line` counts from 1.
    pub(super) fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_prints_as_a_place_that_editors_open() {
        assert_eq!(Finding::new("src/lib.rs", 3, "too long").to_string(), "src/lib.rs:3: too long");
    }
}
