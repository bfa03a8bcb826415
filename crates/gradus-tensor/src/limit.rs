//! [`limit_results`]: an upper bound on the size of new tensors.

use std::cell::Cell;

use gradus_backend::{Buffer, Error, ErrorKind, Result};

use crate::Device;

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Restores the limit of the surrounding code when it is dropped.
struct Outer(usize);

impl Drop for Outer {
    fn drop(&mut self) {
        LIMIT.set(self.0);
    }
}

/// Runs `f`, in which every new tensor of this thread may have at most `bytes` bytes. A larger one fails with
/// [`ErrorKind::OutOfMemory`] before memory is taken. Of nested limits, the lowest holds.
///
/// This is for sizes that come from elsewhere, as from a file: [`Backend::set_memory_budget`] bounds the memory of the
/// whole device instead.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let failed = limit_results(1 << 20, || Tensor::zeros([1 << 10, 1 << 10], DType::F32, &device));
/// assert!(matches!(failed.unwrap_err().kind(), ErrorKind::OutOfMemory { requested: 4_194_304 }));
/// # Ok::<(), Error>(())
/// ```
///
/// [`Backend::set_memory_budget`]: gradus_backend::Backend::set_memory_budget
pub fn limit_results<R>(bytes: usize, f: impl FnOnce() -> R) -> R {
    let _outer = Outer(LIMIT.replace(LIMIT.get().min(bytes)));
    f()
}

/// Allocates the memory of a new tensor.
pub(crate) fn alloc(device: &Device, bytes: usize) -> Result<Buffer> {
    let limit = LIMIT.get();
    if bytes > limit {
        let m = format!("a result of {bytes} bytes, where at most {limit} are allowed");
        return Err(Error::new(ErrorKind::OutOfMemory { requested: bytes }, "alloc", m));
    }
    device.backend().alloc(bytes)
}
