//! User-written programs for [`Backend::dispatch_compute`](crate::Backend::dispatch_compute).

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Binding, DType, Element, Error, ErrorKind, Result, Shape, sha256};

/// A program for [`Backend::dispatch_compute`](crate::Backend::dispatch_compute). All forms except `Native` have an
/// entry point named `main`.
///
/// WGSL and SPIR-V modules declare operand `i` as the storage buffer at group 0, binding `i`, with the access of that
/// binding, and push constants as `var<immediate>`. A buffer may be declared as an array of the dtype of its tensor
/// (`array<f32>`, `array<vec4<i32>>`, `array<atomic<i32>>`). A tensor of any dtype may also be declared as an array of
/// u32, whose words are its raw memory: elements smaller than four bytes are packed into words, and the last word is
/// padded. An empty tensor cannot be bound.
///
/// An access out of bounds never leaves the tensor: a read returns 0 or some element of the tensor, and a write does
/// nothing or changes some element of the tensor. Which of the two depends on the adapter. `arrayLength` counts the
/// padded last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeModule<'a> {
    /// WGSL text.
    Wgsl(&'a str),
    /// SPIR-V bytes.
    SpirV(&'a [u8]),
    /// CUDA C text, or PTX if it begins with `.version`. The kernel is
    /// `extern "C" __global__ void __launch_bounds__(THREADS) main(..)`, and runs in blocks of `THREADS` threads. Its
    /// parameters are a `Read<T>` or `Write<T>` for each binding, and a struct of the push constants if there are any.
    /// `x[i]` reads an element, and 0 outside the tensor; `y.set(i, value)` writes one, and nothing outside the tensor.
    Cuda(&'a str),
    /// The name of a function that was registered with the backend.
    Native(&'a str),
}

impl ComputeModule<'_> {
    /// The name of the module's form: `WGSL`, `SPIR-V`, `CUDA C` or `native`.
    pub fn form(&self) -> &'static str {
        match self {
            ComputeModule::Wgsl(_) => "WGSL",
            ComputeModule::SpirV(_) => "SPIR-V",
            ComputeModule::Cuda(_) => "CUDA C",
            ComputeModule::Native(_) => "native",
        }
    }

    fn content(&self) -> &[u8] {
        match self {
            ComputeModule::Wgsl(text) | ComputeModule::Cuda(text) | ComputeModule::Native(text) => text.as_bytes(),
            ComputeModule::SpirV(bytes) => bytes,
        }
    }

    /// The module's identity: the SHA-256 of its form and content. The content of a native function is its name.
    pub fn hash(&self) -> ModuleHash {
        ModuleHash(sha256::digest(&[self.form().as_bytes(), &[0], self.content()].concat()))
    }
}

/// A [`ComputeModule`] that owns its content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum OwnedModule {
    Wgsl(Arc<str>),
    SpirV(Arc<[u8]>),
    Cuda(Arc<str>),
    Native(Arc<str>),
}

impl OwnedModule {
    /// Borrows this as a [`ComputeModule`].
    pub fn as_module(&self) -> ComputeModule<'_> {
        match self {
            OwnedModule::Wgsl(text) => ComputeModule::Wgsl(text),
            OwnedModule::SpirV(bytes) => ComputeModule::SpirV(bytes),
            OwnedModule::Cuda(text) => ComputeModule::Cuda(text),
            OwnedModule::Native(name) => ComputeModule::Native(name),
        }
    }
}

impl From<ComputeModule<'_>> for OwnedModule {
    fn from(module: ComputeModule<'_>) -> OwnedModule {
        match module {
            ComputeModule::Wgsl(text) => OwnedModule::Wgsl(text.into()),
            ComputeModule::SpirV(bytes) => OwnedModule::SpirV(bytes.into()),
            ComputeModule::Cuda(text) => OwnedModule::Cuda(text.into()),
            ComputeModule::Native(name) => OwnedModule::Native(name.into()),
        }
    }
}

/// The hash of a [`ComputeModule`], which prints in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModuleHash(pub [u8; 32]);

