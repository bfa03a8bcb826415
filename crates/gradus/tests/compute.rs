//! Tests custom compute modules on CPU tensors: bindings, call counts, refusals and lookup.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus::backend::Element;
use gradus::cpu::CpuBackend;
use gradus::prelude::*;
use gradus::{Bound, ComputeModule};
use tiny_backend::TinyBackend;

/// A separate CPU device, on which no names of modules are taken.
fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::with_threads(1).unwrap()))
}

const ADD: ComputeModule<'static> = ComputeModule::Native("add");

/// A device with the module `add`, whose operands are `(x, y, z)` and which computes `z = x + y`. Also returns a
/// counter of its calls.
fn adds() -> (Device, Arc<AtomicUsize>) {
    let (device, calls) = (device(), Arc::new(AtomicUsize::new(0)));
    let counted = calls.clone();
    device
        .register_native("add", move |call| {
            counted.fetch_add(1, Ordering::Relaxed);
            let [x, y, z] = call.operands()?;
            let sums = x.read::<f32>()?.iter().zip(y.read::<f32>()?).map(|(x, y)| x + y);
            z.write::<f32>()?.iter_mut().zip(sums).for_each(|(z, sum)| *z = sum);
            Ok(())
        })
        .unwrap();
    (device, calls)
}

fn f32s(values: &[f32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec(values, shape, device).unwrap()
}

#[test]
fn a_native_function_reads_and_writes_what_is_bound() {
    let (device, calls) = adds();
    let x = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &device).t().unwrap();
    let y = f32s(&[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0], &[4, 2], &device).narrow(0, 1, 3).unwrap();
    let z = Tensor::zeros([5, 2], DType::F32, &device).unwrap();
    let part = z.narrow(0, 2, 3).unwrap();
    let bindings = [Bound::Read(&x), Bound::Read(&y), Bound::Write(&part)];
    device.dispatch_compute(ADD, &bindings, &[], [1, 1, 1]).unwrap();
    assert_eq!(z.to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 0.0, 31.0, 44.0, 52.0, 65.0, 73.0, 86.0]);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "once, whatever the number of groups");
}

#[test]
fn a_write_counts_and_tells_its_line() {
    let (device, _) = adds();
    let x = f32s(&[1.0, 2.0], &[2], &device);
    let w = f32s(&[3.0, 4.0], &[2], &device).with_grad().unwrap();
    let z = Tensor::zeros([2], DType::F32, &device).unwrap();
    let loss = w.mul(&z).unwrap().sum_all().unwrap();
    let (before, line) = (z.storage().version(), line!() + 1);
    device.dispatch_compute(ADD, &[Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)], &[], [1, 1, 1]).unwrap();
    assert_eq!(z.storage().version(), before + 1);
    assert_eq!(x.storage().version(), 0);
    let e = loss.backward().unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    let place = format!("dispatch_compute wrote at {}:{line}", file!());
    assert!(e.to_string().contains(&place), "{e}");
}

#[test]
fn gradients_are_not_lost_without_a_word() {
    let (device, _) = adds();
    let x = f32s(&[1.0], &[1], &device);
    let w = x.with_grad().unwrap();
    let z = Tensor::zeros([1], DType::F32, &device).unwrap();
    let run = |a: &Tensor, z: &Tensor| {
        device.dispatch_compute(ADD, &[Bound::Read(a), Bound::Read(&x), Bound::Write(z)], &[], [1, 1, 1])
    };
    assert_eq!(run(&w, &z).unwrap_err().kind(), &ErrorKind::Autograd);
    assert_eq!(run(&x.copy().unwrap(), &w).unwrap_err().kind(), &ErrorKind::Autograd);
    run(&w.detach(), &z).unwrap();
    no_grad(|| run(&w, &z)).unwrap();
}

#[test]
fn what_cannot_be_bound_is_refused() {
    let (device, calls) = adds();
    let x = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2], &device);
    let z = Tensor::zeros([2, 2], DType::F32, &device).unwrap();
    let kind = |x: &Tensor, z: &Tensor| {
        let bindings = [Bound::Read(x), Bound::Read(x), Bound::Write(z)];
        device.dispatch_compute(ADD, &bindings, &[], [1, 1, 1]).unwrap_err().kind().clone()
    };
    assert_eq!(kind(&x, &x), ErrorKind::InvalidArgument, "one tensor read and written");
    assert_eq!(kind(&x, &z.t().unwrap()), ErrorKind::InvalidArgument, "a strided tensor written");
    assert_eq!(kind(&x, &z.narrow(0, 0, 1).unwrap().expand([2, 2]).unwrap()), ErrorKind::InvalidArgument);
    let far = Tensor::zeros([2, 2], DType::F32, &Device::cpu().unwrap()).unwrap();
    assert_eq!(kind(&far, &z), ErrorKind::DeviceMismatch);
    assert_eq!(kind(&x, &far), ErrorKind::DeviceMismatch);
    let twice = [Bound::Read(&x), Bound::Write(&z), Bound::Write(&z)];
    assert!(device.dispatch_compute(ADD, &twice, &[], [1, 1, 1]).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!(kind(&x.to_dtype(DType::I32).unwrap(), &z), ErrorKind::DTypeMismatch);
    let read_only = [Bound::Read(&x), Bound::Read(&x), Bound::Read(&x)];
    assert!(device.dispatch_compute(ADD, &read_only, &[], [1, 1, 1]).unwrap_err().message().contains("for reading"));
    assert!(device.dispatch_compute(ADD, &[], &[], [1, 1, 1]).unwrap_err().message().contains("takes 3 bindings"));
}

