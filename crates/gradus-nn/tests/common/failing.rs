//! A device whose n-th call fails.
#![allow(unreachable_pub)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gradus_cpu::CpuBackend;
use gradus_tensor::backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, Buffer, Distribution, Kernel, MapArg, MemoryStats, ReduceOp, Scalar,
    ScanOp, ScatterOp, View, ViewMut, Window,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Result};

/// The CPU, one of whose calls fails before it has done anything. Composites are made of primitives, so that each of these
/// can be the one.
#[derive(Debug)]
pub struct Failing {
    cpu: CpuBackend,
    /// Calls until the one that fails; 0 for none.
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

    /// Runs `f`, in which the `n`-th call, from 1, fails; gives its result, and the name of that call if there were as many.
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
            _ => Error::argument(name, "this call fails"),
        })
    }
}

/// Methods of the CPU, which may fail.
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
    may_fail! {
        alloc(bytes: usize) -> Result<Buffer>;
        upload(dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()>;
        download(src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()>;
        copy_strided(x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;
        copy_buffer(src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()>;
        fill(out: &mut ViewMut<'_>, value: Scalar) -> Result<()>;
        synchronize() -> Result<()>;
        set_memory_budget(bytes: Option<usize>) -> Result<()>;
        trim() -> Result<()>;
        map(kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()>;
        reduce(op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()>;
        arg_reduce(op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;
        scan(op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()>;
        gemm(alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()>;
        unfold(window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()>;
        fold(window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;
        gather(x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;
        scatter(op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()>;
        sort(x: View<'_>, axis: usize, down: bool, values: &mut ViewMut<'_>, indices: &mut ViewMut<'_>) -> Result<()>;
        random(dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()>;
    }
}
