//! Compute modules that users write, as WGSL text or SPIR-V bytes.
//!
//! naga parses each module, and wgpu validates it. The bindings are read from naga's representation, so that a call
//! that does not match its module is rejected before anything runs.

use std::fmt::Display;
use std::panic::catch_unwind;
use std::sync::Arc;

use gradus_backend::compute::{check, check_size};
use gradus_backend::{Binding, Buffer, ComputeLimits, ComputeModule, DType, Error, ErrorKind, Result, View};
use wgpu::naga;

use crate::WgpuBackend;
use crate::map::copy_strided;
use crate::nesting;
use crate::program::{OP, Program, Slot};
use crate::queue::{Bind, said, storage};
use crate::temp::Temp;
use gradus_backend::late::Access;

/// See [`Backend::compute_limits`](gradus_backend::Backend::compute_limits).
pub(crate) fn limits(b: &WgpuBackend) -> ComputeLimits {
    let limits = &b.queue().limits;
    let bindings = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
    ComputeLimits {
        groups: [limits.max_compute_workgroups_per_dimension; 3],
        constants: if b.features.contains(wgpu::Features::IMMEDIATES) { limits.max_immediate_size as usize } else { 0 },
        bindings: bindings as usize,
    }
}

/// Returns the compiled module, after every check that needs no operands. See
/// [`Backend::check_compute`](gradus_backend::Backend::check_compute).
pub(crate) fn ready(
    b: &WgpuBackend,
    module: ComputeModule<'_>,
    bindings: usize,
    constants: &[u8],
    groups: [u32; 3],
) -> Result<Arc<Program>> {
    b.queue().faults.check_lost(OP)?;
    let program = b.modules.get(module, || nesting::with_stack(|| compiled(b, module)))?;
    check_size(&limits(b), bindings, constants, groups)?;
    program.check_counts(bindings, constants.len())?;
    Ok(program)
}

/// See [`Backend::dispatch_compute`](gradus_backend::Backend::dispatch_compute).
pub(crate) fn dispatch(
    b: &WgpuBackend,
    module: ComputeModule<'_>,
    bindings: &mut [Binding<'_>],
    constants: &[u8],
    groups: [u32; 3],
) -> Result<()> {
    let program = ready(b, module, bindings.len(), constants, groups)?;
    check(&limits(b), bindings, constants, groups)?;
    program.check_access(bindings)?;

    let operands = bindings.iter().zip(&program.slots).enumerate();
    let operands: Vec<_> = operands.map(|(i, (x, slot))| Staged::new(b, i, slot, x)).collect::<Result<_>>()?;
    let binds: Vec<_> =
        operands.iter().zip(&program.slots).map(|(x, slot)| x.bind(b, slot.write)).collect::<Result<_>>()?;
    b.queue().dispatch(OP, (&program.raw, &program.layouts), &binds, constants, groups)?;
    drop(binds);
    let copies: Vec<_> = operands.into_iter().map(Staged::copied).collect();
    for (binding, copy) in bindings.iter_mut().zip(&copies) {
        if let (Binding::Write(y), Some(copy)) = (binding, copy) {
            copy_strided(b, copy.view(), y)?;
        }
    }
    Ok(())
}

/// The memory to bind: the operand itself, or a copy if WebGPU cannot bind exactly its elements.
enum Staged<'a> {
    InPlace { buffer: &'a Buffer, start: u64, bytes: u64 },
    Copied(Temp),
}

impl<'a> Staged<'a> {
    fn new(b: &WgpuBackend, i: usize, slot: &Slot, binding: &'a Binding<'_>) -> Result<Self> {
        let (x, write) = match binding {
            Binding::Read(x) => (*x, false),
            Binding::Write(y) => (View { buffer: y.buffer, dtype: y.dtype, layout: y.layout }, true),
        };
        let (name, dims) = (format!("binding {i}"), x.layout.dims());
        let wrong = |kind, m| Err(Error::new(kind, OP, m).operand(&name, dims, x.dtype, b.label()));
        if x.layout.numel() == 0 {
            return wrong(ErrorKind::InvalidArgument, format!("{name} is empty, and WebGPU binds nothing that is"));
        }
        let bytes = (x.layout.numel() * x.dtype.size()) as u64;
        let bound = bytes.next_multiple_of(4);
        if bound > b.most_bound() {
            let m = format!("{name} has {bytes} bytes; a module on {} reaches {}", b.label(), b.most_bound());
            return wrong(ErrorKind::Unsupported, m);
        }
        if bound < u64::from(slot.least) {
            let m = format!("{name} has {bytes} bytes; the module's {:?} takes {} or more", slot.name, slot.least);
            return wrong(ErrorKind::InvalidArgument, m);
        }
        if let Some(other) = slot.elements.iter().find(|&&e| Some(e) != scalar_of(x.dtype)) {
            let m = format!("{name} is {}; the module's {:?} holds {}", x.dtype, slot.name, name_of(*other));
            let help = "convert the tensor with `to_dtype`, or declare words of u32, which hold elements of any dtype";
            return wrong(ErrorKind::DTypeMismatch, m).map_err(|e: Error| e.help(help));
        }
        b.operand(OP, &name, x.buffer, x.dtype, x.layout, write)?;
        let start = (x.layout.offset() * x.dtype.size()) as u64;
        let aligned = start.is_multiple_of(u64::from(b.queue().limits.min_storage_buffer_offset_alignment));
        // The last word of a part may also hold elements outside it, which must not be written. At the end of a buffer
        // there are none.
        let whole = !write || bound == bytes || start + bytes == x.buffer.bytes() as u64;
        if aligned && whole {
            return Ok(Staged::InPlace { buffer: x.buffer, start, bytes: bound });
        }
        let mut copy = Temp::new(b, x.dtype, *x.layout.shape())?;
        copy_strided(b, x, &mut copy.view_mut())?;
        Ok(Staged::Copied(copy))
    }

    fn bind(&self, b: &WgpuBackend, write: bool) -> Result<Bind<'_>> {
        let (buffer, offset, size) = match self {
            Staged::InPlace { buffer, start, bytes } => (*buffer, *start, *bytes),
            Staged::Copied(copy) => (&copy.buffer, 0, copy.buffer.bytes().next_multiple_of(4) as u64),
        };
        let access = if write { Access::Write } else { Access::Read };
        Ok(Bind { block: b.pool().block(OP, buffer)?, access, offset, size, distinct: size })
    }

    fn copied(self) -> Option<Temp> {
        match self {
            Staged::InPlace { .. } => None,
            Staged::Copied(copy) => Some(copy),
        }
    }
}

