//! The CUDA driver: one [`Device`] is a GPU with its primary context and one stream, on which all work runs in order.
//!
//! A failure of the driver is an error that names the operation. After a failure that the driver cannot recover from,
//! such as a kernel that faults, the context is lost: every later call on the device returns an error that says so.

mod cublaslt;
mod graph;
mod library;
mod nccl;
mod nvrtc;
mod pinned;
mod staging;

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult};
use gradus_backend::{Error, ErrorKind, Result};

pub(crate) use cublaslt::{FoundCublasLt, Matrix, Problem, Product, check_named};
pub(crate) use graph::Graph;
pub(crate) use library::is_stand_in;
pub use nccl::{
    Communicator, Moving, Reduction, Transfer, UniqueId, can_reduce, installed_version, unique_id, version_text,
};
pub(crate) use nvrtc::{Declarations, Target, compile, fingerprint, shown};
pub(crate) use pinned::Pinned;
pub(crate) use staging::{BLOCK, Downloads, Uploads};

/// The oldest capability whose instructions the kernels are written for: 8.0 (Ampere).
const OLDEST: u32 = 80;

/// The oldest CUDA version that a driver may support.
const OLDEST_DRIVER: u32 = 12;

/// A GPU that the driver lists.
#[derive(Debug, Clone)]
pub struct DeviceSummary {
    /// The name that the driver gives.
    pub name: String,
    /// The compute capability, as major and minor version.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: u64,
    /// The newest CUDA version that the driver supports, as major and minor version.
    pub driver: (u32, u32),
}

/// The GPUs of this machine, in the driver's order. Fails if there is no driver, or if it fails.
pub fn devices() -> Result<Vec<DeviceSummary>> {
    initialise()?;
    let mut count = 0;
    // SAFETY: the function writes to this number.
    plain("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    // As many as the machine has GPUs: at most some dozens.
    (0..count).map(|ordinal| summary(handle(ordinal)?)).collect()
}

fn initialise() -> Result<()> {
    library::driver()?;
    // SAFETY: the function may be called any number of times.
    let code = unsafe { sys::cuInit(0) };
    if code == CUresult::CUDA_ERROR_NO_DEVICE {
        let m = "the NVIDIA driver finds no GPU";
        return Err(Error::new(ErrorKind::Unsupported, "cuda", m).help("see `nvidia-smi`, or use --device cpu"));
    }
    plain("cuInit", code)
}

fn handle(ordinal: i32) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: the function writes to this number.
    plain("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
    Ok(device)
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the function writes to this number.
    plain("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
    Ok(u32::try_from(value).unwrap_or_default())
}

fn summary(device: sys::CUdevice) -> Result<DeviceSummary> {
    let (mut name, mut memory, mut version) = ([0; 256], 0, 0);
    // SAFETY: the functions write to these variables; the name has 256 bytes, as the call says.
    unsafe {
        plain("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        plain("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory, device))?;
        plain("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
    }
    let name: Vec<u8> = name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let version = u32::try_from(version).unwrap_or_default();
    Ok(DeviceSummary {
        name: String::from_utf8_lossy(&name).into_owned(),
        capability: (
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory: memory as u64,
        driver: (version / 1000, version % 1000 / 10),
    })
}

/// The driver's name and description of a code.
fn described(code: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the function writes a pointer to a string that lives for ever, or null.
        let given = unsafe { get(code, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: as above.
        given.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(what)) => format!("{name}: {what}"),
        (Some(name), None) => name,
        _ => format!("error {}", code as u32),
    }
}

/// The result of a call that belongs to no device.
fn plain(call: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Backend, "cuda", format!("{call} failed with {}", described(code))))
}

/// The driver's handle of a function of a loaded module. It lives as long as its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel(sys::CUfunction);

// SAFETY: the driver's functions may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A function of a loaded module. It lives as long as its device.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) kernel: Kernel,
    /// The number of bytes of shared memory that a launch may ask for. Beyond it, the limit has to be raised first.
    shared: Mutex<u32>,
}

/// An open GPU.
pub(crate) struct Device {
    pub(crate) label: String,
    pub(crate) summary: DeviceSummary,
    pub(crate) multiprocessors: u32,
    /// The largest number of bytes of shared memory of a block.
    pub(crate) most_shared: u32,
    pub(crate) target: Target,
    raw: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The process that opened the device. A context does not survive a fork.
    process: u32,
    is_lost: AtomicBool,
    /// Why the device is lost.
    why: Mutex<String>,
}

/// An open GPU, as a function on the device gets it from
/// [`NativeCall::device`](gradus_backend::compute::NativeCall::device). While the function runs, the GPU's context is
/// that of the thread.
#[derive(Debug, Clone)]
pub struct CudaDevice(pub(crate) Arc<Device>);

