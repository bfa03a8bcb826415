//! Finds the driver's library and NVRTC, and loads them before cudarc looks for them.
//!
//! cudarc panics where a library or one of its functions is missing. Here each library is opened first, and every
//! function that this crate calls is looked up once, so that what is missing is an error that names it.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::{driver, nvrtc};
use gradus_backend::{Error, ErrorKind, Result};

/// The path of a library that stands in for the driver.
const DRIVER: &str = "GRADUS_CUDA_DRIVER";
/// The path of NVRTC.
const NVRTC: &str = "GRADUS_NVRTC";

/// The functions of the driver that this crate calls.
const OF_DRIVER: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// The functions of NVRTC that this crate calls.
const OF_NVRTC: &[&str] = &[
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// Whether another library stands in for the driver. It runs PTX, not machine code.
pub(crate) fn is_stand_in() -> bool {
    env::var_os(DRIVER).is_some()
}

/// Loads the driver's library. Fails if there is none here, or if it is too old.
pub(super) fn driver() -> Result<()> {
    static LOADED: OnceLock<Result<()>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            if let Some(path) = env::var_os(DRIVER) {
                let failed = |why: String| {
                    let m = format!("{DRIVER} names {}, which cannot be loaded: {why}", Path::new(&path).display());
                    Err(Error::new(ErrorKind::Backend, "cuda", m))
                };
                match load(Path::new(&path)) {
                    Ok(()) => {}
                    Err(why) => return failed(why),
                }
            }
            // SAFETY: the function only opens libraries.
            if !unsafe { driver::sys::is_culib_present() } {
                let m = "the library of the NVIDIA driver (libcuda.so.1, on Windows nvcuda.dll) is not on this machine";
                return Err(Error::new(ErrorKind::Unsupported, "cuda", m)
                    .help("install the NVIDIA driver, or use --device cpu"));
            }
            // SAFETY: the library is present, as the lines above have found.
            let library = unsafe { driver::sys::culib() };
            // SAFETY: the symbols are not used as the type that is stated here.
            let missing = |name: &&&str| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err();
            match OF_DRIVER.iter().find(missing) {
                None => Ok(()),
                Some(name) => {
                    let m = format!("the NVIDIA driver is too old: its library has no function {name}");
                    Err(Error::new(ErrorKind::Unsupported, "cuda", m).help("install a driver for CUDA 12 or later"))
                }
            }
        })
        .clone()
}

/// Loads NVRTC, which compiles kernels. It comes with the CUDA toolkit, not with the driver.
pub(super) fn nvrtc() -> Result<()> {
    static LOADED: OnceLock<Result<()>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            if let Some(path) = env::var_os(NVRTC)
                && let Err(why) = load(Path::new(&path))
            {
                let m = format!("{NVRTC} names {}, which cannot be loaded: {why}", Path::new(&path).display());
                return Err(Error::new(ErrorKind::Backend, "cuda", m));
            }
            // SAFETY: the function only opens libraries.
            let present = || unsafe { nvrtc::sys::is_culib_present() };
            if !present() {
                installed().iter().any(|path| load(path).is_ok());
            }
            if !present() {
                let m = "NVRTC (libnvrtc.so.12 or .13), which compiles kernels, is not on this machine";
                return Err(Error::new(ErrorKind::Unsupported, "cuda", m).help(
                    "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, or set GRADUS_NVRTC to its path",
                ));
            }
            // SAFETY: the library is present, as the lines above have found.
            let library = unsafe { nvrtc::sys::culib() };
            // SAFETY: the symbols are not used as the type that is stated here.
            let missing = |name: &&&str| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err();
            match OF_NVRTC.iter().find(missing) {
                None => Ok(()),
                Some(name) => {
                    let m = format!("NVRTC is too old: it has no function {name}");
                    Err(Error::new(ErrorKind::Unsupported, "cuda", m).help("install the one of CUDA 12 or later"))
                }
            }
        })
        .clone()
}

/// Loads a library for the rest of the process, so that it is found again by its name.
fn load(path: &Path) -> Result<(), String> {
    #[cfg(unix)]
    {
        use libloading_09::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the user names the library or installed it, and so trusts what it does when it is loaded.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| e.to_string())?;
        std::mem::forget(library);
    }
    #[cfg(not(unix))]
    {
        // SAFETY: as above.
        let library = unsafe { libloading_09::Library::new(path) }.map_err(|e| e.to_string())?;
        std::mem::forget(library);
    }
    Ok(())
}

/// The files of NVRTC in the places where toolkits and Python packages put them, the newest of each place first.
fn installed() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(env::var_os(name).map(|home| PathBuf::from(home).join("lib64")));
    }
    folders.push("/usr/local/cuda/lib64".into());
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        if folder.join("python3").exists() {
            prefixes.extend(folder.parent().map(Path::to_path_buf));
        }
    }
    prefixes.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            for packages in ["site-packages", "dist-packages"] {
                folders.extend(entries(&python.join(packages).join("nvidia")).into_iter().map(|p| p.join("lib")));
            }
        }
    }
    let is_nvrtc = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libnvrtc.so") || name.starts_with("nvrtc64_") && name.ends_with(".dll")
    };
    folders.iter().flat_map(|folder| entries(folder)).filter(is_nvrtc).collect()
}

/// The entries of a folder, in descending order of their names; none if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found.reverse();
    found
}
