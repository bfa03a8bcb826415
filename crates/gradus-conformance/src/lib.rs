//! The oracle backend and the test suite that every Gradus backend runs.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! [`run`] makes every call of the contract on a backend, over dtypes, shapes and layouts, and compares with
//! [`OracleBackend`]: results, the memory around them, and refusals of what must be refused. A backend's whole test is
//!
//! ```
//! use gradus_backend::Backend;
//! fn conforms(backend: &dyn Backend) {
//!     gradus_conformance::check(backend).unwrap_or_else(|report| panic!("{report}"));
//! }
//! ```
//!
//! Results must be exact where the operation is (integers, comparisons, copies, sums of small integers), and elsewhere as
//! near as an implementation by plain loops in the compute dtype comes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cases;
mod oracle;
mod report;
mod suite;

use gradus_backend::Backend;

pub use oracle::OracleBackend;
pub use report::{Failure, Report};

/// Runs the whole suite.
pub fn run(backend: &dyn Backend) -> Report {
    only(backend, "")
}

/// Runs the cases with `name` in their names: `"gemm/f32"`, or a name that a failure shows, also one of [`deep`].
pub fn only(backend: &dyn Backend, name: &str) -> Report {
    let mut suite = suite::Suite::new(backend, name);
    cases::run(&mut suite);
    suite.finish()
}

/// Runs `rounds` rounds of cases of random shapes and parameters, which `seed` and the number of the round determine.
///
/// A failure shows how to run its case alone, with [`only`].
pub fn deep(backend: &dyn Backend, seed: u64, rounds: u64) -> Report {
    let mut suite = suite::Suite::new(backend, "");
    for round in 0..rounds {
        cases::deep(&mut suite, seed, round);
    }
    suite.finish()
}

/// Runs every case once, each in one of its layouts: for a backend that passes its calls on to one that
/// conforms, or that another test covers.
pub fn brief(backend: &dyn Backend) -> Report {
    let mut suite = suite::Suite::new(backend, "").brief();
    cases::run(&mut suite);
    suite.finish()
}

/// Runs the whole suite; the report is the error if anything fails.
pub fn check(backend: &dyn Backend) -> Result<(), Report> {
    let report = run(backend);
    if report.passed() { Ok(()) } else { Err(report) }
}
