//! How long an all-reduce takes: the medians over many calls, for `bare.c` beside it.

use std::sync::Arc;
use std::time::Instant;

use gradus_dist::{Communicator, Reduce};
use gradus_tensor::{DType, Device, Result, Tensor};

use super::line;

/// Bytes and the number of calls.
const SIZES: [(usize, usize); 3] = [(4 << 10, 400), (1 << 20, 60), (64 << 20, 12)];

pub(crate) fn run(comm: &Arc<dyn Communicator>, device: &Device) -> Result<String> {
    let mut text = String::new();
    for (bytes, calls) in SIZES {
        let x = Tensor::full([bytes / 4], 1e-30, DType::F32, device)?;
        let mut times = vec![];
        for _ in 0..calls + calls / 4 {
            comm.barrier(device)?;
            let begun = Instant::now();
            comm.all_reduce_(&x, Reduce::Sum)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        let mut times = times.split_off(calls / 4);
        times.sort_by(f64::total_cmp);
        // The slowest rank counts, as in `bare.c`.
        let middle = Tensor::scalar(times[times.len() / 2], device)?;
        let middle = comm.all_reduce(&middle, Reduce::Max)?.item()?;
        line(&mut text, format_args!("{bytes} {:.1} us", middle * 1e6));
    }
    Ok(text)
}
