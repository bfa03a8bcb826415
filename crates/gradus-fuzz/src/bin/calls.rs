//! Random calls of the public API: `cargo xtask calls --calls N --seed S`. To repeat one call, use `--seed S --call K`.
//!
//! `--only NAME` calls only the entry points whose names contain NAME. `--helpless` treats an error without a line of
//! help as a failure. `--patience` sets the time limit of a call in seconds.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gradus_fuzz::calls::run::{self, End, Outcome};
use gradus_fuzz::calls::table;
use gradus_fuzz::limited::{self, Limited};
use gradus_fuzz::panics;
use gradus_fuzz::search::{self, Search};
use gradus_fuzz::words::{Words, exit_code};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// The number of calls per child process.
const CHUNK: u64 = 10_000;
/// The time limit of a single call: seconds that a child may go without output.
const PATIENCE: u64 = 30;
/// A run stops after this many failures.
const ENOUGH: usize = 40;
/// A row that never succeeds in this many calls is itself wrong.
const FRUITLESS: u64 = 400;

#[derive(Default, Clone)]
struct Options {
    seed: u64,
    calls: u64,
    /// Run only this call, and print its arguments.
    call: Option<u64>,
    /// The range of calls for a child.
    child: Option<(u64, u64)>,
    /// Whether an error without help is a failure.
    helpless: bool,
    /// Call only rows whose names contain this.
    only: Option<String>,
    /// The time limit of a call, in seconds.
    patience: u64,
}

fn options() -> Result<Options, String> {
    let mut o = Options { seed: 1, calls: 5_000, patience: PATIENCE, ..Options::default() };
    let mut words = Words::all();
    while let Some(option) = words.option() {
        match option.as_str() {
            "--seed" => o.seed = words.number()?,
            "--calls" => o.calls = words.number()?,
            "--call" => o.call = Some(words.number()?),
            "--child" => o.child = Some((words.number()?, words.number()?)),
            "--helpless" => o.helpless = true,
            "--only" => o.only = Some(words.text()?),
            "--patience" => o.patience = words.number()?,
            _ => return Err(format!("unknown option `{option}`")),
        }
    }
    Ok(o)
}

impl Options {
    fn rows(&self) -> Vec<&'static table::Row> {
        let planted = self.only.as_ref().is_some_and(|only| only.starts_with("planted::"));
        let mut rows = if planted { table::planted() } else { table::all() };
        rows.retain(|r| self.only.as_ref().is_none_or(|only| r.name.contains(only.as_str())));
        rows
    }

    /// The options shared by the command that repeats a call and the one that starts a child.
    fn arguments(&self) -> Vec<String> {
        let only = self.only.iter().flat_map(|o| ["--only".into(), o.clone()]);
        ["--seed".into(), self.seed.to_string()].into_iter().chain(only).collect()
    }
}

fn main() -> ExitCode {
    let done = options().and_then(|o| match (o.call, o.child) {
        (Some(call), _) => single(&o, call),
        (_, Some(range)) => child(&o, range),
        _ => all(&o),
    });
    exit_code(done)
}

/// Makes one call in this process, and prints its arguments.
fn single(o: &Options, call: u64) -> Result<(), String> {
    // If RUST_BACKTRACE is set, the library captures backtraces itself, which deadlocks when memory is short. Restart
    // without it.
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|v| v != "0") {
        let same: Vec<String> = std::env::args().skip(1).collect();
        let mut command = search::this_program(&same).map_err(|e| e.to_string())?;
        let status = command.status().map_err(|e| e.to_string())?;
        return if status.success() { Ok(()) } else { Err(status.to_string()) };
    }
    let device = run::device().map_err(|e| e.to_string())?;
    limited::tell_refusals(true);
    panics::keep();
    match run::one(&o.rows(), o.seed, call, &device, true) {
        Outcome { end: End::Failed(what), .. } => Err(what),
        outcome => {
            println!("{outcome:?}");
            Ok(())
        }
    }
}

