//! How much of the machine this process used in a stretch of time, and how much others did, as Linux counts it in ticks of
//! 10 ms.

/// Ticks since the machine's start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticks {
    cores: u64,
    all: u64,
    busy: u64,
    own: u64,
}

/// What was used between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// How many cores this process kept busy.
    pub cores: f64,
    /// The part of all cores' time that others used, the host's other guests included.
    pub others: f64,
}

impl Ticks {
    /// Where the system tells.
    pub fn now() -> Option<Ticks> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        Ticks::read(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    fn read(machine: &str, process: &str) -> Option<Ticks> {
        let first: Vec<u64> = machine.lines().next()?.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [user, nice, system, idle, waiting, interrupts, soft, stolen, ..] = first[..] else { return None };
        let busy = user + nice + system + interrupts + soft + stolen;
        // The name of a process may hold spaces and brackets.
        let (_, fields) = process.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let own = times.next()?.ok()? + times.next()?.ok()?;
        let is_core = |l: &&str| l.starts_with("cpu") && !l.starts_with("cpu ");
        Some(Ticks { cores: machine.lines().filter(is_core).count() as u64, all: busy + idle + waiting, busy, own })
    }

    /// What was used since then; nothing can be said of less than a tick.
    pub fn since(self, then: Ticks) -> Option<Usage> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)? as f64;
        let (busy, own) = (self.busy.checked_sub(then.busy)? as f64, self.own.checked_sub(then.own)? as f64);
        Some(Usage { cores: own / all * self.cores as f64, others: ((busy - own) / all).max(0.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_others_ticks_are_told_apart() {
        let process = |own: u64| format!("7 (a b) c) S 1 1 1 0 -1 4 1 0 0 0 {own} 10 0 0 20 0 3 0 5 6 7");
        let machine =
            |user: u64, idle: u64| format!("cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n");
        let then = Ticks::read(&machine(1000, 1000), &process(100)).unwrap();
        assert_eq!(then, Ticks { cores: 2, all: 2000, busy: 1000, own: 110 });
        let now = Ticks::read(&machine(1160, 1040), &process(240)).unwrap();
        let usage = now.since(then).unwrap();
        assert!((usage.cores - 1.4).abs() < 1e-9 && (usage.others - 0.1).abs() < 1e-9, "{usage:?}");
        assert_eq!(then.since(then), None);
        assert_eq!(Ticks::read("", ""), None);
    }
}
