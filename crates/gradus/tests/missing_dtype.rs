//! A device without f64: errors name the missing dtype, and states in f64 are converted when they are loaded.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus::backend::{Backend, BackendInfo, MemoryStats, Scalar, View, ViewMut, backend_methods};
use gradus::cpu::CpuBackend;
use gradus::prelude::*;

/// A CPU that claims to lack f64, and gives the reason.
#[derive(Debug)]
struct Without(CpuBackend);

/// Forwards the methods to the CPU, except two whose outputs are checked.
macro_rules! same {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(same! { @ $name($($arg: $type),*) -> $result })*
    };
    (@ fill($($rest:tt)*) -> $result:ty) => {};
    (@ copy_strided($($rest:tt)*) -> $result:ty) => {};
    (@ $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($arg: $type),*) -> $result {
            self.0.$name($($arg),*)
        }
    };
}

impl Backend for Without {
    fn name(&self) -> &str {
        "without"
    }
    fn supports(&self, dtype: DType) -> bool {
        dtype != DType::F64
    }
    fn unsupported(&self, op: &str, dtype: DType) -> Error {
        Error::dtype(op, dtype, "the dtypes of this device").note("it lacks SHADER_F64")
    }
    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        assert_ne!(out.dtype, DType::F64);
        self.0.fill(out, value)
    }
    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        assert_ne!(out.dtype, DType::F64);
        self.0.copy_strided(x, out)
    }
    fn info(&self) -> BackendInfo {
        self.0.info()
    }
    fn memory_stats(&self) -> MemoryStats {
        self.0.memory_stats()
    }
    backend_methods!(memory same);
    backend_methods!(primitives same);
}

fn without() -> Device {
    Device::from_backend(Arc::new(Without(CpuBackend::new().unwrap())))
}

#[test]
fn moving_says_what_the_device_lacks() {
    let x = Tensor::zeros([2], DType::F64, &Device::cpu().unwrap()).unwrap();
    let e = x.to_device(&without()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType);
    assert!(e.to_string().contains("SHADER_F64") && e.to_string().contains("x.to_dtype(DType::F32)"), "{e}");
}

#[test]
fn states_in_f64_load_onto_a_device_without() {
    let (here, there) = (Device::cpu().unwrap(), without());
    let model = |dtype, device: &Device| {
        let mut generator = Generator::new(1);
        Linear::new(3, 2, &mut Init::new(dtype, device, &mut generator)).unwrap()
    };
    let step = |model: &Linear, optimizer: &mut Adam| {
        let x = Tensor::ones([4, 3], model.weight.dtype(), model.weight.device()).unwrap();
        let loss = model.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        optimizer.step(&loss.backward().unwrap()).unwrap();
    };
    let (wide, mut narrow) = (model(DType::F64, &here), model(DType::F32, &there));
    let mut old = Adam::new(wide.named_parameters(), AdamConfig::default()).unwrap();
    step(&wide, &mut old);

    narrow.load_state_dict(&wide.state_dict().unwrap(), Strict::Yes).unwrap();
    let mut new = Adam::new(narrow.named_parameters(), AdamConfig::default()).unwrap();
    new.load_state_dict(&old.state_dict().unwrap(), Strict::Yes).unwrap();
    let rounded = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(rounded(&narrow.weight), rounded(&wide.weight));
    for (name, t) in old.state_dict().unwrap().iter() {
        assert_eq!(rounded(new.state_dict().unwrap().get(name).unwrap()), rounded(t), "{name}");
    }
    step(&narrow, &mut new);
}
