//! Reductions, matrix products, shape operations and indexing.

use gradus::prelude::*;
use gradus::{Ellipsis, Index, Indexing, NewAxis, Operand, ScatterReduction, Strided};
use serde_json::Value;

use crate::sample::{KW, Rows, Sample, inexpressible, rows};

pub(crate) const ROWS: Rows = rows! {
    "sum", |s| s.cast()?.sum(&dims(s)?, keep(s)?)?;
    "mean", |s| s.cast()?.mean(&dims(s)?, keep(s)?)?;
    "prod", |s| {
        let y = s.cast()?.prod(&dims(s)?, keep(s)?)?;
        y.to_dtype(s.dtype(KW, "dtype")?.unwrap_or(y.dtype()))?
    };
    "amax", |s| s.x()?.max(&dims(s)?, keep(s)?)?;
    "amin", |s| s.x()?.min(&dims(s)?, keep(s)?)?;
    "any", |s| s.x()?.any(&dims(s)?, keep(s)?)?;
    "all", |s| s.x()?.all(&dims(s)?, keep(s)?)?;
    "count_nonzero", |s| s.x()?.count_nonzero(&dims(s)?, false)?;
    "logsumexp", |s| s.x()?.logsumexp(&dims(s)?, keep(s)?)?;
    "aminmax", |s| s.x()?.aminmax(&dims(s)?, keep(s)?)?;
    "var var/unbiased", |s| s.x()?.var(&spread(s)?, correction(s)?, keep(s)?)?;
    "std std/unbiased", |s| s.x()?.std(&spread(s)?, correction(s)?, keep(s)?)?;
    "var_mean var_mean/unbiased", |s| s.x()?.var_mean(&spread(s)?, correction(s)?, keep(s)?)?;
    "std_mean std_mean/unbiased", |s| {
        let (axes, keepdim) = (spread(s)?, keep(s)?);
        (s.x()?.std(&axes, correction(s)?, keepdim)?, s.x()?.mean(&axes, keepdim)?)
    };
    "max/reduction_with_dim", |s| s.x()?.max_with_indices(s.int(1, "dim", 0)?, keep(s)?)?;
    "min/reduction_with_dim", |s| s.x()?.min_with_indices(s.int(1, "dim", 0)?, keep(s)?)?;
    "max/reduction_no_dim", |s| s.x()?.max_all()?;
    "min/reduction_no_dim", |s| s.x()?.min_all()?;
    "argmax", |s| flat_unless(s)?.argmax(s.int(1, "dim", 0)?, keep(s)?)?.reshape(flat_shape(s)?)?;
    "argmin", |s| flat_unless(s)?.argmin(s.int(1, "dim", 0)?, keep(s)?)?.reshape(flat_shape(s)?)?;
    "norm norm/inf norm/fro linalg.vector_norm", |s| {
        let p = match s.value(1, if s.entry.starts_with("linalg") { "ord" } else { "p" }) {
            Some(Value::String(p)) if p == "fro" => 2.0,
            _ => s.num(1, if s.entry.starts_with("linalg") { "ord" } else { "p" }, 2.0)?,
        };
        s.x()?.norm(p, &s.axes(2, "dim", s.x()?)?, s.flag(3, "keepdim", false)?)?
    };
    "dist", |s| {
        let d = s.x()?.sub(s.t(1, "other")?)?;
        let axes: Vec<isize> = (0..d.rank() as isize).collect();
        d.norm(s.num(2, "p", 2.0)?, &axes, false)?
    };
    "cumsum", |s| s.cast()?.cumsum(s.int(1, "dim", 0)?)?;
    "cumprod", |s| s.cast()?.cumprod(s.int(1, "dim", 0)?)?;
    "cummax", |s| s.x()?.cummax(s.int(1, "dim", 0)?)?;
    "cummin", |s| s.x()?.cummin(s.int(1, "dim", 0)?)?;
    "logcumsumexp", |s| s.x()?.logcumsumexp(s.int(1, "dim", 0)?)?;
    "sort", |s| { s.flag(KW, "stable", false)?; s.x()?.sort(s.int(1, "dim", -1)?, s.flag(2, "descending", false)?)? };
    "argsort", |s| { s.flag(KW, "stable", false)?; s.x()?.argsort(s.int(1, "dim", -1)?, s.flag(2, "descending", false)?)? };
    "msort", |s| s.x()?.sort(0, false)?.0;
    "topk", |s| {
        let (k, dim) = (s.size(1, "k", 0)?, s.int(2, "dim", -1)?);
        s.x()?.topk(k, dim, s.flag(3, "largest", true)?, s.flag(4, "sorted", true)?)?
    };
    "kthvalue", |s| s.x()?.kthvalue(s.size(1, "k", 0)?, s.int(2, "dim", -1)?, s.flag(3, "keepdim", false)?)?;
    "searchsorted", |s| {
        let right = s.flag(KW, "right", false)? || s.text(KW, "side", "left")? == "right";
        let values = match s.operand(1, "input")? {
            Operand::Tensor(t) => t.clone(),
            Operand::Scalar(v) => Tensor::full([], v, s.x()?.dtype(), s.device)?,
        };
        let sequence = match s.opt(KW, "sorter")? {
            Some(order) => s.x()?.gather(-1, order)?,
            None => s.x()?.clone(),
        };
        narrowed(s, sequence.searchsorted(&values, right)?)?
    };
    "bucketize", |s| narrowed(s, s.x()?.bucketize(s.t(1, "boundaries")?, s.flag(KW, "right", false)?)?)?;
    "bincount", |s| s.x()?.bincount(s.opt(1, "weights")?, s.size(2, "minlength", 0)?)?;
    "unique", |s| {
        if s.value(KW, "dim").is_some() {
            return inexpressible("unique slices of an axis");
        }
        let f = |name| s.flag(KW, name, false);
        let u = s.x()?.unique(f("sorted")?, f("return_inverse")?, f("return_counts")?)?;
        [Some(u.values), u.inverse, u.counts].into_iter().flatten().collect::<Vec<_>>()
    };
    "nonzero argwhere", |s| {
        if s.flag(KW, "as_tuple", false)? {
            // For a scalar, PyTorch's tuple contains indices into a vector of one element.
            let x = s.x()?;
            let places = if x.rank() == 0 { x.reshape([1])?.nonzero()? } else { x.nonzero()? };
            places.unbind(1)?
        } else {
            vec![s.x()?.nonzero()?]
        }
    };

    "dot vdot", |s| s.x()?.dot(s.t(1, "other")?)?;
    "mm bmm matmul mv bmm/triton_optimized", |s| s.x()?.matmul(s.t(1, "other")?)?;
    "__rmatmul__", |s| s.t(1, "other")?.matmul(s.x()?)?;
    "inner", |s| {
        let (a, b) = (s.x()?, s.t(1, "other")?);
        if a.rank() == 0 || b.rank() == 0 { a.mul(b)? } else { a.tensordot(b, &[-1], &[-1])? }
    };
    "linalg.vecdot", |s| s.x()?.mul(s.t(1, "y")?)?.sum(&[s.int(KW, "dim", -1)?], false)?;
    "linalg.multi_dot", |s| {
        let all = s.list(0, "tensors")?;
        all[1..].iter().try_fold(all[0].clone(), |y, m| y.matmul(m))?
    };
    "addmm addmm/decomposed", |s| {
        s.x()?.addmm(s.t(1, "")?, s.t(2, "")?, s.scalar(KW, "beta", 1)?, s.scalar(KW, "alpha", 1)?)?
    };
    "baddbmm", |s| s.x()?.baddbmm(s.t(1, "")?, s.t(2, "")?, s.scalar(KW, "beta", 1)?, s.scalar(KW, "alpha", 1)?)?;
    "addmv", |s| added(s, s.t(1, "")?.matmul(s.t(2, "")?)?)?;
    "addbmm", |s| added(s, s.t(1, "")?.matmul(s.t(2, "")?)?.sum(&[0], false)?)?;
    "addr", |s| added(s, s.t(1, "")?.outer(s.t(2, "")?)?)?;
    "outer", |s| s.x()?.outer(s.t(1, "vec2")?)?;
    "kron", |s| s.x()?.kron(s.t(1, "other")?)?;
    "cross", |s| {
        let first = s.x()?.shape().iter().position(|&d| d == 3).unwrap_or(0);
        s.x()?.cross(s.t(1, "other")?, s.int(2, "dim", first as isize)?)?
    };
    "linalg.cross", |s| s.x()?.cross(s.t(1, "other")?, s.int(KW, "dim", -1)?)?;
    "tensordot", |s| {
        let n = s.x()?.rank() as isize;
        match s.value(2, "dims") {
            Some(Value::Array(pair)) => {
                let axes = |v: &Value| v.as_array().map(|a| a.iter().filter_map(Value::as_i64).map(|v| v as isize).collect::<Vec<_>>());
                let [Some(a), Some(b)] = [axes(&pair[0]), axes(&pair[1])] else { return inexpressible("dims") };
                s.x()?.tensordot(s.t(1, "b")?, &a, &b)?
            }
            _ => {
                let k = s.int(2, "dims", 2)?;
                s.x()?.tensordot(s.t(1, "b")?, &(n - k..n).collect::<Vec<_>>(), &(0..k).collect::<Vec<_>>())?
            }
        }
    };
    "einsum", |s| Tensor::einsum(s.text(1, "equation", "")?, &s.list(0, "operands")?)?;
    "cdist", |s| { s.text(3, "compute_mode", "")?; s.x()?.cdist(s.t(1, "x2")?, s.num(2, "p", 2.0)?)? };

    "broadcast_to expand expand_copy", |s| s.x()?.expand(stretched(s, s.ints(1, "size")?.unwrap_or_default())?)?;
    "expand_as", |s| s.x()?.expand(s.t(1, "other")?.shape())?;
    "broadcast_tensors", |s| Tensor::broadcast_tensors(&s.all()?)?;
    "meshgrid/variadic_tensors meshgrid/list_of_tensors", |s| {
        let all = if s.entry.ends_with("list_of_tensors") { s.list(0, "tensors")? } else { s.all()? };
        let order = if s.text(KW, "indexing", "ij")? == "xy" { Indexing::Xy } else { Indexing::Ij };
        Tensor::meshgrid(&all, order)?
    };
    "cartesian_prod", |s| {
        let all = s.all()?;
        if let [only] = all[..] {
            return Ok(only.clone().into());
        }
        let columns = Tensor::meshgrid(&all, Indexing::Ij)?.iter().map(|t| t.flatten(0, -1)).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1)?
    };
    "chunk unsafe_chunk", |s| s.x()?.chunk(s.size(1, "chunks", 0)?, s.int(2, "dim", 0)?)?;
    "split unsafe_split", |s| s.x()?.split(s.size(1, "split_size", 0)?, s.int(2, "dim", 0)?)?;
    "split/list_args split_with_sizes split_with_sizes_copy", |s| {
        let sizes = s.ints(1, "split_sizes")?.unwrap_or_default().into_iter().map(|v| v as usize).collect::<Vec<_>>();
        s.x()?.split_with_sizes(&sizes, s.int(2, "dim", 0)?)?
    };
    "unbind unbind_copy", |s| s.x()?.unbind(s.int(1, "dim", 0)?)?;
    "cat", |s| Tensor::cat(&s.list(0, "tensors")?, s.int(1, "dim", 0)?)?;
    "stack", |s| Tensor::stack(&s.list(0, "tensors")?, s.int(1, "dim", 0)?)?;
    "diag", |s| s.x()?.diag(s.int(1, "diagonal", 0)?)?;
    "diagflat", |s| s.x()?.reshape([s.x()?.numel()])?.diag(s.int(1, "offset", 0)?)?;
    "diag_embed", |s| s.x()?.diag_embed(s.int(1, "offset", 0)?, s.int(2, "dim1", -2)?, s.int(3, "dim2", -1)?)?;
    "diagonal diagonal_copy", |s| s.x()?.diagonal(s.int(1, "offset", 0)?, s.int(2, "dim1", 0)?, s.int(3, "dim2", 1)?)?;
    "linalg.diagonal", |s| s.x()?.diagonal(s.int(KW, "offset", 0)?, s.int(KW, "dim1", -2)?, s.int(KW, "dim2", -1)?)?;
    "trace", |s| s.x()?.trace()?;
    "tril", |s| s.x()?.tril(s.int(1, "diagonal", 0)?)?;
    "triu", |s| s.x()?.triu(s.int(1, "diagonal", 0)?)?;
    "flip", |s| s.rest(1, "dims")?.into_iter().try_fold(s.x()?.clone(), |y, axis| y.flip(axis))?;
    "fliplr", |s| s.x()?.flip(1)?;
    "flipud", |s| s.x()?.flip(0)?;
    "roll", |s| {
        let shifts = s.ints(1, "shifts")?.unwrap_or_default();
        s.x()?.roll(&shifts, &s.ints(2, "dims")?.unwrap_or_default())?
    };
    "rot90", |s| {
        let axes = s.ints(2, "dims")?.unwrap_or(vec![0, 1]);
        let Ok(axes) = <[isize; 2]>::try_from(axes) else { return inexpressible("two axes are needed") };
        s.x()?.rot90(s.int(1, "k", 1)?, axes)?
    };
    "repeat", |s| s.x()?.repeat(&s.sizes(1, "repeats")?)?;
    "tile", |s| s.x()?.tile(&s.sizes(1, "dims")?)?;
    "repeat_interleave", |s| {
        if s.opt(KW, "repeats").is_ok() {
            return inexpressible("a number of repetitions for each element");
        }
        let (n, axis) = (s.size(KW, "repeats", 0)?, s.value(KW, "dim").map(|_| s.int(KW, "dim", 0)).transpose()?);
        s.size(KW, "output_size", 0)?;
        match axis {
            Some(axis) => s.x()?.repeat_interleave(n, axis)?,
            None => s.x()?.reshape([s.x()?.numel()])?.repeat_interleave(n, 0)?,
        }
    };
    "permute permute_copy", |s| s.x()?.permute(&s.rest(1, "dims")?)?;
    "transpose transpose_copy", |s| s.x()?.transpose(s.int(1, "dim0", 0)?, s.int(2, "dim1", 1)?)?;
    "t t_copy T H", |s| match s.x()?.rank() {
        2 => s.x()?.t()?,
        rank if rank > 2 => return inexpressible("transposes matrices only"),
        _ => s.x()?.clone(),
    };
    "mT mH", |s| s.x()?.transpose(-2, -1)?;
    "movedim", |s| {
        s.x()?.movedim(&s.ints(1, "source")?.unwrap_or_default(), &s.ints(2, "destination")?.unwrap_or_default())?
    };
    "squeeze squeeze/multiple squeeze_copy", |s| {
        let x = s.x()?;
        let mut axes = s.ints(1, "dim")?.unwrap_or_else(|| (0..x.rank() as isize).collect());
        axes.iter_mut().for_each(|a| *a = a.rem_euclid(x.rank().max(1) as isize));
        axes.sort();
        // PyTorch leaves axes whose size is not 1 as they are.
        let stays = |a: isize| x.rank() > 0 && x.shape()[a as usize] != 1;
        axes.into_iter().rev().filter(|&a| !stays(a)).try_fold(x.clone(), |y, axis| y.squeeze(axis))?
    };
    "unsqueeze unsqueeze_copy", |s| s.x()?.unsqueeze(s.int(1, "dim", 0)?)?;
    "reshape view view_copy", |s| s.x()?.reshape(inferred(s.ints(1, "shape")?.unwrap_or_default())?)?;
    "reshape_as view_as", |s| s.x()?.reshape(s.t(1, "other")?.shape())?;
    "flatten", |s| s.x()?.flatten(s.int(1, "start_dim", 0)?, s.int(2, "end_dim", -1)?)?;
    "ravel", |s| s.x()?.flatten(0, -1)?;
    "unflatten", |s| s.x()?.unflatten(s.int(1, "dim", 0)?, sizes_or_infer(s.ints(2, "sizes")?.unwrap_or_default()))?;
    "unfold unfold_copy", |s| s.x()?.unfold_axis(s.int(1, "dim", 0)?, s.size(2, "size", 0)?, s.size(3, "step", 0)?)?;

    "narrow narrow_copy", |s| {
        let (axis, len) = (s.int(1, "dim", 0)?, s.size(3, "length", 0)?);
        let start = match s.operand(2, "start")? {
            Operand::Tensor(t) => t.to_scalar::<i64>()? as isize,
            _ => s.int(2, "start", 0)?,
        };
        let start = if start < 0 { start + s.x()?.size(axis)? as isize } else { start };
        let Ok(start) = usize::try_from(start) else { return inexpressible("start before the axis") };
        s.x()?.narrow(axis, start, len)?
    };
    "select", |s| s.x()?.select(s.int(1, "dim", 0)?, s.int(2, "index", 0)?)?;
    "select_scatter", |s| {
        let mut index = vec![Index::from(..); s.int(2, "dim", 0)?.rem_euclid(s.x()?.rank() as isize) as usize];
        index.push(s.int(3, "index", 0)?.into());
        s.x()?.index_assign(index, s.t(1, "src")?)?
    };
    "slice", |s| {
        let (axis, step) = (s.int(1, "dim", 0)?, s.size(4, "step", 1)?);
        let (start, end) = part(s, s.x()?.size(axis)?, 2)?;
        s.x()?.slice(axis, start, end, step)?
    };
    "slice_scatter", |s| {
        let axis = s.int(2, "dim", 0)?.rem_euclid(s.x()?.rank() as isize) as usize;
        let (start, end) = part(s, s.x()?.shape()[axis], 3)?;
        let mut index = vec![Index::from(..); axis];
        index.push(Strided { start: Some(start as isize), end: Some(end as isize), step: s.int(5, "step", 1)? }.into());
        s.x()?.index_assign(index, s.t(1, "src")?)?
    };
    "gather", |s| { s.flag(KW, "sparse_grad", false)?; s.x()?.gather(s.int(1, "dim", 0)?, s.t(2, "index")?)? };
    "take_along_dim", |s| {
        let (x, index) = (s.x()?, s.t(1, "indices")?);
        match s.value(2, "dim") {
            Some(_) => {
                // All axes except `dim` broadcast.
                let axis = s.int(2, "dim", 0)?.rem_euclid(x.rank() as isize) as usize;
                let shape = |t: &Tensor| (0..t.rank()).map(|i| if i == axis { 1 } else { t.shape()[i] }).collect::<Vec<_>>();
                let both: Vec<usize> = shape(x).iter().zip(shape(index)).map(|(&a, b)| if a == 1 { b } else { a }).collect();
                let stretched = |t: &Tensor| {
                    let mut dims = both.clone();
                    dims[axis] = t.shape()[axis];
                    t.expand(dims)
                };
                stretched(x)?.gather(axis as isize, &stretched(index)?)?
            }
            None => x.flatten(0, -1)?.gather(0, &index.flatten(0, -1)?)?,
        }
    };
    "take", |s| s.x()?.flatten(0, -1)?.index(s.t(1, "index")?)?;
    "put", |s| {
        let flat = [s.x()?.flatten(0, -1)?, s.t(1, "index")?.flatten(0, -1)?, s.t(2, "source")?.flatten(0, -1)?];
        flat[0].index_put(&[&flat[1]], &flat[2], s.flag(3, "accumulate", false)?)?.reshape(s.x()?.shape())?
    };
    "index_select", |s| s.x()?.index_select(s.int(1, "dim", 0)?, s.t(2, "index")?)?;
    "index_add", |s| s.x()?.index_add(s.int(1, "dim", 0)?, s.t(2, "index")?, &scaled_source(s)?)?;
    "index_copy", |s| s.x()?.index_copy(s.int(1, "dim", 0)?, s.t(2, "index")?, s.t(3, "source")?)?;
    "index_fill", |s| {
        let (x, axis, index) = (s.x()?, s.int(1, "dim", 0)?, s.t(2, "index")?);
        match s.operand(3, "value")? {
            Operand::Tensor(value) => {
                let mut dims = x.shape().to_vec();
                if let Some(d) = dims.get_mut(axis.rem_euclid(x.rank().max(1) as isize) as usize) {
                    *d = index.numel();
                }
                x.index_copy(axis, index, &value.expand(dims)?)?
            }
            Operand::Scalar(value) => x.index_fill(axis, index, value)?,
        }
    };
    "scatter", |s| match s.text(KW, "reduce", "set")? {
        "set" => s.x()?.scatter(s.int(1, "dim", 0)?, s.t(2, "index")?, s.operand(3, "src")?)?,
        "add" => s.x()?.scatter_add(s.int(1, "dim", 0)?, s.t(2, "index")?, &filled(s)?)?,
        other => return inexpressible(format!("scatter with {other}")),
    };
    "scatter_add", |s| s.x()?.scatter_add(s.int(1, "dim", 0)?, s.t(2, "index")?, s.t(3, "src")?)?;
    "scatter_reduce/sum scatter_reduce/prod scatter_reduce/mean scatter_reduce/amin scatter_reduce/amax", |s| {
        s.x()?.scatter_reduce(s.int(1, "dim", 0)?, s.t(2, "index")?, s.t(3, "src")?, combined(s)?, s.flag(5, "include_self", true)?)?
    };
    "index_reduce/prod index_reduce/mean index_reduce/amin index_reduce/amax", |s| {
        let (axis, index, src) = (s.int(1, "dim", 0)?, s.t(2, "index")?, s.t(3, "source")?);
        let mut column = vec![1; src.rank().max(1)];
        column[axis.rem_euclid(src.rank().max(1) as isize) as usize] = index.numel();
        let index = if src.rank() == 0 { index.reshape([])? } else { index.reshape(&column)?.expand(src.shape())? };
        s.x()?.scatter_reduce(axis, &index, src, combined(s)?, s.flag(5, "include_self", true)?)?
    };
    "masked_fill", |s| {
        let (x, mask) = (s.x()?, s.t(1, "mask")?);
        match s.operand(2, "value")? {
            Operand::Tensor(value) if value.rank() == 0 => mask.where_(value, x)?,
            Operand::Tensor(_) => return inexpressible("several values"),
            Operand::Scalar(value) => x.masked_fill(mask, value)?,
        }
    };
    "masked_select", |s| s.x()?.masked_select(s.t(1, "mask")?)?;
    "__getitem__", |s| s.x()?.index(indices(s)?)?;
    "index_put", |s| s.x()?.index_put(&s.list(1, "indices")?, s.t(2, "values")?, s.flag(3, "accumulate", false)?)?;
};

