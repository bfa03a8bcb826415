//! Default implementations of the composites of [`Backend`], built on its required primitives.
//!
//! They are simple rather than fast: overrides are tested against them, and with them a backend that implements only
//! the primitives is complete. They compute in the compute dtype and round once, when a result is stored, so f16 and
//! bf16 operands are widened first. Temporaries are allocated on the backend and freed on return.

pub mod arange;
pub mod attention;
pub mod conv;
pub mod cross_entropy;
pub mod embedding;
pub mod gemm_i32;
pub mod linear_i8;
pub mod mapped;
pub mod norm;
pub mod pool;
pub mod softmax;

use std::sync::{Arc, LazyLock, Mutex};

use crate::{
    Axes, Backend, Buffer, DType, Error, ErrorKind, Expr, Kernel, KernelBuilder, Layout, MapArg, ReduceOp, Result,
    Shape, View, ViewMut,
};

/// A contiguous temporary tensor of a composite.
#[derive(Debug)]
struct Temp {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Temp {
    fn new<B: Backend + ?Sized>(b: &B, dtype: DType, shape: Shape) -> Result<Self> {
        let buffer = b.alloc(shape.numel() * dtype.size())?;
        Ok(Temp { buffer, dtype, layout: Layout::contiguous(shape) })
    }

    /// Uploads an i64 table that was computed on the host; `values` has as many elements as `shape`.
    fn table<B: Backend + ?Sized>(b: &B, shape: Shape, values: &[i64]) -> Result<Self> {
        let mut t = Temp::new(b, DType::I64, shape)?;
        b.upload(&mut t.buffer, 0, crate::Element::as_bytes(values))?;
        Ok(t)
    }

    fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    /// The same elements under another shape with the same number of elements.
    fn shaped(&self, shape: Shape) -> Relaid<'_> {
        Relaid { x: self.view(), layout: Layout::contiguous(shape) }
    }
}

/// The memory of `x` under another layout.
struct Relaid<'a> {
    x: View<'a>,
    layout: Layout,
}

impl Relaid<'_> {
    fn view(&self) -> View<'_> {
        self.x.with(&self.layout)
    }
}

/// An operand in the form that a primitive requires: the original view or a converted copy.
enum Source<'a> {
    Relaid(Relaid<'a>),
    Temp(Temp),
}

impl Source<'_> {
    fn view(&self) -> View<'_> {
        match self {
            Source::Relaid(x) => x.view(),
            Source::Temp(t) => t.view(),
        }
    }
}

/// `x` converted to another dtype and to another shape with the same number of elements, copied only if necessary.
fn read_as<'a, B: Backend + ?Sized>(b: &B, x: View<'a>, dtype: DType, shape: Shape) -> Result<Source<'a>> {
    if x.dtype == dtype
        && let Some(layout) = x.layout.reshape(shape)
    {
        return Ok(Source::Relaid(Relaid { x, layout }));
    }
    let mut t = Temp::new(b, dtype, *x.layout.shape())?;
    convert(b, x, &mut t.view_mut())?;
    t.layout = Layout::contiguous(shape);
    Ok(Source::Temp(t))
}

/// `x` in its compute dtype.
fn widened<'a, B: Backend + ?Sized>(b: &B, x: View<'a>) -> Result<Source<'a>> {
    read_as(b, x, x.dtype.compute(), *x.layout.shape())
}

/// Lets `f` write `out` as if it had another dtype and another shape with the same number of elements. A temporary is
/// used only if necessary.
fn write_as<B: Backend + ?Sized>(
    b: &B,
    out: &mut ViewMut<'_>,
    dtype: DType,
    shape: Shape,
    f: impl FnOnce(&mut ViewMut<'_>) -> Result<()>,
) -> Result<()> {
    if out.dtype == dtype
        && let Some(layout) = out.layout.reshape(shape)
    {
        return f(&mut out.with(&layout));
    }
    let mut t = Temp::new(b, dtype, shape)?;
    f(&mut t.view_mut())?;
    convert(b, t.shaped(*out.layout.shape()).view(), out)
}

/// Copies between two views of the same shape, casting if their dtypes differ.
fn convert<B: Backend + ?Sized>(b: &B, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    if x.dtype == out.dtype {
        return b.copy_strided(x, out);
    }
    run(b, "cast", &[MapArg::View(x)], &mut [out.with(out.layout)], |v| vec![v[0]])
}

/// `x` reduced along `axes`, which are kept with size 1, in the dtype of `x` (a float).
fn reduced<B: Backend + ?Sized>(b: &B, op: ReduceOp, x: View<'_>, axes: Axes) -> Result<Temp> {
    let mut t = Temp::new(b, x.dtype, x.layout.shape().reduced(axes, true))?;
    b.reduce(op, x, axes, &mut t.view_mut())?;
    Ok(t)
}

/// `x` broadcast to `shape`.
fn stretched<'a>(x: View<'a>, shape: &Shape) -> Result<Relaid<'a>> {
    Ok(Relaid { x, layout: x.layout.expand(*shape)? })
}

