//! Linear models and support vector machines of `ai.onnx.ml`, and what turns scores into labels.

use std::sync::Arc;

use gradus_tensor::{DType, Error, Result};

use crate::elem::Elem;
use crate::graph::{Call, Row, one, row, size, unsupported, volume};
use crate::value::{OnnxValue, Strings, device_floats, host_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("LinearRegressor", &[1], linear_regressor),
    row("LinearClassifier", &[1], linear_classifier),
    row("SVMRegressor", &[1], svm_regressor),
    row("SVMClassifier", &[1], svm_classifier),
];

/// A matrix of features, as f64.
pub(super) struct Features {
    pub(super) values: Vec<f64>,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Features {
    /// The features of input 0. A vector is one row.
    pub(super) fn of(c: &Call<'_>) -> Result<Features> {
        let x = c.tensor(0)?;
        let (rows, columns) = match x.shape() {
            &[columns] => (1, columns),
            &[rows, columns] => (rows, columns),
            other => return Err(Error::shape("onnx", format!("features of shape {other:?}, not a matrix"))),
        };
        Ok(Features { values: host_floats(&x)?, rows, columns })
    }

    pub(super) fn row(&self, at: usize) -> &[f64] {
        self.values.get(at * self.columns..(at + 1) * self.columns).unwrap_or_default()
    }
}

/// The floats of an attribute, as f64.
pub(super) fn floats(c: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    Ok(c.floats(name)?.unwrap_or_default().iter().map(|&v| f64::from(v)).collect())
}

/// The labels of a classifier.
pub(super) enum Labels<'c> {
    Ints(&'c [i64]),
    Texts(&'c [String]),
}

impl<'c> Labels<'c> {
    /// The labels of the attributes with these names.
    pub(super) fn of(c: &Call<'c>, ints: &str, texts: &str) -> Result<Labels<'c>> {
        match (c.texts(texts)?.unwrap_or_default(), c.ints(ints)?.unwrap_or_default()) {
            (&[], ints) => Ok(Labels::Ints(ints)),
            (texts, _) => Ok(Labels::Texts(texts)),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Labels::Ints(labels) => labels.len(),
            Labels::Texts(labels) => labels.len(),
        }
    }

    /// The labels with these numbers, as an output.
    pub(super) fn picked(&self, c: &Call<'_>, numbers: &[usize]) -> Result<OnnxValue> {
        let missing = |n: usize| Error::argument("onnx", format!("class {n}, of {}", self.len()));
        Ok(match self {
            Labels::Ints(labels) => {
                let label = |&n: &usize| labels.get(n).copied().ok_or_else(|| missing(n));
                let values = numbers.iter().map(label).collect::<Result<Vec<_>>>()?;
                c.upload(Elem::I64, vec![values.len()], values)
            }
            Labels::Texts(labels) => {
                let label = |&n: &usize| labels.get(n).cloned().ok_or_else(|| missing(n));
                let values = numbers.iter().map(label).collect::<Result<Vec<_>>>()?;
                OnnxValue::Strings(Arc::new(Strings { shape: vec![values.len()], values }))
            }
        })
    }
}

/// The number of the largest score, the first of equal ones.
pub(super) fn largest(scores: &[f64]) -> usize {
    let mut best = 0;
    for (i, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = i;
        }
    }
    best
}

/// The transforms of the scores of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn of(c: &Call<'_>) -> Result<Transform> {
        Ok(match c.text("post_transform", "NONE")? {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => return Err(Error::argument("onnx", format!("post_transform = `{other}`"))),
        })
    }

    pub(super) fn apply(self, scores: &mut [f64]) {
        match self {
            Transform::None => {}
            Transform::Logistic => scores.iter_mut().for_each(|s| *s = logistic(*s)),
            Transform::Probit => scores.iter_mut().for_each(|s| *s = probit(*s)),
            Transform::Softmax | Transform::SoftmaxZero => {
                // Scores near 0 stay 0 and count as nothing, for `SOFTMAX_ZERO`.
                let counts = |s: f64| self == Transform::Softmax || s.abs() > 1e-7;
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().filter(|&&s| counts(s)).map(|s| (s - most).exp()).sum();
                for score in scores {
                    *score = if counts(*score) { (*score - most).exp() / sum } else { 0.0 };
                }
            }
        }
    }
}

pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The approximation of the inverse of the error function by Winitzki, at `2 x - 1`, times the square root of 2: what
/// ONNX Runtime computes.
fn probit(x: f64) -> f64 {
    let x = 2.0 * x - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let v = 2.0 / (std::f64::consts::PI * 0.147) + 0.5 * log;
    let root = (-v + (v * v - log / 0.147).sqrt()).sqrt();
    std::f64::consts::SQRT_2 * if x < 0.0 { -root } else { root }
}

/// The outputs of a classifier: labels, and scores `[rows, columns]` as f32.
pub(super) fn classified(c: &Call<'_>, labels: &Labels<'_>, picked: &[usize], scores: &[Vec<f64>]) -> Values {
    let columns = scores.first().map_or(labels.len(), Vec::len);
    let flat: Vec<f64> = scores.iter().flatten().copied().collect();
    let scores = device_floats(&flat, &[scores.len(), columns], DType::F32, c.device)?;
    Ok(vec![labels.picked(c, picked)?, scores.into()])
}

/// The scores of linear functions: `[rows][count]`.
fn linear_scores(c: &Call<'_>, count: usize) -> Result<Vec<Vec<f64>>> {
    let (x, weights, bias) = (Features::of(c)?, floats(c, "coefficients")?, floats(c, "intercepts")?);
    if count == 0 || count.checked_mul(x.columns) != Some(weights.len()) || !(bias.is_empty() || bias.len() == count) {
        let m = format!("{} coefficients for {count} functions of {} features", weights.len(), x.columns);
        return Err(Error::shape("onnx", m));
    }
    let score = |row: &[f64], k: usize| {
        let weights = &weights[k * x.columns..(k + 1) * x.columns];
        row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>() + bias.get(k).copied().unwrap_or(0.0)
    };
    Ok((0..x.rows).map(|i| (0..count).map(|k| score(x.row(i), k)).collect()).collect())
}

fn linear_regressor(c: &Call<'_>) -> Values {
    let count = size(c.int("targets", 1)?)?;
    let transform = Transform::of(c)?;
    let mut scores = linear_scores(c, count)?;
    scores.iter_mut().for_each(|row| transform.apply(row));
    let flat: Vec<f64> = scores.iter().flatten().copied().collect();
    Ok(one(device_floats(&flat, &[scores.len(), count], DType::F32, c.device)?))
}

fn linear_classifier(c: &Call<'_>) -> Values {
    c.skip(&["multi_class"]);
    let labels = Labels::of(c, "classlabels_ints", "classlabels_strings")?;
    let transform = Transform::of(c)?;
    let columns = Features::of(c)?.columns;
    let count = floats(c, "coefficients")?.len() / columns.max(1);
    let mut scores = linear_scores(c, count)?;
    // One function for two labels: the score of the second, and of the first its complement.
    let both = count == 1 && labels.len() == 2;
    let picked: Vec<usize> = match both {
        true => scores.iter().map(|row| usize::from(row[0] > 0.0)).collect(),
        false => scores.iter().map(|row| largest(row)).collect(),
    };
    for row in &mut scores {
        match (both, transform) {
            (true, Transform::Logistic) => *row = vec![logistic(-row[0]), logistic(row[0])],
            (true, Transform::Probit) => return Err(unsupported("LinearClassifier of two classes with PROBIT")),
            (true, _) => *row = vec![1.0 - row[0], row[0]],
            (false, _) => transform.apply(row),
        }
    }
    classified(c, &labels, &picked, &scores)
}

/// The kernel of a support vector machine.
struct Kernel {
    kind: String,
    gamma: f64,
    coefficient: f64,
    degree: f64,
}

