//! Code that both sides share: it opens the device, and draws dropout masks from the library's generators.

use std::sync::{Arc, OnceLock};

use gradus_cpu::CpuBackend;
use gradus_tensor::{DType, Device, Generator, Result, Tensor, backend};

pub(crate) fn device() -> Result<Device> {
    static CPU: OnceLock<Device> = OnceLock::new();
    if let Some(device) = CPU.get() {
        return Ok(device.clone());
    }
    let device = Device::from_backend(Arc::new(CpuBackend::with_threads(1)?));
    Ok(CPU.get_or_init(|| device).clone())
}

/// The mask of the elements that dropout keeps. The reference takes the random numbers from the library, but does not
/// rely on it to draw the same numbers when a region runs again.
pub(crate) fn mask(p: f64, shape: &[usize], generator: &mut Generator) -> Result<Vec<bool>> {
    let stays = backend::Distribution::Bernoulli { p: 1.0 - p };
    Tensor::random(stays, shape, DType::Bool, &device()?, generator)?.to_vec::<bool>()
}
