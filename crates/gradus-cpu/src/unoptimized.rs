//! Warns if the kernels were compiled without optimisation, as they are by a plain `cargo build` of a dependent crate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The time that kernels must take in total before the note is printed.
const MATTERS: Duration = Duration::from_secs(1);

/// The environment variable that turns the note off if set to 0.
const VARIABLE: &str = "GRADUS_WARN_UNOPTIMIZED";

const NOTE: &str = "\
warning: Gradus was compiled without optimization and computes some hundred times slower than it can
  help: add these two lines to the Cargo.toml of your workspace, which leave your own code as it is:
        [profile.dev.package.\"*\"]
        opt-level = 3
  help: GRADUS_WARN_UNOPTIMIZED=0 turns this warning off";

/// The time spent in kernels so far, and whether the note was printed.
struct Watch {
    nanoseconds: AtomicU64,
    said: AtomicBool,
}

#[cfg(unoptimized)]
static WATCH: Watch = Watch { nanoseconds: AtomicU64::new(0), said: AtomicBool::new(false) };

impl Watch {
    /// Adds some time. Returns whether the note is due, which happens once, as soon as the total reaches [`MATTERS`].
    fn add(&self, time: Duration) -> bool {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        Duration::from_nanos(before.saturating_add(nanoseconds)) >= MATTERS && !self.said.swap(true, Ordering::Relaxed)
    }
}

/// Runs some work and prints the note if it is due.
#[cfg(unoptimized)]
pub(crate) fn watched(work: impl FnOnce()) {
    let start = std::time::Instant::now();
    work();
    if WATCH.add(start.elapsed()) && std::env::var_os(VARIABLE).is_none_or(|v| v != "0") {
        eprintln!("{NOTE}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_and_not_for_little() {
        let watch = Watch { nanoseconds: AtomicU64::new(0), said: AtomicBool::new(false) };
        assert!(!watch.add(Duration::from_millis(999)));
        assert!(watch.add(Duration::from_millis(1)));
        assert!(!watch.add(Duration::MAX) && !watch.add(Duration::from_secs(5)));
    }

    #[test]
    fn the_note_names_its_variable() {
        assert!(NOTE.contains(VARIABLE));
    }
}
