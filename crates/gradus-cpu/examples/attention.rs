//! Times attention and its gradient against the composites that they replace:
//! `cargo run --release -p gradus-cpu --example attention -- [part of a name] [threads]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use gradus_backend::DType::{BF16, F16, F32, F64};
use gradus_backend::composite::attention::{backward, forward};
use gradus_backend::*;
use gradus_cpu::CpuBackend;

struct Tensor(Buffer, DType, Layout);

impl Tensor {
    fn new(cpu: &CpuBackend, dtype: DType, dims: &[usize], seed: u64) -> Tensor {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        let mut t = Tensor(cpu.alloc(layout.numel() * dtype.size()).unwrap(), dtype, layout);
        cpu.random(Distribution::Normal { mean: 0.0, std: 1.0 }, seed, 0, &mut t.view_mut()).unwrap();
        t
    }
    fn view(&self) -> View<'_> {
        View { buffer: &self.0, dtype: self.1, layout: &self.2 }
    }
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.0, dtype: self.1, layout: &self.2 }
    }
}

/// Prints the shortest and the median time of each call in milliseconds. The calls alternate.
fn job(name: &str, calls: &mut [(&str, &mut dyn FnMut())]) {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let mut times = vec![vec![]; calls.len()];
    let start = Instant::now();
    while times[0].len() < 5 || start.elapsed().as_millis() < 2000 {
        for ((_, f), times) in calls.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            f();
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    print!("  {name:40}");
    for ((kind, _), times) in calls.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        print!("  {kind} {:8.3} {:8.3} ms", times[0], times[times.len() / 2]);
    }
    println!();
}

fn main() {
    let threads = std::env::args().nth(2).and_then(|t| t.parse().ok()).unwrap_or(2);
    let cpu = &CpuBackend::with_threads(threads).unwrap();
    println!("{:?}", cpu.info().features);
    for (dtype, [b, h, lq, lk, d], causal) in [
        (F32, [4, 8, 512, 512, 64], true),
        (F32, [4, 8, 512, 512, 64], false),
        (F32, [4, 6, 256, 256, 64], true),
        (F32, [1, 1, 512, 512, 64], true),
        (F32, [1, 8, 2048, 2048, 64], true),
        (F32, [1, 2, 2048, 2048, 128], false),
        (F32, [4, 8, 1, 512, 64], true),
        (F32, [4, 4, 16, 16, 32], true),
        (BF16, [4, 8, 512, 512, 64], true),
        (F16, [4, 8, 512, 512, 64], true),
        (F64, [4, 8, 512, 512, 64], true),
    ] {
        let name = format!("{dtype} {b}x{h}x{lq}x{lk}x{d}{}", if causal { " causal" } else { "" });
        let params = &AttentionParams { causal, scale: 1.0 / (d as f64).sqrt() };
        let [q, k, v, g] =
            [(1, lq), (2, lk), (3, lk), (4, lq)].map(|(seed, l)| Tensor::new(cpu, dtype, &[b, h, l, d], seed));
        let [mut out, mut dq] = [0; 2].map(|_| Tensor::new(cpu, dtype, &[b, h, lq, d], 0));
        let [mut dk, mut dv] = [0; 2].map(|_| Tensor::new(cpu, dtype, &[b, h, lk, d], 0));
        let mut stats = Tensor::new(cpu, dtype.compute(), &[b, h, lq, 2], 0);
        let (q, k, v, g) = (q.view(), k.view(), v.view(), g.view());
        {
            let (out, stats) = (std::cell::RefCell::new(&mut out), std::cell::RefCell::new(&mut stats));
            let run = |native: bool| {
                let (mut out, mut stats) = (out.borrow_mut(), stats.borrow_mut());
                let (out, stats) = (&mut out.view_mut(), &mut stats.view_mut());
                let done = if native {
                    cpu.attention(params, q, k, v, None, out, stats)
                } else {
                    forward(cpu, params, q, k, v, None, out, stats)
                };
                done.unwrap();
            };
            let calls: &mut [(&str, &mut dyn FnMut())] =
                &mut [("composite", &mut || run(false)), ("native", &mut || run(true))];
            job(&format!("{name} forward"), calls);
        }
        let gradients = std::cell::RefCell::new((&mut dq, &mut dk, &mut dv));
        let (out, stats) = (out.view(), stats.view());
        let run = |native: bool| {
            let mut gradients = gradients.borrow_mut();
            let (dq, dk, dv) = &mut *gradients;
            let (dq, dk, dv) = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
            let done = if native {
                cpu.attention_backward(params, q, k, v, None, out, stats, g, dq, dk, dv)
            } else {
                backward(cpu, params, q, k, v, None, out, stats, g, dq, dk, dv)
            };
            done.unwrap();
        };
        let calls: &mut [(&str, &mut dyn FnMut())] =
            &mut [("composite", &mut || run(false)), ("native", &mut || run(true))];
        job(&format!("{name} backward"), calls);
    }
}
