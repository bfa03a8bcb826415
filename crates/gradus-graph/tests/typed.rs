//! Captured steps that take and return structs, tuples, lists and options of tensors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{bits, device, random};
use gradus_graph::{Tensors, capture, capture_typed};
use gradus_tensor::{ErrorKind, Result, Tensor};

#[derive(Clone, Tensors)]
struct Layer {
    weight: Tensor,
    bias: Option<Tensor>,
}

#[derive(Tensors)]
struct Network {
    input: Tensor,
    layers: Vec<Layer>,
    scales: [Tensor; 2],
}

#[derive(Tensors)]
struct Pair(Tensor, (Tensor, Option<Tensor>));

/// All tensors of a value, as bytes.
fn all<T: Tensors>(value: &T) -> Vec<Vec<u8>> {
    let mut tensors = vec![];
    value.flatten(&mut tensors, &mut vec![]);
    tensors.into_iter().map(bits).collect()
}

fn forward(network: &Network) -> Result<Pair> {
    let mut x = network.input.clone();
    for layer in &network.layers {
        x = x.matmul(&layer.weight)?;
        if let Some(bias) = &layer.bias {
            x = x.add(bias)?;
        }
    }
    let [a, b] = &network.scales;
    Ok(Pair(x.mul(a)?, (x.mul(b)?, network.layers.first().map(|_| x.sum_all()).transpose()?)))
}

#[test]
fn a_value_is_made_again_from_its_parts() {
    let device = device();
    let t = |seed| random(&[2], seed, &device);
    type Nested = (Vec<Option<Tensor>>, [Vec<Tensor>; 2], (Tensor,), Option<Vec<Tensor>>);
    let value: Nested = (vec![Some(t(1)), None, Some(t(2))], [vec![], vec![t(3)]], (t(4),), Some(vec![t(5), t(6)]));
    let (mut tensors, mut form) = (vec![], vec![]);
    value.flatten(&mut tensors, &mut form);
    assert_eq!((tensors.len(), &form[..]), (6, &[3, 1, 0, 1, 0, 1, 1, 2][..]));
    let tensors: Vec<Tensor> = tensors.into_iter().cloned().collect();
    let again =
        |n: usize, form: Vec<usize>| Nested::unflatten(&mut tensors[..n].iter().cloned(), &mut form.into_iter());
    assert_eq!(all(&again(6, form.clone()).unwrap()), all(&value));
    assert!(again(5, form.clone()).is_none() && again(6, form[..7].to_vec()).is_none());
}

#[test]
fn structs_go_in_and_out_and_each_form_is_traced_by_itself() {
    let device = device();
    let network = |seed: u64, layers: usize, biases: &[bool]| Network {
        input: random(&[3, 4], seed, &device),
        layers: (0..layers)
            .map(|i| Layer {
                weight: random(&[4, 4], seed + 10 + i as u64, &device),
                bias: biases[i].then(|| random(&[4], seed + 20 + i as u64, &device)),
            })
            .collect(),
        scales: [random(&[4], seed + 30, &device), random(&[4], seed + 31, &device)],
    };
    let mut step = capture_typed(forward);
    // The third and the fourth form have equally many tensors of the same shapes.
    for (layers, biases) in [(0, [false; 2]), (1, [true; 2]), (2, [true, false]), (2, [false, true]), (2, [true; 2])] {
        let before = step.replays();
        for i in 0..4 {
            let network = network(100 * i, layers, &biases);
            let (got, want) = (step.call(&network).unwrap(), forward(&network).unwrap());
            assert_eq!(all(&got), all(&want), "{layers} layers, call {i}");
            assert_eq!(got.1.1.is_some(), layers > 0);
        }
        assert_eq!(step.replays() - before, 2, "{layers} layers");
    }
}

#[test]
fn the_same_tensor_in_two_fields_is_another_form() {
    let device = device();
    let mut step = capture_typed(|(a, b): &(Tensor, Tensor)| {
        a.add_(b)?;
        b.mul(2)
    });
    for i in 0..4 {
        let (a, b) = (random(&[3], i, &device), random(&[3], i + 9, &device));
        assert_eq!(bits(&step.call(&(a, b.clone())).unwrap()), bits(&b.mul(2).unwrap()));
    }
    let a = random(&[3], 1, &device);
    let want = a.mul(2).unwrap().mul(2).unwrap();
    assert_eq!(bits(&step.call(&(a.clone(), a)).unwrap()), bits(&want));
    assert_eq!(step.replays(), 2);
}

#[test]
fn a_list_of_results_whose_length_changes_is_an_error() {
    let device = device();
    let mut calls = 0;
    let mut step = capture(|x| {
        calls += 1;
        let y = x[0].exp()?;
        Ok(if calls % 2 == 0 { vec![Some(y), None] } else { vec![None, Some(y)] })
    });
    let x = random(&[3], 1, &device);
    let e = (0..4).find_map(|_| step.call(&[&x]).err()).unwrap();
    assert_eq!(*e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("what the step returns"), "{e}");
}
