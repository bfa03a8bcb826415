//! Each pass keeps the bits, and does what it is for.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, random};
use gradus_graph::{Graph, MemoryLimit, Origin, capture};
use gradus_nn::{Dropout, Forward};
use gradus_tensor::ops::Op;
use gradus_tensor::{DType, Generator, Result, Tensor};

/// Compares replays with eager calls of an equal function, and returns the graph.
fn graph_of<F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>>(make: impl Fn() -> F) -> Graph {
    graph_within(MemoryLimit::default(), make).0
}

/// The same with a limit on memory. Returns the bytes of temporary values too.
fn graph_within<F>(limit: MemoryLimit, make: impl Fn() -> F) -> (Graph, usize)
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    let device = device();
    let (mut step, mut eager) = (capture(make()), make());
    step.limit_memory(limit);
    for i in 0..5 {
        let inputs = || [random(&[6, 6], i, &device), random(&[6, 6], 50 + i, &device)];
        let (own, other) = (inputs(), inputs());
        let (got, want) = (step.call(&[&own[0], &own[1]]).unwrap(), eager(&other).unwrap());
        for (got, want) in got.iter().chain(&own).zip(want.iter().chain(&other)) {
            assert_eq!(got.to_bytes().unwrap(), want.to_bytes().unwrap(), "call {i}");
        }
    }
    assert_eq!(step.replays(), 3);
    (step.graph().unwrap().clone(), step.temporary_bytes().unwrap())
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|n| n.op.name()).collect()
}

#[test]
fn what_was_computed_before_is_not_computed_again() {
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let a = x[0].matmul(&x[1])?.softmax(-1)?;
            let b = x[0].matmul(&x[1])?.softmax(-1)?;
            Ok(vec![a.matmul(&b)?, x[0].matmul(&x[1])?.sum_all()?])
        }
    });
    assert_eq!(names(&graph), ["matmul", "softmax", "matmul", "sum"]);
}

#[test]
fn equal_operations_on_other_versions_are_kept() {
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let a = x[0].sum(&[0], false)?;
            x[0].mul_(2.0)?;
            let b = x[0].sum(&[0], false)?;
            // Equal results, of which one is written, and which are both returned.
            let c = x[1].sum(&[0], false)?;
            c.add_(1.0)?;
            let d = x[1].sum(&[0], false)?;
            Ok(vec![a, b, c, d.clone(), d, x[1].sum(&[0], false)?])
        }
    });
    assert_eq!(names(&graph).iter().filter(|n| **n == "sum").count(), 5);
}

#[test]
fn what_depends_on_numbers_of_the_host_alone_is_computed_once() {
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let places = Tensor::arange(0, 6, 1, DType::F32, x[0].device())?;
            let weights = places.mul(0.5)?.exp()?.softmax(0)?;
            Ok(vec![x[0].mul(&weights)?.sum(&[1], false)?, x[0].matmul(&places.reshape([6, 1])?)?])
        }
    });
    assert_eq!(names(&graph), ["mul", "sum", "matmul"]);
    assert!(graph.memories.iter().filter(|m| matches!(m.origin, Origin::Constant(_))).count() >= 2);
    // What is written or returned is computed in each replay, and so is what is large.
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let [count, fresh] = [0, 1].map(|from| Tensor::arange(from, 6 + from, 1, DType::F32, x[0].device()));
            let (count, fresh) = (count?, fresh?);
            count.add_(&x[0].sum(&[0], false)?)?;
            let large = Tensor::arange(0, 300_000, 1, DType::F32, x[0].device())?;
            Ok(vec![x[0].add(&count)?, fresh.exp()?, fresh, large.max_all()?.add(&x[0])?])
        }
    });
    assert_eq!(names(&graph).iter().filter(|n| **n == "arange").count(), 3);
}

#[test]
fn random_draws_are_never_common() {
    let graph = graph_of(|| {
        let dropout = Dropout::new(0.5, &mut Generator::new(3)).unwrap();
        move |x: &[Tensor]| Ok(vec![dropout.forward(&x[0])?.matmul(&dropout.forward(&x[0])?)?])
    });
    assert_eq!(names(&graph).iter().filter(|n| **n == "random").count(), 2);
}

#[test]
fn a_graph_that_is_broken_is_found() {
    let graph = graph_of(|| |x: &[Tensor]| Ok(vec![x[0].matmul(&x[1])?.sum(&[0], false)?.exp()?]));
    graph.check().unwrap();
    let broken = |change: fn(&mut Graph), part: &str| {
        let mut graph = graph.clone();
        change(&mut graph);
        let e = graph.check().unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("passes.rs"), "{e}");
    };
    broken(|g| drop(g.nodes.remove(0)), "is read when it is None");
    broken(|g| g.nodes.swap(0, 1), "is read when it is None");
    broken(|g| g.nodes[1].outputs[0].dtype = DType::F64, "it infers f32[1, 6]");
    broken(|g| g.nodes[0].inputs[0].version = 3, "is read when it is Some(0)");
    broken(|g| g.memories[g.nodes[0].outputs[0].memory].bytes = 8, "ends at byte 144 of 8");
    broken(|g| g.nodes[0].inputs[0].memory = 99, "there is no memory 99");
}

