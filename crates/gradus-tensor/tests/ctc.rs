//! `ctc_loss`, compared with PyTorch and with the sum over all alignments; also gradients, edge cases and refused
//! arguments.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, both, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::{DType, ErrorKind, Reduction, Result, Tensor};

use Reduction::{Mean, None as Each, Sum};

/// `1.5 sin(a i + b)` for element `i`, as in the script that computed the expected values.
fn wave(shape: &[usize], a: f64, b: f64) -> Tensor {
    let n: usize = shape.iter().product();
    f64s(&(0..n).map(|i| 1.5 * (i as f64 * a + b).sin()).collect::<Vec<_>>(), shape)
}

#[track_caller]
fn same(got: Result<Tensor>, want: &[f64]) {
    assert_close(&got.unwrap().to_vec::<f64>().unwrap(), want, 1e-10);
}

/// Logits `[6, 3, 4]`, the targets both padded and concatenated, the input lengths and the target lengths.
fn sequences() -> (Tensor, Tensor, Tensor, [usize; 3], [usize; 3]) {
    let padded = i64s(&[1, 1, 3, 2, 1, 3, 3, 2, 0], &[3, 3]);
    (wave(&[6, 3, 4], 1.3, 0.2), padded, i64s(&[1, 1, 3, 2, 1, 3, 3, 2], &[8]), [6, 4, 5], [3, 3, 2])
}

#[test]
fn ctc_agrees_with_pytorch() {
    let (z, padded, joined, steps, lengths) = sequences();
    let log = z.log_softmax(2).unwrap();
    for targets in [&padded, &joined, &padded.to_dtype(DType::U32).unwrap()] {
        let ctc = |r| log.ctc_loss(targets, &steps, &lengths, 0, false, r);
        same(ctc(Each), &[4.697202671941, 3.896475720206, 4.761629471305]);
        same(ctc(Mean), &[1.748458066567]);
        same(ctc(Sum), &[13.355307863453]);
    }
    let leaf = z.with_grad().unwrap();
    let loss = leaf.log_softmax(2).unwrap().ctc_loss(&padded, &steps, &lengths, 0, false, Sum).unwrap();
    let g = loss.backward().unwrap().get(&leaf).unwrap().to_vec::<f64>().unwrap();
    let want = [
        0.018190796571,
        -0.269014328331,
        0.213049347107,
        0.037774184652,
        0.039001844165,
        0.236367070828,
        -0.43058104095,
        0.155212125958,
        -0.133782639164,
        0.0554031246,
    ];
    assert_close(&g[..10], &want, 1e-10);
    let other_blank = i64s(&[1, 2, 0, 0, 2, 0], &[3, 2]);
    same(
        log.ctc_loss(&other_blank, &[6, 5, 4], &[2, 2, 1], 3, false, Each),
        &[4.442179363713, 4.957299471608, 5.354945881519],
    );
}

#[test]
fn ctc_is_the_sum_over_all_alignments() {
    let (z, ..) = sequences();
    let p = z.narrow(0, 0, 4).unwrap().narrow(1, 0, 1).unwrap().softmax(2).unwrap();
    let p = p.to_vec::<f64>().unwrap();
    let target = [2usize, 1, 1];
    let mut total = 0.0;
    for path in 0..4usize.pow(4) {
        let states: Vec<usize> = (0..4).map(|t| path / 4usize.pow(t) % 4).collect();
        let mut read = states.clone();
        read.dedup();
        read.retain(|&s| s != 0);
        if read == target {
            total += states.iter().enumerate().map(|(t, &s)| p[4 * t + s]).product::<f64>();
        }
    }
    let log = z.narrow(0, 0, 4).unwrap().narrow(1, 0, 1).unwrap().log_softmax(2).unwrap();
    same(log.ctc_loss(&i64s(&[2, 1, 1], &[3]), &[4], &[3], 0, false, Sum), &[-total.ln()]);
}

#[test]
fn gradients_of_ctc() {
    let (_, padded, _, steps, lengths) = sequences();
    for x in layouts(&[6, 3, 4], 2) {
        // Arbitrary log-probabilities: the formula also holds without a softmax.
        both(|v| v[0].ctc_loss(&padded, &steps, &lengths, 0, true, Mean), std::slice::from_ref(&x));
    }
    let f = |v: &[Tensor]| v[0].log_softmax(2)?.ctc_loss(&padded, &steps, &lengths, 0, false, Each);
    both(f, &[randn(&[6, 3, 4], 4)]);
}

