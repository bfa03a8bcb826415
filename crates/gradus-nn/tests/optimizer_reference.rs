//! Optimisers, step by step beside the trajectories of `reference/optimizers.py`, and across a saved state.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, gradients, named, parameter};
use gradus_nn::{
    Adadelta, AdadeltaConfig, Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, Adamax, AdamaxConfig, AdjustLr, Lamb,
    LambConfig, Lbfgs, LbfgsConfig, LineSearch, Lion, LionConfig, Muon, MuonConfig, NAdam, NAdamConfig, Optimizer,
    Parameter, RAdam, RAdamConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig, StateDict, Strict,
};
use gradus_tensor::{Device, Gradients, Result, Tensor};
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/optimizers.json")).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(got: &Tensor, want: &[f64], tolerance: f64, case: &Value) {
    let got = got.detach().to_vec::<f64>().unwrap();
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{g} is not {w}: {case}");
    }
}

/// The optimiser of a case.
fn optimizer(case: &Value, p: Vec<(String, Parameter)>) -> Box<dyn Optimizer> {
    let config = &case["config"];
    let number = |name: &str| config[name].as_f64().unwrap();
    let flag = |name: &str| config[name].as_bool().unwrap_or(false);
    let (lr, weight_decay) = (number("lr"), number("weight_decay"));
    let (beta1, beta2) = (config["beta1"].as_f64().unwrap_or(0.0), config["beta2"].as_f64().unwrap_or(0.0));
    let eps = config["eps"].as_f64().unwrap_or(0.0);
    macro_rules! made {
        ($type:ident, $config:expr) => {{
            let made = $type::new(p, $config).unwrap();
            if flag("maximize") { Box::new(made.maximize()) } else { Box::new(made) }
        }};
    }
    let adam = AdamConfig { lr, beta1, beta2, eps, weight_decay, amsgrad: flag("amsgrad") };
    let decoupled_weight_decay = flag("decoupled_weight_decay");
    match case["kind"].as_str().unwrap() {
        "sgd" => {
            let (momentum, dampening) = (number("momentum"), number("dampening"));
            made!(Sgd, SgdConfig { lr, momentum, dampening, nesterov: flag("nesterov"), weight_decay })
        }
        "adam" => made!(Adam, adam),
        "adamw" => made!(AdamW, adam),
        "rmsprop" => {
            let (alpha, momentum, centered) = (number("alpha"), number("momentum"), flag("centered"));
            made!(RmsProp, RmsPropConfig { lr, alpha, eps, weight_decay, momentum, centered })
        }
        "adagrad" => {
            let (lr_decay, initial_accumulator_value) = (number("lr_decay"), number("initial_accumulator_value"));
            made!(Adagrad, AdagradConfig { lr, lr_decay, weight_decay, initial_accumulator_value, eps })
        }
        "adadelta" => made!(Adadelta, AdadeltaConfig { lr, rho: number("rho"), eps, weight_decay }),
        "adamax" => made!(Adamax, AdamaxConfig { lr, beta1, beta2, eps, weight_decay }),
        "nadam" => {
            let momentum_decay = number("momentum_decay");
            let config = NAdamConfig { lr, beta1, beta2, eps, weight_decay, momentum_decay, decoupled_weight_decay };
            made!(NAdam, config)
        }
        "radam" => made!(RAdam, RAdamConfig { lr, beta1, beta2, eps, weight_decay, decoupled_weight_decay }),
        "lamb" => made!(Lamb, LambConfig { lr, beta1, beta2, eps, weight_decay }),
        "lion" => made!(Lion, LionConfig { lr, beta1, beta2, weight_decay }),
        other => panic!("no optimiser {other}"),
    }
}

/// Saves the state of one optimiser to a file and loads it into another.
fn across_a_file(from: &dyn Optimizer, to: &mut dyn Optimizer, device: &Device) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optimizer.safetensors");
    from.state_dict().unwrap().save_safetensors(&path).unwrap();
    to.load_state_dict(&StateDict::load_safetensors(&path, device).unwrap(), Strict::Yes).unwrap();
}

