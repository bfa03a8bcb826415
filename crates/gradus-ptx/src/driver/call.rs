//! How a function of the interface is called: behind the lock, counted, and failed on request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::{Code, NOT_INITIALIZED, SUCCESS, UNKNOWN};
use super::machine::{self, Driver};
use super::nccl::BEHAVIOUR;

/// Functions of the driver's C interface. The body gets the driver behind its lock, and says by a `Result` what the
/// function returns.
macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $kind:ty)* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        // SAFETY: the names are those of the driver's interface, so no other library of the process has a function of the
        // name unless it is the driver itself, of which a process has one.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> $crate::driver::abi::Code {
            $crate::driver::call::call(stringify!($name), |$driver: &mut $crate::driver::machine::Driver| $body)
        }
    )*};
}
pub(super) use exported;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

/// The process that first called the driver; 0 before that.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn lock() -> MutexGuard<'static, Option<Driver>> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: the C library has it, with this signature.
unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

/// Has the counts added to the file of `GRADUS_PTX_STATISTICS` when the process ends.
extern "C" fn write_statistics() {
    if let Some(driver) = lock().as_ref()
        && let Some(path) = &driver.settings.statistics
    {
        driver.counts.add_to(path);
    }
}

/// Runs a function of the interface: counts it, fails it if it is to fail, and lets no panic out. A process that was forked
/// from one that had called the driver has none, as with a real driver.
pub(super) fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    let this = std::process::id();
    let first = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|found| found);
    if first != 0 && first != this {
        return NOT_INITIALIZED;
    }
    let run = || {
        let mut driver = lock();
        let driver = driver.get_or_insert_with(|| {
            let new = Driver::new();
            if new.settings.statistics.is_some() {
                // SAFETY: the function may run at any time before the library is unloaded, which a driver never is.
                unsafe { atexit(write_statistics) };
            }
            new
        });
        let injected = driver.calls.count(name);
        driver.nccl.behaviour = None;
        if let Err(code) = injected
            && name.starts_with("nccl")
            && code.0 >= BEHAVIOUR
        {
            driver.nccl.behaviour = Some(code.0);
        } else if let Err(code) = injected {
            if let (true, Some(device)) = (code.is_sticky(), machine::current()) {
                driver.devices.get_mut(device).map(|device| device.lost.get_or_insert(code));
            }
            return Err(code);
        }
        if !driver.initialised && !WITHOUT_INIT.contains(&name) {
            return Err(NOT_INITIALIZED);
        }
        body(driver)
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err().unwrap_or(SUCCESS),
        Err(_) => UNKNOWN,
    }
}

/// What may be called before `cuInit`.
const WITHOUT_INIT: [&str; 8] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cublasLtGetVersion",
    "ncclGetVersion",
    "ncclGetUniqueId",
    "gradus_ptx_fail",
];
