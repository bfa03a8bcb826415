//! What the tests share: the adapter to test on.

use gradus_wgpu::{WgpuBackend, adapters, chosen};

/// A device; without an adapter, a line that says so and nothing.
pub(crate) fn opened() -> Option<WgpuBackend> {
    if adapters().is_empty() {
        eprintln!("skipped: no adapter for wgpu here (install a Vulkan driver, such as mesa-vulkan-drivers)");
        return None;
    }
    Some(WgpuBackend::open(chosen().expect("an adapter")).expect("a device"))
}
