//! The commands, one per file.

pub(crate) mod devices;
pub(crate) mod image;
#[cfg(feature = "onnx")]
pub(crate) mod onnx;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod train;

use std::sync::Arc;

use gradus::cpu::CpuBackend;
use gradus::prelude::*;

/// Opens the device with this name. A number of threads applies only to the CPU.
fn open(name: &str, threads: Option<usize>) -> Result<Device> {
    let device = match (name, threads) {
        ("cpu", Some(threads)) => Device::from_backend(Arc::new(CpuBackend::with_threads(threads)?)),
        _ => Device::open(name)?,
    };
    Ok(profile::watched(device))
}

/// The name by which the user called this program, for suggested commands.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "gradus".into())
}
