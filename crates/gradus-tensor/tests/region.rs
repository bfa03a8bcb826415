//! What a checkpointed region may do besides returning outputs: let tensors escape, register hooks, run backward
//! passes, and have side effects.
#![allow(clippy::unwrap_used)]

mod common;

use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use common::{cpu, f64s, gradient, leaf, values};
use gradus_tensor::autograd::{
    Hook, allow_mutation_on_saved_tensors_guard, checkpoint, once, saved_tensors_hooks_guard, strict_inplace_guard,
};
use gradus_tensor::{BackwardOptions, DType, Error, ErrorKind, Result, Tensor, grad};

fn keep() -> BackwardOptions {
    BackwardOptions::new().retain_graph()
}

fn again() -> BackwardOptions {
    BackwardOptions::new().create_graph()
}

fn grads(y: &Tensor, of: &[&Tensor], options: BackwardOptions) -> Result<Vec<Option<Vec<f64>>>> {
    let found = grad(&[&y.sum_all()?], of, None, options)?;
    Ok(found.iter().map(|g| g.as_ref().map(values)).collect())
}

/// Checks for an autograd error that contains `why` and does not point into the library's own `checkpoint.rs`.
fn refused<T>(result: Result<T>, why: &str) {
    let e = result.err().unwrap();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    assert!(e.message().contains(why) && !e.to_string().contains("checkpoint.rs"), "{e}");
}

type Side = Arc<Mutex<Option<Tensor>>>;

/// Returns 3 v^2, and stores v^2 in `side`.
fn aside(side: &Side) -> impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static {
    let side = side.clone();
    move |v| {
        let h = v[0].square()?;
        *side.lock().unwrap() = Some(h.clone());
        h.mul(3.0)
    }
}

fn taken(side: &Side) -> Tensor {
    side.lock().unwrap().clone().unwrap()
}

#[test]
fn a_tensor_that_leaves_the_region_other_than_by_return_has_its_gradient() {
    let side = Side::default();
    for options in [BackwardOptions::new(), again()] {
        for x in [leaf(&[1.0, 2.0]), leaf(&[1.0, 2.0]).mul(1.0).unwrap()] {
            let y = checkpoint(aside(&side), &[&x]).unwrap();
            let out = taken(&side);
            assert_eq!(grads(&out, &[&x], keep()).unwrap(), [Some(vec![2.0, 4.0])]);
            assert_eq!(grads(&y.add(&out).unwrap(), &[&x], options).unwrap(), [Some(vec![8.0, 16.0])]);
        }
    }
    // The same holds for captured tensors.
    let (x, w) = (leaf(&[1.0, 2.0]), leaf(&[5.0, 7.0]));
    let (stow, inside) = (side.clone(), w.clone());
    let f = move |v: &[Tensor]| {
        let h = v[0].mul(&inside)?;
        *stow.lock().unwrap() = Some(h.clone());
        h.mul(3.0)
    };
    let y = checkpoint(f, &[&x]).unwrap().add(taken(&side)).unwrap();
    assert_eq!(grads(&y, &[&x, &w], BackwardOptions::new()).unwrap(), [Some(vec![20.0, 28.0]), Some(vec![4.0, 8.0])]);
    // The same holds in a nested region.
    let stow = side.clone();
    let nested = move |v: &[Tensor]| checkpoint(aside(&stow), &[&v[0]])?.add(taken(&stow));
    for options in [BackwardOptions::new(), again()] {
        let x = leaf(&[1.0, 2.0]);
        assert_eq!(grads(&nested(from_ref(&x)).unwrap(), &[&x], keep()).unwrap(), [Some(vec![8.0, 16.0])]);
        let y = checkpoint(nested.clone(), &[&x]).unwrap();
        assert_eq!(grads(&y.add(taken(&side)).unwrap(), &[&x], options).unwrap(), [Some(vec![10.0, 20.0])]);
    }
}

#[test]
fn what_the_second_run_leaves_behind_is_freed_like_any_graph_or_goes_on() {
    let (side, x) = (Side::default(), leaf(&[1.0, 2.0]));
    let y = checkpoint(aside(&side), &[&x]).unwrap();
    grads(&y, &[&x], keep()).unwrap();
    refused(grads(&taken(&side), &[&x], keep()), "freed");
    grads(&y, &[&x], again()).unwrap();
    assert_eq!(grads(&taken(&side), &[&x], keep()).unwrap(), [Some(vec![2.0, 4.0])]);
}

