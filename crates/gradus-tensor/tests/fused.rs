//! Fused expressions and gated products, compared with the same computation in single steps, up to second order.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, both, f32s, f64s, i64s, layouts, randn};
use gradus_tensor::{BackwardOptions, DType, ErrorKind, Result, Tensor, fused, grad};

/// The value of `f` at `x`, its gradients, and the gradients of the sum of their squares.
fn orders(f: &dyn Fn(&[Tensor]) -> Result<Tensor>, x: &[Tensor]) -> Vec<f64> {
    let x: Vec<Tensor> = x.iter().map(|t| t.with_grad().unwrap()).collect();
    let refs: Vec<&Tensor> = x.iter().collect();
    let y = f(&x).unwrap();
    let mut all = y.to_vec::<f64>().unwrap();
    let first = grad(&[&y.sum_all().unwrap()], &refs, None, BackwardOptions::new().create_graph()).unwrap();
    let mut squares = Tensor::zeros([], DType::F64, y.device()).unwrap();
    for g in first.iter().flatten() {
        all.extend(g.to_vec::<f64>().unwrap());
        squares = squares.add(g.square().unwrap().sum_all().unwrap()).unwrap();
    }
    for h in grad(&[&squares], &refs, None, BackwardOptions::new()).unwrap().into_iter().flatten() {
        all.extend(h.to_vec::<f64>().unwrap());
    }
    all
}

#[test]
fn fused_is_the_steps_in_every_layout_and_order() {
    let (b, c) = (randn(&[4], 2), randn(&[3, 1], 3));
    for a in layouts(&[3, 4], 1) {
        let inputs = [a, b.clone(), c.clone()];
        let one = |x: &[Tensor]| fused!(|a, b, c| (a * b + c).silu() * 2.0)(&x[0], &x[1], &x[2]);
        let steps = |x: &[Tensor]| x[0].mul(&x[1])?.add(&x[2])?.silu()?.mul(2.0);
        assert_close(&orders(&one, &inputs), &orders(&steps, &inputs), 1e-12);
        both(one, &inputs);
    }
}

#[test]
fn fused_takes_numbers_and_chooses_by_condition() {
    let x = f64s(&[-1.5, 0.25, 2.0, f64::NAN], &[4]);
    let clipped = fused!(|x, low, slope| x.lt(low).select(x * slope, x.gelu()))(&x, 0.5, 0.125).unwrap();
    let got = clipped.to_vec::<f64>().unwrap();
    assert_close(&got[..2], &[-0.1875, 0.03125], 1e-15);
    assert!((got[2] - 1.954_499_736).abs() < 1e-8 && got[3].is_nan());
    let function = fused!(|x| 1.0 - x.square().sqrt());
    assert_eq!(function(&x).unwrap().to_vec::<f64>().unwrap()[..3], [-0.5, 0.75, -1.0]);
    // Each call site is a kernel of its own. Integers are converted to floats.
    let whole = i64s(&[1, 2], &[2]);
    assert_eq!(fused!(|a| a / 2.0)(&whole).unwrap().to_vec::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!(fused!(|a| a * 2.0)(&whole).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0]);
    both(|v| fused!(|x, k| (x * k).tanh() * x.sigmoid())(&v[0], 0.7), &[randn(&[5], 4)]);
}

#[test]
fn fused_does_not_round_in_between_and_keeps_only_what_the_gradient_reads() {
    // 300 * 300 is out of range for f16; 300 * 300 / 900 is not.
    let x = f32s(&[300.0], &[1]).to_dtype(DType::F16).unwrap();
    let y = fused!(|x| x * x / 900.0)(&x).unwrap();
    assert_eq!((y.item().unwrap(), y.dtype()), (100.0, DType::F16));
    let (a, b) = (randn(&[3], 1).with_grad().unwrap(), randn(&[3], 2));
    let y = fused!(|a, b| (a * b).exp() * b)(&a, &b).unwrap();
    assert_eq!(y.grad_fn().unwrap().saved().len(), 2);
    let y = fused!(|a, b| a * 2.0 + b)(&a, &b).unwrap();
    assert!(y.grad_fn().unwrap().saved().is_empty());
}

#[test]
fn errors_of_fused_name_the_place_and_the_operands() {
    let e = fused!(|a, b| a + b)(&f32s(&[1.0, 2.0], &[2]), &f32s(&[1.0; 3], &[3])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Broadcast);
    assert!(e.op().contains("tests/fused.rs:") && e.to_string().contains("[3]"), "{e}");
    let e = fused!(|a| a.and(a))(&f32s(&[1.0], &[1])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::DTypeMismatch, "{e}");
    assert!(fused!(|a, b| a + b)(1.0, 2.0).is_err());
}

#[test]
fn a_gradient_too_long_for_a_kernel_is_an_error_where_it_is_asked_for() {
    let x = f64s(&[0.5], &[1]).with_grad().unwrap();
    let long = fused!(|x| (0..14_000).fold(x, |x, i| (x + f64::from(i)).sin()));
    let y = long(&x).unwrap();
    assert!(y.item().unwrap().is_finite());
    let e = y.backward().unwrap_err();
    assert!(e.kind() == &ErrorKind::Autograd && e.to_string().contains("too large"), "{e}");
}

type Gated = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(&Tensor) -> Result<Tensor>);

fn gated() -> [Gated; 5] {
    [
        ("silu", |a, b| a.silu_mul(b), |a| a.silu()),
        ("gelu", |a, b| a.gelu_mul(b), |a| a.gelu()),
        ("gelu_tanh", |a, b| a.gelu_tanh_mul(b), |a| a.gelu_tanh()),
        ("relu", |a, b| a.relu_mul(b), |a| a.relu()),
        ("sigmoid", |a, b| a.sigmoid_mul(b), |a| a.sigmoid()),
    ]
}