#[test]
fn a_dispatch_stays_within_the_limits() {
    let device = device();
    let seen = Arc::new(std::sync::Mutex::new(None));
    let kept = seen.clone();
    let look = move |call: &mut gradus::backend::NativeCall<'_>| {
        *kept.lock().unwrap() = Some((call.groups, call.constants.to_vec(), call.bindings.len()));
        Ok(())
    };
    device.register_native("look", look).unwrap();
    let limits = device.compute_limits().unwrap();
    let x = Tensor::zeros([1], DType::F32, &device).unwrap();
    let run = |bindings: usize, constants: usize, groups: [u32; 3]| {
        let bindings = vec![Bound::Read(&x); bindings];
        device.dispatch_compute(ComputeModule::Native("look"), &bindings, &vec![7; constants], groups)
    };
    run(limits.bindings, limits.constants, limits.groups).unwrap();
    let want = (limits.groups, vec![7; limits.constants], limits.bindings);
    assert_eq!(seen.lock().unwrap().take(), Some(want));
    let one = [1, 1, 1];
    for (bindings, constants, groups) in [
        (limits.bindings + 1, 0, one),
        (1, limits.constants + 4, one),
        (1, 3, one),
        (1, 0, [limits.groups[0] + 1, 1, 1]),
        (1, 0, [1, 1, u32::MAX]),
        (1, 0, [1, 0, 1]),
    ] {
        let e = run(bindings, constants, groups).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
    }
    assert_eq!(*seen.lock().unwrap(), None);
}

#[test]
fn modules_that_a_device_cannot_run_are_typed_errors() {
    let (device, _) = adds();
    let run = |device: &Device, module| device.dispatch_compute(module, &[], &[], [1, 1, 1]).unwrap_err();
    for module in [ComputeModule::Wgsl("fn main() {}"), ComputeModule::SpirV(&[]), ComputeModule::Cuda("")] {
        assert_eq!(run(&device, module).kind(), &ErrorKind::Unsupported);
    }
    let e = run(&device, ComputeModule::Native("subtract"));
    assert_eq!(e.kind(), &ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("\"subtract\"") && e.to_string().contains("registered: add"), "{e}");
    let e = device.register_native("add", |_| Ok(())).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
    // A backend without compute modules refuses all of these calls as unsupported.
    let tiny = Device::from_backend(Arc::new(TinyBackend::new().unwrap()));
    assert_eq!(run(&tiny, ADD).kind(), &ErrorKind::Unsupported);
    assert_eq!(tiny.register_native("add", |_| Ok(())).unwrap_err().kind(), &ErrorKind::Unsupported);
    assert_eq!(tiny.allow_modules(None).unwrap_err().kind(), &ErrorKind::Unsupported);
    assert_eq!(tiny.compute_limits(), None);
}

#[test]
fn only_allowed_modules_run() {
    let (device, calls) = adds();
    let x = Tensor::zeros([1], DType::F32, &device).unwrap();
    let z = Tensor::zeros([1], DType::F32, &device).unwrap();
    let run = || device.dispatch_compute(ADD, &[Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)], &[], [1, 1, 1]);
    device.allow_modules(Some(&[ComputeModule::Native("other").hash()])).unwrap();
    let e = run().unwrap_err();
    assert!(e.message().contains(&ADD.hash().to_string()), "{e}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    device.allow_modules(Some(&[ADD.hash()])).unwrap();
    run().unwrap();
    device.allow_modules(None).unwrap();
    run().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_watched_device_runs_and_shows_them() {
    let (device, _) = adds();
    let names = Arc::new(std::sync::Mutex::new(vec![]));
    let seen = names.clone();
    let device = device.watched(move |call| seen.lock().unwrap().push((call.name.to_owned(), call.outputs.len())));
    let x = f32s(&[1.0], &[1], &device);
    let z = Tensor::zeros([1], DType::F32, &device).unwrap();
    let bindings = [Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)];
    device.dispatch_compute(ADD, &bindings, f32::as_bytes(&[]), [1, 1, 1]).unwrap();
    assert_eq!(z.item().unwrap(), 2.0);
    assert!(names.lock().unwrap().contains(&("dispatch_compute".to_owned(), 1)));
}

