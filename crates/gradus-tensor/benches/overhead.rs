//! What a small operation costs: `cargo bench -p gradus-tensor`. Prints the median of repeated runs, in nanoseconds.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_tensor::{Device, Result, Tensor, no_grad};

const CHAIN: usize = 1000;
const ROUNDS: usize = 300;

/// The medians of the stages of a job that gives their times.
fn medians<const N: usize>(mut job: impl FnMut() -> Result<[f64; N]>) -> Result<[f64; N]> {
    let mut times: [Vec<f64>; N] = std::array::from_fn(|_| vec![]);
    for _ in 0..ROUNDS {
        for (all, t) in times.iter_mut().zip(job()?) {
            all.push(t / CHAIN as f64);
        }
    }
    Ok(times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    }))
}

/// Nanoseconds, and what `f` gives.
fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let found = f()?;
    Ok((start.elapsed().as_nanos() as f64, found))
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn chain(x: &Tensor, b: &Tensor, op: Binary) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = op(&y, b)?;
    }
    Ok(y)
}

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let a = Tensor::from_vec([1.0f32; 4], [4], &device)?;
    let b = Tensor::from_vec([0.999f32; 4], [4], &device)?;
    let w = a.require_grad()?;
    let ops: [(&str, Binary); 2] = [("add", |x, y| x.add(y)), ("mul", |x, y| x.mul(y))];
    println!("nanoseconds an operation on 4 elements, in a chain of {CHAIN}");
    for (name, op) in ops {
        let [plain] = medians(|| {
            let _guard = no_grad();
            Ok([timed(|| chain(&a, &b, op)?.to_vec::<f32>())?.0])
        })?;
        let [recorded, backward, dropped] = medians(|| {
            let (forward, y) = timed(|| chain(&w, &b, op))?;
            let loss = y.sum_all()?;
            drop(y);
            let (backward, gradients) = timed(|| loss.backward())?;
            black_box(gradients);
            let start = Instant::now();
            drop(loss);
            Ok([forward, backward, start.elapsed().as_nanos() as f64])
        })?;
        let all = recorded + backward + dropped;
        println!(
            "{name}, no gradients {plain:6.0}   recorded {recorded:6.0}   backward {backward:6.0}   drop {dropped:6.0}   all {all:6.0}"
        );
    }
    Ok(())
}
