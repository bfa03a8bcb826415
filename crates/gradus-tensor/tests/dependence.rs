//! The difference between no gradient and a gradient of zero, and the reasons that `explain_grad` reports.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{assert_close, f64s, leaf};
use gradus_tensor::autograd::{Context, Dependence};
use gradus_tensor::{
    BackwardOptions, CustomOp, DType, Result, Tensor, apply_custom, checkpoint, explain_grad, grad, hessian, inference,
    no_grad, no_grad_guard,
};

#[test]
fn a_slope_of_zero_gives_zeros_as_in_pytorch() {
    // In PyTorch, the gradient of floor, ceil, round, trunc and sign is tensor([0., 0., 0.]).
    let x = leaf(&[0.5, -1.5, 2.0]);
    type Op = fn(&Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 5] = [
        ("floor", |x| x.floor()),
        ("ceil", |x| x.ceil()),
        ("round", |x| x.round()),
        ("trunc", |x| x.trunc()),
        ("sign", |x| x.sign()),
    ];
    for (name, op) in ops {
        let g = op(&x).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [0.0; 3], "{name}");
        for options in [BackwardOptions::new(), BackwardOptions::new().create_graph()] {
            let y = op(&x.exp().unwrap()).unwrap().sum_all().unwrap();
            let g = grad(&[&y], &[&x], None, options).unwrap()[0].clone().unwrap();
            assert_eq!((g.to_vec::<f64>().unwrap(), g.requires_grad()), (vec![0.0; 3], false), "{name}");
        }
    }
    // PyTorch's gradients of (w * floor(x)).sum(): 0 for x, and [0, -2, 2] for w.
    let w = leaf(&[1.0; 3]);
    let g = w.mul(x.floor().unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [0.0; 3]);
    assert_eq!(g.get(&w).unwrap().to_vec::<f64>().unwrap(), [0.0, -2.0, 2.0]);
    // PyTorch's gradients of torch.fmod(x, w): [1, 1, 1] for x, and [-0, 1, -2] for w.
    let g = x.fmod(&w).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0; 3]);
    assert_eq!(g.get(&w).unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0, -2.0]);
    // PyTorch's gradient of torch.where(x > 0, x, 0 * x): [1, 0, 1]. The comparison does not contribute to it.
    let y = x.gt(0.0).unwrap().where_(&x, x.mul(0.0).unwrap()).unwrap().sum_all().unwrap();
    assert_eq!(y.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0, 0.0, 1.0]);
}

#[test]
fn zero_joins_what_comes_by_other_ways() {
    let x = leaf(&[0.5, -1.5]);
    let u = x.mul(3.0).unwrap();
    // One use of `u` has slope zero and the other does not. The gradient of the intermediate `u` is requested as well.
    let y = u.floor().unwrap().add(&u).unwrap().sum_all().unwrap();
    let g = grad(&[&y], &[&x, &u], None, BackwardOptions::new()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [3.0; 2]);
    assert_eq!(g[1].as_ref().unwrap().to_vec::<f64>().unwrap(), [1.0; 2]);
    let y = u.floor().unwrap().sum_all().unwrap();
    let g = grad(&[&y], &[&x, &u], None, BackwardOptions::new()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [0.0; 2]);
    assert_eq!(g[1].as_ref().unwrap().to_vec::<f64>().unwrap(), [0.0; 2]);
    // The part of the graph behind a slope of zero is freed like the rest.
    assert!(y.backward().unwrap_err().to_string().contains("freed"));
    let h = hessian(|x| x.floor()?.mul(x)?.sum_all(), &f64s(&[0.5, 1.5], &[2])).unwrap();
    assert_eq!(h.to_vec::<f64>().unwrap(), [0.0; 4]);
}

#[test]
fn hooks_see_a_gradient_of_zero_and_may_replace_it() {
    let x = leaf(&[0.5, -1.5]);
    let u = x.mul(3.0).unwrap();
    let y = u.floor().unwrap().sum_all().unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let list = seen.clone();
    let hook = u
        .register_hook(move |g| {
            list.lock().unwrap().push(g.to_vec::<f64>()?);
            Ok(Some(g.add(1.0)?))
        })
        .unwrap();
    let g = y.backward_with(BackwardOptions::new().retain_graph()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [[0.0; 2]]);
    assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [3.0; 2]);
    drop(hook);
    assert_eq!(y.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap(), [0.0; 2]);
}

