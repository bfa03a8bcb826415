//! Custom operations: gradients of first and second order, saved values, and refused uses.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{another_cpu, f64s, i64s, layouts, randn};
use gradus_tensor::autograd::{Context, CustomOp, Keep, apply_custom, gradcheck, gradgradcheck};
use gradus_tensor::{BackwardOptions, ErrorKind, Result, Tensor, grad, no_grad, no_grad_guard};

type Gradients = Result<Vec<Option<Tensor>>>;

/// `(e^a b, a + b, floor(a))`: two differentiable outputs and one that is not.
struct Several;

impl CustomOp for Several {
    fn name(&self) -> &str {
        "several"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].exp()?.mul(&x[1])?, x[0].add(&x[1])?, x[0].floor()?])
    }
    fn keeps(&self, needs: &[bool]) -> Keep {
        let keep = Keep::inputs(needs[1].then_some(0));
        if needs[0] { keep.and_outputs([0]) } else { keep }
    }
    fn differentiable(&self, output: usize) -> bool {
        output < 2
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        let mut out = [g[1].clone(), g[1].clone()];
        let mut add = |i: usize, t: Tensor| -> Result<()> {
            out[i] = Some(if let Some(o) = &out[i] { o.add(&t)? } else { t });
            Ok(())
        };
        if let Some(g) = &g[0] {
            if ctx.needs(0) {
                add(0, ctx.output(0)?.mul(g)?)?;
            }
            if ctx.needs(1) {
                add(1, ctx.input(0)?.exp()?.mul(g)?)?;
            }
        }
        Ok(out.into())
    }
}

fn several(a: &Tensor, b: &Tensor) -> Result<Vec<Tensor>> {
    apply_custom(&Arc::new(Several), &[a, b])
}

#[test]
fn both_orders_through_kept_inputs_and_outputs() {
    for (a, b) in layouts(&[2, 3], 1).into_iter().zip(layouts(&[2, 3], 2)) {
        let f = |x: &[Tensor]| {
            let y = several(&x[0], &x[1])?;
            y[0].mul(&y[1])?.add(&y[2])
        };
        gradcheck(f, &[a.clone(), b.clone()]).unwrap();
        gradgradcheck(f, &[a.clone(), b.clone()]).unwrap();
        gradcheck(|x| Ok(several(&x[0], &b)?.swap_remove(0)), std::slice::from_ref(&a)).unwrap();
        gradgradcheck(|x| Ok(several(&a, &x[0])?.swap_remove(1)), std::slice::from_ref(&b)).unwrap();
    }
}

#[test]
fn it_is_recorded_only_where_a_gradient_is_wanted() {
    let (a, b) = (randn(&[2], 1), randn(&[2], 2));
    assert!(several(&a, &b).unwrap().iter().all(|y| !y.requires_grad()));
    let a = a.with_grad().unwrap();
    let y = several(&a, &b).unwrap();
    assert_eq!(y.iter().map(Tensor::requires_grad).collect::<Vec<_>>(), [true, true, false]);
    let node = y[0].grad_fn().unwrap();
    assert_eq!((node.name(), node.location().file()), ("several", file!()));
    assert_eq!(node.saved().len(), 1, "b needs none, so a is not kept");
    // A hook is registered on one output of a node with several outputs.
    let _hook = y[1].register_hook(|g| Ok(Some(g.mul(7.0)?))).unwrap();
    let sum = y[0].mul(0.0).unwrap().add(&y[1]).unwrap().sum_all().unwrap();
    assert_eq!(sum.backward().unwrap().get(&a).unwrap().to_vec::<f64>().unwrap(), [7.0, 7.0]);
    let _guard = no_grad_guard();
    assert!(!several(&a, &b).unwrap()[0].requires_grad());
}

#[test]
fn kept_values_are_checked_against_writes() {
    let (a, b) = (randn(&[2], 1), randn(&[2], 2).with_grad().unwrap());
    let y = several(&a, &b).unwrap();
    a.fill_(0.0).unwrap();
    let line = line!() - 1;
    let e = y[0].sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("several") && e.contains("fill_") && e.contains(&format!("custom_op.rs:{line}:")), "{e}");
    let a = randn(&[2], 1).with_grad().unwrap();
    let y = several(&a, &b).unwrap();
    let loss = y[0].sum_all().unwrap();
    y[0].detach().fill_(0.0).unwrap();
    assert!(loss.backward().unwrap_err().to_string().contains("output 0"));
}

/// `sin`, with a gradient that is computed on the host.
struct HostSin {
    once: bool,
}

impl CustomOp for HostSin {
    fn name(&self) -> &str {
        "host_sin"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        // Writing the output in place raises its version, but does not make it stale.
        let y = Tensor::zeros(x[0].shape(), x[0].dtype(), x[0].device())?;
        y.copy_(&x[0].sin()?)?;
        Ok(vec![y])
    }
    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(0..needs.len()).and_outputs([0])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let _ = ctx.output(0)?;
        let x = ctx.input(0)?;
        let pairs = x.to_vec::<f64>()?.into_iter().zip(g.to_vec::<f64>()?);
        let d: Vec<f64> = pairs.map(|(x, g)| x.cos() * g).collect();
        Ok(vec![Some(Tensor::from_vec(d, x.shape(), x.device())?)])
    }
    fn once_differentiable(&self) -> bool {
        self.once
    }
}

