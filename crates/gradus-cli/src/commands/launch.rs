//! `gradus launch`: starts a training on several ranks with `mpirun`, and again after the loss of one.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gradus::{Error, ErrorKind, Result};

use super::children::Children;
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

/// How long `mpirun` may live on after its ranks. That of Open MPI 4.1 can wait for ever after a rank was killed.
const AFTER: Duration = Duration::from_secs(20);

/// Variables of schedulers, on whose machines `mpirun` need not start the ranks itself.
const SCHEDULERS: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// Within how many seconds a machine must answer `ssh`.
const ANSWERS: u32 = 10;

/// How long `ssh` may then take to sign in and run a command, before it is ended.
const SIGNS_IN: Duration = Duration::from_secs(5);

/// The variables with options for `ssh` that Open MPI 4, Open MPI 5 and MPICH read.
const SSH_OPTIONS: [&str; 3] = ["OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args", "HYDRA_LAUNCHER_EXTRA_ARGS"];

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
    let (mut ranks, mut restarts, mut hosts) = (args.ranks, 0, args.hosts.clone().map(Hosts::Given));
    loop {
        let before = state();
        let words = with_resume(args, restarts > 0, forced);
        // MPICH's launcher would wait for ever for a machine that does not answer.
        let mut gone = hosts.as_ref().filter(|_| mpi == Mpi::Mpich).map_or_else(Vec::new, |hosts| silent(hosts.file()));
        let mut ended = None;
        if gone.is_empty() {
            let mut bell = Bell::hang()?;
            let mpirun = start(mpi, args, hosts.as_ref().map(Hosts::file), ranks, &words, bell.input())?;
            let process = mpirun.id();
            interrupt.before_the_end(move || end(process));
            let children = (hosts.is_none() && SCHEDULERS.iter().all(|name| std::env::var_os(name).is_none()))
                .then(|| Children::of(process));
            let status = wait(mpirun, bell, children, || stop.load(Ordering::Relaxed))?;
            if status.success() {
                return Ok(());
            }
            ended = Some(status);
        }
        let code = ended.and_then(|status| status.code());
        // A machine that is gone is the reason of what the ranks say.
        if let Some(hosts) =
            hosts.as_ref().filter(|_| gone.is_empty() && !recurs(code) && !stop.load(Ordering::Relaxed))
        {
            gone = silent(hosts.file());
        }
        let lost = |more: &str| {
            let what = ended.map_or("were not started".to_owned(), |status| format!("have failed ({status})"));
            let m = format!("the ranks {what}{more}");
            let e = Error::new(ErrorKind::Peer, "launch", m);
            let e = gone.iter().fold(e, |e, (host, why)| e.note(format!("{host} does not answer: {why}")));
            Err(match gone.first() {
                Some((host, _)) => {
                    e.help(format!("let `ssh {host} true` work without a password, or leave the host out"))
                }
                None => e.help("the errors of the ranks are above"),
            })
        };
        let after = state();
        if restarts == args.restarts || stop.load(Ordering::Relaxed) {
            return lost(&if restarts > 0 { format!(" after {restarts} restarts") } else { String::new() });
        }
        if recurs(code) {
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
        if let Some(given) = hosts.as_ref().filter(|_| !gone.is_empty()) {
            let Some(left) = given.without(&gone)? else { return lost("; no host answers") };
            gone.iter().for_each(|(host, why)| complain(&format!("{host} does not answer ({why}), and is left out")));
            hosts = Some(left);
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

/// The file that lists the machines.
enum Hosts {
    Given(PathBuf),
    /// One of this process, without the machines that are gone.
    Left(PathBuf),
}

impl Hosts {
    fn file(&self) -> &Path {
        match self {
            Hosts::Given(path) | Hosts::Left(path) => path,
        }
    }

    /// The same without some machines; `None` if there are no others.
    fn without(&self, silent: &[(String, String)]) -> Result<Option<Hosts>> {
        let text = std::fs::read_to_string(self.file()).map_err(|e| Error::io("launch", self.file().display(), e))?;
        let stays = |line: &&str| host(line).is_some_and(|host| silent.iter().all(|(gone, _)| gone != host));
        let lines: Vec<&str> = text.lines().filter(stays).collect();
        if lines.is_empty() {
            return Ok(None);
        }
        // The file before it, which has more lines, is removed after this one is made.
        let name = format!("gradus-hosts-{}-{}", std::process::id(), lines.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, lines.join("\n") + "\n").map_err(|e| Error::io("launch", path.display(), e))?;
        Ok(Some(Hosts::Left(path)))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Hosts::Left(path) = self {
            // It goes with the other temporary files otherwise.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The machine in a line of a file of hosts, of Open MPI (`name slots=2`) or MPICH (`name:2`).
fn host(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().next()?.split(':').next().filter(|name| !name.is_empty())
}

/// The options with which `mpirun` and [`silent`] call `ssh` unless the user has set others: no machine keeps them waiting,
/// and no question.
fn ssh_options() -> String {
    format!("-o BatchMode=yes -o ConnectTimeout={ANSWERS}")
}

/// The machines that do not answer `ssh`, with what it says.
fn silent(hosts: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(hosts).unwrap_or_default();
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut names: Vec<&str> = text.lines().filter_map(host).collect();
    names.sort_unstable();
    names.dedup();
    // mpirun needs no ssh for this machine.
    names.retain(|name| !is_here(name, here.trim()));
    let options = SSH_OPTIONS.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_else(ssh_options);
    let ask = |name: &str| {
        let (options, name) = (options.clone(), name.to_owned());
        std::thread::spawn(move || no_answer(&options, &name).map(|why| (name, why)))
    };
    let asked: Vec<_> = names.into_iter().map(ask).collect();
    asked.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
}

/// Whether a name in a file of hosts, with or without a user and a domain, is that of this machine.
fn is_here(name: &str, hostname: &str) -> bool {
    let name = name.rsplit('@').next().unwrap_or(name);
    let short = |name: &str| name.split('.').next().map(str::to_owned);
    ["localhost", "127.0.0.1"].contains(&name) || (!hostname.is_empty() && short(name) == short(hostname))
}

/// Why `ssh` cannot run a command on a machine; `None` if it can.
fn no_answer(options: &str, host: &str) -> Option<String> {
    let mut ssh = Command::new("ssh");
    ssh.args(options.split_whitespace()).args([host, "true"]);
    let mut ssh = match ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
        Ok(ssh) => ssh,
        Err(e) => return Some(format!("ssh: {e}")),
    };
    // Its own limit ends with the connection, and the user's options may have none.
    let end = Instant::now() + Duration::from_secs(ANSWERS.into()) + SIGNS_IN;
    let status = loop {
        match ssh.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
            Ok(None) => {
                // It may end at this moment, which is as good.
                let _ = ssh.kill().and_then(|()| ssh.wait());
                return Some("no answer in time".into());
            }
            Err(e) => return Some(format!("ssh: {e}")),
        }
    };
    // The code of ssh itself; any other is that of the command.
    if status.code() != Some(255) {
        return None;
    }
    // What it has written is there to be read at once. A process that it left behind may keep the pipe open.
    let mut said = [0; 4096];
    let bytes = ssh.stderr.take().and_then(|mut stderr| stderr.read(&mut said).ok()).unwrap_or(0);
    let text = String::from_utf8_lossy(said.get(..bytes).unwrap_or_default());
    Some(text.trim().lines().last().unwrap_or("ssh fails").to_owned())
}

/// A shell whose output is connected to the standard input of `mpirun`. When [`ring`](Bell::ring) is called, or when
/// `gradus launch` has been killed, the shell writes a line there, which asks the ranks to stop. Closing that input would not
/// be enough: Open MPI 5's `mpirun` does not tell the ranks that it has ended.
struct Bell(Child);

impl Bell {
    fn hang() -> Result<Bell> {
        let mut sh = Command::new("sh");
        sh.args(["-c", "trap '' HUP INT TERM; cat; echo"]);
        own_group(&mut sh).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        sh.spawn().map(Bell).map_err(|e| Error::io("launch", "sh", e))
    }

    /// The standard input of `mpirun`.
    fn input(&mut self) -> Stdio {
        self.0.stdout.take().map_or_else(Stdio::null, Stdio::from)
    }

    fn ring(&mut self) {
        self.0.stdin = None;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
        // It ends with its input.
        let _ = self.0.wait();
    }
}

/// Ctrl-C reaches this process alone, which asks the ranks to stop.
fn own_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command
}

fn start(
    mpi: Mpi,
    args: &LaunchArgs,
    hosts: Option<&Path>,
    ranks: usize,
    words: &[OsString],
    input: Stdio,
) -> Result<Child> {
    let program = std::env::current_exe().map_err(|e| Error::io("launch", "the path of this program", e))?;
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]);
    let deadline = args.deadline.to_string();
    match mpi {
        Mpi::Open => {
            command.args(["--oversubscribe", "--bind-to", "none", "-x", LAUNCHED, "-x", DEADLINE]);
            if let Some(hosts) = hosts {
                command.arg("--hostfile").arg(hosts);
            }
            // Its warning is about programs that write where they should not.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        Mpi::Mpich => {
            command.args(["-genv", LAUNCHED, "1", "-genv", DEADLINE, &deadline]);
            if let Some(hosts) = hosts {
                command.arg("-f").arg(hosts);
            }
        }
    }
    // What the user has set comes first.
    for name in SSH_OPTIONS {
        if std::env::var_os(name).is_none() {
            command.env(name, ssh_options());
        }
    }
    command.env(LAUNCHED, "1").env(DEADLINE, &deadline).stdin(input).arg(program).args(words);
    own_group(&mut command).spawn().map_err(|e| Error::io("launch", "mpirun", e))
}

/// Ends `mpirun` with all ranks, and gives it the time for that.
fn end(mpirun: u32) {
    // If there is no such process any more, there is nothing to do.
    let _ = Command::new("sh").args(["-c", &format!("kill -TERM {mpirun}")]).stderr(Stdio::null()).status();
    std::thread::sleep(ENDING);
}

/// Waits for the end of the ranks, which are the `children` of `mpirun` if they all run here. Once `stop` holds, they are
/// asked to stop.
fn wait(
    mut mpirun: Child,
    mut bell: Bell,
    mut children: Option<Children>,
    stop: impl Fn() -> bool,
) -> Result<ExitStatus> {
    loop {
        match mpirun.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(e) => return Err(Error::io("launch", "mpirun", e)),
        }
        if stop() {
            bell.ring();
        }
        if children.as_mut().is_some_and(|ranks| ranks.have_ended_for(AFTER)) {
            complain("all ranks have ended and mpirun has not, so it is killed");
            // If it ends at this moment, that is as good.
            let _ = mpirun.kill();
            return mpirun.wait().map_err(|e| Error::io("launch", "mpirun", e));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_both_launchers_do_and_those_that_are_gone_are_left_out() {
        let names = ["a slots=2", "b:4", " user@c  # the third", "# none", ""].map(host);
        assert_eq!(names, [Some("a"), Some("b"), Some("user@c"), None, None]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "a slots=2\n# a comment\nb slots=4\n").unwrap();
        let gone = |name: &str| vec![(name.to_owned(), "no route".to_owned())];
        let left = Hosts::Given(path).without(&gone("a")).unwrap().unwrap();
        let kept = left.file().to_owned();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "b slots=4\n");
        assert!(left.without(&gone("b")).unwrap().is_none());
        drop(left);
        assert!(!kept.exists());
    }

    #[test]
    fn this_machine_is_known_by_its_short_and_by_its_whole_name() {
        for name in ["localhost", "127.0.0.1", "node1", "node1.cluster", "me@node1.cluster"] {
            assert!(is_here(name, "node1") && is_here(name, "node1.cluster"), "{name}");
        }
        assert!(!is_here("node10", "node1") && !is_here("node2.cluster", "node1.cluster") && !is_here("a", ""));
    }
}
