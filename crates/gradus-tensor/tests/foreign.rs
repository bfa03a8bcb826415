//! User code inside a backward pass: hooks, backward rules, and threads that hold gradients while the pass runs.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::{f64s, leaf};
use gradus_tensor::autograd::{Keep, is_grad_enabled};
use gradus_tensor::*;

type Kept = Arc<Mutex<Option<Tensor>>>;

fn keep() -> BackwardOptions {
    BackwardOptions::new().create_graph()
}

/// Returns x² and 2x. The gradient of the first output reads the second output, which has no gradient itself.
#[derive(Debug)]
struct SquareWithSlope;

impl CustomOp for SquareWithSlope {
    fn name(&self) -> &str {
        "square_with_slope"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].square()?, x[0].mul(2.0)?])
    }
    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE.and_outputs([1])
    }
    fn differentiable(&self, output: usize) -> bool {
        output == 0
    }
    fn backward(&self, ctx: &autograd::Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(ctx.output(1)?.mul(g)?)])
    }
}

#[test]
fn a_gradient_that_reads_an_output_without_one_is_refused_where_it_must_be_differentiable() {
    let x = leaf(&[3.0]);
    let y = apply_custom(&Arc::new(SquareWithSlope), &[&x]).unwrap().swap_remove(0);
    let e = grad(&[&y], &[&x], None, keep()).unwrap_err();
    assert!(e.message().contains("output 1, which carries no gradient"), "{e}");
    assert_eq!(y.backward().unwrap().get(&x).unwrap().item().unwrap(), 6.0);
}

#[test]
fn a_hook_that_writes_over_a_neighbour_is_told() {
    let x = leaf(&[1.0, 2.0]);
    // The hook overwrites a seed that is still waiting in the same node.
    let parts = x.chunk(2, 0).unwrap();
    let (first, second) = (f64s(&[1.0], &[1]), f64s(&[1.0], &[1]));
    let seed = first.clone();
    let _hook = parts[1].register_hook(move |_| seed.fill_(100.0).map(|_| None)).unwrap();
    let e = grad(&[&parts[0], &parts[1]], &[&x], Some(&[&first, &second]), BackwardOptions::new()).unwrap_err();
    assert!(e.message().contains("fill_ overwrote a gradient"), "{e}");
    // The hook overwrites a gradient that another hook kept.
    let kept = Kept::default();
    let parts = x.chunk(2, 0).unwrap();
    let keeps = kept.clone();
    let _first = parts[0].register_hook(move |g| {
        *keeps.lock().unwrap() = Some(g.clone());
        Ok(None)
    });
    let _second = parts[1].register_hook(move |_| kept.lock().unwrap().as_ref().unwrap().mul_(50.0).map(|_| None));
    let squares = parts[0].square().unwrap().add(parts[1].square().unwrap()).unwrap();
    let e = squares.sum_all().unwrap().backward().unwrap_err();
    assert!(e.message().contains("mul_ overwrote a gradient"), "{e}");
}

#[test]
fn a_seed_that_a_thread_writes_is_one_value_throughout_or_an_error() {
    for round in 0..40u64 {
        let leaves: Vec<Tensor> = (0..200).map(|_| leaf(&[1.0])).collect();
        let mut y = leaf(&[0.0]);
        for l in &leaves {
            y = y.add(l.mul(3.0).unwrap()).unwrap();
        }
        let seed = f64s(&[1.0], &[1]);
        let begun = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                (0..round * 2000).for_each(|_| std::hint::spin_loop());
                seed.fill_(2.0).unwrap();
            });
            begun.store(true, Ordering::Release);
            let refs: Vec<&Tensor> = leaves.iter().collect();
            if let Ok(found) = grad(&[&y], &refs, Some(&[&seed]), BackwardOptions::new()) {
                let values: Vec<f64> = found.iter().map(|g| g.as_ref().unwrap().item().unwrap()).collect();
                assert!(values.iter().all(|&v| v == values[0]), "{values:?}");
            }
        });
    }
}

#[test]
fn gradients_given_out_are_not_what_a_hook_holds() {
    let x = leaf(&[3.0]);
    let (kept, constant) = (Kept::default(), f64s(&[7.0], &[1]));
    let keeps = kept.clone();
    let hook = x.register_hook(move |g| {
        *keeps.lock().unwrap() = Some(g.detach());
        Ok(None)
    });
    let g = grad(&[&x.square().unwrap()], &[&x], None, keep()).unwrap().swap_remove(0).unwrap();
    kept.lock().unwrap().as_ref().unwrap().fill_(100.0).unwrap();
    assert_eq!(g.item().unwrap(), 6.0);
    drop(hook);
    let gives = constant.clone();
    let _hook = x.register_hook(move |_| Ok(Some(gives.clone()))).unwrap();
    for options in [BackwardOptions::new(), keep()] {
        let g = x.square().unwrap().backward_with(options).unwrap();
        assert!(!Arc::ptr_eq(g.get(&x).unwrap().storage(), constant.storage()));
    }
}

#[test]
fn a_plain_pass_gives_plain_numbers_whatever_a_hook_records() {
    let (x, w) = (leaf(&[1.0]), leaf(&[7.0]));
    let _hook = x.register_hook(move |g| enable_grad(|| g.mul(&w).map(Some)));
    let found = x.square().unwrap().backward().unwrap();
    let g = found.get(&x).unwrap();
    assert_eq!((g.item().unwrap(), g.requires_grad()), (14.0, false));
}

#[test]
fn guards_dropped_in_any_order_leave_the_others() {
    let (first, second) = (no_grad_guard(), no_grad_guard());
    drop(first);
    assert!(!is_grad_enabled());
    let third = enable_grad_guard();
    drop(second);
    assert!(is_grad_enabled());
    let fourth = no_grad_guard();
    drop(third);
    assert!(!is_grad_enabled());
    drop(fourth);
    assert!(is_grad_enabled());
}

/// Panics in its backward rule, or when it is dropped.
#[derive(Debug)]
struct Panics {
    dropped: bool,
    _token: Arc<()>,
}

impl CustomOp for Panics {
    fn name(&self) -> &str {
        "panics"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(2.0)?])
    }
    fn backward(&self, _: &autograd::Context<'_>, _: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        panic!("a rule of the user")
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        assert!(!self.dropped, "a destructor of the user");
    }
}

fn panics(dropped: bool, token: &Arc<()>) -> Arc<Panics> {
    Arc::new(Panics { dropped, _token: token.clone() })
}

#[test]
fn a_panic_in_a_rule_is_named_by_the_next_pass() {
    let y = apply_custom(&panics(false, &Arc::default()), &[&leaf(&[1.0])]).unwrap()[0].square().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| y.backward().is_ok())).is_err());
    let text = y.backward().unwrap_err().to_string();
    assert!(text.contains("in part by a backward pass that failed") && text.contains("a panic"), "{text}");
}

#[test]
fn a_panic_in_a_destructor_leaks_no_later_graph() {
    let x = leaf(&[1.0]);
    let y = apply_custom(&panics(true, &Arc::default()), &[&x]).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(y))).is_err());
    let token = Arc::new(());
    drop(apply_custom(&panics(false, &token), &[&x]).unwrap());
    assert_eq!(Arc::strong_count(&token), 1);
}
