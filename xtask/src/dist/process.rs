//! Processes that a check starts, with all that they start.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where Debian and others have the ssh server.
pub(super) const SSHD: &str = "/usr/sbin/sshd";

/// How a program ended, and what it printed.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) took: Duration,
}

/// A program that runs, whose output goes to files.
pub(super) struct Running {
    child: Child,
    output: PathBuf,
    begun: Instant,
}

impl Running {
    /// Starts a program. Its output goes to `output.out` and `output.err`.
    pub(super) fn start(command: &mut Command, output: &Path) -> Result<Running, String> {
        let file = |end| File::create(output.with_extension(end)).map_err(|e| format!("{}: {e}", output.display()));
        command.stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?);
        let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        Ok(Running { child, output: output.to_owned(), begun: Instant::now() })
    }

    /// Whether it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|e| format!("waiting: {e}"))
    }

    /// Waits until `holds`, at most for a minute.
    pub(super) fn until(&mut self, what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds() {
            if self.ended()?.is_some() {
                return Err(format!("it ended before {what}: {}", self.text("err")));
            }
            if Instant::now() > end {
                return Err(format!("{what}: not within a minute"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The number of the process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, at most so long. Processes that it leaves behind are ended, and are an error.
    pub(super) fn end(mut self, limit: Duration) -> Result<Ended, String> {
        let end = self.begun + limit;
        let all = descendants(self.process());
        loop {
            if let Some(status) = self.ended()? {
                let took = self.begun.elapsed();
                // What ends by itself may take a moment longer than its parent.
                std::thread::sleep(Duration::from_millis(300));
                let left: Vec<u32> = all.into_iter().filter(|&process| is_alive(process)).collect();
                left.iter().for_each(|&process| signal(process, "KILL"));
                let (out, err) = (self.text("out"), self.text("err"));
                return if left.is_empty() {
                    Ok(Ended { status, out, err, took })
                } else {
                    Err(format!("processes {left:?} are left behind"))
                };
            }
            if Instant::now() > end {
                let all = descendants(self.process());
                all.into_iter().chain([self.process()]).for_each(|process| signal(process, "KILL"));
                // It has been killed.
                let _ = self.child.wait();
                return Err(format!("it hangs: {} {}", self.text("out"), self.text("err")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn text(&self, end: &str) -> String {
        std::fs::read(self.output.with_extension(end))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

/// Sends a signal. A process that has ended needs none.
pub(super) fn signal(process: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).stderr(Stdio::null()).status();
}

fn stat(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

pub(super) fn is_alive(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != 'Z')
}

/// The processes whose parent is this one.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return vec![] };
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|&process| stat(process).is_some_and(|(_, of)| of == parent)).collect()
}

/// All processes that this one and those that it started have started.
pub(super) fn descendants(of: u32) -> Vec<u32> {
    let mut all = children(of);
    let mut at = 0;
    while at < all.len() {
        all.extend(children(all[at]));
        at += 1;
    }
    all
}
