//! NCCL: its functions, and communicators that wait for nobody.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult;
use gradus_backend::{DType, Error, ErrorKind, Result};
use libloading_09::Library;

use super::{CudaDevice, Device, library};

/// The oldest version that is used: that whose configuration is [`Config`].
const OLDEST: i32 = 21_800;

/// What a function of the library returns.
type Status = c_int;
const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;

/// A communicator of the library.
type Handle = *mut c_void;
type Stream = sys::CUstream;

// Numbers of the library's interface, `nccl.h`.
const UNDEFINED: c_int = c_int::MIN;
const MAGIC: u32 = 0xcafe_beef;
const BYTES: c_int = 1;

/// What makes the communicators of some ranks one: made on one rank, and given to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclConfig_t` of version 2.18, which later versions take too.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    others: [c_int; 3],
    net_name: *const c_char,
    split_share: c_int,
}

type Reduced = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Status;

/// The functions of the library that this crate calls.
struct Functions {
    version: i32,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    init: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Status,
    state: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    finalize: unsafe extern "C" fn(Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    abort: unsafe extern "C" fn(Handle) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    all_reduce: Reduced,
    reduce_scatter: Reduced,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> Status,
    broadcast: Reduced,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Stream) -> Status,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Stream) -> Status,
}

/// A function of the library.
///
/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(name) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(format!("it has no function {name}")),
    }
}

impl Functions {
    /// Looks the functions up. Fails with the reason why the library cannot be used.
    fn of(library: &Library) -> Result<Functions, String> {
        // SAFETY: these are the types of `nccl.h`, where enumerations are C's `int`, and `cudaStream_t` is `CUstream`.
        unsafe {
            let mut version = 0;
            let get = function::<unsafe extern "C" fn(*mut c_int) -> Status>(library, "ncclGetVersion")?;
            let status = get(&mut version);
            if status != SUCCESS {
                return Err(format!("ncclGetVersion fails with code {status}"));
            }
            if version < OLDEST {
                return Err(format!(
                    "it is version {}; version {} or later is needed",
                    version_text(version),
                    version_text(OLDEST)
                ));
            }
            Ok(Functions {
                version,
                unique_id: function(library, "ncclGetUniqueId")?,
                init: function(library, "ncclCommInitRankConfig")?,
                state: function(library, "ncclCommGetAsyncError")?,
                finalize: function(library, "ncclCommFinalize")?,
                destroy: function(library, "ncclCommDestroy")?,
                abort: function(library, "ncclCommAbort")?,
                error: function(library, "ncclGetErrorString")?,
                group_start: function(library, "ncclGroupStart")?,
                group_end: function(library, "ncclGroupEnd")?,
                all_reduce: function(library, "ncclAllReduce")?,
                reduce_scatter: function(library, "ncclReduceScatter")?,
                all_gather: function(library, "ncclAllGather")?,
                broadcast: function(library, "ncclBroadcast")?,
                send: function(library, "ncclSend")?,
                receive: function(library, "ncclRecv")?,
            })
        }
    }

    /// Those of the library of this machine, which is looked for once.
    fn found() -> Result<&'static Functions> {
        static FOUND: OnceLock<Result<Functions>> = OnceLock::new();
        FOUND.get_or_init(|| library::nccl(Functions::of)).as_ref().map_err(Clone::clone)
    }

    /// The result of a call that may go on after it has returned.
    fn begun(&self, call: &str, status: Status) -> Result<()> {
        if matches!(status, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: the function returns a text that lives for ever, or null.
        let text = unsafe { (self.error)(status) };
        let text = match text.is_null() {
            true => format!("code {status}"),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        let e = Error::new(ErrorKind::Backend, "nccl", format!("{call} fails: {text}"));
        Err(e.help("NCCL_DEBUG=WARN in the environment has NCCL say more"))
    }
}

/// The text of a version that the library gives as a number.
pub fn version_text(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

/// The version of the library on this machine as text, and as a number that is larger for later ones.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if there is none, or if it cannot be used; the error names the package.
pub fn installed_version() -> Result<(String, i32)> {
    Functions::found().map(|f| (version_text(f.version), f.version))
}

/// An identity for some ranks that are to be connected.
///
/// # Errors
/// As for [`installed_version`], and [`ErrorKind::Backend`] if the library fails.
pub fn unique_id() -> Result<UniqueId> {
    let functions = Functions::found()?;
    let mut id = UniqueId([0; 128]);
    // SAFETY: the function writes to the identity.
    functions.begun("ncclGetUniqueId", unsafe { (functions.unique_id)(&mut id) })?;
    Ok(id)
}

/// How the library reduces elements of several ranks, in an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
}

/// The library's number of a dtype that it can reduce.
fn kind(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => return None,
    })
}

