//! Convolutions, transposed convolutions, unfold and fold, compared with PyTorch, with each other and with finite
//! differences.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, assert_like_pytorch, both, cpu, f64s, i64s, layouts, randn, sines};
use gradus_tensor::{ConvOptions, DType, Tensor};

fn f(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[test]
fn one_and_three_axes_give_pytorchs_numbers() {
    let (x, w) = (sines(&[2, 4, 6], 1.7, 0.3), sines(&[4, 2, 3], 0.9, 0.2));
    let o = ConvOptions::new().groups(2);
    assert_like_pytorch("c1", &x.conv1d(&w, None, o.stride([2]).padding([2]).dilation([2])).unwrap());
    assert_like_pytorch("c1asym", &x.conv1d(&w, None, o.padding_sides([(2, 1)])).unwrap());
    let (x, w) = (sines(&[1, 2, 3, 3, 3], 1.7, 0.3), sines(&[2, 2, 2, 2, 1], 0.9, 0.2));
    let o = ConvOptions::new().stride([1, 2, 2]).padding([1, 0, 1]);
    assert_like_pytorch("c3", &x.conv3d(&w, Some(&sines(&[2], 1.7, 0.3)), o).unwrap());
}

#[test]
fn transposed_convolutions_give_pytorchs_numbers() {
    let (x, w) = (sines(&[2, 4, 5], 1.7, 0.3), sines(&[4, 3, 3], 0.9, 0.2));
    let o = ConvOptions::new().stride([2]).padding([1]).output_padding([1]).groups(2);
    assert_like_pytorch("ct1", &x.conv_transpose1d(&w, Some(&sines(&[6], 1.7, 0.3)), o).unwrap());
    let (x, w) = (sines(&[1, 2, 3, 2], 1.7, 0.3), sines(&[2, 1, 2, 2], 0.9, 0.2));
    let o = ConvOptions::new();
    let a = o.stride([1, 2]).padding([0, 1]).output_padding([1, 0]).dilation([2, 3]);
    assert_like_pytorch("ct2", &x.conv_transpose2d(&w, None, a).unwrap());
    // The output padding exceeds the stride, so some elements of the result are reached by no input and stay 0.
    let b = o.output_padding([2, 0]).dilation([3, 1]);
    assert_like_pytorch("ct2b", &x.conv_transpose2d(&w, None, b).unwrap());
    let c = o.padding([1, 0]).output_padding([2, 1]).dilation([3, 2]);
    assert_like_pytorch("ct2c", &x.conv_transpose2d(&w, None, c).unwrap());
    let (x, w) = (sines(&[1, 2, 2, 2, 2], 1.7, 0.3), sines(&[2, 1, 2, 1, 2], 0.9, 0.2));
    let o = ConvOptions::new().stride([2; 3]).padding([1, 0, 0]).output_padding([0, 1, 0]);
    assert_like_pytorch("ct3", &x.conv_transpose3d(&w, None, o).unwrap());
}

// Mistake 16 of `gradus/tests/mistakes.rs`: a transposed convolution without gradients.
#[test]
fn transposed_convolutions_have_gradients_of_any_order() {
    let o = ConvOptions::new();
    for options in [
        o.stride([2, 1]).padding([1, 0]).output_padding([1, 0]),
        o.padding_sides([(2, 0), (0, 1)]).dilation([2, 1]),
        o.output_padding([2, 0]).dilation([3, 1]).padding_sides([(1, 0), (0, 0)]),
    ] {
        for x in layouts(&[2, 2, 3, 2], 1) {
            let w = randn(&[3, 2, 2, 2], 2).transpose(0, 1).unwrap();
            both(|x| x[0].conv_transpose2d(&x[1], Some(&x[2]), options), &[x, w, randn(&[3], 3)]);
        }
        let operands = [randn(&[1, 4, 2, 2], 1), randn(&[4, 1, 2, 2], 2)];
        both(|x| x[0].conv_transpose2d(&x[1], None, options.groups(2)), &operands);
    }
    let o = ConvOptions::new().stride([3]).output_padding([2]);
    both(|x| x[0].conv_transpose1d(&x[1], None, o), &[randn(&[1, 2, 3], 1), randn(&[2, 1, 2], 2)]);
    let o = ConvOptions::new().stride([2, 1, 1]).groups(2);
    both(|x| x[0].conv_transpose3d(&x[1], None, o), &[randn(&[1, 2, 2, 1, 2], 1), randn(&[2, 2, 1, 2, 2], 2)]);
}

#[test]
fn convolutions_over_one_and_three_axes_have_gradients_of_any_order() {
    let o = ConvOptions::new().padding_sides([(0, 2)]).stride([2]);
    for x in layouts(&[2, 4, 5], 1) {
        let weight = randn(&[2, 2, 3], 2).flip(2).unwrap();
        both(|x| x[0].conv1d(&x[1], Some(&x[2]), o.groups(2)), &[x, weight, randn(&[2], 3)]);
    }
    let o = ConvOptions::new().padding([1, 0, 1]).dilation([1, 2, 1]).stride([1, 1, 2]);
    both(|x| x[0].conv3d(&x[1], None, o), &[randn(&[1, 2, 2, 3, 3], 1), randn(&[2, 2, 2, 2, 1], 2)]);
}

#[test]
fn a_transposed_convolution_is_the_adjoint() {
    let o = ConvOptions::new().stride([2, 3]).padding_sides([(1, 2), (0, 1)]).dilation([1, 2]).groups(2);
    let (x, w) = (randn(&[2, 4, 6, 7], 1), randn(&[6, 2, 3, 2], 2));
    let y = x.conv2d(&w, None, o).unwrap();
    let g = randn(y.shape(), 3);
    // This output padding restores the sizes 6 and 7.
    let back = g.conv_transpose2d(&w, None, o.output_padding([0, 2])).unwrap();
    assert_eq!(back.shape(), x.shape());
    let dot = |a: &Tensor, b: &Tensor| a.mul(b).unwrap().sum_all().unwrap().item().unwrap();
    assert!((dot(&y, &g) - dot(&x, &back)).abs() < 1e-10);
}

// Mistake 4 of `gradus/tests/mistakes.rs`: one-sample kernels looped over the batch, and output sizes trusted from the
// caller.
#[test]
fn a_convolution_is_the_product_with_unfolded_columns() {
    let o = ConvOptions::new().stride([2, 1]).padding_sides([(1, 0), (2, 1)]).dilation([1, 2]);
    for x in layouts(&[3, 2, 4, 5], 1) {
        let w = randn(&[3, 2, 2, 3], 2);
        let y = x.conv2d(&w, None, o).unwrap();
        let columns = x.unfold([2, 3], o).unwrap();
        let product = w.reshape([3, 12]).unwrap().matmul(&columns).unwrap().reshape(y.shape()).unwrap();
        assert_close(&f(&y), &f(&product), 1e-12);
    }
}

#[test]
fn unfold_and_fold_give_pytorchs_numbers_and_are_each_others_gradient() {
    let x = sines(&[1, 2, 3, 4], 1.7, 0.3);
    let o = ConvOptions::new().dilation([1, 2]).padding([1, 0]).stride([2, 1]);
    let u = x.unfold([2, 2], o).unwrap();
    assert_like_pytorch("unfold", &u);
    assert_like_pytorch("fold", &u.fold([3, 4], [2, 2], o).unwrap());
    for x in layouts(&[2, 2, 3, 4], 1) {
        both(|x| x[0].unfold([2, 2], o), &[x]);
    }
    for u in layouts(&[2, 8, 4], 1) {
        both(|x| x[0].fold([3, 4], [2, 2], o), &[u]);
    }
    both(|x| x[0].unfold([2], ConvOptions::new().padding_sides([(0, 1)])), &[randn(&[2, 1, 3], 1)]);
    let o = ConvOptions::new();
    both(|x| x[0].unfold([2, 1, 2], o)?.square()?.fold([2, 2, 2], [2, 1, 2], o), &[randn(&[1, 1, 2, 2, 2], 1)]);
    assert_eq!(i64s(&[1, 2, 3], &[1, 1, 3]).unfold([2], o1()).unwrap().to_vec::<i64>().unwrap(), [1, 2, 2, 3]);
}

fn o1() -> ConvOptions<1> {
    ConvOptions::new()
}

#[test]
fn half_precision_sums_in_f32() {
    // A sum of 4096 ones: an f16 accumulator would stop at 2048.
    let half = |v: f64, shape: &[usize]| Tensor::full(shape, v, DType::F16, &cpu()).unwrap();
    let y = half(1.0, &[1, 4096, 2]).conv1d(&half(1.0, &[1, 4096, 1]), None, o1()).unwrap();
    assert_eq!(f(&y), [4096.0; 2]);
    let y = half(1.0, &[1, 4096, 2]).conv_transpose1d(&half(1.0, &[4096, 1, 1]), Some(&half(2.0, &[1])), o1()).unwrap();
    assert_eq!((y.dtype(), f(&y)), (DType::F16, vec![4096.0; 2])); // 4098, rounded to f16
    let y = half(1.0, &[1, 4096, 1]).fold([1], [4096], o1().padding([4095])).unwrap_err();
    assert!(y.to_string().contains("positions"), "{y}");
    let y = half(1.0, &[1, 3, 3]).mul(1024.0).unwrap().fold([3], [3], o1().padding([1])).unwrap();
    assert_eq!(f(&y), [2048.0, 3072.0, 2048.0]);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (x, w) = (randn(&[2, 3, 5], 1).to_dtype(dtype).unwrap(), randn(&[3, 2, 2], 2).to_dtype(dtype).unwrap());
        let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
        let y = x.conv_transpose1d(&w, None, o1().stride([2])).unwrap();
        let want = wide(&x).conv_transpose1d(&wide(&w), None, o1().stride([2])).unwrap();
        let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
        assert_eq!(y.dtype(), dtype);
        assert_close(&f(&y), &f(&want), tolerance);
    }
}

