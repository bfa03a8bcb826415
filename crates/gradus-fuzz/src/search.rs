//! Runs numbered tries in child processes, with a memory limit and a time limit.
//!
//! A child prints `at N` before try `N`, and `failed N WHAT` after a try that failed. It may print other lines of its
//! own.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The address space of a child, in kilobytes.
const ADDRESSES: usize = 6 << 20;
/// The number of last lines of standard error that are kept.
const LAST: usize = 12;

/// A series of tries that this program runs in children.
#[derive(Debug)]
pub struct Search {
    /// The total number of tries.
    pub tries: u64,
    /// The number of tries per child.
    pub chunk: u64,
    /// The search stops after this many failures.
    pub enough: usize,
    /// The time limit of a single try: how long a child may go without output.
    pub patience: Duration,
    /// The arguments of a child; `--child FROM TO` is appended.
    pub arguments: Vec<String>,
}

/// The remaining work, and the failures so far.
struct State {
    next: u64,
    failures: usize,
}

impl State {
    /// Takes the next chunk of tries. Returns its first number and its end.
    fn take(&mut self, search: &Search) -> (u64, u64) {
        let from = self.next;
        self.next = search.tries.min(from + search.chunk);
        (from, self.next)
    }
}

impl Search {
    /// Runs all tries, with as many children at a time as there are processors. Calls `failed` for each failed try and
    /// `line` for each of the children's own lines. Returns the number of failures.
    pub fn run(&self, failed: impl Fn(u64, &str) + Sync, line: impl Fn(&str) + Sync) -> io::Result<usize> {
        let state = Mutex::new(State { next: 0, failures: 0 });
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |at: u64, what: &str| {
            lock().failures += 1;
            failed(at, what);
        };
        let work = || -> io::Result<()> {
            loop {
                let (mut from, to) = lock().take(self);
                while from < to && lock().failures < self.enough {
                    from = self.child(from, to, &failed, &line)?;
                }
                if to == self.tries || lock().failures >= self.enough {
                    return Ok(());
                }
            }
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|t| t.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
        })?;
        Ok(lock().failures)
    }

    /// Runs tries in one child until it ends. Returns the first try that was not run.
    fn child(&self, from: u64, to: u64, failed: &dyn Fn(u64, &str), line: &dyn Fn(&str)) -> io::Result<u64> {
        let range = ["--child".to_owned(), from.to_string(), to.to_string()];
        let mut command = this_program(&[&self.arguments[..], &range].concat())?;
        let mut at = from;
        let (end, words) = watch(&mut command, self.patience, |text| {
            let mut words = text.splitn(3, ' ');
            let mut word = || words.next().unwrap_or("");
            match (word(), word().parse::<u64>(), word()) {
                ("at", Ok(number), _) => at = number,
                ("failed", Ok(number), what) => failed(number, what),
                _ => line(text),
            }
        })?;
        match end {
            End::Exited(status) if status.success() => return Ok(to),
            End::Exited(status) => failed(at, &format!("{status}: {words}")),
            End::Hung => failed(at, &format!("no end within {} s", self.patience.as_secs())),
        }
        Ok(at + 1)
    }
}

/// The child's side: calls `one` for each try. `one` returns a description of the failure if the try failed.
pub fn child((from, to): (u64, u64), mut one: impl FnMut(u64) -> Option<String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut say = |text: String| out.write_all((text + "\n").as_bytes()).and_then(|()| out.flush());
    for number in from..to {
        say(format!("at {number}"))?;
        if let Some(what) = one(number) {
            say(format!("failed {number} {}", what.replace('\n', " | ")))?;
        }
    }
    Ok(())
}

/// A command that runs this program with these arguments. On Unix, a shell limits its address space. Backtraces are
/// off, because symbolising them can take longer than a try may.
pub fn this_program(arguments: &[String]) -> io::Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = if cfg!(unix) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -v {ADDRESSES}; ulimit -c 0; exec \"$0\" \"$@\"")]).arg(program);
        shell
    } else {
        Command::new(program)
    };
    command.args(arguments).env("RUST_BACKTRACE", "0");
    Ok(command)
}

/// How a child ended.
enum End {
    /// It exited, or a signal ended it.
    Exited(ExitStatus),
    /// It exceeded the time limit, and was killed.
    Hung,
}

/// Runs a child and passes on each line that it prints. Kills it after `patience` without output. Returns how it ended,
/// and the last lines of its standard error.
fn watch(command: &mut Command, patience: Duration, mut line: impl FnMut(&str)) -> io::Result<(End, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (send, lines) = channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
    }
    let words = child.stderr.take().map(|err| thread::spawn(move || last_words(BufReader::new(err))));
    let hung = loop {
        match lines.recv_timeout(patience) {
            Ok(text) => line(&text),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    let end = if hung { kill(&mut child)? } else { End::Exited(child.wait()?) };
    Ok((end, words.and_then(|w| w.join().ok()).unwrap_or_default()))
}

fn kill(child: &mut Child) -> io::Result<End> {
    child.kill()?;
    child.wait()?;
    Ok(End::Hung)
}

fn last_words(from: impl BufRead) -> String {
    let mut last = VecDeque::new();
    for text in from.lines().map_while(Result::ok) {
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(text);
    }
    Vec::from(last).join("\n")
}