#[test]
fn a_gradient_for_what_is_inside_a_region_is_refused() {
    let (side, x) = (Side::default(), leaf(&[1.0, 2.0]));
    let y = checkpoint(aside(&side), &[&x]).unwrap();
    let h = taken(&side);
    let why = "square from inside a checkpointed region has no gradient outside of it";
    refused(grads(&y, &[&h], keep()), why);
    refused(h.register_hook(|_| Ok(None)), why);
    refused(h.grad_fn().unwrap().register_hook(|_, _| Ok(None)), why);
    grads(&y, &[&x], keep()).unwrap();
    refused(grads(&y, &[&taken(&side)], keep()), why);
    // Results computed from `h` outside the region do have gradients.
    let z = h.mul(2.0).unwrap();
    assert_eq!(grads(&z.square().unwrap(), &[&z], keep()).unwrap(), [Some(vec![4.0, 16.0])]);
}

#[test]
fn a_leaf_that_the_region_makes_and_keeps_is_one_that_it_captures() {
    let (cell, x) = (Arc::<OnceLock<Tensor>>::default(), leaf(&[1.0, 2.0]));
    let lazy = cell.clone();
    let f = move |v: &[Tensor]| v[0].mul(lazy.get_or_init(|| leaf(&[3.0, 5.0])))?.square();
    let y = checkpoint(f, &[&x]).unwrap();
    let w = cell.get().unwrap();
    for options in [keep(), again()] {
        assert_eq!(grads(&y, &[&x, w], options).unwrap(), [Some(vec![18.0, 100.0]), Some(vec![6.0, 40.0])]);
    }
    // A leaf that each run creates has no gradient. This is an error if the leaf still exists after the run.
    let (list, x) = (Arc::<Mutex<Vec<Tensor>>>::default(), leaf(&[1.0]));
    let made = list.clone();
    let each = move |v: &[Tensor]| {
        let w = leaf(&[3.0]);
        made.lock().unwrap().push(w.clone());
        v[0].mul(&w)
    };
    refused(gradient(&checkpoint(each, &[&x]).unwrap(), &x), "did not use tracked tensors");
    let y = checkpoint(|v| v[0].mul(leaf(&[3.0])), &[&x]).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [3.0]);
}

#[test]
fn an_input_without_influence_has_no_gradient_and_one_passed_twice_has_one() {
    let (x, z) = (leaf(&[1.0]), leaf(&[2.0]));
    let y = checkpoint(|v| v[1].square(), &[&x, &z]).unwrap();
    for options in [keep(), again()] {
        assert_eq!(grads(&y, &[&x, &z], options).unwrap(), [None, Some(vec![4.0])]);
    }
    let y = checkpoint(|v| Ok([v[0].sign()?, v[1].square()?]), &[&x, &z]).unwrap();
    let all = y[0].add(&y[1]).unwrap();
    assert_eq!(grads(&all, &[&x, &z], keep()).unwrap(), [Some(vec![0.0]), Some(vec![4.0])]);
    let y = checkpoint(|v| v[0].square()?.mul(&v[1])?.add(v[2].detach()), &[&z, &z, &z]).unwrap();
    for options in [keep(), again()] {
        assert_eq!(grads(&y, &[&z], options).unwrap(), [Some(vec![12.0])]);
    }
}

#[test]
fn a_hook_inside_runs_as_outside_or_is_refused() {
    for options in [keep(), again()] {
        let (x, w) = (leaf(&[1.0, 2.0]), leaf(&[1.0, 1.0]));
        // `which` selects the tensor that the hook is registered on: an input, a captured tensor, or one computed
        // inside.
        let at = |which: usize| {
            let (hooks, w) = (Arc::<Mutex<Vec<Hook>>>::default(), w.clone());
            move |v: &[Tensor]| {
                let s = v[0].square()?;
                let t = [&v[0], &w, &s][which];
                hooks.lock().unwrap().push(t.register_hook(|g| Ok(Some(g.mul(10.0)?)))?);
                s.mul(&w)
            }
        };
        let y = checkpoint(at(2), &[&x]).unwrap();
        assert_eq!(grads(&y, &[&x, &w], options).unwrap(), [Some(vec![20.0, 40.0]), Some(vec![1.0, 4.0])]);
        for which in [0, 1] {
            refused(checkpoint(at(which), &[&x]), "is run twice, and would register the hook");
        }
        // For a nested region, tensors of the outer region count as tensors from outside.
        let inner = at(0);
        let inner = Arc::new(inner);
        let outer = move |v: &[Tensor]| {
            let f = inner.clone();
            checkpoint(move |v| f(v), &[&v[0].mul(1.0)?])
        };
        refused(checkpoint(outer, &[&x]), "is run twice");
        // After the region, hooks can be registered as usual.
        let _hook = x.register_hook(|g| Ok(Some(g.mul(2.0)?))).unwrap();
        assert_eq!(grads(&x.square().unwrap(), &[&x], options).unwrap(), [Some(vec![4.0, 8.0])]);
    }
}

