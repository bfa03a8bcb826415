//! Optimisers, compared with the trajectories of `reference/optimizers.py`, and what a step must never do.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, device, gradients, named, parameter};
use gradus_nn::{
    Adam, AdamConfig, AdamW, Group, NonFinite, Optimizer, Parameter, Schedule, Sgd, SgdConfig, Strict, clip_grad_norm,
    clip_grad_norm_on_device, clip_grad_value,
};
use gradus_tensor::{DType, ErrorKind, Generator, Gradients, Result, Tensor};

#[test]
fn a_step_over_a_value_that_a_graph_insists_on_changes_nothing() {
    let device = device();
    let (a, b) = (parameter(&[1.0, 2.0], &device), parameter(&[3.0], &device));
    let g = gradients(&[(&a, &[1.0, 1.0]), (&b, &[1.0])], &device);
    let mut adam = Adam::new(named(&[("a", &a), ("b", &b)]), AdamConfig { lr: 0.1, ..Default::default() }).unwrap();
    let y = gradus_tensor::autograd::strict_inplace(|| b.square().unwrap());
    let e = adam.step(&g).unwrap_err();
    assert!(e.kind() == &ErrorKind::Autograd && e.to_string().contains("square"), "{e}");
    let numbers = |p: &Parameter| p.values().to_vec::<f64>().unwrap();
    assert_eq!((numbers(&a), numbers(&b)), (vec![1.0, 2.0], vec![3.0]));
    drop(y);
    // If writes copy saved values first, the step succeeds, and the gradient is still that of the old values.
    let y = gradus_tensor::autograd::allow_mutation_on_saved_tensors(|| b.square().unwrap());
    adam.step(&g).unwrap();
    assert!(numbers(&a)[0] < 1.0 && numbers(&b)[0] < 3.0);
    assert_eq!(y.sum_all().unwrap().backward().unwrap().get(b.tensor()).unwrap().item().unwrap(), 6.0);
}

