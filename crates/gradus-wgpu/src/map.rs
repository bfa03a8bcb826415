//! `map`: translates a kernel of the elementwise IR into WGSL. An invocation computes one element, or four neighbouring
//! elements where these are adjacent in all operands.

use gradus_backend::kernel::integer_failure;
use gradus_backend::{
    Buffer, DType, Error, ErrorKind, Kernel, Layout, MapArg, Result, Scalar, ScalarOp, Shape, View, ViewMut,
};

use crate::WgpuBackend;
use crate::operand::{Bound, cut, in_fours};
use crate::queue::{Bind, Launch};
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, param, ty};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;
use gradus_backend::late::Access;
use gradus_backend::late::Fault;

/// Where an argument comes from, as far as the kernel's text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum From {
    /// A view of the buffer at this binding. Views of the same buffer and dtype share a binding.
    View(usize),
    Output(usize),
    Scalar,
}

/// The largest number of instructions in a kernel whose text is repeated for four elements. Longer texts take longer to
/// compile, and the cost of an invocation matters less beside the work of their kernels.
const SHORT: usize = 24;
/// The smallest number of elements that are computed in groups of four. For fewer, another pipeline is not worth
/// compiling.
pub(crate) const FEWEST: usize = 1024;
/// From this number of elements on, an invocation computes two groups of four. There are still enough invocations
/// for a large device, and each computes more for the parameters and positions that it reads.
pub(crate) const MANY: usize = 1 << 20;

/// Everything that the text of a map depends on.
#[derive(Debug, Hash)]
struct Plan<'k> {
    kernel: &'k Kernel,
    from: Vec<From>,
    /// The dtypes of the bindings for inputs.
    bound: Vec<DType>,
    rank: usize,
    /// How often an invocation computes four elements, which are adjacent in every operand; 0 if it computes one element.
    fours: u32,
}

/// See [`Backend::map`](gradus_backend::Backend::map).
pub(crate) fn map(b: &WgpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    let op = kernel.name();
    if args.len() != kernel.args().len() || outs.len() != kernel.outputs().len() {
        let (a, n) = (kernel.args().len(), kernel.outputs().len());
        let m = format!("the kernel has {a} arguments and {n} outputs, not {} and {}", args.len(), outs.len());
        return Err(Error::argument(op, m));
    }
    let shape = *outs[0].layout.shape();
    for (out, &(_, dtype)) in outs.iter().zip(kernel.outputs()) {
        b.expect(op, "an output", out.as_view(), dtype, &shape)?;
    }
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        match arg {
            MapArg::View(v) => b.expect(op, "an argument", *v, dtype, &shape)?,
            MapArg::Output(i) => {
                let out = outs.get(*i).ok_or_else(|| Error::argument(op, format!("there is no output {i}")))?;
                b.expect(op, "an output that is read", out.as_view(), dtype, &shape)?;
            }
            MapArg::Scalar(s) => s.check(dtype).map_err(|e| Error::argument(op, e.message()))?,
        }
    }
    for inst in kernel.insts() {
        b.check_dtype(op, inst.dtype)?;
    }
    if shape.numel() == 0 {
        return Ok(());
    }
    if let Some((axis, half)) = too_large(b, args, outs) {
        for (start, len) in [(0, half), (half, shape[axis] - half)] {
            let cut = |l: &Layout| l.narrow(axis, start, len);
            let layouts = args.iter().map(|a| if let MapArg::View(v) = a { cut(v.layout).map(Some) } else { Ok(None) });
            let layouts = layouts.collect::<Result<Vec<_>>>()?;
            let args: Vec<_> = args
                .iter()
                .zip(&layouts)
                .map(|(a, l)| match (a, l) {
                    (MapArg::View(v), Some(l)) => MapArg::View(v.with(l)),
                    _ => *a,
                })
                .collect();
            let layouts = outs.iter().map(|o| cut(o.layout)).collect::<Result<Vec<_>>>()?;
            let mut outs: Vec<_> = outs.iter_mut().zip(&layouts).map(|(o, l)| o.with(l)).collect();
            map(b, kernel, &args, &mut outs)?;
        }
        return Ok(());
    }
    run(b, kernel, args, outs)
}

/// The axis to split, and the size of its first half, if an operand is too large to bind.
fn too_large(b: &WgpuBackend, args: &[MapArg<'_>], outs: &[ViewMut<'_>]) -> Option<(usize, usize)> {
    let views = args.iter().filter_map(|a| if let MapArg::View(v) = a { Some((v.layout, v.dtype)) } else { None });
    let mut all = views.chain(outs.iter().map(|o| (o.layout, o.dtype)));
    let (layout, _) = all.find(|&(l, d)| !b.fits(l, d))?;
    cut(layout, 0..layout.rank())
}

