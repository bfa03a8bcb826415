//! Initialisers and losses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, device, values, with_init};
use gradus_nn::Init;
use gradus_nn::init::{Fan, Gain};
use gradus_tensor::autograd::gradcheck;
use gradus_tensor::ops::{Reduction, Target};
use gradus_tensor::{DType, ErrorKind, Generator, Tensor};

/// Mean, standard deviation and largest magnitude.
fn moments(t: &Tensor) -> (f64, f64, f64) {
    let v = t.to_vec::<f64>().unwrap();
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    let var = v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / v.len() as f64;
    (mean, var.sqrt(), v.iter().fold(0.0, |m, x| m.max(x.abs())))
}

#[test]
fn distributions_have_the_spread_of_their_formulas() {
    let device = device();
    let shape = [64, 32, 3, 3];
    let (fan_in, fan_out) = (288f64, 576f64);
    with_init(&device, |init| {
        let uniform = |t: Tensor, bound: f64| {
            let (mean, std, max) = moments(&t);
            assert!(max <= bound && max > 0.99 * bound && mean.abs() < 0.02 * bound, "{mean} {max} {bound}");
            assert!((std - bound / 3f64.sqrt()).abs() < 0.02 * bound);
        };
        let normal = |t: Tensor, want: f64| {
            let (mean, std, _) = moments(&t);
            assert!(mean.abs() < 0.03 * want && (std / want - 1.0).abs() < 0.02, "{mean} {std} {want}");
        };
        uniform(init.kaiming_uniform(shape, Fan::In, Gain::Relu).unwrap(), (6.0 / fan_in).sqrt());
        uniform(init.kaiming_uniform(shape, Fan::Out, Gain::LeakyRelu(5f64.sqrt())).unwrap(), (1.0 / fan_out).sqrt());
        uniform(init.xavier_uniform(shape, Gain::Tanh).unwrap(), 5.0 / 3.0 * (6.0 / (fan_in + fan_out)).sqrt());
        normal(init.kaiming_normal(shape, Fan::Out, Gain::Relu).unwrap(), (2.0 / fan_out).sqrt());
        normal(init.xavier_normal(shape, Gain::Linear).unwrap(), (2.0 / (fan_in + fan_out)).sqrt());
        normal(init.normal(shape, 0.0, 0.02).unwrap(), 0.02);
        assert!(init.kaiming_normal([5], Fan::In, Gain::Relu).is_err());
        assert!(init.uniform([5], 1.0, 0.0).is_err());
    });
}

