//! Prints to standard output and standard error.

use std::io::{ErrorKind as IoKind, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus::train::ConfusionMatrix;
use gradus::{Error, Result};

/// The number of this process among those that share a run. All but the first print errors alone.
static RANK: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of this process.
#[cfg(all(feature = "mpi", unix))]
pub(crate) fn of_rank(rank: usize) {
    RANK.store(rank, Ordering::Relaxed);
}

fn is_first() -> bool {
    RANK.load(Ordering::Relaxed) == 0
}

/// Prints a line to standard output. A closed pipe is not an error.
pub(crate) fn say(line: &str) -> Result<()> {
    if !is_first() {
        return Ok(());
    }
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(e) if e.kind() != IoKind::BrokenPipe => Err(Error::io("output", "standard output", e)),
        _ => Ok(()),
    }
}

/// Prints a line to standard error, if possible.
pub(crate) fn complain(line: &str) {
    if is_first() {
        print_error(line);
    }
}

/// Prints the error that ends the program.
pub(crate) fn fail(error: &Error) {
    match RANK.load(Ordering::Relaxed) {
        0 => print_error(&format!("error: {error}")),
        rank => print_error(&format!("rank {rank}: error: {error}")),
    }
}

fn print_error(line: &str) {
    // A failure here cannot be reported anywhere.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A number with commas between thousands.
pub(crate) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The largest number of classes whose confusion matrix fits in a terminal.
const MOST_CLASSES: usize = 20;

/// The lines with a confusion matrix, if it fits in a terminal, after one that names the classes.
pub(crate) fn matrix(confusion: Option<&ConfusionMatrix>, classes: &[String]) -> Vec<String> {
    let Some(confusion) = confusion.filter(|confusion| confusion.classes() <= MOST_CLASSES) else { return Vec::new() };
    let names: Vec<String> = classes.iter().enumerate().map(|(at, name)| format!("{at} {name}")).collect();
    let names = (!names.is_empty()).then(|| format!("classes: {}", names.join(", ")));
    names.into_iter().chain([confusion.to_string()]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_split() {
        let split = [0, 12, 999, 1000, 123456, 1234567].map(super::thousands);
        assert_eq!(split, ["0", "12", "999", "1,000", "123,456", "1,234,567"]);
    }
}
