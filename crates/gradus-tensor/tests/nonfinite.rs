//! Finding the first operation of a step that made a NaN or an infinity.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cpu, f32s, f64s, i64s, leaf};
use gradus_tensor::autograd::{Context, NonFiniteReport, Origin, strict_inplace};
use gradus_tensor::{
    BackwardOptions, CustomOp, DType, ErrorKind, Result, Tensor, UpdateFn, apply_custom, checkpoint, find_nan,
    find_nonfinite, grad, no_grad, no_grad_guard,
};

fn found<T>(step: impl FnOnce() -> Result<T>) -> NonFiniteReport {
    find_nonfinite(step).unwrap().unwrap()
}

#[test]
fn a_forward_operation_is_named_with_its_line_and_ranges() {
    let x = leaf(&[4.0, 0.0, 1.0]);
    let mut line = 0;
    let r = found(|| {
        let y = x.mul(1.0)?;
        line = line!() + 1;
        let y = y.log()?;
        // This would make a NaN, but it is not reached.
        y.mul(0.0)?.sum_all()?.backward()
    });
    assert_eq!((r.op.as_str(), r.origin), ("log", Origin::Operation));
    assert_eq!((r.location.file(), r.location.line()), (file!(), line));
    let (i, o) = (&r.inputs[0], &r.outputs[0]);
    assert_eq!((i.min, i.max, i.nan, i.infinite, &i.first), (Some(0.0), Some(4.0), 0, 0, &None));
    assert_eq!((o.min, o.max, o.nan, o.infinite), (Some(0.0), Some(4f64.ln()), 0, 1));
    assert_eq!((&o.shape, o.dtype, o.first.as_deref()), (&vec![3], DType::F64, Some(&[1][..])));
    let text = r.to_string();
    assert!(text.starts_with("log made 1 infinity, at ") && text.contains("nonfinite.rs"), "{text}");
    assert!(text.contains("input 0   [3]  f64  0 to 4\n"), "{text}");
    assert!(text.ends_with("output 0  [3]  f64  0 to 1.386  1 infinite, the first at [1]"), "{text}");
}

#[test]
fn parameters_are_shown() {
    let r = found(|| f64s(&[0.0, 2.0], &[2]).pow(-1.0));
    assert_eq!(r.op, "pow[-1.0]");
}

#[test]
fn a_gradient_is_named_with_the_line_that_recorded_it() {
    let x = leaf(&[4.0, 0.0]);
    let y = x.sqrt().unwrap();
    let line = line!() - 1;
    let loss = y.sum_all().unwrap();
    // The graph may have been recorded before the search.
    let r = found(|| loss.backward_with(BackwardOptions::new().retain_graph()));
    assert_eq!((r.op.as_str(), r.origin, r.location.line()), ("sqrt", Origin::Gradient, line));
    assert_eq!(r.outputs[0].name, "gradient of input 0");
    assert_eq!((r.outputs[0].infinite, r.outputs[0].max), (1, Some(0.25)));
    let names: Vec<&str> = r.inputs.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["input 0", "gradient of output 0"]);
    // The result is the same with `create_graph`.
    let r = found(|| grad(&[&loss], &[&x], None, BackwardOptions::new().create_graph()));
    assert_eq!((r.op.as_str(), r.origin), ("sqrt", Origin::Gradient));
    // The search changes nothing: the graph is still whole, and its gradient is the same.
    assert_eq!(loss.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap(), [0.25, f64::INFINITY]);
}

#[test]
fn gradients_of_fused_kernels_are_looked_at() {
    let x = f32s(&[1e38, -1e38, 0.0], &[1, 3]).with_grad().unwrap();
    let weight = f32s(&[3e38, 3e38, -3e38], &[1, 3]);
    let r = found(|| grad(&[&x.softmax(1)?], &[&x], Some(&[&weight.mul(1.0)?.detach()]), BackwardOptions::new()));
    assert!(r.op.contains("oftmax") && r.origin == Origin::Gradient, "{r}");
}

