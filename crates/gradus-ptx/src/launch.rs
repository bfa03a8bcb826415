//! Runs a kernel: checks the launch and spreads the blocks over threads of the host.

use crate::{Fault, FaultKind, Kernel, Memory, Module};

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

/// Runs a kernel to its end.
///
/// # Errors
/// If the launch is impossible, and at the first mistake of the kernel.
pub fn run(module: &Module, kernel: &str, launch: &Launch, memory: &Memory, _limits: &Limits) -> Result<Stats, Fault> {
    let fault = |text: String| Fault {
        kind: FaultKind::Launch,
        kernel: kernel.into(),
        block: [0; 3],
        thread: [0; 3],
        line: 0,
        source: None,
        text,
    };
    let found = module.kernel(kernel).ok_or_else(|| fault("the module has no such kernel".into()))?;
    check(found, launch).map_err(fault)?;
    module.place(memory).map_err(|error| fault(error.to_string()))?;
    Err(fault("executing instructions is not written yet".into()))
}

/// What is wrong with the sizes or the parameters, if anything.
fn check(kernel: &Kernel, launch: &Launch) -> Result<(), String> {
    let limits = [2_147_483_647, 65_535, 65_535];
    if launch.grid.iter().zip(limits).any(|(size, most)| *size == 0 || *size > most) {
        return Err(format!("the grid {:?} must have 1 to {limits:?} blocks", launch.grid));
    }
    let most = [1024, 1024, 64];
    let threads = launch.block.iter().map(|size| u64::from(*size)).product::<u64>();
    if launch.block.iter().zip(most).any(|(size, most)| *size == 0 || *size > most) || threads > 1024 {
        return Err(format!("the block {:?} must have 1 to {most:?} threads, and 1024 in all", launch.block));
    }
    if let Some(max) = kernel.max_threads.filter(|max| threads > max.iter().map(|size| u64::from(*size)).product()) {
        return Err(format!("the block {:?} has more threads than the kernel's .maxntid {max:?}", launch.block));
    }
    if let Some(required) = kernel.required_threads.filter(|required| *required != launch.block) {
        return Err(format!("the block {:?} differs from the kernel's .reqntid {required:?}", launch.block));
    }
    let bytes = kernel.param_bytes();
    if launch.params.len() as u64 != bytes {
        return Err(format!("{} bytes of parameters were given, the kernel has {bytes}", launch.params.len()));
    }
    Ok(())
}
