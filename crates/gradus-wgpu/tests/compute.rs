//! Users' compute modules: an operation with a gradient in WGSL and in SPIR-V, what may be bound, and what is refused.

mod common;
#[allow(dead_code)]
#[path = "../../gradus/examples/compute_op.rs"]
mod compute_op;

use std::sync::Arc;

use compute_op::ScaledCube;
use gradus::autograd::apply_custom;
use gradus::prelude::*;
use gradus::{Bound, ComputeModule};
use gradus_wgpu::{Profile, WgpuBackend};
use naga::back::spv;
use naga::valid::{Capabilities, ValidationFlags, Validator};

fn opened() -> Option<(Arc<WgpuBackend>, Device)> {
    let backend = Arc::new(common::opened()?);
    Some((backend.clone(), Device::from_backend(backend)))
}

/// A module in WGSL as SPIR-V.
fn assembled(module: ComputeModule<'_>) -> Vec<u8> {
    let ComputeModule::Wgsl(text) = module else { panic!("{module:?} is not WGSL") };
    let parsed = naga::front::wgsl::parse_str(text).expect("a module");
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&parsed).expect("a valid module");
    let words = spv::write_vec(&parsed, &info, &spv::Options::default(), None).expect("words");
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The operation in SPIR-V.
fn spirv(k: f32) -> ScaledCube {
    let words = |module| ComputeModule::SpirV(assembled(module).leak());
    let wgsl = compute_op::wgsl(k);
    ScaledCube { k, forward: words(wgsl.forward), backward: words(wgsl.backward) }
}

#[test]
fn an_operation_with_a_gradient_in_wgsl_and_in_spirv() {
    let Some((backend, device)) = opened() else { return };
    let cpu = Device::from_backend(Arc::new(gradus::cpu::CpuBackend::new().expect("a CPU")));
    let results = |device: &Device, op: ScaledCube| -> Result<[Vec<f32>; 2]> {
        let x = Tensor::from_vec((0..1000).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>(), [20, 50], device)?;
        let x = x.t()?.with_grad()?;
        let y = apply_custom(&Arc::new(op), &[&x])?.swap_remove(0);
        let gradients = y.square()?.sum_all()?.backward()?;
        Ok([y.to_vec()?, gradients.get(&x).expect("a gradient").to_vec()?])
    };
    let native = compute_op::native(&cpu, 0.5).expect("native functions");
    let want = results(&cpu, native).expect("the CPU's");
    for (form, op) in [("WGSL", compute_op::wgsl(0.5)), ("SPIR-V", spirv(0.5))] {
        let got = results(&device, op).expect(form);
        for (got, want) in got.iter().zip(&want) {
            let apart = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-6 && want.iter().any(|v| v.abs() > 0.4), "{form}: {apart}");
        }
    }
    // Compared with tensor operations; by now every pipeline is compiled.
    let before = backend.counters().pipelines;
    for op in [compute_op::wgsl(0.5), spirv(0.5)] {
        results(&device, op).expect("the same again");
    }
    assert_eq!(backend.counters().pipelines, before);
    for op in [compute_op::wgsl(0.25), spirv(0.25)] {
        let found = compute_op::run(&device, op).expect("a comparison");
        assert!(found.value < 1e-5 && found.gradient < 1e-5 && found.largest > 1.0, "{found:?}");
    }
}

/// `(x, y)`: adds `x` to `y`, byte by byte.
const ADD_BYTES: &str = "
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    @compute @workgroup_size(1)
    fn main(@builtin(global_invocation_id) at: vec3<u32>) {
        y[at.x] = (y[at.x] & 0x7f7f7f7fu) + (x[at.x] & 0x7f7f7f7fu);
    }";

