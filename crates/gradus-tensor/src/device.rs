//! [`Device`]: a handle to the backend that a tensor lives on.

use std::fmt;
use std::sync::Arc;

use gradus_backend::{Backend, BackendInfo, Call, Error, MemoryStats, Result, Watched};

/// Where tensors live and compute: a cheap handle to a backend.
///
/// Two devices are equal if they are the same backend object.
#[derive(Clone)]
pub struct Device(Arc<dyn Backend>);

impl Device {
    /// A device over a backend. If the environment variable `GRADUS_LOG` lists `op`, each of its calls prints a
    /// [line](gradus_backend::log::line) to standard error.
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        Device(gradus_backend::log::logged(backend))
    }

    /// A device on the same backend that tells `tell` about each of its calls, when it has ended. Its tensors do not meet
    /// those of this device.
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
        Device(Arc::new(Watched::new(self.0.clone(), tell)))
    }

    /// Adds to an error that shows both names what they hide: two devices with one name.
    pub(crate) fn tell_apart(&self, other: &Device, error: Error) -> Error {
        if self.name() == other.name() {
            return error.note(format!("these are two devices with the name {}", self.name()));
        }
        error
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.0
    }

    /// The name that errors and printed tensors show.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Hardware, memory and features.
    pub fn info(&self) -> BackendInfo {
        self.0.info()
    }

    /// Memory in use and kept for reuse.
    pub fn memory_stats(&self) -> MemoryStats {
        self.0.memory_stats()
    }

    /// Waits for everything that was asked for, and reports late errors.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Device {}

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
