//! Gradients, and transformations of functions.

use gradus::autograd::{GradcheckOptions, gradcheck_with};
use gradus::prelude::*;
use gradus::{
    CustomOp, checkpoint, checkpoint_with, enable_grad_guard, explain_grad, find_nonfinite, grad, hessian, hvp,
    inference_guard, jacobian, jvp, ops::Context, ops::Keep, vjp, vmap,
};

use super::{LONG, Row, SHORT, rows};
use crate::calls::Draw;

/// A smooth function of some tensors.
fn smooth(x: &[Tensor]) -> Result<Tensor> {
    let mut y = x[0].sin()?;
    for t in &x[1..] {
        y = y.mul(&t.tanh()?)?;
    }
    Ok(y)
}

/// A float leaf.
fn leaf(d: &mut Draw) -> Result<Tensor> {
    let dims = d.dims();
    d.floats(&dims)?.detach().with_grad()
}

/// A small float leaf: its Jacobian or Hessian has the square of its number of elements.
fn small(d: &mut Draw) -> Result<Tensor> {
    let (dims, rank) = ([d.below(4), 1 + d.below(3)], d.below(3));
    let x = d.floats(&dims[..rank])?.detach();
    if x.numel() > 16 { Tensor::ones([2], DType::F32, &d.device)?.with_grad() } else { x.with_grad() }
}

#[derive(Debug)]
struct Twice;

impl CustomOp for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(2.0)?])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![g[0].as_ref().map(|g| g.mul(2.0)).transpose()?])
    }
}

const GRADIENTS: &[Row] = rows! { SHORT;
    backward |d| smooth(&[leaf(d)?, d.float()?])?.sum_all()?.backward();
    backward_with |d| {
        let y = smooth(&[leaf(d)?])?;
        let options = if d.flag() { BackwardOptions::new().create_graph() } else { BackwardOptions::new().retain_graph() };
        let root = if d.once_in(4) { y } else { y.sum_all()? };
        drop(root.backward_with(options)?);
        root.backward()
    };
    grad::of |d| {
        let x = leaf(d)?;
        let y = smooth(&[x.clone(), d.like(&x)?])?;
        let seed = d.like(&y)?;
        let other = d.any()?;
        let found = grad(&[&y], &[&x, &other][..1 + d.below(2)], Some(&[&seed][..]).filter(|_| !d.once_in(6)), BackwardOptions::new())?;
        Ok::<_, Error>(found.into_iter().flatten().collect::<Vec<_>>())
    };
    grad::twice |d| {
        let x = leaf(d)?;
        let y = x.sin()?.mul(&x)?.sum_all()?;
        let first = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph())?;
        let Some(Some(g)) = first.first() else { return Ok(vec![]) };
        let second = grad(&[&g.square()?.sum_all()?], &[&x], None, BackwardOptions::new())?;
        Ok::<_, Error>(second.into_iter().flatten().collect::<Vec<_>>())
    };
    autograd::vjp |d| { let x = leaf(d)?; let c = d.like(&x)?; vjp(smooth, &[&x], &[&c]).map(|(y, _)| y) };
    autograd::jvp |d| { let x = leaf(d)?; let t = d.like(&x)?; jvp(smooth, &[&x], &[&t]).map(|(y, _)| y) };
    autograd::hvp |d| { let x = leaf(d)?; let v = d.like(&x)?; hvp(|x| smooth(x)?.sum_all(), &[&x], &[&v]).map(|_| ()) };
    autograd::jacobian |d| { let x = small(d)?; jacobian(smooth, &[&x]) };
    autograd::hessian |d| { let x = small(d)?; hessian(|x| x.sin()?.sum_all(), &x) };
    autograd::gradcheck |d| {
        let x = small(d)?.detach();
        let options = GradcheckOptions::new().eps(d.fraction()).atol(d.fraction()).rtol(d.fraction()).seed(d.bits());
        gradcheck_with(smooth, &[x], options)
    };
    autograd::checkpoint |d| { let x = leaf(d)?; checkpoint(smooth, &[&x])?.sum_all()?.backward() };
    autograd::checkpoint_with |d| {
        let (x, p) = (leaf(d)?, d.fraction());
        checkpoint_with(move |x, g| x[0].dropout(p, g), &[&x], &mut d.generator)?.sum_all()?.backward()
    };
    autograd::apply_custom |d| { let x = leaf(d)?; gradus::apply_custom(&std::sync::Arc::new(Twice), &[&x])?.swap_remove(0).sum_all()?.backward() };
    autograd::explain |d| { let x = leaf(d)?; explain_grad(&x, || x.sin()?.sum_all()).map(|_| ()) };
    autograd::find_nonfinite |d| { let x = leaf(d)?; find_nonfinite(|| x.log()?.sum_all()).map(|_| ()) };
    register_hook |d| {
        let x = leaf(d)?;
        let wrong = d.like(&x)?;
        let keep = d.flag();
        let hook = x.register_hook(move |g| Ok(if keep { Some(g.mul(2.0)?) } else { Some(wrong.clone()) }))?;
        let found = x.sin()?.sum_all()?.backward();
        drop(hook);
        found
    };
    Gradients::set |d| {
        let x = leaf(d)?;
        let mut found = x.square()?.sum_all()?.backward()?;
        found.set(&x, d.like(&x)?)?;
        Ok::<_, Error>(found.get(&x).cloned())
    };
    modes::all |d| {
        let x = leaf(d)?;
        let _strict = d.once_in(3).then(gradus::strict_guard);
        let _inplace = d.once_in(3).then(gradus::strict_inplace_guard);
        let _mutation = d.once_in(3).then(gradus::allow_mutation_on_saved_tensors_guard);
        let _inference = d.once_in(4).then(inference_guard);
        let _enabled = d.once_in(4).then(enable_grad_guard);
        let lower = d.dtype();
        let _lower = if d.once_in(3) { Some(gradus::autocast_guard(lower)?) } else { None };
        let _full = d.once_in(6).then(gradus::no_autocast_guard);
        let y = x.sin()?.mul(&x)?;
        if d.flag() {
            x.detach().add_(d.scalar())?;
        }
        y.sum_all()?.backward()
    };
    graph_stats |d| { let y = smooth(&[leaf(d)?])?; Ok::<_, Error>(y.graph_stats().nodes) };
    to_dot |d| { let y = smooth(&[leaf(d)?])?; Ok::<_, Error>(y.to_dot()) };
};

const MAPPED: &[Row] = rows! { LONG any;
    autograd::vmap |x, d| {
        let other = d.like(&x)?;
        let dims = [Some(d.axis(x.rank())), Some(d.axis(other.rank())).filter(|_| d.flag())];
        let out = d.axis(x.rank());
        if d.flag() { vmap(|v| v[0].add(&v[1]), &[&x, &other], &dims, &[out]) } else { vmap(|v| v[0].neg(), &[&x], &dims[..1], &[out]) }
    };
};

pub(super) const ROWS: &[&[Row]] = &[GRADIENTS, MAPPED];
