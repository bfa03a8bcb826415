//! The life cycle of a graph: versions, order, freeing, depth and modes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, cpu, f32s, f64s, i64s, leaf, randn};
use gradus_tensor::{BackwardOptions, DType, ErrorKind, Tensor, grad, no_grad_guard};

#[test]
fn hessian_of_a_gated_product() {
    let a = f64s(&[0.7], &[1]).with_grad().unwrap();
    let b = f64s(&[1.3], &[1]).with_grad().unwrap();
    for y in [a.silu().unwrap().mul(&b).unwrap(), a.silu_mul(&b).unwrap()] {
        let first = grad(&[&y.sum_all().unwrap()], &[&a, &b], None, BackwardOptions::new().create_graph()).unwrap();
        let mut hessian = vec![];
        for g in first.into_iter().flatten() {
            for row in grad(&[&g], &[&a, &b], None, BackwardOptions::new().retain_graph()).unwrap() {
                hessian.push(row.map_or(0.0, |h| h.item().unwrap()));
            }
        }
        assert_close(&hessian, &[0.509, 0.823, 0.823, 0.0], 5e-4);
    }
}

#[test]
fn third_order_of_a_chain_is_exact() {
    let x = f64s(&[0.8], &[1]).with_grad().unwrap();
    let mut y = x.sin().unwrap().exp().unwrap();
    for _ in 0..3 {
        let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap();
        y = g.into_iter().next().flatten().unwrap();
    }
    // d3/dx3 e^(sin x) = e^(sin x) * cos x * (cos^2 x - 3 sin x - 1)
    let (s, c) = 0.8f64.sin_cos();
    assert_close(&[y.item().unwrap()], &[s.exp() * c * (c * c - 3.0 * s - 1.0)], 1e-12);
}

#[test]
fn overwritten_value_is_an_error_that_names_both_operations_and_the_line_of_the_write() {
    let x = f32s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let w = f32s(&[3.0, 4.0], &[2]);
    let y = x.mul(&w).unwrap();
    w.add_(1.0).unwrap();
    let line = line!() - 1;
    let e = y.sum_all().unwrap().backward().unwrap_err();
    let text = e.to_string();
    assert_eq!(e.kind(), &ErrorKind::Autograd);
    assert!(text.contains("mul") && text.contains("add_"), "{text}");
    assert!(text.contains(&format!("autograd.rs:{line}:")), "{text}");
}

#[test]
fn a_write_elsewhere_or_to_a_value_that_no_gradient_needs_is_no_error() {
    let x = f32s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    // The backward pass of `add` needs no saved value.
    let w = f32s(&[3.0, 4.0], &[2]);
    let y = x.add(&w).unwrap();
    w.fill_(0.0).unwrap();
    assert!(y.sum_all().unwrap().backward().is_ok());
    // Disjoint halves of one storage.
    let both = f32s(&[1.0, 2.0, 3.0, 4.0], &[4]);
    let y = x.mul(both.narrow(0, 0, 2).unwrap()).unwrap();
    both.narrow(0, 2, 2).unwrap().fill_(9.0).unwrap();
    assert!(y.sum_all().unwrap().backward().is_ok());
    let y = x.mul(both.narrow(0, 0, 2).unwrap()).unwrap();
    both.narrow(0, 1, 2).unwrap().fill_(9.0).unwrap();
    assert!(y.sum_all().unwrap().backward().is_err());
}

#[test]
fn writes_that_left_the_log_are_still_caught() {
    let x = f32s(&[1.0; 4], &[4]).with_grad().unwrap();
    let w = f32s(&[1.0; 8], &[8]);
    let y = x.mul(w.narrow(0, 0, 4).unwrap()).unwrap();
    w.narrow(0, 3, 1).unwrap().fill_(5.0).unwrap();
    for _ in 0..100 {
        w.narrow(0, 6, 1).unwrap().fill_(7.0).unwrap();
    }
    assert!(y.sum_all().unwrap().backward().is_err());
}

#[test]
fn every_kept_output_is_checked_too() {
    let x = randn(&[2, 3], 1).with_grad().unwrap();
    let y = x.softmax(1).unwrap();
    let loss = y.mul(randn(&[2, 3], 2)).unwrap().sum_all().unwrap();
    y.detach().mul_(2.0).unwrap();
    let e = loss.backward().unwrap_err().to_string();
    assert!(e.contains("softmax") && e.contains("mul_"), "{e}");
}

