//! f16 and bf16 instructions on all 2^16 inputs against arithmetic of the host: exact whole numbers, and the rounding of
//! the crate `half`.

mod common;

use common::apply::{Random, apply, apply1, apply2};
use half::{bf16, f16};

fn all() -> Vec<u16> {
    (0..=u16::MAX).collect()
}

/// The same number, or NaN twice.
fn same(x: f64, y: f64) -> bool {
    x == y && x.is_sign_negative() == y.is_sign_negative() || x.is_nan() && y.is_nan()
}

fn f(bits: u16) -> f64 {
    f16::from_bits(bits).to_f64()
}

fn b(bits: u16) -> f64 {
    bf16::from_bits(bits).to_f64()
}

/// Checks an f16 instruction of two operands: all inputs, each with some others.
#[track_caller]
fn binary(code: &str, expected: impl Fn(f64, f64) -> f64) {
    let others =
        [0u16, 0x8000, 1, 0x3ff, 0x400, 0x3c00, 0xbc01, 0x4248, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x5640];
    // Fewer where the host's arithmetic is not optimised.
    let step = if cfg!(debug_assertions) { 5 } else { 1 };
    for other in others.into_iter().step_by(step) {
        let (x, y) = (all(), vec![other; 1 << 16]);
        for (x, found) in x.iter().zip(apply2::<u16, u16>(code, &x, &y)) {
            // A sum or product of two f16 numbers is exact in f64.
            let rounded = f16::from_f64(expected(f(*x), f(other))).to_f64();
            assert!(same(f(found), rounded), "{code} of {x:#x}, {other:#x}: {found:#x}, expected {rounded}");
        }
    }
}

#[test]
fn sums_and_products() {
    binary("add.f16 {d}, {a}, {b};", |x, y| x + y);
    binary("sub.rn.f16 {d}, {a}, {b};", |x, y| x - y);
    binary("mul.f16 {d}, {a}, {b};", |x, y| x * y);
    binary("add.sat.f16 {d}, {a}, {b};", |x, y| if (x + y).is_nan() { 0.0 } else { (x + y).clamp(0.0, 1.0) + 0.0 });
    binary("min.f16 {d}, {a}, {b};", lesser);
    binary("max.f16 {d}, {a}, {b};", |x, y| -lesser(-x, -y));
    binary("min.NaN.f16 {d}, {a}, {b};", |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { lesser(x, y) });
}

/// The lesser number, with -0 below +0; a NaN gives way.
fn lesser(x: f64, y: f64) -> f64 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == 0.0 && y == 0.0 => {
            if x.is_sign_negative() {
                x
            } else {
                y
            }
        }
        _ => {
            if x < y {
                x
            } else {
                y
            }
        }
    }
}

/// The f16 number nearest to a multiple of 2^-48, by comparing with all neighbours in whole numbers.
fn nearest(value: i128) -> f64 {
    let scaled = |bits: u16| (f(bits) * 2f64.powi(24)) as i128 * (1 << 24);
    let magnitude = value.abs();
    // The greatest number that is not above.
    let (mut low, mut high) = (0u16, 0x7c00);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if scaled(middle) <= magnitude { low = middle } else { high = middle }
    }
    let (below, above) = (scaled(low), if low == 0x7bff { 65536 << 48 } else { scaled(low + 1) });
    let twice = 2 * magnitude - below - above;
    let bits = if twice > 0 || twice == 0 && low % 2 == 1 { low + 1 } else { low };
    let result = if bits == 0x7c00 { f64::INFINITY } else { f(bits) };
    if value < 0 { -result } else { result }
}

