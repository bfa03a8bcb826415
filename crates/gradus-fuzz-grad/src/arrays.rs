//! The reference's operations. Each is computed element by element from its textbook definition.

use crate::program::{Name, Statement, indices, masked};
use crate::scalar::{Id, Tape};

/// A shape and the values in row-major order.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) ids: Vec<Id>,
}

/// The largest number of elements of a tensor.
const LARGEST: usize = 48;
/// The largest number of axes of a tensor.
const DEEPEST: usize = 4;

pub(crate) fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

pub(crate) fn fits(shape: &[usize]) -> bool {
    shape.len() <= DEEPEST && numel(shape) <= LARGEST
}

/// Every index of a shape, in row-major order.
pub(crate) fn places(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all.iter().flat_map(|p| (0..size).map(move |i| [&p[..], &[i]].concat())).collect();
    }
    all
}

/// The flat index of the element of an array of this shape that `index` selects. Axes are aligned from the right, and
/// axes of size 1 broadcast.
pub(crate) fn at(shape: &[usize], index: &[usize]) -> usize {
    let lead = index.len() - shape.len();
    shape.iter().zip(&index[lead..]).fold(0, |n, (&size, &i)| n * size + if size == 1 { 0 } else { i })
}

pub(crate) fn with(index: &[usize], axis: usize, value: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = value;
    index
}

pub(crate) fn without(index: &[usize], axis: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index.remove(axis);
    index
}

fn map(x: &Array, mut f: impl FnMut(Id) -> Id) -> Array {
    Array { shape: x.shape.clone(), ids: x.ids.iter().map(|&a| f(a)).collect() }
}

/// The shape that several shapes broadcast to.
pub(crate) fn broadcast(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|s| s.len()).max()?;
    let size = |k: usize| {
        let mut sizes = shapes.iter().filter_map(|s| s.get((s.len() + k).checked_sub(rank)?).copied());
        sizes.try_fold(1, |n, m| match () {
            () if n == m || m == 1 => Some(n),
            () if n == 1 => Some(m),
            () => None,
        })
    };
    (0..rank).map(size).collect()
}

fn zip(inputs: &[Array], mut f: impl FnMut(&[Id]) -> Id) -> Option<Array> {
    let shape = broadcast(&inputs.iter().map(|x| &x.shape[..]).collect::<Vec<_>>())?;
    let ids =
        places(&shape).iter().map(|i| f(&inputs.iter().map(|x| x.ids[at(&x.shape, i)]).collect::<Vec<_>>())).collect();
    Some(Array { shape, ids })
}

/// Groups of elements, given as flat indices. The elements of a group differ only along `axes`; each group becomes one
/// element of the result, and both are in row-major order.
fn groups(x: &Array, axes: &[usize]) -> Vec<Vec<usize>> {
    let kept: Vec<usize> = (0..x.shape.len()).map(|k| if axes.contains(&k) { 1 } else { x.shape[k] }).collect();
    let mut groups = vec![vec![]; numel(&kept)];
    for (n, i) in places(&x.shape).iter().enumerate() {
        groups[at(&kept, i)].push(n);
    }
    groups
}

fn reduce(s: &Statement, x: &Array, mut f: impl FnMut(&[Id]) -> Id) -> Option<Array> {
    let rank = x.shape.len();
    let axes: Vec<usize> = (0..rank).filter(|&k| s.number(0) >> k & 1 == 1).collect();
    if axes.is_empty() || s.number(0) >> rank != 0 {
        return None;
    }
    let groups = groups(x, &axes);
    let ids = groups.iter().map(|g| f(&g.iter().map(|&n| x.ids[n]).collect::<Vec<_>>())).collect();
    let mut shape = x.shape.clone();
    axes.iter().for_each(|&k| shape[k] = 1);
    if s.number(1) == 0 {
        axes.iter().rev().for_each(|&k| {
            shape.remove(k);
        });
    }
    Some(Array { shape, ids })
}

