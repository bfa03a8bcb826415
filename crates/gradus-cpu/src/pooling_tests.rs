//! Tests of pooling against plain loops.

use gradus_backend::{Backend, DType, ErrorKind, Window};

use crate::CpuBackend;
use crate::conv::window::Geometry;
use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, integers, noise};

fn window(
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    before: [usize; 2],
    after: [usize; 2],
) -> Window {
    let mut w = Window::new2d(kernel).stride2d(stride).dilation2d(dilation);
    w.pad_before[..2].copy_from_slice(&before);
    w.pad_after[..2].copy_from_slice(&after);
    w
}

fn cases() -> Vec<(Window, [usize; 4])> {
    vec![
        (window([2, 2], [2, 2], [1, 1], [0, 0], [0, 0]), [2, 3, 6, 8]),
        (window([3, 3], [1, 2], [1, 1], [1, 1], [1, 1]), [1, 2, 7, 9]),
        (window([3, 2], [2, 1], [2, 1], [1, 0], [2, 1]), [2, 1, 8, 5]),
        (window([3, 3], [2, 2], [1, 1], [1, 1], [1, 1]), [0, 3, 5, 5]),
        (window([1, 1], [3, 1], [1, 1], [0, 0], [0, 0]), [1, 2, 5, 4]),
    ]
}

/// Returns, for each output element of a channel, the positions in the channel of the elements under its window.
fn windows(w: &Window, [_, _, h, width]: [usize; 4]) -> Vec<Vec<usize>> {
    let out = w.output("test", &[h, width]).unwrap();
    let mut all = Vec::new();
    for y in 0..out[0] {
        for x in 0..out[1] {
            let mut inside = Vec::new();
            for ky in 0..w.kernel[0] {
                for kx in 0..w.kernel[1] {
                    if let (Some(iy), Some(ix)) = (w.element(0, y, ky, h), w.element(1, x, kx, width)) {
                        inside.push(iy * width + ix);
                    }
                }
            }
            all.push(inside);
        }
    }
    all
}

fn out_dims(w: &Window, [n, c, h, width]: [usize; 4]) -> [usize; 4] {
    let out = w.output("test", &[h, width]).unwrap();
    [n, c, out[0], out[1]]
}

#[test]
fn the_first_of_the_largest_is_found_in_every_dtype() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (t, (w, dims)) in cases().into_iter().enumerate() {
        for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
            // Where the dtype allows, all values are negative, so that padding would win if it were compared as 0. Few
            // values are distinct, so that there are ties.
            let mut draw = integers(t as u64, 2);
            let x = Tensor::new(&cpu, dtype, &dims, Lie::ALL[t % 4], |i| {
                draw(i) + if dtype.is_signed() { -3.0 } else { 2.0 }
            });
            let mut out = Tensor::canary(&cpu, dtype, &out_dims(&w, dims), Lie::ALL[(t + 1) % 4]);
            let mut at = Tensor::canary(&cpu, DType::I64, &out_dims(&w, dims), Lie::ALL[(t + 2) % 4]);
            cpu.max_pool(&w, x.view(), &mut out.view_mut(), &mut at.view_mut()).unwrap();
            let (xv, plane) = (x.values(&cpu), dims[2] * dims[3]);
            let (mut want, mut want_at) = (vec![], vec![]);
            for channel in xv.chunks(plane) {
                for inside in windows(&w, dims) {
                    let best =
                        inside.iter().copied().reduce(|a, b| if channel[b] > channel[a] { b } else { a }).unwrap();
                    want.push(channel[best]);
                    want_at.push(best as f64);
                }
            }
            assert_eq!(out.values(&cpu), want, "{dtype} {w:?}");
            assert_eq!(at.values(&cpu), want_at, "{dtype} {w:?}");
            out.assert_gaps_untouched(&cpu);
            at.assert_gaps_untouched(&cpu);
        }
    }
}

#[test]
fn nan_wins_and_its_first_place_is_kept() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let w = window([2, 2], [2, 2], [1, 1], [0, 0], [0, 0]);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::new(&cpu, dtype, &[1, 1, 2, 4], Lie::Contiguous, |i| {
            [1.0, f64::NAN, f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NAN, 9.0, f64::NEG_INFINITY, f64::NEG_INFINITY]
                [i]
        });
        let mut out = Tensor::canary(&cpu, dtype, &[1, 1, 1, 2], Lie::Contiguous);
        let mut at = Tensor::canary(&cpu, DType::I64, &[1, 1, 1, 2], Lie::Contiguous);
        cpu.max_pool(&w, x.view(), &mut out.view_mut(), &mut at.view_mut()).unwrap();
        assert!(out.values(&cpu)[0].is_nan());
        assert_eq!(out.values(&cpu)[1], f64::NEG_INFINITY);
        assert_eq!(at.values(&cpu), [1.0, 2.0]);
    }
}

