//! Checks of the shapes, dtypes and parameters that the contract requires of a call, one function for each required
//! primitive.
//!
//! A backend calls one of these at the beginning of a primitive. Three checks of memory are left to the backend,
//! because only it knows its buffers: that the buffers are its own, that they hold every element of a layout, and that
//! no two elements of an output share a memory location. [`HostMemory`](crate::HostMemory) makes all three checks.

use crate::shape::resolve_axis;
use crate::{
    ArgReduceOp, Axes, DType, Distribution, Error, ErrorKind, Kernel, MapArg, ReduceOp, Result, Scalar, ScanOp,
    ScatterOp, Shape, View, ViewMut, Window,
};

/// Checks the dtype and the shape of an operand.
pub fn operand(op: &str, name: &str, x: View<'_>, dtype: DType, shape: &[usize]) -> Result<()> {
    let dims = x.layout.dims();
    if x.dtype != dtype {
        let m = format!("{name} must be {dtype} here; it is {} {}", x.dtype, Shape::display(dims));
        return Err(Error::new(ErrorKind::DTypeMismatch, op, m));
    }
    if dims != shape {
        let m = format!("{name} must have shape {}; it is {} {}", Shape::display(shape), x.dtype, Shape::display(dims));
        return Err(Error::shape(op, m));
    }
    Ok(())
}

/// Checks that a scalar can be represented in a dtype.
pub fn scalar(op: &str, value: Scalar, dtype: DType) -> Result<()> {
    value.check(dtype).map_err(|e| Error::argument(op, e.message()))
}

fn axis(op: &str, axis: usize, x: View<'_>) -> Result<()> {
    resolve_axis(op, isize::try_from(axis).unwrap_or(isize::MAX), x.layout.rank()).map(drop)
}

/// Checks [`Backend::map`](crate::Backend::map): each argument of the kernel has a view or a scalar, and each output a
/// view. The views have the kernel's dtypes and a common shape, and the dtypes of the arguments can represent the
/// scalars.
pub fn map(kernel: &Kernel, args: &[MapArg<'_>], outs: &[ViewMut<'_>]) -> Result<()> {
    let op = kernel.name();
    if args.len() != kernel.args().len() || outs.len() != kernel.outputs().len() {
        let (a, n) = (kernel.args().len(), kernel.outputs().len());
        let m = format!("the kernel has {a} arguments and {n} outputs, not {} and {}", args.len(), outs.len());
        return Err(Error::argument(op, m));
    }
    let shape = outs[0].layout.dims();
    for (out, &(_, dtype)) in outs.iter().zip(kernel.outputs()) {
        operand(op, "an output", out.as_view(), dtype, shape)?;
    }
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        match *arg {
            MapArg::View(x) => operand(op, "an argument", x, dtype, shape)?,
            MapArg::Output(i) => {
                let out = outs.get(i).ok_or_else(|| Error::argument(op, format!("there is no output {i}")))?;
                operand(op, "an output that is read", out.as_view(), dtype, shape)?;
            }
            MapArg::Scalar(s) => scalar(op, s, dtype)?,
        }
    }
    Ok(())
}

/// Checks [`Backend::reduce`](crate::Backend::reduce): the axes, and the dtype and shape of `out`. The maximum or
/// minimum of no elements passes this check; the backend rejects it.
pub fn reduce(op: ReduceOp, x: View<'_>, axes: Axes, out: &ViewMut<'_>) -> Result<()> {
    for a in axes.iter() {
        axis(op.name(), a, x)?;
    }
    let dtype = match op {
        ReduceOp::Sum | ReduceOp::Prod => x.dtype.accumulate(),
        ReduceOp::Max | ReduceOp::Min => x.dtype,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    };
    operand(op.name(), "out", out.as_view(), dtype, &x.layout.shape().reduced(axes, true))
}

