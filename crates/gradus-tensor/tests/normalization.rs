//! Normalisations, compared with PyTorch, and their gradients with finite differences.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, assert_like_pytorch, both, cpu, f64s, i64s, layouts, randn, sines};
use gradus_tensor::{BackwardOptions, DType, Result, Tensor, grad};

fn f(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[test]
fn values_are_pytorchs() {
    let x = sines(&[2, 4, 3], 1.7, 0.3);
    let (w, b) = (sines(&[4], 0.5, 0.1), sines(&[4], 0.3, 0.2));
    assert_like_pytorch("gn", &x.group_norm(2, Some(&w), Some(&b), 1e-5).unwrap());
    assert_like_pytorch("in", &x.instance_norm(Some(&w), Some(&b), 1e-5).unwrap());
    assert_like_pytorch("rms", &x.rms_norm(&[4, 3], Some(&sines(&[4, 3], 0.5, 0.1)), 1e-5).unwrap());
    assert_like_pytorch("lrn", &x.local_response_norm(3, 0.5, 0.75, 2.0).unwrap());
    assert_like_pytorch("n3", &x.normalize(3.0, 1, 1e-12).unwrap());
    assert_like_pytorch("n2", &x.normalize(2.0, -1, 1e-12).unwrap());
    assert_like_pytorch("ninf", &x.normalize(f64::INFINITY, 1, 1e-12).unwrap());
}

#[test]
fn group_norm_of_one_group_is_layer_norm_and_of_single_channels_is_instance_norm() {
    for x in layouts(&[2, 4, 3], 1) {
        let y = x.group_norm(1, None, None, 1e-5).unwrap();
        assert_close(&f(&y), &f(&x.layer_norm(&[4, 3], None, None, 1e-5).unwrap()), 1e-12);
        let y = x.group_norm(4, None, None, 1e-5).unwrap();
        assert_close(&f(&y), &f(&x.instance_norm(None, None, 1e-5).unwrap()), 1e-12);
    }
}

#[test]
fn gradients_of_any_order_in_every_layout() {
    for x in layouts(&[2, 4, 3], 1) {
        let (w, b) = (randn(&[4], 2), randn(&[4], 3));
        both(|x| x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5), &[x.clone(), w.clone(), b.clone()]);
        both(|x| x[0].instance_norm(Some(&x[1]), Some(&x[2]), 1e-3), &[x.clone(), w, b]);
        both(|x| x[0].rms_norm(&[4, 3], Some(&x[1]), 1e-5), &[x.clone(), randn(&[4, 3], 2)]);
        both(|x| x[0].rms_norm(&[3], None, 1e-2), std::slice::from_ref(&x));
        both(|x| x[0].local_response_norm(3, 0.5, 0.75, 2.0), std::slice::from_ref(&x));
        for p in [1.0, 2.0, 3.0] {
            both(|x| x[0].normalize(p, 1, 1e-12), std::slice::from_ref(&x));
        }
    }
    both(|x| x[0].normalize(f64::INFINITY, 1, 1e-12), &[randn(&[3, 4], 1)]);
    both(|x| x[0].normalize(2.0, 1, 100.0), &[randn(&[3, 4], 1)]);
}

// Mistake 5 of `gradus/tests/mistakes.rs`: a batch norm without gradients in evaluation, and a running variance from
// the biased estimate.
#[test]
fn batch_norm_has_gradients_in_evaluation_and_the_unbiased_variance() {
    let x = randn(&[4, 3, 2], 1);
    let (mean, var) = (randn(&[3], 4), randn(&[3], 5).square().unwrap().add(0.5).unwrap());
    let inputs = [x.clone(), mean, var, randn(&[3], 2), randn(&[3], 3)];
    both(|x| x[0].batch_norm_eval(&x[1], &x[2], Some(&x[3]), Some(&x[4]), 1e-5), &inputs);
    let leaf = x.with_grad().unwrap();
    let y = leaf.batch_norm_eval(&inputs[1], &inputs[2], Some(&inputs[3]), None, 1e-5).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    let want: Vec<f64> = (0..24).map(|i| f(&inputs[3])[i / 2 % 3] / (f(&inputs[2])[i / 2 % 3] + 1e-5).sqrt()).collect();
    assert_close(&f(g.get(&leaf).unwrap()), &want, 1e-12);
    let (_, batch) = x.batch_norm(None, None, 1e-5).unwrap();
    assert_close(&f(&batch.var), &f(&x.var(&[0, 2], 1, false).unwrap()), 1e-12);
}

