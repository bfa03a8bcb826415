//! `einsum` and `tensordot`: sums of products over named axes, computed by permutation, reshape and matmul.
//!
//! A term is a tensor with a distinct label for each axis. Labels are bit numbers: first `A-Z`, then `a-z`, then the
//! axes of an ellipsis, counted from the right. Operands are joined two at a time, in the order that takes the least
//! work.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{DType, Error, ErrorKind, Here, MAX_RANK, Result};

use super::operand_rules::common_dtype;
use crate::Tensor;

/// The number of letters. Labels from here on stand for ellipsis axes.
const LETTERS: u8 = 52;
/// The largest number of operands for which every order of joining is considered.
const EXHAUSTIVE: usize = 8;

/// One operand or the output, as written in the equation.
struct Subscript {
    /// The labels before the ellipsis. The labels after it are in `after`.
    before: Vec<u8>,
    after: Vec<u8>,
    ellipsis: bool,
    /// Position in the equation, for errors.
    at: usize,
}

fn bits(labels: &[u8]) -> u64 {
    labels.iter().fold(0, |set, &l| set | 1 << l)
}

fn letter(label: u8) -> char {
    char::from(if label < 26 { b'A' + label } else { b'a' + (label - 26) })
}

#[track_caller]
fn failure(equation: &str, at: usize, message: impl std::fmt::Display) -> Error {
    let column = equation.chars().count().min(at);
    Error::argument("einsum", format!("at position {at}: {message}"))
        .note(equation.to_owned())
        // The indentation is at most as long as the equation.
        .note(format!("{}^", " ".repeat(column)))
}

/// Parses `chars`, one subscript of `equation`, which begins at position `start`.
#[track_caller]
fn subscript(equation: &str, chars: &[char], start: usize) -> Result<Subscript> {
    let mut found = Subscript { before: vec![], after: vec![], ellipsis: false, at: start };
    let mut i = 0;
    while let Some(&c) = chars.get(i) {
        let at = start + i;
        i += 1;
        let label = match c {
            ' ' => continue,
            'A'..='Z' => c as u8 - b'A',
            'a'..='z' => c as u8 - b'a' + 26,
            '.' if chars.get(i..i + 2) == Some(&['.', '.']) => {
                if found.ellipsis {
                    return Err(failure(equation, at, "a second ellipsis in one operand"));
                }
                found.ellipsis = true;
                i += 2;
                continue;
            }
            '.' => return Err(failure(equation, at, "a dot that is no part of an ellipsis `...`")),
            '-' | '>' => return Err(failure(equation, at, "an arrow is written `->`, once, before the output")),
            _ => return Err(failure(equation, at, format_args!("{c:?} is no label; labels are letters"))),
        };
        if found.ellipsis { found.after.push(label) } else { found.before.push(label) }
    }
    Ok(found)
}

/// Returns the operands, and the output if the equation names one.
#[track_caller]
fn parse(equation: &str) -> Result<(Vec<Subscript>, Option<Subscript>)> {
    let chars: Vec<char> = equation.chars().collect();
    let arrow = chars.windows(2).position(|w| w == ['-', '>']);
    let (left, right) = match arrow {
        Some(at) => (&chars[..at], Some(&chars[at + 2..])),
        None => (&chars[..], None),
    };
    let mut operands = Vec::new();
    let mut start = 0;
    for part in left.split(|&c| c == ',') {
        operands.push(subscript(equation, part, start)?);
        start += part.len() + 1;
    }
    let start = arrow.map_or(0, |at| at + 2);
    if let Some(at) = right.and_then(|r| r.iter().position(|&c| c == ',')) {
        return Err(failure(equation, start + at, "the output is one term"));
    }
    let output = right.map(|r| subscript(equation, r, start)).transpose().here()?;
    Ok((operands, output))
}

/// A tensor with a label for each axis.
struct Term {
    tensor: Tensor,
    labels: Vec<u8>,
}

