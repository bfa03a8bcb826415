//! Captured steps compute the same bits as eager steps, and reject what a replay could not reproduce.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{bits, device, random};
use gradus_graph::{Origin, Step, Text, capture};
use gradus_nn::{BatchNorm2d, BatchNormConfig, Dropout, Forward, Gelu, Init, Linear, Module, Sequential};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor, UpdateFn, autograd, no_grad};

/// Calls the step and the function side by side on the same arguments; all but the first two calls are replays.
fn beside<F, G>(mut step: Step<F>, mut eager: G, inputs: &[Vec<Tensor>]) -> Step<F>
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
    G: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    for (i, inputs) in inputs.iter().enumerate() {
        let want = eager(inputs).unwrap();
        let got = step.call(&inputs.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "call {i}");
            assert_eq!(bits(got), bits(want), "call {i}");
        }
    }
    step
}

static DESCEND: UpdateFn = UpdateFn::new("descend", |x| vec![x[0] - x[2] * x[1]]);

/// A network with dropout and running statistics, and a step of gradient descent on it.
struct Training {
    model: Sequential,
}

impl Training {
    fn new(device: &Device) -> Self {
        let mut rng = Generator::new(3);
        let dropout = Dropout::new(0.25, &mut rng).unwrap();
        let mut init = Init::new(DType::F32, device, &mut rng);
        let mut model = Sequential::new()
            .add(Linear::new(5, 16, &mut init).unwrap())
            .add(BatchNorm2d::new(16, BatchNormConfig::default(), &mut init).unwrap())
            .add(Gelu)
            .add(dropout)
            .add(Linear::new(16, 3, &mut init).unwrap());
        model.train();
        Training { model }
    }

    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Vec<Tensor>> {
        let loss = self.model.forward(x)?.cross_entropy(y)?;
        let gradients = loss.backward()?;
        no_grad(|| -> Result<()> {
            for p in self.model.parameters() {
                let (w, g) = (p.values(), gradients.get(p.tensor()).unwrap());
                DESCEND.apply(&[w], &[w, g], &[0.125])?;
            }
            Ok(())
        })?;
        Ok(vec![loss.detach()])
    }

    fn state(&self) -> Vec<Vec<u8>> {
        self.model.state_dict().unwrap().iter().map(|(_, t)| bits(t)).collect()
    }
}

fn batches(n: usize, rows: usize, device: &Device) -> Vec<Vec<Tensor>> {
    let batch = |i: usize| {
        let labels = (0..rows).map(|r| ((r * 7 + i) % 3) as i64).collect::<Vec<_>>();
        vec![random(&[rows, 5], 10 + i as u64, device), Tensor::from_vec(labels, [rows], device).unwrap()]
    };
    (0..n).map(batch).collect()
}

#[test]
fn a_training_step_has_the_bits_of_eager_ones() {
    let device = device();
    let (mut eager, mut captured) = (Training::new(&device), Training::new(&device));
    let mut step = capture(|x| captured.step(&x[0], &x[1]));
    for inputs in batches(7, 8, &device) {
        let want = eager.step(&inputs[0], &inputs[1]).unwrap();
        let got = step.call(&[&inputs[0], &inputs[1]]).unwrap();
        assert_eq!(bits(&got[0]), bits(&want[0]));
    }
    assert_eq!(step.replays(), 5);
    drop(step);
    assert_eq!(captured.state(), eager.state());
}

#[test]
fn other_sizes_are_traced_once_and_old_ones_are_kept() {
    let device = device();
    let (mut eager, mut captured) = (Training::new(&device), Training::new(&device));
    let mut step = capture(|x| captured.step(&x[0], &x[1]));
    let rows = [8, 8, 8, 4, 4, 4, 8, 4];
    for (i, rows) in rows.into_iter().enumerate() {
        let inputs = &batches(i + 1, rows, &device)[i];
        let want = eager.step(&inputs[0], &inputs[1]).unwrap();
        let got = step.call(&[&inputs[0], &inputs[1]]).unwrap();
        assert_eq!(bits(&got[0]), bits(&want[0]), "call {i}");
    }
    assert_eq!(step.replays(), 5);
    drop(step);
    assert_eq!(captured.state(), eager.state());
}

