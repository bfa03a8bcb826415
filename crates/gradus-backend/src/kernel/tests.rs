//! Tests of the IR against closed forms and finite differences.

use super::*;
use crate::{DType, Scalar, bf16_from_f64, f16_from_f64};

fn f(v: f64) -> Scalar {
    Scalar::Float(v)
}

fn one(kernel: &Kernel, args: &[f64]) -> f64 {
    kernel.eval(&args.iter().map(|&v| f(v)).collect::<Vec<_>>()).unwrap()[0].to_f64()
}

/// The gradient of output 0 at `x`, for an output gradient of 1.
fn gradient(kernel: &Kernel, x: &[f64]) -> Vec<f64> {
    let vjp = kernel.vjp((1 << x.len()) - 1).unwrap();
    let args: Vec<_> = vjp.args.iter().map(|a| f(if let VjpArg::Input(i) = a { x[*i] } else { 1.0 })).collect();
    vjp.kernel.eval(&args).unwrap().iter().map(|s| s.to_f64()).collect()
}

#[test]
fn every_float_instruction_has_the_slope_of_its_finite_difference_to_second_order() {
    use ScalarOp::*;
    for &op in
        ScalarOp::ALL.iter().filter(|o| matches!(o.rule(), TypeRule::Float | TypeRule::Number | TypeRule::Signed))
    {
        let points: &[f64] = match op {
            Acosh => &[1.3, 2.5],
            Asin | Acos | Atanh => &[-0.6, 0.3],
            Log | Log2 | Log10 | Log1p | Sqrt | Rsqrt => &[0.4, 2.7],
            // Their slope is that of what they round.
            RoundF16 | RoundBf16 => &[],
            _ => &[-1.3, 0.35, 2.2],
        };
        for &x in points {
            let (kernel, at) = if op.arity() == 1 {
                (Kernel::build("k", &[DType::F64], |v| vec![v[0].unary(op)]).unwrap(), vec![x])
            } else {
                (Kernel::build("k", &[DType::F64; 2], |v| vec![v[0].binary(op, v[1])]).unwrap(), vec![x.abs(), 1.7])
            };
            let first = gradient(&kernel, &at);
            for i in 0..at.len() {
                let shifted = |h: f64| {
                    let mut p = at.clone();
                    p[i] += h;
                    p
                };
                let h = 1e-6;
                let numeric = (one(&kernel, &shifted(h)) - one(&kernel, &shifted(-h))) / (2.0 * h);
                assert!(
                    (numeric - first[i]).abs() < 1e-6 * (1.0 + numeric.abs()),
                    "{op:?} {at:?}: {numeric} {}",
                    first[i]
                );
                // Second order: the gradient kernel for argument i, differentiated again.
                let vjp = kernel.vjp(1 << i).unwrap();
                let args = |p: &[f64]| -> Vec<f64> {
                    vjp.args.iter().map(|a| if let VjpArg::Input(i) = a { p[*i] } else { 1.0 }).collect()
                };
                let second = gradient(&vjp.kernel, &args(&at));
                let analytic = vjp.args.iter().position(|a| *a == VjpArg::Input(i)).map_or(0.0, |k| second[k]);
                let numeric =
                    (one(&vjp.kernel, &args(&shifted(h))) - one(&vjp.kernel, &args(&shifted(-h)))) / (2.0 * h);
                assert!(
                    (numeric - analytic).abs() < 1e-6 * (1.0 + numeric.abs()),
                    "{op:?}'' {at:?}: {numeric} {analytic}"
                );
            }
        }
    }
}

