//! `gradus launch`: starts a training on several ranks with `mpirun`, and again after the loss of one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use gradus::{Error, ErrorKind, Result};

use super::mpi::{DEADLINE, LAUNCHED, recurs, without_mpi};
use super::train::newest_state;
use crate::args::LaunchArgs;
use crate::config_file;
use crate::interrupt::Interrupt;
use crate::output::complain;

/// How often the launcher looks whether the ranks have ended.
const LOOK: Duration = Duration::from_millis(50);

/// How long `mpirun` may take to end the ranks before the launcher ends without it. It sends them a signal, and kills
/// those that do not follow it.
const ENDING: Duration = Duration::from_secs(10);

/// Which `mpirun` there is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    fn find() -> Result<Mpi> {
        let output = match Command::new("mpirun").arg("--version").stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let e = Error::new(ErrorKind::Unsupported, "launch", "there is no mpirun").with_source(e);
                return Err(e.help("install Open MPI or MPICH (Debian: openmpi-bin)"));
            }
            Err(e) => return Err(Error::io("launch", "mpirun", e)),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(if text.contains("Open MPI") || text.contains("OpenRTE") { Mpi::Open } else { Mpi::Mpich })
    }
}

/// Runs the command.
pub(crate) fn run(args: &LaunchArgs) -> Result<()> {
    if !cfg!(all(feature = "mpi", unix)) {
        return Err(without_mpi("this program was built without MPI, and cannot start ranks"));
    }
    let first = args.command.first();
    if first.is_none_or(|word| word != "train" && word != "bench") {
        let e = Error::argument("launch", "only `train` and `bench` run on several ranks");
        return Err(e.help("gradus launch -n 4 -- train digits"));
    }
    if args.restarts > 0 && first.is_some_and(|word| word == "bench") {
        let e = Error::argument("launch", "--restarts with `bench`, which has no state to go on from");
        return Err(e.help("measure again instead"));
    }
    let words = config_file::with_options(&args.command)?;
    let (out, forced) = (value(&words, "--out").map(PathBuf::from), words.iter().any(|word| word == "--force"));
    if args.restarts > 0 && out.is_none() {
        let e = Error::argument("launch", "--restarts without --out: the training would not find its states again");
        return Err(e.help("name the folder of the run: gradus launch --restarts N .. -- train .. --out DIR"));
    }
    if args.restarts > 0 && forced && !args.command.iter().any(|word| word == "--force") {
        let e =
            Error::argument("launch", "--restarts with `force` in the file of --config: each restart would begin anew");
        return Err(e.help("remove it from the file, and give --force after the task"));
    }
    let mpi = Mpi::find()?;
    let interrupt = Interrupt::watch()?;
    let stop = interrupt.flag();
    // With --force, what was there before is not gone on from.
    let old = out.as_deref().filter(|_| forced).and_then(newest_state);
    let state = || out.as_deref().and_then(newest_state).filter(|state| Some(state) != old.as_ref());
    let (mut ranks, mut restarts) = (args.ranks, 0);
    loop {
        let before = state();
        let words = with_resume(args, restarts > 0, forced);
        let mpirun = start(mpi, args, ranks, &words)?;
        let process = mpirun.id();
        interrupt.before_the_end(move || end(process));
        let status = wait(mpirun, || stop.load(Ordering::Relaxed))?;
        if status.success() {
            return Ok(());
        }
        let lost = |more: &str| {
            let m = format!("the ranks have failed ({status}){more}");
            Err(Error::new(ErrorKind::Peer, "launch", m).help("the errors of the ranks are above"))
        };
        let after = state();
        if restarts == args.restarts || stop.load(Ordering::Relaxed) {
            return lost(&if restarts > 0 { format!(" after {restarts} restarts") } else { String::new() });
        }
        if recurs(status.code()) {
            return lost("; another attempt would end like this one");
        }
        if after.is_none() {
            return lost("; there is no state to go on from");
        }
        restarts += 1;
        // A machine that is gone, or has too little memory, would fail again.
        if after == before {
            ranks = (ranks / 2).max(1);
        }
        complain(&format!("restart {restarts} of {}: going on from the newest state on {ranks} ranks", args.restarts));
    }
}

/// The arguments of the ranks. With `--restarts` they include `--resume`, so that a restart continues from the newest
/// state; only a first start with `--force` begins anew.
fn with_resume(args: &LaunchArgs, again: bool, forced: bool) -> Vec<OsString> {
    let has = |option: &str| args.command.iter().any(|word| word == option);
    let mut words = args.command.clone();
    if again {
        words.retain(|word| word != "--force");
    }
    if args.restarts > 0 && !has("--resume") && (again || !forced) {
        words.push("--resume".into());
    }
    words
}

/// The value of an option, as `--name value` or `--name=value`.
fn value<'a>(words: &'a [OsString], name: &str) -> Option<&'a Path> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().map(Path::new);
        }
        if let Some(value) = word.to_str().and_then(|word| word.strip_prefix(name)?.strip_prefix('=')) {
            return Some(Path::new(value));
        }
    }
    None
}

fn start(mpi: Mpi, args: &LaunchArgs, ranks: usize, words: &[OsString]) -> Result<Child> {
    let program = std::env::current_exe().map_err(|e| Error::io("launch", "the path of this program", e))?;
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]);
    let deadline = args.deadline.to_string();
    match mpi {
        Mpi::Open => {
            command.args(["--oversubscribe", "--bind-to", "none", "-x", LAUNCHED, "-x", DEADLINE]);
            if let Some(hosts) = &args.hosts {
                command.arg("--hostfile").arg(hosts);
            }
            // Its warning is about programs that write where they should not.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        Mpi::Mpich => {
            command.args(["-genv", LAUNCHED, "1", "-genv", DEADLINE, &deadline]);
            if let Some(hosts) = &args.hosts {
                command.arg("-f").arg(hosts);
            }
        }
    }
    command.env(LAUNCHED, "1").env(DEADLINE, &deadline).stdin(Stdio::piped()).arg(program).args(words);
    // Ctrl-C reaches this process alone, which asks the ranks to stop.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().map_err(|e| Error::io("launch", "mpirun", e))
}

/// Ends `mpirun` with all ranks, and gives it the time for that.
fn end(mpirun: u32) {
    // If there is no such process any more, there is nothing to do.
    let _ = Command::new("sh").args(["-c", &format!("kill -TERM {mpirun}")]).stderr(Stdio::null()).status();
    std::thread::sleep(ENDING);
}

/// Waits for the end of the ranks. Once `stop` holds, their standard input is closed, which asks them to stop.
fn wait(mut mpirun: Child, stop: impl Fn() -> bool) -> Result<ExitStatus> {
    let mut input: Option<ChildStdin> = mpirun.stdin.take();
    loop {
        match mpirun.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(e) => return Err(Error::io("launch", "mpirun", e)),
        }
        if input.is_some() && stop() {
            input = None;
        }
        std::thread::sleep(LOOK);
    }
}
