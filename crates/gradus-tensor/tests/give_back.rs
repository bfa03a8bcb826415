//! Memory that is given back and filled again while its tensors live on, and gradients that leave a pass early.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use common::{another_cpu, f64s, values};
use gradus_tensor::autograd::{strict_inplace, take_gradients};
use gradus_tensor::{DType, Error, ErrorKind, Result, Supply, Tensor, checkpoint, no_grad, with_supply};

fn is_missing<T>(result: Result<T>) {
    let e = result.err().unwrap();
    assert!(*e.kind() == ErrorKind::InvalidArgument && e.message().contains("were given back"), "{e}");
    assert!(e.to_string().contains("help: "), "{e}");
}

/// A supply that fills every storage that misses its bytes with these values, and notes how many it filled.
fn supplying(kept: &'static [f64], filled: &Rc<RefCell<Vec<usize>>>) -> Rc<Supply> {
    let filled = filled.clone();
    Rc::new(move |storages| {
        let missing: Vec<_> = storages.iter().filter(|storage| storage.is_given_back()).collect();
        filled.borrow_mut().push(missing.len());
        missing.iter().try_for_each(|storage| storage.fill(Tensor::from_vec(kept, [kept.len()], storage.device())?))
    })
}

#[test]
fn every_access_to_what_was_given_back_is_an_error() {
    let (x, other) = (f64s(&[1.0, 2.0], &[2]), f64s(&[3.0, 4.0], &[2]));
    let view = x.narrow(0, 1, 1).unwrap();
    x.storage().give_back().unwrap();
    assert!(x.storage().is_given_back() && x.storage().bytes() == 16);
    is_missing(x.to_vec::<f64>());
    is_missing(x.to_bytes());
    is_missing(x.exp());
    is_missing(x.add(&other));
    is_missing(other.add(&x));
    is_missing(x.add(&x));
    is_missing(Tensor::cat(&[&other, &x, &other], 0));
    is_missing(x.copy());
    is_missing(view.item());
    is_missing(view.copy());
    is_missing(x.fill_(1.0));
    is_missing(x.copy_(&other));
    is_missing(other.copy_(&x));
    is_missing(x.add_(&other));
    assert_eq!(values(&other), [3.0, 4.0]);
    assert!(format!("{x:?}").contains("[2]"));
    // Views and shapes need no values.
    assert_eq!(x.reshape([1, 2]).unwrap().shape(), [1, 2]);
    assert_eq!(x.storage().version(), 0);
    x.storage().fill(f64s(&[1.0, 2.0], &[2])).unwrap();
    assert_eq!((values(&x), values(&view)), (vec![1.0, 2.0], vec![2.0]));
}

#[test]
fn what_is_given_back_takes_no_memory() {
    let device = another_cpu();
    let x = Tensor::zeros([1 << 16], DType::F32, &device).unwrap();
    let before = device.memory_stats().in_use;
    x.storage().give_back().unwrap();
    assert_eq!(before - device.memory_stats().in_use, 1 << 18);
    // The memory of the values becomes that of the storage.
    let values = Tensor::ones([256, 256], DType::F32, &device).unwrap();
    let allocated = device.memory_stats().in_use;
    x.storage().fill(values).unwrap();
    assert_eq!(device.memory_stats().in_use, allocated);
    assert_eq!(x.sum_all().unwrap().item().unwrap(), 65536.0);
}

#[test]
fn values_that_somebody_else_holds_are_copied() {
    let (x, source) = (f64s(&[1.0, 2.0], &[2]), f64s(&[0.0, 1.0, 2.0, 3.0], &[4]));
    x.storage().give_back().unwrap();
    x.storage().fill(source.narrow(0, 1, 2).unwrap()).unwrap();
    source.fill_(9.0).unwrap();
    assert_eq!(values(&x), [1.0, 2.0]);
}

#[test]
fn only_what_fits_fills() {
    let x = f64s(&[1.0, 2.0], &[2]);
    assert!(x.storage().fill(f64s(&[1.0, 2.0], &[2])).unwrap_err().message().contains("was not given back"));
    x.storage().give_back().unwrap();
    x.storage().give_back().unwrap();
    assert!(x.storage().fill(f64s(&[1.0], &[1])).unwrap_err().message().contains("16 bytes"));
    assert!(x.storage().fill(Tensor::zeros([2], DType::F64, &another_cpu()).unwrap()).is_err());
    is_missing(x.to_vec::<f64>());
    let empty = f64s(&[], &[0]);
    empty.storage().give_back().unwrap();
    assert!(!empty.storage().is_given_back() && values(&empty).is_empty());
}

#[test]
fn gradients_need_saved_values_only_while_they_are_computed() {
    let w = f64s(&[2.0, 3.0], &[2]).with_grad().unwrap();
    let y = w.square().unwrap().sum_all().unwrap();
    let z = w.pow(3.0).unwrap().sum_all().unwrap();
    w.storage().give_back().unwrap();
    is_missing(y.backward());
    w.storage().fill(f64s(&[2.0, 3.0], &[2])).unwrap();
    assert_eq!(values(z.backward().unwrap().get(&w).unwrap()), [12.0, 27.0]);
}

