//! What NVRTC makes of CUDA C, executed.

mod common;

use common::{Arg, Device};

/// Functions that are called, shared memory, constants, atomics, `printf`.
#[test]
fn calls() {
    let device = Device::new(include_str!("kernels/calls.ptx"));
    let x: Vec<f32> = (0..1000).map(|i| (i % 7) as f32 * 0.25).collect();
    let (from, to) = (device.upload(&x), device.alloc::<f32>(3));
    let args = [Arg::U64(from), Arg::U64(to), Arg::U32(1000)];
    let stats = device.run_with("reduce", [3, 1, 1], [256, 1, 1], 4, &args).unwrap_or_else(|fault| panic!("{fault}"));
    let mut sums = [0f64; 3];
    for (i, x) in x.iter().enumerate() {
        sums[i / 256 % 3] += f64::from(*x) * (i % 4 + 1) as f64;
    }
    for (found, sum) in device.download::<f32>(to, 3).into_iter().zip(sums) {
        assert!((f64::from(found) - sum.sin() - 3.0).abs() < 1e-6, "{found} {}", sum.sin() + 3.0);
    }
    let lines: String = (0..3).map(|i| format!("block {i} of 3: {:5.2}\n", sums[i])).collect();
    assert_eq!(stats.output, lines);
    let (counter, size) = device.module.variable("counter", &device.memory).unwrap().unwrap();
    assert_eq!((size, device.download::<u32>(counter, 1)[0]), (4, 3));
}

/// CUDA's own functions, with their slow paths, on numbers of all sizes.
#[test]
fn functions() {
    let device = Device::new(include_str!("kernels/calls.ptx"));
    let x: Vec<f64> =
        (0..4000).map(|i| ((i * 7919) % 4001 - 2000) as f64 * 10f64.powi(i / 10 % 5 - 2) * 0.01 + 0.001).collect();
    let (from, to) = (device.upload(&x), device.alloc::<f64>(x.len()));
    let args = [Arg::U64(from), Arg::U64(to), Arg::U32(x.len() as u32)];
    device.run("functions", 40, 128, &args).unwrap_or_else(|fault| panic!("{fault}"));
    for (i, (found, x)) in device.download::<f64>(to, x.len()).into_iter().zip(&x).enumerate() {
        let Some(expected) = function(i, *x) else { continue };
        let close = (found - expected).abs() <= expected.abs() * 1e-14 || found == expected;
        assert!(close, "function {} of {x}: {found}, expected {expected}", i % 10);
    }
    let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    let (from, to) = (device.upload(&x), device.alloc::<f32>(x.len()));
    let args = [Arg::U64(from), Arg::U64(to), Arg::U32(x.len() as u32)];
    device.run("functions32", 40, 128, &args).unwrap_or_else(|fault| panic!("{fault}"));
    for (i, (found, x)) in device.download::<f32>(to, x.len()).into_iter().zip(&x).enumerate() {
        let Some(expected) = function(i, f64::from(*x)) else { continue };
        let expected = if i % 10 == 8 { f64::from(*x).abs().sqrt() } else { expected };
        let narrow = expected as f32;
        let close = (f64::from(found) - expected).abs() <= expected.abs() * 8e-7 || found == narrow;
        assert!(close, "function {} of {x}: {found}, expected {expected}", i % 10);
    }
}

/// What the host gives; none where it has no such function.
fn function(index: usize, x: f64) -> Option<f64> {
    Some(match index % 10 {
        0 => x.sin(),
        1 => x.exp(),
        2 => x.abs().ln(),
        3 => x.abs().powf(1.5),
        4 => x.tanh(),
        5 => return None,
        6 => x.cbrt(),
        7 => x.atan(),
        8 => return None,
        _ => 1.0 / x,
    })
}
