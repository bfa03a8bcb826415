//! The devices of this build. Each is opened once per process, on first use.

use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

/// Opens devices. The [prelude](crate::prelude) exports this trait, so `Device::cpu()?` needs no other import.
pub trait DeviceExt: Sized {
    /// The CPU. Every call returns the same device.
    ///
    /// ```
    /// use gradus::prelude::*;
    /// let device = Device::cpu()?;
    /// assert_eq!(device, Device::open("cpu")?);
    /// assert!(Device::open("abacus").is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    fn cpu() -> Result<Self>;

    /// The WebGPU adapter with this number, counting from 0. Every call returns the same device. If that device is
    /// lost, the next call opens it again.
    ///
    /// Returns an error if this build lacks the feature `wgpu`, or if the machine has no such adapter.
    #[track_caller]
    fn wgpu(index: usize) -> Result<Self>;

    /// All WebGPU adapters of this machine that can be opened; an empty list if no driver is installed. [`devices`]
    /// also returns the errors of the other adapters.
    ///
    /// Returns an error if this build lacks the feature `wgpu`.
    #[track_caller]
    fn wgpu_all() -> Result<Vec<Self>>;

    /// The NVIDIA GPU with this number, counting from 0 in the driver's order. Every call returns the same device.
    ///
    /// Returns an error if this build lacks the feature `cuda`, if the machine has no such GPU, or if a library is missing:
    /// the driver's, or NVRTC. The error names it and says how to get it. If the environment variable `GRADUS_CUDA_TF32` is 1,
    /// products of matrices of f32 round their factors to tf32, for speed; see `docs/cuda.md`. Values other than 1, 0 and
    /// none are an error.
    #[track_caller]
    fn cuda(index: usize) -> Result<Self>;

    /// The device with this name, as [`devices`] lists it: `cpu` or, for example, `wgpu:0` or `cuda:0`. `cuda` without a
    /// number means the first GPU. `wgpu` without a number
    /// means the adapter that the environment variable `GRADUS_WGPU_ADAPTER` selects, by number or by part of its name.
    /// If the variable is not set, it means the first adapter. `GRADUS_WGPU_PROFILE` limits the features of the
    /// adapters that are used: `full` is the default, `no64` excludes 64-bit types, as on a Mac, and `core` includes
    /// only the features that every adapter has. Errors if there is no such device.
    #[track_caller]
    fn open(name: &str) -> Result<Self>;
}

impl DeviceExt for Device {
    fn cpu() -> Result<Device> {
        cpu()
    }

    fn wgpu(index: usize) -> Result<Device> {
        wgpu::open(index)
    }

    fn wgpu_all() -> Result<Vec<Device>> {
        wgpu::all()
    }

    fn cuda(index: usize) -> Result<Device> {
        cuda::open(index)
    }

    fn open(name: &str) -> Result<Device> {
        let unknown = || {
            let mut kinds = Vec::new();
            kinds.extend(cfg!(feature = "cpu").then_some("cpu"));
            kinds.extend(cfg!(feature = "wgpu").then_some("wgpu or wgpu:NUMBER"));
            kinds.extend(cfg!(feature = "cuda").then_some("cuda or cuda:NUMBER"));
            let known = if kinds.is_empty() {
                "this build has no backend".into()
            } else {
                format!("this build has: {}", kinds.join(", "))
            };
            Error::new(ErrorKind::Unsupported, "device", format!("there is no device {name:?}")).help(known)
        };
        match name.split_once(':') {
            None if name == "cpu" => cpu(),
            None if name == "wgpu" => wgpu::open(wgpu::chosen()?),
            None if name == "cuda" => cuda::open(0),
            Some(("cuda", number)) => cuda::open(number.parse().map_err(|_| unknown()).here()?),
            Some(("wgpu", number)) => wgpu::open(number.parse().map_err(|_| unknown()).here()?),
            _ => Err(unknown().here()),
        }
    }
}

