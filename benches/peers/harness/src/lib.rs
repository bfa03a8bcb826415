//! Shared by all peers of the comparison: the [`Job`]s, their [`inputs`], the measuring, and the line of JSON that a
//! peer prints.
//!
//! A peer is a program that runs one job: `peer-candle --job NAME --seconds S`. It does the job once and prints probes
//! of the result, which the driver compares with the reference; then, if `S` is not 0, it repeats the job for about `S`
//! seconds and prints the median time of a call. The job `all` runs every other job a few times, to measure memory.

mod bench;
pub mod inputs;
mod jobs;
mod probe;
mod usage;

pub use bench::{Bench, Outcome, main, median, seconds_of};
pub use jobs::{Goal, Job, classes, jobs};
pub use probe::{Probe, agrees};
pub use usage::{Ticks, Usage, cores};