/// Replaces each row along an axis by the result of `f`.
fn rows(x: &Array, axis: usize, mut f: impl FnMut(&[Id]) -> Vec<Id>) -> Option<Array> {
    if axis >= x.shape.len() {
        return None;
    }
    let mut ids = x.ids.clone();
    for group in groups(x, &[axis]) {
        let new = f(&group.iter().map(|&n| x.ids[n]).collect::<Vec<_>>());
        group.iter().zip(new).for_each(|(&n, id)| ids[n] = id);
    }
    Some(Array { shape: x.shape.clone(), ids })
}

impl Tape {
    fn sigmoid(&mut self, a: Id) -> Id {
        let (minus, one) = (self.neg(a), self.constant(1.0));
        let e = self.exp(minus);
        let below = self.add(one, e);
        self.div(one, below)
    }

    fn silu(&mut self, a: Id) -> Id {
        let s = self.sigmoid(a);
        self.mul(a, s)
    }

    fn product(&mut self, ids: &[Id]) -> Id {
        let one = self.constant(1.0);
        ids.iter().fold(one, |p, &x| self.mul(p, x))
    }

    fn scaled(&mut self, a: Id, c: f64) -> Id {
        let c = self.constant(c);
        self.mul(a, c)
    }

    fn log_sum_exp(&mut self, ids: &[Id]) -> Id {
        let e: Vec<Id> = ids.iter().map(|&x| self.exp(x)).collect();
        let sum = self.sum(e);
        self.log(sum)
    }

    fn softmax(&mut self, ids: &[Id]) -> Vec<Id> {
        let e: Vec<Id> = ids.iter().map(|&x| self.exp(x)).collect();
        let sum = self.sum(e.iter().copied());
        e.iter().map(|&x| self.div(x, sum)).collect()
    }

    fn mean(&mut self, ids: &[Id]) -> Id {
        let sum = self.sum(ids.iter().copied());
        self.scaled(sum, 1.0 / ids.len() as f64)
    }

    /// The sum of squares divided by `n`, and the elements that were squared. If `centred`, the mean is subtracted
    /// first.
    fn spread(&mut self, ids: &[Id], centred: bool, n: f64) -> (Id, Vec<Id>) {
        let mean = if centred { self.mean(ids) } else { self.constant(0.0) };
        let off: Vec<Id> = ids.iter().map(|&x| self.sub(x, mean)).collect();
        let squares: Vec<Id> = off.iter().map(|&d| self.mul(d, d)).collect();
        let sum = self.sum(squares);
        (self.scaled(sum, 1.0 / n), off)
    }

    fn dot(&mut self, pairs: impl Iterator<Item = (Id, Id)>) -> Id {
        let products: Vec<Id> = pairs.map(|(a, b)| self.mul(a, b)).collect();
        self.sum(products)
    }
}

/// The epsilon of the normalisations. It is large, so that a constant row does not produce huge values.
pub(crate) const EPS: f64 = 0.125;

