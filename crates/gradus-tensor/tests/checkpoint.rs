//! Regions that are computed again in the backward pass.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{assert_close, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::autograd::{checkpoint, checkpoint_with, gradcheck, gradgradcheck};
use gradus_tensor::{BackwardOptions, DType, Generator, Result, Tensor, grad, hvp, no_grad};

fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[test]
fn gradients_are_those_of_the_plain_computation_to_the_bit() {
    let w = randn(&[3, 3], 1).require_grad().unwrap();
    for x in layouts(&[2, 3], 2) {
        let x = x.require_grad().unwrap();
        let block = |x: &Tensor, w: &Tensor| x.matmul(w)?.gelu()?.layer_norm(&[3], None, None, 1e-5)?.softmax(-1);
        let plain = block(&x, &w).unwrap().mul(&randn(&[2, 3], 3)).unwrap().sum_all().unwrap();
        let inside = w.clone();
        let y = checkpoint(move |x| block(&x[0], &inside), &[&x]).unwrap();
        let again = y.mul(&randn(&[2, 3], 3)).unwrap().sum_all().unwrap();
        assert_eq!(plain.item().unwrap().to_bits(), again.item().unwrap().to_bits());
        let saved = y.grad_fn().unwrap().saved();
        assert_eq!(saved.iter().map(|s| s.0.as_str()).collect::<Vec<_>>(), ["input 0"]);
        let (a, b) = (plain.backward().unwrap(), again.backward().unwrap());
        for t in [&x, &w] {
            assert_eq!(values(a.get(t).unwrap()), values(b.get(t).unwrap()));
        }
        assert_eq!(b.len(), 2);
    }
}

#[test]
fn both_orders_with_captured_parameters_and_nested_regions() {
    let (x, w) = (randn(&[2, 2], 1), randn(&[2, 2], 2));
    let f = |p: &[Tensor]| {
        let w = p[1].clone();
        let outer = move |x: &[Tensor]| {
            let deep = w.clone();
            let h = checkpoint(move |h| h[0].matmul(&deep)?.tanh(), &[&x[0].sin()?])?;
            h.mul(&w)?.mul(&x[0])
        };
        checkpoint(outer, &[&p[0]])
    };
    gradcheck(f, &[x.clone(), w.clone()]).unwrap();
    gradgradcheck(f, &[x.clone(), w.clone()]).unwrap();
    // Third order: d^3/dx^3 of x^4 is 24 x.
    let mut y = f64s(&[2.0], &[1]).require_grad().unwrap();
    let x = y.clone();
    y = checkpoint(|x| x[0].square()?.square(), &[&y]).unwrap();
    for _ in 0..3 {
        y = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap();
    }
    assert_eq!(y.item().unwrap(), 48.0);
    let (_, hv) = hvp(|p| f(&[p[0].clone(), w.clone()])?.sum_all(), &[&w], &[&w]).unwrap();
    let plain = |p: &[Tensor]| p[0].sin()?.matmul(&w)?.tanh()?.mul(&w)?.mul(&p[0])?.sum_all();
    assert_close(&values(&hv[0]), &values(&hvp(plain, &[&w], &[&w]).unwrap().1[0]), 1e-13);
}

#[test]
fn what_is_captured_is_counted_once_however_it_is_used() {
    // b depends on a; both are captured, and a is passed too. y = a * b * x with x = a, b = a^2: y = a^4.
    let a = f64s(&[3.0], &[1]).require_grad().unwrap();
    let b = a.square().unwrap();
    let (ca, cb) = (a.clone(), b.clone());
    let y = checkpoint(move |x| x[0].mul(&ca)?.mul(&cb), &[&a]).unwrap();
    for options in [BackwardOptions::new().retain_graph(), BackwardOptions::new().create_graph()] {
        let g = grad(&[&y], &[&a, &b], None, options).unwrap();
        assert_eq!(g[0].as_ref().unwrap().item().unwrap(), 108.0);
        assert_eq!(g[1].as_ref().unwrap().item().unwrap(), 9.0);
    }
    let g = grad(&[&y], &[&a], None, BackwardOptions::new().create_graph()).unwrap();
    let second = grad(&[g[0].as_ref().unwrap()], &[&a], None, BackwardOptions::new()).unwrap();
    assert_eq!(second[0].as_ref().unwrap().item().unwrap(), 108.0);
}