#[test]
fn a_sum_of_finite_gradients_that_overflows_is_told_apart() {
    let x = f32s(&[1.0], &[1]).with_grad().unwrap();
    let y = x.mul(1.0).unwrap();
    let loss = y.mul(3e38).unwrap().add(y.mul(2e38).unwrap()).unwrap().mul(0.5).unwrap();
    let r = found(|| grad(&[&loss], &[&x], Some(&[&f32s(&[2.0], &[1])]), BackwardOptions::new()));
    assert_eq!((r.op.as_str(), r.origin), ("mul[1.0]", Origin::Sum));
}

#[test]
fn a_finite_step_gives_nothing_and_other_errors_pass_through() {
    let x = leaf(&[1.0, 2.0]);
    assert_eq!(find_nonfinite(|| x.exp()?.sum_all()?.backward()).unwrap(), None);
    let e = find_nonfinite(|| x.add(f64s(&[1.0; 3], &[3]))).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Broadcast);
    // After the search, nothing is checked any more.
    assert!(x.mul(0.0).unwrap().log().unwrap().sum_all().unwrap().backward().is_ok());
}

#[test]
fn the_step_ends_with_the_operation_that_is_found() {
    let x = f64s(&[0.0], &[1]);
    let mut reached = false;
    let mut error = None;
    let r = found(|| {
        error = x.log().err();
        // A step that ignores the error cannot compute anything further.
        reached = x.exp().and_then(|y| y.log()?.recip()).is_ok();
        Ok(())
    });
    assert_eq!((r.op.as_str(), reached), ("log", false));
    let e = error.unwrap();
    assert!(e.kind() == &ErrorKind::Autograd && e.to_string().contains("log made 1 infinity"), "{e}");
}

#[test]
fn a_sum_of_elements_that_land_together_is_made_where_they_land() {
    let (x, src, index) = (f64s(&[1e308, 0.0], &[2]), f64s(&[1e308], &[1]), i64s(&[0], &[1]));
    let r = found(|| x.index_add(0, &index, &src)?.sum_all());
    assert_eq!((r.origin, r.made_at), (Origin::Operation, Some((0, vec![0]))));
    assert!(r.inputs.iter().all(|input| input.nan == 0 && input.infinite == 0));
}

#[test]
fn what_was_given_is_told_apart_from_what_was_made() {
    let bad = f64s(&[1.0, f64::NAN], &[2]);
    let r = found(|| f64s(&[1.0, 2.0], &[2]).exp()?.mul(&bad));
    assert_eq!((r.op.as_str(), r.origin, r.inputs[0].nan, r.inputs[1].nan), ("mul", Origin::Given, 0, 1));
    assert!(r.to_string().contains("no operation of this step made it"), "{r}");
    // The NaN is a parameter of the operation.
    let r = found(|| f64s(&[1.0], &[1]).mul(f64::NAN));
    assert_eq!((r.op.as_str(), r.origin), ("mul[NaN]", Origin::Given));
    assert!(r.to_string().starts_with("mul[NaN] was given a number that is not finite, at "), "{r}");
    // The NaN is in a seed.
    let x = leaf(&[1.0, 2.0]);
    let y = x.exp().unwrap();
    let r = found(|| grad(&[&y], &[&x], Some(&[&bad]), BackwardOptions::new()));
    assert_eq!((r.op.as_str(), r.origin), ("exp", Origin::Given));
}

