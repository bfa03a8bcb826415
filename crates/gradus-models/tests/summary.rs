//! The size and the work of known networks, as torchvision states them.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_models::{MobileNetV2, MobileNetV2Config, MobileNetV3, ResNet};
use gradus_nn::{Forward, Init, summary};
use gradus_tensor::{DType, Device, Generator, Result};

/// Compares with the number of parameters, and with the billions of multiplications for an image of 224 x 224 pixels.
fn check<M: Forward>(new: impl FnOnce(&mut Init<'_>) -> Result<M>, parameters: usize, billions: f64) {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let mut model = new(&mut Init::new(DType::F32, &device, &mut Generator::new(0)).skip()).unwrap();
    model.eval();
    let found = summary(&model, [1, 3, 224, 224]).unwrap();
    assert_eq!(found.parameters, parameters);
    assert!((found.multiply_adds as f64 / 1e9 - billions).abs() < 0.001, "{}", found.multiply_adds);
}

#[test]
fn known_networks_have_the_size_and_the_work_that_torchvision_states() {
    check(|init| ResNet::resnet18(1000, 3, init), 11_689_512, 1.814);
    check(|init| MobileNetV2::new(MobileNetV2Config::default(), init), 3_504_872, 0.301);
    check(|init| MobileNetV3::small(1000, 3, init), 2_542_856, 0.057);
    check(|init| MobileNetV3::large(1000, 3, init), 5_483_032, 0.217);
}
