//! User functions may be nested in each other up to a limit. Everything that is not nested may have any length.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use common::{cpu, f64s, leaf, values};
use gradus_tensor::autograd::{
    Context, CustomOp, MAX_NESTING, apply_custom, checkpoint, explain_grad, find_nan, gradcheck, once,
    saved_tensors_hooks_guard, strict_inplace_guard,
};
use gradus_tensor::backend::{ComputeModule, Expr, NativeCall};
use gradus_tensor::ops::Class;
use gradus_tensor::{
    Bound, DType, Device, Elementwise, Error, ErrorKind, Hook, Operand, Result, Tensor, enable_grad_guard,
    is_grad_enabled, no_grad_guard, vjp, vmap,
};

/// Runs `f` on a new thread with the default stack size.
fn on_a_thread(f: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(2 << 20).spawn(f).unwrap().join().unwrap();
}

/// Checks that nesting too deep is an error, and that it leaves nothing behind.
fn too_deep<T>(result: Result<T>) {
    let e = result.err().unwrap();
    assert_eq!(*e.kind(), ErrorKind::Autograd, "{e}");
    assert!(e.to_string().contains(&format!("more than {MAX_NESTING} calls")), "{e}");
    assert!(is_grad_enabled());
    let x = leaf(&[2.0]);
    assert_eq!(values(x.square().unwrap().backward().unwrap().get(&x).unwrap()), [4.0]);
}

/// `depth` checkpointed regions, each inside the other.
fn regions(x: &Tensor, depth: usize) -> Result<Tensor> {
    match depth {
        0 => x.square(),
        _ => checkpoint(move |x| regions(&x[0], depth - 1)?.mul(1.0), &[x]),
    }
}

#[test]
fn regions_inside_each_other() {
    on_a_thread(|| {
        let x = leaf(&[3.0]);
        let y = regions(&x, MAX_NESTING - 1).unwrap();
        assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [6.0]);
        too_deep(regions(&x, MAX_NESTING).unwrap().backward());
        for depth in [MAX_NESTING + 1, 20_000] {
            too_deep(regions(&x, depth));
            let plain = no_grad_guard();
            let refused = regions(&x, depth);
            drop(plain);
            too_deep(refused);
        }
    });
}

#[test]
fn a_hook_that_takes_the_gradients_of_its_own_graph() {
    on_a_thread(|| {
        let x = leaf(&[3.0]);
        let y = x.square().unwrap();
        let inside = y.clone();
        let hook = x.register_hook(move |_| {
            let _ = inside.backward()?;
            Ok(None)
        });
        too_deep(y.backward());
        drop(hook);
        assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [6.0]);
    });
}

/// The square of its input, through `.0` nested operations of this kind. They are nested in the forward pass, or in the
/// backward pass if `.1` is true.
struct Deep(usize, bool);

impl CustomOp for Deep {
    fn name(&self) -> &str {
        "deep"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        match (self.0, self.1) {
            (0, _) | (_, true) => Ok(vec![x[0].square()?]),
            (n, false) => apply_custom(&Arc::new(Deep(n - 1, false)), &[&x[0]]),
        }
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        let x = ctx.input(0)?.detach();
        if self.0 == 0 || !self.1 {
            return Ok(vec![Some(x.mul(g)?.mul(2.0)?)]);
        }
        let _recorded = enable_grad_guard();
        let x = x.with_grad()?;
        let y = apply_custom(&Arc::new(Deep(self.0 - 1, true)), &[&x])?.swap_remove(0);
        Ok(vec![y.mul(g.detach())?.sum_all()?.backward()?.get(&x).cloned()])
    }
}

#[test]
fn custom_operations_inside_each_other() {
    on_a_thread(|| {
        let x = leaf(&[3.0]);
        let run =
            |depth, gradients| apply_custom(&Arc::new(Deep(depth, gradients)), &[&x]).map(|mut y| y.swap_remove(0));
        for gradients in [false, true] {
            let y = run(MAX_NESTING - 1, gradients).unwrap();
            assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [6.0]);
        }
        too_deep(run(MAX_NESTING, false));
        too_deep(run(20_000, false));
        too_deep(run(MAX_NESTING + 1, true).unwrap().backward());
    });
}

