//! The code that all peers of the comparison share: the [`Job`]s, their [`inputs`], the measurement, and the line of
//! JSON that a peer prints.
//!
//! A peer is a program that runs one job: `peer-candle --job NAME --seconds S`. It does the job once, for the probes of
//! the result, which the driver compares with the reference. If `S` is not 0, it then repeats the job for about `S`
//! seconds, and reports the median time of a call. The job `all` runs every other job a few times, to measure memory.

mod bench;
pub mod inputs;
mod jobs;
mod probe;
mod usage;

pub use bench::{Bench, Outcome, main, median, seconds_of};
pub use jobs::{Goal, Job, classes, jobs};
pub use probe::{Probe, agrees};
pub use usage::{Ticks, Usage, cores};
