//! Collectives in captured steps: a replay has the bits of the function, makes the same calls, and has the same errors.
#![allow(clippy::unwrap_used)]

mod far;
mod layers;
mod pipelines;
mod programs;
mod training;
mod trouble;

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::{Collective, Communicator, Options, Reduce, threads};
use gradus_graph::capture;
use gradus_tensor::{BackwardOptions, DType, Device, Generator, Result, Tensor, grad};

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// Numbers that differ from rank to rank and from call to call.
fn numbers(comm: &dyn Communicator, call: u64, shape: &[usize], device: &Device) -> Result<Tensor> {
    let mut rng = Generator::new(1 + comm.rank() as u64).fork(call);
    Tensor::randn(shape, DType::F32, device, &mut rng)
}

fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<u8>>> {
    tensors.iter().map(Tensor::to_bytes).collect()
}

/// A step of tensors, with all that it computes.
type Step = fn(&dyn Communicator, &Tensor) -> Result<Vec<Tensor>>;

/// Runs `step` several times on each of `size` ranks, captured where `captures` says so, and returns the bits of all
/// ranks.
fn run(size: usize, device: &Device, captures: impl Fn(usize) -> bool + Sync, step: Step) -> Vec<Vec<Vec<u8>>> {
    threads(size, Options::default(), |comm| {
        let mut captured = capture(|x| step(&**comm, &x[0]));
        let mut all = vec![];
        for call in 0..5 {
            let x = numbers(&**comm, call, &[8, 3], device)?;
            all.extend(bits(&if captures(comm.rank()) { captured.call(&[&x])? } else { step(&**comm, &x)? })?);
        }
        assert_eq!(captured.replays(), if captures(comm.rank()) { 3 } else { 0 });
        Ok(all)
    })
    .unwrap()
}

const STEPS: [(&str, Step); 11] = [
    ("all_reduce", |c, x| Ok(vec![c.all_reduce(&x.exp()?, Reduce::Sum)?.sin()?])),
    ("all_reduce_", |c, x| {
        let y = x.square()?;
        c.all_reduce_(&y, Reduce::Max)?;
        Ok(vec![y.add(x)?])
    }),
    ("reduce_scatter", |c, x| Ok(vec![c.reduce_scatter(&x.mul(2.0)?, Reduce::Sum)?.neg()?])),
    ("all_gather", |c, x| Ok(vec![c.all_gather(&x.t()?)?.tanh()?])),
    ("broadcast", |c, x| Ok(vec![c.broadcast(x, c.size() - 1)?, c.broadcast(&x.gt(0.0)?, 0)?])),
    ("all_to_all", |c, x| Ok(vec![c.all_to_all(&x.abs()?)?])),
    ("send, receive and barrier", |c, x| {
        let (y, other) = (x.add(1.0)?, c.rank() ^ 1);
        c.barrier(x.device())?;
        if c.size() == 1 {
            return Ok(vec![y]);
        }
        // Small and large ones, and one without elements.
        for _ in 0..2 {
            if c.rank() % 2 == 0 {
                c.send(&y, other)?
            } else {
                drop(c.receive([8, 3], DType::F32, x.device(), other)?)
            }
        }
        let empty = Tensor::zeros([0, 3], DType::F32, x.device())?;
        let back = if c.rank() % 2 == 0 {
            c.receive([8, 3], DType::F32, x.device(), other)?
        } else {
            c.send(&y, other)?;
            y
        };
        Ok(vec![back, c.all_reduce(&empty, Reduce::Sum)?])
    }),
    ("gradients of all", |c, x| {
        let x = x.detach().with_grad()?;
        let y = c.all_reduce(&c.all_gather(&c.reduce_scatter(&x, Reduce::Sum)?.pow(3.0)?)?, Reduce::Sum)?;
        let loss = c.broadcast(&c.all_to_all(&y)?, 0)?.square()?.mean_all()?;
        let first = grad(&[&loss], &[&x], None, BackwardOptions::new().create_graph())?[0].clone().unwrap();
        let second = grad(&[&first.square()?.sum_all()?], &[&x], None, BackwardOptions::new())?[0].clone().unwrap();
        Ok(vec![loss.detach(), first.detach(), second])
    }),
    ("results that nobody reads, and equal calls", |c, x| {
        let _ = c.all_reduce(x, Reduce::Sum)?;
        let twice = [c.all_reduce(x, Reduce::Sum)?, c.all_reduce(x, Reduce::Sum)?];
        let _ = c.all_gather(&x.exp()?)?;
        c.barrier(x.device())?;
        Ok(vec![twice[0].add(&twice[1])?])
    }),
    ("calls that are started", |c, x| {
        let (sum, all) = (c.begin(Collective::AllReduce(Reduce::Sum), x)?, c.begin(Collective::AllGather, &x.exp()?)?);
        let y = x.square()?;
        Ok(vec![all.wait()?, sum.wait()?.add(&y)?])
    }),
    ("sends that are started", |c, x| {
        if c.size() == 1 {
            return Ok(vec![x.exp()?]);
        }
        let (y, other) = (x.exp()?, c.rank() ^ 1);
        if c.rank() % 2 == 1 {
            let all = [(); 3].map(|()| c.receive([8, 3], DType::F32, x.device(), other));
            return all.into_iter().collect();
        }
        // What is sent is written afterwards, and one handle is dropped.
        let (first, second) = (c.begin(Collective::Send(other), &y)?, c.begin(Collective::Send(other), &y.sin()?)?);
        y.mul_(2.0)?;
        drop(c.begin(Collective::Send(other), &y)?);
        let _ = second.wait()?;
        let _ = first.wait()?;
        Ok(vec![y])
    }),
];

