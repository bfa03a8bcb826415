//! Attention of half precision, where numbers are large, infinite or nearly so.

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

/// Queries whose keys are all masked by the smallest number of a dtype, or by a large one, see all keys. The results and the gradients
/// are those of the CPU.
#[test]
fn large_numbers_in_a_mask_are_scores() {
    let Some(gpu) = gpu::opened() else { return };
    let cpu = Device::cpu().unwrap();
    let numbers = |shape: [usize; 4], seed: u64, scale: f64| {
        let x = Tensor::randn(shape, DType::F32, &cpu, &mut Generator::new(seed)).unwrap();
        x.mul(scale).unwrap()
    };
    for (dtype, smallest) in [(DType::F16, -65504.0), (DType::BF16, -3.389_531_389_251_535_5e38)] {
        for (mask_dtype, least) in [(dtype, smallest), (DType::F32, f64::from(f32::MIN)), (DType::F32, -1e8)] {
            let (lq, lk, d) = (70, 150, 32);
            // Scores of the last keys are larger than those of the first ones.
            let late = Tensor::arange(0, lk as i64, 1, DType::F32, &cpu).unwrap().div(75.0).unwrap();
            let k = numbers([1, 1, lk, d], 2, 0.3).add(late.reshape([1, 1, lk, 1]).unwrap()).unwrap();
            let [q, v, g] = [([1, 1, lq, d], 1, 0.2), ([1, 1, lk, d], 3, 1.0), ([1, 1, lq, d], 4, 1.0)]
                .map(|(shape, seed, scale)| numbers(shape, seed, scale).to_dtype(dtype).unwrap());
            let (q, k) = (q.add(0.5).unwrap(), k.to_dtype(dtype).unwrap());
            let rows: Vec<f32> = (0..lq).map(|i| if i % 3 == 1 { least as f32 } else { 0.0 }).collect();
            let mask = Tensor::from_vec(rows, [1, 1, lq, 1], &cpu).unwrap().expand([1, 1, lq, lk]).unwrap();
            let mask = mask.to_dtype(mask_dtype).unwrap();
            let on = |device: &Device| {
                let leaf = |x: &Tensor| x.to_device(device).unwrap().with_grad().unwrap();
                let (q, k, v) = (leaf(&q), leaf(&k), leaf(&v));
                let mask = mask.to_device(device).unwrap();
                let options = AttentionOptions::new().mask(&mask);
                let y = q.scaled_dot_product_attention(&k, &v, options).unwrap();
                let g = g.to_device(device).unwrap();
                let all = grad(&[&y], &[&q, &k, &v], Some(&[&g]), BackwardOptions::new()).unwrap();
                [values(&y)].into_iter().chain(all.iter().map(|x| values(x.as_ref().unwrap()))).collect::<Vec<_>>()
            };
            for (which, (got, want)) in ["y", "dq", "dk", "dv"].iter().zip(on(&gpu).into_iter().zip(on(&cpu))) {
                let most = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                for (i, (a, b)) in got.iter().zip(&want).enumerate() {
                    assert!(
                        (a - b).abs() <= 0.02 * most,
                        "{dtype}, mask {mask_dtype} {least:e}: {which}[{i}] is {a}, not {b}"
                    );
                }
            }
        }
    }
}

/// Scores of some millions are rounded to halves. The gradient finds those of the forward pass, so that the weights of a query still
/// add up to 1, for heads of each size: with a gradient of 1, each column of the gradient of the values adds up to the number of queries.
#[test]
fn the_weights_of_large_scores_add_up_to_one_in_the_gradient() {
    let Some(gpu) = gpu::opened() else { return };
    let cpu = Device::cpu().unwrap();
    let (lq, lk) = (20, 24);
    for (dtype, d, causal) in [
        (DType::BF16, 64, Causal::BottomRight),
        (DType::F16, 128, Causal::No),
        (DType::BF16, 160, Causal::No),
        (DType::F16, 256, Causal::BottomRight),
    ] {
        let of = |length: usize, seed: u64, scale: f64| {
            let x = Tensor::randn([1, 2, length, d], DType::F32, &cpu, &mut Generator::new(seed)).unwrap();
            x.mul(scale).unwrap().to_dtype(dtype).unwrap().to_device(&gpu).unwrap().with_grad().unwrap()
        };
        let (q, k, v) = (of(lq, 1, 3000.0), of(lk, 2, 3000.0), of(lk, 3, 1.0));
        let y = q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().causal(causal)).unwrap();
        let seed = Tensor::ones([1, 2, lq, d], dtype, &gpu).unwrap();
        let dv = grad(&[&y], &[&v], Some(&[&seed]), BackwardOptions::new()).unwrap();
        let sums = dv[0].as_ref().unwrap().to_dtype(DType::F32).unwrap().sum(&[2], false).unwrap();
        for (at, sum) in values(&sums).into_iter().enumerate() {
            assert!((sum - lq as f64).abs() <= 0.01 * lq as f64, "{dtype}, heads of {d}: {sum} in column {at}");
        }
    }
}
