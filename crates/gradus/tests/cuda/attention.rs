//! Attention of half precision, where numbers are infinite.

use gradus::prelude::*;

use crate::{gpu, values};

/// An infinite gradient of one element of the result makes the gradients of its column of the values infinite, and leaves the others finite.
#[test]
fn an_infinite_gradient_stays_in_its_column() {
    let Some(gpu) = gpu::opened() else { return };
    let of = |shape: [usize; 4], seed: u32| {
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..n as u32).map(|i| ((i * 37 + seed) % 19) as f32 / 19.0 - 0.5).collect();
        Tensor::from_vec(numbers, shape, &gpu).unwrap()
    };
    for dtype in [DType::F16, DType::BF16] {
        let [q, k, v] = [([1, 1, 3, 16], 1), ([1, 1, 5, 16], 2), ([1, 1, 5, 8], 3)]
            .map(|(shape, seed)| of(shape, seed).to_dtype(dtype).unwrap().with_grad().unwrap());
        let mut seed = vec![0.25f32; 24];
        seed[11] = f32::INFINITY;
        let seed = Tensor::from_vec(seed, [1, 1, 3, 8], &gpu).unwrap().to_dtype(dtype).unwrap();
        let y = q.scaled_dot_product_attention(&k, &v, AttentionOptions::new()).unwrap();
        let dv = grad(&[&y], &[&v], Some(&[&seed]), BackwardOptions::new()).unwrap();
        for (at, x) in values(dv[0].as_ref().unwrap()).into_iter().enumerate() {
            assert!(if at % 8 == 3 { x == f64::INFINITY } else { x.is_finite() }, "{dtype}: {x} at {at}");
        }
    }
}
