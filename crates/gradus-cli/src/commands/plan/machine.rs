//! [`Machine`]: what `gradus bench` measured, as straight lines.

use std::path::Path;

use gradus::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The time of a call: `latency + bytes * per_byte`, the alpha-beta model (Hockney, 1994).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Seconds of a call without data.
    pub(crate) latency: f64,
    /// Seconds for each byte of the larger of argument and result.
    pub(crate) per_byte: f64,
}

impl Line {
    pub(crate) fn seconds(&self, bytes: f64) -> f64 {
        self.latency + bytes * self.per_byte
    }
}

/// A call between ranks that training makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    AllReduce,
    ReduceScatter,
    AllGather,
    Send,
}

impl Call {
    /// How many times its data a rank sends among `ranks`: what a ring needs, and the least that is possible.
    pub(crate) fn sent(self, ranks: usize) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Call::AllReduce => 2.0 * share,
            Call::ReduceScatter | Call::AllGather => share,
            Call::Send => 1.0,
        }
    }

    /// The messages that follow one another.
    fn rounds(self, ranks: usize) -> f64 {
        if self == Call::Send { 1.0 } else { (ranks - 1) as f64 }
    }
}

/// What was measured on a number of ranks, while all of them worked at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) ranks: usize,
    pub(crate) device: String,
    /// The threads of a rank, if it computes on the CPU.
    pub(crate) threads: Option<usize>,
    /// Seconds of a forward and a backward pass through a block, besides its products and passes over memory.
    pub(crate) block: f64,
    /// Seconds for each floating point operation of products.
    pub(crate) per_flop: f64,
    /// Seconds of all elementwise work for each token and feature of a block.
    pub(crate) per_element: f64,
    /// Seconds for each byte that an elementwise operation on large vectors reads or writes.
    pub(crate) per_byte: f64,
    /// Absent for a single rank.
    pub(crate) calls: Option<Calls>,
}

/// The lines of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calls {
    pub(crate) all_reduce: Line,
    pub(crate) reduce_scatter: Line,
    pub(crate) all_gather: Line,
    pub(crate) send: Line,
}

impl Calls {
    fn line(&self, call: Call) -> Line {
        match call {
            Call::AllReduce => self.all_reduce,
            Call::ReduceScatter => self.reduce_scatter,
            Call::AllGather => self.all_gather,
            Call::Send => self.send,
        }
    }
}

/// Everything that was measured, by the number of ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) machines: Vec<Machine>,
}

impl Measured {
    /// Reads a file of `gradus bench`.
    pub(crate) fn read(path: &Path) -> Result<Measured> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            let e = Error::io("plan", path.display(), e);
            if missing { e.help("measure first: gradus launch -n 4 -- bench") } else { e }
        })?;
        let measured: Measured = serde_json::from_str(&text).map_err(|e| {
            let m = format!("{} is no file of `gradus bench`: {e}", path.display());
            Error::new(ErrorKind::Format, "plan", m).help("measure again: gradus launch -n 4 -- bench")
        })?;
        let numbers = measured.machines.iter().flat_map(|m| {
            let lines = m.calls.iter().flat_map(|c| [c.all_reduce, c.reduce_scatter, c.all_gather, c.send]);
            let lines = lines.flat_map(|line| [line.latency, line.per_byte]);
            [m.block, m.per_flop, m.per_element, m.per_byte].into_iter().chain(lines)
        });
        let whole = measured.machines.iter().all(|m| m.ranks > 0 && (m.ranks == 1) == m.calls.is_none());
        if measured.machines.is_empty() || !whole || numbers.into_iter().any(|n| !(n.is_finite() && n >= 0.0)) {
            let m = format!("{} holds no measurement, or one with numbers that cannot be", path.display());
            return Err(Error::new(ErrorKind::Format, "plan", m).help("measure again: gradus launch -n 4 -- bench"));
        }
        Ok(measured)
    }

    /// Adds a measurement, in place of an earlier one of the same number of ranks, and of those of another device: a plan
    /// takes all entries for one machine.
    pub(crate) fn add(&mut self, machine: Machine) {
        self.machines.retain(|other| other.ranks != machine.ranks && other.device == machine.device);
        self.machines.push(machine);
        self.machines.sort_by_key(|machine| machine.ranks);
    }

    /// What a rank computes how fast when so many work, and whether that was measured.
    pub(crate) fn computing(&self, ranks: usize) -> Option<(&Machine, bool)> {
        let machine = self.nearest(ranks, |_| true)?;
        Some((machine, machine.ranks == ranks))
    }

    /// The line of a call among so many ranks, and whether it was measured. For other numbers, what a ring sends and how
    /// many messages follow one another is scaled.
    pub(crate) fn call(&self, call: Call, ranks: usize) -> Option<(Line, bool)> {
        let machine = self.nearest(ranks, |machine| machine.calls.is_some())?;
        let line = machine.calls.as_ref()?.line(call);
        let rounds = call.rounds(ranks) / call.rounds(machine.ranks);
        let sent = call.sent(ranks) / call.sent(machine.ranks);
        let line = Line { latency: line.latency * rounds, per_byte: line.per_byte * sent };
        Some((line, machine.ranks == ranks))
    }

    fn nearest(&self, ranks: usize, fits: impl Fn(&Machine) -> bool) -> Option<&Machine> {
        let far = |machine: &&Machine| (machine.ranks as f64 / ranks as f64).ln().abs();
        self.machines.iter().filter(|machine| fits(machine)).min_by(|a, b| far(a).total_cmp(&far(b)))
    }
}

