//! Runs random programs both in the library and in a purely functional reference, and compares the results.
//!
//! `program` defines programs, and `text` writes them as one line. `generate` and `trouble` make random programs, and
//! `shrink` reduces a failing one. One side of the comparison is the reference. `model` is its state; `reference`,
//! `modes`, `effects` and `passes` define how statements change it; they use `arrays` of numbers on the tape of
//! `scalar`. The other side is the library, in `subject`. `run` runs both sides and compares them, and `counts` reports
//! what was tried.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // prints the trace of a program

mod arrays;
mod captured;
mod counts;
mod effects;
mod generate;
mod keeps;
mod library;
mod model;
mod modes;
mod passes;
mod program;
mod reference;
mod run;
mod scalar;
mod shrink;
mod subject;
mod tables;
mod text;
mod trouble;
mod views;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use captured::Captured;
pub use counts::Counts;
pub use program::Program;
pub use run::{Failure, Options};
pub use subject::Planted;

/// A failing program, reduced to a small one.
#[derive(Debug)]
pub struct Found {
    /// The program's number in the run.
    pub index: u64,
    /// The program as one line of text.
    pub line: String,
    /// What the two sides disagree about.
    pub failure: Failure,
}

/// Runs programs `0..count` of a seed on `threads` threads, until `failures` of them have failed.
pub fn fuzz(seed: u64, count: u64, threads: usize, failures: usize, options: Options) -> (Counts, Vec<Found>) {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total: Mutex<(Counts, Vec<u64>)> = Mutex::default();
    let work = || {
        let mut counts = Counts::default();
        while !stop.load(Ordering::Relaxed) {
            let start = next.fetch_add(64, Ordering::Relaxed);
            if start >= count {
                break;
            }
            for index in start..count.min(start + 64) {
                match generated(seed, index).and_then(|program| run::run(&program, options)) {
                    Ok(one) => counts.merge(&one),
                    Err(_) => {
                        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
                        total.1.push(index);
                        if total.1.len() >= failures {
                            stop.store(true, Ordering::Relaxed);
                            break;
                        }
                    }
                }
            }
        }
        total.lock().unwrap_or_else(|e| e.into_inner()).0.merge(&counts);
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let (counts, mut failed) = total.into_inner().unwrap_or_else(|e| e.into_inner());
    failed.sort_unstable();
    (counts, failed.into_iter().take(failures).map(|index| found(seed, index, options)).collect())
}

/// Runs programs `0..count` of a seed as captured steps, until one of them has failed.
pub fn captured(seed: u64, count: u64, threads: usize) -> (Captured, Option<Found>) {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total: Mutex<(Captured, Option<Found>)> = Mutex::default();
    let work = || {
        let mut counts = Captured::default();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            match generated(seed, index).and_then(|program| captured::run(&program)) {
                Ok(one) => counts.merge(&one),
                Err(failure) => {
                    let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
                    total.1.get_or_insert(Found { index, line: line(seed, index), failure });
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
        total.lock().unwrap_or_else(|e| e.into_inner()).0.merge(&counts);
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    total.into_inner().unwrap_or_else(|e| e.into_inner())
}

/// Generates program number `index`. A panic of the generator is a failure as well.
fn generated(seed: u64, index: u64) -> Result<Program, Failure> {
    let made = std::panic::catch_unwind(|| generate::program(seed, index));
    made.map_err(|_| Failure::new("panic", "the program could not be made: the reference panicked"))
}

/// Reduces the failing program number `index`.
fn found(seed: u64, index: u64, options: Options) -> Found {
    let program = match generated(seed, index) {
        Ok(program) => program,
        Err(failure) => return Found { index, line: String::new(), failure },
    };
    match run::run(&program, options) {
        Err(failure) => {
            let (program, failure) = shrink::shrink(&program, &failure, options);
            Found { index, line: program.to_string(), failure }
        }
        Ok(_) => {
            let failure = Failure::new("unsteady", "it failed once and not when run again");
            Found { index, line: program.to_string(), failure }
        }
    }
}

/// Parses and runs the program with this text.
pub fn one(line: &str, options: Options) -> Result<Counts, Failure> {
    let program = parse(line).map_err(|message| Failure::new("unreadable", message))?;
    let counts = run::run(&program, options)?;
    let mut total = Counts::default();
    total.merge(&counts);
    Ok(total)
}

/// Parses the program with this text and runs it as a captured step.
pub fn one_captured(line: &str) -> Result<Captured, Failure> {
    captured::run(&parse(line).map_err(|message| Failure::new("unreadable", message))?)
}

/// Parses a program.
pub fn parse(line: &str) -> Result<Program, String> {
    text::parse(line)
}

/// Program number `index` of a seed, as one line.
pub fn line(seed: u64, index: u64) -> String {
    generate::program(seed, index).to_string()
}