#[test]
fn steps_follow_the_reference_and_a_resumed_run_has_the_same_bits() {
    let (device, reference) = (device(), reference());
    let steps = reference["gradients"].as_array().unwrap();
    for case in reference["cases"].as_array().unwrap() {
        let make = || {
            let p = parameter(&floats(&reference["start"]), &device);
            let optimizer = optimizer(case, named(&[("p", &p)]));
            (p, optimizer)
        };
        let ((p, mut whole), (q, mut parts)) = (make(), make());
        for (t, (g, want)) in steps.iter().zip(case["path"].as_array().unwrap()).enumerate() {
            if t == 5 {
                let again = optimizer(case, named(&[("p", &q)]));
                across_a_file(&*std::mem::replace(&mut parts, again), &mut *parts, &device);
            }
            whole.step(&gradients(&[(&p, &floats(g))], &device)).unwrap();
            parts.step(&gradients(&[(&q, &floats(g))], &device)).unwrap();
            close(&p, &floats(want), 1e-12, case);
            assert_eq!(p.to_bytes().unwrap(), q.to_bytes().unwrap(), "{case}");
        }
    }
}

fn matrix(v: &Value, device: &Device) -> Tensor {
    let rows: Vec<Vec<f64>> = v.as_array().unwrap().iter().map(floats).collect();
    Tensor::from_vec(rows.concat(), [rows.len(), rows[0].len()], device).unwrap()
}

/// The iterations round to bf16 where PyTorch's do.
#[test]
fn muon_follows_pytorch() -> Result<()> {
    let device = device();
    for case in reference()["muon"].as_array().unwrap() {
        let config = &case["config"];
        let number = |name: &str| config[name].as_f64().unwrap();
        let adjust_lr = match config["adjust_lr_fn"].as_str().unwrap() {
            "original" => AdjustLr::Original,
            "match_rms_adamw" => AdjustLr::MatchRmsAdamW,
            _ => AdjustLr::SpectralUnclamped,
        };
        let config = MuonConfig {
            lr: number("lr"),
            weight_decay: number("weight_decay"),
            momentum: number("momentum"),
            nesterov: config["nesterov"].as_bool().unwrap(),
            ns_steps: number("ns_steps") as u32,
            adjust_lr,
            ..MuonConfig::default()
        };
        let p = Parameter::new(matrix(&case["start"], &device))?;
        let mut muon = Muon::new(named(&[("p", &p)]), config)?;
        for (g, want) in case["gradients"].as_array().unwrap().iter().zip(case["path"].as_array().unwrap()) {
            let g = matrix(g, &device);
            muon.step(&p.mul(&g)?.sum_all()?.backward()?)?;
            let off = p.detach().sub(matrix(want, &device))?.abs()?.max_all()?.item()?;
            assert!(off <= 1e-12, "off by {off}: {case}");
        }
    }
    Ok(())
}

fn rosenbrock(p: &[Parameter]) -> Result<Tensor> {
    let x = Tensor::cat(&[p[0].tensor(), p[1].tensor()], 0)?;
    let (left, right) = (x.narrow(0, 0, 4)?, x.narrow(0, 1, 4)?);
    let sum = ((right - left.square()?)?.square()? * 10.0)? + (1.0 - left)?.square()?;
    sum?.sum_all()
}

#[test]
fn lbfgs_follows_pytorch_and_a_resumed_run_has_the_same_bits() -> Result<()> {
    let device = device();
    for case in reference()["lbfgs"].as_array().unwrap() {
        let number = |name: &str| case["config"][name].as_f64().unwrap();
        let maximize = case["config"]["maximize"].as_bool().unwrap();
        let config = LbfgsConfig {
            lr: number("lr"),
            max_iter: number("max_iter") as usize,
            max_eval: case["config"]["max_eval"].as_u64().map(|n| n as usize),
            history_size: number("history_size") as usize,
            line_search_fn: case["config"]["line_search_fn"].is_string().then_some(LineSearch::StrongWolfe),
            maximize,
            ..LbfgsConfig::default()
        };
        let p = [parameter(&[-1.2, 0.8], &device), parameter(&[0.3, -0.5, 1.4], &device)];
        let list = || named(&[("a", &p[0]), ("b", &p[1])]);
        let mut lbfgs = Lbfgs::new(list(), config)?;
        for (i, want) in case["path"].as_array().unwrap().iter().enumerate() {
            if i == 2 {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("lbfgs.safetensors");
                lbfgs.state_dict()?.save_safetensors(&path)?;
                lbfgs = Lbfgs::new(list(), LbfgsConfig { lr: 0.7, ..config })?;
                lbfgs.load_state_dict(&StateDict::load_safetensors(&path, &device)?)?;
            }
            let loss = lbfgs.step(|| if maximize { rosenbrock(&p)?.neg() } else { rosenbrock(&p) })?;
            let wanted = want["loss"].as_f64().unwrap();
            assert!((loss - wanted).abs() <= 1e-8 * (1.0 + wanted.abs()), "{loss} is not {wanted}: {case}");
            close(&Tensor::cat(&[p[0].tensor(), p[1].tensor()], 0)?, &floats(&want["values"]), 1e-8, case);
            let counts = [lbfgs.counts().0 as f64, lbfgs.counts().1 as f64];
            assert_eq!(counts.to_vec(), floats(&want["counts"]), "{case}");
        }
    }
    Ok(())
}

