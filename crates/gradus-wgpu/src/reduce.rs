//! Reductions: `lanes` invocations share an output, each taking every `lanes`-th element, and join in a fixed tree.

use gradus_backend::{ArgReduceOp, DType, Error, ErrorKind, Layout, ReduceOp, Result, Scalar, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::operand::{Axes, cut};
use crate::queue::{Launch, key};
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, cast, param, ty};

/// What is done with the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Fold(ReduceOp),
    Arg(ArgReduceOp),
}

/// Everything that the text depends on.
#[derive(Debug, Hash)]
struct Plan {
    op: Op,
    x: DType,
    out: DType,
    kept: usize,
    reduced: usize,
    lanes: u32,
}

/// Parameters in front of the sizes and steps: outputs, elements of each, parts of each, elements of a part, and the
/// positions of the first elements.
const FIXED: usize = 6;

/// See [`Backend::reduce`](gradus_backend::Backend::reduce).
pub(crate) fn reduce(
    b: &WgpuBackend,
    op: ReduceOp,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let name = op.name();
    let result = match op {
        ReduceOp::Sum | ReduceOp::Prod => x.dtype.accumulate(),
        ReduceOp::Max | ReduceOp::Min => x.dtype,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    };
    if let Some(axis) = axes.iter().find(|&a| a >= x.layout.rank()) {
        let m = format!("axis {axis} of {}", x.layout.shape());
        return Err(Error::new(ErrorKind::InvalidAxis, name, m));
    }
    b.check_dtype(name, x.dtype)?;
    b.expect(name, "out", out.as_view(), result, x.layout.shape().reduced(axes, true).dims())?;
    let extreme = matches!(op, ReduceOp::Max | ReduceOp::Min);
    if extreme && x.dtype == DType::Bool {
        // Booleans are bytes of 0 and 1.
        let layout = out.layout;
        let mut bytes = ViewMut { buffer: out.buffer, dtype: DType::U8, layout };
        return reduce(b, op, View { dtype: DType::U8, ..x }, axes, &mut bytes);
    }
    if out.layout.numel() == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        if extreme {
            return Err(Error::argument(name, format!("{} has nothing along the axes {axes:?}", x.layout.shape())));
        }
        return crate::map::fill(b, out, Scalar::Int(i64::from(matches!(op, ReduceOp::Prod | ReduceOp::All))));
    }
    run(b, name, Op::Fold(op), x, axes, out)
}

/// See [`Backend::arg_reduce`](gradus_backend::Backend::arg_reduce).
pub(crate) fn arg_reduce(
    b: &WgpuBackend,
    op: ArgReduceOp,
    x: View<'_>,
    axis: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let name = if op == ArgReduceOp::Max { "argmax" } else { "argmin" };
    if axis >= x.layout.rank() {
        let m = format!("axis {axis} of {}", x.layout.shape());
        return Err(Error::new(ErrorKind::InvalidAxis, name, m));
    }
    b.check_dtype(name, x.dtype)?;
    b.expect(name, "out", out.as_view(), DType::I64, &x.layout.shape().with(axis, 1)?)?;
    let x = if x.dtype == DType::Bool { View { dtype: DType::U8, ..x } } else { x };
    if x.layout.dims()[axis] == 0 {
        return Err(Error::argument(name, format!("{} has nothing along axis {axis}", x.layout.shape())));
    }
    if out.layout.numel() == 0 {
        return Ok(());
    }
    run(b, name, Op::Arg(op), x, gradus_backend::Axes::one(axis), out)
}

