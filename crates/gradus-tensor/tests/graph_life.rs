//! The life cycle of a graph: what keeps it alive, what a backward pass leaves behind, several roots and outputs,
//! threads, and graphs of a hundred thousand nodes.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use common::{assert_close, cpu, f32s, f64s, leaf};
use gradus_cpu::CpuBackend;
use gradus_tensor::autograd::Context;
use gradus_tensor::{
    BackwardOptions, CustomOp, DType, Device, Error, ErrorKind, Generator, Gradients, Node, Result, Tensor,
    apply_custom, enable_grad_guard, grad, hessian, hvp, inference, inference_guard, is_grad_enabled, is_inference,
    jacobian, jvp, no_grad_guard, vjp,
};

fn keep() -> BackwardOptions {
    BackwardOptions::new().retain_graph()
}

fn items(g: Vec<Option<Tensor>>) -> Vec<Option<f64>> {
    g.into_iter().map(|g| g.map(|g| g.item().unwrap())).collect()
}

#[test]
fn graphs_and_gradients_may_go_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<Tensor>();
    check::<Node>();
    check::<Gradients>();
    check::<gradus_tensor::Hook>();
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    let g = std::thread::spawn(move || y.backward().unwrap()).join().unwrap();
    assert_eq!(g.get(&x).unwrap().item().unwrap(), 6.0);
}

#[test]
fn several_roots_add_up_whatever_they_have_to_do_with_each_other() {
    let x = leaf(&[3.0]);
    let a = x.square().unwrap();
    let b = x.mul(5.0).unwrap();
    assert_eq!(items(grad(&[&a, &b], &[&x], None, keep()).unwrap()), [Some(11.0)]);
    // A root that is passed twice counts twice.
    assert_eq!(items(grad(&[&a, &a], &[&x], None, keep()).unwrap()), [Some(12.0)]);
    // One root may be an ancestor of the other: c = a^2, so da/dx + dc/dx = 6 + 108.
    let c = a.square().unwrap();
    assert_eq!(items(grad(&[&a, &c], &[&x, &a], None, keep()).unwrap()), [Some(114.0), Some(19.0)]);
    assert_eq!(items(grad(&[&c, &a], &[&x, &a], None, keep()).unwrap()), [Some(114.0), Some(19.0)]);
    // A root may be an input as well, and a leaf may be a root.
    assert_eq!(items(grad(&[&c], &[&c, &x], None, keep()).unwrap()), [Some(1.0), Some(108.0)]);
    assert_eq!(items(grad(&[&x], &[&x], None, keep()).unwrap()), [Some(1.0)]);
    assert_eq!(items(grad(&[&x, &a], &[&x], None, keep()).unwrap()), [Some(7.0)]);
    assert_eq!(x.backward().unwrap().get(&x).unwrap().item().unwrap(), 1.0);
    // An input may be requested twice, through two handles.
    assert_eq!(items(grad(&[&a], &[&x, &x.clone()], None, keep()).unwrap()), [Some(6.0); 2]);
    // There may be no roots, or no inputs.
    assert_eq!(items(grad(&[], &[&x], None, keep()).unwrap()), [None]);
    assert!(grad(&[&a], &[], None, keep()).unwrap().is_empty());
}