#[test]
fn the_slope_of_a_gate_has_its_limits() {
    for gate_first in [false, true] {
        let gate = Kernel::build("gate", &[DType::F64], |v| {
            let (x, s) = (v[0], v[0].sigmoid());
            vec![if gate_first { s * x } else { x * s }]
        });
        let slope = &gate.unwrap().vjp(1).unwrap().kernel;
        let second = &slope.vjp(1).unwrap().kernel;
        let at = |k: &Kernel, x: f64| {
            let arguments: Vec<_> =
                std::iter::once(x).chain(vec![1.0; k.args().len() - 1]).map(Scalar::Float).collect();
            k.eval(&arguments).unwrap()[0].to_f64()
        };
        for (x, first) in [(f64::INFINITY, 1.0), (1e30, 1.0), (0.0, 0.5), (-1e30, 0.0)] {
            assert_eq!((at(slope, x), at(second, x)), (first, if x == 0.0 { 0.5 } else { 0.0 }), "{x} {second}");
        }
        assert!(at(slope, f64::NAN).is_nan());
    }
}

#[test]
fn gradients_are_exact_where_naive_forms_cancel_or_overflow() {
    let k = |op| Kernel::build("k", &[DType::F32], |v| vec![v[0].unary(op)]).unwrap();
    assert!((gradient(&k(ScalarOp::Sigmoid), &[40.0])[0] / (-40f64).exp() - 1.0).abs() < 1e-6);
    assert!((gradient(&k(ScalarOp::Expm1), &[-40.0])[0] / (-40f64).exp() - 1.0).abs() < 1e-6);
    assert_eq!(gradient(&k(ScalarOp::Softplus), &[1000.0]), [1.0]);
    let pow = Kernel::build("pow", &[DType::F32; 2], |v| vec![v[0].pow(v[1])]).unwrap();
    assert_eq!(gradient(&pow, &[0.0, 0.0]), [0.0, 0.0]);
    assert_eq!(gradient(&pow, &[0.0, 2.0]), [0.0, 0.0]);
    // d/db of b * a^(b-1) at b = 0 is 1 / a.
    let slope = pow.vjp(0b01).unwrap();
    assert_eq!(slope.args, [VjpArg::Input(0), VjpArg::Input(1), VjpArg::Grad(0)]);
    assert_eq!(gradient(&slope.kernel, &[2.0, 0.0, 1.0])[1], 0.5);
    let max = Kernel::build("max", &[DType::F32; 2], |v| vec![v[0].max(v[1])]).unwrap();
    assert_eq!(gradient(&max, &[2.0, 2.0]), [0.5, 0.5]);
    let r#where = Kernel::build("w", &[DType::F32], |v| vec![v[0].gt(0.0).select(v[0], 0.0)]).unwrap();
    assert_eq!(gradient(&r#where, &[-1.0]), [0.0]);
}

#[test]
fn gradient_reads_only_what_it_needs() {
    let add = Kernel::build("add", &[DType::F32; 2], |v| vec![v[0] + v[1]]).unwrap();
    assert_eq!(add.vjp(0b11).unwrap().args, [VjpArg::Grad(0)]);
    assert_eq!(add.vjp(0b11).unwrap().passed, [(0, 0), (1, 0)]);
    assert_eq!(
        Kernel::build("sub", &[DType::F16; 2], |x| vec![x[0] - x[1]]).unwrap().vjp(0b11).unwrap().passed,
        [(0, 0)]
    );
    let mul = Kernel::build("mul", &[DType::F32; 2], |v| vec![v[0] * v[1]]).unwrap();
    assert_eq!(mul.vjp(0b01).unwrap().args, [VjpArg::Input(1), VjpArg::Grad(0)]);
    assert!(!mul.vjp(0b01).unwrap().reads_input(0));
}

#[test]
fn integers_wrap_and_refuse_a_zero_divisor() {
    let add = Kernel::build("add", &[DType::I8; 2], |v| vec![v[0] + v[1]]).unwrap();
    assert_eq!(add.eval(&[Scalar::Int(127), Scalar::Int(1)]).unwrap(), [Scalar::Int(-128)]);
    let div = Kernel::build("div", &[DType::I64; 2], |v| vec![v[0] / v[1]]).unwrap();
    assert_eq!(div.eval(&[Scalar::Int(i64::MIN), Scalar::Int(-1)]).unwrap(), [Scalar::Int(i64::MIN)]);
    assert!(div.eval(&[Scalar::Int(1), Scalar::Int(0)]).is_err());
    let floor = Kernel::build("floor_div", &[DType::I32; 2], |v| vec![v[0].floor_div(v[1])]).unwrap();
    for (a, b, want) in [(7, 2, 3), (-7, 2, -4), (7, -2, -4), (-7, -2, 3), (6, -2, -3)] {
        assert_eq!(floor.eval(&[Scalar::Int(a), Scalar::Int(b)]).unwrap(), [Scalar::Int(want)], "{a} {b}");
    }
}

#[test]
fn large_integers_convert_with_one_rounding_and_unsigned_ones_keep_their_sign() {
    let to = |from, to| Kernel::build("cast", &[from], |v| vec![v[0].cast(to)]).unwrap();
    // Above the midpoint of two f32 values, by less than the precision of an f64.
    let v = (1i64 << 60) + (1 << 36) + 1;
    assert_eq!(to(DType::I64, DType::F32).eval(&[Scalar::Int(v)]).unwrap(), [f(f64::from(v as f32))]);
    let high = Scalar::Int(u64::MAX as i64);
    assert_eq!(to(DType::U64, DType::F64).eval(&[high]).unwrap(), [f(2f64.powi(64))]);
    let abs = Kernel::build("abs", &[DType::U64], |v| vec![v[0].abs()]).unwrap();
    assert_eq!(abs.eval(&[high]).unwrap(), [high]);
}

#[test]
fn half_arguments_compute_in_f32_and_round_once() {
    let k = Kernel::build("k", &[DType::BF16, DType::BF16], |v| vec![v[0] * v[0] - v[1]]).unwrap();
    assert_eq!(k.outputs()[0].1, DType::BF16);
    // 1.0078125^2 = 1.01568603515625, which bf16 would round to 1.015625 before the difference.
    let y = k.eval(&[f(1.0078125), f(1.015625)]).unwrap()[0].to_f64();
    assert_eq!(y, 1.0078125f64.powi(2) - 1.015625);
}

#[test]
fn ill_typed_code_is_an_error_that_names_the_kernel() {
    let e = Kernel::build("bad", &[DType::I64], |v| vec![v[0].exp()]).unwrap_err();
    assert!(e.to_string().contains("exp of (i64)") && e.to_string().contains("bad"), "{e}");
    assert!(Kernel::build("bad", &[DType::F32, DType::F64], |v| vec![v[0] + v[1]]).is_err());
    assert!(Kernel::build("bad", &[DType::U8], |v| vec![-v[0]]).is_err());
    assert!(Kernel::build("none", &[DType::U8], |_| vec![]).is_err());
}

#[test]
fn printed_form_shows_every_instruction() {
    let k = Kernel::build("silu", &[DType::F32], |v| vec![v[0] * v[0].sigmoid()]).unwrap();
    let want = "silu(f32) {\n  v0 = arg 0 : f32\n  v1 = sigmoid v0 : f32\n  v2 = mul v0, v1 : f32\n} -> (v2 : f32)";
    assert_eq!(k.to_string(), want);
}

#[test]
fn a_floored_quotient_is_the_floor_of_the_exact_one() {
    use super::floor_div;
    for (a, b, want) in [
        (1.0, 0.1, 9.0),
        (-1.0, 0.1, -10.0),
        (6.0, 3.0, 2.0),
        (-7.0, 2.0, -4.0),
        (7.0, -2.0, -4.0),
        (1.0, f64::INFINITY, 0.0),
        (-1.0, f64::INFINITY, -1.0),
        (-1e-300, 1e300, -1.0),
        (1.0, 0.0, f64::INFINITY),
        (1e308, 1e-10, f64::INFINITY),
    ] {
        assert_eq!(floor_div(a, b), want, "{a} // {b}");
    }
    assert!(
        floor_div(f64::INFINITY, 1.0).is_nan() && floor_div(0.0, 0.0).is_nan() && floor_div(f64::NAN, 1.0).is_nan()
    );
    assert!(floor_div(-0.0, 1.0).is_sign_negative());
    // Compare with the remainder, which is exact.
    for i in 1..2000u32 {
        let (a, b) = (f64::from(i) * 0.1, f64::from(i % 37 + 1) * 0.1);
        assert_eq!(floor_div(a, b), ((a - libm::fmod(a, b)) / b).round(), "{a} // {b}");
    }
    let kernel = Kernel::build("floor_div", &[DType::F64; 2], |v| vec![v[0].floor_div(v[1])]).unwrap();
    assert_eq!(kernel.eval(&[Scalar::Float(1.0), Scalar::Float(0.1)]).unwrap(), [Scalar::Float(9.0)]);
}

#[test]
fn a_gradient_too_large_for_a_kernel_is_an_error() {
    // Each step adds a constant and takes a sine; its gradient adds a cosine and a product.
    let long = |n: i32| {
        Kernel::build("long", &[DType::F64], |v| vec![(0..n).fold(v[0], |x, i| (x + f64::from(i)).sin())]).unwrap()
    };
    let e = long(14_000).vjp(1).unwrap_err();
    assert_eq!(e.kind(), &crate::ErrorKind::Autograd);
    assert!(e.to_string().contains("65535") && e.to_string().contains("split"), "{e}");
    assert!(long(100).vjp(1).is_ok());
}

#[test]
fn slopes_hold_to_the_ends_of_the_range() {
    let asinh = Kernel::build("asinh", &[DType::F32], |v| vec![v[0].asinh()]).unwrap();
    let acosh = Kernel::build("acosh", &[DType::F32], |v| vec![v[0].acosh()]).unwrap();
    for kernel in [&asinh, &acosh] {
        for x in [1e20, 1e30, 3e38] {
            let slope = gradient(kernel, &[x])[0] * x;
            assert!((slope - 1.0).abs() < 1e-6, "{} {x:e}: {slope}", kernel.name());
        }
    }
    let atan = Kernel::build("atan", &[DType::F64], |v| vec![v[0].atan()]).unwrap();
    assert!((gradient(&atan, &[1e100])[0] * 1e200 - 1.0).abs() < 1e-14);
    // Second derivatives: 0 at the ends, -x / (x^2 + 1)^(3/2) and -2 x / (x^2 + 1)^2 elsewhere.
    let asinh = Kernel::build("asinh", &[DType::F64], |v| vec![v[0].asinh()]).unwrap();
    for (kernel, at_two) in [(asinh, 2.0 / 5f64.powf(1.5)), (atan, 4.0 / 25.0)] {
        let first = kernel.vjp(1).unwrap();
        let x = first.args.iter().position(|a| *a == VjpArg::Input(0)).unwrap();
        let second = |at: f64| {
            let mut args = vec![1.0; first.args.len()];
            args[x] = at;
            gradient(&first.kernel, &args)[x]
        };
        for inf in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!((gradient(&kernel, &[inf])[0], second(inf)), (0.0, 0.0), "{}", kernel.name());
        }
        for (at, want) in [(2.0, -at_two), (-2.0, at_two)] {
            assert!((second(at) - want).abs() < 1e-15, "{} {at}: {}", kernel.name(), second(at));
        }
    }
}

#[test]
fn anything_to_the_power_of_zero_is_flat_in_the_base() {
    let pow = Kernel::build("pow", &[DType::F64; 2], |v| vec![v[0].pow(v[1])]).unwrap();
    for base in [f64::NAN, 0.0, -0.0, 2.0, -3.0, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(one(&pow, &[base, 0.0]), 1.0);
        assert_eq!(gradient(&pow, &[base, 0.0])[0], 0.0, "{base}");
    }
    assert!(gradient(&pow, &[f64::NAN, 2.0])[0].is_nan());
}

#[test]
fn expressions_of_another_kernel_are_refused() {
    let (a, b) = (KernelBuilder::new(&[DType::F32]), KernelBuilder::new(&[DType::F32; 5]));
    let (x, y) = (a.args()[0], b.args()[4]);
    let refused = |e: Expr<'_>| a.finish("mixed", &[(e, DType::F32)]).unwrap_err().to_string();
    assert!(a.finish("own", &[(x, DType::F32)]).is_ok());
    assert!(refused(y).contains("another kernel"));
    assert!(refused(x + y).contains("another kernel"));
    let makers: [for<'k> fn(Expr<'k>, Expr<'k>) -> Expr<'k>; 2] =
        [|x, y| x.lt(0.0).select(y, x), |x, y| x.lt(0.0).select(x, y)];
    for make in makers {
        let (a, b) = (KernelBuilder::new(&[DType::F32]), KernelBuilder::new(&[DType::F32; 5]));
        let e = a.finish("mixed", &[(make(a.args()[0], b.args()[4]), DType::F32)]).unwrap_err();
        assert!(e.to_string().contains("another kernel"), "{e}");
    }
}

#[test]
fn a_product_with_one_has_one_type_all_the_same() {
    for (dtype, other) in [(DType::F32, DType::I64), (DType::I64, DType::F32), (DType::Bool, DType::Bool)] {
        let builder = KernelBuilder::new(&[dtype]);
        let y = builder.args()[0] * builder.constant(other, 1i64);
        assert!(builder.finish("one", &[(y, dtype)]).is_err(), "{dtype} {other}");
    }
    let builder = KernelBuilder::new(&[DType::F32]);
    let y = builder.args()[0] * builder.constant(DType::F32, 1i64);
    assert_eq!(builder.finish("one", &[(y, DType::F32)]).unwrap().insts().len(), 1);
}

#[test]
fn a_joined_kernel_rounds_what_lies_between_in_half_precision() {
    for half in [DType::F16, DType::BF16] {
        let square = Kernel::build("square", &[half], |x| vec![x[0] * x[0]]).unwrap();
        let sub = Kernel::build("sub", &[half; 2], |x| vec![x[0] - x[1]]).unwrap();
        let from = [JoinArg::First, JoinArg::Arg(1)];
        let joined = Kernel::joined(&square, &sub, &[half; 2], &[0], &from, false).unwrap();
        let both = Kernel::joined(&square, &sub, &[half; 2], &[0], &from, true).unwrap();
        let rounded = |x: f64| if half == DType::F16 { f16_from_f64(x).to_f64() } else { bf16_from_f64(x).to_f64() };
        let mut differs = 0;
        for i in 0..1000 {
            let [x, y] = [0.37, 1.0].map(|by| rounded(by * (1.0 + f64::from(i) / 700.0)));
            let between = one(&square, &[x]);
            assert_eq!(between, rounded(x * x));
            let want = one(&sub, &[between, y]);
            assert_eq!(one(&joined, &[x, y]), want, "{half}: {x} {y}");
            let results = both.eval(&[Scalar::Float(x), Scalar::Float(y)]).unwrap();
            assert_eq!(results.iter().map(|s| s.to_f64()).collect::<Vec<_>>(), [want, between]);
            differs += usize::from(rounded(x * x - y) != want);
        }
        assert!(differs > 100, "{half}: {differs}");
        let slope = gradient(&Kernel::build("k", &[DType::F32], |x| vec![x[0].stored_as(half) * 3.0]).unwrap(), &[0.1]);
        assert_eq!(slope, [3.0]);
    }
}

#[test]
fn an_f64_is_stored_in_half_precision_in_one_rounding() {
    for (dtype, ulp) in [(DType::F16, 10), (DType::BF16, 7)] {
        let builder = KernelBuilder::new(&[DType::F64]);
        let kernel = builder.finish("store", &[(builder.args()[0], dtype)]).unwrap();
        let just_above_a_tie = 1.0 + 2f64.powi(-ulp - 1) + 2f64.powi(-45);
        assert_eq!(one(&kernel, &[just_above_a_tie]), 1.0 + 2f64.powi(-ulp), "{dtype}");
        assert_eq!(gradient(&kernel, &[1.0]), [1.0]);
    }
}
