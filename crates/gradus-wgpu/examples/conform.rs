//! Runs the conformance suite on every profile of the adapter, and prints one line for each with the result.
//!
//! ```sh
//! cargo run --release -p gradus-wgpu --example conform -- [ROUNDS [SEED]]
//! ```
//! With `ROUNDS`, that many rounds of cases with random shapes and parameters follow on each profile.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use gradus_backend::Result;
use gradus_conformance::{Report, deep, long, part};
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
    // Most of the time is that of the driver's compiler, so the cases are divided among threads with a device each.
    let parts = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(Profile::ALL.len())) as u64;
    let reports: Vec<Result<Vec<Report>>> = std::thread::scope(|threads| {
        let start = |profile| {
            let part = move |number| threads.spawn(move || reports(index, profile, [number, parts], rounds, seed));
            (0..parts).map(part).collect::<Vec<_>>()
        };
        let started: Vec<_> = Profile::ALL.into_iter().map(start).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<Report>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let all = |threads: Vec<_>| Ok(threads.into_iter().map(joined).collect::<Result<Vec<_>>>()?.concat());
        started.into_iter().map(all).collect()
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

/// The reports of a part of the cases. Only the first part also runs the long cases and the random ones.
fn reports(index: usize, profile: Profile, [number, parts]: [u64; 2], rounds: u64, seed: u64) -> Result<Vec<Report>> {
    let backend = WgpuBackend::open_as(index, profile)?;
    let mut reports = vec![part(&backend, number, parts, false)];
    if number == 0 {
        reports.extend([long(&backend), deep(&backend, seed, rounds)]);
    }
    Ok(reports)
}