/// An overwritten result cannot be used as an operand, because its gradient would still be that of the old values.
#[test]
fn a_computed_tensor_that_was_overwritten_is_not_computed_with() {
    let w = randn(&[2, 3], 1).with_grad().unwrap();
    let x = w.mul(2.0).unwrap();
    let view = x.t().unwrap();
    x.detach().narrow(1, 0, 1).unwrap().fill_(5.0).unwrap();
    for e in [x.add(1.0), view.contiguous(), x.reshape([6]), x.t()] {
        let e = e.unwrap_err().to_string();
        assert!(e.contains("fill_ overwrote") && e.contains(" computed it at "), "{e}");
    }
    assert!(x.backward_with(BackwardOptions::new()).is_err());
    // A view made earlier counts as overwritten as a whole, even its unwritten part. Detached values may be used.
    let rest = view.narrow(0, 1, 2);
    assert!(rest.is_err(), "a view of all of it");
    assert!(x.detach().add(1.0).is_ok());
    let _guard = no_grad_guard();
    assert!(x.add(1.0).is_ok());
}

/// An optimiser writes into leaves, so a leaf and its views always have the values that the storage holds.
#[test]
fn a_leaf_that_was_written_has_the_new_value_and_so_have_its_views() {
    let w = f32s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let view = w.flip(0).unwrap();
    w.detach().fill_(3.0).unwrap();
    let gradients = w.mul(&w).unwrap().add(view.square().unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&w).unwrap().to_vec::<f32>().unwrap(), [12.0, 12.0]);
}

#[test]
fn gradients_that_are_given_out_share_no_memory() {
    let (a, b) = (f32s(&[1.0], &[1]).with_grad().unwrap(), f32s(&[2.0], &[1]).with_grad().unwrap());
    let seed = f32s(&[4.0], &[1]);
    let both = grad(&[&a.add(&b).unwrap()], &[&a, &b], Some(&[&seed]), BackwardOptions::new()).unwrap();
    both[0].as_ref().unwrap().mul_(10.0).unwrap();
    let found: Vec<f64> = both.iter().flatten().chain([&seed]).map(|t| t.item().unwrap()).collect();
    assert_eq!(found, [40.0, 4.0, 4.0]);
}

#[test]
fn a_chain_of_a_million_adds_runs_forward_backward_and_drops() {
    let x = f32s(&[0.0; 4], &[4]).with_grad().unwrap();
    let one = f32s(&[1.0; 4], &[4]);
    let mut y = x.clone();
    for _ in 0..1_000_000 {
        y = y.add(&one).unwrap();
    }
    assert_eq!(y.to_vec::<f32>().unwrap(), [1e6; 4]);
    let loss = y.sum_all().unwrap();
    let g = loss.backward_with(BackwardOptions::new().retain_graph()).unwrap();
    assert_eq!(g.get(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 4]);
    drop(loss);
    drop(y);
}

#[test]
fn a_chain_through_kept_values_drops_without_recursion() {
    let x = f32s(&[1.0], &[1]).with_grad().unwrap();
    let mut y = x.clone();
    for _ in 0..200_000 {
        y = y.mul(&y).unwrap();
    }
    drop(y);
}

#[test]
fn a_second_pass_over_a_freed_graph_says_so() {
    let x = f32s(&[2.0], &[1]).with_grad().unwrap();
    let y = x.mul(&x).unwrap();
    let _ = y.backward_with(BackwardOptions::new().retain_graph()).unwrap();
    let _ = y.backward().unwrap();
    let e = y.backward().unwrap_err();
    assert!(e.to_string().contains("freed") && e.to_string().contains("retain_graph"), "{e}");
}

#[test]
fn gradients_of_intermediates_of_shared_values_and_of_nothing() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let z = f64s(&[5.0], &[1]).with_grad().unwrap();
    let u = x.square().unwrap();
    let y = u.mul(&u).unwrap().add(&u).unwrap();
    let g = grad(&[&y], &[&u, &x, &z], None, BackwardOptions::new()).unwrap();
    assert_eq!(g[0].as_ref().unwrap().item().unwrap(), 19.0);
    assert_eq!(g[1].as_ref().unwrap().item().unwrap(), 19.0 * 6.0);
    assert!(g[2].is_none());
    // The gradient of a tensor with respect to itself.
    assert_eq!(grad(&[&u], &[&u], None, BackwardOptions::new()).unwrap()[0].as_ref().unwrap().item().unwrap(), 1.0);
}

