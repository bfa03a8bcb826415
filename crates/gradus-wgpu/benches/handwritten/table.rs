//! Formats the table, which has one line for each job.

use crate::job::{Job, Ready, Work};
use crate::measure::Measured;

/// The highest speeds that the device reaches.
pub(crate) struct Best {
    /// In bytes per second.
    pub(crate) bandwidth: f64,
    /// In floating-point operations per second.
    pub(crate) peak: f64,
}

pub(crate) const HEAD: &str = "\
| job | ours | hand-written | ratio | CPU | speed | share of the best | bytes moved / needed |
|---|---:|---:|---:|---:|---:|---:|---:|";

pub(crate) fn line(job: &Job, ready: &Ready, m: &Measured, best: &Best) -> String {
    let (speed, share) = match job.work {
        Work::Bytes => rate(ready.needed as f64 / m.ours, "GB/s", best.bandwidth),
        Work::Flops(flops) => rate(flops / m.ours, "GFLOP/s", best.peak),
        Work::Calls => Default::default(),
    };
    let moved = if job.work == Work::Calls { String::new() } else { number(ready.moved as f64 / ready.needed as f64) };
    let cells = [
        job.name.to_owned(),
        time(m.ours),
        m.written.map(time).unwrap_or_default(),
        m.ratio.map(number).unwrap_or_default(),
        time(m.cpu),
        speed,
        share,
        moved,
    ];
    format!("| {} |", cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).join(" | "))
}

fn number(x: f64) -> String {
    format!("{x:.2}")
}

/// Formats a speed in billions per second, and as a share of the best one.
fn rate(speed: f64, unit: &str, best: f64) -> (String, String) {
    (format!("{:.2} {unit}", speed / 1e9), format!("{:.0} %", 100.0 * speed / best))
}

fn time(seconds: f64) -> String {
    if seconds < 1e-3 { format!("{:.1} us", seconds * 1e6) } else { format!("{:.2} ms", seconds * 1e3) }
}
