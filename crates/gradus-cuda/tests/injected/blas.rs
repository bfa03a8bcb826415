//! Products of half precision over what stands in for cuBLASLt.

use gradus_backend::{Backend, Element, Layout, Scalar, Shape, View, ViewMut};
use gradus_cuda::{CudaBackend, CudaOptions};
use gradus_graph::capture;
use gradus_tensor::{DType, Device, ErrorKind, Result, Tensor, bf16, f16};

use crate::stand_in::{counted, driver, fail, is_inside, opened, passed, program};

/// Runs the body of a test in a process of its own, where `GRADUS_CUBLASLT` names what stands in for the library and these variables
/// are set too.
#[track_caller]
fn with_library(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside(test) {
        return body();
    }
    let mut command = program(test, &[]);
    command.env("GRADUS_CUBLASLT", driver()).envs(variables.iter().copied());
    passed(test, &command.output().expect("the program starts"));
}

/// Numbers between -1 and 1.
fn numbers(device: &Device, shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let one = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values = std::iter::repeat_with(one).take(shape.iter().product());
    let made = match dtype {
        DType::F16 => Tensor::from_vec(values.map(f16::from_f32).collect::<Vec<_>>(), shape, device),
        DType::BF16 => Tensor::from_vec(values.map(bf16::from_f32).collect::<Vec<_>>(), shape, device),
        _ => Tensor::from_vec(values.collect::<Vec<_>>(), shape, device),
    };
    made.expect("numbers")
}

/// The values of a tensor of half precision, as wide floats.
fn wide(x: &Tensor) -> Vec<f64> {
    match x.dtype() {
        DType::F16 => x.to_vec::<f16>().expect("values").into_iter().map(f16::to_f64).collect(),
        _ => x.to_vec::<bf16>().expect("values").into_iter().map(bf16::to_f64).collect(),
    }
}

/// The product of two batches of matrices: sums in f64, rounded to f32 and then to the dtype.
fn expected(x: &Tensor, y: &Tensor) -> Vec<f64> {
    let (dims, dtype) = (x.shape().to_vec(), x.dtype());
    let (m, k, n) = (dims[dims.len() - 2], dims[dims.len() - 1], y.shape()[y.rank() - 1]);
    let (a, b) = (wide(x), wide(y));
    let sums = (0..a.len() / (m * k) * m * n).map(|i| {
        let (matrix, row, col) = (i / (m * n), i / n % m, i % n);
        (0..k).map(|l| a[(matrix * m + row) * k + l] * b[(matrix * k + l) * n + col]).sum::<f64>()
    });
    let rounded = |sum: f64| match dtype {
        DType::F16 => f16::from_f32(sum as f32).to_f64(),
        _ => bf16::from_f32(sum as f32).to_f64(),
    };
    sums.map(rounded).collect()
}

/// Asserts that the product is right, and who computed it.
#[track_caller]
fn is_product(x: &Tensor, y: &Tensor, is_by_library: bool) {
    let before = ["products", "cuLaunchKernel"].map(counted);
    let product = x.matmul(y).expect("a product");
    x.device().synchronize().expect("no late error");
    let now = ["products", "cuLaunchKernel"].map(counted);
    let what = format!("{} {:?} {:?}", x.dtype(), x.shape(), y.shape());
    let used = [now[0] > before[0], now[1] > before[1]];
    assert_eq!(used, [is_by_library, !is_by_library], "{what}: library, kernels");
    let (found, expected) = (wide(&product), expected(x, y));
    if is_by_library {
        assert_eq!(found, expected, "{what}");
        assert_eq!(
            x.matmul(y).expect("again").to_bytes().expect("bytes"),
            product.to_bytes().expect("bytes"),
            "{what}"
        );
    } else {
        let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 0.02 * (1.0 + expected.abs());
        assert!(found.iter().zip(&expected).all(near), "{what}");
    }
}

