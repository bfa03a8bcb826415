//! [`Captured`]: forms, host values, calls that run eagerly, and traces that are checked again.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;

use common::{bits, device, random};
use gradus_graph::{Captured, capture};
use gradus_nn::{Adam, AdamConfig, Forward, Init, Linear, NonFinite, Optimizer, Parameter};
use gradus_tensor::{DType, ErrorKind, Generator, Result, Tensor};

#[test]
fn what_cannot_be_replayed_runs_eagerly_and_says_why() {
    let device = device();
    let runs = Cell::new(0);
    let mut captured = Captured::or_eager();
    for i in 0..6 {
        let x = random(&[4], i, &device);
        let step = |x: &[Tensor]| {
            runs.set(runs.get() + 1);
            let factor = x[0].sum_all()?.item()?;
            Ok((vec![x[0].mul(factor)?], ()))
        };
        let (got, ()) = captured.call(0, &[&x], step).unwrap();
        assert_eq!(bits(&got[0]), bits(&x.mul(x.sum_all().unwrap().item().unwrap()).unwrap()), "call {i}");
    }
    // Each call ran the function once, to its end.
    assert_eq!((captured.replays(), runs.get()), (0, 6));
    let why = captured.refusal().unwrap();
    assert!(why.message().contains("read on the host"), "{why}");
    assert!(why.location().is_some_and(|l| l.file().ends_with("captured.rs")), "{why}");
}

#[test]
fn an_optimiser_step_that_reads_on_the_host_still_happens_once() {
    let device = device();
    let make = || {
        let layer = Linear::new(3, 2, &mut Init::new(DType::F16, &device, &mut Generator::new(8))).unwrap();
        let optimizer =
            Adam::new(gradus_nn::Module::named_parameters(&layer), AdamConfig { lr: 0.05, ..Default::default() });
        (layer, optimizer.unwrap().non_finite(NonFinite::Error))
    };
    let ((a, mut oa), (b, mut ob)) = (make(), make());
    let step = |layer: &Linear, optimizer: &mut Adam, x: &Tensor| -> Result<Tensor> {
        let loss = layer.forward(x)?.square()?.mean_all()?;
        optimizer.step(&loss.backward()?)?;
        Ok(loss.detach())
    };
    let mut captured = Captured::or_eager();
    for i in 0..6 {
        let x = random(&[2, 3], i, &device).to_dtype(DType::F16).unwrap();
        let (got, ()) = captured.call(0, &[&x], |x| Ok((vec![step(&a, &mut oa, &x[0])?], ()))).unwrap();
        assert_eq!(bits(&got[0]), bits(&step(&b, &mut ob, &x).unwrap()), "call {i}");
        assert_eq!(
            (bits(&a.weight), bits(a.bias.as_ref().unwrap())),
            (bits(&b.weight), bits(b.bias.as_ref().unwrap()))
        );
    }
    assert!(captured.refusal().unwrap().message().contains("read on the host"));
}

#[test]
fn what_differs_between_calls_ends_in_eager_calls() {
    let device = device();
    let mut captured = Captured::or_eager();
    let mut n = 0;
    for i in 0..9 {
        let x = random(&[4], i, &device);
        n += 1;
        let (got, ()) = captured.call(0, &[&x], |x| Ok((vec![x[0].mul(f64::from(n))?], ()))).unwrap();
        assert_eq!(bits(&got[0]), bits(&x.mul(f64::from(n)).unwrap()));
    }
    assert!(captured.refusal().unwrap().message().contains("an operation differs"));
}

#[test]
fn forms_are_traced_separately() {
    let device = device();
    let mut captured = Captured::or_eager();
    for i in 0..8 {
        let (x, form) = (random(&[4], i, &device), i % 2);
        let step = |x: &[Tensor]| Ok((vec![x[0].mul(1.0 + form as f64)?], form));
        let (got, data) = captured.call(form, &[&x], step).unwrap();
        assert_eq!((bits(&got[0]), data), (bits(&x.mul(1.0 + form as f64).unwrap()), form));
    }
    assert_eq!(captured.replays(), 4);
}

#[test]
fn host_values_that_differ_are_a_difference() {
    let device = device();
    let mut captured = Captured::strict();
    let mut n = 0;
    let x = random(&[4], 0, &device);
    let mut call = || {
        n += 1;
        captured.call(0, &[&x], |x| Ok((vec![x[0].exp()?], n)))
    };
    let e = (0..6).find_map(|_| call().err()).unwrap();
    assert!(e.message().contains("what the step returns"), "{e}");
}

