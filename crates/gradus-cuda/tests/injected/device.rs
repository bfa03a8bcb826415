//! Devices that fail while they work.

use gradus_cuda::CudaOptions;
use gradus_tensor::{ErrorKind, Tensor};

use crate::stand_in::{computes, fail, numbers, opened, with_variables};

/// What a kernel that faults, or a device that is gone, does to what follows: each call is an error, and none ends the
/// program.
#[track_caller]
fn is_lost_after(plan: &str, name: &str) {
    let Some(device) = opened() else { return };
    computes(&device);
    let before = numbers(&device).expect("a working device");
    fail(plan);
    let e = (|| before.add(1.0)?.to_vec::<f32>())().expect_err("a device that fails");
    assert!(matches!(e.kind(), ErrorKind::Backend) && e.to_string().contains(name), "{e}");
    fail("");
    for e in [before.add(1.0).err(), before.to_vec::<f32>().err(), Tensor::from_vec(vec![1f32], [1], &device).err()] {
        let text = e.expect("the device stays lost").to_string();
        assert!(text.contains("is lost") && text.contains("start the program again"), "{text}");
    }
}

#[test]
fn a_kernel_that_faults_loses_the_device() {
    with_variables("device::a_kernel_that_faults_loses_the_device", &[], || {
        is_lost_after("cuStreamSynchronize:1=700", "CUDA_ERROR_ILLEGAL_ADDRESS");
    });
}

#[test]
fn a_launch_on_a_device_that_is_gone_loses_it() {
    with_variables("device::a_launch_on_a_device_that_is_gone_loses_it", &[], || {
        is_lost_after("cuLaunchKernel:1=719", "CUDA_ERROR_LAUNCH_FAILED");
    });
}

#[test]
fn an_index_out_of_range_is_an_error_where_it_is_read_and_the_device_works_on() {
    let test = "device::an_index_out_of_range_is_an_error_where_it_is_read_and_the_device_works_on";
    with_variables(test, &[], || {
        let Some(device) = opened() else { return };
        let x = numbers(&device).expect("a working device");
        for bad in [100, -1, i64::MAX] {
            let index = Tensor::from_vec(vec![3i64, bad, 5], [3], &device).expect("indices");
            // The call is queued. What is computed from its result is wrong too, and what is not is right.
            let picked = x.gather(0, &index).expect("the GPU has not seen the index");
            let after = picked.mul(2.0).expect("nobody has read the result");
            let apart = x.mul(2.0).expect("a working device");
            for wrong in [&after, &picked] {
                let e = wrong.to_vec::<f32>().expect_err("an index out of range");
                let text = e.to_string();
                assert!(
                    matches!(e.kind(), ErrorKind::IndexOutOfBounds { pos: 1, index, size: 100 } if *index == bad),
                    "{text}"
                );
                assert!(text.contains("gather") && text.contains("device.rs"), "{text}");
            }
            assert_eq!(apart.to_vec::<f32>().expect("another tensor")[99], 19.8);
            computes(&device);
        }
    });
}

#[test]
fn a_copy_that_fails_is_an_error_and_the_device_works_on() {
    with_variables("device::a_copy_that_fails_is_an_error_and_the_device_works_on", &[], || {
        let Some(device) = opened() else { return };
        for call in ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel", "cuStreamSynchronize"] {
            fail(&format!("{call}:1=1"));
            let e = (|| numbers(&device)?.add(1.0)?.to_vec::<f32>())().expect_err(call);
            assert!(e.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{call}: {e}");
            fail("");
            computes(&device);
        }
    });
}

// SAFETY: the C library has these functions, with these types.
unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

#[cfg(unix)]
#[test]
fn a_fork_has_no_device() {
    with_variables("device::a_fork_has_no_device", &[], || {
        let Some(device) = opened() else { return };
        computes(&device);
        let before = numbers(&device).expect("a working device");
        // SAFETY: the child only calls the device and ends; what other threads of the parent hold is not needed for that,
        // since the test's process has no other thread that works.
        let child = unsafe { fork() };
        if child == 0 {
            let e = before.add(1.0).err().map(|e| e.to_string()).unwrap_or_default();
            let good = e.contains("fork") && e.contains("open the device after the fork");
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { _exit(if good { 0 } else { 1 }) }
        }
        let mut status = -1;
        // SAFETY: writes to the number.
        assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child met no error, or another one");
        computes(&device);
    });
}

#[test]
fn the_environment_chooses_tf32_or_the_error_says_what_it_may_be() {
    for value in ["1", "0", "", "yes"] {
        let test = "device::the_environment_chooses_tf32_or_the_error_says_what_it_may_be";
        with_variables(test, &[("GRADUS_CUDA_TF32", value)], || {
            match (CudaOptions::chosen(), std::env::var("GRADUS_CUDA_TF32").expect("a variable").as_str()) {
                (Ok(options), value) => {
                    assert!(options == CudaOptions { tf32: value == "1", cublaslt: true } && value != "yes")
                }
                (Err(e), value) => {
                    let text = e.to_string();
                    assert!(value == "yes" && text.contains("GRADUS_CUDA_TF32 is \"yes\""), "{value}: {text}");
                }
            }
        });
    }
    assert_eq!(CudaOptions::default(), CudaOptions { tf32: false, cublaslt: true });
}
