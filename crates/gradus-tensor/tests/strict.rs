//! In-place writes to values that a graph needs: strict inputs, refused writes, and copies instead of errors.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{f64s, gradient, leaf, randn, values};
use gradus_tensor::autograd::{
    Context, CustomOp, allow_mutation_on_saved_tensors, allow_mutation_on_saved_tensors_guard, apply_custom,
    checkpoint, strict, strict_inplace, strict_inplace_guard,
};
use gradus_tensor::{BackwardOptions, Error, ErrorKind, Result, Tensor, UpdateFn, grad, no_grad, no_grad_guard};

static STEP: UpdateFn = UpdateFn::new("step", |x| {
    let (m, v) = (x[2] + x[1], x[3] + x[1] * x[1]);
    vec![x[0] - m / v, m, v]
});

#[track_caller]
fn here() -> String {
    let at = Location::caller();
    format!("{}:{}:", at.file(), at.line())
}

#[track_caller]
fn assert_says(e: &Error, words: &[&str]) {
    let text = e.to_string();
    assert_eq!(e.kind(), &ErrorKind::Autograd, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word} in: {text}");
    }
}

#[test]
fn strict_refuses_inputs_that_no_gradient_needs() {
    let (x, shift) = (leaf(&[1.0, 2.0]), f64s(&[3.0, 4.0], &[2]));
    let add = || x.add(&shift).unwrap();
    let plain = add();
    let (y, line) = strict(|| (add(), "add was recorded at"));
    assert_eq!(gradient(&y, &x).unwrap(), [1.0, 1.0]);
    let write = (shift.fill_(0.0).unwrap(), here()).1;
    assert_says(&gradient(&y, &x).unwrap_err(), &["input 1", "fill_ overwrote", line, "strict.rs", &write, "help:"]);
    // Outside the guard, only needed values are checked.
    assert_eq!(gradient(&plain, &x).unwrap(), [1.0, 1.0]);
    assert_eq!(gradient(&add(), &x).unwrap(), [1.0, 1.0]);
}

#[test]
fn strict_looks_at_bytes_and_at_every_kind_of_node() {
    struct Passes;
    impl CustomOp for Passes {
        fn name(&self) -> &str {
            "passes"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].copy()?])
        }
        fn keeps(&self, _: &[bool]) -> gradus_tensor::autograd::Keep {
            gradus_tensor::autograd::Keep::NONE
        }
        fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![g[0].clone(), None])
        }
    }
    let custom = Arc::new(Passes);
    type Of = dyn Fn(&Tensor, &Tensor) -> Tensor;
    let cases: [(&str, Box<Of>); 4] = [
        ("add", Box::new(|x, c| x.add(c.narrow(0, 0, 2).unwrap()).unwrap())),
        ("cat", Box::new(|x, c| Tensor::cat(&[x, &c.narrow(0, 0, 2).unwrap()], 0).unwrap())),
        (
            "passes",
            Box::new(move |x, c| apply_custom(&custom, &[x, &c.narrow(0, 0, 2).unwrap()]).unwrap().swap_remove(0)),
        ),
        // For a view, the bytes behind it are checked.
        ("reshape", Box::new(|x, _| x.reshape([2, 1]).unwrap())),
    ];
    for (name, of) in cases {
        let (x, c) = (leaf(&[1.0, 2.0]), f64s(&[3.0; 4], &[4]));
        let y = strict(|| of(&x, &c));
        let fill = |t: &Tensor, start| {
            no_grad(|| t.narrow(0, start, 1).unwrap().fill_(9.0)).unwrap();
        };
        fill(&c, 2);
        assert!(gradient(&y, &x).is_ok(), "{name}: beside the input");
        fill(if name == "reshape" { &x } else { &c }, 1);
        assert_says(&gradient(&y, &x).unwrap_err(), &[name, "fill_ overwrote", "strict.rs"]);
    }
}