/// The axes of the argument `dim`; all axes if it is absent or empty.
fn dims(s: &Sample<'_>) -> Result<Vec<isize>> {
    s.axes(1, "dim", s.x()?)
}

fn keep(s: &Sample<'_>) -> Result<bool> {
    s.flag(2, "keepdim", false)
}

/// The axes of a variance. The argument at position 1 may be `unbiased` instead of `dim`.
fn spread(s: &Sample<'_>) -> Result<Vec<isize>> {
    match s.value(1, "dim") {
        Some(Value::Bool(_)) => Ok((0..s.x()?.rank() as isize).collect()),
        _ => dims(s),
    }
}

fn correction(s: &Sample<'_>) -> Result<usize> {
    for given in [s.value(1, "dim"), s.value(KW, "unbiased")] {
        if let Some(Value::Bool(unbiased)) = given {
            return Ok(usize::from(*unbiased));
        }
    }
    match s.num(KW, "correction", 1.0)? {
        c if c >= 0.0 && c.fract() == 0.0 => Ok(c as usize),
        c => inexpressible(format!("a correction of {c}")),
    }
}

/// The input, flattened if no axis is given.
fn flat_unless(s: &Sample<'_>) -> Result<Tensor> {
    if s.value(1, "dim").is_some() { Ok(s.x()?.clone()) } else { s.x()?.reshape([s.x()?.numel()]) }
}

