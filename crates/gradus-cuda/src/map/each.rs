//! `map_each`: one launch of a kernel of the elementwise IR for many lists of operands, such as all parameters that an
//! optimiser updates.
//!
//! The addresses and sizes of the lists are a table among the kernel's parameters. A block finds its list in there.

use gradus_backend::key::key;
use gradus_backend::{Kernel, MapArg, MapOperands, Result, Scalar};

use super::{From, Plan, WIDEST, scalar_argument};
use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, element};
use crate::operand::Operand;
use crate::queue::{Call, Launch, Use};

/// The bytes of the table: most of the 4 KiB that parameters may take.
const TABLE: usize = 3456;
/// The largest number of scalars, for which there is room beside the table.
const SCALARS: usize = 32;
/// The largest number of lists: twice the first step of the search in the table.
const MOST: usize = 64;

/// The number of lists of so many operands that a table has room for. Each has an address for each operand, its number of
/// elements, and its first block. The number of lists follows, in 8 bytes.
fn room(operands: usize) -> usize {
    ((TABLE - 8) / (operands * 8 + 8)).min(MOST)
}

/// A list that a launch can serve.
struct Listed<'a> {
    operands: Vec<Operand<'a>>,
    elements: u32,
}

/// See [`Backend::map_each`](gradus_backend::Backend::map_each).
pub(crate) fn map_each(b: &CudaBackend, kernel: &Kernel, calls: &mut [MapOperands<'_, '_>]) -> Result<()> {
    let Some(first) = calls.first() else { return Ok(()) };
    let (from, scalars) = kinds(first.args);
    let count = kernel.outputs().len() + from.iter().filter(|from| **from == From::View).count();
    let largest = kernel.args().iter().copied().chain(kernel.outputs().iter().map(|(_, d)| *d)).map(|d| d.size()).max();
    let width = (16 / largest.unwrap_or(16)).min(WIDEST);
    // At most one for each operand of a kernel.
    let plan = Plan { kernel, from, rank: 0, small: true, width, splat: vec![false; count] };
    if calls.len() < 2 || scalars.len() > SCALARS || room(count) < 2 || plan.failure().is_some() {
        return calls.iter_mut().try_for_each(|call| super::map(b, kernel, call.args, call.outs));
    }
    // The lists that cannot be served together have other operands, so they may come first.
    let mut together = vec![];
    for call in calls {
        gradus_backend::check::map(kernel, call.args, call.outs)?;
        if kinds(call.args) == (plan.from.clone(), scalars.clone()) && is_dense(call) {
            together.push(call);
        } else {
            super::map(b, kernel, call.args, call.outs)?;
        }
    }
    let mut listed = vec![];
    for call in &together {
        if let Some(one) = listed_of(b, &plan, call)? {
            listed.push(one);
        }
    }
    listed.chunks(room(count)).try_for_each(|part| launch(b, &plan, &scalars, part))
}

