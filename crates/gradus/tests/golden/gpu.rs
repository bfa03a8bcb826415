//! The GPU to test on, for several programs.

use gradus::prelude::*;

/// The first GPU, or what stands in for it. Without one, prints a line that says so.
pub(crate) fn opened() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(e) => {
            let required = cfg!(feature = "cuda") && std::env::var_os("GRADUS_REQUIRE_CUDA").is_some_and(|v| v == "1");
            assert!(!required, "GRADUS_REQUIRE_CUDA is 1, but: {e}");
            println!("skipped: {e}");
            None
        }
    }
}
