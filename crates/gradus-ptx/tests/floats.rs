//! f32 and f64 instructions on 10^6 inputs (with `--release`) against arithmetic of the host.

mod common;

use common::apply::{Random, Word, apply, apply1, apply2};
use half::{bf16, f16};

/// The inputs of an instruction: a tenth where the host's arithmetic is not optimised.
const COUNT: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

/// Bits of any kind, with the special numbers.
fn anything(seed: u64) -> Vec<f32> {
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let mut random = Random(seed);
    let pick = |random: &mut Random| match random.next() % 64 {
        0 => special[(random.next() % 10) as usize],
        // A mantissa with few bits makes ties.
        1..8 => f32::from_bits(random.next() as u32 & 0xfff0_0000),
        _ => f32::from_bits(random.next() as u32),
    };
    (0..COUNT).map(|_| pick(&mut random)).collect()
}

/// Numbers between 2^-8 and 2^8 of both signs: sums of two are exact in f64.
fn near_one(seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let one = |bits: u32| f32::from_bits(bits & 0x807f_ffff | (119 + (bits >> 23 & 15)) << 23);
    (0..COUNT).map(|_| one(random.next() as u32)).collect()
}

fn same(x: f32, y: f32) -> bool {
    x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()
}

/// A subnormal number as zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

#[track_caller]
fn binary(code: &str, expected: impl Fn(f32, f32) -> f32) {
    let (x, y) = (anything(1), anything(2));
    for (at, found) in apply2::<f32, f32>(code, &x, &y).into_iter().enumerate() {
        let expected = expected(x[at], y[at]);
        assert!(same(found, expected), "{code} of {:e}, {:e}: {found:e}, expected {expected:e}", x[at], y[at]);
        assert!(!found.is_nan() || found.to_bits() == 0x7fff_ffff, "{code}: the NaN is {:#x}", found.to_bits());
    }
}

fn lesser(x: f32, y: f32) -> f32 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ if x == 0.0 && y == 0.0 => f32::from_bits(x.to_bits() | y.to_bits()),
        _ => {
            if x < y {
                x
            } else {
                y
            }
        }
    }
}

#[test]
fn to_nearest() {
    binary("add.f32 {d}, {a}, {b};", |x, y| x + y);
    binary("sub.rn.f32 {d}, {a}, {b};", |x, y| x - y);
    binary("mul.f32 {d}, {a}, {b};", |x, y| x * y);
    binary("mul.ftz.f32 {d}, {a}, {b};", |x, y| flushed(flushed(x) * flushed(y)));
    binary("div.rn.f32 {d}, {a}, {b};", |x, y| x / y);
    binary("sqrt.rn.f32 {d}, {a};", |x, _| x.sqrt());
    binary("rcp.rn.f32 {d}, {a};", |x, _| 1.0 / x);
    binary("min.f32 {d}, {a}, {b};", lesser);
    binary("max.f32 {d}, {a}, {b};", |x, y| -lesser(-x, -y));
    binary("max.NaN.f32 {d}, {a}, {b};", |x, y| if x.is_nan() || y.is_nan() { f32::NAN } else { -lesser(-x, -y) });
    binary("add.sat.f32 {d}, {a}, {b};", |x, y| if (x + y).is_nan() { 0.0 } else { (x + y).clamp(0.0, 1.0) + 0.0 });
    let (x, y, z) = (anything(1), anything(2), anything(3));
    for (at, found) in apply::<f32, f32, f32, f32>("fma.rn.f32 {d}, {a}, {b}, {c};", &x, &y, &z).into_iter().enumerate()
    {
        assert!(same(found, x[at].mul_add(y[at], z[at])), "fma of {:e}, {:e}, {:e}: {found:e}", x[at], y[at], z[at]);
    }
    // Products that nearly cancel the summand.
    let (x, y) = (near_one(1), near_one(2));
    let z: Vec<f32> = x.iter().zip(&y).map(|(x, y)| -(x * y)).collect();
    for (at, found) in apply::<f32, f32, f32, f32>("fma.rn.f32 {d}, {a}, {b}, {c};", &x, &y, &z).into_iter().enumerate()
    {
        assert!(same(found, x[at].mul_add(y[at], z[at])), "fma of {:e}, {:e}, {:e}: {found:e}", x[at], y[at], z[at]);
    }
}

