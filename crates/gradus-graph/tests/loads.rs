//! Elementwise operations are joined into the reductions and softmaxes that read their results, with the same bits.
#![allow(clippy::unwrap_used)]

mod common;

use common::device;
use gradus_graph::{Graph, capture};
use gradus_tensor::{DType, Generator, Result, Tensor};

/// A function of two tensors of these sizes, whose elements take at least 8 MiB in f32.
type Step = fn(&[Tensor]) -> Result<Vec<Tensor>>;
const SIZES: [usize; 2] = [2100, 1010];

/// Compares replays with eager calls, and returns the graph.
fn graph_of(dtype: DType, step: Step) -> Graph {
    let device = device();
    let random = |seed| Tensor::randn(SIZES, dtype, &device, &mut Generator::new(seed)).unwrap();
    let (x, y) = (random(1), random(2));
    let mut captured = capture(step);
    for i in 0..3 {
        let inputs = || [x.mul(1.0 + 0.1 * f64::from(i)).unwrap(), y.copy().unwrap()];
        let (own, other) = (inputs(), inputs());
        let (got, want) = (captured.call(&[&own[0], &own[1]]).unwrap(), step(&other).unwrap());
        for (got, want) in got.iter().chain(&own).zip(want.iter().chain(&other)) {
            assert_eq!(got.dtype(), want.dtype());
            assert!(got.to_bytes().unwrap() == want.to_bytes().unwrap(), "call {i}");
        }
    }
    assert_eq!(captured.replays(), 1);
    captured.graph().unwrap().clone()
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|n| n.op.name()).collect()
}

#[test]
fn what_is_only_read_is_computed_where_it_is_loaded() {
    let steps: [(Step, &[&str]); 8] = [
        (|x| Ok(vec![x[0].mul(0.125)?.add(&x[1])?.softmax(-1)?]), &["mul+add+softmax"]),
        (|x| Ok(vec![x[0].sub(&x[1])?.log_softmax(1)?]), &["sub+log_softmax"]),
        (|x| Ok(vec![x[0].sub(&x[1])?.square()?.mean_all()?]), &["sub+square+sum", "div"]),
        (|x| Ok(vec![x[0].mul(&x[1].narrow(0, 5, 1)?)?.sum(&[1], false)?]), &["mul+sum"]),
        // A stretched column, and operands that are not contiguous.
        (|x| Ok(vec![x[0].mul(&x[1].narrow(1, 5, 1)?)?.tanh()?.sum(&[1], true)?]), &["mul+tanh+sum"]),
        (|x| Ok(vec![x[0].t()?.mul(&x[1].t()?.flip(0)?)?.max(&[1], false)?]), &["mul+max"]),
        // Columns are not consecutive.
        (|x| Ok(vec![x[0].exp()?.sum(&[0], false)?, x[1].exp()?.softmax(0)?]), &["exp", "sum", "softmax"]),
        (|x| Ok(vec![x[0].gt(&x[1])?.sum_all()?]), &["sum"]),
    ];
    for (step, want) in steps {
        let graph = graph_of(DType::F32, step);
        let all = names(&graph);
        assert!(want.iter().all(|name| all.contains(name)), "{all:?}, not {want:?}");
    }
}

#[test]
fn a_value_in_half_precision_is_rounded_before_it_is_read() {
    for dtype in [DType::F16, DType::BF16] {
        let graph = graph_of(dtype, |x| {
            let two = || Tensor::cat(&[&x[0], &x[1]], 0);
            let (a, b) = (two()?.mul(1.25)?, two()?.add(0.1)?);
            Ok(vec![a.softmax(-1)?, b.sum(&[1], false)?, two()?.mul(0.3)?.max(&[1], false)?])
        });
        let all = names(&graph);
        assert!(["mul+softmax", "add+sum", "mul+max"].iter().all(|name| all.contains(name)), "{all:?}");
    }
}

#[test]
fn what_else_needs_the_value_keeps_it() {
    let steps: [Step; 5] = [
        // Another operation reads it, or the caller.
        |x| {
            let y = x[0].exp()?;
            Ok(vec![y.sum(&[1], false)?, y.matmul(&x[1].t()?)?])
        },
        |x| {
            let y = x[0].exp()?;
            Ok(vec![y.sum(&[1], false)?, y])
        },
        // Another part of it is read.
        |x| Ok(vec![x[0].exp()?.narrow(0, 1, 2099)?.sum(&[1], false)?]),
        |x| Ok(vec![x[0].exp()?.reshape([1010, 2100])?.sum(&[1], false)?]),
        // What it is computed from is written in between.
        |x| {
            let y = x[0].exp()?;
            x[0].add_(1.0)?;
            Ok(vec![y.sum(&[1], false)?])
        },
    ];
    for (i, step) in steps.into_iter().enumerate() {
        let graph = graph_of(DType::F32, step);
        assert!(names(&graph).contains(&"sum"), "step {i}: {:?}", names(&graph));
    }
    // A small value stays in the cache.
    let graph = graph_of(DType::F32, |x| Ok(vec![x[0].narrow(0, 0, 9)?.exp()?.sum(&[1], false)?]));
    assert!(names(&graph).contains(&"sum"));
}

#[test]
fn a_training_step_has_the_bits_of_an_eager_one() {
    let graph = graph_of(DType::F32, |x| {
        let w = x[1].copy()?.with_grad()?;
        let loss = x[0].mul(&w)?.add(&x[1])?.softmax(-1)?.sub(0.5)?.square()?.mean_all()?;
        let norm = x[0].add(&w)?.layer_norm(&[1010], None, None, 1e-5)?.tanh()?.sum_all()?;
        let gradients = loss.add(&norm)?.backward()?;
        Ok(vec![loss.detach(), gradients.get(&w).unwrap().clone()])
    });
    let joined = |reader: &str| graph.nodes.iter().any(|n| n.op.name().contains('+') && n.op.name().ends_with(reader));
    assert!(joined("+softmax") || joined("+sum"), "{graph}");
}
