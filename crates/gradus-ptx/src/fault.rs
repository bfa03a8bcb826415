//! What ends a kernel.

use std::fmt;

/// What kind of mistake ended a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The launch itself is impossible: sizes, parameters, name of the kernel.
    Launch,
    /// An access outside all live allocations, or across the end of one.
    OutOfBounds,
    /// An address that is not a multiple of the size of the access.
    Misaligned,
    /// A read of a byte that was never written.
    Uninitialised,
    /// Two accesses of one byte, one of them a write, that nothing orders.
    Race,
    /// A barrier that not all the threads reach that must.
    DivergentBarrier,
    /// A shuffle, vote or matrix instruction without all the lanes that its mask names.
    DivergentWarp,
    /// More steps than the limit allows.
    Steps,
    /// A `trap`, or a failed `assert`.
    Trap,
    /// A value that the instruction does not allow.
    BadOperand,
}

/// A line of the source from which the PTX was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as `.file` names it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why a kernel was ended, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of mistake.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// The block's index in the grid.
    pub block: [u32; 3],
    /// The thread's index in the block.
    pub thread: [u32; 3],
    /// The line of the PTX, counted from 1; 0 where no instruction is at fault.
    pub line: u32,
    /// The line of the source, where the PTX was compiled with line information.
    pub source: Option<SourceLine>,
    /// What is wrong, in words.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(f, "{}: {}", self.kernel, self.text)?;
        if self.line != 0 {
            write!(f, "\n  block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}), line {} of the PTX", self.line)?;
        }
        match &self.source {
            Some(source) => write!(f, ", {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}
