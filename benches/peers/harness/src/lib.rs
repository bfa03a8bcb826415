//! What every peer of the comparison shares: the [`Job`]s, their [`inputs`], the way to measure, and the line of JSON
//! that a peer prints.
//!
//! A peer is a program that runs one job: `peer-candle --job NAME --seconds S`. It does the job once and prints probes
//! of the result, which the driver compares with the reference; then, if `S` is not 0, it repeats the job for about `S`
//! seconds and prints the median time of a call. The job `all` is each other one a few times, for the memory it takes.

mod bench;
pub mod inputs;
mod jobs;
mod probe;
mod usage;

pub use bench::{Bench, Outcome, main, median, seconds_of};
pub use jobs::{Goal, Job, classes, jobs};
pub use probe::{Probe, agrees};
pub use usage::{Ticks, Usage, cores};
