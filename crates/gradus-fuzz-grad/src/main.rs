//! Compares gradients of random programs with those of a functional reference: `cargo xtask fuzz-grad`.
//!
//! ```sh
//! cargo run --release -p gradus-fuzz-grad -- --programs 20000 --seed 1
//! cargo run --release -p gradus-fuzz-grad -- --program '%1=leaf(7); %2=square(%1); %3=grad(%2,_,%1;1,1)'
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Instant;

use gradus_fuzz_grad::{Options, Planted, captured, fuzz, line, one, one_captured};

const USAGE: &str = "usage: gradus-fuzz-grad [--captured] [--programs N] [--seed S] [--failures K] [--show I] [--planted MISTAKE] | --program LINE";

enum Task {
    Many { seed: u64, count: u64, failures: usize, show: Option<u64>, planted: Option<Planted> },
    One(String),
    Captured(CapturedWhat),
}

/// Which programs are run as captured steps.
enum CapturedWhat {
    Many { seed: u64, count: u64 },
    One(String),
}

fn task(arguments: &[String]) -> Result<Task, String> {
    if let [first, rest @ ..] = arguments
        && first == "--captured"
    {
        return match task(rest)? {
            Task::Many { seed, count, .. } => Ok(Task::Captured(CapturedWhat::Many { seed, count })),
            Task::One(line) => Ok(Task::Captured(CapturedWhat::One(line))),
            Task::Captured(_) => Err("`--captured` is given twice".to_owned()),
        };
    }
    let (mut seed, mut count, mut failures, mut show, mut planted) = (1, 20_000, 1, None, None);
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return Err(format!("`{}` needs a value", pair[0])) };
        let number = || value.parse::<u64>().map_err(|_| format!("`{value}` is no number"));
        match key.as_str() {
            "--program" => return Ok(Task::One(value.clone())),
            "--programs" => count = number()?,
            "--seed" => seed = number()?,
            "--failures" => failures = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--show" => show = Some(number()?),
            "--planted" => planted = Some(mistake(value)?),
            _ => return Err(format!("unknown option `{key}`")),
        }
    }
    Ok(Task::Many { seed, count, failures, show, planted })
}

/// The planted mistake with this name.
fn mistake(name: &str) -> Result<Planted, String> {
    let found = Planted::ALL.iter().find(|p| format!("{p:?}").eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| format!("`{name}` is none of {:?}", Planted::ALL))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // A panic is a finding and is reported with its program, so the hook prints it only on request.
    std::panic::set_hook(Box::new(|panic| {
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            eprintln!("{panic}");
        }
    }));
    match task(&arguments) {
        Ok(Task::Many { seed, show: Some(index), .. }) => {
            println!("{}", line(seed, index));
            ExitCode::SUCCESS
        }
        Ok(Task::Many { seed, count, failures, show: None, planted }) => {
            let start = Instant::now();
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let (counts, found) = fuzz(seed, count, threads, failures, Options { planted, ..Options::default() });
            println!("fuzz-grad: seed {seed}, {:.1} s\n{counts}", start.elapsed().as_secs_f64());
            for f in &found {
                println!("program {} of seed {seed} failed: {}\nrun it alone:", f.index, f.failure);
                println!("  cargo xtask fuzz-grad --program '{}'\n", f.line);
            }
            // With fewer programs, the percentages mean nothing.
            let amiss = if count >= 1000 && found.is_empty() { counts.amiss() } else { vec![] };
            amiss.iter().for_each(|what| println!("the programs are not what they should be: {what}"));
            if found.is_empty() && amiss.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(Task::Captured(CapturedWhat::One(line))) => match one_captured(&line) {
            Ok(counts) => {
                println!("{counts:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        },
        Ok(Task::Captured(CapturedWhat::Many { seed, count })) => {
            let start = Instant::now();
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let (counts, found) = captured(seed, count, threads);
            println!(
                "fuzz-grad: seed {seed}, {:.1} s, {} programs captured, {} replays compared, {} programs refused",
                start.elapsed().as_secs_f64(),
                counts.replayed,
                counts.replays,
                counts.refused
            );
            match found {
                Some(f) => {
                    println!("program {} of seed {seed} failed: {}\n  {}", f.index, f.failure, f.line);
                    ExitCode::FAILURE
                }
                None => ExitCode::SUCCESS,
            }
        }
        Ok(Task::One(line)) => match one(&line, Options { trace: true, ..Options::default() }) {
            Ok(counts) => {
                println!("\nboth sides agree\n{counts}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("\n{failure}");
                ExitCode::FAILURE
            }
        },
        Err(message) => {
            eprintln!("error: {message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
