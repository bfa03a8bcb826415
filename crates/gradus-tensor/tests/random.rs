//! Draws from distributions: moments, ranges, and how far the generators advance.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, cpu, f64s, i64s};
use gradus_tensor::{AttentionOptions, DType, ErrorKind, Generator, Result, Tensor, checkpoint_with};

fn mean_and_var(t: &Tensor) -> (f64, f64) {
    let t = t.to_dtype(DType::F64).unwrap();
    (t.mean_all().unwrap().item().unwrap(), t.var(&[0], 0, false).unwrap().item().unwrap())
}

fn near(got: (f64, f64), want: (f64, f64), tolerance: f64) {
    assert!((got.0 - want.0).abs() < tolerance && (got.1 - want.1).abs() < tolerance, "{got:?}, not {want:?}");
}

#[test]
fn moments_of_every_distribution() {
    let (n, d) = ([20_000], cpu());
    let mut g = Generator::new(1);
    near(mean_and_var(&Tensor::uniform(-1.0, 3.0, n, DType::F32, &d, &mut g).unwrap()), (1.0, 16.0 / 12.0), 0.04);
    near(mean_and_var(&Tensor::normal(2.0, 0.5, n, DType::F64, &d, &mut g).unwrap()), (2.0, 0.25), 0.02);
    near(mean_and_var(&Tensor::bernoulli(0.3, n, DType::U8, &d, &mut g).unwrap()), (0.3, 0.21), 0.02);
    near(mean_and_var(&Tensor::exponential(2.0, n, DType::F32, &d, &mut g).unwrap()), (0.5, 0.25), 0.03);
    let p = Tensor::full(n, 0.7, DType::BF16, &d).unwrap();
    near(mean_and_var(&p.bernoulli_like(&mut g).unwrap()), (0.7, 0.21), 0.02);
    near(mean_and_var(&p.randn_like(&mut g).unwrap()), (0.0, 1.0), 0.05);
    near(mean_and_var(&p.rand_like(&mut g).unwrap()), (0.5, 1.0 / 12.0), 0.02);
}

#[test]
fn generators_move_on_by_what_was_drawn_and_decide_alone() {
    let draw = |device: &gradus_tensor::Device, g: &mut Generator| {
        let mut all = Tensor::uniform(0.0, 1.0, [7], DType::F32, device, g).unwrap().to_vec::<f32>().unwrap();
        all.extend(Tensor::normal(0.0, 1.0, [3], DType::F32, device, g).unwrap().to_vec::<f32>().unwrap());
        let w = Tensor::from_vec([1.0f32, 2.0, 3.0], [3], device).unwrap();
        for t in [
            Tensor::randperm(5, device, g).unwrap(),
            w.multinomial(4, true, g).unwrap(),
            w.multinomial(3, false, g).unwrap(),
        ] {
            all.extend(t.to_vec::<i64>().unwrap().iter().map(|&i| i as f32));
        }
        all
    };
    let (mut a, mut b) = (Generator::new(5), Generator::new(5));
    assert_eq!(draw(&cpu(), &mut a), draw(&another_cpu(), &mut b));
    assert_eq!(a, b);
    assert_ne!(draw(&cpu(), &mut a), draw(&cpu(), &mut Generator::new(6)));
    let mut g = Generator::new(0);
    let _ = Tensor::uniform(0.0, 1.0, [7], DType::F32, &cpu(), &mut g).unwrap();
    assert_eq!(g.offset(), 7);
    let _ = f64s(&[0.5; 3], &[3]).bernoulli_like(&mut g).unwrap();
    assert_eq!(g.offset(), 13);
}

#[test]
fn certain_probabilities_are_certain() {
    let p = f64s(&[0.0, 1.0, 0.0, 1.0], &[4]);
    let mut g = Generator::new(1);
    assert_eq!(p.bernoulli_like(&mut g).unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0, 0.0, 1.0]);
    for bad in [-0.1, 1.1, f64::NAN] {
        assert_eq!(f64s(&[bad], &[]).bernoulli_like(&mut g).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        assert!(Tensor::bernoulli(bad, [1], DType::F32, &cpu(), &mut g).is_err());
    }
    assert_eq!(i64s(&[1], &[1]).bernoulli_like(&mut g).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
}

#[test]
fn permutations_have_every_index_once() {
    let mut g = Generator::new(3);
    let mut order = Tensor::randperm(100, &cpu(), &mut g).unwrap().to_vec::<i64>().unwrap();
    assert_ne!(order, (0..100).collect::<Vec<_>>());
    order.sort_unstable();
    assert_eq!(order, (0..100).collect::<Vec<_>>());
    assert_eq!(Tensor::randperm(0, &cpu(), &mut g).unwrap().shape(), [0]);
    assert!(Tensor::randperm(usize::MAX, &cpu(), &mut g).is_err());
}

#[test]
fn multinomial_draws_by_weight_and_never_weight_zero() {
    let mut g = Generator::new(7);
    let w = f64s(&[1.0, 0.0, 3.0, 0.0, 2.0, 0.0, 1e308, 0.0, 1e308, 1e308], &[2, 5]);
    let drawn = w.multinomial(6000, true, &mut g).unwrap();
    assert_eq!(drawn.shape(), [2, 6000]);
    let counts = |row: isize| drawn.select(0, row).unwrap().bincount(None, 5).unwrap().to_vec::<i64>().unwrap();
    let near = |got: &[i64], want: [i64; 5]| {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 200 && (w > 0 || *g == 0)), "{got:?}")
    };
    near(&counts(0), [1000, 0, 3000, 0, 2000]);
    near(&counts(1), [0, 2000, 0, 2000, 2000]);
    // Without replacement, each index with a positive weight is drawn once, and the heaviest usually comes first.
    let mut first = 0;
    for _ in 0..200 {
        let mut one = f64s(&[0.0, 1.0, 8.0, 1.0], &[4]).multinomial(3, false, &mut g).unwrap().to_vec::<i64>().unwrap();
        first += i32::from(one[0] == 2);
        one.sort_unstable();
        assert_eq!(one, [1, 2, 3]);
    }
    assert!((130..190).contains(&first), "{first}");
}

