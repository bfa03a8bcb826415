//! Tests that the CUDA backend conforms to the contract on the GPU of this machine, or on what stands in for it.

mod common;

use gradus_conformance::only;

#[test]
fn the_whole_suite() {
    let Some(backend) = common::opened() else { return };
    // If `GRADUS_CASE` is the name of a case, as a failure prints it, only that case runs.
    let report = only(&backend, &std::env::var("GRADUS_CASE").unwrap_or_default());
    eprintln!("{}", report.to_string().lines().last().unwrap_or_default());
    eprintln!("{} kernels compiled", backend.compiled());
    assert!(report.passed(), "{report}");
}