#[test]
fn integers_convolve_and_nan_stays_under_its_windows() {
    let (x, w) = (i64s(&[1, 2, 3], &[1, 1, 3]), i64s(&[1, 10], &[1, 1, 2]));
    assert_eq!(x.conv1d(&w, None, o1()).unwrap().to_vec::<i64>().unwrap(), [21, 32]);
    assert_eq!(x.conv_transpose1d(&w, None, o1()).unwrap().to_vec::<i64>().unwrap(), [1, 12, 23, 30]);
    let x = f64s(&[1.0, f64::NAN, 2.0, 3.0], &[1, 1, 4]);
    let y = f(&x.conv1d(&f64s(&[0.0, 1.0], &[1, 1, 2]), None, o1()).unwrap());
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 3.0);
    let y = f(&x.conv_transpose1d(&f64s(&[0.0, 1.0], &[1, 1, 2]), None, o1()).unwrap());
    assert!(y[0] == 0.0 && y[1].is_nan() && y[2].is_nan() && y[3] == 2.0 && y[4] == 3.0);
}

#[test]
fn empty_batches_and_channels_are_legal() {
    for (n, c) in [(0, 2), (2, 0)] {
        let x = randn(&[n, c, 3, 3], 1);
        assert_eq!(x.conv2d(&randn(&[2, c, 2, 2], 1), None, ConvOptions::new()).unwrap().shape(), [n, 2, 2, 2]);
        let y = x.conv_transpose2d(&randn(&[c, 2, 2, 2], 1), Some(&f64s(&[1.0, 2.0], &[2])), ConvOptions::new());
        let y = y.unwrap();
        assert_eq!(y.shape(), [n, 2, 4, 4]);
        if n > 0 {
            assert_eq!(f(&y), [[1.0; 16], [2.0; 16], [1.0; 16], [2.0; 16]].concat());
        }
        let u = x.unfold([2, 2], ConvOptions::new()).unwrap();
        assert_eq!(u.shape(), [n, c * 4, 4]);
        assert_eq!(u.fold([3, 3], [2, 2], ConvOptions::new()).unwrap().shape(), [n, c, 3, 3]);
        both(|x| x[0].conv_transpose2d(&x[1], None, ConvOptions::new()), &[x, randn(&[c, 2, 2, 2], 1)]);
    }
}

