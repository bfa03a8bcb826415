//! Normalisations and means, which are recognised where the traces hold their parts.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gradus_tensor::backend::ReduceOp;
use gradus_tensor::ops::{Arg, Map, Norm, Normalize, Op, Softmax, table, trace};
use gradus_tensor::{DType, Elementwise, Kernel, Result, Tensor, no_grad_guard};

use super::build::Builder;
use super::movement::{in_each_trace, numbers};
use super::sizes::fixed;
use super::trace::Id;
use super::write::Attr;

/// Whether a map is this operation of the table.
pub(super) fn is(map: &Map, op: &Elementwise) -> bool {
    let Some(&dtype) = map.kernel.args().first() else { return false };
    op.name() == map.kernel.name() && op.kernel(dtype).is_ok_and(|kernel| kernel == map.kernel)
}

/// Whether an attribute, which is an f32, holds a number as precisely as values of this dtype need it.
pub(super) fn fits(number: f64, dtype: DType) -> bool {
    dtype != DType::F64 || f64::from(number as f32) == number
}

/// The tensors of a map that has no scalars.
fn tensors<const N: usize>(map: &Map, inputs: &[Id]) -> Option<[Id; N]> {
    let ids: Option<Vec<Id>> =
        map.args.iter().map(|arg| if let Arg::Tensor(i) = arg { inputs.get(*i).copied() } else { None }).collect();
    ids?.try_into().ok()
}

