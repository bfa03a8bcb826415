//! What Gradus does on a GPU, beside the CPU: training, and the names of `docs/sources.md` that no case of `golden` covers.
//! Without a GPU, or what stands in for one, each test prints a line that says so.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod attention;
#[path = "../golden/gpu.rs"]
mod gpu;
mod names;
mod rows;
mod training;

use gradus::prelude::*;

fn values(t: &Tensor) -> Vec<f64> {
    t.detach().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Checks that tensors are the same on both devices: each number within `tolerance` of the largest of its tensor.
#[track_caller]
fn same(tolerance: f64, compute: impl Fn(&Device) -> Result<Vec<Tensor>>) {
    let Some(gpu) = gpu::opened() else { return };
    let (want, got) = (compute(&Device::cpu().unwrap()).unwrap(), compute(&gpu).unwrap());
    assert_eq!(want.len(), got.len());
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        assert_eq!((want.shape(), want.dtype()), (got.shape(), got.dtype()), "tensor {i}");
        assert_eq!(got.device(), &gpu, "tensor {i}");
        let (want, got) = (values(want), values(got));
        let scale = want.iter().fold(0.0f64, |most, w| most.max(w.abs()));
        for (at, (w, g)) in want.iter().zip(&got).enumerate() {
            assert!((w - g).abs() <= tolerance * scale, "tensor {i} has {g} at {at}; the CPU has {w}");
        }
    }
}