#[test]
fn a_refused_call_counts_as_no_write() {
    let (device, calls) = adds();
    device.register_native("forbidden", |_| Ok(())).unwrap();
    device.allow_modules(Some(&[ADD.hash(), ComputeModule::Native("subtract").hash()])).unwrap();
    let limits = device.compute_limits().unwrap();
    let x = f32s(&[1.0, 2.0], &[2], &device);
    let w = f32s(&[3.0, 4.0], &[2], &device).with_grad().unwrap();
    let z = Tensor::zeros([2], DType::F32, &device).unwrap();
    let loss = w.mul(&z).unwrap().sum_all().unwrap();
    let (one, none) = ([1, 1, 1], &[][..]);
    let bindings = [Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)];
    let many = [vec![Bound::Read(&x); limits.bindings], vec![Bound::Write(&z)]].concat();
    let constants = vec![0; limits.constants + 4];
    let refused = [
        device.dispatch_compute(ComputeModule::Wgsl(""), &bindings, none, one),
        device.dispatch_compute(ComputeModule::Native("subtract"), &bindings, none, one),
        device.dispatch_compute(ComputeModule::Native("forbidden"), &bindings, none, one),
        device.dispatch_compute(ADD, &bindings, none, [0, 1, 1]),
        device.dispatch_compute(ADD, &bindings, none, [1, limits.groups[1] + 1, 1]),
        device.dispatch_compute(ADD, &bindings, &constants, one),
        device.dispatch_compute(ADD, &many, none, one),
    ];
    for (i, result) in refused.into_iter().enumerate() {
        assert!(result.is_err(), "{i}");
    }
    assert_eq!((z.storage().version(), calls.load(Ordering::Relaxed)), (0, 0));
    // The call is also refused on a device that runs no modules at all, and on a watched device.
    let tiny = Device::from_backend(Arc::new(TinyBackend::new().unwrap()));
    for device in [tiny, device.watched(|_| {})] {
        let y = Tensor::zeros([2], DType::F32, &device).unwrap();
        assert!(device.dispatch_compute(ComputeModule::Native("forbidden"), &[Bound::Write(&y)], none, one).is_err());
        assert_eq!(y.storage().version(), 0);
    }
    assert_eq!(loss.backward().unwrap().get(&w).unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
}

#[test]
fn a_gradient_that_would_be_lost_is_told_with_a_way_out() {
    let (device, _) = adds();
    let w = f32s(&[1.0], &[1], &device).with_grad().unwrap();
    let z = Tensor::zeros([1], DType::F32, &device).unwrap();
    let bindings = [Bound::Read(&w), Bound::Read(&w), Bound::Write(&z)];
    let e = device.dispatch_compute(ADD, &bindings, &[], [1, 1, 1]).unwrap_err().to_string();
    assert!(e.contains("CustomOp") && e.contains("x.detach()") && !e.contains("x.dispatch_compute"), "{e}");
}

#[test]
fn a_transposed_read_of_what_is_written_is_refused_as_a_plain_one() {
    let (device, calls) = adds();
    let z = Tensor::zeros([2, 2], DType::F32, &device).unwrap();
    for x in [z.clone(), z.t().unwrap(), z.narrow(0, 0, 1).unwrap()] {
        let e = device.dispatch_compute(ADD, &[Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)], &[], [1, 1, 1]);
        assert!(e.unwrap_err().message().contains("shares memory"));
    }
    assert_eq!((z.storage().version(), calls.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn empty_tensors_are_bound_and_failures_leave_the_device_usable() {
    let (device, calls) = adds();
    let [x, z] = [(); 2].map(|()| Tensor::zeros([0, 3], DType::F32, &device).unwrap());
    device.dispatch_compute(ADD, &[Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)], &[], [1, 1, 1]).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), z.shape()), (1, &[0, 3][..]));

    device.register_native("fails", |_| Err(Error::new(ErrorKind::Io, "fails", "no luck"))).unwrap();
    device.register_native("panics", |_| panic!("no luck")).unwrap();
    let (x, z) = (f32s(&[1.0], &[1], &device), Tensor::zeros([1], DType::F32, &device).unwrap());
    let run = |name| device.dispatch_compute(ComputeModule::Native(name), &[Bound::Write(&z)], &[], [1, 1, 1]);
    assert_eq!(run("fails").unwrap_err().kind(), &ErrorKind::Io);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run("panics"))).is_err());
    // Neither failure leaves a lock behind.
    z.fill_(2.0).unwrap();
    device.dispatch_compute(ADD, &[Bound::Read(&x), Bound::Read(&x), Bound::Write(&z)], &[], [1, 1, 1]).unwrap();
    assert_eq!(z.item().unwrap(), 2.0);
}
