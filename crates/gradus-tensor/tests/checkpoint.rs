//! Checkpointed regions, which are recomputed in the backward pass.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use common::{assert_close, cpu, f64s, gradient, i64s, layouts, randn, values};
use gradus_tensor::autograd::{checkpoint, checkpoint_with, gradcheck, gradgradcheck};
use gradus_tensor::{BackwardOptions, DType, ErrorKind, Generator, Result, Tensor, grad, hvp, no_grad_guard};

#[test]
fn gradients_are_those_of_the_plain_computation_to_the_bit() {
    let w = randn(&[3, 3], 1).with_grad().unwrap();
    for x in layouts(&[2, 3], 2) {
        let x = x.with_grad().unwrap();
        let block = |x: &Tensor, w: &Tensor| x.matmul(w)?.gelu()?.layer_norm(&[3], None, None, 1e-5)?.softmax(-1);
        let plain = block(&x, &w).unwrap().mul(randn(&[2, 3], 3)).unwrap().sum_all().unwrap();
        let inside = w.clone();
        let y = checkpoint(move |x| block(&x[0], &inside), &[&x]).unwrap();
        let again = y.mul(randn(&[2, 3], 3)).unwrap().sum_all().unwrap();
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
    let mut y = f64s(&[2.0], &[1]).with_grad().unwrap();
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
    // `b = a^2` depends on `a`. Both are captured, and `a` is also the input `x`, so y = a * b * x = a^4.
    let a = f64s(&[3.0], &[1]).with_grad().unwrap();
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
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
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
    // If no input is tracked, nothing is recorded.
    assert!(!checkpoint(|x| x[0].exp(), &[&x.detach()]).unwrap().requires_grad());
    let _guard = no_grad_guard();
    assert!(!checkpoint(|x| x[0].exp(), &[&x]).unwrap().requires_grad());
}

#[test]
fn random_numbers_are_drawn_again_from_the_same_place() {
    let x = randn(&[64], 1).with_grad().unwrap();
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
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
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
    let _ = y.backward().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert!(y.backward().unwrap_err().to_string().contains("freed"));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[test]
fn whatever_the_region_read_is_checked_before_it_is_run_again() {
    // In turn, overwrite an input, a captured parameter, a captured constant, a constant that is only added, and a
    // constant that is read on the host.
    let place = |k: usize| {
        let x = f64s(&[2.0], &[1]).with_grad().unwrap();
        let w = f64s(&[3.0], &[1]).with_grad().unwrap();
        let (c, shift, host) = (f64s(&[4.0], &[1]), f64s(&[5.0], &[1]), f64s(&[6.0], &[1]));
        let (w2, c2, s2, h2) = (w.clone(), c.clone(), shift.clone(), host.clone());
        let f = move |x: &[Tensor]| x[0].add(&s2)?.square()?.mul(&w2)?.mul(&c2)?.mul(h2.item()?);
        let y = checkpoint(f, &[&x]).unwrap();
        let _guard = no_grad_guard();
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
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
    let total = f64s(&[0.0], &[1]);
    let inside = total.clone();
    let f = move |x: &[Tensor]| {
        inside.add_(1.0)?;
        x[0].mul(&inside)
    };
    let e = checkpoint(f, &[&x]).unwrap_err().to_string();
    assert!(e.contains("add_") && e.contains("outlives") && e.contains("checkpoint.rs"), "{e}");
    // A region may write into tensors that it made itself.
    let f = |x: &[Tensor]| {
        let own = Tensor::zeros([1], DType::F64, &cpu())?;
        own.add_(3.0)?;
        x[0].square()?.mul(&own)
    };
    assert_eq!(checkpoint(f, &[&x]).unwrap().backward().unwrap().get(&x).unwrap().item().unwrap(), 12.0);
}

#[test]
fn a_region_that_changes_is_an_error() {
    let x = f64s(&[2.0, 3.0], &[2]).with_grad().unwrap();
    let w = f64s(&[5.0], &[1]).with_grad().unwrap();
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
    // An error in the first run is returned to the caller.
    assert_eq!(checkpoint(|x| x[0].reshape([7]), &[&x]).unwrap_err().op(), "reshape");
}

#[test]
fn hooks_outside_run_once_and_see_everything() {
    let w = f64s(&[3.0], &[1]).with_grad().unwrap();
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
    let _ = y.backward().unwrap();
    assert_eq!(*seen.lock().unwrap(), [7.0]);
}

#[test]
fn a_long_chain_of_regions_runs_and_drops() {
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let mut y = x.clone();
    for _ in 0..20_000 {
        let before = y.clone();
        // Each function captures the previous result.
        y = checkpoint(move |_| before.mul(1.0), &[]).unwrap();
    }
    assert_eq!(y.backward_with(BackwardOptions::new()).unwrap().get(&x).unwrap().item().unwrap(), 1.0);
}

/// Checks that the backward pass of `y` fails with an error that contains `why`.
fn refused(y: &Tensor, x: &Tensor, why: &str) {
    let e = gradient(y, x).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    let text = e.to_string();
    assert!(text.contains("checkpoint") && text.contains(why) && text.contains("checkpoint.rs"), "{why}: {text}");
}

#[test]
fn a_generator_hidden_in_the_function_draws_the_same_again_and_stays_where_it_is() {
    let x = randn(&[64], 1).with_grad().unwrap();
    let generator = Arc::new(Mutex::new(Generator::new(1)));
    let hidden = generator.clone();
    // Draws of several kinds and sizes inside a nested region, some of them from a generator made there.
    let inner = move |x: &[Tensor]| {
        let mut g = hidden.lock().unwrap();
        let order: Vec<i64> = g.permutation(64)?.into_iter().map(|i| i as i64).collect();
        let y = x[0].dropout(0.5, &mut g)?.gather(0, &i64s(&order, &[64]))?;
        y.mul(&y.rand_like(&mut g)?)?.mul(&Tensor::rand([64], DType::F64, &cpu(), &mut Generator::new(3))?)
    };
    let inner = Arc::new(inner);
    let (twice, hidden) = (inner.clone(), generator.clone());
    let outer = move |x: &[Tensor]| {
        let (a, b) = (twice.clone(), twice.clone());
        let y = checkpoint(move |x| a(x), &[&x[0].sin()?])?;
        let y = y.dropout(0.2, &mut hidden.lock().unwrap())?;
        checkpoint(move |x| b(x), &[&y])
    };
    let start = generator.lock().unwrap().clone();
    let y = checkpoint(outer, &[&x]).unwrap();
    let after = generator.lock().unwrap().clone();
    *generator.lock().unwrap() = start;
    let plain = {
        let y = inner(&[x.sin().unwrap()]).unwrap();
        let y = y.dropout(0.2, &mut generator.lock().unwrap()).unwrap();
        inner(&[y]).unwrap()
    };
    assert_eq!(*generator.lock().unwrap(), after, "the first run moves the generator on");
    assert_eq!(values(&y), values(&plain));
    generator.lock().unwrap().next_u64();
    let before = generator.lock().unwrap().clone();
    let want = gradient(&plain, &x).unwrap();
    for _ in 0..2 {
        assert_eq!(gradient(&y, &x).unwrap(), want);
    }
    assert_eq!(*generator.lock().unwrap(), before, "the second does not");
}

#[test]
fn other_random_numbers_in_the_second_run_are_an_error() {
    let x = randn(&[8], 1).with_grad().unwrap();
    for more in [0, 2] {
        let (runs, generator) = (AtomicUsize::new(0), Mutex::new(Generator::new(1)));
        let f = move |x: &[Tensor]| {
            let mut g = generator.lock().unwrap();
            // One draw in the first run, but none or two in the second.
            let draws = if runs.fetch_add(1, Ordering::Relaxed) == 0 { 1 } else { more };
            let drawn: Vec<u64> = (0..draws).map(|_| g.next_u64()).collect();
            if drawn.len() < 9 { x[0].square() } else { x[0].exp() }
        };
        refused(&checkpoint(f, &[&x]).unwrap(), &x, "drew other random numbers");
    }
    // Draws on another thread are not recorded, but the changed output gives them away.
    let generator = Mutex::new(Generator::new(1));
    let f = move |x: &[Tensor]| {
        let drawn = std::thread::scope(|s| s.spawn(|| generator.lock().unwrap().next_u64()).join()).unwrap();
        x[0].mul((drawn >> 40) as f64)
    };
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "gave other values in output 0");
}

#[test]
fn a_function_that_is_another_in_its_second_run_is_an_error() {
    let x = f64s(&[3.0, f64::NAN], &[2]).with_grad().unwrap();
    // A counter changes the values.
    let n = AtomicUsize::new(0);
    let f = move |x: &[Tensor]| x[0].mul(n.fetch_add(1, Ordering::Relaxed) as f64 + 1.0);
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "gave other values in output 0");
    // The second run computes the same numbers, but its result is not tracked.
    let n = AtomicUsize::new(0);
    let f = move |x: &[Tensor]| {
        let y = x[0].square()?;
        Ok(if n.fetch_add(1, Ordering::Relaxed) == 0 { y } else { y.detach() })
    };
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "tracked output 0");
    // A parameter is frozen between the two runs.
    let (w, n) = (f64s(&[2.0], &[1]).with_grad().unwrap(), AtomicUsize::new(0));
    let f = move |x: &[Tensor]| {
        let frozen = n.fetch_add(1, Ordering::Relaxed) > 0;
        if frozen { x[0].mul(w.detach()) } else { x[0].mul(&w) }
    };
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "did not use tracked tensors");
    // NaN in both runs counts as unchanged.
    let y = checkpoint(|x| x[0].sqrt()?.mul(2.0), &[&x]).unwrap();
    assert_eq!(gradient(&y, &x).unwrap()[0], 1.0 / 3.0f64.sqrt());
}

