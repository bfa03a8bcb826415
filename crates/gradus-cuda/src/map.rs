//! `map`: translates a kernel of the elementwise IR into CUDA C. A thread computes one element, or as many neighbours
//! as it can read and write 16 bytes of at a time.

pub(crate) mod each;

use gradus_backend::kernel::integer_failure;
use gradus_backend::key::key;
use gradus_backend::late::Fault;
use gradus_backend::{DType, Error, Kernel, Layout, MapArg, MergedAxes, Result, Scalar, ScalarOp, View, ViewMut};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, compute, element};
use crate::operand::Operand;
use crate::queue::{Launch, Use};

/// The smallest number of elements of which a thread computes several. For fewer, another kernel is not worth
/// compiling.
const FEWEST: usize = 1024;
/// The largest number of elements that a thread computes.
const WIDEST: usize = 8;

/// Where an argument comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum From {
    View,
    Output(usize),
    Scalar,
}

/// Everything that the text of a map depends on.
#[derive(Debug, Hash)]
struct Plan<'k> {
    kernel: &'k Kernel,
    from: Vec<From>,
    rank: usize,
    /// Whether positions fit 32 bits.
    small: bool,
    /// The number of neighbours along the last axis that a thread computes.
    width: usize,
    /// For each operand, whether it has one element for all neighbours.
    splat: Vec<bool>,
}

