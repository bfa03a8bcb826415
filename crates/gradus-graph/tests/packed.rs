//! The weights of products are copied into panels once, and again after they have changed.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{bits, device, random};
use gradus_graph::{Graph, MemoryLimit, Origin, Panels, Step, capture};
use gradus_tensor::{ConvOptions, Device, Result, Tensor, no_grad};

fn names(graph: &Graph) -> Vec<&str> {
    graph.nodes.iter().map(|n| n.op.name()).collect()
}

fn panels(graph: &Graph) -> Vec<Arc<Panels>> {
    let of = |o: &Origin| if let Origin::Panels(panels) = o { Some(panels.clone()) } else { None };
    graph.memories.iter().filter_map(|m| of(&m.origin)).collect()
}

/// Columns that fill three panels.
fn columns(device: &Device) -> usize {
    3 * device.info().f32_panel.unwrap()
}

/// Calls a step on inputs `[rows, 40]`, and compares each result with that of the function.
fn calls<F>(step: &mut Step<F>, eager: impl Fn(&Tensor) -> Result<Tensor>, rows: usize, count: u64, device: &Device)
where
    F: FnMut(&[Tensor]) -> Result<Tensor>,
{
    for seed in 0..count {
        let x = random(&[rows, 40], seed, device);
        assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&eager(&x).unwrap()), "{rows} rows, call {seed}");
    }
}

#[test]
fn weights_are_copied_once_for_all_sizes_and_again_when_they_have_changed() {
    let device = device();
    let n = columns(&device);
    let (w, b, v) = (random(&[n, 40], 1, &device), random(&[n], 2, &device), random(&[n, n], 3, &device));
    // The weight is read twice, once as it lies; the inputs of the second product have three axes.
    let f = |x: &Tensor| {
        let y = x.linear(&w, Some(&b))?.tanh()?.unsqueeze(0)?.matmul(&v)?;
        y.add(&x.linear(&w, None)?)
    };
    let mut step = capture(|x| f(&x[0]));
    calls(&mut step, f, 5, 4, &device);
    let graph = step.graph().unwrap();
    assert_eq!(names(graph).iter().filter(|name| **name == "linear_panels").count(), 3, "{graph}");
    let first = panels(graph);
    assert_eq!(first.len(), 2);
    for rows in [1, 2, 13, 200] {
        calls(&mut step, f, rows, 3, &device);
        let again = panels(step.graph().unwrap());
        assert!(again.len() == 2 && again.iter().zip(&first).all(|(a, b)| Arc::ptr_eq(a, b)), "{rows} rows");
    }
    for seed in 0..3 {
        no_grad(|| w.narrow(0, 3, 9)?.copy_(&random(&[9, 40], seed, &device))).unwrap();
        calls(&mut step, f, 5, 2, &device);
    }
    // One row is another form, which is traced twice; the other sizes are traced once.
    assert_eq!(step.replays(), 2 + 1 + 2 + 2 + 2 + 6);
}

#[test]
fn weights_of_convolutions_are_copied_once_for_all_sizes_and_freed_with_the_plans() {
    let device = device();
    let (w, v) = (random(&[40, 9, 3, 3], 1, &device), random(&[24, 40, 1, 1], 2, &device));
    let same = ConvOptions::new().padding([1, 1]);
    let f = |x: &Tensor| x.conv2d(&w, None, same)?.conv2d(&v, None, ConvOptions::new());
    let before = device.memory_stats().in_use;
    let mut step = capture(|x| f(&x[0]));
    let mut first: Vec<Arc<Panels>> = vec![];
    for size in [7, 1, 4, 20] {
        for seed in 0..4 {
            let x = random(&[2, 9, size, size + 1], seed, &device);
            assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&f(&x).unwrap()), "{size}, call {seed}");
        }
        let now = panels(step.graph().unwrap());
        assert_eq!(now.len(), 2);
        assert!(first.is_empty() || now.iter().zip(&first).all(|(a, b)| Arc::ptr_eq(a, b)), "{size}");
        first = now;
    }
    // Two of the sizes are traced twice: the first, and the one with an axis of size 1.
    assert_eq!(step.replays(), 2 + 2 + 3 + 3);
    no_grad(|| w.mul_(0.5)).unwrap();
    let x = random(&[2, 9, 7, 8], 9, &device);
    assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&f(&x).unwrap()));
    // With more positions, packing is a small part of a convolution.
    for seed in 0..3 {
        let _ = step.call(&[&random(&[2, 9, 40, 40], seed, &device)]).unwrap();
    }
    assert!(panels(step.graph().unwrap()).is_empty());
    drop((step, first, x));
    assert_eq!(device.memory_stats().in_use, before);
}

