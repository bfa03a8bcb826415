//! Devices without memory left.

use gradus_tensor::{DType, ErrorKind, Tensor};

use crate::stand_in::{computes, opened, with_variables};

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let test = "memory::what_does_not_fit_is_an_error_that_says_so";
    with_variables(test, &[("GRADUS_PTX_MEMORY", "1000000")], || {
        let Some(device) = opened() else { return };
        let e = Tensor::zeros([1 << 20], DType::F32, &device).expect_err("more than there is");
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { requested: 4_194_304 }), "{e}");
        assert!(e.to_string().contains("smaller batches"), "{e}");
        computes(&device);
    });
}

#[test]
fn memory_that_is_freed_is_used_again() {
    let test = "memory::memory_that_is_freed_is_used_again";
    // The pool keeps what is freed, until the device has no more.
    with_variables(test, &[("GRADUS_PTX_MEMORY", "1000000"), ("GRADUS_CUDA_EXACT", "0")], || {
        let Some(device) = opened() else { return };
        for size in [40_000, 80_000, 120_000, 160_000, 200_000] {
            let x = Tensor::zeros([size], DType::F32, &device).expect("what is kept is given back first");
            drop(x);
        }
        computes(&device);
    });
}