#[test]
fn fused_operations_are_rounded_once() {
    let mut random = Random(1);
    let whole = |bits: u16| (f(bits) * 2f64.powi(24)) as i128;
    for _ in 0..if cfg!(debug_assertions) { 1 } else { 8 } {
        let x = all();
        let [y, z] = [(); 2].map(|()| (0..1 << 16).map(|_| random.next() as u16).collect::<Vec<u16>>());
        let found = apply::<u16, u16, u16, u16>("fma.rn.f16 {d}, {a}, {b}, {c};", &x, &y, &z);
        for (at, found) in found.into_iter().enumerate() {
            let (x, y, z) = (x[at], y[at], z[at]);
            let finite = [x, y, z].iter().all(|bits| f(*bits).is_finite());
            let exact = if finite { whole(x) * whole(y) + whole(z) * (1 << 24) } else { 0 };
            let expected = if exact == 0 { f(x) * f(y) + f(z) } else { nearest(exact) };
            assert!(same(f(found), expected), "fma of {x:#x}, {y:#x}, {z:#x}: {found:#x}, expected {expected}");
        }
    }
}

#[test]
fn signs_and_comparisons() {
    let x = all();
    for (code, expected) in [("neg", (|x| x ^ 0x8000) as fn(u16) -> u16), ("abs", |x| x & 0x7fff)] {
        let found = apply1::<u16, u16>(&format!("{code}.f16 {{d}}, {{a}};"), &x);
        assert!(found.into_iter().eq(x.iter().map(|x| expected(*x))), "{code}");
    }
    type Holds = fn(f64, f64) -> bool;
    let comparisons: [(&str, Holds); 8] = [
        ("eq", |x, y| x == y),
        ("ne", |x, y| !x.is_nan() && !y.is_nan() && x != y),
        ("lt", |x, y| x < y),
        ("ge", |x, y| x >= y),
        ("ltu", |x, y| x.is_nan() || y.is_nan() || x < y),
        ("neu", |x, y| x != y),
        ("num", |x, y| !x.is_nan() && !y.is_nan()),
        ("nan", |x, y| x.is_nan() || y.is_nan()),
    ];
    for (name, holds) in comparisons {
        for other in [0u16, 0x8001, 0x3c00, 0x7c00, 0x7e01] {
            let y = vec![other; x.len()];
            let code = format!("setp.{name}.f16 %p2, {{a}}, {{b}}; selp.b16 {{d}}, 1, 0, %p2;");
            let found = apply2::<u16, u16>(&code, &x, &y);
            let expected = x.iter().map(|x| u16::from(holds(f(*x), f(other))));
            assert!(found.into_iter().eq(expected), "{name} with {other:#x}");
        }
    }
}

#[test]
fn pairs_are_two_halves() {
    let mut random = Random(3);
    let mut pairs = || (0..1 << 16).map(|at| at as u32 | (random.next() as u32) << 16).collect::<Vec<u32>>();
    let (x, y, z) = (pairs(), pairs(), pairs());
    for (kind, one) in [("f16x2", "f16"), ("bf16x2", "bf16")] {
        for code in [
            "add.{t} {d}, {a}, {b};",
            "fma.rn.relu.{t} {d}, {a}, {b}, {c};",
            "max.{t} {d}, {a}, {b};",
            "neg.{t} {d}, {a};",
        ] {
            let found = apply::<u32, u32, u32, u32>(&code.replace("{t}", kind), &x, &y, &z);
            for shift in [0, 16] {
                let half = |all: &[u32]| all.iter().map(|pair| (pair >> shift) as u16).collect::<Vec<u16>>();
                let expected = apply::<u16, u16, u16, u16>(&code.replace("{t}", one), &half(&x), &half(&y), &half(&z));
                assert_eq!(half(&found), expected, "{code} {kind}");
            }
        }
    }
    let set = apply::<u32, u32, u32, u32>("set.lt.f16x2.f16x2 {d}, {a}, {b};", &x, &y, &z);
    for (at, found) in set.into_iter().enumerate() {
        let one = |shift: u32| if f((x[at] >> shift) as u16) < f((y[at] >> shift) as u16) { 0x3c00 } else { 0 };
        assert_eq!(found, one(0) | one(16) << 16);
    }
}

