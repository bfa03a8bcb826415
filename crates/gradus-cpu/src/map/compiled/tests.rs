//! Tests of the compiled kernels against the interpreter.

use std::fmt::Write;
use std::sync::Arc;

use gradus_backend::kernel::Expr;
use gradus_backend::{Backend, Kernel, MapArg};

use super::list::ALL;
use super::*;
use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_same_bits, noise};

/// The kernels in the list, as the library builds them.
fn kernels() -> Vec<Arc<Kernel>> {
    let f32s = [DType::F32; 2];
    let forward = [
        Kernel::build("silu", &f32s[..1], |v| vec![v[0].silu()]),
        Kernel::build("silu_mul", &f32s, |v| vec![v[0].silu() * v[1]]),
        Kernel::build("gelu_tanh", &f32s[..1], |v| vec![v[0].gelu_tanh()]),
    ]
    .map(|k| Arc::new(k.unwrap()));
    let backward = |k: &Arc<Kernel>| k.vjp((1 << k.args().len()) - 1).unwrap().kernel.clone();
    let activations = forward.iter().flat_map(|k| [k.clone(), backward(k)]);
    activations.chain([hardswish(), adam("adam", |x| x[0]), adam("adamw", |x| x[0] * x[11])]).collect()
}

/// The activation, as `gradus-tensor` builds it. A test of `gradus-tensor` checks that this kernel is compiled.
fn hardswish() -> Arc<Kernel> {
    let kernel = Kernel::build("hardswish", &[DType::F32], |x| {
        let c = x[0].bounded(3.0);
        vec![x[0].le(-3.0).select(0.0, x[0].ge(3.0).select(x[0], c * (c + 3.0) / 6.0))]
    });
    Arc::new(kernel.unwrap())
}

/// The update step of Adam, as `gradus-nn` builds it. A test of `gradus-nn` checks that this kernel is compiled.
fn adam(name: &str, decayed: for<'k> fn(&[Expr<'k>]) -> Expr<'k>) -> Arc<Kernel> {
    let kernel = Kernel::build(name, &[DType::F32; 12], |x| {
        let p = decayed(x);
        let m = x[4] * x[2] + x[5] * x[1];
        let v = x[6] * x[3] + x[7] * (x[1] * x[1]);
        vec![p - x[8] * m / (v.sqrt() * x[9] + x[10]), m, v]
    });
    Arc::new(kernel.unwrap())
}

/// Returns a function that tells whether argument `k` of a kernel is a single number.
fn is_number(kernel: &Kernel) -> impl Fn(usize) -> bool {
    let elementwise = if kernel.name().starts_with("adam") { 4 } else { MOST_ARGS };
    move |k| k >= elementwise
}

/// Returns a kernel that computes the same values and one more output, so that it is interpreted.
fn interpreted(kernel: &Kernel) -> Kernel {
    let builder = gradus_backend::kernel::KernelBuilder::new(kernel.args());
    let args = builder.args();
    let mut values: Vec<Expr<'_>> = Vec::new();
    for inst in kernel.insts() {
        let input = |k: usize| values[usize::from(inst.operands[k])];
        values.push(match (inst.op, inst.op.arity()) {
            (ScalarOp::Arg(k), _) => args[usize::from(k)],
            (ScalarOp::Const(c), _) => builder.constant(inst.dtype, c),
            (ScalarOp::Select, _) => input(0).select(input(1), input(2)),
            (op, 1) => input(0).unary(op),
            (op, _) => input(0).binary(op, input(1)),
        });
    }
    let mut outs: Vec<_> = kernel.outputs().iter().map(|&(v, d)| (values[usize::from(v)], d)).collect();
    outs.push((args[0], DType::F32));
    builder.finish(kernel.name(), &outs).unwrap()
}

fn bits(cpu: &CpuBackend, tensor: &Tensor) -> Vec<u64> {
    tensor.values(cpu).iter().map(|v| if v.is_nan() { 0 } else { v.to_bits() }).collect()
}

/// Returns argument `k` of a kernel: the tensor, or a number.
fn arg<'a>(kernel: &Kernel, k: usize, tensor: &'a Tensor) -> MapArg<'a> {
    if is_number(kernel)(k) { MapArg::Scalar(Scalar::Float(0.1 * k as f64)) } else { MapArg::View(tensor.view()) }
}

const SPECIAL: [f64; 14] =
    [0.0, -0.0, 1.0, 3.0, -3.0, -1000.0, 1000.0, 60.0, -60.0, 1e-40, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3e38];