/// Whether `found` is the exact number, rounded as the mode says; `above` tells on which side of a number the exact one is.
fn rounded(mode: &str, found: f32, above: impl Fn(f64) -> std::cmp::Ordering) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let at = above(found.into());
    let toward_zero = if found > 0.0 || found == 0.0 && found.is_sign_positive() { "rm" } else { "rp" };
    match (if mode == "rz" { toward_zero } else { mode }, at) {
        (_, Equal) => true,
        ("rm", Greater) => above(found.next_up().into()) == Less,
        ("rp", Less) => above(found.next_down().into()) == Greater,
        _ => false,
    }
}

#[test]
fn other_modes() {
    let (x, y, z) = (near_one(1), near_one(2), near_one(3));
    for mode in ["rz", "rm", "rp"] {
        let check = |code: &str, found: Vec<f32>, exact: &dyn Fn(usize, f64) -> std::cmp::Ordering| {
            for (at, found) in found.into_iter().enumerate() {
                let fits = rounded(mode, found, |number| exact(at, number));
                assert!(fits, "{code}.{mode} of {:e}, {:e}, {:e}: {found:e}", x[at], y[at], z[at]);
            }
        };
        let wide = |at: usize| (f64::from(x[at]), f64::from(y[at]), f64::from(z[at]));
        let run = |code: &str| apply::<f32, f32, f32, f32>(&code.replace("{m}", mode), &x, &y, &z);
        check("add", run("add.{m}.f32 {d}, {a}, {b};"), &|at, number| (wide(at).0 + wide(at).1).total_cmp(&number));
        check("sub", run("sub.{m}.f32 {d}, {a}, {b};"), &|at, number| (wide(at).0 - wide(at).1).total_cmp(&number));
        check("mul", run("mul.{m}.f32 {d}, {a}, {b};"), &|at, number| (wide(at).0 * wide(at).1).total_cmp(&number));
        // A product and a summand together may need more than 53 bits: the product less the number is exact in f64 by one
        // fused operation, and its sum with the summand has the right sign.
        check("fma", run("fma.{m}.f32 {d}, {a}, {b}, {c};"), &|at, number| {
            let (x, y, z) = wide(at);
            (x.mul_add(y, z - number)).total_cmp(&0.0)
        });
        // A quotient is above a number if the dividend is above its product with the divisor.
        check("div", run("div.{m}.f32 {d}, {a}, {b};"), &|at, number| {
            let (x, y, _) = wide(at);
            if y > 0.0 { x.total_cmp(&(number * y)) } else { (number * y).total_cmp(&x) }
        });
        check("sqrt", run("abs.f32 %f1, {a}; sqrt.{m}.f32 {d}, %f1;"), &|at, number| {
            wide(at).0.abs().total_cmp(&(number * number))
        });
    }
}

/// Checks a function within an error: a part of the result, and an amount.
#[track_caller]
fn close(code: &str, x: &[f32], of: impl Fn(f64) -> f64, relative: f64, absolute: f64) {
    for (found, x) in apply1::<f32, f32>(code, x).into_iter().zip(x) {
        let expected = of(f64::from(*x));
        let error = (f64::from(found) - expected).abs();
        let fits = error <= expected.abs() * relative + absolute || same(found, expected as f32);
        assert!(fits, "{code} of {x:e}: {found:e}, expected {expected:e}");
    }
}

/// The errors that the manual allows.
#[test]
fn approximations() {
    let (x, near) = (anything(5), near_one(6));
    let p = |exponent: i32| 2f64.powi(exponent);
    close("ex2.approx.f32 {d}, {a};", &x, f64::exp2, p(-22), 0.0);
    close("lg2.approx.f32 {d}, {a};", &x, f64::log2, 0.0, p(-22) * 128.0);
    close("rsqrt.approx.f32 {d}, {a};", &x, |x| 1.0 / x.sqrt(), p(-22), 0.0);
    close("rcp.approx.f32 {d}, {a};", &x, |x| 1.0 / x, p(-23), 0.0);
    close("sqrt.approx.f32 {d}, {a};", &x, f64::sqrt, p(-22), 0.0);
    close("tanh.approx.f32 {d}, {a};", &x, f64::tanh, p(-11), 0.0);
    let near: Vec<f32> = near.into_iter().map(|x| x % 3.0).collect();
    close("sin.approx.f32 {d}, {a};", &near, f64::sin, 0.0, p(-20));
    close("cos.approx.f32 {d}, {a};", &near, f64::cos, 0.0, p(-20));
    let y = near_one(7);
    for (at, found) in apply2::<f32, f32>("div.full.f32 {d}, {a}, {b};", &x, &y).into_iter().enumerate() {
        let expected = x[at] / y[at];
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(error <= f64::from(expected.abs()) * p(-22) || same(found, expected), "{:e} / {:e}", x[at], y[at]);
    }
}

