//! Every optimiser in a captured step: the parameters and the state equal those of eager steps. There are enough steps
//! for every formula that changes with the step count to change.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_graph::capture;
use gradus_nn::{
    Adadelta, AdadeltaConfig, Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, Adamax, AdamaxConfig, Forward, Init,
    Lamb, LambConfig, Linear, Lion, LionConfig, Module, Muon, MuonConfig, NAdam, NAdamConfig, OneCycleConfig,
    Optimizer, Parameter, RAdam, RAdamConfig, RmsProp, RmsPropConfig, Schedule, Sequential, Sgd, SgdConfig, Tanh,
    clip_grad_norm, clip_grad_norm_on_device,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, no_grad};

type Make = fn(Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>>;

/// A constructor for each optimiser.
fn optimizers() -> Vec<(&'static str, Make)> {
    macro_rules! make {
        ($($name:ident $config:ident { $($field:ident: $value:expr),* };)*) => {
            vec![$((stringify!($name), |p| Ok(Box::new($name::new(p, $config { $($field: $value,)* ..Default::default() })?))),)*]
        };
    }
    make! {
        Sgd SgdConfig { lr: 0.05, momentum: 0.9, weight_decay: 0.01 };
        Adam AdamConfig { lr: 0.02 };
        AdamW AdamConfig { lr: 0.02, weight_decay: 0.1 };
        Adadelta AdadeltaConfig { lr: 0.5 };
        Adagrad AdagradConfig { lr: 0.05, lr_decay: 0.1 };
        Adamax AdamaxConfig { lr: 0.02 };
        Lamb LambConfig { lr: 0.02, weight_decay: 0.1 };
        Lion LionConfig { lr: 0.01 };
        NAdam NAdamConfig { lr: 0.02 };
        RAdam RAdamConfig { lr: 0.02 };
        RmsProp RmsPropConfig { lr: 0.01, momentum: 0.5 };
    }
}

fn model(dtype: DType, device: &Device) -> Sequential {
    let mut rng = Generator::new(4);
    let mut init = Init::new(dtype, device, &mut rng);
    Sequential::new().add(Linear::new(3, 5, &mut init).unwrap()).add(Tanh).add(Linear::new(5, 2, &mut init).unwrap())
}

fn bits(state: &gradus_nn::StateDict) -> Vec<(String, Vec<u8>)> {
    let tensors = state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap()));
    tensors.chain(state.iter_metadata().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))).collect()
}

/// Compares twelve eager steps with twelve captured ones, with a learning rate that changes by this schedule.
fn compare(name: &str, make: Make, only: fn(&str) -> bool, dtype: DType, schedule: &Schedule) {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let (eager, captured) = (model(dtype, &device), model(dtype, &device));
    let parameters = |m: &Sequential| m.named_parameters().into_iter().filter(|(name, _)| only(name)).collect();
    let (mut a, b) = (make(parameters(&eager)).unwrap(), make(parameters(&captured)).unwrap());
    let b = std::cell::RefCell::new(b);
    let mut step = capture(|x| {
        let loss = captured.forward(&x[0])?.cross_entropy(&x[1])?;
        b.borrow_mut().step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    });
    for i in 0..12 {
        let x = Tensor::randn([4, 3], dtype, &device, &mut Generator::new(i)).unwrap();
        let y = Tensor::from_vec(vec![0i64, 1, 1, 0], [4], &device).unwrap();
        schedule.apply(i, &mut *a).unwrap();
        schedule.apply(i, &mut **b.borrow_mut()).unwrap();
        if i == 7 {
            // Some elements of a parameter become others between two replays.
            for model in [&eager, &captured] {
                let weight = model.named_parameters().remove(0).1.values().clone();
                no_grad(|| weight.narrow(0, 1, 2)?.mul_(1.5)).unwrap();
            }
        }
        let loss = eager.forward(&x).unwrap().cross_entropy(&y).unwrap();
        a.step(&loss.backward().unwrap()).unwrap();
        let got = step.call(&[&x, &y]).unwrap();
        assert_eq!(got[0].to_bytes().unwrap(), loss.to_bytes().unwrap(), "{name} {dtype}, step {i}");
        assert_eq!(
            bits(&captured.state_dict().unwrap()),
            bits(&eager.state_dict().unwrap()),
            "{name} {dtype}, step {i}"
        );
        assert_eq!(bits(&b.borrow().state_dict().unwrap()), bits(&a.state_dict().unwrap()), "{name} {dtype}, step {i}");
    }
    // The first call allocates the state, and the traces of the second and third agree.
    assert!(step.replays() >= 9, "{name} {dtype}: {} replays", step.replays());
}

#[test]
fn optimisers_step_as_eagerly() {
    let cosine = Schedule::cosine(12, 0.1).unwrap();
    for (name, make) in optimizers() {
        // Half precision has an f32 copy, which is state too.
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            compare(name, make, |_| true, dtype, &cosine);
        }
    }
    let muon: Make = |p| Ok(Box::new(Muon::new(p, MuonConfig { lr: 0.02, ..Default::default() })?));
    compare("Muon", muon, |name| name.ends_with("weight"), DType::F32, &cosine);
}

