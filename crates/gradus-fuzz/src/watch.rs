//! Child processes under a memory limit, with an eye on whether they go on.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Kilobytes of addresses that a child may have.
const ADDRESSES: usize = 6 << 20;
/// Lines of its last words that are kept.
const LAST: usize = 12;

/// How a child ended.
#[derive(Debug)]
pub enum End {
    /// By itself, or by a signal that it raised.
    Exited(ExitStatus),
    /// It said nothing for too long, and was killed.
    Hung,
}

/// This program with these arguments, limited in its addresses where there is a shell to limit it.
pub fn this_program(arguments: &[String]) -> io::Result<Command> {
    let program = std::env::current_exe()?;
    if !cfg!(unix) {
        let mut command = Command::new(program);
        command.args(arguments);
        return Ok(command);
    }
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -v {ADDRESSES}; ulimit -c 0; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(arguments);
    Ok(command)
}

/// Runs a child, and hands on each line that it prints; one that prints none for `patience` is killed. Gives its end and the
/// last that it said on standard error.
pub fn watch(command: &mut Command, patience: Duration, mut line: impl FnMut(&str)) -> io::Result<(End, String)> {
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