// Mistake 16 of `gradus/tests/mistakes.rs`: a layer-norm backward pass that drops the shape [B, S, D].
#[test]
fn gradients_have_the_shape_and_dtype_of_their_inputs() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let leaf = |shape: &[usize], seed| randn(shape, seed).to_dtype(dtype).unwrap().with_grad().unwrap();
        let (x, w, b) = (leaf(&[2, 4, 6], 1), leaf(&[6], 2), leaf(&[6], 3));
        let (c, d) = (leaf(&[4], 4), leaf(&[4], 5));
        let check = |y: Tensor, leaves: &[&Tensor]| {
            assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype));
            let g = y.square().unwrap().sum_all().unwrap().backward().unwrap();
            for leaf in leaves {
                let g = g.get(leaf).unwrap();
                assert_eq!((g.shape(), g.dtype()), (leaf.shape(), dtype));
                assert!(f(g).iter().any(|g| *g != 0.0));
            }
        };
        check(x.layer_norm(&[6], Some(&w), Some(&b), 1e-5).unwrap(), &[&x, &w, &b]);
        check(x.rms_norm(&[6], Some(&w), 1e-5).unwrap(), &[&w, &x]);
        check(x.group_norm(2, Some(&c), Some(&d), 1e-5).unwrap(), &[&c, &d]);
        check(x.instance_norm(Some(&c), Some(&d), 1e-5).unwrap(), &[&c, &d]);
        check(x.normalize(2.0, 1, 1e-12).unwrap().mul(&w).unwrap(), &[&x, &w]);
        check(x.local_response_norm(3, 1.0, 0.75, 1.0).unwrap(), &[&x]);
    }
}

#[test]
fn half_precision_computes_in_f32() {
    // The squares and their sum are far above the range of f16.
    let x = f64s(&[30000.0, -30000.0, 60000.0, 0.0], &[1, 1, 4]).to_dtype(DType::F16).unwrap();
    let wide = x.to_dtype(DType::F64).unwrap();
    let close = |y: Tensor, want: Tensor| assert_close(&f(&y), &f(&want), 1e-3);
    close(x.rms_norm(&[4], None, 1e-5).unwrap(), wide.rms_norm(&[4], None, 1e-5).unwrap());
    close(x.group_norm(1, None, None, 1e-5).unwrap(), wide.group_norm(1, None, None, 1e-5).unwrap());
    close(x.normalize(2.0, 2, 1e-12).unwrap(), wide.normalize(2.0, 2, 1e-12).unwrap());
}

#[test]
fn the_zero_vector_has_length_0_and_a_finite_gradient() {
    for (p, eps) in [(2.0, 1e-12), (3.0, 1e-200), (1.0, 1e-12), (f64::INFINITY, 1e-12)] {
        let x = f64s(&[0.0, 0.0, 3.0, 4.0], &[2, 2]).with_grad().unwrap();
        let y = x.normalize(p, 1, eps).unwrap();
        assert_eq!(f(&y)[..2], [0.0, 0.0]);
        let g = y.sum_all().unwrap().backward().unwrap();
        assert!(f(g.get(&x).unwrap()).iter().all(|g| g.is_finite()), "{p}");
    }
    // Zeros next to other elements, and second derivatives.
    for p in [0.5, 1.0, 1.5, 2.0, 2.5, f64::INFINITY] {
        let x = f64s(&[0.0, 0.0, 1e-4, 0.0, 3.0, 4.0], &[3, 2]).with_grad().unwrap();
        let y = x.normalize(p, 1, 1e-12).unwrap().square().unwrap().sum_all().unwrap();
        let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap().remove(0).unwrap();
        assert!(f(&g).iter().all(|g| g.is_finite()), "{p}: {:?}", f(&g));
        let gg = g.square().unwrap().sum_all().unwrap().backward().unwrap();
        assert!(f(gg.get(&x).unwrap()).iter().all(|g| g.is_finite()), "{p}: {:?}", f(gg.get(&x).unwrap()));
    }
    let y = f(&f64s(&[f64::NAN, 1.0, 3.0, 4.0], &[2, 2]).normalize(2.0, 1, 1e-12).unwrap());
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 0.6);
}

#[test]
fn a_nan_spoils_its_own_statistics_only() {
    let mut v = f(&randn(&[2, 4, 3], 1));
    v[4] = f64::NAN; // sample 0, channel 1
    let x = f64s(&v, &[2, 4, 3]);
    let spoilt = |y: Tensor| f(&y).iter().enumerate().filter(|(_, v)| v.is_nan()).map(|(i, _)| i).collect::<Vec<_>>();
    assert_eq!(spoilt(x.group_norm(2, None, None, 1e-5).unwrap()), (0..6).collect::<Vec<_>>());
    assert_eq!(spoilt(x.instance_norm(None, None, 1e-5).unwrap()), [3, 4, 5]);
    assert_eq!(spoilt(x.rms_norm(&[3], None, 1e-5).unwrap()), [3, 4, 5]);
}

