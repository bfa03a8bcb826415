//! The commands, one a file.

pub(crate) mod devices;
pub(crate) mod image;
pub(crate) mod predict;
pub(crate) mod profile;
pub(crate) mod train;

use std::sync::Arc;

use gradus::cpu::CpuBackend;
use gradus::prelude::*;

/// The device of this name; the CPU with `threads` threads of its own if a number is given.
fn open(name: &str, threads: Option<usize>) -> Result<Device> {
    let device = match (name, threads) {
        ("cpu", Some(threads)) => Device::from_backend(Arc::new(CpuBackend::with_threads(threads)?)),
        _ => Device::open(name)?,
    };
    Ok(profile::watched(device))
}

/// This program as the user called it, for commands to try next.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "gradus".into())
}
