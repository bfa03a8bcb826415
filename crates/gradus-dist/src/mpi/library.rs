//! The MPI library, loaded when the program runs: the few functions that the engine needs.
//!
//! Open MPI and MPICH (and what derives from it) agree on the functions, but not on what a handle is: a pointer to an
//! exported object in Open MPI, an integer in MPICH. The functions are therefore generic over the handle. Nothing of MPI
//! is needed to build Gradus, and one program runs with either.

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

use gradus_tensor::{Error, ErrorKind, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// A handle of Open MPI.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pointer(pub(super) *mut c_void);

// SAFETY: a handle is an address that only MPI dereferences, and MPI was initialised for calls from any thread, one at a
// time.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

/// A handle of either kind.
pub(super) trait AnyHandle: Copy + Send + Sync + 'static {}
impl AnyHandle for Pointer {}
impl AnyHandle for c_int {}

/// `MPI_Init_thread`.
pub(super) type Init = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;

/// The functions of MPI, for handles `H`, and the constants that the engine passes to them.
pub(super) struct Functions<H> {
    pub(super) world: H,
    pub(super) byte: H,
    pub(super) null: H,
    pub(super) errors_return: H,
    pub(super) ignore: *mut c_void,
    pub(super) init: Init,
    pub(super) initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) finalize: unsafe extern "C" fn() -> c_int,
    pub(super) rank: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    pub(super) size: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    pub(super) set_errhandler: unsafe extern "C" fn(H, H) -> c_int,
    pub(super) isend: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    pub(super) irecv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    pub(super) testany: unsafe extern "C" fn(c_int, *mut H, *mut c_int, *mut c_int, *mut c_void) -> c_int,
    pub(super) cancel: unsafe extern "C" fn(*mut H) -> c_int,
    pub(super) error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
}

// SAFETY: `ignore` is a constant that stands for "no status"; it is never dereferenced by us.
unsafe impl<H: Send> Send for Functions<H> {}
// SAFETY: as above.
unsafe impl<H: Sync> Sync for Functions<H> {}

/// A loaded library: its version, and its functions.
pub(super) enum Loaded {
    OpenMpi(String, Functions<Pointer>),
    Mpich(String, Functions<c_int>),
}

/// More than the longest text that MPI writes.
const TEXT: usize = 8192;

/// Calls `write` with room for a text, and returns what it wrote.
pub(super) fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut room, mut length) = (vec![0u8; TEXT], 0);
    write(room.as_mut_ptr().cast(), &raw mut length);
    let length = usize::try_from(length).unwrap_or(0).min(TEXT);
    String::from_utf8_lossy(&room[..length]).trim_end_matches('\0').trim().to_owned()
}

/// The files that may be an MPI library. The launcher that started the program says which comes first.
fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("GRADUS_MPI") {
        return vec![path.into()];
    }
    let (open, mpich) = (["libmpi.so.40", "libmpi.so.20"], ["libmpich.so.12", "libmpi.so.12"]);
    let of_mpich = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none() && std::env::var_os("PMI_SIZE").is_some();
    let (first, second) = if of_mpich { (mpich, open) } else { (open, mpich) };
    // The launcher of Open MPI 5 says where its library lies, which may not be where the system looks.
    let beside = std::env::var_os("OMPI_LIBDIR_LOC").map(|folder| PathBuf::from(folder).join(open[0]));
    let others = first.into_iter().chain(second).chain(["libmpi.so", "libmpi.dylib"]).map(PathBuf::from);
    beside.into_iter().chain(others).collect()
}

impl Loaded {
    /// Loads the library. It stays loaded until the program ends.
    pub(super) fn open() -> Result<Loaded> {
        let mut tried = vec![];
        for path in candidates() {
            // SAFETY: an MPI library may be loaded into any program: what it runs when it is loaded are initialisers of
            // the C runtime. Its own components need its symbols, so these are global.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
                // A library that is never unloaded keeps its functions valid.
                Ok(library) => return Loaded::of(Box::leak(Box::new(library))),
                Err(e) => tried.push(format!("{}: {e}", path.display())),
            }
        }
        let e = Error::new(ErrorKind::Unsupported, "mpi", "there is no MPI library that can be loaded");
        let e = tried.into_iter().fold(e, Error::note);
        Err(e.help("install Open MPI or MPICH (Debian: openmpi-bin), or name the library in GRADUS_MPI"))
    }

    fn of(library: &'static Library) -> Result<Loaded> {
        // SAFETY: every MPI library has this function with this signature, and it may be called before MPI_Init.
        let version = unsafe {
            let f: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = symbol(library, "MPI_Get_library_version")?;
            text(|room, length| f(room, length))
        };
        let version =
            version.lines().next().unwrap_or_default().split(", package").next().unwrap_or_default().to_owned();
        // SAFETY: only the address is taken.
        let object = |name: &str| unsafe { symbol::<*mut c_void>(library, name) }.map(Pointer);
        if let Ok(world) = object("ompi_mpi_comm_world") {
            let (byte, null) = (object("ompi_mpi_byte")?, object("ompi_request_null")?);
            let errors_return = object("ompi_mpi_errors_return")?;
            // SAFETY: in Open MPI a handle is the address of the exported object that stands for it.
            let functions = unsafe { functions(library, [world, byte, null, errors_return], ptr::null_mut())? };
            return Ok(Loaded::OpenMpi(version, functions));
        }
        if version.contains("MPICH") || version.contains("Intel") || version.contains("MVAPICH") {
            let handles = [0x4400_0000, 0x4c00_010d, 0x2c00_0000, 0x5400_0001];
            // SAFETY: these numbers are part of the ABI that MPICH and its derivatives have agreed on.
            let functions = unsafe { functions(library, handles, ptr::without_provenance_mut(1))? };
            return Ok(Loaded::Mpich(version, functions));
        }
        let e = Error::new(ErrorKind::Unsupported, "mpi", format!("{version} is neither Open MPI nor MPICH"));
        Err(e.help("name the library of one of them in GRADUS_MPI"))
    }
}

/// A function or the address of an object.
///
/// # Safety
/// `T` is the type of the symbol: a function pointer, or a pointer to the object.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: promised by the caller.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(found) => Ok(*found),
        Err(e) => Err(Error::new(ErrorKind::Unsupported, "mpi", format!("the MPI library has no {name}: {e}"))),
    }
}

/// The functions of a library.
///
/// # Safety
/// `H` is the type of its handles, `handles` are those of the world, of bytes, of no request and of errors that are
/// returned, and `ignore` stands for no status.
unsafe fn functions<H>(library: &Library, handles: [H; 4], ignore: *mut c_void) -> Result<Functions<H>> {
    let [world, byte, null, errors_return] = handles;
    // SAFETY: the signatures are those of the MPI standard, for the handles that the caller vouches for.
    unsafe {
        Ok(Functions {
            world,
            byte,
            null,
            errors_return,
            ignore,
            init: symbol(library, "MPI_Init_thread")?,
            initialized: symbol(library, "MPI_Initialized")?,
            finalize: symbol(library, "MPI_Finalize")?,
            rank: symbol(library, "MPI_Comm_rank")?,
            size: symbol(library, "MPI_Comm_size")?,
            set_errhandler: symbol(library, "MPI_Comm_set_errhandler")?,
            isend: symbol(library, "MPI_Isend")?,
            irecv: symbol(library, "MPI_Irecv")?,
            testany: symbol(library, "MPI_Testany")?,
            cancel: symbol(library, "MPI_Cancel")?,
            error_string: symbol(library, "MPI_Error_string")?,
        })
    }
}
