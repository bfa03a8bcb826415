//! Maximum and average pooling. Operands that are invalid, empty or too large are passed to the default
//! implementations, which also report the errors.

use gradus_backend::key::key;
use gradus_backend::{DType, Layout, Result, View, ViewMut, Window, composite};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{THREADS, compute, element};
use crate::operand::Operand;
use crate::product::BLOCKS;
use crate::queue::Launch;
use crate::template::{Record, source};

/// The largest size of an axis with padding, and of a window: positions along it are 32-bit numbers.
const LONGEST: usize = 1 << 28;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Max,
    Mean,
    MeanBackward,
}

/// Whether the kernel can handle `x [n, c, spatial..]` and `y [n, c, positions..]`.
fn fits(window: &Window, x: View<'_>, y: View<'_>) -> bool {
    let rank = window.rank;
    if !(1..=3).contains(&rank) || x.layout.rank() != rank + 2 || x.dtype != y.dtype || x.dtype == DType::Bool {
        return false;
    }
    let (xd, yd) = (x.layout.dims(), y.layout.dims());
    let Ok(counts) = window.output("pool", &xd[2..]) else { return false };
    let short = |i: usize| {
        let reach = [counts[i].saturating_mul(window.stride[i]), window.kernel[i].saturating_mul(window.dilation[i])];
        reach.iter().chain([&xd[2 + i], &window.pad_before[i]]).all(|&v| v <= LONGEST)
    };
    x.layout.numel() > 0
        && y.layout.numel() > 0
        && xd[1] <= LONGEST
        && yd.len() == rank + 2
        && yd[..2] == xd[..2]
        && yd[2..] == counts[..rank]
        && (0..rank).all(short)
}

/// Queues a kernel that reads `from` and writes `to`; one of them is `x`, and one `y`.
fn launch(
    b: &CudaBackend,
    (op, pass, count_include_pad): (&'static str, Pass, bool),
    window: &Window,
    (from, to): (Operand<'_>, Operand<'_>),
    indices: Option<Operand<'_>>,
) -> Result<()> {
    let (x, y) = if pass == Pass::MeanBackward { (to, from) } else { (from, to) };
    let (rank, dtype) = (window.rank, x.dtype);
    // Axes before the window's have size 1.
    let before = 3 - rank;
    let mut record = Record::new();
    record.i64(to.layout.numel() as i64);
    let steps = |record: &mut Record, layout: &Layout| {
        let s = layout.strides();
        record.longs(s[..2].iter().copied().chain(std::iter::repeat_n(0, before)).chain(s[2..].iter().copied()), 5);
    };
    [x.layout, y.layout, indices.map_or(y.layout, |o| o.layout)].iter().for_each(|l| steps(&mut record, l));
    record.i32(x.layout.dims()[1]);
    let sizes = |sizes: &[usize], none: usize| [&[none, none][..before], &sizes[..rank]].concat();
    record.sizes(&sizes(&x.layout.dims()[2..], 1), 3);
    for (values, none) in [(&window.kernel, 1), (&window.stride, 1), (&window.dilation, 1), (&window.pad_before, 0)] {
        record.sizes(&sizes(values, none), 3);
    }
    record.sizes(&sizes(&y.layout.dims()[2..], 1), 3);
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(to.ptr).ptr(indices.map_or(to.ptr, |o| o.ptr)).bytes(record.finish());
    let mut uses = vec![from.used, to.used];
    uses.extend(indices.map(|o| o.used));
    let text = || {
        let types = [("T", element(dtype)), ("A", compute(dtype))];
        let constants = [("PASS", pass as usize), ("COUNT_PAD", usize::from(count_include_pad))];
        source(&types, &constants, &[include_str!("pool.cu")])
    };
    let tasks = to.layout.numel() as u64;
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("pool", dtype, pass, count_include_pad)),
        entry: "pool",
        source: &text,
        uses: &uses,
        arguments: &arguments,
        grid: [tasks.div_ceil(u64::from(THREADS)).min(BLOCKS) as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// See [`Backend::max_pool`](gradus_backend::Backend::max_pool).
pub(crate) fn max_pool(
    b: &CudaBackend,
    window: &Window,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "max_pool";
    let fine = fits(window, x, out.as_view())
        && window.check_pool(OP, &x.layout.dims()[2..]).is_ok()
        && indices.dtype == DType::I64
        && indices.layout.dims() == out.layout.dims();
    if !fine {
        return composite::pool::max_forward(b, window, x, out, indices);
    }
    let operands = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    launch(b, (OP, Pass::Max, false), window, operands, Some(b.output(OP, "indices", indices)?))
}

/// See [`Backend::avg_pool`](gradus_backend::Backend::avg_pool).
pub(crate) fn avg_pool(
    b: &CudaBackend,
    window: &Window,
    count_include_pad: bool,
    x: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    if !x.dtype.is_float() || !fits(window, x, out.as_view()) {
        return composite::pool::avg_forward(b, window, count_include_pad, x, out);
    }
    let operands = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    launch(b, (OP, Pass::Mean, count_include_pad), window, operands, None)
}

/// See [`Backend::avg_pool_backward`](gradus_backend::Backend::avg_pool_backward).
pub(crate) fn avg_pool_backward(
    b: &CudaBackend,
    window: &Window,
    count_include_pad: bool,
    g: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    if !g.dtype.is_float() || !fits(window, dx.as_view(), g) {
        return composite::pool::avg_backward(b, window, count_include_pad, g, dx);
    }
    let operands = (b.input(OP, "g", g)?, b.output(OP, "dx", dx)?);
    launch(b, (OP, Pass::MeanBackward, count_include_pad), window, operands, None)
}