#[test]
fn numbers_from_outside_the_graph_are_differentiated_once_and_never_wrongly() {
    for once in [true, false] {
        let sin = Arc::new(HostSin { once });
        let f = |x: &[Tensor]| Ok(apply_custom(&sin, &[&x[0]])?.swap_remove(0));
        gradcheck(f, &[randn(&[3], 1)]).unwrap();
        let x = f64s(&[0.5], &[1]).with_grad().unwrap();
        let y = f(std::slice::from_ref(&x)).unwrap();
        let first = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph());
        if !once {
            // Without `once_differentiable`, the second derivative would come out as zero.
            let e = first.unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Autograd);
            let text = e.to_string();
            assert!(text.contains("the numbers of a tracked tensor are read in a gradient"), "{text}");
            assert!(text.contains("host_sin was recorded at") && text.contains("custom_op.rs"), "{text}");
            continue;
        }
        let g = first.unwrap()[0].clone().unwrap();
        assert_eq!(g.item().unwrap(), 0.5f64.cos());
        let e = grad(&[&g], &[&x], None, BackwardOptions::new()).unwrap_err();
        assert!(e.to_string().contains("host_sin is not differentiable again"), "{e}");
        assert!(gradgradcheck(f, &[randn(&[3], 1)]).is_err());
        // Another path to the same leaf, which avoids this operation, can still be differentiated.
        let z = x.square().unwrap();
        let both = g
            .detach()
            .add(grad(&[&z], &[&x], None, BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap());
        assert_eq!(
            grad(&[&both.unwrap()], &[&x], None, BackwardOptions::new()).unwrap()[0].as_ref().unwrap().item().unwrap(),
            2.0
        );
    }
}

/// `x^3` with a correct gradient. The number selects how the gradient is computed: 0 to 3 cut the graph, so that the
/// gradient cannot be differentiated again; any other number keeps it.
struct CutCube(u8);

impl CustomOp for CutCube {
    fn name(&self) -> &str {
        "cut_cube"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].pow(3.0)?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let x = ctx.input(0)?;
        let slope = x.square()?.mul(3.0)?;
        Ok(vec![Some(match self.0 {
            // The slope is computed on the host, so it would be a constant.
            0 => g.mul(&Tensor::from_vec(slope.to_vec::<f64>()?, x.shape(), x.device())?)?,
            1 => g.mul(slope.item()?)?,
            // This cuts the path to the incoming gradient, but not the path to the input.
            2 => slope.mul(g.detach())?,
            3 => no_grad(|| slope.mul(g))?,
            _ => slope.mul(g)?,
        })])
    }
}

#[test]
fn a_gradient_that_leaves_the_graph_on_its_way_is_differentiated_once() {
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
    for way in 0..5 {
        let y = apply_custom(&Arc::new(CutCube(way)), &[&x]).unwrap().swap_remove(0).square().unwrap();
        let keep = BackwardOptions::new().retain_graph();
        assert_eq!(grad(&[&y], &[&x], None, keep).unwrap()[0].as_ref().unwrap().item().unwrap(), 192.0);
        let first = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph());
        if way < 4 {
            let text = first.unwrap_err().to_string();
            assert!(text.contains("custom_op.rs") && text.contains("once_differentiable"), "{text}");
            continue;
        }
        let first = first.unwrap()[0].clone().unwrap();
        // The second derivative of x^6 is 30 x^4.
        assert_eq!(grad(&[&first], &[&x], None, keep).unwrap()[0].as_ref().unwrap().item().unwrap(), 480.0);
    }
}

/// An operation with a mistake, which the number selects.
struct Wrong(u8);

impl CustomOp for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        match self.0 {
            0 => return Ok(vec![]),
            1 => x[0].fill_(1.0)?,
            _ => {}
        }
        Ok(vec![x[0].add(1.0)?])
    }
    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        match self.0 {
            2 => Ok(vec![]),
            3 => Ok(vec![g[0].as_ref().map(|g| g.sum_all()).transpose()?]),
            4 => Ok(vec![Some(ctx.input(0)?)]),
            _ => Ok(vec![g[0].clone()]),
        }
    }
}

