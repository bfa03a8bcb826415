//! `vmap`: values and derivatives as in PyTorch's `torch.func.vmap`, compositions, and refused uses. Also the
//! operations on which it is built, which split and join an axis.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, both, cpu, f64s, layouts, randn, sines};
use gradus_tensor::{
    BackwardOptions, DType, ErrorKind, Generator, Result, Tensor, checkpoint, grad, hessian, no_grad_guard, vjp, vmap,
};

fn s(shape: &[usize]) -> Tensor {
    sines(shape, 0.7, 0.3)
}

/// Compares with `torch.func.vmap` on the same numbers, in f64.
#[test]
fn agrees_with_torch_func_vmap() {
    let (x, y, w) = (s(&[2, 3, 4]), s(&[3, 4]), s(&[4]));
    let a = vmap(|v| v[0].matmul(&v[1]), &[&x, &w], &[Some(1), None], &[1]).unwrap();
    assert_eq!(a.shape(), [2, 3]);
    let want = [2.235055215389, -2.06869604657, 1.663288046874, -1.065678266893, 0.34492369519, 0.415688644026];
    assert_close(&a.to_vec().unwrap(), &want, 1e-11);

    let wide = x.sum(&[0], false).unwrap().unsqueeze(0).unwrap().expand([2, 3, 4]).unwrap();
    let b = vmap(|v| v[0].mul(&v[1])?.sum(&[0], false), &[&wide, &y], &[Some(2), Some(1)], &[1]).unwrap();
    assert_eq!(b.shape(), [3, 4]);
    let want = [
        0.566505992858,
        1.457842439858,
        0.727077059472,
        -0.412671595197,
        -0.069345859728,
        1.187110983624,
        1.27089800784,
        0.042923246723,
        -0.458294500893,
        0.599299163157,
        1.460029257629,
        0.695027263511,
    ];
    assert_close(&b.to_vec().unwrap(), &want, 1e-11);

    // A negative input axis, and an axis for each output.
    let [c, d] = vmap(|v| Ok([v[0].cumsum(0)?, v[0].sum_all()?]), &[&y], &[Some(-1)], &[-1, 0]).unwrap();
    assert_eq!((c.shape(), d.shape()), (&[3, 4][..], &[4][..]));
    assert_eq!(c.to_vec::<f64>().unwrap(), y.cumsum(0).unwrap().to_vec::<f64>().unwrap());
    assert_close(&d.to_vec().unwrap(), &[-0.036775795736, 0.541154457379, 0.864571313416, 0.781366771454], 1e-11);
}

#[test]
fn nests_and_composes_with_derivatives() {
    let (x, y, w) = (s(&[2, 3, 4]), s(&[3, 4]), s(&[4]));
    let inner = |a: &Tensor| vmap(|b| b[0].mul(&w)?.sum_all()?.tanh(), &[a], &[Some(0)], &[0]);
    let nested = vmap(|a| inner(&a[0]), &[&x], &[Some(0)], &[0]).unwrap();
    let want = [0.977366955432, -0.968572854472, 0.930658717606, -0.787827439739, 0.331865954244, 0.393292142717];
    assert_close(&nested.to_vec().unwrap(), &want, 1e-11);

    // torch.func.vmap(grad(f), in_dims=(None, 0)): the gradient of each sample.
    let one = Tensor::ones([], DType::F64, &cpu()).unwrap();
    let f = |w: &Tensor, v: &Tensor| v.matmul(w)?.tanh()?.sum_all();
    let each = |p: &[Tensor]| Ok(vjp(|w| f(&w[0], &p[1]), &[&p[0]], &[&one])?.1.swap_remove(0));
    let grads = vmap(each, &[&w, &x], &[None, Some(0)], &[0]).unwrap();
    let want = [
        -0.034254378313,
        0.041512868042,
        0.097755963901,
        0.108022902458,
        0.306587853476,
        0.240324470869,
        0.061032734439,
        -0.14696365066,
    ];
    assert_close(&grads.to_vec().unwrap(), &want, 1e-11);

    // The same by broadcasting, with a separate parameter for each sample.
    let own = w.expand([2, 4]).unwrap().with_grad().unwrap();
    let y2 = x.matmul(&own.unsqueeze(2).unwrap()).unwrap().tanh().unwrap().sum_all().unwrap();
    let batched = y2.backward().unwrap();
    assert_close(&batched.get(&own).unwrap().to_vec().unwrap(), &want, 1e-11);

    let hessians = vmap(|v| hessian(|v| v.sin()?.prod(&[0], false), &v[0]), &[&y], &[Some(0)], &[0]).unwrap();
    assert_eq!(hessians.shape(), [3, 4, 4]);
    let found = hessians.to_vec::<f64>().unwrap();
    assert_close(&found[..4], &[-0.113637222658, 0.333595380174, 0.244093674562, 0.465901146068], 1e-11);
    assert_close(&found[44..], &[0.117787464714, -0.143501642364, -0.040560066543, 0.070313020146], 1e-11);
}

