//! `unfold` and `fold`: one thread for each element of the result.

use gradus_backend::key::key;
use gradus_backend::{MergedAxes, Result, Scalar, ScalarOp, View, ViewMut, Window};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, binary, compute, element};
use crate::map::{blocks, scalar_argument, stored};
use crate::queue::Launch;

/// Adds the numbers of a window as the parameter `w`: for each spatial axis, the size of the image, the size of the
/// kernel, the stride, the dilation, the padding before the first element, and the number of positions.
fn window_argument(arguments: &mut Arguments, window: &Window, spatial: &[usize], positions: &[usize]) {
    let of = |a: usize| {
        let numbers = [spatial[a], window.kernel[a], window.stride[a], window.dilation[a], window.pad_before[a]];
        numbers.into_iter().chain([positions[a]]).map(|v| v as i64)
    };
    arguments.longs(&(0..window.rank).flat_map(of).collect::<Vec<i64>>());
}

/// All axes of one operand, none of them merged.
fn all_axes(layout: &gradus_backend::Layout) -> MergedAxes {
    MergedAxes { dims: layout.dims().to_vec(), steps: vec![layout.strides().to_vec()] }
}

fn strides_argument(arguments: &mut Arguments, layout: &gradus_backend::Layout) {
    arguments.longs(&layout.strides().iter().map(|&s| s as i64).collect::<Vec<i64>>());
}

/// See [`Backend::unfold`](gradus_backend::Backend::unfold).
pub(crate) fn unfold(b: &CudaBackend, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "unfold";
    gradus_backend::check::unfold(window, x, pad, out)?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        return crate::map::fill(b, out, pad);
    }
    let (from, to) = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    let (rank, all, dtype) = (window.rank, out.layout.rank(), x.dtype);
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(to.ptr).u64(n as u64);
    scalar_argument(&mut arguments, pad, dtype);
    arguments.longs(&code::axes_longs(&all_axes(out.layout)));
    strides_argument(&mut arguments, x.layout);
    window_argument(&mut arguments, window, &x.layout.dims()[2..], &out.layout.dims()[2 + rank..]);
    let source = || {
        let mut text = Text::new();
        text.parameter(format_args!("const {} *__restrict__ x", element(dtype)));
        text.parameter(format_args!("{} *__restrict__ y", element(dtype)));
        text.parameter("const u64 n");
        let pad = if dtype == gradus_backend::DType::Bool { "u8" } else { compute(dtype) };
        text.parameter(format_args!("const {pad} pad"));
        text.longs("axes", 2 * all);
        text.longs("xs", 2 + rank);
        text.longs("w", 6 * rank);
        text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line("if (id >= n) return;");
        code::coordinates(&mut text, "u64", "c", "id", all, "axes");
        text.line("i64 at = (i64)c0 * xs.v[0] + (i64)c1 * xs.v[1]; bool inside = true;");
        for a in 0..rank {
            let w = |k: usize| format!("w.v[{}]", 6 * a + k);
            let (position, tap) = (2 + rank + a, 2 + a);
            text.line(format_args!(
                "const i64 s{a} = (i64)c{position} * {} + (i64)c{tap} * {} - {};",
                w(2),
                w(3),
                w(4)
            ));
            text.line(format_args!("inside = inside && s{a} >= 0 && s{a} < {}; at += s{a} * xs.v[{}];", w(0), 2 + a));
        }
        let outside = stored("pad", dtype.compute(), dtype);
        let to = code::position(false, "c", all, "axes", 0);
        text.line(format_args!("if (inside) y[{to}] = x[at]; else y[{to}] = {outside};"));
        text.finish("gradus_unfold", THREADS)
    };
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key((OP, dtype, rank)),
        entry: "gradus_unfold",
        source: &source,
        uses: &[from.used, to.used],
        arguments: &arguments,
        grid: blocks(OP, n as u64)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// See [`Backend::fold`](gradus_backend::Backend::fold).
pub(crate) fn fold(b: &CudaBackend, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    gradus_backend::check::fold(window, x, out)?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        return crate::map::fill(b, out, Scalar::Int(0));
    }
    let (from, to) = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    let (rank, all, dtype) = (window.rank, out.layout.rank(), x.dtype);
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(to.ptr).u64(n as u64);
    arguments.longs(&code::axes_longs(&all_axes(out.layout)));
    strides_argument(&mut arguments, x.layout);
    window_argument(&mut arguments, window, &out.layout.dims()[2..], &x.layout.dims()[2 + rank..]);
    let source = || {
        let mut text = Text::new();
        text.parameter(format_args!("const {} *__restrict__ x", element(dtype)));
        text.parameter(format_args!("{} *__restrict__ y", element(dtype)));
        text.parameter("const u64 n");
        text.longs("axes", 2 * all);
        text.longs("xs", 2 + 2 * rank);
        text.longs("w", 6 * rank);
        text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line("if (id >= n) return;");
        code::coordinates(&mut text, "u64", "c", "id", all, "axes");
        text.line("x += (i64)c0 * xs.v[0] + (i64)c1 * xs.v[1];");
        text.line(format_args!("{} acc = 0;", compute(dtype)));
        for a in 0..rank {
            let w = |k: usize| format!("w.v[{}]", 6 * a + k);
            text.line(format_args!("for (i64 k{a} = 0; k{a} < {}; ++k{a}) {{", w(1)));
            text.line(format_args!(
                "const i64 d{a} = (i64)c{} + {} - k{a} * {}, p{a} = d{a} / {};",
                2 + a,
                w(4),
                w(3),
                w(2)
            ));
            text.line(format_args!("if (d{a} < 0 || p{a} >= {} || p{a} * {} != d{a}) continue;", w(5), w(2)));
        }
        let terms: Vec<String> =
            (0..rank).map(|a| format!("k{a} * xs.v[{}] + p{a} * xs.v[{}]", 2 + a, 2 + rank + a)).collect();
        let sum = binary(ScalarOp::Add, dtype, "acc", &format!("wide(x[{}])", terms.join(" + ")));
        text.line(format_args!("acc = {sum};"));
        (0..rank).for_each(|_| text.line("}"));
        let to = code::position(false, "c", all, "axes", 0);
        text.line(format_args!("y[{to}] = {};", stored("acc", dtype.compute(), dtype)));
        text.finish("gradus_fold", THREADS)
    };
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key((OP, dtype, rank)),
        entry: "gradus_fold",
        source: &source,
        uses: &[from.used, to.used],
        arguments: &arguments,
        grid: blocks(OP, n as u64)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}
