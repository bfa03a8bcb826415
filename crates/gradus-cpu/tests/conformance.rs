//! Tests that the CPU backend conforms to the contract on every instruction set that this machine has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_backend::{ErrorKind, Watched};
use gradus_conformance::{brief, check, long};
use gradus_cpu::CpuBackend;

fn conforms(isa: &str) {
    let backend = CpuBackend::with_threads(3).expect("three threads");
    match backend.with_isa(isa) {
        Ok(backend) => check(&backend).unwrap_or_else(|report| panic!("{report}")),
        // A failure is accepted only if the machine lacks the instruction set.
        Err(e) => assert!(isa != "portable" && *e.kind() == ErrorKind::Unsupported, "{e}"),
    }
}

#[test]
fn portable() {
    conforms("portable");
}

#[test]
fn avx2() {
    conforms("avx2");
}

#[test]
fn avx512() {
    conforms("avx512");
}

#[test]
fn long_operands() {
    let report = long(&CpuBackend::with_threads(2).expect("two threads"));
    assert!(report.passed(), "{report}");
}

#[test]
fn a_watched_backend_is_the_backend() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let backend = Watched::new(Arc::new(CpuBackend::with_threads(2).expect("two threads")), move |call| {
        assert!(!call.name.is_empty() && call.operations < 1 << 40 && call.bytes() < 1 << 40, "{call:?}");
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let report = brief(&backend);
    assert!(report.passed(), "{report}");
    assert!(calls.load(Ordering::Relaxed) > 1000);
}