#[test]
fn the_infinities_of_a_mask_are_no_mistake_but_one_that_reaches_the_loss_is() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).with_grad().unwrap();
    let mask = f64s(&[0.0, f64::NEG_INFINITY, 0.0, 0.0], &[2, 2]);
    let step = |mask: &Tensor| x.add(mask)?.softmax(1)?.square()?.sum_all()?.backward();
    assert_eq!(find_nonfinite(|| step(&mask)).unwrap(), None);
    let hide = mask.ne(0.0).unwrap();
    let by_number = || x.masked_fill(&hide, f64::NEG_INFINITY)?.softmax(1)?.square()?.sum_all()?.backward();
    assert_eq!(find_nonfinite(by_number).unwrap(), None);
    // Without the softmax the infinity spreads. The report names the first operation that read it, even if other
    // operations read another infinity.
    let other = f64s(&[1.0, f64::INFINITY], &[2]);
    let r = found(|| {
        let _ = x.add(&mask)?.softmax(1)?;
        other.mul(2.0)?.square()?.sum_all()
    });
    assert_eq!((r.op.as_str(), r.origin, r.inputs[0].infinite), ("mul[2.0]", Origin::Given, 1));
    // In a row that is masked completely, the softmax itself makes the NaN.
    let all = f64s(&[f64::NEG_INFINITY; 4], &[2, 2]);
    let r = found(|| step(&all));
    assert!(r.op.contains("oftmax") && r.origin == Origin::Operation && r.outputs[0].nan == 4, "{r}");
}

#[test]
fn find_nan_passes_over_infinities() {
    let x = leaf(&[0.0, 1.0]);
    assert_eq!(find_nan(|| x.log()?.exp()?.sum_all()).unwrap(), None);
    let r = find_nan(|| x.log()?.mul(&x)).unwrap().unwrap();
    assert_eq!((r.op.as_str(), r.origin, r.inputs[0].infinite, r.outputs[0].nan), ("mul", Origin::Operation, 1, 1));
}

#[test]
fn writes_in_place_and_steps_of_optimisers_are_looked_at() {
    let x = f32s(&[3e38, 1.0], &[2]);
    let mut line = 0;
    let r = found(|| {
        line = line!() + 1;
        x.mul_(10.0)?;
        Ok(())
    });
    assert_eq!((r.op.as_str(), r.origin, r.location.line()), ("mul_", Origin::Write, line));
    assert_eq!((r.inputs[0].infinite, r.outputs[0].infinite), (0, 1));
    // Later writes still happen, because they belong to the same optimiser step, but nothing else runs.
    let x = f32s(&[3e38], &[1]);
    let y = f32s(&[1.0], &[1]);
    let mut ran = false;
    found(|| {
        x.mul_(10.0)?;
        y.add_(1.0)?;
        let _ = y.exp()?;
        ran = true;
        Ok(())
    });
    assert_eq!((y.item().unwrap(), ran), (2.0, false));
    let parameter = f32s(&[1.0], &[1]);
    static STEP: UpdateFn = UpdateFn::new("step", |x| vec![x[0] - x[2] * x[1], x[1]]);
    let state = f32s(&[0.0], &[1]);
    let step = |g: f32, lr: f64| STEP.apply(&[&parameter, &state], &[&parameter, &f32s(&[g], &[1])], &[lr]);
    let r = found(|| step(1e30, 1e30));
    assert_eq!((r.op.as_str(), r.origin), ("step", Origin::Write));
    parameter.fill_(1.0).unwrap();
    let r = found(|| step(f32::NAN, 0.1));
    assert_eq!((r.op.as_str(), r.origin, r.inputs[0].nan), ("step", Origin::Given, 1));
    // Filling a mask with an infinity is not a mistake.
    let mask = f32s(&[0.0; 2], &[2]);
    assert_eq!(find_nonfinite(|| mask.fill_(f32::NEG_INFINITY)).unwrap(), None);
    // An infinity that is written to given places or created on purpose is not a mistake either.
    let (scores, i) = (f32s(&[1.0, 2.0, 3.0], &[3]), i64s(&[1], &[1]));
    let hidden = scores.gt(1.5).unwrap();
    let none = |step: &dyn Fn() -> Result<Tensor>| {
        assert_eq!(find_nonfinite(|| step()?.softmax(0)).unwrap(), None);
    };
    none(&|| scores.index_fill(0, &i, f32::NEG_INFINITY));
    none(&|| scores.scatter(0, &i, f32::NEG_INFINITY));
    none(&|| scores.index_assign(&hidden, f32::NEG_INFINITY));
    none(&|| hidden.where_(&Tensor::full([], f32::NEG_INFINITY, scores.dtype(), scores.device())?, &scores));
    none(&|| {
        let x = scores.copy()?;
        x.index_fill_(0, &i, f32::NEG_INFINITY)?;
        Ok(x)
    });
    // A refused write does not change the verdict on the tensor.
    let nan = f32s(&[f32::NAN, 1.0], &[2]).with_grad().unwrap();
    let kept = strict_inplace(|| nan.square()).unwrap();
    let refused = || {
        assert!(no_grad(|| nan.fill_(0.0)).is_err());
        Ok(())
    };
    assert_eq!(find_nonfinite(refused).unwrap(), None);
    drop(kept);
}

