//! Reductions. Each output is computed by `lanes` invocations. Each of these combines every `lanes`-th element, and
//! their results are combined in a fixed tree. Where an output's elements are neighbours in memory, four of them count as
//! one, with a result for each of the four.

use gradus_backend::{
    ArgReduceOp, DType, Error, ErrorKind, Kernel, Layout, MapArg, ReduceOp, Result, Scalar, ScalarOp, Shape, View,
    ViewMut,
};

use crate::WgpuBackend;
use crate::operand::{LOOP, cut};
use crate::queue::Launch;
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, binary, cast, param, ty};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

/// The operation on the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Fold(ReduceOp),
    Arg(ArgReduceOp),
}

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    op: Op,
    x: DType,
    out: DType,
    kept: usize,
    reduced: usize,
    lanes: u32,
    /// Whether an invocation reads four neighbours at a time.
    quads: bool,
}

/// The number of parameters before the sizes and strides. They are the number of outputs, of elements per output, of
/// parts per output and of elements per part, and the positions of the first elements.
const FIXED: usize = 6;
/// The longest chain of elements that an invocation combines, and the number of elements, or of groups of four,
/// in each block of such a chain.
const CHAIN: usize = 1024;
const BLOCK: u32 = 32;

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
    if !b.fits(x.layout, x.dtype) || !b.fits(out.layout, out.dtype) {
        return in_pieces(b, name, op, x, axes, out);
    }
    let parts = parts(b, name, op, x, axes, out)?;
    if let (Op::Arg(op), 2..) = (op, parts) {
        return arg_by_halves(b, name, op, x, axes, out);
    }
    if parts > 1 {
        // First reduce the parts of each output, then combine their results.
        let shape = Shape::new(&[out.layout.numel(), parts])?;
        let mut partial = Temp::new(b, accumulator(op, x.dtype), shape)?;
        let layout = beside(out.layout, parts, 0)?;
        launch(b, name, op, x, axes, &partial.view_mut().with(&layout), parts)?;
        return join(b, name, op, partial.view(), out);
    }
    let layout = out.layout;
    launch(b, name, op, x, axes, &out.with(layout), 1)
}

/// The number of parts that the reduction of each output is split into.
fn parts(
    b: &WgpuBackend,
    name: &str,
    op: Op,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &ViewMut<'_>,
) -> Result<usize> {
    let (n_out, rank) = (out.layout.numel(), x.layout.rank());
    let n = x.layout.numel() / n_out;
    let (from, to) = (b.input(name, "x", x)?, b.output(name, "out", out)?);
    let kept = Axes::merged(&[&from.layout, &to.layout], (0..rank).filter(|&a| !axes.contains(a)));
    if let Op::Arg(_) = op {
        return Ok(n.div_ceil(lanes(&kept, n) as usize * LOOP));
    }
    // Use enough parts that no invocation sums more than `CHAIN` elements, and more if so few outputs would leave the
    // device idle.
    let long = n.div_ceil(lanes(&kept, n) as usize * CHAIN);
    let idle = if n_out < 64 && n >= 1 << 16 { (n >> 13).min(256) } else { 1 };
    Ok(long.max(idle))
}

/// The number of invocations that share the elements of a part. `part` is the number of elements to reduce.
fn lanes(kept: &Axes, part: usize) -> u32 {
    let n_out = kept.numel();
    let neighbours = kept.steps[0].last().is_some_and(|s| s.abs() <= 1) && n_out >= 16;
    match part {
        0..=32 => 1,
        33..=512 if n_out >= 8192 => 1,
        _ if neighbours => 16,
        33..=4096 if n_out >= 64 => 64,
        _ => GROUP,
    }
}

/// The layout that places the results of part number `at` into a buffer with `parts` results side by side for each
/// output.
fn beside(out: &Layout, parts: usize, at: usize) -> Result<Layout> {
    let plain = Layout::contiguous(*out.shape());
    let strides: Vec<isize> = plain.strides().iter().map(|s| s * parts as isize).collect();
    Layout::from_parts(*out.shape(), &strides, at, out.numel() * parts)
}

/// Sums `[parts, outputs]` over the parts, with the outputs in row-major order. Accumulates in the dtype of the parts.
pub(crate) fn sum_of_parts(b: &WgpuBackend, name: &str, mut parts: Temp, out: &mut ViewMut<'_>) -> Result<()> {
    parts.layout = parts.layout.transpose(0, 1)?;
    join(b, name, Op::Fold(ReduceOp::Sum), parts.view(), out)
}