#[test]
fn replays_use_the_momentum_of_their_time() {
    let cycle = OneCycleConfig { momentum: Some([0.3, 0.95]), ..Default::default() };
    let (mut cycled, schedule) = (0, Schedule::one_cycle(12, cycle).unwrap());
    for (name, make) in optimizers().into_iter().filter(|(name, _)| ["Sgd", "Adam", "AdamW", "RmsProp"].contains(name))
    {
        compare(name, make, |_| true, DType::F32, &schedule);
        cycled += 1;
    }
    assert_eq!(cycled, 4);
}

#[test]
fn gradients_are_clipped_in_a_captured_step() {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let (eager, captured) = (model(DType::F32, &device), model(DType::F32, &device));
    let config = AdamConfig { lr: 0.02, ..Default::default() };
    let mut a = AdamW::new(eager.named_parameters(), config).unwrap();
    let mut b = AdamW::new(captured.named_parameters(), config).unwrap();
    let parameters = captured.parameters();
    let mut step = capture(|x| {
        let mut gradients = captured.forward(&x[0])?.cross_entropy(&x[1])?.backward()?;
        let norm = clip_grad_norm_on_device(&mut gradients, &parameters, 0.4)?;
        b.step(&gradients)?;
        Ok(vec![norm])
    });
    let (mut below, mut above) = (0, 0);
    for i in 0..12 {
        let x = Tensor::randn([4, 3], DType::F32, &device, &mut Generator::new(i)).unwrap();
        let y = Tensor::from_vec(vec![0i64, 1, 1, 0], [4], &device).unwrap();
        let mut gradients = eager.forward(&x).unwrap().cross_entropy(&y).unwrap().backward().unwrap();
        let norm = clip_grad_norm(&mut gradients, &eager.parameters(), 0.4).unwrap();
        a.step(&gradients).unwrap();
        assert_eq!(step.call(&[&x, &y]).unwrap()[0].item().unwrap().to_bits(), norm.to_bits(), "step {i}");
        assert_eq!(bits(&captured.state_dict().unwrap()), bits(&eager.state_dict().unwrap()), "step {i}");
        *if norm < 0.4 { &mut below } else { &mut above } += 1;
    }
    assert!(step.replays() >= 9 && below > 0 && above > 0, "{} replays, {below}, {above}", step.replays());
}

#[test]
fn a_state_that_is_loaded_is_the_one_that_replays_go_on_with() {
    for dtype in [DType::F32, DType::BF16] {
        loads_a_state(dtype);
    }
}

fn loads_a_state(dtype: DType) {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let (model, other) = (model(dtype, &device), model(dtype, &device));
    let config = AdamConfig { lr: 0.02, ..Default::default() };
    let optimizer = std::cell::RefCell::new(AdamW::new(model.named_parameters(), config).unwrap());
    let mut eager = AdamW::new(other.named_parameters(), config).unwrap();
    let y = Tensor::from_vec(vec![0i64, 1], [2], &device).unwrap();
    let mut step = capture(|x| {
        let loss = model.forward(&x[0])?.cross_entropy(&x[1])?;
        optimizer.borrow_mut().step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    });
    let mut saved = None;
    for i in 0..14 {
        // Another number of rows requires another plan, which uses the same parameters and state.
        let rows = if i == 4 { 1 } else { 2 };
        if i == 5 {
            saved = Some(optimizer.borrow().state_dict().unwrap());
        }
        if i == 8 {
            let strict = gradus_nn::Strict::Yes;
            optimizer.borrow_mut().load_state_dict(saved.as_ref().unwrap(), strict).unwrap();
            eager.load_state_dict(saved.as_ref().unwrap(), strict).unwrap();
        }
        let x = Tensor::randn([rows, 3], dtype, &device, &mut Generator::new(i)).unwrap();
        let y = y.narrow(0, 0, rows).unwrap();
        step.call(&[&x, &y]).unwrap();
        let loss = other.forward(&x).unwrap().cross_entropy(&y).unwrap();
        eager.step(&loss.backward().unwrap()).unwrap();
        assert_eq!(bits(&model.state_dict().unwrap()), bits(&other.state_dict().unwrap()), "step {i}");
        assert_eq!(bits(&optimizer.borrow().state_dict().unwrap()), bits(&eager.state_dict().unwrap()), "step {i}");
    }
    assert!(step.replays() >= 6, "{} replays", step.replays());
}

#[test]
fn a_learning_rate_that_is_set_inside_is_refused() {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let model = model(DType::F32, &device);
    let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig::default()).unwrap();
    let mut step = capture(|x| {
        optimizer.set_lr_factor(0.5)?;
        Ok(vec![model.forward(&x[0])?.detach()])
    });
    let x = Tensor::ones([1, 3], DType::F32, &device).unwrap();
    let e = step.call(&[&x]).unwrap_err();
    assert!(e.to_string().contains("set it before the step is called"), "{e}");
}