#[test]
fn a_failed_step_of_lbfgs_changes_nothing() -> Result<()> {
    let device = device();
    let p = [parameter(&[-1.2, 0.8], &device), parameter(&[0.3, -0.5, 1.4], &device)];
    let config = LbfgsConfig { line_search_fn: Some(LineSearch::StrongWolfe), ..Default::default() };
    let mut lbfgs = Lbfgs::new(named(&[("a", &p[0]), ("b", &p[1])]), config)?;
    lbfgs.step(|| rosenbrock(&p))?;
    let bits = |lbfgs: &Lbfgs| -> Result<Vec<Vec<u8>>> {
        let state = lbfgs.state_dict()?;
        let values = p.iter().map(|p| p.to_bytes()).chain(state.iter().map(|(_, t)| t.to_bytes()));
        let texts = state.iter_metadata().map(|(_, text)| Ok(text.as_bytes().to_vec()));
        values.chain(texts).collect()
    };
    let before = bits(&lbfgs)?;
    for at in 1..5 {
        let mut calls = 0;
        let e = lbfgs.step(|| {
            calls += 1;
            if calls == at { p[0].reshape([7]) } else { rosenbrock(&p) }
        });
        assert!(e.unwrap_err().to_string().contains("reshape"));
        assert_eq!(bits(&lbfgs)?, before);
    }
    let nan = lbfgs.step(|| rosenbrock(&p)?.mul(f64::NAN)).unwrap_err();
    assert!(nan.to_string().contains("the loss is NaN"), "{nan}");
    let mut other = lbfgs.state_dict()?;
    other.set_metadata("parameters", "a\nc");
    assert!(lbfgs.load_state_dict(&other).is_err());
    let mut short = lbfgs.state_dict()?;
    short.remove("old_dirs.0");
    let e = lbfgs.load_state_dict(&short).unwrap_err().to_string();
    assert!(e.contains("old_dirs.0 is missing"), "{e}");
    assert_eq!(bits(&lbfgs)?, before);
    let half = Parameter::new(p[0].detach().to_dtype(gradus_tensor::DType::BF16)?)?;
    assert!(Lbfgs::new(named(&[("half", &half)]), config).is_err());
    Ok(())
}

#[test]
fn impossible_hyper_parameters_are_refused() {
    macro_rules! refused {
        ($($type:ident, $config:ident { $($field:ident: $bad:expr),* };)*) => {
            $($({
                let config = $config { $field: $bad, ..Default::default() };
                let e = $type::new(vec![], config).err().unwrap_or_else(|| panic!("{config:?}"));
                assert_eq!(e.kind(), &gradus_tensor::ErrorKind::InvalidArgument);
            })*)*
        };
    }
    refused! {
        Sgd, SgdConfig { lr: -1.0, momentum: -0.1, dampening: f64::NAN, nesterov: true, weight_decay: -1.0 };
        Adam, AdamConfig { lr: f64::NAN, beta1: 1.0, beta2: -0.1, eps: -1.0, weight_decay: f64::INFINITY };
        RmsProp, RmsPropConfig { lr: -1.0, alpha: 1.5, eps: -1.0, weight_decay: -1.0, momentum: -0.5 };
        Adagrad, AdagradConfig { lr: -1.0, lr_decay: -1.0, eps: -1.0, initial_accumulator_value: -1.0 };
        Adadelta, AdadeltaConfig { lr: -1.0, rho: 1.5, eps: f64::NAN };
        Adamax, AdamaxConfig { lr: -1.0, beta1: 1.0, beta2: 1.0, eps: -1.0 };
        NAdam, NAdamConfig { lr: -1.0, beta1: 1.0, beta2: 1.0, eps: -1.0, momentum_decay: -1.0 };
        RAdam, RAdamConfig { lr: -1.0, beta1: 1.0, beta2: 1.0, eps: -1.0 };
        Lamb, LambConfig { lr: -1.0, beta1: 1.0, beta2: 1.0, eps: -1.0 };
        Lion, LionConfig { lr: -1.0, beta1: 1.0, beta2: 1.0 };
        Muon, MuonConfig { lr: -1.0, momentum: 1.5, eps: -1.0, ns_steps: 100, ns_coefficients: [1.0, f64::NAN, 0.0] };
        Lbfgs, LbfgsConfig { lr: -1.0, tolerance_grad: -1.0, tolerance_change: f64::NAN };
    }
    let vector = parameter(&[1.0, 2.0], &device());
    let e = Muon::new(named(&[("bias", &vector)]), MuonConfig::default()).err().unwrap().to_string();
    assert!(e.contains("bias is no matrix") && e.contains("AdamW"), "{e}");
}