#[test]
fn no_influence_is_none() {
    let (x, z) = (leaf(&[1.0]), leaf(&[2.0]));
    let y = x.square().unwrap();
    let g = grad(&[&y], &[&x, &z], None, BackwardOptions::new().retain_graph()).unwrap();
    assert!(g[0].is_some() && g[1].is_none());
    assert!(y.backward().unwrap().get(&z).is_none());
}

/// The operation and the line where the path to `x` ends, and the reason.
fn undefined(x: &Tensor, step: impl FnOnce() -> Result<Tensor>) -> (String, u32, String) {
    match explain_grad(x, step).unwrap() {
        Dependence::Undefined { op, location, reason } => {
            assert_eq!(location.file(), file!());
            (op, location.line(), reason)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn integers_comparisons_and_truth_values_end_the_way() {
    let x = leaf(&[1.0, 3.0, 2.0]);
    let (op, at, why) = undefined(&x, || x.mul(2.0)?.argmax(0, false)?.to_dtype(DType::F64));
    assert_eq!((op.as_str(), at), ("argmax { op: Max, axis: 0 }", line!() - 1));
    assert_eq!(why, "it gives i64, and integers have no derivative");
    let (op, at, why) = undefined(&x, || x.exp()?.gt(1.0)?.to_dtype(DType::F64)?.mul(3.0)?.sum_all());
    assert_eq!((op.as_str(), at), ("gt[1.0]", line!() - 1));
    assert!(why.contains("truth values"), "{why}");
    let (op, ..) = undefined(&x, || x.argsort(0, false)?.to_dtype(DType::F64)?.sum_all());
    assert_eq!(op, "sort { axis: 0, descending: false }");
    let (op, ..) = undefined(&x, || x.sort(0, false)?.1.to_dtype(DType::F64)?.sum_all());
    assert_eq!(op, "sort { axis: 0, descending: false }");
    assert_eq!(explain_grad(&x, || x.sort(0, false)?.0.sum_all()).unwrap(), Dependence::Gradient);
    let (op, ..) = undefined(&x, || x.to_dtype(DType::I32)?.to_dtype(DType::F64)?.sum_all());
    assert_eq!(op, "to_dtype[i32]");
    // The result has a gradient for `w`, but none for `x`.
    let w = leaf(&[5.0]);
    let (op, ..) = undefined(&x, || w.mul(&x.argmin(0, true)?)?.sum_all());
    assert_eq!(op, "argmin { op: Min, axis: 0 }");
}

#[test]
fn detached_and_unrecorded_ways_are_told() {
    let x = leaf(&[1.0, 3.0]);
    let (op, at, why) = undefined(&x, || x.exp()?.detach().mul(2.0)?.sum_all());
    assert_eq!((op.as_str(), at), ("mul[2.0]", line!() - 1));
    assert!(why.contains("detached"), "{why}");
    let (op, _, why) = undefined(&x, || Ok(x.exp()?.detach()));
    assert!(op == "detach" && why.contains("detached"), "{op}: {why}");
    let (op, _, why) = undefined(&x, || {
        let y = no_grad(|| x.exp())?;
        y.sin()?.sum_all()
    });
    assert!(op == "exp" && why.contains("no_grad()"), "{op}: {why}");
    let (op, _, why) = undefined(&x, || inference(|| x.exp()));
    assert!(op == "exp" && why.contains("inference()"), "{op}: {why}");
    // The path ends at an in-place write, or at a second leaf with the same values.
    let (op, ..) = undefined(&x, || {
        let y = Tensor::zeros([2], DType::F64, x.device())?;
        let _guard = no_grad_guard();
        y.copy_(&x)?;
        y.sum_all()
    });
    assert_eq!(op, "copy_");
    let (op, ..) = undefined(&x, || x.detach().with_grad()?.exp()?.sum_all());
    assert_eq!(op, "exp");
}

/// The identity, computed by two operations that are not recorded themselves.
struct Same;

impl CustomOp for Same {
    fn name(&self) -> &str {
        "same"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(2.0)?.mul(0.5)?])
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![g[0].clone()])
    }
}