fn run(b: &WgpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    let op = kernel.name();
    let outputs = outs.iter().map(|o| b.output(op, "an output", o)).collect::<Result<Vec<_>>>()?;
    let mut inputs: Vec<Bound<'_>> = Vec::new();
    let mut bound: Vec<(Bind<'_>, DType)> = Vec::new();
    let mut from = Vec::with_capacity(args.len());
    let mut scalars = Vec::new();
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        from.push(match arg {
            MapArg::View(v) => {
                let operand = b.input(op, "an argument", *v)?;
                let same = |&(bind, d): &(Bind<'_>, DType)| bind.same(&operand.bind) && d == dtype;
                let at = bound.iter().position(same).unwrap_or_else(|| {
                    bound.push((operand.bind, dtype));
                    bound.len() - 1
                });
                inputs.push(operand);
                From::View(at)
            }
            MapArg::Output(i) => From::Output(*i),
            MapArg::Scalar(s) => {
                scalars.push(scalar_words(*s, dtype));
                From::Scalar
            }
        });
    }
    if bound.len() + outputs.len() + 1 > b.most_bindings() {
        return run_packed(b, kernel, args, outs);
    }
    let layouts: Vec<&Layout> = inputs.iter().chain(&outputs).map(|o| &o.layout).collect();
    let axes = Axes::merged(&layouts, 0..layouts[0].rank());
    let n = axes.numel();
    let quads = kernel.insts().len() <= SHORT
        && n >= FEWEST
        && axes.dims.last().is_some_and(|size| size.is_multiple_of(4))
        && layouts.iter().zip(&axes.steps).all(|(layout, steps)| in_fours(layout, steps))
        && args.iter().zip(kernel.args()).all(|(a, d)| matches!(a, MapArg::Scalar(_)) || d.size() <= 4)
        && outs.iter().all(|out| out.dtype.size() <= 4);
    let fours = if quads && n >= MANY && n.is_multiple_of(8) { 2 } else { u32::from(quads) };
    let plan = Plan { kernel, from, bound: bound.iter().map(|&(_, d)| d).collect(), rank: axes.rank(), fours };

    // The last axis, the positions and the other steps count groups of four elements if an invocation computes those.
    let unit = if quads { 4 } else { 1 };
    let mut params = vec![n as u32];
    params.extend(axes.dims.iter().map(|&d| d as u32));
    params[axes.rank()] /= unit as u32;
    for (layout, steps) in layouts.iter().zip(&axes.steps) {
        params.push(layout.offset() as u32 / unit as u32);
        params.extend(steps.iter().map(|&s| (s / unit) as u32));
    }
    scalars.iter().for_each(|s| params.extend(s));
    let held = plan.failure().map(|message| b.queue().hold(op, || Fault::arithmetic(op, message))).transpose()?;
    params.extend(held.as_ref().map(|h| h.slot));

    let whole = |out: &ViewMut<'_>| out.layout.numel() * out.dtype.size() == out.buffer.bytes();
    let replaces = |i: usize| whole(&outs[i]) && !plan.from.contains(&From::Output(i));
    let access = |i: usize| if replaces(i) { Access::Replace } else { Access::Write };
    let written = outputs.iter().enumerate().map(|(i, o)| Bind { access: access(i), ..o.bind });
    let binds: Vec<Bind<'_>> = bound.iter().map(|&(bind, _)| bind).chain(written).collect();
    b.queue().launch(&Launch {
        call: held.as_ref().map_or(op.into(), |h| h.filled_by(op)),
        key: key(("map", &plan)),
        source: &|| plan.source(),
        binds: &binds,
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP) * u64::from(4 * fours).max(1)),
    })
}