#[track_caller]
fn converts<D: Word + PartialEq + std::fmt::Debug>(code: &str, x: &[f32], expected: impl Fn(f32) -> D) {
    for (found, x) in apply1::<D, f32>(code, x).into_iter().zip(x) {
        assert_eq!(found, expected(*x), "{code} of {x:e}");
    }
}

#[test]
fn conversions() {
    let mut x = anything(8);
    x.truncate(COUNT / 2);
    x.extend(near_one(9).into_iter().take(COUNT / 4).map(|x| x * 1000.0));
    x.extend((0..COUNT / 4).map(|at| at as f32 / 2.0 - 60_000.0));
    converts::<u32>("cvt.rzi.s32.f32 {d}, {a};", &x, |x| x as i32 as u32);
    converts::<u32>("cvt.rni.s32.f32 {d}, {a};", &x, |x| x.round_ties_even() as i32 as u32);
    converts::<u32>("cvt.rmi.u32.f32 {d}, {a};", &x, |x| x.floor() as u32);
    converts::<u32>("cvt.rpi.s32.f32 {d}, {a};", &x, |x| x.ceil() as i32 as u32);
    // What is no number becomes the largest power of two.
    converts::<u64>("cvt.rzi.s64.f32 {d}, {a};", &x, |x| if x.is_nan() { 1 << 63 } else { x as i64 as u64 });
    converts::<u32>("cvt.rzi.u8.f32 {d}, {a};", &x, |x| (x as u8).into());
    converts::<u16>("cvt.rn.bf16.f32 {d}, {a};", &x, |x| if x.is_nan() { 0x7fff } else { bf16::from_f32(x).to_bits() });
    converts::<u16>("cvt.rn.f16.f32 {d}, {a};", &x, |x| if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() });
    let toward_zero = |x: f32| {
        let near = f16::from_f32(x);
        let away = near.to_f32().abs() > x.abs();
        if x.is_nan() {
            0x7fff
        } else if away && x.is_finite() {
            near.to_bits() - 1
        } else {
            near.to_bits()
        }
    };
    converts::<u16>("cvt.rz.f16.f32 {d}, {a};", &x, toward_zero);
    converts::<u32>("cvt.rn.f16x2.f32 {d}, {a}, 0f3F800000;", &x, |x| {
        let high = if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() };
        u32::from(high) << 16 | 0x3c00
    });
    converts::<u32>("cvt.rn.relu.bf16x2.f32 {d}, 0f40000000, {a};", &x, |x| {
        let low = if x.is_nan() {
            0x7fff
        } else if x > 0.0 {
            bf16::from_f32(x).to_bits()
        } else {
            0
        };
        0x4000 << 16 | u32::from(low)
    });
    let no_nan: Vec<f32> = x.iter().copied().filter(|x| !x.is_nan()).collect();
    converts::<u32>("cvt.rna.tf32.f32 {d}, {a};", &no_nan, |x| {
        if x.is_infinite() { x.to_bits() } else { (x.to_bits() + 0x1000) & !0x1fff }
    });
    converts::<u64>("cvt.f64.f32 {d}, {a};", &no_nan, |x| f64::from(x).to_bits());
    converts::<f32>("cvt.rni.f32.f32 {d}, {a};", &no_nan, f32::round_ties_even);
    let mut random = Random(10);
    let wide: Vec<u64> = (0..COUNT).map(|_| random.next() >> (random.next() % 64)).collect();
    for (code, of) in [
        ("cvt.rn.f32.u64", (|x| (x as f32).to_bits().into()) as fn(u64) -> u64),
        ("cvt.rn.f32.s64", |x| (x as i64 as f32).to_bits().into()),
        ("cvt.rn.f32.u32", |x| (x as u32 as f32).to_bits().into()),
        ("cvt.rn.f32.s32", |x| (x as i32 as f32).to_bits().into()),
    ] {
        let narrow = code.ends_with("32") && !code.ends_with("f32");
        let source = if narrow { "cvt.u32.u64 %r5, {a}; {code} %f1, %r5;" } else { "{code} %f1, {a};" };
        let text = format!("{} mov.b32 %r6, %f1; cvt.u64.u32 {{d}}, %r6;", source.replace("{code}", code));
        for (found, x) in apply1::<u64, u64>(&text, &wide).into_iter().zip(&wide) {
            assert_eq!(found, of(*x), "{code} of {x:#x}");
        }
    }
    for (found, x) in apply1::<f64, u64>("cvt.rn.f64.u64 {d}, {a};", &wide).into_iter().zip(&wide) {
        assert_eq!(found, *x as f64);
    }
    let doubles: Vec<f64> = wide.iter().map(|x| f64::from_bits(x.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    for (found, x) in apply1::<f32, f64>("cvt.rn.f32.f64 {d}, {a};", &doubles).into_iter().zip(&doubles) {
        assert!(same(found, *x as f32), "{x:e}");
    }
}

#[test]
fn doubles() {
    let mut random = Random(11);
    let mut numbers = || (0..COUNT / 4).map(|_| f64::from_bits(random.next())).collect::<Vec<f64>>();
    let (x, y, z) = (numbers(), numbers(), numbers());
    type Of = fn(f64, f64, f64) -> f64;
    let cases: [(&str, Of); 7] = [
        ("add.f64 {d}, {a}, {b};", |x, y, _| x + y),
        ("sub.rn.f64 {d}, {a}, {b};", |x, y, _| x - y),
        ("mul.f64 {d}, {a}, {b};", |x, y, _| x * y),
        ("div.rn.f64 {d}, {a}, {b};", |x, y, _| x / y),
        ("sqrt.rn.f64 {d}, {a};", |x, _, _| x.sqrt()),
        ("rcp.rn.f64 {d}, {a};", |x, _, _| 1.0 / x),
        ("fma.rn.f64 {d}, {a}, {b}, {c};", f64::mul_add),
    ];
    for (code, of) in cases {
        for (at, found) in apply::<f64, f64, f64, f64>(code, &x, &y, &z).into_iter().enumerate() {
            let expected = of(x[at], y[at], z[at]);
            let fits = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(fits, "{code} of {:e}, {:e}, {:e}: {found:e}", x[at], y[at], z[at]);
        }
    }
    // Numbers of similar size, of at most 40 bits, so that a sum of a product and a number is not always exact.
    let part = |x: &f64| f64::from_bits(x.to_bits() & 0x800f_ffff_ffff_e000 | 1020 << 52 | (x.to_bits() & 7) << 52);
    let (x, y): (Vec<f64>, Vec<f64>) = (x.iter().map(part).collect(), y.iter().map(part).collect());
    for mode in ["rz", "rm", "rp"] {
        for (code, of) in [("add", (|x, y, _| x + y) as Of), ("mul", |x, y, _| x * y), ("div", |x, y, _| x / y)] {
            let text = format!("{code}.{mode}.f64 {{d}}, {{a}}, {{b}};");
            for (at, found) in apply2::<f64, f64>(&text, &x, &y).into_iter().enumerate() {
                let (x, y) = (x[at], y[at]);
                let near = of(x, y, 0.0);
                // The sign of what the nearest number lacks.
                let lacks = match code {
                    "add" => {
                        if x.abs() > y.abs() {
                            y - (near - x)
                        } else {
                            x - (near - y)
                        }
                    }
                    "mul" => x.mul_add(y, -near),
                    _ => (-near).mul_add(y, x) * y.signum(),
                };
                let expected = match mode {
                    _ if lacks == 0.0 => near,
                    "rm" if lacks < 0.0 => near.next_down(),
                    "rp" if lacks > 0.0 => near.next_up(),
                    "rz" if lacks < 0.0 && near > 0.0 => near.next_down(),
                    "rz" if lacks > 0.0 && near < 0.0 => near.next_up(),
                    _ => near,
                };
                assert!(found == expected, "{code}.{mode} of {x:e}, {y:e}: {found:e}, expected {expected:e}");
            }
        }
    }
}