impl fmt::Display for ModuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ModuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The limits on one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeLimits {
    /// Maximum number of work-groups along each axis.
    pub groups: [u32; 3],
    /// Maximum size of the constants, in bytes.
    pub constants: usize,
    /// Maximum number of bindings.
    pub bindings: usize,
}

/// The compute modules that a backend keeps: the compiled form of each, looked up by content, and the list of allowed
/// modules.
#[derive(Debug)]
pub struct Modules<T>(RwLock<State<T>>);

#[derive(Debug)]
struct State<T> {
    /// Compiled modules by form and content.
    known: HashMap<&'static str, HashMap<Box<[u8]>, Known<T>>>,
    allowed: Option<HashSet<ModuleHash>>,
}

#[derive(Debug)]
struct Known<T> {
    hash: ModuleHash,
    made: Arc<T>,
}

impl<T> Default for Modules<T> {
    fn default() -> Self {
        Modules(RwLock::new(State { known: HashMap::new(), allowed: None }))
    }
}

impl<T> State<T> {
    fn find(&self, module: ComputeModule<'_>) -> Option<Result<Arc<T>>> {
        let known = self.known.get(module.form())?.get(module.content())?;
        Some(self.check(module, known.hash).map(|()| known.made.clone()))
    }

    fn check(&self, module: ComputeModule<'_>, hash: ModuleHash) -> Result<()> {
        if self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&hash)) {
            return Ok(());
        }
        let m = format!("the {} module {hash} is not among those that are allowed here", module.form());
        Err(Error::argument("dispatch_compute", m).help("add it to the list that allow_modules is given"))
    }
}

impl<T> Modules<T> {
    /// Creates an empty set in which all modules are allowed.
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.0.read().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.0.write().unwrap_or_else(|e| e.into_inner())
    }

    /// Restricts `get` to these modules; `None` allows all.
    pub fn allow(&self, hashes: Option<&[ModuleHash]>) {
        self.write().allowed = hashes.map(|hashes| hashes.iter().copied().collect());
    }

    /// The compiled form of a module. If there is none yet, `make` compiles the module and the result is kept. A module
    /// that is not allowed is rejected before it is compiled.
    ///
    /// Nothing is evicted: a program has few modules, and values that change from call to call belong in the constants.
    pub fn get(&self, module: ComputeModule<'_>, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if let Some(found) = self.read().find(module) {
            return found;
        }
        let hash = module.hash();
        self.read().check(module, hash)?;
        // The module is compiled without holding the lock, because compilation may be slow. If another thread has
        // compiled it in the meantime, that result is kept.
        let made = Arc::new(make()?);
        let mut state = self.write();
        // The module may have been disallowed in the meantime.
        state.check(module, hash)?;
        let known = state.known.entry(module.form()).or_default();
        Ok(known.entry(module.content().into()).or_insert(Known { hash, made }).made.clone())
    }

    /// Stores `made` as the compiled form of a module. Returns an error if the module already has a compiled form.
    pub fn insert(&self, module: ComputeModule<'_>, made: T) -> Result<()> {
        let mut state = self.write();
        let known = state.known.entry(module.form()).or_default();
        if known.contains_key(module.content()) {
            let name = String::from_utf8_lossy(module.content()).into_owned();
            let m = format!("there is a {} module {name:?} already", module.form());
            return Err(Error::argument("register_native", m).help("a name stands for one function: choose another"));
        }
        known.insert(module.content().into(), Known { hash: module.hash(), made: Arc::new(made) });
        Ok(())
    }

    /// The contents of all modules that have the same form as `like`, as text, sorted.
    pub fn names(&self, like: ComputeModule<'_>) -> Vec<String> {
        let state = self.read();
        let keys = state.known.get(like.form()).into_iter().flat_map(HashMap::keys);
        let mut names: Vec<_> = keys.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        names
    }
}

/// A function on the host, which [`ComputeModule::Native`] refers to by name. It is called once per dispatch,
/// regardless of the number of work-groups, and may be called from several threads.
///
/// The bound tensors are locked while the function runs, so it works on the memory in its [`NativeCall`]. If it reads
/// or writes a tensor that shares memory with a binding, it gets an error; it must not wait for another thread that
/// does so.
#[derive(Clone)]
pub struct NativeFunction {
    function: Arc<Function>,
    is_on_device: bool,
}

