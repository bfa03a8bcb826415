//! Schedules, `ReduceLrOnPlateau` and `GradScaler`, step by step beside the numbers of `reference/schedules.py`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, gradients, named, parameter};
use gradus_nn::{
    Adam, AdamConfig, Anneal, CyclicConfig, CyclicMode, GradScaler, GradScalerConfig, OneCycleConfig, Optimizer,
    PlateauConfig, PlateauMode, ReduceLrOnPlateau, RmsProp, RmsPropConfig, Schedule, Sgd, SgdConfig, StateDict,
    ThresholdMode,
};
use gradus_tensor::{Error, Result, Tensor};
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/schedules.json")).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect()
}

fn schedule(name: &str) -> Result<Schedule> {
    let cycle = OneCycleConfig::default();
    let cyclic = CyclicConfig { max_factor: 5.0, ..CyclicConfig::default() };
    match name {
        "constant_for" => Schedule::constant_for(7, 0.25),
        "linear" => Schedule::linear(11, 1.0 / 3.0, 0.75),
        "step" => Schedule::step(7, 0.3),
        "multi_step" => Schedule::multi_step([3, 11, 11, 20], 0.5),
        "exponential" => Schedule::exponential(0.93),
        "polynomial" => Schedule::polynomial(31, 1.7),
        "cosine" => Schedule::cosine(40, 0.1),
        "cosine_restarts" => Schedule::cosine_restarts(5, 2, 0.05),
        "cosine_restarts_equal" => Schedule::cosine_restarts(9, 1, 0.0),
        "function" => Ok(Schedule::function(|step| 0.95f64.powf(step as f64) + 0.1)),
        "one_cycle" => Schedule::one_cycle(40, cycle),
        "one_cycle_linear" => {
            let (pct_start, anneal, div_factor) = (0.4, Anneal::Linear, 10.0);
            Schedule::one_cycle(37, OneCycleConfig { pct_start, anneal, div_factor, final_div_factor: 100.0, ..cycle })
        }
        "one_cycle_three" => Schedule::one_cycle(41, OneCycleConfig { pct_start: 0.35, three_phase: true, ..cycle }),
        "cyclic" => Schedule::cyclic(CyclicConfig { step_size_up: 6, ..cyclic }),
        "cyclic_triangular2" => {
            let (step_size_down, mode) = (Some(7), CyclicMode::Triangular2);
            Schedule::cyclic(CyclicConfig { step_size_up: 4, step_size_down, mode, ..cyclic })
        }
        "cyclic_exp_range" => {
            let (step_size_down, mode) = (Some(3), CyclicMode::ExpRange(0.95));
            Schedule::cyclic(CyclicConfig { step_size_up: 5, step_size_down, mode, ..cyclic })
        }
        "sequential" => {
            let parts = [Schedule::linear(6, 0.1, 1.0)?, Schedule::cosine(30, 0.2)?, Schedule::constant_for(100, 0.2)?];
            Schedule::sequential(parts, [6, 36])
        }
        "chained" => {
            let parts = [Schedule::linear(8, 0.25, 1.0)?, Schedule::exponential(0.9)?, Schedule::step(10, 0.5)?];
            Schedule::chained(parts)
        }
        "swa" => Schedule::cosine(10, 0.05),
        "swa_linear" => Schedule::linear(7, 1.0, 0.05),
        other => panic!("no schedule {other}"),
    }
}

