//! Who takes part, how each is built, and how a job is run in a fresh process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use peer_harness::{Goal, Job, Probe};
use serde_json::Value;

use crate::process::ask;

/// The name of our column.
pub const OURS: &str = "gradus";
/// The name of the column of an earlier build of ours.
pub const BASELINE: &str = "baseline";
/// How many threads everyone has.
pub const THREADS: usize = 2;
/// How long a process may take before it is stopped, and how long one that does all jobs.
const LIMIT: Duration = Duration::from_secs(180);
const LIMIT_OF_ALL: Duration = Duration::from_secs(900);

/// The columns, in order.
pub const NAMES: [&str; 8] = [OURS, "torch", "torch.compile", "jax", "burn", "candle", "numr", "rumus"];

/// The script of a peer and its further arguments; a peer without one is the package `peer-NAME`.
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
    /// The folder of the comparison.
    here: PathBuf,
    program: PathBuf,
    before: Option<PathBuf>,
    after: &'static [&'static str],
    /// Why it cannot be run.
    broken: Option<String>,
}

/// What a process found.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Slice {
    /// The seconds of a call or from the process's start to its result, or the MiB held, as the job's goal asks.
    pub value: f64,
    /// The fastest call: what others disturb least, to look at where the machine was not quiet.
    pub least: Option<f64>,
    pub probes: Vec<Probe>,
    /// How many cores the peer kept busy meanwhile, and the part of all cores' time that others used.
    pub cores: Option<f64>,
    pub others: Option<f64>,
    /// How many jobs it did, of one that does all.
    pub done: Option<u64>,
}

/// What a peer says to a job.
#[derive(Debug, PartialEq)]
pub enum Said {
    Slice(Slice),
    /// It has no way to do the job.
    Absent(String),
}

/// The peers of these names, built. One that cannot be run says why; ours must be.
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

/// One peer, built, or `reference`: PyTorch in f64.
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

/// Ours, built with other crates: `here` is a copy of the comparison's folder beside them. What they depend on may differ
/// from what our lock file says.
pub fn baseline(here: &Path) -> Program {
    built(BASELINE, here.to_owned(), OURS, &[])
}

/// A peer in Rust.
fn built(name: &'static str, here: PathBuf, package: &str, options: &[&str]) -> Program {
    let program = here.join(format!("target/release/peer-{package}"));
    let broken = build(&here, package, options).err();
    Program { name, here, program, before: None, after: &[], broken }
}

/// Builds one peer alone, so that its dependencies have the features that it asks for and no others.
fn build(here: &Path, package: &str, options: &[&str]) -> Result<(), String> {
    println!("building peer-{package} in {}", here.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
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
    /// Why it cannot be run.
    pub fn reason(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Runs a job in a fresh process; a job whose calls are timed, for about so many seconds, where 0 gives its result
    /// alone.
    pub fn run(&self, job: &Job, seconds: f64) -> Result<Said, String> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        let seconds = if matches!(job.goal, Goal::Ratio(_)) { seconds } else { 0.0 };
        let mut command = self.command();
        command.args(["--job", job.name, "--seconds", &seconds.to_string()]).args(self.after);
        let answer = ask(&mut command, if job.is_all() { LIMIT_OF_ALL } else { LIMIT })?;
        read(job, &answer.line, answer.after)
    }

    /// The program with its threads: by environment, and by two cores where there are more.
    fn command(&self) -> Command {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = if cores > THREADS {
            let mut command = Command::new("taskset");
            command.args(["-c", "0-1"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
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

/// Reads the line that a peer printed so long after its start.
fn read(job: &Job, line: &str, after: Duration) -> Result<Said, String> {
    let line_says = |what: &str| format!("{line:?} {what}");
    let answer: Value = serde_json::from_str(line).map_err(|e| line_says(&format!("is no JSON: {e}")))?;
    if let Some(reason) = answer["absent"].as_str() {
        return Ok(Said::Absent(reason.to_owned()));
    }
    let value = match job.goal {
        Goal::Ratio(_) => answer["median"].as_f64(),
        Goal::Milliseconds(_) => Some(after.as_secs_f64()),
        Goal::Mebibytes(_) => answer["peak_kb"].as_f64().map(|kb| kb / 1024.0),
    };
    let numbers = |probe: &Value| -> Option<Probe> {
        // NaN is written as null.
        let all: Vec<f64> = probe.as_array()?.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect();
        all.try_into().ok()
    };
    let probes: Option<Vec<Probe>> =
        answer["probes"].as_array().map(|all| all.iter().map(numbers).collect()).unwrap_or(Some(Vec::new()));
    Ok(Said::Slice(Slice {
        // A result alone has no time.
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
        let job = job(|job| job.kind == "sum");
        let said = read(&job, r#"{"median": null, "probes": [], "absent": "no sum"}"#, Duration::ZERO);
        assert_eq!(said, Ok(Said::Absent("no sum".into())));
        for wrong in ["", "noise", r#"{"median": 1, "probes": [[1, 2]]}"#] {
            assert!(read(&job, wrong, Duration::ZERO).is_err(), "{wrong}");
        }
    }
}
