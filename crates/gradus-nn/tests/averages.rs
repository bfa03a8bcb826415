//! Averages of weights, statistics of batch normalisation, and norms of gradients, beside `reference/averages.py`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, device, gradients, parameter, with_init};
use gradus_nn::{
    AveragedModel, BatchNorm2d, BatchNormConfig, Forward, Init, InstanceNorm, InstanceNormConfig, Linear, Module,
    Sequential, StateDict, Strict, clip_grad_norm_with, grad_norm, grad_norm_of, update_bn,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/averages.json")).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn values(shape: &[usize], phase: f64, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| (i as f64 * 1.7 + phase).sin() * 1.5).collect();
    Tensor::from_vec(v, shape, device).unwrap()
}

/// One layer called `norm`.
#[derive(Module)]
struct Model {
    norm: BatchNorm2d,
}

fn model(device: &Device) -> Model {
    let norm = with_init(device, |init| BatchNorm2d::new(3, BatchNormConfig::default(), init)).unwrap();
    Model { norm }
}

#[track_caller]
fn holds(state: &StateDict, name: &str, want: &Value) {
    assert_close(state.get(name).unwrap(), &floats(want));
}

#[test]
fn averages_and_statistics_follow_pytorch() -> Result<()> {
    let device = device();
    for (kind, use_buffers) in [("ema", false), ("ema_buffers", true), ("swa", false)] {
        let case = &reference()[kind];
        let mut model = model(&device);
        let make = |model: &Model| {
            let average =
                if kind == "swa" { AveragedModel::swa(model) } else { AveragedModel::ema(model, 0.8) }.unwrap();
            if use_buffers { average.use_buffers() } else { average }
        };
        let mut average = make(&model);
        for (step, want) in case["path"].as_array().unwrap().iter().enumerate() {
            let _ = model.norm.forward(&values(&[4, 3], step as f64, &device))?;
            model.norm.weight.as_ref().unwrap().set(&values(&[3], step as f64 * 0.3, &device))?;
            if step == 2 {
                // The average continues from a saved state.
                let saved = average.state_dict()?;
                average = make(&model);
                average.load_state_dict(&saved)?;
            }
            average.update(&model)?;
            let state = average.state_dict()?;
            holds(&state, "norm.weight", &want[0]);
            holds(&state, "norm.running_mean", &want[1]);
            holds(&state, "norm.running_var", &want[2]);
            assert_eq!(average.n_averaged(), step as u64 + 1);
        }
        let own: Vec<_> = model.state_dict()?.iter().map(|(_, t)| t.to_bytes().unwrap()).collect();
        model.eval();
        average.within(&mut model, |model| {
            let batches = (0..3).map(|step| Ok(values(&[4, 3], 10.0 + f64::from(step), &device)));
            update_bn(model, batches, |model, batch| model.norm.forward(batch).map(|_| ()))?;
            holds(&model.state_dict()?, "norm.running_mean", &case["statistics"][0]);
            holds(&model.state_dict()?, "norm.running_var", &case["statistics"][1]);
            Ok(())
        })?;
        // The model has its own values again, and the average keeps the statistics.
        let again: Vec<_> = model.state_dict()?.iter().map(|(_, t)| t.to_bytes().unwrap()).collect();
        assert_eq!(again, own);
        let state = average.state_dict()?;
        holds(&state, "norm.running_mean", &case["statistics"][0]);
        assert_eq!(state.get("norm.num_batches_tracked").unwrap().item()?, case["batches"].as_f64().unwrap());
        model.load_state_dict(&state, Strict::Yes)?;
    }
    Ok(())
}

#[test]
fn averages_refuse_what_does_not_fit_and_change_nothing() -> Result<()> {
    let device = device();
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::BF16, &device, &mut rng);
    let (mut model, other) = (Linear::new(2, 3, &mut init)?, Linear::new(3, 3, &mut init)?);
    let mut average = AveragedModel::swa(&model)?;
    assert!(AveragedModel::ema(&model, 1.5).is_err() && AveragedModel::ema(&model, f64::NAN).is_err());
    let e = average.update(&other).unwrap_err().to_string();
    assert!(e.contains("not one of weight") && e.contains("[3, 3]"), "{e}");
    assert!(average.update(&Sequential::new()).is_err());
    average.update(&model)?;
    // The averages of half precision are f32.
    model.weight.set(&model.weight.detach().add(0.01)?)?;
    average.update(&model)?;
    let state = average.state_dict()?;
    assert_eq!(state.get("weight").unwrap().dtype(), DType::F32);
    let own = model.weight.to_bytes()?;
    let failed = average.within(&mut model, |model| {
        assert_ne!(model.weight.to_bytes().unwrap(), own);
        model.forward(&Tensor::ones([1, 7], DType::F32, &device)?)
    });
    assert!(failed.is_err());
    assert_eq!(model.weight.to_bytes()?, own);
    assert!(average.swap_out(&model).is_err());
    average.swap_in(&model)?;
    assert!(average.swap_in(&model).is_err() && average.update(&model).is_err() && average.state_dict().is_err());
    average.swap_out(&model)?;
    let mut short = state.clone();
    short.remove("bias");
    let e = average.load_state_dict(&short).unwrap_err().to_string();
    assert!(e.contains("bias is missing"), "{e}");
    assert_eq!(average.state_dict()?.get("weight").unwrap().to_bytes()?, state.get("weight").unwrap().to_bytes()?);
    Ok(())
}