#[test]
fn clones_are_one_tensor_and_detached_ones_another() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let g = x.clone().square().unwrap().backward().unwrap();
    assert!(g.get(&x).is_some());
    assert!(g.get(&x.detach().with_grad().unwrap()).is_none());
}

#[test]
fn modes_are_scoped_and_per_thread() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    {
        let _guard = no_grad_guard();
        assert!(!x.square().unwrap().requires_grad());
        let x = x.clone();
        let tracked = std::thread::spawn(move || x.square().unwrap().requires_grad()).join().unwrap();
        assert!(tracked);
    }
    assert!(x.square().unwrap().requires_grad());
}

#[test]
fn frozen_inputs_keep_and_receive_nothing() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let w = f64s(&[4.0], &[1]);
    let y = x.mul(&w).unwrap();
    let saved = y.grad_fn().unwrap().saved();
    assert_eq!(saved.len(), 1, "only w is needed: {saved:?}");
    assert!(x.add(&w).unwrap().grad_fn().unwrap().saved().is_empty());
    assert_eq!(y.backward().unwrap().len(), 1);
}

#[test]
fn in_place_writes_are_refused_while_a_gradient_is_required() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    assert_eq!(x.add_(1.0).unwrap_err().kind(), &ErrorKind::Autograd);
    assert_eq!(f64s(&[1.0], &[1]).copy_(&x).unwrap_err().kind(), &ErrorKind::Autograd);
    let _guard = no_grad_guard();
    x.add_(1.0).unwrap();
    assert_eq!(x.item().unwrap(), 4.0);
}

#[test]
fn in_place_writes_see_old_values_even_when_they_overlap() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[4]);
    x.narrow(0, 1, 3).unwrap().copy_(&x.narrow(0, 0, 3).unwrap()).unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 1.0, 2.0, 3.0]);
    x.add_(x.flip(0).unwrap()).unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [4.0, 3.0, 3.0, 4.0]);
    assert!(f64s(&[1.0], &[1]).expand([3]).unwrap().add_(1.0).is_err());
}

#[test]
fn crossed_writes_from_two_threads_finish() {
    let (x, y) = (f32s(&[1.0; 64], &[64]), f32s(&[1.0; 64], &[64]));
    std::thread::scope(|s| {
        for (a, b) in [(&x, &y), (&y, &x)] {
            s.spawn(move || {
                for _ in 0..2000 {
                    a.add_(b).unwrap();
                    // However the writes interleave, a sum is at most three times the larger operand, so the values
                    // cannot grow.
                    a.mul_(0.25).unwrap();
                }
            });
        }
    });
    assert!([&x, &y].iter().all(|t| t.to_vec::<f32>().unwrap().iter().all(|&v| (0.0..=1.0).contains(&v))));
}

#[test]
fn backward_needs_a_scalar_and_a_graph() {
    let x = f64s(&[3.0, 1.0], &[2]);
    assert!(x.sum_all().unwrap().backward().unwrap_err().to_string().contains("with_grad"));
    let x = x.with_grad().unwrap();
    assert!(x.square().unwrap().backward().unwrap_err().to_string().contains("seed"));
    assert!(i64s(&[1], &[1]).with_grad().is_err());
    assert!(grad(&[&x.sum_all().unwrap()], &[&f64s(&[1.0], &[1])], None, BackwardOptions::new()).is_err());
}

#[test]
fn half_precision_gradients_have_the_dtype_of_their_input() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = f32s(&[1.5, -2.0], &[2]).to_dtype(dtype).unwrap().with_grad().unwrap();
        let w = f32s(&[2.0, 4.0], &[2]).with_grad().unwrap();
        let y = x.mul(&w).unwrap().gelu().unwrap().sum_all().unwrap();
        let g = y.backward().unwrap();
        assert_eq!(g.get(&x).unwrap().dtype(), dtype);
        assert_eq!(g.get(&w).unwrap().dtype(), DType::F32);
    }
}

#[test]
fn threads_on_disjoint_graphs_do_not_meet() {
    let handles: Vec<_> = (0..4)
        .map(|i| {
            std::thread::spawn(move || {
                let x = Tensor::full([8], i as f64, DType::F64, &cpu()).unwrap().with_grad().unwrap();
                let y = x.square().unwrap().sum_all().unwrap();
                y.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap()
            })
        })
        .collect();
    for (i, h) in handles.into_iter().enumerate() {
        assert_eq!(h.join().unwrap(), [2.0 * i as f64; 8]);
    }
}

