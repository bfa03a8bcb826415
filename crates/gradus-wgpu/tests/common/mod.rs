//! Opens the adapter to test on, for all tests.

use gradus_wgpu::{Profile, WgpuBackend, adapters, chosen};

/// Opens a device. Without an adapter, prints a line that says so and returns `None`.
pub(crate) fn opened() -> Option<WgpuBackend> {
    opened_as(Profile::Full)
}

/// Opens a device that uses no more of the adapter than the profile allows.
pub(crate) fn opened_as(profile: Profile) -> Option<WgpuBackend> {
    number().map(|index| WgpuBackend::open_as(index, profile).expect("a device"))
}

fn number() -> Option<usize> {
    if adapters().is_empty() {
        let required = std::env::var_os("GRADUS_REQUIRE_WGPU").is_some_and(|v| v == "1");
        assert!(!required, "GRADUS_REQUIRE_WGPU is 1 and wgpu finds no adapter");
        eprintln!("skipped: no adapter for wgpu here (install a Vulkan driver, such as mesa-vulkan-drivers)");
        return None;
    }
    Some(chosen().expect("an adapter"))
}