/// The scalar type with which a module declares elements of a dtype; `None` if WGSL has no such type, so that the
/// elements can only be read as parts of words.
fn scalar_of(dtype: DType) -> Option<naga::Scalar> {
    match dtype {
        DType::F64 => Some(naga::Scalar::F64),
        DType::F32 => Some(naga::Scalar::F32),
        DType::F16 => Some(naga::Scalar::F16),
        DType::I64 => Some(naga::Scalar::I64),
        DType::U64 => Some(naga::Scalar::U64),
        DType::I32 => Some(naga::Scalar::I32),
        DType::U32 => Some(naga::Scalar::U32),
        DType::BF16 | DType::I16 | DType::U16 | DType::I8 | DType::U8 | DType::Bool => None,
    }
}

/// The WGSL name of a scalar type that a buffer can hold.
fn name_of(scalar: naga::Scalar) -> String {
    let kind = match scalar.kind {
        naga::ScalarKind::Float => 'f',
        naga::ScalarKind::Sint => 'i',
        _ => 'u',
    };
    format!("{kind}{}", u32::from(scalar.width) * 8)
}

/// The scalar types that each type contains, except u32, in the order of the module's types.
fn elements_of(module: &naga::Module) -> Vec<Vec<naga::Scalar>> {
    let mut all: Vec<Vec<naga::Scalar>> = Vec::with_capacity(module.types.len());
    // In a module, a type comes after the types that it is made of.
    for (_, ty) in module.types.iter() {
        let parts = |of: naga::Handle<naga::Type>| all.get(of.index()).cloned().unwrap_or_default();
        let mut elements = match &ty.inner {
            naga::TypeInner::Scalar(scalar)
            | naga::TypeInner::Atomic(scalar)
            | naga::TypeInner::Vector { scalar, .. }
            | naga::TypeInner::Matrix { scalar, .. } => vec![*scalar],
            naga::TypeInner::Array { base, .. } => parts(*base),
            naga::TypeInner::Struct { members, .. } => members.iter().flat_map(|m| parts(m.ty)).collect(),
            _ => vec![],
        };
        elements.retain(|&e| e != naga::Scalar::U32);
        elements.sort_by_key(|e| (e.kind, e.width));
        elements.dedup();
        all.push(elements);
    }
    all
}

/// Parses a module with naga, without validating it. Also returns the source in the form that wgpu takes. Fails for
/// modules other than WGSL and SPIR-V.
fn parse<'a>(b: &WgpuBackend, module: ComputeModule<'a>) -> Result<(naga::Module, wgpu::ShaderSource<'a>)> {
    match module {
        ComputeModule::Wgsl(text) => {
            nesting::check(text)?;
            let parsed = naga::front::wgsl::parse_str(text).map_err(|e| refused(module, e.emit_to_string(text)))?;
            Ok((parsed, wgpu::ShaderSource::Wgsl(text.into())))
        }
        ComputeModule::SpirV(bytes) => {
            nesting::check_length(bytes)?;
            let parsed = parse_spirv(bytes).map_err(|e| refused(module, e))?;
            let words = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word));
            Ok((parsed, wgpu::ShaderSource::SpirV(words.collect())))
        }
        other => {
            let e = Error::new(ErrorKind::Unsupported, OP, format!("{} runs no {} modules", b.label(), other.form()));
            Err(e.help("write it in WGSL, or bring it as SPIR-V"))
        }
    }
}