#[test]
fn strict_keeps_nothing_alive() {
    let x = leaf(&[1.0]);
    let c = f64s(&[2.0], &[1]);
    let storage = Arc::downgrade(c.storage());
    let y = strict(|| x.add(&c).unwrap());
    drop(c);
    assert_eq!(storage.strong_count(), 0);
    assert_eq!(gradient(&y, &x).unwrap(), [1.0]);
    assert_eq!(y.graph_stats().saved_bytes, 0);
}

#[test]
fn strict_inplace_makes_the_write_fail_before_a_byte_changes() {
    let (x, w) = (leaf(&[1.0, 2.0]), f64s(&[3.0, 4.0], &[2]));
    let (y, recorded) = strict_inplace(|| (x.mul(&w).unwrap(), here()));
    let e = w.add_(1.0).unwrap_err();
    assert_says(&e, &["mul", "input 1", &recorded, "help:", "copy"]);
    assert_eq!((e.op(), values(&w), w.storage().version()), ("add_", vec![3.0, 4.0], 0));
    // Writes by other threads are checked as well.
    let other = w.clone();
    assert!(std::thread::spawn(move || other.fill_(0.0)).join().unwrap().is_err());
    // `x` is not needed, because `w` requires no gradient.
    let guard = no_grad_guard();
    x.fill_(7.0).unwrap();
    drop(guard);
    assert_eq!(gradient(&y, &x).unwrap(), [3.0, 4.0]);
    // The graph was retained, so it still protects `w`, until the next pass frees it.
    assert!(w.add_(1.0).is_err());
    let _ = y.sum_all().unwrap().backward().unwrap();
    w.add_(1.0).unwrap();
    assert_eq!(values(&w), [4.0, 5.0]);
}

#[test]
fn strict_inplace_lets_other_bytes_and_dropped_graphs_go() {
    let (x, w) = (leaf(&[1.0, 2.0]), f64s(&[3.0, 4.0, 5.0, 6.0], &[4]));
    let y = strict_inplace(|| x.mul(w.narrow(0, 1, 2).unwrap()).unwrap());
    w.narrow(0, 0, 1).unwrap().fill_(0.0).unwrap();
    w.narrow(0, 3, 1).unwrap().fill_(0.0).unwrap();
    assert!(w.narrow(0, 2, 2).unwrap().fill_(0.0).is_err());
    assert_eq!(gradient(&y, &x).unwrap(), [4.0, 5.0]);
    drop(y);
    w.fill_(0.0).unwrap();
    // A graph recorded outside the guard is not protected against writes, but the backward pass still checks for them.
    let y = x.mul(w.narrow(0, 1, 2).unwrap()).unwrap();
    w.fill_(1.0).unwrap();
    assert_says(&gradient(&y, &x).unwrap_err(), &["fill_ overwrote"]);
}

#[test]
fn strict_inplace_protects_outputs_parameters_and_what_a_checkpoint_reads() {
    let x = leaf(&[1.0, 2.0]);
    let guard = strict_inplace_guard();
    let y = x.softmax(0).unwrap();
    let (w, c) = (leaf(&[3.0, 1.0]), f64s(&[4.0], &[1]));
    let (w2, c2) = (w.clone(), c.clone());
    let z = checkpoint(move |x| x[0].mul(&w2)?.mul(&c2)?.square(), &[&x]).unwrap();
    drop(guard);
    {
        let _guard = no_grad_guard();
        assert_says(&y.mul_(2.0).unwrap_err(), &["softmax", "output 0"]);
        for t in [&x, &w, &c] {
            assert_says(&t.mul_(2.0).unwrap_err(), &["checkpoint"]);
        }
    }
    gradient(&y, &x).unwrap();
    assert_eq!(gradient(&z, &x).unwrap(), [2.0 * 9.0 * 16.0, 4.0 * 16.0]);
    drop((y, z));
    c.mul_(2.0).unwrap();
}