impl CudaDevice {
    /// What tells this GPU, or this part of one, from all others anywhere.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the function writes to these bytes.
        self.0.check("cuda", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, self.0.raw) })?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens GPU number `index` of those that [`devices`] lists.
    pub(crate) fn open(index: usize) -> Result<Device> {
        let count = devices()?.len();
        if index >= count {
            let m = format!("there is no GPU number {index}: the driver lists {count}");
            return Err(Error::argument("cuda", m).help("`gradus devices` lists them"));
        }
        let raw = handle(index as i32)?;
        let summary = summary(raw)?;
        let capability = summary.capability.0 * 10 + summary.capability.1;
        if capability < OLDEST {
            let (name, has) = (&summary.name, shown(capability));
            let m = format!("{name} has capability {has}; the kernels need {} or later", shown(OLDEST));
            return Err(Error::new(ErrorKind::Unsupported, "cuda", m).help("use --device cpu or --device wgpu"));
        }
        if summary.driver.0 < OLDEST_DRIVER {
            let (major, minor) = summary.driver;
            let m =
                format!("the NVIDIA driver supports CUDA {major}.{minor}; Gradus needs CUDA {OLDEST_DRIVER} or later");
            return Err(
                Error::new(ErrorKind::Unsupported, "cuda", m).help("install a newer driver, or use --device cpu")
            );
        }
        let target = nvrtc::target(capability)?;
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the functions write to these handles. The primary context is released when the device is dropped.
        unsafe {
            plain("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, raw))?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let made = plain("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))
                .and_then(|()| plain("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags)));
            if let Err(e) = made {
                sys::cuDevicePrimaryCtxRelease_v2(raw);
                return Err(e);
            }
        }
        Ok(Device {
            label: format!("cuda:{index}"),
            multiprocessors: attribute(raw, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
            most_shared: attribute(raw, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            target,
            summary,
            raw,
            context,
            stream,
            process: std::process::id(),
            is_lost: AtomicBool::new(false),
            why: Mutex::default(),
        })
    }

    /// The compute capability as one number: 90 for 9.0.
    pub(crate) fn capability(&self) -> u32 {
        self.summary.capability.0 * 10 + self.summary.capability.1
    }

    /// Makes the context current for this thread. Fails if the device is lost, or if this is a fork of the process that
    /// opened it.
    pub(crate) fn enter(&self, op: &str) -> Result<()> {
        self.check_lost(op)?;
        if std::process::id() != self.process {
            let m = format!("{} was opened by process {}, of which this one is a fork", self.label, self.process);
            return Err(Error::new(ErrorKind::Backend, op, m).help("open the device after the fork"));
        }
        // SAFETY: the context lives as long as the device.
        self.check(op, unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Whether the device is lost and has to be opened again.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn check_lost(&self, op: &str) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(Error::new(ErrorKind::Backend, op, format!("{} is lost: {why}", self.label))
            .help("what was on it is gone; start the program again"))
    }

    /// The result of a call.
    fn check(&self, op: &str, code: CUresult) -> Result<()> {
        if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(self.failed(op, code)) }
    }

    #[cold]
    fn failed(&self, op: &str, code: CUresult) -> Error {
        use CUresult::*;
        let what = described(code);
        let lost = matches!(
            code,
            CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUDA_ERROR_INVALID_PC
                | CUDA_ERROR_LAUNCH_FAILED
                | CUDA_ERROR_LAUNCH_TIMEOUT
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_ASSERT
                | CUDA_ERROR_ECC_UNCORRECTABLE
                | CUDA_ERROR_CONTEXT_IS_DESTROYED
                | CUDA_ERROR_DEVICE_UNAVAILABLE
                | CUDA_ERROR_EXTERNAL_DEVICE
                | CUDA_ERROR_DEINITIALIZED
        );
        if lost {
            let why = format!("{what}, found at {op}");
            *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
            self.is_lost.store(true, Ordering::Release);
        }
        let kind = match code {
            CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory { requested: 0 },
            _ => ErrorKind::Backend,
        };
        let error = Error::new(kind, op, format!("{} fails with {what}", self.label));
        if lost { error.help("what was on the device is gone; start the program again") } else { error }
    }

    /// Allocates memory, or returns `None` if the device has none left.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Option<u64>> {
        self.enter("alloc")?;
        let mut ptr = 0;
        // SAFETY: the function writes to this address.
        match unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
            code => self.check("alloc", code).map(|()| Some(ptr)),
        }
    }

    /// The bytes that the device has left, whoever uses the others. `None` if it does not say.
    pub(crate) fn free_memory(&self) -> Option<usize> {
        self.enter("memory").ok()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes to both numbers.
        self.check("memory", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }).ok().map(|()| free)
    }

    /// Frees memory after all work that is queued now.
    ///
    /// # Safety
    /// `ptr` is from [`allocate`](Self::allocate), and nothing uses it any more.
    pub(crate) unsafe fn free(&self, ptr: u64) {
        if self.enter("free").is_ok() {
            // SAFETY: the caller promises that the memory is allocated and unused. The function waits for the device.
            let _ = self.check("free", unsafe { sys::cuMemFree_v2(ptr) });
        }
    }

    /// Queues a copy from the host. If the source is not pinned, it may be reused when the call returns.
    ///
    /// # Safety
    /// `to` is allocated for as many bytes. If the source is pinned, it is not changed before the copy is done.
    pub(crate) unsafe fn copy_in(&self, op: &str, to: u64, from: &[u8]) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the caller promises that the destination is allocated.
        self.check(op, unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream) })
    }

    /// Queues a copy to the host.
    ///
    /// # Safety
    /// `from` is allocated for as many bytes, and `to` is neither freed nor read before the copy is done.
    pub(crate) unsafe fn copy_out(&self, op: &str, to: &mut [u8], from: u64) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the caller promises that the source is allocated and that the destination stays.
        self.check(op, unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.stream) })
    }

    /// Queues a copy between places on the device that do not overlap.
    ///
    /// # Safety
    /// Both are allocated for as many bytes.
    pub(crate) unsafe fn copy(&self, op: &str, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the caller promises that both places are allocated.
        self.check(op, unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) })
    }

    /// Queues filling memory with a byte.
    ///
    /// # Safety
    /// The memory is allocated for as many bytes.
    pub(crate) unsafe fn fill(&self, op: &str, to: u64, byte: u8, bytes: usize) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the caller promises that the memory is allocated.
        self.check(op, unsafe { sys::cuMemsetD8Async(to, byte, bytes, self.stream) })
    }

    /// Waits for all work that is queued.
    pub(crate) fn wait(&self, op: &str) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the stream lives as long as the device.
        self.check(op, unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Loads a module, which is machine code or text of PTX that ends with 0, and returns one of its functions. The
    /// module stays loaded as long as the device is open.
    pub(crate) fn load(&self, op: &str, image: &[u8], entry: &str) -> Result<Function> {
        self.enter(op)?;
        let entry = CString::new(entry).map_err(|_| Error::argument(op, "the name of a kernel has a byte 0"))?;
        let (mut module, mut raw) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the image is machine code with its own length, or text that ends with 0; there are no options.
        self.check(op, unsafe {
            sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 0, std::ptr::null_mut(), std::ptr::null_mut())
        })?;
        // SAFETY: the module is loaded, and the name ends with 0.
        let code = unsafe { sys::cuModuleGetFunction(&mut raw, module, entry.as_ptr()) };
        if code == CUresult::CUDA_ERROR_NOT_FOUND {
            // SAFETY: nothing uses the module.
            unsafe { sys::cuModuleUnload(module) };
            let m = format!("the module has no kernel {entry:?}");
            return Err(Error::argument(op, m).help("declare it as extern \"C\" __global__ void"));
        }
        self.check(op, code)?;
        Ok(Function { kernel: Kernel(raw), shared: Mutex::new(48 << 10) })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// `arguments` has one pointer for each parameter of the function, to a value of its type. The kernel, run with
    /// these, reads and writes only memory that is allocated.
    pub(crate) unsafe fn launch(
        &self,
        op: &str,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.enter(op)?;
        if shared > 48 << 10 {
            let mut most = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
            if shared > *most {
                let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is loaded.
                self.check(op, unsafe { sys::cuFuncSetAttribute(function.kernel.0, which, shared as i32) })?;
                *most = shared;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch_on(self.stream, op, function.kernel, (grid, block, shared), arguments) }
    }

    /// Queues a kernel on a stream.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch). The kernel may have as much shared memory.
    unsafe fn launch_on(
        &self,
        stream: sys::CUstream,
        op: &str,
        kernel: Kernel,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let parameters = arguments.as_mut_ptr();
        // SAFETY: the function is loaded, and the caller promises that the arguments fit it.
        let code = unsafe {
            sys::cuLaunchKernel(kernel.0, gx, gy, gz, bx, by, bz, shared, stream, parameters, std::ptr::null_mut())
        };
        self.check(op, code)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing uses the stream and the context any more; modules are unloaded with the context.
        unsafe {
            if std::process::id() == self.process && sys::cuCtxSetCurrent(self.context) == CUresult::CUDA_SUCCESS {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamDestroy_v2(self.stream);
                sys::cuDevicePrimaryCtxRelease_v2(self.raw);
            }
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.label, self.summary.name)
    }
}
