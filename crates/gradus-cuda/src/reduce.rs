//! Reductions. Each output is computed by `lanes` threads of a block. Each of these combines every `lanes`-th element,
//! and their results are combined in a fixed tree. A long reduction of few outputs is split into parts, whose results
//! are combined by a second launch. Where neighbouring outputs are reduced from neighbouring elements, a thread computes as
//! many of them as it can read 16 bytes of at a time.

use gradus_backend::key::key;
use gradus_backend::{
    ArgReduceOp, Axes, DType, Error, Layout, MergedAxes, ReduceOp, Result, Scalar, ScalarOp, Shape, View, ViewMut,
};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, binary, cast, compute, element};
use crate::map::stored;
use crate::queue::Launch;
use crate::temp::Temp;

/// The operation on the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Fold(ReduceOp),
    Arg(ArgReduceOp),
}

/// How the threads of a block share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lanes {
    /// The number of threads for each output.
    count: u32,
    /// Whether neighbouring threads read neighbouring elements of one output, not elements of neighbouring outputs.
    rows: bool,
    /// The number of neighbouring outputs of a thread.
    wide: usize,
}

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    op: Op,
    x: DType,
    out: DType,
    kept: usize,
    reduced: usize,
    lanes: Lanes,
    small: bool,
}

/// The longest chain of elements that a thread combines, and the number of elements in each block of such a chain.
const CHAIN: usize = 1024;
const BLOCK: u32 = 32;
/// The number of blocks that keep a device busy.
const BUSY: usize = 256;
/// The same if threads compute several outputs each, and the fewest elements of a part that such a thread then combines.
const BUSY_WIDE: usize = 512;
const FEWEST_WIDE: usize = 16;
/// The bytes of elements that a thread reads at a time if it computes several outputs.
const PACK: usize = 16;

/// See [`Backend::reduce`](gradus_backend::Backend::reduce).
pub(crate) fn reduce(b: &CudaBackend, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
    gradus_backend::check::reduce(op, x, axes, out)?;
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
            let m = format!("{} has no elements along the axes {axes:?}", x.layout.shape());
            return Err(Error::argument(op.name(), m));
        }
        return crate::map::fill(b, out, Scalar::Int(i64::from(matches!(op, ReduceOp::Prod | ReduceOp::All))));
    }
    run(b, op.name(), op, x, axes, out)
}

/// See [`Backend::arg_reduce`](gradus_backend::Backend::arg_reduce).
pub(crate) fn arg_reduce(
    b: &CudaBackend,
    op: ArgReduceOp,
    x: View<'_>,
    axis: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    gradus_backend::check::arg_reduce(op, x, axis, out)?;
    let name = if op == ArgReduceOp::Max { "argmax" } else { "argmin" };
    let x = if x.dtype == DType::Bool { View { dtype: DType::U8, ..x } } else { x };
    if out.layout.numel() == 0 {
        return Ok(());
    }
    launch(b, name, Op::Arg(op), x, Axes::one(axis), out, 1)
}

fn run(b: &CudaBackend, name: &str, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
    let (kept, reduced) = split(x.layout, out.layout, axes);
    let (n_out, n) = (kept.numel(), reduced.numel());
    let lanes = lanes(b, name, x, &kept, &reduced)?;
    let blocks = (n_out / lanes.wide).div_ceil((THREADS / lanes.count) as usize);
    // Use enough parts that no thread combines more than `CHAIN` elements, and more if so few outputs would leave the
    // device idle.
    let long = n.div_ceil(lanes.count as usize * CHAIN);
    let idle = match lanes.wide {
        1 => (n >> 12).min(BUSY / blocks),
        _ => (n / (lanes.count as usize * FEWEST_WIDE)).min(BUSY_WIDE / blocks),
    };
    let parts = long.max(idle).max(1);
    if parts == 1 {
        return launch(b, name, Op::Fold(op), x, axes, out, 1);
    }
    let mut partial = Temp::new(b, accumulator(Op::Fold(op), x.dtype), Shape::new(&[n_out, parts])?)?;
    // The results of the parts of an output lie side by side.
    let plain = Layout::contiguous(*out.layout.shape());
    let strides: Vec<isize> = plain.strides().iter().map(|s| s * parts as isize).collect();
    let beside = Layout::from_parts(*out.layout.shape(), &strides, 0, n_out * parts)?;
    launch(b, name, Op::Fold(op), x, axes, &partial.view_mut().with(&beside), parts)?;
    let rank = out.layout.rank();
    if rank < gradus_backend::MAX_RANK {
        let column = out.layout.unsqueeze(rank)?;
        let dims = [out.layout.dims(), &[parts]].concat();
        let rows = Layout::contiguous(Shape::new(&dims)?);
        return run(b, name, op, partial.view().with(&rows), Axes::one(rank), &mut out.with(&column));
    }
    let shape = Shape::new(&[n_out, 1])?;
    let mut column = Temp::new(b, out.dtype, shape)?;
    run(b, name, op, partial.view(), Axes::one(1), &mut column.view_mut())?;
    column.layout = plain;
    crate::map::copy_strided(b, column.view(), out)
}