#[test]
fn ways_that_go_through_ways_of_zero_and_no_ways() {
    let x = leaf(&[1.0, 3.0]);
    assert_eq!(explain_grad(&x, || x.exp()).unwrap(), Dependence::Gradient);
    assert_eq!(explain_grad(&x, || Ok(x.clone())).unwrap(), Dependence::Gradient);
    let inside = || {
        let y = checkpoint(|x| x[0].exp()?.mul(2.0), &[&x])?;
        let y = apply_custom(&Arc::new(Same), &[&y])?.swap_remove(0);
        y.argmax(0, false)?.to_dtype(DType::F64)
    };
    assert_eq!(undefined(&x, inside).0, "argmax { op: Max, axis: 0 }");
    assert_eq!(explain_grad(&x, || x.floor()?.add(&x)?.sum_all()).unwrap(), Dependence::Gradient);
    let line = line!() + 1;
    let zero = explain_grad(&x, || x.exp()?.floor()?.mul(2.0)?.sum_all()).unwrap();
    let Dependence::Zero { op, location } = &zero else { panic!("{zero}") };
    assert_eq!((op.as_str(), location.line()), ("floor", line));
    assert!(zero.to_string().contains("through floor"), "{zero}");
    let z = leaf(&[1.0]);
    assert_eq!(explain_grad(&z, || x.exp()).unwrap(), Dependence::Unused);
    let read_out = explain_grad(&x, || Tensor::from_vec(x.exp()?.to_vec::<f64>()?, [2], x.device()));
    assert_eq!(read_out.unwrap(), Dependence::Unused);
    // The tensor must require a gradient. Errors of the step are returned. Computing with `x` still works afterwards.
    assert!(explain_grad(&x.detach(), || x.exp()).unwrap_err().to_string().contains("with_grad"));
    assert!(explain_grad(&x, || x.reshape([3])).is_err());
    assert_close(&[x.exp().unwrap().sum_all().unwrap().item().unwrap()], &[1f64.exp() + 3f64.exp()], 1e-12);
}

#[test]
fn of_a_slope_of_zero_and_a_cut_the_cut_is_told() {
    let x = leaf(&[1.5, 3.5]);
    let (op, at, why) = undefined(&x, || x.floor()?.add(x.detach())?.sum_all());
    assert_eq!((op.as_str(), at), ("add", line!() - 1));
    assert_eq!(why, "it was given a detached tensor; the slope of every other way is zero");
    // The cut may be several operations away from the result.
    let (op, ..) = undefined(&x, || x.floor()?.mul(&x.detach().exp()?)?.mul(2.0)?.exp()?.sum_all());
    assert_eq!(op, "exp");
    let (op, _, why) = undefined(&x, || x.floor()?.add(&x.argmax(0, true)?)?.sum_all());
    assert!(op.starts_with("argmax") && why.starts_with("it gives i64") && why.ends_with("is zero"), "{op}: {why}");
    // If the slope along one path is not zero, there is a gradient, even if other paths are cut. Constants cut nothing.
    assert_eq!(explain_grad(&x, || x.add(x.detach())?.sum_all()).unwrap(), Dependence::Gradient);
    let constant = f64s(&[1.0, 2.0], &[2]);
    assert!(matches!(explain_grad(&x, || x.floor()?.mul(&constant)?.sum_all()).unwrap(), Dependence::Zero { .. }));
    // Paths through values computed before the step are not followed.
    let y = x.exp().unwrap();
    let before = explain_grad(&x, || y.detach().sum_all()).unwrap();
    assert_eq!(before, Dependence::Unused);
    assert!(before.to_string().contains("before the step"), "{before}");
}

#[test]
fn a_gradient_of_integers_is_refused_with_the_reason() {
    let x = leaf(&[1.0, 3.0]);
    let e = x.argmax(0, false).unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("i64") && e.contains("integers") && e.contains("explain_grad"), "{e}");
    let e = x.detach().sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("leave out detach()") && e.contains("explain_grad"), "{e}");
}

