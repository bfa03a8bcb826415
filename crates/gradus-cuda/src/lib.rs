//! The CUDA backend of Gradus. It generates CUDA C, which NVRTC compiles for the GPU at hand.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` instead: only its API is kept
//! stable between releases.
//!
//! [`CudaBackend`] implements [`Backend`](gradus_backend::Backend). `driver` finds and calls the driver and NVRTC,
//! `memory` owns buffers, `program` keeps compiled kernels, `queue` launches them and finds late errors, `operand` turns
//! views into arguments, and `code` writes the text of kernels. Each operation, or family of operations, has its own
//! module.
//!
//! The libraries of NVIDIA are loaded when a device is opened, so the crate builds and its callers start on machines
//! without them. If `GRADUS_CUDA_DRIVER` is set, it is the path of a library that stands in for the driver.
//!
//! Work is asynchronous: an operation returns once it is queued, and only reads wait. An index out of range or an
//! integer division by zero is found later. It spoils what the operation wrote and everything computed from that. Each
//! [`download`](gradus_backend::Backend::download) of a spoiled buffer fails with the operation's name and line, until
//! the whole buffer is overwritten. Other buffers are not affected.
//! [`synchronize`](gradus_backend::Backend::synchronize) returns the errors that no read has returned yet.

mod arguments;
mod attention;
mod backend;
mod code;
mod compute;
mod conv;
mod driver;
mod graph;
mod index;
mod map;
mod memory;
mod module;
mod native;
pub mod nccl;
mod operand;
mod options;
mod pool;
mod product;
mod program;
mod queue;
mod random;
mod recorded;
mod recording;
mod reduce;
mod rows;
mod scan;
mod sort;
mod temp;
mod template;
mod transfer;
mod window;

use std::sync::{Arc, OnceLock};

use gradus_backend::compute::Modules;
use gradus_backend::{DType, Kernel, NativeFunction, Result};

pub use driver::{CudaDevice, DeviceSummary, devices};
pub use options::CudaOptions;

use driver::{Device, FoundCublasLt};
use memory::Pool;
use queue::Queue;

/// An open GPU. It supports every dtype.
pub struct CudaBackend {
    identities: [[OnceLock<Kernel>; DType::ALL.len()]; 2],
    modules: Modules<module::Program>,
    natives: Modules<NativeFunction>,
    memory: Arc<Pool>,
    queue: Queue,
    library: FoundCublasLt,
    device: Arc<Device>,
    options: CudaOptions,
}

impl CudaBackend {
    /// Opens GPU number `index` of those that [`devices`] lists.
    ///
    /// Fails if there is no such GPU, if it is older than compute capability 8.0, or if a library is missing: the
    /// driver's, or NVRTC. The error names it and says how to get it. Fails too if `GRADUS_CUBLASLT` names a library that
    /// cannot be used.
    pub fn open(index: usize) -> Result<Self> {
        Self::open_with(index, CudaOptions::default())
    }

    /// As [`open`](CudaBackend::open), with these options.
    ///
    /// ```no_run
    /// use gradus_cuda::{CudaBackend, CudaOptions};
    ///
    /// let backend = CudaBackend::open_with(0, CudaOptions { tf32: true, ..CudaOptions::default() })?;
    /// # Ok::<(), gradus_backend::Error>(())
    /// ```
    pub fn open_with(index: usize, options: CudaOptions) -> Result<Self> {
        let device = Arc::new(Device::open(index)?);
        if options.cublaslt {
            driver::check_named(&device)?;
        }
        let memory = Pool::new(device.clone());
        Ok(CudaBackend {
            identities: Default::default(),
            modules: Modules::new(),
            natives: Modules::new(),
            memory,
            queue: Queue::new(device.clone())?,
            library: FoundCublasLt::default(),
            device,
            options,
        })
    }

    /// Whether the device is lost, for example because a kernel has accessed memory that is not allocated.
    pub fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    /// The number of kernels that NVRTC has compiled for this device. Kernels from the cache on disk are not counted.
    pub fn compiled(&self) -> u64 {
        self.queue.programs.compiled.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn memory(&self) -> &Arc<Pool> {
        &self.memory
    }

    pub(crate) fn shared_device(&self) -> Arc<Device> {
        self.device.clone()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn options(&self) -> CudaOptions {
        self.options
    }

    pub(crate) fn modules(&self) -> &Modules<module::Program> {
        &self.modules
    }

    pub(crate) fn natives(&self) -> &Modules<NativeFunction> {
        &self.natives
    }

    pub(crate) fn label(&self) -> &str {
        &self.device.label
    }

    /// The kernel that returns its argument. `name` is `copy_strided` or `fill`.
    pub(crate) fn identity(&self, name: &'static str, dtype: DType) -> Result<&Kernel> {
        let cell = &self.identities[usize::from(name == "fill")][dtype as usize];
        if let Some(kernel) = cell.get() {
            return Ok(kernel);
        }
        let builder = gradus_backend::KernelBuilder::new(&[dtype]);
        let kernel = builder.finish(name, &[(builder.args()[0], dtype)])?;
        Ok(cell.get_or_init(|| kernel))
    }
}

impl std::fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaBackend({}, {})", self.device.label, self.device.summary.name)
    }
}
