//! Looking at graphs.
#![allow(clippy::unwrap_used)]

mod common;

use common::f64s;
use gradus_tensor::BackwardOptions;

#[test]
fn stats_count_nodes_and_each_kept_storage_once() {
    let x = f64s(&[1.0, 2.0], &[2]).require_grad().unwrap();
    // Both products keep x; the second also keeps the first.
    let y = x.mul(&x).unwrap().mul(&x).unwrap().sum_all().unwrap();
    let stats = y.graph_stats();
    assert_eq!((stats.nodes, stats.leaves, stats.by_op.len()), (5, 1, 3));
    assert_eq!(stats.by_op["mul"].nodes, 2);
    let one = x.mul(&x).unwrap().graph_stats().saved_bytes;
    assert!(one >= 16, "{one}");
    assert_eq!(stats.saved_bytes, 2 * one);
    assert_eq!(stats.by_op.values().map(|o| o.saved_bytes).sum::<usize>(), stats.saved_bytes);
    y.backward_with(BackwardOptions::new()).unwrap();
    assert_eq!(y.graph_stats().saved_bytes, 0, "freed");
    assert_eq!(x.detach().graph_stats(), Default::default());
}

#[test]
fn dot_shows_operations_kept_values_lines_and_arrows() {
    let x = f64s(&[1.0, 2.0], &[2]).require_grad().unwrap();
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