#[test]
fn parts_of_any_offset_and_size_are_read_and_written_alone() {
    let Some((_, device)) = opened() else { return };
    let bytes: Vec<u8> = (0..40).collect();
    for (from, len) in [(0, 40), (0, 5), (1, 7), (3, 4), (4, 8), (33, 7), (32, 8), (35, 5), (39, 1)] {
        let x = Tensor::from_vec(&bytes, [40], &device).expect("bytes");
        let y = Tensor::full([40], 50, DType::U8, &device).expect("bytes");
        let (part, sum) = (x.narrow(0, from, len).expect("a part"), y.narrow(0, from, len).expect("a part"));
        let bindings = [Bound::Read(&part), Bound::Write(&sum)];
        let groups = [len.div_ceil(4) as u32, 1, 1];
        device.dispatch_compute(ComputeModule::Wgsl(ADD_BYTES), &bindings, &[], groups).expect("a sum");
        let inside = |i: usize| (from..from + len).contains(&i);
        let want: Vec<u8> = (0..40).map(|i| if inside(i) { 50 + i as u8 } else { 50 }).collect();
        assert_eq!(y.to_vec::<u8>().expect("values"), want, "{len} bytes from {from}");
        assert_eq!((x.storage().version(), y.storage().version()), (0, 1));
    }
}

/// A module with the given bindings and body, and a constant `k`.
fn module(x: &str, y: &str, body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, {x}> x: array<f32>;
        @group(0) @binding(1) var<storage, {y}> y: array<f32>;
        var<immediate> k: f32;
        @compute @workgroup_size(64) fn main() {{ {body} }}"
    )
}

