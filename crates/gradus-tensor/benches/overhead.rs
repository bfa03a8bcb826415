//! Measures what a small operation costs, whether that depends on the size of the graph, and what it costs to check a
//! saved value: `cargo bench -p gradus-tensor`. Prints the median of repeated runs, in nanoseconds.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::{BackwardOptions, CustomOp, Device, Result, Tensor, apply_custom, grad, no_grad};

const CHAIN: usize = 1000;
const ROUNDS: usize = 300;

/// Runs a job that returns the times of its stages, and returns the median of each stage, divided by `parts`.
fn medians<const N: usize>(rounds: usize, parts: usize, mut job: impl FnMut() -> Result<[f64; N]>) -> Result<[f64; N]> {
    let mut times: [Vec<f64>; N] = std::array::from_fn(|_| vec![]);
    for _ in 0..rounds {
        for (all, t) in times.iter_mut().zip(job()?) {
            all.push(t / parts as f64);
        }
    }
    Ok(times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    }))
}

/// Returns the nanoseconds that `f` took, and its result.
fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let found = f()?;
    Ok((start.elapsed().as_nanos() as f64, found))
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const OPS: [(&str, Binary); 2] = [("add", |x, y| x.add(y)), ("mul", |x, y| x.mul(y))];

fn chain(x: &Tensor, b: &Tensor, op: Binary, length: usize) -> Result<Tensor> {
    let mut y = x.clone();
    for _ in 0..length {
        y = op(&y, b)?;
    }
    Ok(y)
}

/// Measures operations without gradients, and then the stages of one step with gradients.
fn small_operations(a: &Tensor, b: &Tensor) -> Result<()> {
    let w = a.with_grad()?;
    println!("nanoseconds an operation on {} elements, in a chain of {CHAIN}", a.numel());
    for (name, op) in OPS {
        let [plain] = medians(ROUNDS, CHAIN, || {
            let timed = timed(|| no_grad(|| chain(a, b, op, CHAIN)?.to_vec::<f32>()))?;
            Ok([timed.0])
        })?;
        let [recorded, backward, dropped] = medians(ROUNDS, CHAIN, || {
            let (forward, y) = timed(|| chain(&w, b, op, CHAIN))?;
            let loss = y.sum_all()?;
            drop(y);
            let (backward, gradients) = timed(|| loss.backward())?;
            let _ = black_box(gradients);
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

/// Measures chains of several lengths. If a node always costs the same, the time is linear in the length.
///
/// *Drop* is the time to drop a whole graph over which no backward pass has run. *Backward* includes freeing the graph
/// along the way. *Grad* computes only the gradient of the leaf.
fn large_graphs(a: &Tensor, b: &Tensor) -> Result<()> {
    let w = a.with_grad()?;
    println!("\nnanoseconds a node, in graphs of several sizes");
    for (name, op) in OPS {
        for nodes in [10_000, 100_000, 1_000_000] {
            let [forward, backward, grad, dropped] = medians((1_000_000 / nodes).max(3), nodes, || {
                let (forward, y) = timed(|| chain(&w, b, op, nodes))?;
                let (dropped, ()) = timed(|| {
                    drop(y);
                    Ok(())
                })?;
                let loss = chain(&w, b, op, nodes)?.sum_all()?;
                let (backward, gradients) = timed(|| loss.backward())?;
                let _ = black_box(gradients);
                let loss = chain(&w, b, op, nodes)?.sum_all()?;
                let (grad, gradients) = timed(|| grad(&[&loss], &[&w], None, BackwardOptions::new()))?;
                black_box(gradients);
                Ok([forward, backward, grad, dropped])
            })?;
            println!(
                "{name}, {nodes:8} nodes   forward {forward:6.0}   backward {backward:6.0}   grad {grad:6.0}   drop {dropped:6.0}"
            );
        }
    }
    Ok(())
}

/// The identity. Its backward rule reads the saved input over and over, and records how long that took.
#[derive(Default)]
struct Reads {
    /// Nanoseconds of [`CHAIN`] reads, and of the same number of clones of the handle that a read returns.
    times: Mutex<[f64; 2]>,
}

impl CustomOp for Reads {
    fn name(&self) -> &str {
        "reads"
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].copy()?])
    }

    fn keeps(&self, _needs: &[bool]) -> Keep {
        Keep::inputs([0])
    }

    fn backward(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let kept = ctx.input(0)?;
        let (reads, ()) = timed(|| (0..CHAIN).try_for_each(|_| black_box(ctx).input(0).map(|t| drop(black_box(t)))))?;
        let (copies, ()) = timed(|| {
            (0..CHAIN).for_each(|_| drop(black_box(black_box(&kept).clone())));
            Ok(())
        })?;
        if let Ok(mut times) = self.times.lock() {
            *times = [reads, copies];
        }
        Ok(vec![grads[0].clone()])
    }
}

/// Measures what it costs to check a saved value when a backward rule reads it.
///
/// A read finds the value, compares the current version of its storage with the version at saving, and returns a
/// handle. Cloning the handle alone skips finding and checking, so the difference is their cost. If other parts of the
/// storage have been written, the versions differ, and the log of writes must be searched.
fn checks(a: &Tensor) -> Result<()> {
    println!("\nnanoseconds to read a value that was kept");
    for beside in [false, true] {
        let [reads, copies] = medians(ROUNDS, CHAIN, || {
            let base = Tensor::cat(&[a, a], 0)?;
            let kept = base.narrow(0, 0, a.numel())?.with_grad()?;
            let op = Arc::new(Reads::default());
            let loss = apply_custom(&op, &[&kept])?.remove(0).sum_all()?;
            if beside {
                base.narrow(0, a.numel(), a.numel())?.fill_(1.0)?;
            }
            let _ = loss.backward()?;
            let times = op.times.lock();
            Ok(times.map_or([f64::NAN; 2], |t| *t))
        })?;
        let what = if beside { "written beside it" } else { "not written    " };
        println!("{what}   read {reads:5.1}   handle {copies:5.1}   check {:5.1}", reads - copies);
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let a = Tensor::from_vec([1.0f32; 4], [4], &device)?;
    let b = Tensor::from_vec([0.999f32; 4], [4], &device)?;
    small_operations(&a, &b)?;
    large_graphs(&a, &b)?;
    checks(&a)
}