#[test]
fn regions_of_checkpoints_are_looked_at_in_both_runs() {
    let x = leaf(&[0.0, 1.0]);
    let r = found(|| checkpoint(|x| x[0].log()?.sum_all(), &[&x]));
    assert_eq!((r.op.as_str(), r.origin), ("log", Origin::Operation));
    let r = found(|| checkpoint(|x| x[0].sqrt(), &[&x])?.sum_all()?.backward());
    assert_eq!((r.op.as_str(), r.origin, r.location.file()), ("sqrt", Origin::Gradient, file!()));
    assert!(r.inside.as_ref().unwrap().contains("checkpoint"), "{r}");
    // The search does not disturb the comparison of the second run with the first.
    assert_eq!(find_nonfinite(|| checkpoint(|x| x[0].exp(), &[&x])?.sum_all()?.backward()).unwrap(), None);
}

/// The identity, with a gradient that divides by `x`.
struct Divides;

impl CustomOp for Divides {
    fn name(&self) -> &str {
        "divides"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].copy()?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(g.div(&ctx.input(0)?)?)])
    }
}

#[test]
fn gradients_by_users_and_hooks_are_looked_at_line_by_line() {
    let x = leaf(&[0.0, 1.0]);
    let r = found(|| apply_custom(&Arc::new(Divides), &[&x])?[0].sum_all()?.backward());
    assert_eq!((r.op.as_str(), r.origin), ("div", Origin::Operation));
    assert!(r.inside.unwrap().contains("divides"));
    let y = x.exp().unwrap();
    let _hook = y.register_hook(|g| Ok(Some(g.mul(0.0)?.log()?))).unwrap();
    let r = found(|| y.sum_all()?.backward());
    assert_eq!((r.op.as_str(), r.inside.is_some()), ("log", true));
}

#[test]
fn without_recording_on_integers_and_in_half_precision() {
    let _guard = no_grad_guard();
    assert_eq!(found(|| leaf(&[0.0]).log()).op, "log");
    assert_eq!(find_nonfinite(|| i64s(&[i64::MAX], &[1]).mul(2)).unwrap(), None);
    let r = found(|| f32s(&[70_000.0], &[1]).to_dtype(DType::F16));
    assert_eq!((r.origin, r.outputs[0].dtype), (Origin::Operation, DType::F16));
    // The layout of a tensor does not matter, and empty tensors are no problem.
    let x = f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[2, 3]).t().unwrap();
    let r = found(|| x.flip(0)?.log());
    assert_eq!(r.outputs[0].first.as_deref(), Some(&[2, 0][..]));
    assert_eq!(find_nonfinite(|| Tensor::zeros([0], DType::F32, &cpu())?.log()).unwrap(), None);
}

