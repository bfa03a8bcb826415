//! `gradcheck` and `gradgradcheck`: what passes, what does not, and what they say.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::sync::Arc;

use common::{f32s, f64s, randn};
use gradus_tensor::autograd::{
    Context, GradcheckOptions, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with,
};
use gradus_tensor::{CustomOp, ErrorKind, Result, Tensor, apply_custom};

/// `x^3`, whose gradient is `factor` times what it should be, and has this much more.
struct Cube {
    factor: f64,
    more: f64,
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
        let slope = ctx.input(0)?.square()?.mul(3.0 * self.factor)?.add(self.more)?;
        Ok(vec![Some(slope.mul(g)?)])
    }
}

fn cube(factor: f64, more: f64) -> impl Fn(&[Tensor]) -> Result<Tensor> {
    let op = Arc::new(Cube { factor, more });
    move |x| Ok(apply_custom(&op, &[&x[x.len() - 1]])?.swap_remove(0))
}

#[test]
fn a_wrong_gradient_names_input_element_and_what_it_looks_like() {
    let x = f64s(&[0.5, -1.0, 2.0, 0.7, 1.5, -0.3], &[2, 3]);
    gradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap();
    gradgradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap();
    let says = |f: &dyn Fn(&[Tensor]) -> Result<Tensor>, x: &[Tensor]| {
        let e = gradcheck(f, x).unwrap_err();
        assert_eq!((e.kind(), e.op()), (&ErrorKind::Autograd, "gradcheck"));
        e.to_string()
    };
    let text = says(&cube(2.0, 0.0), &[randn(&[4], 1), x.clone()]);
    for part in
        ["input 1, element [0, 0]: the gradient is ", "finite differences say", "they differ by", "2 times what"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(says(&cube(-1.0, 0.0), std::slice::from_ref(&x)).contains("-1 times"));
    assert!(says(&cube(1.0, 0.3), std::slice::from_ref(&x)).contains("rule's formula"));
    // No gradient at all, and one that leaves a way out.
    assert!(says(&|x| x[0].detach().exp(), std::slice::from_ref(&x)).contains("explain_grad"));
    let text = says(&|x| x[0].floor()?.add(&x[0].detach()), std::slice::from_ref(&x));
    assert!(text.contains("leaves out a way"), "{text}");
    // A kink, a point outside of the domain, and an infinite slope.
    let text = says(&|x| x[0].relu(), &[f64s(&[1.0, 0.0], &[2])]);
    assert!(text.contains("element [1]") && text.contains("kink"), "{text}");
    assert!(says(&|x| x[0].log(), &[f64s(&[-1.0], &[1])]).contains("domain"));
    // A second derivative that leaves out a way.
    let e = gradgradcheck(|x| x[0].square()?.mul(&x[0].detach()), std::slice::from_ref(&x)).unwrap_err();
    assert_eq!(e.op(), "gradgradcheck");
}

#[test]
fn options_change_what_passes() {
    let x = f64s(&[0.5, -1.0], &[2]);
    let slightly = cube(1.0, 1e-4);
    assert!(gradcheck(&slightly, std::slice::from_ref(&x)).is_err());
    gradcheck_with(&slightly, std::slice::from_ref(&x), GradcheckOptions::new().atol(1e-3)).unwrap();
    gradcheck_with(&slightly, std::slice::from_ref(&x), GradcheckOptions::new().rtol(1e-3)).unwrap();
    // A step of 0.1 errs by 0.01 for a cube.
    let coarse = GradcheckOptions::new().eps(0.1);
    assert!(gradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse).is_err());
    gradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse.atol(0.02)).unwrap();
    gradgradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse.atol(0.2)).unwrap();
    // Other weights: the same verdict by other numbers.
    let text = |seed| {
        let options = GradcheckOptions::new().seed(seed);
        gradcheck_with(cube(2.0, 0.0), std::slice::from_ref(&x), options).unwrap_err().to_string()
    };
    assert_ne!(text(0), text(1));
    for options in [
        GradcheckOptions::new().eps(0.0),
        GradcheckOptions::new().eps(f64::NAN),
        GradcheckOptions::new().atol(-1.0),
        GradcheckOptions::new().rtol(f64::NAN),
    ] {
        let e = gradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), options).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument);
        assert!(gradgradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), options).is_err());
    }
}

#[test]
fn what_cannot_be_checked_is_refused() {
    assert_eq!(gradcheck(|x| x[0].exp(), &[f32s(&[1.0], &[1])]).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
    // A function that changes from call to call.
    let calls = Cell::new(0.0);
    let e = gradcheck(
        |x| {
            calls.set(calls.get() + 1.0);
            x[0].mul(calls.get())
        },
        &[f64s(&[1.0], &[1])],
    );
    assert!(e.unwrap_err().to_string().contains("called again"));
    // What the function reports passes through; an input without elements is right.
    assert_eq!(gradcheck(|x| x[0].reshape([7]), &[randn(&[2], 1)]).unwrap_err().op(), "reshape");
    gradcheck(|x| x[0].exp(), &[randn(&[0, 3], 1)]).unwrap();
    gradgradcheck(|x| x[0].exp(), &[randn(&[0, 3], 1)]).unwrap();
    // Several inputs, one of them without influence.
    gradcheck(|x| x[0].mul(&x[1]), &[randn(&[3], 1), randn(&[3], 2), randn(&[2], 3)]).unwrap();
}
