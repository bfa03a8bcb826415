//! `gradcheck` and `gradgradcheck`: what passes, what fails, and the error messages.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::sync::Arc;

use common::{f32s, f64s, randn};
use gradus_tensor::autograd::{
    Context, GradcheckOptions, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with,
};
use gradus_tensor::{CustomOp, ErrorKind, Result, Tensor, apply_custom, inference_guard, no_grad_guard};

/// `x^3`, whose gradient uses the slope `3 x^2` multiplied by `factor` and shifted by `more`.
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
    // No gradient at all, and a gradient that omits a path.
    assert!(says(&|x| x[0].detach().exp(), std::slice::from_ref(&x)).contains("explain_grad"));
    let text = says(&|x| x[0].floor()?.add(x[0].detach()), std::slice::from_ref(&x));
    assert!(text.contains("leaves out a way"), "{text}");
    // A kink, and a point outside the domain.
    let text = says(&|x| x[0].relu(), &[f64s(&[1.0, 0.0], &[2])]);
    assert!(text.contains("element [1]") && text.contains("kink"), "{text}");
    assert!(says(&|x| x[0].log(), &[f64s(&[-1.0], &[1])]).contains("domain"));
    // A second derivative that omits a path.
    let e = gradgradcheck(|x| x[0].square()?.mul(x[0].detach()), std::slice::from_ref(&x)).unwrap_err();
    assert_eq!(e.op(), "gradgradcheck");
}

#[test]
fn options_change_what_passes() {
    let x = f64s(&[0.5, -1.0], &[2]);
    let slightly = cube(1.0, 1e-4);
    assert!(gradcheck(&slightly, std::slice::from_ref(&x)).is_err());
    gradcheck_with(&slightly, std::slice::from_ref(&x), GradcheckOptions::new().atol(1e-3)).unwrap();
    gradcheck_with(&slightly, std::slice::from_ref(&x), GradcheckOptions::new().rtol(1e-3)).unwrap();
    // For a cube, a step of 0.1 makes the finite difference wrong by 0.01.
    let coarse = GradcheckOptions::new().eps(0.1);
    assert!(gradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse).is_err());
    gradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse.atol(0.02)).unwrap();
    gradgradcheck_with(cube(1.0, 0.0), std::slice::from_ref(&x), coarse.atol(0.2)).unwrap();
    // Another seed means other weights: the verdict is the same, but the numbers differ.
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
    // A function whose result changes from call to call.
    let calls = Cell::new(0.0);
    let e = gradcheck(
        |x| {
            calls.set(calls.get() + 1.0);
            x[0].mul(calls.get())
        },
        &[f64s(&[1.0], &[1])],
    );
    assert!(e.unwrap_err().to_string().contains("called again"));
    // Errors of the function are returned; an empty input passes.
    assert_eq!(gradcheck(|x| x[0].reshape([7]), &[randn(&[2], 1)]).unwrap_err().op(), "reshape");
    gradcheck(|x| x[0].exp(), &[randn(&[0, 3], 1)]).unwrap();
    gradgradcheck(|x| x[0].exp(), &[randn(&[0, 3], 1)]).unwrap();
    // Several inputs, one of which does not affect the result.
    gradcheck(|x| x[0].mul(&x[1]), &[randn(&[3], 1), randn(&[3], 2), randn(&[2], 3)]).unwrap();
}

/// The sine, with a backward rule that claims these slopes.
struct Slopes(Vec<f64>);

impl CustomOp for Slopes {
    fn name(&self) -> &str {
        "slopes"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].sin()?])
    }
    fn backward(&self, _: &Context<'_>, _: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(f64s(&self.0, &[self.0.len()]))])
    }
}

#[test]
fn an_entry_that_is_not_finite_fails_and_excuses_no_other() {
    let x = f64s(&[0.5, -1.0, 2.0], &[3]);
    for (slopes, element, hint) in [
        ([f64::INFINITY, 5.0, -7.0], "element [0]", "find_nonfinite"),
        ([f64::NAN, 5.0, -7.0], "element [0]", "find_nonfinite"),
    ] {
        let op = Arc::new(Slopes(slopes.to_vec()));
        let e = gradcheck(|x| Ok(apply_custom(&op, &[&x[0]])?.swap_remove(0)), std::slice::from_ref(&x)).unwrap_err();
        assert!(e.to_string().contains(element) && e.to_string().contains(hint), "{e}");
    }
    // The claimed slope is finite, but the finite difference is infinite.
    let jump = |x: &[Tensor]| x[0].recip()?.mul(0.5);
    let op = Arc::new(Slopes(vec![1.0]));
    let wrong = |x: &[Tensor]| jump(x)?.detach().add(&apply_custom(&op, &[&x[0]])?[0]);
    assert!(gradcheck(wrong, &[f64s(&[1e-5], &[1])]).unwrap_err().to_string().contains("domain"));
}

