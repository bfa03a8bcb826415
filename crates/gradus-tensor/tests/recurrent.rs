//! Layers of recurrent networks: gradients beside finite differences, sequences of several lengths, and refusals.
#![allow(clippy::unwrap_used)]

mod common;

use common::cpu;
use gradus_tensor::autograd::{BackwardOptions, grad, gradcheck, gradgradcheck};
use gradus_tensor::ops::{RecurrentCell, RecurrentOptions};
use gradus_tensor::{DType, Generator, Result, Tensor};

const CELLS: [RecurrentCell; 4] =
    [RecurrentCell::RnnTanh, RecurrentCell::RnnRelu, RecurrentCell::Lstm, RecurrentCell::Gru];
/// Time steps, sequences, features and hidden features.
const SIZES: [usize; 4] = [4, 3, 2, 3];

/// The input, the initial states, the weights and the biases of a layer.
fn inputs(cell: RecurrentCell) -> Vec<Tensor> {
    inputs_of(cell, SIZES)
}

fn inputs_of(cell: RecurrentCell, [t, b, features, hidden]: [usize; 4]) -> Vec<Tensor> {
    let wide = cell.gates() * hidden;
    let mut shapes = vec![vec![t, b, features], vec![b, hidden]];
    if cell == RecurrentCell::Lstm {
        shapes.push(vec![b, hidden]);
    }
    shapes.extend([vec![wide, features], vec![wide, hidden], vec![wide], vec![wide]]);
    let mut rng = Generator::new(5);
    shapes.iter().map(|s| Tensor::randn(s, DType::F64, &cpu(), &mut rng).unwrap()).collect()
}

/// Runs the layer. The result has the outputs and the final states one after the other.
fn run(cell: RecurrentCell, reverse: bool, lengths: Option<&[usize]>, x: &[Tensor]) -> Result<Tensor> {
    let options = RecurrentOptions::new(cell).reverse(reverse);
    let options = if let Some(lengths) = lengths { options.lengths(lengths) } else { options };
    let s = 1 + cell.states();
    let states: Vec<&Tensor> = x[1..s].iter().collect();
    let biases = if x.len() > s + 2 { Some([&x[s + 2], &x[s + 3]]) } else { None };
    let found = x[0].recurrent(options, &states, [&x[s], &x[s + 1]], biases)?;
    let flat: Vec<Tensor> = found.iter().map(|t| t.flatten(0, -1)).collect::<Result<_>>()?;
    Tensor::cat(&flat.iter().collect::<Vec<_>>(), 0)
}