#[test]
fn several_outputs_integers_and_outputs_without_gradient() {
    let x = f64s(&[1.0, 2.0], &[2]).require_grad().unwrap();
    let f = |x: &[Tensor]| {
        let filled = Tensor::zeros([2], DType::F64, &cpu())?;
        filled.copy_(&x[1].to_dtype(DType::F64)?)?;
        Ok([x[0].square()?, filled, x[0].mul(&x[1])?])
    };
    let y = checkpoint(f, &[&x, &i64s(&[3, 4], &[2])]).unwrap();
    assert_eq!(y.iter().map(Tensor::requires_grad).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(values(&y[1]), [3.0, 4.0]);
    let g = y[0].add(&y[2]).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(values(g.get(&x).unwrap()), [5.0, 8.0]);
    // Nothing tracked: nothing recorded.
    assert!(!checkpoint(|x| x[0].exp(), &[&x.detach()]).unwrap().requires_grad());
    let _guard = no_grad();
    assert!(!checkpoint(|x| x[0].exp(), &[&x]).unwrap().requires_grad());
}

#[test]
fn random_numbers_are_drawn_again_from_the_same_place() {
    let x = randn(&[64], 1).require_grad().unwrap();
    let dropout = |x: &[Tensor], g: &mut Generator| x[0].dropout(0.5, g);
    let mut generator = Generator::new(7);
    generator.next_u64();
    let mut plain = generator.clone();
    let y = checkpoint_with(dropout, &[&x], &mut generator).unwrap();
    let want = x.dropout(0.5, &mut plain).unwrap();
    assert_eq!(generator, plain, "the first run moves the generator on");
    assert_eq!(values(&y), values(&want));
    generator.next_u64();
    let before = generator.clone();
    for options in [BackwardOptions::new().retain_graph(), BackwardOptions::new()] {
        let g = y.sum_all().unwrap().backward_with(options).unwrap();
        let d: Vec<f64> = values(&y).iter().map(|&v| if v == 0.0 { 0.0 } else { 2.0 }).collect();
        assert_eq!(values(g.get(&x).unwrap()), d);
    }
    assert_eq!(generator, before, "the second does not");
}

#[test]
fn the_region_runs_once_forward_and_once_backward() {
    let x = f64s(&[2.0], &[1]).require_grad().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let y = checkpoint(
        move |x| {
            count.fetch_add(1, Ordering::Relaxed);
            x[0].exp()
        },
        &[&x],
    )
    .unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    y.backward().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert!(y.backward().unwrap_err().to_string().contains("freed"));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[test]
fn whatever_the_region_read_is_checked_before_it_is_run_again() {
    // An input, a captured parameter, a captured constant, one that is only added, and one read on the host.
    let place = |k: usize| {
        let x = f64s(&[2.0], &[1]).require_grad().unwrap();
        let w = f64s(&[3.0], &[1]).require_grad().unwrap();
        let (c, shift, host) = (f64s(&[4.0], &[1]), f64s(&[5.0], &[1]), f64s(&[6.0], &[1]));
        let (w2, c2, s2, h2) = (w.clone(), c.clone(), shift.clone(), host.clone());
        let f = move |x: &[Tensor]| x[0].add(&s2)?.square()?.mul(&w2)?.mul(&c2)?.mul(h2.item()?);
        let y = checkpoint(f, &[&x]).unwrap();
        let _guard = no_grad();
        if let Some(t) = [&x, &w, &c, &shift, &host].get(k) {
            t.add_(1.0).unwrap();
        }
        y.backward().map(|g| g.get(&x).unwrap().item().unwrap())
    };
    assert_eq!(place(9).unwrap(), 2.0 * 7.0 * 3.0 * 4.0 * 6.0);
    for k in 0..5 {
        let e = place(k).unwrap_err().to_string();
        assert!(e.contains("checkpoint") && e.contains("add_") && e.contains("checkpoint.rs"), "{k}: {e}");
    }
}

#[test]
fn writes_that_would_happen_twice_are_refused() {
    let x = f64s(&[2.0], &[1]).require_grad().unwrap();
    let total = f64s(&[0.0], &[1]);
    let inside = total.clone();
    let f = move |x: &[Tensor]| {
        inside.add_(1.0)?;
        x[0].mul(&inside)
    };
    let e = checkpoint(f, &[&x]).unwrap_err().to_string();
    assert!(e.contains("add_") && e.contains("outlives") && e.contains("checkpoint.rs"), "{e}");
    // Writes into its own tensors are fine.
    let f = |x: &[Tensor]| {
        let own = Tensor::zeros([1], DType::F64, &cpu())?;
        own.add_(3.0)?;
        x[0].square()?.mul(&own)
    };
    assert_eq!(checkpoint(f, &[&x]).unwrap().backward().unwrap().get(&x).unwrap().item().unwrap(), 12.0);
}

#[test]
fn a_region_that_changes_is_an_error() {
    let x = f64s(&[2.0, 3.0], &[2]).require_grad().unwrap();
    let w = f64s(&[5.0], &[1]).require_grad().unwrap();
    let run = |other: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        let (w, second) = (w.clone(), AtomicUsize::new(0));
        let f = move |x: &[Tensor]| match second.fetch_add(1, Ordering::Relaxed) {
            0 => x[0].square(),
            _ => other(&x[0], &w),
        };
        checkpoint(f, &[&x]).unwrap().sum_all().unwrap().backward().unwrap_err().to_string()
    };
    assert!(run(|x, _| x.sum_all()).contains("other shapes"));
    assert!(run(|x, w| x.mul(w)).contains("had not used before"));
    assert!(run(|x, _| x.reshape([7])).contains("reshape"));
    // An error in the first run comes through.
    assert_eq!(checkpoint(|x| x[0].reshape([7]), &[&x]).unwrap_err().op(), "reshape");
}

#[test]
fn hooks_outside_run_once_and_see_everything() {
    let w = f64s(&[3.0], &[1]).require_grad().unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let list = seen.clone();
    let _hook = w
        .register_hook(move |g| {
            list.lock().unwrap().push(g.item()?);
            Ok(None)
        })
        .unwrap();
    let inside = w.clone();
    let y = checkpoint(move |x| x[0].mul(&inside), &[&w]).unwrap().add(&w).unwrap();
    y.backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [7.0]);
}

#[test]
fn a_long_chain_of_regions_runs_and_drops() {
    let x = f64s(&[1.0], &[1]).require_grad().unwrap();
    let mut y = x.clone();
    for _ in 0..20_000 {
        let before = y.clone();
        // Each holds the one before in what it captured.
        y = checkpoint(move |_| before.mul(1.0), &[]).unwrap();
    }
    assert_eq!(y.backward_with(BackwardOptions::new()).unwrap().get(&x).unwrap().item().unwrap(), 1.0);
}
