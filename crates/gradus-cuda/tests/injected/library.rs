//! Libraries that are missing or too old.

use gradus_cuda::{CudaBackend, devices};
use gradus_tensor::{Error, ErrorKind};

use crate::stand_in::{opened, program, with_variables};

#[track_caller]
fn refused(open: Result<CudaBackend, Error>, words: &[&str]) {
    let e = open.expect_err("a device that cannot be used");
    let text = e.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_driver_that_cannot_be_loaded_is_named() {
    let test = "library::a_driver_that_cannot_be_loaded_is_named";
    with_variables(test, &[("GRADUS_CUDA_DRIVER", "/nonexistent/libcuda.so")], || {
        refused(CudaBackend::open(0), &["GRADUS_CUDA_DRIVER", "/nonexistent/libcuda.so"]);
    });
}

#[test]
fn without_a_driver_the_error_says_what_to_install() {
    let test = "library::without_a_driver_the_error_says_what_to_install";
    if !crate::stand_in::is_inside(test) {
        let output = program(test, &[]).env_remove("GRADUS_CUDA_DRIVER").output().expect("the program starts");
        crate::stand_in::passed(test, &output);
        return;
    }
    match devices() {
        Ok(found) => assert!(!found.is_empty(), "a machine with a driver and no GPU is an error"),
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::Unsupported), "{e}");
            assert!(e.to_string().contains("NVIDIA driver") && e.to_string().contains("--device cpu"), "{e}");
        }
    }
}

#[test]
fn a_machine_without_a_gpu_says_so() {
    with_variables("library::a_machine_without_a_gpu_says_so", &[("GRADUS_PTX_DEVICES", "0")], || {
        refused(CudaBackend::open(0), &["finds no GPU", "--device cpu"]);
    });
}

#[test]
fn a_gpu_that_is_too_old_is_refused() {
    with_variables("library::a_gpu_that_is_too_old_is_refused", &[("GRADUS_PTX_CAPABILITY", "7.5")], || {
        refused(CudaBackend::open(0), &["capability 7.5", "8.0 or later", "--device cpu"]);
    });
}

#[test]
fn a_driver_that_is_too_old_is_refused() {
    let test = "library::a_driver_that_is_too_old_is_refused";
    with_variables(test, &[("GRADUS_PTX_DRIVER_VERSION", "11080")], || {
        refused(CudaBackend::open(0), &["CUDA 11.8", "CUDA 12 or later", "--device cpu"]);
    });
}

#[test]
fn a_number_without_a_gpu_is_refused() {
    with_variables("library::a_number_without_a_gpu_is_refused", &[], || {
        refused(CudaBackend::open(7), &["no GPU number 7", "gradus devices"]);
    });
}

#[test]
fn nvrtc_that_cannot_be_loaded_is_named() {
    let test = "library::nvrtc_that_cannot_be_loaded_is_named";
    with_variables(test, &[("GRADUS_NVRTC", "/nonexistent/libnvrtc.so")], || {
        refused(CudaBackend::open(0), &["GRADUS_NVRTC", "/nonexistent/libnvrtc.so"]);
    });
}

#[test]
fn every_call_that_fails_while_a_device_is_opened_is_an_error() {
    with_variables("library::every_call_that_fails_while_a_device_is_opened_is_an_error", &[], || {
        if opened().is_none() {
            return;
        }
        let calls = [
            "cuInit",
            "cuDeviceGetCount",
            "cuDeviceGet",
            "cuDeviceGetName",
            "cuDeviceTotalMem_v2",
            "cuDriverGetVersion",
            "cuDeviceGetAttribute",
            "cuDevicePrimaryCtxRetain",
            "cuCtxSetCurrent",
            "cuStreamCreate",
            "cuMemAlloc_v2",
            "cuMemAllocHost_v2",
            "cuEventCreate",
        ];
        for call in calls {
            crate::stand_in::fail(&format!("{call}:1+=999"));
            let e = CudaBackend::open(0).expect_err(call);
            assert!(e.to_string().contains("CUDA_ERROR_UNKNOWN"), "{call}: {e}");
            crate::stand_in::fail("");
        }
    });
}