#[test]
fn arguments_of_ever_other_shapes_are_not_traced_forever() {
    let device = device();
    let mut captured = Captured::or_eager();
    for i in 0..60 {
        let x = random(&[i + 1], i as u64, &device);
        let (got, ()) = captured.call(0, &[&x], |x| Ok((vec![x[0].exp()?], ()))).unwrap();
        assert_eq!(bits(&got[0]), bits(&x.exp().unwrap()));
    }
    assert!(captured.refusal().unwrap().message().contains("another form in nearly every call"));
}

#[test]
fn a_step_that_changes_is_noticed_when_it_is_checked_again() {
    let device = device();
    let factor = Cell::new(2.0);
    let mut step = capture(|x| Ok(vec![x[0].mul(factor.get())?]));
    for i in 0..12 {
        if i == 4 || i == 8 {
            // The second time, nothing has changed.
            factor.set(3.0);
            step.recheck();
        }
        let x = random(&[3], i, &device);
        assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&x.mul(factor.get()).unwrap()), "call {i}");
    }
    // Calls 0, 1, 4, 5 and 8 were traced.
    assert_eq!(step.replays(), 7);
}

#[test]
fn an_index_that_is_out_of_range_is_an_error_even_if_nobody_reads_the_result() {
    let device = device();
    let table = random(&[4, 2], 1, &device);
    let step = |x: &[Tensor]| {
        let _ = table.embedding(&x[0], None)?;
        Ok(vec![x[0].add(1)?])
    };
    let mut captured = capture(step);
    for (i, row) in [0i64, 1, 2, 9, 3].into_iter().enumerate() {
        let x = Tensor::from_vec([row], [1], &device).unwrap();
        match (captured.call(&[&x]), step(&[x])) {
            (Ok(got), Ok(want)) => assert_eq!(bits(&got[0]), bits(&want[0])),
            (Err(got), Err(want)) => {
                assert_eq!((i, got.kind(), got.location()), (3, want.kind(), want.location()));
                assert!(matches!(got.kind(), ErrorKind::IndexOutOfBounds { .. }));
            }
            (got, want) => panic!("call {i}: {got:?}, eagerly {want:?}"),
        }
    }
    assert_eq!(captured.replays(), 2);
}

#[test]
fn the_steps_of_an_empty_parameter_are_counted() {
    let device = device();
    let make = || {
        let p = |shape: &[usize]| Parameter::new(random(shape, 3, &device)).unwrap();
        let parameters = vec![("full".to_owned(), p(&[2])), ("empty".to_owned(), p(&[0]))];
        let optimizer = Adam::new(parameters.clone(), AdamConfig::default()).unwrap();
        (parameters, optimizer)
    };
    let ((a, mut oa), (b, mut ob)) = (make(), make());
    let step = |p: &[(String, Parameter)], optimizer: &mut Adam, x: &Tensor| -> Result<Vec<Tensor>> {
        let loss = p[0].1.mul(x)?.sum_all()?.add(&p[1].1.sum_all()?)?;
        optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    };
    let mut captured = capture(|x| step(&a, &mut oa, &x[0]));
    for i in 0..6 {
        let x = random(&[2], i, &device);
        captured.call(&[&x]).unwrap();
        step(&b, &mut ob, &x).unwrap();
    }
    assert!(captured.replays() >= 3);
    drop(captured);
    let (got, want) = (oa.state_dict().unwrap(), ob.state_dict().unwrap());
    assert!(got.iter_metadata().eq(want.iter_metadata()));
    for ((name, got), (_, want)) in got.iter().zip(want.iter()) {
        assert_eq!(bits(got), bits(want), "{name}");
    }
}

#[test]
fn a_plan_that_verification_finds_wrong_never_runs_again() {
    let device = device();
    let factor = |call: u64| if call < 2 { 2.0 } else { call as f64 + 1.0 };
    let mut captured = Captured::or_eager();
    captured.verify(1);
    for i in 0..6 {
        let x = random(&[4], i, &device);
        let (got, ()) = captured.call(0, &[&x], |x| Ok((vec![x[0].mul(factor(i))?], ()))).unwrap();
        assert_eq!(bits(&got[0]), bits(&x.mul(factor(i)).unwrap()), "call {i}");
    }
    assert_eq!(captured.replays(), 0);
    assert!(captured.refusal().unwrap().message().contains("a replay differs from its function"));
    // Otherwise it is an error, and the function is traced again.
    let (mut captured, calls) = (Captured::strict(), Cell::new(0));
    captured.verify(1);
    let results: Vec<_> = (0..4)
        .map(|i| {
            calls.set(i);
            captured.call(0, &[&random(&[4], i, &device)], |x| Ok((vec![x[0].mul(factor(calls.get()))?], ()))).is_ok()
        })
        .collect();
    assert_eq!((results, captured.replays()), (vec![true, true, false, true], 0));
}
