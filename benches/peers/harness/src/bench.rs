//! Measuring one job, and the program around it.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use crate::probe::{Probe, probe};
use crate::{Job, jobs};

/// What a peer's `run` gives: `Ok` when the job was done or [`Bench::absent`] said why it cannot be.
pub type Outcome = Result<(), Box<dyn Error>>;

/// The steps of a training job whose losses are compared.
const STEPS: usize = 4;
/// Calls before the clock counts, besides those that were compared.
const WARM_UP: usize = 2;
/// The fewest calls that a median is taken of, however long they take.
const FEWEST: usize = 3;

/// Takes the measurements of one job.
pub struct Bench {
    seconds: f64,
    repeats: usize,
    probes: Vec<Probe>,
    times: Vec<f64>,
    absent: Option<String>,
}

impl Bench {
    /// Compares by `read`, which gives every result of one call as numbers, then times `job`. The time includes dropping
    /// what a call gives.
    pub fn time<T, E: Into<Box<dyn Error>>>(
        &mut self,
        mut job: impl FnMut() -> Result<T, E>,
        read: impl FnOnce(T) -> Result<Vec<Vec<f32>>, E>,
    ) -> Outcome {
        let results = job().and_then(read).map_err(Into::into)?;
        self.probes = results.iter().map(|values| probe(values)).collect();
        drop(results);
        self.repeat(|| job().map(drop).map_err(Into::into))
    }

    /// Compares the losses of the first steps by `read`, then times `step`.
    pub fn train<T, E: Into<Box<dyn Error>>>(
        &mut self,
        mut step: impl FnMut() -> Result<T, E>,
        read: impl Fn(T) -> Result<f32, E>,
    ) -> Outcome {
        let losses: Result<Vec<f32>, E> = (0..STEPS).map(|_| step().and_then(&read)).collect();
        self.probes = vec![probe(&losses.map_err(Into::into)?)];
        self.repeat(|| step().map(drop).map_err(Into::into))
    }

    /// Says that this peer has no way to do the job.
    pub fn absent(&mut self, reason: &str) -> Outcome {
        self.absent = Some(reason.into());
        Ok(())
    }

    fn repeat(&mut self, mut job: impl FnMut() -> Outcome) -> Outcome {
        if self.seconds == 0.0 {
            return Ok(());
        }
        for _ in 0..WARM_UP {
            job()?;
        }
        let start = Instant::now();
        while self.times.len() < FEWEST || start.elapsed().as_secs_f64() < self.seconds {
            let call = Instant::now();
            job()?;
            self.times.push(call.elapsed().as_secs_f64() / self.repeats as f64);
        }
        self.times.sort_by(f64::total_cmp);
        Ok(())
    }

    /// The line that the driver reads.
    fn line(&self) -> String {
        let median = self.times.get(self.times.len() / 2);
        serde_json::json!({
            "median": median, "samples": self.times.len(), "probes": self.probes, "absent": self.absent, "peak_kb": peak_kb(),
        })
        .to_string()
    }
}

/// The most memory that this process held, in KiB, where the system says so.
fn peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A peer's whole program: reads `--job NAME --seconds S`, runs the job and prints the line.
pub fn main(run: fn(&Job, &mut Bench) -> Outcome) -> ExitCode {
    match measure(run) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(run: fn(&Job, &mut Bench) -> Outcome) -> Result<String, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["--job", name, "--seconds", seconds] = arguments[..] else {
        return Err("usage: --job NAME --seconds S".into());
    };
    let job = jobs()?.into_iter().find(|job| job.name == name).ok_or(format!("there is no job {name}"))?;
    let (seconds, repeats) = (seconds.parse()?, job.repeats());
    let mut bench = Bench { seconds, repeats, probes: Vec::new(), times: Vec::new(), absent: None };
    run(&job, &mut bench)?;
    Ok(bench.line())
}
