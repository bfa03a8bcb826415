//! Runs the conformance suite on every profile of the adapter, and prints one line for each with the result.
//!
//! ```sh
//! cargo run --release -p gradus-wgpu --example conform -- [ROUNDS [SEED]]
//! ```
//! With `ROUNDS`, that many rounds of cases with random shapes and parameters follow on each profile.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use gradus_backend::Result;
use gradus_conformance::{Report, deep, long, run};
use gradus_wgpu::{Profile, WgpuBackend, adapters, chosen};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Ok(rounds), Ok(seed)) = (numbers.next().unwrap_or(Ok(0)), numbers.next().unwrap_or(Ok(1))) else {
        eprintln!("usage: conform [ROUNDS [SEED]]");
        return ExitCode::from(2);
    };
    match conform(rounds, seed) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all cases pass.
fn conform(rounds: u64, seed: u64) -> Result<bool> {
    let index = chosen()?;
    if let Some(adapter) = adapters().get(index) {
        println!("{} ({}, {})", adapter.name, adapter.interface, adapter.driver);
    }
    // Most of the time is that of the driver's compiler, which uses one thread.
    let reports = std::thread::scope(|threads| {
        let started = Profile::ALL.map(|profile| threads.spawn(move || reports(index, profile, rounds, seed)));
        started.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (mut passed, mut lines) = (true, String::new());
    for (profile, reports) in Profile::ALL.into_iter().zip(reports) {
        let (name, reports) = (profile.name(), reports?);
        for report in reports.iter().filter(|report| !report.passed()) {
            println!("{name}:\n{report}");
            passed = false;
        }
        let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
        let (calls, failed, skipped) = (sum(|r| r.cases), sum(|r| r.failures.len()), sum(|r| r.skipped));
        lines += &format!("{name}: {failed} of {calls} calls fail, {skipped} cases need a dtype that it lacks\n");
    }
    print!("{lines}");
    Ok(passed)
}

/// Without rounds, the last report has no cases.
fn reports(index: usize, profile: Profile, rounds: u64, seed: u64) -> Result<[Report; 3]> {
    let backend = WgpuBackend::open_as(index, profile)?;
    Ok([run(&backend), long(&backend), deep(&backend, seed, rounds)])
}