/// Combines the parts `[outputs, parts]` of each output.
fn join(b: &WgpuBackend, name: &str, op: Op, parts: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let axis = gradus_backend::Axes::one(1);
    if let Some(layout) = Temp::contiguous_like(out)? {
        return run(b, name, op, parts, axis, &mut out.with(&layout));
    }
    let mut narrow = Temp::new(b, out.dtype, Shape::new(&[out.layout.numel(), 1])?)?;
    run(b, name, op, parts, axis, &mut narrow.view_mut())?;
    narrow.layout = Layout::contiguous(*out.layout.shape());
    crate::map::copy_strided(b, narrow.view(), out)
}

/// Reduces operands that are too large to bind half by half, and combines the halves if they belong to the same
/// results.
fn in_pieces(
    b: &WgpuBackend,
    name: &str,
    op: Op,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let rank = x.layout.rank();
    let wide = if b.fits(out.layout, out.dtype) { x.layout } else { out.layout };
    let farthest = cut(wide, 0..rank).filter(|&(a, _)| axes.contains(a));
    if let (Op::Fold(_), Some((axis, half))) = (op, farthest) {
        let mut both = Temp::new(b, accumulator(op, x.dtype), Shape::new(&[out.layout.numel(), 2])?)?;
        for (i, (start, len)) in [(0, half), (half, x.layout.dims()[axis] - half)].into_iter().enumerate() {
            let (from, to) = (x.layout.narrow(axis, start, len)?, beside(out.layout, 2, i)?);
            run(b, name, op, x.with(&from), axes, &mut both.view_mut().with(&to))?;
        }
        return join(b, name, op, both.view(), out);
    }
    let Some((axis, half)) = cut(wide, (0..rank).filter(|&a| !axes.contains(a))) else {
        if let (Op::Arg(op), Some(_)) = (op, cut(x.layout, axes.iter())) {
            return arg_by_halves(b, name, op, x, axes, out);
        }
        let m = format!("{} elements of one result are more than a kernel of {} reaches", x.layout.numel(), b.label());
        return Err(Error::new(ErrorKind::Unsupported, name, m).help("split the tensor along the axis"));
    };
    for (start, len) in [(0, half), (half, x.layout.dims()[axis] - half)] {
        let (from, to) = (x.layout.narrow(axis, start, len)?, out.layout.narrow(axis, start, len)?);
        run(b, name, op, x.with(&from), axes, &mut out.with(&to))?;
    }
    Ok(())
}

