//! Damaged files of everything that is read: `files --files N --seed S` tries N of each format, `--format F` of one, and
//! `--format F --seed S --file K` reads one of them; `--keep PATH` writes that to a file.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gradus_fuzz::files::{self, End, File, Format, Reader};
use gradus_fuzz::limited::{self, Limited};
use gradus_fuzz::watch;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Files that one child reads.
const CHUNK: u64 = 20_000;
/// How long a child may say nothing: that is how long a single file may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// A run with more failures of a format ends.
const ENOUGH: usize = 20;

struct Options {
    seed: u64,
    files: u64,
    formats: Vec<Format>,
    /// One file.
    file: Option<u64>,
    keep: Option<PathBuf>,
    /// The files of a child.
    child: Option<(u64, u64)>,
}

fn options() -> Result<Options, String> {
    let formats = Format::ALL.to_vec();
    let mut o = Options { seed: 1, files: 10_000, formats, file: None, keep: None, child: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(key) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("`{key}` needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("`{text}` is no number"));
        match key.as_str() {
            "--seed" => o.seed = number(value()?)?,
            "--files" => o.files = number(value()?)?,
            "--file" => o.file = Some(number(value()?)?),
            "--keep" => o.keep = Some(value()?.into()),
            "--child" => o.child = Some((number(value()?)?, number(value()?)?)),
            "--format" => {
                let name = value()?;
                o.formats.retain(|f| f.name() == name);
                if o.formats.is_empty() {
                    return Err(format!("`{name}` is no format; there are safetensors, idx, csv, png and jpeg"));
                }
            }
            _ => return Err(format!("unknown option `{key}`")),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    let done = options().and_then(|o| match (o.file, o.child) {
        (Some(file), _) => single(&o, file),
        (_, Some((from, to))) => child(&o, from, to),
        _ => o.formats.iter().try_for_each(|&format| all(&o, format)),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The options that repeat a file.
fn repeated(o: &Options, format: Format, file: u64) -> String {
    let options = format!("--format {} --seed {} --file {file}", format.name(), o.seed);
    format!("cargo run --release -p gradus-fuzz --bin files -- {options}")
}

/// Where files lie that are read by their path: in memory, if the system has such a folder.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// Reads one file here.
fn single(o: &Options, file: u64) -> Result<(), String> {
    let reader = Reader::new(&folder()).map_err(|e| e.to_string())?;
    limited::tell_refusals(true);
    for &format in &o.formats {
        let File { bytes, sparse, expected } = files::make(format, o.seed, file);
        println!("{}: {} bytes, sparse: {sparse:?}, expected: {expected:?}", format.name(), bytes.len());
        if let Some(path) = &o.keep {
            std::fs::write(path, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        files::keep_panics();
        let outcome = reader.read(format, o.seed, file);
        println!("{:?} in {:?}, with {} bytes at most", outcome.end, outcome.took, outcome.peak);
        outcome.end?;
    }
    Ok(())
}

/// Reads files, and prints a line before each and for each that failed.
fn child(o: &Options, from: u64, to: u64) -> Result<(), String> {
    let (reader, format) = (Reader::new(&folder()).map_err(|e| e.to_string())?, o.formats[0]);
    files::keep_panics();
    let mut out = std::io::stdout().lock();
    let mut say =
        |text: String| out.write_all((text + "\n").as_bytes()).and_then(|()| out.flush()).map_err(|e| e.to_string());
    let (mut read, mut slowest) = (0, (Duration::ZERO, 0));
    for file in from..to {
        say(format!("file {file}"))?;
        let outcome = reader.read(format, o.seed, file);
        match outcome.end {
            Ok(end) => read += u64::from(end == End::Read),
            Err(what) => say(format!("failed {file} {}", what.replace('\n', " | ")))?,
        }
        slowest = slowest.max((outcome.took, file));
    }
    say(format!("done {read} {} {}", slowest.0.as_micros(), slowest.1))
}

/// What the children said.
#[derive(Default)]
struct Report {
    failures: usize,
    read: u64,
    /// Microseconds, and the file that took them.
    slowest: (u64, u64),
}

impl Report {
    fn failed(&mut self, o: &Options, format: Format, file: u64, what: &str) {
        eprintln!("FAILED  {}\n        {what}", repeated(o, format, file));
        self.failures += 1;
    }
}

/// Reads all files of a format, in children.
fn all(o: &Options, format: Format) -> Result<(), String> {
    let (report, next, began) = (Mutex::new(Report::default()), AtomicU64::new(0), Instant::now());
    let lock = || report.lock().map_err(|_| "a thread panicked".to_owned());
    let work = || -> Result<(), String> {
        loop {
            let mut from = next.fetch_add(CHUNK, Relaxed);
            let to = o.files.min(from + CHUNK);
            while from < to && lock()?.failures < ENOUGH {
                from = chunk(o, format, from, to, &report)?;
            }
            if to == o.files || lock()?.failures >= ENOUGH {
                return Ok(());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })?;
    let report = lock()?;
    let (seconds, (micros, slowest)) = (began.elapsed().as_secs_f64(), report.slowest);
    println!(
        "{}: {} files in {seconds:.0} s ({:.0} a second), {} of them read; the slowest, number {slowest}, took {:.1} ms",
        format.name(),
        o.files,
        o.files as f64 / seconds,
        report.read,
        micros as f64 / 1e3
    );
    match report.failures {
        0 => Ok(()),
        n => Err(format!("{n} files of {} failed; each is repeated by its line above", format.name())),
    }
}

/// Reads the files of a chunk until the child ends; the first file that is left to read.
fn chunk(o: &Options, format: Format, from: u64, to: u64, report: &Mutex<Report>) -> Result<u64, String> {
    let numbers = [o.seed, from, to].map(|n| n.to_string());
    let [seed, first, end] = &numbers;
    let arguments = ["--format", format.name(), "--seed", seed, "--child", first, end].map(str::to_owned);
    let mut at = from;
    let line = |text: &str| {
        let words: Vec<&str> = text.splitn(4, ' ').collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        let Ok(mut report) = report.lock() else { return };
        match words[0] {
            "file" => at = number(1),
            "failed" => report.failed(o, format, number(1), &words[2..].join(" ")),
            "done" => {
                report.read += number(1);
                report.slowest = report.slowest.max((number(2), number(3)));
            }
            _ => eprintln!("{text}"),
        }
    };
    let mut command = watch::this_program(&arguments).map_err(|e| e.to_string())?;
    // Finding the names of functions takes longer than a file may.
    command.env("RUST_BACKTRACE", "0");
    let (end, words) = watch::watch(&mut command, PATIENCE, line).map_err(|e| e.to_string())?;
    let what = match end {
        watch::End::Exited(status) if status.success() => return Ok(to),
        watch::End::Exited(status) => format!("{status}: {words}"),
        watch::End::Hung => format!("no end within {PATIENCE:?}"),
    };
    report.lock().map_err(|_| "a thread panicked")?.failed(o, format, at, &what);
    Ok(at + 1)
}
