//! Times products of bf16 with cuBLASLt and with the backend's own kernels, on one GPU, in one process. The rule for which of them
//! computes a product is in `src/product/library.rs`.
//!
//! ```sh
//! cargo run --release -p gradus-cuda --example product_speed -- [LARGEST]
//! ```
//! `LARGEST` bounds the sizes, for runs over a library that stands in for the driver. Prints microseconds for one product, the
//! best of five series.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use gradus_backend::{Backend, DType, Layout, Result, Scalar, Shape, View, ViewMut};
use gradus_cuda::{CudaBackend, CudaOptions};

/// `[batch, m, n, k]`.
const SIZES: [[usize; 4]; 34] = [
    [1, 16, 16, 16],
    [1, 16, 4096, 4096],
    [1, 32, 32, 32],
    [1, 32, 4096, 4096],
    [1, 64, 64, 64],
    [1, 64, 64, 4096],
    [1, 64, 4096, 64],
    [1, 64, 4096, 4096],
    [1, 128, 128, 128],
    [1, 128, 128, 16_384],
    [1, 256, 256, 256],
    [1, 512, 512, 512],
    [1, 1024, 1024, 32],
    [1, 1024, 1024, 1024],
    [1, 2048, 2048, 2048],
    [1, 4096, 4096, 16],
    [1, 4096, 4096, 32],
    [1, 4096, 4096, 64],
    [1, 4096, 4096, 4096],
    [1, 4096, 4095, 4096],
    [1, 4096, 4094, 4096],
    [1, 4096, 4092, 4096],
    [1, 4096, 4096, 4095],
    [1, 4096, 4096, 4092],
    [1, 8192, 8192, 8192],
    [1, 768, 768, 16_384],
    [1, 768, 3072, 65_536],
    [1, 16_384, 768, 3072],
    [1, 16_384, 50_257, 768],
    [64, 16, 16, 64],
    [64, 32, 32, 32],
    [64, 128, 128, 64],
    [256, 1024, 1024, 64],
    [256, 1024, 64, 1024],
];

/// Seconds for one product of matrices that are stored by rows.
fn time(backend: &CudaBackend, [batch, m, n, k]: [usize; 4]) -> Result<f64> {
    let layout = |rows, cols| Ok(Layout::contiguous(Shape::new(&[batch, rows, cols])?));
    let (a, b, c) = (layout(m, k)?, layout(k, n)?, layout(m, n)?);
    let made = |layout: &Layout| {
        let mut buffer = backend.alloc(layout.numel() * 2)?;
        // Random, because the power that a GPU takes, and so its clock, depends on the numbers.
        let mut out = ViewMut { buffer: &mut buffer, dtype: DType::BF16, layout };
        backend.random(gradus_backend::Distribution::Normal { mean: 0.0, std: 1.0 }, 1, 0, &mut out)?;
        Ok(buffer)
    };
    let (x, y, mut z) = (made(&a)?, made(&b)?, made(&c)?);
    let view = |buffer, layout| View { buffer, dtype: DType::BF16, layout };
    let mut one = || {
        let mut out = ViewMut { buffer: &mut z, dtype: DType::BF16, layout: &c };
        backend.gemm(Scalar::Int(1), view(&x, &a), view(&y, &b), Scalar::Int(0), &mut out)
    };
    (0..3).try_for_each(|_| one())?;
    backend.synchronize()?;
    let runs = (1e11 / (2.0 * (batch * m * n * k) as f64)).clamp(5.0, 200.0) as usize;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        (0..runs).try_for_each(|_| one())?;
        backend.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / runs as f64);
    }
    Ok(best)
}

fn main() -> Result<()> {
    let largest = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(usize::MAX);
    let own = CudaOptions { cublaslt: false, ..CudaOptions::default() };
    let (library, kernels) = (CudaBackend::open(0)?, CudaBackend::open_with(0, own)?);
    println!("[batch, m, n, k]                 cuBLASLt       kernels   TFLOP/s with cuBLASLt, with kernels");
    for sizes in SIZES.into_iter().filter(|sizes| sizes.iter().all(|&size| size <= largest)) {
        let (fast, slow) = (time(&library, sizes)?, time(&kernels, sizes)?);
        let rate = |seconds: f64| 2.0 * sizes.iter().product::<usize>() as f64 / seconds / 1e12;
        let ([us, other], shown) = ([fast, slow].map(|s| s * 1e6), format!("{sizes:?}"));
        println!("{shown:28} {us:9.1} us  {other:9.1} us   {:8.1} {:8.1}", rate(fast), rate(slow));
    }
    println!("{}", library.info().features.join(", "));
    Ok(())
}
