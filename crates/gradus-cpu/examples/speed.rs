//! Times the elementwise engine, reductions, copies and the allocator:
//! `cargo run --release -p gradus-cpu --example speed -- [part of a name] [threads]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use gradus_backend::*;
use gradus_cpu::CpuBackend;

/// Prints the shortest time of many runs of a call, which other processes disturb least, and the memory traffic.
fn job(name: &str, bytes: usize, mut f: impl FnMut()) {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    f();
    let start = Instant::now();
    (0..5).for_each(|_| f());
    let batch = (100_000 / start.elapsed().as_nanos().max(1)).clamp(1, 1000);
    let mut best = f64::INFINITY;
    for i in 0.. {
        let begin = Instant::now();
        (0..batch).for_each(|_| f());
        best = best.min(begin.elapsed().as_nanos() as f64 / batch as f64);
        if i >= 10 && start.elapsed().as_millis() > 300 {
            break;
        }
    }
    println!("  {name:20} {:10.2} us  {:6.1} GB/s", best / 1e3, bytes as f64 / best);
}

struct Tensor(Buffer, DType, Layout);

impl Tensor {
    fn new(cpu: &CpuBackend, dims: &[usize]) -> Tensor {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        let values: Vec<f32> = (0..layout.numel()).map(|i| (i * 7919 % 10007) as f32 / 1000.0 - 5.0).collect();
        let mut buffer = cpu.alloc(layout.numel() * 4).unwrap();
        cpu.upload(&mut buffer, 0, f32::as_bytes(&values)).unwrap();
        Tensor(buffer, DType::F32, layout)
    }
    fn view(&self) -> View<'_> {
        View { buffer: &self.0, dtype: self.1, layout: &self.2 }
    }
    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.0, dtype: self.1, layout: &self.2 }
    }
}

fn main() {
    let k = |name: &str, n: usize| {
        match name {
            "add" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0] + v[1]]),
            "exp" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0].exp()]),
            "tanh" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0].tanh()]),
            "relu" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0].max(0.0)]),
            "silu_mul" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0].silu() * v[1]]),
            "gelu_tanh" => Kernel::build(name, &vec![DType::F32; n], |v| vec![v[0].gelu_tanh()]),
            _ => Kernel::build(name, &vec![DType::F32; n], |v| {
                let (p, m, s, g) = (v[0], v[1], v[2], v[3]);
                let m = m * 0.9 + g * 0.1;
                let s = s * 0.999 + g * g * 0.001;
                vec![p - m / (s.sqrt() + 1e-8) * 0.001, m, s]
            }),
        }
        .unwrap()
    };
    let threads = std::env::args().nth(2).and_then(|t| t.parse().ok());
    for threads in threads.map_or(vec![1, 2], |t| vec![t]) {
        let cpu = CpuBackend::with_threads(threads).unwrap();
        println!("{:?}", cpu.info().features);
        job("alloc 16B", 0, || drop(cpu.alloc(16).unwrap()));
        job("alloc 4M", 0, || drop(cpu.alloc(4 << 20).unwrap()));
        for (tag, size) in [("4", 4), ("1M", 1 << 20), ("16M", 16 << 20)] {
            if std::env::args()
                .nth(1)
                .is_some_and(|part| part.split(' ').next_back().is_some_and(|t| part.contains(' ') && t != tag))
            {
                continue;
            }
            let (a, b) = (Tensor::new(&cpu, &[size]), Tensor::new(&cpu, &[size]));
            let mut out = Tensor::new(&cpu, &[size]);
            for (name, n) in [("add", 2), ("relu", 1), ("exp", 1), ("tanh", 1), ("silu_mul", 2), ("gelu_tanh", 1)] {
                let kernel = k(name, n);
                let args = [MapArg::View(a.view()), MapArg::View(b.view())];
                let bytes = (n + 1) * size * 4;
                job(&format!("{name} {tag}"), bytes, || cpu.map(&kernel, &args[..n], &mut [out.view_mut()]).unwrap());
            }
            let backward = k("silu_mul", 2).vjp(3).unwrap();
            let args = [a.view(), b.view(), b.view()].map(MapArg::View);
            let mut other = Tensor::new(&cpu, &[size]);
            job(&format!("silu_mul_backward {tag}"), size * 20, || {
                cpu.map(&backward.kernel, &args, &mut [out.view_mut(), other.view_mut()]).unwrap();
            });
            let mut sum = Tensor::new(&cpu, &[1]);
            let all = Axes::one(0);
            job(&format!("sum {tag}"), size * 4, || {
                cpu.reduce(ReduceOp::Sum, a.view(), all, &mut sum.view_mut()).unwrap();
            });
            if size == 4 {
                continue;
            }
            let square = a.2.reshape(Shape::new(&[1024, size / 1024]).unwrap()).unwrap();
            let square = a.view().with(&square);
            for (name, axis) in [("sum rows", 1), ("sum columns", 0)] {
                let mut out = Tensor::new(&cpu, &square.layout.shape().with(axis, 1).unwrap());
                job(&format!("{name} {tag}"), size * 4, || {
                    cpu.reduce(ReduceOp::Sum, square, Axes::one(axis), &mut out.view_mut()).unwrap();
                });
            }
            let mut copy = |name: &str, x: View<'_>| {
                let flat = Layout::contiguous(*x.layout.shape());
                job(&format!("{name} {tag}"), size * 8, || {
                    cpu.copy_strided(x, &mut out.view_mut().with(&flat)).unwrap();
                });
            };
            copy("copy", square);
            copy("transpose", square.with(&square.layout.transpose(0, 1).unwrap()));
        }
        let size = 1 << 20;
        let (mut p, mut m, mut s) =
            (Tensor::new(&cpu, &[size]), Tensor::new(&cpu, &[size]), Tensor::new(&cpu, &[size]));
        let g = Tensor::new(&cpu, &[size]);
        let adam = k("adam", 4);
        let args = [MapArg::Output(0), MapArg::Output(1), MapArg::Output(2), MapArg::View(g.view())];
        job("adam 1M", size * 28, || cpu.map(&adam, &args, &mut [p.view_mut(), m.view_mut(), s.view_mut()]).unwrap());
    }
}
