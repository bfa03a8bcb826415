//! Elementwise operations, compared with reference values and tested at special points: infinities, NaN, -0 and kinks.
#![allow(clippy::unwrap_used)]

mod common;

use std::f64::consts::LN_2;

use common::{assert_close, both, cpu, f32s, f64s, i64s, layouts, randn};
use gradus_tensor::ops::table::{HARDSWISH, TABLE};
use gradus_tensor::{DType, ErrorKind, Result, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn v(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The first and second derivative of a function at the points `at`.
fn slopes(f: impl Fn(&Tensor) -> Result<Tensor>, at: &[f64]) -> (Vec<f64>, Vec<f64>) {
    use gradus_tensor::{BackwardOptions, grad};
    let x = f64s(at, &[at.len()]).with_grad().unwrap();
    let y = f(&x).unwrap().sum_all().unwrap();
    let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap().remove(0).unwrap();
    let first = v(&g);
    let second = match g.requires_grad() {
        true => grad(&[&g.sum_all().unwrap()], &[&x], None, BackwardOptions::new()).unwrap().remove(0),
        false => None,
    };
    (first, second.map_or_else(|| vec![0.0; at.len()], |g| v(&g)))
}

/// This kernel must be among those listed in `map/compiled.rs` of `gradus-cpu`, because the interpreter takes several times
/// as long for its many instructions.
#[test]
fn hardswish_is_compiled_with_the_cpu_backend() {
    let kernel = HARDSWISH.kernel(DType::F32).unwrap();
    assert!(gradus_cpu::is_compiled(&kernel, 1), "{kernel}");
}

const POINTS: [f64; 7] = [-4.0, -2.0, -0.3, 0.0, 0.4, 2.0, 7.0];

#[test]
fn activations_agree_with_the_reference() {
    // Values of PyTorch 2 in f64, with alpha and lambda as in the samples of [`TABLE`].
    #[rustfmt::skip]
    let reference: &[(&str, &[f64; 7])] = &[
        ("elu", &[-0.687179053, -0.605265302, -0.181427246, 0.0, 0.4, 2.0, 7.0]),
        ("selu", &[-1.72589863, -1.52016647, -0.455667315, 0.0, 0.420280395, 2.10140197, 7.35490691]),
        ("celu", &[-0.697691046, -0.659797167, -0.24399266, 0.0, 0.4, 2.0, 7.0]),
        ("softsign", &[-0.8, -0.666666667, -0.230769231, 0.0, 0.285714286, 0.666666667, 0.875]),
        ("log_sigmoid", &[-4.01814993, -2.12692801, -0.854355244, -LN_2, -0.513015252, -0.126928011, -0.000911466454]),
        ("mish", &[-0.0725917408, -0.252501483, -0.151133177, 0.0, 0.289030534, 1.94395896, 6.99998838]),
        ("relu6", &[0.0, 0.0, 0.0, 0.0, 0.4, 2.0, 6.0]),
        ("hardtanh", &[-1.5, -1.5, -0.3, 0.0, 0.4, 1.0, 1.0]),
        ("hardsigmoid", &[0.0, 0.166666667, 0.45, 0.5, 0.566666667, 0.833333333, 1.0]),
        ("hardswish", &[0.0, -0.333333333, -0.135, 0.0, 0.226666667, 1.66666667, 7.0]),
        ("hardshrink", &[-4.0, -2.0, 0.0, 0.0, 0.0, 2.0, 7.0]),
        ("softshrink", &[-3.5, -1.5, 0.0, 0.0, 0.0, 1.5, 6.5]),
        ("threshold", &[20.0, 20.0, 20.0, 20.0, 0.4, 2.0, 7.0]),
        ("erfc", &[1.99999998, 1.99532227, 1.32862676, 1.0, 0.571607645, 0.00467773498, 0.0]),
        ("exp2", &[0.0625, 0.25, 0.812252396, 1.0, 1.31950791, 4.0, 128.0]),
        ("frac", &[0.0, 0.0, -0.3, 0.0, 0.4, 0.0, 0.0]),
        ("sinh", &[-27.2899172, -3.62686041, -0.304520293, 0.0, 0.410752326, 3.62686041, 548.316123]),
        ("asinh", &[-2.09471255, -1.44363548, -0.295673048, 0.0, 0.39003532, 1.44363548, 2.64412076]),
        ("atan", &[-1.32581766, -1.10714872, -0.291456794, 0.0, 0.380506377, 1.10714872, 1.42889927]),
        ("cosh", &POINTS.map(f64::cosh)),
    ];
    for (name, want) in reference {
        let entry = TABLE.iter().find(|e| e.op.name() == *name).unwrap();
        let x = f64s(&POINTS, &[7]);
        let got = v(&(entry.call)(std::slice::from_ref(&x)).unwrap()[0]);
        for (i, (g, w)) in got.iter().zip(*want).enumerate() {
            assert!((g - w).abs() <= 1e-8 * (1.0 + w.abs()), "{name} at {}: {g}, not {w}", POINTS[i]);
        }
    }
    let u = f64s(&[0.3, -0.8], &[2]);
    assert_close(&v(&u.asin().unwrap()), &[0.3f64.asin(), (-0.8f64).asin()], 1e-15);
    assert_close(&v(&u.acos().unwrap()), &[0.3f64.acos(), (-0.8f64).acos()], 1e-15);
    assert_close(&v(&u.atanh().unwrap()), &[0.3f64.atanh(), (-0.8f64).atanh()], 1e-15);
    let p = f64s(&[1.5, 8.0], &[2]);
    assert_close(&v(&p.acosh().unwrap()), &[1.5f64.acosh(), 8f64.acosh()], 1e-15);
    assert_close(&v(&p.log2().unwrap()), &[1.5f64.log2(), 3.0], 1e-15);
    assert_close(&v(&p.log10().unwrap()), &[1.5f64.log10(), 8f64.log10()], 1e-15);
}

#[test]
fn every_float_operation_of_one_tensor_passes_nan_on_and_has_no_nan_slope_at_infinity() {
    // Activations and bounded functions: their derivatives at both infinities are not NaN.
    let everywhere = [
        "elu",
        "selu",
        "celu",
        "softsign",
        "log_sigmoid",
        "mish",
        "relu6",
        "hardtanh",
        "hardsigmoid",
        "hardswish",
        "hardshrink",
        "softshrink",
        "threshold",
        "erf",
        "erfc",
        "atan",
    ];
    let others =
        ["exp2", "sinh", "cosh", "asin", "acos", "asinh", "acosh", "atanh", "frac", "log2", "log10", "round_half_away"];
    for name in everywhere.iter().chain(&others) {
        let entry = TABLE.iter().find(|e| e.op.name() == *name).unwrap();
        let call = |x: &Tensor| Ok((entry.call)(std::slice::from_ref(x))?.remove(0));
        assert!(call(&f64s(&[NAN], &[1])).unwrap().item().unwrap().is_nan(), "{name}");
        if everywhere.contains(name) {
            let (first, second) = slopes(call, &[-INF, -1e300, 1e300, INF]);
            assert!(first.iter().chain(&second).all(|g| g.is_finite()), "{name}: {first:?} {second:?}");
        }
    }
}

#[test]
fn activations_at_infinity() {
    let x = f64s(&[-INF, INF], &[2]);
    for (got, want) in [
        (x.elu(0.5), [-0.5, INF]),
        (x.celu(0.5), [-0.5, INF]),
        (x.softsign(), [-1.0, 1.0]),
        (x.log_sigmoid(), [-INF, 0.0]),
        (x.mish(), [0.0, INF]),
        (x.hardswish(), [0.0, INF]),
        (x.hardsigmoid(), [0.0, 1.0]),
        (x.softshrink(0.5), [-INF, INF]),
        (x.erfc(), [2.0, 0.0]),
    ] {
        assert_close(&v(&got.unwrap()), &want, 0.0);
    }
}

#[test]
fn slopes_at_kinks() {
    let at = |f: &dyn Fn(&Tensor) -> Result<Tensor>, x: f64| slopes(f, &[x]).0[0];
    assert_eq!(at(&|x| x.elu(0.5), 0.0), 0.5);
    assert_eq!(at(&|x| x.celu(0.5), 0.0), 1.0);
    assert_eq!([at(&|x| x.relu6(), 0.0), at(&|x| x.relu6(), 6.0), at(&|x| x.relu6(), 3.0)], [0.0, 0.0, 1.0]);
    assert_eq!([at(&|x| x.hardtanh(-1.0, 1.0), -1.0), at(&|x| x.hardtanh(-1.0, 1.0), 1.0)], [0.0, 0.0]);
    assert_eq!([at(&|x| x.hardswish(), -3.0), at(&|x| x.hardswish(), 3.0)], [0.0, 1.0]);
    assert_eq!([at(&|x| x.softshrink(0.5), 0.5), at(&|x| x.hardshrink(0.5), -0.5)], [0.0, 0.0]);
    assert_eq!(at(&|x| x.threshold(1.0, 9.0), 1.0), 0.0);
    assert_eq!([at(&|x| x.fmax(2.0), 2.0), at(&|x| x.fmin(2.0), 2.0)], [0.5, 0.5]);
    assert_eq!(at(&|x| x.softsign(), 0.0), 1.0);
}

#[test]
fn whole_quotients() {
    let (a, b) =
        (f64s(&[1.0, -1.0, 7.0, -7.0, INF, 1.0, -1.0], &[7]), f64s(&[0.1, 0.1, 2.0, 2.0, 1.0, 0.0, INF], &[7]));
    assert_close(&v(&a.floor_div(&b).unwrap()), &[9.0, -10.0, 3.0, -4.0, NAN, INF, -1.0], 0.0);
    assert_close(&v(&a.trunc_div(&b).unwrap()), &[10.0, -10.0, 3.0, -3.0, INF, INF, 0.0], 0.0);
    let narrow = a.to_dtype(DType::F32).unwrap().floor_div(b.to_dtype(DType::F32).unwrap()).unwrap();
    assert_close(&v(&narrow), &[9.0, -10.0, 3.0, -4.0, NAN, INF, -1.0], 0.0);
    let (i, j) = (i64s(&[7, -7, 7], &[3]), i64s(&[2, 2, -2], &[3]));
    assert_eq!(i.trunc_div(&j).unwrap().to_vec::<i64>().unwrap(), [3, -3, -3]);
    assert_eq!(i.trunc_div(0).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    // The slope with respect to the divisor is minus the whole quotient: -9, not -10.
    let b = f64s(&[0.1], &[1]).with_grad().unwrap();
    for y in [f64s(&[1.0], &[1]).remainder(&b), f64s(&[1.0], &[1]).fmod(&b)] {
        let g = y.unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&b).unwrap().item().unwrap(), -9.0);
    }
    assert_close(&v(&f64s(&[-7.5], &[1]).fmod(2.0).unwrap()), &[-1.5], 0.0);
}

#[test]
fn rounding() {
    let x = f64s(&[0.5, 1.5, -2.5, 0.499_999_999_999_999_94, -0.2, INF, 4_503_599_627_370_497.0], &[7]);
    let y = v(&x.round_half_away().unwrap());
    assert_close(&y, &[1.0, 2.0, -3.0, 0.0, 0.0, INF, 4_503_599_627_370_497.0], 0.0);
    assert!(y[4].is_sign_negative());
    assert_eq!(i64s(&[7], &[1]).round_half_away().unwrap().to_vec::<i64>().unwrap(), [7]);
    let x = f64s(&[2.345, -1.25, 1234.5, 1e308, NAN], &[5]);
    assert_close(&v(&x.round_decimals(1).unwrap()), &[2.3, -1.2, 1234.5, 1e308, NAN], 0.0);
    assert_close(&v(&x.round_decimals(-2).unwrap()), &[0.0, 0.0, 1200.0, 1e308, NAN], 1e-15);
    assert_eq!(x.round_decimals(301).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    let half = Tensor::full([1], 1000.5, DType::F16, &cpu()).unwrap();
    assert_eq!(half.round_decimals(2).unwrap().item().unwrap(), 1000.5);
}

#[test]
fn tests_of_kind() {
    let x = f64s(&[0.0, -0.0, -1.0, 1.0, INF, -INF, NAN], &[7]);
    let t = |y: Result<Tensor>| y.unwrap().to_vec::<bool>().unwrap();
    assert_eq!(t(x.signbit()), [false, true, true, false, false, true, false]);
    assert_eq!(t(x.isinf()), [false, false, false, false, true, true, false]);
    assert_eq!(t(i64s(&[-1, 0], &[2]).signbit()), [true, false]);
    assert_eq!(t(i64s(&[-1, 0], &[2]).isinf()), [false, false]);
}

#[test]
fn pairs_of_operands() {
    let (a, b) = (f64s(&[NAN, 1.0, NAN, 2.0], &[4]), f64s(&[3.0, NAN, NAN, -1.0], &[4]));
    assert_close(&v(&a.fmax(&b).unwrap()), &[3.0, 1.0, NAN, 2.0], 0.0);
    assert_close(&v(&a.fmin(&b).unwrap()), &[3.0, 1.0, NAN, -1.0], 0.0);
    assert_eq!(i64s(&[3, -1], &[2]).fmax(0).unwrap().to_vec::<i64>().unwrap(), [3, 0]);
    let values = [0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 1e-300, INF, -INF, NAN];
    let n = values.len();
    let (y, x) = (f64s(&values, &[n, 1]), f64s(&values, &[n]));
    let all = |f: fn(f64, f64) -> f64| -> Vec<f64> {
        values.iter().flat_map(|&y| values.iter().map(move |&x| f(y, x))).collect()
    };
    let angles = v(&y.atan2(&x).unwrap());
    assert_close(&angles, &all(f64::atan2), 1e-15);
    for (g, w) in angles.iter().zip(all(f64::atan2)) {
        assert!(w.is_nan() || g.is_sign_negative() == w.is_sign_negative());
    }
    assert_close(&v(&y.hypot(&x).unwrap()), &all(f64::hypot), 1e-15);
    let positive = |v: f64| if v.is_nan() { 0.0 } else { v };
    let got = v(&y.copysign(&x).unwrap());
    let want: Vec<f64> = values.iter().flat_map(|&y| values.iter().map(move |&x| y.copysign(positive(x)))).collect();
    assert_close(&got, &want, 0.0);
    let l = f64s(&[1000.0, -INF, INF, INF, 0.0], &[5]).logaddexp(f64s(&[1000.0, -INF, INF, 1.0, NAN], &[5])).unwrap();
    assert_close(&v(&l), &[1000.0 + 2f64.ln(), -INF, INF, INF, NAN], 1e-15);
    let z = f64s(&[0.0, 0.0, 2.0, 0.0], &[4]).xlogy(f64s(&[0.0, -1.0, 3.0, NAN], &[4])).unwrap();
    assert_close(&v(&z), &[0.0, 0.0, 2.0 * 3f64.ln(), NAN], 1e-15);
}

#[test]
fn pairs_of_operands_have_their_slopes_on_axes_and_diagonals() {
    // Points on an axis, and points of equal magnitude, where the formula changes octants.
    let (a, b) = (f64s(&[0.0, 1.0, 2.0, -2.0, 3.0], &[5]), f64s(&[2.0, 0.0, 2.0, 2.0, -1.0], &[5]));
    both(|x| x[0].atan2(&x[1]), &[a.clone(), b.clone()]);
    both(|x| x[0].hypot(&x[1]), &[a.clone(), b.clone()]);
    both(|x| x[0].logaddexp(&x[1]), &[a, f64s(&[2.0, 0.0, 2.0, 2.0, -1.0], &[5])]);
    let origin = f64s(&[0.0], &[1]);
    let (x, y) = (origin.with_grad().unwrap(), origin.with_grad().unwrap());
    for z in [x.atan2(&y), x.hypot(&y)] {
        let g = z.unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!((g.get(&x).unwrap().item().unwrap(), g.get(&y).unwrap().item().unwrap()), (0.0, 0.0));
    }
}

#[test]
fn interpolation() {
    let (a, b) = (f64s(&[1.0, 1e16], &[2]), f64s(&[3.0, 1.0], &[2]));
    assert_eq!(v(&a.lerp(&b, 1.0).unwrap()), [3.0, 1.0]);
    assert_eq!(v(&a.lerp(&b, 0.0).unwrap()), [1.0, 1e16]);
    assert_eq!(v(&a.lerp(5.0, 0.25).unwrap())[0], 2.0);
    both(|x| x[0].lerp(&x[1], &x[2]), &[randn(&[2, 3], 1), randn(&[3], 2), f64s(&[0.2, 0.9], &[2, 1])]);
}

#[test]
fn replacing_what_is_not_finite() {
    let x = f64s(&[NAN, INF, -INF, 1.5], &[4]);
    assert_eq!(v(&x.nan_to_num(7.0, None, None).unwrap()), [7.0, f64::MAX, -f64::MAX, 1.5]);
    assert_eq!(v(&x.nan_to_num(0.0, Some(2.0), Some(-3.0)).unwrap()), [0.0, 2.0, -3.0, 1.5]);
    let half = x.to_dtype(DType::F16).unwrap().nan_to_num(0.0, None, None).unwrap();
    assert_eq!(v(&half), [0.0, 65504.0, -65504.0, 1.5]);
    assert_eq!(slopes(|x| x.nan_to_num(0.0, None, None), &[NAN, INF, -INF, 1.5]).0, [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(i64s(&[3], &[1]).nan_to_num(0.0, None, None).unwrap().dtype(), DType::I64);
}

#[test]
fn weighted_and_gated_units() {
    let x = f64s(&[-1.0, 2.0, -3.0, 4.0], &[2, 2]);
    assert_eq!(v(&x.prelu(&f64s(&[0.5, 0.1], &[2])).unwrap()), [-0.5, 2.0, -1.5, 4.0]);
    assert_eq!(v(&x.prelu(&f64s(&[0.5], &[1])).unwrap()), [-0.5, 2.0, -1.5, 4.0]);
    assert_eq!(x.prelu(&f64s(&[0.5; 3], &[3])).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    let w = f64s(&[0.5], &[1]).with_grad().unwrap();
    let g = f64s(&[INF, -2.0], &[2]).prelu(&w).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&w).unwrap().item().unwrap(), -2.0);
    for x in layouts(&[3, 4], 1) {
        both(|x| x[0].prelu(&x[1]), &[x.clone(), randn(&[4], 2)]);
        both(|x| x[0].glu(1), std::slice::from_ref(&x));
        both(|x| x[0].softmin(0), std::slice::from_ref(&x));
    }
    let half = 1.0 / (1.0 + (-1f64).exp());
    assert_close(&v(&f64s(&[3.0, 1.0], &[2]).glu(-1).unwrap()), &[3.0 * half], 1e-15);
    assert_eq!(f64s(&[1.0; 3], &[3]).glu(0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert_close(&v(&f64s(&[0.0, 1.0], &[2]).softmin(0).unwrap()), &[half, 1.0 - half], 1e-15);
}

#[test]
fn rounding_to_more_than_there_is_gives_zero() {
    let x = f32s(&[5.0, 1e30, f32::INFINITY], &[3]);
    assert_eq!(x.round_decimals(-40).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0, f32::INFINITY]);
}

#[test]
fn rounding_to_decimals_is_flat_where_it_changes_nothing_too() {
    for (decimals, values) in
        [(2, vec![1.234, 1e307, -1e308, INF, -INF, 0.0]), (300, vec![0.5, 1e10, INF]), (-300, vec![5.0, 1e305, INF])]
    {
        let x = f64s(&values, &[values.len()]).with_grad().unwrap();
        let g = x.round_decimals(decimals).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(v(g.get(&x).unwrap()), vec![0.0; values.len()], "{decimals}");
    }
    for decimals in [40, -40] {
        let x = f32s(&[0.5, -3e38, 0.0, f32::INFINITY], &[4]).with_grad().unwrap();
        let y = x.round_decimals(decimals).unwrap();
        assert!(decimals < 0 || y.to_vec::<f32>().unwrap() == x.to_vec::<f32>().unwrap());
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(v(g.get(&x).unwrap()), [0.0; 4], "{decimals}");
    }
}
