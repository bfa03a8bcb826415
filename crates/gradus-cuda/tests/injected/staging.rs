//! Copies between the host and the device.

use gradus_tensor::{Device, Result, Tensor};

use crate::stand_in::{computes, counted, fail, opened, with_variables};

/// Work is done as late as it may be, so memory that is used again too early has other contents when it is copied.
const LATE: (&str, &str) = ("GRADUS_PTX_LATE", "1");

/// Numbers that tell where they are.
fn values(seed: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 2_654_435_761 + seed * 40_503) as u32).collect()
}

/// Uploads tensors of these sizes, and then reads all of them.
#[track_caller]
fn keeps_all(device: &Device, sizes: &[usize]) {
    let made: Result<Vec<Tensor>> = (0..sizes.len())
        .map(|i| {
            Tensor::from_vec(values(i, sizes[i]).into_iter().map(i64::from).collect::<Vec<_>>(), [sizes[i]], device)
        })
        .collect();
    for (i, tensor) in made.expect("memory").iter().enumerate() {
        let found = tensor.to_vec::<i64>().expect("a download");
        assert!(found.iter().copied().eq(values(i, sizes[i]).into_iter().map(i64::from)), "tensor {i}");
    }
}

#[test]
fn what_is_uploaded_is_there_whatever_the_host_does_next() {
    with_variables("staging::what_is_uploaded_is_there_whatever_the_host_does_next", &[LATE], || {
        let Some(device) = opened() else { return };
        // Up to three and a half blocks each, with and without a rest.
        keeps_all(&device, &[1, 131_072, 3, 131_073, 458_752, 262_144, 33, 131_071]);
        // More than the ring holds, in small parts.
        keeps_all(&device, &(0..200).map(|i| 8_000 + i).collect::<Vec<_>>());
        computes(&device);
        // The fault buffer's copy, eight blocks for uploads, and two for downloads.
        let made = counted("cuMemAllocHost_v2");
        assert_eq!(made, 11);
    });
}

#[test]
fn a_host_without_memory_to_pin_copies_all_the_same() {
    with_variables("staging::a_host_without_memory_to_pin_copies_all_the_same", &[LATE], || {
        let Some(device) = opened() else { return };
        fail("cuMemAllocHost_v2:1+=2");
        keeps_all(&device, &[1, 131_073, 3]);
        fail("cuMemAllocHost_v2:3+=2"); // After that for uploads, and one of two for downloads.
        keeps_all(&device, &[300_000, 5, 131_073, 300_000]);
        fail("");
        keeps_all(&device, &[300_000, 5, 131_073, 300_000]);
    });
}

#[test]
fn a_mark_that_fails_is_an_error_and_the_device_works_on() {
    with_variables("staging::a_mark_that_fails_is_an_error_and_the_device_works_on", &[LATE], || {
        let Some(device) = opened() else { return };
        for call in ["cuEventCreate", "cuEventRecord", "cuEventSynchronize"] {
            let mut failed = false;
            for n in 1..=4 {
                fail(&format!("{call}:{n}=1"));
                let done = (0..12)
                    .map(|_| Tensor::from_vec(vec![1u8; 1 << 20], [1 << 20], &device)?.to_vec::<u8>())
                    .collect::<Result<Vec<_>>>();
                fail("");
                if let Err(e) = done {
                    assert!(e.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{call}: {e}");
                    failed = true;
                }
                keeps_all(&device, &[300_000, 5, 131_073]);
            }
            // Without an event there is no pinned memory, and copies do without.
            assert_eq!(failed, call != "cuEventCreate", "{call}");
        }
    });
}