impl Term {
    /// Takes the diagonal wherever two axes have the same label.
    #[track_caller]
    fn without_repeats(mut self) -> Result<Term> {
        let repeated = |l: &[u8]| (1..l.len()).find_map(|j| Some((l[..j].iter().position(|x| *x == l[j])?, j)));
        while let Some((i, j)) = repeated(&self.labels) {
            self.tensor = self.tensor.diagonal(0, i as isize, j as isize)?;
            let label = self.labels[i];
            self.labels.remove(j);
            self.labels.remove(i);
            self.labels.push(label);
        }
        Ok(self)
    }

    /// Removes axes of size 1 that broadcast, because their label has a larger size elsewhere.
    #[track_caller]
    fn without_stretched(mut self, sizes: &[usize; 64]) -> Result<Term> {
        for k in (0..self.labels.len()).rev() {
            if self.tensor.shape()[k] != sizes[usize::from(self.labels[k])] {
                self.tensor = self.tensor.squeeze(k as isize)?;
                self.labels.remove(k);
            }
        }
        Ok(self)
    }

    /// Sums over every label that is not in `kept`.
    #[track_caller]
    fn summed(mut self, kept: u64) -> Result<Term> {
        let gone: Vec<isize> =
            (0..self.labels.len()).filter(|&k| kept >> self.labels[k] & 1 == 0).map(|k| k as isize).collect();
        if !gone.is_empty() {
            // Integers keep their dtype, as they do in a product.
            self.tensor = self.tensor.sum(&gone, false)?.to_dtype(self.tensor.dtype())?;
            self.labels.retain(|&l| kept >> l & 1 == 1);
        }
        Ok(self)
    }

    /// The tensor with its axes in the order `labels`, reshaped to `dims`.
    #[track_caller]
    fn arranged(&self, labels: &[u8], dims: [usize; 3]) -> Result<Tensor> {
        self.ordered(labels)?.reshape(dims)
    }

    #[track_caller]
    fn ordered(&self, labels: &[u8]) -> Result<Tensor> {
        let at = |l: &u8| self.labels.iter().position(|x| x == l).unwrap_or(0) as isize;
        self.tensor.permute(&labels.iter().map(at).collect::<Vec<_>>())
    }

    /// Returns the product of two terms, summed over the labels that are not in `kept`.
    #[track_caller]
    fn join(self, other: Term, kept: u64, sizes: &[usize; 64]) -> Result<Term> {
        let (mine, theirs) = (bits(&self.labels), bits(&other.labels));
        let a = self.summed(kept | theirs)?;
        let b = other.summed(kept | mine)?;
        let (mine, theirs) = (bits(&a.labels), bits(&b.labels));
        let choose =
            |from: &[u8], set: u64| -> Vec<u8> { from.iter().copied().filter(|l| set >> l & 1 == 1).collect() };
        let batch = choose(&a.labels, theirs & kept);
        let inner = choose(&a.labels, theirs & !kept);
        let (rows, columns) = (choose(&a.labels, !theirs), choose(&b.labels, !mine));
        let size = |labels: &[u8]| labels.iter().map(|&l| sizes[usize::from(l)]).product::<usize>();
        let (n, i, k, j) = (size(&batch), size(&rows), size(&inner), size(&columns));
        let lhs = a.arranged(&[&batch[..], &rows, &inner].concat(), [n, i, k])?;
        let rhs = b.arranged(&[&batch[..], &inner, &columns].concat(), [n, k, j])?;
        // Without a label to sum over, the product is elementwise.
        let product = if inner.is_empty() { lhs.mul(&rhs)? } else { lhs.matmul(&rhs)? };
        let labels = [batch, rows, columns].concat();
        let dims: Vec<usize> = labels.iter().map(|&l| sizes[usize::from(l)]).collect();
        Ok(Term { tensor: product.reshape(&dims)?, labels })
    }
}

/// Number of index combinations of a set of labels, as a measure of work.
fn work(set: u64, sizes: &[usize; 64]) -> f64 {
    (0..64).filter(|l| set >> l & 1 == 1).map(|l| sizes[l].max(1) as f64).product()
}

/// Returns the order of joining, as pairs of positions in a list. Each join removes both entries and appends the
/// result.
fn order(terms: &[u64], output: u64, sizes: &[usize; 64]) -> Option<Vec<(usize, usize)>> {
    if terms.len() <= EXHAUSTIVE { best_order(terms, output, sizes) } else { greedy_order(terms, output, sizes) }
}