#[test]
fn tensors_of_no_elements() {
    let x = randn(&[0, 4, 3], 1);
    assert_eq!(x.group_norm(2, None, None, 1e-5).unwrap().shape(), [0, 4, 3]);
    assert_eq!(x.instance_norm(None, None, 1e-5).unwrap().shape(), [0, 4, 3]);
    assert_eq!(x.rms_norm(&[3], Some(&randn(&[3], 1)), 1e-5).unwrap().shape(), [0, 4, 3]);
    assert_eq!(x.normalize(2.0, 1, 1e-12).unwrap().shape(), [0, 4, 3]);
    assert_eq!(x.local_response_norm(2, 1.0, 1.0, 1.0).unwrap().shape(), [0, 4, 3]);
    both(|x| x[0].group_norm(2, Some(&x[1]), None, 1e-5), &[x, randn(&[4], 1)]);
}

#[test]
fn impossible_normalisations_are_refused() {
    let x = randn(&[2, 4, 3], 1);
    let refused = |r: Result<Tensor>, part: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    };
    refused(x.group_norm(3, None, None, 1e-5), "3 groups");
    refused(x.group_norm(0, None, None, 1e-5), "0 groups");
    refused(x.group_norm(2, None, None, 0.0), "eps");
    refused(x.group_norm(2, None, None, f64::INFINITY), "eps");
    refused(x.group_norm(2, Some(&randn(&[2], 1)), None, 1e-5), "4 channels");
    refused(randn(&[3], 1).group_norm(1, None, None, 1e-5), "group_norm");
    refused(x.instance_norm(None, Some(&i64s(&[1; 4], &[4])), 1e-5), "i64");
    refused(randn(&[2, 4], 1).instance_norm(None, None, 1e-5), "spatial");
    refused(randn(&[2, 4, 1], 1).instance_norm(None, None, 1e-5), "no variance");
    refused(x.rms_norm(&[4], None, 1e-5), "[4]");
    refused(x.rms_norm(&[], None, 1e-5), "rms_norm");
    refused(x.rms_norm(&[3], Some(&randn(&[4], 1)), 1e-5), "weight");
    refused(i64s(&[1, 2], &[2]).rms_norm(&[2], None, 1e-5), "i64");
    refused(x.normalize(f64::NAN, 1, 1e-12), "p is NaN");
    refused(x.normalize(2.0, 1, -1.0), "eps");
    refused(x.normalize(2.0, 3, 1e-12), "3");
    refused(i64s(&[1, 2], &[2]).normalize(2.0, 0, 1e-12), "i64");
    refused(x.local_response_norm(0, 1.0, 1.0, 1.0), "size is 0");
    refused(randn(&[2, 4], 1).local_response_norm(1, 1.0, 1.0, 1.0), "spatial");
    assert!(Tensor::zeros([2, 2, 2], DType::I64, &cpu()).unwrap().local_response_norm(1, 1.0, 1.0, 1.0).is_err());
}

#[test]
fn evaluation_in_half_precision_rounds_once_and_refuses_what_training_refuses() {
    let x = randn(&[5, 3], 1).to_dtype(DType::BF16).unwrap();
    let (mean, var) = (f64s(&[0.1, 0.2, 0.3], &[3]), f64s(&[1.1, 1.2, 1.3], &[3]));
    let w = randn(&[3], 2).to_dtype(DType::BF16).unwrap();
    let got = x.batch_norm_eval(&mean, &var, Some(&w), Some(&w), 1e-5).unwrap();
    let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
    let want = wide(&x).batch_norm_eval(&mean, &var, Some(&wide(&w)), Some(&wide(&w)), 1e-5).unwrap();
    assert_eq!(f(&wide(&got)), f(&wide(&want.to_dtype(DType::BF16).unwrap())));
    let y = wide(&x);
    for eps in [f64::NAN, 0.0, -1.0] {
        assert!(y.batch_norm_eval(&mean, &var, None, None, eps).is_err());
    }
    assert!(y.batch_norm_eval(&mean.gt(0.0).unwrap(), &var, None, None, 1e-5).is_err());
    assert!(y.batch_norm_eval(&mean, &var.to_dtype(DType::I64).unwrap(), None, None, 1e-5).is_err());
    let e = randn(&[1, 2, 3], 1).local_response_norm(usize::MAX, 1.0, 1.0, 1.0).unwrap_err();
    assert!(e.to_string().starts_with("local_response_norm"), "{e}");
}
