//! Corners of writes in place that random programs found (`cargo xtask fuzz-grad`).
#![allow(clippy::unwrap_used)]

mod common;

use common::f64s;
use gradus_tensor::{BackwardOptions, ErrorKind, Tensor, checkpoint, grad, no_grad, vjp};

fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[test]
fn a_region_that_writes_into_what_it_captured_is_refused_even_if_it_gives_it() {
    let w = f64s(&[2.0], &[1]).require_grad().unwrap();
    let x = f64s(&[3.0], &[1]).require_grad().unwrap();
    let inside = w.clone();
    let f = move |x: &[Tensor]| {
        let alias = inside.detach();
        alias.mul_(0.75)?;
        Ok([x[0].square()?, alias])
    };
    let e = checkpoint(f, &[&x]).unwrap_err();
    assert!(e.message().contains("outlives the region"), "{e}");
}

#[test]
fn what_a_region_makes_and_writes_may_be_given_and_overwritten_later() {
    let x = f64s(&[3.0], &[1]).require_grad().unwrap();
    let f = |x: &[Tensor]| {
        let made = x[0].detach().zeros_like()?;
        made.fill_(5.0)?;
        Ok([x[0].mul(&made)?, made])
    };
    let [y, made] = checkpoint(f, &[&x]).unwrap();
    assert_eq!(values(&made), [5.0]);
    made.fill_(7.0).unwrap();
    // The second run makes and fills another one.
    assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [5.0]);
}

#[test]
fn a_computed_tensor_that_was_overwritten_is_not_what_a_function_gives() {
    let x = f64s(&[3.0], &[1]).require_grad().unwrap();
    let f = |x: &[Tensor]| {
        let y = x[0].square()?;
        y.detach().fill_(1.0)?;
        Ok(y)
    };
    for e in [checkpoint(f, &[&x]).unwrap_err(), vjp(f, &[&x], &[&f64s(&[1.0], &[1])]).unwrap_err()] {
        assert_eq!(*e.kind(), ErrorKind::Autograd);
        assert!(e.message().contains("which fill_ overwrote"), "{e}");
    }
}

#[test]
fn gradients_of_one_tensor_asked_for_twice_share_no_memory() {
    let x = f64s(&[1.0, 2.0], &[2]).require_grad().unwrap();
    for options in [BackwardOptions::new(), BackwardOptions::new().create_graph()] {
        let y = x.square().unwrap().sum_all().unwrap();
        let g = grad(&[&y], &[&x, &x], None, options).unwrap();
        let [Some(a), Some(b)] = &g[..] else { panic!("{g:?}") };
        assert_eq!(a.requires_grad(), b.requires_grad());
        let _guard = no_grad();
        a.fill_(0.0).unwrap();
        assert_eq!(values(b), [2.0, 4.0]);
    }
}

#[test]
fn the_elements_of_a_gradient_share_no_memory() {
    let x = f64s(&[1.0, 2.0, 3.0], &[3]).require_grad().unwrap();
    let g = grad(&[&x.sum_all().unwrap()], &[&x], None, BackwardOptions::new()).unwrap().swap_remove(0).unwrap();
    g.narrow(0, 1, 1).unwrap().fill_(0.0).unwrap();
    assert_eq!(values(&g), [1.0, 0.0, 1.0]);
}

#[test]
fn a_hook_before_a_node_changes_what_goes_on_and_not_what_was_asked_for() {
    let x = f64s(&[3.0], &[1]).require_grad().unwrap();
    let h = x.square().unwrap();
    let double = |g: &[Option<Tensor>]| Ok(Some(vec![g[0].as_ref().map(|g| g.mul(2.0)).transpose()?]));
    let _hook = h.grad_fn().unwrap().register_prehook(double).unwrap();
    let y = h.mul(10.0).unwrap();
    let keep = BackwardOptions::new().retain_graph();
    let alone = grad(&[&y], &[&h], None, keep).unwrap();
    let both = grad(&[&y], &[&h, &x], None, keep).unwrap();
    assert_eq!(values(alone[0].as_ref().unwrap()), [10.0]);
    assert_eq!(values(both[0].as_ref().unwrap()), [10.0]);
    assert_eq!(values(both[1].as_ref().unwrap()), [120.0]);
}