#[test]
fn multinomial_refuses_what_is_no_weight() {
    let mut g = Generator::new(7);
    let mut kind = |w: &[f64], n: usize, replacement: bool| {
        f64s(w, &[w.len()]).multinomial(n, replacement, &mut g).unwrap_err().kind().clone()
    };
    for bad in [&[1.0, -1.0][..], &[f64::NAN], &[f64::INFINITY], &[0.0, 0.0], &[]] {
        assert_eq!(kind(bad, 1, true), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(&[1.0, 0.0, 2.0], 3, false), ErrorKind::InvalidArgument);
    assert_eq!(i64s(&[1], &[1]).multinomial(1, true, &mut g).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
    assert!(f64s(&[1.0], &[1, 1, 1]).multinomial(1, true, &mut g).is_err());
    assert_eq!(f64s(&[1.0], &[1]).multinomial(0, false, &mut g).unwrap().shape(), [0]);
}

#[test]
fn ranges_that_are_none_are_refused() {
    let (d, mut g) = (cpu(), Generator::new(1));
    assert!(Tensor::uniform(1.0, 0.0, [1], DType::F32, &d, &mut g).is_err());
    assert!(Tensor::normal(0.0, -1.0, [1], DType::F32, &d, &mut g).is_err());
    assert!(Tensor::exponential(0.0, [1], DType::F32, &d, &mut g).is_err());
    assert!(Tensor::exponential(1.0, [1], DType::I64, &d, &mut g).is_err());
    assert_eq!(g.offset(), 0);
    let x = i64s(&[1, 2], &[2]);
    assert_eq!(x.full_like(7).unwrap().to_vec::<i64>().unwrap(), [7, 7]);
    assert!(x.full_like(0.5).is_err() && x.rand_like(&mut g).is_err());
}

#[test]
fn an_index_of_weight_zero_is_never_drawn_however_small_the_others_are() {
    let w = f64s(&[0.0, 1e-310], &[2]);
    for seed in 0..20 {
        assert_eq!(w.multinomial(1, false, &mut Generator::new(seed)).unwrap().to_vec::<i64>().unwrap(), [1]);
    }
}

/// Draws as many numbers as the tensor has elements, which is 64 in the test below.
type Draw = fn(&Tensor, &mut Generator) -> Result<Tensor>;

const DRAWS: [(&str, Draw); 9] = [
    ("uniform", |x, g| x.rand_like(g)),
    ("exponential", |x, g| Tensor::exponential(1.0, x.shape(), DType::F16, x.device(), g)),
    ("bernoulli", |x, g| x.bernoulli_like(g)),
    ("permutation", |x, g| Tensor::randperm(x.numel(), x.device(), g)),
    ("multinomial", |x, g| x.multinomial(64, true, g)),
    ("without replacement", |x, g| x.multinomial(64, false, g)),
    ("dropout", |x, g| x.dropout(0.5, g)),
    ("attention", |x, g| {
        let x = x.reshape([1, 1, 64, 1])?;
        x.scaled_dot_product_attention(&x, &x, AttentionOptions::new().dropout(0.5, g))
    }),
    ("checkpoint", |x, g| checkpoint_with(|x, g| x[0].dropout(0.5, g)?.exp()?.mul(&x[0]), &[x], g)),
];

#[test]
fn a_draw_without_memory_leaves_the_generator_where_it_was() {
    let device = another_cpu();
    let x = Tensor::full([64], 0.5, DType::F32, &device).unwrap().with_grad().unwrap();
    for (name, draw) in DRAWS {
        let mut g = Generator::new(3);
        let mut refused = 0;
        for extra in (0..).step_by(16) {
            let in_use = device.memory_stats().in_use;
            device.backend().set_memory_budget(Some(in_use + extra)).unwrap();
            let drawn = draw(&x, &mut g);
            device.backend().set_memory_budget(None).unwrap();
            if drawn.is_ok() {
                break;
            }
            assert_eq!(g.offset(), 0, "{name} with {extra} bytes");
            refused += 1;
        }
        assert!(refused > 0 && g.offset() > 0, "{name}");
    }
}
