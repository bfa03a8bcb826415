//! The WebGPU backend conforms to the contract on the adapter that this machine has.

use gradus_conformance::{only, run};
use gradus_wgpu::{WgpuBackend, adapters, chosen};

/// The adapter to test on; without one, a line that says so.
fn opened() -> Option<WgpuBackend> {
    if adapters().is_empty() {
        eprintln!("skipped: this machine has no adapter for wgpu (install a Vulkan driver such as mesa-vulkan-drivers)");
        return None;
    }
    Some(WgpuBackend::open(chosen().expect("an adapter")).expect("a device"))
}

#[test]
fn the_suite() {
    let Some(backend) = opened() else { return };
    let report = match std::env::var("GRADUS_ONLY") {
        Ok(name) => only(&backend, &name),
        Err(_) => run(&backend),
    };
    for f in &report.failures { // TEMP
        eprintln!("F {} {}", f.name, f.detail.lines().next().unwrap_or_default()); // TEMP
        if f.detail.contains("error:") { eprintln!("{}", f.detail.lines().take(8).collect::<Vec<_>>().join("\n")); } // TEMP
    } // TEMP
    assert!(report.passed(), "{report}");
}
