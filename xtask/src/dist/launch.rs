//! Runs a program on several ranks with `mpirun`, and ends all of it in the end.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::{descendants, signal};

/// The MPI that starts the ranks.
pub(super) struct Mpi {
    pub(super) is_mpich: bool,
    /// The `PATH` on which its `mpirun` comes first.
    pub(super) path: OsString,
}

impl Mpi {
    /// Open MPI, which is `mpirun`, or MPICH: Debian's `mpirun.mpich`, or `mpiexec.hydra`.
    pub(super) fn find(mpich: bool, folder: &Path) -> Result<Mpi, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let says = if mpich { "HYDRA" } else { "Open MPI" };
        let is_it = |program: &Path| {
            let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(says))
        };
        let names: &[&str] = if mpich { &["mpirun.mpich", "mpiexec.hydra", "mpirun"] } else { &["mpirun"] };
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let programs = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let Some(program) = programs.into_iter().find(|program| program.is_file() && is_it(program)) else {
            return Err(format!("there is no {} of {}", names.join(" or "), if mpich { "MPICH" } else { "Open MPI" }));
        };
        if !mpich {
            return Ok(Mpi { is_mpich: false, path });
        }
        // `gradus launch` starts what is called `mpirun`. MPICH's looks for its other programs beside the name it is called by,
        // which must therefore not be that of a link.
        let bin = folder.join("bin");
        let script = bin.join("mpirun");
        let text = format!("#!/bin/sh\nexec '{}' \"$@\"\n", program.display());
        let made = std::fs::create_dir_all(&bin)
            .and_then(|()| std::fs::write(&script, text))
            .and_then(|()| std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)));
        made.map_err(|e| format!("{}: {e}", script.display()))?;
        let path = std::env::join_paths([bin].into_iter().chain(folders)).map_err(|e| e.to_string())?;
        Ok(Mpi { is_mpich: true, path })
    }

    /// A program that finds this MPI.
    pub(super) fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", &self.path);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// `mpirun` for so many ranks, on one machine with fewer cores.
    pub(super) fn mpirun(&self, ranks: usize) -> Command {
        let mut command = self.program("mpirun");
        if !self.is_mpich {
            command.args(["--oversubscribe", "--bind-to", "none"]);
        }
        command.args(["-n", &ranks.to_string()]);
        command
    }
}

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
    mpi: &'a Mpi,
    program: &'a Path,
    ranks: usize,
    folder: &'a Path,
    gone: Option<usize>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(mpi: &'a Mpi, program: &'a Path, ranks: usize, folder: &'a Path) -> Self {
        Launch { mpi, program, ranks, folder, gone: None }
    }

    /// The rank that will not write an outcome.
    pub(super) fn gone(mut self, rank: Option<usize>) -> Self {
        self.gone = rank;
        self
    }

    fn command(&self) -> Command {
        let mut command = self.mpi.mpirun(self.ranks);
        // A rank that dies shall not end the others: they are to find out by themselves.
        if self.mpi.is_mpich {
            // MPICH's launcher kills all if a signal has ended one, whatever it is told, and sends SIGUSR1 to the others if
            // one has gone. What it sees here is a shell that ends well.
            command.args(["-disable-auto-cleanup", "sh", "-c", "trap '' USR1; \"$0\" \"$@\"; exit 0"]);
        } else {
            command.arg("--enable-recovery");
        }
        command.arg(self.program);
        // Ranks on one machine need no network. UCX, which MPICH uses, ends a program that reads the memory of a process that
        // has gone, as its transport `cma` does.
        command.env("OMPI_MCA_btl", "self,vader").env("OMPI_MCA_pml", "ob1").env("UCX_TLS", "self,posix,sysv");
        command.stdin(Stdio::null()).stderr(Stdio::null());
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
    descendants(mpirun.id()).into_iter().for_each(|process| signal(process, "KILL"));
    let end = Instant::now() + Duration::from_secs(5);
    while !ended(mpirun)? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    if !ended(mpirun)? {
        mpirun.kill().and_then(|()| mpirun.wait()).map_err(|e| format!("mpirun: {e}"))?;
    }
    Ok(())
}
