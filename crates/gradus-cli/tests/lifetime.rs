//! Tests runs that are stopped, killed, or short of disk space. Their results are saved, or the error says where they
//! are, and nothing blocks the next run.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use support::{gradus, has_checkpoint, last_json, snapshot, succeed, text};

const FILES: [&str; 5] = ["config.toml", "example.png", "metrics.csv", "model.safetensors", "report.html"];

/// A running command, which is killed when the test ends.
struct Running {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stderr, stdout) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
        Running { child, stderr: BufReader::new(stderr), stdout: BufReader::new(stdout) }
    }

    /// Starts a training run of 100,000 epochs into `out`, and waits for the end of its first epoch.
    fn train(out: &Path, change: impl FnOnce(&mut Command)) -> Running {
        let mut command = gradus();
        command.args(["train", "digits", "--epochs", "100000", "--json", "--out"]).arg(out);
        change(&mut command);
        let mut running = Running::start(&mut command);
        let mut line = String::new();
        running.stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("epoch 1/100000"), "{line}");
        running
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// The exit code, which is `None` after a signal, and what was printed to standard output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stderr.read_to_string(&mut err).unwrap();
        self.stdout.read_to_string(&mut out).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names of the files in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn ctrl_c_and_sigterm_save_what_was_trained() {
    let dir = tempfile::tempdir().unwrap();
    for signal in ["-INT", "-TERM"] {
        let out = dir.path().join(signal);
        let running = Running::train(&out, |_| {});
        running.signal(signal);
        let (code, stdout, stderr) = running.end();
        assert_eq!(code, Some(0), "{signal}\n{stdout}\n{stderr}");
        assert_eq!(last_json(&stdout)["interrupted"].as_bool(), Some(true));
        // Beside the files there is the state to go on from, with the command that does so.
        assert_eq!(names(&out), [&["checkpoints"], &FILES[..]].concat());
        assert!(stdout.contains("--resume --out") && has_checkpoint(&out), "{stdout}");
        assert!(fs::read_to_string(out.join("config.toml")).unwrap().contains("interrupted = true"));
    }
}

/// Waits until `holds` returns true.
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_second_signal_ends_at_once_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Writing to a full pipe blocks, so the run does not end before this test lets it.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let stdout = writer.try_clone().unwrap();
    let full = std::thread::spawn(move || while std::io::Write::write(&mut writer, &[0]).is_ok() {});
    std::thread::sleep(Duration::from_millis(300));
    let mut command = gradus();
    command.args(["train", "digits", "--out", "new/run"]).current_dir(dir.path());
    let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    wait_for("the training", || dir.path().join("new/run/.gradus-run/lock").exists());
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    // Signals that arrive almost at once count as one, for example those from a terminal and from a parent that
    // forwards them.
    signal("-TERM");
    signal("-INT");
    std::thread::sleep(Duration::from_millis(900));
    assert!(dir.path().join("new/run").exists());
    let second = Instant::now();
    signal("-TERM");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert!(stderr.contains("again to end at once without saving"), "{stderr}");
    assert!(second.elapsed() < Duration::from_secs(5), "{:?}", second.elapsed());
    assert_eq!(names(dir.path()), [""; 0]);
    drop(reader);
    full.join().unwrap();
}

#[test]
fn a_killed_run_does_not_block_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let running = Running::train(&out, |_| {});
    let train = || {
        let mut command = gradus();
        command.args(["train", "digits", "--epochs", "1", "--out"]).arg(&out);
        command
    };
    // While the run is active, no other run may use its folder, not even with `--force`.
    for force in [None, Some("--force")] {
        let output = train().args(force).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let (_, err) = text(&output);
        assert!(err.contains("another run is at work") && err.contains(&running.child.id().to_string()), "{err}");
    }
    running.signal("-KILL");
    assert_eq!(running.end().0, None);
    succeed(&mut train());
    assert_eq!(names(&out), FILES);
}

/// The command under a limit on the size of each file that it writes. Exceeding the limit is an error, not a signal.
fn limited(kibibytes: usize) -> Command {
    let mut command = Command::new("sh");
    // POSIX counts in blocks of 512 bytes.
    let limit = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", 2 * kibibytes);
    command.args(["-c", &limit, env!("CARGO_BIN_EXE_gradus")]);
    command
}

