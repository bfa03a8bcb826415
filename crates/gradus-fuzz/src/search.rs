//! Numbered tries in child processes under a memory limit, with an eye on whether they go on.
//!
//! A child prints `at N` before try `N` and `failed N WHAT` after one that went wrong; what else it prints is the program's.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Kilobytes of addresses that a child may have.
const ADDRESSES: usize = 6 << 20;
/// Lines of its last words that are kept.
const LAST: usize = 12;

/// Tries that this program makes in children.
#[derive(Debug)]
pub struct Search {
    /// Tries in all.
    pub tries: u64,
    /// Tries that one child makes.
    pub chunk: u64,
    /// A search with this many failures ends.
    pub enough: usize,
    /// How long a child may say nothing: that is how long a single try may take.
    pub patience: Duration,
    /// What a child is started with; `--child FROM TO` follows.
    pub arguments: Vec<String>,
}

/// What is left to do, and what went wrong.
struct State {
    next: u64,
    failures: usize,
}

impl State {
    /// The first of the tries that are left, and their end.
    fn take(&mut self, search: &Search) -> (u64, u64) {
        let from = self.next;
        self.next = search.tries.min(from + search.chunk);
        (from, self.next)
    }
}

impl Search {
    /// Makes all tries, as many children at a time as there are processors. `failed` learns of each try that went wrong, `line`
    /// of the lines that are the program's. The number of failures.
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

    /// Makes tries until the child ends; the first that is left to make.
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

/// The side of the child: makes the tries, each of which says what is wrong, if something is.
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

/// This program with these arguments, limited in its addresses where there is a shell to limit it, and without backtraces: to
/// find the names of functions takes longer than a try may.
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
    /// By itself, or by a signal that it raised.
    Exited(ExitStatus),
    /// It said nothing for too long, and was killed.
    Hung,
}

/// Runs a child, and hands on each line that it prints; one that prints none for `patience` is killed. Gives its end and the
/// last that it said on standard error.
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
