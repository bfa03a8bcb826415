//! Products, normalisation, attention and distances.

use gradus::ops::{RecurrentCell, RecurrentOptions};
use gradus::prelude::*;
use gradus::{Causal, Gemm};

use super::{Row, SHORT, rows};
use crate::calls::Draw;

/// A matrix or batch of matrices that can usually be the right operand of `x`.
fn right(d: &mut Draw, x: &Tensor) -> Result<Tensor> {
    let mut dims = x.shape().to_vec();
    let inner = dims.pop().unwrap_or(1);
    if let Some(last) = dims.last_mut() {
        *last = inner;
        dims.push(1 + d.below(4));
    } else {
        dims.push(inner);
    }
    if d.once_in(4) {
        let skip = d.below(dims.len().saturating_sub(1));
        dims.drain(..skip);
    }
    d.sized(&dims, x.dtype())
}

/// Three matrices `x`, `a` and `b` with `batch` leading axes. Their shapes usually fit `x + a @ b`.
fn triple(d: &mut Draw, batch: usize) -> Result<[Tensor; 3]> {
    let dtype = d.dtype();
    let [b, m, k, n] = [2, d.below(5), d.below(5), d.below(5)];
    let mut make = |dims: [usize; 2]| d.sized(&[&[b][..batch], &dims].concat(), dtype);
    Ok([make([m, n])?, make([m, k])?, make([k, n])?])
}

/// An einsum equation for operands of these ranks, usually valid.
fn equation(d: &mut Draw, ranks: &[usize]) -> String {
    let mut letters = |n: usize| (0..n).map(|_| d.of(&['i', 'j', 'k', 'l', 'm'])).collect::<String>();
    let mut terms: Vec<String> = ranks.iter().map(|&r| letters(r)).collect();
    let first = terms.first().cloned().unwrap_or_default();
    if d.once_in(6) {
        terms.iter_mut().for_each(|t| t.insert_str(0, "..."));
    }
    let mut text = terms.join(",");
    if d.flag() {
        text += "->";
        let mut kept: Vec<char> = first.chars().filter(|_| d.flag()).collect();
        kept.dedup();
        text.extend(kept);
    }
    if d.once_in(12) {
        let at = d.below(text.len() + 1);
        text.insert(at, d.of(&['-', '>', ',', '.', '1', ' ', 'Z']));
    }
    text
}

/// Queries, keys and values, usually of matching shapes.
fn heads(d: &mut Draw) -> Result<[Tensor; 3]> {
    let dtype = d.float_dtype();
    let [b, h, lq, lk, size] = [1 + d.below(2), 1 + d.below(3), d.below(6), d.below(6), 1 + d.below(5)];
    let wide = 1 + d.below(4);
    Ok([d.sized(&[b, h, lq, size], dtype)?, d.sized(&[b, h, lk, size], dtype)?, d.sized(&[b, h, lk, wide], dtype)?])
}

fn attend(d: &mut Draw, lse: bool) -> Result<Vec<Tensor>> {
    let [q, k, v] = heads(d)?;
    let mask = d.maybe(|d| {
        let dims = [q.size(-2).unwrap_or(1), k.size(-2).unwrap_or(1)];
        let dtype = d.of(&[DType::Bool, q.dtype()]);
        d.sized(&dims, dtype)
    })?;
    let mut options = AttentionOptions::new().causal(d.of(&[Causal::No, Causal::BottomRight, Causal::TopLeft]));
    if let Some(mask) = &mask {
        options = options.mask(mask);
    }
    if d.once_in(3) {
        options = options.scale(d.number());
    }
    if lse {
        return q.attention_with_lse(&k, &v, options).map(|(y, lse)| vec![y, lse]);
    }
    if d.once_in(4) {
        let p = d.fraction();
        options = options.dropout(p, &mut d.generator);
    }
    Ok(vec![q.scaled_dot_product_attention(&k, &v, options)?])
}

fn recurrent(d: &mut Draw) -> Result<Vec<Tensor>> {
    let cells = [RecurrentCell::RnnTanh, RecurrentCell::RnnRelu, RecurrentCell::Lstm, RecurrentCell::Gru];
    let (cell, dtype) = (d.of(&cells), d.float_dtype());
    let [t, b, features, hidden] = [d.below(4), d.below(4), d.below(4), d.below(4)];
    let rows = if d.once_in(10) { d.below(9) } else { cell.gates() * hidden };
    let x = d.sized(&[t, b, features], dtype)?;
    let states = (0..d.of(&[cell.states(), cell.states(), 1])).map(|_| d.sized(&[b, hidden], dtype));
    let states = states.collect::<Result<Vec<_>>>()?;
    let weights = [d.sized(&[rows, features], dtype)?, d.sized(&[rows, hidden], dtype)?];
    let biases = d.maybe(|d| Ok([d.sized(&[rows], dtype)?, d.sized(&[rows], dtype)?]))?;
    let lengths: Vec<usize> = if d.flag() { vec![t; b] } else { (0..b).map(|_| d.below(5)).collect() };
    let mut options = RecurrentOptions::new(cell).reverse(d.flag());
    if d.flag() {
        options = options.lengths(&lengths);
    }
    let states: Vec<&Tensor> = states.iter().collect();
    x.recurrent(options, &states, [&weights[0], &weights[1]], biases.as_ref().map(|b| [&b[0], &b[1]]))
}

