//! The default bodies of softmax, normalisation, attention, cross-entropy and embedding, compared with direct loops;
//! their gradients are compared with finite differences.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod common;

use common::{Tensor, dot, is_gradient, near, numbers};
use gradus_backend::{AttentionParams, Axes, Backend, CrossEntropyParams, Element, bf16, f16};
use gradus_conformance::OracleBackend;

fn softmax(b: &OracleBackend, log: bool, dims: &[usize], axis: usize, x: &[f64]) -> Vec<f64> {
    let mut y = Tensor::zeros(b, dims);
    b.softmax(log, Tensor::new(b, dims, x).view(), axis, &mut y.out()).unwrap();
    y.values(b)
}

#[test]
fn softmax_is_its_formula_and_has_the_gradient_of_its_differences() {
    let b = OracleBackend::new();
    let dims = [2, 3, 4];
    let x = numbers(24, 1);
    for (axis, step) in [(0, 12), (1, 4), (2, 1)] {
        for log in [false, true] {
            let want: Vec<f64> = (0..24)
                .map(|i| {
                    let first = i - i / step % dims[axis] * step;
                    let sum: f64 = (0..dims[axis]).map(|j| x[first + j * step].exp()).sum();
                    if log { x[i] - sum.ln() } else { x[i].exp() / sum }
                })
                .collect();
            let y = softmax(&b, log, &dims, axis, &x);
            near("softmax", &y, &want, 1e-14);

            let g = numbers(24, 2);
            let mut dx = Tensor::zeros(&b, &dims);
            let (ty, tg) = (Tensor::new(&b, &dims, &y), Tensor::new(&b, &dims, &g));
            b.softmax_backward(log, ty.view(), tg.view(), axis, &mut dx.out()).unwrap();
            is_gradient("dx", &x, &dx.values(&b), |x| dot(&softmax(&b, log, &dims, axis, x), &g));
        }
    }
}

const EPS: f64 = 1e-2;

/// The normalised values, the mean and the reciprocal standard deviation.
fn normalize(
    b: &OracleBackend,
    rms: bool,
    axes: Axes,
    dims: &[usize],
    [x, scale, shift]: [&[f64]; 3],
) -> [Vec<f64>; 3] {
    let small: Vec<usize> = (0..dims.len()).map(|i| if axes.contains(i) { 1 } else { dims[i] }).collect();
    let [x, scale, shift] = [x, scale, shift].map(|v| Tensor::new(b, dims, v));
    let (mut y, mut mean, mut rstd) = (Tensor::zeros(b, dims), Tensor::zeros(b, &small), Tensor::zeros(b, &small));
    let (scale, shift) = (Some(scale.view()), Some(shift.view()));
    b.normalize(rms, axes, EPS, x.view(), scale, shift, &mut y.out(), &mut mean.out(), &mut rstd.out()).unwrap();
    [y.values(b), mean.values(b), rstd.values(b)]
}

#[test]
fn normalisation_is_its_formula_and_has_the_gradient_of_its_differences() {
    let b = OracleBackend::new();
    let dims = [2, 3, 4];
    let [x, scale, shift, g] = [1, 2, 3, 4].map(|seed| numbers(24, seed));
    for axes in [&[2][..], &[0, 2], &[1, 2], &[0]] {
        let set = axes.iter().fold(Axes::NONE, |s, &a| s.with(a));
        for rms in [false, true] {
            let [y, mean, rstd] = normalize(&b, rms, set, &dims, [&x, &scale, &shift]);
            let index = |i: usize| [i / 12, i / 4 % 3, i % 4];
            let mut want = Vec::new();
            for i in 0..24 {
                let mates: Vec<f64> = (0..24)
                    .filter(|&j| (0..3).all(|a| set.contains(a) || index(i)[a] == index(j)[a]))
                    .map(|j| x[j])
                    .collect();
                let n = mates.len() as f64;
                let mean = if rms { 0.0 } else { mates.iter().sum::<f64>() / n };
                let var = mates.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                want.push((x[i] - mean) / (var + EPS).sqrt() * scale[i] + shift[i]);
            }
            near("normalize", &y, &want, 1e-13);

            let small: Vec<usize> = (0..3).map(|i| if set.contains(i) { 1 } else { dims[i] }).collect();
            let mut dx = Tensor::zeros(&b, &dims);
            let [tg, tx, ts] = [&g, &x, &scale].map(|v| Tensor::new(&b, &dims, v));
            let [mean, rstd] = [mean, rstd].map(|v| Tensor::new(&b, &small, &v));
            let (m, r) = (mean.view(), rstd.view());
            b.normalize_backward(rms, set, tg.view(), tx.view(), Some(ts.view()), m, r, &mut dx.out()).unwrap();
            let loss = |x: &[f64]| dot(&normalize(&b, rms, set, &dims, [x, &scale, &shift])[0], &g);
            is_gradient("dx", &x, &dx.values(&b), loss);

            let [mut dscale, mut dshift] = [Tensor::zeros(&b, &dims), Tensor::zeros(&b, &dims)];
            let (scale_out, shift_out) = (&mut dscale.out(), &mut dshift.out());
            b.normalize_affine_backward(tg.view(), tx.view(), m, r, scale_out, Some(shift_out)).unwrap();
            let loss = |s: &[f64]| dot(&normalize(&b, rms, set, &dims, [&x, s, &shift])[0], &g);
            is_gradient("dscale", &scale, &dscale.values(&b), loss);
            near("dshift", &dshift.values(&b), &g, 0.0);
        }
    }
}