/// Where the arguments come from, and the scalars among them.
fn kinds(args: &[MapArg<'_>]) -> (Vec<From>, Vec<Scalar>) {
    let mut scalars = vec![];
    let from = args.iter().map(|arg| match arg {
        MapArg::View(_) => From::View,
        MapArg::Output(i) => From::Output(*i),
        MapArg::Scalar(s) => {
            scalars.push(*s);
            From::Scalar
        }
    });
    (from.collect(), scalars)
}

/// Whether every operand is contiguous, starts at a multiple of 16 bytes, and has so few elements that 32 bits count
/// them.
fn is_dense(call: &MapOperands<'_, '_>) -> bool {
    let inputs = call.args.iter().filter_map(|arg| match arg {
        MapArg::View(v) => Some((v.layout, v.dtype)),
        _ => None,
    });
    // Buffers begin at multiples of 256.
    let mut all = inputs.chain(call.outs.iter().map(|out| (out.layout, out.dtype)));
    all.all(|(layout, dtype)| {
        layout.is_contiguous()
            && (layout.offset() * dtype.size()).is_multiple_of(16)
            && layout.numel() <= i32::MAX as usize
    })
}

/// The operands of a list in the order of the table; `None` if they are empty.
fn listed_of<'a>(b: &CudaBackend, plan: &Plan<'_>, call: &'a MapOperands<'_, '_>) -> Result<Option<Listed<'a>>> {
    let elements = call.outs[0].layout.numel() as u32;
    if elements == 0 {
        return Ok(None);
    }
    let op = plan.kernel.name();
    let mut operands = vec![];
    for arg in call.args {
        if let MapArg::View(v) = arg {
            operands.push(b.input(op, "an argument", *v)?);
        }
    }
    for (i, out) in call.outs.iter().enumerate() {
        let read = plan.from.contains(&From::Output(i));
        operands.push(if read { b.updated(op, "an output", out)? } else { b.output(op, "an output", out)? });
    }
    Ok(Some(Listed { operands, elements }))
}

fn launch(b: &CudaBackend, plan: &Plan<'_>, scalars: &[Scalar], lists: &[Listed<'_>]) -> Result<()> {
    let op = plan.kernel.name();
    let room = room(plan.splat.len());
    let mut words = vec![];
    let (mut sizes, mut firsts, mut blocks) = (vec![], vec![], 0u32);
    for list in lists {
        words.extend(list.operands.iter().map(|o| o.ptr));
        sizes.push(list.elements);
        firsts.push(blocks);
        // At most 64 lists of less than 2^31 elements, of which a block has 256 or more.
        blocks += list.elements.div_ceil(THREADS * plan.width as u32);
    }
    // At most the bytes of the table.
    words.resize(room * plan.splat.len(), 0);
    let mut table: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for numbers in [&mut sizes, &mut firsts] {
        // At most 64 numbers.
        numbers.resize(room, 0);
        table.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
    }
    table.extend((lists.len() as u64).to_ne_bytes());
    let mut arguments = Arguments::new();
    arguments.bytes(&table);
    let dtypes = plan.kernel.args().iter().zip(&plan.from).filter(|(_, from)| **from == From::Scalar);
    scalars.iter().zip(dtypes).for_each(|(s, (dtype, _))| scalar_argument(&mut arguments, *s, *dtype));
    let uses: Vec<Use<'_>> = lists.iter().flat_map(|list| &list.operands).map(|o| o.used).collect();
    let entry = format!("{}_each", code::name_in_c(op));
    b.queue().launch(&Launch {
        call: Call::of_lists(op, lists.len()),
        key: key(("map_each", &entry, plan)),
        entry: &entry,
        source: &|| source(plan, &entry),
        uses: &uses,
        arguments: &arguments,
        grid: [blocks, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

fn source(plan: &Plan<'_>, entry: &str) -> String {
    let (args, outputs, w) = (plan.kernel.args(), plan.kernel.outputs(), plan.width);
    let (count, room) = (plan.splat.len(), room(plan.splat.len()));
    let views: Vec<usize> = (0..args.len()).filter(|&i| plan.from[i] == From::View).collect();
    let mut text = Text::new();
    text.declare(plan.one());
    text.declare(format_args!("struct Table {{ u64 p[{room}][{count}]; u32 n[{room}], first[{room}]; u64 lists; }};"));
    text.parameter("const __grid_constant__ Table table");
    for i in (0..args.len()).filter(|&i| plan.from[i] == From::Scalar) {
        text.parameter(format_args!("const {} s{i}", plan.argument_type(i, args[i])));
    }
    text.line("u32 at = 0;");
    text.line(format_args!("for (u32 step = {}; step > 0; step /= 2) {{", MOST / 2));
    text.line("  if (at + step < (u32)table.lists && table.first[at + step] <= blockIdx.x) at += step;");
    text.line("}");
    text.line("const u32 n = table.n[at];");
    text.line(format_args!("const u32 start = ((blockIdx.x - table.first[at]) * {THREADS} + threadIdx.x) * {w};"));
    text.line("if (start >= n) return;");
    text.line("bool bad = false;");
    for (k, &i) in views.iter().enumerate() {
        let ty = element(args[i]);
        text.line(format_args!("const {ty} *__restrict__ x{i} = (const {ty} *)table.p[at][{k}] + start;"));
    }
    for (o, &(_, d)) in outputs.iter().enumerate() {
        let (ty, k) = (element(d), views.len() + o);
        text.line(format_args!("{ty} *__restrict__ y{o} = ({ty} *)table.p[at][{k}] + start;"));
    }
    // The call of `one` for neighbour `k`, whose arguments and results are at places of the operands.
    let call = |element_of: &dyn Fn(String) -> String, place_of: &dyn Fn(String) -> String| {
        let argument = |i: usize| match plan.from[i] {
            From::View => element_of(format!("x{i}")),
            From::Output(o) => element_of(format!("y{o}")),
            From::Scalar => format!("s{i}"),
        };
        let all = (0..args.len()).map(argument).chain((0..outputs.len()).map(|o| place_of(format!("y{o}"))));
        format!("one({}, bad);", all.collect::<Vec<_>>().join(", "))
    };
    text.line(format_args!("if (n - start < {w}) {{"));
    let at = |name| format!("{name}[k]");
    text.line(format_args!("  for (u32 k = 0; k < n - start; ++k) {}", call(&at, &at)));
    text.line("  return;");
    text.line("}");
    let pack = |d| format!("Pack<{}, {w}>", element(d));
    for &i in &views {
        text.line(format_args!("const {0} p_x{i} = *(const {0} *)x{i};", pack(args[i])));
    }
    for (o, &(_, d)) in outputs.iter().enumerate() {
        let is_read = plan.from.contains(&From::Output(o));
        let old = if is_read { format!(" = *(const {} *)y{o}", pack(d)) } else { String::new() };
        text.line(format_args!("{} p_y{o}{old};", pack(d)));
    }
    text.line("#pragma unroll");
    let of = |name| format!("p_{name}.get(k)");
    text.line(format_args!("for (int k = 0; k < {w}; ++k) {}", call(&of, &|name| format!("p_{name}.v[k]"))));
    for (o, &(_, d)) in outputs.iter().enumerate() {
        text.line(format_args!("*({} *)y{o} = p_y{o};", pack(d)));
    }
    text.finish(entry, THREADS)
}
