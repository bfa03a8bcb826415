//! Prints to standard output and standard error.

use std::io::{ErrorKind as IoKind, Write};

use gradus::train::ConfusionMatrix;
use gradus::{Error, Result};

/// Prints a line to standard output. A closed pipe is not an error.
pub(crate) fn say(line: &str) -> Result<()> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(e) if e.kind() != IoKind::BrokenPipe => Err(Error::io("output", "standard output", e)),
        _ => Ok(()),
    }
}

/// Prints a line to standard error, if possible.
pub(crate) fn complain(line: &str) {
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
