//! Opens the device to test on, for all tests.

use gradus_cuda::CudaBackend;

/// Opens the first GPU, or what stands in for it. Without one, prints a line that says so and returns `None`.
pub(crate) fn opened() -> Option<CudaBackend> {
    match CudaBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(e) => {
            let required = std::env::var_os("GRADUS_REQUIRE_CUDA").is_some_and(|v| v == "1");
            assert!(!required, "GRADUS_REQUIRE_CUDA is 1, but: {e}");
            eprintln!("skipped: {e}");
            None
        }
    }
}
