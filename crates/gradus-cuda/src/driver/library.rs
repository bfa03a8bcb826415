//! Finds the driver's library and NVRTC, and loads them before cudarc looks for them; and finds cuBLASLt.
//!
//! cudarc panics where a library or one of its functions is missing. Here each library is opened first, and every
//! function that this crate calls is looked up once, so that what is missing is an error that names it.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::{driver, nvrtc};
use gradus_backend::{Error, ErrorKind, Result};
use libloading_09::Library;

/// The path of a library that stands in for the driver.
const DRIVER: &str = "GRADUS_CUDA_DRIVER";
/// The path of NVRTC.
const NVRTC: &str = "GRADUS_NVRTC";
/// The path of cuBLASLt. If it is empty, cuBLASLt is not used.
const CUBLASLT: &str = "GRADUS_CUBLASLT";
/// The names by which the system may know cuBLASLt, the newest first.
const NAMES_OF_CUBLASLT: [&str; 2] =
    if cfg!(windows) { ["cublasLt64_13.dll", "cublasLt64_12.dll"] } else { ["libcublasLt.so.13", "libcublasLt.so.12"] };

/// The path of NCCL. If it is empty, NCCL is not used.
const NCCL: &str = "GRADUS_NCCL";
/// The name by which the system may know NCCL.
const NAME_OF_NCCL: &str = "libnccl.so.2";