#[test]
fn a_seed_gives_the_same_numbers_again() {
    let device = device();
    let draw = |seed| {
        let mut generator = Generator::new(seed);
        let mut init = Init::new(DType::F32, &device, &mut generator);
        init.xavier_normal([3, 3], Gain::Linear).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn truncated_normal_stays_inside_also_far_out() {
    let device = device();
    with_init(&device, |init| {
        let t = init.truncated_normal([20_000], 1.0, 2.0, -1.0, 3.0).unwrap();
        let v = t.to_vec::<f64>().unwrap();
        assert!(v.iter().all(|x| (-1.0..=3.0).contains(x)));
        let (mean, std, _) = moments(&t);
        // A standard normal distribution truncated at one standard deviation has a standard deviation of 0.53956.
        assert!((mean - 1.0).abs() < 0.03 && (std - 2.0 * 0.53956).abs() < 0.02, "{mean} {std}");
        for (lo, hi) in [(20.0, 21.0), (-21.0, -20.0), (20.0, f64::INFINITY)] {
            let v = init.truncated_normal([1000], 0.0, 1.0, lo, hi).unwrap().to_vec::<f64>().unwrap();
            let mean = v.iter().sum::<f64>() / 1000.0;
            assert!(v.iter().all(|x| (lo..=hi).contains(x)) && (mean.abs() - 20.05).abs() < 0.01, "{mean}");
        }
        assert!(init.truncated_normal([1], 0.0, 0.0, -1.0, 1.0).is_err());
        assert!(init.truncated_normal([1], 0.0, 1.0, 2.0, 1.0).is_err());
        assert!(init.truncated_normal([1], 0.0, 1.0, 50.0, 51.0).is_err());
    });
}

#[test]
fn orthogonal_has_orthonormal_rows_or_columns() {
    let device = device();
    with_init(&device, |init| {
        for shape in [[3, 7], [7, 3], [4, 4]] {
            let q = init.orthogonal(shape, Gain::Factor(2.0)).unwrap();
            let square = if shape[0] < shape[1] { q.matmul(&q.t().unwrap()) } else { q.t().unwrap().matmul(&q) };
            let n = shape[0].min(shape[1]);
            let want: Vec<f64> = (0..n * n).map(|i| if i % (n + 1) == 0 { 4.0 } else { 0.0 }).collect();
            assert_close(&square.unwrap(), &want);
        }
        assert_eq!(init.orthogonal([0, 3], Gain::Linear).unwrap().numel(), 0);
    });
}

#[test]
fn values_without_memory_leave_the_generator_where_it_was() {
    let device = device();
    device.backend().set_memory_budget(Some(1 << 20)).unwrap();
    let mut generator = Generator::new(5);
    for shape in [[1 << 20, 1], [1 << 28, 1 << 28]] {
        let mut init = Init::new(DType::F32, &device, &mut generator);
        for made in [
            init.truncated_normal(shape, 0.0, 1.0, -2.0, 2.0),
            init.orthogonal(shape, Gain::Linear),
            init.xavier_normal(shape, Gain::Linear),
        ] {
            let e = made.unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
        }
    }
    assert_eq!(generator.offset(), 0);
}

#[test]
fn losses_have_their_formulas_and_gradients() {
    let device = device();
    let (x, t) = (values(&[3, 4], &device), values(&[4, 3], &device).t().unwrap().sigmoid().unwrap());
    let (xs, ts) = (x.to_vec::<f64>().unwrap(), t.to_vec::<f64>().unwrap());
    let each = |f: &dyn Fn(f64, f64) -> f64| xs.iter().zip(&ts).map(|(x, t)| f(*x, *t)).collect::<Vec<f64>>();
    let none = Reduction::None;
    assert_close(&x.bce_with_logits(&t, None, None, none).unwrap(), &each(&|x, t| x.exp().ln_1p() - x * t));
    assert_close(&x.l1_loss(&t, none).unwrap(), &each(&|x, t| (x - t).abs()));
    let huber = |x: f64, t: f64| {
        let d = (x - t).abs();
        if d <= 0.5 { d * d / 2.0 } else { 0.5 * (d - 0.25) }
    };
    assert_close(&x.huber_loss(&t, 0.5, none).unwrap(), &each(&huber));
    let mean = each(&huber).iter().sum::<f64>() / 12.0;
    assert_close(&x.huber_loss(&t, 0.5, Reduction::Mean).unwrap(), &[mean]);
    let soft: Vec<f64> = xs
        .chunks(4)
        .zip(ts.chunks(4))
        .map(|(x, t)| {
            let lse = x.iter().map(|x| x.exp()).sum::<f64>().ln();
            x.iter().zip(t).map(|(x, t)| t * (lse - x)).sum()
        })
        .collect();
    assert_close(&x.cross_entropy_with(Target::Probabilities(&t), None, None, 0.0, none).unwrap(), &soft);
    let both = [x.clone(), t.clone()];
    gradcheck(|v| v[0].bce_with_logits(&v[1], None, None, none), &both).unwrap();
    gradcheck(|v| v[0].huber_loss(&v[1], 0.5, none), &both).unwrap();
    gradcheck(|v| v[0].cross_entropy_with(Target::Probabilities(&v[1]), None, None, 0.0, none), &both).unwrap();
}

#[test]
fn losses_broadcast_nothing_and_do_not_overflow() {
    let device = device();
    let (x, t) = (values(&[3], &device), values(&[1], &device));
    assert!(x.l1_loss(&t, Reduction::Mean).is_err());
    assert!(x.bce_with_logits(&t, None, None, Reduction::Mean).is_err());
    assert!(x.huber_loss(&x, 0.0, Reduction::Mean).is_err());
    let logits = Tensor::from_vec([1000.0f32, -1000.0, 30.0, -30.0], [4], &device).unwrap();
    let target = Tensor::from_vec([1.0f32, 1.0, 1.0, 0.0], [4], &device).unwrap();
    let got = logits.bce_with_logits(&target, None, None, Reduction::None).unwrap().to_vec::<f32>().unwrap();
    let small = (-30f32).exp();
    assert_eq!(got[..2], [0.0, 1000.0]);
    assert!(got[2..].iter().all(|v| (v / small - 1.0).abs() < 1e-5), "{got:?}");
}