// Mistake 15 of `gradus/tests/mistakes.rs`.
#[test]
fn hessian_of_a_gated_product_is_there() {
    let x = [f64s(&[0.7], &[1]), f64s(&[1.3], &[1])];
    for (name, one, act) in gated() {
        let fused = orders(&|x| one(&x[0], &x[1]), &x);
        let steps = orders(&|x| act(&x[0])?.mul(&x[1]), &x);
        assert_close(&fused, &steps, 1e-12);
        assert_eq!(fused.len(), 5, "{name}");
    }
    let [a, b] = x.map(|t| t.with_grad().unwrap());
    let first = grad(&[&a.silu_mul(&b).unwrap()], &[&a, &b], None, BackwardOptions::new().create_graph()).unwrap();
    let mut hessian = vec![];
    for g in first.iter().flatten() {
        for h in grad(&[g], &[&a, &b], None, BackwardOptions::new().retain_graph()).unwrap() {
            hessian.push(h.map_or(0.0, |h| h.item().unwrap()));
        }
    }
    assert_close(&hessian, &[0.509, 0.823, 0.823, 0.0], 5e-4);
}

// Mistake 15 of `gradus/tests/mistakes.rs`.
#[test]
fn slopes_of_gated_products_are_finite_and_exact_far_out() {
    let far = [10.06, 12.0, 100.0, 1e4, f64::INFINITY, -12.0, -1e4, f64::NEG_INFINITY];
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for (name, one, _) in gated() {
            let a = f64s(&far, &[8]).to_dtype(dtype).unwrap().with_grad().unwrap();
            let b = Tensor::ones([8], dtype, a.device()).unwrap();
            let g = one(&a, &b).unwrap().sum_all().unwrap().backward().unwrap();
            let g = g.get(&a).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let above = if name == "sigmoid" { 0.0 } else { 1.0 };
            // For large x, silu(x) is about x (1 - e^-x), so its slope at 10 is about 1 + 4e-4.
            assert!(g[..5].iter().all(|v| (v - above).abs() < 1e-3), "{name} {dtype} {g:?}");
            assert!(g[5..].iter().all(|v| v.abs() < 1e-3), "{name} {dtype} {g:?}");
        }
        let a = Tensor::full([1], 256, dtype, &common::cpu()).unwrap().with_grad().unwrap();
        let b = Tensor::ones([1], dtype, a.device()).unwrap();
        let g = a.silu_mul(&b).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&a).unwrap().item().unwrap(), 1.0, "{dtype}");
    }
}

// Mistake 15 of `gradus/tests/mistakes.rs`.
#[test]
fn gated_products_broadcast_and_skip_the_frozen_side() {
    for (_, one, act) in gated() {
        let (a, b) = (randn(&[3, 1], 1), randn(&[2, 1, 4], 2));
        let y = one(&a, &b).unwrap();
        assert_eq!(y.shape(), [2, 3, 4]);
        let steps = act(&a).unwrap().mul(&b).unwrap().to_vec::<f64>().unwrap();
        assert_close(&y.to_vec::<f64>().unwrap(), &steps, 1e-14);
        both(|x| one(&x[0], &x[1]), &[a.clone(), b.clone()]);

        let leaf = b.with_grad().unwrap();
        let y = one(&a, &leaf).unwrap();
        // Only `b` gets a gradient, and computing it needs only `a`.
        let node = y.grad_fn().unwrap().clone();
        assert_eq!(node.saved().len(), 1);
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!((g.len(), g.get(&leaf).unwrap().shape()), (1, &[2, 1, 4][..]));
        assert!(grad(&[&one(&a, &leaf).unwrap().sum_all().unwrap()], &[&a], None, BackwardOptions::new()).is_err());
    }
    let nan = f64s(&[f64::NAN], &[1]);
    assert!(nan.relu_mul(f64s(&[0.0], &[1])).unwrap().item().unwrap().is_nan());
}

#[test]
fn orders_whose_joint_gradient_is_too_large_for_one_kernel_take_several() {
    let x = f64s(&[0.25], &[1]).with_grad().unwrap();
    // With four equal factors this is e^(4x): each order multiplies by 4. At the fifth order, one kernel for all
    // gradients has 37 arguments.
    let mut y = fused!(|a, b, c, d| (a + b + c + d).exp())(&x, &x, &x, &x).unwrap();
    for order in 1..=7 {
        y = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap().swap_remove(0).unwrap();
        let want = 4f64.powi(order) * 1f64.exp();
        let found = y.item().unwrap();
        assert!((found - want).abs() <= 1e-12 * want, "order {order}: {found} instead of {want}");
    }
}

#[test]
fn gradients_of_three_operands_go_on_to_the_seventh_order() {
    let x = f64s(&[0.5], &[1]).with_grad().unwrap();
    let mut fused = fused!(|a, b, c| (a * b + c).tanh() * b)(&x, &x, &x).unwrap();
    let mut plain = x.mul(&x).unwrap().add(&x).unwrap().tanh().unwrap().mul(&x).unwrap();
    for order in 1..=7 {
        for y in [&mut fused, &mut plain] {
            let options = BackwardOptions::new().create_graph();
            *y = grad(&[&*y], &[&x], None, options).unwrap().remove(0).unwrap();
        }
        let (got, want) = (fused.item().unwrap(), plain.item().unwrap());
        assert!((got - want).abs() < 1e-9 * want.abs().max(1.0), "{order}: {got} {want}");
    }
}
