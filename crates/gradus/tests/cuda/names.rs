//! Names of the five sources. `docs/sources.md` refers to these tests.

use std::sync::Arc;

use gradus::cuda::CudaBackend;
use gradus::image::{Border, Range, brightness, contrast, gaussian_blur, grayscale, invert, sharpen, sobel, threshold};
use gradus::prelude::*;
use gradus::{Gemm, devices};

use crate::{gpu, same, values};

#[test]
fn a_gpu_has_a_name_and_is_listed() {
    let Some(gpu) = gpu::opened() else { return };
    assert_eq!((gpu.name(), &Device::open("cuda:0").unwrap()), ("cuda:0", &gpu));
    let listed = devices().into_iter().find(|(name, _)| name == "cuda:0").unwrap();
    assert_eq!(listed.1.unwrap(), gpu);
    for absent in ["cuda:99", "cuda:x"] {
        assert_eq!(Device::open(absent).err().map(|e| e.to_string().contains("there is no")), Some(true), "{absent}");
    }
}

#[test]
fn tensors_are_made_and_read_as_what_they_are() {
    let Some(gpu) = gpu::opened() else { return };
    for dtype in DType::ALL {
        let (zeros, ones) = (Tensor::zeros([2, 3], dtype, &gpu).unwrap(), Tensor::ones([2, 3], dtype, &gpu).unwrap());
        assert_eq!((values(&zeros), values(&ones)), (vec![0.0; 6], vec![1.0; 6]), "{dtype}");
        assert_eq!((zeros.shape(), zeros.dtype(), zeros.device()), (&[2, 3][..], dtype, &gpu));
    }
    assert_eq!(Tensor::full([2], 7, DType::I64, &gpu).unwrap().to_vec::<i64>().unwrap(), [7, 7]);
    let x = Tensor::from_vec(vec![1f32, 2.0], [2], &gpu).unwrap();
    assert_eq!(x.to_bytes().unwrap(), [1f32.to_ne_bytes(), 2f32.to_ne_bytes()].concat());
    assert_eq!(x.to_vec::<f64>().unwrap_err().kind(), &ErrorKind::DTypeMismatch);
    assert!(Tensor::from_bytes(&[2], [1], DType::Bool, &gpu).is_err());
}

#[test]
fn dropped_tensors_give_their_memory_back() {
    let Some(_) = gpu::opened() else { return };
    // A device of this test alone.
    let device = Device::from_backend(Arc::new(CudaBackend::open(0).unwrap()));
    let before = device.memory_stats();
    let x = Tensor::zeros([100, 100], DType::F32, &device).unwrap();
    let (view, live) = (x.t().unwrap(), device.memory_stats());
    assert_eq!((live.in_use - before.in_use, live.buffers - before.buffers), (40_000, 1));
    drop(x);
    assert_eq!(device.memory_stats().in_use, live.in_use, "a view keeps the memory");
    drop(view);
    device.synchronize().unwrap();
    let after = device.memory_stats();
    assert_eq!((after.in_use, after.buffers), (before.in_use, before.buffers));
}

#[test]
fn results_are_there_after_synchronizing() {
    let Some(gpu) = gpu::opened() else { return };
    let y = Tensor::ones([300], DType::F32, &gpu).unwrap().add(1.0).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0; 300]);
}

#[test]
fn scalars_beside_half_precision_are_not_rounded_first() {
    same(0.0, |device| {
        let x = Tensor::from_vec(vec![1.5f32, -2.0, 333.0], [3], device)?.to_dtype(DType::F16)?;
        Ok(vec![x.mul(2.0)?, x.mul(0.1)?])
    });
}

#[test]
fn dropout_draws_the_masks_of_the_cpu() {
    same(0.0, |device| {
        let mut generator = Generator::new(5);
        let x = Tensor::ones([1000], DType::F32, device)?.with_grad()?;
        let (first, second) = (x.dropout(0.5, &mut generator)?, x.dropout(0.25, &mut generator)?);
        let slope = grad(&[&first.sum_all()?], &[&x], None, BackwardOptions::new())?.remove(0).unwrap();
        Ok(vec![first, second, slope])
    });
}

