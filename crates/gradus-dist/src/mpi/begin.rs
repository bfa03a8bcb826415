//! How MPI begins: once in a process, and within a limit.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use gradus_tensor::{Error, ErrorKind, Result};

use super::library::{AnyHandle, Functions, Init};

/// Whether this process has begun to initialise MPI. It may not have finished.
static STARTED: AtomicBool = AtomicBool::new(false);
/// How long MPI may take to start, unless the deadline is longer: it loads libraries, and many ranks share few cores.
const STARTS: Duration = Duration::from_secs(60);

/// An error unless the code is 0.
pub(super) fn fails(what: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::new(ErrorKind::Peer, "mpi", format!("{what} fails with code {code}"))),
    }
}

/// The number that launchers give to each process: how many there are.
fn announced(names: [&str; 2]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Initialises MPI. Returns the number of this rank, and how many there are.
pub(super) fn begin<H: AnyHandle>(f: &Functions<H>, version: &str, deadline: Duration) -> Result<(usize, usize)> {
    let (mut begun, mut rank, mut size) = (0, 0, 0);
    // SAFETY: this function may be called at any time; the pointer is that of an integer.
    fails("MPI_Initialized", unsafe { (f.initialized)(&raw mut begun) })?;
    if begun != 0 || STARTED.swap(true, Ordering::SeqCst) {
        let e = Error::argument("mpi", "MPI was initialised in this process before");
        return Err(e.help("make the world once, and clone the Arc"));
    }
    // SAFETY: MPI is not initialised, `STARTED` lets one call come here, and the library stays loaded.
    let (code, level) = unsafe { init(f.init, deadline.max(STARTS))? };
    fails("MPI_Init_thread", code)?;
    // SAFETY: MPI is initialised; the handles are its own, and the pointers are those of integers.
    unsafe {
        fails("MPI_Comm_set_errhandler", (f.set_errhandler)(f.world, f.errors_return))?;
        fails("MPI_Comm_rank", (f.rank)(f.world, &raw mut rank))?;
        fails("MPI_Comm_size", (f.size)(f.world, &raw mut size))?;
    }
    if level < 2 {
        let m = format!("{version} allows calls from one thread only");
        return Err(Error::new(ErrorKind::Unsupported, "mpi", m));
    }
    let (rank, size) = (rank as usize, size as usize);
    let told = announced(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]);
    if let Some(told) = told.filter(|told| *told != size) {
        let m = format!("the launcher started {told} ranks, but {version} sees {size}");
        let e = Error::new(ErrorKind::Peer, "mpi", m);
        return Err(
            e.help("mpirun belongs to another MPI than the library that was loaded: name the library in GRADUS_MPI")
        );
    }
    Ok((rank, size))
}

/// Calls `MPI_Init_thread` on a thread of its own, since it waits without limit for ranks that died before they called it.
/// Returns its code, and the level of threads that MPI provides.
///
/// # Safety
/// `call` may be called once, now, from any thread and with null arguments, and is never unloaded.
unsafe fn init(call: Init, limit: Duration) -> Result<(c_int, c_int)> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let (none, mut level) = (std::ptr::null_mut(), 0);
        // SAFETY: guaranteed by the caller. Null arguments are allowed, and the pointer is that of an integer.
        // `SERIALIZED` (2) allows calls from any thread, one at a time.
        let code = unsafe { call(none, none.cast(), 2, &raw mut level) };
        // Nobody waits any more if it took too long.
        let _ = sender.send((code, level));
    };
    std::thread::Builder::new().name("gradus-mpi".into()).spawn(run).map_err(|e| Error::io("mpi", "a thread", e))?;
    receiver.recv_timeout(limit).map_err(|_| {
        let m = format!("MPI_Init_thread has not returned within {} s", limit.as_secs_f64());
        let e = Error::new(ErrorKind::Peer, "mpi", m);
        e.help("some rank did not start, or ended at once: look at what the launcher printed")
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    /// Returns this long after it was called, in milliseconds.
    extern "C" fn after<const MILLIS: u64>(_: *mut c_int, _: *mut c_void, _: c_int, _: *mut c_int) -> c_int {
        std::thread::sleep(Duration::from_millis(MILLIS));
        7
    }

    #[test]
    fn a_library_that_does_not_begin_is_an_error_in_time() {
        // SAFETY: these functions may be called at any time, and ignore their arguments.
        let [soon, late] =
            unsafe { [init(after::<0>, Duration::from_secs(60)), init(after::<60_000>, Duration::from_millis(20))] };
        assert_eq!(soon.unwrap(), (7, 0));
        let late = late.unwrap_err();
        assert_eq!(late.kind(), &ErrorKind::Peer);
        assert!(late.to_string().contains("has not returned within 0.02 s"), "{late}");
    }
}