#[test]
fn a_step_that_cannot_be_made_changes_nothing() {
    let device = device();
    let (a, b) = (parameter(&[1.0, 2.0], &device), parameter(&[3.0], &device));
    let mut adam = Adam::new(named(&[("a", &a), ("b", &b)]), AdamConfig { lr: 0.1, ..Default::default() }).unwrap();
    adam.step(&gradients(&[(&a, &[1.0, 1.0]), (&b, &[1.0])], &device)).unwrap();
    let snapshot = |adam: &Adam| {
        let state = adam.state_dict().unwrap();
        let tensors: Vec<_> = state.iter().map(|(n, t)| (n.to_owned(), t.to_bytes().unwrap())).collect();
        (a.to_bytes().unwrap(), b.to_bytes().unwrap(), tensors, state.metadata("steps.a").map(str::to_owned))
    };
    let before = snapshot(&adam);
    // The gradient of the second parameter is on another device.
    let mut moved = gradients(&[(&a, &[1.0, 1.0]), (&b, &[1.0])], &device);
    // It is refused either when it is set or by the step.
    if moved.set(&b, Tensor::ones([1], DType::F64, &common::device()).unwrap()).is_ok() {
        assert_eq!(adam.step(&moved).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
    }
    // The gradient of the second parameter is not finite.
    let mut adam = adam.non_finite(NonFinite::Error);
    let error = adam.step(&gradients(&[(&a, &[1.0, 1.0]), (&b, &[f64::NAN])], &device)).unwrap_err().to_string();
    assert!(error.contains("gradients of 1 parameters are not finite") && error.contains("  b"), "{error}");
    let mut adam = adam.non_finite(NonFinite::Skip);
    adam.step(&gradients(&[(&a, &[f64::INFINITY, 1.0]), (&b, &[1.0])], &device)).unwrap();
    assert_eq!(adam.skipped_steps(), 1);
    // The gradients belong to another model.
    let stranger = parameter(&[1.0], &device);
    assert!(adam.step(&gradients(&[(&stranger, &[1.0])], &device)).is_err());
    assert_eq!(snapshot(&adam), before);
}

#[test]
fn missing_gradients_frozen_and_shared_parameters() {
    let device = device();
    let (a, b) = (parameter(&[1.0], &device), parameter(&[1.0], &device));
    let tied = a.clone();
    let list = named(&[("a", &a), ("tied", &tied), ("b", &b)]);
    let mut sgd = Sgd::new(list, SgdConfig { lr: 0.5, ..Default::default() }).unwrap();
    assert_eq!(sgd.parameters().len(), 2);
    sgd.step(&gradients(&[(&a, &[1.0])], &device)).unwrap();
    assert_close(&a, &[0.5]);
    assert_close(&b, &[1.0]);
    // The parameter is frozen between the backward pass and the step.
    let late = gradients(&[(&a, &[1.0]), (&b, &[1.0])], &device);
    b.freeze();
    sgd.step(&late).unwrap();
    assert_close(&tied, &[0.0]);
    assert_close(&b, &[1.0]);

    let groups = |x: &Parameter, y: &Parameter| [Group::new(named(&[("x", x)])), Group::new(named(&[("y", y)]))];
    assert!(Sgd::with_groups(groups(&a, &tied), SgdConfig::default()).is_err());
    let overlapping = Parameter::new(a.values().clone()).unwrap();
    assert!(Sgd::with_groups(groups(&a, &overlapping), SgdConfig::default()).is_err());
    assert!(Sgd::new(named(&[("x", &a), ("x", &b)]), SgdConfig::default()).is_err());
}

#[test]
fn groups_have_their_own_rates_and_the_schedule_scales_them() {
    let device = device();
    let (a, b) = (parameter(&[1.0], &device), parameter(&[1.0], &device));
    let groups = [Group::new(named(&[("a", &a)])), Group::new(named(&[("b", &b)])).lr(0.2).weight_decay(0.5)];
    let mut sgd = Sgd::with_groups(groups, SgdConfig { lr: 0.1, ..Default::default() }).unwrap();
    let schedule = Schedule::step(1, 0.5).unwrap();
    for (step, lr) in [(0, [0.1, 0.2]), (1, [0.05, 0.1]), (0, [0.1, 0.2])] {
        schedule.apply(step, &mut sgd).unwrap();
        assert_eq!(sgd.lr(), lr);
    }
    sgd.step(&gradients(&[(&a, &[1.0]), (&b, &[1.0])], &device)).unwrap();
    assert_close(&a, &[0.9]);
    assert_close(&b, &[1.0 - 0.2 * 1.5]);
    sgd.set_lr(1, 0.0).unwrap();
    assert_eq!(sgd.lr(), [0.1, 0.0]);
    assert!(sgd.set_lr(2, 0.1).is_err() && sgd.set_lr(0, f64::NAN).is_err() && sgd.set_lr_factor(-1.0).is_err());
}

#[test]
fn half_precision_parameters_step_in_f32() {
    let device = device();
    let p = Parameter::new(Tensor::ones([1], DType::BF16, &device).unwrap()).unwrap();
    let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig { lr: 1.0, ..Default::default() }).unwrap();
    let step = |sgd: &mut Sgd| sgd.step(&gradients(&[(&p, &[0.001])], &device)).unwrap();
    // Each step alone is smaller than half the spacing of bf16 at 1.
    (0..5).for_each(|_| step(&mut sgd));
    let saved = sgd.state_dict().unwrap();
    let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig { lr: 1.0, ..Default::default() }).unwrap();
    sgd.load_state_dict(&saved, Strict::Yes).unwrap();
    (0..5).for_each(|_| step(&mut sgd));
    assert!((p.item().unwrap() - 0.99).abs() < 0.003, "{}", p.item().unwrap());
    // If something else writes the values, the next step starts from the new values.
    p.set(&Tensor::full([1], 3.0, DType::F32, &device).unwrap()).unwrap();
    step(&mut sgd);
    assert_eq!(p.item().unwrap(), 3.0);
}