#[test]
fn a_hook_that_only_one_run_registers_is_an_error() {
    let (x, runs, hooks) = (leaf(&[1.0, 2.0]), AtomicUsize::new(0), Mutex::new(vec![]));
    let f = move |v: &[Tensor]| {
        let s = v[0].square()?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            hooks.lock().unwrap().push(s.register_hook(|g| Ok(Some(g.mul(10.0)?)))?);
        }
        s.mul(2.0)
    };
    refused(gradient(&checkpoint(f, &[&x]).unwrap(), &x), "in another way");
}

#[test]
fn a_pass_inside_gives_what_it_gives_outside() {
    // The gradient of v^3, times v.
    let f = |v: &[Tensor]| {
        let g = v[0].pow(3.0)?.sum_all()?.backward_with(again())?;
        g.get(&v[0]).ok_or_else(|| Error::argument("f", "no gradient"))?.mul(&v[0])
    };
    let x = leaf(&[1.0, 2.0]);
    for options in [keep(), again()] {
        let y = checkpoint(f, &[&x]).unwrap();
        assert_eq!(grads(&y, &[&x], options).unwrap(), [Some(vec![9.0, 36.0])]);
        let g = grad(&[&y.sum_all().unwrap()], &[&x], None, again()).unwrap()[0].clone().unwrap();
        assert_eq!(grads(&g, &[&x], options).unwrap(), [Some(vec![18.0, 36.0])]);
    }
    // A tensor that is not a leaf outside the region is not a leaf inside it either.
    let h = x.mul(1.0).unwrap();
    assert_eq!(f(from_ref(&h)).unwrap_err().message(), "no gradient");
    assert_eq!(checkpoint(f, &[&h]).unwrap_err().message(), "no gradient");
    // An input may be captured as well. It is a single tensor with a single gradient.
    let inside = x.clone();
    let f = move |v: &[Tensor]| {
        let y = v[0].mul(&inside)?.sum_all()?;
        grad(&[&y], &[&v[0]], None, again())?[0].as_ref().unwrap().mul(&inside)
    };
    assert_eq!(grads(&f(from_ref(&x)).unwrap(), &[&x], keep()).unwrap(), [Some(vec![4.0, 8.0])]);
    for options in [keep(), again()] {
        assert_eq!(grads(&checkpoint(f.clone(), &[&x]).unwrap(), &[&x], options).unwrap(), [Some(vec![4.0, 8.0])]);
    }
}

/// Checks that the gradient is refused if a region computes `first`, but `second` when it runs again.
fn told_apart(x: &Tensor, first: fn(&Tensor) -> Result<Tensor>, second: fn(&Tensor) -> Result<Tensor>) {
    for nested in [false, true] {
        let runs = AtomicUsize::new(0);
        let f = Arc::new(move |v: &Tensor| {
            if runs.load(Ordering::Relaxed) == 0 { first(v) } else { second(v) }.inspect(|_| {
                runs.store(1, Ordering::Relaxed);
            })
        });
        let g = f.clone();
        let y = match nested {
            false => checkpoint(move |v| f(&v[0]), &[x]).unwrap(),
            true => {
                let outer = move |v: &[Tensor]| {
                    let g = g.clone();
                    checkpoint(move |v| g(&v[0]), &[&v[0]])
                };
                checkpoint(outer, &[x]).unwrap()
            }
        };
        refused(gradient(&y, x), "in another way");
    }
}

#[test]
fn another_function_of_the_same_values_is_told_from_the_first() {
    let x = leaf(&[0.0, 0.0]);
    told_apart(&x, |v| v.softmax(0), |v| v.div(10.0)?.softmax(0));
    told_apart(&x, |v| v.div(1.0)?.softmax(0), |v| v.div(10.0)?.softmax(0));
    told_apart(&x, |v| v.mul(v), |v| v.mul(v.detach()));
    told_apart(&x, |v| v.mul(v), |v| v.detach().mul(v));
    told_apart(&x, |v| v.exp()?.sub(&v.cos()?), |v| v.cos()?.sub(&v.exp()?));
    told_apart(&x, |v| v.sin(), |v| v.tan());
    told_apart(&x, |v| v.layer_norm(&[2], None, None, 1e-5), |v| v.layer_norm(&[2], None, None, 1e-6));
    // Values that no output depends on may differ.
    let runs = AtomicUsize::new(0);
    let f = move |v: &[Tensor]| {
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = v[0].exp()?;
        }
        v[0].square()
    };
    assert_eq!(gradient(&checkpoint(f, &[&x]).unwrap(), &x).unwrap(), [0.0, 0.0]);
}

