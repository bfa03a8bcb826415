//! A sample's result is the same to the last bit, regardless of the other samples in the batch and of the number of
//! threads.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_tensor::{AttentionOptions, Causal, ConvOptions, DType, Device, Generator, Result, Tensor};

const BATCHES: usize = 17;

/// The first `n` samples of a fixed batch of samples of this shape.
fn samples(n: usize, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let all = [&[BATCHES], shape].concat();
    let x = Tensor::randn(&all, DType::F32, device, &mut Generator::new(1)).unwrap();
    x.narrow(0, 0, n).unwrap().to_dtype(dtype).unwrap().contiguous().unwrap()
}

fn weights(shape: &[usize], seed: u64, dtype: DType, device: &Device) -> Tensor {
    Tensor::randn(shape, DType::F32, device, &mut Generator::new(seed)).unwrap().to_dtype(dtype).unwrap()
}

/// Runs `f` on samples of `shape` for several batch sizes and numbers of threads, and checks that each sample's bytes
/// are always the same.
#[track_caller]
fn invariant(name: &str, shape: &[usize], f: impl Fn(&Tensor, DType) -> Result<Tensor>) {
    let devices = [1, 2, 4].map(|n| Device::from_backend(Arc::new(CpuBackend::with_threads(n).unwrap())));
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let whole = f(&samples(BATCHES, shape, dtype, &devices[0]), dtype).unwrap().to_bytes().unwrap();
        let size = whole.len() / BATCHES;
        for (threads, device) in [1, 2, 4].into_iter().zip(&devices) {
            // Batch sizes around the tile heights of matrix products: 4, 6 and 14 rows.
            for n in (1..=9).chain(12..=17) {
                let part = f(&samples(n, shape, dtype, device), dtype).unwrap().to_bytes().unwrap();
                assert_eq!(part.len(), n * size);
                let differs = (0..n).find(|i| part[i * size..][..size] != whole[i * size..][..size]);
                assert_eq!(differs, None, "{name} {dtype} {shape:?}: sample of a batch of {n}, {threads} threads");
            }
        }
    }
}

#[test]
fn matmul() {
    for (k, n) in [(3, 5), (64, 32), (257, 33), (4099, 1), (1031, 70), (70, 1500)] {
        invariant("matmul", &[k], |x, d| x.matmul(&weights(&[k, n], 2, d, x.device())));
    }
    // One product per sample.
    for (m, k, n) in [(3, 5, 2), (19, 70, 33)] {
        invariant("batched matmul", &[m, k], |x, d| x.matmul(&weights(&[k, n], 2, d, x.device())));
        invariant("batched matmul", &[m, k], |x, _| x.matmul(&x.transpose(1, 2)?));
    }
}

#[test]
fn linear() {
    for (k, n) in [(3, 5), (64, 32), (257, 33), (4099, 1), (1031, 70), (70, 1500)] {
        invariant("linear", &[k], |x, d| {
            x.linear(&weights(&[n, k], 2, d, x.device()), Some(&weights(&[n], 3, d, x.device())))
        });
    }
}

#[test]
fn layer_norm() {
    for n in [3, 100, 1031] {
        invariant("layer_norm", &[n], |x, d| {
            let (w, b) = (weights(&[n], 2, d, x.device()), weights(&[n], 3, d, x.device()));
            x.layer_norm(&[n], Some(&w), Some(&b), 1e-5)
        });
        invariant("rms_norm", &[n], |x, d| x.rms_norm(&[n], Some(&weights(&[n], 2, d, x.device())), 1e-5));
    }
}

#[test]
fn softmax() {
    for n in [3, 100, 1031] {
        invariant("softmax", &[n], |x, _| x.softmax(1));
        invariant("log_softmax", &[n], |x, _| x.log_softmax(1));
        invariant("softmax", &[7, n], |x, _| x.softmax(1));
    }
}

#[test]
fn attention() {
    for (h, l, d) in [(1, 3, 4), (2, 33, 16), (2, 65, 40)] {
        invariant("attention", &[h, l, d], |x, _| x.scaled_dot_product_attention(x, x, AttentionOptions::new()));
        invariant("attention", &[h, l, d], |x, _| {
            x.scaled_dot_product_attention(x, &x.mul(2.0)?, AttentionOptions::new().causal(Causal::BottomRight))
        });
    }
}

#[test]
fn conv2d() {
    for (c, k, size, groups) in [(1, 3, 8, 1), (3, 16, 15, 1), (4, 8, 9, 4), (32, 40, 7, 1)] {
        let o = ConvOptions::new().padding([1, 1]).groups(groups);
        invariant("conv2d", &[c, size, size], |x, d| {
            let (w, b) = (weights(&[k, c / groups, 3, 3], 2, d, x.device()), weights(&[k], 3, d, x.device()));
            x.conv2d(&w, Some(&b), o)
        });
        invariant("conv2d 1x1", &[c, size, size], |x, d| {
            x.conv2d(&weights(&[k, c / groups, 1, 1], 2, d, x.device()), None, ConvOptions::new().groups(groups))
        });
    }
}
