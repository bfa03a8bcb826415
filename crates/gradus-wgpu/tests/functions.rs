//! The elementary functions stay within their bounds over all orders of magnitude: 1 unit in the last place in f32, 2 in
//! f64 (3 for erfc), of the correctly rounded result.

mod common;

use gradus_backend::kernel::TypeRule;
use gradus_backend::{Backend, DType, Element, Kernel, Layout, MapArg, Scalar, ScalarOp, Shape, View, ViewMut};

/// Steps between two floats of one sign or around zero, given their bits as ordered integers.
fn steps(a: i64, b: i64) -> u64 {
    a.abs_diff(b)
}

fn ordered32(v: f32) -> i64 {
    let m = i64::from(v.abs().to_bits());
    if v.is_sign_negative() { -m } else { m }
}

fn ordered64(v: f64) -> i64 {
    let m = v.abs().to_bits() as i64;
    if v.is_sign_negative() { -m } else { m }
}

/// The worst error of an instruction over `values`, in units in the last place, and where it is.
fn worst<T: Element>(b: &dyn Backend, op: ScalarOp, values: &[T], distance: fn(f64, f64) -> u64) -> (u64, f64) {
    let d = T::DTYPE;
    let kernel = Kernel::build(op.name(), &[d], |v| vec![v[0].unary(op)]).expect("a kernel");
    let layout = Layout::contiguous(Shape::new(&[values.len()]).expect("a shape"));
    let bytes = T::as_bytes(values);
    let mut x = b.alloc(bytes.len()).expect("memory");
    let mut y = b.alloc(bytes.len()).expect("memory");
    b.upload(&mut x, 0, bytes).expect("an upload");
    let view = View { buffer: &x, dtype: d, layout: &layout };
    b.map(&kernel, &[MapArg::View(view)], &mut [ViewMut { buffer: &mut y, dtype: d, layout: &layout }]).expect("a map");
    let mut back = vec![0; bytes.len()];
    b.download(&y, 0, &mut back).expect("a download");
    let mut worst = (0, 0.0);
    for (&x, got) in values.iter().zip(T::from_bytes(&back)) {
        let want = kernel.eval(&[Scalar::Float(x.to_f64())]).expect("a value")[0].to_f64();
        let got = got.to_f64();
        let off = match (got.is_nan(), want.is_nan()) {
            (true, true) => 0,
            (false, false) => distance(got, want),
            _ => u64::MAX,
        };
        if off > worst.0 {
            worst = (off, x.to_f64());
        }
    }
    worst
}

fn functions() -> impl Iterator<Item = ScalarOp> {
    ScalarOp::ALL.iter().copied().filter(|op| op.rule() == TypeRule::Float)
}

#[test]
fn f32_functions_are_within_one_unit() {
    let Some(b) = common::opened() else { return };
    // Every 2^32-th part of the line, with a step that is prime to powers of two.
    let values: Vec<f32> = (0..u64::from(u32::MAX)).step_by(20_011).map(|v| f32::from_bits(v as u32)).collect();
    let mut failed = Vec::new();
    for op in functions() {
        let (off, at) = worst(&b, op, &values, |a, b| steps(ordered32(a as f32), ordered32(b as f32)));
        eprintln!("{:10} f32 {off}", op.name());
        if off > 1 {
            failed.push(format!("{} of {at:e}: {off} units", op.name()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn f64_functions_are_within_two_units_and_erfc_within_three() {
    let Some(b) = common::opened().filter(|b| b.supports(DType::F64)) else { return };
    // Multiples of an odd number spread over all of 2^64, and so over all signs and exponents.
    let values: Vec<f64> = (0..200_000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    assert!(values.iter().filter(|v| v.is_finite()).count() > 190_000);
    let near: Vec<f64> = (0..60_000).map(|i| (f64::from(i) - 30_000.0) / 997.0).collect();
    let mut failed = Vec::new();
    for op in functions() {
        for values in [&values, &near] {
            let (off, at) = worst(&b, op, values, |a, b| steps(ordered64(a), ordered64(b)));
            eprintln!("{:10} f64 {off}", op.name());
            if off > if op == ScalarOp::Erfc { 3 } else { 2 } {
                failed.push(format!("{} of {at:e}: {off} units", op.name()));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