#[test]
fn searches_nest_and_other_threads_are_not_searched() {
    let x = leaf(&[0.0]);
    let outer = find_nonfinite(|| {
        assert_eq!(found(|| x.log()).op, "log");
        x.add(1.0)
    });
    assert_eq!(outer.unwrap(), None);
    let elsewhere = find_nonfinite(|| std::thread::scope(|s| s.spawn(|| x.log()).join().unwrap()));
    assert_eq!(elsewhere.unwrap(), None);
    // A panic ends the search.
    let panics = std::panic::catch_unwind(|| find_nonfinite(|| -> Result<()> { panic!("user") }));
    assert!(panics.is_err() && x.log().is_ok());
}

const INF: f64 = f64::INFINITY;

#[test]
fn an_infinity_that_was_given_hides_none_that_was_made_beside_it() {
    // A masked softmax that does not subtract the maximum: the exponential overflows, and the mask is not to blame.
    let s = f32s(&[1.0, 100.0, 2.0], &[3]);
    let mask = Tensor::from_vec(vec![false, false, true], [3], &cpu()).unwrap();
    let mut line = 0;
    let r = found(|| {
        let s = s.masked_fill(&mask, f32::NEG_INFINITY)?;
        line = line!() + 1;
        let e = s.exp()?;
        e.div(&e.sum_all()?)
    });
    assert_eq!((r.op.as_str(), r.origin, r.location.line()), ("exp", Origin::Operation, line));
    // The check works element by element.
    let r = found(|| f64s(&[INF, 0.0, 1.0], &[3]).recip()?.sum_all());
    assert_eq!((r.op.as_str(), r.origin, r.made_at.clone()), ("recip", Origin::Operation, Some((0, vec![1]))));
    let r = found(|| f64s(&[-INF, 1e308, 1e308, 1.0], &[2, 2]).mul(f64s(&[1.0, 10.0], &[2, 1])));
    assert_eq!((r.op.as_str(), r.made_at.clone()), ("mul", Some((0, vec![1, 0]))));
    let text = r.to_string();
    assert!(text.starts_with("mul made 1 infinity (the first at [1, 0]), at "), "{text}");
    assert_eq!(found(|| f64s(&[INF, 0.0], &[2]).recip()).origin, Origin::Operation);
    // The gradient of a square root at 0 and at infinity.
    let x = leaf(&[INF, 0.0, 1.0]);
    let r = found(|| x.sqrt()?.narrow(0, 1, 2)?.sum_all()?.backward());
    assert_eq!((r.op.as_str(), r.origin, r.made_at.clone()), ("sqrt", Origin::Gradient, Some((0, vec![1]))));
    // Sums over axes, and sums of the gradients of broadcast operands.
    let x = f64s(&[INF, 1.0, 1e308, 1e308], &[2, 2]);
    let r = found(|| x.sum(&[1], false));
    assert!(r.op.starts_with("sum {"), "{r}");
    assert_eq!((r.origin, r.made_at.clone()), (Origin::Operation, Some((0, vec![1, 0]))));
    assert_eq!(find_nonfinite(|| x.narrow(0, 0, 1)?.sum(&[0], false)).unwrap(), None);
    let (x, y) = (f64s(&[1.0, 1.0], &[2, 1]).with_grad().unwrap(), f64s(&[INF, 1.0, 1e308, 1e308], &[2, 2]));
    let r = found(|| grad(&[&x.mul(&y)?], &[&x], Some(&[&f64s(&[0.5; 4], &[2, 2]).mul(4.0)?]), BackwardOptions::new()));
    assert_eq!((r.op.as_str(), r.origin, r.made_at.clone()), ("mul", Origin::Gradient, Some((0, vec![1, 0]))));
    // This NaN comes from an infinity times 0, not from the other NaN.
    let r = found(|| f64s(&[INF, f64::NAN], &[2]).mul(f64s(&[0.0, 1.0], &[2])));
    assert_eq!((r.origin, r.made_at.clone()), (Origin::Operation, Some((0, vec![0]))));
    assert!(r.to_string().starts_with("mul made 1 NaN (the first at [0]), at "), "{r}");
}

