//! The peers, how each is built, and how a job runs in a fresh process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use peer_harness::{Goal, Job, Probe, Ticks, median};
use serde_json::Value;

use crate::process::{ask, without_settings};

/// The name of the column of this build of Gradus.
pub const OURS: &str = "gradus";
/// The name of the column of an earlier build of Gradus.
pub const BASELINE: &str = "baseline";
/// The number of threads of every peer.
pub const THREADS: usize = 2;
/// The time limits of a process, in addition to the time that it measures: for a single job, and for all jobs.
const LIMIT: Duration = Duration::from_secs(180);
const LIMIT_OF_ALL: Duration = Duration::from_secs(900);

/// The columns, in order.
pub const NAMES: [&str; 8] = [OURS, "torch", "torch.compile", "jax", "burn", "candle", "numr", "rumus"];

/// The script of a peer and its additional arguments. A peer without a script is the package `peer-NAME`.
fn script(name: &str) -> Option<(&'static str, &'static [&'static str])> {
    match name {
        "torch" => Some(("torch_bench.py", &[])),
        "torch.compile" => Some(("torch_bench.py", &["--compile"])),
        "reference" => Some(("torch_bench.py", &["--reference"])),
        "jax" => Some(("jax_bench.py", &[])),
        _ => None,
    }
}

/// Whether a peer needs Python.
pub fn is_python(name: &str) -> bool {
    script(name).is_some()
}

/// A peer that can be run.
pub struct Program {
    pub name: &'static str,
    /// The folder of the comparison, `benches/peers`.
    here: PathBuf,
    program: PathBuf,
    before: Option<PathBuf>,
    after: &'static [&'static str],
    /// Why the peer cannot be run, if it cannot.
    broken: Option<String>,
}

/// The results of one process.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Slice {
    /// The seconds of a call, the seconds from the start of the process to its result, or the peak memory in MiB,
    /// depending on the job's goal.
    pub value: f64,
    /// The value for the fastest call or start, which other programs affect least. It is useful if the machine was not
    /// quiet.
    pub least: Option<f64>,
    pub probes: Vec<Probe>,
    /// The number of cores that the peer kept busy during the slice, and the share of the cores' time that other
    /// programs used.
    pub cores: Option<f64>,
    pub others: Option<f64>,
    /// The number of jobs that a process for all jobs did.
    pub done: Option<u64>,
}

/// A peer's answer to a job.
#[derive(Debug, PartialEq)]
pub enum Said {
    Slice(Slice),
    /// The peer has no way to do the job.
    Absent(String),
}

/// The cores that all peers run on: the first ones that this process may use, one per thread. Empty if the system does
/// not report them.
pub fn cores() -> Vec<usize> {
    let mut cores = peer_harness::cores();
    cores.truncate(THREADS);
    cores
}

/// Fails if processes cannot be restricted to these cores.
pub fn check_cores() -> Result<(), String> {
    if peer_harness::cores().len() <= THREADS || Command::new("taskset").arg("--version").output().is_ok() {
        return Ok(());
    }
    Err(format!("there is no `taskset`, which keeps everyone to {THREADS} of the cores here: it is in util-linux"))
}

/// Builds the wanted peers. A peer that cannot run records the reason, but Gradus itself must run.
pub fn programs(
    root: &Path,
    python: &Result<PathBuf, String>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for name in NAMES.into_iter().filter(|name| wanted(name)) {
        let program = program(root, python, name);
        if let Some(reason) = program.reason().filter(|_| name == OURS) {
            return Err(format!("{name} {reason}"));
        }
        programs.push(program);
    }
    Ok(programs)
}

/// Builds one peer, or `reference`, which is PyTorch in f64.
pub fn program(root: &Path, python: &Result<PathBuf, String>, name: &'static str) -> Program {
    let here = root.join("benches/peers");
    let Some((script, after)) = script(name) else {
        return built(name, here, name, &["--locked"]);
    };
    let before = Some(here.join(script));
    let (program, broken) = match python {
        Ok(python) => (python.clone(), None),
        Err(reason) => (PathBuf::new(), Some(format!("no Python environment: {reason}"))),
    };
    Program { name, here, program, before, after, broken }
}

