//! Compute modules: named functions that run on the host.

use std::sync::Arc;

use gradus_backend::compute::{self, NativeMemory};
use gradus_backend::{
    Binding, ComputeLimits, ComputeModule, Error, ErrorKind, NativeBinding, NativeCall, NativeFunction, Result,
};

use crate::CpuBackend;

/// The limits on groups and constants are those that Vulkan guarantees, and the limit on bindings is WebGPU's. WebGPU
/// supports constants only with the feature `IMMEDIATES`.
pub(crate) const LIMITS: ComputeLimits = ComputeLimits { groups: [65_535; 3], constants: 128, bindings: 8 };

/// See [`Backend::register_native`](gradus_backend::Backend::register_native).
pub(crate) fn register(cpu: &CpuBackend, name: &str, function: NativeFunction) -> Result<()> {
    if function.is_on_device() {
        let m = format!("the function {name:?} works on memory of a device, and the CPU has that of the host");
        return Err(Error::new(ErrorKind::Unsupported, "register_native", m));
    }
    cpu.natives().insert(ComputeModule::Native(name), function)
}

const OP: &str = "dispatch_compute";

/// Returns the function that a module names.
fn function(cpu: &CpuBackend, module: ComputeModule<'_>) -> Result<Arc<NativeFunction>> {
    let ComputeModule::Native(name) = module else {
        let e = Error::new(ErrorKind::Unsupported, OP, format!("the CPU runs no {} modules", module.form()));
        return Err(e.help("register a function with register_native, and name it with ComputeModule::Native"));
    };
    cpu.natives().get(module, || {
        let known = cpu.natives().names(module);
        let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
        let e = Error::argument(OP, format!("there is no native function {name:?}"));
        Err(e.help(format!("register it with register_native; registered: {known}")))
    })
}

/// See [`Backend::check_compute`](gradus_backend::Backend::check_compute).
pub(crate) fn check(
    cpu: &CpuBackend,
    module: ComputeModule<'_>,
    bindings: usize,
    constants: &[u8],
    groups: [u32; 3],
) -> Result<()> {
    function(cpu, module)?;
    compute::check_size(&LIMITS, bindings, constants, groups)
}

/// See [`Backend::dispatch_compute`](gradus_backend::Backend::dispatch_compute).
pub(crate) fn dispatch(
    cpu: &CpuBackend,
    module: ComputeModule<'_>,
    bindings: &mut [Binding<'_>],
    constants: &[u8],
    groups: [u32; 3],
) -> Result<()> {
    let function = function(cpu, module)?;
    compute::check(&LIMITS, bindings, constants, groups)?;
    let mut operands = Vec::with_capacity(bindings.len());
    for binding in bindings {
        operands.push(match binding {
            Binding::Read(x) => {
                NativeBinding::new(x.dtype, *x.layout.shape(), NativeMemory::Read(cpu.element_bytes(OP, *x)?))
            }
            Binding::Write(y) => {
                let (dtype, shape) = (y.dtype, *y.layout.shape());
                NativeBinding::new(dtype, shape, NativeMemory::Write(cpu.element_bytes_mut(OP, y)?))
            }
        });
    }
    function.call(&mut NativeCall { bindings: operands, constants, groups, backend: None })
}
