//! Tests that the elementary functions stay within their bounds over all orders of magnitude: 1 unit in the last place
//! of the correctly rounded result in f32, and 2 in f64 (3 for erfc). The f32 functions do not use f64, so their bounds
//! also hold on adapters without 64-bit types.

mod common;

use gradus_backend::kernel::TypeRule;
use gradus_backend::{Backend, DType, Element, Kernel, Layout, MapArg, Scalar, ScalarOp, Shape, View, ViewMut};
use gradus_wgpu::Profile;

/// The number of steps between two floats, given their bits as ordered integers.
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

/// The largest error of an instruction over `values`, in units in the last place, and the value at which it occurs. An
/// instruction of two operands takes the second ones from `others`.
fn worst<T: Element>(
    b: &dyn Backend,
    op: ScalarOp,
    values: &[T],
    others: &[T],
    distance: fn(f64, f64) -> u64,
) -> (u64, f64) {
    let d = T::DTYPE;
    let operands: Vec<&[T]> = if others.is_empty() { vec![values] } else { vec![values, others] };
    let dtypes = vec![d; operands.len()];
    let kernel = Kernel::build(op.name(), &dtypes, |v| vec![v.get(1).map_or_else(|| v[0].unary(op), |&y| v[0].pow(y))]);
    let kernel = kernel.expect("a kernel");
    let layout = Layout::contiguous(Shape::new(&[values.len()]).expect("a shape"));
    let upload = |values: &[T]| {
        let mut buffer = b.alloc(size_of_val(values)).expect("memory");
        b.upload(&mut buffer, 0, T::as_bytes(values)).expect("an upload");
        buffer
    };
    let inputs: Vec<_> = operands.iter().map(|values| upload(values)).collect();
    let args: Vec<_> = inputs.iter().map(|buffer| MapArg::View(View { buffer, dtype: d, layout: &layout })).collect();
    let mut y = b.alloc(size_of_val(values)).expect("memory");
    b.map(&kernel, &args, &mut [ViewMut { buffer: &mut y, dtype: d, layout: &layout }]).expect("a map");
    let mut back = vec![0; size_of_val(values)];
    b.download(&y, 0, &mut back).expect("a download");
    let mut worst = (0, 0.0);
    for (i, (&x, got)) in values.iter().zip(T::from_bytes(&back)).enumerate() {
        let at: Vec<_> = operands.iter().map(|values| Scalar::Float(values[i].to_f64())).collect();
        let want = kernel.eval(&at).expect("a value")[0].to_f64();
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

/// Every 20,011th of all bit patterns, an odd step so that all low bits occur, and numbers of everyday size.
fn line() -> Vec<f32> {
    let all = (0..u64::from(u32::MAX)).step_by(20_011).map(|v| f32::from_bits(v as u32));
    all.chain((-60_000..60_000).map(|i| i as f32 / 4999.0)).collect()
}

fn distance32(a: f64, b: f64) -> u64 {
    steps(ordered32(a as f32), ordered32(b as f32))
}

fn f32_functions(b: &dyn Backend) {
    let mut failed = Vec::new();
    for op in functions() {
        let (off, at) = worst(b, op, &line(), &[], distance32);
        eprintln!("{:10} f32 {off}", op.name());
        if off > 1 {
            failed.push(format!("{} of {at:e}: {off} units", op.name()));
        }
    }
    // Bases around 1 and of all magnitudes, with exponents such that the powers have all magnitudes.
    let bases: Vec<f32> = (0..200_000).map(|i| ((i as f32 * 0.618_034).fract() * 1.7 - 0.85).exp()).collect();
    let bases: Vec<f32> = bases.into_iter().chain(line().into_iter().map(f32::abs)).collect();
    let power = |(i, x): (usize, &f32)| {
        (f64::from((i as u32).wrapping_mul(2_654_435_769)) / 2.2e7 - 105.0) / f64::from(*x).ln()
    };
    let exponents: Vec<f32> = bases.iter().enumerate().map(|at| power(at) as f32).collect();
    let (off, at) = worst(b, ScalarOp::Pow, &bases, &exponents, distance32);
    eprintln!("pow        f32 {off}");
    assert!(failed.is_empty() && off <= 1, "{failed:#?}, pow of {at:e}: {off} units");
}

#[test]
fn f32_functions_are_within_their_bounds() {
    let Some(b) = common::opened() else { return };
    f32_functions(&b);
}

#[test]
fn f32_functions_are_within_their_bounds_without_64_bit_types() {
    let Some(b) = common::opened_as(Profile::Core) else { return };
    assert!(!b.supports(DType::F64));
    f32_functions(&b);
}

#[test]
fn f64_functions_are_within_two_units_and_erfc_within_three() {
    let Some(b) = common::opened().filter(|b| b.supports(DType::F64)) else { return };
    // Multiples of an odd number are spread over all of 2^64, and so over all signs and exponents.
    let values: Vec<f64> = (0..200_000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    assert!(values.iter().filter(|v| v.is_finite()).count() > 190_000);
    let near: Vec<f64> = (0..60_000).map(|i| (f64::from(i) - 30_000.0) / 997.0).collect();
    let mut failed = Vec::new();
    for op in functions() {
        for values in [&values, &near] {
            let (off, at) = worst(&b, op, values, &[], |a, b| steps(ordered64(a), ordered64(b)));
            eprintln!("{:10} f64 {off}", op.name());
            if off > if op == ScalarOp::Erfc { 3 } else { 2 } {
                failed.push(format!("{} of {at:e}: {off} units", op.name()));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