#[test]
fn mistakes_in_an_operation_are_errors() {
    let run = |k: u8| {
        let x = f64s(&[2.0, 3.0], &[2]).with_grad().unwrap();
        apply_custom(&Arc::new(Wrong(k)), &[&x])?[0].sum_all()?.backward()
    };
    for (k, part) in
        [(0, "no output"), (1, "overwrote input 0"), (2, "0 gradients for 1"), (3, "wrong shape"), (4, "not kept")]
    {
        let e = run(k).unwrap_err().to_string();
        assert!(e.contains("wrong") && e.contains(part), "{k}: {e}");
    }
    assert_eq!(run(5).unwrap().len(), 1);
    let elsewhere = Tensor::ones([2], gradus_tensor::DType::F64, &another_cpu()).unwrap();
    assert_eq!(several(&randn(&[2], 1), &elsewhere).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
}

/// The sum of all inputs.
struct Total;

impl CustomOp for Total {
    fn name(&self) -> &str {
        "total"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut sum = x[0].copy()?;
        for t in &x[1..] {
            sum = sum.add(t)?;
        }
        Ok(vec![sum])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        Ok((0..ctx.input_count()).map(|i| g[0].clone().filter(|_| ctx.needs(i))).collect())
    }
}

#[test]
fn any_number_of_inputs_of_any_dtype() {
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let count = i64s(&[5], &[1]);
    let mut inputs = vec![&x; 70];
    inputs[3] = &count;
    let y = apply_custom(&Arc::new(Total), &inputs).unwrap();
    assert_eq!(y[0].item().unwrap(), 74.0);
    assert_eq!(y[0].backward().unwrap().get(&x).unwrap().item().unwrap(), 69.0);
}

/// `x * w` for a `w` that the operation holds. `how` selects how `w` is read: directly, through a view, as a number, or
/// not at all.
struct Held {
    w: Tensor,
    how: u8,
    scratch: Tensor,
}

impl CustomOp for Held {
    fn name(&self) -> &str {
        "held"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        // A tensor that `forward` leaves for `backward` is a saved value as well.
        self.scratch.copy_(&x[0])?;
        Ok(vec![match self.how {
            0 => x[0].mul(&self.w)?,
            1 => x[0].mul(&self.w.reshape([1, 1])?.reshape([1])?)?,
            2 => x[0].mul(self.w.item()?)?,
            _ => x[0].mul(2.0)?,
        }])
    }
    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Gradients {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(match self.how {
            0 | 1 => g.mul(&self.w)?,
            2 => g.mul(self.w.item()?)?,
            3 => g.mul(2.0)?,
            _ => g.mul(&self.scratch)?,
        })])
    }
}

#[test]
fn a_captured_tensor_is_a_constant_that_stays_as_it_was() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let op = |w: &Tensor, how| Arc::new(Held { w: w.clone(), how, scratch: f64s(&[0.0], &[1]) });
    let run = |op: &Arc<Held>| Ok(apply_custom(op, &[&x])?.swap_remove(0));
    let gradient = |y: &Tensor| {
        let found = y.backward_with(BackwardOptions::new().retain_graph())?;
        found.get(&x).unwrap().item()
    };
    let caught = |e: gradus_tensor::Error, why: &str| {
        let text = e.to_string();
        assert!(e.kind() == &ErrorKind::Autograd && text.contains("held") && text.contains(why), "{text}");
    };
    for how in 0..3 {
        // A captured tensor that is tracked would silently get no gradient.
        let leaf = f64s(&[2.0], &[1]).with_grad().unwrap();
        for w in [leaf.clone(), leaf.mul(1.0).unwrap(), leaf.reshape([1]).unwrap()] {
            caught(run(&op(&w, how)).unwrap_err(), "pass it as an input");
            assert_eq!(gradient(&run(&op(&w.detach(), how)).unwrap()).unwrap(), 2.0);
        }
        // The same holds if no input is tracked, but not if nothing is recorded.
        let plain = x.detach();
        caught(apply_custom(&op(&leaf, how), &[&plain]).unwrap_err(), "[1] f64");
        assert!(no_grad(|| run(&op(&leaf, how))).is_ok());
        // A captured constant must not change before the backward pass.
        let w = f64s(&[2.0], &[1]);
        let y = run(&op(&w, how)).unwrap();
        assert_eq!(gradient(&y).unwrap(), 2.0);
        w.fill_(100.0).unwrap();
        caught(gradient(&y).unwrap_err(), "fill_");
    }
    // Values that `backward` does not read may change.
    let w = f64s(&[2.0], &[1]);
    let y = run(&op(&w, 3)).unwrap();
    w.fill_(100.0).unwrap();
    assert_eq!(gradient(&y).unwrap(), 2.0);
    // The next forward pass overwrites the tensor that this one left for `backward`.
    let scratch = op(&w, 4);
    let y = run(&scratch).unwrap();
    assert_eq!(gradient(&y).unwrap(), 3.0);
    let z = run(&scratch).unwrap();
    assert_eq!(gradient(&z).unwrap(), 3.0);
    caught(gradient(&y).unwrap_err(), "copy_");
}

#[test]
fn a_hook_cannot_give_a_gradient_for_an_output_that_carries_none() {
    let (a, b) = (f64s(&[0.5], &[1]).with_grad().unwrap(), f64s(&[0.25], &[1]));
    let y = apply_custom(&Arc::new(Several), &[&a, &b]).unwrap();
    let one = f64s(&[1.0], &[1]);
    let hook = y[0].grad_fn().unwrap().register_prehook(move |g| Ok(Some(vec![g[0].clone(), None, Some(one.clone())])));
    let e = y[0].backward().unwrap_err();
    assert!(e.to_string().contains("several"), "{e}");
    drop(hook);
}