#[test]
fn products_of_half_precision_in_every_order_are_the_librarys() {
    let test = "blas::products_of_half_precision_in_every_order_are_the_librarys";
    with_library(test, &[("GRADUS_PTX_LATE", "1")], || {
        let Some(device) = opened() else { return };
        let turned = |x: Tensor| x.transpose(-2, -1).expect("a view");
        for dtype in [DType::BF16, DType::F16] {
            for (m, k, n) in [(16, 24, 40), (3, 70, 9), (1, 8, 1)] {
                let [a, at] = [[m, k], [k, m]].map(|shape| numbers(&device, &shape, dtype, 1));
                let [b, bt] = [[k, n], [n, k]].map(|shape| numbers(&device, &shape, dtype, 2));
                for x in [a, turned(at)] {
                    is_product(&x, &b, true);
                    is_product(&x, &turned(bt.clone()), true);
                }
                let (a, b) = (numbers(&device, &[5, m, k], dtype, 3), numbers(&device, &[5, k, n], dtype, 4));
                is_product(&a, &b, true);
                is_product(&a, &turned(numbers(&device, &[5, n, k], dtype, 5)), true);
            }
            // A part of a larger matrix, and one matrix for all of a batch.
            let large = numbers(&device, &[40, 64], dtype, 6);
            let part = large.narrow(0, 8, 16).and_then(|x| x.narrow(1, 16, 24)).expect("a view");
            is_product(&part, &numbers(&device, &[24, 10], dtype, 7), true);
            let shared = part.expand([3, 16, 24]).expect("a view");
            is_product(&shared, &numbers(&device, &[3, 24, 10], dtype, 8), true);
        }
        assert!(device.info().features.iter().any(|feature| feature == "cublaslt=13.0"), "{:?}", device.info());
        assert_eq!(counted("faults"), 0);
    });
}

#[test]
fn matrices_that_are_not_aligned_are_copied() {
    with_library("blas::matrices_that_are_not_aligned_are_copied", &[], || {
        let Some(device) = opened() else { return };
        let turned = |x: Tensor| x.transpose(-2, -1).expect("a view");
        // The number of copies: of the factors, and of the result.
        for (m, k, n, copies) in [(33, 50, 70, 3), (32, 64, 50, 2), (40, 30, 64, 1), (64, 32, 40, 0)] {
            for dtype in [DType::BF16, DType::F16] {
                let (a, b) = (numbers(&device, &[m, k], dtype, 1), numbers(&device, &[k, n], dtype, 2));
                let before = ["products", "cuLaunchKernel"].map(counted);
                let product = a.matmul(&b).expect("a product");
                device.synchronize().expect("no late error");
                let now = ["products", "cuLaunchKernel"].map(counted);
                assert_eq!([now[0] - before[0], now[1] - before[1]], [1, copies], "{m} {k} {n}");
                assert_eq!(wide(&product), expected(&a, &b), "{dtype} {m} {k} {n}");
                let (at, bt) = (numbers(&device, &[k, m], dtype, 3), numbers(&device, &[n, k], dtype, 4));
                let (at, bt) = (turned(at), turned(bt));
                assert_eq!(wide(&at.matmul(&bt).expect("a product")), expected(&at, &bt), "{dtype} {m} {k} {n}");
            }
        }
    });
}

#[test]
fn what_the_library_does_not_compute_is_computed_by_kernels() {
    let test = "blas::what_the_library_does_not_compute_is_computed_by_kernels";
    with_library(test, &[], || {
        let Some(device) = opened() else { return };
        // Neighbours that are apart on both axes; two axes of a batch that are not one; rows that lie on each other.
        let x = numbers(&device, &[33, 24], DType::BF16, 1);
        let y = numbers(&device, &[24, 16], DType::BF16, 2);
        let apart = x.reshape([33, 12, 2]).and_then(|x| x.narrow(2, 1, 1)?.squeeze(2)).expect("a view");
        is_product(&apart, &numbers(&device, &[12, 16], DType::BF16, 3), false);
        let batch = numbers(&device, &[2, 8, 3, 16], DType::BF16, 4).transpose(1, 2).expect("a view");
        is_product(&batch, &numbers(&device, &[2, 3, 16, 8], DType::BF16, 5), false);
        let one_row = y.narrow(0, 0, 1).and_then(|y| y.expand([24, 16])).expect("a view");
        is_product(&x, &one_row, false);
        let launched = counted("products");
        let floats = numbers(&device, &[16, 16], DType::F32, 6);
        floats.matmul(&floats).and_then(|x| x.to_bytes()).expect("a product");
        assert_eq!(counted("products"), launched);
    });
}

