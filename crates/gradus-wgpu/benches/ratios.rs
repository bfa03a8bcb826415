//! Times of the WebGPU backend on this machine's adapter. On a software driver only their ratios are meaningful.
//!
//! `cargo bench -p gradus-wgpu`
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use gradus::Result;
use gradus::prelude::*;
use gradus_wgpu::{WgpuBackend, adapters, chosen};

/// The shortest of `rounds` measurements of `count` calls and a wait, in seconds per call.
fn best(device: &Device, rounds: usize, count: usize, mut f: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..=rounds {
        let start = Instant::now();
        for _ in 0..count {
            drop(f()?);
        }
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / count as f64);
    }
    Ok(best)
}

fn main() -> Result<()> {
    if adapters().is_empty() {
        println!("skipped: no adapter for wgpu here");
        return Ok(());
    }
    let device = Device::from_backend(Arc::new(WgpuBackend::open(chosen()?)?));
    println!("{}", device.info().hardware);
    let mut generator = Generator::new(1);
    let n = 1 << 22;
    let a = Tensor::randn([n], DType::F32, &device, &mut generator)?;
    let b = Tensor::randn([n], DType::F32, &device, &mut generator)?;
    // Alternately, so that other load on the machine affects both.
    let (mut mul, mut silu) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..15 {
        mul = mul.min(best(&device, 1, 1, || a.mul(&b))?);
        silu = silu.min(best(&device, 1, 1, || a.silu_mul(&b))?);
    }
    let bytes = 12.0 * n as f64;
    println!("mul       {:8.3} ms  {:6.2} GB/s", mul * 1e3, bytes / mul / 1e9);
    println!("silu_mul  {:8.3} ms  {:6.2} of mul", silu * 1e3, silu / mul);
    let sum = best(&device, 8, 4, || a.sum_all())?;
    println!("sum       {:8.3} ms  {:6.2} of mul", sum * 1e3, sum / mul);
    let (half, other) = (a.to_dtype(DType::BF16)?, b.to_dtype(DType::BF16)?);
    let narrow = best(&device, 8, 4, || half.mul(&other))?;
    println!("mul bf16  {:8.3} ms  {:6.2} of mul", narrow * 1e3, narrow / mul);
    let small = Tensor::zeros([64], DType::F32, &device)?;
    let add = best(&device, 4, 1000, || small.add(1.0))?;
    println!("small add {:8.3} us", add * 1e6);
    for m in [256, 512] {
        let x = Tensor::randn([m, m], DType::F32, &device, &mut generator)?;
        let y = Tensor::randn([m, m], DType::F32, &device, &mut generator)?;
        let t = best(&device, 4, 1, || x.matmul(&y))?;
        println!("matmul {m} {:8.3} ms  {:6.2} GFLOP/s", t * 1e3, 2.0 * (m * m * m) as f64 / t / 1e9);
    }
    let x = Tensor::randn([512, 1024], DType::F32, &device, &mut generator)?;
    let t = best(&device, 4, 2, || x.softmax(-1))?;
    println!("softmax   {:8.3} ms  {:6.2} of mul by element", t * 1e3, t / 524_288.0 / (mul / n as f64));
    Ok(())
}