/// The shape of the indices of a maximum or minimum.
fn flat_shape(s: &Sample<'_>) -> Result<Vec<usize>> {
    let (x, keepdim) = (s.x()?, keep(s)?);
    let axes = match s.value(1, "dim") {
        Some(_) => vec![s.int(1, "dim", 0)?.rem_euclid(x.rank().max(1) as isize) as usize],
        None => (0..x.rank()).collect(),
    };
    let all = x.shape().iter().enumerate();
    Ok(all.filter(|(i, _)| keepdim || !axes.contains(i)).map(|(i, &d)| if axes.contains(&i) { 1 } else { d }).collect())
}

/// Converts to i32 if the keyword argument `out_int32` is true.
fn narrowed(s: &Sample<'_>, y: Tensor) -> Result<Tensor> {
    if s.flag(KW, "out_int32", false)? { y.to_dtype(DType::I32) } else { Ok(y) }
}

/// `beta * input + alpha * y`
fn added(s: &Sample<'_>, y: Tensor) -> Result<Tensor> {
    let (beta, alpha) = (s.scalar(KW, "beta", 1)?, s.scalar(KW, "alpha", 1)?);
    let product = y.mul(alpha)?;
    // With a `beta` of 0, PyTorch does not read the input.
    if beta.eq(0) { product.add(&s.x()?.zeros_like()?) } else { product.add(&s.x()?.mul(beta)?) }
}

