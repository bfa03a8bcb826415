//! Runs the conformance suite on a GPU, and prints one line with the result.
//!
//! ```sh
//! cargo run --release -p gradus-cuda --example conform_cuda -- [--device N] [--jobs N] [--brief] [CASE]
//! cargo run --release -p gradus-cuda --example conform_cuda -- --each N [--device N] [--jobs N] [--seed S] [OPERATION]
//! ```
//! `CASE` is part of the names of cases, or the name that a failure prints: only those run. `--brief` runs each case in one of
//! its layouts. With `--each`, as many cases of each operation run instead, or more, with random shapes and layouts; with an
//! operation, such as `gemm`, only those of its kind.
//!
//! Most of the time is that of the compiler, which runs once for each kernel, so the cases are divided among processes, one
//! for each processor unless `--jobs` says how many.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use gradus_conformance::{Report, each, long, only, part};
use gradus_cuda::{CudaBackend, devices};

const USAGE: &str = "usage: conform_cuda [--device N] [--jobs N] [--brief] [CASE]
       conform_cuda --each N [--device N] [--jobs N] [--seed S] [OPERATION]";

/// What the command line asks for.
#[derive(Default)]
struct Options {
    device: usize,
    jobs: u64,
    /// The number of this process, if another one has started it.
    part: Option<u64>,
    brief: bool,
    each: Option<u64>,
    seed: u64,
    /// A case, or with `each` an operation.
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
            "--each" => options.each = Some(words.next()?.parse().ok()?),
            "--seed" => options.seed = words.next()?.parse().ok()?,
            _ if word.starts_with('-') || options.case.is_some() => return None,
            _ => options.case = Some(word),
        }
    }
    (!options.brief || options.each.is_none()).then_some(options)
}

/// What was counted.
#[derive(Default)]
struct Counts {
    calls: u64,
    failed: u64,
    /// Cases that need a dtype that the backend lacks.
    skipped: u64,
    /// Calls by operation.
    operations: BTreeMap<String, u64>,
}

impl Counts {
    fn of(report: &Report) -> Self {
        let operations = report.operations.iter().map(|(name, &count)| (name.clone(), count as u64)).collect();
        let [calls, failed, skipped] = [report.cases, report.failures.len(), report.skipped].map(|n| n as u64);
        Counts { calls, failed, skipped, operations }
    }

    fn add(&mut self, other: Counts) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.skipped += other.skipped;
        other.operations.into_iter().for_each(|(name, count)| *self.operations.entry(name).or_default() += count);
    }

    /// The last two lines of a run.
    fn lines(&self) -> String {
        let operations: Vec<String> = self.operations.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let Counts { calls, failed, skipped, .. } = self;
        let sums = format!("{failed} of {calls} calls fail, {skipped} cases need a dtype that it lacks");
        format!("calls by operation: {}\n{sums}", operations.join(", "))
    }

    /// What [`lines`](Counts::lines) says, and what stands before.
    fn read(text: &str) -> Option<(&str, Counts)> {
        let (before, lines) = text.rsplit_once("calls by operation: ")?;
        let (operations, sums) = lines.trim_end().split_once('\n')?;
        let pairs = operations.split(", ").filter(|pair| !pair.is_empty()).map(|pair| pair.split_once(' '));
        let operations = pairs.map(|pair| Some((pair?.0.to_owned(), pair?.1.parse().ok()?))).collect::<Option<_>>()?;
        let (failed, rest) = sums.split_once(" of ")?;
        let (calls, rest) = rest.split_once(" calls fail, ")?;
        let [calls, failed, skipped] = [calls, failed, rest.split(' ').next()?].map(|n| n.parse().ok());
        Some((before, Counts { calls: calls?, failed: failed?, skipped: skipped?, operations }))
    }
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let is_divided = options.part.is_none() && (options.case.is_none() || options.each.is_some());
    let outcome = if is_divided { divided(&options) } else { conform(&options) };
    match outcome {
        Ok(counts) => {
            println!("{}", counts.lines());
            if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    let mut sum = Counts::default();
    for part in parts {
        let output = part.wait_with_output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (before, counts) =
            Counts::read(&text).ok_or_else(|| format!("a part ended with {}:\n{text}", output.status))?;
        print!("{before}");
        sum.add(counts);
    }
    Ok(sum)
}

fn conform(options: &Options) -> Result<Counts, String> {
    let backend = CudaBackend::open(options.device).map_err(|e| e.to_string())?;
    let (number, jobs) = (options.part.unwrap_or(0), options.jobs);
    let case = options.case.as_deref();
    let mut reports = match (options.each, case) {
        (Some(count), operation) => {
            let share = count.div_ceil(jobs) as usize;
            vec![each(&backend, options.seed, [number, jobs], share, operation.unwrap_or_default())]
        }
        (None, Some(case)) => vec![only(&backend, case)],
        (None, None) => vec![part(&backend, number, jobs, options.brief)],
    };
    if options.each.is_none() && case.is_none() && !options.brief && number == 0 {
        reports.push(long(&backend));
    }
    let mut counts = Counts::default();
    for report in &reports {
        if !report.passed() {
            // What a closed pipe loses is the text of failures; their number is in the last line.
            let _ = writeln!(std::io::stdout(), "{report}");
        }
        counts.add(Counts::of(report));
    }
    Ok(counts)
}