fn each(mut f: impl FnMut(RecurrentCell, bool, Option<&[usize]>)) {
    for cell in CELLS {
        for reverse in [false, true] {
            f(cell, reverse, None);
            f(cell, reverse, Some(&[4, 2, 1]));
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    each(|cell, reverse, lengths| {
        let x = inputs(cell);
        let biases = x.len() - 2;
        for x in [&x[..], &x[..biases]] {
            gradcheck(|x| run(cell, reverse, lengths, x), x).unwrap();
        }
    });
}

#[test]
fn second_gradients_match_finite_differences() {
    each(|cell, reverse, lengths| gradgradcheck(|x| run(cell, reverse, lengths, x), &inputs(cell)).unwrap());
}

#[test]
fn a_sequence_among_longer_ones_equals_the_sequence_alone() {
    each(|cell, reverse, lengths| {
        let Some(lengths) = lengths else { return };
        let x = inputs(cell);
        let options = RecurrentOptions::new(cell).reverse(reverse);
        let s = 1 + cell.states();
        let call = |x: &[Tensor], options: RecurrentOptions<'_>| {
            let states: Vec<&Tensor> = x[1..s].iter().collect();
            x[0].recurrent(options, &states, [&x[s], &x[s + 1]], Some([&x[s + 2], &x[s + 3]])).unwrap()
        };
        let together = call(&x, options.lengths(lengths));
        for (i, &n) in lengths.iter().enumerate() {
            let mut alone = x.clone();
            alone[0] = x[0].narrow(1, i, 1).unwrap().narrow(0, 0, n).unwrap();
            for state in &mut alone[1..s] {
                *state = state.narrow(0, i, 1).unwrap();
            }
            let alone = call(&alone, options);
            let row = together[0].narrow(1, i, 1).unwrap();
            let [t, ..] = SIZES;
            assert_eq!(row.narrow(0, 0, n).unwrap().to_vec::<f64>().unwrap(), alone[0].to_vec::<f64>().unwrap());
            assert!(row.narrow(0, n, t - n).unwrap().to_vec::<f64>().unwrap().iter().all(|&v| v == 0.0));
            for (final_state, of_one) in together[1..].iter().zip(&alone[1..]) {
                let of_row = final_state.narrow(0, i, 1).unwrap();
                assert_eq!(of_row.to_vec::<f64>().unwrap(), of_one.to_vec::<f64>().unwrap());
            }
        }
    });
}

#[test]
fn what_stands_in_the_padding_changes_nothing() {
    each(|cell, reverse, lengths| {
        let Some(lengths) = lengths else { return };
        let [t, b, features, _] = SIZES;
        let found = |padding: f64, create_graph: bool| {
            let mut x = inputs(cell);
            let mut numbers = x[0].to_vec::<f64>().unwrap();
            for (i, v) in numbers.iter_mut().enumerate() {
                let (step, sequence) = (i / features / b, i / features % b);
                if step >= lengths[sequence] {
                    *v = padding;
                }
            }
            x[0] = Tensor::from_vec(numbers, [t, b, features], &cpu()).unwrap();
            let x: Vec<Tensor> = x.iter().map(|t| t.with_grad().unwrap()).collect();
            let y = run(cell, reverse, Some(lengths), &x).unwrap();
            let loss = y.square().unwrap().sum_all().unwrap();
            let mut all = vec![y.to_vec::<f64>().unwrap()];
            let gradients = if create_graph {
                let wanted: Vec<&Tensor> = x.iter().collect();
                let options = BackwardOptions::new().create_graph();
                let first = grad(&[&loss], &wanted, None, options).unwrap();
                let norms = first.iter().flatten().map(|g| g.square().unwrap().sum_all().unwrap());
                let sum = norms.reduce(|a, b| a.add(&b).unwrap()).unwrap();
                sum.backward().unwrap()
            } else {
                loss.backward().unwrap()
            };
            all.extend(x.iter().map(|x| gradients.get(x).unwrap().to_vec::<f64>().unwrap()));
            all
        };
        for twice in [false, true] {
            let wanted = found(0.0, twice);
            assert!(wanted.iter().flatten().all(|v| v.is_finite()));
            for padding in [f64::NAN, f64::INFINITY] {
                assert_eq!(found(padding, twice), wanted, "{cell:?} {reverse} {twice}");
            }
        }
    });
}

#[test]
fn a_wide_layer_gives_each_sequence_of_a_batch_what_it_gives_it_alone() {
    let [b, hidden] = [5, 32];
    for cell in CELLS {
        for reverse in [false, true] {
            let all: Vec<Tensor> = inputs_of(cell, [3, b, 2, hidden]).iter().map(|t| t.with_grad().unwrap()).collect();
            let states = 1 + cell.states();
            let whole = run(cell, reverse, None, &all).unwrap().square().unwrap().sum_all().unwrap();
            let mut sum = Tensor::zeros([], DType::F64, &cpu()).unwrap();
            for i in 0..b {
                let mut one = all.clone();
                one[0] = all[0].narrow(1, i, 1).unwrap();
                for state in &mut one[1..states] {
                    *state = state.narrow(0, i, 1).unwrap();
                }
                let y = run(cell, reverse, None, &one).unwrap().square().unwrap().sum_all().unwrap();
                sum = sum.add(&y).unwrap();
            }
            let (whole, sum) = (whole.backward().unwrap(), sum.backward().unwrap());
            for x in &all {
                let difference = whole.get(x).unwrap().sub(sum.get(x).unwrap()).unwrap().abs().unwrap();
                assert!(difference.max_all().unwrap().item().unwrap() < 1e-10, "{cell:?} {reverse}");
            }
        }
    }
}

#[test]
fn half_precision_is_rounded_once() {
    each(|cell, reverse, lengths| {
        let half: Vec<Tensor> = inputs(cell).iter().map(|t| t.to_dtype(DType::BF16).unwrap()).collect();
        let wide: Vec<Tensor> = half.iter().map(|t| t.to_dtype(DType::F32).unwrap()).collect();
        let (a, b) = (run(cell, reverse, lengths, &half).unwrap(), run(cell, reverse, lengths, &wide).unwrap());
        assert_eq!(a.dtype(), DType::BF16);
        let [a, b] = [a, b.to_dtype(DType::BF16).unwrap()].map(|t| t.to_dtype(DType::F32).unwrap());
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    });
}

#[test]
fn what_does_not_fit_is_an_error() {
    let x = inputs(RecurrentCell::Gru);
    let gru = RecurrentOptions::new(RecurrentCell::Gru);
    let call = |x: &[Tensor], options: RecurrentOptions<'_>| {
        x[0].recurrent(options, &[&x[1]], [&x[2], &x[3]], Some([&x[4], &x[5]])).unwrap_err().to_string()
    };
    for (lengths, says) in [
        (&[4, 2][..], "2 lengths for 3 sequences"),
        (&[4, 2, 0], "sequence 2 has length 0"),
        (&[5, 2, 1], "sequence 0 has length 5"),
        (&[2, 4, 1], "length 4 of sequence 1 follows length 2"),
    ] {
        let e = call(&x, gru.lengths(lengths));
        assert!(e.contains(says), "{e}");
    }
    let with = |i: usize, shape: &[usize]| {
        let mut x = x.clone();
        x[i] = Tensor::zeros(shape, DType::F64, &cpu()).unwrap();
        x
    };
    for (x, says) in [
        (with(0, &[4, 3]), "the input has rank 3"),
        (with(0, &[0, 3, 2]), "no time steps"),
        (with(0, &[4, 3, 5]), "the weights are not [9, 5] and [9, 3]"),
        (with(1, &[2, 3]), "an initial state is [2, 3], not [3, 3]"),
        (with(3, &[9, 9]), "the weights are not [9, 2] and [9, 3]"),
        (with(5, &[3]), "the biases are not [9]"),
    ] {
        let e = call(&x, gru);
        assert!(e.contains(says), "{e}");
    }
    let e = x[0].recurrent(RecurrentOptions::new(RecurrentCell::Lstm), &[&x[1]], [&x[2], &x[3]], None).unwrap_err();
    assert!(e.to_string().contains("1 initial states; lstm has 2"), "{e}");
}

#[test]
fn an_empty_batch_gives_empty_results_and_zero_gradients() {
    for cell in CELLS {
        let mut x = inputs(cell);
        for t in &mut x[..1 + cell.states()] {
            let batch = if t.rank() == 3 { 1 } else { 0 };
            *t = t.narrow(batch, 0, 0).unwrap();
        }
        let x: Vec<Tensor> = x.iter().map(|t| t.with_grad().unwrap()).collect();
        let y = run(cell, false, None, &x).unwrap();
        assert_eq!(y.shape(), [0]);
        let gradients = y.sum_all().unwrap().backward().unwrap();
        let weight = &x[1 + cell.states()];
        assert!(gradients.get(weight).unwrap().to_vec::<f64>().unwrap().iter().all(|&v| v == 0.0));
    }
}
