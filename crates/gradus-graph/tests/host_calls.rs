//! Calls of the host in captured steps.
#![allow(clippy::unwrap_used)]

mod common;

use std::any::Any;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use common::{bits, device, random};
use gradus_graph::{MemoryLimit, Step, capture};
use gradus_tensor::autograd::take_gradients;
use gradus_tensor::backend::{Backend, Binding, Element};
use gradus_tensor::ops::HostCall;
use gradus_tensor::{Bound, Device, Error, ErrorKind, Result, Supply, Tensor, with_supply};

/// What the calls were given, in order, and the error of the next one.
#[derive(Debug, Default)]
struct Log {
    given: Mutex<Vec<(&'static str, Vec<f32>)>>,
    fails: Mutex<Option<ErrorKind>>,
}

/// Notes its operand, and doubles it if it is written.
#[derive(Debug)]
struct Noted {
    name: &'static str,
    log: Arc<Log>,
}

impl HostCall for Noted {
    fn name(&self) -> &str {
        self.name
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        (other as &dyn Any).downcast_ref::<Noted>().is_some_and(|other| other.name == self.name)
    }

    fn is_seen(&self) -> bool {
        self.name != "unseen"
    }

    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let mut numbers = vec![];
        for operand in operands.iter_mut() {
            let x = match operand {
                Binding::Read(x) => *x,
                Binding::Write(y) => y.as_view(),
            };
            numbers.resize(x.layout.numel(), 0f32);
            backend.download(x.buffer, x.layout.offset() * 4, f32::as_bytes_mut(&mut numbers).unwrap())?;
            if let Binding::Write(y) = operand {
                let doubled: Vec<f32> = numbers.iter().map(|x| 2.0 * x).collect();
                backend.upload(y.buffer, y.layout.offset() * 4, f32::as_bytes(&doubled))?;
            }
        }
        self.log.given.lock().unwrap().push((self.name, numbers));
        match self.log.fails.lock().unwrap().take() {
            Some(kind) => Err(Error::new(kind, self.name, "no")),
            None => Ok(()),
        }
    }
}

#[track_caller]
fn call(log: &Arc<Log>, device: &Device, name: &'static str, bindings: &[Bound<'_>]) -> Result<()> {
    device.dispatch_host(Arc::new(Noted { name, log: log.clone() }), bindings, Location::caller())
}

/// Three calls, of which nobody reads what the first writes, and an operation that an index may fail.
fn step(log: &Arc<Log>, x: &[Tensor]) -> Result<Tensor> {
    let (unread, device) = (x[0].exp()?, x[0].device());
    call(log, device, "unread", &[Bound::Write(&unread)])?;
    call(log, device, "nothing", &[])?;
    let y = x[0].square()?.sin()?;
    call(log, device, "doubled", &[Bound::Read(&x[1]), Bound::Write(&y)])?;
    y.add(&x[0])
}

fn captured(log: &Arc<Log>, limit: MemoryLimit) -> Step<impl FnMut(&[Tensor]) -> Result<Tensor>> {
    let log = log.clone();
    let mut step = capture(move |x| step(&log, x));
    step.limit_memory(limit);
    step
}

#[test]
fn a_replay_makes_all_calls_in_order_with_the_same_operands() {
    for limit in [MemoryLimit::Cheap, MemoryLimit::Bytes(0)] {
        let (eager, replayed) = (Arc::<Log>::default(), Arc::<Log>::default());
        let (mut captured, device) = (captured(&replayed, limit), device());
        for i in 0..5 {
            let (x, z) = (random(&[3, 5], i, &device), random(&[2], i + 10, &device));
            let y: Tensor = captured.call(&[&x, &z]).unwrap();
            assert_eq!(bits(&y), bits(&step(&eager, &[x, z]).unwrap()));
        }
        assert_eq!(captured.replays(), 3);
        let names: Vec<&str> = eager.given.lock().unwrap().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["unread", "nothing", "doubled"].repeat(5));
        assert_eq!(*replayed.given.lock().unwrap(), *eager.given.lock().unwrap());
    }
}

#[test]
fn a_call_that_fails_in_a_replay_is_not_made_again() {
    for kind in [ErrorKind::Peer, ErrorKind::InvalidArgument] {
        let log = Arc::<Log>::default();
        let (mut captured, device) = (captured(&log, MemoryLimit::Cheap), device());
        let (x, z) = (random(&[3, 5], 1, &device), random(&[2], 2, &device));
        let mut last = vec![];
        for _ in 0..4 {
            last = bits(&captured.call::<Tensor>(&[&x, &z]).unwrap());
        }
        log.given.lock().unwrap().clear();
        *log.fails.lock().unwrap() = Some(kind.clone());
        let e = captured.call::<Tensor>(&[&x, &z]).unwrap_err();
        assert_eq!((e.kind(), e.op()), (&kind, "unread"));
        assert!(e.location().unwrap().file().ends_with("host_calls.rs"), "{e}");
        assert_eq!(log.given.lock().unwrap().len(), 1);
        // Another replay has memory of its own.
        assert_eq!(bits(&captured.call::<Tensor>(&[&x, &z]).unwrap()), last);
    }
}

