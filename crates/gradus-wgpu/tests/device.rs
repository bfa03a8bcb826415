//! Tests of the device beneath the operations: submissions, repeated work that uploads nothing new, sizes beyond the
//! limits of one launch, threads, and the loss of the device.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gradus::backend::Backend;
use gradus::image::Border;
use gradus::prelude::*;
use gradus::{
    PadMode,
    ops::{Interpolation, Resized},
};
use gradus_wgpu::{Profile, WgpuBackend};

fn opened() -> Option<(Arc<WgpuBackend>, Device)> {
    let backend = Arc::new(common::opened()?);
    Some((backend.clone(), Device::from_backend(backend)))
}

#[test]
fn a_thousand_dependent_operations_go_in_a_few_submissions() {
    let Some((backend, device)) = opened() else { return };
    let mut x = Tensor::zeros([64], DType::F32, &device).expect("zeros");
    device.synchronize().expect("a device that works");
    let before = backend.counters().submissions;
    for _ in 0..1000 {
        x = x.add(1.0).expect("a sum");
    }
    assert_eq!(x.to_vec::<f32>().expect("values"), [1000.0; 64]);
    let made = backend.counters().submissions - before;
    assert!(made <= 10, "{made} submissions");
}

#[test]
fn elements_in_groups_are_those_of_single_ones() {
    let Some((_, device)) = opened() else { return };
    let row = |n: usize, dtype| Tensor::arange(0, n as i64, 1, dtype, &device).expect("a row");
    for n in [1028, (1 << 20) + 4, (1 << 20) + 8, (1 << 20) + 9] {
        let x = row(n, DType::F32);
        x.add_(row(n, DType::F32)).expect("a sum in place");
        let want: Vec<f32> = (0..n).map(|i| 2.0 * i as f32).collect();
        assert!(x.to_vec::<f32>().expect("values") == want, "{n} in place");
        let few = x.remainder(256.0).and_then(|x| x.to_dtype(DType::BF16)).and_then(|x| x.add(&x));
        let few = few.and_then(|x| x.to_dtype(DType::F32)?.to_vec::<f32>()).expect("values");
        assert!(few.iter().enumerate().all(|(i, &v)| v == (4 * i % 512) as f32), "{n} in bf16");
        let small = x.lt(n as f64).and_then(|x| x.to_vec::<bool>()).expect("flags");
        assert!(small.iter().enumerate().all(|(i, &v)| v == (2 * i < n)), "{n} compared");
    }
    // Rows whose elements are summed one by one, or by fours of which the last part of the row has fewer.
    for n in [37, 4100, 600_004] {
        for start in [0, 3, 4] {
            let rows = row(3 * n, DType::I32).reshape([3, n]).and_then(|x| x.narrow(1, start, n - start));
            let found = rows.and_then(|x| x.sum(&[1], false)?.to_vec::<i64>()).expect("sums");
            let want = [0, 1, 2].map(|r| (r * n + start..(r + 1) * n).sum::<usize>() as i64);
            assert_eq!(found, want, "{n} from {start}");
        }
        let whole = row(n, DType::I32).sum_all().and_then(|x| x.to_vec::<i64>()).expect("a sum");
        assert_eq!(whole, [(n * (n - 1) / 2) as i64]);
    }
}

#[test]
fn a_replay_of_a_captured_step_is_one_submission() {
    let Some((backend, device)) = opened() else { return };
    let x = Tensor::eye(2, DType::F32, &device).and_then(|x| x.mul(1.5)).expect("a matrix");
    let half = Tensor::eye(2, DType::F32, &device).and_then(|x| x.mul(0.5)).expect("a matrix");
    let two = half.mul(4.0).expect("a matrix");
    // Products are not joined, so each is a launch.
    let products = |x: &Tensor| (0..600).try_fold(x.clone(), |y, i| y.matmul([&half, &two][i % 2]));
    let mut step = capture(|x| Ok(vec![products(&x[0])?]));
    let mut results = vec![];
    let mut made = vec![];
    for _ in 0..5 {
        device.synchronize().expect("a device that works");
        let before = backend.counters().submissions;
        let y = step.call(&[&x]).expect("a call").remove(0);
        // An operation after it does not belong to it.
        let z = y.add(1.0).expect("a sum");
        device.synchronize().expect("a device that works");
        made.push(backend.counters().submissions - before);
        results.push((y.to_vec::<f32>().expect("values"), z.to_vec::<f32>().expect("values")));
    }
    assert_eq!(results, vec![(vec![1.5, 0.0, 0.0, 1.5], vec![2.5, 1.0, 1.0, 2.5]); 5]);
    // The last two: that of the replay, and the one that waits for it.
    assert!(made[0] > 2 && made[3..] == [2, 2], "{made:?} submissions");
}