#[test]
fn writes_are_judged_element_by_element() {
    let x = f64s(&[-INF, 1e308], &[2]);
    let r = found(|| x.mul_(10.0));
    assert_eq!((r.op.as_str(), r.origin, r.made_at.clone()), ("mul_", Origin::Write, Some((0, vec![1]))));
    let x = f64s(&[-INF, 1.0], &[2]);
    assert_eq!(find_nonfinite(|| x.mul_(10.0)).unwrap(), None);
    // The old contents of a tensor are not the source of the new ones.
    let x = f64s(&[1.0, 2.0], &[2]);
    let r = found(|| {
        let y = x.add(f64s(&[INF, 0.0], &[2]))?;
        y.fill_(1.0)?;
        y.mul(f64s(&[1.0, INF], &[2]))?.sum_all()
    });
    assert_eq!((r.op.as_str(), r.origin), ("mul", Origin::Given));
}

#[test]
fn a_seed_is_told_apart_from_what_it_is_added_to() {
    let x = leaf(&[1.0]);
    let y = x.mul(1.0).unwrap();
    let z = y.mul(1.0).unwrap();
    let pass = |y_seed: f64, z_seed: f64| {
        let seeds = [f64s(&[y_seed], &[1]), f64s(&[z_seed], &[1])];
        found(|| grad(&[&y, &z], &[&x], Some(&[&seeds[0], &seeds[1]]), BackwardOptions::new().retain_graph()))
    };
    let r = pass(1e308, 1e308);
    assert_eq!((r.op.as_str(), r.origin), ("mul[1.0]", Origin::Sum));
    assert!(r.to_string().starts_with("gradients of the result of mul[1.0] add up to 1 infinity"), "{r}");
    assert_eq!(pass(INF, 1.0).origin, Origin::Given);
    assert_eq!(pass(1.0, INF).origin, Origin::Given);
}

#[test]
fn of_what_mixes_its_elements_it_is_not_known() {
    let (a, b) = (f64s(&[INF, 1e200, 1.0, 1.0], &[2, 2]), f64s(&[1e200; 4], &[2, 2]));
    let r = found(|| a.matmul(&b)?.sum_all());
    assert_eq!(
        (r.op.as_str(), r.origin, r.made_at.clone(), r.source.is_none()),
        ("matmul", Origin::MadeOrSpread, None, true)
    );
    let text = r.to_string();
    assert!(
        text.starts_with("matmul made or spread 2 infinities, at ") && text.contains(": it was given 1 infinity"),
        "{r}"
    );
    assert!(!text.contains("no operation of this step"), "{r}");
    // The report says where an operand came from, if an operation has read it before.
    let r = found(|| a.mul(2.0)?.matmul(&b)?.matmul(&b)?.mul(3.0)?.sum_all());
    let source = r.source.clone().unwrap();
    assert_eq!((r.op.as_str(), r.inputs[0].max, r.origin), ("matmul", Some(2e200), Origin::MadeOrSpread));
    assert_eq!((source.op.as_str(), source.origin), ("mul[2.0]", Origin::Given));
    assert!(r.to_string().contains("\nmul[2.0] was given 1 infinity, at "), "{r}");
    // With finite operands, matmul itself made the infinity.
    let r = found(|| b.matmul(&b));
    assert_eq!((r.op.as_str(), r.origin), ("matmul", Origin::Operation));
    // An operation that only moves a value did not make it.
    let r = found(|| a.flip(0)?.copy()?.narrow(0, 1, 1)?.max_all());
    assert_eq!(r.origin, Origin::Given);
}

#[test]
fn a_fill_goes_by_its_name() {
    let mask = Tensor::from_vec(vec![false, true], [2], &cpu()).unwrap();
    let x = leaf(&[1.0, 2.0]);
    let r = found(|| x.masked_fill(&mask, INF)?.sum_all());
    assert_eq!((r.op.as_str(), r.origin), ("masked_fill[inf]", Origin::Given));
    assert_eq!(x.masked_fill(&mask, 0.0).unwrap().grad_fn().unwrap().name(), "masked_fill");
}