#[test]
fn seeds_weigh_roots_that_are_no_scalars() {
    let x = f64s(&[1.0, 2.0, 3.0], &[3]).with_grad().unwrap();
    let y = x.square().unwrap();
    let z = x.mul(2.0).unwrap().sum_all().unwrap();
    let (s, t) = (f64s(&[1.0, 0.0, -1.0], &[3]), f64s(&[10.0], &[]));
    let g = grad(&[&y, &z], &[&x], Some(&[&s, &t]), keep()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [22.0, 20.0, 14.0]);
    // A seed may have any layout, and it may be tracked: the gradient is linear in the seed.
    let s = f64s(&[1.0, 9.0, 0.0, 9.0, -1.0], &[5]).slice(0, 0, 5, 2).unwrap();
    let g = grad(&[&y], &[&x], Some(&[&s]), keep()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [2.0, 0.0, -6.0]);
    let s = f64s(&[1.0; 3], &[3]).with_grad().unwrap();
    let g = grad(&[&y], &[&x], Some(&[&s]), BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap();
    let g = grad(&[&g.sum_all().unwrap()], &[&s], None, keep()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
    for (seed, kind) in [
        (f64s(&[1.0], &[1]), ErrorKind::ShapeMismatch),
        (f32s(&[1.0; 3], &[3]), ErrorKind::DTypeMismatch),
        (Tensor::ones([3], DType::F64, &common::another_cpu()).unwrap(), ErrorKind::DeviceMismatch),
    ] {
        assert_eq!(grad(&[&y], &[&x], Some(&[&seed]), keep()).unwrap_err().kind(), &kind);
    }
    assert_eq!(grad(&[&y], &[&x], Some(&[]), keep()).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(grad(&[&y], &[&x], None, keep()).unwrap_err().kind(), &ErrorKind::Autograd);
}

#[test]
fn a_graph_is_freed_by_the_pass_that_uses_it_and_only_there() {
    let (x, w) = (leaf(&[2.0]), leaf(&[3.0]));
    let trunk = x.mul(&w).unwrap();
    let (a, b) = (trunk.exp().unwrap(), trunk.mul(&w).unwrap());
    // Only the gradient for `w` is requested. Everything on the path to `w` is freed, including what another root
    // shares.
    let freed = grad(&[&b], &[&w], None, BackwardOptions::new()).unwrap();
    assert_eq!(items(freed), [Some(12.0)]);
    let e = a.backward().unwrap_err();
    assert!(e.to_string().contains("the graph was freed by an earlier backward pass"), "{e}");
    assert!(e.to_string().contains("retain_graph"), "{e}");
    // Nodes that the pass did not reach are intact.
    let (u, v) = (x.exp().unwrap(), x.sin().unwrap());
    let _ = u.backward().unwrap();
    assert!(v.backward().is_ok());
    // A graph can be retained any number of times. `create_graph` retains it as well.
    let y = x.mul(&w).unwrap().exp().unwrap();
    for _ in 0..3 {
        let _ = y.backward_with(keep()).unwrap();
    }
    let _ = y.backward_with(BackwardOptions::new().create_graph()).unwrap();
    let _ = y.backward().unwrap();
    assert!(y.backward().is_err());
    // The gradients outlive a freed graph.
    let y = x.mul(&w).unwrap();
    let g = y.backward().unwrap();
    drop(y);
    assert_eq!((g.len(), g.get(&x).unwrap().item().unwrap(), g.get(&w).unwrap().item().unwrap()), (2, 3.0, 2.0));
}

/// The sum and the difference of two tensors.
struct Both;

impl CustomOp for Both {
    fn name(&self) -> &str {
        "both"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].add(&x[1])?, x[0].sub(&x[1])?])
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(match (&g[0], &g[1]) {
            (Some(s), Some(d)) => vec![Some(s.add(d)?), Some(s.sub(d)?)],
            (Some(s), None) => vec![Some(s.clone()), Some(s.clone())],
            (None, Some(d)) => vec![Some(d.clone()), Some(d.neg()?)],
            (None, None) => vec![None, None],
        })
    }
}

#[test]
fn outputs_of_one_node_are_told_apart() {
    let (x, w) = (leaf(&[2.0]), leaf(&[3.0]));
    let both = apply_custom(&Arc::new(Both), &[&x, &w]).unwrap();
    assert_eq!(items(grad(&[&both[0]], &[&x, &w], None, keep()).unwrap()), [Some(1.0), Some(1.0)]);
    assert_eq!(items(grad(&[&both[1]], &[&x, &w], None, keep()).unwrap()), [Some(1.0), Some(-1.0)]);
    assert_eq!(items(grad(&[&both[0], &both[1]], &[&x, &w], None, keep()).unwrap()), [Some(2.0), Some(0.0)]);
    let product = both[0].mul(&both[1]).unwrap();
    assert_eq!(items(grad(&[&product], &[&x, &w], None, keep()).unwrap()), [Some(4.0), Some(-6.0)]);
    assert_eq!(items(grad(&[&product], &[&both[0], &both[1]], None, keep()).unwrap()), [Some(-1.0), Some(5.0)]);
    // The result does not depend on the second output.
    assert_eq!(
        items(grad(&[&both[0].square().unwrap()], &[&both[0], &both[1]], None, keep()).unwrap()),
        [Some(10.0), None]
    );
}

