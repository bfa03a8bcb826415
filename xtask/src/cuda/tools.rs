//! NVRTC and ptxas.

use std::path::{Path, PathBuf};

use crate::wheels::{Failure, unpacked};

/// The package with NVRTC, which compiles CUDA C.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.2.86";
/// The package with ptxas, which compiles PTX for a GPU.
const PTXAS: &str = "nvidia-cuda-nvcc==13.5.37";

/// The files of both.
pub(super) struct Tools {
    pub(super) nvrtc: PathBuf,
    pub(super) ptxas: PathBuf,
}

/// Downloads what is not there yet. `GRADUS_NVRTC` names another NVRTC.
pub(super) fn find(folder: &Path, python: &str) -> Result<Tools, Failure> {
    let nvrtc = match std::env::var_os("GRADUS_NVRTC") {
        Some(path) => PathBuf::from(path),
        None => unpacked(&folder.join("nvrtc"), python, NVRTC)?.join("nvidia/cu13/lib/libnvrtc.so.13"),
    };
    let ptxas = unpacked(&folder.join("ptxas"), python, PTXAS)?.join("nvidia/cu13/bin/ptxas");
    for file in [&nvrtc, &ptxas] {
        if !file.is_file() {
            return Err(Failure::Other(format!("{}: no such file", file.display())));
        }
    }
    may_run(&ptxas).map_err(|error| Failure::Other(format!("{}: {error}", ptxas.display())))?;
    Ok(Tools { nvrtc, ptxas })
}

/// Unpacking does not keep that a file is a program.
#[cfg(unix)]
fn may_run(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn may_run(_: &Path) -> std::io::Result<()> {
    Ok(())
}