#[test]
fn operations_with_tables_upload_nothing_after_the_second_time() {
    let Some((backend, device)) = opened() else { return };
    let x = Tensor::rand([1, 3, 20, 24], DType::F32, &device, &mut Generator::new(2)).expect("draws");
    let resized = |mode| x.interpolate(Resized::To(&[33, 17]), mode);
    let run = || -> Result<[Tensor; 9]> {
        Ok([
            Tensor::arange(3, 70, 2, DType::F32, &device)?,
            x.tril(1)?,
            x.pad(&[(1, 2), (3, 1)], PadMode::Reflect)?,
            resized(Interpolation::Nearest)?,
            resized(Interpolation::Bilinear)?,
            resized(Interpolation::Bicubic)?,
            x.adaptive_avg_pool2d([7, 5])?,
            gradus::image::gaussian_blur(&x, 1.5, None, Border::Reflect)?,
            gradus::image::sobel(&x, None, Border::Replicate)?,
        ])
    };
    let values = || resized(Interpolation::Bilinear).and_then(|y| y.to_vec::<f32>());
    let first = values().expect("an image");
    drop(run().and_then(|_| run()).expect("results"));
    let before = backend.counters().uploads;
    drop(run().expect("results"));
    assert_eq!(backend.counters().uploads, before);
    assert!(values().expect("an image") == first && backend.memory_stats().cached > 0);
    backend.trim().expect("a device that works");
    assert_eq!(values().expect("an image"), first);
}

#[test]
fn sizes_beyond_the_limits_of_one_launch_work() {
    let Some((_, device)) = opened() else { return };
    // This needs more than 65,535 work-groups of 256 invocations, and exceeds the 128 MiB that every adapter can bind.
    let n = 35_000_000;
    let x = Tensor::full([n], 0.5, DType::F32, &device).expect("a tensor");
    let y = x.add(&x).expect("a sum");
    let last = y.narrow(0, n - 3, 3).expect("the end").to_vec::<f32>().expect("values");
    assert_eq!(last, [1.0; 3]);
    assert_eq!(y.sum_all().expect("a sum").to_vec::<f32>().expect("a value"), [n as f32]);
    let rows = y.reshape([5, n / 5]).expect("rows");
    let sums = rows.sum(&[1], false).expect("sums").to_vec::<f32>().expect("values");
    assert_eq!(sums, [(n / 5) as f32; 5]);
}

#[test]
fn a_lost_device_is_a_typed_error_and_opens_again() {
    let Some((backend, device)) = opened() else { return };
    let x = Tensor::ones([4], DType::F32, &device).expect("ones");
    backend.close();
    assert!(backend.is_lost());
    for error in [x.add(1.0).map(drop), x.to_vec::<f32>().map(drop), device.synchronize()] {
        assert_eq!(error.expect_err("the device is gone").kind(), &ErrorKind::Backend);
    }
    drop(x);
    let again = common::opened().expect("the adapter is still there");
    assert!(again.alloc(16).is_ok() && again.synchronize().is_ok());
}

#[test]
fn an_adapter_without_64_bit_types_lacks_only_f64_and_names_the_feature() {
    let Some(backend) = common::opened_as(Profile::No64) else { return };
    let lacks: Vec<DType> = DType::ALL.into_iter().filter(|&d| !backend.supports(d)).collect();
    assert_eq!(lacks, [DType::F64]);
    let device = Device::from_backend(Arc::new(backend));
    let error = Tensor::ones([2], DType::F64, &device).expect_err("there is no f64");
    assert_eq!(error.kind(), &ErrorKind::UnsupportedDType);
    assert!(error.to_string().contains("SHADER_F64"), "{error}");
    let x = Tensor::ones([2], DType::F32, &device).expect("f32");
    assert_eq!(x.exp().and_then(|x| x.to_vec::<f32>()).expect("values"), [1f32.exp(); 2]);
}

