//! Inspecting graphs.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{f64s, leaf};
use gradus_tensor::autograd::{self, Context};
use gradus_tensor::{BackwardOptions, CustomOp, DType, Result, Tensor, apply_custom, grad};

#[test]
fn stats_count_nodes_and_each_kept_storage_once() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    // Both products keep `x`. The second one also keeps the result of the first.
    let y = x.mul(&x).unwrap().mul(&x).unwrap().sum_all().unwrap();
    let stats = y.graph_stats();
    assert_eq!((stats.nodes, stats.leaves, stats.by_op.len()), (5, 1, 3));
    assert_eq!(stats.by_op["mul"].nodes, 2);
    let one = x.mul(&x).unwrap().graph_stats().saved_bytes;
    assert!(one >= 16, "{one}");
    assert_eq!(stats.saved_bytes, 2 * one);
    assert_eq!(stats.by_op.values().map(|o| o.saved_bytes).sum::<usize>(), stats.saved_bytes);
    let _ = y.backward_with(BackwardOptions::new()).unwrap();
    assert_eq!(y.graph_stats().saved_bytes, 0, "freed");
    assert_eq!(x.detach().graph_stats(), Default::default());
}

#[test]
fn stats_count_what_hooks_packed_where_it_is_tensors() {
    let x = f64s(&[1.0; 100], &[100]).with_grad().unwrap();
    let half = || autograd::saved_tensors_hooks_guard(|t| t.to_dtype(DType::F32), |p: &Tensor| p.to_dtype(DType::F64));
    let list = || autograd::saved_tensors_hooks_guard(|t| Ok(vec![t.copy()?]), |p: &Vec<Tensor>| p[0].copy());
    let numbers = || {
        let make = |p: &Vec<f64>| Tensor::from_vec(p.clone(), [p.len()], &common::cpu());
        autograd::saved_tensors_hooks_guard(Tensor::to_vec::<f64>, make)
    };
    let bytes = |guard: autograd::SavedTensorsHooksGuard| {
        let y = x.exp().unwrap();
        drop(guard);
        y.graph_stats().saved_bytes
    };
    let whole = x.copy().unwrap().exp().unwrap().graph_stats().saved_bytes;
    assert_eq!((bytes(list()), bytes(half()) >= 400, bytes(half()) < whole, bytes(numbers())), (whole, true, true, 0));
}

#[test]
fn every_report_has_the_name_of_the_operation() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).with_grad().unwrap();
    for (y, name) in [
        (x.sum(&[0], false).unwrap(), "sum"),
        (x.matmul(&x).unwrap(), "matmul"),
        (x.log_softmax(1).unwrap(), "log_softmax"),
    ] {
        let stats = y.graph_stats();
        assert!(stats.by_op.contains_key(name), "{stats}");
        assert!(y.to_dot().contains(&format!("label=\"{name}")), "{}", y.to_dot());
    }
    let text = format!("{:?}", x.log_softmax(1).unwrap().grad_fn().unwrap());
    assert!(text.starts_with("log_softmax { log: true, axis: 1 } at "), "{text}");
}

#[test]
fn dot_shows_operations_kept_values_lines_and_arrows() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let w = f64s(&[3.0, 4.0], &[2]);
    w.add_(1.0).unwrap();
    let y = x.mul(&w).unwrap();
    let line = line!() - 1;
    let dot = y.add(&x).unwrap().to_dot();
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("keeps input 1: [2] f64, version 1"), "{dot}");
    assert!(dot.contains(&format!("inspect.rs:{line}:")), "{dot}");
    assert_eq!(dot.matches("shape=ellipse").count(), 1);
    for arrow in ["n0 -> n1;", "n1 -> n2;", "n0 -> n2;"] {
        assert!(dot.contains(arrow), "{dot}");
    }
    assert_eq!(w.to_dot(), "digraph gradients {\n}\n");
}