#[test]
fn batch_norm_has_a_gradient_in_training_and_in_evaluation() {
    same(1e-12, |device| {
        let mut generator = Generator::new(0);
        let mut norm =
            BatchNorm2d::new(1, BatchNormConfig::default(), &mut Init::new(DType::F64, device, &mut generator))?;
        let x = Tensor::from_vec(vec![1f64, 2.0, 3.0, 6.0], [4, 1], device)?.with_grad()?;
        let mut all = Vec::new();
        for evaluates in [false, true] {
            if evaluates {
                norm.eval();
            }
            let y = norm.forward(&x)?;
            all.extend(grad(&[&y.square()?.sum_all()?], &[&x], None, BackwardOptions::new())?.into_iter().flatten());
            all.push(y);
        }
        all.push(norm.running_var.as_ref().unwrap().tensor());
        Ok(all)
    });
}

#[test]
fn gemm_takes_transposes_leading_dimensions_scalars_and_batches() {
    let (m, n, k) = (3, 4, 2);
    same(0.0, |device| {
        let mut all = Vec::new();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I8, DType::U8] {
            let fill = |count: usize, by: usize| {
                let values: Vec<i64> = (0..count).map(|i| (i * by % 4) as i64).collect();
                Tensor::from_vec(values, [count], device)?.to_dtype(dtype)
            };
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let (rows_a, columns_a) = if ta { (k, m) } else { (m, k) };
                let (rows_b, columns_b) = if tb { (n, k) } else { (k, n) };
                let (lda, ldb, ldc) = (columns_a + 2, columns_b + 1, n + 3);
                let a = fill((rows_a - 1) * lda + columns_a, 3)?;
                let (b, c) = (fill((rows_b - 1) * ldb + columns_b, 5)?, fill((m - 1) * ldc + n, 7)?);
                let gemm = Gemm::new(m, n, k).trans_a(ta).trans_b(tb).lda(lda).ldb(ldb).ldc(ldc);
                all.push(gemm.alpha(2).beta(3).run(&a, &b, Some(&c))?);
            }
            // Two products with the same B, and a gap in C.
            let gemm = Gemm::new(1, 1, 2).strided_batched(2, 2, 0, 2).beta(1);
            all.push(gemm.run(&fill(4, 3)?, &fill(2, 5)?, Some(&fill(3, 7)?))?);
        }
        Ok(all)
    });
}

#[test]
fn adam_follows_the_cpu() {
    same(1e-6, |device| {
        let mut generator = Generator::new(0);
        let layer = Linear::new(4, 3, &mut Init::new(DType::F32, device, &mut generator))?;
        let mut adam = Adam::new(layer.named_parameters(), AdamConfig::default())?;
        let x = Tensor::from_vec((0..20).map(|i| i as f32 / 10.0).collect::<Vec<_>>(), [5, 4], device)?;
        for _ in 0..3 {
            adam.step(&layer.forward(&x)?.square()?.sum_all()?.backward()?)?;
        }
        Ok(layer.named_parameters().iter().map(|(_, parameter)| parameter.tensor().detach()).collect())
    });
}

#[test]
fn fused_expressions_have_gradients_of_two_orders() {
    same(1e-12, |device| {
        let a = Tensor::from_vec(vec![-1.5f64, 0.25, 2.0], [3], device)?.with_grad()?;
        let b = Tensor::from_vec(vec![0.5f64], [1], device)?.with_grad()?;
        let y = fused!(|a, b| (a * b + 1.0).silu() * 2.0)(&a, &b)?;
        let seed = Tensor::from_vec(vec![0.5f64, -1.0, 2.0], [3], device)?;
        let first = grad(&[&y], &[&a, &b], Some(&[&seed]), BackwardOptions::new().create_graph())?;
        let first: Vec<Tensor> = first.into_iter().flatten().collect();
        let second = grad(&[&first[0].sin()?.sum_all()?], &[&a, &b], None, BackwardOptions::new())?;
        Ok(first.into_iter().chain(second.into_iter().flatten()).chain([y]).collect())
    });
}

#[test]
fn filters_follow_the_cpu() {
    same(1e-6, |device| {
        let pixels: Vec<f32> = (0..96).map(|i| (i * 37 % 97) as f32 / 97.0).collect();
        let x = Tensor::from_vec(pixels, [2, 3, 4, 4], device)?;
        Ok(vec![
            gaussian_blur(&x, 0.8, None, Border::Replicate)?,
            sobel(&x, None, Border::Replicate)?,
            grayscale(&x, true)?,
            threshold(&x, 0.5)?,
            brightness(&x, 0.8, Range::Unit)?,
            contrast(&x, 0.6, Range::Unit)?,
            invert(&x)?,
            sharpen(&x, 0.7, Border::Replicate)?,
        ])
    });
}
