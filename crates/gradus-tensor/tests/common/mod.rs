//! Helpers that the tests share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use gradus_cpu::CpuBackend;
use gradus_tensor::autograd::Node;
use gradus_tensor::{DType, Device, Generator, Tensor};

/// The CPU device, opened once.
pub fn cpu() -> Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(|| Device::from_backend(Arc::new(CpuBackend::new().unwrap()))).clone()
}

/// A separate device: its tensors cannot be combined with those on [`cpu`].
pub fn another_cpu() -> Device {
    Device::from_backend(Arc::new(CpuBackend::with_threads(1).unwrap()))
}

/// An f64 tensor with the given values.
pub fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

/// An f64 vector that requires a gradient.
pub fn leaf(values: &[f64]) -> Tensor {
    f64s(values, &[values.len()]).with_grad().unwrap()
}

/// The elements of an f64 tensor of any layout.
pub fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap()
}

/// Every node in the graphs of these tensors, including leaves, each once.
pub fn nodes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<Arc<Node>> {
    let (mut seen, mut found) = (HashSet::new(), vec![]);
    let mut stack: Vec<Arc<Node>> = tensors.into_iter().filter_map(|t| t.grad_fn().cloned()).collect();
    while let Some(node) = stack.pop() {
        if seen.insert(Arc::as_ptr(&node)) {
            stack.extend(node.inputs().flatten().cloned());
            found.push(node);
        }
    }
    found
}

/// The gradient of the sum of `y` with respect to `x`. The graph is retained.
pub fn gradient(y: &Tensor, x: &Tensor) -> gradus_tensor::Result<Vec<f64>> {
    let options = gradus_tensor::BackwardOptions::new().retain_graph();
    Ok(values(gradus_tensor::grad(&[&y.sum_all()?], &[x], None, options)?[0].as_ref().unwrap()))
}

/// An f32 tensor with the given values.
pub fn f32s(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

/// An i64 tensor with the given values.
pub fn i64s(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

/// Normally distributed f64 values, drawn with `seed`.
pub fn randn(shape: &[usize], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F64, &cpu(), &mut Generator::new(seed)).unwrap()
}

/// Random tensors of one shape in several layouts: contiguous and, if there are at least two axes, transposed in
/// memory, offset with a stride, flipped, and broadcast along axis 1.
pub fn layouts(shape: &[usize], seed: u64) -> Vec<Tensor> {
    let x = randn(shape, seed);
    let mut all = vec![x.clone()];
    if shape.len() >= 2 {
        all.push(x.transpose(0, -1).unwrap().copy().unwrap().transpose(0, -1).unwrap());
        let mut bigger = shape.to_vec();
        bigger[0] = 2 * shape[0] + 1;
        all.push(randn(&bigger, seed).slice(0, 1, 2 * shape[0] + 1, 2).unwrap());
        all.push(x.flip(0).unwrap().flip(-1).unwrap());
        let mut narrow = shape.to_vec();
        narrow[1] = 1;
        all.push(randn(&narrow, seed).expand(shape).unwrap());
    }
    all
}

/// Asserts that two lists of numbers agree to within `tolerance`, both absolutely and relative to the expected number.
pub fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(same, "element {i}: {g} where {w} is right\n got {got:?}\nwant {want:?}");
    }
}

/// Compares a result with that of PyTorch for the case `name` of `reference/windows.py`.
#[track_caller]
pub fn assert_like_pytorch(name: &str, got: &Tensor) {
    const CASES: &[(&str, &[usize], &[f64])] = &include!("../reference/windows.txt");
    let (_, shape, want) = CASES.iter().find(|c| c.0 == name).unwrap();
    assert_eq!(got.shape(), *shape, "{name}");
    assert_close(&got.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), want, 1e-11);
}

/// `sin(a i + b)` for element `i`: the inputs of `reference/windows.py`.
pub fn sines(shape: &[usize], a: f64, b: f64) -> Tensor {
    let n: usize = shape.iter().product();
    f64s(&(0..n).map(|i| (i as f64 * a + b).sin()).collect::<Vec<_>>(), shape)
}

/// Checks first and second derivatives against finite differences.
#[track_caller]
pub fn both(f: impl Fn(&[Tensor]) -> gradus_tensor::Result<Tensor>, inputs: &[Tensor]) {
    let shapes: Vec<_> = inputs.iter().map(|t| format!("{:?}", t.layout())).collect();
    gradus_tensor::autograd::gradcheck(&f, inputs).unwrap_or_else(|e| panic!("{shapes:?} {e}"));
    gradus_tensor::autograd::gradgradcheck(&f, inputs).unwrap_or_else(|e| panic!("{shapes:?} {e}"));
}