/// The axes that both operands have, and those along which `x` is reduced.
fn split(x: &Layout, out: &Layout, axes: Axes) -> (MergedAxes, MergedAxes) {
    let rank = x.rank();
    let kept = MergedAxes::merged(&[x, out], (0..rank).filter(|&a| !axes.contains(a)));
    let reduced = MergedAxes::merged(&[x], (0..rank).filter(|&a| axes.contains(a)));
    (kept, reduced)
}

fn lanes(b: &CudaBackend, name: &str, x: View<'_>, kept: &MergedAxes, reduced: &MergedAxes) -> Result<Lanes> {
    let (n_out, n) = (kept.numel(), reduced.numel());
    let step = |axes: &MergedAxes| axes.steps[0].last().map_or(isize::MAX, |s| s.abs());
    if n_out >= 32 && step(kept) < step(reduced) {
        let wide = PACK / x.dtype.size();
        let whole = |steps: &[isize]| steps.iter().all(|s| s % wide as isize == 0);
        let last = kept.rank() - 1; // there are outputs, so there is an axis
        let fits = n >= 8 * FEWEST_WIDE
            && kept.dims[last].is_multiple_of(wide)
            && kept.steps[0][last] == 1
            && whole(&kept.steps[0][..last])
            && whole(&reduced.steps[0])
            && b.input(name, "x", x)?.ptr.is_multiple_of(PACK as u64);
        let count = if n <= 32 { 1 } else { 8 };
        return Ok(Lanes { count, rows: false, wide: if fits { wide } else { 1 } });
    }
    let count = match n {
        0..=8 => 1,
        9..=1024 if n_out >= 64 => 32,
        _ => THREADS,
    };
    Ok(Lanes { count, rows: true, wide: 1 })
}

