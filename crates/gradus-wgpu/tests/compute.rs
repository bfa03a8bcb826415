//! Tests of users' compute modules: an operation with a gradient in WGSL and in SPIR-V, what may be bound, and what is
//! rejected.

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

/// Translates a WGSL module into SPIR-V.
fn assembled(module: ComputeModule<'_>) -> Vec<u8> {
    let ComputeModule::Wgsl(text) = module else { panic!("{module:?} is not WGSL") };
    let parsed = naga::front::wgsl::parse_str(text).expect("a module");
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&parsed).expect("a valid module");
    let words = spv::write_vec(&parsed, &info, &spv::Options::default(), None).expect("words");
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The example's operation in SPIR-V.
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
    // By now every pipeline is compiled, so the same operations compile nothing new.
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

/// Adds binding 0 to binding 1, byte by byte, and ignores the highest bit of each byte.
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

/// A module whose two bindings have the access modes `x` and `y`, with the given body and a constant `k`.
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
    // A struct that holds an array of 2 GiB, and one that holds an integer of 24 bits. naga panics on both.
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

/// A module that stores the expression `value`, which may use `x[0]`, in `y[0]`. `before` holds further declarations.
fn stores(before: &str, value: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        {before}
        @compute @workgroup_size(1) fn main() {{ y[0] = {value}; }}"
    )
}

/// A SPIR-V module that adds `x[0]` to `x[0] + x[0]` as often as `terms` says, and stores the sum inside `conditions`
/// nested conditions.
fn long_sum(terms: usize, conditions: usize) -> Vec<u8> {
    use naga::{BinaryOperator, Block, Expression, Statement};
    let mut module = naga::front::wgsl::parse_str(&stores("", "x[0] + x[0]")).expect("a module");
    let main = &mut module.entry_points[0].function;
    let load = |e: &Expression| matches!(e, Expression::Load { .. });
    let x = main.expressions.iter().find(|(_, e)| load(e)).expect("a load").0;
    let mut sum = main.expressions.iter().find(|(_, e)| matches!(e, Expression::Binary { .. })).expect("a sum").0;
    let span = naga::Span::UNDEFINED;
    let mut body: Vec<Statement> = main.body.iter().cloned().collect();
    let stored = body.pop().expect("the end");
    let (stored, end) = if matches!(stored, Statement::Return { .. }) {
        (body.pop().expect("a store"), Some(stored))
    } else {
        (stored, None)
    };
    let Statement::Store { pointer, .. } = stored else { panic!("{stored:?} is no store") };
    let kept = main.expressions.len();
    for _ in 0..terms {
        let add = Expression::Binary { op: BinaryOperator::Add, left: sum, right: x };
        sum = main.expressions.append(add, span);
    }
    body.push(Statement::Emit(main.expressions.range_from(kept)));
    let yes = main.expressions.append(Expression::Literal(naga::Literal::Bool(true)), span);
    let mut inner = Block::from_vec(vec![Statement::Store { pointer, value: sum }]);
    for _ in 0..conditions {
        inner = Block::from_vec(vec![Statement::If { condition: yes, accept: inner, reject: Block::new() }]);
    }
    body.push(Statement::Block(inner));
    body.extend(end);
    main.body = Block::from_vec(body);
    let info = Validator::new(ValidationFlags::empty(), Capabilities::all()).validate(&module).expect("a valid module");
    let words = spv::write_vec(&module, &info, &spv::Options::default(), None).expect("words");
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn deep_modules_are_errors_or_run() {
    let Some((_, device)) = opened() else { return };
    let x = Tensor::ones([8], DType::F32, &device).expect("ones");
    let y = Tensor::zeros([8], DType::F32, &device).expect("zeros");
    let run = |module: ComputeModule<'_>| {
        device.dispatch_compute(module, &[Bound::Read(&x), Bound::Write(&y)], &[], [1, 1, 1])?;
        Ok::<_, Error>(y.to_vec::<f32>()?[0])
    };
    let wgsl = |before: &str, value: &str| run(ComputeModule::Wgsl(&stores(before, value)));
    assert_eq!(wgsl("", &format!("x[0]{}", " + x[0]".repeat(400))).expect("a long sum"), 401.0);
    let chain = |n: usize| (1..n).map(|i| format!("const a{i} = a{} + 1.0; ", i - 1)).collect::<String>();
    assert_eq!(wgsl(&format!("const a0 = 1.0; {}", chain(900)), "a899").expect("a chain of constants"), 900.0);
    let calls =
        |n: usize| (1..n).map(|i| format!("fn call{i}() -> f32 {{ return call{}(); }} ", i - 1)).collect::<String>();
    let calls = format!("fn call0() -> f32 {{ return 3.0; }} {}", calls(300));
    assert_eq!(wgsl(&calls, "call299()").expect("a chain of calls"), 3.0);
    let many = "fn pick(x: f32) -> f32 { if x == 2.0 { return 1.0; } ".to_owned()
        + &"else if x == 3.0 { return 2.0; }".repeat(900)
        + " return 7.0; }";
    assert_eq!(wgsl(&many, "pick(x[0])").expect("many branches"), 7.0);
    for (before, value) in [
        (String::new(), format!("x[0]{}", " + x[0]".repeat(100_000))),
        (String::new(), format!("{}x[0]", "-".repeat(100_000))),
        (String::new(), format!("{}x[0]{}", "(".repeat(100_000), ")".repeat(100_000))),
        (format!("const a0 = 1.0; {}", chain(100_000)), "a9".to_owned()),
        (many.replacen("else", &"else if x == 4.0 { return 2.0; } else".repeat(100_000), 1), "pick(x[0])".to_owned()),
        (format!("fn f() {{ {} {} }}", "{".repeat(100_000), "}".repeat(100_000)), "1.0".to_owned()),
        (format!("var<private> z: {}f32{};", "array<".repeat(10_000), ",1>".repeat(10_000)), "1.0".to_owned()),
    ] {
        let e = wgsl(&before, &value).expect_err("a module that is too deep");
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
    }
    let spirv = |terms, conditions| run(ComputeModule::SpirV(&long_sum(terms, conditions)));
    assert_eq!(spirv(400, 100).expect("a long sum"), 402.0);
    assert_eq!(spirv(10_000, 500).expect("a longer sum"), 10_002.0);
    let e = spirv(60_000, 0).expect_err("a long module");
    assert!(e.kind() == &ErrorKind::InvalidArgument && e.message().contains("at most"), "{e}");
}