fn run(
    b: &WgpuBackend,
    name: &str,
    op: Op,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let rank = x.layout.rank();
    let n_out = out.layout.numel();
    let n = x.layout.numel() / n_out;
    if !b.fits(x.layout, x.dtype) || !b.fits(out.layout, out.dtype) {
        return in_pieces(b, name, op, x, axes, out);
    }
    // Few outputs of many elements: parts of each first, then the parts.
    let parts = if n_out < 64 && n >= 1 << 16 && matches!(op, Op::Fold(_)) { (n >> 13).min(256) } else { 1 };
    if parts > 1 {
        let dtype = accumulator(op, x.dtype);
        let mut partial = Temp::new(b, dtype, Shape::new(&[n_out, parts])?)?;
        let kept = (0..rank).filter(|&a| !axes.contains(a));
        // The shape of the output with the parts behind it, seen by the kept axes of `x` in their order.
        let mut dims: Vec<usize> = out.layout.dims().to_vec();
        let mut strides = vec![0isize; rank];
        let mut step = parts as isize;
        for a in kept.collect::<Vec<_>>().into_iter().rev() {
            strides[a] = step;
            step *= dims[a] as isize;
        }
        for a in axes.iter() {
            dims[a] = 1;
        }
        let layout = Layout::from_parts(Shape::new(&dims)?, &strides, 0, n_out * parts)?;
        let target = ViewMut { buffer: &mut partial.buffer, dtype, layout: &layout };
        launch(b, name, op, x, axes, &target, parts)?;
        let second = Layout::contiguous(Shape::new(&[n_out, parts])?);
        let flat = Temp::contiguous_like(out)?;
        let whole = View { buffer: &partial.buffer, dtype, layout: &second };
        return match flat {
            Some(layout) => launch(b, name, op, whole, gradus_backend::Axes::one(1), &out.with(&layout), 1),
            None => {
                let mut narrow = Temp::new(b, out.dtype, Shape::new(&[n_out, 1])?)?;
                launch(b, name, op, whole, gradus_backend::Axes::one(1), &narrow.view_mut(), 1)?;
                narrow.layout = Layout::contiguous(*out.layout.shape());
                crate::map::copy_strided(b, narrow.view(), out)
            }
        };
    }
    let layout = out.layout;
    launch(b, name, op, x, axes, &out.with(layout), 1)
}

/// Operands that are larger than what a kernel can be given: by halves, those of one result joined afterwards.
fn in_pieces(
    b: &WgpuBackend,
    name: &str,
    op: Op,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let rank = x.layout.rank();
    if let Some((axis, half)) = cut(x.layout, (0..rank).filter(|&a| !axes.contains(a))) {
        for (start, len) in [(0, half), (half, x.layout.dims()[axis] - half)] {
            let (from, to) = (x.layout.narrow(axis, start, len)?, out.layout.narrow(axis, start, len)?);
            run(b, name, op, x.with(&from), axes, &mut out.with(&to))?;
        }
        return Ok(());
    }
    let (Op::Fold(fold), Some((axis, half))) = (op, cut(x.layout, 0..rank)) else {
        let m = format!("{} elements of one result are more than a kernel of {} reaches", x.layout.numel(), b.label());
        return Err(Error::new(ErrorKind::Unsupported, name, m).help("split the tensor along the axis"));
    };
    let mut both = Temp::new(b, accumulator(op, x.dtype), Shape::new(&[out.layout.numel(), 2])?)?;
    for (i, (start, len)) in [(0, half), (half, x.layout.dims()[axis] - half)].into_iter().enumerate() {
        let (from, to) = (x.layout.narrow(axis, start, len)?, both.layout.narrow(1, i, 1)?);
        let shape = Layout::from_parts(*out.layout.shape(), &vec![0; rank], to.offset(), both.layout.numel())?;
        run(b, name, op, x.with(&from), axes, &mut both.view_mut().with(&shape))?;
    }
    let pair = Shape::new(&[2])?;
    let flat = Layout::contiguous(pair);
    let shape = out.layout.reshape(Shape::new(&[1])?).unwrap_or(*out.layout);
    let x = View { buffer: &both.buffer, dtype: both.dtype, layout: &flat };
    run(b, name, Op::Fold(fold), x, gradus_backend::Axes::one(0), &mut out.with(&shape))
}

