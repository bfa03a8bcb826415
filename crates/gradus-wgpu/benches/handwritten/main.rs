//! Times the WebGPU backend on this machine's adapter, and compares it with hand-written WGSL for the same work and
//! with the CPU backend. On a software driver only the ratios of the times are meaningful.
//!
//! `cargo xtask bench --wgpu [FILTER]` runs the jobs whose names contain the filter. The results of all ways are
//! compared before anything is timed.
#![allow(clippy::print_stdout)]

mod job;
mod jobs;
mod measure;
mod table;
mod written;

use std::process::ExitCode;
use std::sync::Arc;

use gradus::prelude::*;
use gradus_wgpu::{WgpuBackend, adapters, chosen};

/// A ratio of our time to that of the hand-written modules that counts as equal.
const NEAR: f64 = 1.1;

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let filter = std::env::args().skip(1).find(|word| word != "--bench").unwrap_or_default();
    match run(&filter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(filter: &str) -> Result<()> {
    if adapters().is_empty() {
        println!("nothing is measured: wgpu finds no adapter here");
        return Ok(());
    }
    let jobs: Vec<_> = jobs::jobs().into_iter().filter(|job| job.name.contains(filter)).collect();
    if jobs.is_empty() {
        return Err(Error::argument("bench", format!("no job's name contains `{filter}`")));
    }
    let backend = Arc::new(WgpuBackend::open(chosen()?)?);
    let device = Device::from_backend(backend.clone());
    let best = table::Best { bandwidth: measure::bandwidth(&device)?, peak: measure::peak(&device)? };
    let (copy, peak) = (best.bandwidth / 1e9, best.peak / 1e9);
    println!(
        "{}: a copy between buffers reaches {copy:.2} GB/s, and arithmetic {peak:.2} GFLOP/s.\n",
        device.info().hardware
    );
    println!("{}", table::HEAD);
    let (mut near, mut compared) = (0, 0);
    for job in &jobs {
        let ready = job.ready(&backend, &device)?;
        let measured = measure::measure(&device, job.until, &ready)?;
        println!("{}", table::line(job, &ready, &measured, &best));
        compared += usize::from(measured.ratio.is_some());
        near += usize::from(measured.ratio.is_some_and(|ratio| ratio <= NEAR));
    }
    println!("\n{near} of {compared} jobs take at most {NEAR} times as long as the hand-written modules.");
    Ok(())
}
