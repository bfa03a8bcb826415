//! `ops::trace`: what it reports, and that its callback disturbs nothing.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use common::{f64s, leaf, values};
use gradus_tensor::autograd::find_nonfinite;
use gradus_tensor::ops::{Traced, trace};
use gradus_tensor::{Result, Tensor, UpdateFn, checkpoint, no_grad};

/// The names and lines of the operations that a step runs.
fn seen(step: impl FnOnce() -> Result<()>) -> Vec<(String, String)> {
    let all = Rc::new(RefCell::new(vec![]));
    let note = all.clone();
    let note = move |ran: &Traced<'_>| {
        note.borrow_mut().push((ran.op.name().to_owned(), format!("{}:{}", ran.location.file(), ran.location.line())));
    };
    trace(note, step).unwrap();
    all.take()
}

#[test]
fn operations_have_the_line_of_the_user_also_in_a_backward_pass() {
    let x = leaf(&[1.0, 2.0]);
    let found = seen(|| {
        let y = x.exp()?.cumsum(0)?.sum_all()?;
        let _ = y.backward()?;
        no_grad(|| x.add_(1.0))
    });
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert!(["exp", "cumsum", "sum", "flip", "exp_backward", "add"].iter().all(|n| names.contains(n)), "{names:?}");
    for (name, line) in &found {
        assert!(line.contains("tests/trace.rs:"), "{name} at {line}");
    }
}

#[test]
fn what_the_function_does_is_not_seen_and_disturbs_nothing() {
    let x = leaf(&[1.0, 2.0]);
    let total = f64s(&[0.0], &[1]);
    let sum = total.clone();
    // The callback computes, writes in place, and makes numbers that are not finite.
    let busy = move |ran: &Traced<'_>| {
        sum.add_(ran.outputs[0].detach().to_dtype(sum.dtype()).unwrap().sum_all().unwrap()).unwrap();
        assert!(f64s(&[0.0], &[1]).log().unwrap().sub(f64::NEG_INFINITY).is_ok());
    };
    let step = || {
        let y = checkpoint(|x| x[0].exp()?.square(), &[&x])?;
        y.sum_all()?.backward()
    };
    let plain = step().unwrap();
    let traced = trace(busy.clone(), step).unwrap();
    assert_eq!(values(plain.get(&x).unwrap()), values(traced.get(&x).unwrap()));
    assert!(total.item().unwrap() > 0.0);
    let found = find_nonfinite(|| trace(busy, step)).unwrap();
    assert_eq!(found, None);
}

#[test]
fn a_write_of_the_function_over_a_result_is_found() {
    let x = leaf(&[1.0, 2.0]);
    let spoil = |ran: &Traced<'_>| {
        if ran.op.name() == "exp" {
            ran.outputs[0].zero_().unwrap();
        }
    };
    let y = trace(spoil, || x.exp()?.mul(2.0));
    let e = match y {
        Ok(y) => y.sum_all().and_then(|y| y.backward()).unwrap_err(),
        Err(e) => e,
    };
    assert!(e.to_string().contains("zero_"), "{e}");
}

#[test]
fn traces_nest_and_end_with_a_panic() {
    /// Runs an operation when it is dropped.
    struct Last(Tensor);
    impl Drop for Last {
        fn drop(&mut self) {
            assert!(trace(|_| {}, || self.0.exp()).is_ok());
        }
    }
    let x = f64s(&[1.0], &[1]);
    let last = Last(x.clone());
    let outer = seen(|| {
        let _ = x.exp()?;
        let inner = seen(|| x.log().map(drop));
        assert_eq!(inner.len(), 1);
        let _ = trace(move |_| assert!(last.0.numel() == 1), || x.sqrt())?;
        let panics = AssertUnwindSafe(|| trace(|_| panic!("user"), || x.sqrt()));
        assert!(catch_unwind(panics).is_err());
        x.tanh().map(drop)
    });
    let names: Vec<&str> = outer.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["exp", "tanh"]);
}

#[test]
fn what_fails_is_not_seen_and_writes_say_that_they_are() {
    static HALVE: UpdateFn = UpdateFn::new("halve", |x| vec![0.5 * x[0]]);
    let x = f64s(&[4.0, 2.0], &[2]);
    let kinds = Rc::new(RefCell::new(vec![]));
    let note = kinds.clone();
    let note = move |ran: &Traced<'_>| note.borrow_mut().push((ran.op.kind(), ran.in_place, ran.kernel));
    let _ = trace(note, || {
        assert!(x.add(f64s(&[1.0; 3], &[3])).is_err());
        HALVE.apply(&[&x], &[&x], &[])?;
        x.reshape([2, 1])?.copy()
    })
    .unwrap();
    assert_eq!(kinds.take(), [("Update", true, true), ("Reshape", false, false), ("Contiguous", false, true)]);
}