/// Runs a kernel that has more buffers than can be bound: copies the arguments of one dtype into a single buffer first.
fn run_packed(b: &WgpuBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    let op = kernel.name();
    let buffers = |dtype: DType| {
        let mut found: Vec<*const Buffer> = Vec::new();
        for arg in args {
            if let MapArg::View(v) = arg
                && v.dtype == dtype
                && !found.contains(&std::ptr::from_ref(v.buffer))
            {
                found.push(v.buffer);
            }
        }
        found.len()
    };
    let dtype = DType::ALL.into_iter().max_by_key(|&d| buffers(d)).filter(|&d| buffers(d) > 1);
    let Some(dtype) = dtype else {
        let inputs: usize = DType::ALL.into_iter().map(buffers).sum();
        let (n, most) = (outs.len(), b.most_bindings() - 1);
        let m = format!(
            "{n} outputs and arguments of {inputs} dtypes are more than the {most} buffers that a kernel of {} can be given",
            b.label()
        );
        return Err(Error::new(ErrorKind::Unsupported, op, m));
    };
    let shape = *outs[0].layout.shape();
    let packed = |arg: &MapArg<'_>| matches!(arg, MapArg::View(v) if v.dtype == dtype);
    let count = args.iter().filter(|a| packed(a)).count();
    let plain = Layout::contiguous(shape);
    let mut all = Temp::new(b, dtype, Shape::new(&[count, shape.numel()])?)?;
    let at = |i: usize| {
        let n = shape.numel();
        Layout::from_parts(shape, plain.strides(), i * n, count * n)
    };
    let mut layouts = Vec::new();
    for arg in args.iter().filter(|a| packed(a)) {
        let layout = at(layouts.len())?;
        if let MapArg::View(v) = arg {
            copy_strided(b, *v, &mut ViewMut { buffer: &mut all.buffer, dtype, layout: &layout })?;
        }
        layouts.push(layout);
    }
    let mut next = layouts.iter();
    let args: Vec<MapArg<'_>> = args
        .iter()
        .map(|arg| match next.as_slice().first().filter(|_| packed(arg)) {
            Some(layout) => {
                next.next();
                MapArg::View(View { buffer: &all.buffer, dtype, layout })
            }
            None => *arg,
        })
        .collect();
    run(b, kernel, &args, outs)
}

/// A scalar as words of the parameters: one word, or two for 8-byte dtypes.
pub(crate) fn scalar_words(s: Scalar, dtype: DType) -> Vec<u32> {
    let bits = match dtype {
        DType::F64 => s.to_f64().to_bits(),
        DType::F32 => u64::from((s.to_f64() as f32).to_bits()),
        DType::F16 => u64::from(gradus_backend::f16_from_f64(s.to_f64()).to_f32().to_bits()),
        DType::BF16 => u64::from(gradus_backend::bf16_from_f64(s.to_f64()).to_f32().to_bits()),
        // Only a float can hold a scalar above `i64::MAX`. It is known to fit u64.
        DType::U64 => match s {
            Scalar::Float(v) => v as u64,
            s => s.to_i64() as u64,
        },
        _ => s.to_i64() as u64,
    };
    if dtype.size() == 8 { vec![bits as u32, (bits >> 32) as u32] } else { vec![bits as u32] }
}

/// A WGSL expression for the scalar parameter at `at`.
pub(crate) fn scalar_param(at: usize, dtype: DType) -> String {
    let (low, high) = (param(at), param(at + 1));
    match dtype {
        DType::F64 => format!("bitcast<f64>((u64({high}) << 32u) | u64({low}))"),
        DType::I64 | DType::U64 => format!("vec2<u32>({low}, {high})"),
        DType::Bool => format!("({low} != 0u)"),
        d => format!("bitcast<{}>({low})", ty(d)),
    }
}