#[test]
fn a_replay_reads_the_copied_weight_of_a_convolution_in_place() {
    let device = device();
    for (shape, size) in [([64, 64, 3, 3], 3), ([136, 264, 1, 1], 3)] {
        let (w, x) = (random(&shape, 1, &device), random(&[1, shape[1], size, size], 2, &device));
        let mut step = capture(|x| x[0].conv2d(&w, None, ConvOptions::new()));
        let want = bits(&x.conv2d(&w, None, ConvOptions::new()).unwrap());
        for _ in 0..3 {
            assert_eq!(bits(&step.call(&[&x]).unwrap()), want);
        }
        assert_eq!(panels(step.graph().unwrap()).len(), 1);
        // Room for results, but not for another copy.
        device.backend().trim().unwrap();
        device
            .backend()
            .set_memory_budget(Some(device.memory_stats().in_use + shape.iter().product::<usize>()))
            .unwrap();
        assert_eq!(bits(&step.call(&[&x]).unwrap()), want, "{shape:?}");
        assert_eq!(step.replays(), 2);
        device.backend().set_memory_budget(None).unwrap();
    }
}

#[test]
fn weights_of_convolutions_stay_where_windows_cover_too_much_to_be_copied() {
    let device = device();
    for (channels, packed) in [(9, 1), (64, 0)] {
        let w = random(&[8, channels, 3, 3], 1, &device);
        let wide = ConvOptions::new().padding([1, 1]).dilation([40, 40]);
        let x = random(&[1, channels, 90, 90], 2, &device);
        let mut step = capture(|x| x[0].conv2d(&w, None, wide));
        let want = bits(&x.conv2d(&w, None, wide).unwrap());
        for _ in 0..3 {
            assert_eq!(bits(&step.call(&[&x]).unwrap()), want);
        }
        assert_eq!(panels(step.graph().unwrap()).len(), packed, "{channels} channels");
    }
    // Without positions there is nothing to gain.
    let w = random(&[8, 9, 3, 3], 1, &device);
    let mut step = capture(|x| x[0].conv2d(&w, None, ConvOptions::new().padding([1, 1])));
    for _ in 0..3 {
        assert_eq!(step.call(&[&random(&[0, 9, 5, 5], 2, &device)]).unwrap().shape(), [0, 8, 5, 5]);
    }
    assert!(panels(step.graph().unwrap()).is_empty());
}

#[test]
fn columns_need_not_fill_many_panels() {
    let device = device();
    for more in [1, 5, columns(&device) / 3 - 1] {
        let n = 2 * columns(&device) + more;
        let (w, b) = (random(&[n, 40], 1, &device), random(&[n], 2, &device));
        let f = |x: &Tensor| x.linear(&w, Some(&b))?.add(&x.linear(&w, None)?);
        let mut step = capture(|x| f(&x[0]));
        for rows in [5, 1, 30] {
            calls(&mut step, f, rows, 4, &device);
            assert_eq!(names(step.graph().unwrap())[..2], ["linear_panels"; 2]);
        }
    }
}

#[test]
fn a_part_of_a_weight_is_another_matrix() {
    let device = device();
    let n = columns(&device);
    let w = random(&[2 * n + 1, 80], 1, &device);
    let f = |x: &Tensor| {
        let halves = [w.narrow(0, 0, n)?.narrow(1, 0, 40)?, w.narrow(0, n + 1, n)?.narrow(1, 40, 40)?];
        x.linear(&halves[0], None)?.mul(&x.matmul(&halves[1].t()?)?)
    };
    let mut step = capture(|x| f(&x[0]));
    calls(&mut step, f, 7, 5, &device);
    assert_eq!(panels(step.graph().unwrap()).len(), 2);
}

#[test]
fn weights_stay_where_copies_would_not_help() {
    let device = device();
    let n = columns(&device);
    let (w, odd) = (random(&[n, 40], 1, &device), random(&[n - 1, 40], 2, &device));
    // The columns do not fill a few panels; there are many rows; memory is limited.
    for (weight, rows, limit) in
        [(&odd, 5, MemoryLimit::Cheap), (&w, 300, MemoryLimit::Cheap), (&w, 5, MemoryLimit::Bytes(usize::MAX))]
    {
        let f = |x: &Tensor| x.linear(weight, None);
        let mut step = capture(|x| f(&x[0]));
        step.limit_memory(limit);
        calls(&mut step, f, rows, 4, &device);
        assert_eq!(names(step.graph().unwrap()), ["linear"]);
    }
    // The step changes the weight itself.
    let kept = w.copy().unwrap();
    let descend = |w: &Tensor, x: &Tensor| {
        let y = x.linear(w, None)?;
        w.mul_(0.5)?;
        Ok(y)
    };
    let mut step = capture(|x| descend(&w, &x[0]));
    calls(&mut step, |x| descend(&kept, x), 5, 5, &device);
    assert_eq!(names(step.graph().unwrap())[0], "linear");
    // Something else changes it between two calls, as an optimiser does.
    let f = |x: &Tensor| x.linear(&w, None);
    let mut step = capture(|x| f(&x[0]));
    for i in 0..5 {
        calls(&mut step, f, 5, 1, &device);
        no_grad(|| w.add_(f64::from(i))).unwrap();
    }
    assert_eq!((step.replays(), names(step.graph().unwrap())), (3, vec!["linear"]));
}

