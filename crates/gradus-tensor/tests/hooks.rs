//! Hooks: order, replacement, removal, errors that change nothing, and no leaks.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{assert_close, f32s, f64s};
use gradus_tensor::{BackwardOptions, Error, ErrorKind, Tensor, grad};

fn leaf(v: f64) -> Tensor {
    f64s(&[v], &[1]).with_grad().unwrap()
}

fn gradient(y: &Tensor, x: &Tensor) -> f64 {
    y.backward_with(BackwardOptions::new().retain_graph()).unwrap().get(x).unwrap().item().unwrap()
}

#[test]
fn hooks_see_complete_gradients_and_run_in_the_order_of_registration() {
    let x = leaf(3.0);
    let seen = Arc::new(Mutex::new(vec![]));
    let u = x.square().unwrap();
    let note = |name: &'static str, factor: f64| {
        let seen = seen.clone();
        move |g: &Tensor| {
            seen.lock().unwrap().push((name, g.item()?));
            (factor != 1.0).then(|| g.mul(factor)).transpose()
        }
    };
    let _a = u.register_hook(note("a", 10.0)).unwrap();
    let b = u.clone().register_hook(note("b", 1.0)).unwrap();
    let _c = x.register_hook(note("c", 0.5)).unwrap();
    // u is used twice: dy/du = 2u + 1 = 19.
    let y = u.mul(&u).unwrap().add(&u).unwrap();
    assert_eq!(gradient(&y, &x), 19.0 * 10.0 * 6.0 * 0.5);
    assert_eq!(*seen.lock().unwrap(), [("a", 19.0), ("b", 190.0), ("c", 1140.0)]);
    // A requested gradient is the one after the hooks have run.
    let g = grad(&[&y], &[&u], None, BackwardOptions::new().retain_graph()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().item().unwrap(), 190.0);
    // Removed hooks no longer run, and the others keep their order.
    b.remove();
    seen.lock().unwrap().clear();
    gradient(&y, &x);
    assert_eq!(*seen.lock().unwrap(), [("a", 19.0), ("c", 1140.0)]);
}

#[test]
fn a_hook_lives_as_long_as_its_handle_and_keeps_no_graph_alive() {
    let x = leaf(2.0);
    let calls = Arc::new(AtomicUsize::new(0));
    let y = x.square().unwrap();
    let node = Arc::downgrade(y.grad_fn().unwrap());
    let (own, count) = (y.clone(), calls.clone());
    let hook = y
        .register_hook(move |_| {
            // The hook captures the tensor that it is registered on.
            count.fetch_add(own.numel(), Ordering::Relaxed);
            Ok(None)
        })
        .unwrap();
    gradient(&y, &x);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(hook);
    gradient(&y, &x);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(y);
    assert!(node.upgrade().is_none(), "the graph is gone");
}

#[test]
fn an_error_in_a_hook_ends_the_pass_and_changes_nothing() {
    let x = leaf(2.0);
    let fails = Arc::new(AtomicUsize::new(1));
    let u = x.square().unwrap();
    let y = u.exp().unwrap().mul(&u).unwrap();
    let flag = fails.clone();
    let _hook = u
        .register_hook(move |_| match flag.load(Ordering::Relaxed) {
            0 => Ok(None),
            _ => Err(Error::argument("guard", "too large")),
        })
        .unwrap();
    // When the hook fails, mul and exp have already run. The second pass still finds their saved values.
    let e = y.backward().unwrap_err();
    assert_eq!((e.op(), e.message()), ("guard", "too large"));
    assert!(!y.grad_fn().unwrap().saved().is_empty());
    fails.store(0, Ordering::Relaxed);
    let g = y.backward().unwrap();
    assert_close(&[g.get(&x).unwrap().item().unwrap()], &[4.0 * 4.0f64.exp() * 5.0], 1e-14);
    // The second pass succeeded, so the graph is freed.
    assert!(y.backward().unwrap_err().to_string().contains("freed"));
}