/// `alpha * a @ b + beta * c` of matrices of 16 rows and columns, and whether the library computed it.
fn scaled(backend: &dyn Backend, [alpha, beta]: [f64; 2], values: [&[bf16]; 3]) -> Result<(Vec<u8>, bool)> {
    let layout = Layout::contiguous(Shape::new(&[16, 16])?);
    let mut buffers = Vec::new();
    for values in values {
        let mut buffer = backend.alloc(512)?;
        // With a factor of 0, what was there is not read.
        if !values.is_empty() {
            backend.upload(&mut buffer, 0, bf16::as_bytes(values))?;
        }
        buffers.push(buffer);
    }
    let [a, b, c] = &mut buffers[..] else { unreachable!("three matrices") };
    let view = |buffer| View { buffer, dtype: DType::BF16, layout: &layout };
    let before = counted("products");
    let mut out = ViewMut { buffer: c, dtype: DType::BF16, layout: &layout };
    backend.gemm(Scalar::Float(alpha), view(a), view(b), Scalar::Float(beta), &mut out)?;
    let mut bytes = vec![0; 512];
    backend.download(c, 0, &mut bytes)?;
    Ok((bytes, counted("products") > before))
}

#[test]
fn factors_are_those_of_a_product() {
    with_library("blas::factors_are_those_of_a_product", &[], || {
        if opened().is_none() {
            return;
        }
        let (backend, kernels) = {
            let own = CudaOptions { cublaslt: false, ..CudaOptions::default() };
            (CudaBackend::open(0).expect("a device"), CudaBackend::open_with(0, own).expect("a device"))
        };
        // Small integers and halves, so that every sum is exact.
        let values = |seed: usize| (0..256).map(|i| bf16::from_f32(((i * seed) % 5) as f32 - 2.0)).collect::<Vec<_>>();
        let (a, b, c) = (values(7), values(3), values(11));
        for (factors, old) in [([1.0, 0.0], &[][..]), ([1.0, 1.0], &c), ([-0.5, 2.0], &c), ([0.0, 1.0], &c)] {
            let (found, is_by_library) = scaled(&backend, factors, [&a, &b, old]).expect("a product");
            let (expected, other) = scaled(&kernels, factors, [&a, &b, old]).expect("a product");
            assert_eq!((found, is_by_library, other), (expected, factors[0] != 0.0, false), "{factors:?}");
        }
        // 0 times infinity.
        let infinite = vec![bf16::INFINITY; 256];
        let (found, _) = scaled(&backend, [0.0, 0.0], [&infinite, &b, &[]]).expect("a product");
        assert_eq!(found, scaled(&kernels, [0.0, 0.0], [&infinite, &b, &[]]).expect("a product").0);
    });
}

#[test]
fn without_the_library_products_are_those_of_kernels() {
    // The stand-in for the driver is not a GPU, so a real library is not looked for.
    for library in [None, Some("")] {
        let test = "blas::without_the_library_products_are_those_of_kernels";
        if !is_inside(test) {
            let mut command = program(test, &[]);
            command.env_remove("GRADUS_CUBLASLT").envs(library.map(|path| ("GRADUS_CUBLASLT", path)));
            passed(test, &command.output().expect("the program starts"));
            continue;
        }
        let Some(device) = opened() else { return };
        is_product(&numbers(&device, &[16, 24], DType::BF16, 1), &numbers(&device, &[24, 40], DType::BF16, 2), false);
        assert!(!device.info().features.iter().any(|feature| feature.starts_with("cublaslt")));
        return;
    }
}

