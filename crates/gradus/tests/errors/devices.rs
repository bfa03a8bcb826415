//! Devices that are not there, that differ, that are full, or that fail. Nothing is moved between devices behind your
//! back, and no operation computes elsewhere when a device cannot run it.

use std::sync::Arc;

use crate::page::page;
use gradus::backend::View;
use gradus::backend::compute::{ComputeLimits, NativeFunction};
use gradus::backend::{Backend, BackendInfo, Binding, ComputeModule, MemoryStats, backend_methods};
use gradus::cpu::CpuBackend;
use gradus::prelude::*;

page! {
    "Devices":
    there_is_no_such_device,
    operands_live_on_two_devices,
    the_memory_budget_is_spent,
    more_memory_than_the_machine_has,
    a_backend_runs_no_such_module,
    a_binding_is_strided,
    a_native_function_is_not_registered,
    the_hardware_fails,
}

/// The name is none of those that this build knows. There is no CUDA; a GPU is `wgpu:0`, in a build with the feature
/// `wgpu`.
///
/// Mend: list the devices with `gradus::devices()`, or `gradus devices` on the command line.
fn there_is_no_such_device(_: &Device) -> Result<Error> {
    let error = Device::open("cuda:0").unwrap_err();

    Device::open("cpu")?;
    Ok(error)
}

/// Two operands live on different devices. Each CPU backend that a program makes itself is a device of its own.
///
/// Mend: move one of them with `to_device`.
fn operands_live_on_two_devices(device: &Device) -> Result<Error> {
    let other = Device::from_backend(Arc::new(CpuBackend::new()?));
    let (x, y) = (Tensor::ones([2], DType::F32, device)?, Tensor::ones([2], DType::F32, &other)?);
    let error = x.add(&y).unwrap_err();

    x.add(&y.to_device(device)?)?;
    Ok(error)
}

/// A device may have a budget of memory, and the tensor does not fit into what is left of it.
///
/// Mend: drop tensors that are not needed any more, use a smaller batch, recompute parts of the graph with `checkpoint`,
/// or allow more.
fn the_memory_budget_is_spent(_: &Device) -> Result<Error> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    device.backend().set_memory_budget(Some(1 << 20))?;
    let held = Tensor::zeros([200, 1000], DType::F32, &device)?;
    let error = Tensor::zeros([100, 1000], DType::F32, &device).unwrap_err();

    drop(held);
    Tensor::zeros([100, 1000], DType::F32, &device)?;
    Ok(error)
}

/// The system has no room for the tensor, and says so at once. The program goes on: an allocation that fails is an
/// error like any other.
///
/// Mend: print the shape. A size that was computed is often wrong by a factor.
fn more_memory_than_the_machine_has(_: &Device) -> Result<Error> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let error = Tensor::zeros([1 << 20, 1 << 30], DType::F32, &device).unwrap_err();

    Tensor::zeros([1 << 10, 1 << 10], DType::F32, &device)?;
    Ok(error)
}

/// `dispatch_compute` runs modules of your own, and a backend has one form of them: WGSL and SPIR-V on a GPU, Rust
/// functions on the CPU.
///
/// Mend: match on the device, or give the module in both forms, as the example `compute_op` does.
fn a_backend_runs_no_such_module(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4], DType::F32, device)?;
    let module = ComputeModule::Wgsl("@compute @workgroup_size(1) fn main() {}");
    let error = device.dispatch_compute(module, &[gradus::Bound::Write(&x)], &[], [1, 1, 1]).unwrap_err();

    assert!(device.backend().compute_limits().is_some());
    Ok(error)
}

/// A compute module sees flat memory, and a backend refuses a view with strides. `Device::dispatch_compute` makes its
/// operands contiguous, so only code that calls a backend itself meets this error.
///
/// Mend: call `Device::dispatch_compute`, or pass `x.contiguous()?`.
fn a_binding_is_strided(device: &Device) -> Result<Error> {
    use gradus::backend::{Buffer, Layout, Shape};
    let buffer: Buffer = device.backend().alloc(24)?;
    let layout = Layout::contiguous(Shape::new(&[2, 3])?).transpose(0, 1)?;
    let x = View { buffer: &buffer, dtype: DType::F32, layout: &layout };
    let limits: ComputeLimits = device.backend().compute_limits().unwrap();
    let error = gradus::backend::compute::check(&limits, &[Binding::Read(x)], &[], [1, 1, 1]).unwrap_err();

    let layout = Layout::contiguous(Shape::new(&[2, 3])?);
    let x = View { buffer: &buffer, dtype: DType::F32, layout: &layout };
    gradus::backend::compute::check(&limits, &[Binding::Read(x)], &[], [1, 1, 1])?;
    Ok(error)
}

/// A Rust function runs as a compute module under a name, and no function has this name.
///
/// Mend: register it before the first call.
fn a_native_function_is_not_registered(_: &Device) -> Result<Error> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let x = Tensor::zeros([4], DType::F32, &device)?;
    let run = || device.dispatch_compute(ComputeModule::Native("fill"), &[gradus::Bound::Write(&x)], &[], [1, 1, 1]);
    let error = run().unwrap_err();

    let fill = NativeFunction::new(|call| {
        call.bindings[0].write::<f32>()?.fill(1.0);
        Ok(())
    });
    device.backend().register_native("fill", fill)?;
    run()?;
    Ok(error)
}

/// The device itself failed: a GPU was reset or unplugged, a driver gave up, a plug-in panicked. What the device held is
/// lost, so a training run goes on from its last checkpoint. The text after the operation is the backend's own; here a
/// backend of the test reports a fault.
///
/// Mend: open the device again (`Device::wgpu(0)` opens a lost one anew) and load the checkpoint.
fn the_hardware_fails(_: &Device) -> Result<Error> {
    let faulty = Device::from_backend(Arc::new(Faulty(CpuBackend::new()?)));
    let x = Tensor::ones([2], DType::F32, &faulty)?;
    let error = x.to_vec::<f32>().unwrap_err();

    Tensor::ones([2], DType::F32, &Device::cpu()?)?.to_vec::<f32>()?;
    Ok(error)
}

/// A backend whose downloads fail.
#[derive(Debug)]
struct Faulty(CpuBackend);

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            if stringify!($name) == "download" {
                return Err(Error::new(ErrorKind::Backend, "download", "the device is lost: its power failed"));
            }
            self.0.$name($($arg),*)
        })*
    };
}

impl Backend for Faulty {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }
    fn name(&self) -> &str {
        "faulty"
    }
    fn supports(&self, dtype: DType) -> bool {
        self.0.supports(dtype)
    }
    fn memory_stats(&self) -> MemoryStats {
        self.0.memory_stats()
    }
    backend_methods!(memory passed_on);
    backend_methods!(primitives passed_on);
}