#[test]
fn cycled_momentum_follows_pytorch() -> Result<()> {
    let device = device();
    let (cycle, cyclic) = (OneCycleConfig::default(), CyclicConfig { max_factor: 5.0, ..CyclicConfig::default() });
    for (name, wanted) in reference()["momenta"].as_object().unwrap() {
        let (shape, kind) = name.rsplit_once('_').unwrap();
        let lr = 0.1;
        let schedule = match shape {
            "one_cycle" => Schedule::one_cycle(40, OneCycleConfig { momentum: Some([0.85, 0.95]), ..cycle }),
            "one_cycle_three" => {
                let momentum = Some([0.7, 0.97]);
                let config = OneCycleConfig { pct_start: 0.35, three_phase: true, momentum, ..cycle };
                Schedule::one_cycle(41, config)
            }
            "cyclic" => {
                let momentum = Some([0.8, 0.9]);
                Schedule::cyclic(CyclicConfig { step_size_up: 6, momentum, ..cyclic })
            }
            _ => {
                let (step_size_down, mode, momentum) = (Some(3), CyclicMode::ExpRange(0.95), Some([0.5, 0.95]));
                let config = CyclicConfig { step_size_up: 5, step_size_down, mode, momentum, ..cyclic };
                Schedule::cyclic(config)
            }
        };
        let schedule = schedule?;
        let p = parameter(&[0.7, -1.3], &device);
        let parameters = named(&[("p", &p)]);
        let mut optimizer: Box<dyn Optimizer> = match kind {
            "adam" => Box::new(Adam::new(parameters, AdamConfig { lr, ..Default::default() })?),
            "sgd" => Box::new(Sgd::new(parameters, SgdConfig { lr, momentum: 0.9, ..Default::default() })?),
            _ => Box::new(RmsProp::new(parameters, RmsPropConfig { lr, momentum: 0.9, ..Default::default() })?),
        };
        for (step, want) in wanted.as_array().unwrap().iter().enumerate() {
            let want = floats(want);
            schedule.apply(step as u64, &mut *optimizer)?;
            let momentum = optimizer.momentum().unwrap();
            assert!((momentum - want[0]).abs() <= 1e-12, "{name} at {step}: {momentum} is not {}", want[0]);
            let gradient = [(step as f64).sin(), (step as f64 + 0.7).sin()];
            optimizer.step(&gradients(&[(&p, &gradient)], &device))?;
            for (got, want) in p.to_vec::<f64>()?.iter().zip(&want[1..]) {
                assert!((got - want).abs() <= 1e-10 * (1.0 + want.abs()), "{name} at {step}: {got} is not {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn momentum_is_a_function_of_the_step_and_needs_an_optimiser_that_has_one() -> Result<()> {
    let cycled = Schedule::one_cycle(10, OneCycleConfig { momentum: Some([0.5, 0.9]), ..Default::default() })?;
    let parts = [Schedule::constant(), cycled.clone(), Schedule::constant()];
    let schedule = Schedule::sequential(parts, [5, 8])?;
    assert_eq!([0, 4].map(|step| schedule.momentum(step)), [None, None]);
    assert_eq!([5, 7].map(|step| schedule.momentum(step)), [0, 2].map(|step| cycled.momentum(step)));
    assert_eq!([8, 100].map(|step| schedule.momentum(step)), [cycled.momentum(2); 2]);
    assert_eq!(cycled.clone().after_warmup(3).momentum(5), cycled.momentum(2));
    assert_eq!(Schedule::chained([Schedule::constant(), cycled.clone()])?.momentum(1), cycled.momentum(1));

    let p = parameter(&[1.0], &device());
    let mut plain = Sgd::new(named(&[("p", &p)]), SgdConfig::default())?;
    let text = cycled.apply(0, &mut plain).unwrap_err().to_string();
    assert!(text.contains("has no momentum that can be set") && plain.momentum().is_none(), "{text}");
    let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig { momentum: 0.9, ..SgdConfig::default() })?;
    assert!(sgd.set_momentum(1.0).is_err() && sgd.set_momentum(-0.1).is_err() && sgd.set_momentum(f64::NAN).is_err());
    assert_eq!(sgd.momentum(), Some(0.9));
    for momentum in [[0.9, 0.5], [0.5, 1.0], [-0.1, 0.5], [f64::NAN, 0.5]] {
        assert!(Schedule::cyclic(CyclicConfig { momentum: Some(momentum), ..Default::default() }).is_err());
    }
    Ok(())
}

#[test]
fn schedules_follow_pytorch() -> Result<()> {
    for (name, wanted) in reference()["schedules"].as_object().unwrap() {
        let (schedule, wanted) = (schedule(name)?, floats(wanted));
        assert!(wanted.len() > 30);
        for (step, want) in wanted.iter().enumerate() {
            let got = schedule.factor(step as u64);
            assert!((got - want).abs() <= 1e-12, "{name} at {step}: {got} is not {want}");
        }
        assert!(schedule.factor(u64::MAX).is_finite(), "{name}");
    }
    // After a warm-up, the inverse square root is the transformer's schedule, up to a factor.
    let noam = |step: f64| step.powf(-0.5).min(step * 10f64.powf(-1.5));
    let schedule = Schedule::inverse_sqrt(10)?.after_warmup(9);
    for step in 0..40 {
        let want = noam(step as f64 + 1.0) / noam(10.0);
        assert!((schedule.factor(step) - want).abs() < 1e-12, "{step}");
    }
    Ok(())
}

#[test]
fn schedules_compose_and_compare() -> Result<()> {
    let f = Schedule::function(|step| step as f64);
    assert_eq!(f, f.clone());
    assert_ne!(f, Schedule::function(|step| step as f64));
    let both = Schedule::chained([Schedule::step(2, 0.5)?.after_warmup(3), Schedule::exponential(0.5)?])?;
    let product = |step| Schedule::step(2, 0.5).unwrap().after_warmup(3).factor(step) * 0.5f64.powf(step as f64);
    assert!((0..9).all(|step| both.factor(step) == product(step)));
    assert!(format!("{f:?}").contains("Function"));
    let device = device();
    let mut sgd = Sgd::new(named(&[("p", &parameter(&[1.0], &device))]), SgdConfig::default())?;
    assert!(Schedule::function(|_| -1.0).apply(0, &mut sgd).is_err());
    assert_eq!(sgd.lr_factor(), 1.0);
    Ok(())
}

#[test]
fn impossible_schedules_are_refused() -> Result<()> {
    let cycle = OneCycleConfig::default();
    let cyclic = CyclicConfig::default();
    let refused: Vec<Result<Schedule>> = vec![
        Schedule::step(0, 0.5),
        Schedule::cosine(0, 0.0),
        Schedule::cosine(3, f64::NAN),
        Schedule::exponential(f64::NAN),
        Schedule::multi_step([5, 3], 0.1),
        Schedule::linear(0, 0.1, 1.0),
        Schedule::linear(3, -0.1, 1.0),
        Schedule::constant_for(3, -1.0),
        Schedule::polynomial(0, 1.0),
        Schedule::polynomial(3, -1.0),
        Schedule::cosine_restarts(0, 1, 0.0),
        Schedule::cosine_restarts(1, 0, 0.0),
        Schedule::inverse_sqrt(0),
        Schedule::one_cycle(0, cycle),
        Schedule::one_cycle(9, OneCycleConfig { pct_start: 1.5, ..cycle }),
        Schedule::one_cycle(9, OneCycleConfig { div_factor: 0.0, ..cycle }),
        Schedule::cyclic(CyclicConfig { step_size_up: 0, ..cyclic }),
        Schedule::cyclic(CyclicConfig { step_size_down: Some(0), ..cyclic }),
        Schedule::cyclic(CyclicConfig { mode: CyclicMode::ExpRange(-1.0), ..cyclic }),
        Schedule::sequential([Schedule::constant()], [3]),
        Schedule::sequential(vec![Schedule::constant(); 3], [5, 3]),
    ];
    for (i, found) in refused.into_iter().enumerate() {
        assert!(found.is_err_and(|e: Error| e.kind() == &gradus_tensor::ErrorKind::InvalidArgument), "{i}");
    }
    let mut nested = Schedule::constant();
    for _ in 0..100 {
        nested = Schedule::chained([nested])?;
    }
    assert!(Schedule::chained([nested]).is_err());
    Ok(())
}

/// Saves a state to a file and loads it.
fn through_a_file(state: &StateDict) -> Result<StateDict> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    state.save_safetensors(&path)?;
    StateDict::load_safetensors(&path, &device())
}

#[test]
fn plateaus_follow_pytorch_also_through_a_saved_state() -> Result<()> {
    let reference = &reference()["plateau"];
    for case in reference["cases"].as_array().unwrap() {
        let options = &case["options"];
        let number = |name: &str, default: f64| options[name].as_f64().unwrap_or(default);
        let d = PlateauConfig::default();
        let config = PlateauConfig {
            mode: if options["mode"] == "max" { PlateauMode::Max } else { PlateauMode::Min },
            factor: number("factor", d.factor),
            patience: number("patience", 10.0) as u64,
            threshold: number("threshold", d.threshold),
            threshold_mode: if options["threshold_mode"] == "abs" { ThresholdMode::Abs } else { ThresholdMode::Rel },
            cooldown: number("cooldown", 0.0) as u64,
            min_factor: number("min_lr", d.min_factor),
            eps: number("eps", d.eps),
        };
        let mut plateau = ReduceLrOnPlateau::new(config)?;
        for (i, (metric, want)) in floats(&reference["metrics"]).into_iter().zip(floats(&case["factors"])).enumerate() {
            if i % 15 == 0 {
                let mut again = ReduceLrOnPlateau::new(config)?;
                again.load_state_dict(&through_a_file(&plateau.state_dict())?)?;
                assert_eq!(again, plateau);
                plateau = again;
            }
            assert!((plateau.step(metric) - want).abs() <= 1e-12, "{case}");
        }
        assert!(plateau.factor() < 1.0);
    }
    let d = PlateauConfig::default();
    for bad in [
        PlateauConfig { factor: 1.0, ..d },
        PlateauConfig { threshold: -1.0, ..d },
        PlateauConfig { min_factor: f64::NAN, ..d },
        PlateauConfig { eps: -1.0, ..d },
    ] {
        assert!(ReduceLrOnPlateau::new(bad).is_err());
    }
    let mut plateau = ReduceLrOnPlateau::new(d)?;
    let e = plateau.load_state_dict(&StateDict::new()).unwrap_err().to_string();
    assert!(e.contains("metadata factor is missing"), "{e}");
    let (mut state, before) = (plateau.state_dict(), plateau.clone());
    for bad in ["NaN", "inf", "-1.0"] {
        state.set_metadata("factor", bad);
        let e = plateau.load_state_dict(&state).unwrap_err().to_string();
        assert!(e.contains("the saved factor is"), "{e}");
    }
    assert_eq!(plateau, before);
    // The largest count of bad epochs is no overflow.
    state.set_metadata("factor", "0.5");
    state.set_metadata("best", "1.0");
    state.set_metadata("num_bad_epochs", u64::MAX.to_string());
    plateau.load_state_dict(&state)?;
    assert_eq!(plateau.step(2.0), 0.05);
    Ok(())
}

#[test]
fn scales_follow_pytorch_also_through_a_saved_state() -> Result<()> {
    let device = device();
    for case in reference()["scaler"].as_array().unwrap() {
        let number = |name: &str, default: f64| case["options"][name].as_f64().unwrap_or(default);
        let d = GradScalerConfig::default();
        let config = GradScalerConfig {
            init_scale: number("init_scale", d.init_scale),
            growth_factor: number("growth_factor", d.growth_factor),
            backoff_factor: number("backoff_factor", d.backoff_factor),
            growth_interval: number("growth_interval", 2000.0) as u64,
            enabled: true,
        };
        let p = parameter(&[1.0], &device);
        let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig { lr: 0.5, ..Default::default() })?;
        let mut scaler = GradScaler::new(config)?;
        let mut skipped = 0;
        for (i, (bad, want)) in floats(&case["bad"]).into_iter().zip(floats(&case["scales"])).enumerate() {
            if i % 6 == 5 {
                let mut again = GradScaler::new(config)?;
                again.load_state_dict(&through_a_file(&scaler.state_dict())?)?;
                assert_eq!(again, scaler);
                scaler = again;
            }
            let before = p.detach().item()?;
            let factor = if bad == 1.0 { f64::INFINITY } else { 0.25 };
            let loss = p.mul(factor)?.sum_all()?;
            let stepped = scaler.step(&mut sgd, scaler.scale(&loss)?.backward()?)?;
            assert_eq!(stepped, bad == 0.0);
            skipped += u64::from(!stepped);
            assert_eq!(p.detach().item()?, if stepped { before - 0.125 } else { before });
            scaler.update()?;
            assert_eq!((scaler.get_scale(), scaler.skipped_steps()), (want, skipped), "{case}");
        }
    }
    Ok(())
}

#[test]
fn a_scaler_refuses_what_cannot_be_and_changes_nothing_if_it_is_off() -> Result<()> {
    let d = GradScalerConfig::default();
    for bad in [
        GradScalerConfig { init_scale: 0.0, ..d },
        GradScalerConfig { init_scale: f64::INFINITY, ..d },
        GradScalerConfig { growth_factor: 1.0, ..d },
        GradScalerConfig { backoff_factor: 1.0, ..d },
        GradScalerConfig { growth_interval: 0, ..d },
    ] {
        assert!(GradScaler::new(bad).is_err());
    }
    let mut scaler = GradScaler::new(d)?;
    let e = scaler.update().unwrap_err().to_string();
    assert!(e.contains("no gradients were unscaled"), "{e}");
    let device = device();
    let p = parameter(&[1.0, 2.0], &device);
    let sgd = Sgd::new(named(&[("p", &p)]), SgdConfig::default())?;
    // One bad loss of two is enough for the scale to shrink.
    assert!(scaler.unscale(&sgd, gradients(&[(&p, &[1.0, f64::NAN])], &device))?.is_none());
    assert!(scaler.unscale(&sgd, gradients(&[(&p, &[1.0, 1.0])], &device))?.is_some());
    scaler.update()?;
    assert_eq!((scaler.get_scale(), scaler.skipped_steps()), (32768.0, 1));
    let mut off = GradScaler::new(GradScalerConfig { enabled: false, ..d })?;
    let loss = Tensor::scalar(3.0f64, &device)?;
    assert_eq!((off.scale(&loss)?.item()?, off.get_scale()), (3.0, 1.0));
    let same = off.unscale(&sgd, gradients(&[(&p, &[1.0, f64::NAN])], &device))?.unwrap();
    assert!(same.get(&p).unwrap().to_vec::<f64>()?[1].is_nan());
    off.update()
}

#[test]
fn cycles_that_grow_have_no_momentum() {
    let grows = CyclicConfig { mode: CyclicMode::ExpRange(1.001), momentum: Some([0.8, 0.9]), ..Default::default() };
    let error = Schedule::cyclic(grows).unwrap_err().to_string();
    assert!(error.contains("gamma is 1.001"), "{error}");
    assert!(Schedule::cyclic(CyclicConfig { momentum: None, ..grows }).is_ok());
}