/// Sizes in which -1 stands for the size of the input's axis.
fn stretched(s: &Sample<'_>, dims: Vec<isize>) -> Result<Vec<usize>> {
    let (shape, lead) = (s.x()?.shape(), dims.len().saturating_sub(s.x()?.rank()));
    let one = |(i, &d): (usize, &isize)| {
        usize::try_from(d)
            .or_else(|_| i.checked_sub(lead).map(|i| shape[i]).map_or_else(|| inexpressible("-1 for a new axis"), Ok))
    };
    dims.iter().enumerate().map(one).collect()
}

fn sizes_or_infer(dims: Vec<isize>) -> Vec<usize> {
    dims.into_iter().map(|d| if d == -1 { INFER } else { d as usize }).collect()
}

fn inferred(dims: Vec<isize>) -> Result<Vec<usize>> {
    if dims.iter().any(|&d| d < -1) {
        return inexpressible("a negative size");
    }
    Ok(sizes_or_infer(dims))
}

/// The start and end of a slice, clamped to the axis as in Python.
fn part(s: &Sample<'_>, size: usize, at: usize) -> Result<(usize, usize)> {
    let n = size as isize;
    let cut = |v: isize| if v < 0 { (v + n).max(0) } else { v.min(n) };
    let start = cut(s.int(at, "start", 0)?);
    let end = cut(s.int(at + 1, "end", n)?).max(start);
    Ok((start as usize, end as usize))
}

