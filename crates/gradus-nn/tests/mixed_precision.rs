//! Training in mixed precision, and gradients summed over small batches.
#![allow(clippy::unwrap_used)]

mod common;

use common::device;
use gradus_nn::{
    Adam, AdamConfig, Forward, GradScaler, GradScalerConfig, Init, Linear, Module, NonFinite, Parameter, Relu,
    Sequential,
};
use gradus_tensor::{DType, Device, Generator, Gradients, Reduction, Result, Tensor, autocast};

fn network(device: &Device, dtype: DType) -> Result<Sequential> {
    let mut rng = Generator::new(3);
    let mut init = Init::new(dtype, device, &mut rng);
    Ok(Sequential::new().add(Linear::new(4, 16, &mut init)?).add(Relu).add(Linear::new(16, 1, &mut init)?))
}

fn data(device: &Device) -> Result<(Tensor, Tensor)> {
    let mut rng = Generator::new(4);
    let x = Tensor::randn([64, 4], DType::F32, device, &mut rng)?;
    let y = x.narrow(1, 0, 1)?.mul(x.narrow(1, 1, 1)?)?;
    Ok((x, y))
}

#[test]
fn small_batches_give_the_gradients_of_a_large_one() -> Result<()> {
    let device = device();
    let (x, y) = data(&device)?;
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let model = network(&device, dtype)?;
        let (x, y) = (x.to_dtype(dtype)?, y.to_dtype(dtype)?);
        let loss = |from: usize, rows: usize| -> Result<Gradients> {
            model.forward(&x.narrow(0, from, rows)?)?.mse_loss(&y.narrow(0, from, rows)?, Reduction::Sum)?.backward()
        };
        let whole = loss(0, 64)?;
        let mut total = Gradients::default();
        for (from, rows) in [(0, 10), (10, 30), (40, 24)] {
            total.add(loss(from, rows)?)?;
        }
        assert_eq!(total.len(), whole.len());
        let tolerance = match dtype {
            DType::F64 => 1e-14,
            DType::F32 => 1e-6,
            _ => 0.02,
        };
        for p in model.parameters() {
            let (a, b) = (total.get(&p).unwrap().to_dtype(DType::F64)?, whole.get(&p).unwrap().to_dtype(DType::F64)?);
            let size = b.abs()?.max_all()?.item()?;
            assert!(a.sub(&b)?.abs()?.max_all()?.item()? <= tolerance * size, "{dtype}");
        }
    }
    Ok(())
}

#[test]
fn sums_take_over_what_one_side_lacks_and_share_no_memory() -> Result<()> {
    let device = device();
    let leaf = |v: f32| Tensor::full([2], v, DType::F32, &device)?.with_grad();
    let (a, b) = (leaf(1.0)?, leaf(2.0)?);
    let of = |t: &Tensor, factor: f64| t.mul(factor)?.sum_all()?.backward();
    let mut total = of(&a, 2.0)?;
    let kept = total.clone();
    total.add(of(&b, 3.0)?)?;
    total.add(of(&a, 5.0)?)?;
    total.scale(0.5)?;
    assert_eq!(total.get(&a).unwrap().to_vec::<f32>()?, [3.5, 3.5]);
    assert_eq!(total.get(&b).unwrap().to_vec::<f32>()?, [1.5, 1.5]);
    assert_eq!(kept.get(&a).unwrap().to_vec::<f32>()?, [2.0, 2.0]);
    assert!(total.all_finite()? && Gradients::default().all_finite()?);
    total.add(of(&b, f64::INFINITY)?)?;
    assert!(!total.all_finite()?);
    Ok(())
}

/// The loss before and after training, in the dtype of autocast, if any.
fn trained(model: &Sequential, lower: Option<DType>, device: &Device) -> Result<(f64, f64, GradScaler)> {
    let (x, y) = data(device)?;
    let mut optimizer = Adam::new(model.named_parameters(), AdamConfig { lr: 0.02, ..Default::default() })?;
    let enabled = lower == Some(DType::F16);
    let mut scaler = GradScaler::new(GradScalerConfig { init_scale: 2f64.powi(40), enabled, ..Default::default() })?;
    let loss = || -> Result<Tensor> {
        let loss = || model.forward(&x)?.mse_loss(&y, Reduction::Mean);
        lower.map_or_else(loss, |lower| autocast(lower, loss))
    };
    let before = loss()?.item()?;
    for _ in 0..60 {
        scaler.step(&mut optimizer, scaler.scale(&loss()?)?.backward()?)?;
        scaler.update()?;
    }
    Ok((before, loss()?.item()?, scaler))
}

#[test]
fn a_model_learns_in_bf16_and_in_f16_as_in_f32() -> Result<()> {
    let device = device();
    let (before, wanted, _) = trained(&network(&device, DType::F32)?, None, &device)?;
    assert!(wanted < 0.3 * before, "{before} {wanted}");
    for lower in [DType::BF16, DType::F16] {
        let model = network(&device, DType::F32)?;
        let (_, after, scaler) = trained(&model, Some(lower), &device)?;
        assert!((after - wanted).abs() < 0.05 * before, "{lower}: {after} {wanted}");
        // The first scales overflow f16, are skipped, and halve the scale each time.
        let skipped = scaler.skipped_steps();
        assert_eq!(skipped > 0, lower == DType::F16);
        if lower == DType::F16 {
            assert_eq!(scaler.get_scale(), 2f64.powi(40 - skipped as i32));
        }
        assert!(model.parameters().iter().all(|p| p.dtype() == DType::F32));
    }
    Ok(())
}

/// A gradient too small for f16 reaches a parameter in f16: sums and quotients of gradients are f32, and so is the copy
/// that the optimiser steps.
#[test]
fn a_small_gradient_of_a_parameter_in_f16_is_not_lost() -> Result<()> {
    let device = device();
    let p = Parameter::new(Tensor::ones([1], DType::F16, &device)?)?;
    let config = AdamConfig { lr: 0.25, eps: 1e-30, ..Default::default() };
    let mut adam = Adam::new([("p".to_owned(), p.clone())], config)?.non_finite(NonFinite::Error);
    let loss = p.to_dtype(DType::F32)?.mul(1e-9)?.sum_all()?;
    assert_eq!(loss.backward()?.get(&p).unwrap().item()?, 0.0);
    let mut scaler = GradScaler::new(GradScalerConfig::default())?;
    let loss = p.to_dtype(DType::F32)?.mul(1e-9)?.sum_all()?;
    assert!(scaler.step(&mut adam, scaler.scale(&loss)?.backward()?)?);
    // The first step of Adam is as long as the learning rate, however small the gradient.
    assert_eq!(p.item()?, 0.75);
    Ok(())
}
