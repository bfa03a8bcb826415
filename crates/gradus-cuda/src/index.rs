//! Gather and scatter, and the check of indices.

use gradus_backend::key::key;
use gradus_backend::late::Fault;
use gradus_backend::{DType, Error, Layout, MergedAxes, Result, Scalar, ScalarOp, ScatterOp, Shape, View, ViewMut};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, binary, compute, element};
use crate::map::{bits_of, blocks, scalar_argument, stored};
use crate::queue::{Held, Launch, Use};
use crate::temp::Temp;

/// Up to this many sources for each output element are looked through one by one. More are sorted first.
const LOOK_AT_ALL: usize = 32;

/// The size of an axis as the kernels compare indices with it.
fn size_argument(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Queues a search for the first index, in row-major order, that is outside `0..size` and is not `ignored`. Launches
/// that use the indices must be made with the [`call`](Held::call) of the result.
pub(crate) fn check_index<'b>(
    b: &'b CudaBackend,
    op: &str,
    index: View<'_>,
    size: usize,
    ignored: Option<i64>,
) -> Result<Held<'b>> {
    let held = b.queue().hold(op, || Fault::index(op))?;
    let n = index.layout.numel();
    if n == 0 {
        return Ok(held);
    }
    let x = b.input(op, "index", index)?;
    let axes = MergedAxes::merged(&[x.layout], 0..x.layout.rank());
    let (dtype, rank, small) = (index.dtype, axes.rank(), code::is_small(&axes));
    // A value that the dtype cannot hold matches no index.
    let ignored = ignored.filter(|&v| Scalar::Int(v).check(dtype).is_ok());
    let mut arguments = Arguments::new();
    arguments.ptr(x.ptr).fault(held.address()).u64(n as u64).u32(size_argument(size));
    scalar_argument(&mut arguments, Scalar::Int(ignored.unwrap_or(0)), dtype);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    let skips = ignored.is_some();
    let source = || {
        let ty = if small { "u32" } else { "u64" };
        let mut text = Text::new();
        text.parameter(format_args!("const {} *__restrict__ x", element(dtype)));
        text.parameter("u64 *fault, const u64 n, const u32 size");
        text.parameter(format_args!("const {} ignored", compute(dtype)));
        if rank > 0 {
            text.longs("axes", rank * 2);
        }
        text.line(format_args!("const {ty} id = ({ty})blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line(format_args!("if (id >= ({ty})n) return;"));
        code::coordinates(&mut text, ty, "c", "id", rank, "axes");
        text.line(format_args!("const i64 index = x[{}];", code::position(small, "c", rank, "axes", 0)));
        if skips {
            text.line("if (index == (i64)ignored) return;");
        }
        text.line("if ((u64)index >= (u64)size) bad_index(fault, id, index, size);");
        text.finish("gradus_check_index", THREADS)
    };
    b.queue().launch(&Launch {
        call: held.call(op),
        key: key(("check_index", dtype, rank, small, skips)),
        entry: "gradus_check_index",
        source: &source,
        uses: &[x.used],
        arguments: &arguments,
        grid: blocks(op, n as u64)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })?;
    Ok(held)
}

/// See [`Backend::gather`](gradus_backend::Backend::gather).
pub(crate) fn gather(b: &CudaBackend, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "gather";
    gradus_backend::check::gather(x, axis, index, out)?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        return Err(gradus_backend::check::nothing_to_select(b, OP, index));
    }
    let held = b.queue().hold(OP, || Fault::index(OP))?;
    take(b, &held, OP, x, axis, index, out)
}

