//! What a table must state besides its numbers: the machine, the versions, and the number of threads.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::git::git;
use crate::peers::{Program, THREADS};
use crate::python;

/// The versions of the peers that take part.
pub fn versions(root: &Path, python: Option<&Path>, programs: &[Program]) -> Result<Vec<String>, String> {
    let lock = root.join("benches/peers/Cargo.lock");
    let lock = std::fs::read_to_string(&lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    let version = |name: &str| match name {
        "gradus" => commit(root).map(|commit| format!("commit {commit}")),
        "torch" | "jax" => python::version(python?, name),
        "torch.compile" => None,
        "candle" => locked(&lock, "candle-core"),
        name => locked(&lock, name),
    };
    Ok(programs.iter().filter_map(|p| version(p.name).map(|version| format!("{} {version}", p.name))).collect())
}

/// A description of a run.
pub struct About {
    machine: String,
    versions: Vec<String>,
    compiler: String,
    rounds: usize,
    seconds: f64,
    is_full: bool,
}

impl About {
    pub fn new(versions: Vec<String>, arguments: &Arguments) -> About {
        About {
            machine: processor(),
            versions,
            compiler: compiler().unwrap_or("an unknown compiler".into()),
            rounds: arguments.rounds,
            seconds: arguments.seconds,
            is_full: arguments.is_full(),
        }
    }

    /// The description as a paragraph.
    pub fn text(&self) -> String {
        let About { machine, compiler, rounds, seconds, .. } = self;
        let (versions, means) = (self.versions.join(", "), format!("medians of {rounds} rounds"));
        format!("{machine}; {THREADS} threads; {versions}; {compiler}; {means}, {seconds} s for each and job.")
    }

    /// The description as JSON. `full` says whether it was a full run: all peers, all jobs, and enough rounds and
    /// seconds.
    pub fn to_json(&self) -> Value {
        json!({
            "machine": self.machine, "threads": THREADS, "versions": self.versions, "compiler": self.compiler,
            "rounds": self.rounds, "seconds": self.seconds, "full": self.is_full,
        })
    }
}

/// The processor's name, cores and widest vectors.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field =
        |name: &str| text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(": ")).map(|(_, v)| v);
    let flags = field("flags").unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    let vectors = match (has("avx512f"), has("avx2")) {
        (true, _) if has("avx512_bf16") => "AVX-512 with bf16",
        (true, _) => "AVX-512",
        (_, true) => "AVX2",
        _ => "no AVX2",
    };
    let numbers = format!("family {}, model {}", field("cpu family").unwrap_or("?"), field("model\t").unwrap_or("?"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} ({numbers}), {cores} cores, {vectors}", field("model name").unwrap_or(std::env::consts::ARCH))
}

/// The version of the compiler of the peers in Rust.
fn compiler() -> Option<String> {
    let output =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn commit(root: &Path) -> Option<String> {
    git(root, &[], &["describe", "--always", "--dirty"]).ok()
}

/// The version of a package in a lock file.
fn locked(lock: &str, package: &str) -> Option<String> {
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_lock_file() {
        let package = |name, version| format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n");
        let lock = &(package("burn-core", "1.0.0") + &package("burn", "2.0.0"));
        assert_eq!(locked(lock, "burn"), Some("2.0.0".into()));
        assert_eq!(locked(lock, "numr"), None);
    }
}