#[test]
fn large_elements_are_moved_too() {
    let large = f64s(&[1e12, 2e12], &[2]);
    let e = gradcheck(|x| x[0].detach().mul(3.0), std::slice::from_ref(&large)).unwrap_err();
    assert!(e.to_string().contains("explain_grad"), "{e}");
    gradcheck(|x| x[0].mul(3.0), std::slice::from_ref(&large)).unwrap();
    gradcheck(|x| x[0].mul(&x[0]), &[large]).unwrap();
    // Inputs that cannot be perturbed are refused.
    let tiny = GradcheckOptions::new().eps(1e-20);
    let e = gradcheck_with(|x| Ok(x[0].detach()), &[f64s(&[1.0], &[1])], tiny).unwrap_err();
    assert!(e.kind() == &ErrorKind::InvalidArgument && e.to_string().contains("no step"), "{e}");
    for v in [f64::INFINITY, f64::NAN, f64::MAX] {
        let e = gradcheck(|x| x[0].mul(0.5), &[f64s(&[v, 1.0], &[2])]).unwrap_err();
        assert!(e.to_string().contains("element [0]") && e.to_string().contains("no step"), "{e}");
    }
}

#[test]
fn integers_have_no_gradient_to_check() {
    let x = f64s(&[0.5, -1.0, 2.0], &[3]);
    let argmax = |x: &[Tensor]| x[0].argmax(0, false);
    let once = gradcheck(argmax, std::slice::from_ref(&x)).unwrap_err();
    let twice = gradgradcheck(argmax, std::slice::from_ref(&x)).unwrap_err();
    assert_eq!([once.kind(), twice.kind()], [&ErrorKind::UnsupportedDType; 2]);
    let infinite = GradcheckOptions::new().rtol(f64::INFINITY);
    assert!(gradcheck_with(cube(2.0, 0.0), &[x], infinite).is_err());
}

#[test]
fn the_modes_of_the_thread_do_not_decide() {
    let x = f64s(&[0.5, -1.0], &[2]);
    {
        let _guard = no_grad_guard();
        gradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap();
        gradgradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap();
        assert!(gradcheck(cube(2.0, 0.0), std::slice::from_ref(&x)).unwrap_err().to_string().contains("2 times"));
    }
    let _guard = inference_guard();
    let once = gradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap_err();
    let twice = gradgradcheck(cube(1.0, 0.0), std::slice::from_ref(&x)).unwrap_err();
    assert_eq!([once.op(), twice.op()], ["gradcheck", "gradgradcheck"]);
    assert!(once.to_string().contains("inference()"), "{once}");
}

/// The product of two inputs. Its two gradients are correct, but row `i` of `wired` holds the claimed slopes of
/// gradient `i` with respect to both inputs.
struct Product {
    wired: [[f64; 2]; 2],
}

/// Returns its first input, and claims these slopes for the two other inputs.
struct Claims {
    slopes: [f64; 2],
}

impl CustomOp for Claims {
    fn name(&self) -> &str {
        "claims"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].copy()?])
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None; 3]) };
        Ok(vec![None, Some(g.mul(self.slopes[0])?), Some(g.mul(self.slopes[1])?)])
    }
}

impl CustomOp for Product {
    fn name(&self) -> &str {
        "product"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(&x[1])?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None; 2]) };
        let (x, y) = (ctx.input(0)?, ctx.input(1)?);
        let claim = |of: &Tensor, slopes: [f64; 2]| -> Result<Option<Tensor>> {
            let op = Arc::new(Claims { slopes });
            let slope = apply_custom(&op, &[&of.detach(), &x, &y])?.swap_remove(0);
            Ok(Some(slope.mul(g)?))
        };
        Ok(vec![claim(&y, self.wired[0])?, claim(&x, self.wired[1])?])
    }
}

#[test]
fn opposite_mistakes_of_two_inputs_do_not_cancel() {
    let x = [f64s(&[0.5, -1.0, 2.0], &[3]), f64s(&[0.7, 1.5, -0.3], &[3])];
    let check = |wired| {
        let op = Arc::new(Product { wired });
        gradgradcheck(|x| Ok(apply_custom(&op, &[&x[0], &x[1]])?.swap_remove(0)), &x)
    };
    check([[0.0, 1.0], [1.0, 0.0]]).unwrap();
    assert!(check([[1.0, 0.0], [0.0, 1.0]]).is_err());
}

#[test]
fn a_gradient_that_forgets_what_it_was_computed_from_is_found() {
    let x = f64s(&[0.5, -1.0], &[2]);
    // The numbers are right, but the gradient's dependence on the incoming gradient is cut.
    let cut = |x: &[Tensor]| {
        let y = x[0].exp()?.mul(1.0)?;
        if y.requires_grad() {
            std::mem::forget(y.register_hook(|g| Ok(Some(g.detach())))?);
        }
        Ok(y)
    };
    gradcheck(cut, std::slice::from_ref(&x)).unwrap();
    let e = gradgradcheck(cut, std::slice::from_ref(&x)).unwrap_err();
    assert!(e.to_string().contains("the gradient of the result, element [0]"), "{e}");
    assert!(e.to_string().contains("[2]  f64"), "{e}");
    gradgradcheck(|x| x[0].exp()?.mul(1.0), &[x]).unwrap();
}

#[test]
fn every_element_of_a_large_result_counts() {
    // It does not matter which element is wrong, because the tolerance is far below the weight of every element.
    for wrong in [0, 677, 4878, 9999] {
        let x = f64s(&[0.5], &[1]);
        let one = |x: &[Tensor]| {
            let all = x[0].expand([10_000])?;
            let at = |from: usize, to: usize| all.narrow(0, from, to - from);
            Tensor::cat(&[&at(0, wrong)?, &at(wrong, wrong + 1)?.detach(), &at(wrong + 1, 10_000)?], 0)
        };
        let options = GradcheckOptions::new().atol(0.3).rtol(0.0);
        assert!(gradcheck_with(one, &[x], options).is_err(), "{wrong}");
    }
}
