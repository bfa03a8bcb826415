//! The CPU backend conforms to the contract on every instruction set that this machine has.

use gradus_backend::ErrorKind;
use gradus_conformance::check;
use gradus_cpu::CpuBackend;

fn conforms(isa: &str) {
    let backend = CpuBackend::with_threads(3).expect("three threads");
    match backend.with_isa(isa) {
        Ok(backend) => check(&backend).unwrap_or_else(|report| panic!("{report}")),
        // Only a machine without the instruction set is excused.
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
