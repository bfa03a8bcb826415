//! Function transforms (`vjp`, `jvp`, `jacobian`, `hessian`, `hvp`): values derived by hand, composition, captured
//! parameters and errors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, assert_close, f32s, f64s, i64s, layouts, randn, values};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{
    BackwardOptions, ErrorKind, Result, Tensor, grad, hessian, hvp, jacobian, jvp, no_grad_guard, vjp,
};

/// Maps two inputs to two outputs: `sin(a) b` and `sum(a b^2)`.
fn two(x: &[Tensor]) -> Result<[Tensor; 2]> {
    Ok([x[0].sin()?.mul(&x[1])?, x[0].mul(&x[1].square()?)?.sum_all()?])
}

#[test]
fn vjp_weighs_all_outputs() {
    let (a, b) = (f64s(&[0.3, -1.2], &[2]), f64s(&[2.0, 0.5], &[2]));
    let (y, g) = vjp(two, &[&a, &b], &[&f64s(&[1.0, 10.0], &[2]), &f64s(&[3.0], &[])]).unwrap();
    assert_close(&values(&y[0]), &[0.3f64.sin() * 2.0, (-1.2f64).sin() * 0.5], 1e-15);
    assert_close(&values(&y[1]), &[0.3 * 4.0 - 1.2 * 0.25], 1e-15);
    let da = [0.3f64.cos() * 2.0 + 3.0 * 4.0, 10.0 * 1.2f64.cos() * 0.5 + 3.0 * 0.25];
    let db = [0.3f64.sin() + 3.0 * 2.0 * 0.3 * 2.0, 10.0 * (-1.2f64).sin() - 3.0 * 2.0 * 1.2 * 0.5];
    assert_close(&values(&g[0]), &da, 1e-14);
    assert_close(&values(&g[1]), &db, 1e-14);
    assert!(!g[0].requires_grad() && !y[0].requires_grad());
}

#[test]
fn jvp_agrees_with_finite_differences_over_layouts() {
    for (a, b) in layouts(&[2, 3], 1).into_iter().zip(layouts(&[2, 3], 2)) {
        let (ta, tb) = (randn(&[2, 3], 3), randn(&[3, 2], 4).t().unwrap());
        let (y, along) = jvp(two, &[&a, &b], &[&ta, &tb]).unwrap();
        let at = |h: f64| two(&[a.add(ta.mul(h).unwrap()).unwrap(), b.add(tb.mul(h).unwrap()).unwrap()]).unwrap();
        let (up, down, mid) = (at(1e-6), at(-1e-6), at(0.0));
        for i in 0..2 {
            let numeric = up[i].sub(&down[i]).unwrap().div(2e-6).unwrap();
            assert_close(&values(&along[i]), &values(&numeric), 1e-8);
            assert_close(&values(&y[i]), &values(&mid[i]), 1e-15);
        }
    }
}

#[test]
fn jvp_of_what_does_not_depend_on_the_input_is_zero() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let c = f64s(&[5.0], &[1]);
    let f = |x: &[Tensor]| Ok(vec![c.clone(), x[0].gt(0.0)?, x[0].clone()]);
    let (_, along) = jvp(f, &[&x], &[&f64s(&[7.0, 8.0], &[2])]).unwrap();
    assert_eq!(values(&along[0]), [0.0]);
    assert_eq!(along[1].to_vec::<bool>().unwrap(), [false, false]);
    assert_eq!(values(&along[2]), [7.0, 8.0]);
    let (_, g) = vjp(|_| Ok(c.clone()), &[&x], &[&c]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0]);
}

#[test]
fn jacobian_has_the_axes_of_output_and_input() {
    // y = W x, so dy/dx = W. In the derivative of y_i with respect to W, row i is x and the other rows are 0.
    let (w, x) = (randn(&[2, 3], 1), randn(&[3], 2));
    let j = jacobian(|p| p[0].matmul(&p[1]), &[&w, &x]).unwrap();
    assert_eq!((j[0].shape(), j[1].shape()), (&[2, 2, 3][..], &[2, 3][..]));
    assert_eq!(values(&j[1]), values(&w));
    let x = values(&x);
    let mut want = vec![0.0; 12];
    want[..3].copy_from_slice(&x);
    want[9..].copy_from_slice(&x);
    assert_eq!(values(&j[0]), want);
    // Empty outputs and empty inputs are allowed.
    let none = jacobian(|p| p[0].narrow(0, 0, 0), &[&f64s(&[1.0, 2.0], &[2])]).unwrap();
    assert_eq!(none[0].shape(), [0, 2]);
    let none = jacobian(|p| p[0].sum_all(), &[&f64s(&[], &[0])]).unwrap();
    assert_eq!(none[0].shape(), [0]);
}