#[test]
fn hooks_run_in_the_order_of_the_pass_every_time() {
    let (x, w) = (leaf(&[2.0]), leaf(&[3.0]));
    let (a, b) = (x.exp().unwrap(), w.sin().unwrap());
    let y = a.mul(&b).unwrap().add(&a).unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let hook = |t: &Tensor, name: &'static str| {
        let seen = seen.clone();
        t.register_hook(move |_| {
            seen.lock().unwrap().push(name);
            Ok(None)
        })
        .unwrap()
    };
    let _hooks = [hook(&x, "x"), hook(&w, "w"), hook(&y, "y"), hook(&a, "a1"), hook(&b, "b"), hook(&a, "a2")];
    for _ in 0..20 {
        seen.lock().unwrap().clear();
        let _ = y.backward_with(keep()).unwrap();
        // The node recorded last comes first. Leaves are ordered the same way, by their creation.
        assert_eq!(*seen.lock().unwrap(), ["y", "b", "a1", "a2", "w", "x"]);
    }
}

/// The identity, with a backward rule that fails while the counter is not 0.
struct Fails(AtomicUsize);

impl CustomOp for Fails {
    fn name(&self) -> &str {
        "fails"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].copy()?])
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(vec![g[0].clone()]),
            _ => Err(Error::argument("fails", "not today")),
        }
    }
}

#[test]
fn a_pass_that_fails_says_so_when_the_graph_is_used_again() {
    let x = leaf(&[2.0]);
    let op = Arc::new(Fails(AtomicUsize::new(1)));
    let u = x.exp().unwrap();
    let y = apply_custom(&op, &[&u]).unwrap()[0].square().unwrap();
    // With `retain_graph`, the failure changes nothing.
    assert_eq!(y.backward_with(keep()).unwrap_err().message(), "not today");
    assert!(!y.grad_fn().unwrap().saved().is_empty());
    // Without it, the nodes that ran are freed. The next error says that a failed pass freed them.
    assert_eq!(y.backward().unwrap_err().message(), "not today");
    op.0.store(0, Ordering::Relaxed);
    let e = y.backward().unwrap_err();
    let text = e.to_string();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    assert!(text.contains("freed in part by a backward pass that failed"), "{text}");
    assert!(text.contains("fails: not today") && text.contains("retain_graph"), "{text}");
    // Nodes that the pass did not reach are intact.
    assert_eq!(u.backward().unwrap().get(&x).unwrap().item().unwrap(), 2f64.exp());
    // A pass that fails on nodes freed by an earlier pass is not blamed for freeing them.
    for _ in 0..2 {
        let text = u.square().unwrap().backward().unwrap_err().to_string();
        assert!(text.contains("the graph was freed by an earlier"), "{text}");
    }
}

#[test]
fn running_out_of_memory_gives_no_gradients_and_keeps_a_retained_graph() {
    let device = Device::from_backend(Arc::new(CpuBackend::with_threads(1).unwrap()));
    let n = 1 << 16;
    let x = Tensor::full([n], 0.5, DType::F32, &device).unwrap().with_grad().unwrap();
    let mut y = x.clone();
    for _ in 0..8 {
        y = y.sin().unwrap().mul(&y).unwrap();
    }
    let loss = y.sum_all().unwrap();
    let want = loss.backward_with(keep()).unwrap().get(&x).unwrap().to_vec::<f32>().unwrap();
    device.backend().trim().unwrap();
    let used = device.backend().memory_stats().in_use;
    // There is memory for two gradients. The third one, the gradient of the second product, does not fit.
    device.backend().set_memory_budget(Some(used + 9 * n)).unwrap();
    let e = loss.backward_with(keep()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
    device.backend().set_memory_budget(None).unwrap();
    assert_eq!(device.backend().memory_stats().in_use, used, "nothing of the pass is left");
    assert_eq!(loss.backward_with(keep()).unwrap().get(&x).unwrap().to_vec::<f32>().unwrap(), want);
    // A graph that is not retained needs less memory, because it is freed along the way. With too little memory even
    // for that, the pass reports the failure.
    device.backend().set_memory_budget(Some(used + n)).unwrap();
    assert!(loss.backward().is_err());
    device.backend().set_memory_budget(None).unwrap();
    assert!(loss.backward().unwrap_err().to_string().contains("failed"));
}

#[test]
fn a_panic_in_a_hook_leaves_modes_and_graph_as_they_were() {
    let x = leaf(&[2.0]);
    let y = x.exp().unwrap();
    let hook = y.register_hook(|_| panic!("user")).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| y.backward()));
    assert!(caught.is_err() && is_grad_enabled());
    drop(hook);
    assert_eq!(y.backward().unwrap().get(&x).unwrap().item().unwrap(), 2f64.exp());
}