#[test]
fn functions_of_functions_inside_each_other() {
    fn batches(x: &Tensor, depth: usize) -> Result<Tensor> {
        match depth {
            0 => x.square(),
            _ => vmap(|v| batches(&v[0].unsqueeze(0)?, depth - 1)?.squeeze(0), &[x], &[Some(0)], &[0]),
        }
    }
    fn explained(x: &Tensor, depth: usize) -> Result<Tensor> {
        if depth > 0 {
            explain_grad(x, || explained(x, depth - 1))?;
        }
        x.square()
    }
    fn looked_at(x: &Tensor, depth: usize) -> Result<Tensor> {
        if depth > 0 {
            find_nan(|| looked_at(x, depth - 1))?;
        }
        x.square()
    }
    fn effects(x: &Tensor, depth: usize) -> Result<Tensor> {
        if depth > 0 {
            once(|| effects(x, depth - 1).map(drop))?;
        }
        x.square()
    }
    fn checked(x: &Tensor) -> Result<Tensor> {
        gradcheck(|x| checked(&x[0]), std::slice::from_ref(x))?;
        x.square()
    }
    fn products(x: &Tensor) -> Result<Tensor> {
        Ok(vjp(|x| products(&x[0]), &[x], &[x])?.0)
    }
    on_a_thread(|| {
        let x = leaf(&[3.0]);
        // `explain_grad` runs a nested backward pass, so its limit is one lower.
        for (f, limit) in
            [(batches as fn(&Tensor, usize) -> Result<Tensor>, 100), (explained, 99), (looked_at, 100), (effects, 100)]
        {
            assert_eq!(values(&f(&x, limit).unwrap()), [9.0]);
            too_deep(f(&x, MAX_NESTING + 1));
            too_deep(f(&x, 20_000));
        }
        // Each level of these functions multiplies the time, so the deepest allowed nesting is not tested.
        too_deep(checked(&x.detach()));
        too_deep(products(&x));
    });
}

#[test]
fn a_pack_hook_that_packs() {
    fn packed(x: &Tensor) -> Result<Tensor> {
        let _hooks = saved_tensors_hooks_guard(
            |t| {
                let _recorded = enable_grad_guard();
                packed(&t.detach().with_grad()?)
            },
            |t| Ok(t.clone()),
        );
        x.square()
    }
    on_a_thread(|| too_deep(packed(&leaf(&[3.0]))));
}

#[test]
fn a_native_that_dispatches_itself() {
    on_a_thread(|| {
        let device = common::another_cpu();
        let again: Arc<OnceLock<Device>> = Arc::default();
        let inside = again.clone();
        let native = move |_: &mut NativeCall<'_>| {
            let device = inside.get().unwrap();
            let y = Tensor::zeros([1], DType::F32, device)?;
            device.dispatch_compute(ComputeModule::Native("again"), &[Bound::Write(&y)], &[], [1, 1, 1])
        };
        device.register_native("again", native).unwrap();
        again.set(device.clone()).unwrap();
        let y = Tensor::zeros([1], DType::F32, &device).unwrap();
        too_deep(device.dispatch_compute(ComputeModule::Native("again"), &[Bound::Write(&y)], &[], [1, 1, 1]));
    });
}

#[test]
fn a_formula_that_applies_itself() {
    static ITSELF: Elementwise = Elementwise::new("itself", Class::Float, 2, |x| {
        let one = Tensor::ones([1], DType::BF16, &cpu()).unwrap();
        let _ = ITSELF.apply(&[Operand::Tensor(&one), Operand::Scalar(1.0.into())]).inspect_err(|e| {
            assert!(e.to_string().contains("nested"), "{e}");
        });
        vec![x[0] * x[1]]
    });
    on_a_thread(|| {
        let x = Tensor::ones([1], DType::BF16, &cpu()).unwrap();
        for other in [Operand::Scalar(3.0.into()), Operand::Tensor(&x)] {
            assert!(ITSELF.apply(&[Operand::Tensor(&x), other]).is_ok());
        }
    });
}

/// Fails if `f` takes a minute, as it would if its time grew with the square of the number of steps.
fn is_quick(what: &str, f: impl FnOnce()) {
    let began = Instant::now();
    f();
    assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", began.elapsed());
}

const MANY: usize = 300_000;

#[test]
fn a_guard_that_ended_before_a_later_one_sets_nothing_any_more() {
    let first = strict_inplace_guard();
    let second = no_grad_guard();
    drop(first);
    drop(strict_inplace_guard());
    drop(second);
    let x = leaf(&[2.0]);
    let _kept = x.square().unwrap();
    x.detach().fill_(1.0).unwrap();
}