fn launch(b: &CudaBackend, name: &str, op: Op, x: View<'_>, axes: Axes, out: &ViewMut<'_>, parts: usize) -> Result<()> {
    let (from, to) = (b.input(name, "x", x)?, b.output(name, "out", out)?);
    let (mut kept, reduced) = split(x.layout, out.layout, axes);
    let n = reduced.numel();
    let lanes = match op {
        Op::Fold(_) => lanes(b, name, x, &kept, &reduced)?,
        Op::Arg(_) => Lanes { wide: 1, ..lanes(b, name, x, &kept, &reduced)? },
    };
    let mut beside = 0;
    if let (Some(last), true) = (kept.rank().checked_sub(1), lanes.wide > 1) {
        beside = kept.steps[1][last];
        kept.dims[last] /= lanes.wide;
        kept.steps.iter_mut().for_each(|steps| steps[last] *= lanes.wide as isize);
    }
    let n_out = kept.numel();
    let small = code::is_small(&kept) && code::is_small(&reduced) && x.layout.span().len() <= i32::MAX as usize;
    let plan = Plan { op, x: x.dtype, out: out.dtype, kept: kept.rank(), reduced: reduced.rank(), lanes, small };
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(to.ptr).u64(n_out as u64).u64(n as u64).u64(parts as u64);
    arguments.u64(n.div_ceil(parts) as u64).i64(beside as i64);
    if kept.rank() > 0 {
        arguments.longs(&code::axes_longs(&kept));
    }
    if reduced.rank() > 0 {
        arguments.longs(&code::axes_longs(&reduced));
    }
    let threads = n_out as u64 * parts as u64 * u64::from(lanes.count);
    let entry = code::name_in_c(name);
    b.queue().launch(&Launch {
        call: name.into(),
        key: key(("reduce", &plan)),
        entry: &entry,
        source: &|| plan.source(&entry),
        uses: &[from.used, to.used],
        arguments: &arguments,
        grid: crate::map::blocks(name, threads)?,
        block: [THREADS, 1, 1],
        shared: 0,
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
    code::constant(scalar, dtype)
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
    /// Declares the accumulator `Acc`, with `none()`, `lift(element, number)` and `join(a, b)`.
    fn declare(&self, text: &mut Text, ty: &str) {
        let acc = accumulator(self.op, self.x);
        let t = compute(acc);
        let x = compute(self.x);
        match self.op {
            Op::Fold(op) => {
                text.declare(format_args!("struct Acc {{ {t} v; }};"));
                text.declare(format_args!("Acc none() {{ return Acc{{{}}}; }}", identity(op, acc)));
                text.declare(format_args!(
                    "Acc join(Acc a, Acc b) {{ return Acc{{{}}}; }}",
                    joined(op, acc, "a.v", "b.v")
                ));
                let value = cast("x", self.x, acc);
                text.declare(format_args!("Acc lift({x} x, {ty}) {{ return Acc{{{value}}}; }}"));
            }
            Op::Arg(op) => {
                text.declare(format_args!("struct Acc {{ {t} v; i64 i; }};"));
                text.declare(format_args!("Acc none() {{ return Acc{{({t})0, -1}}; }}"));
                text.declare(format_args!("Acc lift({x} x, {ty} j) {{ return Acc{{x, (i64)j}}; }}"));
                let sign = if op == ArgReduceOp::Max { ">" } else { "<" };
                // A NaN wins. Of equal elements, and of several NaNs, the first wins.
                text.declare(format_args!(
                    "Acc join(Acc a, Acc b) {{\n  if (a.i < 0) return b;\n  if (b.i < 0) return a;\n  const bool p = a.v != \
                     a.v, q = b.v != b.v;\n  bool first = a.i < b.i;\n  if (p != q) first = p;\n  else if (!p && a.v != b.v) \
                     first = a.v {sign} b.v;\n  return first ? a : b;\n}}"
                ));
            }
        }
    }

    fn source(&self, entry: &str) -> String {
        let Lanes { count, rows, wide } = self.lanes;
        let shared = THREADS / count;
        let ty = if self.small { "u32" } else { "u64" };
        let mut text = Text::new();
        self.declare(&mut text, ty);
        text.parameter(format_args!("const {} *__restrict__ x", element(self.x)));
        text.parameter(format_args!("{} *__restrict__ y", element(self.out)));
        ["outputs", "elements", "parts", "part_size"]
            .iter()
            .for_each(|p| text.parameter(format_args!("const u64 {p}")));
        text.parameter("const i64 beside");
        if self.kept > 0 {
            text.longs("kept", self.kept * 3);
        }
        if self.reduced > 0 {
            text.longs("along", self.reduced * 2);
        }
        let (lane, slot) = if rows {
            (format!("threadIdx.x % {count}"), format!("threadIdx.x / {count}"))
        } else {
            (format!("threadIdx.x / {shared}"), format!("threadIdx.x % {shared}"))
        };
        text.line(format_args!("const u32 lane = {lane}, slot = {slot};"));
        text.line(format_args!("const u64 task = (u64)blockIdx.x * {shared} + slot;"));
        text.line("const u64 part = task / outputs;");
        text.line("const bool live = part < parts;");
        text.line(format_args!("const {ty} o = task - part * outputs;"));
        code::coordinates(&mut text, ty, "c", "o", self.kept, "kept");
        text.line(format_args!("x += {};", code::position(self.small, "c", self.kept, "kept", 0)));
        // The accumulators of the outputs of this thread.
        let each = format!("#pragma unroll\nfor (int k = 0; k < {wide}; ++k)");
        text.line(format_args!("Acc acc[{wide}];\n{each} acc[k] = none();"));
        text.line("if (live) {");
        text.line(
            "const u64 first = part * part_size, end = first + part_size < elements ? first + part_size : elements;",
        );
        // Each block is combined on its own, because rounding errors grow with the length of a chain of additions.
        text.line("for (u64 at = first + lane; at < end;) {");
        text.line(format_args!("Acc block[{wide}];\n{each} block[k] = none();"));
        text.line(format_args!("const u64 stop = at + {0} < end ? at + {0} : end;", count * BLOCK));
        text.line(format_args!("for (u64 i = at; i < stop; i += {count}) {{"));
        text.line(format_args!("const {ty} j = i;"));
        code::coordinates(&mut text, ty, "r", "j", self.reduced, "along");
        let at = code::position(self.small, "r", self.reduced, "along", 0);
        let pack = format!("Pack<{}, {wide}>", element(self.x));
        text.line(format_args!("const {pack} pack = *(const {pack} *)(x + ({at}));"));
        text.line(format_args!("{each} block[k] = join(block[k], lift(wide(pack.get(k)), j));"));
        text.line(format_args!("}}\n{each} acc[k] = join(acc[k], block[k]);\nat += {}; }} }}", count * BLOCK));
        if count > 1 {
            text.line(format_args!("__shared__ Acc all[{wide}][{THREADS}];"));
            text.line(format_args!("const u32 me = lane * {shared} + slot;"));
            text.line(format_args!("{each} all[k][me] = acc[k];\n__syncthreads();"));
            text.line(format_args!("for (u32 half = {}; half >= {shared}; half /= 2) {{", THREADS / 2));
            text.line(format_args!("if (me < half) {{\n{each} all[k][me] = join(all[k][me], all[k][me + half]);\n}}"));
            text.line("__syncthreads(); }");
            text.line(format_args!("if (lane > 0) return;\n{each} acc[k] = all[k][me];"));
        }
        text.line("if (!live) return;");
        let at = code::position(self.small, "c", self.kept, "kept", 1);
        let value = match self.op {
            Op::Fold(op) => stored("acc[k].v", accumulator(Op::Fold(op), self.x), self.out),
            Op::Arg(_) => "acc[k].i".to_owned(),
        };
        text.line(format_args!("{each} y[{at} + (i64)part + k * beside] = {value};"));
        text.finish(entry, THREADS)
    }
}