type Function = dyn Fn(&mut NativeCall<'_>) -> Result<()> + Send + Sync;

impl NativeFunction {
    /// Wraps a function that works on memory of the host.
    pub fn new(f: impl Fn(&mut NativeCall<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        NativeFunction { function: Arc::new(f), is_on_device: false }
    }

    /// Wraps a function that has a device work on its own memory, which the host cannot reach: it gets the addresses of
    /// its operands from [`NativeBinding::memory`], and what it needs of the backend from [`NativeCall::device`].
    /// When it returns, no work that it has begun uses the operands any more, unless it returns an error of the kind `Peer`:
    /// then whoever dispatched it never frees their memory.
    pub fn on_device(f: impl Fn(&mut NativeCall<'_>) -> Result<()> + Send + Sync + 'static) -> Self {
        NativeFunction { function: Arc::new(f), is_on_device: true }
    }

    /// Whether the operands are in memory of a device: see [`on_device`](Self::on_device).
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    /// Calls the function.
    pub fn call(&self, call: &mut NativeCall<'_>) -> Result<()> {
        (self.function)(call)
    }
}

impl fmt::Debug for NativeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NativeFunction")
    }
}

/// The arguments of a [`NativeFunction`].
#[derive(Debug)]
pub struct NativeCall<'a> {
    /// The operands, in order.
    pub bindings: Vec<NativeBinding<'a>>,
    /// The push constants.
    pub constants: &'a [u8],
    /// The number of work-groups along each axis.
    pub groups: [u32; 3],
    /// What the backend gives to a function [on the device](NativeFunction::on_device).
    pub backend: Option<&'a dyn Any>,
}

impl<'a> NativeCall<'a> {
    /// What the backend gives to a function [on the device](NativeFunction::on_device): the backend's crate says of which
    /// type it is. An error if this backend gives nothing of that type.
    pub fn device<T: 'static>(&self) -> Result<&'a T> {
        let wrong = || Error::new(ErrorKind::Unsupported, OP, "the function was written for another kind of device");
        self.backend.and_then(|given| given.downcast_ref()).ok_or_else(wrong)
    }

    /// All operands as an array; an error unless there are exactly `N`: `let [x, y] = call.operands()?`.
    pub fn operands<const N: usize>(&mut self) -> Result<&mut [NativeBinding<'a>; N]> {
        let count = self.bindings.len();
        let wrong = || Error::argument("dispatch_compute", format!("the function takes {N} bindings, not {count}"));
        self.bindings.as_mut_slice().try_into().map_err(|_| wrong())
    }

    /// The push constants as an array of exactly `N` numbers; any other size is an error.
    pub fn constants<T: Element, const N: usize>(&self) -> Result<[T; N]> {
        let bytes = self.constants.len();
        let m = || format!("the function takes {N} constants of {}, not {bytes} bytes", T::DTYPE);
        let whole = bytes == N * T::DTYPE.size();
        let values = whole.then(|| T::from_bytes(self.constants)).and_then(|v| v.try_into().ok());
        values.ok_or_else(|| Error::argument("dispatch_compute", m()))
    }
}

/// An operand of a [`NativeCall`]: the elements of a tensor, in row-major order.
#[derive(Debug)]
pub struct NativeBinding<'a> {
    dtype: DType,
    shape: Shape,
    memory: NativeMemory<'a>,
}

/// The bytes of an operand.
#[derive(Debug)]
pub enum NativeMemory<'a> {
    /// Read only.
    Read(&'a [u8]),
    /// Written, or read and written.
    Write(&'a mut [u8]),
    /// On a device. The host cannot reach it.
    Device(DeviceMemory),
}

/// Memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The address on the device; 0 if there are no bytes.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// Whether the operand is written, or read and written.
    pub is_written: bool,
}