#[test]
fn hessian_and_its_products_agree_with_the_formula() {
    // f = (x'Ax)^2, A symmetric: gradient 4 q Ax, Hessian 8 (Ax)(Ax)' + 4 q A with q = x'Ax.
    let m = randn(&[3, 3], 1);
    let a = m.add(m.t().unwrap()).unwrap();
    let x = randn(&[3], 2);
    let f = |x: &Tensor| a.matmul(x)?.mul(x)?.sum_all()?.square();
    let ax = a.matmul(&x).unwrap();
    let q = ax.mul(&x).unwrap().sum_all().unwrap();
    let outer = ax.unsqueeze(1).unwrap().mul(ax.unsqueeze(0).unwrap()).unwrap().mul(8.0).unwrap();
    let want = outer.add(a.mul(&q).unwrap().mul(4.0).unwrap()).unwrap();
    let h = hessian(f, &x).unwrap();
    assert_eq!(h.shape(), [3, 3]);
    assert!(!h.requires_grad());
    assert_close(&values(&h), &values(&want), 1e-12);
    let v = randn(&[3], 3);
    let (value, hv) = hvp(|x| f(&x[0]), &[&x], &[&v]).unwrap();
    assert_close(&values(&value), &values(&q.square().unwrap()), 1e-13);
    assert_close(&values(&hv[0]), &values(&want.matmul(&v).unwrap()), 1e-12);
    // The Hessian of a linear function is zero.
    assert_eq!(values(&hessian(|x| x.sum_all(), &x).unwrap()), [0.0; 9]);
    assert_eq!(values(&hvp(|x| x[0].sum_all(), &[&x], &[&v]).unwrap().1[0]), [0.0; 3]);
}

#[test]
fn they_compose_to_the_third_order_and_beyond() {
    // Higher derivatives of sin, by every composition of `vjp` and `jvp`, and by nested Hessians.
    let x = f64s(&[0.7], &[1]);
    let one = f64s(&[1.0], &[1]);
    let by_jvp = |x: &Tensor| Ok(jvp(|x| x[0].sin(), &[x], &[&one])?.1);
    let by_vjp = |x: &Tensor| Ok(vjp(|x| x[0].sin(), &[x], &[&one])?.1.swap_remove(0));
    let second = [
        vjp(|x| by_jvp(&x[0]), &[&x], &[&one]).unwrap().1[0].clone(),
        jvp(|x| by_vjp(&x[0]), &[&x], &[&one]).unwrap().1,
        jvp(|x| by_jvp(&x[0]), &[&x], &[&one]).unwrap().1,
        vjp(|x| by_vjp(&x[0]), &[&x], &[&one]).unwrap().1[0].clone(),
    ];
    for s in second {
        assert_close(&values(&s), &[-(0.7f64.sin())], 1e-15);
    }
    let third = jacobian(|x| hessian(|x| x.sin()?.sum_all(), &x[0]), &[&x]).unwrap();
    assert_eq!(third[0].shape(), [1, 1, 1]);
    assert_close(&values(&third[0]), &[-(0.7f64.cos())], 1e-15);
    let fourth = hessian(|x| hessian(|x| x.sin()?.sum_all(), x)?.sum_all(), &x).unwrap();
    assert_close(&values(&fourth), &[0.7f64.sin()], 1e-15);
}

