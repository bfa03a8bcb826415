//! How much a process and other processes used some cores during an interval. Linux counts this in ticks of 10 ms.

/// The ticks of some cores since the machine started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticks {
    cores: usize,
    all: u64,
    busy: u64,
    own: u64,
}

/// The usage between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// How many cores were kept busy by this process and the child processes that it waited for.
    pub cores: f64,
    /// The share of the cores' time that other processes used, including other guests of the same host.
    pub others: f64,
}

/// The numbers of the cores that this process may use; empty if the system does not report them.
pub fn cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(numbers).unwrap_or_default()
}

/// The numbers of a list such as `0-2,5`.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let ends = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let ranges: Vec<_> = list.trim().split(',').map(ends).collect::<Option<_>>()?;
    Some(ranges.into_iter().flatten().collect())
}

impl Ticks {
    /// The current ticks of these cores, if the system reports them.
    pub fn now(cores: &[usize]) -> Option<Ticks> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        Ticks::read(&read("/proc/stat")?, &read("/proc/self/stat")?, cores)
    }

    fn read(machine: &str, process: &str, cores: &[usize]) -> Option<Ticks> {
        // The name of a process may contain spaces and brackets.
        let (_, fields) = process.rsplit_once(')')?;
        // The ticks of the process and of the child processes that it waited for.
        let times: Vec<u64> = fields.split_whitespace().skip(11).take(4).map_while(|time| time.parse().ok()).collect();
        let own = (times.len() == 4).then(|| times.iter().sum())?;
        let none = Ticks { cores: cores.len(), all: 0, busy: 0, own };
        cores.iter().try_fold(none, |ticks, core| {
            let line = machine.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
            let times: Vec<u64> = line.split_whitespace().filter_map(|time| time.parse().ok()).collect();
            let [user, nice, system, idle, waiting, interrupts, soft, stolen, ..] = times[..] else { return None };
            let busy = user + nice + system + interrupts + soft + stolen;
            Some(Ticks { all: ticks.all + busy + idle + waiting, busy: ticks.busy + busy, ..ticks })
        })
    }

    /// The usage since `then`; `None` for less than a tick.
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
        let process = |own: u64| format!("7 (a b) c) S 1 1 1 0 -1 4 1 0 0 0 {own} 10 5 5 20 0 3 0 5 6 7");
        let machine = |user: u64, idle: u64| {
            format!(
                "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {user} 0 0 {idle} 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n\
                cpu10 500 0 0 500 0 0 0 0 0 0\nintr 5\n"
            )
        };
        let then = Ticks::read(&machine(1000, 1000), &process(100), &[0, 10]).unwrap();
        assert_eq!(then, Ticks { cores: 2, all: 3000, busy: 1500, own: 120 });
        let now = Ticks::read(&machine(1160, 1040), &process(240), &[0, 10]).unwrap();
        let usage = now.since(then).unwrap();
        assert!((usage.cores - 1.4).abs() < 1e-9 && (usage.others - 0.1).abs() < 1e-9, "{usage:?}");
        assert_eq!(then.since(then), None);
        // A core that is not listed does not count.
        let elsewhere = |at| Ticks::read(&machine(at, at), &process(100), &[1, 10]).unwrap();
        assert_eq!(elsewhere(2000), elsewhere(1000));
        assert_eq!((Ticks::read("", "", &[]), Ticks::read(&machine(1, 1), &process(1), &[3])), (None, None));
    }

    #[test]
    fn a_list_of_cores_is_read() {
        assert_eq!(numbers("\t0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!((numbers("7"), numbers("")), (Some(vec![7]), None));
    }
}