#[test]
fn a_gradient_beside_writes_of_another_thread_is_right_or_an_error() {
    let x = f64s(&[1.0; 16], &[16]).with_grad().unwrap();
    let w = f64s(&[0.0; 16], &[16]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut k = 0.0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                k += 1.0;
                w.fill_(k).unwrap();
            }
        });
        for _ in 0..3000 {
            let y = x.mul(&w).unwrap();
            let value = y.to_vec::<f64>().unwrap()[0];
            if let Ok(g) = y.sum_all().unwrap().backward() {
                assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [value; 16]);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn ties_beyond_the_range_of_half_precision_share_the_gradient() {
    let x = Tensor::zeros([70_000], DType::BF16, &cpu()).unwrap().with_grad().unwrap();
    let g = x.max_all().unwrap().backward().unwrap();
    let sum = g.get(&x).unwrap().to_dtype(DType::F32).unwrap().sum_all().unwrap().item().unwrap();
    assert!((sum - 1.0).abs() < 0.01, "{sum}");
}

#[test]
fn mixed_second_derivative_of_a_power_at_exponent_zero() {
    let a = f64s(&[2.0], &[1]).with_grad().unwrap();
    let b = f64s(&[0.0], &[1]).with_grad().unwrap();
    let y = a.pow(&b).unwrap();
    let g = grad(&[&y], &[&a, &b], None, BackwardOptions::new().create_graph()).unwrap();
    let ab = grad(&[g[0].as_ref().unwrap()], &[&b], None, BackwardOptions::new().retain_graph()).unwrap();
    let ba = grad(&[g[1].as_ref().unwrap()], &[&a], None, BackwardOptions::new()).unwrap();
    for mixed in [&ab[0], &ba[0]] {
        assert_close(&[mixed.as_ref().unwrap().item().unwrap()], &[0.5], 1e-12);
    }
}

#[test]
fn an_ignored_row_has_no_gradient_whatever_its_logits_are() {
    let x = f64s(&[1.0, 2.0, f64::NAN, 1.0], &[2, 2]).with_grad().unwrap();
    let target = i64s(&[0, -100], &[2]);
    let options = [BackwardOptions::new(), BackwardOptions::new().create_graph()];
    for options in options {
        let loss = x.cross_entropy_with(&target, None, Some(-100), 0.1, gradus_tensor::Reduction::Mean).unwrap();
        let g = grad(&[&loss], &[&x], None, options).unwrap()[0].as_ref().unwrap().to_vec::<f64>().unwrap();
        assert!(g[0].abs() > 0.1 && g[2..] == [0.0, 0.0], "{g:?}");
    }
    // An ignored index that the targets' dtype cannot hold matches no target.
    let target = i64s(&[0, 1], &[2]).to_dtype(DType::U32).unwrap();
    let x = f64s(&[1.0, 2.0, 0.0, 1.0], &[2, 2]);
    assert!(
        x.cross_entropy_with(&target, None, Some(-100), 0.0, gradus_tensor::Reduction::Mean).unwrap().item().is_ok()
    );
}

#[test]
fn repeated_places_add_up_on_any_number_of_threads() {
    let n = 400_000;
    let index = i64s(&[1], &[1]).expand([n]).unwrap();
    let ones = Tensor::ones([n], DType::F32, &cpu()).unwrap();
    for _ in 0..5 {
        let y = Tensor::zeros([3], DType::F32, &cpu()).unwrap().scatter_add(0, &index, &ones).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, n as f32, 0.0]);
    }
}

#[test]
fn gradients_of_several_passes_add_up() {
    let (a, b, c) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]), leaf(&[5.0, 6.0]));
    let mut all = a.mul(&b).unwrap().sum_all().unwrap().backward().unwrap();
    let more = a.square().unwrap().add(&c).unwrap().sum_all().unwrap().backward().unwrap();
    all.add(more).unwrap();
    assert_eq!(all.len(), 3);
    let of = |x: &Tensor| all.get(x).unwrap().to_vec::<f64>().unwrap();
    assert_eq!((of(&a), of(&b), of(&c)), (vec![5.0, 8.0], vec![1.0, 2.0], vec![1.0, 1.0]));
    assert!(!all.get(&a).unwrap().requires_grad());
}