type Body = for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>;

/// Runs the kernel `body` over tensors. Scalar arguments have the compute dtype of the first output; results are cast
/// to the dtypes of the outputs.
fn run<B: Backend + ?Sized>(
    b: &B,
    name: &'static str,
    args: &[MapArg<'_>],
    outs: &mut [ViewMut<'_>],
    body: Body,
) -> Result<()> {
    let out_dtypes: Vec<_> = outs.iter().map(|o| o.dtype).collect();
    let dtype = |arg: &MapArg<'_>| match arg {
        MapArg::View(v) => v.dtype,
        MapArg::Output(i) => out_dtypes[*i],
        MapArg::Scalar(_) => out_dtypes[0].compute(),
    };
    let arg_dtypes: Vec<_> = args.iter().map(dtype).collect();
    b.map(&*kernel(name, &arg_dtypes, &out_dtypes, body)?, args, outs)
}

/// The kernel of a composite, built on first use and cached by body, name, argument dtypes and output dtypes. Bodies
/// are compared by address, so two composites may use the same name.
fn kernel(name: &'static str, args: &[DType], outs: &[DType], body: Body) -> Result<Arc<Kernel>> {
    struct Kept {
        body: Body,
        name: &'static str,
        args: Vec<DType>,
        outs: Vec<DType>,
        kernel: Arc<Kernel>,
    }
    static KERNELS: LazyLock<Mutex<Vec<Kept>>> = LazyLock::new(Default::default);
    let mut kernels = KERNELS.lock().unwrap_or_else(|e| e.into_inner());
    let same = |k: &&Kept| std::ptr::fn_addr_eq(k.body, body) && k.name == name && k.args == args && k.outs == outs;
    if let Some(k) = kernels.iter().find(same) {
        return Ok(k.kernel.clone());
    }
    let builder = KernelBuilder::new(args);
    let exprs = body(&builder.args());
    let outputs: Vec<_> = exprs.into_iter().zip(outs).map(|(e, &d)| (e.cast(d), d)).collect();
    let kernel = Arc::new(builder.finish(name, &outputs)?);
    kernels.push(Kept { body, name, args: args.to_vec(), outs: outs.to_vec(), kernel: kernel.clone() });
    Ok(kernel)
}

/// Checks an operand: its dtype, then its shape.
fn expect<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    name: &str,
    x: View<'_>,
    dtype: DType,
    shape: &[usize],
) -> Result<()> {
    let dims = x.layout.dims();
    if x.dtype != dtype {
        let m = format!("{name} must be {dtype} here");
        return Err(Error::new(ErrorKind::DTypeMismatch, op, m).operand(name, dims, x.dtype, b.name()));
    }
    if dims != shape {
        let m = format!("{name} must have shape {}", Shape::display(shape));
        return Err(Error::shape(op, m).operand(name, dims, x.dtype, b.name()));
    }
    Ok(())
}

/// Checks that an operand is a float tensor.
fn expect_float(op: &'static str, x: View<'_>) -> Result<()> {
    if x.dtype.is_float() { Ok(()) } else { Err(Error::dtype(op, x.dtype, "floats")) }
}

/// Checks that an operand has `rank` axes; `form` names them in the error.
fn expect_rank<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    name: &str,
    x: View<'_>,
    rank: usize,
    form: &str,
) -> Result<()> {
    if x.layout.rank() == rank {
        return Ok(());
    }
    let m = format!("{name} must have {rank} axes {form}");
    Err(Error::shape(op, m).operand(name, x.layout.dims(), x.dtype, b.name()))
}

/// Checks that an operand holds indices: i64, i32 or u32.
fn expect_index(op: &'static str, x: View<'_>) -> Result<()> {
    match x.dtype {
        DType::I64 | DType::I32 | DType::U32 => Ok(()),
        d => Err(Error::dtype(op, d, "indices as i64, i32 or u32")),
    }
}

/// Checks a parameter: returns an error that says what `name` must be unless `ok` is true.
fn expect_parameter(op: &'static str, name: &str, value: f64, ok: bool, wanted: &str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::argument(op, format!("{name} is {value:?}; it must be {wanted}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_one_name_and_different_bodies_are_different() {
        let made = |body| kernel("same", &[DType::F32], &[DType::F32], body).unwrap();
        let (sum, product): (Body, Body) = (|v| vec![v[0] + v[0]], |v| vec![v[0] * v[0]]);
        assert_ne!(made(sum), made(product));
        assert!(Arc::ptr_eq(&made(sum), &made(sum)));
    }
}
