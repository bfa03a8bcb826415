//! What is launched, within which limits, and what came of it.

/// What is launched with which sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The blocks along x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block along x, y and z.
    pub block: [u32; 3],
    /// The bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The parameters, each at its [`Param::offset`](crate::Param::offset).
    pub params: Vec<u8>,
}

/// What a run may cost and what is checked. Bounds, alignment, initialisation and divergence always are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many instructions a warp may execute.
    pub steps: u64,
    /// Whether races are looked for.
    pub races: bool,
    /// How many threads of the host run blocks.
    pub threads: usize,
}

impl Default for Limits {
    /// A thousand million instructions a warp, races looked for, all processors of the host.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        Self { steps: 1_000_000_000, races: true, threads }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions that warps executed.
    pub warp_instructions: u64,
    /// Instructions that threads executed.
    pub thread_instructions: u64,
    /// What the kernel printed, one block's after the other's.
    pub output: String,
}