/// The argument `source`, multiplied by `alpha`.
fn scaled_source(s: &Sample<'_>) -> Result<Tensor> {
    let source = s.t(3, "source")?;
    match s.value(KW, "alpha") {
        None | Some(Value::Bool(true)) => Ok(source.clone()),
        Some(Value::Bool(false)) => source.zeros_like(),
        Some(_) => source.mul(s.scalar(KW, "alpha", 1)?),
    }
}

/// The argument `src`; a number is expanded to the shape of the index.
fn filled(s: &Sample<'_>) -> Result<Tensor> {
    match s.operand(3, "src")? {
        Operand::Tensor(t) => Ok(t.clone()),
        Operand::Scalar(v) => Tensor::full(s.t(2, "index")?.shape(), v, s.x()?.dtype(), s.device),
    }
}

fn combined(s: &Sample<'_>) -> Result<ScatterReduction> {
    Ok(match s.text(4, "reduce", "")? {
        "sum" => ScatterReduction::Sum,
        "prod" => ScatterReduction::Prod,
        "mean" => ScatterReduction::Mean,
        "amin" => ScatterReduction::Amin,
        "amax" => ScatterReduction::Amax,
        other => return inexpressible(format!("scatter with {other}")),
    })
}

/// The indices between the brackets of `x[..]`.
fn indices<'a>(s: &Sample<'a>) -> Result<Vec<Index<'a>>> {
    let one = |v: &'a Value| -> Result<Index<'a>> {
        if let Some(at) = v.get("in").and_then(Value::as_u64) {
            return Ok((&s.tensors[at as usize]).into());
        }
        if let Some(Value::Array(ends)) = v.get("slice") {
            let end = |i: usize| ends[i].as_i64().map(|v| v as isize);
            return Ok(Strided { start: end(0), end: end(1), step: end(2).unwrap_or(1) }.into());
        }
        match v {
            Value::Null => Ok(NewAxis.into()),
            Value::Number(n) if n.is_i64() => Ok(n.as_i64().unwrap_or(0).into()),
            Value::Object(o) if o.contains_key("ellipsis") => Ok(Ellipsis.into()),
            other => inexpressible(format!("an index {other}")),
        }
    };
    match s.value(1, "index") {
        Some(Value::Array(all)) => all.iter().map(one).collect(),
        Some(v) => Ok(vec![one(v)?]),
        None => Ok(vec![NewAxis.into()]),
    }
}