#[test]
fn impossible_convolutions_are_refused_with_their_operands() {
    let (x, w) = (randn(&[1, 4, 5], 1), randn(&[4, 2, 3], 2));
    let o = o1();
    let refused = |r: gradus_tensor::Result<Tensor>, part: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    };
    refused(x.conv1d(&w, None, o), "channels a group");
    refused(x.conv1d(&w, None, o.groups(3)), "3 groups");
    refused(x.conv1d(&w, None, o.groups(0)), "0 groups");
    refused(x.conv1d(&w, None, o.groups(2).stride([0])), "stride is 0");
    refused(x.conv1d(&w, None, o.groups(2).dilation([0])), "dilation is 0");
    refused(x.conv1d(&w, None, o.groups(2).dilation([9])), "[1, 4, 5]");
    refused(x.conv1d(&w, None, o.groups(2).output_padding([1])), "output padding");
    refused(x.conv1d(&w, Some(&randn(&[3], 1)), o.groups(2)), "bias");
    refused(x.conv2d(&w, None, ConvOptions::new()), "rank 4");
    refused(x.conv1d(&w, None, o.groups(2).padding([usize::MAX])), "too large");
    refused(x.conv_transpose1d(&w, None, o.output_padding([1])), "output padding 1");
    refused(x.conv_transpose1d(&w, None, o.stride([0])), "stride is 0");
    refused(x.conv_transpose1d(&w, None, o.padding([9])), "no result");
    refused(x.conv_transpose1d(&w, None, o.stride([usize::MAX])), "no result");
    refused(x.conv_transpose1d(&randn(&[3, 2, 3], 1), None, o), "takes 3 channels");
    refused(x.conv_transpose1d(&w, Some(&randn(&[3], 1)), o), "bias");
    refused(x.conv_transpose1d(&w, None, o.groups(3)), "3 groups");
    refused(randn(&[1, 4, 0], 1).conv_transpose1d(&w, None, o), "no result");
    refused(x.unfold([3], o.groups(2)), "groups");
    refused(x.unfold([0], o), "kernel is 0");
    refused(x.unfold([6], o), "[1, 4, 5]");
    refused(x.unfold([1, 1], ConvOptions::new()), "2 axes");
    refused(randn(&[1, 1, 1, 1, 1, 1], 1).unfold([1; 4], ConvOptions::new()), "4 axes");
    refused(x.unfold([], ConvOptions::new()), "0 axes");
    refused(x.ne(0.0).unwrap().unfold([1], o), "bool");
    refused(x.fold([7], [3], o), "4 rows");
    refused(randn(&[1, 6, 4], 1).fold([7], [3], o), "4 positions");
    refused(randn(&[6, 4], 1).fold([7], [3], o), "[6, 4]");
}