#[test]
fn a_change_while_the_values_are_away_is_a_write() {
    let w = f64s(&[2.0], &[1]).with_grad().unwrap();
    let y = w.square().unwrap();
    let z = w.add(1.0).unwrap();
    w.storage().give_back().unwrap();
    w.storage().note_change("step", std::panic::Location::caller()).unwrap();
    w.storage().fill(f64s(&[5.0], &[1])).unwrap();
    let e = y.backward().unwrap_err();
    assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("step"), "{e}");
    assert!(e.to_string().contains("give_back.rs"), "{e}");
    // The gradient of a sum does not need the values.
    assert_eq!(values(z.backward().unwrap().get(&w).unwrap()), [1.0]);
    assert_eq!(values(w.square().unwrap().backward().unwrap().get(&w).unwrap()), [10.0]);
    let guarded = strict_inplace(|| w.square()).unwrap();
    let e = w.storage().note_change("step", std::panic::Location::caller()).unwrap_err();
    assert!(e.message().contains("needs its"), "{e}");
    assert_eq!(values(guarded.backward().unwrap().get(&w).unwrap()), [10.0]);
}

#[test]
fn a_supply_fills_what_operations_need() {
    let filled = Rc::new(RefCell::new(vec![]));
    let (a, b) = (f64s(&[2.0, 3.0], &[2]).with_grad().unwrap(), f64s(&[2.0, 3.0], &[2]));
    let give_back = || [&a, &b].iter().try_for_each(|t| t.storage().give_back());
    give_back().unwrap();
    let supply = supplying(&[2.0, 3.0], &filled);
    with_supply(supply, || {
        let y = a.mul(&b)?;
        give_back()?;
        let gradients = y.sum_all()?.backward()?;
        assert_eq!(values(gradients.get(&a).unwrap()), [2.0, 3.0]);
        // The second run of a region reads what was given back as well.
        let y = checkpoint(|x: &[Tensor]| x[0].square()?.sum_all(), &[&a])?;
        give_back()?;
        assert_eq!(values(y.backward()?.get(&a).unwrap()), [4.0, 6.0]);
        give_back()?;
        no_grad(|| b.add_(a.detach()))?;
        assert_eq!(values(&b), [4.0, 6.0]);
        Ok::<(), Error>(())
    })
    .unwrap();
    let counts = filled.borrow();
    assert_eq!((counts[0], counts[counts.len() - 1]), (2, 2));
    // There is no supply outside, and an error of one is the error of the operation.
    a.storage().give_back().unwrap();
    is_missing(a.exp());
    let failing: Rc<Supply> = Rc::new(|_| Err(Error::argument("supply", "none today")));
    assert_eq!(with_supply(failing, || a.exp()).unwrap_err().message(), "none today");
    // A supply that does not fill helps nobody.
    is_missing(with_supply(Rc::new(|_| Ok(())), || a.exp()));
    is_missing(a.exp());
}

#[test]
fn gradients_are_taken_as_soon_as_they_are_complete() {
    let leaf = |v: f64| f64s(&[v], &[1]).with_grad().unwrap();
    let (a, b, c, d) = (leaf(2.0), leaf(3.0), leaf(5.0), leaf(7.0));
    let seen = Rc::new(RefCell::new(vec![]));
    let into = seen.clone();
    let take = move |i: usize, g: &Tensor| {
        assert!(!g.requires_grad());
        into.borrow_mut().push((i, g.to_vec::<f64>()?[0]));
        Ok(())
    };
    // a is used twice; the derivative of b's floor is zero.
    let y = a.mul(&c).unwrap().mul(&a).unwrap().add(b.floor().unwrap()).unwrap();
    let rest = take_gradients(&[&a, &b, &d], Rc::new(take), || y.backward()).unwrap().unwrap();
    let mut seen = seen.take();
    seen.sort_by_key(|s| s.0);
    assert_eq!(seen, [(0, 20.0), (1, 0.0)]);
    assert_eq!((rest.len(), values(rest.get(&c).unwrap())), (1, vec![4.0]));
    // The leaf that was used last comes before the nodes that were recorded earlier have run.
    let order = Arc::new(Mutex::new(vec![]));
    let (first, second) = (order.clone(), order.clone());
    let early = a.exp().unwrap();
    let hook = move |_: &Tensor| {
        first.lock().unwrap().push("exp");
        Ok(None)
    };
    let _hook = early.register_hook(hook).unwrap();
    let take = move |i: usize, _: &Tensor| {
        second.lock().unwrap().push(["a", "b", "c"][i]);
        Ok(())
    };
    let y = early.mul(&b).unwrap().mul(&c).unwrap().mul(&b).unwrap().square().unwrap();
    let rest = take_gradients(&[&a, &b, &c], Rc::new(take), || y.backward()).unwrap().unwrap();
    assert_eq!((rest.len(), &order.lock().unwrap()[..]), (0, &["c", "b", "exp", "a"][..]));
    // An error ends the pass; afterwards nothing is taken.
    let failing = |_: usize, _: &Tensor| Err(Error::argument("take", "full"));
    let failed = take_gradients(&[&a], Rc::new(failing), || a.square().unwrap().backward()).unwrap();
    assert_eq!(failed.unwrap_err().message(), "full");
    assert_eq!(values(a.square().unwrap().backward().unwrap().get(&a).unwrap()), [4.0]);
    let e = take_gradients(&[&y], Rc::new(failing), || ()).unwrap_err();
    assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("tensor 0 is no leaf"), "{e}");
}

#[test]
fn what_has_no_elements_is_filled_as_well() {
    let x = f64s(&[], &[0]);
    x.storage().give_back().unwrap();
    x.storage().fill(f64s(&[], &[0])).unwrap();
    assert_eq!(values(&x), [0.0; 0]);
}