fn launch(
    b: &WgpuBackend,
    name: &str,
    op: Op,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &ViewMut<'_>,
    parts: usize,
) -> Result<()> {
    let (from, to) = (b.input(name, "x", x)?, b.output(name, "out", out)?);
    let rank = x.layout.rank();
    let kept = Axes::merged(&[&from.layout, &to.layout], (0..rank).filter(|&a| !axes.contains(a)));
    let reduced = Axes::merged(&[&from.layout], (0..rank).filter(|&a| axes.contains(a)));
    let (n_out, n) = (kept.numel(), reduced.numel());
    let part = n.div_ceil(parts);
    let neighbours = kept.steps[0].last().is_some_and(|s| s.abs() <= 1) && n_out >= 16;
    let lanes = match part {
        _ if parts > 1 => GROUP,
        0..=32 => 1,
        33..=512 if n_out >= 8192 => 1,
        _ if neighbours => 16,
        _ => GROUP,
    };
    let plan = Plan { op, x: x.dtype, out: out.dtype, kept: kept.rank(), reduced: reduced.rank(), lanes };
    let mut params = vec![n_out, n, parts, part, from.layout.offset(), to.layout.offset()];
    params.extend(&kept.dims);
    let steps = |s: &Vec<isize>| s.iter().map(|&s| s as usize).collect::<Vec<_>>();
    kept.steps.iter().for_each(|s| params.extend(steps(s)));
    params.extend(&reduced.dims);
    params.extend(steps(&reduced.steps[0]));
    let params: Vec<u32> = params.into_iter().map(|p| p as u32).collect();
    let shared = u64::from(GROUP / lanes);
    b.queue().launch(&Launch {
        op: name,
        key: key(("reduce", &plan)),
        source: &|| plan.source(),
        binds: &[from.bind, to.bind],
        fault: None,
        params: &params,
        groups: (n_out as u64 * parts as u64).div_ceil(shared),
    })
}

/// The dtype that a reduction accumulates in.
fn accumulator(op: Op, x: DType) -> DType {
    match op {
        Op::Fold(ReduceOp::Sum | ReduceOp::Prod) => x.accumulate().compute(),
        Op::Fold(ReduceOp::Any | ReduceOp::All) => DType::Bool,
        _ => x.compute(),
    }
}

