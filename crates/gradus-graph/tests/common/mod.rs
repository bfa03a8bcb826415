//! Helpers for the tests of captured steps.
#![allow(dead_code)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_tensor::{DType, Device, Generator, Tensor};

/// The CPU.
pub(crate) fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// Normally distributed numbers, determined by `seed`.
pub(crate) fn random(shape: &[usize], seed: u64, device: &Device) -> Tensor {
    Tensor::randn(shape, DType::F32, device, &mut Generator::new(seed)).unwrap()
}

/// The elements of a tensor as bytes.
pub(crate) fn bits(t: &Tensor) -> Vec<u8> {
    t.to_bytes().unwrap()
}
