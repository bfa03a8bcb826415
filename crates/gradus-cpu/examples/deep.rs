//! Runs the random rounds of the conformance suite on the CPU: `cargo xtask deep`, or
//! `cargo run --release -p gradus-cpu --example deep -- SEED ROUNDS`.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use gradus_cpu::CpuBackend;

fn main() -> ExitCode {
    let numbers: Vec<Option<u64>> = std::env::args().skip(1).map(|a| a.parse().ok()).collect();
    let [Some(seed), Some(rounds)] = numbers[..] else {
        eprintln!("usage: deep SEED ROUNDS");
        return ExitCode::from(2);
    };
    let report = match CpuBackend::new() {
        Ok(backend) => gradus_conformance::deep(&backend, seed, rounds),
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(1);
        }
    };
    println!("seed {seed}, {rounds} rounds\n{report}");
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