/// The sizes of an attention call: b, h, hk, lq, lk, d, dv.
type Heads = [usize; 7];

/// The weights of one query (`None` for a hidden key) and their log-sum-exp.
fn weights(s: Heads, p: &AttentionParams, q: &[f64], k: &[f64], mask: &[bool], at: [usize; 3]) -> (Vec<f64>, f64) {
    let ([_, h, hk, lq, lk, d, _], [n, head, i]) = (s, at);
    let scores: Vec<f64> = (0..lk)
        .map(|j| {
            let row = (n * h + head) * lq + i;
            let key = (n * hk + head / (h / hk)) * lk + j;
            let hidden = !mask[row * lk + j] || (p.causal && j + lq > i + lk);
            if hidden { f64::NEG_INFINITY } else { p.scale * dot(&q[row * d..][..d], &k[key * d..][..d]) }
        })
        .collect();
    let sum: f64 = scores.iter().map(|s| s.exp()).sum();
    (scores.iter().map(|s| if sum == 0.0 { 0.0 } else { s.exp() / sum }).collect(), sum.ln())
}

fn attention(b: &OracleBackend, s: Heads, p: &AttentionParams, x: [&[f64]; 3], mask: &[bool]) -> [Vec<f64>; 2] {
    let [n, h, hk, lq, lk, d, dv] = s;
    let [q, k, v] =
        [(x[0], [n, h, lq, d]), (x[1], [n, hk, lk, d]), (x[2], [n, hk, lk, dv])].map(|(v, s)| Tensor::new(b, &s, v));
    let mask = Tensor::new(b, &[n, h, lq, lk], mask);
    let (mut out, mut stats) = (Tensor::zeros(b, &[n, h, lq, dv]), Tensor::zeros(b, &[n, h, lq, 2]));
    b.attention(p, q.view(), k.view(), v.view(), Some(mask.view()), &mut out.out(), &mut stats.out()).unwrap();
    [out.values(b), stats.values(b)]
}

#[test]
fn attention_is_its_loops_and_has_the_gradients_of_its_differences() {
    let b = OracleBackend::new();
    for (s, causal) in [([1, 1, 1, 3, 3, 2, 2], true), ([2, 4, 2, 3, 5, 3, 2], false), ([1, 2, 1, 4, 2, 2, 3], true)] {
        let [n, h, hk, lq, lk, d, dv] = s;
        let p = AttentionParams { causal, scale: 0.7 };
        let (q, k, v) = (numbers(n * h * lq * d, 1), numbers(n * hk * lk * d, 2), numbers(n * hk * lk * dv, 3));
        // Hides scattered keys, and all keys of one row.
        let mask: Vec<bool> =
            numbers(n * h * lq * lk, 4).iter().enumerate().map(|(i, v)| *v > -0.5 && i / lk != lq - 1).collect();
        let [out, stats] = attention(&b, s, &p, [&q, &k, &v], &mask);
        let (mut want, mut want_lse) = (Vec::new(), Vec::new());
        for row in 0..n * h * lq {
            let (batch, head, i) = (row / (h * lq), row / lq % h, row % lq);
            let (w, l) = weights(s, &p, &q, &k, &mask, [batch, head, i]);
            want_lse.push(l);
            for c in 0..dv {
                let value = |j: usize| v[((batch * hk + head / (h / hk)) * lk + j) * dv + c];
                want.push((0..lk).map(|j| w[j] * value(j)).sum());
            }
        }
        near("attention", &out, &want, 1e-14);
        let lse: Vec<f64> = stats.chunks_exact(2).map(|row| row[0] + row[1].ln()).collect();
        near("lse", &lse, &want_lse, 1e-14);
        assert!(want_lse.contains(&f64::NEG_INFINITY));

        let g = numbers(out.len(), 5);
        let shapes = [vec![n, h, lq, d], vec![n, hk, lk, d], vec![n, hk, lk, dv]];
        let [tq, tk, tv] = [(&q, 0), (&k, 1), (&v, 2)].map(|(v, i)| Tensor::new(&b, &shapes[i], v));
        let [mut dq, mut dk, mut dv_] = [0, 1, 2].map(|i: usize| Tensor::zeros(&b, &shapes[i]));
        let (to, tg) = (Tensor::new(&b, &[n, h, lq, dv], &out), Tensor::new(&b, &[n, h, lq, dv], &g));
        let (ts, tm) = (Tensor::new(&b, &[n, h, lq, 2], &stats), Tensor::new(&b, &[n, h, lq, lk], &mask));
        let (q_, k_, v_, m) = (tq.view(), tk.view(), tv.view(), Some(tm.view()));
        let (mut oq, mut ok, mut ov) = (dq.out(), dk.out(), dv_.out());
        b.attention_backward(&p, q_, k_, v_, m, to.view(), ts.view(), tg.view(), &mut oq, &mut ok, &mut ov).unwrap();
        let loss = |x: [&[f64]; 3]| dot(&attention(&b, s, &p, x, &mask)[0], &g);
        is_gradient("dq", &q, &dq.values(&b), |x| loss([x, &k, &v]));
        is_gradient("dk", &k, &dk.values(&b), |x| loss([&q, x, &v]));
        is_gradient("dv", &v, &dv_.values(&b), |x| loss([&q, &k, x]));
    }
}

