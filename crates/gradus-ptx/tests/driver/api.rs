//! The functions of the library, as Rust calls them.

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use libloading::Library;

/// The library, beside the program or one folder up.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let this = std::env::current_exe().expect("the program knows where it is");
        let name = format!("{}gradus_ptx{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let path = this.ancestors().skip(1).take(2).map(|folder| folder.join(&name)).find(|path| path.is_file());
        let path = path.expect("cargo builds the library before its tests");
        // SAFETY: loading it runs no code of it.
        unsafe { Library::new(path) }.expect("the library can be loaded")
    })
}

/// A function of the library. `F` must be its type.
pub(crate) fn function<F: Copy>(name: &str) -> F {
    // SAFETY: every caller below names the type that the driver's interface gives the function.
    unsafe { *library().get::<F>(name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}")) }
}

/// Calls a function of the library by name; what it returns if that is not 0 is the error.
macro_rules! call {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?)) => {{
        let function: extern "C" fn($($kind),*) -> u32 = function(stringify!($name));
        match function($($argument),*) {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

pub(crate) type Outcome<T> = Result<T, u32>;

/// Starts the driver and makes the context of its first device current.
pub(crate) fn start() {
    start_with(0).expect("it succeeds");
}

pub(crate) fn start_with(device: i32) -> Outcome<()> {
    call!(cuInit(0 => u32))?;
    let mut context = 0;
    call!(cuDevicePrimaryCtxRetain(&mut context => &mut usize, device => i32))?;
    call!(cuCtxSetCurrent(context => usize))
}

pub(crate) fn init() -> Outcome<()> {
    call!(cuInit(0 => u32))
}

pub(crate) fn version() -> Outcome<i32> {
    let mut version = 0;
    call!(cuDriverGetVersion(&mut version => &mut i32)).map(|()| version)
}

pub(crate) fn devices() -> Outcome<i32> {
    let mut count = -1;
    call!(cuDeviceGetCount(&mut count => &mut i32)).map(|()| count)
}

pub(crate) fn attribute(which: i32) -> Outcome<i32> {
    let mut value = -1;
    call!(cuDeviceGetAttribute(&mut value => &mut i32, which => i32, 0 => i32)).map(|()| value)
}

pub(crate) fn device_name() -> String {
    let mut text = [1; 100];
    call!(cuDeviceGetName(text.as_mut_ptr() => *mut u8, 100 => i32, 0 => i32)).expect("it succeeds");
    text_of(&text)
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).expect("a 0 ends the text");
    String::from_utf8(bytes[..end].to_vec()).expect("the text is UTF-8")
}

pub(crate) fn reset() {
    call!(cuDevicePrimaryCtxReset_v2(0 => i32)).expect("it succeeds");
}

pub(crate) fn synchronize() -> Outcome<()> {
    call!(cuCtxSynchronize())
}

pub(crate) fn alloc(bytes: usize) -> Outcome<u64> {
    let mut address = 0;
    call!(cuMemAlloc_v2(&mut address => &mut u64, bytes => usize)).map(|()| address)
}

pub(crate) fn alloc_async(bytes: usize, stream: usize) -> Outcome<u64> {
    let mut address = 0;
    call!(cuMemAllocAsync(&mut address => &mut u64, bytes => usize, stream => usize)).map(|()| address)
}

pub(crate) fn free(address: u64) -> Outcome<()> {
    call!(cuMemFree_v2(address => u64))
}

pub(crate) fn free_async(address: u64, stream: usize) -> Outcome<()> {
    call!(cuMemFreeAsync(address => u64, stream => usize))
}

pub(crate) fn memory_info() -> Outcome<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    call!(cuMemGetInfo_v2(&mut free => &mut usize, &mut total => &mut usize)).map(|()| (free, total))
}

pub(crate) fn write(to: u64, bytes: &[u8]) -> Outcome<()> {
    call!(cuMemcpyHtoD_v2(to => u64, bytes.as_ptr() => *const u8, bytes.len() => usize))
}

pub(crate) fn read(from: u64, bytes: usize) -> Outcome<Vec<u8>> {
    let mut to = vec![0; bytes];
    call!(cuMemcpyDtoH_v2(to.as_mut_ptr() => *mut u8, from => u64, bytes => usize)).map(|()| to)
}

/// The memory must stay until the stream is synchronised.
pub(crate) fn write_async(to: u64, from: *const u8, bytes: usize, stream: usize) -> Outcome<()> {
    call!(cuMemcpyHtoDAsync_v2(to => u64, from => *const u8, bytes => usize, stream => usize))
}

/// The memory must stay until the stream is synchronised.
pub(crate) fn read_async(to: *mut u8, from: u64, bytes: usize, stream: usize) -> Outcome<()> {
    call!(cuMemcpyDtoHAsync_v2(to => *mut u8, from => u64, bytes => usize, stream => usize))
}

pub(crate) fn copy_async(to: u64, from: u64, bytes: usize, stream: usize) -> Outcome<()> {
    call!(cuMemcpyDtoDAsync_v2(to => u64, from => u64, bytes => usize, stream => usize))
}

pub(crate) fn fill_async(to: u64, value: u32, count: usize, stream: usize) -> Outcome<()> {
    call!(cuMemsetD32Async(to => u64, value => u32, count => usize, stream => usize))
}

pub(crate) fn alloc_pinned(bytes: usize) -> Outcome<*mut u8> {
    let mut address = std::ptr::null_mut();
    call!(cuMemHostAlloc(&mut address => &mut *mut u8, bytes => usize, 0 => u32)).map(|()| address)
}

pub(crate) fn free_pinned(address: *mut u8) -> Outcome<()> {
    call!(cuMemFreeHost(address => *mut u8))
}

pub(crate) fn stream() -> usize {
    let mut stream = 0;
    call!(cuStreamCreate(&mut stream => &mut usize, 1 => u32)).expect("it succeeds");
    stream
}

pub(crate) fn stream_synchronize(stream: usize) -> Outcome<()> {
    call!(cuStreamSynchronize(stream => usize))
}

pub(crate) fn stream_query(stream: usize) -> Outcome<()> {
    call!(cuStreamQuery(stream => usize))
}

pub(crate) fn stream_wait(stream: usize, event: usize) -> Outcome<()> {
    call!(cuStreamWaitEvent(stream => usize, event => usize, 0 => u32))
}

pub(crate) fn stream_destroy(stream: usize) -> Outcome<()> {
    call!(cuStreamDestroy_v2(stream => usize))
}

pub(crate) fn event(flags: u32) -> usize {
    let mut event = 0;
    call!(cuEventCreate(&mut event => &mut usize, flags => u32)).expect("it succeeds");
    event
}

pub(crate) fn event_record(event: usize, stream: usize) -> Outcome<()> {
    call!(cuEventRecord(event => usize, stream => usize))
}

pub(crate) fn event_synchronize(event: usize) -> Outcome<()> {
    call!(cuEventSynchronize(event => usize))
}

pub(crate) fn event_query(event: usize) -> Outcome<()> {
    call!(cuEventQuery(event => usize))
}

pub(crate) fn event_elapsed(start: usize, end: usize) -> Outcome<f32> {
    let mut milliseconds = f32::NAN;
    call!(cuEventElapsedTime_v2(&mut milliseconds => &mut f32, start => usize, end => usize)).map(|()| milliseconds)
}

pub(crate) fn begin_capture(stream: usize) -> Outcome<()> {
    call!(cuStreamBeginCapture_v2(stream => usize, 2 => u32))
}

pub(crate) fn end_capture(stream: usize) -> Outcome<usize> {
    let mut graph = 0;
    call!(cuStreamEndCapture(stream => usize, &mut graph => &mut usize)).map(|()| graph)
}

pub(crate) fn instantiate(graph: usize) -> Outcome<usize> {
    let mut ready = 0;
    call!(cuGraphInstantiateWithFlags(&mut ready => &mut usize, graph => usize, 0 => u64)).map(|()| ready)
}

pub(crate) fn graph_launch(graph: usize, stream: usize) -> Outcome<()> {
    call!(cuGraphLaunch(graph => usize, stream => usize))
}

pub(crate) fn graph_destroy(graph: usize) -> Outcome<()> {
    call!(cuGraphDestroy(graph => usize))
}

pub(crate) fn graph_exec_destroy(graph: usize) -> Outcome<()> {
    call!(cuGraphExecDestroy(graph => usize))
}

pub(crate) fn load(image: &[u8]) -> Outcome<usize> {
    let (mut module, image) = (0, CString::new(image).expect("no 0 inside"));
    call!(cuModuleLoadData(&mut module => &mut usize, image.as_ptr() => *const c_char)).map(|()| module)
}

/// Loads a module, and what the compiler says if it cannot.
pub(crate) fn load_with_log(image: &str) -> (Outcome<usize>, String) {
    let (mut module, image) = (0, CString::new(image).expect("no 0 inside"));
    let mut log = [0_u8; 500];
    let (names, values) = ([5_u32, 6], [log.as_mut_ptr() as usize, log.len()]);
    let outcome = call!(cuModuleLoadDataEx(
        &mut module => &mut usize,
        image.as_ptr() => *const c_char,
        2 => u32,
        names.as_ptr() => *const u32,
        values.as_ptr() => *const usize,
    ));
    (outcome.map(|()| module), text_of(&log))
}

pub(crate) fn unload(module: usize) -> Outcome<()> {
    call!(cuModuleUnload(module => usize))
}

pub(crate) fn kernel(module: usize, name: &str) -> Outcome<usize> {
    let (mut kernel, name) = (0, CString::new(name).expect("no 0 inside"));
    call!(cuModuleGetFunction(&mut kernel => &mut usize, module => usize, name.as_ptr() => *const c_char))
        .map(|()| kernel)
}

/// Launches a kernel whose parameters have 8 bytes each.
pub(crate) fn launch(kernel: usize, grid: u32, block: u32, shared: u32, stream: usize, params: &[u64]) -> Outcome<()> {
    let pointers: Vec<*const u64> = params.iter().map(std::ptr::from_ref).collect();
    call!(cuLaunchKernel(
        kernel => usize,
        grid => u32, 1 => u32, 1 => u32,
        block => u32, 1 => u32, 1 => u32,
        shared => u32,
        stream => usize,
        pointers.as_ptr() => *const *const u64,
        0 => usize,
    ))
}

pub(crate) fn function_attribute(kernel: usize, which: u32) -> Outcome<i32> {
    let mut value = -1;
    call!(cuFuncGetAttribute(&mut value => &mut i32, which => u32, kernel => usize)).map(|()| value)
}

pub(crate) fn set_function_attribute(kernel: usize, which: u32, value: i32) -> Outcome<()> {
    call!(cuFuncSetAttribute(kernel => usize, which => u32, value => i32))
}

pub(crate) fn occupancy(kernel: usize, threads: i32, shared: usize) -> Outcome<i32> {
    let mut blocks = -1;
    let outcome = call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks => &mut i32, kernel => usize, threads => i32, shared => usize
    ));
    outcome.map(|()| blocks)
}

pub(crate) fn error_name(code: u32) -> Option<String> {
    let mut name: *const c_char = std::ptr::null();
    call!(cuGetErrorName(code => u32, &mut name => &mut *const c_char)).ok()?;
    // SAFETY: the driver gives a text that lives as long as the program.
    Some(unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// Replaces the plan of failures.
pub(crate) fn fail(plan: &str) -> Outcome<()> {
    let plan = CString::new(plan).expect("no 0 inside");
    call!(gradus_ptx_fail(plan.as_ptr() => *const c_char))
}

/// The report of the last fault.
pub(crate) fn fault() -> String {
    let mut text = vec![0; 10_000];
    call!(gradus_ptx_fault(text.as_mut_ptr() => *mut u8, text.len() => usize)).expect("it succeeds");
    text_of(&text)
}

/// A count of the driver, 0 if it does not know the name.
pub(crate) fn count(name: &str) -> u64 {
    let mut text = vec![0; 10_000];
    call!(gradus_ptx_counts(text.as_mut_ptr() => *mut u8, text.len() => usize)).expect("it succeeds");
    let text = text_of(&text);
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or(0)
}
