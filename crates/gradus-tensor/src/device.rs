//! [`Device`]: a handle to the backend that a tensor lives on.

use std::fmt;
use std::sync::Arc;

use gradus_backend::{Backend, BackendInfo, Call, Error, MemoryStats, Result, Watched};

use crate::autograd::beside;

/// A device on which tensors live and compute: a cheap handle to a backend.
///
/// Two devices are equal if they refer to the same backend object.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
    /// The address of `backend` or, if its calls are logged, of the backend that the logger wraps.
    id: usize,
}

impl Device {
    /// Creates a device from a backend. The operands of a call are locked while the backend runs it, so a backend that
    /// itself used tensors sharing their memory would deadlock. If the environment variable `GRADUS_LOG` lists `op`,
    /// each call prints a [line](gradus_backend::log::line) to standard error.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        let id = address(&backend);
        Device { backend: gradus_backend::log::logged(backend), id }
    }

    /// A device on the same backend that reports each of its calls to `tell`. A call is reported once the operation
    /// that made it has released its tensors, so `tell` may read and write them. `tell` runs on the operation's thread.
    /// The calls that `tell` itself makes to the device are neither reported nor recorded, and
    /// [`checkpoint`](crate::checkpoint) and similar functions do not see them. If `tell` panics, so does the
    /// operation, although its work is already done. Tensors of the new device cannot be combined with tensors of this
    /// one.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::{Arc, Mutex};
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let names = Arc::new(Mutex::new(vec![]));
    /// let seen = names.clone();
    /// let device = device.watched(move |call| seen.lock().unwrap().push(call.name.to_owned()));
    /// Tensor::ones([2, 3], DType::F32, &device)?.exp()?.sum_all()?;
    /// assert_eq!(*names.lock().unwrap(), ["fill", "exp", "reduce"]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn watched(&self, tell: impl Fn(&Call<'_>) + Send + Sync + 'static) -> Device {
        let backend: Arc<dyn Backend> = Arc::new(Watched::new(self.backend.clone(), move |call: &Call<'_>| {
            let _mode = beside();
            tell(call);
        }));
        Device { id: address(&backend), backend }
    }

    /// Adds a note to an error if the two devices have the same name.
    #[track_caller]
    pub fn tell_apart(&self, other: &Device, error: Error) -> Error {
        if self.name() == other.name() {
            return error.note(format!("these are two devices with the name {}", self.name()));
        }
        error
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The name shown in errors and in printed tensors.
    pub fn name(&self) -> &str {
        self.backend.name()
    }

    /// The hardware, memory and features of the device.
    pub fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    /// The memory in use, and the memory kept for reuse.
    pub fn memory_stats(&self) -> MemoryStats {
        self.backend.memory_stats()
    }

    /// Waits until all work on the device is done. If the device detected an error only after the call that caused it,
    /// and no read of a tensor has returned that error, this call returns it.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }
}

fn address(backend: &Arc<dyn Backend>) -> usize {
    Arc::as_ptr(backend).cast::<()>().addr()
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
impl Eq for Device {}

impl std::hash::Hash for Device {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
