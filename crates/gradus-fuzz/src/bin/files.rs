//! Reads damaged files: `cargo xtask files --files N --seed S` tries N files of every format. `--format F` limits the
//! run to one format. To repeat one file, use `--format F --seed S --file K`; `--keep PATH` also writes it to PATH.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gradus_fuzz::files::{self, End, File, Format, Reader};
use gradus_fuzz::limited::{self, Limited};
use gradus_fuzz::panics;
use gradus_fuzz::search::{self, Search};
use gradus_fuzz::words::{Words, exit_code};

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// The number of files per child process.
const CHUNK: u64 = 20_000;
/// The time limit of a single file: how long a child may go without output.
const PATIENCE: Duration = Duration::from_secs(20);
/// A run of a format stops after this many failures.
const ENOUGH: usize = 20;

struct Options {
    seed: u64,
    files: u64,
    formats: Vec<Format>,
    /// Read only this file.
    file: Option<u64>,
    keep: Option<PathBuf>,
    /// The range of files for a child.
    child: Option<(u64, u64)>,
}

fn options() -> Result<Options, String> {
    let formats = Format::ALL.to_vec();
    let mut o = Options { seed: 1, files: 10_000, formats, file: None, keep: None, child: None };
    let mut words = Words::all();
    while let Some(option) = words.option() {
        match option.as_str() {
            "--seed" => o.seed = words.number()?,
            "--files" => o.files = words.number()?,
            "--file" => o.file = Some(words.number()?),
            "--keep" => o.keep = Some(words.text()?.into()),
            "--child" => o.child = Some((words.number()?, words.number()?)),
            "--format" => {
                let name = words.text()?;
                o.formats.retain(|f| f.name() == name);
                if o.formats.is_empty() {
                    let names: Vec<_> = Format::ALL.iter().map(|f| f.name()).collect();
                    return Err(format!("`{name}` is no format; there are {}", names.join(", ")));
                }
            }
            _ => return Err(format!("unknown option `{option}`")),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    let done = options().and_then(|o| match (o.file, o.child) {
        (Some(file), _) => single(&o, file),
        (_, Some(range)) => child(&o, range),
        _ => o.formats.iter().try_for_each(|&format| all(&o, format)),
    });
    exit_code(done)
}

/// The folder for files that are read by path: in memory, if the system has such a folder.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Reads one file in this process.
fn single(o: &Options, file: u64) -> Result<(), String> {
    let reader = Reader::new(&folder()).map_err(|e| e.to_string())?;
    limited::tell_refusals(true);
    for &format in &o.formats {
        let File { bytes, sparse, expected } = files::make(format, o.seed, file);
        println!("{}: {} bytes, sparse: {sparse:?}, expected: {expected:?}", format.name(), bytes.len());
        if let Some(path) = &o.keep {
            std::fs::write(path, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        panics::keep();
        let outcome = reader.read(format, o.seed, file);
        println!("{:?} in {:?}, with {} bytes at most", outcome.end, outcome.took, outcome.peak);
        outcome.end?;
    }
    Ok(())
}

/// Reads a range of files. Prints how many were accepted, and which file took the longest.
fn child(o: &Options, range: (u64, u64)) -> Result<(), String> {
    let (reader, format) = (Reader::new(&folder()).map_err(|e| e.to_string())?, o.formats[0]);
    panics::keep();
    let (mut read, mut slowest) = (0, (Duration::ZERO, 0));
    search::child(range, |file| {
        let outcome = reader.read(format, o.seed, file);
        slowest = slowest.max((outcome.took, file));
        match outcome.end {
            Ok(end) => read += u64::from(end == End::Read),
            Err(what) => return Some(what),
        }
        None
    })
    .map_err(|e| e.to_string())?;
    println!("done {read} {} {}", slowest.0.as_micros(), slowest.1);
    Ok(())
}

/// The totals that the children reported.
#[derive(Default)]
struct Report {
    read: u64,
    /// The longest time in microseconds, and the number of the file that took it.
    slowest: (u64, u64),
}

impl Report {
    fn line(&mut self, text: &str) {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        if words[0] == "done" {
            self.read += number(1);
            self.slowest = self.slowest.max((number(2), number(3)));
        } else {
            eprintln!("{text}");
        }
    }
}

/// Reads all files of a format, in child processes.
fn all(o: &Options, format: Format) -> Result<(), String> {
    let (report, began) = (Mutex::new(Report::default()), Instant::now());
    let options = ["--format".to_owned(), format.name().to_owned(), "--seed".to_owned(), o.seed.to_string()];
    let search =
        Search { tries: o.files, chunk: CHUNK, enough: ENOUGH, patience: PATIENCE, arguments: options.to_vec() };
    let failed = |file: u64, what: &str| {
        let build = if cfg!(debug_assertions) { "" } else { "--release " };
        eprintln!("FAILED  cargo xtask files {build}{} --file {file}\n        {what}", options.join(" "));
    };
    let line = |text: &str| report.lock().unwrap_or_else(PoisonError::into_inner).line(text);
    let failures = search.run(failed, line).map_err(|e| e.to_string())?;
    let report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (seconds, (micros, slowest)) = (began.elapsed().as_secs_f64(), report.slowest);
    println!(
        "{}: {} files in {seconds:.0} s ({:.0} a second), {} of them read; the slowest, number {slowest}, took {:.1} ms",
        format.name(),
        o.files,
        o.files as f64 / seconds,
        report.read,
        micros as f64 / 1e3
    );
    match failures {
        0 => Ok(()),
        n => Err(format!("{n} files of {} failed; each is repeated by its line above", format.name())),
    }
}