impl Builder<'_> {
    pub(super) fn softmax(&mut self, x: &str, op: &Softmax) -> String {
        let name = if op.log { "LogSoftmax" } else { "Softmax" };
        self.node(name, &[x], vec![("axis", Attr::Int(op.axis as i64))], 0)
    }

    pub(super) fn normalize(&mut self, at: usize, inputs: &[Id], op: &Normalize) -> Result<String> {
        let eps = op.eps as f32;
        let epsilon = ("epsilon", Attr::Float(eps));
        let x = inputs[0];
        let dtype = self.dtype(x);
        let (scale, shift) = (op.scale.then(|| inputs[1]), inputs.get(1 + usize::from(op.scale)).copied());
        let first = op.axes.iter().next().unwrap_or(0);
        match op.norm {
            _ if !fits(op.eps, dtype) => self.normalize_in_parts(x, scale, shift, op),
            Norm::Layer if self.most >= 17 => {
                let shape = self.tensor(x).shape()[first..].to_vec();
                let mut names = vec![self.name(x)?];
                names.push(if let Some(scale) = scale { self.name(scale)? } else { self.ones(&shape, dtype)? });
                if let Some(shift) = shift {
                    names.push(self.name(shift)?);
                }
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Ok(self.node("LayerNormalization", &names, vec![("axis", Attr::Int(first as i64)), epsilon], 0))
            }
            Norm::Rms if self.most >= 23 => {
                let shape = self.tensor(x).shape()[first..].to_vec();
                let (x, scale) =
                    (self.name(x)?, if let Some(s) = scale { self.name(s)? } else { self.ones(&shape, dtype)? });
                Ok(self.node("RMSNormalization", &[&x, &scale], vec![("axis", Attr::Int(first as i64)), epsilon], 0))
            }
            Norm::Group | Norm::Instance => match self.grouped(at, x, [scale, shift], op)? {
                Some(y) => Ok(y),
                None => self.normalize_in_parts(x, scale, shift, op),
            },
            _ => self.normalize_in_parts(x, scale, shift, op),
        }
    }

    /// The vector `[channels]` that was reshaped to this value.
    fn vector(&self, id: Id) -> Option<Id> {
        match self.maker(id)? {
            (_, Op::Reshape(_), &[from]) if self.tensor(from).rank() == 1 => Some(from),
            _ => None,
        }
    }

    /// A group or instance norm of the value whose channels were split into groups.
    fn grouped(&mut self, at: usize, x: Id, affine: [Option<Id>; 2], op: &Normalize) -> Result<Option<String>> {
        let Some((_, Op::Reshape(_), &[whole])) = self.maker(x) else { return Ok(None) };
        let (dims, split) = (self.dims(whole), self.dims(x));
        let (Some(channels), Some(groups)) = (fixed(&dims[1]), fixed(&split[1])) else { return Ok(None) };
        let group = op.norm == Norm::Group;
        if group && self.most < 21 {
            return Ok(None);
        }
        let dtype = self.dtype(x);
        let mut names = vec![self.name(whole)?];
        for (i, id) in affine.into_iter().enumerate() {
            names.push(match id {
                None if i == 0 => self.ones(&[channels as usize], dtype)?,
                None => self.zeros(&[channels as usize], dtype)?,
                Some(id) => match self.vector(id) {
                    Some(vector) => self.name(vector)?,
                    None => return Ok(None),
                },
            });
        }
        let mut attributes = vec![("epsilon", Attr::Float(op.eps as f32))];
        let name = if group { "GroupNormalization" } else { "InstanceNormalization" };
        if group {
            attributes.push(("num_groups", Attr::Int(groups)));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let y = self.node(name, &names, attributes, 0);
        self.reshape(at, &y, &dims, &split, &[whole]).map(Some)
    }

    /// A normalisation of simpler operators, in at least f32.
    fn normalize_in_parts(&mut self, x: Id, scale: Option<Id>, shift: Option<Id>, op: &Normalize) -> Result<String> {
        let (dtype, axes) = (self.dtype(x), numbers(op.axes));
        let wide = dtype.compute();
        let name = self.name(x)?;
        let mut x = self.cast(&name, dtype, wide);
        if op.norm != Norm::Rms {
            let mean = self.reduced("ReduceMean", &x, axes.clone());
            x = self.plain("Sub", &[&x, &mean]);
        }
        let squares = self.plain("Mul", &[&x, &x]);
        let mean = self.reduced("ReduceMean", &squares, axes);
        let eps = self.scalar(op.eps, wide)?;
        let sum = self.plain("Add", &[&mean, &eps]);
        let root = self.plain("Sqrt", &[&sum]);
        let mut y = self.plain("Div", &[&x, &root]);
        for (name, id) in [("Mul", scale), ("Add", shift)] {
            if let Some(id) = id {
                let (given, of) = (self.name(id)?, self.dtype(id));
                let given = self.cast(&given, of, wide);
                y = self.plain(name, &[&y, &given]);
            }
        }
        Ok(self.cast(&y, wide, dtype))
    }

    /// The mean, if this is a sum that is divided by the number of its elements.
    pub(super) fn mean(&mut self, at: usize, map: &Map, inputs: &[Id], output: Id) -> Result<Option<String>> {
        let [Arg::Tensor(0), Arg::Scalar(_)] = map.args[..] else { return Ok(None) };
        if !is(map, &table::DIV) {
            return Ok(None);
        }
        let mut sum = inputs[0];
        if let Some((_, Op::Reshape(_), &[from])) = self.maker(sum) {
            sum = from;
        }
        let Some((_, Op::Reduce(reduce), &[x])) = self.maker(sum) else { return Ok(None) };
        if reduce.op != ReduceOp::Sum || self.dtype(x) != self.dtype(sum) || reduce.axes.iter().next().is_none() {
            return Ok(None);
        }
        let dims = self.dims(x);
        let divisors = in_each_trace!(self, at, Map, |op| match op.args[1] {
            Arg::Scalar(s) => s.to_f64(),
            _ => f64::NAN,
        });
        let counts = (0..divisors.len()).map(|t| reduce.axes.iter().map(|a| dims[a][t]).product::<i64>() as f64);
        if !counts.eq(divisors.iter().copied()) {
            return Ok(None);
        }
        let name = self.name(x)?;
        let mean = self.reduced("ReduceMean", &name, numbers(reduce.axes));
        let (from, to) = (self.dims(sum), self.dims(output));
        self.reshape(at, &mean, &from, &to, &[x]).map(Some)
    }

    /// Batch normalisation with known statistics, if this sum is the last of its parts.
    pub(super) fn batch_norm(&mut self, map: &Map, inputs: &[Id]) -> Result<Option<String>> {
        let Some((x, parts, eps)) = self.batch_norm_parts(map, inputs) else { return Ok(None) };
        let mut names = vec![self.name(x)?];
        for id in parts {
            names.push(self.name(id)?);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(Some(self.node("BatchNormalization", &names, vec![("epsilon", Attr::Float(eps as f32))], 0)))
    }

    /// The input, and the vectors of scale, shift, mean and variance.
    fn batch_norm_parts(&self, map: &Map, inputs: &[Id]) -> Option<(Id, [Id; 4], f64)> {
        let parts = |id: Id, op: &Elementwise| match self.maker(id)? {
            (_, Op::Map(map), inputs) if is(map, op) => tensors::<2>(map, inputs),
            _ => None,
        };
        if !is(map, &table::ADD) {
            return None;
        }
        let [scaled, shift] = tensors::<2>(map, inputs)?;
        let [centred, factor] = parts(scaled, &table::MUL)?;
        let [x, mean] = parts(centred, &table::SUB)?;
        let [root, scale] = parts(factor, &table::MUL)?;
        let (_, Op::Map(inverse), &[var]) = self.maker(root)? else { return None };
        let [Arg::Tensor(0), Arg::Scalar(eps)] = inverse.args[..] else { return None };
        if inverse.kernel != inverse_root(self.tensor(x), self.dtype(var))? {
            return None;
        }
        let vectors = [self.vector(scale)?, self.vector(shift)?, self.vector(mean)?, self.vector(var)?];
        let t = self.tensor(x);
        let along = |id: &Id| {
            let reshaped = [scale, shift, mean, var];
            reshaped.iter().all(|&v| self.tensor(v).rank() == t.rank() && self.tensor(v).shape()[1] == t.shape()[1])
                && self.dtype(*id) == t.dtype()
                && self.tensor(*id).shape() == [t.shape()[1]]
        };
        (vectors.iter().all(along) && fits(eps.to_f64(), t.dtype())).then_some((x, vectors, eps.to_f64()))
    }
}

/// The kernel by which [`Tensor::batch_norm_eval`] takes the root of the variance.
fn inverse_root(like: &Tensor, dtype: DType) -> Option<Arc<Kernel>> {
    let _guard = no_grad_guard();
    let found: Rc<RefCell<Option<Arc<Kernel>>>> = Rc::default();
    let seen = found.clone();
    let see = move |op: &Op| {
        if let Op::Map(map) = op
            && let [Arg::Tensor(0), Arg::Scalar(_)] = map.args[..]
        {
            seen.borrow_mut().get_or_insert_with(|| map.kernel.clone());
        }
    };
    let one = Tensor::ones([1, 1], dtype, like.device()).ok()?;
    let vector = one.reshape([1]).ok()?;
    let _y = trace(move |ran| see(ran.op), || one.batch_norm_eval(&vector, &vector, None, None, 1e-5)).ok()?;
    found.take()
}
