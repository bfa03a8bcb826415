//! How long an all-reduce takes, for `bare.c` beside it, and what it adds to a step.

use std::sync::Arc;
use std::time::Instant;

use gradus_dist::{Communicator, DataParallel, Reduce};
use gradus_nn::{Forward, Init, Linear, Module, Relu, Sequential};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

use super::line;

/// Bytes and the number of calls, as in `bare.c`.
const SIZES: [(usize, usize); 3] = [(4 << 10, 400), (1 << 20, 60), (64 << 20, 12)];

/// A line has the bytes and the median of the times in us, of the slowest rank.
pub(crate) fn run(comm: &Arc<dyn Communicator>, device: &Device) -> Result<String> {
    let mut text = String::new();
    for (bytes, calls) in SIZES {
        let x = Tensor::full([bytes / 4], 1e-30, DType::F32, device)?;
        let mut times = vec![];
        for _ in 0..calls + calls / 4 {
            comm.barrier(device)?;
            let begun = Instant::now();
            comm.all_reduce_(&x, Reduce::Sum)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        line(&mut text, format_args!("{bytes} {}", medians(comm, device, &times[calls / 4..], 1, &[|t| t[0]])?));
    }
    Ok(text)
}

/// The medians of numbers made of each `width` times in turn, of the slowest rank.
fn medians(
    comm: &Arc<dyn Communicator>,
    device: &Device,
    times: &[f64],
    width: usize,
    of: &[fn(&[f64]) -> f64],
) -> Result<String> {
    let times = Tensor::from_vec(times, [times.len()], device)?;
    let slowest = comm.all_reduce(&times, Reduce::Max)?.to_vec::<f64>()?;
    let median = |of: &fn(&[f64]) -> f64| {
        let mut all: Vec<f64> = slowest.chunks(width).map(of).collect();
        all.sort_by(f64::total_cmp);
        format!("{:.3}", all[all.len() / 2])
    };
    Ok(of.iter().map(median).collect::<Vec<_>>().join(" "))
}

/// The passes of a step, in turns with these passes of each rank for itself and with the all-reduce of as many gradients.
/// A line has the bytes, the three times in us, and by what the step is longer than the other two, as a share of the
/// passes.
pub(crate) fn step(comm: &Arc<dyn Communicator>, device: &Device) -> Result<String> {
    const WIDTH: usize = 1024;
    const ROWS: usize = 128;
    const STEPS: usize = 30;
    let mut init = Generator::new(1);
    let mut init = Init::new(DType::F32, device, &mut init);
    let mut model = Sequential::new();
    for _ in 0..4 {
        model = model.add(Linear::new(WIDTH, WIDTH, &mut init)?).add(Relu);
    }
    let count: usize = model.parameters().iter().map(|p| p.numel()).sum();
    let (x, sum) = (Tensor::ones([ROWS, WIDTH], DType::F32, device)?, Tensor::zeros([count], DType::F32, device)?);
    let loss = |_: std::ops::Range<usize>| model.forward(&x)?.square()?.mean_all();
    let together = DataParallel::with_shards(comm.clone(), comm.size())?;
    let alone = DataParallel::with_shards(comm.split(comm.rank() as u32, 0)?, 1)?;
    let mut times = vec![];
    let mut timed = |f: &dyn Fn() -> Result<()>| {
        comm.barrier(device)?;
        let begun = Instant::now();
        f()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        Ok(())
    };
    for _ in 0..STEPS + 2 {
        timed(&|| together.backward(&model, ROWS * comm.size(), loss).map(drop))?;
        timed(&|| alone.backward(&model, ROWS, loss).map(drop))?;
        timed(&|| comm.all_reduce_(&sum, Reduce::Sum))?;
    }
    let of: [fn(&[f64]) -> f64; 4] = [|t| t[0], |t| t[1], |t| t[2], |t| (t[0] - t[2]) / t[1] - 1.0];
    Ok(format!("{} {}", 4 * count, medians(comm, device, &times[6..], 3, &of)?))
}