#[test]
fn elementwise_chains_become_one_kernel() {
    let device = device();
    let f = |x: &[Tensor]| Ok(vec![x[0].exp()?.add(&x[1])?.mul(0.5)?.tanh()?.mul(&x[0])?]);
    let inputs: Vec<_> = (0..4).map(|i| vec![random(&[6, 7], i, &device), random(&[7], 9 + i, &device)]).collect();
    let step = beside(capture(f), f, &inputs);
    assert_eq!(step.graph().unwrap().nodes.len(), 1);
}

#[test]
fn views_of_an_argument_follow_it_through_its_storage() {
    let device = device();
    let all = random(&[12, 6], 1, &device);
    let f = |x: &[Tensor]| Ok(vec![x[0].t()?.matmul(&x[0])?, x[0].narrow(0, 1, 2)?, x[0].sum(&[1], false)?]);
    let inputs: Vec<_> = [0, 3, 6, 9, 0].into_iter().map(|i| vec![all.narrow(0, i, 3).unwrap()]).collect();
    let step = beside(capture(f), f, &inputs);
    assert_eq!(step.replays(), 3);
    // The second result is a view of the argument.
    assert!(
        step.graph()
            .unwrap()
            .results
            .iter()
            .any(|p| matches!(step.graph().unwrap().memories[p.memory].origin, Origin::Input(0)))
    );
}

#[test]
fn results_are_fresh_memory_in_each_call() {
    let device = device();
    let mut step = capture(|x| {
        let y = x[0].exp()?;
        Ok(vec![y.clone(), y.narrow(0, 0, 1)?, y])
    });
    let mut kept = vec![];
    for i in 0..5 {
        let x = random(&[3], i, &device);
        let got = step.call(&[&x]).unwrap();
        assert_eq!(bits(&got[0]), bits(&got[2]));
        kept.push((x, got));
    }
    // An earlier result is passed as the argument.
    let again = step.call(&[&kept[4].1[0]]).unwrap();
    assert_eq!(bits(&again[0]), bits(&kept[4].1[0].exp().unwrap()));
    drop(step);
    for (x, got) in kept {
        assert_eq!(bits(&got[0]), bits(&x.exp().unwrap()));
        assert_eq!(bits(&got[1]), bits(&got[0].narrow(0, 0, 1).unwrap()));
    }
}

#[test]
fn writes_into_arguments_and_held_tensors_are_replayed() {
    let device = device();
    let run = |count: Tensor| {
        move |x: &[Tensor]| {
            count.add_(1.0)?;
            x[0].narrow(0, 0, 2)?.mul_(&count)?;
            Ok(vec![x[0].sum_all()?])
        }
    };
    let (a, b) = (Tensor::zeros([1], DType::F32, &device).unwrap(), Tensor::zeros([1], DType::F32, &device).unwrap());
    let (mut step, eager) = (capture(run(a.clone())), run(b.clone()));
    for i in 0..5 {
        let (x, y) = (random(&[4], i, &device), random(&[4], i, &device));
        let (got, want) = (step.call(&[&x]).unwrap(), eager(std::slice::from_ref(&y)).unwrap());
        assert_eq!(bits(&got[0]), bits(&want[0]));
        assert_eq!((bits(&x), bits(&a)), (bits(&y), bits(&b)), "call {i}");
    }
    assert_eq!(step.replays(), 3);
}

#[test]
fn a_graph_notices_the_writes_of_a_replay() {
    let device = device();
    let w = random(&[3], 1, &device).with_grad().unwrap();
    let held = w.detach();
    let mut step = capture(move |x| {
        held.add_(&x[0])?;
        Ok(())
    });
    for i in 0..3 {
        let loss = w.square().unwrap().sum_all().unwrap();
        step.call(&[&random(&[3], i, &device)]).unwrap();
        let e = loss.backward().unwrap_err();
        assert_eq!(*e.kind(), ErrorKind::Autograd, "{e}");
    }
}