#[test]
fn a_node_prints_its_parameters_operands_and_kept_values() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let w = f64s(&[3.0, 4.0], &[2]);
    let y = x.clamp(0.0, 1.5).unwrap().mul(&w).unwrap();
    let node = y.grad_fn().unwrap();
    let line = line!() - 2;
    assert_eq!(format!("{node:?}"), format!("mul at crates/gradus-tensor/tests/inspect.rs:{line}:{}", column_of_mul()));
    let text = format!("{node:#?}");
    for part in ["\n  input 0: [2] f64 from clamp[0.0, 1.5] at ", "\n  input 1: requires no gradient"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains("\n  output 0: [2] f64\n  keeps input 1: [2] f64, version 0"), "{text}");
    assert!(node.stale().is_empty() && !text.contains("wrote"), "{text}");
    w.narrow(0, 1, 1).unwrap().fill_(0.0).unwrap();
    let stale = node.stale();
    assert_eq!((stale.len(), stale[0].0.as_str(), stale[0].1.op), (1, "input 1", "fill_"));
    for text in [format!("{node:#?}"), y.to_dot()] {
        let part = format!("keeps input 1: [2] f64, version 0; fill_ wrote over it at {}:{}:", file!(), line!() - 4);
        assert!(text.contains(&part), "{text}");
    }
    // A write to other elements makes nothing stale.
    let both = f64s(&[1.0; 4], &[4]);
    let z = x.mul(both.narrow(0, 0, 2).unwrap()).unwrap();
    both.narrow(0, 2, 2).unwrap().fill_(0.0).unwrap();
    assert!(z.grad_fn().unwrap().stale().is_empty());
    let _ = z.sum_all().unwrap().backward().unwrap();
    assert!(
        z.grad_fn().unwrap().is_freed() && format!("{:#?}", z.grad_fn().unwrap()).ends_with("freed by a backward pass")
    );
}

/// The column of `.mul` in the line that the test above checks.
fn column_of_mul() -> usize {
    "    let y = x.clamp(0.0, 1.5).unwrap().".len() + 1
}

#[test]
fn stats_print_what_keeps_most_first() {
    let x = f64s(&[1.0; 8], &[8]).with_grad().unwrap();
    let y = x.mul(&x).unwrap().exp().unwrap().add(1.0).unwrap();
    let stats = y.graph_stats();
    let text = stats.to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next().unwrap(), format!("4 nodes, 1 of them leaves; {} bytes kept", stats.saved_bytes));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("  exp ") || lines[0].starts_with("  mul "), "{text}");
    assert!(lines[2].ends_with(" 0 bytes"), "{text}");
}

#[test]
fn a_leaf_shows_the_line_that_made_it() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let here = format!("inspect.rs:{}:", line!() - 1);
    let y = x.exp().unwrap();
    let leaf = y.grad_fn().unwrap().inputs().flatten().next().unwrap();
    assert!(leaf.is_leaf() && format!("{leaf:?}").contains(&here), "{leaf:?}");
    assert!(y.to_dot().contains(&here) && !y.to_dot().contains("tensor.rs"), "{}", y.to_dot());
}

/// The identity, under any name.
struct Named(&'static str);

impl CustomOp for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].copy()?])
    }
    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![g[0].clone()])
    }
}

#[test]
fn dot_escapes_whatever_a_name_holds() {
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let y = apply_custom(&Arc::new(Named("a\r\0b\"\\\nc")), &[&x]).unwrap().swap_remove(0);
    let dot = y.to_dot();
    assert!(dot.contains(r#"a\\r\\u{0}b\"\\\nc"#), "{dot}");
    assert!(!dot.contains(['\r', '\0']), "{dot:?}");
}

#[test]
fn what_a_recorded_pass_computes_has_the_line_of_the_operation_whose_gradient_it_is() {
    let x = leaf(&[0.5]);
    let y = x.sin().unwrap();
    let line = y.grad_fn().unwrap().location().line();
    let z = y.mul(&y).unwrap();
    let lines = [line, z.grad_fn().unwrap().location().line()];
    let g = grad(&[&z], &[&x], None, BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap();
    let mut nodes = vec![g.grad_fn().unwrap().clone()];
    let mut seen = 0;
    while let Some(node) = nodes.pop() {
        if !node.is_leaf() {
            assert!(node.location().file().ends_with("tests/inspect.rs"), "{node:?}");
            assert!(lines.contains(&node.location().line()), "{node:?}");
        }
        seen += 1;
        nodes.extend(node.inputs().flatten().cloned());
    }
    assert!(seen > 4);
    // A node that the user records afterwards has the user's line again.
    assert!(g.exp().unwrap().grad_fn().unwrap().location().line() > lines[1]);
}