#[test]
fn ctc_of_what_cannot_be_and_of_nothing() {
    let (z, ..) = sequences();
    let leaf = z.log_softmax(2).unwrap().with_grad().unwrap();
    let t = i64s(&[1, 1, 1], &[3]);
    for (zero, want) in [(false, f64::INFINITY), (true, 0.0)] {
        // The second sample cannot produce a label three times in two steps. The third sample has no steps and an empty
        // target.
        let loss = leaf.ctc_loss(&t, &[6, 2, 0], &[0, 3, 0], 0, zero, Each).unwrap();
        let values = loss.to_vec::<f64>().unwrap();
        assert_close(&values, &[10.083616632201, want, 0.0], 1e-10);
        let g = loss.sum_all().unwrap().backward().unwrap();
        let g = g.get(&leaf).unwrap().narrow(1, 1, 2).unwrap().to_vec::<f64>().unwrap();
        assert!(g.iter().all(|&v| v == 0.0), "{g:?}");
    }
    // A class with probability 0: the loss and its gradient are finite.
    let z = wave(&[3, 1, 3], 1.3, 0.2);
    let masked = f64s(&[f64::NEG_INFINITY, 0.0, 0.0], &[3]).add(&z).unwrap().log_softmax(2).unwrap();
    let leaf = masked.with_grad().unwrap();
    let loss = leaf.ctc_loss(&i64s(&[1], &[1, 1]), &[3], &[1], 0, false, Sum).unwrap();
    assert!(loss.item().unwrap().is_finite());
    assert!(loss.backward().unwrap().get(&leaf).unwrap().to_vec::<f64>().unwrap().iter().all(|v| v.is_finite()));
    let nan = Tensor::full([3, 1, 3], f64::NAN, DType::F64, &cpu()).unwrap();
    assert!(nan.ctc_loss(&i64s(&[1], &[1]), &[3], &[1], 0, true, Sum).unwrap().item().unwrap().is_nan());
    let empty = Tensor::zeros([3, 0, 2], DType::F64, &cpu()).unwrap();
    assert!(empty.ctc_loss(&i64s(&[], &[0, 4]), &[], &[], 0, false, Mean).unwrap().item().unwrap().is_nan());
    let timeless = Tensor::zeros([0, 1, 2], DType::F64, &cpu()).unwrap();
    let loss = timeless.ctc_loss(&i64s(&[1], &[1]), &[0], &[1], 0, false, Sum).unwrap();
    assert_eq!(loss.item().unwrap(), f64::INFINITY);
}

#[test]
fn ctc_gradients_of_a_long_sequence_sum_to_nothing() {
    let (steps, n) = (600, 4);
    let leaf = randn(&[steps, n, 30], 5).to_dtype(DType::F32).unwrap().with_grad().unwrap();
    let target = i64s(&(0..n * 40).map(|i| 1 + (i as i64 * 7) % 29).collect::<Vec<_>>(), &[n, 40]);
    let loss = leaf.log_softmax(2).unwrap().ctc_loss(&target, &[steps; 4], &[40; 4], 0, false, Mean).unwrap();
    let g = loss.backward().unwrap();
    // The posterior of each step sums to 1, so the gradient through a softmax sums to 0.
    let sums = g.get(&leaf).unwrap().sum(&[2], false).unwrap().abs().unwrap().max_all().unwrap();
    assert!(sums.item().unwrap() < 1e-5, "{sums}");
}

#[test]
fn ctc_refuses_what_does_not_fit() {
    let (z, padded, joined, steps, lengths) = sequences();
    let ctc = |t: &Tensor, steps: &[usize], lengths: &[usize], blank| z.ctc_loss(t, steps, lengths, blank, false, Mean);
    assert!(ctc(&padded, &steps, &lengths, 4).unwrap_err().to_string().contains("blank 4"));
    assert!(ctc(&padded, &[7, 4, 5], &lengths, 0).unwrap_err().to_string().contains("7"));
    assert!(ctc(&padded, &steps[..2], &lengths, 0).is_err());
    assert!(ctc(&padded, &steps, &[4, 3, 2], 0).is_err());
    assert!(ctc(&joined, &steps, &[3, 3, 3], 0).is_err());
    assert!(ctc(&joined, &steps, &[usize::MAX, 3, 6], 0).is_err());
    assert!(ctc(&padded, &steps, &[3, 3, 3], 0).unwrap_err().to_string().contains("is the blank"));
    let e = ctc(&i64s(&[1, 1, 3, 2, 9, 3, 3, 2], &[8]), &steps, &lengths, 0).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 4, index: 9, size: 4 });
    let e = ctc(&i64s(&[1, 1, 3, 2, 1, 3, -1, 2, 0], &[3, 3]), &steps, &lengths, 0).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 6, index: -1, size: 4 });
    assert!(ctc(&padded.to_dtype(DType::F32).unwrap(), &steps, &lengths, 0).is_err());
    assert!(z.select(1, 0).unwrap().ctc_loss(&padded, &steps, &lengths, 0, false, Mean).is_err());
    assert!(padded.ctc_loss(&padded, &steps, &lengths, 0, false, Mean).is_err());
}
