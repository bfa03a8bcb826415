//! [`Children`]: whether the processes that another one has started have all ended.

use std::fs;
use std::time::{Duration, Instant};

/// How often the processes of the machine are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The processes that another one has started itself.
pub(super) struct Children {
    parent: u32,
    looked: Instant,
    /// Whether one was alive.
    begun: bool,
    /// When it was first seen that none was alive any more.
    ended: Option<Instant>,
}

impl Children {
    pub(super) fn of(parent: u32) -> Children {
        Children { parent, looked: Instant::now(), begun: false, ended: None }
    }

    /// Whether there were some, and all ended at least so long ago. On a system without `/proc` none are seen.
    pub(super) fn have_ended_for(&mut self, time: Duration) -> bool {
        if self.looked.elapsed() >= LOOK.min(time) {
            self.looked = Instant::now();
            let lives = has_living(self.parent);
            self.begun |= lives;
            self.ended = if lives || !self.begun { None } else { self.ended.or(Some(self.looked)) };
        }
        self.ended.is_some_and(|ended| ended.elapsed() >= time)
    }
}

/// Whether a process has a child that runs, or is stopped. A child that has ended stays until its parent asks for it.
fn has_living(parent: u32) -> bool {
    let is_child = |stat: &str| {
        // The name of the program may hold anything; its state and its parent come after it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let (state, of) = (words.next()?, words.next()?.parse::<u32>().ok()?);
        Some(of == parent && !matches!(state, "Z" | "X"))
    };
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let stats = processes.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.into_iter().any(|stat| is_child(&stat) == Some(true))
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
        while !children.have_ended_for(soon) {
            assert!(!none.have_ended_for(soon));
            looks += 1;
            thread::sleep(soon);
        }
        assert!(looks > 2);
        for process in [&mut parent, &mut childless] {
            process.kill().and_then(|()| process.wait()).unwrap();
        }
    }
}
