//! Runs a program on several ranks with `mpirun`, and ends all of it in the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::{children, signal};

/// Builds the program `ranks` with optimisation, and returns its path.
pub(super) fn optimised_ranks(root: &Path) -> Result<PathBuf, String> {
    let words = ["--release", "-p", "gradus-dist", "--features", "mpi", "--example", "ranks"];
    build(root, &words)?;
    program(root, "release/examples/ranks")
}

/// Builds the command `gradus` with optimisation, and returns its path.
pub(super) fn optimised_gradus(root: &Path) -> Result<PathBuf, String> {
    build(root, &["--release", "-p", "gradus-cli", "--features", "mpi"])?;
    program(root, "release/gradus")
}

/// Builds the program `ranks` and the command `gradus`, and returns their paths. What both depend on has the features
/// that `cargo test --workspace` gives it, so that after the tests only the crates with MPI are built.
pub(super) fn programs(root: &Path) -> Result<[PathBuf; 2], String> {
    let features = "gradus-dist/mpi,gradus-cli/mpi";
    build(root, &["--workspace", "--features", features, "--example", "ranks", "--bin", "gradus"])?;
    Ok([program(root, "debug/examples/ranks")?, program(root, "debug/gradus")?])
}

fn build(root: &Path, words: &[&str]) -> Result<(), String> {
    crate::workspace::done(Command::new("mpirun").arg("--version").stdout(Stdio::null()), "mpirun")?;
    let mut cargo = crate::workspace::cargo();
    crate::workspace::done(cargo.args(["build", "--quiet"]).args(words).current_dir(root), "cargo build")
}

/// A program in the target folder.
fn program(root: &Path, path: &str) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = target.join(path);
    if program.is_file() { Ok(program) } else { Err(format!("{} is missing", program.display())) }
}

/// One run of a program.
pub(super) struct Launch<'a> {
    program: &'a Path,
    ranks: usize,
    folder: &'a Path,
    gone: Option<usize>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(program: &'a Path, ranks: usize, folder: &'a Path) -> Self {
        Launch { program, ranks, folder, gone: None }
    }

    /// The rank that will not write an outcome.
    pub(super) fn gone(mut self, rank: Option<usize>) -> Self {
        self.gone = rank;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new("mpirun");
        // A rank that dies shall not end the others: they are to find out by themselves.
        command.args(["--oversubscribe", "--enable-recovery", "--bind-to", "none", "-n", &self.ranks.to_string()]);
        command.arg(self.program);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // Ranks on one machine need no network.
        command.env("OMPI_MCA_btl", "self,vader").env("OMPI_MCA_pml", "ob1").stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs it and returns what each rank wrote; `None` for a rank that wrote nothing in time.
    pub(super) fn run(&self, arguments: &[&str], limit: Duration) -> Result<Vec<Option<String>>, String> {
        std::fs::create_dir_all(self.folder).map_err(|e| format!("{}: {e}", self.folder.display()))?;
        let file = |rank: usize| self.folder.join(format!("rank-{rank}"));
        for rank in 0..self.ranks {
            // Most often there is none.
            let _ = std::fs::remove_file(file(rank));
        }
        let mut command = self.command();
        command.arg(self.folder).args(arguments).stdout(Stdio::null());
        let mut mpirun = command.spawn().map_err(|e| format!("mpirun: {e}"))?;
        let end = Instant::now() + limit;
        let missing = || (0..self.ranks).any(|rank| Some(rank) != self.gone && !file(rank).is_file());
        while missing() && Instant::now() < end && !ended(&mut mpirun)? {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.gone.is_none() {
            let end = Instant::now() + Duration::from_secs(10);
            while Instant::now() < end && !ended(&mut mpirun)? {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        stop(&mut mpirun)?;
        Ok((0..self.ranks).map(|rank| std::fs::read_to_string(file(rank)).ok()).collect())
    }

    /// Runs it and returns what it printed.
    pub(super) fn printed(&self, limit: Duration) -> Result<String, String> {
        let mut mpirun = self.command().stdout(Stdio::piped()).spawn().map_err(|e| format!("mpirun: {e}"))?;
        let end = Instant::now() + limit;
        while Instant::now() < end && !ended(&mut mpirun)? {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop(&mut mpirun)?;
        let output = mpirun.wait_with_output().map_err(|e| format!("mpirun: {e}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn ended(mpirun: &mut Child) -> Result<bool, String> {
    mpirun.try_wait().map(|status| status.is_some()).map_err(|e| format!("mpirun: {e}"))
}

/// Ends `mpirun` and the processes that it started, also those that are stopped.
fn stop(mpirun: &mut Child) -> Result<(), String> {
    if ended(mpirun)? {
        return Ok(());
    }
    children(mpirun.id()).into_iter().for_each(|process| signal(process, "KILL"));
    let end = Instant::now() + Duration::from_secs(5);
    while !ended(mpirun)? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    if !ended(mpirun)? {
        mpirun.kill().and_then(|()| mpirun.wait()).map_err(|e| format!("mpirun: {e}"))?;
    }
    Ok(())
}