/// The bits of a run, and of one that is interrupted after its second step.
fn both<O: Optimizer>(make: impl Fn(&Parameter) -> O, start: &Tensor) -> Result<[Vec<u8>; 2]> {
    let run = |interrupted: bool| -> Result<Vec<u8>> {
        let p = Parameter::new(start.copy()?)?;
        let mut optimizer = make(&p);
        for step in 0..4 {
            if interrupted && step == 2 {
                let saved = optimizer.state_dict()?;
                optimizer = make(&p);
                optimizer.load_state_dict(&saved, Strict::Yes)?;
            }
            let gradients: Gradients = p.to_dtype(gradus_tensor::DType::F32)?.square()?.sum_all()?.backward()?;
            optimizer.step(&gradients)?;
        }
        p.to_bytes()
    };
    Ok([run(false)?, run(true)?])
}

#[test]
fn half_precision_runs_resume_with_the_same_bits() -> Result<()> {
    let device = device();
    for dtype in [gradus_tensor::DType::F32, gradus_tensor::DType::BF16] {
        let start = common::values(&[4, 6], &device).to_dtype(dtype)?;
        let [whole, parts] = both(|p| Muon::new(named(&[("p", p)]), MuonConfig::default()).unwrap(), &start)?;
        assert_eq!(whole, parts);
        let [whole, parts] = both(|p| Lamb::new(named(&[("p", p)]), LambConfig::default()).unwrap(), &start)?;
        assert_eq!(whole, parts);
    }
    Ok(())
}

/// Makes a step with every amount of memory until there is enough, and checks that a step that fails changes nothing.
fn all_or_nothing<O: Optimizer>(optimizer: &mut O, parameters: &[Parameter], device: &Device) -> Result<()> {
    let mut loss = Tensor::zeros([], gradus_tensor::DType::F32, device)?;
    for p in parameters {
        loss = loss.add(p.square()?.sum_all()?)?;
    }
    let gradients = loss.backward()?;
    drop(loss);
    let bytes = || parameters.iter().map(|p| p.to_bytes()).collect::<Result<Vec<_>>>();
    let (before, in_use, mut refused) = (bytes()?, device.backend().memory_stats().in_use, 0);
    for extra in (0..).step_by(1 << 14) {
        device.backend().set_memory_budget(Some(in_use + extra))?;
        let stepped = optimizer.step(&gradients);
        device.backend().set_memory_budget(None)?;
        if stepped.is_ok() {
            break;
        }
        refused += 1;
        assert_eq!(bytes()?, before, "{extra} bytes more");
        assert!(optimizer.state_dict()?.is_empty());
    }
    // The state, and what the update needs, are more than three times the parameters.
    assert!(refused >= 6, "{refused}");
    assert!(bytes()?.iter().zip(&before).all(|(a, b)| a != b));
    Ok(())
}

#[test]
fn a_step_without_memory_for_its_updates_changes_nothing() -> Result<()> {
    let device = device();
    let make = || -> Result<[Parameter; 2]> {
        let new = || Parameter::new(common::values(&[64, 64], &device).to_dtype(gradus_tensor::DType::F32)?);
        Ok([new()?, new()?])
    };
    let p = make()?;
    let list = named(&[("a", &p[0]), ("b", &p[1])]);
    all_or_nothing(&mut Lamb::new(list, LambConfig::default())?, &p, &device)?;
    let p = make()?;
    let list = named(&[("a", &p[0]), ("b", &p[1])]);
    all_or_nothing(&mut Muon::new(list, MuonConfig::default())?, &p, &device)
}
