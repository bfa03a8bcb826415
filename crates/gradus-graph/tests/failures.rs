//! Devices that fail during a replay.
#![allow(clippy::unwrap_used)]

#[path = "../../gradus-nn/tests/common/failing.rs"]
mod failing;

use failing::Failing;
use gradus_graph::{Captured, capture};
use gradus_nn::{Adam, AdamConfig, Embedding, Forward, Init, Linear, Module, Optimizer, Sequential};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, no_grad};

fn step(layer: &Linear, optimizer: &mut Adam, x: &Tensor) -> Result<Tensor> {
    let loss = layer.forward(x)?.square()?.mean_all()?;
    optimizer.step(&loss.backward()?)?;
    // An operation that may fail after the step of the optimiser.
    layer.weight.values().matmul(&layer.weight.values().t()?)?.add(loss.detach())
}

fn make(device: &Device) -> (Linear, Adam) {
    let layer = Linear::new(3, 2, &mut Init::new(DType::F32, device, &mut Generator::new(8))).unwrap();
    let optimizer = Adam::new(layer.named_parameters(), AdamConfig { lr: 0.1, ..Default::default() }).unwrap();
    (layer, optimizer)
}

#[test]
fn a_step_of_an_optimiser_that_fails_in_a_replay_is_unfinished() {
    // How often none of the parameters, some of them and all of them were stepped before the failure.
    let mut seen = [0; 3];
    for n in 1.. {
        let (backend, device) = Failing::device();
        let (layer, mut optimizer) = make(&device);
        let x = Tensor::randn([4, 3], DType::F32, &device, &mut Generator::new(1)).unwrap();
        let values = || [&layer.weight, layer.bias.as_ref().unwrap()].map(|p| p.values().to_bytes().unwrap());
        let mut captured = Captured::strict();
        let mut call = |optimizer: &mut Adam| {
            captured.call(0, &[&x], |x| Ok((vec![step(&layer, optimizer, &x[0])?], ()))).map(drop)
        };
        // The first calls are traced, and the first replay is verified.
        (0..4).for_each(|_| call(&mut optimizer).unwrap());
        let before = values();
        let (failed, name) = backend.at(n, || call(&mut optimizer));
        if name.is_none() {
            failed.unwrap();
            break;
        }
        let stepped = values().iter().zip(&before).filter(|(a, b)| a != b).count();
        if failed.is_ok() {
            // It failed before anything was written, so the function ran instead.
            assert_eq!(stepped, 2, "failure {n}");
            continue;
        }
        seen[stepped] += 1;
        let (steps, next) = (
            optimizer.state_dict().map(|s| format!("{:?}", s.iter_metadata().collect::<Vec<_>>())),
            call(&mut optimizer),
        );
        match (stepped, next) {
            // The first update may have been begun.
            (0, Ok(())) => assert!(!steps.unwrap().contains("\"5\""), "failure {n}"),
            (0 | 1, Err(e)) => assert!(e.to_string().contains("in the middle of a captured step"), "failure {n}: {e}"),
            (2, Ok(())) => {
                let s = steps.unwrap();
                assert!(!s.contains("\"4\""), "failure {n} of {name:?}: {s}")
            }
            (_, next) => panic!("failure {n}, {stepped} stepped: {next:?}"),
        }
    }
    assert!(seen.iter().all(|&times| times > 0), "{seen:?}");
}

/// Updates of several optimisers by the same numbers are made together.
#[test]
fn an_optimiser_whose_update_failed_with_those_of_others_has_not_stepped() {
    let mut seen = 0;
    for n in 1.. {
        let (backend, device) = Failing::device();
        let mut rng = Generator::new(8);
        let layer = Linear::new(3, 2, &mut Init::new(DType::F32, &device, &mut rng)).unwrap();
        let adam = |(name, parameter)| Adam::new([(name, parameter)], AdamConfig { lr: 0.1, ..Default::default() });
        let mut optimizers: Vec<Adam> = layer.named_parameters().into_iter().map(|p| adam(p).unwrap()).collect();
        let x = Tensor::randn([4, 3], DType::F32, &device, &mut rng).unwrap();
        let values = || [&layer.weight, layer.bias.as_ref().unwrap()].map(|p| p.values().to_bytes().unwrap());
        let mut captured = Captured::strict();
        let mut call = |optimizers: &mut [Adam]| {
            let step = |x: &[Tensor]| {
                let gradients = layer.forward(&x[0])?.square()?.mean_all()?.backward()?;
                optimizers.iter_mut().try_for_each(|optimizer| optimizer.step(&gradients))?;
                Ok((vec![], ()))
            };
            captured.call(0, &[&x], step).map(drop)
        };
        (0..4).for_each(|_| call(&mut optimizers).unwrap());
        let before = values();
        let (failed, name) = backend.at(n, || call(&mut optimizers));
        if name.is_none() {
            failed.unwrap();
            break;
        }
        if failed.is_ok() {
            continue; // The function ran instead.
        }
        for ((optimizer, now), before) in optimizers.iter().zip(values()).zip(before) {
            let counted = match optimizer.state_dict() {
                Ok(state) => format!("{:?}", state.iter_metadata().collect::<Vec<_>>()).contains("\"5\""),
                Err(e) => {
                    assert!(e.to_string().contains("in the middle of a captured step"), "failure {n}: {e}");
                    continue;
                }
            };
            assert_eq!(counted, now != before, "failure {n} of {name:?}");
            seen += 1;
        }
    }
    assert!(seen > 0);
}

#[test]
fn the_error_of_a_replay_names_the_layer() {
    let (_, device) = Failing::device();
    let mut init_rng = Generator::new(1);
    let mut init = Init::new(DType::F32, &device, &mut init_rng);
    let model = Sequential::new()
        .add(Embedding::new(4, 3, None, &mut init).unwrap())
        .add(Linear::new(3, 2, &mut init).unwrap());
    let pass = |x: &[Tensor]| Ok(vec![no_grad(|| model.forward(&x[0]))?]);
    let mut captured = capture(pass);
    for row in [0i64, 1, 2, 3, 9] {
        let x = Tensor::from_vec([row], [1], &device).unwrap();
        match (captured.call(&[&x]), pass(&[x])) {
            (Ok(_), Ok(_)) => assert!(row < 4),
            (Err(got), Err(want)) => {
                assert!(want.layer().is_some());
                assert_eq!(format!("{:?}", got.layer()), format!("{:?}", want.layer()));
                assert_eq!((got.message(), got.location()), (want.message(), want.location()));
            }
            (got, want) => panic!("{row}: {got:?}, eagerly {want:?}"),
        }
    }
    assert_eq!(captured.replays(), 2);
}