#[test]
fn derivatives_are_recorded_for_tracked_points_and_captured_parameters() {
    let w = f64s(&[3.0], &[1]).with_grad().unwrap();
    let x = f64s(&[2.0], &[1]);
    // d/dx (w^2 x^3) = 3 w^2 x^2 depends on w. Its derivative with respect to w is 6 w x^2 = 72.
    let f = |x: &[Tensor]| w.square()?.mul(&x[0].mul(&x[0])?.mul(&x[0])?);
    let (_, g) = vjp(f, &[&x], &[&f64s(&[1.0], &[1])]).unwrap();
    assert_eq!(g[0].backward().unwrap().get(&w).unwrap().item().unwrap(), 72.0);
    let j = jacobian(f, &[&x]).unwrap();
    assert_eq!(j[0].backward().unwrap().get(&w).unwrap().item().unwrap(), 72.0);
    // The direction of a `jvp` may be tracked.
    let t = f64s(&[1.5], &[1]).with_grad().unwrap();
    let along = jvp(|x| x[0].square(), &[&x], &[&t]).unwrap().1;
    assert_eq!(along.backward().unwrap().get(&t).unwrap().item().unwrap(), 4.0);
    // A tracked point keeps its place in the graph.
    let u = w.square().unwrap();
    let (_, g) = vjp(|x| x[0].square(), &[&u], &[&f64s(&[1.0], &[1])]).unwrap();
    let dw = grad(&[&g[0]], &[&w], None, BackwardOptions::new()).unwrap();
    assert_eq!(dw[0].as_ref().unwrap().item().unwrap(), 12.0);
    // Inside `no_grad` the results are untracked, but still correct.
    let _guard = no_grad_guard();
    let (y, g) = vjp(f, &[&x], &[&f64s(&[1.0], &[1])]).unwrap();
    assert!(!g[0].requires_grad() && !y.requires_grad());
    assert_eq!(g[0].item().unwrap(), 108.0);
    assert_eq!(hessian(|x| f(std::slice::from_ref(x)), &x).unwrap().item().unwrap(), 108.0);
}

#[test]
fn all_of_them_are_differentiable() {
    let (a, b, v) = (randn(&[2, 2], 1), randn(&[2, 2], 2), randn(&[2, 2], 3));
    let f = |x: &[Tensor]| x[0].tanh()?.mul(&x[1].exp()?);
    type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;
    let all: [Function<'_>; 4] = [
        &|x| Ok(vjp(f, &[&x[0], &x[1]], &[&x[2]])?.1.swap_remove(1)),
        &|x| Ok(jvp(f, &[&x[0], &x[1]], &[&x[2], &x[1]])?.1),
        &|x| Ok(hvp(|p| f(p)?.sum_all(), &[&x[0], &x[1]], &[&x[2], &x[0]])?.1.swap_remove(0)),
        &|x| jacobian(f, &[&x[0], &x[1]])?.swap_remove(0).mul(&x[2]),
    ];
    for g in all {
        gradcheck(g, &[a.clone(), b.clone(), v.clone()]).unwrap();
        gradgradcheck(g, &[a.clone(), b.clone(), v.clone()]).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let square = |x: &[Tensor]| x[0].square();
    let kind = |r: Result<()>| r.unwrap_err().kind().clone();
    let ones = f64s(&[1.0; 3], &[3]);
    assert_eq!(kind(vjp(square, &[&x], &[&ones]).map(drop)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(vjp(square, &[&x], &[&f32s(&[1.0; 2], &[2])]).map(drop)), ErrorKind::DTypeMismatch);
    let elsewhere = Tensor::ones([2], x.dtype(), &another_cpu()).unwrap();
    assert_eq!(kind(vjp(square, &[&x], &[&elsewhere]).map(drop)), ErrorKind::DeviceMismatch);
    assert_eq!(kind(vjp(square, &[&x], &[]).map(drop)), ErrorKind::InvalidArgument);
    assert_eq!(kind(jvp(square, &[&x], &[&ones]).map(drop)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(hvp(square, &[&x], &[&x]).map(drop)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(hessian(|x| x.square(), &x).map(drop)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(jacobian(|x| x[0].gt(0.0), &[&x]).map(drop)), ErrorKind::UnsupportedDType);
    assert_eq!(kind(jacobian(square, &[&i64s(&[1], &[1])]).map(drop)), ErrorKind::UnsupportedDType);
    let deep = randn(&[1; 5], 1);
    assert!(jacobian(square, &[&deep]).is_err());
    // An error of the function is returned to the caller.
    let e = vjp(|x| x[0].reshape([5]), &[&x], &[&x]).unwrap_err();
    assert_eq!(e.op(), "reshape");
}
