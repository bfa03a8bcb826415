//! The location of every node is a line of the user's code, even for the nodes that autograd itself records.
//! `gradus/tests/golden/locations.rs` checks this for every operation.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{f64s, nodes};
use gradus_tensor::autograd::Context;
use gradus_tensor::{
    BackwardOptions, CustomOp, Result, Tensor, apply_custom, checkpoint, grad, hessian, hvp, jacobian, jvp, vjp, vmap,
};

fn leaf(values: &[f64]) -> Tensor {
    f64s(values, &[values.len()]).with_grad().unwrap()
}

fn check(what: &str, tensors: &[Tensor]) {
    let found = nodes(tensors);
    assert!(found.iter().any(|n| !n.is_leaf()), "{what} records nothing");
    let elsewhere: Vec<_> = found.iter().filter(|n| n.location().file() != file!()).collect();
    assert!(elsewhere.is_empty(), "{what}: {elsewhere:?}");
}

#[test]
fn of_transforms() {
    let (x, w) = (leaf(&[0.5, 1.5]), leaf(&[2.0, -1.0]));
    let seed = f64s(&[1.0, 10.0], &[2]);
    let f = |x: &[Tensor]| x[0].exp()?.mul(&w);
    let sum = |x: &Tensor| x.exp()?.mul(&w)?.sum_all();
    let (y, g) = vjp(f, &[&x], &[&seed]).unwrap();
    check("vjp", &[y, g[0].clone()]);
    let (y, along) = jvp(f, &[&x], &[&seed]).unwrap();
    check("jvp", &[y, along]);
    let (y, g) = hvp(|x| sum(&x[0]), &[&x], &[&seed]).unwrap();
    check("hvp", &[y, g[0].clone()]);
    check("jacobian", &jacobian(f, &[&x]).unwrap());
    check("hessian", &[hessian(sum, &x).unwrap()]);
    check("vmap", &[vmap(|x| x[0].mul(&x[0]), &[&x], &[Some(0)], &[0]).unwrap()]);
}

#[derive(Debug)]
struct Cube {
    once: bool,
}

impl CustomOp for Cube {
    fn name(&self) -> &str {
        "cube"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].pow(3.0)?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(ctx.input(0)?.square()?.mul(3.0)?.mul(g)?)])
    }
    fn once_differentiable(&self) -> bool {
        self.once
    }
}

#[test]
fn of_gradients_by_functions() {
    let x = leaf(&[0.5, 1.5]);
    let first =
        |y: &Tensor| grad(&[y], &[&x], Some(&[&f64s(&[1.0, 10.0], &[2])]), BackwardOptions::new().create_graph());
    for once in [false, true] {
        let y = apply_custom(&Arc::new(Cube { once }), &[&x]).unwrap().swap_remove(0);
        check("a custom operation", std::slice::from_ref(&y));
        let g = first(&y).unwrap()[0].clone().unwrap();
        check("its gradient", &[g]);
    }
    let y = checkpoint(|x: &[Tensor]| x[0].exp()?.sin(), &[&x]).unwrap();
    check("checkpoint", std::slice::from_ref(&y));
    let g = first(&y).unwrap()[0].clone().unwrap();
    check("its gradient", &[g]);
}
