//! Shared by the tests: the adapter to test on.

use gradus_wgpu::{WgpuBackend, adapters, chosen};

/// A device; without an adapter, prints a line that says so and returns `None`.
pub(crate) fn opened() -> Option<WgpuBackend> {
    if adapters().is_empty() {
        let required = std::env::var_os("GRADUS_REQUIRE_WGPU").is_some_and(|v| v == "1");
        assert!(!required, "GRADUS_REQUIRE_WGPU is 1 and wgpu finds no adapter");
        eprintln!("skipped: no adapter for wgpu here (install a Vulkan driver, such as mesa-vulkan-drivers)");
        return None;
    }
    Some(WgpuBackend::open(chosen().expect("an adapter")).expect("a device"))
}