/// See [`Backend::map`](gradus_backend::Backend::map).
pub(crate) fn map(b: &CudaBackend, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
    gradus_backend::check::map(kernel, args, outs)?;
    if outs[0].layout.numel() == 0 {
        return Ok(());
    }
    let op = kernel.name();
    let mut from = Vec::with_capacity(args.len());
    let mut operands: Vec<Operand<'_>> = Vec::with_capacity(args.len() + outs.len());
    for arg in args {
        from.push(match arg {
            MapArg::View(v) => {
                operands.push(b.input(op, "an argument", *v)?);
                From::View
            }
            MapArg::Output(i) => From::Output(*i),
            MapArg::Scalar(_) => From::Scalar,
        });
    }
    for (i, out) in outs.iter().enumerate() {
        let read = from.contains(&From::Output(i));
        operands.push(if read { b.updated(op, "an output", out)? } else { b.output(op, "an output", out)? });
    }
    let layouts: Vec<&Layout> = operands.iter().map(|o| o.layout).collect();
    let mut axes = MergedAxes::merged(&layouts, 0..layouts[0].rank());
    let n = axes.numel();
    let width = width(&axes, &operands);
    let splat = axes.steps.iter().map(|steps| width > 1 && steps.last() == Some(&0)).collect();
    if width > 1 {
        let last = axes.rank() - 1;
        axes.dims[last] = axes.dims[last].div_ceil(width);
        axes.steps.iter_mut().for_each(|steps| steps[last] *= width as isize);
    }
    let plan = Plan { kernel, from, rank: axes.rank(), small: code::is_small(&axes), width, splat };
    let held = plan.failure().map(|message| b.queue().hold(op, || Fault::arithmetic(op, message))).transpose()?;

    let threads = axes.numel() as u64;
    let mut arguments = Arguments::new();
    operands.iter().for_each(|o| _ = arguments.ptr(o.ptr));
    arguments.u64(n as u64).u64(threads);
    if plan.rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    for (arg, &dtype) in args.iter().zip(kernel.args()) {
        if let MapArg::Scalar(s) = arg {
            scalar_argument(&mut arguments, *s, dtype);
        }
    }
    held.iter().for_each(|h| _ = arguments.fault(h.address()));
    let uses: Vec<Use<'_>> = operands.iter().map(|o| o.used).collect();
    let entry = code::name_in_c(op);
    b.queue().launch(&Launch {
        call: held.as_ref().map_or(op.into(), |h| h.call(op)),
        key: key(("map", &entry, &plan)),
        entry: &entry,
        source: &|| plan.source(&entry),
        uses: &uses,
        arguments: &arguments,
        grid: blocks(op, threads)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// The grid with a thread for each of `threads` numbers.
pub(crate) fn blocks(op: &str, threads: u64) -> Result<[u32; 3]> {
    let blocks = threads.div_ceil(u64::from(THREADS));
    match i32::try_from(blocks) {
        Ok(blocks) => Ok([blocks as u32, 1, 1]),
        Err(_) => {
            let m = format!("{threads} elements are more than one launch has threads for");
            Err(Error::new(gradus_backend::ErrorKind::Overflow, op, m))
        }
    }
}

/// The number of neighbours along the last axis that a thread can compute: they must be adjacent, or the same element,
/// in every operand, and begin at an address that is a multiple of their size.
fn width(axes: &MergedAxes, operands: &[Operand<'_>]) -> usize {
    let Some(last) = axes.rank().checked_sub(1).filter(|_| axes.numel() >= FEWEST) else { return 1 };
    let largest = operands.iter().map(|o| o.dtype.size()).max().unwrap_or(1);
    let width = (16 / largest).min(WIDEST);
    let fits = |(o, steps): (&Operand<'_>, &Vec<isize>)| match steps[last] {
        0 => true,
        1 => {
            let aligned = o.ptr.is_multiple_of((width * o.dtype.size()) as u64);
            aligned && steps[..last].iter().all(|s| s % width as isize == 0)
        }
        _ => false,
    };
    let whole = last == 0 || axes.dims[last].is_multiple_of(width);
    if whole && operands.iter().zip(&axes.steps).all(fits) { width } else { 1 }
}

/// Adds a scalar in the compute type of a dtype, after rounding it to the dtype.
pub(crate) fn scalar_argument(arguments: &mut Arguments, s: Scalar, dtype: DType) {
    match dtype {
        DType::F64 => arguments.f64(s.to_f64()),
        DType::F32 => arguments.f32(s.to_f64() as f32),
        DType::F16 => arguments.f32(gradus_backend::f16_from_f64(s.to_f64()).to_f32()),
        DType::BF16 => arguments.f32(gradus_backend::bf16_from_f64(s.to_f64()).to_f32()),
        // Only a float can hold a scalar above `i64::MAX`. It is known to fit u64.
        DType::U64 => arguments.u64(match s {
            Scalar::Float(v) => v as u64,
            s => s.to_i64() as u64,
        }),
        _ => arguments.i64(s.to_i64()),
    };
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

    /// The function `one`, which computes the outputs of one element from its arguments.
    fn one(&self) -> String {
        let kernel = self.kernel;
        let mut parameters: Vec<String> =
            kernel.args().iter().enumerate().map(|(i, &d)| format!("{} a{i}", self.argument_type(i, d))).collect();
        let outputs = kernel.outputs();
        parameters.extend(outputs.iter().enumerate().map(|(o, &(_, d))| format!("{} &r{o}", element(d))));
        parameters.push("bool &bad".to_owned());
        let (mut body, mut parts) = (String::new(), Vec::new());
        for (v, inst) in kernel.insts().iter().enumerate() {
            let value = match inst.op {
                ScalarOp::Arg(i) => match self.from[usize::from(i)] {
                    From::Scalar if inst.dtype == DType::Bool => format!("(a{i} != 0)"),
                    From::Scalar => format!("a{i}"),
                    _ => format!("wide(a{i})"),
                },
                ScalarOp::Const(c) => code::constant(c, inst.dtype),
                // Both of these of one value share most of their work.
                ScalarOp::Sigmoid | ScalarOp::SigmoidNeg if inst.dtype.compute() == DType::F32 => {
                    let x = inst.operands[0];
                    if !parts.contains(&x) {
                        parts.push(x);
                        body += &format!("  const SigmoidParts parts{x} = sigmoid_parts_f32(v{x});\n");
                    }
                    let sign = if inst.op == ScalarOp::Sigmoid { ">=" } else { "<=" };
                    format!("sigmoid_of_f32(parts{x}, v{x} {sign} 0.0f)")
                }
                op => {
                    let of = |k: usize| format!("v{}", inst.operands[k]);
                    let from = kernel.insts()[usize::from(inst.operands[0])].dtype;
                    code::instruction(op, from, inst.dtype, [of(0), of(1), of(2)])
                }
            };
            body += &format!("  const {} v{v} = {value};\n", compute(inst.dtype));
        }
        for (o, &(v, dtype)) in outputs.iter().enumerate() {
            body += &format!("  r{o} = {};\n", stored(&format!("v{v}"), kernel.insts()[usize::from(v)].dtype, dtype));
        }
        format!("void one({}) {{\n{body}}}", parameters.join(", "))
    }

    fn argument_type(&self, i: usize, dtype: DType) -> &'static str {
        match self.from[i] {
            From::Scalar if dtype == DType::Bool => "u8",
            From::Scalar => compute(dtype),
            _ => element(dtype),
        }
    }

    fn source(&self, entry: &str) -> String {
        let (args, outputs) = (self.kernel.args(), self.kernel.outputs());
        let views: Vec<usize> = (0..args.len()).filter(|&i| self.from[i] == From::View).collect();
        let mut text = Text::new();
        text.declare(self.one());
        for &i in &views {
            text.parameter(format_args!("const {} *__restrict__ x{i}", element(args[i])));
        }
        for (o, &(_, d)) in outputs.iter().enumerate() {
            text.parameter(format_args!("{} *__restrict__ y{o}", element(d)));
        }
        text.parameter("const u64 n");
        text.parameter("const u64 threads");
        if self.rank > 0 {
            text.longs("axes", self.rank * (1 + views.len() + outputs.len()));
        }
        for i in (0..args.len()).filter(|&i| self.from[i] == From::Scalar) {
            text.parameter(format_args!("const {} s{i}", self.argument_type(i, args[i])));
        }
        let fails = self.failure().is_some();
        if fails {
            text.parameter("u64 *fault");
        }
        let ty = if self.small { "u32" } else { "u64" };
        text.line(format_args!("const {ty} id = ({ty})blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line(format_args!("if (id >= ({ty})threads) return;"));
        text.line("bool bad = false;");
        code::coordinates(&mut text, ty, "c", "id", self.rank, "axes");
        for (k, name) in
            views.iter().map(|i| format!("x{i}")).chain((0..outputs.len()).map(|o| format!("y{o}"))).enumerate()
        {
            text.line(format_args!("{name} += {};", code::position(self.small, "c", self.rank, "axes", k)));
        }
        // The call of `one` for a neighbour, whose arguments and results are at places of the operands.
        let call = |element_of: &dyn Fn(&str, usize) -> String, place_of: &dyn Fn(&str, usize) -> String| {
            let mut next = 0..;
            let mut values: Vec<String> = (0..args.len())
                .map(|i| match self.from[i] {
                    From::View => element_of(&format!("x{i}"), next.next().unwrap_or_default()),
                    From::Output(o) => element_of(&format!("y{o}"), views.len() + o),
                    From::Scalar => format!("s{i}"),
                })
                .collect();
            values.extend((0..outputs.len()).map(|o| place_of(&format!("y{o}"), views.len() + o)));
            values.push("bad".to_owned());
            format!("one({});", values.join(", "))
        };
        let w = self.width;
        if w == 1 {
            let at = |name: &str, _| format!("{name}[0]");
            text.line(call(&at, &at));
        } else {
            if self.rank == 1 {
                text.line(format_args!("if (({ty})(n - (u64)id * {w}) < {w}) {{"));
                text.line(format_args!("  for ({ty} k = 0; k < ({ty})n - id * {w}; ++k) {{"));
                let at = |name: &str, k: usize| if self.splat[k] { format!("{name}[0]") } else { format!("{name}[k]") };
                text.line(format_args!("    {}", call(&at, &at)));
                text.line("  }");
                if fails {
                    text.line("  if (bad) fail(fault);");
                }
                text.line("  return;");
                text.line("}");
            }
            let pack = |d: DType| format!("Pack<{}, {w}>", element(d));
            for (k, &i) in views.iter().enumerate() {
                let (name, p) = (format!("x{i}"), pack(args[i]));
                match self.splat[k] {
                    true => text.line(format_args!("const {} p_{name} = {name}[0];", element(args[i]))),
                    false => text.line(format_args!("const {p} p_{name} = *(const {p} *){name};")),
                }
            }
            for (o, &(_, d)) in outputs.iter().enumerate() {
                let p = pack(d);
                match self.from.contains(&From::Output(o)) {
                    true => text.line(format_args!("{p} p_y{o} = *(const {p} *)y{o};")),
                    false => text.line(format_args!("{p} p_y{o};")),
                }
            }
            let of =
                |name: &str, k: usize| if self.splat[k] { format!("p_{name}") } else { format!("p_{name}.get(k)") };
            let to = |name: &str, _| format!("p_{name}.v[k]");
            text.line("#pragma unroll");
            text.line(format_args!("for (int k = 0; k < {w}; ++k) {}", call(&of, &to)));
            for (o, &(_, d)) in outputs.iter().enumerate() {
                text.line(format_args!("*({} *)y{o} = p_y{o};", pack(d)));
            }
        }
        if fails {
            text.line("if (bad) fail(fault);");
        }
        text.finish(entry, THREADS)
    }
}

/// A value of the compute type of `made` as an element of `dtype`, rounded once.
pub(crate) fn stored(value: &str, made: DType, dtype: DType) -> String {
    let half = dtype.compute() != dtype;
    let value = if half && made == DType::F64 { format!("f32_to_odd({value})") } else { value.to_owned() };
    format!("To<{}>::of({value})", element(dtype))
}

/// Copies elements bit for bit. Both views must have the same dtype and shape.
pub(crate) fn copy_strided(b: &CudaBackend, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    gradus_backend::check::copy_strided(x, out)?;
    let kernel = b.identity("copy_strided", bits_of(x.dtype))?;
    let x = View { dtype: bits_of(x.dtype), ..x };
    let layout = out.layout;
    let out = ViewMut { buffer: out.buffer, dtype: x.dtype, layout };
    map(b, kernel, &[MapArg::View(x)], &mut [out])
}

/// See [`Backend::fill`](gradus_backend::Backend::fill).
pub(crate) fn fill(b: &CudaBackend, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
    gradus_backend::check::scalar("fill", value, out.dtype)?;
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

#[cfg(test)]
mod tests {
    use gradus_backend::kernel::TypeRule;

    use super::*;
    use crate::template::check_text;

    #[test]
    fn every_instruction_is_cuda_c_for_every_dtype() {
        // One kernel for each dtype computes every instruction that takes it.
        for d in DType::ALL {
            let takes = |op: &ScalarOp| match op.rule() {
                TypeRule::Float => d.is_float(),
                TypeRule::Number | TypeRule::Test => d != DType::Bool,
                TypeRule::Signed => d.is_signed(),
                TypeRule::Logic => d == DType::Bool,
                TypeRule::Compare | TypeRule::Select => true,
                _ => false,
            };
            for ops in ScalarOp::ALL.iter().filter(|op| takes(op)).collect::<Vec<_>>().chunks(16) {
                let kernel = Kernel::build("all", &[d, d, DType::Bool], |v| {
                    let all = ops.iter().map(|&&op| match op.arity() {
                        1 => v[0].unary(op),
                        2 => v[0].binary(op, v[1]),
                        _ => v[2].select(v[0], v[1]),
                    });
                    all.chain(DType::ALL.map(|to| v[0].cast(to))).collect()
                });
                let kernel = kernel.expect("a kernel");
                let shapes: &[(usize, usize)] = if d == DType::I16 { &[(0, 1), (1, 2), (3, 2)] } else { &[(2, 1)] };
                for &(rank, width) in shapes {
                    let from = vec![From::View, From::Scalar, From::View];
                    let splat = vec![false; 2 + kernel.outputs().len()];
                    let plan = Plan { kernel: &kernel, from, rank, small: rank < 3, width, splat };
                    check_text("all", &plan.source("all"));
                }
            }
        }
    }
}
