//! What a small operation costs: `cargo bench -p gradus-tensor`. Prints the median of repeated runs, in nanoseconds.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_tensor::{Device, Result, Tensor, no_grad};

const CHAIN: usize = 1000;

fn median(mut job: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..300 {
        let start = Instant::now();
        job()?;
        times.push(start.elapsed().as_nanos() as f64 / CHAIN as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn chain(x: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = y.add(b)?;
    }
    Ok(y)
}

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let a = Tensor::from_vec([1.0f32; 4], [4], &device)?;
    let b = Tensor::from_vec([0.5f32; 4], [4], &device)?;
    let w = a.require_grad()?;
    let plain = median(|| {
        let _guard = no_grad();
        black_box(chain(&a, &b)?);
        Ok(())
    })?;
    println!("add of 4 elements, no gradients      {plain:7.1} ns");
    let recorded = median(|| {
        black_box(chain(&w, &b)?.sum_all()?.backward()?);
        Ok(())
    })?;
    println!("add of 4 elements, forward, backward {recorded:7.1} ns");
    Ok(())
}