#[test]
fn second_derivatives_are_replayed() {
    let device = device();
    let f = |x: &[Tensor]| {
        let a = x[0].with_grad()?;
        let y = a.silu()?.mul(&x[1])?.sum_all()?;
        let options = autograd::BackwardOptions::new().create_graph();
        let g = gradus_tensor::grad(&[&y], &[&a], None, options)?[0].clone().unwrap();
        let h = gradus_tensor::grad(&[&g.square()?.sum_all()?], &[&a], None, autograd::BackwardOptions::new())?;
        Ok(vec![g.detach(), h[0].clone().unwrap()])
    };
    let inputs: Vec<_> = (0..4).map(|i| vec![random(&[5], i, &device), random(&[5], 20 + i, &device)]).collect();
    beside(capture(f), f, &inputs);
}

#[test]
fn checkpoints_draw_the_same_numbers_again() {
    let device = device();
    let make = || {
        let mut rng = Generator::new(5);
        let mut dropout = Dropout::new(0.5, &mut rng).unwrap();
        dropout.train();
        let inner = Linear::new(4, 4, &mut Init::new(DType::F32, &device, &mut rng)).unwrap();
        let layers = Arc::new((inner, dropout));
        move |x: &[Tensor]| {
            let (a, layers) = (x[0].with_grad()?, layers.clone());
            let region = move |x: &[Tensor]| Ok(vec![layers.1.forward(&layers.0.forward(&x[0])?)?.tanh()?]);
            let y = gradus_tensor::checkpoint(region, &[&a])?;
            let g = y[0].square()?.sum_all()?.backward()?;
            Ok(vec![y[0].detach(), g.get(&a).unwrap().clone()])
        }
    };
    let inputs: Vec<_> = (0..5).map(|i| vec![random(&[3, 4], i, &device)]).collect();
    let step = beside(capture(make()), make(), &inputs);
    assert_eq!(step.replays(), 3);
}

fn refused<F>(f: F, x: &Tensor, part: &str)
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    let mut step = capture(f);
    let e = (0..6).find_map(|_| step.call(&[x]).err()).expect("the step is refused");
    assert!(e.to_string().contains(part), "{e}");
    assert_eq!(step.replays(), 0);
}

#[test]
fn what_a_replay_could_not_follow_is_refused() {
    let device = device();
    let x = random(&[3], 1, &device);
    refused(|x| Ok(vec![x[0].mul(x[0].sum_all()?.item()?)?]), &x, "read on the host");
    let d = device.clone();
    let mut n = 0;
    let fresh = move |x: &[Tensor]| {
        n += 1;
        x[0].add(&Tensor::from_vec(vec![n as f32], [1], &d)?).map(|y| vec![y])
    };
    refused(fresh, &x, "other numbers in each call");
    let mut n = 0;
    let number = move |x: &[Tensor]| {
        n += 1;
        Ok(vec![x[0].mul(f64::from(n))?])
    };
    refused(number, &x, "an operation differs");
    let mut n = 0;
    let longer = move |x: &[Tensor]| {
        n += 1;
        (0..n).try_fold(x[0].clone(), |x, _| x.exp()).map(|x| vec![x])
    };
    refused(longer, &x, "differs between two calls");
    let mut rng = Generator::new(1);
    refused(move |x| Ok(vec![x[0].dropout(0.5, &mut rng)?]), &x, "an operation differs");
    let w = x.with_grad().unwrap();
    refused(move |x| Ok(vec![w.mul(&x[0])?]), &x, "requires a gradient");
    let mut last: Option<Tensor> = None;
    let kept = move |x: &[Tensor]| {
        let y = match &last {
            Some(last) => x[0].add(last)?,
            None => x[0].exp()?,
        };
        last = Some(y.clone());
        Ok(vec![y])
    };
    refused(kept, &x, "its previous call computed");
    let other = self::device();
    let there = move |x: &[Tensor]| Ok(vec![x[0].to_device(&other)?]);
    refused(there, &x, "one device");
}

