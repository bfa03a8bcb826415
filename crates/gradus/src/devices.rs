//! The devices of this build, each opened once per process and when it is first asked for.

use gradus_tensor::{Device, Error, ErrorKind, Result};

/// Opens devices; in the [prelude](crate::prelude), so that `Device::cpu()?` reads as it should.
pub trait DeviceExt: Sized {
    /// The processor. Every call gives the same device.
    ///
    /// ```
    /// use gradus::prelude::*;
    /// let device = Device::cpu()?;
    /// assert_eq!(device, Device::open("cpu")?);
    /// assert!(Device::open("abacus").is_err());
    /// # Ok::<(), Error>(())
    /// ```
    fn cpu() -> Result<Self>;

    /// The device of this name, as [`devices`] lists them. Errors if this build has none of that name.
    fn open(name: &str) -> Result<Self>;
}

impl DeviceExt for Device {
    fn cpu() -> Result<Device> {
        cpu()
    }

    fn open(name: &str) -> Result<Device> {
        match name {
            "cpu" => cpu(),
            _ => {
                let known = if cfg!(feature = "cpu") { "this build has: cpu" } else { "this build has no backend" };
                Err(Error::new(ErrorKind::Unsupported, "device", format!("there is no device {name:?}")).help(known))
            }
        }
    }
}

/// Every device that this build and this machine have.
pub fn devices() -> Result<Vec<Device>> {
    if cfg!(feature = "cpu") { Ok(vec![cpu()?]) } else { Ok(Vec::new()) }
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Device> {
    use std::sync::{Arc, OnceLock};

    static CPU: OnceLock<Device> = OnceLock::new();
    if let Some(device) = CPU.get() {
        return Ok(device.clone());
    }
    // An error is not kept: the next call tries anew. If two threads get here, one of their devices is kept.
    let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
    Ok(CPU.get_or_init(|| device).clone())
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Device> {
    Err(Error::new(ErrorKind::Unsupported, "device", "this build has no CPU backend")
        .help("turn on the feature `cpu` of the crate `gradus`"))
}