/// Gradus with the crates of an earlier revision. `here` is a copy of the comparison's folder next to these crates.
/// Their dependencies may differ from our lock file.
pub fn baseline(here: &Path) -> Program {
    built(BASELINE, here.to_owned(), OURS, &[])
}

/// Builds a peer that is written in Rust.
fn built(name: &'static str, here: PathBuf, package: &str, options: &[&str]) -> Program {
    let program = here.join(format!("target/release/peer-{package}"));
    let broken = build(&here, package, options).err();
    Program { name, here, program, before: None, after: &[], broken }
}

/// Builds one peer on its own, so that its dependencies have only the features that it requests.
fn build(here: &Path, package: &str, options: &[&str]) -> Result<(), String> {
    println!("building peer-{package} in {}", here.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    without_settings(&mut command);
    command.args(["build", "--release", "--quiet", "-p", &format!("peer-{package}")]).args(options);
    let output = command.arg("--target-dir").arg(here.join("target")).current_dir(here).output();
    let output = output.map_err(|e| format!("does not build: cargo did not start: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    eprintln!("{errors}");
    let first = errors.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
    Err(format!("does not build: {first}"))
}

impl Program {
    /// Why the peer cannot be run, if it cannot.
    pub fn reason(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Runs a job in a fresh process for about this many seconds. With 0 seconds, the process only returns the job's
    /// result. If the job measures start-up, every start uses another process, and the median counts.
    pub fn run(&self, job: &Job, seconds: f64) -> Result<Said, String> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        let cores = cores();
        let (start, then) = (Instant::now(), Ticks::now(&cores));
        let mut slice = match self.once(job, seconds)? {
            Said::Slice(slice) => slice,
            absent => return Ok(absent),
        };
        if let Goal::Milliseconds(_) = job.goal {
            let mut starts = vec![slice.value];
            while start.elapsed().as_secs_f64() < seconds {
                if let Said::Slice(next) = self.once(job, seconds)? {
                    starts.push(next.value);
                }
            }
            slice.least = starts.iter().copied().min_by(f64::total_cmp);
            slice.value = median(starts).unwrap_or(slice.value);
        }
        // A process that times no calls cannot report these figures itself.
        let usage = Ticks::now(&cores).zip(then).and_then(|(now, then)| now.since(then));
        slice.cores = slice.cores.or(usage.map(|usage| usage.cores));
        slice.others = slice.others.or(usage.map(|usage| usage.others));
        Ok(Said::Slice(slice))
    }

    /// Runs pairs of growing jobs. The program prints the results itself.
    pub fn growth(&self, part: &str) -> Result<(), String> {
        let status = self.command().args(["--growth", part]).status().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("growth: {status}")) }
    }

    /// Runs a job in one process and returns its answer.
    fn once(&self, job: &Job, seconds: f64) -> Result<Said, String> {
        let seconds = if matches!(job.goal, Goal::Ratio(_)) { seconds } else { 0.0 };
        let mut command = self.command();
        command.args(["--job", job.name, "--seconds", &seconds.to_string()]).args(self.after);
        let limit = if job.is_all() { LIMIT_OF_ALL } else { LIMIT + Duration::from_secs_f64(seconds) };
        let answer = ask(&mut command, limit)?;
        read(job, &answer.line, answer.after)
    }

    /// The command that runs the peer with its number of threads. The number is set in the environment; if there are
    /// more cores, the process is also restricted to that many of them.
    fn command(&self) -> Command {
        let mut command = if peer_harness::cores().len() > THREADS {
            let cores: Vec<String> = cores().iter().map(usize::to_string).collect();
            let mut command = Command::new("taskset");
            command.args(["-c", &cores.join(",")]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        without_settings(&mut command);
        let threads = THREADS.to_string();
        for variable in [
            "GRADUS_NUM_THREADS",
            "RAYON_NUM_THREADS",
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "NPROC",
        ] {
            command.env(variable, &threads);
        }
        command.env("JAX_PLATFORMS", "cpu").env("TORCHINDUCTOR_COMPILE_THREADS", "1");
        command.env("TORCHINDUCTOR_CACHE_DIR", self.here.join("target/inductor"));
        command.args(&self.before);
        command
    }
}

/// Parses the line that a peer printed. `after` is the time from the start of the process to this line.
fn read(job: &Job, line: &str, after: Duration) -> Result<Said, String> {
    let line_says = |what: &str| format!("{line:?} {what}");
    let answer: Value = serde_json::from_str(line).map_err(|e| line_says(&format!("is no JSON: {e}")))?;
    if let Some(reason) = answer["absent"].as_str() {
        return Ok(Said::Absent(reason.to_owned()));
    }
    let value = match job.goal {
        Goal::Ratio(_) => answer["median"].as_f64(),
        Goal::Milliseconds(_) => Some(after.as_secs_f64()),
        Goal::Mebibytes(_) => match answer["peak_kb"].as_f64() {
            Some(kb) => Some(kb / 1024.0),
            None => return Ok(Said::Absent("the system does not tell how much memory a process held".into())),
        },
    };
    let numbers = |probe: &Value| -> Option<Probe> {
        // NaN is written as null.
        let all: Vec<f64> = probe.as_array()?.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect();
        all.try_into().ok()
    };
    let probes: Option<Vec<Probe>> =
        answer["probes"].as_array().map(|all| all.iter().map(numbers).collect()).unwrap_or(Some(Vec::new()));
    Ok(Said::Slice(Slice {
        // There is no value if the peer only computed the result.
        value: value.unwrap_or(f64::NAN),
        least: answer["least"].as_f64(),
        probes: probes.ok_or_else(|| line_says("has other probes"))?,
        cores: answer["cores"].as_f64(),
        others: answer["others"].as_f64(),
        done: answer["done"].as_u64(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peer_harness::jobs;

    fn job(wanted: impl Fn(&Job) -> bool) -> Job {
        jobs().unwrap().into_iter().find(wanted).unwrap()
    }

    fn slice(job: &Job, line: &str) -> Slice {
        match read(job, line, Duration::from_millis(20)) {
            Ok(Said::Slice(slice)) => slice,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_is_read_as_the_goal_asks() {
        let timed = job(|job| matches!(job.goal, Goal::Ratio(_)));
        let line = r#"{"median": 1e-3, "probes": [[4, 1.5, null, 2]], "absent": null, "cores": 1.9, "others": 0.25}"#;
        let found = slice(&timed, line);
        assert_eq!((found.value, found.probes[0][1], found.cores, found.others), (1e-3, 1.5, Some(1.9), Some(0.25)));
        assert!(found.probes[0][2].is_nan());
        let started = job(|job| matches!(job.goal, Goal::Milliseconds(_)));
        assert_eq!(slice(&started, line).value, 0.02);
        let held = job(Job::is_all);
        let found = slice(&held, r#"{"peak_kb": 2048, "done": 36}"#);
        assert_eq!((found.value, found.done, found.probes.len()), (2.0, Some(36), 0));
    }

    #[test]
    fn what_is_absent_or_no_answer_is_told_apart() {
        let (all, job) = (job(Job::is_all), job(|job| job.kind == "sum"));
        let said = read(&job, r#"{"median": null, "probes": [], "absent": "no sum"}"#, Duration::ZERO);
        assert_eq!(said, Ok(Said::Absent("no sum".into())));
        let untold = read(&all, r#"{"peak_kb": null, "done": 36}"#, Duration::ZERO);
        assert!(matches!(untold, Ok(Said::Absent(_))), "{untold:?}");
        for wrong in ["", "noise", r#"{"median": 1, "probes": [[1, 2]]}"#] {
            assert!(read(&job, wrong, Duration::ZERO).is_err(), "{wrong}");
        }
    }
}