#[test]
fn a_disk_without_room_is_noticed_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = limited(16);
    command.args(["train", "digits", "--epochs", "100000", "--out", "new/run"]).current_dir(dir.path());
    let (code, stdout, stderr) = Running::start(&mut command).end();
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    assert!(stderr.contains("new/run") && stderr.contains("model.safetensors"), "{stderr}");
    assert!(!stderr.contains("epoch") && stdout.is_empty(), "{stdout}\n{stderr}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn what_cannot_be_written_at_the_end_is_put_in_the_temporary_folder_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (out, temporary) = (dir.path().join("run"), dir.path().join("tmp"));
    fs::create_dir(&temporary).unwrap();
    let running = Running::train(&out, |command| {
        command.env("TMPDIR", &temporary);
    });
    fs::remove_dir_all(&out).unwrap();
    running.signal("-TERM");
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    // The test result is still printed.
    assert!(stdout.contains("test accuracy"), "{stdout}");
    let saved = fs::read_dir(&temporary).unwrap().next().expect("nothing was saved").unwrap().path();
    assert!(stderr.contains(&saved.display().to_string()), "{stderr}");
    assert_eq!(names(&saved), FILES);
    let model = saved.join("model.safetensors");
    let picture = saved.join("example.png");
    succeed(gradus().args(["predict", "--model"]).arg(model).arg(picture));
}

#[test]
fn what_can_be_written_nowhere_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let running = Running::train(&out, |command| {
        command.env("TMPDIR", dir.path().join("none"));
    });
    fs::remove_dir_all(&out).unwrap();
    running.signal("-TERM");
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    assert!(stderr.contains("model.safetensors") && stderr.contains("none"), "{stderr}");
}

/// Requires permission to mount, which continuous integration seldom grants.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_during_the_training_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "gradus"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user cannot mount a small disk");
        return;
    }
    let unmount = Unmount(disk.clone());
    let out = disk.join("run");
    let running = Running::train(&out, |_| {});
    let filled = fs::File::create(disk.join("filler"));
    let written = std::io::copy(&mut std::io::repeat(1), &mut filled.unwrap());
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    running.signal("-TERM");
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    assert_eq!(names(&out), FILES);
    let model = out.join("model.safetensors");
    succeed(gradus().args(["predict", "--model"]).arg(model).arg(out.join("example.png")));
    drop(unmount);
}

#[cfg(target_os = "linux")]
struct Unmount(PathBuf);

#[cfg(target_os = "linux")]
impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn where_a_profile_goes_is_checked_before_the_command_runs() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    for (out, says) in [
        ("none/trace.json", "none/trace.json"),
        ("folder", "folder"),
        ("file/trace.json", "file/trace.json"),
        ("pipe", "pipe"),
    ] {
        let mut command = gradus();
        command.current_dir(dir.path()).args(["profile", "--out", out, "--"]);
        command.args(["train", "digits", "--epochs", "100000", "--out", "run"]);
        let start = Instant::now();
        let output = command.output().unwrap();
        let (stdout, stderr) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{out}: {stdout}\n{stderr}");
        assert!(stderr.contains(says) && stdout.is_empty(), "{out}: {stdout}\n{stderr}");
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(names(dir.path()), ["file", "folder", "pipe"], "{out}");
    }
}

#[test]
fn a_profile_that_finds_no_room_is_put_in_the_temporary_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (place, temporary) = (dir.path().join("place"), dir.path().join("tmp"));
    fs::create_dir(&place).unwrap();
    fs::create_dir(&temporary).unwrap();
    let mut command = gradus();
    command.env("TMPDIR", &temporary).args(["profile", "--out"]).arg(place.join("trace.json"));
    command.args(["--", "train", "digits", "--epochs", "100000", "--out"]).arg(dir.path().join("run"));
    let mut running = Running::start(&mut command);
    running.stderr.read_line(&mut String::new()).unwrap();
    fs::remove_dir_all(&place).unwrap();
    running.signal("-TERM");
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    let saved = snapshot(&temporary).into_keys().find(|path| path.is_file()).expect("nothing was saved");
    assert!(stderr.contains(&saved.parent().unwrap().display().to_string()), "{stderr}");
    assert!(fs::read_to_string(saved).unwrap().starts_with("{\"traceEvents\""));
}
