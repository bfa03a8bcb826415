//! Products of every way in which a result is divided among invocations, beside the CPU.

mod common;

use std::sync::Arc;

use gradus::prelude::*;

/// Small whole numbers from -2 to 2, whose sums of products are exact here in every dtype.
fn numbers(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_769) >> 16) as f32 % 5.0 - 2.0).collect();
    Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
}

/// Asserts that `[.., m, k] x [.., k, n]` has the same elements as on the CPU, for factors in either order in memory.
fn same(dtype: DType, batch: &[usize], [m, k, n]: [usize; 3]) {
    let Some(backend) = common::opened() else { return };
    let (device, cpu) = (Device::from_backend(Arc::new(backend)), Device::cpu().expect("the CPU"));
    for turned in 0..4 {
        let product = |device: &Device| {
            let factor = |rows: usize, columns: usize, turned: bool| {
                let (first, second) = if turned { (columns, rows) } else { (rows, columns) };
                let x = numbers(&[batch, &[first, second]].concat(), dtype, device)?;
                if turned { x.transpose(-1, -2) } else { Ok(x) }
            };
            let product = factor(m, k, turned & 1 == 1)?.matmul(&factor(k, n, turned & 2 == 2)?)?;
            product.to_dtype(DType::F32)?.to_vec::<f32>()
        };
        let [ours, theirs] = [&device, &cpu].map(|device| product(device).expect("a product"));
        let wrong = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert!(
            ours.len() == theirs.len() && wrong.is_none(),
            "{dtype} {batch:?} {m} x {k} x {n}, {turned}: {wrong:?}"
        );
    }
}

#[test]
fn large_results_with_few_rows_or_columns() {
    for sizes in [[16_387, 16, 2], [20_001, 7, 8], [16_384, 4, 1], [3, 12, 20_003], [8, 8, 16_500], [1, 20, 16_385]] {
        same(DType::F32, &[], sizes);
    }
    for dtype in [DType::BF16, DType::I32, DType::I64] {
        same(dtype, &[], [16_385, 8, 3]);
        same(dtype, &[], [3, 8, 16_385]);
    }
    same(DType::F32, &[5], [4_001, 8, 3]);
    same(DType::F32, &[2, 3], [2, 12, 3_001]);
}

#[test]
fn results_that_tiles_do_not_fill() {
    for sizes in [[17, 5, 30], [20, 20, 20], [33, 18, 45], [65, 17, 130], [200, 50, 129], [600, 9, 530]] {
        same(DType::F32, &[], sizes);
    }
    for dtype in [DType::BF16, DType::I32] {
        same(dtype, &[2], [70, 19, 40]);
    }
}