/// The names of all devices of this build and machine, each with the device, or the error if it cannot be opened.
pub fn devices() -> Vec<(String, Result<Device>)> {
    let mut all = Vec::new();
    if cfg!(feature = "cpu") {
        all.push(("cpu".to_owned(), cpu()));
    }
    all.extend(wgpu::each());
    all.extend(cuda::each());
    all
}

#[cfg(feature = "cpu")]
#[track_caller]
fn cpu() -> Result<Device> {
    use std::sync::{Arc, OnceLock};

    static CPU: OnceLock<Device> = OnceLock::new();
    if let Some(device) = CPU.get() {
        return Ok(device.clone());
    }
    // Errors are not cached, so the next call tries again. If two threads get here at once, only one of their devices
    // is kept.
    let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
    Ok(CPU.get_or_init(|| device).clone())
}

#[cfg(not(feature = "cpu"))]
#[track_caller]
fn cpu() -> Result<Device> {
    Err(Error::new(ErrorKind::Unsupported, "device", "this build has no CPU backend")
        .help("turn on the feature `cpu` of the crate `gradus`"))
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, PoisonError};

    use gradus_tensor::{Device, Result};
    use gradus_wgpu::{Profile, WgpuBackend};

    pub(super) use gradus_wgpu::chosen;

    type Opened = BTreeMap<usize, (Arc<WgpuBackend>, Device)>;

    #[track_caller]
    pub(super) fn open(index: usize) -> Result<Device> {
        static OPENED: Mutex<Opened> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = opened.get(&index).filter(|(backend, _)| !backend.is_lost()) {
            return Ok(device.clone());
        }
        let backend = Arc::new(WgpuBackend::open_as(index, Profile::chosen()?)?);
        let device = Device::from_backend(backend.clone());
        opened.insert(index, (backend, device.clone()));
        Ok(device)
    }

    pub(super) fn each() -> Vec<(String, Result<Device>)> {
        gradus_wgpu::adapters().iter().map(|a| (format!("wgpu:{}", a.index), open(a.index))).collect()
    }

    #[track_caller]
    pub(super) fn all() -> Result<Vec<Device>> {
        Ok(each().into_iter().filter_map(|(_, device)| device.ok()).collect())
    }
}

#[cfg(not(feature = "wgpu"))]
mod wgpu {
    use gradus_tensor::{Device, Error, ErrorKind, Result};

    #[track_caller]
    fn absent<T>() -> Result<T> {
        Err(Error::new(ErrorKind::Unsupported, "device", "this build has no WebGPU backend")
            .help("turn on the feature `wgpu` of the crate `gradus`"))
    }

    #[track_caller]
    pub(super) fn open(_: usize) -> Result<Device> {
        absent()
    }

    pub(super) fn each() -> Vec<(String, Result<Device>)> {
        Vec::new()
    }

    #[track_caller]
    pub(super) fn all() -> Result<Vec<Device>> {
        absent()
    }

    #[track_caller]
    pub(super) fn chosen() -> Result<usize> {
        absent()
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, PoisonError};

    use gradus_cuda::{CudaBackend, CudaOptions};
    use gradus_tensor::{Device, Result};

    #[track_caller]
    pub(super) fn open(index: usize) -> Result<Device> {
        static OPENED: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = opened.get(&index) {
            return Ok(device.clone());
        }
        let device = Device::from_backend(Arc::new(CudaBackend::open_with(index, CudaOptions::chosen()?)?));
        opened.insert(index, device.clone());
        Ok(device)
    }

    /// The GPUs of this machine; none without a driver.
    pub(super) fn each() -> Vec<(String, Result<Device>)> {
        let count = gradus_cuda::devices().map_or(0, |all| all.len());
        // At most as many as the machine has GPUs.
        (0..count).map(|index| (format!("cuda:{index}"), open(index))).collect()
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use gradus_tensor::{Device, Error, ErrorKind, Result};

    #[track_caller]
    pub(super) fn open(_: usize) -> Result<Device> {
        Err(Error::new(ErrorKind::Unsupported, "device", "this build has no CUDA backend")
            .help("turn on the feature `cuda` of the crate `gradus`"))
    }

    pub(super) fn each() -> Vec<(String, Result<Device>)> {
        Vec::new()
    }
}