/// Debug builds verify a step whose calls nobody else knows of: the first replay makes each twice.
#[test]
fn calls_that_are_not_seen_are_verified() {
    for (name, extra) in [("seen", 0), ("unseen", usize::from(cfg!(debug_assertions)))] {
        let (log, device) = (Arc::<Log>::default(), device());
        let x = random(&[3], 1, &device);
        let mut step = capture(|x| {
            call(&log, &device, name, &[Bound::Read(&x[0])])?;
            x[0].exp()
        });
        for _ in 0..4 {
            let _: Tensor = step.call(&[&x]).unwrap();
        }
        assert_eq!((step.replays(), log.given.lock().unwrap().len()), (2, 4 + extra), "{name}");
    }
}

/// What `take_gradients` does with a gradient is a part of the step, in its place.
#[test]
fn gradients_are_taken_in_each_replay() {
    let (log, device) = (Arc::<Log>::default(), device());
    let [first, second] = [1, 2].map(|seed| random(&[3], seed, &device).with_grad().unwrap());
    let mut captured = capture(|x| {
        let y = x[0].mul(&first)?.tanh()?;
        let (log, loss) = (log.clone(), y.mul(&second)?.sum_all()?);
        let take = move |i: usize, gradient: &Tensor| {
            let name = if i == 0 { "first" } else { "second" };
            call(&log, gradient.device(), name, &[Bound::Read(&gradient.mul(2.0)?)])
        };
        let left = take_gradients(&[&first, &second], Rc::new(take), || loss.backward())??;
        assert!(left.get(&first).is_none() && left.get(&second).is_none());
        Ok(loss.detach())
    });
    for i in 0..5 {
        let x = random(&[3], i + 10, &device);
        let _ = captured.call::<Tensor>(&[&x]).unwrap();
        let gradients =
            x.mul(&first).unwrap().tanh().unwrap().mul(&second).unwrap().sum_all().unwrap().backward().unwrap();
        let doubled = |leaf: &Tensor| gradients.get(leaf).unwrap().mul(2.0).unwrap().to_vec::<f32>().unwrap();
        let expected = [("second", doubled(&second)), ("first", doubled(&first))];
        assert_eq!(std::mem::take(&mut *log.given.lock().unwrap()), expected, "call {i}");
    }
    assert_eq!(captured.replays(), 3);
}

/// A replay reads what memory was filled with in the step, which it computes itself, and not the memory: that is given back.
#[test]
fn memory_that_a_step_fills_and_gives_back() {
    let device = device();
    let (kept, w) = (random(&[3], 1, &device), random(&[3], 2, &device).with_grad().unwrap());
    let supply = |kept: &Tensor, w: &Tensor| -> Rc<Supply> {
        let (kept, w) = (kept.clone(), w.clone());
        Rc::new(move |_| w.storage().fill(kept.mul(2.0)?))
    };
    let step = |x: &[Tensor]| {
        w.storage().give_back()?;
        with_supply(supply(&kept, &w), || {
            // A view of what is not there yet, and another filling in the backward pass.
            let loss = w.reshape([1, 3])?.square()?.mul(&x[0])?.sum_all()?;
            w.storage().give_back()?;
            let gradient = loss.backward()?.get(&w).unwrap().clone();
            w.storage().give_back()?;
            kept.add_(&gradient)?;
            Ok(gradient)
        })
    };
    let mut replayed = capture(step);
    for i in 0..5 {
        let x = random(&[1, 3], 10 + i, &device);
        // d/dw of x w^2, where w is twice what is kept.
        let expected = x.reshape([3]).unwrap().mul(kept.mul(4.0).unwrap()).unwrap();
        let got: Tensor = replayed.call(&[&x]).unwrap();
        assert_eq!(bits(&got), bits(&expected), "call {i}");
        assert!(w.storage().is_given_back());
    }
    assert_eq!(replayed.replays(), 3);
    // The memory is taken over as it is.
    assert!(!replayed.graph().unwrap().to_string().contains("contiguous"), "{}", replayed.graph().unwrap());
}

#[test]
fn memory_that_stays_filled_is_refused() {
    let device = device();
    let w = random(&[3], 2, &device);
    let mut step = capture(|x| {
        w.storage().give_back()?;
        w.storage().fill(x[0].mul(2.0)?)?;
        w.add(&w)
    });
    let e = step.call::<Tensor>(&[&random(&[3], 1, &device)]).unwrap_err();
    assert!(e.message().contains("is not given back at its end"), "{e}");
}
