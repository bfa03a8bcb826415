//! Scans. If there are many lines, one thread scans each line. Otherwise a block scans each line in tiles, of which
//! each thread holds one element: the tile is scanned in shared memory, and what came before it is combined with all.
//!
//! Sums, products and log-sum-exps of floats accumulate in f64.

use gradus_backend::key::key;
use gradus_backend::{DType, MergedAxes, ReduceOp, Result, ScanOp, View, ViewMut};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, cast, compute, element};
use crate::map::{blocks, stored};
use crate::queue::Launch;
use crate::reduce::{identity, joined};

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    op: ScanOp,
    x: DType,
    out: DType,
    acc: DType,
    rank: usize,
    /// Whether a block scans each line.
    tiles: bool,
}

/// See [`Backend::scan`](gradus_backend::Backend::scan).
pub(crate) fn scan(b: &CudaBackend, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    gradus_backend::check::scan(op, x, axis, out)?;
    let name = match op {
        ScanOp::Sum => "cumsum",
        ScanOp::Prod => "cumprod",
        ScanOp::Max => "cummax",
        ScanOp::Min => "cummin",
        ScanOp::LogSumExp => "logcumsumexp",
    };
    let exact = matches!(op, ScanOp::Max | ScanOp::Min);
    if x.dtype == DType::Bool && exact {
        // Booleans are bytes of 0 and 1.
        let layout = out.layout;
        let mut bytes = ViewMut { buffer: out.buffer, dtype: DType::U8, layout };
        return scan(b, op, View { dtype: DType::U8, ..x }, axis, &mut bytes);
    }
    if x.layout.numel() == 0 {
        return Ok(());
    }
    let n = x.layout.dims()[axis];
    let acc = if out.dtype.is_float() && !exact { DType::F64 } else { out.dtype.compute() };
    let (from, to) = (b.input(name, "x", x)?, b.output(name, "out", out)?);
    let lines = MergedAxes::merged(&[from.layout, to.layout], (0..x.layout.rank()).filter(|&a| a != axis));
    let (count, rank) = (lines.numel(), lines.rank());
    let tiles = n > 64 && count < 16_384;
    let plan = Plan { op, x: x.dtype, out: out.dtype, acc, rank, tiles };
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(to.ptr).u64(count as u64).u64(n as u64);
    arguments.i64(from.layout.strides()[axis] as i64).i64(to.layout.strides()[axis] as i64);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&lines));
    }
    let threads = if tiles { count as u64 * u64::from(THREADS) } else { count as u64 };
    let entry = code::name_in_c(name);
    b.queue().launch(&Launch {
        call: name.into(),
        key: key(("scan", &plan)),
        entry: &entry,
        source: &|| plan.source(&entry),
        uses: &[from.used, to.used],
        arguments: &arguments,
        grid: blocks(name, threads)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

impl Plan {
    fn source(&self, entry: &str) -> String {
        let rank = self.rank;
        let t = compute(self.acc);
        let mut text = Text::new();
        let fold = match self.op {
            ScanOp::Sum => Some(ReduceOp::Sum),
            ScanOp::Prod => Some(ReduceOp::Prod),
            ScanOp::Max => Some(ReduceOp::Max),
            ScanOp::Min => Some(ReduceOp::Min),
            ScanOp::LogSumExp => None,
        };
        let value = if let Some(op) = fold {
            text.declare(format_args!("struct Acc {{ {t} v; }};"));
            text.declare(format_args!("Acc none() {{ return Acc{{{}}}; }}", identity(op, self.acc)));
            text.declare(format_args!("Acc lift({t} x) {{ return Acc{{x}}; }}"));
            let join = joined(op, self.acc, "a.v", "b.v");
            text.declare(format_args!("Acc join(Acc a, Acc b) {{ return Acc{{{join}}}; }}"));
            "acc.v"
        } else {
            // `s` is the sum of e^(x - m), where `m` is the largest element so far. If `m` is not finite, it is the
            // result, and `s` is 1.
            text.declare("struct Acc { f64 m, s; };");
            text.declare(format_args!("Acc none() {{ return Acc{{{}, 1.0}}; }}", identity(ReduceOp::Max, DType::F64)));
            text.declare("Acc lift(f64 x) { return Acc{x, 1.0}; }");
            text.declare(
                "Acc join(Acc a, Acc b) {\n  const f64 m = larger_f64(a.m, b.m);\n  if (!is_finite_f64(m)) return Acc{m, \
                 1.0};\n  return Acc{m, a.s * exp_f64(a.m - m) + b.s * exp_f64(b.m - m)};\n}",
            );
            "(acc.m + log_f64(acc.s))"
        };
        text.parameter(format_args!("const {} *__restrict__ x", element(self.x)));
        text.parameter(format_args!("{} *__restrict__ y", element(self.out)));
        text.parameter("const u64 lines, const u64 n, const i64 x_step, const i64 y_step");
        if rank > 0 {
            text.longs("axes", rank * 3);
        }
        let lifted = |j: &str| format!("lift({})", cast(&format!("wide(x[{j} * x_step])"), self.x, self.acc));
        let write = |j: &str| {
            let half = self.out.compute() != self.out && self.acc == DType::F64;
            let made = if half { value.to_owned() } else { cast(value, self.acc, self.out) };
            let acc = if half { self.acc } else { self.out.compute() };
            format!("y[{j} * y_step] = {};", stored(&made, acc, self.out))
        };
        if self.tiles {
            text.line("const u64 line = blockIdx.x;");
        } else {
            text.line(format_args!("const u64 line = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
            text.line("if (line >= lines) return;");
        }
        code::coordinates(&mut text, "u64", "c", "line", rank, "axes");
        text.line(format_args!("x += {};", code::position(false, "c", rank, "axes", 0)));
        text.line(format_args!("y += {};", code::position(false, "c", rank, "axes", 1)));
        if self.tiles {
            text.line(format_args!("__shared__ Acc tile[{THREADS}];"));
            text.line("const u32 me = threadIdx.x; Acc before = none();");
            text.line(format_args!("for (i64 start = 0; start < (i64)n; start += {THREADS}) {{"));
            text.line("const i64 j = start + me; Acc acc = none();");
            text.line(format_args!("if (j < (i64)n) acc = {};", lifted("j")));
            text.line("tile[me] = acc; __syncthreads();");
            text.line(format_args!("for (u32 reach = 1; reach < {THREADS}; reach *= 2) {{"));
            text.line("if (me >= reach) acc = join(tile[me - reach], acc);");
            text.line("__syncthreads(); tile[me] = acc; __syncthreads(); }");
            text.line("acc = join(before, acc);");
            text.line(format_args!("if (j < (i64)n) {}", write("j")));
            text.line(format_args!("before = join(before, tile[{}]); __syncthreads(); }}", THREADS - 1));
        } else {
            text.line("Acc acc = none();");
            text.line(format_args!(
                "for (i64 j = 0; j < (i64)n; ++j) {{ acc = join(acc, {}); {} }}",
                lifted("j"),
                write("j")
            ));
        }
        text.finish(entry, THREADS)
    }
}