impl<'a> NativeBinding<'a> {
    /// Creates an operand from the bytes of its elements.
    pub fn new(dtype: DType, shape: Shape, memory: NativeMemory<'a>) -> Self {
        NativeBinding { dtype, shape, memory }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where the elements are on the device. An error if they are in memory of the host.
    pub fn memory(&self) -> Result<DeviceMemory> {
        match &self.memory {
            NativeMemory::Device(memory) => Ok(*memory),
            _ => Err(Error::new(ErrorKind::Unsupported, OP, "the operand is in memory of the host")
                .help("read or write its elements")),
        }
    }

    /// The elements. Returns an error if their dtype is not that of `T`, or if they are on a device.
    pub fn read<T: Element>(&self) -> Result<&[T]> {
        let bytes = match &self.memory {
            NativeMemory::Read(bytes) => bytes,
            NativeMemory::Write(bytes) => &**bytes,
            NativeMemory::Device(_) => return Err(out_of_reach()),
        };
        T::slice(bytes).filter(|_| T::DTYPE == self.dtype).ok_or_else(|| self.wrong(T::DTYPE))
    }

    /// The elements, writable. Returns an error if their dtype is not that of `T`, or if the binding is bound for
    /// reading.
    pub fn write<T: Element>(&mut self) -> Result<&mut [T]> {
        let wrong = self.wrong(T::DTYPE);
        let bytes = match &mut self.memory {
            NativeMemory::Write(bytes) => bytes,
            NativeMemory::Read(_) => {
                let e = Error::argument("dispatch_compute", "the function writes a binding that is bound for reading");
                return Err(e.help("bind it for writing"));
            }
            NativeMemory::Device(_) => return Err(out_of_reach()),
        };
        T::slice_mut(bytes).filter(|_| T::DTYPE == self.dtype).ok_or(wrong)
    }

    fn wrong(&self, wanted: DType) -> Error {
        let m = format!("the function takes {wanted} where {} {} is bound", self.dtype, self.shape);
        Error::new(ErrorKind::DTypeMismatch, "dispatch_compute", m)
    }
}

fn out_of_reach() -> Error {
    Error::new(ErrorKind::Unsupported, OP, "the operand is in memory of a device, which the host cannot reach")
}

const OP: &str = "dispatch_compute";

/// Checks a call of [`Backend::dispatch_compute`](crate::Backend::dispatch_compute): it has at least one work-group
/// along each axis, nothing exceeds the limits, the constants are a whole number of four-byte words, and every binding
/// is contiguous.
pub fn check(limits: &ComputeLimits, bindings: &[Binding<'_>], constants: &[u8], groups: [u32; 3]) -> Result<()> {
    check_size(limits, bindings.len(), constants, groups)?;
    for (i, binding) in bindings.iter().enumerate() {
        let layout = match binding {
            Binding::Read(x) => x.layout,
            Binding::Write(y) => y.layout,
        };
        if !layout.is_contiguous() {
            return Err(Error::new(ErrorKind::NotContiguous, OP, format!("binding {i} has the layout {layout:?}")));
        }
    }
    Ok(())
}

/// The part of [`check`] that needs only the number of bindings, not the bindings themselves.
pub fn check_size(limits: &ComputeLimits, bindings: usize, constants: &[u8], groups: [u32; 3]) -> Result<()> {
    for (axis, (&n, &most)) in groups.iter().zip(&limits.groups).enumerate() {
        if n == 0 || n > most {
            let m = format!("{n} work-groups along axis {axis}; there are 1 to {most}");
            return Err(Error::argument(OP, m).help("let a work-group do more, or use several axes"));
        }
    }
    if constants.len() > limits.constants || !constants.len().is_multiple_of(4) {
        let m =
            format!("{} bytes of constants; they are words of 4, at most {} bytes", constants.len(), limits.constants);
        return Err(Error::argument(OP, m));
    }
    if bindings > limits.bindings {
        return Err(Error::argument(OP, format!("{bindings} bindings; there are at most {}", limits.bindings)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_made_once_for_each_form_and_content() {
        let modules = Modules::<u32>::new();
        let fails = || Err(Error::argument("make", "no"));
        assert!(modules.get(ComputeModule::Wgsl("a"), fails).is_err());
        assert_eq!(*modules.get(ComputeModule::Wgsl("a"), || Ok(1)).unwrap(), 1);
        assert_eq!(*modules.get(ComputeModule::Wgsl("a"), fails).unwrap(), 1);
        assert_eq!(*modules.get(ComputeModule::Native("a"), || Ok(2)).unwrap(), 2);
        assert!(modules.insert(ComputeModule::Native("a"), 3).is_err());
        modules.insert(ComputeModule::Native("b"), 3).unwrap();
        assert_eq!(modules.names(ComputeModule::Native("")), ["a", "b"]);
    }

    #[test]
    fn only_allowed_modules_are_made_or_given() {
        let modules = Modules::<u32>::new();
        let (a, b) = (ComputeModule::Wgsl("a"), ComputeModule::SpirV(b"a"));
        assert_ne!(a.hash(), b.hash());
        modules.get(a, || Ok(1)).unwrap();
        modules.allow(Some(&[b.hash()]));
        let e = modules.get(a, || Ok(1)).unwrap_err();
        assert!(e.kind() == &ErrorKind::InvalidArgument && e.message().contains(&a.hash().to_string()), "{e}");
        assert!(modules.get(ComputeModule::Wgsl("c"), || unreachable!("it is not allowed")).is_err());
        assert_eq!(*modules.get(b, || Ok(2)).unwrap(), 2);
        // A module that is disallowed while it is being compiled.
        let late = ComputeModule::Wgsl("late");
        modules.allow(None);
        let make = || {
            modules.allow(Some(&[]));
            Ok(4)
        };
        assert!(modules.get(late, make).is_err());
        modules.allow(None);
        assert_eq!(*modules.get(late, || Ok(5)).unwrap(), 5, "what was forbidden was not kept");
        assert_eq!(*modules.get(a, || Ok(3)).unwrap(), 1);
    }

    #[test]
    fn operands_have_their_type_and_access() {
        let (x, mut y) = ([1.5f32, 2.0], [0i32; 2]);
        let shape = Shape::new(&[2]).unwrap();
        let bytes = i32::slice_mut(bytemuck::cast_slice_mut(&mut y)).unwrap();
        let mut call = NativeCall {
            bindings: vec![
                NativeBinding::new(DType::F32, shape, NativeMemory::Read(f32::as_bytes(&x))),
                NativeBinding::new(DType::I32, shape, NativeMemory::Write(bytemuck::cast_slice_mut(bytes))),
            ],
            constants: &7u32.to_ne_bytes(),
            groups: [1; 3],
            backend: None,
        };
        assert_eq!(call.constants::<u32, 1>().unwrap(), [7]);
        assert!(call.constants::<u64, 1>().is_err() && call.constants::<u32, 2>().is_err());
        assert!(call.operands::<3>().is_err());
        let [a, b] = call.operands().unwrap();
        assert_eq!(a.read::<f32>().unwrap(), x);
        assert!(a.read::<i32>().is_err() && a.write::<f32>().is_err() && b.write::<u32>().is_err());
        b.write::<i32>().unwrap()[1] = 5;
        assert_eq!(b.read::<i32>().unwrap(), [0, 5]);
        assert!(b.memory().is_err());
        assert!(call.device::<u8>().is_err());
    }

    #[test]
    fn operands_on_a_device_have_an_address_only() {
        let memory = DeviceMemory { address: 512, bytes: 8, is_written: true };
        let shape = Shape::new(&[2]).unwrap();
        let mut binding = NativeBinding::new(DType::F32, shape, NativeMemory::Device(memory));
        assert_eq!(binding.memory().unwrap(), memory);
        assert_eq!(binding.read::<f32>().unwrap_err().kind(), &ErrorKind::Unsupported);
        assert_eq!(binding.write::<f32>().unwrap_err().kind(), &ErrorKind::Unsupported);
        let call = NativeCall { bindings: vec![binding], constants: &[], groups: [1; 3], backend: Some(&7u32) };
        assert_eq!(call.device::<u32>().unwrap(), &7);
        assert!(call.device::<u64>().is_err());
    }
}
