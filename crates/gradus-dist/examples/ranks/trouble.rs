//! A step with every collective, and a rank that dies, stops, calls something else or leaves at one of them.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus_dist::{Collective, Communicator, DataParallel, Reduce};
use gradus_graph::Captured;
use gradus_nn::{Init, Linear};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};

/// Makes call `number` of a step; there are [`CALLS`].
fn call(comm: &Arc<dyn Communicator>, device: &Device, number: usize) -> Result<()> {
    let x = Tensor::full([8, 5], comm.rank() as f64, DType::F32, device)?;
    let large = || Tensor::full([1 << 20], 0.5, DType::F32, device);
    match number {
        0 => comm.all_reduce_(&x, Reduce::Sum),
        1 => comm.all_reduce_(&large()?, Reduce::Sum),
        2 => comm.reduce_scatter(&large()?, Reduce::Sum).map(drop),
        3 => comm.all_gather(&large()?).map(drop),
        4 => comm.broadcast_(&large()?, 2),
        5 => comm.all_to_all(&large()?).map(drop),
        6 => comm.barrier(device),
        7 => {
            // Pairs of neighbours, which exchange two tensors. What is started goes on in the background, also in replays.
            let (x, other) = (large()?, comm.rank() ^ 1);
            if comm.rank() % 2 == 1 {
                let _ = comm.receive([1 << 20], DType::F32, device, other)?;
                return comm.receive([1 << 20], DType::F32, device, other).map(drop);
            }
            comm.send(&x, other)?;
            comm.begin(Collective::Send(other), &x)?.wait().map(drop)
        }
        8 => comm.split((comm.rank() / 2) as u32, 0)?.all_reduce_(&x, Reduce::Sum),
        9 => comm.begin(Collective::AllReduce(Reduce::Sum), &large()?)?.wait().map(drop),
        10 => {
            let model = Linear::new(5, 3, &mut Init::new(DType::F32, device, &mut Generator::new(1)))?;
            let loss = |rows: std::ops::Range<usize>| model.weight.mul(rows.len() as f64)?.sum_all();
            DataParallel::new(comm.clone())?.backward(&model, 64, loss).map(drop)
        }
        _ => Ok(()),
    }
}

/// The number of calls of a step.
const CALLS: usize = 11;
/// How many of them can be captured: a communicator is not made in a captured step, and neither is a model.
const REPLAYED: usize = CALLS - 2;

pub(crate) fn run(
    comm: &Arc<dyn Communicator>,
    device: &Device,
    how: &str,
    (rank, at): (usize, usize),
    is_captured: bool,
) -> Result<String> {
    let everyone = Instant::now();
    // Each call is a step of its own. The first two are traced, and those that cannot be captured run eagerly.
    let mut captured: Vec<Captured> = (0..CALLS).map(|_| Captured::or_eager()).collect();
    let (x, last) = (Tensor::zeros([1], DType::F32, device)?, if is_captured { 3 } else { 1 });
    for step in 0..last + 2 {
        for (number, captured) in captured.iter_mut().enumerate() {
            if step == last && number == at && comm.rank() == rank {
                let signal = |name: &str| {
                    let status = Command::new("kill").args([name, &std::process::id().to_string()]).status();
                    status.map_err(|e| Error::io("kill", name, e)).map(drop)
                };
                match how {
                    "kill" => signal("-KILL")?,
                    "stop" => signal("-STOP")?,
                    // In the middle of the call, if that takes long enough.
                    "kill-soon" => drop(std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_micros(300));
                        let _ = Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
                    })),
                    "other" => {
                        let begun = Instant::now();
                        let other = comm.all_gather(&Tensor::zeros([3], DType::F64, device)?);
                        return outcome(other.map(drop), begun, everyone);
                    }
                    "leave" => return Ok("left\n".into()),
                    other => return Err(Error::argument("ranks", format!("no trouble {other}"))),
                }
            }
            let begun = Instant::now();
            let make = || call(comm, device, number);
            let made = match is_captured {
                true => captured.call(0, &[&x], |_| make().map(|()| (vec![], ()))).map(drop),
                false => make(),
            };
            if made.is_err() {
                return outcome(made, begun, everyone);
            }
        }
        if is_captured && step == 2 && captured.iter().filter(|captured| captured.replays() > 0).count() < REPLAYED {
            let replays: Vec<u64> = captured.iter().map(Captured::replays).collect();
            return Err(Error::argument("ranks", format!("some calls were not replayed: {replays:?}")));
        }
    }
    Ok("no error\n".into())
}

fn outcome(made: Result<()>, begun: Instant, everyone: Instant) -> Result<String> {
    Ok(match made {
        Err(e) if *e.kind() == ErrorKind::Peer => {
            format!(
                "peer after {:.3} s of {:.3} s: {e}\n",
                begun.elapsed().as_secs_f64(),
                everyone.elapsed().as_secs_f64()
            )
        }
        Err(e) => format!("another error: {e}\n"),
        Ok(()) => "no error\n".into(),
    })
}