#[test]
fn statistics_are_as_before_after_an_error() -> Result<()> {
    let device = device();
    let mut model = model(&device);
    let _ = model.norm.forward(&values(&[4, 3], 0.0, &device))?;
    let bytes =
        |model: &Model| model.state_dict().unwrap().iter().map(|(_, t)| t.to_bytes().unwrap()).collect::<Vec<_>>();
    let before = bytes(&model);
    let batches = || [values(&[4, 3], 1.0, &device), values(&[4, 5], 1.0, &device)].map(Ok);
    let once = |model: &Model, batch: &Tensor| model.norm.forward(batch).map(|_| ());
    let e = update_bn(&mut model, batches(), once).unwrap_err().to_string();
    assert!(e.contains("[n, 3, ..]"), "{e}");
    let twice = |model: &Model, batch: &Tensor| once(model, batch).and_then(|()| once(model, batch));
    let e = update_bn(&mut model, batches(), twice).unwrap_err().to_string();
    assert!(e.contains("\"norm\" was called more than once"), "{e}");
    let none: [Result<Tensor>; 0] = [];
    assert!(update_bn(&mut model, none, once).is_err());
    assert_eq!(bytes(&model), before);
    Ok(())
}

#[test]
fn only_batch_norms_are_computed_anew_and_each_mode_is_restored() -> Result<()> {
    #[derive(Module)]
    struct Both {
        batch: BatchNorm2d,
        instance: InstanceNorm,
    }
    let device = device();
    let config = InstanceNormConfig { track_running_stats: true, ..InstanceNormConfig::default() };
    let instance = with_init(&device, |init| InstanceNorm::new(3, config, init))?;
    let mut both = Both { batch: model(&device).norm, instance };
    both.batch.eval();
    let x = values(&[4, 3, 5], 1.0, &device);
    let modules = |both: &Both, x: &Tensor| both.instance.forward(x).and_then(|y| both.batch.forward(&y)).map(|_| ());
    // One batch in training gives the instance norm the statistics that it has afterwards.
    let twin = with_init(&device, |init| InstanceNorm::new(3, config, init))?;
    let _ = twin.forward(&x)?;
    update_bn(&mut both, [Ok(x.clone())], modules)?;
    for (name, values) in twin.state_dict()?.iter() {
        let found = both.instance.state_dict()?;
        assert_eq!(found.get(name).unwrap().to_bytes()?, values.to_bytes()?, "{name}");
    }
    assert_ne!(both.batch.state_dict()?.get("running_var").unwrap().to_vec::<f64>()?, [1.0; 3]);
    // The batch norm is in evaluation still, and the instance norm in training.
    let before = both.state_dict()?;
    modules(&both, &x.mul(3.0)?)?;
    let after = both.state_dict()?;
    let same = |name: &str| Ok(before.get(name).unwrap().to_bytes()? == after.get(name).unwrap().to_bytes()?);
    assert!(same("batch.running_mean")? && !same("instance.running_var")?);
    Ok(())
}

#[test]
fn norms_of_every_type_follow_pytorch_whatever_their_size() -> Result<()> {
    let device = device();
    let (a, b) = (parameter(&[0.0; 3], &device), parameter(&[0.0; 2], &device));
    let list = [a.clone(), b.clone()];
    for case in reference()["clipping"].as_array().unwrap() {
        let norm_type: f64 = case["norm_type"].as_str().unwrap().parse().unwrap();
        let wanted = case["norm"].as_f64().unwrap();
        for scale in [1.0, 1e-200, 1e200] {
            let g = [1.0, -2.0, 0.5, 4.0, 3.0].map(|v| v * scale);
            let mut found = gradients(&[(&a, &g[..3]), (&b, &g[3..])], &device);
            assert!((grad_norm(&found, &list, norm_type)? / scale - wanted).abs() <= 1e-12 * wanted, "{case} {scale}");
            if norm_type == 2.0 {
                let of = grad_norm_of(&list, |i| Ok(found.get(list[i].tensor()).cloned()))?;
                assert_eq!(of.to_bits(), grad_norm(&found, &list, 2.0)?.to_bits(), "{case} {scale}");
            }
            let norm = clip_grad_norm_with(&mut found, &list, 1.5, norm_type)?;
            assert!((norm / scale - wanted).abs() <= 1e-12 * wanted, "{case} {scale}");
            if scale == 1.0 {
                let clipped = floats(&case["clipped"]);
                assert_close(found.get(&a).unwrap(), &clipped[..3]);
                assert_close(found.get(&b).unwrap(), &clipped[3..]);
            }
        }
        let mut bad = gradients(&[(&a, &[1.0, f64::NAN, 2.0]), (&b, &[1.0, 2.0])], &device);
        assert!(grad_norm(&bad, &list, norm_type)?.is_nan());
        assert!(clip_grad_norm_with(&mut bad, &list, 1.5, norm_type).is_err());
    }
    let mut found = gradients(&[(&a, &[1.0, 1.0, 1.0])], &device);
    assert!(grad_norm(&found, &list, 0.0).is_err() && clip_grad_norm_with(&mut found, &list, 1.0, -1.0).is_err());
    Ok(())
}