/// The result of a statement; `None` if the operands do not fit.
pub(crate) fn compute(t: &mut Tape, s: &Statement, x: &[Array]) -> Option<Array> {
    use Name::*;
    let first = x.first()?;
    let wanted = match s.name {
        Add | Sub | Mul | Custom2 | Div | Maximum | Minimum | Pow | SiluMul | Fused2 | Matmul | Cat | Stack
        | ScatterAdd | IndexAdd => 2,
        Fused3 | Attention => 3,
        LayerNorm => x.len().min(3),
        RmsNorm => x.len().min(2),
        _ => 1,
    };
    if x.len() != wanted || x.iter().any(|x| x.ids.is_empty()) && !takes_nothing(s.name) {
        return None;
    }
    let found = match s.name {
        Neg => map(first, |a| t.neg(a)),
        Sin => map(first, |a| t.sin(a)),
        Cos => map(first, |a| t.cos(a)),
        Tanh => map(first, |a| t.tanh(a)),
        Exp => map(first, |a| t.exp(a)),
        Sigmoid => map(first, |a| t.sigmoid(a)),
        Square => map(first, |a| t.mul(a, a)),
        Cube | Custom1 => map(first, |a| t.product(&[a, a, a])),
        Silu => map(first, |a| t.silu(a)),
        Softplus => map(first, |a| {
            let zero = t.constant(0.0);
            t.log_sum_exp(&[zero, a])
        }),
        Relu => map(first, |a| {
            let zero = t.constant(0.0);
            t.max(a, zero)
        }),
        Abs => map(first, |a| {
            let minus = t.neg(a);
            t.max(a, minus)
        }),
        Sqrt => map(first, |a| t.sqrt(a)),
        Log => map(first, |a| t.log(a)),
        Recip => map(first, |a| {
            let one = t.constant(1.0);
            t.div(one, a)
        }),
        Scale => map(first, |a| t.scaled(a, s.scalar(0))),
        Shift => map(first, |a| {
            let c = t.constant(s.scalar(0));
            t.add(a, c)
        }),
        Clamp if s.number(0) <= s.number(1) => map(first, |a| {
            let (lo, hi) = (t.constant(s.scalar(0)), t.constant(s.scalar(1)));
            let a = t.max(a, lo);
            t.min(a, hi)
        }),
        Fused1 => map(first, |a| {
            let half = t.scaled(a, 0.5);
            let tanh = t.tanh(half);
            t.mul(tanh, a)
        }),
        MaskedFill => {
            let value = t.constant(s.scalar(1));
            let pick = |(i, &a)| if masked(s.number(0), i) { value } else { a };
            Array { shape: first.shape.clone(), ids: first.ids.iter().enumerate().map(pick).collect() }
        }
        Add => zip(x, |a| t.add(a[0], a[1]))?,
        Sub => zip(x, |a| t.sub(a[0], a[1]))?,
        Mul | Custom2 => zip(x, |a| t.mul(a[0], a[1]))?,
        Div => zip(x, |a| t.div(a[0], a[1]))?,
        Maximum => zip(x, |a| t.max(a[0], a[1]))?,
        Minimum => zip(x, |a| t.min(a[0], a[1]))?,
        Pow => zip(x, |a| {
            let log = t.log(a[0]);
            let e = t.mul(a[1], log);
            t.exp(e)
        })?,
        SiluMul => zip(x, |a| {
            let silu = t.silu(a[0]);
            t.mul(silu, a[1])
        })?,
        Fused2 => zip(x, |a| {
            let (gate, difference) = (t.sigmoid(a[1]), t.sub(a[0], a[1]));
            let (gated, sin) = (t.mul(a[0], gate), t.sin(difference));
            t.add(gated, sin)
        })?,
        Fused3 => zip(x, |a| {
            let product = t.mul(a[0], a[1]);
            let sum = t.add(product, a[2]);
            let tanh = t.tanh(sum);
            t.mul(tanh, a[1])
        })?,
        Sum => reduce(s, first, |g| t.sum(g.iter().copied()))?,
        Mean => reduce(s, first, |g| t.mean(g))?,
        Prod => reduce(s, first, |g| t.product(g))?,
        Max => reduce(s, first, |g| g[1..].iter().fold(g[0], |m, &a| t.max(m, a)))?,
        Min => reduce(s, first, |g| g[1..].iter().fold(g[0], |m, &a| t.min(m, a)))?,
        LogSumExp => reduce(s, first, |g| t.log_sum_exp(g))?,
        Var => {
            let correction = s.place(2);
            let count: usize =
                (0..first.shape.len()).filter(|k| s.number(0) >> k & 1 == 1).map(|k| first.shape[k]).product();
            if count <= correction {
                return None;
            }
            reduce(s, first, |g| t.spread(g, true, (count - correction) as f64).0)?
        }
        Softmax => rows(first, s.place(0), |r| t.softmax(r))?,
        LogSoftmax => rows(first, s.place(0), |r| {
            let all = t.log_sum_exp(r);
            r.iter().map(|&a| t.sub(a, all)).collect()
        })?,
        Cumsum => rows(first, s.place(0), |r| running(r, |a, b| t.add(a, b)))?,
        Cumprod => rows(first, s.place(0), |r| running(r, |a, b| t.mul(a, b)))?,
        LayerNorm | RmsNorm => {
            let axis = first.shape.len().checked_sub(1)?;
            if x[1..].iter().any(|w| w.shape != first.shape[axis..]) {
                return None;
            }
            rows(first, axis, |r| {
                let (square, off) = t.spread(r, s.name == LayerNorm, r.len() as f64);
                let eps = t.constant(EPS);
                let sum = t.add(square, eps);
                let root = t.sqrt(sum);
                let normal: Vec<Id> = off.iter().map(|&d| t.div(d, root)).collect();
                let one = |(i, n)| {
                    let n = x.get(1).map_or(n, |w| t.mul(n, w.ids[i]));
                    x.get(2).map_or(n, |b| t.add(n, b.ids[i]))
                };
                normal.into_iter().enumerate().map(one).collect()
            })?
        }
        Matmul => matmul(t, first, &x[1])?,
        Attention => attention(t, x)?,
        CrossEntropy => {
            let [n, c] = first.shape[..] else { return None };
            let targets = indices(s.number(0), n, c);
            let losses: Vec<Id> = (0..n)
                .map(|i| {
                    let row = &first.ids[i * c..(i + 1) * c];
                    let all = t.log_sum_exp(row);
                    t.sub(all, row[targets[i]])
                })
                .collect();
            Array { shape: vec![], ids: vec![t.mean(&losses)] }
        }
        Cat | Stack => join(s, x)?,
        Gather => {
            let axis = s.place(0);
            let size = *first.shape.get(axis)?;
            let index = indices(s.number(1), first.ids.len(), size);
            let from = |(n, i): (usize, &Vec<usize>)| first.ids[at(&first.shape, &with(i, axis, index[n]))];
            Array { shape: first.shape.clone(), ids: places(&first.shape).iter().enumerate().map(from).collect() }
        }
        IndexSelect => {
            let axis = s.place(0);
            let size = *first.shape.get(axis)?;
            let index: Vec<usize> = s.numbers[1..].iter().map(|&n| n.unsigned_abs() as usize % size).collect();
            let mut shape = first.shape.clone();
            shape[axis] = index.len();
            if !fits(&shape) {
                return None;
            }
            let from = |i: &Vec<usize>| first.ids[at(&first.shape, &with(i, axis, index[i[axis]]))];
            Array { ids: places(&shape).iter().map(from).collect(), shape }
        }
        ScatterAdd | IndexAdd => {
            let (axis, source) = (s.place(0), &x[1]);
            let size = *first.shape.get(axis)?;
            let mut wanted = first.shape.clone();
            if s.name == IndexAdd {
                wanted[axis] = *source.shape.get(axis)?;
            }
            if source.shape != wanted {
                return None;
            }
            let one_each = s.name == ScatterAdd;
            let index = indices(s.number(1), if one_each { source.ids.len() } else { wanted[axis] }, size);
            let mut ids = first.ids.clone();
            for (n, i) in places(&source.shape).iter().enumerate() {
                let to = at(&first.shape, &with(i, axis, index[if one_each { n } else { i[axis] }]));
                ids[to] = t.add(ids[to], source.ids[n]);
            }
            Array { shape: first.shape.clone(), ids }
        }
        Copy => first.clone(),
        _ => return None,
    };
    fits(&found.shape).then_some(found)
}

