//! Finite values whose squares, powers or sums overflow: results are correct or not finite, never silently 0. The
//! reference is f64, or the same numbers scaled so that nothing overflows.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, f32s, f64s};
use gradus_tensor::{BackwardOptions, DType, Reduction, Result, Tensor, grad};

/// Numbers near 1 that f32 can represent. Multiplied by one of the powers of two in [`LARGE`], their squares overflow.
fn near_one(n: usize) -> Vec<f64> {
    (0..n).map(|i| f64::from(((i as f64 * 1.7 + 0.3).sin() * 1.5) as f32)).collect()
}

const LARGE: [(DType, i32); 4] = [(DType::F32, 70), (DType::F32, 120), (DType::BF16, 100), (DType::F64, 700)];

fn tensor(values: &[f64], dtype: DType, shape: &[usize]) -> Tensor {
    f64s(values, shape).to_dtype(dtype).unwrap()
}

fn f(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The value, the gradient, the gradient computed with a graph, and the gradient of a weighted sum of the latter.
fn derivatives(x: &Tensor, op: impl Fn(&Tensor) -> Result<Tensor>) -> [Vec<f64>; 4] {
    let x = x.with_grad().unwrap();
    let y = op(&x).unwrap();
    // The weights are near 1 and all different.
    let seed = f64s(&near_one(y.numel()), y.shape()).to_dtype(y.dtype()).unwrap();
    let gradient = |o: BackwardOptions| grad(&[&y], &[&x], Some(&[&seed]), o).unwrap()[0].clone().unwrap();
    let recorded = gradient(BackwardOptions::new().create_graph());
    let plain = gradient(BackwardOptions::new().retain_graph());
    let again = tensor(&near_one(x.numel()), x.dtype(), x.shape());
    let second = grad(&[&recorded.mul(&again).unwrap()], &[&x], Some(&[&again]), BackwardOptions::new());
    [f(&y), f(&plain), f(&recorded), f(second.unwrap()[0].as_ref().unwrap())]
}

type Op = fn(&Tensor) -> Result<Tensor>;

#[test]
fn normalisations_do_not_change_with_the_size_of_their_input() {
    let shape = [2, 4, 6];
    let ops: [(&str, Op); 5] = [
        ("layer_norm", |x| x.layer_norm(&[6], None, None, 1e-5)),
        ("rms_norm", |x| x.rms_norm(&[4, 6], None, 1e-5)),
        ("group_norm", |x| x.group_norm(2, None, None, 1e-5)),
        ("instance_norm", |x| x.instance_norm(None, None, 1e-5)),
        ("batch_norm", |x| Ok(x.batch_norm(None, None, 1e-5)?.0)),
    ];
    for (dtype, exponent) in LARGE {
        let size = 2f64.powi(exponent);
        let near = f(&tensor(&near_one(48), dtype, &shape));
        let large: Vec<f64> = near.iter().map(|v| v * size).collect();
        for (name, op) in ops {
            // Next to the large numbers, eps is negligible. The factor of 1e6 makes it negligible here as well.
            let want = derivatives(&tensor(&near, DType::F64, &shape), |x| {
                let small = x.mul(1e6)?;
                op(&small)
            });
            let got = derivatives(&tensor(&large, dtype, &shape), op);
            let tolerance = match dtype {
                DType::F64 => 1e-10,
                DType::F32 => 1e-5,
                _ => 2e-2,
            };
            assert_close(&got[0], &want[0], tolerance);
            // Slopes are smaller by a factor of `size`, which may make them too small for a float.
            if exponent < 110 {
                let plain: Vec<f64> = got[1].iter().map(|v| v * size).collect();
                assert_close(&plain, &want[1], tolerance * 10.0);
            }
            assert!(got[..2].iter().flatten().all(|v| v.is_finite()), "{name} {dtype} {exponent}");
            assert!(got[2..].iter().flatten().all(|v| v.is_nan()), "{name} {dtype} {exponent}");
        }
    }
}

#[test]
fn a_large_row_leaves_the_others_as_they_are() {
    let near = near_one(64);
    let mut mixed = near.clone();
    mixed[32..].iter_mut().for_each(|v| *v *= 2f64.powi(90));
    let op = |values: &[f64]| tensor(values, DType::F32, &[2, 32]).layer_norm(&[32], None, None, 1e-5).unwrap();
    let (alone, beside) = (op(&near).to_vec::<f32>().unwrap(), op(&mixed).to_vec::<f32>().unwrap());
    assert_eq!(alone[..32], beside[..32]);
    assert_close(&f(&op(&mixed))[32..], &f(&op(&near))[32..], 1e-4);
}

#[test]
fn large_rows_of_one_value_become_zeros_and_infinities_stay_nan() {
    for (dtype, value) in [(DType::F32, 1.1e38), (DType::F32, -3e38), (DType::F64, 1.1e308), (DType::BF16, 2.9e38)] {
        for n in [3, 40, 3000] {
            let x = Tensor::full([2, n], value, dtype, &common::cpu()).unwrap();
            let y = x.layer_norm(&[n], None, None, 1e-5).unwrap();
            assert_eq!(f(&y), vec![0.0; 2 * n], "{dtype} {n}");
        }
    }
    let x = f32s(&[1e30, f32::INFINITY, 1.0, 1e30, -1e30, f32::NAN], &[2, 3]);
    assert!(f(&x.layer_norm(&[3], None, None, 1e-5).unwrap()).iter().all(|v| v.is_nan()));
}

#[test]
fn statistics_of_a_batch_that_overflow_do_not_make_zeros() {
    let x = tensor(&near_one(12), DType::F32, &[4, 3]).mul(2f64.powi(100)).unwrap();
    let (_, statistics) = x.batch_norm(None, None, 1e-5).unwrap();
    let want: Vec<f64> = f(&x.to_dtype(DType::F64).unwrap().mean(&[0], false).unwrap());
    assert_close(
        &f(&statistics.mean.mul(2f64.powi(-100)).unwrap()),
        &want.iter().map(|v| v * 2f64.powi(-100)).collect::<Vec<_>>(),
        1e-6,
    );
    assert!(f(&statistics.var).iter().all(|v| v.is_infinite()));
    let y = x.batch_norm_eval(&statistics.mean, &statistics.var, None, None, 1e-5).unwrap();
    assert!(f(&y).iter().all(|v| v.is_nan()));
}

/// Operations that square, take powers or add 1: values and slopes agree with those in f64, or are not finite.
#[test]
fn what_overflows_is_right_or_not_finite() {
    let lengths: Vec<(&str, Op)> = vec![
        ("norm 2", |x| x.norm(2.0, &[1], false)),
        ("norm 3", |x| x.norm(3.0, &[1], false)),
        ("norm 1", |x| x.norm(1.0, &[1], false)),
        ("norm 0.5", |x| x.norm(0.5, &[1], false)),
        ("norm -2", |x| x.norm(-2.0, &[1], false)),
        ("norm inf", |x| x.norm(f64::INFINITY, &[1], false)),
        ("std", |x| x.std(&[1], 1, false)),
        ("normalize 1", |x| x.normalize(1.0, 1, 1e-12)),
        ("normalize 2", |x| x.normalize(2.0, 1, 1e-12)),
        ("normalize 3", |x| x.normalize(3.0, 1, 1e-12)),
        ("normalize -2", |x| x.normalize(-2.0, 1, 1e-12)),
        ("normalize inf", |x| x.normalize(f64::INFINITY, 1, 1e-12)),
        ("cosine_similarity", |x| x.cosine_similarity(&x.detach().flip(1)?, 1, 1e-8)),
        ("cdist", |x| x.cdist(&x.detach().mul(-0.5)?, 2.0)),
        ("cdist 3", |x| x.cdist(&x.detach().mul(-0.5)?, 3.0)),
        ("pairwise_distance", |x| x.pairwise_distance(&x.detach().mul(-0.5)?, 2.0, 1e-6, false)),
        ("local_response_norm", |x| x.unsqueeze(0)?.local_response_norm(3, 0.5, 0.75, 1.0)),
        ("cosine_embedding_loss", |x| {
            let target = x.detach().narrow(1, 0, 1)?.squeeze(1)?.ones_like()?;
            x.cosine_embedding_loss(&x.detach().flip(1)?, &target, 0.0, Reduction::None)
        }),
        ("triplet_margin_loss", |x| {
            x.triplet_margin_loss(&x.detach().mul(-0.5)?, &x.detach().flip(1)?, 1.0, 2.0, false, Reduction::None)
        }),
        ("triplet_margin_loss 3", |x| {
            x.triplet_margin_loss(&x.detach().mul(-0.5)?, &x.detach().flip(1)?, 1.0, 3.0, false, Reduction::None)
        }),
    ];
    let others: Vec<(&str, Op)> = vec![
        ("var", |x| x.var(&[1], 1, false)),
        ("softsign", |x| x.softsign()),
        ("asinh", |x| x.asinh()),
        ("atan", |x| x.atan()),
        ("log1p", |x| x.abs()?.log1p()),
        ("acosh", |x| x.abs()?.acosh()),
        ("hypot", |x| x.hypot(1.0)),
        ("atan2", |x| x.atan2(x.detach().flip(1)?)),
        ("logaddexp", |x| x.logaddexp(1.0)),
    ];
    let mut wrong = vec![];
    // The second derivatives of norms are left out: they have factors that underflow long before a square overflows.
    for (orders, name, op) in
        lengths.into_iter().map(|(name, op)| (3, name, op)).chain(others.into_iter().map(|(name, op)| (4, name, op)))
    {
        for exponent in [0, 30, 64, 75, 100, 120] {
            // Move every element away from 0.
            let values = near_one(12).into_iter().map(|v| f64::from((v + v.signum()) as f32) * 2f64.powi(exponent));
            let values: Vec<f64> = values.collect();
            let want = derivatives(&tensor(&values, DType::F64, &[2, 6]), op);
            let got = derivatives(&tensor(&values, DType::F32, &[2, 6]), op);
            for (order, (got, want)) in got.iter().zip(&want).enumerate().take(orders) {
                for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
                    // Half of the digits suffice, because gradients of norms cancel. Values below the range of f32 may
                    // be 0.
                    if got.is_finite() && (got - want).abs() > 2e-3 * want.abs().max(1e-36) {
                        wrong.push(format!("{name} 2^{exponent} order {order} [{i}]: {got:e}, not {want:e}"));
                    }
                    if exponent == 0 && !got.is_finite() {
                        wrong.push(format!("{name} order {order} [{i}]: {got}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The slope of `x / (1 + |x|)` is `1 / (1 + |x|)^2` to full precision, however large x is.
#[test]
fn the_slope_of_softsign_does_not_cancel() {
    for x in [0.0, 1e-3, -0.7, 3.0, -1e4, 1e9, 1e20, -1e60, 1e120] {
        let [_, plain, recorded, second] = derivatives(&f64s(&[x], &[1]), Tensor::softsign);
        let (seed, size) = (near_one(1)[0], 1.0 + f64::abs(x));
        let slope = seed / size / size;
        let curve = -2.0 * seed * seed * seed * f64::signum(x) / size / size / size;
        let curve = if x == 0.0 { 0.0 } else { curve };
        assert!((plain[0] - slope).abs() <= 1e-15 * slope.abs(), "{x}: {} {slope}", plain[0]);
        assert_eq!(plain, recorded);
        assert!((second[0] - curve).abs() <= 1e-14 * curve.abs(), "{x}: {} {curve}", second[0]);
    }
}