impl Kernel {
    fn of(c: &Call<'_>) -> Result<Kernel> {
        let parameters = floats(c, "kernel_params")?;
        let number = |i: usize| parameters.get(i).copied().unwrap_or(0.0);
        let kind = c.text("kernel_type", "LINEAR")?.to_owned();
        if !matches!(&*kind, "LINEAR" | "POLY" | "RBF" | "SIGMOID") {
            return Err(Error::argument("onnx", format!("kernel_type = `{kind}`")));
        }
        Ok(Kernel { kind, gamma: number(0), coefficient: number(1), degree: number(2) })
    }

    fn value(&self, a: &[f64], b: &[f64]) -> f64 {
        let dot = || a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        match &*self.kind {
            "LINEAR" => dot(),
            "POLY" => (self.gamma * dot() + self.coefficient).powf(self.degree),
            "SIGMOID" => (self.gamma * dot() + self.coefficient).tanh(),
            _ => (-self.gamma * a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>()).exp(),
        }
    }
}

/// The support vectors of a machine, `count` of them; one of no features if there are none.
fn vectors(c: &Call<'_>, name: &str, count: usize, columns: usize) -> Result<Vec<f64>> {
    let vectors = floats(c, name)?;
    if volume(&[count, columns])? != vectors.len() {
        let m = format!("{} numbers in `{name}` for {count} vectors of {columns} features", vectors.len());
        return Err(Error::shape("onnx", m));
    }
    Ok(vectors)
}

fn svm_regressor(c: &Call<'_>) -> Values {
    let (x, kernel, transform) = (Features::of(c)?, Kernel::of(c)?, Transform::of(c)?);
    let (weights, rho) = (floats(c, "coefficients")?, floats(c, "rho")?.first().copied().unwrap_or(0.0));
    let count = size(c.int("n_supports", 0)?)?;
    let one_class = c.flag("one_class", false)?;
    let sum_of = |row: &[f64]| -> Result<f64> {
        if count == 0 {
            return Ok(row.iter().zip(&weights).map(|(x, w)| x * w).sum());
        }
        let vectors = vectors(c, "support_vectors", count, x.columns)?;
        Ok(vectors.chunks_exact(x.columns.max(1)).zip(&weights).map(|(v, w)| w * kernel.value(row, v)).sum())
    };
    c.skip(&["support_vectors"]);
    if weights.len() != if count == 0 { x.columns } else { count } {
        return Err(Error::shape("onnx", format!("{} coefficients for {count} support vectors", weights.len())));
    }
    let mut scores = Vec::new();
    for i in 0..x.rows {
        let mut score = [sum_of(x.row(i))? + rho];
        if one_class {
            score[0] = if score[0] > 0.0 { 1.0 } else { -1.0 };
        }
        transform.apply(&mut score);
        scores.push(score[0]);
    }
    Ok(one(device_floats(&scores, &[x.rows, 1], DType::F32, c.device)?))
}

/// The probabilities of classes from those of each pair, by the method of Wu, Lin and Weng (2004), as in libsvm.
fn coupled(pairs: &[f64], count: usize) -> Vec<f64> {
    let r = |i: usize, j: usize| pairs[i * count + j];
    let mut q = vec![0.0; count * count];
    for t in 0..count {
        q[t * count + t] = (0..count).filter(|&j| j != t).map(|j| r(j, t) * r(j, t)).sum();
        for j in (0..count).filter(|&j| j != t) {
            q[t * count + j] = -r(j, t) * r(t, j);
        }
    }
    let mut p = vec![1.0 / count as f64; count];
    for _ in 0..count.max(100) {
        let mut qp: Vec<f64> = (0..count).map(|t| (0..count).map(|j| q[t * count + j] * p[j]).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(p, q)| p * q).sum();
        if qp.iter().all(|v| (v - pqp).abs() < 0.005 / count as f64) {
            break;
        }
        for t in 0..count {
            let diff = (pqp - qp[t]) / q[t * count + t];
            p[t] += diff;
            pqp = (pqp + diff * (diff * q[t * count + t] + 2.0 * qp[t])) / ((1.0 + diff) * (1.0 + diff));
            for j in 0..count {
                qp[j] = (qp[j] + diff * q[t * count + j]) / (1.0 + diff);
                p[j] /= 1.0 + diff;
            }
        }
    }
    p
}