#[test]
fn an_error_and_a_panic_leave_the_step_usable() {
    let device = device();
    let mut calls = 0;
    let mut step = capture(|x: &[Tensor]| {
        calls += 1;
        assert!(calls != 2, "the second call");
        x[0].matmul(&x[1]).map(|y| vec![y])
    });
    let (a, b) = (random(&[2, 3], 1, &device), random(&[3, 2], 2, &device));
    assert!(step.call(&[&a, &a]).unwrap_err().kind() == &ErrorKind::ShapeMismatch);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.call(&[&a, &b]).is_ok()));
    assert!(panicked.is_err());
    for _ in 0..4 {
        assert_eq!(bits(&step.call(&[&a, &b]).unwrap()[0]), bits(&a.matmul(&b).unwrap()));
    }
    assert_eq!(step.replays(), 2);
    // Nothing of the trace is left behind.
    assert!(a.sum_all().unwrap().item().is_ok());
}

#[test]
fn a_captured_step_inside_another_is_part_of_it() {
    let device = device();
    let mut inner = capture(|x: &[Tensor]| Ok(vec![x[0].exp()?]));
    let x = random(&[3], 1, &device);
    for _ in 0..4 {
        inner.call(&[&x]).unwrap();
    }
    let mut outer = capture(|x: &[Tensor]| Ok(vec![inner.call(&[&x[0]])?[0].sum_all()?]));
    for i in 0..4 {
        let x = random(&[3], i, &device);
        assert_eq!(bits(&outer.call(&[&x]).unwrap()[0]), bits(&x.exp().unwrap().sum_all().unwrap()));
    }
    assert_eq!(outer.graph().unwrap().nodes.len(), 2);
}

#[test]
fn an_argument_that_the_step_also_holds_is_not_mistaken() {
    let device = device();
    let held = random(&[3], 1, &device);
    let kept = held.clone();
    let mut step = capture(move |x: &[Tensor]| Ok(vec![x[0].mul(&kept)?]));
    // The step is traced with the held tensor as its argument, and later called with another tensor.
    for i in 0..6 {
        let x = if i < 3 { held.clone() } else { random(&[3], i, &device) };
        assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&x.mul(&held).unwrap()), "call {i}");
    }
}

#[test]
fn half_precision_is_rounded_between_operations() {
    let device = device();
    let f = |x: &[Tensor]| Ok(vec![x[0].exp()?.mul(3.0)?.sub(&x[0])?]);
    for half in [DType::BF16, DType::F16] {
        let input = |i| vec![random(&[300], i, &device).to_dtype(half).unwrap()];
        let inputs: Vec<_> = (0..4).map(input).collect();
        let step = beside(capture(f), f, &inputs);
        assert_eq!(step.graph().unwrap().nodes.len(), 1);
    }
}

#[test]
fn a_graph_prints_and_draws_itself() {
    let device = device();
    let mut step = capture(|x: &[Tensor]| Ok(vec![x[0].matmul(&x[1])?.sum_all()?]));
    let (a, b) = (random(&[2, 3], 1, &device), random(&[3, 2], 2, &device));
    for _ in 0..2 {
        step.call(&[&a, &b]).unwrap();
    }
    let graph = step.graph().unwrap();
    let text = graph.to_string();
    assert!(text.contains("matmul") && text.contains("f32[2, 3]") && text.contains("capture.rs"), "{text}");
    assert!(graph.to_dot().starts_with("digraph step {"));
    assert_eq!(text.parse::<Text>().unwrap(), graph.text());
    for (broken, line) in
        [("step of cpu\n", 1), ("step on cpu\n  return %1: f33[2]\n", 2), ("step on cpu\n  %1: f32[2] = exp(%0)\n", 2)]
    {
        let e = broken.parse::<Text>().unwrap_err();
        assert!(e.message().contains(&format!("line {line} is")), "{e}");
    }
}

#[test]
fn a_printed_graph_is_read_back() {
    let device = device();
    let dropout = Arc::new(Dropout::new(0.5, &mut Generator::new(3)).unwrap());
    let count = Tensor::zeros([], DType::I64, &device).unwrap();
    let mut step = capture(|x: &[Tensor]| {
        count.add_(1)?;
        let dropout = dropout.clone();
        let inside = move |x: &[Tensor]| Ok(vec![dropout.forward(&x[0].t()?.narrow(0, 1, 2)?)?.square()?]);
        let w = x[0].with_grad()?;
        let y = gradus_tensor::checkpoint(inside, &[&w])?.swap_remove(0).sum_all()?;
        let g = y.backward()?.get(&w).cloned();
        Ok(vec![y.detach(), x[0].flip(0)?.flip(1)?, g.unwrap_or(y), x[0].sum(&[0], false)?.expand([4, 3])?])
    });
    for i in 0..3 {
        step.call(&[&random(&[3, 3], i, &device)]).unwrap();
    }
    let graph = step.graph().unwrap();
    let text = graph.to_string();
    let read = text.parse::<Text>().unwrap();
    assert_eq!(read, graph.text(), "{text}");
    read.check().unwrap();
    assert!(text.contains(" repeats ") && text.contains("{-3, -1 at 8}") && text.contains("<- "), "{text}");
}

