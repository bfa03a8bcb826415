//! Scans. If lines are short, or many, one invocation scans each line. Otherwise one work-group scans each line: its
//! invocations first combine the elements of their parts of the line, then scan these results in shared memory, and
//! finally go through their parts again.
//!
//! Floats accumulate in f64 if the adapter has it.

use gradus_backend::{DType, Error, ErrorKind, Expr, Kernel, MapArg, ReduceOp, Result, ScanOp, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::operand::cut;
use crate::queue::Launch;
use crate::reduce::{identity, joined};
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, cast, param, ty};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    op: ScanOp,
    x: DType,
    out: DType,
    acc: DType,
    rank: usize,
    lanes: u32,
}

/// The number of lines from which one invocation a line keeps the adapter busy: of a GPU, and of a driver on the processor.
const MANY: [usize; 2] = [1 << 16, 1 << 11];
/// The number of parameters before the sizes and strides. They are the number of lines, of elements per line and of
/// elements per part, the positions of the first elements, and the strides along the axis.
const FIXED: usize = 7;

/// See [`Backend::scan`](gradus_backend::Backend::scan).
pub(crate) fn scan(b: &WgpuBackend, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    let (name, fold) = match op {
        ScanOp::Sum => ("cumsum", Some(ReduceOp::Sum)),
        ScanOp::Prod => ("cumprod", Some(ReduceOp::Prod)),
        ScanOp::Max => ("cummax", Some(ReduceOp::Max)),
        ScanOp::Min => ("cummin", Some(ReduceOp::Min)),
        ScanOp::LogSumExp => ("logcumsumexp", None),
    };
    let rank = x.layout.rank();
    if axis >= rank {
        return Err(Error::new(ErrorKind::InvalidAxis, name, format!("axis {axis} of {}", x.layout.shape())));
    }
    let sums = matches!(op, ScanOp::Sum | ScanOp::Prod);
    let result = if sums { x.dtype.accumulate() } else { x.dtype };
    b.check_dtype(name, x.dtype)?;
    b.expect(name, "out", out.as_view(), result, x.layout.dims())?;
    if fold.is_none() && !x.dtype.is_float() {
        return Err(Error::dtype(name, x.dtype, "f64, f32, f16 and bf16"));
    }
    if x.dtype == DType::Bool && !sums {
        // Booleans are bytes of 0 and 1.
        let layout = out.layout;
        let mut bytes = ViewMut { buffer: out.buffer, dtype: DType::U8, layout };
        return scan(b, op, View { dtype: DType::U8, ..x }, axis, &mut bytes);
    }
    if x.layout.numel() == 0 {
        return Ok(());
    }
    let n = x.layout.dims()[axis];
    let lanes = if n <= 64 || x.layout.numel() / n >= MANY[usize::from(b.is_software)] { 1 } else { GROUP };
    let wide = [(x.layout, x.dtype), (out.layout, result)].into_iter().find(|&(l, d)| !b.fits(l, d));
    let at = match wide {
        Some((layout, _)) => cut(layout, 0..rank),
        // Each invocation loops over its elements twice, which halves the number that it may have.
        None => (n.div_ceil(lanes as usize) > crate::operand::LOOP / 2).then_some((axis, n / 2)),
    };
    if let Some(at) = at {
        return by_halves(b, op, name, fold, x, axis, at, out);
    }
    let wide = b.missing(DType::F64).is_none() && (sums || fold.is_none());
    let acc = if result.is_float() && wide { DType::F64 } else { result.compute() };
    let (from, to) = (b.input(name, "x", x)?, b.output(name, "out", out)?);
    let lines = Axes::merged(&[&from.layout, &to.layout], (0..rank).filter(|&a| a != axis));
    let count = lines.numel();
    let plan = Plan { op, x: x.dtype, out: result, acc, rank: lines.rank(), lanes };
    let mut params: Vec<u32> = [count, n, n.div_ceil(lanes as usize)].map(|v| v as u32).to_vec();
    params.extend([&from, &to].map(|o| o.layout.offset() as u32));
    params.extend([&from, &to].map(|o| o.layout.strides()[axis] as u32));
    params.extend(lines.dims.iter().map(|&d| d as u32));
    lines.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    let groups = (count as u64).div_ceil(u64::from(GROUP / lanes));
    let (source, binds) = (&|| plan.source(), &[from.bind, to.bind]);
    let key = key(("scan", &plan));
    b.queue().launch(&Launch { call: name.into(), key, source, binds, params: &params, groups })
}

/// Cuts the operands along axis `at`, either between lines or within them. Within lines, the last result of the first
/// half is then combined with all results of the second half.
fn by_halves(
    b: &WgpuBackend,
    op: ScanOp,
    name: &str,
    fold: Option<ReduceOp>,
    x: View<'_>,
    axis: usize,
    (at, half): (usize, usize),
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let size = x.layout.dims()[at];
    for (start, len) in [(0, half), (half, size - half)] {
        let (from, to) = (x.layout.narrow(at, start, len)?, out.layout.narrow(at, start, len)?);
        scan(b, op, x.with(&from), axis, &mut out.with(&to))?;
    }
    if at != axis {
        return Ok(());
    }
    let mut dims = out.layout.dims().to_vec();
    dims[axis] = 1;
    let mut last = Temp::new(b, out.dtype, Shape::new(&dims)?)?;
    crate::map::copy_strided(b, out.as_view().with(&out.layout.narrow(axis, half - 1, 1)?), &mut last.view_mut())?;
    let rest = out.layout.narrow(axis, half, size - half)?;
    let before = last.layout.expand(*rest.shape())?;
    let kernel = Kernel::build(name, &[out.dtype; 2], |v| {
        let (a, b) = (v[0], v[1]);
        vec![match fold {
            Some(ReduceOp::Sum) => a + b,
            Some(ReduceOp::Prod) => a * b,
            Some(ReduceOp::Min) => a.min(b),
            Some(_) => a.max(b),
            None => log_of_sum(a, b),
        }]
    })?;
    crate::map::map(b, &kernel, &[MapArg::View(last.view().with(&before)), MapArg::Output(0)], &mut [out.with(&rest)])
}

