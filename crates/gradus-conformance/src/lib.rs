//! The oracle backend and the test suite that every Gradus backend runs.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` instead: only its API is kept
//! stable between releases.
//!
//! [`run`] makes every call of the contract on a backend, over dtypes, shapes and layouts. It compares the results with
//! those of [`OracleBackend`], checks that the memory around them is unchanged, and checks that invalid calls are
//! rejected. The whole conformance test of a backend is:
//!
//! ```
//! use gradus_backend::Backend;
//! fn conforms(backend: &dyn Backend) {
//!     gradus_conformance::check(backend).unwrap_or_else(|report| panic!("{report}"));
//! }
//! ```
//!
//! Results must be exact for exact operations (integers, comparisons, copies, sums of small integers). Elsewhere they
//! must be as accurate as plain loops in the compute dtype.
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

/// Runs the cases whose names contain `name`: `"gemm/f32"`, or the full name that a failure prints, including names
/// from [`deep`] and [`long`].
pub fn only(backend: &dyn Backend, name: &str) -> Report {
    let mut suite = suite::Suite::new(backend, name);
    cases::run(&mut suite);
    suite.finish()
}

/// Runs `rounds` rounds of cases with random shapes and parameters. `seed` and the round's number determine each case.
///
/// A failure prints the name with which [`only`] repeats that case alone.
pub fn deep(backend: &dyn Backend, seed: u64, rounds: u64) -> Report {
    let mut suite = suite::Suite::new(backend, "");
    for round in 0..rounds {
        cases::deep(&mut suite, seed, round);
    }
    suite.finish()
}

/// Runs rounds like those of [`deep`], each case in one of its layouts, until each operation has had `cases` of them. The counts
/// are in [`Report::operations`].
///
/// `part` is the number of a part, and how many there are: each runs rounds of its own. `operation` is empty, or the one to run,
/// such as `gemm`, with others that its rounds run too. It is a failure if there is no such operation.
pub fn each(backend: &dyn Backend, seed: u64, part: [u64; 2], cases: usize, operation: &str) -> Report {
    let mut suite = suite::Suite::new(backend, "").brief();
    cases::each(&mut suite, seed, part, cases, operation);
    suite.finish()
}

/// Runs every kernel that contains a loop once, on operands so long that a plain loop in a shader would take more than
/// the 65,536 iterations after which some GPU drivers end it without an error.
///
/// A failure prints the name with which [`only`] repeats that case alone.
pub fn long(backend: &dyn Backend) -> Report {
    let mut suite = suite::Suite::new(backend, "").brief();
    cases::long(&mut suite);
    suite.finish()
}

/// Runs every case once, in one of its layouts. Use it for a backend that forwards its calls to a conforming backend,
/// or that another test already covers.
pub fn brief(backend: &dyn Backend) -> Report {
    let mut suite = suite::Suite::new(backend, "").brief();
    cases::run(&mut suite);
    suite.finish()
}

/// Runs one of `parts` parts of the suite, or with `brief` each of its cases in one layout. Every case is in one part, so that
/// as many processes run the suite together.
pub fn part(backend: &dyn Backend, part: u64, parts: u64, brief: bool) -> Report {
    let suite = suite::Suite::new(backend, "").part(part, parts.max(1));
    let mut suite = if brief { suite.brief() } else { suite };
    cases::run(&mut suite);
    suite.finish()
}

/// Runs the whole suite, and returns the report as an error if any case fails.
pub fn check(backend: &dyn Backend) -> Result<(), Report> {
    let report = run(backend);
    if report.passed() { Ok(()) } else { Err(report) }
}
