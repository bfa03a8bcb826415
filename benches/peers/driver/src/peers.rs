//! Who takes part, how each is built, and how a job is run in a fresh process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use peer_harness::Probe;
use serde_json::Value;

/// The name of our column.
pub const OURS: &str = "gradus";
/// How many threads everyone has.
pub const THREADS: usize = 2;
/// How long a process may take before it is stopped.
const LIMIT: Duration = Duration::from_secs(300);

/// The columns: name, and what is run.
const PEERS: &[(&str, Kind)] = &[
    (OURS, Kind::Rust("gradus")),
    ("torch", Kind::Python("torch_bench.py", &[])),
    ("torch.compile", Kind::Python("torch_bench.py", &["--compile"])),
    ("jax", Kind::Python("jax_bench.py", &[])),
    ("burn", Kind::Rust("burn")),
    ("candle", Kind::Rust("candle")),
    ("numr", Kind::Rust("numr")),
    ("rumus", Kind::Rust("rumus")),
];

#[derive(Clone, Copy)]
enum Kind {
    /// The package `peer-NAME`.
    Rust(&'static str),
    /// A script and its further arguments.
    Python(&'static str, &'static [&'static str]),
}

/// A peer that can be run.
pub struct Program {
    pub name: &'static str,
    program: PathBuf,
    before: Vec<String>,
    after: &'static [&'static str],
    /// Why it could not be built.
    broken: Option<String>,
}

/// What a process found.
#[derive(Default)]
pub struct Slice {
    pub median: f64,
    pub probes: Vec<Probe>,
    pub absent: Option<String>,
    pub failed: Option<String>,
    pub peak_kb: u64,
}

/// The peers of these names, built.
pub fn programs(root: &Path, python: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Program>, String> {
    let here = root.join("benches/peers");
    let mut programs = Vec::new();
    for &(name, kind) in PEERS.iter().filter(|(name, _)| wanted(name)) {
        programs.push(match kind {
            Kind::Python(script, after) => python_program(name, &here, python, script, after),
            Kind::Rust(package) => {
                let program = here.join(format!("target/release/peer-{package}"));
                let broken = build(&here, package).err();
                if let Some(reason) = broken.as_ref().filter(|_| name == OURS) {
                    return Err(reason.clone());
                }
                Program { name, program, before: Vec::new(), after: &[], broken }
            }
        });
    }
    Ok(programs)
}

/// PyTorch in f64.
pub fn reference(root: &Path, python: &Path) -> Program {
    python_program("reference", &root.join("benches/peers"), python, "torch_bench.py", &["--reference"])
}

fn python_program(
    name: &'static str,
    here: &Path,
    python: &Path,
    script: &str,
    after: &'static [&'static str],
) -> Program {
    let before = vec![here.join(script).display().to_string()];
    Program { name, program: python.to_path_buf(), before, after, broken: None }
}

/// Builds one peer alone, so that its dependencies have the features that it asks for and no others.
fn build(here: &Path, package: &str) -> Result<(), String> {
    println!("building peer-{package}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--quiet", "-p", &format!("peer-{package}"), "--target-dir"]);
    let output = command.arg(here.join("target")).current_dir(here).output();
    let output = output.map_err(|e| format!("cargo did not start: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    eprintln!("{errors}");
    let first = errors.lines().find(|line| line.starts_with("error")).unwrap_or("the build failed");
    Err(format!("does not build: {first}"))
}

impl Program {
    /// Runs a job in a fresh process for about so many seconds; 0 gives the probes of its result alone.
    pub fn run(&self, job: &str, seconds: f64) -> Result<Slice, String> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        let mut command = self.command();
        command.args(["--job", job, "--seconds", &seconds.to_string()]).args(self.after);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", self.program.display()))?;
        let start = Instant::now();
        // A line of a few hundred bytes fits into the pipe, so nothing waits for a reader.
        while child.try_wait().map_err(|e| e.to_string())?.is_none() {
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("took more than {} s", LIMIT.as_secs()));
            }
            sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let said = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            return Err(format!("{}: {said}", output.status));
        }
        read(&String::from_utf8_lossy(&output.stdout))
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
        for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            command.env(variable, &threads);
        }
        command.env("XLA_FLAGS", format!("--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={threads}"));
        command.env("JAX_PLATFORMS", "cpu").args(&self.before);
        command
    }
}

/// Reads the last line that a peer printed.
fn read(text: &str) -> Result<Slice, String> {
    let line = text.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).map_err(|e| format!("{line:?} is no JSON: {e}"))?;
    let numbers = |value: &Value| -> Option<Probe> {
        // NaN is written as null.
        let all: Vec<f64> = value.as_array()?.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect();
        all.try_into().ok()
    };
    let probes = value["probes"].as_array().map(|all| all.iter().map(numbers).collect());
    Ok(Slice {
        median: value["median"].as_f64().unwrap_or(f64::NAN),
        probes: probes.flatten().ok_or(format!("{line:?} has no probes"))?,
        absent: value["absent"].as_str().map(str::to_owned),
        failed: None,
        peak_kb: value["peak_kb"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_peer_is_read() {
        let slice =
            read("noise\n{\"median\": 1e-3, \"probes\": [[4, 1.5, null, 2]], \"absent\": null, \"peak_kb\": 7}")
                .unwrap();
        assert_eq!((slice.median, slice.peak_kb, slice.probes[0][1]), (1e-3, 7, 1.5));
        assert!(slice.probes[0][2].is_nan() && slice.absent.is_none());
        assert!(read("").is_err() && read("{}").is_err());
    }
}