/// The reference for `conv_transpose1d`: a loop over all pairs of an input element and a kernel element.
fn spread_1d(x: &[f64], w: &[f64], stride: usize, pad: usize) -> Vec<f64> {
    let size = (x.len() - 1) * stride + w.len() - 2 * pad;
    let mut y = vec![0.0; size];
    for (i, x) in x.iter().enumerate() {
        for (j, w) in w.iter().enumerate() {
            if let Some(y) = (i * stride + j).checked_sub(pad).and_then(|at| y.get_mut(at)) {
                *y += x * w;
            }
        }
    }
    y
}

#[test]
fn an_infinite_weight_reaches_only_what_uses_it() {
    let x: Vec<f64> = (0..7).map(|i| f64::from(i) - 2.5).collect();
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        for (stride, pad, tap) in (1..3).flat_map(|s| (0..3).flat_map(move |p| (0..3).map(move |t| (s, p.min(1), t)))) {
            let mut w = vec![1.0, -2.0, 3.0];
            w[tap] = value;
            let want = spread_1d(&x, &w, stride, pad);
            assert!(want.iter().any(|v| v.is_finite()) || (pad, stride) != (0, 1));
            // With one channel, and with enough channels for the fast paths. The additional channels have finite
            // weights and inputs of 0.
            for channels in [1, 24] {
                for dtype in [DType::F64, DType::F32, DType::BF16] {
                    let (mut all_x, mut all_w) = (vec![0.0; channels * 7], vec![1.0; channels * channels * 3]);
                    all_x[..7].copy_from_slice(&x);
                    all_w[..3].copy_from_slice(&w);
                    let x = f64s(&all_x, &[1, channels, 7]).to_dtype(dtype).unwrap();
                    let w = f64s(&all_w, &[channels, channels, 3]).to_dtype(dtype).unwrap();
                    let y = x.conv_transpose1d(&w, None, ConvOptions::new().stride([stride]).padding([pad])).unwrap();
                    let y = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    assert_close(&y[..want.len()], &want, 1e-12);
                    assert!(y[want.len()..].iter().all(|v| v.is_finite()));
                }
            }
        }
    }
}