/// The elements that the mask keeps, divided by the probability of being kept. The others are zero.
pub(crate) fn dropout(t: &mut Tape, x: &Array, mask: &[bool], p: f64) -> Array {
    let one = |(&a, &stays)| if stays { t.scaled(a, 1.0 / (1.0 - p)) } else { t.constant(0.0) };
    Array { shape: x.shape.clone(), ids: x.ids.iter().zip(mask).map(one).collect() }
}

/// Whether the result for empty tensors follows from the definition alone, without a convention.
fn takes_nothing(name: Name) -> bool {
    use Name::*;
    !matches!(
        name,
        Mean | Max
            | Min
            | LogSumExp
            | Var
            | Softmax
            | LogSoftmax
            | LayerNorm
            | RmsNorm
            | Attention
            | CrossEntropy
            | Gather
            | IndexSelect
            | ScatterAdd
            | IndexAdd
    )
}

fn running(row: &[Id], mut f: impl FnMut(Id, Id) -> Id) -> Vec<Id> {
    let mut so_far: Option<Id> = None;
    let mut next = |&a: &Id| {
        let new = so_far.map_or(a, |sum| f(sum, a));
        so_far = Some(new);
        new
    };
    row.iter().map(&mut next).collect()
}

fn join(s: &Statement, x: &[Array]) -> Option<Array> {
    let (axis, (a, b)) = (s.place(0), (&x[0], &x[1]));
    let mut shape = a.shape.clone();
    if s.name == Name::Stack {
        if a.shape != b.shape || axis > shape.len() {
            return None;
        }
        shape.insert(axis, 2);
        let pick = |i: &Vec<usize>| x[i[axis]].ids[at(&a.shape, &without(i, axis))];
        return Some(Array { ids: places(&shape).iter().map(pick).collect(), shape });
    }
    let alike = a.shape.len() == b.shape.len() && (0..a.shape.len()).all(|k| k == axis || a.shape[k] == b.shape[k]);
    if axis >= shape.len() || !alike {
        return None;
    }
    let split = a.shape[axis];
    shape[axis] += b.shape[axis];
    let pick = |i: &Vec<usize>| match i[axis].checked_sub(split) {
        None => a.ids[at(&a.shape, i)],
        Some(k) => b.ids[at(&b.shape, &with(i, axis, k))],
    };
    Some(Array { ids: places(&shape).iter().map(pick).collect(), shape })
}