#[test]
fn other_tensors_in_the_second_run_are_an_error() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    // A captured tensor is replaced by another one with the same values.
    let held = Arc::new(Mutex::new(f64s(&[2.0], &[1])));
    let inside = held.clone();
    let y = checkpoint(move |x| x[0].mul(&*inside.lock().unwrap()), &[&x]).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [2.0]);
    *held.lock().unwrap() = f64s(&[2.0], &[1]);
    refused(&y, &x, "read a tensor");
    // The second run reads another part of the same tensor.
    let (rows, n) = (f64s(&[2.0, 2.0], &[2]), AtomicUsize::new(0));
    let f = move |x: &[Tensor]| x[0].mul(&rows.narrow(0, n.fetch_add(1, Ordering::Relaxed).min(1), 1)?);
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "read a tensor");
    // The tensor is made on another thread, where its origin is not recorded.
    let c = f64s(&[2.0], &[1]);
    let shared = c.clone();
    let f = move |x: &[Tensor]| x[0].mul(&std::thread::scope(|s| s.spawn(|| shared.copy()).join()).unwrap()?);
    let y = checkpoint(f, &[&x]).unwrap();
    c.fill_(100.0).unwrap();
    refused(&y, &x, "read a tensor");
    // The second run writes to a captured tensor.
    let (c, n) = (f64s(&[2.0], &[1]), AtomicUsize::new(0));
    let f = move |x: &[Tensor]| {
        let y = x[0].mul(&c)?;
        if n.fetch_add(1, Ordering::Relaxed) > 0 {
            c.fill_(2.0)?;
        }
        Ok(y)
    };
    refused(&checkpoint(f, &[&x]).unwrap(), &x, "fill_");
}