/// The functions of the driver that this crate calls.
const OF_DRIVER: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid_v2",
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
    "cuEventQuery",
    "cuStreamWaitEvent",
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
                match load(Path::new(&path), true) {
                    Ok(library) => std::mem::forget(library),
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
            if let Some(path) = env::var_os(NVRTC) {
                match load(Path::new(&path), true) {
                    Ok(library) => std::mem::forget(library),
                    Err(why) => {
                        let m = format!("{NVRTC} names {}, which cannot be loaded: {why}", Path::new(&path).display());
                        return Err(Error::new(ErrorKind::Backend, "cuda", m));
                    }
                }
            }
            // SAFETY: the function only opens libraries.
            let present = || unsafe { nvrtc::sys::is_culib_present() };
            if !present() {
                let is_nvrtc = |name: &str| {
                    name.starts_with("libnvrtc.so") || name.starts_with("nvrtc64_") && name.ends_with(".dll")
                };
                installed(is_nvrtc).iter().any(|path| load(path, true).map(std::mem::forget).is_ok());
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

/// Finds cuBLASLt, and makes what `make` makes of it. `make` refuses a library with the reason. `None` where there is none,
/// where `GRADUS_CUBLASLT` says that none is wanted, and where another library stands in for the driver, unless the
/// variable names one. The library that the variable names must be one that can be used.
pub(super) fn cublaslt<T>(make: impl Fn(&Library) -> Result<T, String>) -> Result<Option<T>> {
    let made = |path: &Path| -> Result<T, String> {
        let library = load(path, false)?;
        let made = make(&library)?;
        // What was made of a library may call it at any time later.
        std::mem::forget(library);
        Ok(made)
    };
    match env::var_os(CUBLASLT) {
        Some(path) if path.is_empty() => Ok(None),
        Some(path) => made(Path::new(&path)).map(Some).map_err(|why| {
            let m = format!("{CUBLASLT} names {}, which cannot be used: {why}", Path::new(&path).display());
            Error::new(ErrorKind::Backend, "cuda", m).help("an empty value uses none")
        }),
        None if is_stand_in() => Ok(None),
        None => {
            let is_cublaslt = |name: &str| {
                name.starts_with("libcublasLt.so") || name.starts_with("cublasLt64_") && name.ends_with(".dll")
            };
            let named = NAMES_OF_CUBLASLT.iter().find_map(|name| made(Path::new(name)).ok());
            Ok(named.or_else(|| installed(is_cublaslt).iter().find_map(|path| made(path).ok())))
        }
    }
}

/// Finds NCCL, and makes what `make` makes of it. `make` refuses a library with the reason. Fails where there is none, where
/// `GRADUS_NCCL` says that none is wanted, and where another library stands in for the driver, unless the variable names
/// one.
pub(super) fn nccl<T>(make: impl Fn(&Library) -> Result<T, String>) -> Result<T> {
    let made = |path: &Path| -> Result<T, String> {
        let library = load(path, false)?;
        let made = make(&library)?;
        // What was made of a library may call it at any time later.
        std::mem::forget(library);
        Ok(made)
    };
    let missing = |m: String| {
        let e = Error::new(ErrorKind::Unsupported, "nccl", m);
        Err(e.help(format!(
            "install it: `pip install nvidia-nccl-cu13` (or -cu12), or on Debian libnccl2, or set {NCCL} to its path"
        )))
    };
    match env::var_os(NCCL) {
        Some(path) if path.is_empty() => missing(format!("{NCCL} is empty, which says that NCCL is not used")),
        Some(path) => made(Path::new(&path)).or_else(|why| {
            missing(format!("{NCCL} names {}, which cannot be used: {why}", Path::new(&path).display()))
        }),
        None if is_stand_in() => missing(format!("NCCL does not work with what {DRIVER} names")),
        None => {
            let known = [PathBuf::from(NAME_OF_NCCL)];
            let found = installed(|name| name.starts_with("libnccl.so"));
            let mut refused = None;
            for path in known.iter().chain(&found) {
                match made(path) {
                    Ok(made) => return Ok(made),
                    Err(why) if refused.is_none() && (path.is_file() || !is_absence(path, &why)) => {
                        refused = Some(format!("NCCL at {} cannot be used: {why}", path.display()));
                    }
                    Err(_) => {}
                }
            }
            missing(refused.unwrap_or_else(|| format!("NCCL ({NAME_OF_NCCL}) is not on this machine")))
        }
    }
}

/// Whether a library cannot be loaded because it is not there. The reason says nothing then of those that are. Where one
/// that it needs is missing, the reason names that one.
fn is_absence(path: &Path, why: &str) -> bool {
    why.strip_prefix(&*path.to_string_lossy()).is_some_and(|rest| rest.starts_with(": cannot open"))
}

/// Whether `GRADUS_CUBLASLT` names a library.
pub(super) fn names_cublaslt() -> bool {
    env::var_os(CUBLASLT).is_some_and(|path| !path.is_empty())
}

/// Loads a library; with `is_global`, so that its functions are also found by their names as long as it is loaded.
fn load(path: &Path, is_global: bool) -> Result<Library, String> {
    #[cfg(unix)]
    {
        use libloading_09::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
        let scope = if is_global { RTLD_GLOBAL } else { RTLD_LOCAL };
        // SAFETY: the user names the library or installed it, and so trusts what it does when it is loaded.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | scope) }.map_err(|e| reason(&e))?;
        Ok(library.into())
    }
    #[cfg(not(unix))]
    {
        let _ = is_global; // Elsewhere, functions are found by their library only.
        // SAFETY: as above.
        unsafe { Library::new(path) }.map_err(|e| reason(&e))
    }
}

/// What the system said; the error itself says only that it failed.
fn reason(e: &dyn std::error::Error) -> String {
    e.source().map_or_else(|| e.to_string(), ToString::to_string)
}

/// The files with a name that is wanted, in the places where toolkits and Python packages put libraries, the newest of each
/// place first.
fn installed(is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
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
    let wanted = |path: &PathBuf| path.file_name().is_some_and(|name| is_wanted(&name.to_string_lossy()));
    folders.iter().flat_map(|folder| entries(folder)).filter(wanted).collect()
}

/// The entries of a folder, in descending order of their names; none if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_needs_a_missing_one_is_not_absent() {
        let name = Path::new(NAME_OF_NCCL);
        let missing = |what: &str| format!("{what}: cannot open shared object file: No such file or directory");
        assert!(is_absence(name, &missing(NAME_OF_NCCL)));
        assert!(!is_absence(name, &missing("libcudart.so.12")));
        assert!(!is_absence(name, "libnccl.so.2: invalid ELF header"));
        #[cfg(target_os = "linux")]
        {
            let why = load(Path::new("libgradus_nowhere.so.2"), false).err().unwrap_or_default();
            assert!(is_absence(Path::new("libgradus_nowhere.so.2"), &why), "{why}");
        }
    }
}
