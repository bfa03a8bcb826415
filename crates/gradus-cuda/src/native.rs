//! Runs functions of other crates that give the GPU work on the memory of tensors, such as those of NCCL. They are
//! registered as [`NativeFunction::on_device`](gradus_backend::NativeFunction::on_device).

use std::sync::Arc;

use gradus_backend::compute::{self, DeviceMemory, NativeMemory};
use gradus_backend::late::Access;
use gradus_backend::{Binding, ComputeModule, Error, ErrorKind, NativeBinding, NativeCall, NativeFunction, Result};

use crate::CudaBackend;
use crate::driver::CudaDevice;
use crate::module::OP;
use crate::queue::Use;
use crate::recording;

/// See [`Backend::register_native`](gradus_backend::Backend::register_native).
pub(crate) fn register(b: &CudaBackend, name: &str, function: NativeFunction) -> Result<()> {
    if !function.is_on_device() {
        let m =
            format!("the function {name:?} works on memory of the host, and the memory of {} is the GPU's", b.label());
        return Err(Error::new(ErrorKind::Unsupported, "register_native", m));
    }
    b.natives().insert(ComputeModule::Native(name), function)
}

/// Returns the function, after every check that needs no operands.
pub(crate) fn ready(
    b: &CudaBackend,
    name: &str,
    bindings: usize,
    constants: &[u8],
    groups: [u32; 3],
) -> Result<Arc<NativeFunction>> {
    let unknown = || {
        let m = format!("{} runs CUDA C and PTX, and has no native function {name:?} on the device", b.label());
        Err(Error::new(ErrorKind::Unsupported, OP, m))
    };
    let function = b.natives().get(ComputeModule::Native(name), unknown)?;
    compute::check_size(&crate::compute::limits(), bindings, constants, groups)?;
    Ok(function)
}

/// Calls the function. Work that is already queued on the operands is on the stream before the function runs. Unless the
/// function fails with an error of the kind `Peer`, its own work has ended when it returns, so later work is in order with
/// both.
pub(crate) fn dispatch(
    b: &CudaBackend,
    name: &str,
    bindings: &mut [Binding<'_>],
    constants: &[u8],
    groups: [u32; 3],
) -> Result<()> {
    // A graph cannot call a function.
    recording::refuse();
    let function = ready(b, name, bindings.len(), constants, groups)?;
    compute::check(&crate::compute::limits(), bindings, constants, groups)?;
    b.device().enter(OP)?;
    let (mut operands, mut uses) = (Vec::with_capacity(bindings.len()), Vec::with_capacity(bindings.len()));
    for (i, binding) in bindings.iter().enumerate() {
        let (x, is_written) = match binding {
            Binding::Read(x) => (*x, false),
            Binding::Write(y) => (y.as_view(), true),
        };
        let bytes = x.layout.numel() * x.dtype.size();
        let mut address = 0;
        if bytes > 0 {
            let operand = b.input(OP, &format!("binding {i}"), x)?;
            uses.push(Use { access: if is_written { Access::Write } else { Access::Read }, ..operand.used });
            address = operand.ptr;
        }
        let memory = NativeMemory::Device(DeviceMemory { address, bytes, is_written });
        operands.push(NativeBinding::new(x.dtype, *x.layout.shape(), memory));
    }
    let device = CudaDevice(b.shared_device());
    let made = function.call(&mut NativeCall { bindings: operands, constants, groups, backend: Some(&device) });
    // A function that fails may have written too, and its error says whether the operands may be freed.
    let noted = b.queue().noted(OP, &uses);
    made.and(noted)
}