#[test]
fn a_text_that_is_no_graph_is_found() {
    for (lines, part) in [
        ("  %1: f32[2] = exp(%0: f32[2])  // a\n  return %1: f32[2]\n", "%0: f32[2] is read before it is computed"),
        ("  %1: f32[3] = exp(%0: f32[3])  // a\n  return %1: f32[3]\n  %0 is input 0, 8 bytes\n", "inside its memory"),
        ("  %1: f32[1] = exp(%0: f32[1]{-1 at 0})  // a\n  return %2: f32[1]\n  %0 is held, 8 bytes\n", "is never"),
        ("  %1: f32[2] = exp(%0: f32[2]{-1 at 0})  // a\n  return %1: f32[2]\n  %0 is held, 8 bytes\n", "inside its"),
        ("  %0: f32[2] = exp(%0: f32[2])  // a\n  return %0: f32[2]\n  %0 is held, 8 bytes\n", "was computed before"),
        ("  %0.1: f32[2] <- exp()  // a\n  return %0.1: f32[2]\n", "in place before it is computed"),
        (
            "  %0.1: f32[2] <- exp()  // a\n  %1: f32[2] = exp(%0: f32[2])  // b\n  return %1: f32[2]\n  %0 is held, 8 bytes\n",
            "at version 1",
        ),
        (
            "  %1: f32[2] = exp(%0: f32[2]) repeats 0  // a\n  return %1: f32[2]\n  %0 is held, 8 bytes\n",
            "not before it",
        ),
        (
            "  %0.1: f32[2] <- exp(%0: f32[2])  // a\n  return %0: f32[2]\n  %0 is held, 8 bytes\n",
            "is returned when its memory is at version 1",
        ),
        ("  return %0: u8[9223372036854775807, 4]\n  %0 is held, 8 bytes\n", "inside its memory"),
    ] {
        let e = format!("step on cpu\n{lines}").parse::<Text>().unwrap().check().unwrap_err();
        assert!(e.message().contains(part), "{lines}{e}");
    }
}

#[test]
fn a_step_that_is_fed_its_own_result_is_replayed() {
    let device = device();
    let mut step = capture(|x: &[Tensor]| Ok(vec![x[0].tanh()?.add(0.25)?]));
    let (mut x, mut y) = (random(&[4], 1, &device), random(&[4], 1, &device));
    for _ in 0..6 {
        x = step.call(&[&x]).unwrap().remove(0);
        y = y.tanh().unwrap().add(0.25).unwrap();
        assert_eq!(bits(&x), bits(&y));
    }
    assert!(step.replays() >= 3, "{} replays", step.replays());
}

#[test]
fn an_argument_with_a_graph_outside_is_refused() {
    let device = device();
    let w = random(&[3], 1, &device).with_grad().unwrap();
    let x = w.mul(2.0).unwrap();
    let mut step = capture(|x: &[Tensor]| Ok(vec![x[0].square()?.sum_all()?.detach()]));
    let e = step.call(&[&x]).unwrap_err();
    assert!(e.to_string().contains("x.detach()"), "{e}");
}

