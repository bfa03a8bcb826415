//! Tests that the WebGPU backend conforms to the contract on the adapter of this machine.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_backend::Watched;
use gradus_conformance::only;
use gradus_wgpu::Profile;

fn whole(profile: Profile) {
    let Some(backend) = common::opened_as(profile) else { return };
    // If `GRADUS_CASE` is the name of a case, as a failure prints it, only that case runs.
    let report = only(&backend, &std::env::var("GRADUS_CASE").unwrap_or_default());
    eprintln!("{}", report.to_string().lines().last().unwrap_or_default());
    assert!(report.passed(), "{report}");
}

#[test]
fn the_whole_suite() {
    whole(Profile::Full);
}

#[test]
fn the_whole_suite_without_64_bit_types() {
    whole(Profile::No64);
}

#[test]
fn the_whole_suite_on_the_least_that_webgpu_guarantees() {
    whole(Profile::Core);
}

#[test]
fn a_watched_backend_is_the_backend() {
    let Some(backend) = common::opened() else { return };
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let backend = Watched::new(Arc::new(backend), move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let report = only(&backend, "embedding/");
    assert!(report.passed(), "{report}");
    assert!(calls.load(Ordering::Relaxed) > 100);
}