#[test]
fn the_norm_is_found_whatever_its_size() -> Result<()> {
    let device = device();
    for scale in [1e-200, 1.0, 1e200] {
        let (a, b) = (parameter(&[0.0], &device), parameter(&[0.0, 0.0], &device));
        let make = || gradients(&[(&a, &[2.0 * scale]), (&b, &[-3.0 * scale, 6.0 * scale])], &device);
        // A shared parameter counts once, and a parameter without a gradient does not count.
        let list = [a.clone(), a.clone(), b.clone(), parameter(&[1.0], &device)];
        let mut found = make();
        let norm = clip_grad_norm(&mut found, &list, 3.5 * scale)?;
        assert!((norm / scale - 7.0).abs() < 1e-12, "{norm}");
        if scale >= 1.0 {
            let after = clip_grad_norm(&mut found, &list, f64::MAX)?;
            assert!((after / scale - 3.5).abs() < 1e-6, "{after}");
        }
        let mut found = make();
        clip_grad_norm(&mut found, &list, 8.0 * scale.max(1.0))?;
        assert_close(found.get(&a).unwrap(), &[2.0 * scale]);
    }
    // In f16, squares overflow from 256 on.
    let p = Parameter::new(Tensor::full([4], 1000.0, DType::F16, &device)?)?;
    let mut found = p.square()?.mul(0.5)?.sum_all()?.backward()?;
    assert_eq!(clip_grad_norm(&mut found, std::slice::from_ref(&p), 1.0)?, 2000.0);
    Ok(())
}

#[test]
fn clipping_on_the_device_has_the_bits_of_clipping_on_the_host() -> Result<()> {
    let device = device();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        for scale in [0.0, 1e-30, 1e-12, 1e-3, 1.0, 3e2, 1e25] {
            let scale = if dtype == DType::F16 { f64::min(scale, 3e2) } else { scale };
            let p = |shape: &[usize], seed| {
                let x = Tensor::randn(shape, DType::F64, &device, &mut Generator::new(seed))?.mul(scale)?;
                Parameter::new(x.to_dtype(dtype)?)
            };
            let list = [p(&[7, 5], 1)?, p(&[3], 2)?, p(&[0], 3)?, p(&[1000], 4)?];
            let make = || {
                let mut found = Gradients::default();
                list.iter().try_for_each(|p| found.insert(p.tensor(), p.values().clone())).map(|()| found)
            };
            for max in [1e-3, 1e-9, 1e30] {
                let (mut host, mut there) = (make()?, make()?);
                let norm = clip_grad_norm(&mut host, &list, max)?;
                let other = clip_grad_norm_on_device(&mut there, &list, max)?;
                assert_eq!(norm.to_bits(), other.item()?.to_bits(), "{dtype}, {scale}, {max}: {norm} {other}");
                for p in &list {
                    let bits = |g: &Gradients| g.get(p.tensor()).unwrap().to_bytes().unwrap();
                    assert_eq!(bits(&host), bits(&there), "{dtype}, {scale}, {max}");
                }
            }
        }
    }
    // A norm that is not finite clips nothing.
    let (a, b) = (parameter(&[0.0], &device), parameter(&[0.0], &device));
    for bad in [f64::NAN, f64::INFINITY] {
        let mut found = gradients(&[(&a, &[5.0]), (&b, &[bad])], &device);
        let norm = clip_grad_norm_on_device(&mut found, &[a.clone(), b.clone()], 1.0)?.item()?;
        assert!(!norm.is_finite() && norm.is_nan() == bad.is_nan());
        assert_close(found.get(&a).unwrap(), &[5.0]);
    }
    let list = [a.clone()];
    assert!(clip_grad_norm_on_device(&mut gradients(&[(&a, &[5.0])], &device), &list, 0.0).is_err());
    assert!(clip_grad_norm_on_device(&mut Gradients::default(), &list, 1.0).is_err());
    Ok(())
}

#[test]
fn clipping_refuses_what_is_not_finite_and_changes_nothing() {
    let device = device();
    let (a, b) = (parameter(&[0.0], &device), parameter(&[0.0], &device));
    let list = [a.clone(), b.clone()];
    for bad in [f64::NAN, f64::INFINITY] {
        let mut found = gradients(&[(&a, &[5.0]), (&b, &[bad])], &device);
        assert!(clip_grad_norm(&mut found, &list, 1.0).is_err());
        assert_close(found.get(&a).unwrap(), &[5.0]);
    }
    let mut found = gradients(&[(&a, &[5.0]), (&b, &[-0.5])], &device);
    assert!(clip_grad_norm(&mut found, &list, 0.0).is_err() && clip_grad_value(&mut found, &list, -1.0).is_err());
    clip_grad_value(&mut found, &list, 1.0).unwrap();
    assert_close(found.get(&a).unwrap(), &[1.0]);
    assert_close(found.get(&b).unwrap(), &[-0.5]);
}