/// The order that takes the least work, found by dynamic programming over sets of operands. `None` if every order has
/// an intermediate result of too high a rank.
fn best_order(terms: &[u64], output: u64, sizes: &[usize; 64]) -> Option<Vec<(usize, usize)>> {
    let n = terms.len();
    let union = |set: usize| (0..n).filter(|i| set >> i & 1 == 1).fold(0, |u, i| u | terms[i]);
    let all = (1usize << n) - 1;
    // The labels that the product of each set of operands keeps. There are at most `EXHAUSTIVE` operands.
    let kept: Vec<u64> = (0..=all).map(|s| union(s) & (output | union(all & !s))).collect();
    let mut best: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); all + 1]; // at most one entry for each set
    for set in 1..=all {
        if set.is_power_of_two() {
            best[set] = (0.0, 0);
            continue;
        }
        if kept[set].count_ones() as usize > MAX_RANK {
            continue;
        }
        let mut part = (set - 1) & set;
        while part > 0 {
            let rest = set & !part;
            if part > rest {
                let cost = best[part].0 + best[rest].0 + work(kept[part] | kept[rest], sizes);
                if cost < best[set].0 {
                    best[set] = (cost, part);
                }
            }
            part = (part - 1) & set;
        }
    }
    if n > 0 && best[all].0.is_infinite() {
        return None;
    }
    // Lists the joins of the tree, leaves first, with positions in the list as it shrinks and grows.
    // The list has at most `EXHAUSTIVE` sets.
    let mut list: Vec<usize> = (0..n).map(|i| 1 << i).collect();
    let mut joins = Vec::new();
    let mut stack = vec![(all, false)];
    while let Some((set, done)) = stack.pop() {
        if set.is_power_of_two() || set == 0 {
            continue;
        }
        let (a, b) = (best[set].1, set & !best[set].1);
        if done {
            let (i, j) = (list.iter().position(|&s| s == a)?, list.iter().position(|&s| s == b)?);
            joins.push((i, j));
            list.remove(i.max(j));
            list.remove(i.min(j));
            list.push(set);
        } else {
            stack.extend([(set, true), (a, false), (b, false)]);
        }
    }
    Some(joins)
}

/// Repeatedly joins the two terms for which the size of the product, minus the sizes of both terms, is smallest.
fn greedy_order(terms: &[u64], output: u64, sizes: &[usize; 64]) -> Option<Vec<(usize, usize)>> {
    let mut list = terms.to_vec();
    let mut joins = Vec::new();
    while list.len() > 1 {
        let mut best: Option<(f64, usize, usize, u64)> = None;
        for j in 1..list.len() {
            for i in 0..j {
                let others = (0..list.len()).filter(|k| ![i, j].contains(k)).fold(output, |u, k| u | list[k]);
                let kept = (list[i] | list[j]) & others;
                let growth = work(kept, sizes) - work(list[i], sizes) - work(list[j], sizes);
                if kept.count_ones() as usize <= MAX_RANK && best.is_none_or(|b| growth < b.0) {
                    best = Some((growth, i, j, kept));
                }
            }
        }
        let (_, i, j, kept) = best?;
        joins.push((i, j));
        list.remove(j);
        list.remove(i);
        list.push(kept);
    }
    Some(joins)
}

