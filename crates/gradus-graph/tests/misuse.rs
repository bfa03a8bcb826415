//! What goes wrong in other compilers of steps, and what a program may do with a captured step: each is right, or an
//! error.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Mutex;

use common::{bits, device, random};
use gradus_graph::capture;
use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sequential, Sgd, SgdConfig, Tanh};
use gradus_tensor::{DType, Generator, Result, Tensor};

#[test]
fn results_may_be_passed_back_in_another_order() {
    let device = device();
    let f = |x: &[Tensor]| Ok(vec![x[1].mul(0.5)?.add(&x[0])?, x[0].tanh()?]);
    let mut step = capture(f);
    let (mut a, mut b) = (random(&[5], 1, &device), random(&[5], 2, &device));
    let (mut c, mut d) = (a.copy().unwrap(), b.copy().unwrap());
    for i in 0..9 {
        let got = step.call(&[&a, &b]).unwrap();
        let want = f(&[c, d]).unwrap();
        // Each result takes the other's place.
        ([b, a], [d, c]) = (got.try_into().unwrap(), want.try_into().unwrap());
        assert_eq!((bits(&a), bits(&b)), (bits(&c), bits(&d)), "call {i}");
    }
    assert!(step.replays() >= 6, "{} replays", step.replays());
}

#[test]
fn a_step_that_writes_its_arguments_may_get_them_swapped() {
    let device = device();
    let f = |x: &[Tensor]| {
        x[0].add_(&x[1])?;
        x[1].mul_(0.5)?;
        Ok(vec![x[0].sub(&x[1])?])
    };
    let mut step = capture(f);
    let make = || [random(&[5], 1, &device), random(&[5], 2, &device)];
    let ([mut a, mut b], [mut c, mut d]) = (make(), make());
    for i in 0..9 {
        let (got, want) = (step.call(&[&a, &b]).unwrap(), f(&[c.clone(), d.clone()]).unwrap());
        assert_eq!((bits(&got[0]), bits(&a), bits(&b)), (bits(&want[0]), bits(&c), bits(&d)), "call {i}");
        if i % 3 == 2 {
            ((a, b), (c, d)) = ((b, a), (d, c));
        }
    }
    // The same tensor twice is another form: its calls are traced.
    let (got, want) = (step.call(&[&a, &a]).unwrap(), f(&[c.clone(), c]).unwrap());
    assert_eq!(bits(&got[0]), bits(&want[0]));
}

#[test]
fn no_argument_is_dropped_however_many_there_are() {
    let device = device();
    let sum = |x: &[Tensor]| x.iter().skip(1).try_fold(x[0].mul(1)?, |sum, x| sum.add(x)).map(|sum| vec![sum]);
    let mut step = capture(sum);
    for i in 0..12 {
        let inputs: Vec<Tensor> = (0..1 + i as u64 % 3).map(|k| random(&[4], 10 * i as u64 + k, &device)).collect();
        let got = step.call(&inputs.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(bits(&got[0]), bits(&sum(&inputs).unwrap()[0]), "call {i}");
    }
    assert_eq!(step.replays(), 6);
}

#[test]
fn a_tensor_of_another_thread_is_read_as_it_is_then() {
    let device = device();
    let there = device.clone();
    let other = std::thread::spawn(move || random(&[4], 1, &there)).join().unwrap();
    let held = other.clone();
    let mut step = capture(move |x| Ok(vec![x[0].mul(&held)?]));
    for i in 0..5 {
        let x = random(&[4], i, &device);
        assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&x.mul(&other).unwrap()), "call {i}");
        std::thread::scope(|s| s.spawn(|| other.add_(1.0).unwrap()).join().unwrap());
    }
    assert_eq!(step.replays(), 3);
}

#[test]
fn a_step_is_called_from_several_threads() {
    let device = device();
    let count = Tensor::zeros([1], DType::I64, &device).unwrap();
    let counted = count.clone();
    let step = Mutex::new(capture(move |x| {
        counted.add_(1)?;
        Ok(vec![x[0].tanh()?.sum_all()?])
    }));
    std::thread::scope(|s| {
        for thread in 0..4 {
            let (step, device) = (&step, &device);
            s.spawn(move || {
                for i in 0..20 {
                    let x = random(&[64], thread * 100 + i, device);
                    let got = step.lock().unwrap().call(&[&x]).unwrap();
                    assert_eq!(bits(&got[0]), bits(&x.tanh().unwrap().sum_all().unwrap()));
                }
            });
        }
    });
    assert_eq!(step.lock().unwrap().replays(), 78);
    assert_eq!(count.item().unwrap(), 80.0);
}