#[test]
fn an_output_that_is_a_view_of_something_older_may_be_overwritten() {
    let x = f64s(&[2.0, 3.0], &[2]).with_grad().unwrap();
    let w = f64s(&[4.0, 5.0], &[2]).with_grad().unwrap();
    let n = Arc::new(AtomicUsize::new(0));
    let (rows, runs) = (w.clone(), n.clone());
    let f = move |x: &[Tensor]| Ok([x[0].square()?, rows.select(0, runs.load(Ordering::Relaxed) as isize)?]);
    let [y, row] = checkpoint(f, &[&x]).unwrap();
    w.detach().fill_(9.0).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [4.0, 6.0]);
    // But the second run may not return another row, even if its values are the same.
    n.store(1, Ordering::Relaxed);
    refused(&y, &x, "gave other values in output 1");
    drop(row);
    // A tensor computed on another thread counts as new in each run.
    let c = f64s(&[2.0, 2.0], &[2]);
    let shared = c.clone();
    let f = move |x: &[Tensor]| std::thread::scope(|s| s.spawn(|| x[0].mul(&shared)).join()).unwrap();
    let y = checkpoint(f, &[&x]).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [2.0, 2.0]);
    c.fill_(7.0).unwrap();
    refused(&y, &x, "gave other values in output 0");
}

#[test]
fn a_value_that_the_first_run_made_and_kept_is_read_again_if_it_is_as_it_was() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let cache: Arc<OnceLock<Tensor>> = Arc::default();
    let inside = cache.clone();
    let f = move |x: &[Tensor]| {
        let mask = inside.get_or_init(|| {
            let t = Tensor::zeros([1], DType::F64, &cpu()).unwrap();
            t.fill_(4.0).unwrap();
            t
        });
        x[0].mul(mask)?.square()
    };
    let y = checkpoint(f, &[&x]).unwrap();
    let plain = y.detach();
    assert_eq!(gradient(&y, &x).unwrap(), [96.0]);
    // The region's outputs may be overwritten, because they are recomputed.
    plain.fill_(0.0).unwrap();
    assert_eq!(
        gradient(&checkpoint(|x| Ok([x[0].square()?, x[0].square()?.detach()]), &[&x]).unwrap()[0], &x).unwrap(),
        [6.0]
    );
    cache.get().unwrap().fill_(4.0).unwrap();
    refused(&y, &x, "fill_");
}

#[test]
fn a_long_region_notes_no_more_than_lives() {
    // Only one value is alive at a time, and its storage usually has the same address as the last one.
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let c = f64s(&[2.0], &[1]);
    let shared = c.clone();
    let f = move |x: &[Tensor]| {
        let mut y = x[0].mul(&shared)?;
        for _ in 0..2_000 {
            let z = y.detach();
            let _ = checkpoint(|z| z[0].neg(), &[&z.with_grad()?])?;
            y = x[0].mul(&z.neg()?.neg()?)?;
        }
        Ok(y)
    };
    let y = checkpoint(f, &[&x]).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [2.0]);
    c.fill_(3.0).unwrap();
    refused(&y, &x, "fill_");
}
