//! Runs tests over the stand-in for the driver, each in a process of its own, since a driver is loaded once.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use gradus_cuda::CudaBackend;
use gradus_tensor::{DType, Device, Result, Tensor};
use libloading_09::Library;

/// Tells a process which test it is to run.
const INSIDE: &str = "GRADUS_CUDA_INSIDE";

/// The library that stands in for the driver: the one that the environment names, or the one that cargo built beside this
/// program.
pub(crate) fn driver() -> PathBuf {
    if let Some(path) = std::env::var_os("GRADUS_CUDA_DRIVER") {
        return path.into();
    }
    let this = std::env::current_exe().expect("the program knows where it is");
    let name = format!("{}gradus_ptx{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = this.ancestors().skip(1).take(2).map(|folder| folder.join(&name)).find(|path| path.is_file());
    found.expect("cargo builds gradus-ptx before these tests")
}

/// This program, to run one test with variables over the stand-in.
pub(crate) fn program(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the program knows where it is"));
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, test);
    // As if in a program that trains: the pool keeps no memory, so each allocation is one of the driver.
    command.env("GRADUS_CUDA_DRIVER", driver()).env("GRADUS_CUDA_EXACT", "1");
    command.envs(variables.iter().copied());
    command
}

pub(crate) fn is_inside(test: &str) -> bool {
    std::env::var(INSIDE).as_deref() == Ok(test)
}

/// What a process printed, if it ran one test and that passed.
#[track_caller]
pub(crate) fn passed(test: &str, output: &Output) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{test}:\n{text}");
    text
}

/// Runs the body of a test in a process of its own, with these variables.
#[track_caller]
pub(crate) fn with_variables(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside(test) {
        return body();
    }
    passed(test, &program(test, variables).output().expect("the program starts"));
}

/// The device. None, with a line that says so, where NVRTC is not on this machine and nothing says that it must be.
pub(crate) fn opened() -> Option<Device> {
    match CudaBackend::open(0) {
        Ok(backend) => Some(Device::from_backend(Arc::new(backend))),
        Err(e) if e.to_string().contains("NVRTC") && std::env::var_os("GRADUS_REQUIRE_CUDA").is_none() => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Replaces the plan of calls that fail. An empty text ends it.
pub(crate) fn fail(plan: &str) {
    // SAFETY: the library is loaded already; loading it again runs no code of it.
    let library = unsafe { Library::new(driver()) }.expect("the stand-in");
    // SAFETY: this is the function's type.
    let fail = unsafe { library.get::<extern "C" fn(*const c_char) -> u32>(b"gradus_ptx_fail") }.expect("its function");
    let plan = CString::new(plan).expect("no 0 inside");
    assert_eq!(fail(plan.as_ptr()), 0, "a plan that the stand-in does not understand");
}

/// What the stand-in has counted under a name: `launches`, `graph_launches`, or the calls of a function.
pub(crate) fn counted(name: &str) -> u64 {
    // SAFETY: the library is loaded already; loading it again runs no code of it.
    let library = unsafe { Library::new(driver()) }.expect("the stand-in");
    // SAFETY: this is the function's type.
    let counts = unsafe { library.get::<extern "C" fn(*mut u8, usize) -> u32>(b"gradus_ptx_counts") };
    let mut text = vec![0; 1 << 14];
    assert_eq!(counts.expect("its function")(text.as_mut_ptr(), text.len()), 0);
    let text = String::from_utf8_lossy(&text).into_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_default()
}

/// Some numbers on the device.
pub(crate) fn numbers(device: &Device) -> Result<Tensor> {
    Tensor::from_vec((0..100).map(|i| i as f32 / 10.0).collect::<Vec<_>>(), [100], device)
}

/// Kernels and copies whose result is known.
#[track_caller]
pub(crate) fn computes(device: &Device) {
    let sum = || numbers(device)?.add(1.0)?.to_dtype(DType::F32)?.to_vec::<f32>();
    let expected: Vec<f32> = (0..100).map(|i| i as f32 / 10.0 + 1.0).collect();
    assert_eq!(sum().expect("a working device"), expected);
}