#[test]
fn elements_are_declared_as_they_are_or_as_words() {
    let Some((_, device)) = opened() else { return };
    let cpu = Device::cpu().expect("the CPU");
    let of = |dtype: DType| {
        let t = Tensor::from_vec((1..=8).map(f64::from).collect::<Vec<_>>(), [8], &cpu).and_then(|t| t.to_dtype(dtype));
        t.and_then(|t| t.to_device(&device)).expect("numbers")
    };
    let copies = |element: &str, of: &str| {
        format!(
            "struct Data {{ first: {element}, rest: array<{element}> }}
            @group(0) @binding(0) var<storage, read> x: {of};
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1) fn main() {{ y[0] = u32(arrayLength(&y)); _ = &x; }}"
        )
    };
    let words = Tensor::zeros([2], DType::U32, &device).expect("words");
    let run = |x: &Tensor, module: &str| {
        let bindings = [Bound::Read(x), Bound::Write(&words)];
        device.dispatch_compute(ComputeModule::Wgsl(module), &bindings, &[], [1, 1, 1])
    };
    for (dtype, element, fits) in [
        (DType::F32, "f32", true),
        (DType::I32, "f32", false),
        (DType::F32, "i32", false),
        (DType::U32, "f32", false),
        (DType::BF16, "f32", false),
        (DType::U8, "i32", false),
        (DType::I32, "i32", true),
        (DType::F32, "u32", true),
        (DType::I64, "u32", true),
        (DType::BF16, "u32", true),
        (DType::U8, "u32", true),
        (DType::I64, "i32", false),
    ] {
        let x = of(dtype);
        for form in [format!("array<{element}>"), format!("array<vec2<{element}>>"), "Data".to_owned()] {
            let done = run(&x, &copies(element, &form));
            if fits {
                done.expect("an element of this dtype");
                continue;
            }
            let e = done.expect_err("another dtype");
            assert_eq!(e.kind(), &ErrorKind::DTypeMismatch, "{e}");
            assert!(
                e.to_string().contains(&format!("binding 0 is {dtype}; the module's \"x\" holds {element}")),
                "{e}"
            );
        }
    }
    assert_eq!(words.to_vec::<u32>().expect("values"), [2, 0]);
}

#[test]
fn memory_of_a_work_group_is_limited() {
    let Some((_, device)) = opened() else { return };
    let x = Tensor::ones([8], DType::F32, &device).expect("ones");
    let y = Tensor::zeros([8], DType::F32, &device).expect("zeros");
    let run = |before: &str, value: &str| {
        let module = stores(before, value);
        device.dispatch_compute(ComputeModule::Wgsl(&module), &[Bound::Read(&x), Bound::Write(&y)], &[], [1, 1, 1])
    };
    run("var<workgroup> few: array<f32, 4096>;", "few[4095] + 5.0").expect("16 KiB");
    assert_eq!(y.to_vec::<f32>().expect("values")[0], 5.0);
    for many in [
        "var<workgroup> many: array<f32, 100000000>;",
        "override n = 100000000; var<workgroup> many: array<f32, n>;",
        "var<workgroup> many: array<f32, 4096>; var<workgroup> more: array<array<vec4<f32>, 1024>, 1024>;",
    ] {
        let e = run(many, "many[3]").expect_err("400 MB");
        assert!(e.kind() == &ErrorKind::Unsupported && e.message().contains("a work-group of this device has"), "{e}");
    }
}

#[test]
fn accesses_outside_of_a_tensor_stay_inside_it() {
    for profile in Profile::ALL {
        let Some(backend) = common::opened_as(profile) else { return };
        let device = Device::from_backend(Arc::new(backend));
        let memory = || Tensor::full([3000], 5.0, DType::F32, &device).expect("a tensor");
        let (from, to) = (memory(), memory());
        let (x, y) = (from.narrow(0, 64, 100).expect("a part"), to.narrow(0, 1024, 100).expect("a part"));
        x.fill_(7.0).expect("other numbers");
        y.fill_(0.0).expect("other numbers");
        let module = "
            @group(0) @binding(0) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<storage, read_write> y: array<f32>;
            @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
                let far = at.x * 33554431u + 100u;
                y[at.x] = x[far];
                y[far] = 9.0;
                y[i32(at.x) - 2000] = 9.0;
            }";
        let bindings = [Bound::Read(&x), Bound::Write(&y)];
        device.dispatch_compute(ComputeModule::Wgsl(module), &bindings, &[], [1, 1, 1]).expect("a run");
        let values = to.to_vec::<f32>().expect("values");
        let (inside, outside) = (&values[1024..1124], [&values[..1024], &values[1124..]].concat());
        assert!(inside.iter().all(|v| [0.0, 7.0, 9.0].contains(v)), "{inside:?}");
        assert!(outside.iter().all(|&v| v == 5.0), "{outside:?}");
    }
}
