//! Runs the conformance suite on a GPU, and prints one line with the result.
//!
//! ```sh
//! cargo run --release -p gradus-cuda --example conform -- [--device N] [--brief] [--rounds N] [--seed S] [CASE]
//! ```
//! `CASE` is the beginning of the names of cases, or the name that a failure prints: only those run. `--brief` runs each case
//! in one of its layouts. With `--rounds`, as many rounds of cases with random shapes follow.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use gradus_backend::Result;
use gradus_conformance::{Report, brief, deep, long, only};
use gradus_cuda::{CudaBackend, devices};

const USAGE: &str = "usage: conform [--device N] [--brief] [--rounds N] [--seed S] [CASE]";

/// What the command line asks for.
#[derive(Default)]
struct Options {
    device: usize,
    brief: bool,
    rounds: u64,
    seed: u64,
    case: Option<String>,
}

/// None if the command line is invalid.
fn options(mut words: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { seed: 1, ..Options::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--brief" => options.brief = true,
            "--device" => options.device = words.next()?.parse().ok()?,
            "--rounds" => options.rounds = words.next()?.parse().ok()?,
            "--seed" => options.seed = words.next()?.parse().ok()?,
            _ if word.starts_with('-') || options.case.is_some() => return None,
            _ => options.case = Some(word),
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match conform(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all cases pass.
fn conform(options: &Options) -> Result<bool> {
    let backend = CudaBackend::open(options.device)?;
    if let Some(device) = devices()?.get(options.device) {
        let ((major, minor), (driver, _)) = (device.capability, device.driver);
        println!("{}: capability {major}.{minor}, {} MiB, CUDA {driver}", device.name, device.memory >> 20);
    }
    let mut reports = match &options.case {
        Some(case) => vec![only(&backend, case)],
        None if options.brief => vec![brief(&backend)],
        None => vec![only(&backend, ""), long(&backend)],
    };
    if options.rounds > 0 {
        reports.push(deep(&backend, options.seed, options.rounds));
    }
    for report in reports.iter().filter(|report| !report.passed()) {
        println!("{report}");
    }
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    let (calls, failed, skipped) = (sum(|r| r.cases), sum(|r| r.failures.len()), sum(|r| r.skipped));
    println!("{failed} of {calls} calls fail, {skipped} cases need a dtype that it lacks");
    Ok(failed == 0)
}