/// Whichever allocation fails, a step of half-precision parameters is done for all of them or for none.
#[test]
fn a_half_precision_step_without_memory_changes_nothing() {
    const N: usize = 1 << 14;
    let device = device();
    let make =
        |dtype| Parameter::new(Tensor::ones([N], DType::F32, &device).unwrap().to_dtype(dtype).unwrap()).unwrap();
    let parts = [make(DType::BF16), make(DType::F16), make(DType::BF16)];
    let mut loss = Tensor::zeros([], DType::F32, &device).unwrap();
    for p in &parts {
        loss = loss.add(p.to_dtype(DType::F32).unwrap().sum_all().unwrap()).unwrap();
    }
    let gradients = loss.backward().unwrap();
    drop(loss);
    let config = AdamConfig { lr: 0.25, ..Default::default() };
    let mut adam = Adam::new(named(&[("a", &parts[0]), ("b", &parts[1]), ("c", &parts[2])]), config).unwrap();
    let now = || -> Vec<f32> {
        parts.iter().map(|p| p.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()[N - 1]).collect()
    };
    let (mut before, mut refused) = (now(), 0);
    for round in 0..2 {
        let in_use = device.backend().memory_stats().in_use;
        for extra in (0..).step_by(N) {
            device.backend().set_memory_budget(Some(in_use + extra)).unwrap();
            let stepped = adam.step(&gradients);
            device.backend().set_memory_budget(None).unwrap();
            let Err(e) = stepped else { break };
            refused += 1;
            assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
            assert_eq!(now(), before, "round {round}, {extra} bytes more");
        }
        let after = now();
        assert!(after.iter().zip(&before).all(|(a, b)| a < b), "{after:?}");
        before = after;
    }
    // Only new state needs memory. A later step needs none, so it was never refused.
    assert_eq!(refused, 3 * 3 * N * 4 / N);
}

/// The f32 copy is rounded like a conversion, including infinities and the sign of zeros.
#[test]
fn half_precision_values_are_the_rounded_f32_copy() {
    let device = device();
    let wanted = [1.0f32, -0.0, 0.0, 0.1, -3.337, 1e-7, 70000.0, -1e30, f32::INFINITY];
    for dtype in [DType::F16, DType::BF16] {
        let p = Parameter::new(Tensor::zeros([wanted.len()], dtype, &device).unwrap()).unwrap();
        // With p = 0, p - 1 * g is -g.
        let g: Vec<f32> = wanted.iter().map(|w| -w).collect();
        let g = Tensor::from_vec(g, [wanted.len()], &device).unwrap();
        let mut gradients = p.to_dtype(DType::F32).unwrap().sum_all().unwrap().backward().unwrap();
        gradients.set(p.tensor(), g.to_dtype(dtype).unwrap()).unwrap();
        let half = Tensor::from_vec(wanted, [wanted.len()], &device).unwrap().to_dtype(dtype).unwrap();
        Sgd::new(named(&[("p", &p)]), SgdConfig { lr: 1.0, ..Default::default() }).unwrap().step(&gradients).unwrap();
        let (mut got, mut want) = (p.to_bytes().unwrap(), half.to_bytes().unwrap());
        // 0 - 0 is +0, whichever zero was subtracted, so element 1 is not compared.
        got.drain(2..4);
        want.drain(2..4);
        assert_eq!(got, want, "{dtype}");
    }
}

#[test]
fn a_value_that_a_step_overwrote_is_told_with_the_line_of_the_step() {
    let device = device();
    let p = parameter(&[2.0, 3.0], &device);
    let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig::default()).unwrap();
    let mut adam = AdamW::new(named(&[("p", &p)]), AdamConfig::default()).unwrap();
    let g = gradients(&[(&p, &[1.0, 1.0])], &device);
    let stale = |op: &str, line: u32, loss: &Tensor| {
        let e = loss.backward().unwrap_err().to_string();
        assert!(e.contains(op) && e.contains(&format!("optimizers.rs:{line}:")), "{e}");
    };
    let loss = p.square().unwrap().sum_all().unwrap();
    sgd.step(&g).unwrap();
    stale("sgd", line!() - 1, &loss);
    let loss = p.square().unwrap().sum_all().unwrap();
    adam.step(&g).unwrap();
    stale("adam", line!() - 1, &loss);
}