#[test]
fn an_operation_that_can_fail_is_not_moved_behind_a_write() {
    let device = device();
    let numbers = |n: i64| Tensor::from_vec(vec![n; 4], [4], &device).unwrap();
    let step = |x: &[Tensor]| {
        let rest = x[0].remainder(&x[1])?;
        x[2].add_(1)?;
        Ok(vec![rest.add(5)?])
    };
    let mut captured = capture(step);
    for (i, divisor) in [3, 4, 5, 0, 7].into_iter().enumerate() {
        let (count, other) = (numbers(0), numbers(0));
        let got = captured.call(&[&numbers(9), &numbers(divisor), &count]);
        let want = step(&[numbers(9), numbers(divisor), other.clone()]);
        assert_eq!(count.to_bytes().unwrap(), other.to_bytes().unwrap(), "call {i}");
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got[0].to_bytes().unwrap(), want[0].to_bytes().unwrap()),
            (Err(got), Err(want)) => {
                assert_eq!((i, got.kind(), got.location(), got.op()), (3, want.kind(), want.location(), want.op()));
            }
            (got, want) => panic!("call {i}: {got:?}, eagerly {want:?}"),
        }
    }
}

#[test]
fn a_value_of_few_elements_that_is_read_again_is_a_second_result() {
    let step = |copies: usize| {
        let graph = graph_of(|| {
            move |x: &[Tensor]| {
                let a = x[0].unsqueeze(0)?.expand([copies, 6, 6])?.exp()?;
                let b = a.add(&x[1])?;
                let c = b.tanh()?;
                Ok(vec![c.matmul(&a)?.matmul(&b)?])
            }
        });
        names(&graph).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(step(2), ["exp+add+tanh", "matmul", "matmul"]);
    assert_eq!(step(200), ["exp", "add", "tanh", "matmul", "matmul"]);
    // What the first reads is written before the second runs.
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let a = x[0].exp()?;
            x[0].mul_(2.0)?;
            Ok(vec![a.add(&x[1])?.matmul(&a)?])
        }
    });
    assert_eq!(names(&graph), ["exp", "mul", "add", "matmul"]);
}

#[test]
fn only_values_that_are_read_again_are_results_of_a_joined_kernel() {
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let a = x[0].exp()?; // for both readers, which are joined
            Ok(vec![a.add(&a.tanh()?)?])
        }
    });
    assert_eq!((names(&graph), graph.nodes[0].outputs.len()), (vec!["exp+tanh+add"], 1));
}

#[test]
fn a_joined_kernel_with_several_results_has_at_most_seven_operands() {
    let chain = |scaled: bool| {
        graph_of(|| {
            move |x: &[Tensor]| {
                let mut values = vec![x[0].exp()?];
                for i in 1..8 {
                    let last = &values[i - 1];
                    values.push(if scaled { last.mul(0.1 * i as f64)? } else { last.tanh()? });
                }
                Ok(vec![values.iter().try_fold(x[1].clone(), |product, value| product.matmul(value))?])
            }
        })
    };
    for (scaled, most) in [(false, 2), (true, 3)] {
        let graph = chain(scaled);
        let operands = |op: &Op| if let Op::Map(map) = op { Some(map.args.len()) } else { None };
        let operands = graph.nodes.iter().filter_map(|n| Some(operands(&n.op)? + n.outputs.len()));
        let operands: Vec<usize> = operands.collect();
        assert!(operands.len() <= most && operands.iter().all(|&n| n <= 7), "{operands:?} in {graph}");
    }
}