#[test]
fn a_replacement_fits_or_is_refused() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let y = x.square().unwrap().sum_all().unwrap();
    let wrong: [(Tensor, ErrorKind); 3] = [
        (f64s(&[1.0], &[1]), ErrorKind::ShapeMismatch),
        (f32s(&[1.0, 1.0], &[2]), ErrorKind::DTypeMismatch),
        (Tensor::ones([2], x.dtype(), &common::another_cpu()).unwrap(), ErrorKind::DeviceMismatch),
    ];
    for (g, kind) in wrong {
        let _hook = x.register_hook(move |_| Ok(Some(g.clone()))).unwrap();
        let e = y.backward_with(BackwardOptions::new().retain_graph()).unwrap_err();
        assert_eq!(e.kind(), &kind, "{e}");
    }
    assert!(y.backward().is_ok());
    assert_eq!(f64s(&[1.0], &[1]).register_hook(|_| Ok(None)).unwrap_err().kind(), &ErrorKind::Autograd);
}

#[test]
fn what_a_hook_computes_is_differentiated_with_create_graph() {
    // The hook squares the gradient: 3x^2 becomes 9x^4, whose derivative is 36 x^3.
    let x = leaf(2.0);
    let _hook = x.register_hook(|g| Ok(Some(g.square()?))).unwrap();
    let y = x.mul(&x).unwrap().mul(&x).unwrap();
    let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap();
    let g = g[0].as_ref().unwrap();
    assert_eq!(g.item().unwrap(), 144.0);
    drop(_hook);
    let second = grad(&[g], &[&x], None, BackwardOptions::new()).unwrap();
    assert_eq!(second[0].as_ref().unwrap().item().unwrap(), 288.0);
}

#[test]
fn node_hooks_see_and_replace_what_goes_in_and_out() {
    let (x, w) = (leaf(3.0), leaf(5.0));
    let y = x.mul(&w).unwrap();
    let node = y.grad_fn().unwrap();
    let _before = node.register_prehook(|g| Ok(Some(vec![g[0].as_ref().map(|g| g.mul(2.0)).transpose()?]))).unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let list = seen.clone();
    let after = node
        .register_hook(move |inputs, outputs| {
            let all = inputs.iter().chain(outputs).map(|g| g.as_ref().map(|g| g.item()).transpose());
            list.lock().unwrap().push(all.collect::<gradus_tensor::Result<Vec<_>>>()?);
            Ok(Some(vec![inputs[0].clone(), None]))
        })
        .unwrap();
    let g = y.backward_with(BackwardOptions::new().retain_graph()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [vec![Some(10.0), Some(6.0), Some(2.0)]]);
    assert_eq!(g.get(&x).unwrap().item().unwrap(), 10.0);
    assert_eq!(g.get(&w).unwrap().item().unwrap(), 0.0, "its gradient was replaced by None, which is zero");
    after.remove();
    assert_eq!(gradient(&y, &w), 6.0);
    // A hook that returns the wrong number of gradients, and one that returns a gradient that was not requested.
    let wrong = node.register_hook(|_, _| Ok(Some(vec![]))).unwrap();
    assert!(y.backward().unwrap_err().to_string().contains("0 gradients for 2"));
    wrong.remove();
    let z = x.mul(f64s(&[2.0], &[1])).unwrap();
    let _more = z.grad_fn().unwrap().register_hook(|_, g| Ok(Some(vec![g[0].clone(), g[0].clone()]))).unwrap();
    assert!(z.backward().unwrap_err().to_string().contains("not wanted"));
    // The node of a leaf runs nothing, so it accepts no hooks.
    let leaf = node.inputs().next().flatten().unwrap().clone();
    assert!(leaf.is_leaf() && leaf.register_hook(|_, _| Ok(None)).is_err());
    assert!(leaf.register_prehook(|_| Ok(None)).is_err());
}

#[test]
fn a_hook_may_take_gradients_and_register_hooks() {
    let x = leaf(2.0);
    let (own, late) = (x.clone(), Arc::new(Mutex::new(None)));
    let slot = late.clone();
    let _hook = x
        .register_hook(move |g| {
            *slot.lock().unwrap() = Some(own.register_hook(|_| Ok(None))?);
            let inner = own.exp()?.sum_all()?.detach();
            g.mul(&inner).map(Some)
        })
        .unwrap();
    assert_close(&[gradient(&x.square().unwrap(), &x)], &[4.0 * 2.0f64.exp()], 1e-14);
    assert!(late.lock().unwrap().is_some());
}
