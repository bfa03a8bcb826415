//! Compute modules that users write, as CUDA C or as PTX.
//!
//! The text is preceded by the classes `Read<T>` and `Write<T>`, through which a kernel reaches its tensors within their
//! bounds. What the kernel takes is read from its PTX, so that a call that does not match it is refused before anything
//! runs: `Read` has 16 bytes and `Write` 24.

use std::sync::Arc;

use gradus_backend::compute::{check, check_size};
use gradus_backend::late::Access;
use gradus_backend::{Binding, ComputeLimits, ComputeModule, Error, ErrorKind, Result};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::driver::{Declarations, Target, compile};
use crate::module::{OP, Program, declared};
use crate::queue::Use;
use crate::recording;

/// What precedes the text of a module.
const PREAMBLE: &str = include_str!("module.cu");
const READ: usize = 16;
const WRITE: usize = 24;

/// See [`Backend::compute_limits`](gradus_backend::Backend::compute_limits).
pub(crate) fn limits() -> ComputeLimits {
    ComputeLimits { groups: [i32::MAX as u32, 65_535, 65_535], constants: 1024, bindings: 64 }
}

/// Returns the compiled module, after every check that needs no operands. See
/// [`Backend::check_compute`](gradus_backend::Backend::check_compute).
pub(crate) fn ready(
    b: &CudaBackend,
    module: ComputeModule<'_>,
    bindings: usize,
    constants: &[u8],
    groups: [u32; 3],
) -> Result<Arc<Program>> {
    b.device().check_lost(OP)?;
    let program = b.modules().get(module, || compiled(b, module))?;
    check_size(&limits(), bindings, constants, groups)?;
    let expected = bindings + usize::from(!constants.is_empty());
    let parameters = &program.kernel.parameters;
    if parameters.len() != expected {
        let m = format!(
            "the kernel has {} parameters; {bindings} bindings and {} bytes of constants are {expected}",
            parameters.len(),
            constants.len()
        );
        return Err(Error::argument(OP, m));
    }
    if let Some(&size) = parameters.get(bindings)
        && size != constants.len()
    {
        let m = format!("{} bytes of constants for a parameter of {size} bytes", constants.len());
        return Err(Error::argument(OP, m).help("the last parameter is a struct of the constants, by value"));
    }
    Ok(program)
}

fn compiled(b: &CudaBackend, module: ComputeModule<'_>) -> Result<Program> {
    let ComputeModule::Cuda(text) = module else {
        let m = format!("{} runs CUDA C and PTX, not {} modules", b.label(), module.form());
        return Err(Error::new(ErrorKind::Unsupported, OP, m));
    };
    let (entry, image) = if text.trim_start().starts_with(".version") {
        ("main", format!("{text}\0").into_bytes())
    } else {
        let (Target::Machine(capability) | Target::Ptx(capability)) = b.device().target;
        let whole = format!("{PREAMBLE}#line 1\n{text}");
        ("gradus_main", compile(OP, "main", &whole, Target::Ptx(capability), Declarations::Runtime)?)
    };
    let kernel = declared(&String::from_utf8_lossy(&image), entry)?;
    Ok(Program { function: b.device().load(OP, &image, entry)?, kernel })
}

/// See [`Backend::dispatch_compute`](gradus_backend::Backend::dispatch_compute).
pub(crate) fn dispatch(
    b: &CudaBackend,
    module: ComputeModule<'_>,
    bindings: &mut [Binding<'_>],
    constants: &[u8],
    groups: [u32; 3],
) -> Result<()> {
    // Whether a module may run is decided anew each time.
    recording::refuse();
    let program = ready(b, module, bindings.len(), constants, groups)?;
    check(&limits(), bindings, constants, groups)?;
    let mut arguments = Arguments::new();
    let mut uses = Vec::with_capacity(bindings.len());
    for (i, (binding, &size)) in bindings.iter().zip(&program.kernel.parameters).enumerate() {
        let (x, write) = match binding {
            Binding::Read(x) => (*x, false),
            Binding::Write(y) => (y.as_view(), true),
        };
        let name = format!("binding {i}");
        match (size, write) {
            (READ, false) | (WRITE, true) => {}
            (READ, true) | (WRITE, false) => {
                let (bound, declares) = if write { ("writing", "Read") } else { ("reading", "Write") };
                let m = format!("{name} is bound for {bound}; the kernel declares it as {declares}");
                return Err(Error::argument(OP, m));
            }
            _ => {
                let m = format!("{name} is bound to a parameter of {size} bytes, which is no tensor");
                return Err(Error::argument(OP, m).help("declare tensors as Read<T> or Write<T>"));
            }
        }
        let bytes = (x.layout.numel() * x.dtype.size()) as u64;
        let ptr = if bytes == 0 {
            0
        } else {
            let operand = b.input(OP, &name, x)?;
            let access = if write { Access::Write } else { Access::Read };
            uses.push(Use { block: operand.used.block, access });
            operand.ptr
        };
        let words = [ptr, bytes, 0];
        let all: Vec<u8> = words[..size / 8].iter().flat_map(|word| word.to_ne_bytes()).collect();
        arguments.bytes(&all);
    }
    if !constants.is_empty() {
        arguments.bytes(constants);
    }
    b.queue().run(OP.into(), &program.function, &uses, &arguments, (groups, program.kernel.threads, 0))
}