#[test]
fn an_optimiser_step_over_a_needed_parameter_changes_neither_it_nor_its_state() {
    let w = leaf(&[3.0, 4.0]);
    let x = f64s(&[1.0, 2.0], &[2]);
    let (m, v, g) = (x.zeros_like().unwrap(), x.zeros_like().unwrap(), x.ones_like().unwrap());
    let y = strict_inplace(|| w.square().unwrap().mul(&x).unwrap());
    let step = || no_grad(|| STEP.apply(&[&w, &m, &v], &[&w, &g, &m, &v], &[]));
    assert_says(&step().unwrap_err(), &["step"]);
    assert_eq!((values(&w), values(&m), values(&v)), (vec![3.0, 4.0], vec![0.0; 2], vec![0.0; 2]));
    assert_says(&no_grad(|| w.prepare_write("mine_")).unwrap_err(), &["mine_", "square"]);
    assert!(w.prepare_write("mine_").unwrap_err().to_string().contains("leaf"));
    let _ = y.sum_all().unwrap().backward().unwrap();
    step().unwrap();
    assert!(values(&m)[0] != 0.0);
}

#[test]
fn registrations_of_dead_graphs_do_not_pile_up() {
    let (x, w) = (leaf(&[1.0]), f64s(&[2.0], &[1]));
    let _guard = strict_inplace_guard();
    for k in 0..2000 {
        let y = x.mul(&w).unwrap();
        assert_eq!(y.backward().unwrap().get(&x).unwrap().item().unwrap(), 2.0 + f64::from(k));
        w.add_(1.0).unwrap();
    }
}

#[test]
fn a_write_leaves_the_graph_a_copy_of_what_it_needs() {
    let (x, w) = (leaf(&[1.0, 2.0]), f64s(&[3.0, 4.0], &[2]));
    let guard = allow_mutation_on_saved_tensors_guard();
    let y = x.mul(&w).unwrap();
    w.mul_(10.0).unwrap();
    let z = y.mul(&w).unwrap();
    drop(guard);
    // The graph outlives the guard, and so does its protection.
    w.narrow(0, 0, 1).unwrap().fill_(0.0).unwrap();
    assert_eq!(values(&w), [0.0, 40.0]);
    for _ in 0..2 {
        assert_eq!(gradient(&z, &x).unwrap(), [90.0, 160.0]);
    }
    assert_eq!(y.grad_fn().unwrap().saved()[0].3, 0, "the copy is what is kept now");
}

#[test]
fn copies_go_through_every_order_and_every_kind_of_value() {
    // square saves its input x, softmax saves its output, and mul saves both inputs.
    let x0 = [0.3, -0.7, 1.1];
    let first = |x: &Tensor| {
        let y = x.square().unwrap();
        let s = y.softmax(0).unwrap();
        (s.mul(x.exp().unwrap()).unwrap(), y, s)
    };
    let third = |z: &Tensor, x: &Tensor, mut between: Box<dyn FnMut(&Tensor) + '_>| {
        let options = BackwardOptions::new().create_graph();
        let mut g = z.sum_all().unwrap();
        for _ in 0..3 {
            g = grad(&[&g], &[x], None, options).unwrap()[0].clone().unwrap().square().unwrap().sum_all().unwrap();
            between(&g);
        }
        g.item().unwrap()
    };
    let x = leaf(&x0);
    let want = third(&first(&x).0, &x, Box::new(|_| ()));
    let x = leaf(&x0);
    let _guard = allow_mutation_on_saved_tensors_guard();
    let (z, y, s) = first(&x);
    let spoil = |_: &Tensor| {
        no_grad(|| [&x, &y, &s].iter().for_each(|t| t.mul_(-3.0).unwrap()));
    };
    spoil(&z);
    assert_eq!(third(&z, &x, Box::new(spoil)), want);
}

#[test]
fn nodes_that_keep_one_tensor_share_the_copy() {
    let (x, w) = (leaf(&[1.0, 2.0]), randn(&[2], 1));
    let _guard = allow_mutation_on_saved_tensors_guard();
    let y: Vec<Tensor> = (0..5).map(|_| x.mul(&w).unwrap()).collect();
    let total = y.iter().skip(1).fold(y[0].clone(), |sum, t| sum.add(t).unwrap());
    let before = total.graph_stats().saved_bytes;
    w.fill_(0.0).unwrap();
    assert_eq!(total.graph_stats().saved_bytes, before);
    assert!(gradient(&total, &x).unwrap().iter().all(|v| *v != 0.0));
}