/// A small network whose parameters are used several times, on a device with this many threads.
fn step(threads: usize) -> Vec<u32> {
    let device = Device::from_backend(Arc::new(CpuBackend::with_threads(threads).unwrap()));
    let mut generator = Generator::new(7);
    let mut normal = |shape: &[usize]| Tensor::randn(shape, DType::F32, &device, &mut generator).unwrap();
    let (x, w, b) = (normal(&[64, 48]), normal(&[48, 48]), normal(&[48]));
    let (w, b) = (w.with_grad().unwrap(), b.with_grad().unwrap());
    let mut h = x;
    let mut sum = Tensor::zeros([], DType::F32, &device).unwrap();
    for _ in 0..4 {
        h = h.matmul(&w).unwrap().mul(0.1).unwrap().add(&b).unwrap().tanh().unwrap();
        sum = sum.add(h.square().unwrap().mean_all().unwrap()).unwrap();
    }
    let g = sum.backward().unwrap();
    let bits =
        |t: &Tensor| g.get(t).unwrap().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    [bits(&w), bits(&b)].concat()
}

#[test]
fn shared_leaves_get_the_same_bits_in_every_run_on_any_number_of_threads() {
    let want = step(1);
    for i in 0..100 {
        assert_eq!(step([1, 2, 4][i % 3]), want, "run {i}");
    }
}

#[test]
fn threads_may_run_disjoint_graphs_over_shared_leaves_and_one_kept_graph_at_once() {
    let x = f64s(&[0.5, -1.5], &[2]).with_grad().unwrap();
    let shared = x.exp().unwrap().mul(&x).unwrap().sum_all().unwrap();
    let want = shared.backward_with(keep()).unwrap().get(&x).unwrap().to_vec::<f64>().unwrap();
    let barrier = Barrier::new(4);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                barrier.wait();
                for _ in 0..200 {
                    let own = x.exp().unwrap().mul(&x).unwrap().sum_all().unwrap();
                    for g in [own.backward().unwrap(), shared.backward_with(keep()).unwrap()] {
                        assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), want);
                    }
                }
            });
        }
    });
    // Of several passes that do not retain the graph, at most one succeeds. The others report that the graph is freed.
    let barrier = Barrier::new(4);
    let results: Vec<Result<Gradients>> = std::thread::scope(|s| {
        let run = || {
            barrier.wait();
            shared.backward()
        };
        let handles: Vec<_> = (0..4).map(|_| s.spawn(run)).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert!(results.iter().filter(|r| r.is_ok()).count() <= 1);
    for r in results {
        match r {
            Ok(g) => assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), want),
            Err(e) => assert!(e.to_string().contains("freed"), "{e}"),
        }
    }
}

#[test]
fn a_hundred_thousand_edges_into_one_leaf() {
    let x = f32s(&[1.0], &[1]).with_grad().unwrap();
    let mut sum = f32s(&[0.0], &[1]);
    for _ in 0..100_000 {
        sum = sum.add(&x).unwrap();
    }
    let stats = sum.graph_stats();
    assert_eq!((stats.nodes, stats.leaves, stats.saved_bytes), (100_001, 1, 0));
    assert_eq!(sum.backward().unwrap().get(&x).unwrap().item().unwrap(), 1e5);
}

