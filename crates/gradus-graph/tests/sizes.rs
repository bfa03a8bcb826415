//! A step whose arguments have other sizes is traced once more, if it does the same operations, and otherwise as anew.
#![allow(clippy::unwrap_used)]

mod common;

use common::{bits, device, random};
use gradus_graph::capture;
use gradus_nn::{Adam, AdamConfig, Dropout, Forward, Init, Linear, Module, Optimizer, Relu, Sequential};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

/// The number of replays of calls with these shapes, each compared with an eager call.
fn replays(shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> u64 {
    let device = device();
    let mut step = capture(&f);
    for (i, shape) in shapes.iter().enumerate() {
        let x = random(shape, i as u64, &device);
        let (got, want) = (step.call(&[&x]).unwrap(), f(std::slice::from_ref(&x)).unwrap());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((got.shape(), bits(got)), (want.shape(), bits(want)), "call {i}");
        }
    }
    step.replays()
}

#[test]
fn what_follows_the_sizes_is_that_of_the_new_ones() {
    // A constant, a scalar, views and the shapes of results follow the size of the argument.
    let f = |x: &[Tensor]| {
        let (n, device) = (x[0].size(0)?, x[0].device());
        let places = Tensor::arange(0, n as i64, 1, DType::F32, device)?;
        let table = Tensor::from_vec((0..n).map(|i| i as f32 * 0.5).collect::<Vec<_>>(), [n], device)?;
        let last = x[0].narrow(0, n - 1, 1)?.mul(1.0 / n as f64)?;
        Ok(vec![x[0].t()?.matmul(&x[0])?.add(&last)?, x[0].sum(&[1], false)?.mul(&places)?.sub(&table)?, x[0].flip(0)?])
    };
    let (a, b, c): (&[usize], &[usize], &[usize]) = (&[4, 3], &[7, 3], &[2, 5]);
    assert_eq!(replays(&[a, a, a, b, b, b, c, c, a, b], f), 10 - 4);
}

#[test]
fn another_number_of_dimensions_an_axis_of_one_and_other_operations_are_traced_twice() {
    let f = |x: &[Tensor]| {
        let y = x[0].mul(2.0)?.matmul(&x[0].transpose(-1, -2)?)?;
        Ok(vec![if x[0].size(-2)? > 8 { y.tanh()? } else { y.exp()? }])
    };
    let (a, larger): (&[usize], &[usize]) = (&[4, 3], &[9, 3]);
    let (one, three): (&[usize], &[usize]) = (&[1, 3], &[2, 4, 3]);
    assert_eq!(replays(&[a, a, a, one, one, one, three, three, three], f), 9 - 6);
    assert_eq!(replays(&[a, a, a, larger, larger, larger, a], f), 7 - 4);
}

struct Training {
    model: Sequential,
    optimizer: Adam,
}

impl Training {
    fn new(device: &Device) -> Training {
        let mut rng = Generator::new(4);
        let dropout = Dropout::new(0.3, &mut rng).unwrap();
        let mut init = Init::new(DType::F32, device, &mut rng);
        let (first, last) = (Linear::new(6, 12, &mut init).unwrap(), Linear::new(12, 3, &mut init).unwrap());
        let model = Sequential::new().add(first).add(Relu).add(dropout).add(last);
        let optimizer = Adam::new(model.named_parameters(), AdamConfig::default()).unwrap();
        Training { model, optimizer }
    }

    fn step(&mut self, x: &Tensor) -> Result<Vec<Tensor>> {
        let loss = self.model.forward(x)?.square()?.mean_all()?;
        self.optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    }
}

#[test]
fn a_training_step_goes_on_with_other_sizes() {
    let device = device();
    let (mut eager, mut captured) = (Training::new(&device), Training::new(&device));
    let mut step = capture(|x| captured.step(&x[0]));
    for (i, rows) in [8, 8, 8, 5, 5, 3, 3, 8, 5, 3].into_iter().enumerate() {
        let x = random(&[rows, 6], i as u64, &device);
        let (got, want) = (step.call(&[&x]).unwrap(), eager.step(&x).unwrap());
        assert_eq!(bits(&got[0]), bits(&want[0]), "call {i}");
    }
    // Three calls of the first size were traced, since the first allocated the state of the optimiser.
    assert_eq!(step.replays(), 10 - 5);
    drop(step);
    let state = |t: &Training| t.model.state_dict().unwrap().iter().map(|(_, t)| bits(t)).collect::<Vec<_>>();
    assert_eq!(state(&captured), state(&eager));
}

/// A number that differs from call to call is found by two traces of equal sizes, and is then no number of a size.
#[test]
fn what_is_refused_stays_refused_for_other_sizes() {
    let device = device();
    let mut n = 0;
    let mut step = capture(move |x: &[Tensor]| {
        n += 1;
        Ok(vec![x[0].mul(f64::from(n))?])
    });
    let mut failed = false;
    for i in 0..12 {
        failed |= step.call(&[&random(&[2 + i % 3], 1, &device)]).is_err();
    }
    assert!(failed && step.replays() == 0);
}