/// Opening a device fails, with these words.
#[track_caller]
fn is_refused(words: &[&str]) {
    if let Err(e) = CudaBackend::open_with(0, CudaOptions { cublaslt: false, ..CudaOptions::default() }) {
        assert!(e.to_string().contains("NVRTC") && std::env::var_os("GRADUS_REQUIRE_CUDA").is_none(), "{e}");
        return;
    }
    let e = CudaBackend::open(0).expect_err("a library that cannot be used");
    let text = e.to_string();
    assert!(matches!(e.kind(), ErrorKind::Backend), "{text}");
    assert!(["GRADUS_CUBLASLT"].iter().chain(words).all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_named_library_that_cannot_be_loaded_is_an_error() {
    let test = "blas::a_named_library_that_cannot_be_loaded_is_an_error";
    with_library(test, &[("GRADUS_CUBLASLT", "/nonexistent/libcublasLt.so")], || {
        is_refused(&["/nonexistent/libcublasLt.so", "an empty value uses none"]);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_named_library_without_a_function_is_an_error_that_names_it() {
    let test = "blas::a_named_library_without_a_function_is_an_error_that_names_it";
    // Any library but the right one.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the libraries of this process");
    let other = maps.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.contains("/libc.so")));
    with_library(test, &[("GRADUS_CUBLASLT", other.expect("the C library"))], || {
        is_refused(&["no function cublasLtGetVersion"]);
    });
}

#[test]
fn a_named_library_that_is_too_old_is_an_error() {
    let test = "blas::a_named_library_that_is_too_old_is_an_error";
    with_library(test, &[("GRADUS_PTX_CUBLASLT_VERSION", "111103")], || {
        is_refused(&["version 11.11", "version 12 or later"]);
    });
}

#[test]
fn a_named_library_that_is_newer_than_the_driver_is_an_error() {
    let test = "blas::a_named_library_that_is_newer_than_the_driver_is_an_error";
    with_library(test, &[("GRADUS_PTX_DRIVER_VERSION", "12080")], || {
        is_refused(&["CUDA 13", "supports CUDA 12.8"]);
    });
}

#[test]
fn a_library_that_does_not_work_with_the_device_is_not_used() {
    with_library("blas::a_library_that_does_not_work_with_the_device_is_not_used", &[], || {
        let Some(device) = opened() else { return };
        let (x, y) = (numbers(&device, &[16, 24], DType::BF16, 1), numbers(&device, &[24, 40], DType::BF16, 2));
        let used = counted("bytes_used");
        fail("cublasLtCreate:1=1");
        is_product(&x, &y, false);
        fail("");
        // The same bits again, and the workspace is given back.
        is_product(&x, &y, false);
        assert_eq!(counted("bytes_used"), used);
    });
}

#[test]
fn a_product_that_the_library_refuses_is_computed_by_kernels() {
    with_library("blas::a_product_that_the_library_refuses_is_computed_by_kernels", &[], || {
        let Some(device) = opened() else { return };
        let refusals = [
            "cublasLtMatmulDescCreate:1=3",
            "cublasLtMatmulDescSetAttribute:2=7",
            "cublasLtMatrixLayoutCreate:3=3",
            "cublasLtMatrixLayoutSetAttribute:2=7",
            "cublasLtMatmulPreferenceCreate:1=3",
            "cublasLtMatmulPreferenceSetAttribute:2=7",
            "cublasLtMatmulAlgoGetHeuristic:1=15",
            "cublasLtMatmul:1=15",
        ];
        let y = numbers(&device, &[24, 40], DType::BF16, 2);
        for (i, refusal) in refusals.into_iter().enumerate() {
            let x = numbers(&device, &[8 * i + 8, 24], DType::BF16, 1);
            fail(refusal);
            is_product(&x, &y, false);
            fail("");
            // So it stays, and others are not affected.
            is_product(&x, &y, false);
            is_product(&x, &numbers(&device, &[24, 8 * i + 48], DType::BF16, 3), true);
        }
        for kind in ["MatmulDesc", "MatrixLayout", "MatmulPreference"] {
            let [made, dropped] = ["Create", "Destroy"].map(|end| counted(&format!("cublasLt{kind}{end}")));
            let kept = [refusals.len() as u64, 3 * refusals.len() as u64, 0];
            let (kept, failed) = match kind {
                "MatmulDesc" => (kept[0], 1),
                "MatrixLayout" => (kept[1], 1),
                _ => (kept[2], 1),
            };
            assert_eq!(made - failed - dropped, kept, "{kind}: those of {} plans are left", refusals.len());
        }
    });
}

#[test]
fn a_product_that_fails_is_an_error_and_the_next_is_computed() {
    with_library("blas::a_product_that_fails_is_an_error_and_the_next_is_computed", &[], || {
        let Some(device) = opened() else { return };
        let (x, y) = (numbers(&device, &[16, 24], DType::F16, 1), numbers(&device, &[24, 40], DType::F16, 2));
        fail("cublasLtMatmul:1=13");
        let e = x.matmul(&y).expect_err("a product that fails");
        fail("");
        assert!(matches!(e.kind(), ErrorKind::Backend), "{e}");
        let text = e.to_string();
        assert!(["CUBLAS_STATUS_EXECUTION_FAILED", "GRADUS_CUBLASLT"].iter().all(|word| text.contains(word)), "{text}");
        is_product(&x, &y, true);
        fail("cublasLtMatmul:1=13, cuStreamSynchronize:1=700");
        let e = x.matmul(&y).expect_err("a device that is gone");
        fail("");
        assert!(e.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{e}");
        let text = x.matmul(&y).expect_err("the device stays lost").to_string();
        assert!(text.contains("is lost") && text.contains("start the program again"), "{text}");
    });
}

#[test]
fn a_device_without_memory_for_the_workspace_uses_kernels() {
    let test = "blas::a_device_without_memory_for_the_workspace_uses_kernels";
    with_library(test, &[("GRADUS_PTX_MEMORY", "20000000")], || {
        let Some(device) = opened() else { return };
        let (x, y) = (numbers(&device, &[16, 24], DType::BF16, 1), numbers(&device, &[24, 40], DType::BF16, 2));
        is_product(&x, &y, false);
    });
}

#[test]
fn memory_that_is_kept_for_reuse_serves_as_the_workspace() {
    let test = "blas::memory_that_is_kept_for_reuse_serves_as_the_workspace";
    with_library(test, &[("GRADUS_PTX_MEMORY", "40000000"), ("GRADUS_CUDA_EXACT", "0")], || {
        let Some(device) = opened() else { return };
        drop(Tensor::zeros([20 << 20], DType::U8, &device).expect("memory"));
        let (x, y) = (numbers(&device, &[16, 24], DType::BF16, 1), numbers(&device, &[24, 40], DType::BF16, 2));
        is_product(&x, &y, true);
    });
}

#[test]
fn an_index_out_of_range_spoils_the_product_of_what_it_chose() {
    with_library("blas::an_index_out_of_range_spoils_the_product_of_what_it_chose", &[], || {
        let Some(device) = opened() else { return };
        let (x, y) = (numbers(&device, &[16, 24], DType::BF16, 1), numbers(&device, &[24, 40], DType::BF16, 2));
        let index = Tensor::from_vec(vec![3i64, 16, 5, 0, 1, 2, 3, 4], [8], &device).expect("indices");
        let chosen = x.index_select(0, &index).expect("the GPU has not seen the index");
        let before = counted("products");
        let (wrong, right) = (chosen.matmul(&y).expect("nobody has read it"), x.matmul(&y).expect("a product"));
        assert_eq!(counted("products"), before + 2);
        let e = wrong.to_bytes().expect_err("an index out of range");
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { index: 16, size: 16, .. }), "{e}");
        assert_eq!(wide(&right), expected(&x, &y));
    });
}

#[test]
fn a_captured_step_is_a_graph_with_the_products_of_the_library() {
    let test = "blas::a_captured_step_is_a_graph_with_the_products_of_the_library";
    with_library(test, &[("GRADUS_CUDA_EXACT", "0"), ("GRADUS_PTX_LATE", "1")], || {
        let Some(device) = opened() else { return };
        let (x, y) = (numbers(&device, &[16, 24], DType::BF16, 1), numbers(&device, &[24, 16], DType::BF16, 2));
        let function = |x: &[Tensor]| Ok(vec![x[0].matmul(&x[1])?.matmul(&x[0])?.mul(0.5)?, x[1].matmul(&x[0])?]);
        let values = |results: Vec<Tensor>| results.iter().map(|t| t.to_bytes().expect("values")).collect::<Vec<_>>();
        let mut step = capture(function);
        let (mut started, mut seen) = (vec![], vec![]);
        for i in 0..12 {
            x.copy_(&numbers(&device, &[16, 24], DType::BF16, i % 3)).expect("a copy");
            let calls = ["graph_launches", "cublasLtMatmul", "products"].map(counted);
            let found = values(step.call(&[&x, &y]).expect("a step"));
            let now = ["graph_launches", "cublasLtMatmul", "products"].map(counted);
            let is_started = now[0] > calls[0];
            // A graph has the products, and needs no calls of the library.
            assert!(!is_started || now[1..] == [calls[1], calls[2] + 3], "call {i}: {calls:?}, {now:?}");
            started.extend(is_started.then_some(i));
            assert_eq!(found, values(function(&[x.clone(), y.clone()]).expect("a call")), "call {i}");
            seen.push(found);
        }
        assert!(started.len() >= 6, "{started:?} were started as graphs");
        assert!(seen[9] == seen[6] && seen[9] != seen[10]);
        // A graph that the library cannot be a part of is calls.
        let mut step = capture(function);
        let expected = values(function(&[x.clone(), y.clone()]).expect("a call"));
        let before = counted("graph_launches");
        for i in 0..8 {
            // The call before the first start makes the graph, and lists three products after those of its own.
            if i + 1 == started[0] {
                fail("cublasLtMatmul:5=14");
            }
            assert_eq!(values(step.call(&[&x, &y]).expect("a step")), expected, "call {i}");
            fail("");
        }
        assert_eq!(counted("graph_launches"), before);
        assert_eq!(counted("faults"), 0);
    });
}