#[test]
fn diamonds_twenty_thousand_deep_are_walked_once() {
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let mut y = x.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    for _ in 0..20_000 {
        // Two paths at each level make 2^20000 paths in all, so each node must run only once.
        y = y.mul(0.5).unwrap().add(y.mul(0.5).unwrap()).unwrap();
    }
    let count = calls.clone();
    let _hook = x
        .register_hook(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(None)
        })
        .unwrap();
    assert_eq!(y.graph_stats().nodes, 60_001);
    let g = grad(&[&y], &[&x], None, keep()).unwrap();
    assert_eq!(items(g), [Some(1.0)]);
    assert_eq!(y.backward().unwrap().get(&x).unwrap().item().unwrap(), 1.0);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let text = y.to_dot();
    assert_eq!(text.matches(" -> ").count(), 80_000);
    drop(y);
}

#[test]
fn a_wide_graph_drops_in_any_order() {
    let x = f32s(&[1.0], &[1]).with_grad().unwrap();
    let node = Arc::downgrade(x.exp().unwrap().grad_fn().unwrap());
    assert!(node.upgrade().is_none());
    let parts: Vec<Tensor> = (0..1000).map(|_| x.exp().unwrap()).collect();
    let all = Tensor::stack(&parts.iter().collect::<Vec<_>>(), 0).unwrap();
    let weak: Vec<_> = parts.iter().map(|p| Arc::downgrade(p.grad_fn().unwrap())).collect();
    drop(parts);
    assert!(weak.iter().all(|w| w.upgrade().is_some()), "the stack keeps them");
    drop(all);
    assert!(weak.iter().all(|w| w.upgrade().is_none()), "and lets them go");
}

#[test]
fn inference_records_nothing_whatever_runs_inside() {
    let x = leaf(&[2.0]);
    let y = x.exp().unwrap();
    {
        let _guard = inference_guard();
        assert!(is_inference() && !is_grad_enabled());
        // Inference mode cannot be lifted by `enable_grad`, unlike `no_grad`.
        let again = enable_grad_guard();
        assert!(!is_grad_enabled() && !x.exp().unwrap().requires_grad());
        drop(again);
        let f = |x: &[Tensor]| x[0].exp();
        let refused = [
            y.backward().map(drop),
            grad(&[&y], &[&x], None, BackwardOptions::new()).map(drop),
            vjp(f, &[&x], &[&x]).map(drop),
            jvp(f, &[&x], &[&x]).map(drop),
            hvp(f, &[&x], &[&x]).map(drop),
            jacobian(f, &[&x]).map(drop),
            hessian(|x| x.exp(), &x).map(drop),
        ];
        for r in refused {
            let e = r.unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Autograd);
            assert!(e.to_string().contains("inference()"), "{e}");
        }
        // The mode applies to this thread only.
        let x = x.clone();
        assert!(std::thread::spawn(move || x.exp().unwrap().requires_grad()).join().unwrap());
    }
    assert!(is_grad_enabled() && !is_inference());
    // Guards that are dropped out of order still restore every mode correctly.
    let plain = no_grad_guard();
    let guard = inference_guard();
    drop(plain);
    assert!(!is_grad_enabled());
    drop(guard);
    assert!(is_grad_enabled());
    // A tensor computed inside is a constant outside, but a leaf made inside is a leaf.
    let (made, parameter) = inference(|| (x.exp().unwrap(), f64s(&[3.0], &[1]).with_grad().unwrap()));
    let g = made.mul(&x).unwrap().mul(&parameter).unwrap().backward().unwrap();
    assert_close(&[g.get(&x).unwrap().item().unwrap()], &[3.0 * 2f64.exp()], 1e-14);
    assert!(g.get(&parameter).is_some());
    // A graph recorded outside notices a write made inside.
    let w = f64s(&[2.0], &[1]);
    let z = x.mul(&w).unwrap();
    inference(|| w.fill_(9.0)).unwrap();
    assert!(z.backward().unwrap_err().to_string().contains("fill_"));
    assert!(y.backward().is_ok());
    let _ = cpu();
}
