//! Buffers and random states of a step that the host moves, shares or replaces: a replay follows them, or none happens.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::{Cell, RefCell};

use common::{bits, device, random};
use gradus_graph::Captured;
use gradus_nn::{Buffer, Dropout, Forward, Init, Linear, Parameter, RandomState};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, autograd};

/// Calls a step and an equal function side by side, with `change` applied to what both use before each call.
fn beside<S>(
    device: &Device,
    make: impl Fn() -> S,
    f: impl Fn(&S, &Tensor) -> Result<Tensor>,
    change: impl Fn(&S, u64),
) -> Captured {
    let (used, other) = (make(), make());
    let mut captured = Captured::or_eager();
    for i in 0..12 {
        let x = random(&[8], i, device);
        change(&used, i);
        change(&other, i);
        let (got, ()) = captured.call(0, &[&x], |x| Ok((vec![f(&used, &x[0])?], ()))).unwrap();
        assert_eq!(bits(&got[0]), bits(&f(&other, &x).unwrap()), "call {i}");
    }
    captured
}

#[test]
fn a_random_state_that_the_host_moves_is_refused() {
    let device = device();
    let noisy = |rs: &RandomState, x: &Tensor| x.add(&rs.draw(|g| Tensor::randn([8], x.dtype(), x.device(), g))?);
    let host_first = |rs: &RandomState, x: &Tensor| {
        rs.draw(Generator::next_u64);
        noisy(rs, x)
    };
    let set_first = |rs: &RandomState, x: &Tensor| {
        rs.set(Generator::new(7));
        noisy(rs, x)
    };
    let host_only = |rs: &RandomState, x: &Tensor| x.mul(if rs.draw(|g| g.below(4)) == 0 { 3.0 } else { 2.0 });
    type Program<'a> = dyn Fn(&RandomState, &Tensor) -> Result<Tensor> + 'a;
    let programs: [&Program<'_>; 3] = [&host_first, &set_first, &host_only];
    for (i, program) in programs.into_iter().enumerate() {
        let captured = beside(&device, || RandomState::new(Generator::new(1)), program, |_, _| {});
        assert_eq!(captured.replays(), 0, "program {i}");
        let why = captured.refusal().unwrap().message();
        assert!(why.contains("a replay cannot follow") || why.contains("an operation differs"), "program {i}: {why}");
    }
    // Between two calls, the host may move it.
    let captured =
        beside(&device, || RandomState::new(Generator::new(1)), noisy, |rs, i| rs.set(Generator::new(i % 5)));
    assert_eq!(captured.replays(), 10);
}

#[test]
fn a_buffer_that_shares_its_memory_with_a_parameter_is_refused() {
    let device = device();
    let make = || {
        let online = Parameter::new(random(&[8], 50, &device)).unwrap();
        let target = Buffer::new(online.values().clone()).unwrap();
        (online, target)
    };
    // A step that writes the parameter, and whose target network is replaced in the fifth call.
    let step = |(online, target): &(Parameter, Buffer), x: &Tensor| {
        let y = x.mul(online.values())?.sub(target.tensor())?;
        online.values().mul_(0.5)?;
        Ok(y)
    };
    let change = |(_, target): &(Parameter, Buffer), i: u64| {
        if i == 4 {
            target.set(&random(&[8], 60, &device)).unwrap();
        }
    };
    let captured = beside(&device, make, step, change);
    let why = captured.refusal().unwrap().message();
    assert!(why.contains("shares its memory with another tensor"), "{why}");
    // A tensor outside of the step may share the memory, and the step may use views of the buffer.
    let make = || {
        let table = random(&[8], 50, &device);
        (table.clone(), Buffer::new(table).unwrap())
    };
    let step = |(_, buffer): &(Tensor, Buffer), x: &Tensor| {
        x.mul(buffer.tensor())?.add(&buffer.tensor().reshape([2, 4])?.sum(&[1], false)?.sum_all()?)
    };
    assert_eq!(beside(&device, make, step, |_, _| {}).replays(), 10);
}

#[test]
fn layers_that_are_replaced_between_calls_are_noticed() {
    let device = device();
    let dropout = |seed: u64| Dropout::new(0.25, &mut Generator::new(seed)).unwrap();
    let buffer = |seed: u64| Buffer::new(random(&[8], seed, &device)).unwrap();
    let make = || RefCell::new((dropout(0), buffer(0), buffer(1)));
    let step = |model: &RefCell<(Dropout, Buffer, Buffer)>, x: &Tensor| {
        let (dropout, read, written) = &*model.borrow();
        written.set(&written.tensor().add(x)?)?;
        dropout.forward(x)?.mul(read.tensor())?.add(written.tensor())
    };
    for part in 0..3 {
        let change = |model: &RefCell<(Dropout, Buffer, Buffer)>, i: u64| match part {
            _ if i != 6 => {}
            0 => model.borrow_mut().0 = dropout(9),
            1 => model.borrow_mut().1 = buffer(9),
            _ => model.borrow_mut().2 = buffer(9),
        };
        let captured = beside(&device, make, step, change);
        assert!(captured.refusal().is_none(), "part {part}");
        // Calls 0, 1, 6 and 7 are traced.
        assert_eq!(captured.replays(), 8, "part {part}");
    }
}

#[test]
fn a_mode_that_protects_saved_values_is_another_form() {
    let (device, runs) = (device(), Cell::new(0));
    let mut captured = Captured::or_eager();
    let mut call = || {
        let step = |x: &[Tensor]| {
            runs.set(runs.get() + 1);
            let w = x[0].detach().with_grad()?;
            let scale = x[0].exp()?;
            let y = w.mul(&scale)?;
            scale.zero_()?; // The gradient needs what is overwritten.
            Ok((vec![y.detach()], ()))
        };
        captured.call(0, &[&random(&[3], 1, &device)], step).map(drop)
    };
    (0..4).for_each(|_| call().unwrap());
    let before = runs.get();
    assert!((0..3).all(|_| autograd::strict_inplace(&mut call).is_err()));
    assert!(runs.get() == before + 3, "{} runs, then {}", before, runs.get());
    assert!((0..2).all(|_| autograd::allow_mutation_on_saved_tensors(&mut call).is_ok()));
    assert_eq!(runs.get(), before + 5);
}

#[test]
fn a_trace_copies_no_gradients() {
    let device = device();
    let layer = Linear::new(3, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(8))).unwrap();
    let mut captured = Captured::strict();
    for i in 0..3 {
        let x = random(&[4, 3], i, &device);
        let step = |x: &[Tensor]| {
            let gradients = layer.forward(&x[0])?.square()?.sum_all()?.backward()?;
            let of = |p: &Parameter| gradients.get(p.tensor()).unwrap().clone();
            Ok((vec![of(&layer.weight), of(layer.bias.as_ref().unwrap())], ()))
        };
        captured.call(0, &[&x], step).unwrap();
    }
    let graph = captured.graph().unwrap();
    assert!(graph.nodes.iter().all(|n| n.op.name() != "contiguous"), "{graph}");
}