/// Whether the library reduces elements of this dtype. It moves those of all dtypes.
pub fn can_reduce(dtype: DType) -> bool {
    kind(dtype).is_some()
}

/// A part of a collective: addresses on the GPU, and sizes in bytes.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Transfer {
    /// `bytes` from each rank, of this dtype, reduced to `to` on all.
    AllReduce { from: u64, to: u64, bytes: usize, dtype: DType, reduction: Reduction },
    /// `bytes` for each rank from each, reduced to `to` on the one that they are for.
    ReduceScatter { from: u64, to: u64, bytes: usize, dtype: DType, reduction: Reduction },
    /// `bytes` from each rank, one after the other to `to`.
    AllGather { from: u64, to: u64, bytes: usize },
    /// `bytes` of the rank `root`, to the same place on all.
    Broadcast { at: u64, bytes: usize, root: usize },
    /// `bytes` for the rank `to`, which receives them.
    Send { from: u64, bytes: usize, to: usize },
    /// `bytes` that the rank `from` sends.
    Receive { to: u64, bytes: usize, from: usize },
}

/// A GPU's connection to the other ranks. When it is dropped, it is aborted, unless it was closed.
pub struct Communicator {
    functions: &'static Functions,
    handle: Handle,
    stream: Stream,
    /// Recorded behind the work that a collective waits for, and behind the collective.
    events: [sys::CUevent; 2],
    device: Arc<Device>,
}

// SAFETY: the handles may be used from any thread, one at a time.
unsafe impl Send for Communicator {}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({})", self.device.label)
    }
}

