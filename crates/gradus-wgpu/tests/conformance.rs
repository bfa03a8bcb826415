//! Tests that the WebGPU backend conforms to the contract on the adapter of this machine.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gradus_backend::Watched;
use gradus_conformance::{only, part};
use gradus_wgpu::Profile;

/// Held while a profile is tested. A software driver spends most of the time compiling kernels, and keeps them for the next profile. If
/// all profiles ran at once, each would compile the same kernels.
static TURN: Mutex<()> = Mutex::new(());

fn whole(profile: Profile) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // If `GRADUS_CASE` is the name of a case, as a failure prints it, only that case runs.
    let case = std::env::var("GRADUS_CASE").ok();
    let parts = if case.is_some() { 1 } else { thread::available_parallelism().map_or(1, |n| n.get().min(4) as u64) };
    let run = |number: u64| {
        let Some(backend) = common::opened_as(profile) else { return };
        let report = match &case {
            Some(case) => only(&backend, case),
            None => part(&backend, number, parts, false),
        };
        eprintln!("{}", report.to_string().lines().last().unwrap_or_default());
        assert!(report.passed(), "{report}");
    };
    let run = &run;
    thread::scope(|scope| {
        for number in 0..parts {
            scope.spawn(move || run(number));
        }
    });
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