fn cross_entropy(b: &OracleBackend, p: &CrossEntropyParams, n: usize, x: &[f64], t: &[i64]) -> [Vec<f64>; 2] {
    let (mut loss, mut lse) = (Tensor::zeros(b, &[n]), Tensor::zeros(b, &[n]));
    let (x, t) = (Tensor::new(b, &[n, x.len() / n], x), Tensor::new(b, &[n], t));
    b.cross_entropy(p, x.view(), t.view(), &mut loss.out(), &mut lse.out()).unwrap();
    [loss.values(b), lse.values(b)]
}

#[test]
fn cross_entropy_is_its_formula_and_has_the_gradient_of_its_differences() {
    let b = OracleBackend::new();
    let (n, c) = (4, 5);
    let (x, t, g) = (numbers(n * c, 1), [3, -1, 0, 4], numbers(n, 2));
    for label_smoothing in [0.0, 0.2, 1.0] {
        let p = CrossEntropyParams { ignore_index: Some(-1), label_smoothing };
        let [loss, lse] = cross_entropy(&b, &p, n, &x, &t);
        let want: Vec<f64> = (0..n)
            .map(|i| {
                let row = &x[i * c..][..c];
                let lse = row.iter().map(|v| v.exp()).sum::<f64>().ln();
                let target =
                    |j: usize| label_smoothing / c as f64 + if j as i64 == t[i] { 1.0 - label_smoothing } else { 0.0 };
                if t[i] == -1 { 0.0 } else { (0..c).map(|j| -target(j) * (row[j] - lse)).sum() }
            })
            .collect();
        near("loss", &loss, &want, 1e-14);

        let mut dx = Tensor::zeros(&b, &[n, c]);
        let (tx, tt) = (Tensor::new(&b, &[n, c], &x), Tensor::new(&b, &[n], &t));
        let (tl, tg) = (Tensor::new(&b, &[n], &lse), Tensor::new(&b, &[n], &g));
        b.cross_entropy_backward(&p, tx.view(), tt.view(), tl.view(), tg.view(), &mut dx.out()).unwrap();
        is_gradient("dx", &x, &dx.values(&b), |x| dot(&cross_entropy(&b, &p, n, x, &t)[0], &g));
    }
}

#[test]
fn embedding_takes_rows_and_its_gradient_adds_them() {
    let b = OracleBackend::new();
    let (weight, index, g) = (numbers(12, 1), [2i64, 0, 2, 3, 2, 1], numbers(18, 2));
    let (tw, ti) = (Tensor::new(&b, &[4, 3], &weight), Tensor::new(&b, &[2, 3], &index));
    let mut out = Tensor::zeros(&b, &[2, 3, 3]);
    b.embedding(tw.view(), ti.view(), &mut out.out()).unwrap();
    let want: Vec<f64> = index.iter().flat_map(|&i| weight[i as usize * 3..][..3].to_vec()).collect();
    assert_eq!(out.values::<f64>(&b), want);
    let mut dw = Tensor::zeros(&b, &[4, 3]);
    b.embedding_backward(ti.view(), Tensor::new(&b, &[2, 3, 3], &g).view(), Some(3), &mut dw.out()).unwrap();
    let mut want = vec![0.0; 12];
    for (row, &i) in index.iter().enumerate().filter(|(_, i)| **i != 3) {
        (0..3).for_each(|c| want[i as usize * 3 + c] += g[row * 3 + c]);
    }
    near("dw", &dw.values(&b), &want, 1e-15);
}

/// Half-precision composites compute in f32 and round once, so they are within half an ULP of the f64 result.
#[test]
fn half_precision_composites_round_once() {
    fn check<T: Element>(b: &OracleBackend, roundoff: f64) {
        let x: Vec<T> = numbers(60, 1).into_iter().map(T::from_f64).collect();
        let wide: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
        let mut y = Tensor::new(b, &[2, 30], &x);
        b.softmax(false, Tensor::new(b, &[2, 30], &x).view(), 1, &mut y.out()).unwrap();
        let want = softmax(b, false, &[2, 30], 1, &wide);
        for (got, want) in y.values::<T>(b).iter().zip(want) {
            assert!((got.to_f64() - want).abs() <= want * roundoff * 1.01 + 1e-6 * want, "{got:?} {want}");
        }
    }
    let b = OracleBackend::new();
    check::<f16>(&b, 2f64.powi(-11));
    check::<bf16>(&b, 2f64.powi(-8));
}
