//! A kernel of a loaded module.

use std::sync::Arc;

use crate::Module;

/// Shared memory of a block: as it is, and at most.
pub(super) const SHARED_BYTES: i32 = 48 << 10;
pub(super) const SHARED_BYTES_ON_REQUEST: i32 = 163 << 10;
pub(super) const SHARED_BYTES_OF_MULTIPROCESSOR: i32 = 164 << 10;

/// What a launch needs of a kernel.
pub(super) struct Ready {
    pub(super) module: Arc<Module>,
    pub(super) name: String,
    /// Offset and size of each parameter.
    pub(super) params: Vec<(usize, usize)>,
    pub(super) param_bytes: usize,
    /// The shared memory that the kernel declares. Loading a module refuses more than [`SHARED_BYTES`].
    pub(super) shared_bytes: i32,
    pub(super) most_threads: i32,
}

impl Ready {
    /// None if the module has no such kernel.
    pub(super) fn new(module: &Arc<Module>, name: &str) -> Option<Ready> {
        let kernel = module.kernel(name)?;
        let most_threads = kernel.max_threads.map_or(1024, |sizes| sizes.iter().product::<u32>() as i32);
        Some(Ready {
            module: Arc::clone(module),
            name: name.into(),
            params: kernel.params.iter().map(|one| (one.offset as usize, one.size as usize)).collect(),
            param_bytes: kernel.param_bytes() as usize,
            shared_bytes: i32::try_from(kernel.shared_bytes()).unwrap_or(i32::MAX),
            most_threads,
        })
    }
}
