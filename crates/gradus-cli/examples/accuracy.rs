//! The errors of the f32 functions in units in the last place, compared with the errors that JAX publishes for its own
//! functions on the CPU.
//!
//! ```sh
//! cargo run --release --example accuracy                       # every 4099th of all f32 numbers
//! cargo run --release --example accuracy -- --exhaustive exp   # all 2^32, one function
//! ```
//! The reference is the f64 function of the C library, or of the `libm` crate where Rust has no such function or only
//! an approximate one. The exit code is 1 if an error exceeds 1 ULP.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Instant;

use gradus::prelude::*;

/// A function of tensors, its reference, and the largest error that JAX publishes, if it publishes one.
struct Row {
    name: &'static str,
    ours: fn(&Tensor) -> Result<Tensor>,
    truth: fn(f64) -> f64,
    jax: Option<f64>,
}

macro_rules! rows {
    ($($name:ident, $truth:expr, $jax:expr;)*) => {
        &[$(Row { name: stringify!($name), ours: |x| x.$name(), truth: $truth, jax: $jax },)*]
    };
}

const ROWS: &[Row] = rows! {
    exp, f64::exp, Some(1.5);
    exp2, f64::exp2, Some(68.5);
    expm1, f64::exp_m1, Some(6.5);
    log, f64::ln, Some(1.5);
    log2, f64::log2, None;
    log10, f64::log10, None;
    log1p, f64::ln_1p, Some(3.0);
    sqrt, f64::sqrt, None;
    rsqrt, |x| 1.0 / x.sqrt(), None;
    recip, |x| 1.0 / x, None;
    sin, f64::sin, Some(0.5);
    cos, f64::cos, Some(0.5);
    tan, f64::tan, Some(0.5);
    asin, f64::asin, None;
    acos, f64::acos, None;
    atan, f64::atan, Some(5.5);
    sinh, f64::sinh, Some(25.0);
    cosh, f64::cosh, Some(25.0);
    tanh, f64::tanh, Some(5.0);
    asinh, libm::asinh, Some(3.5);
    // At some points below 1, `libm::acosh` returns a number instead of NaN.
    acosh, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }, Some(4.5);
    atanh, libm::atanh, Some(3.5);
    erf, libm::erf, Some(7.0);
    erfc, libm::erfc, Some(66.0);
    sigmoid, sigmoid, Some(2.5);
    softplus, softplus, None;
};

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

/// The distance from `got` to `want` in units in the last place of `want` rounded to f32. It is infinite if only one of
/// them is NaN, or if a zero has the wrong sign.
fn ulps(got: f32, want: f64) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if (got == 0.0 || want == 0.0) && got.is_sign_negative() != want.is_sign_negative() {
        return f64::INFINITY;
    }
    let limit = 2.0_f64.powi(128); // infinity counts as the number after f32::MAX
    let rounded = (want as f32).abs().clamp(f32::MIN_POSITIVE, f32::MAX);
    let ulp = f64::from_bits(f64::from(rounded).to_bits() & 0x7ff0_0000_0000_0000) / 8_388_608.0;
    (f64::from(got).clamp(-limit, limit) - want.clamp(-limit, limit)).abs() / ulp
}

/// How many numbers are computed at once.
const BLOCK: u64 = 1 << 18;

/// The largest error over the bit patterns `0, stride, 2 stride, ..`, and the number at which it occurs.
fn worst(row: &Row, device: &Device, stride: u64, threads: u64) -> Result<(f64, f32)> {
    let count = (1u64 << 32).div_ceil(stride);
    let part = |thread: u64| -> Result<(f64, f32)> {
        let (mut worst, mut at) = (0.0, 0.0);
        let mut first = thread * BLOCK;
        while first < count {
            let bits = (first..count.min(first + BLOCK)).map(|i| (i * stride) as u32);
            let x: Vec<f32> = bits.map(f32::from_bits).collect();
            let y = (row.ours)(&Tensor::from_vec(&x, [x.len()], device)?)?.to_vec::<f32>()?;
            for (&x, &y) in x.iter().zip(&y) {
                let error = ulps(y, (row.truth)(f64::from(x)));
                if error > worst {
                    (worst, at) = (error, x);
                }
            }
            first += threads * BLOCK;
        }
        Ok((worst, at))
    };
    let parts: Vec<Result<(f64, f32)>> = std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads).map(|t| s.spawn(move || part(t))).collect();
        handles.into_iter().filter_map(|h| h.join().ok()).collect()
    });
    let mut all = (0.0, 0.0);
    for p in parts {
        let p = p?;
        if p.0 > all.0 {
            all = p;
        }
    }
    Ok(all)
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<_>, Vec<_>) = arguments.into_iter().partition(|a| a.starts_with('-'));
    let unknown =
        names.iter().find(|n| !ROWS.iter().any(|r| r.name == *n)).or(options.iter().find(|o| *o != "--exhaustive"));
    if let Some(unknown) = unknown {
        let all: Vec<_> = ROWS.iter().map(|r| r.name).collect();
        println!("unknown `{unknown}`\nusage: accuracy [--exhaustive] [FUNCTION..]\nfunctions: {}", all.join(" "));
        return Ok(ExitCode::from(2));
    }
    let (device, stride) = (Device::cpu()?, if options.is_empty() { 4099 } else { 1 });
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let numbers = (1u64 << 32).div_ceil(stride);
    println!("{numbers} f32 numbers a function; {}", device.info().features.join(" "));
    println!("{:10} {:>8} {:>8}  largest error at", "", "ULP", "JAX");
    let mut good = true;
    for row in ROWS.iter().filter(|r| names.is_empty() || names.iter().any(|n| n == r.name)) {
        let start = Instant::now();
        let (error, at) = worst(row, &device, stride, threads)?;
        let jax = row.jax.map_or(String::new(), |e| format!("{e}"));
        println!(
            "{:10} {error:8.4} {jax:>8}  {at:e} ({:#010x}), {:.1} s",
            row.name,
            at.to_bits(),
            start.elapsed().as_secs_f64()
        );
        good &= error <= 1.0;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