#[test]
fn a_buffer_that_another_thread_changes_during_a_replay_keeps_the_change() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static ARMED: AtomicBool = AtomicBool::new(false);
    static TOTAL: OnceLock<Buffer> = OnceLock::new();
    // As soon as an operation has run, another thread puts 100 into the buffer.
    let device = device().watched(|_| {
        if ARMED.swap(false, Ordering::Relaxed) {
            let total = TOTAL.get().unwrap();
            let change = || total.set(&Tensor::full([1], 100.0, DType::F32, total.tensor().device()).unwrap()).unwrap();
            std::thread::scope(|s| s.spawn(change).join().unwrap());
        }
    });
    let total = TOTAL.get_or_init(|| Buffer::new(Tensor::zeros([1], DType::F32, &device).unwrap()).unwrap());
    let mut captured = Captured::strict();
    let one = Tensor::ones([1], DType::F32, &device).unwrap();
    for i in 0..6 {
        ARMED.store(i == 4, Ordering::Relaxed);
        let step = |x: &[Tensor]| {
            let sum = total.tensor().add(&x[0])?;
            total.set(&sum)?;
            Ok((vec![sum], ()))
        };
        let (got, ()) = captured.call(0, &[&one], step).unwrap();
        let want = if i < 4 { i as f64 + 1.0 } else { 101.0 + (i - 4) as f64 };
        assert_eq!((got[0].item().unwrap(), total.tensor().item().unwrap()), (want, want), "call {i}");
    }
    assert_eq!(captured.replays(), 3);
}