#[test]
fn constants_that_a_region_makes_are_compared() {
    let x = leaf(&[0.0, 0.0]);
    let scale = Arc::new(Mutex::new(1.0));
    let inside = scale.clone();
    let f = move |v: &[Tensor]| v[0].div(&Tensor::full([2], *inside.lock().unwrap(), DType::F64, &cpu())?)?.softmax(0);
    let y = checkpoint(f, &[&x]).unwrap().mul(f64s(&[1.0, 3.0], &[2])).unwrap();
    assert_eq!(grads(&y, &[&x], keep()).unwrap(), [Some(vec![-0.5, 0.5])]);
    *scale.lock().unwrap() = 10.0;
    refused(grads(&y, &[&x], keep()), "in another way");
}

#[test]
fn an_effect_that_is_done_once_is_done_by_the_first_run() {
    let x = leaf(&[3.0]);
    let (total, runs) = (f64s(&[0.0], &[1]), Arc::new(AtomicUsize::new(0)));
    let (inside, count) = (total.clone(), runs.clone());
    let f = move |v: &[Tensor]| {
        once(|| {
            count.fetch_add(1, Ordering::Relaxed);
            inside.add_(v[0].detach())
        })?;
        v[0].square()
    };
    for nested in [false, true] {
        let f = f.clone();
        let y = match nested {
            false => checkpoint(f, &[&x]).unwrap(),
            true => checkpoint(move |v| checkpoint(f.clone(), &[&v[0]]), &[&x]).unwrap(),
        };
        for options in [keep(), again(), BackwardOptions::new()] {
            assert_eq!(grads(&y, &[&x], options).unwrap(), [Some(vec![6.0])]);
        }
    }
    assert_eq!((values(&total), runs.load(Ordering::Relaxed)), (vec![6.0], 2));
    // Outside regions, `once` simply runs its function. An error of the function is returned.
    once(|| total.add_(1.0)).unwrap();
    assert_eq!(values(&total), [7.0]);
    let e = checkpoint(|v| once(|| v[0].reshape([7]).map(|_| ())).and_then(|()| v[0].exp()), &[&x]).unwrap_err();
    assert_eq!(e.op(), "reshape");
    // A value that the region has used must not be changed by `once` afterwards.
    let inside = total.clone();
    let y = checkpoint(
        move |v| {
            let y = v[0].mul(&inside)?;
            once(|| inside.add_(1.0))?;
            Ok(y)
        },
        &[&x],
    );
    refused(gradient(&y.unwrap(), &x), "which add_ overwrote");
}

#[test]
fn inputs_have_their_places_in_both_runs_whoever_keeps_them() {
    let (x, z) = (leaf(&[1.0]), leaf(&[2.0]).mul(1.0).unwrap());
    let f = |v: &[Tensor]| {
        assert!(v.iter().all(Tensor::requires_grad));
        v[0].square()?.mul(&v[1])?.add(v[2].detach())
    };
    let packing = || saved_tensors_hooks_guard(Tensor::copy, |t: &Tensor| t.copy());
    for switch in 0..4 {
        let y = {
            let _packing = (switch == 1).then(packing);
            let _copying = (switch == 2).then(allow_mutation_on_saved_tensors_guard);
            let _strict = (switch == 3).then(strict_inplace_guard);
            checkpoint(f, &[&z, &z, &x]).unwrap()
        };
        for options in [keep(), again()] {
            assert_eq!(grads(&y, &[&z, &x], options).unwrap(), [Some(vec![12.0]), None], "{switch}");
        }
    }
}

#[test]
fn nothing_from_inside_outlives_a_run() {
    let x = leaf(&[1.0, 2.0]);
    let (seen, here) = (Arc::<Mutex<Vec<_>>>::default(), cpu());
    let inside = seen.clone();
    let f = move |v: &[Tensor]| {
        let (h, c) = (v[0].square()?.exp()?, Tensor::ones([2], DType::F64, &here)?);
        let w = f64s(&[1.0, 2.0], &[2]).with_grad()?;
        inside.lock().unwrap().extend([&h, &c, &w].map(|t| Arc::downgrade(t.storage())));
        h.mul(&h)?.mul(&c)?.mul(&w)
    };
    let y = checkpoint(f, &[&x]).unwrap();
    // How many tensors were made, and how many of them still exist.
    let counts = || {
        let seen = seen.lock().unwrap();
        (seen.len(), seen.iter().filter(|s| s.strong_count() > 0).count())
    };
    assert_eq!(counts(), (3, 0));
    gradient(&y, &x).unwrap();
    assert_eq!(counts(), (6, 0));
}