#[test]
fn what_a_hook_gives_is_not_a_sum() {
    let x = leaf(&[1.0, 2.0]);
    let nan = f64s(&[f64::NAN, 1.0], &[2]);
    let step = || x.exp()?.mul(2.0)?.sum_all()?.backward();
    let gives = |r: NonFiniteReport, op: &str| {
        assert_eq!((r.op.as_str(), r.origin, r.outputs[0].nan), (op, Origin::Hook, 1), "{r}");
        assert!(r.to_string().starts_with(&format!("a hook of {op} gave 1 NaN; {op} was recorded at ")), "{r}");
    };
    let g = nan.clone();
    let hook = x.register_hook(move |_| Ok(Some(g.clone()))).unwrap();
    gives(found(step), "leaf");
    hook.remove();
    for kind in 0..3 {
        let y = x.exp().unwrap();
        let g = nan.clone();
        let node = y.grad_fn().unwrap();
        let hook = match kind {
            0 => y.register_hook(move |_| Ok(Some(g.clone()))),
            1 => node.register_prehook(move |_| Ok(Some(vec![Some(g.clone())]))),
            _ => node.register_hook(move |_, _| Ok(Some(vec![Some(g.clone())]))),
        };
        gives(found(|| y.mul(2.0)?.sum_all()?.backward()), "exp");
        hook.unwrap().remove();
    }
    // Sums of several gradients, with and without a hook.
    let small = x.mul(1e-308).unwrap();
    let sum = || small.add(&small.mul(1.0)?)?.mul(f64s(&[1e308, 1.0], &[2]))?.sum_all()?.backward();
    assert_eq!(found(sum).origin, Origin::Sum);
    let _hook = small.register_hook(|_| Ok(None)).unwrap();
    assert_eq!(found(sum).origin, Origin::Sum);
}

#[test]
fn an_infinite_number_excuses_only_itself() {
    let x = f64s(&[1000.0, 1.0], &[2]);
    let capped = gradus_tensor::fused!(|a, b| a.exp().min(b));
    let r = found(|| capped(&x, INF));
    assert_eq!((r.origin, r.made_at.clone()), (Origin::Operation, Some((0, vec![0]))), "{r}");
    // Selections and single instructions merely return the infinite number, so they are not reported.
    let mask = Tensor::from_vec(vec![false, true], [2], &cpu()).unwrap();
    assert_eq!(find_nonfinite(|| x.masked_fill(&mask, -INF)).unwrap(), None);
    assert_eq!(find_nonfinite(|| mask.where_(&x, INF)).unwrap(), None);
    assert_eq!(find_nonfinite(|| x.add(INF)).unwrap(), None);
    assert_eq!(find_nonfinite(|| x.clamp(-INF, INF)).unwrap(), None);
}

#[test]
fn a_write_by_an_index_goes_by_its_name_and_line() {
    let x = f64s(&[f64::MAX, 1.0], &[2]);
    let (index, most) = (i64s(&[0], &[1]), f64s(&[f64::MAX], &[1]));
    let mut line = 0;
    let r = found(|| {
        x.index_add_(0, &i64s(&[1], &[1]), &most)?;
        line = line!() + 1;
        x.index_add_(0, &index, &most)?;
        x.sum_all()
    });
    assert_eq!((r.op.as_str(), r.origin), ("index_add_", Origin::Operation));
    assert_eq!((r.location.file(), r.location.line()), (file!(), line));
    // Nothing was written.
    assert_eq!(x.to_vec::<f64>().unwrap(), [f64::MAX; 2]);
    // Operations after the write are reported by their own names.
    let r = found(|| {
        x.index_add_(0, &index, &most.neg()?)?;
        x.log()
    });
    assert_eq!(r.op, "log");
}