impl Tensor {
    /// The sum of products that `equation` describes. Letters name the axes of each operand and, after `->`, those of
    /// the output. Letters that are missing from the output are summed over.
    ///
    /// * A letter that occurs twice in one operand selects the diagonal.
    /// * `...` stands for any further axes. They broadcast, and are summed over if the output has no `...`.
    /// * Without `->` the output is `...` followed by the letters that occur once in alphabetical order, capitals first.
    /// * Axes with the same letter have the same size, or size 1, which broadcasts. Spaces are ignored.
    ///
    /// Dtypes promote; integers wrap in their own dtype. Operands are joined two at a time, as matrix products. Up to 8
    /// operands are joined in the order that takes the least work, more operands in an order that is chosen greedily.
    ///
    /// # Errors
    /// Fails if the equation is not of this form (the error shows the position), if the number, ranks or sizes of the
    /// operands do not match it, if the operands are booleans, or if a product or diagonal has more than 8 axes.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    /// assert_eq!(Tensor::einsum("ij,jk->ik", &[&a, &a])?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&a])?.item()?, 5.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let (subscripts, output) = parse(equation)?;
        if subscripts.len() != operands.len() {
            let m = format!("the equation names {} operands, and {} are given", subscripts.len(), operands.len());
            return Err(Error::argument("einsum", m).note(equation.to_owned()));
        }
        let dtype = common_dtype("einsum", operands, &[])?;
        if dtype == DType::Bool {
            return Err(operands[0].describe(Error::dtype("einsum", dtype, "numbers; cast first"), "operand 0"));
        }
        // `sizes` collects the size of every label, and `terms` the tensors with the labels of their axes.
        let mut sizes = [1usize; 64];
        let mut terms = Vec::new();
        let mut widest = 0;
        let mut counts = [0usize; 64];
        for (number, (s, t)) in subscripts.iter().zip(operands).enumerate() {
            let named = s.before.len() + s.after.len();
            if t.rank() < named || (t.rank() > named && !s.ellipsis) {
                let e = failure(equation, s.at, format_args!("{named} labels for rank {}", t.rank()));
                return Err(t.describe(e, &format!("operand {number}")));
            }
            let extra = t.rank() - named;
            widest = widest.max(extra);
            let labels = labelled(s, extra);
            for (k, (&l, &d)) in labels.iter().zip(t.shape()).enumerate() {
                let size = &mut sizes[usize::from(l)];
                let twin = labels[..k].iter().position(|&m| m == l).map(|m| t.shape()[m]);
                if twin.is_some_and(|twin| twin != d) || (d != *size && d != 1 && *size != 1) {
                    let name = if l < LETTERS { format!("label {:?}", letter(l)) } else { "the ellipsis".into() };
                    let e = failure(equation, s.at, format_args!("{name} has size {d} here and {size} before"));
                    return Err(t.describe(e, &format!("operand {number}")));
                }
                if d != 1 {
                    *size = d;
                }
                counts[usize::from(l)] += 1;
            }
            // Half precision is rounded only once, at the end.
            terms.push(Term { tensor: t.to_dtype(dtype.compute())?, labels });
        }
        let labels = match &output {
            Some(s) => {
                let labels = labelled(s, if s.ellipsis { widest } else { 0 });
                for (k, &l) in labels.iter().enumerate().filter(|&(_, &l)| l < LETTERS) {
                    if counts[usize::from(l)] == 0 {
                        return Err(failure(equation, s.at, format_args!("label {:?} is in no operand", letter(l))));
                    }
                    if labels[..k].contains(&l) {
                        return Err(failure(
                            equation,
                            s.at,
                            format_args!("label {:?} is twice in the output", letter(l)),
                        ));
                    }
                }
                labels
            }
            None => {
                let once = (0..LETTERS).filter(|&l| counts[usize::from(l)] == 1);
                // There is at most one label for each letter and each ellipsis axis.
                (0..widest as u8).rev().map(|k| LETTERS + k).chain(once).collect()
            }
        };
        if labels.len() > MAX_RANK {
            let m = format!("the output has {} axes, above the highest rank {MAX_RANK}", labels.len());
            return Err(Error::argument("einsum", m).note(equation.to_owned()));
        }
        let mut y = contract(terms, &labels, &sizes).map_err(|e| e.note(equation.to_owned()))?.to_dtype(dtype)?;
        for t in operands {
            y = y.apart_from(t)?;
        }
        Ok(y)
    }

    /// The product of two tensors, summed over pairs of axes: `axes_a[i]` of this tensor with `axes_b[i]` of `other`.
    /// The axes of a pair must have the same size, unless one of them has size 1 and broadcasts. The result has the
    /// remaining axes of this tensor, followed by those of `other`. With no axes it is the outer product.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let a = Tensor::ones([2, 3, 4], DType::F32, &device)?;
    /// let b = Tensor::ones([4, 3, 5], DType::F32, &device)?;
    /// assert_eq!(a.tensordot(&b, &[1, 2], &[1, 0])?.shape(), [2, 5]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn tensordot(&self, other: &Tensor, axes_a: &[isize], axes_b: &[isize]) -> Result<Tensor> {
        let fail = |e: Error| Err(other.describe(self.describe(e, "self"), "other"));
        if axes_a.len() != axes_b.len() {
            let m = format!("{} axes of one tensor and {} of the other", axes_a.len(), axes_b.len());
            return fail(Error::argument("tensordot", m).help("the axes are summed in pairs")).here();
        }
        let resolve = |axes: &[isize], t: &Tensor| -> Result<Vec<usize>> {
            let set = gradus_backend::Axes::resolve("tensordot", axes, t.rank())?;
            debug_assert_eq!(set.len(), axes.len());
            axes.iter().map(|&a| resolve_axis("tensordot", a, t.rank())).collect()
        };
        let (axes_a, axes_b) = (resolve(axes_a, self).here()?, resolve(axes_b, other).here()?);
        let (mut dims_a, mut dims_b) = (self.shape().to_vec(), other.shape().to_vec());
        for (&i, &j) in axes_a.iter().zip(&axes_b) {
            match (dims_a[i], dims_b[j]) {
                (a, b) if a == b => {}
                (1, b) => dims_a[i] = b,
                (a, 1) => dims_b[j] = a,
                (a, b) => {
                    let m = format!("axis {i} has size {a} and axis {j} of the other {b}");
                    return fail(Error::shape("tensordot", m)).here();
                }
            }
        }
        let (a, b) = (self.expand(dims_a)?, other.expand(dims_b)?);
        let rest = |t: &Tensor, axes: &[usize]| -> Vec<usize> { (0..t.rank()).filter(|k| !axes.contains(k)).collect() };
        let (rest_a, rest_b) = (rest(&a, &axes_a), rest(&b, &axes_b));
        let dims = |t: &Tensor, axes: &[usize]| -> Vec<usize> { axes.iter().map(|&k| t.shape()[k]).collect() };
        let size = |t: &Tensor, axes: &[usize]| dims(t, axes).iter().product::<usize>();
        let order = |x: &[usize], y: &[usize]| -> Vec<isize> { x.iter().chain(y).map(|&k| k as isize).collect() };
        let inner = size(&a, &axes_a);
        let shape = [dims(&a, &rest_a), dims(&b, &rest_b)].concat();
        let a = a.permute(&order(&rest_a, &axes_a))?.reshape([size(&a, &rest_a), inner])?;
        let b = b.permute(&order(&axes_b, &rest_b))?.reshape([inner, size(&b, &rest_b)])?;
        a.matmul(&b)?.reshape(shape)
    }
}

