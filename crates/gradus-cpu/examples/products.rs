//! Times matrix products, linear layers and convolutions in f32, each direction separately:
//! `cargo run --release -p gradus-cpu --example products -- [part of a name] [threads]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use gradus_backend::*;
use gradus_cpu::CpuBackend;

/// Returns whether the jobs of this name were requested.
fn wanted(name: &str) -> bool {
    std::env::args().nth(1).is_none_or(|part| name.contains(&part) || part.starts_with(name))
}

/// Prints the shortest and the median time of many runs of a call, and the operations per second of the shortest run.
fn job(name: &str, flops: usize, mut f: impl FnMut()) {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    f();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 10 || start.elapsed().as_millis() < 400 {
        let begin = Instant::now();
        f();
        times.push(begin.elapsed().as_nanos() as f64);
    }
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[times.len() / 2]);
    println!("  {name:36} {:10.1} us {:10.1} us  {:6.1} GFLOP/s", best / 1e3, median / 1e3, flops as f64 / best);
}

struct Tensor(Buffer, Layout);

impl Tensor {
    fn new(cpu: &CpuBackend, dims: &[usize]) -> Tensor {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        let value = |i: usize| (i as u32).wrapping_mul(2_654_435_761) as f32 / (1u32 << 31) as f32 - 1.0;
        let values: Vec<f32> = (0..layout.numel()).map(value).collect();
        let mut buffer = cpu.alloc(layout.numel() * 4).unwrap();
        cpu.upload(&mut buffer, 0, f32::as_bytes(&values)).unwrap();
        Tensor(buffer, layout)
    }
    fn view(&self) -> View<'_> {
        View { buffer: &self.0, dtype: DType::F32, layout: &self.1 }
    }
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.0, dtype: DType::F32, layout: &self.1 }
    }
}

fn gemm(cpu: &CpuBackend, n: usize) {
    if !wanted(&format!("gemm_{n}")) && !wanted(&format!("gemm_bt_{n}")) {
        return;
    }
    let (a, b, mut c) = (Tensor::new(cpu, &[n, n]), Tensor::new(cpu, &[n, n]), Tensor::new(cpu, &[n, n]));
    let (one, zero) = (Scalar::Float(1.0), Scalar::Float(0.0));
    for (name, b) in [("", b.1), ("_bt", b.1.transpose(0, 1).unwrap())] {
        job(&format!("gemm{name}_{n}"), 2 * n * n * n, || {
            cpu.gemm(one, a.view(), View { layout: &b, ..a.view() }, zero, &mut c.view_mut()).unwrap();
        });
    }
}

/// The three products of a linear layer of `rows` samples: forward, the gradient of its input and that of its weight.
fn linear(cpu: &CpuBackend, [rows, from, to]: [usize; 3]) {
    let name = format!("linear_{rows}x{from}x{to}");
    if !wanted(&name) {
        return;
    }
    let [mut x, mut w, mut y] = [[rows, from], [to, from], [rows, to]].map(|dims| Tensor::new(cpu, &dims));
    let (one, zero) = (Scalar::Float(1.0), Scalar::Float(0.0));
    let [turned_w, turned_y] = [&w.1, &y.1].map(|layout| layout.transpose(0, 1).unwrap());
    let flops = 2 * rows * from * to;
    job(&name, flops, || {
        cpu.gemm(one, x.view(), View { layout: &turned_w, ..w.view() }, zero, &mut y.view_mut()).unwrap();
    });
    job(&format!("{name} input"), flops, || {
        cpu.gemm(one, y.view(), w.view(), zero, &mut x.view_mut()).unwrap();
    });
    job(&format!("{name} weight"), flops, || {
        cpu.gemm(one, View { layout: &turned_y, ..y.view() }, x.view(), zero, &mut w.view_mut()).unwrap();
    });
}

fn conv(cpu: &CpuBackend, [n, c, h, o, k, s, pad]: [usize; 7]) {
    let side = (h + 2 * pad - k) / s + 1;
    let window = Window {
        rank: 2,
        kernel: [k, k, 1],
        stride: [s, s, 1],
        dilation: [1; 3],
        pad_before: [pad, pad, 0],
        pad_after: [pad, pad, 0],
    };
    let name = format!("conv2d_{n}x{c}x{h}x{h}_{o}k{k}s{s}");
    if !wanted(&name) {
        return;
    }
    let flops = 2 * n * o * side * side * c * k * k;
    let (mut x, mut w, b) = (Tensor::new(cpu, &[n, c, h, h]), Tensor::new(cpu, &[o, c, k, k]), Tensor::new(cpu, &[o]));
    let mut y = Tensor::new(cpu, &[n, o, side, side]);
    job(&name, flops, || cpu.conv(&window, 1, x.view(), w.view(), Some(b.view()), &mut y.view_mut()).unwrap());
    job(&format!("{name} input"), flops, || {
        cpu.conv_backward_input(&window, 1, y.view(), w.view(), &mut x.view_mut()).unwrap();
    });
    job(&format!("{name} weight"), flops, || {
        cpu.conv_backward_weight(&window, 1, x.view(), y.view(), &mut w.view_mut()).unwrap();
    });
}

fn main() {
    let threads = std::env::args().nth(2).and_then(|t| t.parse().ok());
    let cpu = CpuBackend::with_threads(threads.unwrap_or(2)).unwrap();
    println!("{:?}", cpu.info().features);
    [64, 128, 256, 384, 512, 1024, 2048].into_iter().for_each(|n| gemm(&cpu, n));
    for sizes in [
        [1576, 192, 576],
        [1576, 192, 768],
        [1576, 768, 192],
        [512, 768, 768],
        [512, 768, 3072],
        [512, 3072, 768],
        [1024, 384, 1536],
        [2048, 512, 2048],
        [128, 784, 512],
    ] {
        linear(&cpu, sizes);
    }
    for sizes in [
        [1, 3, 224, 64, 7, 2, 3],
        [16, 64, 56, 64, 3, 1, 1],
        [16, 128, 28, 128, 3, 1, 1],
        [16, 256, 14, 256, 1, 1, 0],
        [16, 256, 14, 256, 3, 1, 1],
        [64, 1, 28, 32, 3, 1, 0],
        [64, 32, 26, 64, 3, 1, 0],
        [16, 128, 28, 256, 3, 2, 1],
        [16, 512, 7, 512, 3, 1, 1],
    ] {
        conv(&cpu, sizes);
    }
}