#[test]
fn is_differentiable_to_second_order_and_through_checkpoint() {
    for x in layouts(&[3, 2, 4], 1) {
        let w = randn(&[4], 2);
        let f =
            |x: &[Tensor]| vmap(|v| v[0].mul(&v[1])?.sin()?.sum(&[1], false), &[&x[0], &x[1]], &[Some(0), None], &[1]);
        both(f, &[x.clone(), w.clone()]);
        both(move |x| checkpoint(f, &[&x[0], &x[1]]), &[x, w]);
    }
}

#[test]
fn nothing_is_recorded_without_leaves_or_inside_no_grad() {
    let x = s(&[3, 2]).with_grad().unwrap();
    let f = |x: &Tensor| vmap(|v| v[0].sin(), &[x], &[Some(0)], &[0]).unwrap();
    assert!(f(&x).requires_grad() && !f(&x.detach()).requires_grad());
    let _guard = no_grad_guard();
    assert!(!f(&x).requires_grad());
}

#[test]
fn every_slice_draws_its_own_random_numbers_and_takes_its_own_branch() {
    let x = f64s(&[1.0; 64], &[2, 32]);
    let generator = std::cell::RefCell::new(Generator::new(1));
    let y = vmap(|v| v[0].dropout(0.5, &mut generator.borrow_mut()), &[&x], &[Some(0)], &[0]).unwrap();
    let y = y.to_vec::<f64>().unwrap();
    assert_ne!(y[..32], y[32..]);
    let x = f64s(&[-2.0, 3.0], &[2]);
    let branch = |v: &[Tensor]| if v[0].item()? > 0.0 { Ok(v[0].clone()) } else { v[0].square() };
    assert_eq!(vmap(branch, &[&x], &[Some(0)], &[0]).unwrap().to_vec::<f64>().unwrap(), [4.0, 3.0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (x, y) = (s(&[2, 3]), s(&[3]));
    let same = |v: &[Tensor]| Ok(v.to_vec());
    let kind = |r: Result<Vec<Tensor>>, says: &str| {
        let e = r.unwrap_err();
        assert!(e.to_string().contains(says), "{e}");
        e.kind().clone()
    };
    use ErrorKind::{InvalidArgument, InvalidAxis, ShapeMismatch};
    assert_eq!(kind(vmap(same, &[&x, &y], &[None, None], &[0]), "no axis is mapped"), InvalidArgument);
    assert_eq!(kind(vmap(same, &[&x, &y], &[Some(0)], &[0]), "2 and 3 slices"), ShapeMismatch);
    assert_eq!(kind(vmap(same, &[&x], &[Some(2)], &[0]), "input 0"), InvalidAxis);
    assert_eq!(kind(vmap(same, &[&x], &[Some(0)], &[2]), "axis"), InvalidAxis);
    assert_eq!(kind(vmap(same, &[&x, &y], &[Some(0); 3], &[0]), "3 in_dims for 2 inputs"), InvalidArgument);
    assert_eq!(kind(vmap(same, &[&x], &[Some(0)], &[0, 0]), "2 out_dims for 1 outputs"), InvalidArgument);
    assert_eq!(kind(vmap(same, &[&f64s(&[], &[0, 3])], &[Some(0)], &[0]), "are empty"), InvalidArgument);
    let calls = std::cell::Cell::new(0);
    let growing = |v: &[Tensor]| {
        calls.set(calls.get() + 1);
        v[0].narrow(0, 0, calls.get()).map(|t| vec![t])
    };
    assert_eq!(kind(vmap(growing, &[&x], &[Some(0)], &[0]), "between slice 0 and 1"), ShapeMismatch);
    let more = |v: &[Tensor]| {
        calls.set(calls.get() + 1);
        Ok(vec![v[0].clone(); calls.get()])
    };
    assert_eq!(kind(vmap(more, &[&x], &[Some(0)], &[0]), "tensors, the first"), InvalidArgument);
}

/// The gradient of all pieces is a single concatenation, and the gradient of a concatenation is a single split, to any
/// order.
#[test]
fn pieces_of_an_axis_are_outputs_of_one_operation() {
    let x = randn(&[500, 3], 1).with_grad().unwrap();
    let pieces = x.unbind(0).unwrap();
    let scaled: Vec<Tensor> =
        pieces.iter().enumerate().map(|(i, p)| p.square().unwrap().mul(i as f64).unwrap()).collect();
    let y = Tensor::stack(&scaled.iter().collect::<Vec<_>>(), 0).unwrap().sum_all().unwrap();
    let by_op = y.graph_stats().by_op;
    assert_eq!((by_op["split"].nodes, by_op["cat"].nodes, by_op.get("slice")), (1, 1, None));
    let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap().swap_remove(0).unwrap();
    let rows = Tensor::arange(0, 500, 1, DType::F64, &cpu()).unwrap().unsqueeze(1).unwrap();
    assert_eq!(g.to_vec::<f64>().unwrap(), x.mul(&rows).unwrap().mul(2.0).unwrap().to_vec::<f64>().unwrap());
    let again = grad(&[&g.sum_all().unwrap()], &[&x], None, BackwardOptions::new()).unwrap();
    let want = rows.mul(2.0).unwrap().expand([500, 3]).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(again[0].as_ref().unwrap().to_vec::<f64>().unwrap(), want);
}

#[test]
fn a_piece_that_nobody_uses_has_gradient_zero() {
    for x in layouts(&[4, 5], 3) {
        both(|x| x[0].split_with_sizes(&[2, 0, 3], 1)?[2].sin(), std::slice::from_ref(&x));
        both(|x| x[0].split(3, 0)?[0].sin(), std::slice::from_ref(&x));
        both(|x| x[0].unbind(1)?[3].mul(&x[0].chunk(2, 1)?[0].narrow(1, 0, 1)?.squeeze(1)?), &[x]);
    }
    let x = randn(&[2, 3], 1).with_grad().unwrap();
    let first = &x.unbind(0).unwrap()[0];
    let found = first.sum_all().unwrap().backward().unwrap();
    assert_eq!(found.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
}

/// If a result shares memory with something that a later call overwrites, `vmap` returns the value of the result's own
/// call, or an error.
#[test]
fn results_that_share_memory_are_those_of_their_calls() {
    let x = f64s(&[1.0, 2.0, 3.0], &[3]);
    let scratch = f64s(&[0.0], &[]);
    let filled = |v: &[Tensor]| {
        scratch.copy_(&v[0])?;
        Ok(scratch.clone())
    };
    assert_eq!(vmap(filled, &[&x], &[Some(0)], &[0]).unwrap().to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0]);
    let total = |v: &[Tensor]| {
        v[1].add_(&v[0])?;
        Ok(v[1].clone())
    };
    let sums = vmap(total, &[&x, &f64s(&[0.0], &[])], &[Some(0), None], &[0]).unwrap();
    assert_eq!(sums.to_vec::<f64>().unwrap(), [1.0, 3.0, 6.0]);
    // A leaf always has the values in its storage, so it cannot have those of both calls.
    let leaf = f64s(&[0.0], &[]).with_grad().unwrap();
    let filled = |v: &[Tensor]| {
        let _guard = no_grad_guard();
        leaf.copy_(&v[0])?;
        Ok(leaf.clone())
    };
    let e = vmap(filled, &[&x], &[Some(0)], &[0]).unwrap_err();
    let text = e.to_string();
    assert!(e.kind() == &ErrorKind::Autograd && text.contains("slice 0") && text.contains("copy_"), "{text}");
    assert!(text.contains("vmap.rs"), "{text}");
}
