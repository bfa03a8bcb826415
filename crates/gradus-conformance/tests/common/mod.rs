//! f64 tensors on the oracle, for tests that compute their expected values by hand.

use gradus_backend::{Backend, Buffer, DType, Element, Layout, Shape, View, ViewMut};
use gradus_conformance::OracleBackend;

/// A tensor on the oracle.
pub struct Tensor {
    buffer: Buffer,
    dtype: DType,
    pub layout: Layout,
}

impl Tensor {
    pub fn new<T: Element>(b: &OracleBackend, dims: &[usize], values: &[T]) -> Self {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        assert_eq!(layout.numel(), values.len());
        let mut buffer = b.alloc(size_of_val(values)).unwrap();
        b.upload(&mut buffer, 0, T::as_bytes(values)).unwrap();
        Tensor { buffer, dtype: T::DTYPE, layout }
    }

    pub fn zeros(b: &OracleBackend, dims: &[usize]) -> Self {
        Tensor::new(b, dims, &vec![0f64; dims.iter().product()])
    }

    pub fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub fn out(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub fn values<T: Element>(&self, b: &OracleBackend) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        let mut bytes = vec![0; self.buffer.bytes()];
        b.download(&self.buffer, 0, &mut bytes).unwrap();
        T::from_bytes(&bytes)
    }
}

/// Irregular numbers from -1 to 1, a different sequence for each seed.
pub fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + 13) as f64 * 0.618_033_988_749).sin()).collect()
}

/// Panics unless the two differ by at most `tolerance` times the largest magnitude in `want`, or 1 if that is larger.
pub fn near(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g == w || (g - w).abs() <= tolerance * scale, "{what}: element {i} is {g}, expected {w}");
    }
}

/// Panics unless `gradient` agrees with central differences of `f` at `x`.
pub fn is_gradient(what: &str, x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) {
    let h = 1e-5;
    let slope = |i: usize| {
        let at = |d: f64| {
            let mut p = x.to_vec();
            p[i] += d;
            f(&p)
        };
        (at(h) - at(-h)) / (2.0 * h)
    };
    near(what, gradient, &(0..x.len()).map(slope).collect::<Vec<_>>(), 1e-8);
}

/// `sum(a * b)`
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
