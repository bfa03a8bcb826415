//! The commands, one per file.

#[cfg(all(feature = "mpi", unix))]
pub(crate) mod bench;
mod children;
pub(crate) mod devices;
pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod image;
mod inputs;
pub(crate) mod launch;
pub(crate) mod mpi;
pub(crate) mod new;
#[cfg(feature = "onnx")]
pub(crate) mod onnx;
#[cfg(feature = "onnx")]
mod onnx_bench;
#[cfg(all(feature = "mpi", unix))]
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod train;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus::cpu::CpuBackend;
use gradus::prelude::*;
use gradus::tasks::Model;

/// The name of the model in the folder of a run.
const MODEL: &str = "model.safetensors";

/// The file of a model, which the user named, or whose folder.
fn model_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(MODEL) } else { path.to_owned() }
}

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
    Error::new(ErrorKind::Unsupported, "gradus", m).help(match model {
        Model::Text(_) => "a language model writes text: `gradus generate`",
        _ => "this command does not know the task; see `gradus --help`",
    })
}