#[test]
fn steps_of_several_threads_share_parameters() {
    let device = device();
    let layer = Linear::new(4, 4, &mut Init::new(DType::F32, &device, &mut Generator::new(1))).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let (layer, device) = (&layer, &device);
            s.spawn(move || {
                let mut step = capture(|x| Ok(vec![layer.forward(&x[0])?.detach()]));
                for i in 0..20 {
                    let x = random(&[3, 4], thread * 100 + i, device);
                    assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&layer.forward(&x).unwrap()));
                }
                assert_eq!(step.replays(), 18);
            });
        }
    });
}

#[test]
fn axes_of_size_zero_are_reduced_as_eagerly() {
    let device = device();
    let f = |x: &[Tensor]| {
        let y = x[0].exp()?.mul(2.0)?;
        let mean = y.mean(&[0], false)?;
        Ok(vec![y.div(&y.sum(&[0], true)?)?, mean.clone(), mean.add(1.0)?.mul(&x[1])?, y.sum_all()?, y.add(1.0)?])
    };
    let mut step = capture(f);
    for i in 0..5 {
        let inputs = [Tensor::zeros([0, 3], DType::F32, &device).unwrap(), random(&[3], i, &device)];
        let (got, want) = (step.call(&[&inputs[0], &inputs[1]]).unwrap(), f(&inputs).unwrap());
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((got.shape(), got.to_vec::<f32>().unwrap().len()), (want.shape(), want.numel()));
            let same = |(a, b): (f32, f32)| a == b || a.is_nan() && b.is_nan();
            assert!(got.to_vec::<f32>().unwrap().into_iter().zip(want.to_vec::<f32>().unwrap()).all(same), "call {i}");
        }
    }
    assert_eq!(step.replays(), 3);
}

/// Many values are alive at once, some until the end of the backward pass, and memory is reused in between.
#[test]
fn values_that_gradients_need_are_not_overwritten_by_the_plan_of_memory() {
    let device = device();
    let make = || {
        let mut rng = Generator::new(4);
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let mut model = Sequential::new();
        for width in [16, 16, 24, 24, 16, 16] {
            model = model.add(Linear::new(16, width, &mut init).unwrap()).add(Tanh);
            model = model.add(Linear::new(width, 16, &mut init).unwrap());
        }
        let optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr: 0.01, ..Default::default() }).unwrap();
        (model, optimizer)
    };
    let step = |model: &Sequential, optimizer: &mut Sgd, x: &Tensor| -> Result<Vec<Tensor>> {
        let (mut y, mut kept) = (x.clone(), vec![]);
        for _ in 0..2 {
            y = model.forward(&y)?;
            kept.push(y.square()?.mean_all()?);
        }
        let loss = kept[0].add(&kept[1].exp()?)?;
        optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach(), y.detach()])
    };
    let ((a, mut oa), (b, mut ob)) = (make(), make());
    let mut captured = capture(|x| step(&a, &mut oa, &x[0]));
    for i in 0..7 {
        let x = random(&[8, 16], i, &device);
        let (got, want) = (captured.call(&[&x]).unwrap(), step(&b, &mut ob, &x).unwrap());
        assert_eq!((bits(&got[0]), bits(&got[1])), (bits(&want[0]), bits(&want[1])), "call {i}");
        let state = |m: &Sequential| m.state_dict().unwrap().iter().map(|(_, t)| bits(t)).collect::<Vec<_>>();
        assert_eq!(state(&a), state(&b), "call {i}");
    }
    assert_eq!(captured.replays(), 5);
}

