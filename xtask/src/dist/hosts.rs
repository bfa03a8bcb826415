//! `gradus launch` on several machines: over ssh, where one does not answer, and as a job of SLURM.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::command::{Gradus, LIMIT, LONG, done, failed, has_state, model, ranks, same, with_out};
use super::process::{Running, SSHD, signal};

/// An address that documents may use, and nobody has.
const NOBODY: &str = "203.0.113.1";

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// An ssh server for this user, on 127.0.0.1 and 127.0.0.2. It ends when it is dropped.
struct Server {
    child: Child,
    /// The options with which `ssh` reaches it.
    options: String,
}

impl Server {
    fn start(folder: &Path) -> Result<Server, String> {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        // The server wants this folder, which the system makes when it starts one.
        let _ = std::fs::create_dir_all("/run/sshd");
        for key in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            let keygen = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            crate::workspace::done(keygen, "ssh-keygen")?;
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(|e| format!("a port: {e}"))?.port();
        let place = folder.display();
        let mut lines = vec![
            format!("Port {port}"),
            "ListenAddress 127.0.0.1".into(),
            "ListenAddress 127.0.0.2".into(),
            format!("HostKey {place}/host"),
            format!("AuthorizedKeysFile {place}/key.pub"),
            "StrictModes no".into(),
            "UsePAM no".into(),
            "PidFile none".into(),
        ];
        // An MPI that is not where the system looks.
        lines.extend(std::env::var("LD_LIBRARY_PATH").ok().map(|path| format!("SetEnv LD_LIBRARY_PATH={path}")));
        let configuration = folder.join("configuration");
        write(&configuration, &(lines.join("\n") + "\n"))?;
        let mut sshd = Command::new(SSHD);
        sshd.args(["-D", "-e", "-f"]).arg(&configuration).stdin(Stdio::null()).stderr(Stdio::null());
        let child = sshd.spawn().map_err(|e| format!("{SSHD}: {e}"))?;
        let options = format!(
            "-p {port} -i {place}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
             -o BatchMode=yes -o ConnectTimeout=10"
        );
        let server = Server { child, options };
        let mut ssh = Command::new("ssh");
        ssh.args(server.options.split(' ')).args(["127.0.0.2", "true"]).stdin(Stdio::null()).stderr(Stdio::null());
        for _ in 0..100 {
            if ssh.status().is_ok_and(|status| status.success()) {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the ssh server does not answer".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gradus<'_> {
    /// Writes a file of hosts with a rank each.
    fn hosts(&self, name: &str, hosts: &[&str]) -> Result<PathBuf, String> {
        let path = self.folder.join(name);
        let slots = if self.mpi.is_mpich { ":1" } else { " slots=1" };
        let lines: Vec<String> = hosts.iter().map(|host| format!("{host}{slots}\n")).collect();
        write(&path, &lines.concat())?;
        Ok(path)
    }

    /// Two addresses, of which `mpirun` takes the second for another machine. After the loss of a rank both answer `ssh`,
    /// which needs the options that are set for `mpirun`.
    pub(super) fn two_hosts(&self, whole: &[u8]) -> Result<(), String> {
        let server = Server::start(&self.folder.join("ssh"))?;
        let hosts = self.hosts("two-hosts.txt", &["127.0.0.1", "127.0.0.2"])?;
        let out = self.folder.join("two-hosts");
        let words = with_out(&[&LONG[..], &["--shard"]].concat(), &out);
        let mut command = self.mpi.program(self.program);
        command
            .args(["launch", "-n", "2", "--restarts", "1", "--hosts"])
            .arg(&hosts)
            .arg("--")
            .args(words)
            .current_dir(self.folder);
        for name in ["OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args", "HYDRA_LAUNCHER_EXTRA_ARGS"] {
            command.env(name, &server.options);
        }
        let mut running = Running::start(&mut command, &self.folder.join("two-hosts-output"))?;
        running.until("a state", || has_state(&out))?;
        // The server has started the other.
        let &[rank] = &ranks(running.process())[..] else { return Err("there is not one rank on this host".into()) };
        signal(rank, "KILL");
        let ended = running.end(LIMIT)?;
        done(&ended)?;
        if !ended.err.contains("restart 1 of 1") || ended.err.contains("does not answer") {
            return Err(format!("it does not go on with both hosts: {}", ended.err));
        }
        same(&model(&out)?, whole)
    }

    /// A machine that does not answer ends a training that has no state, and is left out by one that goes on.
    pub(super) fn no_host(&self, whole: &[u8]) -> Result<(), String> {
        let hosts = self.hosts("no-host.txt", &[NOBODY])?;
        let words = with_out(&["train", "digits"], &self.folder.join("no-host"));
        let ended = self.launch(&["-n", "1", "--hosts", &hosts.display().to_string()], &words, "no-host-output")?;
        let says = format!("{NOBODY} does not answer");
        failed(&ended, &[&says])?;
        if ended.took > Duration::from_secs(30) {
            return Err(format!("the error took {:?}", ended.took));
        }
        let (running, out, ranks) = self.begun(&[], "a-host-less")?;
        signal(ranks[2], "KILL");
        failed(&running.end(LIMIT)?, &["the ranks have failed"])?;
        let hosts = self.hosts("a-host-less.txt", &["127.0.0.1", NOBODY])?;
        let options = ["-n", "2", "--restarts", "1", "--hosts", &hosts.display().to_string()].map(String::from);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let ended = self.launch(&options, &with_out(&LONG, &out), "a-host-less-output")?;
        done(&ended)?;
        if !ended.err.contains(&says) || !ended.err.contains("is left out") {
            return Err(format!("it does not say that {says}: {}", ended.err));
        }
        same(&model(&out)?, whole)
    }

    /// The script for SLURM: SIGTERM saves the state and queues the job again, which then goes on.
    pub(super) fn slurm(&self, whole: &[u8]) -> Result<(), String> {
        let folder = self.folder.join("slurm");
        let bin = folder.join("bin");
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(&bin).map_err(failed)?;
        symlink(self.program, bin.join("gradus")).map_err(failed)?;
        let scontrol = bin.join("scontrol");
        write(&scontrol, &format!("#!/bin/sh\necho \"$@\" >> {}/asked\n", folder.display()))?;
        std::fs::set_permissions(&scontrol, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
        let source = self.root.join("docs/book/src/cluster/train.sbatch");
        let text = std::fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        let script = folder.join("train.sbatch");
        let other = text.replace("train digits", &LONG.join(" "));
        if other == text {
            return Err("the script does not train digits".into());
        }
        write(&script, &other)?;
        let folders = std::env::split_paths(&self.mpi.path);
        let path = std::env::join_paths([bin].into_iter().chain(folders));
        let path = path.map_err(|e| e.to_string())?;
        let job = || {
            let mut bash = self.mpi.program("bash");
            bash.arg(&script).current_dir(self.folder).env("PATH", &path);
            let given = [("SLURM_NTASKS", "4"), ("SLURM_JOB_NAME", "job"), ("SLURM_JOB_ID", "7")];
            bash.envs(given).env("SLURM_SUBMIT_DIR", &folder);
            Running::start(&mut bash, &folder.join("output"))
        };
        let out = folder.join("out/job");
        let mut first = job()?;
        first.until("a state", || has_state(&out))?;
        signal(first.process(), "TERM");
        done(&first.end(LIMIT)?)?;
        let asked = std::fs::read_to_string(folder.join("asked")).unwrap_or_default();
        if asked != "requeue 7\n" || !has_state(&out) {
            return Err(format!("after SIGTERM, SLURM is asked to {asked:?}"));
        }
        done(&job()?.end(LIMIT)?)?;
        same(&model(&out)?, whole)
    }
}