/// Usually the sizes of some trailing axes of `x`, as layer norm takes them.
fn last(d: &mut Draw, x: &Tensor) -> Vec<usize> {
    if d.once_in(10) { d.shape() } else { x.shape()[x.rank() - d.below(x.rank() + 1)..].to_vec() }
}

/// One value per channel of `x`, or `None`.
fn channels(d: &mut Draw, x: &Tensor) -> Result<Option<Tensor>> {
    let c = x.shape().get(1).copied().unwrap_or(1);
    d.maybe(|d| d.sized(&[c], x.dtype()))
}

const PRODUCTS: &[Row] = rows! { SHORT any;
    matmul |x, d| x.matmul(&right(d, &x)?);
    matmul_i32 |x, d| x.matmul_i32(&right(d, &x)?);
    linear |x, d| {
        let (inner, outer) = (x.size(-1).unwrap_or(1), d.below(5));
        x.linear(&d.sized(&[outer, inner], x.dtype())?, d.maybe(|d| d.sized(&[outer], x.dtype()))?.as_ref())
    };
    dot |x, d| x.dot(&d.like(&x)?);
    outer |x, d| x.outer(&d.like(&x)?);
    cross |x, d| { let axis = d.axis(x.rank()); x.cross(&d.like(&x)?, axis) };
    kron |x, d| x.kron(&d.any()?);
    tensordot |x, d| {
        let axes: Vec<isize> = (0..d.below(x.rank() + 1) as isize).collect();
        if d.once_in(3) { x.tensordot(&d.any()?, &d.axes(x.rank()), &d.axes(x.rank())) } else { x.tensordot(&d.like(&x)?, &axes, &axes) }
    };
    einsum |x, d| {
        let others = (0..d.below(3)).map(|_| d.like(&x)).collect::<Result<Vec<_>>>()?;
        let all: Vec<&Tensor> = std::iter::once(&x).chain(&others).collect();
        Tensor::einsum(&equation(d, &all.iter().map(|t| t.rank()).collect::<Vec<_>>()), &all)
    };
    cdist |x, d| x.cdist(&d.like(&x)?, d.number());
    pairwise_distance |x, d| x.pairwise_distance(&d.like(&x)?, d.number(), d.fraction(), d.flag());
    cosine_similarity |x, d| { let axis = d.axis(x.rank()); x.cosine_similarity(&d.like(&x)?, axis, d.fraction()) };
};

const SUMS: &[Row] = rows! { SHORT;
    addmm |d| { let [x, a, b] = triple(d, 0)?; x.addmm(&a, &b, d.scalar(), d.scalar()) };
    baddbmm |d| { let [x, a, b] = triple(d, 1)?; x.baddbmm(&a, &b, d.scalar(), d.scalar()) };
    Gemm::run |d| {
        let [x, a, b] = triple(d, 0)?;
        let size = |t: &Tensor, axis| t.size(axis).unwrap_or(1);
        let mut gemm = Gemm::new(size(&a, 0), size(&b, -1), size(&a, -1)).trans_a(d.once_in(4)).trans_b(d.once_in(4));
        gemm = gemm.alpha(d.scalar());
        if d.once_in(4) {
            gemm = gemm.lda(d.size()).ldb(d.size()).ldc(d.size());
        }
        if d.once_in(4) {
            gemm = gemm.strided_batched(d.size(), d.size(), d.size(), d.size());
        }
        if d.flag() {
            return Ok(gemm.run(&a, &b, Some(&x).filter(|_| d.flag()))?.reshape([INFER]).into_iter().collect());
        }
        let into = x.detach().copy()?;
        gemm.beta(d.scalar()).run_(&a, &b, &into).map(|()| vec![into])
    };
    scaled_dot_product_attention |d| attend(d, false);
    attention_with_lse |d| attend(d, true);
    recurrent |d| recurrent(d);
};

const NORMS: &[Row] = rows! { SHORT float;
    masked_softmax |x, d| { let axis = d.axis(x.rank()); x.masked_softmax(&d.mask(&x)?, axis) };
    layer_norm |x, d| {
        let shape = last(d, &x);
        let [weight, bias] = [d.maybe(|d| d.sized(&shape, x.dtype()))?, d.maybe(|d| d.sized(&shape, x.dtype()))?];
        x.layer_norm(&shape, weight.as_ref(), bias.as_ref(), d.fraction())
    };
    rms_norm |x, d| {
        let shape = last(d, &x);
        x.rms_norm(&shape, d.maybe(|d| d.sized(&shape, x.dtype()))?.as_ref(), d.fraction())
    };
    group_norm |x, d| x.group_norm(d.size(), channels(d, &x)?.as_ref(), channels(d, &x)?.as_ref(), d.fraction());
    instance_norm |x, d| x.instance_norm(channels(d, &x)?.as_ref(), channels(d, &x)?.as_ref(), d.fraction());
    batch_norm |x, d| x.batch_norm(channels(d, &x)?.as_ref(), channels(d, &x)?.as_ref(), d.fraction()).map(|(y, _)| y);
    batch_norm_eval |x, d| {
        let c = [x.shape().get(1).copied().unwrap_or(1)];
        let [mean, var] = [d.sized(&c, x.dtype())?, d.sized(&c, x.dtype())?];
        x.batch_norm_eval(&mean, &var, channels(d, &x)?.as_ref(), channels(d, &x)?.as_ref(), d.fraction())
    };
    local_response_norm |x, d| x.local_response_norm(d.size(), d.number(), d.number(), d.number());
};

pub(super) const ROWS: &[&[Row]] = &[PRODUCTS, SUMS, NORMS];
