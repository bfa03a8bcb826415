//! Helps to measure on a shared machine: waits until other programs pause, and repeats slices that they disturbed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use peer_harness::Ticks;

use crate::peers::{Slice, cores};

/// Above this share of the cores' time, other programs count as a disturbance.
const DISTURBS: f64 = 0.08;
/// How long other programs are observed before a slice.
const WATCHED: Duration = Duration::from_millis(50);

/// The share of the cores' time that other programs used just now, if the system reports it.
fn watch() -> Option<f64> {
    let cores = cores();
    let then = Ticks::now(&cores)?;
    sleep(WATCHED);
    Some(Ticks::now(&cores)?.since(then)?.others)
}

/// The time that a run may still spend waiting for quiet.
pub struct Patience {
    left: Duration,
    watch: fn() -> Option<f64>,
}

impl Patience {
    pub fn new(seconds: f64) -> Patience {
        Patience { left: Duration::from_secs_f64(seconds), watch }
    }

    /// Waits until other programs are idle, or until no waiting time is left.
    fn wait(&mut self) {
        while !self.left.is_zero() {
            let start = Instant::now();
            if (self.watch)().is_none_or(|others| others <= DISTURBS) {
                return;
            }
            self.left = self.left.saturating_sub(start.elapsed());
        }
    }

    /// Returns the least disturbed of as many tries as the waiting time allows. Stops at the first undisturbed one.
    pub fn quietest<E>(&mut self, mut slice: impl FnMut() -> Result<Slice, E>) -> Result<Slice, E> {
        self.wait();
        let mut best = slice()?;
        while !is_quiet(&best) && !self.left.is_zero() {
            self.wait();
            let start = Instant::now();
            let next = slice()?;
            self.left = self.left.saturating_sub(start.elapsed());
            if disturbed(&next) < disturbed(&best) {
                best = next;
            }
        }
        Ok(best)
    }
}

/// Whether other programs were idle during a slice.
pub fn is_quiet(slice: &Slice) -> bool {
    disturbed(slice) <= DISTURBS
}

/// The share of the cores' time that other programs used. An unknown share counts as 0.
fn disturbed(slice: &Slice) -> f64 {
    slice.others.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(others: &[f64]) -> impl FnMut() -> Result<Slice, String> {
        let mut others = others.iter().copied();
        move || Ok(Slice { others: Some(others.next().ok_or("no more")?), ..Slice::default() })
    }

    fn patience(seconds: f64, watch: fn() -> Option<f64>) -> Patience {
        Patience { watch, ..Patience::new(seconds) }
    }

    #[test]
    fn a_quiet_slice_is_the_last() {
        let mut patience = patience(1000.0, || Some(0.0));
        assert_eq!(patience.quietest(slices(&[0.5, 0.9, 0.01])).unwrap().others, Some(0.01));
        assert_eq!(patience.quietest(slices(&[0.5])), Err("no more".into()));
        assert_eq!(patience.quietest(|| Ok::<_, String>(Slice::default())).unwrap().others, None);
    }

    #[test]
    fn without_patience_there_is_one_try() {
        let mut patience = patience(0.0, || panic!("nobody is watched"));
        assert_eq!(patience.quietest(slices(&[0.5])).unwrap().others, Some(0.5));
    }

    #[test]
    fn the_best_is_kept_when_patience_ends() {
        let mut patience = patience(1e-9, || None);
        assert_eq!(patience.quietest(slices(&[0.3, 0.2, 0.0])).unwrap().others, Some(0.2));
        assert!(patience.left.is_zero());
    }

    #[test]
    fn others_that_never_pause_end_patience() {
        let busy = || {
            sleep(Duration::from_millis(2));
            Some(0.9)
        };
        let mut patience = patience(0.01, busy);
        patience.wait();
        assert!(patience.left.is_zero());
    }
}
