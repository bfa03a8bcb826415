//! [`Children`]: whether all processes that `mpirun` has started have ended.

use std::fs;
use std::time::{Duration, Instant};

/// How often the processes of the machine are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The same until children have been seen, since ranks may die as soon as they start.
const FIRST: Duration = Duration::from_millis(100);

/// The processes that another one has started itself.
pub(super) struct Children {
    parent: u32,
    looked: Instant,
    /// How many looks in a row have seen one that was alive, until two have.
    seen: u8,
    /// When it was first seen that none was alive any more.
    ended: Option<Instant>,
}

impl Children {
    pub(super) fn of(parent: u32) -> Children {
        Children { parent, looked: Instant::now(), seen: 0, ended: None }
    }

    /// Whether there were children, and the last of them ended at least this long ago. Two looks in a row must have seen one:
    /// what lives for a shorter time may be a helper of `mpirun`. On a system without `/proc` none are seen.
    pub(super) fn have_ended_for(&mut self, time: Duration) -> bool {
        let every = if self.seen < 2 { FIRST } else { LOOK };
        if self.looked.elapsed() >= every.min(time) {
            self.looked = Instant::now();
            match has_living(self.parent) {
                Some(true) => (self.seen, self.ended) = ((self.seen + 1).min(2), None),
                Some(false) if self.seen == 2 => self.ended = self.ended.or(Some(self.looked)),
                None if self.seen == 2 => self.ended = None,
                _ => self.seen = 0,
            }
        }
        self.ended.is_some_and(|ended| ended.elapsed() >= time)
    }
}

/// Whether a process has a child that runs, or is stopped; `None` if that cannot be seen. A child that has ended stays until
/// its parent asks for it.
fn has_living(parent: u32) -> Option<bool> {
    let is_living = |stat: &str| {
        // The name of the program may hold anything; its state and its parent come after it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let (state, of) = (words.next()?, words.next()?.parse::<u32>().ok()?);
        Some(of == parent && !matches!(state, "Z" | "X"))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut stats = processes.filter_map(|entry| fs::read(entry.path().join("stat")).ok());
    Some(stats.any(|stat| is_living(&String::from_utf8_lossy(&stat)) == Some(true)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn children_are_seen_to_end() {
        // The parent never asks for its child.
        let mut parent = Command::new("sh").args(["-c", "sleep 1 & exec sleep 60"]).spawn().unwrap();
        let mut childless = Command::new("sleep").arg("60").spawn().unwrap();
        let (soon, mut looks) = (Duration::from_millis(20), 0);
        let (mut children, mut none) = (Children::of(parent.id()), Children::of(childless.id()));
        let mut none_has_ended = false;
        while !children.have_ended_for(soon) && looks < 3000 {
            none_has_ended |= none.have_ended_for(soon);
            looks += 1;
            thread::sleep(soon);
        }
        for process in [&mut parent, &mut childless] {
            process.kill().and_then(|()| process.wait()).unwrap();
        }
        assert!((3..3000).contains(&looks) && !none_has_ended, "{looks} looks");
    }
}
