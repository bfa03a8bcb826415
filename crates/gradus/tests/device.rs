//! Tests devices: how they are opened, their names, their memory, and what they refuse.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus::backend::Backend;
use gradus::cpu::CpuBackend;
use gradus::devices;
use gradus::prelude::*;

#[test]
fn a_device_that_opens_has_a_name_and_is_listed() {
    let device = Device::cpu().unwrap();
    assert_eq!(device.name(), "cpu");
    // The CPU comes first. The adapters follow, if there are any and the build has the feature `wgpu`.
    let all = devices();
    assert_eq!(all[0].1.as_ref().unwrap(), &device);
    for (i, (name, other)) in all.iter().enumerate() {
        assert_eq!(*name, if i == 0 { "cpu".to_owned() } else { format!("wgpu:{}", i - 1) });
        if let Ok(other) = other {
            assert_eq!((other.name(), &Device::open(name).unwrap()), (name.as_str(), other));
        }
    }
    assert!(Device::open("wgpu:99").is_err() && Device::open("wgpu:x").is_err() && Device::wgpu(99).is_err());
    assert_eq!(Device::open("abacus").unwrap_err().kind(), &ErrorKind::Unsupported);
}

#[test]
fn any_object_that_keeps_the_contract_is_a_device() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::with_threads(1).unwrap());
    let (one, other) = (Device::from_backend(backend.clone()), Device::from_backend(backend));
    assert_eq!(one, other);
    assert_ne!(one, Device::cpu().unwrap());
}

#[test]
fn dropped_tensors_give_their_memory_back_for_reuse() {
    let device = Device::from_backend(Arc::new(CpuBackend::with_threads(1).unwrap()));
    let before = device.memory_stats();
    let x = Tensor::zeros([1000, 1000], DType::F32, &device).unwrap();
    let (view, live) = (x.t().unwrap(), device.memory_stats());
    assert_eq!((live.in_use - before.in_use, live.buffers - before.buffers), (4_000_000, 1));
    drop(x);
    assert_eq!(device.memory_stats().in_use, live.in_use, "a view keeps the memory");
    drop(view);
    let after = device.memory_stats();
    assert_eq!((after.in_use, after.buffers), (before.in_use, before.buffers));
    assert!(after.cached >= 4_000_000);
}

#[test]
fn synchronizing_waits_for_what_was_asked_for() {
    let device = Device::cpu().unwrap();
    let y = Tensor::ones([300], DType::F32, &device).unwrap().add(1.0).unwrap();
    device.synchronize().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0; 300]);
}