fn refused(module: ComputeModule<'_>, why: impl Display) -> Error {
    Error::argument(OP, format!("the {} module is refused: {why}", module.form()))
}

/// Parses SPIR-V. naga panics on some types, such as types of 2 GiB and integers of 24 bits. Such a panic is reported
/// like naga's other errors, unless the program was built to abort on panics.
fn parse_spirv(bytes: &[u8]) -> std::result::Result<naga::Module, String> {
    let options = naga::front::spv::Options { adjust_coordinate_space: false, ..Default::default() };
    match catch_unwind(|| naga::front::spv::parse_u8_slice(bytes, &options)) {
        Ok(parsed) => parsed.map_err(|e| e.emit_to_string("")),
        Err(panic) => Err(format!("naga panics: {}", said(&*panic).unwrap_or("it does not say why"))),
    }
}

/// The declarations of a module: its bindings in order, and the size of its constants in bytes. Fails if a work-group
/// needs more than `most_shared` bytes of shared memory.
fn declared(module: &naga::Module, most_shared: u32) -> Result<(Vec<Slot>, u32)> {
    let (mut slots, mut constants, mut shared) = (Vec::new(), 0, 0u64);
    let elements = elements_of(module);
    for (_, variable) in module.global_variables.iter() {
        let name = variable.name.clone().unwrap_or_default();
        let wrong = |m: String| Error::argument(OP, format!("the module's {name:?} {m}"));
        let size = module.types[variable.ty].inner.try_size(module.to_ctx());
        let size = size.ok_or_else(|| wrong("is larger than any buffer".to_owned()))?;
        match (variable.space, &variable.binding) {
            (naga::AddressSpace::Storage { access }, Some(at)) if at.group == 0 => {
                let write = access.intersects(naga::StorageAccess::STORE | naga::StorageAccess::ATOMIC);
                let elements = elements.get(variable.ty.index()).cloned().unwrap_or_default();
                slots.push((at.binding, Slot { name, write, least: size, elements }));
            }
            (naga::AddressSpace::Immediate, _) => constants = constants.max(size),
            (naga::AddressSpace::WorkGroup, _) => shared += u64::from(size).next_multiple_of(16),
            (_, Some(at)) => {
                let m = format!("is at group {}, binding {}; only storage buffers of group 0", at.group, at.binding);
                return Err(wrong(format!("{m} can be bound")));
            }
            _ => {}
        }
    }
    if shared > u64::from(most_shared) {
        let m = format!(
            "the module's workgroup variables take {shared} bytes; a work-group of this device has {most_shared}"
        );
        return Err(Error::new(ErrorKind::Unsupported, OP, m));
    }
    slots.sort_by_key(|(at, _)| *at);
    if let Some(gap) = slots.iter().zip(0..).position(|((at, _), i)| *at != i) {
        let m = format!("the module has no binding {gap}, or it twice; its bindings are numbered from 0 without a gap");
        return Err(Error::argument(OP, m));
    }
    Ok((slots.into_iter().map(|(_, slot)| slot).collect(), constants))
}

/// Replaces the module's overrides by their default values, because the sizes of arrays may depend on them.
fn without_overrides(parsed: naga::Module, module: ComputeModule<'_>) -> Result<naga::Module> {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    if parsed.overrides.is_empty() {
        return Ok(parsed);
    }
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&parsed);
    let info = info.map_err(|e| refused(module, e.into_inner()))?;
    let main = Some((naga::ShaderStage::Compute, "main"));
    let made = naga::back::pipeline_constants::process_overrides(&parsed, &info, main, &Default::default());
    Ok(made.map_err(|e| refused(module, e))?.0.into_owned())
}

/// Compiles a module.
fn compiled(b: &WgpuBackend, module: ComputeModule<'_>) -> Result<Program> {
    let (parsed, source) = parse(b, module)?;
    let parsed = without_overrides(parsed, module)?;
    let queue = b.queue();
    let (slots, constants) = declared(&parsed, queue.limits.max_compute_workgroup_storage_size)?;
    if constants > 0 && !b.features.contains(wgpu::Features::IMMEDIATES) {
        let m = format!("constants need the feature IMMEDIATES, which {} ({}) lacks", b.label(), b.hardware);
        return Err(Error::new(ErrorKind::Unsupported, OP, m).help("bind them as a tensor"));
    }
    let made = queue.scoped(|| {
        let entries: Vec<_> = (0..).zip(&slots).map(|(i, slot)| storage((i, &slot.write))).collect();
        let layouts = queue.layout(&entries, constants);
        (queue.compile(OP, source, &layouts.pipeline, true), layouts)
    });
    let (raw, layouts) = made.map_err(|e| refused(module, e))?;
    queue.count_pipeline();
    Ok(Program { raw, layouts, slots, constants: constants as usize })
}