fn matmul(t: &mut Tape, a: &Array, b: &Array) -> Option<Array> {
    let (vector_a, vector_b) = (a.shape.len() == 1, b.shape.len() == 1);
    let left = if vector_a { [&[1], &a.shape[..]].concat() } else { a.shape.clone() };
    let right = if vector_b { [&b.shape[..], &[1]].concat() } else { b.shape.clone() };
    let (batch_a, &[m, k]) = left.split_last_chunk::<2>()?;
    let (batch_b, &[inner, n]) = right.split_last_chunk::<2>()?;
    if k != inner {
        return None;
    }
    let batch = broadcast(&[batch_a, batch_b])?;
    let mut ids = vec![];
    for place in places(&batch) {
        let (from_a, from_b) = (at(batch_a, &place) * m * k, at(batch_b, &place) * k * n);
        for i in 0..m {
            for j in 0..n {
                ids.push(t.dot((0..k).map(|l| (a.ids[from_a + i * k + l], b.ids[from_b + l * n + j]))));
            }
        }
    }
    let mut shape = batch;
    shape.extend((!vector_a).then_some(m));
    shape.extend((!vector_b).then_some(n));
    Some(Array { shape, ids })
}

/// `softmax(q k^T / sqrt(d)) v` for each head.
fn attention(t: &mut Tape, x: &[Array]) -> Option<Array> {
    let [&[h, lq, d], &[hk, lk, dk], &[hv, lv, dv]] = [&x[0].shape[..], &x[1].shape[..], &x[2].shape[..]] else {
        return None;
    };
    if hk != h || hv != h || dk != d || lv != lk {
        return None;
    }
    let mut ids = vec![];
    for row in 0..h * lq {
        let head = row / lq;
        let (query, keys) = (&x[0].ids[row * d..], &x[1].ids[head * lk * d..]);
        let scores: Vec<Id> = (0..lk)
            .map(|j| {
                let dot = t.dot((0..d).map(|k| (query[k], keys[j * d + k])));
                t.scaled(dot, 1.0 / (d as f64).sqrt())
            })
            .collect();
        let weights = t.softmax(&scores);
        let values = &x[2].ids[head * lk * dv..];
        ids.extend((0..dv).map(|k| t.dot((0..lk).map(|j| (weights[j], values[j * dv + k])))));
    }
    Some(Array { shape: vec![h, lq, dv], ids })
}
