//! [`OnnxTime`]: what each node of a run took.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time of one node in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxTime {
    /// The name of the node.
    pub node: String,
    /// The operator.
    pub operator: &'static str,
    /// The time until the device had finished.
    pub time: Duration,
}

/// The total time and the number of nodes of each operator, the slowest first.
pub fn by_operator(times: &[OnnxTime]) -> Vec<(&'static str, Duration, usize)> {
    let mut sums: BTreeMap<&'static str, (Duration, usize)> = BTreeMap::new();
    for time in times {
        let sum = sums.entry(time.operator).or_default();
        *sum = (sum.0 + time.time, sum.1 + 1);
    }
    let mut rows: Vec<_> = sums.into_iter().map(|(operator, (time, count))| (operator, time, count)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.1));
    rows
}
