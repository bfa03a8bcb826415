//! A device whose n-th call fails.
#![allow(unreachable_pub)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gradus_cpu::CpuBackend;
use gradus_tensor::backend::{Backend, BackendInfo, MemoryStats, backend_methods};
use gradus_tensor::{DType, Device, Error, ErrorKind, Result};

/// A CPU backend on which one call fails before it has done anything. Composite operations use their default bodies, so
/// that every primitive can be the one that fails.
#[derive(Debug)]
pub struct Failing {
    cpu: CpuBackend,
    /// How many calls are left, counting the one that fails. 0 if none is to fail.
    left: AtomicUsize,
    /// The name of the call that failed.
    failed: Mutex<Option<&'static str>>,
}

impl Failing {
    pub fn device() -> (Arc<Failing>, Device) {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let backend = Arc::new(Failing { cpu, left: AtomicUsize::new(0), failed: Mutex::new(None) });
        (backend.clone(), Device::from_backend(backend))
    }

    /// Runs `f` while call number `n`, counted from 1, fails. Returns the result of `f`, and the name of the failed
    /// call if there were that many calls.
    pub fn at<R>(&self, n: usize, f: impl FnOnce() -> R) -> (R, Option<&'static str>) {
        self.left.store(n, Ordering::Relaxed);
        let result = f();
        self.left.store(0, Ordering::Relaxed);
        (result, self.failed.lock().unwrap().take())
    }

    fn call(&self, name: &'static str) -> Result<()> {
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if before != Ok(1) {
            return Ok(());
        }
        *self.failed.lock().unwrap() = Some(name);
        Err(match name {
            "alloc" => Error::new(ErrorKind::OutOfMemory { requested: 0 }, name, "this call fails"),
            _ => Error::new(ErrorKind::Backend, name, "this call fails"),
        })
    }
}

/// Methods that fail or call the same method of the CPU backend.
macro_rules! may_fail {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.call(stringify!($name))?;
            self.cpu.$name($($arg),*)
        })*
    };
}

impl Backend for Failing {
    fn info(&self) -> BackendInfo {
        self.cpu.info()
    }
    fn name(&self) -> &str {
        "failing"
    }
    fn supports(&self, dtype: DType) -> bool {
        self.cpu.supports(dtype)
    }
    fn memory_stats(&self) -> MemoryStats {
        self.cpu.memory_stats()
    }
    backend_methods!(memory may_fail);
    backend_methods!(primitives may_fail);
}
