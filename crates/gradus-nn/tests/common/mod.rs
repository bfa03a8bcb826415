//! Helpers that the tests share.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{Init, Parameter};
use gradus_tensor::{DType, Device, Generator, Gradients, Tensor};

pub fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// Runs `f` with an `Init` for f64 parameters and a fixed seed.
pub fn with_init<R>(device: &Device, f: impl FnOnce(&mut Init<'_>) -> R) -> R {
    let mut generator = Generator::new(5);
    f(&mut Init::new(DType::F64, device, &mut generator))
}

/// Irregular f64 values: `1.5 sin(1.7 i + 0.3)` for element `i`.
pub fn values(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| (i as f64 * 1.7 + 0.3).sin() * 1.5).collect();
    Tensor::from_vec(v, shape, device).unwrap()
}

#[track_caller]
pub fn assert_close(got: &Tensor, want: &[f64]) {
    let got = got.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-9 * (1.0 + w.abs()), "element {i}: {g} is not {w}");
    }
}

pub fn parameter(values: &[f64], device: &Device) -> Parameter {
    Parameter::new(Tensor::from_vec(values, [values.len()], device).unwrap()).unwrap()
}

/// Gradients with these values, computed as the gradients of `sum(p * g)`.
pub fn gradients(pairs: &[(&Parameter, &[f64])], device: &Device) -> Gradients {
    let mut loss = Tensor::zeros([], DType::F64, device).unwrap();
    for (p, g) in pairs {
        let g = Tensor::from_vec(*g, [g.len()], device).unwrap();
        let part = p.to_dtype(DType::F64).unwrap().mul(&g).unwrap().sum_all().unwrap();
        loss = loss.add(&part).unwrap();
    }
    loss.backward().unwrap()
}

pub fn named(list: &[(&str, &Parameter)]) -> Vec<(String, Parameter)> {
    list.iter().map(|(name, p)| ((*name).to_owned(), (*p).clone())).collect()
}
