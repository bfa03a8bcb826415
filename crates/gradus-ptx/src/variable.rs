//! State spaces, and what is declared in them.

/// The state spaces that a program names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The memory of the device.
    Global,
    /// Memory of the device that kernels only read.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters and results.
    Param,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The name.
    pub name: String,
    /// Where it lies in [`Launch::params`](crate::Launch::params).
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
    /// The alignment in bytes.
    pub align: u64,
}

/// A variable of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: String,
    /// Where it lies.
    pub space: Space,
    /// The size in bytes; 0 for dynamic shared memory.
    pub size: u64,
    /// The alignment in bytes.
    pub align: u64,
    /// The first bytes; the others are zero.
    pub init: Vec<u8>,
    /// Where addresses of other variables stand in it: the offset, the name, what is added.
    pub(crate) addresses: Vec<(u64, String, i64)>,
}

impl Variable {
    /// Whether it lies in the memory of the device.
    pub(crate) fn in_memory(&self) -> bool {
        matches!(self.space, Space::Global | Space::Const) && self.size > 0
    }
}