#[test]
fn without_memory_for_a_copy_the_weight_is_read_as_it_is() {
    let device = device();
    let n = 16 * columns(&device);
    let w = random(&[n, 200], 1, &device);
    let f = |x: &Tensor| x.narrow(1, 0, 2)?.matmul(&w.narrow(0, 0, 2)?)?.linear(&w, None);
    let x = random(&[3, 40], 2, &device);
    let want = f(&x).unwrap();
    // Room for the values of the step, but not for a copy of the weight.
    device.backend().trim().unwrap();
    let most = device.memory_stats().in_use + n * 200 * 2;
    device.backend().set_memory_budget(Some(most)).unwrap();
    let mut step = capture(|x| f(&x[0]));
    for _ in 0..5 {
        assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&want));
    }
    assert!(names(step.graph().unwrap()).contains(&"linear"));
    assert_eq!(step.replays(), 3);
}

#[test]
fn without_memory_for_another_copy_the_function_runs() {
    let device = device();
    let n = 16 * columns(&device);
    let w = random(&[n, 40], 1, &device);
    let f = |x: &Tensor| x.linear(&w, None);
    let mut step = capture(|x| f(&x[0]));
    calls(&mut step, f, 3, 4, &device);
    assert_eq!((step.replays(), panels(step.graph().unwrap()).len()), (2, 1));
    no_grad(|| w.mul_(2.0)).unwrap();
    let x = random(&[3, 40], 9, &device);
    let want = bits(&f(&x).unwrap());
    // Without the old copy there is room for results, but not for a new one.
    device.backend().trim().unwrap();
    device.backend().set_memory_budget(Some(device.memory_stats().in_use - n * 40 * 2)).unwrap();
    for _ in 0..2 {
        assert_eq!(bits(&step.call(&[&x]).unwrap()), want);
    }
    assert_eq!(step.replays(), 2);
    device.backend().set_memory_budget(None).unwrap();
    calls(&mut step, f, 3, 2, &device);
    assert_eq!((step.replays(), panels(step.graph().unwrap()).len()), (4, 1));
}

#[test]
fn a_weight_may_be_an_argument_of_its_step() {
    let device = device();
    let n = columns(&device);
    let w = random(&[n, 40], 1, &device);
    let f = |x: &Tensor| x.linear(&w, None);
    let mut step = capture(|x| f(&x[0]));
    calls(&mut step, f, n, 4, &device);
    // The function runs, since the graph cannot tell the argument from the weight.
    assert_eq!(bits(&step.call(&[&w]).unwrap()), bits(&f(&w).unwrap()));
    let x = random(&[n, 40], 9, &device);
    assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&f(&x).unwrap()));
}

#[test]
fn long_rows_and_the_largest_number_of_rows_are_packed() {
    let device = device();
    let n = columns(&device) * 2 + 3;
    let w = random(&[n, 900], 1, &device);
    for (rows, name) in [(256, "linear_panels"), (257, "linear")] {
        let mut step = capture(|x| x[0].linear(&w, None));
        for seed in 0..4 {
            let x = random(&[rows, 900], seed, &device);
            assert_eq!(bits(&step.call(&[&x]).unwrap()), bits(&x.linear(&w, None).unwrap()));
        }
        assert_eq!(names(step.graph().unwrap()), [name]);
    }
}

#[test]
fn a_dropped_weight_makes_the_plan_out_of_date() {
    let device = device();
    let n = columns(&device);
    let w = std::cell::RefCell::new(random(&[n, 40], 1, &device));
    let f = |x: &Tensor| x.linear(&w.borrow(), None);
    let mut step = capture(|x| f(&x[0]));
    for seed in 0..3 {
        calls(&mut step, f, 5, 5, &device);
        *w.borrow_mut() = random(&[n, 40], 10 + seed, &device);
    }
    assert_eq!(step.replays(), 9);
}