#[test]
fn small_operations_are_joined_only_if_that_takes_little_memory() {
    // `large` is read for the last time when `a` is computed, and another operation follows before the next reader of `a`.
    let step = |copies: usize, limit: MemoryLimit| {
        let graph = graph_within(limit, || {
            move |x: &[Tensor]| {
                let large = x[0].unsqueeze(0)?.expand([copies, 6, 6])?.exp()?;
                let a = large.narrow(0, 0, 1)?.tanh()?;
                let b = a.add(&x[0].matmul(&x[1])?)?;
                Ok(vec![b.matmul(&a)?])
            }
        });
        names(&graph.0).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(step(200, MemoryLimit::Cheap), ["exp", "matmul", "tanh+add", "matmul"]);
    assert_eq!(step(400, MemoryLimit::Cheap), ["exp", "tanh", "matmul", "add", "matmul"]);
    assert_eq!(step(200, MemoryLimit::Bytes(usize::MAX)), ["exp", "tanh", "matmul", "add", "matmul"]);
}

#[test]
fn an_elementwise_operation_writes_over_an_input_at_its_last_use() {
    let (graph, bytes) = graph_within(MemoryLimit::default(), || {
        |x: &[Tensor]| {
            let product = x[0].matmul(&x[1])?;
            let sum = product.exp()?.add(&x[0])?; // over the product
            let last = sum.matmul(&sum)?.mul(&sum)?.sub(0.5)?; // over the second product, which is named first
            Ok(vec![last.matmul(&x[1])?])
        }
    });
    assert_eq!(graph.nodes.iter().map(|n| n.in_place).collect::<Vec<_>>(), [false, true, false, true, false]);
    assert_eq!(bytes, 2 * 6 * 6 * 4);
}

#[test]
fn what_is_read_later_or_leaves_the_step_is_not_written_over() {
    let graph = graph_of(|| {
        |x: &[Tensor]| {
            let a = x[0].matmul(&x[1])?;
            let b = a.exp()?; // `a` is read later
            let c = a.t()?.tanh()?; // a transposed view
            let d = c.matmul(&b)?;
            let e = d.sum(&[0], true)?;
            let f = e.add(&b)?; // `e` is stretched, and `b` is written over
            let h = x[0].matmul(&f)?;
            let g = f.to_dtype(DType::F64)?; // another dtype
            Ok(vec![h.exp()?, h, g.sum_all()?])
        }
    });
    let in_place: Vec<&str> = graph.nodes.iter().filter(|n| n.in_place).map(|n| n.op.name()).collect();
    assert_eq!(in_place, ["add"]);
}

/// Products whose factors and inputs are needed again at the end, in the opposite order, as in a backward pass.
fn there_and_back(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let (mut y, mut kept) = (x[0].mul(0.1)?, vec![]);
    for _ in 0..6 {
        let input = y.matmul(&x[1])?.mul(0.1)?;
        let gelu = input.gelu()?;
        y = input.add(&gelu.matmul(&x[1])?)?;
        kept.push((input, gelu));
    }
    for (input, gelu) in kept.iter().rev() {
        y = y.matmul(gelu)?.add(input)?;
    }
    Ok(vec![y])
}

#[test]
fn less_memory_is_more_arithmetic_and_the_same_bits() {
    let plan = |bytes: usize| {
        let (graph, bytes) = graph_within(MemoryLimit::Bytes(bytes), || there_and_back);
        (graph.nodes.len(), bytes)
    };
    let [(all, most), (some, within), (many, least)] = [usize::MAX, 11 * 144, 0].map(plan);
    assert!(all < some && some < many, "{all}, {some}, {many} operations");
    assert!(least < within && within <= 11 * 144 && within < most, "{least}, {within}, {most} bytes");
}

/// As [`there_and_back`], with values of three sizes, so that there are gaps between those that share memory.
fn there_and_back_wide(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let wide = Tensor::cat(&[&x[1], &x[0], &x[1], &x[0]], 1)?;
    let (mut y, mut kept) = (x[0].clone(), vec![]);
    for _ in 0..5 {
        let (input, hidden) = (y.softmax(-1)?, y.matmul(&wide)?);
        let gelu = hidden.gelu()?;
        y = gelu.matmul(&wide.t()?)?.add(&input)?.tanh()?;
        kept.push((input, hidden, gelu));
    }
    for (input, hidden, gelu) in kept.iter().rev() {
        let half = hidden.narrow(1, 0, 12)?.exp()?;
        y = y.matmul(gelu)?.mul(hidden)?.matmul(&wide.t()?)?.add(input)?.tanh()?.add(&half.sum(&[1], true)?.tanh()?)?;
    }
    Ok(vec![y])
}

#[test]
fn a_limit_on_memory_counts_the_gaps_between_values() {
    let within = |limit: usize| graph_within(MemoryLimit::Bytes(limit), || there_and_back_wide).1;
    let (least, most) = (within(0), within(usize::MAX));
    assert!(least < most, "{least} of {most} bytes");
    for limit in (least..most).step_by(144) {
        assert!(within(limit) <= limit, "{} bytes, {limit} are allowed", within(limit));
    }
}

#[test]
fn a_value_whose_inputs_change_is_not_computed_again() {
    let step = || {
        |x: &[Tensor]| {
            let a = x[0].exp()?;
            let b = a.matmul(&x[1])?;
            x[0].add_(1.0)?; // `a` can no longer be computed
            let c = b.matmul(&b)?.matmul(&b)?.matmul(&x[1])?;
            Ok(vec![c.matmul(&a)?])
        }
    };
    let (graph, _) = graph_within(MemoryLimit::Bytes(0), step);
    assert_eq!(names(&graph).iter().filter(|n| **n == "exp").count(), 1);
}
