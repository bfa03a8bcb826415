//! Runs the conformance suite on a GPU, and prints one line with the result.
//!
//! ```sh
//! cargo run --release -p gradus-cuda --example conform_cuda -- [--device N] [--jobs N] [--brief] [--rounds N] [--seed S] [CASE]
//! ```
//! `CASE` is part of the names of cases, or the name that a failure prints: only those run. `--brief` runs each case in one of
//! its layouts. With `--rounds`, as many rounds of cases with random shapes follow.
//!
//! Most of the time is that of the compiler, which runs once for each kernel, so the cases are divided among processes, one
//! for each processor unless `--jobs` says how many.
#![allow(clippy::print_stdout)]

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use gradus_conformance::{Report, deep, long, only, part};
use gradus_cuda::{CudaBackend, devices};

const USAGE: &str = "usage: conform_cuda [--device N] [--jobs N] [--brief] [--rounds N] [--seed S] [CASE]";

/// What the command line asks for.
#[derive(Default)]
struct Options {
    device: usize,
    jobs: u64,
    /// The number of this process, if another one has started it.
    part: Option<u64>,
    brief: bool,
    rounds: u64,
    seed: u64,
    case: Option<String>,
}

/// None if the command line is invalid.
fn options(mut words: impl Iterator<Item = String>) -> Option<Options> {
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut options = Options { seed: 1, jobs, ..Options::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--brief" => options.brief = true,
            "--device" => options.device = words.next()?.parse().ok()?,
            "--jobs" => options.jobs = words.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
            "--part" => options.part = Some(words.next()?.parse().ok()?),
            "--rounds" => options.rounds = words.next()?.parse().ok()?,
            "--seed" => options.seed = words.next()?.parse().ok()?,
            _ if word.starts_with('-') || options.case.is_some() => return None,
            _ => options.case = Some(word),
        }
    }
    Some(options)
}

/// Calls, failures, and cases that need a dtype that the backend lacks.
type Counts = [u64; 3];

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match (&options.case, options.part) {
        (None, None) => divided(&options),
        _ => conform(&options),
    };
    match outcome {
        Ok([calls, failed, skipped]) => {
            println!("{failed} of {calls} calls fail, {skipped} cases need a dtype that it lacks");
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program once for each part of the cases.
fn divided(options: &Options) -> Result<Counts, String> {
    for device in devices().map_err(|e| e.to_string())?.iter().skip(options.device).take(1) {
        let ((major, minor), (driver, _)) = (device.capability, device.driver);
        println!("{}: capability {major}.{minor}, {} MiB, CUDA {driver}", device.name, device.memory >> 20);
    }
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let start = |part: u64| {
        let mut command = Command::new(&this);
        command.args(std::env::args().skip(1)).args(["--jobs", &options.jobs.to_string(), "--part", &part.to_string()]);
        command.stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())
    };
    let parts = (0..options.jobs).map(start).collect::<Result<Vec<_>, String>>()?;
    let mut sum = [0; 3];
    for part in parts {
        let output = part.wait_with_output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (before, last) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
        let counts = counted(last).ok_or_else(|| format!("a part ended with {}:\n{text}", output.status))?;
        println!("{before}");
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    Ok(sum)
}

/// The counts in the last line of a part.
fn counted(line: &str) -> Option<Counts> {
    let (failed, rest) = line.split_once(" of ")?;
    let (calls, rest) = rest.split_once(" calls fail, ")?;
    let skipped = rest.split(' ').next()?;
    Some([calls.parse().ok()?, failed.parse().ok()?, skipped.parse().ok()?])
}

fn conform(options: &Options) -> Result<Counts, String> {
    let backend = CudaBackend::open(options.device).map_err(|e| e.to_string())?;
    let number = options.part.unwrap_or(0);
    let mut reports = match &options.case {
        Some(case) => vec![only(&backend, case)],
        None => vec![part(&backend, number, options.jobs, options.brief)],
    };
    if options.case.is_none() && !options.brief && number == 0 {
        reports.push(long(&backend));
    }
    // Each part has rounds of its own.
    let rounds = options.rounds.div_ceil(options.jobs);
    if options.case.is_none() && rounds > 0 {
        reports.push(deep(&backend, options.seed + number, rounds));
    }
    for report in reports.iter().filter(|report| !report.passed()) {
        // What a closed pipe loses is the text of failures; their number is in the last line.
        let _ = writeln!(std::io::stdout(), "{report}");
    }
    let sum = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>() as u64;
    Ok([sum(|r| r.cases), sum(|r| r.failures.len()), sum(|r| r.skipped)])
}