/// The value of a compute type that a reduction starts from.
pub(crate) fn identity(op: ReduceOp, dtype: DType) -> String {
    let bits = dtype.size() as u32 * 8;
    let scalar = match op {
        ReduceOp::Sum => Scalar::Int(0),
        ReduceOp::Prod => Scalar::Int(1),
        ReduceOp::Any => Scalar::Bool(false),
        ReduceOp::All => Scalar::Bool(true),
        ReduceOp::Max if dtype.is_float() => Scalar::Float(f64::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => Scalar::Float(f64::INFINITY),
        ReduceOp::Max if dtype.is_signed() => Scalar::Int(i64::MIN >> (64 - bits)),
        ReduceOp::Min if dtype.is_signed() => Scalar::Int(i64::MAX >> (64 - bits)),
        ReduceOp::Max => Scalar::Int(0),
        ReduceOp::Min if dtype == DType::U64 => return "18446744073709551615lu".to_owned(),
        ReduceOp::Min => Scalar::Int((u64::MAX >> (64 - bits)) as i64),
    };
    wgsl::constant(scalar, dtype)
}

/// Two values of a compute type combined.
pub(crate) fn joined(op: ReduceOp, dtype: DType, a: &str, b: &str) -> String {
    let t = ty(dtype);
    match op {
        ReduceOp::Sum => format!("({a} + {b})"),
        ReduceOp::Prod => format!("({a} * {b})"),
        ReduceOp::Any => format!("({a} || {b})"),
        ReduceOp::All => format!("({a} && {b})"),
        ReduceOp::Max if dtype.is_float() => format!("larger_{t}({a}, {b})"),
        ReduceOp::Min if dtype.is_float() => format!("smaller_{t}({a}, {b})"),
        ReduceOp::Max => format!("max({a}, {b})"),
        ReduceOp::Min => format!("min({a}, {b})"),
    }
}

impl Plan {
    fn source(&self) -> String {
        let (kept, reduced, lanes) = (self.kept, self.reduced, self.lanes);
        let x_steps = FIXED + kept;
        let out_steps = x_steps + kept;
        let r_dims = out_steps + kept;
        let r_steps = r_dims + reduced;
        let mut text = Text::new(r_steps + reduced);
        text.input("x", self.x);
        text.output("y", self.out);
        let acc = accumulator(self.op, self.x);
        let t = ty(acc);
        match self.op {
            Op::Fold(op) => {
                text.declare(format_args!("struct Acc {{ v: {t} }}"));
                text.declare(format_args!("fn none() -> Acc {{ return Acc({}); }}", identity(op, acc)));
                let join = joined(op, acc, "a.v", "b.v");
                text.declare(format_args!("fn join(a: Acc, b: Acc) -> Acc {{ return Acc({join}); }}"));
                let bool_out = acc == DType::Bool;
                let value =
                    if bool_out { cast("x", self.x.compute(), DType::Bool) } else { cast("x", self.x.compute(), acc) };
                text.declare(format_args!("fn lift(x: {}, j: u32) -> Acc {{ return Acc({value}); }}", ty(self.x)));
            }
            Op::Arg(op) => {
                let zero = wgsl::constant(Scalar::Int(0), acc);
                text.declare(format_args!("struct Acc {{ v: {t}, i: u32 }}"));
                text.declare(format_args!("fn none() -> Acc {{ return Acc({zero}, 0xffffffffu); }}"));
                text.declare(format_args!("fn lift(x: {t}, j: u32) -> Acc {{ return Acc(x, j); }}"));
                let sign = if op == ArgReduceOp::Max { ">" } else { "<" };
                let nan = |v: &str| if acc.is_float() { format!("is_nan_{t}({v})") } else { "false".to_owned() };
                text.declare(format_args!(
                    "fn join(a: Acc, b: Acc) -> Acc {{\n  if (a.i == 0xffffffffu) {{ return b; }}\n  if (b.i == \
                     0xffffffffu) {{ return a; }}\n  let p = {}; let q = {};\n  var first = a.i < b.i;\n  if (p != q) {{ \
                     first = p; }} else if (!p && !(a.v == b.v)) {{ first = a.v {sign} b.v; }}\n  if (first) {{ return a; \
                     }}\n  return b;\n}}",
                    nan("a.v"),
                    nan("b.v")
                ));
            }
        }
        let shared = GROUP / lanes;
        if lanes > 1 {
            text.declare(format_args!("var<workgroup> shared_accs: array<Acc, {GROUP}>;"));
        }
        text.line(format_args!("let lane = local / {shared}u;"));
        text.line(format_args!("let task = group * {shared}u + local % {shared}u;"));
        text.line(format_args!("let o = task / {}; let part = task % {};", param(2), param(2)));
        text.line(format_args!("let live = o < {};", param(0)));
        wgsl::coordinates(&mut text, "c", "o", kept, FIXED);
        text.line(format_args!("let base = {};", wgsl::position("c", kept, 4, x_steps)));
        text.line("var acc = none();");
        text.line(format_args!("let first = part * {}; let end = min({}, first + {});", param(3), param(1), param(3)));
        text.line("if (live) {");
        text.line(format_args!("for (var j = first + lane; j < end; j = j + {lanes}u) {{"));
        wgsl::coordinates(&mut text, "r", "j", reduced, r_dims);
        let terms: String = (0..reduced).map(|a| format!(" + r{a} * {}", param(r_steps + a))).collect();
        text.line(format_args!("acc = join(acc, lift(load_x(base{terms}), j));"));
        text.line("} }");
        if lanes > 1 {
            text.line("shared_accs[local] = acc; workgroupBarrier();");
            let mut half = GROUP / 2;
            while half >= shared {
                text.line(format_args!(
                    "if (local < {half}u) {{ shared_accs[local] = join(shared_accs[local], shared_accs[local + {half}u]); \
                     }} workgroupBarrier();"
                ));
                half /= 2;
            }
            text.line(format_args!("if (local >= {shared}u) {{ return; }} acc = shared_accs[local];"));
        }
        text.line("if (!live) { return; }");
        let at = wgsl::position("c", kept, 5, out_steps);
        let value = match self.op {
            Op::Fold(_) => "acc.v",
            Op::Arg(_) => "i64(acc.i)",
        };
        text.line(format_args!("store_y({at} + part, {value});"));
        text.finish(GROUP)
    }
}
