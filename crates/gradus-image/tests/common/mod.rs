//! Helpers that the tests share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use gradus_cpu::CpuBackend;
use gradus_tensor::{DType, Device, Generator, Tensor};

/// The CPU device, opened once.
pub fn cpu() -> Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(|| Device::from_backend(Arc::new(CpuBackend::new().unwrap()))).clone()
}

/// All values of a tensor.
pub fn floats(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// A random f64 image with values between 0 and 1.
pub fn random(shape: &[usize], seed: u64) -> Tensor {
    Tensor::rand(shape, DType::F64, &cpu(), &mut Generator::new(seed)).unwrap()
}

/// A `u8` image.
pub fn bytes(values: &[u8], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}
