//! The commands, one per file.

pub(crate) mod devices;
pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod image;
mod inputs;
pub(crate) mod new;
#[cfg(feature = "onnx")]
pub(crate) mod onnx;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod train;

use std::path::Path;
use std::sync::Arc;

use gradus::cpu::CpuBackend;
use gradus::prelude::*;
use gradus::tasks::Model;

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

/// The error for a model of a task that a command does not have.
fn unsupported(path: &Path, model: &Model) -> Error {
    let m = format!("{} is a model of the task {:?}", path.display(), model.task());
    Error::new(ErrorKind::Unsupported, "gradus", m).help("this command does not know the task; see `gradus --help`")
}