#[test]
fn a_replay_has_the_bits_of_the_function() {
    for (name, step) in STEPS {
        for size in [1, 2, 4] {
            let device = device().unwrap();
            let eager = run(size, &device, |_| false, step);
            assert!(run(size, &device, |_| true, step) == eager, "{name} on {size} ranks");
        }
    }
}

/// A rank that replays makes the calls of one that does not, also those whose results it does not read.
#[test]
fn ranks_need_not_agree_on_what_is_captured() {
    for (name, step) in STEPS {
        let device = device().unwrap();
        let eager = run(4, &device, |_| false, step);
        assert!(run(4, &device, |rank| rank % 2 == 1, step) == eager, "{name}");
    }
}

#[test]
fn a_replay_comes_after_calls_that_were_started() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut step = capture(|x| Ok(vec![comm.all_reduce(&x[0], Reduce::Sum)?]));
        let x = Tensor::full([6000], 1.0, DType::F32, &device)?;
        for call in 0..4 {
            // One rank begins them, and the other makes them at once.
            let begun = match comm.rank() {
                0 => Some(comm.begin(Collective::AllGather, &x)?),
                _ => comm.all_gather(&x).map(|_| None)?,
            };
            assert_eq!(step.call::<Vec<Tensor>>(&[&x])?[0].to_vec::<f32>()?, [2.0; 6000], "call {call}");
            if let Some(begun) = begun {
                assert_eq!(begun.wait()?.numel(), 12000);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_of_parts_of_the_ranks_are_captured() {
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let me = comm.rank() as f64;
        let part = comm.split((comm.rank() % 2) as u32, 0)?;
        let mut step =
            capture(|x| Ok(vec![part.all_reduce(&x[0], Reduce::Sum)?, comm.all_reduce(&x[0], Reduce::Sum)?]));
        for call in 0..4 {
            let x = Tensor::full([3], me * f64::from(call), DType::F32, &device)?;
            let both: Vec<Tensor> = step.call(&[&x])?;
            let expected = if comm.rank() % 2 == 0 { 2.0 } else { 4.0 };
            assert_eq!(both[0].to_vec::<f32>()?, [expected * call as f32; 3]);
            assert_eq!(both[1].to_vec::<f32>()?, [6.0 * call as f32; 3]);
        }
        assert_eq!(step.replays(), 2);
        Ok(())
    })
    .unwrap();
}

/// With `verify`, ranks make the calls of the replay and those of the function.
#[test]
fn replays_are_verified_on_all_ranks() {
    for (name, step) in STEPS {
        threads(2, Options::default(), |comm| {
            let device = device()?;
            let mut captured = capture(|x| step(&**comm, &x[0]));
            captured.verify(2);
            for call in 0..5 {
                let x = numbers(&**comm, call, &[8, 3], &device)?;
                assert_eq!(bits(&captured.call::<Vec<Tensor>>(&[&x])?)?, bits(&step(&**comm, &x)?)?, "{name}");
            }
            assert_eq!(captured.replays(), 3);
            Ok(())
        })
        .unwrap();
    }
}
