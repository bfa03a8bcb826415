//! Random programs of collectives and other operations, captured and eager.

use std::sync::Arc;

use gradus_dist::{Communicator, Options, Reduce, threads};
use gradus_graph::{MemoryLimit, capture};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

use crate::{bits, device, numbers};

const PROGRAMS: u64 = 200;
/// A side of the values, which every number of ranks divides.
const SIDE: usize = 8;

/// Runs program `number` on `x`, `[SIDE, SIDE]`, and on `kept`, which it may write. All choices come from the number, so
/// that all ranks make the same calls.
fn program(comm: &Arc<dyn Communicator>, number: u64, x: &Tensor, kept: &Tensor) -> Result<Vec<Tensor>> {
    let mut rng = Generator::new(number);
    let leaf = x.detach().with_grad()?;
    let mut values = vec![leaf.clone(), kept.copy()?];
    for _ in 0..4 + rng.below(12) {
        let mut any = || values[rng.below(values.len())].clone();
        let (a, b) = (any(), any());
        let root = rng.below(comm.size());
        let value = match rng.below(16) {
            0 => comm.all_reduce(&a, Reduce::Sum)?.div(comm.size() as f64)?,
            1 => comm.all_reduce(&a.detach(), Reduce::Max)?,
            2 => {
                let part = comm.reduce_scatter(&a, Reduce::Sum)?.tanh()?;
                comm.all_gather(&part)?
            }
            3 => comm.broadcast(&a, root)?,
            4 => comm.all_to_all(&a)?,
            5 => {
                comm.all_reduce_(kept, Reduce::Min)?;
                kept.copy()?
            }
            6 => {
                comm.broadcast_(kept, root)?;
                a.sin()?
            }
            7 if comm.size() > 1 && root + 1 < comm.size() => {
                // From one rank to the next.
                match comm.rank() {
                    rank if rank == root => comm.send(&a.detach(), root + 1)?,
                    rank if rank == root + 1 => {
                        kept.copy_(&comm.receive([SIDE, SIDE], DType::F32, x.device(), root)?)?;
                    }
                    _ => {}
                }
                b.cos()?
            }
            8 => {
                comm.barrier(x.device())?;
                let _ = comm.all_gather(&b)?;
                a.sigmoid()?
            }
            9 => a.matmul(&b.tanh()?)?.tanh()?,
            10 => a.softmax(-1)?,
            11 => a.mul(&b)?.tanh()?,
            12 => a.sub(&b)?,
            13 => a.t()?.contiguous()?.exp()?.log1p()?,
            14 => {
                kept.mul_(0.5)?;
                a.add(kept)?
            }
            _ => a.maximum(&b)?,
        };
        values.push(value);
    }
    let loss = values.iter().skip(2).try_fold(leaf.mean_all()?, |sum, value| sum.add(value.mean_all()?))?;
    let gradient = loss.backward()?.get(&leaf).cloned();
    let gradient = gradient.map_or_else(|| x.zeros_like(), Ok)?;
    Ok(vec![loss.detach(), gradient, values[values.len() - 1].detach()])
}

/// What program `number` gives in a few calls; whether it is captured is decided for each rank.
fn outcome(size: usize, number: u64, device: &Device, captures: impl Fn(usize) -> bool + Sync) -> Vec<Vec<Vec<u8>>> {
    threads(size, Options::default(), |comm| {
        let kept = numbers(&**comm, 99, &[SIDE, SIDE], device)?;
        let mut step = capture(|x| program(comm, number, &x[0], &kept));
        if number % 4 == 3 {
            step.limit_memory(MemoryLimit::Bytes(0));
        }
        let mut all = vec![];
        for call in 0..4 {
            let x = numbers(&**comm, call, &[SIDE, SIDE], device)?;
            let results = if captures(comm.rank()) { step.call(&[&x])? } else { program(comm, number, &x, &kept)? };
            all.extend(bits(&results)?);
        }
        assert_eq!(step.replays(), if captures(comm.rank()) { 2 } else { 0 });
        all.extend(bits(std::slice::from_ref(&kept))?);
        Ok(all)
    })
    .unwrap_or_else(|e| panic!("program {number} on {size} ranks: {e}"))
}

#[test]
fn random_programs_have_the_same_bits_captured_and_eager() {
    let device = device().unwrap();
    for number in 0..PROGRAMS {
        let size = [1, 2, 4][(number % 3) as usize];
        let eager = outcome(size, number, &device, |_| false);
        // In every other program, some ranks replay and others do not.
        let captured = outcome(size, number, &device, |rank| number % 2 == 0 || rank % 2 == 0);
        assert!(eager == captured, "program {number} on {size} ranks");
    }
}