/// Checks [`Backend::arg_reduce`](crate::Backend::arg_reduce): the axis, which must not be empty, and `out`.
pub fn arg_reduce(op: ArgReduceOp, x: View<'_>, at: usize, out: &ViewMut<'_>) -> Result<()> {
    let name = if op == ArgReduceOp::Max { "argmax" } else { "argmin" };
    axis(name, at, x)?;
    operand(name, "out", out.as_view(), DType::I64, &x.layout.shape().with(at, 1)?)?;
    if x.layout.dims()[at] == 0 {
        return Err(Error::argument(name, format!("axis {at} has no elements, so there is no result")));
    }
    Ok(())
}

/// Checks [`Backend::scan`](crate::Backend::scan): the axis, the dtype of `x`, and `out`.
pub fn scan(op: ScanOp, x: View<'_>, at: usize, out: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "scan";
    axis(OP, at, x)?;
    let dtype = match op {
        ScanOp::Sum | ScanOp::Prod => x.dtype.accumulate(),
        ScanOp::LogSumExp if !x.dtype.is_float() => return Err(Error::dtype(OP, x.dtype, "floats")),
        _ => x.dtype,
    };
    operand(OP, "out", out.as_view(), dtype, x.layout.dims())
}

/// The sizes of a batch of matrix products, each of an `m` by `k` and a `k` by `n` matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Product {
    pub batches: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Checks [`Backend::gemm`](crate::Backend::gemm) and returns the sizes of the product.
pub fn gemm(alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &ViewMut<'_>) -> Result<Product> {
    const OP: &str = "gemm";
    let dtype = a.dtype;
    if dtype == DType::Bool {
        return Err(Error::dtype(OP, dtype, "numbers"));
    }
    let rank = c.layout.rank();
    if rank < 2 || a.layout.rank() != rank || b.layout.rank() != rank {
        let ranks = [a.layout.rank(), b.layout.rank(), rank];
        let m = format!("matrices or batches of them of one rank are needed, not ranks {ranks:?}");
        return Err(Error::shape(OP, m));
    }
    let (batch, &[m, n]) = c.layout.dims().split_at(rank - 2) else { unreachable!("two axes are left") };
    let k = a.layout.dims()[rank - 1];
    operand(OP, "a", a, dtype, &[batch, &[m, k]].concat())?;
    operand(OP, "b", b, dtype, &[batch, &[k, n]].concat())?;
    operand(OP, "c", c.as_view(), dtype, c.layout.dims())?;
    scalar(OP, alpha, dtype)?;
    scalar(OP, beta, dtype)?;
    Ok(Product { batches: batch.iter().product(), m, k, n })
}

/// The shape `[n, c, kernel.., positions..]` of a window unfolded over `[n, c, spatial..]`.
fn columns(op: &str, window: &Window, image: &[usize]) -> Result<Shape> {
    let (Some(&[n, c]), Some(spatial)) = (image.first_chunk::<2>(), image.get(2..)) else {
        return Err(Error::shape(op, "an input has axes [n, c, spatial..]"));
    };
    let positions = window.output(op, spatial)?;
    Shape::new(&[&[n, c], &window.kernel[..window.rank], &positions[..window.rank]].concat())
}

/// Checks [`Backend::unfold`](crate::Backend::unfold).
pub fn unfold(window: &Window, x: View<'_>, pad: Scalar, out: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "unfold";
    operand(OP, "out", out.as_view(), x.dtype, &columns(OP, window, x.layout.dims())?)?;
    scalar(OP, pad, x.dtype)
}

/// Checks [`Backend::fold`](crate::Backend::fold).
pub fn fold(window: &Window, x: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    if x.dtype == DType::Bool {
        return Err(Error::dtype(OP, x.dtype, "numbers"));
    }
    operand(OP, "x", x, out.dtype, &columns(OP, window, out.layout.dims())?)
}

/// The checks that gather and scatter share: `part` has the shape of `whole` except at the axis, and `index` has the
/// shape of `part`.
fn indexed(op: &str, whole: View<'_>, at: usize, index: View<'_>, name: &str, part: View<'_>) -> Result<()> {
    axis(op, at, whole)?;
    let size = part.layout.dims().get(at).copied().unwrap_or(0);
    operand(op, name, part, whole.dtype, &whole.layout.shape().with(at, size)?)?;
    operand(op, "index", index, index.dtype, part.layout.dims())?;
    match index.dtype {
        DType::I64 | DType::I32 | DType::U32 => Ok(()),
        dtype => Err(Error::dtype(op, dtype, "indices as i64, i32 or u32")),
    }
}