/// Factors of at least 0 with which the sums of the terms come nearest to the times: the least sum of squares of relative
/// errors.
pub(crate) fn fit<const N: usize>(points: &[([f64; N], f64)]) -> [f64; N] {
    let error = |factors: &[f64; N]| {
        let of = |(terms, time): &([f64; N], f64)| {
            let sum: f64 = terms.iter().zip(factors).map(|(term, factor)| term * factor).sum();
            (sum / time - 1.0).powi(2)
        };
        points.iter().map(of).sum::<f64>()
    };
    // Without a factor that would be negative, the others are fitted again: one of the few subsets is the best.
    let subsets = (1..1u32 << N).map(|subset| solve(points, |i| subset & (1 << i) != 0));
    let allowed = subsets.filter(|factors| factors.iter().all(|factor| factor.is_finite() && *factor >= 0.0));
    allowed.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or([0.0; N])
}

/// Solves the normal equations for the factors in a subset; the others are 0.
fn solve<const N: usize>(points: &[([f64; N], f64)], within: impl Fn(usize) -> bool) -> [f64; N] {
    // Terms differ by many orders of magnitude; each is taken in units of its largest.
    let scale: [f64; N] =
        std::array::from_fn(|i| points.iter().map(|(terms, time)| terms[i] / time).fold(0.0, f64::max));
    let term = |terms: &[f64; N], time: f64, i: usize| terms[i] / time / scale[i];
    let mut a = [[0.0; N]; N];
    let mut b = [0.0; N];
    for i in 0..N {
        if !within(i) {
            a[i][i] = 1.0;
            continue;
        }
        for (terms, time) in points {
            b[i] += term(terms, *time, i);
            for j in (0..N).filter(|&j| within(j)) {
                a[i][j] += term(terms, *time, i) * term(terms, *time, j);
            }
        }
    }
    for i in 0..N {
        let pivot = (i..N).max_by(|&x, &y| a[x][i].abs().total_cmp(&a[y][i].abs())).unwrap_or(i);
        a.swap(i, pivot);
        b.swap(i, pivot);
        for row in i + 1..N {
            let factor = a[row][i] / a[i][i];
            let (above, below) = a.split_at_mut(row);
            below[0].iter_mut().zip(&above[i]).skip(i).for_each(|(x, y)| *x -= factor * y);
            b[row] -= factor * b[i];
        }
    }
    for i in (0..N).rev() {
        let rest: f64 = (i + 1..N).map(|j| a[i][j] * b[j]).sum();
        b[i] = (b[i] - rest) / a[i][i];
    }
    std::array::from_fn(|i| if within(i) { b[i] / scale[i] } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found() {
        let [latency, per_byte] = fit(&[4e3, 64e3, 1e6, 16e6].map(|n| ([1.0, n], 30e-6 + n * 2e-10)));
        assert!((latency / 30e-6 - 1.0).abs() < 1e-9 && (per_byte / 2e-10 - 1.0).abs() < 1e-9);
        // A line that falls has a slope below 0: then only the constant is left.
        let [latency, per_byte] = fit(&[([1.0, 1.0], 3.0), ([1.0, 2.0], 2.0)]);
        assert!(per_byte == 0.0 && latency > 2.0 && latency < 3.0);
        let points = [[1.0, 1.0, 4.0], [1.0, 9.0, 2.0], [1.0, 3.0, 3.0], [1.0, 7.0, 1.0], [1.0, 2.0, 8.0]];
        let found = fit(&points.map(|t| (t, 0.5 * t[0] + 0.25 * t[1] + 2.0 * t[2])));
        assert!(found.iter().zip([0.5, 0.25, 2.0]).all(|(x, y)| (x - y).abs() < 1e-9), "{found:?}");
    }

    #[test]
    fn other_numbers_of_ranks_are_scaled() {
        let line = |latency, per_byte| Line { latency, per_byte };
        let calls = Calls {
            all_reduce: line(10.0, 1.0),
            reduce_scatter: line(10.0, 1.0),
            all_gather: line(10.0, 1.0),
            send: line(4.0, 1.0),
        };
        let machine = |ranks, calls| Machine {
            ranks,
            device: "cpu".into(),
            threads: None,
            block: 1.0,
            per_flop: 1.0,
            per_element: 1.0,
            per_byte: 1.0,
            calls,
        };
        let mut measured = Measured::default();
        [machine(1, None), machine(2, Some(calls))].into_iter().for_each(|m| measured.add(m));
        assert_eq!(measured.call(Call::AllReduce, 2), Some((line(10.0, 1.0), true)));
        // A rank sends 2 * 3/4 of the data among four, beside 2 * 1/2.
        assert_eq!(measured.call(Call::AllReduce, 4), Some((line(30.0, 1.5), false)));
        assert_eq!(measured.call(Call::Send, 4), Some((line(4.0, 1.0), false)));
        assert!(measured.computing(2).is_some_and(|(machine, exact)| machine.ranks == 2 && exact));
        assert!(measured.computing(8).is_some_and(|(machine, exact)| machine.ranks == 2 && !exact));
        // Another measurement of as many ranks takes the place of the first, and one of another device that of both.
        measured.add(machine(1, None));
        assert_eq!(measured.machines.iter().map(|machine| machine.ranks).collect::<Vec<_>>(), [1, 2]);
        measured.add(Machine { device: "cuda".into(), ..machine(4, Some(calls)) });
        assert_eq!(measured.machines.iter().map(|machine| machine.ranks).collect::<Vec<_>>(), [4]);
    }
}