#[test]
fn what_does_not_hold_together_is_refused_before_it_runs() {
    let Some((backend, device)) = opened() else { return };
    let x = Tensor::ones([8], DType::F32, &device).expect("ones");
    let y = Tensor::zeros([8], DType::F32, &device).expect("zeros");
    let none = Tensor::zeros([0], DType::F32, &device).expect("nothing");
    let k = 2.0f32.to_ne_bytes();
    let good = module("read", "read_write", "y[0] = k * x[0];");
    let limits = device.compute_limits().expect("compute modules");
    let both = [Bound::Read(&x), Bound::Write(&y)];
    let refused = |module: ComputeModule<'_>, bindings: &[Bound<'_>], constants: &[u8], groups, says: &str| {
        let e = device.dispatch_compute(module, bindings, constants, groups).expect_err(says);
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains(says), "{says:?} is not in {e}");
    };
    let one = [1, 1, 1];
    let text = |text: &str, says| refused(ComputeModule::Wgsl(text), &both, &k, one, says);
    text("fn main( {", "expected");
    text(&module("read", "read_write", "y[0] = true;"), "cannot convert elements of `bool` to `f32`");
    text(&module("read", "read_write", "x[0] = k;"), "valid destination for a store");
    text(&good.replace("main", "other"), "main");
    text(&good.replace("64", "100000"), "out of range");
    text(&good.replace("binding(1)", "binding(2)"), "no binding 1");
    text(&good.replace("group(0) @binding(1)", "group(1) @binding(0)"), "group 1");
    let uniform =
        module("read", "read_write", "y[0] = k * x;").replace("<storage, read> x: array<f32>", "<uniform> x: f32");
    text(&uniform, "only storage buffers");
    let narrow = good.replacen("array<f32>", "array<f32, 9>", 1);
    let good = ComputeModule::Wgsl(&good);
    let spirv = assembled(good);
    refused(ComputeModule::SpirV(&spirv[..spirv.len() - 3]), &both, &k, one, "SPIR-V module is refused");
    refused(ComputeModule::SpirV(&spirv[..spirv.len() / 8 * 4]), &both, &k, one, "SPIR-V module is refused");
    refused(ComputeModule::SpirV(&[]), &both, &k, one, "SPIR-V module is refused");
    refused(ComputeModule::SpirV(&[7; 64]), &both, &k, one, "SPIR-V module is refused");
    // An array of 2 GiB in a struct, and an integer of 24 bits in one: naga panics on both.
    let head = [0x0723_0203, 0x1_0000, 0, 9, 0, 2 << 16 | 17, 1, 3 << 16 | 14, 0, 1];
    let decorated = [4 << 16 | 71, 3, 6, 4];
    let huge = [4 << 16 | 21, 1, 32, 0, 4 << 16 | 43, 1, 2, 0x2000_0000, 4 << 16 | 28, 3, 1, 2, 3 << 16 | 30, 4, 3];
    let odd = [4 << 16 | 21, 1, 24, 0, 3 << 16 | 30, 4, 1];
    for words in [[&head[..], &decorated, &huge].concat(), [&head[..], &odd].concat()] {
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        refused(ComputeModule::SpirV(&bytes), &both, &k, one, "SPIR-V module is refused: naga panics");
    }
    for good in [good, ComputeModule::SpirV(&spirv)] {
        refused(good, &[Bound::Write(&y)], &k, one, "1 bindings for a module that has 2: x, y");
        refused(good, &both, &[], one, "0 bytes of constants for a module that has 4");
        refused(good, &both, &[0; 8], one, "8 bytes of constants for a module that has 4");
        refused(good, &both, &k, [1, limits.groups[1] + 1, 1], "work-groups along axis 1");
        refused(good, &both, &k, [1, 1, 0], "work-groups along axis 2");
        refused(good, &vec![Bound::Read(&x); limits.bindings + 1], &k, one, "there are at most");
    }
    assert_eq!((x.storage().version(), y.storage().version()), (0, 0), "what is refused so far counts as no write");
    text(&narrow, "takes 36 or more");
    text(&module("read_write", "read_write", "y[0] = k * x[0];"), "bound for reading; the module may write");
    text(&module("read", "read", "_ = k * x[0] * y[0];"), "bound for writing; the module may only read");
    for good in [good, ComputeModule::SpirV(&spirv)] {
        refused(good, &[Bound::Read(&x), Bound::Read(&x)], &k, one, "bound for reading");
        refused(good, &[Bound::Write(&x), Bound::Write(&y)], &k, one, "bound for writing");
        refused(good, &[Bound::Read(&none), Bound::Write(&y)], &k, one, "binding 0 is empty");
    }
    let launches = backend.counters().launches;
    assert_eq!(y.to_vec::<f32>().expect("values"), [0.0; 8]);
    for good in [good, ComputeModule::SpirV(&spirv)] {
        device.allow_modules(Some(&[])).expect("a list");
        refused(good, &both, &k, one, &good.hash().to_string());
        device.allow_modules(Some(&[good.hash()])).expect("a list");
        device.dispatch_compute(good, &both, &k, one).expect("an allowed module");
        device.allow_modules(None).expect("no list");
    }
    assert_eq!(backend.counters().launches - launches, 2, "what was refused did not run");
    assert_eq!(y.to_vec::<f32>().expect("values"), [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn more_work_groups_than_one_axis_has_are_spread_over_two() {
    let Some((_, device)) = opened() else { return };
    let n = 64 * compute_op::ROW + 1;
    let x = Tensor::ones([n], DType::F32, &device).expect("ones");
    let y = apply_custom(&Arc::new(compute_op::wgsl(2.0)), &[&x]).expect("both axes").swap_remove(0);
    let values = y.to_vec::<f32>().expect("values");
    assert!(values.len() == n && values.iter().all(|&v| v == 2.0), "the last is {:?}", values.last());
}

#[test]
fn what_a_device_has_not_is_named() {
    let Some((_, device)) = opened() else { return };
    let run = |device: &Device, module| {
        let x = Tensor::ones([8], DType::F32, device).expect("ones");
        let y = Tensor::zeros([8], DType::F32, device).expect("zeros");
        let k = 2.0f32.to_ne_bytes();
        device.dispatch_compute(module, &[Bound::Read(&x), Bound::Write(&y)], &k, [1, 1, 1])
    };
    for module in [ComputeModule::Cuda("__global__ void main() {}"), ComputeModule::Native("scaled_cube")] {
        let e = run(&device, module).expect_err("another form");
        assert!(e.kind() == &ErrorKind::Unsupported && e.message().contains(module.form()), "{e}");
    }
    assert_eq!(device.register_native("f", |_| Ok(())).expect_err("a GPU").kind(), &ErrorKind::Unsupported);
    let Some(core) = common::opened_as(Profile::Core) else { return };
    let narrow = Device::from_backend(Arc::new(core));
    assert_eq!(narrow.compute_limits().expect("compute modules").constants, 0);
    let e = run(&narrow, compute_op::wgsl(1.0).forward).expect_err("no push constants");
    assert!(e.kind() == &ErrorKind::Unsupported && e.message().contains("IMMEDIATES"), "{e}");
}