/// Other devices convert through f64, so that they round only once. This one has no f64.
#[test]
fn without_f64_integers_become_half_precision_and_means_as_on_the_cpu() {
    let Some(backend) = common::opened_as(Profile::Core) else { return };
    let (device, cpu) = (Device::from_backend(Arc::new(backend)), Device::cpu().expect("the CPU"));
    // Values around the rounding ties of both dtypes at every magnitude, and values spread over all bits.
    let tie = |k: u32| [8, 11].map(|places| (1i64 << k) + (1i64 << k >> places));
    let ties = (12..62).flat_map(tie).flat_map(|v| [-1, 0, 1].map(|d| v + d)).flat_map(|v| [v, -v]);
    let spread = (0..2000i64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) >> (i % 60));
    let values: Vec<i64> = ties.chain(spread).collect();
    let values = Tensor::from_vec(&values, [values.len()], &cpu).expect("values");
    for from in [DType::I64, DType::I32, DType::U64, DType::U32] {
        let (here, there) = (values.to_dtype(from).expect("a cast"), values.to_device(&device).expect("a copy"));
        let there = there.to_dtype(from).expect("a cast");
        for to in [DType::BF16, DType::F16] {
            let bytes = |t: &Tensor| t.to_dtype(to).and_then(|t| t.to_bytes()).expect("a cast");
            assert!(bytes(&here) == bytes(&there), "{from} to {to}");
        }
        let mean = |t: &Tensor| t.reshape([20, 130]).and_then(|t| t.mean(&[1], false)).and_then(|t| t.to_vec::<f32>());
        for (x, y) in mean(&here).expect("means").into_iter().zip(mean(&there).expect("means")) {
            assert!((x - y).abs() <= f32::EPSILON * x.abs(), "{from}: {y}, and {x} on the CPU");
        }
    }
}

#[test]
fn threads_that_read_at_the_same_time_get_their_own_values() {
    let Some((_, device)) = opened() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let device = &device;
            scope.spawn(move || {
                for i in 0..50u8 {
                    let x = Tensor::full([1000], f64::from(i), DType::F32, device).expect("a tensor");
                    let y = x.mul(f64::from(thread)).and_then(|y| y.to_vec::<f32>()).expect("values");
                    assert_eq!(y, [f32::from(i) * f32::from(thread); 1000]);
                }
            });
        }
    });
}

#[test]
fn a_bad_index_is_not_lost_while_other_threads_read() {
    let Some((_, device)) = opened() else { return };
    // There are enough indices that they are checked in two launches.
    let n = 40_000;
    let mut at = vec![0i64; n];
    at[n - 7] = 5;
    let x = Tensor::ones([2], DType::F32, &device).expect("a tensor");
    let index = Tensor::from_vec(&at, [n], &device).expect("indices");
    let found = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let count = |error: Option<Error>| {
        if let Some(error) = error {
            assert_eq!(error.kind(), &ErrorKind::IndexOutOfBounds { pos: n - 7, index: 5, size: 2 });
            found.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                count(device.synchronize().err());
            }
        });
        for _ in 0..30 {
            let before = found.load(Ordering::Relaxed);
            let _ = x.gather(0, &index).expect("a late error");
            count(device.synchronize().err());
            // The other thread may have received the error, but not have counted it yet.
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while found.load(Ordering::Relaxed) == before {
                assert!(std::time::Instant::now() < limit, "the bad index was lost");
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_infinite_filter_reaches_only_what_is_under_it() {
    let Some((_, device)) = opened() else { return };
    let slope = |filter: &[f32], options: ConvOptions<1>| {
        let x = Tensor::ones([1, 1, 3], DType::F32, &device).and_then(|x| x.with_grad()).expect("a line");
        let w = Tensor::from_vec(filter, [1, 1, filter.len()], &device).expect("a filter");
        let gradients = x.conv1d(&w, None, options).and_then(|y| y.sum_all()).and_then(|s| s.backward());
        gradients.expect("gradients").get(&x).expect("a gradient").to_vec::<f32>().expect("values")
    };
    let inf = f32::INFINITY;
    assert_eq!(slope(&[inf], ConvOptions::new().stride([2])), [inf, 0.0, inf]);
    assert_eq!(slope(&[inf, 1.0, 1.0], ConvOptions::new().padding([1])), [inf, inf, 2.0]);
}