#[test]
fn brain_floats() {
    let mut random = Random(4);
    let (x, y): (Vec<u16>, Vec<u16>) = (all(), (0..1 << 16).map(|_| random.next() as u16).collect());
    type Exact = fn(f64, f64) -> f64;
    // The exponents of most pairs are so far apart that f64 does not hold the sum; then it is the larger number, or next
    // to a tie, which the f32 sum of the host tells, since its error is far below half a unit of bf16.
    for (code, exact) in [("mul", (|x, y| x * y) as Exact), ("min", lesser), ("add", |x, y| x + y)] {
        let found = apply2::<u16, u16>(&format!("{code}.bf16 {{d}}, {{a}}, {{b}};"), &x, &y);
        for (at, found) in found.into_iter().enumerate() {
            let exact = exact(b(x[at]), b(y[at]));
            let expected = bf16::from_f64(exact).to_f64();
            assert!(same(b(found), expected), "{code} of {:#x}, {:#x}: {found:#x}, expected {expected}", x[at], y[at]);
        }
    }
}

#[test]
fn conversions() {
    let x = all();
    for (found, x) in apply1::<f32, u16>("cvt.f32.f16 {d}, {a};", &x).into_iter().zip(&x) {
        assert!(same(f64::from(found), f(*x)), "{x:#x}");
    }
    for (found, x) in apply1::<f64, u16>("cvt.f64.f16 {d}, {a};", &x).into_iter().zip(&x) {
        assert!(same(found, f(*x)), "{x:#x}");
    }
    for (found, x) in apply1::<f32, u16>("cvt.f32.bf16 {d}, {a};", &x).into_iter().zip(&x) {
        assert!(same(f64::from(found), b(*x)), "{x:#x}");
    }
    type Whole = fn(f64) -> f64;
    let modes: [(&str, Whole); 4] =
        [("rni", f64::round_ties_even), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)];
    for (mode, whole) in modes {
        for (found, x) in apply1::<u32, u16>(&format!("cvt.{mode}.s32.f16 {{d}}, {{a}};"), &x).into_iter().zip(&x) {
            assert_eq!(found, whole(f(*x)) as i32 as u32, "{mode} of {x:#x}");
        }
        for (found, x) in apply1::<u16, u16>(&format!("cvt.{mode}.u16.f16 {{d}}, {{a}};"), &x).into_iter().zip(&x) {
            assert_eq!(found, whole(f(*x)) as u16, "{mode} of {x:#x}");
        }
        for (found, x) in apply1::<u16, u16>(&format!("cvt.{mode}.f16.f16 {{d}}, {{a}};"), &x).into_iter().zip(&x) {
            assert!(same(f(found), whole(f(*x))), "{mode} of {x:#x}");
        }
    }
    for (found, x) in apply1::<u16, u16>("cvt.rn.f16.s16 {d}, {a};", &x).into_iter().zip(&x) {
        assert_eq!(found, f16::from_f64(f64::from(*x as i16)).to_bits());
    }
}

#[test]
fn approximations() {
    let x = all();
    type Of = fn(f64) -> f64;
    // The manual allows 2^-9.9 for ex2 and 2^-10.987 for tanh, relative to the result, beside its rounding.
    let rounding = 2f64.powi(-11);
    let allowed = [2f64.powf(-9.9) + rounding, 2f64.powf(-10.987) + rounding];
    for ((code, of), allowed) in [("ex2", f64::exp2 as Of), ("tanh", f64::tanh)].into_iter().zip(allowed) {
        for (found, x) in apply1::<u16, u16>(&format!("{code}.approx.f16 {{d}}, {{a}};"), &x).into_iter().zip(&x) {
            let expected = of(f(*x));
            // A result that is no ordinary number is what the rounding makes of the exact one.
            let error = (f(found) - expected).abs();
            let close =
                error <= expected.abs() * allowed + 2f64.powi(-25) || same(f(found), f16::from_f64(expected).to_f64());
            assert!(close, "{code} of {x:#x}: {found:#x}, expected {expected}");
        }
    }
}