#[test]
fn a_replay_that_fails_leaves_random_states_where_they_are() {
    let device = device();
    let make = || {
        let mut dropout = Dropout::new(0.5, &mut Generator::new(9)).unwrap();
        dropout.train();
        let table = random(&[4, 8], 3, &device);
        move |x: &[Tensor]| Ok(vec![dropout.forward(&table.embedding(&x[0], None)?)?])
    };
    let (mut step, eager) = (capture(make()), make());
    let rows = |rows: [i64; 2]| Tensor::from_vec(rows, [2], &device).unwrap();
    for (i, of) in [[0, 1], [1, 2], [2, 3], [3, 0], [1, 9], [9, 9], [0, 2], [2, 1]].into_iter().enumerate() {
        let (x, y) = (rows(of), rows(of));
        match (step.call(&[&x]), eager(&[y])) {
            (Ok(got), Ok(want)) => assert_eq!(bits(&got[0]), bits(&want[0]), "call {i}"),
            (Err(got), Err(want)) => assert_eq!(got.kind(), want.kind(), "call {i}"),
            (got, want) => panic!("call {i}: {got:?}, eagerly {want:?}"),
        }
    }
    assert!(step.replays() >= 4, "{} replays", step.replays());
}

#[test]
fn parameters_that_are_frozen_in_between_are_noticed() {
    let device = device();
    let layers = || {
        let layer = with_layer(&device);
        (layer.clone(), move |x: &[Tensor]| {
            let loss = layer.forward(&x[0])?.square()?.sum_all()?;
            let gradients = loss.backward()?;
            for p in layer.parameters().iter().filter(|p| !p.is_frozen()) {
                let g = gradients.get(p.tensor()).unwrap();
                no_grad(|| DESCEND.apply(&[p.values()], &[p.values(), g], &[0.01]))?;
            }
            Ok(vec![loss.detach()])
        })
    };
    let ((a, captured), (b, eager)) = (layers(), layers());
    let mut step = capture(captured);
    for i in 0..8 {
        if i == 4 {
            a.parameters()[0].freeze();
            b.parameters()[0].freeze();
        }
        let x = random(&[2, 3], i, &device);
        assert_eq!(bits(&step.call(&[&x]).unwrap()[0]), bits(&eager(std::slice::from_ref(&x)).unwrap()[0]), "call {i}");
        let state = |m: &Linear| m.state_dict().unwrap().iter().map(|(_, t)| bits(t)).collect::<Vec<_>>();
        assert_eq!(state(&a), state(&b), "call {i}");
    }
    assert!(step.replays() >= 4, "{} replays", step.replays());
}

fn with_layer(device: &Device) -> Linear {
    Linear::new(3, 2, &mut Init::new(DType::F32, device, &mut Generator::new(8))).unwrap()
}

#[test]
fn random_states_of_equal_seeds_are_two_states() {
    let device = device();
    let make = || {
        let dropouts = [0, 0].map(|seed| Dropout::new(0.5, &mut Generator::new(seed)).unwrap());
        move |x: &[Tensor]| Ok(vec![dropouts[0].forward(&x[0])?, dropouts[1].forward(&x[0])?])
    };
    let inputs: Vec<_> =
        (0..5).map(|i| vec![random(&[16], i, &device)]).chain([vec![random(&[8], 5, &device)]]).collect();
    beside(capture(make()), make(), &inputs);
}

#[test]
fn random_states_that_move_otherwise_are_refused() {
    let device = device();
    let x = random(&[3], 1, &device);
    let state = || gradus_nn::RandomState::new(Generator::new(2));
    let shape = [3];
    let draw = move |g: &mut Generator, d: &Device| Tensor::randn(shape, DType::F32, d, g);
    let (rs, d) = (state(), device.clone());
    let back = move |x: &[Tensor]| {
        let before = rs.get();
        let noise = rs.draw(|g| draw(g, &d))?;
        rs.set(before);
        Ok(vec![x[0].add(&noise)?])
    };
    refused(back, &x, "a replay cannot follow");
    let (rs, d) = (state(), device.clone());
    let words = move |x: &[Tensor]| {
        let noise = rs.draw(|g| {
            let noise = draw(g, &d);
            g.next_u64();
            noise
        })?;
        Ok(vec![x[0].add(&noise)?])
    };
    refused(words, &x, "a replay cannot follow");
    let (rs, d) = (state(), device.clone());
    let forked = move |x: &[Tensor]| Ok(vec![x[0].add(&rs.draw(|g| draw(&mut g.fork(1), &d))?)?]);
    refused(forked, &x, "a replay cannot follow");
}