/// The labels of an operand whose ellipsis stands for `extra` axes.
fn labelled(s: &Subscript, extra: usize) -> Vec<u8> {
    // `extra` is at most 8, the highest rank of a tensor.
    let middle = (0..extra as u8).rev().map(|k| LETTERS + k);
    s.before.iter().copied().chain(middle).chain(s.after.iter().copied()).collect()
}

#[track_caller]
fn contract(operands: Vec<Term>, output: &[u8], sizes: &[usize; 64]) -> Result<Tensor> {
    let mut terms = Vec::with_capacity(operands.len());
    for t in operands {
        terms.push(t.without_repeats()?.without_stretched(sizes)?);
    }
    let wanted = bits(output);
    let sets: Vec<u64> = terms.iter().map(|t| bits(&t.labels)).collect();
    let joins = order(&sets, wanted, sizes)
        .ok_or_else(|| {
            let m = format!("every order of joining passes through a product of more than {MAX_RANK} axes");
            Error::new(ErrorKind::Unsupported, "einsum", m).help("split the equation")
        })
        .here()?;
    for (i, j) in joins {
        let second = terms.remove(i.max(j));
        let first = terms.remove(i.min(j));
        let kept = terms.iter().fold(wanted, |set, t| set | bits(&t.labels));
        terms.push(first.join(second, kept, sizes)?);
    }
    let Some(last) = terms.pop() else { return Err(Error::argument("einsum", "no operands")) };
    last.summed(wanted)?.ordered(output)
}