/// Checks [`Backend::gather`](crate::Backend::gather), except for the values of the indices.
pub fn gather(x: View<'_>, axis: usize, index: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    indexed("gather", x, axis, index, "out", out.as_view())
}

/// Checks [`Backend::scatter`](crate::Backend::scatter), except for the values of the indices.
pub fn scatter(op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    indexed("scatter", out.as_view(), axis, index, "src", src)?;
    match (op, out.dtype) {
        (ScatterOp::Add, DType::Bool) => Err(Error::dtype("scatter", DType::Bool, "numbers")),
        _ => Ok(()),
    }
}

/// Checks that `index`, the index at position `pos`, lies on an axis of `size` elements.
pub fn index(op: &str, pos: usize, index: i64, size: usize) -> Result<usize> {
    usize::try_from(index).ok().filter(|&i| i < size).ok_or_else(|| {
        let m = format!("index {index} at position {pos} is outside an axis of size {size}");
        Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op, m)
    })
}

/// The error of a selection from an axis without elements: it waits for the first index, and names it. An asynchronous backend
/// uses it because no kernel would write, and so spoil, the output.
pub fn nothing_to_select<B: crate::Backend + ?Sized>(b: &B, op: &str, indices: View<'_>) -> Error {
    let (size, mut bytes) = (indices.dtype.size(), [0; 8]);
    if let Err(e) = b.download(indices.buffer, indices.layout.offset() * size, &mut bytes[..size]) {
        return e;
    }
    let [low @ .., _, _, _, _] = bytes;
    let first = match indices.dtype {
        DType::I64 => i64::from_ne_bytes(bytes),
        DType::I32 => i32::from_ne_bytes(low).into(),
        _ => u32::from_ne_bytes(low).into(),
    };
    match index(op, 0, first, 0) {
        Err(e) => e,
        Ok(_) => Error::argument(op, "the axis has no elements"),
    }
}

/// Checks [`Backend::sort`](crate::Backend::sort).
pub fn sort(x: View<'_>, at: usize, values: &ViewMut<'_>, indices: &ViewMut<'_>) -> Result<()> {
    axis("sort", at, x)?;
    operand("sort", "values", values.as_view(), x.dtype, x.layout.dims())?;
    operand("sort", "indices", indices.as_view(), DType::I64, x.layout.dims())
}

/// Checks [`Backend::random`](crate::Backend::random): the parameters of the distribution, and that the dtype of `out`
/// can represent its values.
pub fn random(dist: Distribution, out: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "random";
    let dtype = out.dtype;
    let refuse = |m: String| Err(Error::argument(OP, m));
    match dist {
        Distribution::Uniform { .. } | Distribution::Normal { .. } if !dtype.is_float() => {
            Err(Error::dtype(OP, dtype, "floats"))
        }
        Distribution::Uniform { lo, hi } if !(lo.is_finite() && hi.is_finite() && lo <= hi) => {
            refuse(format!("uniform from {lo} to {hi}: ends are finite and in order"))
        }
        Distribution::Normal { mean, std } if !(mean.is_finite() && std.is_finite() && std >= 0.0) => {
            refuse(format!("normal with mean {mean} and deviation {std}: both are finite, the latter not negative"))
        }
        Distribution::Bernoulli { p } if !(0.0..=1.0).contains(&p) => {
            refuse(format!("probability {p} is not between 0 and 1"))
        }
        Distribution::Int { lo, hi } if lo >= hi => refuse(format!("there is no integer from {lo} to below {hi}")),
        Distribution::Int { lo, hi } => {
            scalar(OP, Scalar::Int(lo), dtype)?;
            scalar(OP, Scalar::Int(hi - 1), dtype)
        }
        _ => Ok(()),
    }
}

/// Checks [`Backend::copy_strided`](crate::Backend::copy_strided).
pub fn copy_strided(x: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    operand("copy_strided", "out", out.as_view(), x.dtype, x.layout.dims())
}