impl Plan<'_> {
    /// The error message if an integer instruction of the kernel may have no result; `None` if there is no such
    /// instruction.
    fn failure(&self) -> Option<&'static str> {
        use ScalarOp::{Div, FloorDiv, Fmod, Pow, Remainder};
        let can = |op: ScalarOp, d: DType| match op {
            Div | FloorDiv | Fmod | Remainder => d.is_int(),
            Pow => d.is_int() && d.is_signed(),
            _ => false,
        };
        let found = self.kernel.insts().iter().find(|i| can(i.op, i.dtype));
        found.map(|i| integer_failure(i.op))
    }

    fn source(&self) -> String {
        let (args, outputs) = (self.kernel.args(), self.kernel.outputs());
        let views: Vec<usize> = (0..args.len()).filter(|&i| matches!(self.from[i], From::View(_))).collect();
        let operands = views.len() + outputs.len();
        let of_operand = |k: usize| 1 + self.rank + k * (self.rank + 1);
        let scalars_at = of_operand(operands);
        let scalar_sizes =
            (0..args.len()).filter(|&i| self.from[i] == From::Scalar).map(|i| (i, args[i].size().div_ceil(4)));
        let mut scalar_at = vec![0; args.len()];
        let mut params = scalars_at;
        for (i, words) in scalar_sizes {
            scalar_at[i] = params;
            params += words;
        }
        let mut text = Text::new(params + 1);
        for (i, &d) in self.bound.iter().enumerate() {
            let name = format!("x{i}");
            if self.fours > 0 { text.quads(&name, d, false) } else { text.input(&name, d) }
        }
        for (o, &(_, d)) in outputs.iter().enumerate() {
            let name = format!("y{o}");
            if self.fours > 0 { text.quads(&name, d, true) } else { text.output(&name, d) }
        }
        if self.failure().is_some() {
            text.fault(params);
        }
        let position = |k: usize| {
            let (last, at) = (self.rank.saturating_sub(1), of_operand(k));
            if self.fours > 0 {
                format!("{} + c{last}", wgsl::position("c", last, at, at + 1))
            } else {
                wgsl::position("c", self.rank, at, at + 1)
            }
        };
        let operand = |i: usize| position(views.iter().position(|&x| x == i).unwrap_or_default());
        // Adds the code for one element. `view` and `old` return the WGSL for an element of a view, and of an output
        // that is read.
        let element = |text: &mut Text, view: &dyn Fn(usize, usize) -> String, old: &dyn Fn(usize) -> String| {
            for (v, inst) in self.kernel.insts().iter().enumerate() {
                let value = match inst.op {
                    ScalarOp::Arg(i) => match self.from[usize::from(i)] {
                        From::View(at) => view(usize::from(i), at),
                        From::Output(o) => old(o),
                        From::Scalar => scalar_param(scalar_at[usize::from(i)], args[usize::from(i)]),
                    },
                    ScalarOp::Const(c) => wgsl::constant(c, inst.dtype),
                    op => {
                        let of = |k: usize| format!("v{}", inst.operands[k]);
                        let from = self.kernel.insts()[usize::from(inst.operands[0])].dtype;
                        wgsl::instruction(op, from, inst.dtype, [of(0), of(1), of(2)])
                    }
                };
                text.line(format_args!("let v{v} = {value};"));
            }
        };
        let result = |v: u16, dtype: DType| {
            let made = self.kernel.insts()[usize::from(v)].dtype;
            let half = dtype.compute() != dtype;
            if half && made == DType::F64 { format!("f32_to_odd(v{v})") } else { format!("v{v}") }
        };
        if self.fours > 0 {
            let apart = format!("{} / {}u", param(0), 4 * self.fours);
            text.line(format_args!("if (id >= {apart}) {{ return; }}"));
            for times in 0..self.fours {
                text.line(format_args!("{{ let four = id + {times}u * ({apart});"));
                wgsl::coordinates(&mut text, "c", "four", self.rank, 1);
                for &i in &views {
                    if let From::View(at) = self.from[i] {
                        text.line(format_args!("let a{i} = load4_x{at}({});", operand(i)));
                    }
                }
                for (o, &(_, dtype)) in outputs.iter().enumerate() {
                    text.line(format_args!(
                        "let at{o} = {}; var r{o}: array<{}, 4>;",
                        position(views.len() + o),
                        ty(dtype)
                    ));
                    if self.from.contains(&From::Output(o)) {
                        text.line(format_args!("let old{o} = load4_y{o}(at{o});"));
                    }
                }
                for k in 0..4 {
                    text.line("{");
                    element(&mut text, &|i, _| format!("a{i}[{k}]"), &|o| format!("old{o}[{k}]"));
                    for (o, &(v, dtype)) in outputs.iter().enumerate() {
                        text.line(format_args!("r{o}[{k}] = {};", result(v, dtype)));
                    }
                    text.line("}");
                }
                (0..outputs.len()).for_each(|o| text.line(format_args!("store4_y{o}(at{o}, r{o});")));
                text.line("}");
            }
            return text.finish(GROUP);
        }
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", self.rank, 1);
        for o in 0..outputs.len() {
            text.line(format_args!("let at{o} = {};", position(views.len() + o)));
        }
        element(&mut text, &|i, at| format!("load_x{at}({})", operand(i)), &|o| format!("load_y{o}(at{o})"));
        for (o, &(v, dtype)) in outputs.iter().enumerate() {
            text.line(format_args!("store_y{o}(at{o}, {});", result(v, dtype)));
        }
        text.finish(GROUP)
    }
}

/// Copies elements bit for bit. Both views must have the same dtype and shape.
pub(crate) fn copy_strided(b: &WgpuBackend, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    b.expect("copy_strided", "x", x, out.dtype, out.layout.dims())?;
    b.check_dtype("copy_strided", x.dtype)?;
    let bits = bits_of(x.dtype);
    let (x, layout) = (View { dtype: bits, ..x }, out.layout);
    let mut out = ViewMut { buffer: out.buffer, dtype: bits, layout };
    if crate::transpose::copy(b, x, &mut out)? {
        return Ok(());
    }
    map(b, b.identity("copy_strided", bits)?, &[MapArg::View(x)], &mut [out])
}

/// See [`Backend::fill`](gradus_backend::Backend::fill).
pub(crate) fn fill(b: &WgpuBackend, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
    value.check(out.dtype).map_err(|e| Error::argument("fill", e.message()))?;
    let layout = out.layout;
    map(b, b.identity("fill", out.dtype)?, &[MapArg::Scalar(value)], &mut [out.with(layout)])
}

/// The unsigned dtype of the same size, in which elements are copied as bits.
pub(crate) fn bits_of(dtype: DType) -> DType {
    match dtype.size() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}