#[test]
fn any_number_of_guards_ends_in_any_order() {
    on_a_thread(|| {
        is_quick("guards", || {
            let guards: Vec<_> =
                (0..MANY).map(|i| if i % 3 == 0 { enable_grad_guard() } else { no_grad_guard() }).collect();
            assert!(!is_grad_enabled());
            let mut guards = guards.into_iter();
            // Drop half of the guards in order of creation, then the rest in reverse.
            guards.by_ref().take(MANY / 2).for_each(drop);
            assert!(!is_grad_enabled());
            let last = guards.next_back();
            drop(guards.next_back());
            drop(last);
            assert!(is_grad_enabled());
            guards.rev().for_each(drop);
            assert!(is_grad_enabled());
        });
        is_quick("packing guards", || {
            let seen = Arc::new(Mutex::new(vec![]));
            let pair = |i: usize| {
                let seen = seen.clone();
                let pack = move |t: &Tensor| {
                    seen.lock().unwrap().push(i);
                    Ok(t.clone())
                };
                saved_tensors_hooks_guard(pack, |t: &Tensor| Ok(t.clone()))
            };
            let mut guards = (0..MANY).map(pair).collect::<Vec<_>>().into_iter();
            let x = leaf(&[3.0]);
            let _ = x.exp().unwrap();
            guards.by_ref().take(MANY / 2).for_each(drop);
            drop(guards.next_back());
            let _ = x.exp().unwrap();
            guards.rev().for_each(drop);
            let _ = x.exp().unwrap();
            assert_eq!(*seen.lock().unwrap(), [MANY - 1, MANY - 2]);
        });
    });
}

#[test]
fn any_number_of_hooks_is_registered_and_removed() {
    let x = leaf(&[3.0]);
    is_quick("hooks", || {
        let twice = |_| x.register_hook(|g| Ok(Some(g.clone()))).unwrap();
        let hooks: Vec<Hook> = (0..MANY).map(twice).collect();
        drop(hooks);
        let _hook = x.register_hook(|g| Ok(Some(g.mul(2.0)?))).unwrap();
        assert_eq!(values(x.square().unwrap().backward().unwrap().get(&x).unwrap()), [12.0]);
    });
}

#[test]
fn a_formula_is_as_long_as_a_kernel_can_be() {
    /// `x + 0 x + 1 x + ...` with `TERMS` terms after the first.
    fn sum<'k, const TERMS: usize>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
        vec![(0..TERMS).fold(x[0], |sum, i| sum + x[0] * (i as f64))]
    }
    on_a_thread(|| {
        is_quick("a formula", || {
            // Each term takes three instructions.
            static FITS: Elementwise = Elementwise::new("fits", Class::Float, 1, sum::<20_000>);
            let x = leaf(&[1.0]);
            let y = FITS.apply(&[Operand::Tensor(&x)]).unwrap();
            assert_eq!(values(&y), [1.0 + (0..20_000).sum::<usize>() as f64]);
            let e = y.backward().unwrap_err();
            assert!(e.to_string().contains("the gradient is too large for one kernel"), "{e}");
            static SHORT: Elementwise = Elementwise::new("short", Class::Float, 1, sum::<5_000>);
            let y = SHORT.apply(&[Operand::Tensor(&x)]).unwrap();
            assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), values(&y));
            static LONG: Elementwise = Elementwise::new("long", Class::Float, 1, sum::<100_000>);
            let e = LONG.apply(&[Operand::Tensor(&x)]).unwrap_err();
            assert!(e.to_string().contains("more than 65535 instructions"), "{e}");
        });
    });
}

#[test]
fn a_long_graph_is_walked_printed_and_dropped() {
    on_a_thread(|| {
        is_quick("a graph", || {
            let x = f64s(&[1.0], &[1]).with_grad().unwrap();
            let mut y = x.clone();
            for i in 0..100_000 {
                y = if i % 1000 == 0 { checkpoint(|y| y[0].neg(), &[&y]).unwrap() } else { y.neg().unwrap() };
            }
            assert_eq!(y.graph_stats().nodes, 100_001);
            assert!(y.to_dot().lines().count() > 200_000);
            assert!(format!("{:#?}", y.grad_fn().unwrap()).lines().count() < 10);
            assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [1.0]);
        });
    });
}

#[test]
fn a_long_chain_of_errors_is_dropped() {
    on_a_thread(|| {
        let error = || Error::new(ErrorKind::Autograd, "op", "message");
        let all = (0..MANY).fold(error(), |e, _| error().with_source(e));
        assert!(!format!("{all} {all:?}").is_empty());
        drop((all.clone(), cpu()));
    });
}
