//! Runs each test in a process of its own, since a driver is loaded once.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gradus_cuda::CudaBackend;
use gradus_dist::nccl::Reduction;
use gradus_dist::{Communicator, Options, nccl, threads};
use gradus_tensor::{Device, ErrorKind, Result};
use libloading::Library;

/// Tells a process which test it is to run.
const INSIDE: &str = "GRADUS_DIST_INSIDE";
/// The devices that there are.
pub(crate) const DEVICES: usize = 4;

/// The library: the one that the environment names, or the one that cargo built beside this program.
fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("GRADUS_CUDA_DRIVER") {
        return path.into();
    }
    let this = std::env::current_exe().unwrap();
    let name = format!("{}gradus_ptx{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = this.ancestors().skip(1).take(2).map(|folder| folder.join(&name)).find(|path| path.is_file());
    found.expect("cargo builds gradus-ptx before these tests")
}

/// Runs the body of a test in a process of its own, with these variables. Where NVRTC is not on this machine, a line says so,
/// unless `GRADUS_REQUIRE_CUDA` says that it must be there.
#[track_caller]
pub(crate) fn with_variables(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        match CudaBackend::open(0) {
            Err(e) if e.to_string().contains("NVRTC") && std::env::var_os("GRADUS_REQUIRE_CUDA").is_none() => {
                return eprintln!("skipped: {e}");
            }
            opened => drop(opened.unwrap()),
        }
        body();
        assert_eq!(counted("faults"), 0, "the stand-in has found a mistake");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, test);
    command.env("GRADUS_CUDA_DRIVER", library()).env("GRADUS_NCCL", library());
    command.env("GRADUS_PTX_DEVICES", DEVICES.to_string()).env("GRADUS_CUDA_EXACT", "1");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{test}:\n{text}");
}

#[track_caller]
pub(crate) fn inside(test: &str, body: impl FnOnce()) {
    with_variables(test, &[], body);
}

/// Replaces the plan of calls that fail.
pub(crate) fn fail(plan: &str) {
    // SAFETY: the library is loaded already; loading it again runs no code of it.
    let library = unsafe { Library::new(library()) }.unwrap();
    // SAFETY: this is the function's type.
    let fail = unsafe { library.get::<extern "C" fn(*const c_char) -> u32>(b"gradus_ptx_fail") }.unwrap();
    assert_eq!(fail(CString::new(plan).unwrap().as_ptr()), 0, "a plan that the stand-in does not understand");
}

/// What the stand-in has counted under a name: `faults`, or the calls of a function.
pub(crate) fn counted(name: &str) -> u64 {
    // SAFETY: the library is loaded already; loading it again runs no code of it.
    let library = unsafe { Library::new(library()) }.unwrap();
    // SAFETY: this is the function's type.
    let counts = unsafe { library.get::<extern "C" fn(*mut u8, usize) -> u32>(b"gradus_ptx_counts") }.unwrap();
    let mut text = vec![0; 1 << 14];
    assert_eq!(counts(text.as_mut_ptr(), text.len()), 0);
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or_default()
}

/// The device of a rank.
pub(crate) fn gpu(rank: usize) -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CudaBackend::open(rank)?)))
}

/// Runs `f` on ranks that are threads with a device each, connected by NCCL.
pub(crate) fn ranks<R: Send>(
    size: usize,
    reduction: Reduction,
    f: impl Fn(&Arc<dyn Communicator>, &Device) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    threads(size, Options::default(), |comm| {
        let device = gpu(comm.rank())?;
        f(&nccl::over(comm, &device, reduction)?, &device)
    })
}

/// Short, for tests in which a rank does not come.
pub(crate) fn soon() -> Options {
    Options { deadline: Duration::from_millis(1500) }
}

/// The text of the error of each rank, all of which are about peers.
pub(crate) fn errors<R: Send>(
    size: usize,
    f: impl Fn(&Arc<dyn Communicator>, &Device) -> Result<R> + Sync,
) -> Vec<String> {
    let made = threads(size, soon(), |comm| {
        let device = gpu(comm.rank())?;
        let e = match f(comm, &device) {
            Ok(_) => panic!("rank {} has no error", comm.rank()),
            Err(e) => e,
        };
        assert_eq!(e.kind(), &ErrorKind::Peer, "{e}");
        Ok(e.to_string())
    });
    made.unwrap()
}