/// Makes a range of calls. For each row, prints the number of calls, of results, and of errors without help.
fn child(o: &Options, range: (u64, u64)) -> Result<(), String> {
    let device = run::device().map_err(|e| e.to_string())?;
    panics::keep();
    let rows = o.rows();
    let mut counts: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    let mut slow = vec![];
    search::child(range, |call| {
        let Outcome { name, end, took } = run::one(&rows, o.seed, call, &device, false);
        let count = counts.entry(name).or_default();
        count[0] += 1;
        if took > 1000 {
            slow.push((took, call, name));
        }
        match end {
            End::Done => count[1] += 1,
            End::Error => {}
            End::Helpless(_) if !o.helpless => count[2] += 1,
            End::Helpless(what) => return Some(format!("{name} says no help: {what}")),
            End::Failed(what) => return Some(format!("{name} {what}")),
        }
        None
    })
    .map_err(|e| e.to_string())?;
    counts.iter().for_each(|(name, [calls, done, helpless])| println!("row {name} {calls} {done} {helpless}"));
    slow.iter().for_each(|(ms, call, name)| println!("slow {ms} {call} {name}"));
    Ok(())
}

/// The totals that the children reported.
#[derive(Default)]
struct Report {
    slow: Vec<(u64, String)>,
    /// For each row: the number of calls, results and errors without help.
    rows: BTreeMap<String, [u64; 3]>,
}

impl Report {
    fn line(&mut self, text: &str) {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        match words[..] {
            ["slow", _, call, name] => self.slow.push((number(1), format!("call {call}: {name}"))),
            ["row", name, ..] => {
                let sums = self.rows.entry(name.to_owned()).or_default();
                sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += number(2 + i));
            }
            _ => eprintln!("{text}"),
        }
    }
}

/// Makes all calls, in child processes.
fn all(o: &Options) -> Result<(), String> {
    let (report, began) = (Mutex::new(Report::default()), Instant::now());
    let helpless = o.helpless.then(|| "--helpless".to_owned());
    let search = Search {
        tries: o.calls,
        chunk: CHUNK,
        enough: ENOUGH,
        patience: Duration::from_secs(o.patience),
        arguments: o.arguments().into_iter().chain(helpless).collect(),
    };
    let failed = |call: u64, what: &str| {
        let build = if cfg!(debug_assertions) { "" } else { "--release " };
        eprintln!("FAILED  cargo xtask calls {build}{} --call {call}\n        {what}", o.arguments().join(" "));
    };
    let line = |text: &str| report.lock().unwrap_or_else(PoisonError::into_inner).line(text);
    let failures = search.run(failed, line).map_err(|e| e.to_string())?;
    summary(o, &report.into_inner().unwrap_or_else(PoisonError::into_inner), began.elapsed(), failures)
}

fn summary(o: &Options, report: &Report, took: Duration, failures: usize) -> Result<(), String> {
    let [calls, done, helpless] = [0, 1, 2].map(|i| report.rows.values().map(|counts| counts[i]).sum::<u64>());
    println!(
        "{calls} calls of {} entry points in {:.0} s: {done} results, {} errors, {helpless} of them without help",
        report.rows.len(),
        took.as_secs_f64(),
        calls - done
    );
    let mut slow = report.slow.clone();
    slow.sort();
    slow.iter().rev().take(5).for_each(|(ms, what)| println!("slow: {ms} ms, {what}"));
    let fruitless: Vec<&str> =
        report.rows.iter().filter(|(_, c)| c[0] >= FRUITLESS && c[1] == 0).map(|(n, _)| n.as_str()).collect();
    if !fruitless.is_empty() {
        return Err(format!("never a result: {}", fruitless.join(", ")));
    }
    match failures {
        0 => Ok(()),
        n => Err(format!("{n} of {} calls failed; each is repeated by its line above", o.calls)),
    }
}