impl Communicator {
    /// Begins to connect a GPU, as rank `rank` of `size`, to those that have the same identity.
    /// [`is_ready`](Self::is_ready) says when it is connected.
    ///
    /// # Errors
    /// Those of the library and of the driver.
    pub fn begin(device: &CudaDevice, id: &UniqueId, rank: usize, size: usize) -> Result<Communicator> {
        let functions = Functions::found()?;
        let device = device.0.clone();
        device.enter("nccl")?;
        let mut made = Communicator {
            functions,
            handle: std::ptr::null_mut(),
            stream: std::ptr::null_mut(),
            events: [std::ptr::null_mut(); 2],
            device,
        };
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the function writes to this handle.
        made.device.check("nccl", unsafe { sys::cuStreamCreate(&mut made.stream, flags) })?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        for event in &mut made.events {
            // SAFETY: as above.
            made.device.check("nccl", unsafe { sys::cuEventCreate(event, flags) })?;
        }
        let mut config = Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: OLDEST as u32,
            blocking: 0,
            others: [UNDEFINED; 3],
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        };
        // SAFETY: the function writes to the handle, and reads the configuration, whose size and version it is told.
        let status = unsafe { (functions.init)(&mut made.handle, size as c_int, *id, rank as c_int, &mut config) };
        functions.begun("ncclCommInitRankConfig", status)?;
        Ok(made)
    }

    /// Whether what was begun on the host is done: connecting the ranks, or starting a collective.
    ///
    /// # Errors
    /// What the library has found wrong, on this rank or another, since it was last asked.
    pub fn is_ready(&self) -> Result<bool> {
        self.device.enter("nccl")?;
        let mut state = SUCCESS;
        // SAFETY: the communicator lives; the function writes to this number.
        let status = unsafe { (self.functions.state)(self.handle, &mut state) };
        self.functions.begun("ncclCommGetAsyncError", status)?;
        self.functions.begun("a call", state)?;
        Ok(state == SUCCESS)
    }

    /// Starts transfers, all at once, after the work that is queued on the GPU now.
    ///
    /// # Errors
    /// Those of the library and of the driver.
    ///
    /// # Safety
    /// The memory of the transfers is allocated on this GPU and nothing else uses it until [`Moving::is_done`] has
    /// returned `true`. If that never happens, it is never freed.
    pub unsafe fn start(&self, transfers: &[Transfer]) -> Result<Moving<'_>> {
        let (functions, device) = (self.functions, &self.device);
        device.enter("nccl")?;
        // SAFETY: the event and the streams live.
        unsafe {
            device.check("nccl", sys::cuEventRecord(self.events[0], device.stream))?;
            device.check("nccl", sys::cuStreamWaitEvent(self.stream, self.events[0], 0))?;
        }
        // SAFETY: a group may be begun at any time; it is ended below.
        functions.begun("ncclGroupStart", unsafe { (functions.group_start)() })?;
        // SAFETY: the caller's promise.
        let listed = transfers.iter().try_for_each(|transfer| unsafe { self.list(transfer) });
        // SAFETY: the group was begun above.
        let ended = functions.begun("ncclGroupEnd", unsafe { (functions.group_end)() });
        listed.and(ended)?;
        Ok(Moving { of: self, is_marked: false })
    }

    /// # Safety
    /// As for [`start`](Self::start).
    unsafe fn list(&self, transfer: &Transfer) -> Result<()> {
        let (f, comm, stream) = (self.functions, self.handle, self.stream);
        let at = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let number = |dtype: DType| {
            let m = format!("NCCL does not reduce {dtype}");
            kind(dtype).ok_or_else(|| Error::new(ErrorKind::Unsupported, "nccl", m))
        };
        // SAFETY: the communicator and the stream live; the caller promises that the memory does.
        let (call, status) = unsafe {
            match *transfer {
                Transfer::AllReduce { from, to, bytes, dtype, reduction } => {
                    let (n, kind) = (bytes / dtype.size(), number(dtype)?);
                    ("ncclAllReduce", (f.all_reduce)(at(from), at(to), n, kind, reduction as c_int, comm, stream))
                }
                Transfer::ReduceScatter { from, to, bytes, dtype, reduction } => {
                    let (n, kind) = (bytes / dtype.size(), number(dtype)?);
                    let status = (f.reduce_scatter)(at(from), at(to), n, kind, reduction as c_int, comm, stream);
                    ("ncclReduceScatter", status)
                }
                Transfer::AllGather { from, to, bytes } => {
                    ("ncclAllGather", (f.all_gather)(at(from), at(to), bytes, BYTES, comm, stream))
                }
                Transfer::Broadcast { at: here, bytes, root } => {
                    let root = root as c_int;
                    ("ncclBroadcast", (f.broadcast)(at(here), at(here), bytes, BYTES, root, comm, stream))
                }
                Transfer::Send { from, bytes, to } => {
                    ("ncclSend", (f.send)(at(from), bytes, BYTES, to as c_int, comm, stream))
                }
                Transfer::Receive { to, bytes, from } => {
                    ("ncclRecv", (f.receive)(at(to), bytes, BYTES, from as c_int, comm, stream))
                }
            }
        };
        f.begun(call, status)
    }

    /// Ends what goes on, and the connection. This may wait for the GPU, but not for other ranks.
    pub fn abort(self) {
        drop(self);
    }

    /// Ends the connection; `keep_waiting` is called again and again while other ranks have not ended it, until it
    /// returns `false`.
    pub fn close(mut self, mut keep_waiting: impl FnMut() -> bool) {
        if self.device.enter("nccl").is_err() {
            return;
        }
        // SAFETY: the communicator lives, and no call of it goes on.
        let begun = unsafe { (self.functions.finalize)(self.handle) };
        if !matches!(begun, SUCCESS | IN_PROGRESS) {
            return;
        }
        while let Ok(is_done) = self.is_ready() {
            if is_done {
                // SAFETY: as above; the handle is not used again.
                unsafe { (self.functions.destroy)(self.handle) };
                self.handle = std::ptr::null_mut();
                return;
            }
            if !keep_waiting() {
                return;
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.device.enter("nccl").is_err() {
            return;
        }
        // SAFETY: what was made is given back once, the communicator before its stream; nothing uses them any more.
        unsafe {
            if !self.handle.is_null() {
                (self.functions.abort)(self.handle);
            }
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                sys::cuEventDestroy_v2(event);
            }
            if !self.stream.is_null() {
                sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

/// Transfers that were started.
#[derive(Debug)]
#[must_use = "is_done says when they are done"]
pub struct Moving<'a> {
    of: &'a Communicator,
    is_marked: bool,
}

impl Moving<'_> {
    /// Whether the transfers of this rank are done. Never waits.
    ///
    /// # Errors
    /// As for [`Communicator::is_ready`], and those of the driver.
    pub fn is_done(&mut self) -> Result<bool> {
        let Communicator { device, stream, events: [_, done], .. } = self.of;
        if !self.of.is_ready()? {
            return Ok(false);
        }
        if !self.is_marked {
            // SAFETY: the event and the stream live. The transfers are on the stream now.
            device.check("nccl", unsafe { sys::cuEventRecord(*done, *stream) })?;
            self.is_marked = true;
        }
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(*done) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => device.check("nccl", code).map(|()| true),
        }
    }
}