/// `ln(e^a + e^b)`.
fn log_of_sum<'k>(a: Expr<'k>, b: Expr<'k>) -> Expr<'k> {
    let (high, low) = (a.max(b), a.min(b));
    // If both are the same infinity, their difference is NaN, so equal operands are handled separately.
    high.eq(low).select(high + std::f64::consts::LN_2, high + (low - high).exp().log1p())
}

impl Plan {
    fn source(&self) -> String {
        let (rank, lanes) = (self.rank, self.lanes);
        let x_steps = FIXED + rank;
        let mut text = Text::new(x_steps + 2 * rank);
        text.input("x", self.x);
        text.output("y", self.out);
        let t = ty(self.acc);
        let fold = match self.op {
            ScanOp::Sum => Some(ReduceOp::Sum),
            ScanOp::Prod => Some(ReduceOp::Prod),
            ScanOp::Max => Some(ReduceOp::Max),
            ScanOp::Min => Some(ReduceOp::Min),
            ScanOp::LogSumExp => None,
        };
        let value = if let Some(op) = fold {
            text.declare(format_args!("struct Acc {{ v: {t} }}"));
            text.declare(format_args!("fn none() -> Acc {{ return Acc({}); }}", identity(op, self.acc)));
            text.declare(format_args!("fn lift(x: {t}) -> Acc {{ return Acc(x); }}"));
            let join = joined(op, self.acc, "a.v", "b.v");
            text.declare(format_args!("fn join(a: Acc, b: Acc) -> Acc {{ return Acc({join}); }}"));
            "acc.v".to_owned()
        } else {
            // `s` is the sum of e^(x - m), where `m` is the largest element so far. If `m` is not finite, it is the
            // result, and `s` is 1.
            text.declare(format_args!("struct Acc {{ m: {t}, s: {t} }}"));
            let none = identity(ReduceOp::Max, self.acc);
            text.declare(format_args!("fn none() -> Acc {{ return Acc({none}, {t}(1)); }}"));
            text.declare(format_args!("fn lift(x: {t}) -> Acc {{ return Acc(x, {t}(1)); }}"));
            text.declare(format_args!(
                "fn join(a: Acc, b: Acc) -> Acc {{\n  let m = larger_{t}(a.m, b.m);\n  if (!is_finite_{t}(m)) {{ return \
                 Acc(m, {t}(1)); }}\n  return Acc(m, a.s * exp_{t}(a.m - m) + b.s * exp_{t}(b.m - m));\n}}"
            ));
            format!("acc.m + log_{t}(acc.s)")
        };
        let element = |j: &str| {
            let x = format!("load_x(x_at + {j} * {})", param(5));
            format!("lift({})", cast(&x, self.x.compute(), self.acc))
        };
        text.line(format_args!("let line = id / {lanes}u; let lane = id % {lanes}u; let live = line < {};", param(0)));
        wgsl::coordinates(&mut text, "c", "line", rank, FIXED);
        text.line(format_args!("let x_at = {};", wgsl::position("c", rank, 3, x_steps)));
        text.line(format_args!("let y_at = {};", wgsl::position("c", rank, 4, x_steps + rank)));
        text.line(format_args!("let first = lane * {}; let end = min({}, first + {});", param(2), param(1), param(2)));
        text.line("var acc = none();");
        if lanes > 1 {
            text.declare(format_args!("var<workgroup> parts: array<Acc, {GROUP}>;"));
            text.line(format_args!(
                "if (live) {{ for (var j = first; j < end; j = j + 1u) {{ acc = join(acc, {}); }} }}",
                element("j")
            ));
            text.line("parts[local] = acc; workgroupBarrier();");
            let mut reach = 1;
            while reach < GROUP {
                text.line(format_args!(
                    "if (local >= {reach}u) {{ acc = join(parts[local - {reach}u], acc); }} workgroupBarrier(); parts[local] \
                     = acc; workgroupBarrier();"
                ));
                reach *= 2;
            }
            text.line("acc = none(); if (local > 0u) { acc = parts[local - 1u]; }");
        }
        text.line("if (!live) { return; }");
        text.line(format_args!("for (var j = first; j < end; j = j + 1u) {{ acc = join(acc, {});", element("j")));
        let half = self.out.compute() != self.out && self.acc == DType::F64;
        let stored = if half {
            format!("f32_to_odd({value})")
        } else {
            cast(&format!("({value})"), self.acc, self.out.compute())
        };
        text.line(format_args!("store_y(y_at + j * {}, {stored}); }}", param(6)));
        text.finish(GROUP)
    }
}