/// Gathers from operands that have been checked and are not empty. The kernel reports indices out of range at their
/// positions in `index`.
fn take(
    b: &CudaBackend,
    held: &Held<'_>,
    name: &str,
    x: View<'_>,
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let size = x.layout.dims()[axis];
    let bits = bits_of(x.dtype);
    let (from, at, to) = (b.input(name, "x", x)?, b.input(name, "index", index)?, b.output(name, "out", out)?);
    // Where the elements of a line of `x` begin: its axis has a stride of 0.
    let base = x.layout.narrow(axis, 0, 1)?.expand(*out.layout.shape())?;
    let mut axes = MergedAxes::merged(&[to.layout, at.layout, &base], 0..base.rank());
    let step = from.layout.strides()[axis];
    let width = width(&axes, [to.ptr, from.ptr], step, bits.size());
    if width > 1 {
        let last = axes.rank() - 1;
        axes.dims[last] /= width;
        axes.steps.iter_mut().for_each(|steps| steps[last] *= width as isize);
    }
    let (rank, threads) = (axes.rank(), axes.numel() as u64);
    let small = code::is_small(&axes) && x.layout.span().len() <= i32::MAX as usize;
    let mut arguments = Arguments::new();
    arguments.ptr(from.ptr).ptr(at.ptr).ptr(to.ptr).fault(held.address());
    arguments.u64(threads).u32(size_argument(size)).i64(step as i64);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    let source = || {
        let ty = if small { "u32" } else { "u64" };
        let signed = if small { "i32" } else { "i64" };
        let mut text = Text::new();
        text.parameter(format_args!("const {} *__restrict__ x", element(bits)));
        text.parameter(format_args!("const {} *__restrict__ index", element(index.dtype)));
        text.parameter(format_args!("{} *__restrict__ y", element(bits)));
        text.parameter("u64 *fault, const u64 n, const u32 size, const i64 step");
        if rank > 0 {
            text.longs("axes", rank * 4);
        }
        text.line(format_args!("const {ty} id = ({ty})blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line(format_args!("if (id >= ({ty})n) return;"));
        code::coordinates(&mut text, ty, "c", "id", rank, "axes");
        let position = |k| code::position(small, "c", rank, "axes", k);
        text.line(format_args!("const i64 picked = index[{}];", position(1)));
        let pack = format!("Pack<{}, {width}>", element(bits));
        text.line(format_args!("{pack} &to = *({pack} *)(y + {});", position(0)));
        // Work that is queued may read the result before the error is known, so it is not left unwritten.
        text.line(format_args!(
            "if ((u64)picked >= (u64)size) {{ bad_index(fault, id * {width}, picked, size); to = {pack}(); return; }}"
        ));
        text.line(format_args!("to = *(const {pack} *)(x + ({} + ({signed})picked * ({signed})step));", position(2)));
        text.finish("gradus_gather", THREADS)
    };
    b.queue().launch(&Launch {
        call: held.call(name),
        key: key(("gather", bits, index.dtype, rank, small, width)),
        entry: "gradus_gather",
        source: &source,
        uses: &[from.used, at.used, to.used],
        arguments: &arguments,
        grid: blocks(name, threads)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// The number of neighbours along the last axis that are also neighbours in memory, begin at a multiple of their size,
/// and share an index. The operands are the result, the indices, and what they select from.
fn width(axes: &MergedAxes, addresses: [u64; 2], step: isize, size: usize) -> usize {
    let Some(last) = axes.rank().checked_sub(1) else { return 1 };
    let width = 16 / size;
    let [to, at, base] = &axes.steps[..] else { return 1 };
    let whole = |s: &isize| s % width as isize == 0;
    let aligned = |steps: &[isize]| steps[last] == 1 && steps[..last].iter().all(whole);
    let fits = axes.dims[last].is_multiple_of(width)
        && at[last] == 0
        && whole(&step)
        && aligned(to)
        && aligned(base)
        && addresses.iter().all(|a| a.is_multiple_of(16));
    if fits { width } else { 1 }
}

/// See [`Backend::scatter`](gradus_backend::Backend::scatter).
pub(crate) fn scatter(
    b: &CudaBackend,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "scatter";
    gradus_backend::check::scatter(op, axis, index, src, out)?;
    let held = check_index(b, OP, index, out.layout.dims()[axis], None)?;
    put(b, &held, OP, op, axis, index, src, out)
}

/// Scatters with indices that are checked elsewhere. Each element of `out` collects its sources in order.
pub(crate) fn put(
    b: &CudaBackend,
    held: &Held<'_>,
    name: &str,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    if src.layout.numel() == 0 || out.layout.numel() == 0 {
        return Ok(());
    }
    if src.layout.dims()[axis] <= LOOK_AT_ALL {
        return collect(b, held, name, op, axis, (index, None), src, out);
    }
    // Where the index is broadcast along an axis, it is sorted only once.
    let mut narrow = *index.layout;
    for a in (0..narrow.rank()).filter(|&a| a != axis && index.layout.strides()[a] == 0) {
        narrow = narrow.narrow(a, 0, 1)?;
    }
    let mut sorted = Temp::new(b, index.dtype, *narrow.shape())?;
    let mut order = Temp::new(b, DType::I64, *narrow.shape())?;
    crate::sort::sorted(b, name, index.with(&narrow), axis, false, &mut sorted.view_mut(), &mut order.view_mut())?;
    let (keys, places) = (sorted.layout.expand(*index.layout.shape())?, order.layout.expand(*index.layout.shape())?);
    let keys = View { buffer: &sorted.buffer, dtype: index.dtype, layout: &keys };
    let places = View { buffer: &order.buffer, dtype: DType::I64, layout: &places };
    collect(b, held, name, op, axis, (keys, Some(places)), src, out)
}

/// A layout with another size along an axis, whose stride becomes 0.
fn held_at(layout: &Layout, axis: usize, size: usize) -> Result<Layout> {
    let mut dims = layout.dims().to_vec();
    dims[axis] = size;
    layout.narrow(axis, 0, 1)?.expand(Shape::new(&dims)?)
}

/// Queues the kernel of scatter. If `order` is given, `index` is sorted, and `order` holds the original position of
/// each index.
fn collect(
    b: &CudaBackend,
    held: &Held<'_>,
    name: &str,
    op: ScatterOp,
    axis: usize,
    (index, order): (View<'_>, Option<View<'_>>),
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = if op == ScatterOp::Set { bits_of(out.dtype) } else { out.dtype };
    let (count, size) = (src.layout.dims()[axis], out.layout.dims()[axis]);
    let (from, at, to) = (b.input(name, "src", src)?, b.input(name, "index", index)?, b.updated(name, "out", out)?);
    let places = order.map(|o| b.input(name, "order", o)).transpose()?;
    let operands = [Some(to), Some(at), Some(from), places];
    let operands: Vec<_> = operands.into_iter().flatten().collect();
    // One line for each place on the other axes.
    let lines = operands.iter().map(|o| held_at(o.layout, axis, 1)).collect::<Result<Vec<_>>>()?;
    let refs: Vec<&Layout> = lines.iter().collect();
    let axes = MergedAxes::merged(&refs, (0..lines[0].rank()).filter(|&a| a != axis));
    // If the indices are sorted and fewer than the places, a thread begins at each index that is not that before it;
    // otherwise at each place.
    let by_source = order.is_some() && count < size;
    let each = if by_source { count } else { size };
    let (rank, n) = (axes.rank(), axes.numel() as u64 * each as u64);
    let mut arguments = Arguments::new();
    operands.iter().for_each(|o| _ = arguments.ptr(o.ptr));
    arguments.u64(n).u64(count as u64).u64(size as u64).u64(each as u64);
    let mut along: Vec<i64> = operands.iter().map(|o| o.layout.strides()[axis] as i64).collect();
    let to_step = along[0];
    along.resize(4, 0);
    arguments.longs(&along);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    let (sorted, number) = (order.is_some(), operands.len());
    // Neighbouring threads write neighbouring elements.
    let lines_first = rank > 0 && (axes.steps[0][rank - 1] as i64).abs() < to_step.abs();
    let source = || {
        let mut text = Text::new();
        text.parameter(format_args!("{} *__restrict__ y", element(dtype)));
        text.parameter(format_args!("const {} *__restrict__ index", element(index.dtype)));
        text.parameter(format_args!("const {} *__restrict__ s", element(dtype)));
        if sorted {
            text.parameter("const i64 *__restrict__ order");
        }
        text.parameter("const u64 n, const u64 count, const u64 size, const u64 each");
        text.longs("along", 4);
        if rank > 0 {
            text.longs("axes", rank * (1 + number));
        }
        text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line("if (id >= n) return;");
        if lines_first {
            text.line("const u64 lines = n / each, line = id % lines; const i64 own = id / lines;");
        } else {
            text.line("const i64 own = id % each; const u64 line = id / each;");
        }
        code::coordinates(&mut text, "u64", "c", "line", rank, "axes");
        for (k, name) in ["y", "index", "s", "order"].iter().enumerate().take(number) {
            text.line(format_args!("{name} += {};", code::position(false, "c", rank, "axes", k)));
        }
        if by_source {
            text.line("const i64 mine = index[own * along.v[1]];");
            text.line("if ((u64)mine >= size || (own > 0 && (i64)index[(own - 1) * along.v[1]] == mine)) return;");
        } else {
            text.line("const i64 mine = own;");
        }
        text.line("y += mine * along.v[0];");
        let wide = compute(dtype);
        // A sum starts with the old value, which is kept if no source matches.
        let old = if op == ScatterOp::Add { "wide(y[0])" } else { "0" };
        text.line(format_args!("bool hit = false; {wide} acc = {old};"));
        let from = if sorted { "order[j * along.v[3]]" } else { "j" };
        let value = format!("wide(s[{from} * along.v[2]])");
        let land = match op {
            ScatterOp::Set => value,
            ScatterOp::Add => binary(ScalarOp::Add, dtype, "acc", &value),
        };
        if by_source {
            text.line("const i64 lo = own;");
        } else if sorted {
            text.line("i64 lo = 0, hi = count;");
            text.line(
                "while (lo < hi) { const i64 m = (lo + hi) / 2; if ((i64)index[m * along.v[1]] < mine) lo = m + 1; else hi = m; }",
            );
        }
        if sorted {
            text.line(format_args!(
                "for (i64 j = lo; j < (i64)count && (i64)index[j * along.v[1]] == mine; ++j) {{ acc = {land}; hit = true; }}"
            ));
        } else {
            text.line(format_args!(
                "for (i64 j = 0; j < (i64)count; ++j) if ((i64)index[j * along.v[1]] == mine) {{ acc = {land}; hit = true; }}"
            ));
        }
        text.line(format_args!("if (hit) y[0] = {};", stored("acc", dtype.compute(), dtype)));
        text.finish("gradus_scatter", THREADS)
    };
    let uses: Vec<Use<'_>> = operands.iter().map(|o| o.used).collect();
    b.queue().launch(&Launch {
        call: held.call(name),
        key: key(("scatter", op == ScatterOp::Set, dtype, index.dtype, rank, sorted, by_source, lines_first)),
        entry: "gradus_scatter",
        source: &source,
        uses: &uses,
        arguments: &arguments,
        grid: blocks(name, n)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// Checks the shapes and dtypes of a table `[v, d]`, of `index`, and of the rows that `index` selects from the table.
fn check_rows(
    b: &CudaBackend,
    op: &str,
    (name, weight): (&str, View<'_>),
    index: View<'_>,
    (rows_name, rows): (&str, View<'_>),
) -> Result<()> {
    if !matches!(index.dtype, DType::I64 | DType::I32 | DType::U32) {
        return Err(Error::dtype(op, index.dtype, "indices as i64, i32 or u32"));
    }
    let dims = weight.layout.dims();
    if dims.len() != 2 {
        return Err(Error::shape(op, format!("{name} must have 2 axes [v, d], not shape {}", weight.layout.shape())));
    }
    b.expect(op, rows_name, rows, weight.dtype, &[index.layout.dims(), &dims[1..]].concat())
}

/// `x` under a shape in which the axes of the index are merged. If this needs a copy, `kept` holds it.
fn flat<'a>(b: &CudaBackend, x: View<'a>, shape: Shape, kept: &'a mut Option<Temp>) -> Result<(View<'a>, Layout)> {
    if let Some(layout) = x.layout.reshape(shape) {
        return Ok((x, layout));
    }
    let mut copy = Temp::new(b, x.dtype, *x.layout.shape())?;
    crate::map::copy_strided(b, x, &mut copy.view_mut())?;
    copy.layout = Layout::contiguous(shape);
    let copy = kept.insert(copy);
    Ok((copy.view(), copy.layout))
}

/// See [`Backend::embedding`](gradus_backend::Backend::embedding).
pub(crate) fn embedding(b: &CudaBackend, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "embedding";
    check_rows(b, OP, ("weight", weight), index, ("out", out.as_view()))?;
    let (v, d, n) = (weight.layout.dims()[0], weight.layout.dims()[1], index.layout.numel());
    if v == 0 && n * d > 0 {
        return Err(gradus_backend::check::nothing_to_select(b, OP, index));
    }
    let held = check_index(b, OP, index, v, None)?;
    if n * d == 0 {
        return Ok(());
    }
    let shape = Shape::new(&[n, d])?;
    let mut kept = None;
    let (index, column) = flat(b, index, Shape::new(&[n, 1])?, &mut kept)?;
    let column = column.expand(shape)?;
    if let Some(layout) = out.layout.reshape(shape) {
        return take(b, &held, OP, weight, 0, index.with(&column), &mut out.with(&layout));
    }
    let mut copy = Temp::new(b, out.dtype, shape)?;
    take(b, &held, OP, weight, 0, index.with(&column), &mut copy.view_mut())?;
    copy.layout = Layout::contiguous(*out.layout.shape());
    crate::map::copy_strided(b, copy.view(), out)
}

/// See [`Backend::embedding_backward`](gradus_backend::Backend::embedding_backward).
pub(crate) fn embedding_backward(
    b: &CudaBackend,
    index: View<'_>,
    g: View<'_>,
    padding_index: Option<usize>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    check_rows(b, OP, ("dw", dw.as_view()), index, ("g", g))?;
    if g.dtype == DType::Bool {
        return Err(Error::dtype(OP, g.dtype, "numbers"));
    }
    let (v, d, n) = (dw.layout.dims()[0], dw.layout.dims()[1], index.layout.numel());
    if let Some(p) = padding_index.filter(|&p| p >= v) {
        return Err(Error::argument(OP, format!("padding index {p} is outside a table of {v} rows")));
    }
    let held = check_index(b, OP, index, v, None)?;
    crate::map::fill(b, dw, Scalar::Int(0))?;
    if n * d == 0 || v == 0 {
        return Ok(());
    }
    let shape = Shape::new(&[n, d])?;
    let (mut kept_index, mut kept_g) = (None, None);
    let (index, column) = flat(b, index, Shape::new(&[n, 1])?, &mut kept_index)?;
    let column = column.expand(shape)?;
    let (g, rows) = flat(b, g, shape, &mut kept_g)?;
    put(b, &held, OP, ScatterOp::Add, 0, index.with(&column), g.with(&rows), dw)?;
    match padding_index {
        Some(p) => crate::map::fill(b, &mut dw.with(&dw.layout.narrow(0, p, 1)?), Scalar::Int(0)),
        None => Ok(()),
    }
}