/// What it ran on before does not matter to a step that holds no tensors of its own.
#[test]
fn a_step_is_called_with_tensors_of_two_devices() {
    let devices = [device(), device()];
    let f = |x: &[Tensor]| Ok(vec![x[0].matmul(&x[1])?.tanh()?]);
    let mut step = capture(f);
    for i in 0..8 {
        let device = &devices[i as usize % 2];
        let (a, b) = (random(&[3, 4], i, device), random(&[4, 2], 100 + i, device));
        let got = step.call(&[&a, &b]).unwrap().remove(0);
        assert!(got.device() == device && bits(&got) == bits(&f(&[a, b]).unwrap()[0]), "call {i}");
    }
    assert_eq!(step.replays(), 4);
    // Both in one call is the error of the function.
    let (a, b) = (random(&[3, 4], 1, &devices[0]), random(&[4, 2], 2, &devices[1]));
    let (got, want) = (step.call(&[&a, &b]).unwrap_err(), f(&[a, b]).unwrap_err());
    assert_eq!((got.kind(), got.message()), (want.kind(), want.message()));
}

#[test]
fn every_way_to_read_numbers_on_the_host_is_refused() {
    let device = device();
    let x = random(&[3], 1, &device);
    type Read = fn(&Tensor) -> Result<()>;
    let ways: [(&str, Read); 5] = [
        ("item", |x| x.sum_all()?.item().map(drop)),
        ("to_vec", |x| x.to_vec::<f32>().map(drop)),
        ("to_bytes", |x| x.to_bytes().map(drop)),
        // These two do not return the error, so the call does.
        ("Display", |x| {
            drop(x.to_string());
            Ok(())
        }),
        ("item whose error is ignored", |x| {
            drop(x.sum_all()?.item());
            Ok(())
        }),
    ];
    for (name, read) in ways {
        let mut step = capture(|x: &[Tensor]| {
            let y = x[0].exp()?;
            read(&y)?;
            Ok(vec![y])
        });
        let e = step.call(&[&x]).expect_err(name);
        assert!(e.to_string().contains("read on the host"), "{name}: {e}");
        assert!(name == "Display" || e.to_string().contains("misuse.rs"), "{name}: {e}");
    }
}

#[test]
fn sizes_that_the_host_changes_between_calls_are_refused() {
    let device = device();
    let x = random(&[6], 1, &device);
    let mut rows = 0;
    let mut step = capture(|x: &[Tensor]| {
        rows += 1;
        Ok(vec![x[0].narrow(0, 0, rows)?.exp()?])
    });
    let e = (0..4).find_map(|_| step.call(&[&x]).err()).expect("the step is refused");
    assert!(e.to_string().contains("differs"), "{e}");
    assert_eq!(step.replays(), 0);
}

/// What is computed from tensors that others may change is no constant, however little of the arguments it reads.
#[test]
fn what_is_computed_from_a_tensor_outside_is_not_stale() {
    let device = device();
    let scale = random(&[4], 1, &device);
    let held = scale.clone();
    let f = move |x: &[Tensor]| Ok(vec![x[0].mul(&held.exp()?.add(0.5)?.softmax(0)?)?]);
    let mut step = capture(&f);
    for i in 0..6 {
        let x = random(&[4], i, &device);
        assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&f(&[x]).unwrap()[0]), "call {i}");
        scale.mul_(1.25).unwrap();
    }
    assert_eq!(step.replays(), 4);
}

#[test]
fn a_panic_in_a_replay_that_is_verified_changes_nothing() {
    let device = device();
    let count = Tensor::zeros([2], DType::F32, &device).unwrap();
    let counted = count.clone();
    let mut calls = 0;
    let mut step = capture(|x: &[Tensor]| {
        calls += 1;
        assert!(calls != 4, "while the replay is verified");
        counted.add_(&x[0])?;
        Ok(vec![counted.mul(2.0)?])
    });
    let x = Tensor::full([2], 1.0, DType::F32, &device).unwrap();
    (0..3).for_each(|_| drop(step.call(&[&x]).unwrap()));
    step.verify(1);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.call(&[&x]).is_ok()));
    assert!(panicked.is_err());
    assert_eq!(count.to_vec::<f32>().unwrap(), [3.0; 2]);
    for i in 4..8 {
        let got = step.call(&[&x]).unwrap();
        assert_eq!(got[0].to_vec::<f32>().unwrap(), [2.0 * i as f32; 2]);
    }
}
