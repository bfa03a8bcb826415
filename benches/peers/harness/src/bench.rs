//! Measures one job, and contains the main function of every peer.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use crate::probe::{Probe, probe};
use crate::usage::{Ticks, Usage, cores};
use crate::{Job, classes, jobs};

/// The result of a peer's `run`. It is `Ok` if the job was done, or if [`Bench::absent`] said why the peer cannot do
/// it.
pub type Outcome = Result<(), Box<dyn Error>>;

/// The number of training steps whose losses are compared.
const STEPS: usize = 4;
/// The number of untimed calls before measuring, in addition to those that were compared.
const WARM_UP: usize = 2;
/// The minimum number of calls for a median, however long they take.
const FEWEST: usize = 3;

/// The median of some numbers; for an even count, the mean of the two middle ones.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { *upper } else { (sorted[sorted.len() / 2 - 1] + upper) / 2.0 })
}

/// Measures one job.
#[derive(Default)]
pub struct Bench {
    /// Whether results are read and reported.
    compares: bool,
    warm_up: usize,
    seconds: f64,
    repeats: usize,
    probes: Vec<Probe>,
    times: Vec<f64>,
    usage: Option<Usage>,
    absent: Option<String>,
}

impl Bench {
    /// Prepares to measure a job for this many seconds. With 0 seconds, only the result is reported.
    fn new(job: &Job, seconds: f64) -> Bench {
        let warm_up = if seconds == 0.0 { 0 } else { WARM_UP };
        Bench { compares: true, warm_up, seconds, repeats: job.repeats(), ..Bench::default() }
    }

    /// Compares the result of one call, which `read` converts to numbers, and then times `job`. The time includes
    /// dropping the results.
    pub fn time<T, E: Into<Box<dyn Error>>>(
        &mut self,
        mut job: impl FnMut() -> Result<T, E>,
        read: impl FnOnce(T) -> Result<Vec<Vec<f32>>, E>,
    ) -> Outcome {
        let result = job().map_err(Into::into)?;
        if self.compares {
            self.probes = read(result).map_err(Into::into)?.iter().map(|values| probe(values)).collect();
        } else {
            drop(result);
        }
        self.repeat(|| job().map(drop).map_err(Into::into))
    }

    /// Compares the losses of the first steps, which `read` extracts, and then times `step`.
    pub fn train<T, E: Into<Box<dyn Error>>>(
        &mut self,
        mut step: impl FnMut() -> Result<T, E>,
        read: impl Fn(T) -> Result<f32, E>,
    ) -> Outcome {
        let losses: Result<Vec<f32>, E> = (0..STEPS).map(|_| step().and_then(&read)).collect();
        self.probes = vec![probe(&losses.map_err(Into::into)?)];
        self.repeat(|| step().map(drop).map_err(Into::into))
    }

    /// Reports that this peer has no way to do the job.
    pub fn absent(&mut self, reason: &str) -> Outcome {
        self.absent = Some(reason.into());
        Ok(())
    }

    fn repeat(&mut self, mut job: impl FnMut() -> Outcome) -> Outcome {
        for _ in 0..self.warm_up {
            job()?;
        }
        if self.seconds == 0.0 {
            return Ok(());
        }
        let cores = cores();
        let (then, start) = (Ticks::now(&cores), Instant::now());
        while self.times.len() < FEWEST || start.elapsed().as_secs_f64() < self.seconds {
            let call = Instant::now();
            job()?;
            self.times.push(call.elapsed().as_secs_f64() / self.repeats as f64);
        }
        self.usage = Ticks::now(&cores).zip(then).and_then(|(now, then)| now.since(then));
        Ok(())
    }

    /// The line that the driver reads.
    fn line(&self) -> String {
        let times = || self.times.iter().copied();
        serde_json::json!({
            "median": median(times()), "least": times().min_by(f64::total_cmp), "samples": self.times.len(),
            "probes": self.probes, "absent": self.absent,
            "cores": self.usage.map(|usage| usage.cores), "others": self.usage.map(|usage| usage.others),
        })
        .to_string()
    }
}

/// The peak memory of this process in KiB, if the system reports it.
fn peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The whole program of a peer: reads `--job NAME --seconds S`, runs the job and prints the line.
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
    let (all, classes) = (jobs()?, classes()?);
    let job = all.iter().chain(&classes).find(|job| job.name == name).ok_or(format!("there is no job {name}"))?;
    if job.is_all() {
        let done = all.iter().filter(|job| !job.is_all() && is_done(run, job)).count();
        return Ok(serde_json::json!({ "peak_kb": peak_kb(), "done": done }).to_string());
    }
    let mut bench = Bench::new(job, seconds.parse()?);
    run(job, &mut bench)?;
    Ok(bench.line())
}

/// The median time of a call, including all its operations, measured in this process for this many seconds. Results are
/// not compared.
pub fn seconds_of(run: fn(&Job, &mut Bench) -> Outcome, job: &Job, seconds: f64) -> Result<f64, Box<dyn Error>> {
    let mut bench = Bench { warm_up: WARM_UP, seconds, repeats: 1, ..Bench::default() };
    run(job, &mut bench)?;
    Ok(median(bench.times).ok_or_else(|| bench.absent.unwrap_or("nothing was timed".into()))?)
}

/// Runs a job a few times, without timing it and without reading its result. Returns whether that worked; a failure is
/// reported when the job itself is measured.
fn is_done(run: fn(&Job, &mut Bench) -> Outcome, job: &Job) -> bool {
    let mut bench = Bench { warm_up: WARM_UP, repeats: job.repeats(), ..Bench::default() };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(job, &mut bench)));
    matches!(outcome, Ok(Ok(()))) && bench.absent.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(job: &Job, bench: &mut Bench) -> Outcome {
        match job.kind {
            "add" => bench.time(|| Ok::<_, String>(vec![1.0, 2.0]), |y| Ok(vec![y])),
            "train_mlp" => bench.train(|| Ok::<_, String>(1.0), Ok),
            "exp" => Err("it broke".into()),
            "sum" => panic!("it stopped"),
            _ => bench.absent("no such function"),
        }
    }

    fn of_kind(kind: &str) -> Job {
        jobs().unwrap().into_iter().find(|job| job.kind == kind).unwrap()
    }

    #[test]
    fn a_job_of_no_seconds_gives_its_result_alone() {
        let job = of_kind("add");
        let mut bench = Bench::new(&job, 0.0);
        let mut calls = 0;
        let counted = || {
            calls += 1;
            Ok::<_, String>(vec![3.0, 4.0])
        };
        bench.time(counted, |y| Ok(vec![y])).unwrap();
        assert_eq!((calls, bench.times.len(), bench.probes[0][1]), (1, 0, 5.0));
    }

    #[test]
    fn a_timed_job_has_samples_and_a_trained_one_its_losses() {
        let job = of_kind("train_mlp");
        let mut bench = Bench::new(&job, 1e-9);
        add(&job, &mut bench).unwrap();
        assert_eq!((bench.times.len(), bench.probes[0][0]), (FEWEST, STEPS as f64));
    }

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median([3.0, 9.0, 1.0]), Some(3.0));
        assert_eq!((median([4.0, 1.0, 9.0, 2.0]), median([])), (Some(3.0), None));
    }

    #[test]
    fn of_all_jobs_those_count_that_are_done() {
        for (kind, done) in [("add", true), ("exp", false), ("sum", false), ("softmax", false)] {
            assert_eq!(is_done(add, &of_kind(kind)), done, "{kind}");
        }
    }
}