/// Finds the position of the extreme element in each half of the axis, and selects the one whose value wins.
fn arg_by_halves(
    b: &WgpuBackend,
    name: &str,
    op: ArgReduceOp,
    x: View<'_>,
    axes: gradus_backend::Axes,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let axis = axes.iter().next().unwrap_or_default();
    let (n, shape) = (x.layout.dims()[axis], *out.layout.shape());
    let half = n / 2;
    let of_half = |start, len| -> Result<(Temp, Temp)> {
        let part = x.layout.narrow(axis, start, len)?;
        let (mut at, mut value) = (Temp::new(b, DType::I64, shape)?, Temp::new(b, x.dtype, shape)?);
        run(b, name, Op::Arg(op), x.with(&part), axes, &mut at.view_mut())?;
        crate::index::take(b, name.into(), (x.with(&part), 0), axis, at.view(), &mut value.view_mut())?;
        Ok((at, value))
    };
    let (first, second) = (of_half(0, half)?, of_half(half, n - half)?);
    let kernel = Kernel::build(name, &[DType::I64, DType::I64, x.dtype, x.dtype], |v| {
        let (p, q) = (v[2], v[3]);
        let wins = if op == ArgReduceOp::Max { q.gt(p) } else { q.lt(p) };
        // A NaN wins. Of several NaNs, the first wins.
        let wins = if x.dtype.is_float() { wins.or(q.isnan()).and(p.isnan().not()) } else { wins };
        vec![wins.select(v[1] + v[1].constant(half as i64), v[0])]
    })?;
    let args = [&first.0, &second.0, &first.1, &second.1].map(|t| MapArg::View(t.view()));
    let layout = out.layout;
    crate::map::map(b, &kernel, &args, &mut [out.with(layout)])
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
    let lanes = lanes(&kept, n);
    // An output's elements are neighbours in memory, aligned to four.
    let quads = matches!(op, Op::Fold(_))
        && (lanes > 1 && x.dtype.size() <= 4 && reduced.steps[0] == [1] && n.is_multiple_of(4))
        && from.layout.offset().is_multiple_of(4)
        && kept.steps[0].iter().all(|s| s % 4 == 0);
    let part = if quads { n.div_ceil(parts).next_multiple_of(4) } else { n.div_ceil(parts) };
    let plan = Plan { op, x: x.dtype, out: out.dtype, kept: kept.rank(), reduced: reduced.rank(), lanes, quads };
    let mut params = vec![n_out, n, parts, part, from.layout.offset(), to.layout.offset()];
    params.extend(&kept.dims);
    let steps = |s: &Vec<isize>| s.iter().map(|&s| s as usize).collect::<Vec<_>>();
    kept.steps.iter().for_each(|s| params.extend(steps(s)));
    params.extend(&reduced.dims);
    params.extend(steps(&reduced.steps[0]));
    let params: Vec<u32> = params.into_iter().map(|p| p as u32).collect();
    let shared = u64::from(GROUP / lanes);
    b.queue().launch(&Launch {
        call: name.into(),
        key: key(("reduce", &plan)),
        source: &|| plan.source(),
        binds: &[from.bind, to.bind],
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

/// The value that a reduction starts from, as a constant of a compute type.
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
        ReduceOp::Min => Scalar::Int((u64::MAX >> (64 - bits)) as i64),
    };
    wgsl::constant(scalar, dtype)
}

/// The expression that combines two values of a compute type.
pub(crate) fn joined(op: ReduceOp, dtype: DType, a: &str, b: &str) -> String {
    let op = match op {
        ReduceOp::Sum => ScalarOp::Add,
        ReduceOp::Prod => ScalarOp::Mul,
        ReduceOp::Any => ScalarOp::Or,
        ReduceOp::All => ScalarOp::And,
        ReduceOp::Max => ScalarOp::Max,
        ReduceOp::Min => ScalarOp::Min,
    };
    binary(op, dtype, a, b)
}

impl Plan {
    fn source(&self) -> String {
        let (kept, reduced, lanes) = (self.kept, self.reduced, self.lanes);
        let x_steps = FIXED + kept;
        let out_steps = x_steps + kept;
        let r_dims = out_steps + kept;
        let r_steps = r_dims + reduced;
        let mut text = Text::new(r_steps + reduced);
        if self.quads {
            text.quads("x", self.x, false)
        } else {
            text.input("x", self.x)
        }
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
                let wins = binary(if op == ArgReduceOp::Max { ScalarOp::Gt } else { ScalarOp::Lt }, acc, "a.v", "b.v");
                let same = binary(ScalarOp::Eq, acc, "a.v", "b.v");
                let nan = |v: &str| if acc.is_float() { format!("is_nan_{t}({v})") } else { "false".to_owned() };
                text.declare(format_args!(
                    "fn join(a: Acc, b: Acc) -> Acc {{\n  if (a.i == 0xffffffffu) {{ return b; }}\n  if (b.i == \
                     0xffffffffu) {{ return a; }}\n  let p = {}; let q = {};\n  var first = a.i < b.i;\n  if (p != q) {{ \
                     first = p; }} else if (!p && !({same})) {{ first = {wins}; }}\n  if (first) {{ return a; \
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
        text.line(format_args!("let o = task % {}; let part = task / {};", param(0), param(0)));
        text.line(format_args!("let live = part < {};", param(2)));
        wgsl::coordinates(&mut text, "c", "o", kept, FIXED);
        text.line(format_args!("let base = {};", wgsl::position("c", kept, 4, x_steps)));
        text.line("var acc = none();");
        text.line(format_args!("let first = part * {}; let end = min({}, first + {});", param(3), param(1), param(3)));
        text.line("if (live) {");
        // Each block is combined on its own, because rounding errors grow with the length of a chain of additions.
        let each = if self.quads { 4 } else { 1 };
        // At most four.
        let blocks: String = (0..each).map(|k| format!("var block{k} = none(); ")).collect();
        text.line(format_args!("for (var at = first / {each}u + lane; at < end / {each}u;) {{ {blocks}"));
        text.line(format_args!("let stop = min(end / {each}u, at + {}u);", lanes * BLOCK));
        text.line(format_args!("for (var j = at; j < stop; j = j + {lanes}u) {{"));
        if self.quads {
            text.line("let four = load4_x(base / 4u + j);");
            (0..4).for_each(|k| text.line(format_args!("block{k} = join(block{k}, lift(four[{k}], j));")));
        } else {
            wgsl::coordinates(&mut text, "r", "j", reduced, r_dims);
            // At most 8 axes.
            let terms: String = (0..reduced).map(|a| format!(" + r{a} * {}", param(r_steps + a))).collect();
            text.line(format_args!("block0 = join(block0, lift(load_x(base{terms}), j));"));
        }
        let block = if self.quads { "join(join(block0, block1), join(block2, block3))" } else { "block0" };
        text.line(format_args!("}} acc = join(acc, {block}); at = at + {}u; }} }}", lanes * BLOCK));
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
            Op::Fold(_) => "acc.v".to_owned(),
            Op::Arg(_) => cast("acc.i", DType::U32, DType::I64),
        };
        text.line(format_args!("store_y({at} + part, {value});"));
        text.finish(GROUP)
    }
}