#[test]
fn parts_of_one_tensor_are_told_apart() {
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]);
    let parts = x.split(2, 0).unwrap();
    // `grad` agrees that there is no gradient.
    let other = parts[1].square().unwrap().sum_all().unwrap();
    assert!(grad(&[&other], &[&parts[0]], None, BackwardOptions::new()).unwrap()[0].is_none());
    assert_eq!(explain_grad(&parts[0], || parts[1].square()?.sum_all()).unwrap(), Dependence::Unused);
    assert_eq!(explain_grad(&parts[1], || parts[1].square()?.sum_all()).unwrap(), Dependence::Gradient);
    assert_eq!(explain_grad(&parts[0], || parts[0].add(&parts[1])?.sum_all()).unwrap(), Dependence::Gradient);
    assert_eq!(undefined(&parts[0], || parts[0].detach().add(&parts[1])?.sum_all()).0, "add");
    // The parts may interleave in memory.
    let columns = x.reshape([2, 2]).unwrap().unbind(1).unwrap();
    assert_eq!(explain_grad(&columns[0], || columns[1].square()?.sum_all()).unwrap(), Dependence::Unused);
    assert_eq!(explain_grad(&columns[0], || columns[1].detach().square()?.sum_all()).unwrap(), Dependence::Unused);
    assert_eq!(undefined(&columns[0], || columns[0].detach().square()?.sum_all()).0, "square");
    assert_eq!(undefined(&columns[0], || x.detach().square()?.sum_all()).0, "square");
}

#[test]
fn what_lies_beside_a_tensor_is_not_it() {
    let buffer = f64s(&[1.0, 2.0, 3.0, 4.0], &[4]);
    let x = buffer.narrow(0, 0, 2).unwrap().with_grad().unwrap();
    let constant = buffer.narrow(0, 2, 2).unwrap();
    assert_eq!(explain_grad(&x, || constant.square()?.sum_all()).unwrap(), Dependence::Unused);
    assert_eq!(undefined(&x, || buffer.narrow(0, 1, 2)?.square()?.sum_all()).0, "square");
    assert_eq!(explain_grad(&x, || Ok(constant.clone())).unwrap(), Dependence::Unused);
}

#[test]
fn a_write_over_all_of_it_ends_the_way() {
    let x = leaf(&[1.0, 3.0]);
    let filled = |from: usize, len: usize| {
        let c = x.detach().mul(2.0)?;
        c.narrow(0, from, len)?.fill_(1.0)?;
        c.square()?.sum_all()
    };
    assert_eq!(explain_grad(&x, || filled(0, 2)).unwrap(), Dependence::Unused);
    let Dependence::Undefined { op, .. } = explain_grad(&x, || filled(1, 1)).unwrap() else { panic!() };
    assert_eq!(op, "mul[2.0]");
    let copied = || {
        let c = x.detach().mul(2.0)?;
        c.copy_(&f64s(&[1.0, 2.0], &[2]))?;
        c.square()?.sum_all()
    };
    assert_eq!(explain_grad(&x, copied).unwrap(), Dependence::Unused);
    // A write through a detached handle ends the path as well, except for values that were read before the write.
    let handle = |read_first: bool| {
        let c = x.exp()?.detach();
        let read = c.mul(2.0)?;
        c.fill_(1.0)?;
        if read_first { read.sum_all() } else { c.square()?.sum_all() }
    };
    assert_eq!(undefined(&x, || handle(true)).0, "mul[2.0]");
    assert_eq!(explain_grad(&x, || handle(false)).unwrap(), Dependence::Unused);
    let whole = || {
        let c = x.exp()?.detach();
        c.fill_(1.0)?;
        Ok(c)
    };
    assert_eq!(explain_grad(&x, whole).unwrap(), Dependence::Unused);
    // Overwriting a leaf does not end the path, because a leaf has whatever values are written into it.
    let into_leaf = || {
        let _guard = no_grad_guard();
        x.fill_(2.0)?;
        x.detach().square()?.sum_all()
    };
    assert_eq!(undefined(&x, into_leaf).0, "square");
    // Adding in place keeps the path.
    let added = || {
        let c = x.detach().mul(2.0)?;
        c.add_(1.0)?;
        c.square()?.sum_all()
    };
    assert_eq!(undefined(&x, added).0, "mul[2.0]");
}

#[test]
fn a_write_by_an_index_is_named() {
    let x = leaf(&[1.0, 2.0]);
    let mut line = 0;
    let found = explain_grad(&x, || {
        let y = f64s(&[0.0; 3], &[3]);
        let _guard = no_grad_guard();
        line = line!() + 1;
        y.index_add_(0, &common::i64s(&[2, 0], &[2]), &x)?;
        y.sum_all()
    });
    let Dependence::Undefined { op, location, reason } = found.unwrap() else { panic!("it is cut") };
    assert_eq!((op.as_str(), reason.as_str()), ("index_add_", "it ran inside no_grad()"));
    assert_eq!((location.file(), location.line()), (file!(), line));
}
