//! If loading or moving fails, nothing changes, whichever device call failed.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/failing.rs"]
mod failing;

use common::{gradients, named, parameter};
use failing::Failing;
use gradus_nn::{
    Adam, AdamConfig, BatchNorm2d, BatchNormConfig, Init, Linear, Module, Optimizer, Parameter, StateDict, Strict,
};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor, autograd};

type Model = (Linear, BatchNorm2d);

fn model(device: &Device, dtype: DType, seed: u64) -> Model {
    let mut generator = Generator::new(seed);
    let init = &mut Init::new(dtype, device, &mut generator);
    (Linear::new(2, 3, init).unwrap(), BatchNorm2d::new(3, BatchNormConfig::default(), init).unwrap())
}

fn bits(state: &StateDict) -> Vec<(String, Vec<u8>)> {
    let tensors = state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap()));
    tensors.chain(state.iter_metadata().map(|(name, text)| (name.to_owned(), text.into()))).collect()
}

/// Lets every call of `change` fail in turn, and checks that either `now` returns the same as before, or the error
/// contains `told`. Returns how often the error contained it.
fn check<T>(
    backend: &Failing,
    target: &mut T,
    now: impl Fn(&T) -> Vec<(String, Vec<u8>)>,
    told: Option<&str>,
    mut change: impl FnMut(&mut T) -> Result<()>,
) -> usize {
    let (before, mut in_part, mut calls) = (now(target), 0, 0);
    for n in 1.. {
        let (result, failed) = backend.at(n, || change(target));
        let Some(name) = failed else { break };
        calls += 1;
        let text = result.unwrap_err().to_string();
        match told {
            Some(told) if text.contains(told) => in_part += 1,
            _ => assert_eq!(now(target), before, "call {n}, {name}: {text}"),
        }
    }
    assert!(calls > 2);
    in_part
}

#[test]
fn a_module_is_loaded_moved_and_cast_as_a_whole() {
    let (backend, device) = Failing::device();
    let mut target = model(&device, DType::F32, 1);
    let now = |m: &Model| bits(&m.state_dict().unwrap());
    let saved = model(&device, DType::F64, 2).state_dict().unwrap();
    let mut load = |m: &mut Model| m.load_state_dict(&saved, Strict::Yes).map(drop);
    // Only the copies into the four parameters themselves come after the first write.
    assert_eq!(check(&backend, &mut target, now, Some("loaded in part"), &mut load), 4);
    load(&mut target).unwrap();
    check(&backend, &mut target, now, None, |m| m.cast_parameters(DType::BF16));
    let (other, there) = Failing::device();
    for backend in [&backend, &other] {
        let mut target = model(&device, DType::F32, 3);
        let now = |m: &Model| bits(&m.state_dict().unwrap());
        check(backend, &mut target, now, None, |m| m.to_device(&there));
    }
}

#[test]
fn a_load_over_a_value_that_a_graph_insists_on_changes_nothing() {
    let (_, device) = Failing::device();
    let mut model = model(&device, DType::F32, 1);
    let now = |m: &Model| bits(&m.state_dict().unwrap());
    let (before, saved) = (now(&model), self::model(&device, DType::F32, 2).state_dict().unwrap());
    let kept = {
        let _guard = autograd::strict_inplace_guard();
        model.0.bias.as_ref().unwrap().square().unwrap()
    };
    let e = model.load_state_dict(&saved, Strict::Yes).unwrap_err();
    assert!(e.kind() == &ErrorKind::Autograd && e.to_string().contains("square"), "{e}");
    assert_eq!(now(&model), before);
    drop(kept);
    model.load_state_dict(&saved, Strict::Yes).unwrap();
    assert_ne!(now(&model), before);
}

#[test]
fn an_optimiser_is_loaded_and_rebound_as_a_whole() {
    let (backend, device) = Failing::device();
    let make = |p: &[Parameter; 2]| Adam::new(named(&[("p", &p[0]), ("q", &p[1])]), AdamConfig::default()).unwrap();
    let p = [parameter(&[1.0, 2.0], &device), parameter(&[3.0], &device)];
    let stepped = |g: f64| {
        let mut adam = make(&p);
        adam.step(&gradients(&[(&p[0], &[g, g]), (&p[1], &[g])], &device)).unwrap();
        adam
    };
    let (saved, mut target) = (stepped(1.0).state_dict().unwrap(), stepped(2.0));
    let now = |adam: &Adam| bits(&adam.state_dict().unwrap());
    check(&backend, &mut target, now, None, |adam| adam.load_state_dict(&saved, Strict::Yes).map(drop));
    assert_eq!(now(&target), bits(&saved));
    let half = |p: &Parameter| Parameter::new(p.detach().to_dtype(DType::BF16).unwrap()).unwrap();
    let wide = |p: &Parameter| Parameter::new(p.detach().copy().unwrap()).unwrap();
    for new in [p.each_ref().map(wide), p.each_ref().map(half)] {
        let mut target = stepped(3.0);
        let list = named(&[("p", &new[0]), ("q", &new[1])]);
        check(&backend, &mut target, now, None, |adam| adam.rebind(list.clone()));
        assert!(target.parameters()[0].is_same(&new[0]));
    }
}

#[test]
fn a_tensor_that_a_buffer_gave_stays_as_it_is() {
    let (_, device) = Failing::device();
    let mut model = model(&device, DType::F32, 1);
    let mean = model.1.running_mean.as_ref().unwrap().tensor();
    let mut saved = model.state_dict().unwrap();
    saved.insert("1.running_mean", Tensor::ones([3], DType::F64, &device).unwrap());
    model.load_state_dict(&saved, Strict::Yes).unwrap();
    assert_eq!(mean.to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(model.1.running_mean.as_ref().unwrap().tensor().to_vec::<f32>().unwrap(), [1.0; 3]);
    // The module does not share memory with the loaded state either.
    let given = Tensor::zeros([3], DType::F32, &device).unwrap();
    saved.insert("1.running_mean", given.clone());
    model.load_state_dict(&saved, Strict::Yes).unwrap();
    given.fill_(7.0).unwrap();
    assert_eq!(model.1.running_mean.as_ref().unwrap().tensor().to_vec::<f32>().unwrap(), [0.0; 3]);
}