#[test]
fn means_and_their_adjoint_agree_with_f64() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (t, (w, dims)) in cases().into_iter().enumerate() {
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            for include in [false, true] {
                let x = Tensor::new(&cpu, dtype, &dims, Lie::ALL[t % 4], noise(1));
                let mut out = Tensor::canary(&cpu, dtype, &out_dims(&w, dims), Lie::ALL[(t + 1) % 4]);
                cpu.avg_pool(&w, include, x.view(), &mut out.view_mut()).unwrap();
                let g = Tensor::new(&cpu, dtype, &out_dims(&w, dims), Lie::ALL[(t + 2) % 4], noise(2));
                let mut dx = Tensor::canary(&cpu, dtype, &dims, Lie::ALL[(t + 3) % 4]);
                cpu.avg_pool_backward(&w, include, g.view(), &mut dx.view_mut()).unwrap();
                let (xv, gv, plane, all) = (x.values(&cpu), g.values(&cpu), dims[2] * dims[3], windows(&w, dims));
                let (mut want, mut want_dx) = (vec![], vec![0.0; xv.len()]);
                for (c, channel) in xv.chunks(plane).enumerate() {
                    for (p, inside) in all.iter().enumerate() {
                        let n = if include { w.numel() } else { inside.len() } as f64;
                        want.push(inside.iter().map(|&i| channel[i]).sum::<f64>() / n);
                        inside.iter().for_each(|&i| want_dx[c * plane + i] += gv[c * all.len() + p] / n);
                    }
                }
                assert_close(&out.values(&cpu), &want, tolerance);
                assert_close(&dx.values(&cpu), &want_dx, tolerance);
                dx.assert_gaps_untouched(&cpu);
            }
        }
    }
}

#[test]
fn taps_that_only_meet_padding_are_left_out() {
    for (kernel, stride, dilation, pad) in [
        ([3, 3], [1, 1], [1, 1], [1, 1]),
        ([9, 2], [1, 3], [1, 2], [4, 0]),
        ([40, 1], [1, 1], [1, 1], [20, 0]),
        ([7, 31], [2, 5], [3, 1], [9, 15]),
    ] {
        let g = Geometry::new("pool", &window(kernel, stride, dilation, pad, pad), &[5, 6]).unwrap();
        let met: Vec<usize> = (0..g.taps()).filter(|&tap| g.rows(g.tap(tap)).next().is_some()).collect();
        let reached: Vec<usize> = g.reached().collect();
        assert!(met.iter().all(|tap| reached.contains(tap)), "{kernel:?}: {met:?} {reached:?}");
        // With strides of 1, `reached` returns exactly these taps, in order.
        assert!(stride != [1, 1] || reached == met, "{kernel:?}: {met:?} {reached:?}");
    }
    // A window of a million taps over an input of five elements.
    let g = Geometry::new("pool", &window([1, 1 << 20], [1, 1], [1, 1], [0, 1 << 19], [0, (1 << 19) - 1]), &[1, 5])
        .unwrap();
    assert_eq!((g.output, g.reached().count()), ([1, 1, 5], 9));
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    let w = window([3, 3], [2, 1], [1, 1], [1, 1], [1, 1]);
    assert_same_bits(|cpu| {
        let x = Tensor::new(cpu, DType::F32, &[4, 9, 15, 15], Lie::Contiguous, noise(1));
        let mut y = Tensor::canary(cpu, DType::F32, &[4, 9, 8, 15], Lie::Contiguous);
        cpu.avg_pool(&w, false, x.view(), &mut y.view_mut()).unwrap();
        let mut dx = Tensor::canary(cpu, DType::F32, &[4, 9, 15, 15], Lie::Contiguous);
        cpu.avg_pool_backward(&w, false, y.view(), &mut dx.view_mut()).unwrap();
        [y.bytes(cpu), dx.bytes(cpu)].concat()
    });
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let w = window([2, 2], [2, 2], [1, 1], [0, 0], [0, 0]);
    let t = |dtype, dims: &[usize]| Tensor::canary(&cpu, dtype, dims, Lie::Contiguous);
    let run = |w: &Window, x: Tensor, mut out: Tensor, mut at: Tensor| {
        cpu.max_pool(w, x.view(), &mut out.view_mut(), &mut at.view_mut()).unwrap_err().kind().clone()
    };
    let (f, i, big, small) = (DType::F32, DType::I64, [1, 1, 4, 4], [1, 1, 2, 2]);
    assert_eq!(run(&w, t(f, &big), t(f, &big), t(i, &small)), ErrorKind::ShapeMismatch);
    assert_eq!(run(&w, t(f, &big), t(f, &small), t(f, &small)), ErrorKind::DTypeMismatch);
    assert_eq!(run(&w, t(f, &[4, 4]), t(f, &small), t(i, &small)), ErrorKind::ShapeMismatch);
    let padded = window([2, 2], [4, 4], [1, 1], [2, 2], [0, 0]);
    assert_eq!(run(&padded, t(f, &big), t(f, &small), t(i, &small)), ErrorKind::InvalidArgument);
    assert_eq!(run(&w, t(DType::Bool, &big), t(DType::Bool, &small), t(i, &small)), ErrorKind::UnsupportedDType);
    let mut out = t(DType::I32, &small);
    let e = cpu.avg_pool(&w, false, t(DType::I32, &big).view(), &mut out.view_mut()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType);
}