fn svm_classifier(c: &Call<'_>) -> Values {
    let labels = Labels::of(c, "classlabels_ints", "classlabels_strings")?;
    let (x, kernel, transform) = (Features::of(c)?, Kernel::of(c)?, Transform::of(c)?);
    let (weights, rho) = (floats(c, "coefficients")?, floats(c, "rho")?);
    let (prob_a, prob_b) = (floats(c, "prob_a")?, floats(c, "prob_b")?);
    let per_class = c.ints("vectors_per_class")?.unwrap_or_default().iter().map(|&n| size(n));
    let per_class = per_class.collect::<Result<Vec<_>>>()?;
    let count = labels.len();
    let pairs = count.saturating_mul(count.saturating_sub(1)) / 2;
    let total = per_class.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).unwrap_or(usize::MAX);
    if per_class.is_empty() {
        // A linear machine: a function for each class.
        let mut scores = Vec::new();
        c.skip(&["support_vectors"]);
        if x.columns == 0 || weights.len() != count.saturating_mul(x.columns) {
            return Err(Error::shape("onnx", format!("{} coefficients for {count} classes", weights.len())));
        }
        for i in 0..x.rows {
            let of = |w: &[f64]| kernel.value(x.row(i), w) + rho.first().copied().unwrap_or(0.0);
            scores.push(weights.chunks_exact(x.columns).map(of).collect::<Vec<_>>());
        }
        let picked: Vec<usize> = scores.iter().map(|row| largest(row)).collect();
        scores.iter_mut().for_each(|row| transform.apply(row));
        return classified(c, &labels, &picked, &scores);
    }
    let fits = per_class.len() == count && count > 1 && weights.len() == (count - 1).saturating_mul(total);
    let probable = !prob_a.is_empty();
    if !fits || rho.len() != pairs || (probable && (prob_a.len() != pairs || prob_b.len() != pairs)) {
        let m =
            format!("{} coefficients and {} offsets for {count} classes of {total} vectors", weights.len(), rho.len());
        return Err(Error::shape("onnx", m));
    }
    let vectors = vectors(c, "support_vectors", total, x.columns)?;
    let begins: Vec<usize> = per_class.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect();
    let (mut picked, mut all) = (Vec::new(), Vec::new());
    for i in 0..x.rows {
        let row = x.row(i);
        let kernels: Vec<f64> = match x.columns {
            0 => Vec::new(),
            n => vectors.chunks_exact(n).map(|v| kernel.value(row, v)).collect(),
        };
        let (mut scores, mut votes, mut at) = (Vec::new(), vec![0usize; count], 0);
        for a in 0..count {
            for b in a + 1..count {
                let part = |class: usize, line: usize| -> f64 {
                    let from = begins[class];
                    (from..from + per_class[class])
                        .map(|j| weights[line * total + j] * kernels.get(j).unwrap_or(&0.0))
                        .sum()
                };
                let score = part(a, b - 1) + part(b, a) + rho[at];
                votes[if score > 0.0 { a } else { b }] += 1;
                scores.push(score);
                at += 1;
            }
        }
        // The label is the class with the most votes, also if the scores are probabilities.
        picked.push(votes.iter().enumerate().rev().max_by_key(|(_, n)| **n).map_or(0, |(i, _)| i));
        if probable {
            let mut chances = vec![0.0; count * count];
            for (at, (a, b)) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).enumerate() {
                // Not so near to 0 or 1 that an unlikely pair decides everything.
                let chance = (1.0 - logistic(scores[at] * prob_a[at] + prob_b[at])).clamp(1e-7, 1.0 - 1e-7);
                (chances[a * count + b], chances[b * count + a]) = (chance, 1.0 - chance);
            }
            scores = coupled(&chances, count);
        } else if count == 2 {
            scores = vec![-scores[0], scores[0]];
        }
        transform.apply(&mut scores);
        all.push(scores);
    }
    classified(c, &labels, &picked, &all)
}