/// Runs a kernel on arguments with the given layouts. Their values include all special values and all pairs of them.
fn run(cpu: &CpuBackend, kernel: &Kernel, lie: impl Fn(usize) -> Lie) -> Vec<Vec<u64>> {
    let dims = [7, 181];
    let value = |k: usize| {
        let mut random = noise(k as u64);
        move |i: usize| match i / SPECIAL.len().pow(k as u32) {
            j if i < 900 => SPECIAL[j % SPECIAL.len()],
            _ => 8.0 * random(i),
        }
    };
    let args: Vec<_> =
        (0..kernel.args().len()).map(|k| Tensor::new(cpu, DType::F32, &dims, lie(k), value(k))).collect();
    let mut outs: Vec<_> =
        kernel.outputs().iter().enumerate().map(|(k, o)| Tensor::canary(cpu, o.1, &dims, lie(3 + k))).collect();
    let args: Vec<_> = args.iter().enumerate().map(|(k, a)| arg(kernel, k, a)).collect();
    cpu.map(kernel, &args, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
    outs.iter().map(|o| bits(cpu, o)).collect()
}

/// Generates the contents of `list.rs` from the kernels.
fn list() -> String {
    let mut text =
        "//! Made by `cargo xtask compiled`: not to be edited by hand.\n\nuse super::*;\n\ncompiled! {\n".to_owned();
    for kernel in kernels() {
        let is_number = is_number(&kernel);
        let elementwise = (0..kernel.args().len()).filter(|&k| !is_number(k)).count();
        let outs: Vec<String> = kernel.outputs().iter().map(|(v, _)| format!("v{v}")).collect();
        let name = kernel.name();
        let _ = writeln!(text, "    {name}({elementwise}) -> ({}) {{", outs.join(", "));
        for (i, inst) in kernel.insts().iter().enumerate() {
            let operands: Vec<String> = inst.operands[..inst.op.arity()].iter().map(|v| format!("v{v}")).collect();
            let code = match inst.op {
                ScalarOp::Arg(k) if is_number(usize::from(k)) => format!("Number({k})"),
                ScalarOp::Arg(k) => format!("Arg({k})"),
                ScalarOp::Const(c) => match c.to_f64() {
                    c if c == f64::NEG_INFINITY => "Const(f64::NEG_INFINITY)".to_owned(),
                    c => format!("Const({c:?})"),
                },
                op => format!("{op:?}({})", operands.join(", ")),
            };
            let _ = writeln!(text, "        v{i} = {code};");
        }
        text += "    }\n";
    }
    text + "}\n"
}

#[test]
fn the_list_is_made_from_the_kernels() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/map/compiled/list.rs");
    if std::env::var_os("GRADUS_WRITE").is_some() {
        return std::fs::write(path, list()).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap() == list(), "list.rs is stale: run `cargo xtask compiled`");
}

#[test]
fn each_is_found_and_gives_the_interpreters_bits() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let kernels = kernels();
    assert_eq!(kernels.len(), ALL.len());
    for kernel in &kernels {
        let slow = interpreted(kernel);
        assert!(find(kernel, is_number(kernel)).is_some(), "{kernel}");
        assert!(find(&slow, is_number(kernel)).is_none());
        for shift in 0..4 {
            let lie = |k: usize| if shift == 0 { Lie::Contiguous } else { Lie::ALL[(k + shift) % 4] };
            let (fast, slow) = (run(&cpu, kernel, lie), run(&cpu, &slow, lie));
            assert_eq!(fast[..], slow[..fast.len()], "{kernel}");
        }
    }
}

#[test]
fn an_argument_may_be_an_output() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    for kernel in &kernels() {
        let n = kernel.args().len();
        let tensor = |k: usize| Tensor::new(&cpu, DType::F32, &[3000], Lie::Contiguous, noise(k as u64));
        let args: Vec<_> = (0..n).map(tensor).collect();
        let mut outs: Vec<_> = kernel.outputs().iter().map(|_| tensor(9)).collect();
        let views = |from: usize| args.iter().enumerate().skip(from).map(|(k, a)| arg(kernel, k, a));
        let all: Vec<_> = views(0).collect();
        cpu.map(kernel, &all, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
        let want: Vec<_> = outs.iter().map(|o| bits(&cpu, o)).collect();

        outs[0] = tensor(0);
        let all: Vec<_> = std::iter::once(MapArg::Output(0)).chain(views(1)).collect();
        cpu.map(kernel, &all, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
        assert!(outs.iter().map(|o| bits(&cpu, o)).eq(want), "{kernel}");
    }
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for kernel in kernels() {
        assert_same_bits(|cpu| {
            run(cpu, &kernel, |_| Lie::Contiguous).concat().iter().flat_map(|v| v.to_le_bytes()).collect()
        });
    }
}

#[test]
fn another_constant_is_another_kernel() {
    let other = Kernel::build("silu", &[DType::F32], |v| {
        let x = v[0].lt(-900.0).select(-900.0, v[0]);
        vec![x * x.sigmoid()]
    });
    let other = other.unwrap();
    let f64s = Kernel::build("silu", &[DType::F64], |v| vec![v[0].silu()]).unwrap();
    assert!(find(&other, |_| false).is_none() && find(&f64s, |_| false).is_none());
    // Nor is a kernel found if numbers are passed for its tensor arguments.
    assert!(find(&kernels()[0], |_| true).is_none());
}
