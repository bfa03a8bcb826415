//! How much `cargo xtask cuda` tries.

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scope {
    /// Fewer digits, and ptxas for one architecture only, with some modules of each kernel.
    Quick,
    Usual,
    /// All layouts, random shapes, and every operation in every dtype.
    All,
}