/// The product. While its backward rule reads a saved value, another thread overwrites that value.
struct Disturbed {
    kept: Tensor,
    runs: AtomicUsize,
}

impl CustomOp for Disturbed {
    fn name(&self) -> &str {
        "disturbed"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(&x[1])?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let kept = ctx.input(1)?;
        if self.runs.fetch_add(1, Ordering::SeqCst) == 0 {
            std::thread::scope(|s| s.spawn(|| self.kept.fill_(9.0)).join().unwrap())?;
        }
        Ok(vec![g[0].as_ref().map(|g| g.mul(&kept)).transpose()?, None])
    }
}

#[test]
fn a_rule_that_another_thread_disturbed_runs_again_on_the_copy() {
    for allowed in [true, false] {
        let (x, kept) = (leaf(&[2.0, 2.0]), f64s(&[3.0, 4.0], &[2]));
        let op = Arc::new(Disturbed { kept: kept.clone(), runs: AtomicUsize::new(0) });
        let y = {
            let _guard = allowed.then(allow_mutation_on_saved_tensors_guard);
            apply_custom(&op, &[&x, &kept]).unwrap().swap_remove(0)
        };
        let g = gradient(&y, &x);
        match allowed {
            true => assert_eq!(g.unwrap(), [3.0, 4.0]),
            false => assert_says(&g.unwrap_err(), &["disturbed", "fill_"]),
        }
        assert_eq!(op.runs.load(Ordering::SeqCst), 1 + usize::from(allowed));
    }
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let (x, c) = (leaf(&[1.0]), f64s(&[4.0], &[1]));
    let inside = c.clone();
    let _guard = allow_mutation_on_saved_tensors_guard();
    let y = checkpoint(move |x| x[0].mul(&inside), &[&x]).unwrap();
    assert_says(&c.fill_(0.0).unwrap_err(), &["checkpoint", "captured"]);
    assert_eq!(gradient(&y, &x).unwrap(), [4.0]);
    // Inside a region, values may be overwritten, in both runs.
    let f = |x: &[Tensor]| {
        let own = x[0].detach().mul(3.0)?;
        let y = x[0].mul(&own)?;
        own.fill_(0.0)?;
        y.square()
    };
    let y = checkpoint(f, &[&x]).unwrap();
    drop(_guard);
    assert_eq!(gradient(&y, &x).unwrap(), [2.0 * 3.0 * 3.0]);
}

#[test]
fn the_last_of_both_guards_holds_and_both_end() {
    let (x, w) = (leaf(&[1.0]), f64s(&[2.0], &[1]));
    let _outer = strict_inplace_guard();
    let copied = allow_mutation_on_saved_tensors(|| x.mul(&w).unwrap());
    w.add_(1.0).unwrap();
    let refused = x.mul(&w).unwrap();
    assert!(w.add_(1.0).is_err());
    assert_eq!((gradient(&copied, &x).unwrap(), gradient(&refused, &x).unwrap()), (vec![2.0], vec![3.0]));
}

#[test]
fn copies_beside_writers_on_other_threads_are_right_or_errors() {
    let x = leaf(&[1.0; 16]);
    let w = f64s(&[0.0; 16], &[16]);
    let stop = AtomicBool::new(false);
    let mut right = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut k = 0.0;
            while !stop.load(Ordering::Relaxed) {
                k += 1.0;
                w.fill_(k).unwrap();
            }
        });
        let _guard = allow_mutation_on_saved_tensors_guard();
        for _ in 0..2000 {
            let y = x.mul(&w).unwrap();
            let value = values(&y)[0];
            if let Ok(g) = y.sum_all().unwrap().backward() {
                assert_eq!(values(g.get(&x).unwrap()), [value; 16]);
                right += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(right > 0);
}
