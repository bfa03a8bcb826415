//! Runs a kernel: checks the launch and spreads the blocks over threads of the host.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::exec::{self, Job, Located, Scratch};
use crate::{Fault, FaultKind, Kernel, Launch, Limits, Memory, Module, Stats};

/// Runs a kernel to its end.
///
/// # Errors
/// If the launch is impossible, and at the first mistake of the kernel.
pub fn run(module: &Module, kernel: &str, launch: &Launch, memory: &Memory, limits: &Limits) -> Result<Stats, Fault> {
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
    let places = module.place(memory).map_err(|error| fault(error.to_string()))?;
    let code = &found.code;
    let mut constants = code.constants.clone();
    for late in &code.late {
        constants[late.constant as usize] = places[late.variable].wrapping_add_signed(late.plus);
    }
    let mut shared = code.shared.clone();
    if launch.shared_bytes > 0 {
        shared.push((code.dynamic, launch.shared_bytes.into()));
    }
    let bytes: u64 = shared.iter().map(|(_, size)| size).sum();
    if bytes > MOST_SHARED {
        return Err(fault(format!("the block needs {bytes} bytes of shared memory, a GPU has at most {MOST_SHARED}")));
    }
    let end = code.local.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
    let mut local = vec![0; end.div_ceil(4) as usize];
    exec::mark(&mut local, &code.local);
    let first_segment = memory.first_segment();
    let live = memory.live();
    let job = Job { code, constants, launch, limits, memory, live, first_segment, shared, local };
    blocks(&job).map_err(|located| module.located(found, located))
}

/// The most shared memory that a block can have on any GPU, in bytes.
const MOST_SHARED: u64 = 227 * 1024;

/// A launch of at most this many threads runs on the thread that asks for it.
const SMALL: u64 = 1024;

/// Runs the blocks on threads of the host. Of several mistakes, the one of the first block is given.
fn blocks(job: &Job<'_>) -> Result<Stats, Located> {
    let [x, y, z] = job.launch.grid.map(u64::from);
    let count = x * y * z;
    let next = AtomicU64::new(0);
    let stop = AtomicU64::new(u64::MAX);
    let work = || {
        let mut done: Vec<(u64, Stats)> = Vec::new();
        let mut total = Stats::default();
        let mut scratch = Scratch::default();
        loop {
            let at = next.fetch_add(1, Relaxed);
            if at >= count || at > stop.load(Relaxed) {
                return (total, done, None);
            }
            let block = [(at % x) as u32, (at / x % y) as u32, (at / (x * y)) as u32];
            match exec::run_block(job, block, &mut scratch) {
                Ok(mut stats) => {
                    total.warp_instructions += stats.warp_instructions;
                    total.thread_instructions += stats.thread_instructions;
                    if !stats.output.is_empty() {
                        stats.output.shrink_to_fit();
                        done.push((at, stats));
                    }
                }
                Err(located) => {
                    stop.fetch_min(at, Relaxed);
                    return (total, done, Some((at, located)));
                }
            }
        }
    };
    let lanes = count * u64::from(job.launch.block.iter().product::<u32>());
    // A small launch is done before other threads have started.
    let most = if lanes <= SMALL { 1 } else { usize::try_from(count).unwrap_or(usize::MAX) };
    let threads = job.limits.threads.clamp(1, most);
    let results: Vec<_> = if threads == 1 {
        vec![work()]
    } else {
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles.into_iter().map(|handle| handle.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    };
    let mut stats = Stats::default();
    let mut printed = Vec::new();
    let mut mistakes = Vec::new();
    for (total, done, mistake) in results {
        stats.warp_instructions += total.warp_instructions;
        stats.thread_instructions += total.thread_instructions;
        printed.extend(done);
        mistakes.extend(mistake);
    }
    if let Some((_, located)) = mistakes.into_iter().min_by_key(|(at, _)| *at) {
        return Err(located);
    }
    printed.sort_by_key(|(at, _)| *at);
    stats.output = printed.into_iter().map(|(_, one)| one.output).collect();
    Ok(stats)
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
