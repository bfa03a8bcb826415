//! Gather, scatter and embeddings.
//!
//! The position of the first index out of range is recorded in a fault slot: by gather and embedding themselves where
//! one kernel reaches all operands, and otherwise by a kernel that runs before those that use the indices. These skip
//! indices out of range. The value of the index is then added to the slot by a last, small kernel, or, for few indices, by the
//! kernel that checks them.

use gradus_backend::{DType, Error, ErrorKind, Layout, Result, Scalar, ScalarOp, ScatterOp, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::map::{FEWEST, MANY, bits_of};
use crate::operand::{LOOP, cut};
use crate::queue::{Bind, Call, Held, Launch};
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, cast, param, ty};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;
use gradus_backend::late::Fault;

/// Up to this many indices are checked by one work-group.
const ONE_GROUP: usize = 1 << 15;
/// With at most this many indices along an axis, every output element is compared with all of them. More indices are
/// sorted first.
const LOOK_AT_ALL: usize = 64;

fn check_index_dtype(op: &str, index: View<'_>) -> Result<()> {
    match index.dtype {
        DType::I64 | DType::I32 | DType::U32 => Ok(()),
        d => Err(Error::dtype(op, d, "i64, i32 and u32 as indices")),
    }
}

/// Queues a search for the first index, in row-major order, that is outside `0..size` and is not `ignored`. Launches
/// that use the indices must be made with [`awaited_by`](Held::awaited_by).
pub(crate) fn check_index<'b>(
    b: &'b WgpuBackend,
    op: &str,
    index: View<'_>,
    size: usize,
    ignored: Option<i64>,
) -> Result<Held<'b>> {
    check_index_dtype(op, index)?;
    let held = b.queue().hold(op, || Fault::index(op))?;
    check_part(b, held.filled_by(op), held.slot, (index, 0), size, ignored, None)?;
    Ok(held)
}

/// The WGSL condition under which the index `v` lies outside an axis of this size.
fn outside(dtype: DType, size: &str) -> String {
    match dtype {
        DType::U32 => format!("v >= {size}"),
        DType::I32 => format!("v < 0 || bitcast<u32>(v) >= {size}"),
        _ => format!("v.y != 0u || v.x >= {size}"),
    }
}

/// Checks a part of the indices. `first` is the position of its first index. `finder` is a launch that finds the first bad
/// index by itself, of indices that fit a kernel.
fn check_part(
    b: &WgpuBackend,
    call: Call<'_>,
    slot: u32,
    (index, first): (View<'_>, usize),
    size: usize,
    ignored: Option<i64>,
    finder: Option<&Launch<'_>>,
) -> Result<()> {
    let op = call.op;
    let n = index.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if !b.fits(index.layout, index.dtype) {
        // Splits the first axis that can be split, so that the positions of each half are consecutive.
        let dims = index.layout.dims();
        let Some(axis) = (0..dims.len()).find(|&a| dims[a] > 1) else {
            return Err(Error::new(ErrorKind::Unsupported, op, "the indices span more than a kernel reaches"));
        };
        let half = dims[axis] / 2;
        for (start, len) in [(0, half), (half, dims[axis] - half)] {
            let part = index.layout.narrow(axis, start, len)?;
            check_part(b, call, slot, (index.with(&part), first + start * (n / dims[axis])), size, ignored, None)?;
        }
        return Ok(());
    }
    let x = b.input(op, "index", index)?;
    let axes = Axes::merged(&[&x.layout], 0..x.layout.rank());
    let (dtype, rank) = (index.dtype, axes.rank());
    // A value that the dtype cannot hold matches no index.
    let ignored = ignored.filter(|&v| Scalar::Int(v).check(dtype).is_ok());
    let mut params =
        vec![n as u32, u32::try_from(size).unwrap_or(u32::MAX), slot, x.layout.offset() as u32, first as u32];
    params.extend(ignored.map_or([0; 2], |v| [v as u32, (v >> 32) as u32]));
    params.extend(axes.dims.iter().map(|&d| d as u32));
    params.extend(axes.steps[0].iter().map(|&s| s as u32));
    let fixed = 7;
    let source = |find: bool, tell: bool| {
        let mut text = Text::new(fixed + 2 * rank);
        text.input("x", dtype);
        text.fault(2);
        let t = ty(dtype);
        text.declare(format_args!("fn at(i: u32) -> u32 {{"));
        let mut inner = Text::default();
        wgsl::coordinates(&mut inner, "c", "i", rank, fixed);
        inner.line(format_args!("return {};", wgsl::position("c", rank, 3, fixed + rank)));
        text.declare(format_args!("{}}}", inner.into_body()));
        let size = param(1);
        let bad = outside(dtype, &size);
        let skip = crate::map::scalar_param(5, dtype);
        let skipped = wgsl::binary(ScalarOp::Ne, dtype, "v", &skip);
        let bad = if ignored.is_some() { format!("{skipped} && ({bad})") } else { bad };
        text.line(format_args!("let slot = {} * 8u; let filled = atomicLoad(&faults[slot]) != 0u;", param(2)));
        if find {
            text.line(format_args!(
                "if (!filled) {{ for (var i = id; i < {}; i = i + {GROUP}u * nw.x * nw.y) {{",
                param(0)
            ));
            text.line(format_args!(
                "let v: {t} = load_x(at(i)); if ({bad}) {{ atomicMax(&faults[slot + 1u], ~(i + {})); break; }} }} }}",
                param(4)
            ));
        }
        if find && tell {
            text.line("storageBarrier(); workgroupBarrier();");
        }
        if tell {
            text.line("if (id > 0u || filled) { return; }");
            text.line("let worst = atomicLoad(&faults[slot + 1u]); if (worst == 0u) { return; }");
            text.line(format_args!("let place = ~worst - {}; let v = load_x(at(place));", param(4)));
            let words = match dtype {
                DType::U32 => ["v", "0u"],
                DType::I32 => ["bitcast<u32>(v)", "bitcast<u32>(v >> 31u)"],
                _ => ["v.x", "v.y"],
            };
            text.line(format_args!(
                "atomicStore(&faults[slot + 2u], {}); atomicStore(&faults[slot + 3u], {});",
                words[0], words[1]
            ));
            text.line(format_args!("atomicStore(&faults[slot + 4u], {size}); fail();"));
        }
        text.finish(GROUP)
    };
    // One kernel finds the first bad index, and one records its value. For few indices, both are a single launch.
    let key = |find: bool, tell: bool| key(("check_index", dtype, rank, ignored.is_some(), find, tell));
    let (both, find, tell) = (|| source(true, true), || source(true, false), || source(false, true));
    let (key_both, binds, params) = (key(true, true), &[x.bind], &params);
    let one = Launch { call, key: key_both, source: &both, binds, params, groups: 1 };
    if n <= ONE_GROUP && finder.is_none() {
        return b.queue().launch(&one);
    }
    let groups = (n as u64).div_ceil(u64::from(GROUP)).min(4096);
    let found = Launch { key: key(true, false), source: &find, groups, ..one };
    // It reads one index at most.
    let binds = &[Bind { distinct: dtype.size() as u64, ..x.bind }];
    let told = Launch { key: key(false, true), source: &tell, binds, ..one };
    // A read between the two launches would empty the slot.
    b.queue().launch_both(finder.unwrap_or(&found), &told)
}

/// Checks that `index` and `other` have the same shape, and that it equals the shape of `indexed` except along `axis`.
fn check_axis(op: &str, axis: usize, index: &Layout, other: &Layout, indexed: &Layout) -> Result<()> {
    let rank = indexed.rank();
    if axis >= rank {
        return Err(Error::new(ErrorKind::InvalidAxis, op, format!("axis {axis} of {}", indexed.shape())));
    }
    let dims = other.dims();
    let same = |i: usize| i == axis || dims[i] == indexed.dims()[i];
    if index.dims() != dims || dims.len() != rank || !(0..rank).all(same) {
        let m = format!(
            "along axis {axis} of {} the indices have shape {} and the other operand {}",
            indexed.shape(),
            index.shape(),
            other.shape()
        );
        return Err(Error::shape(op, m).help("both have the shape of the indexed tensor but for the indexed axis"));
    }
    Ok(())
}

/// A layout in which `axis` has `size` elements and a stride of 0, so that every position along it refers to the first
/// element.
fn held(layout: &Layout, axis: usize, size: usize) -> Result<Layout> {
    let mut strides = layout.strides().to_vec();
    strides[axis] = 0;
    let shape = layout.shape().with(axis, size)?;
    Layout::from_parts(shape, &strides, layout.offset(), usize::MAX)
}

/// See [`Backend::gather`](gradus_backend::Backend::gather).
pub(crate) fn gather(b: &WgpuBackend, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "gather";
    check_axis(OP, axis, index.layout, out.layout, x.layout)?;
    b.expect(OP, "out", out.as_view(), x.dtype, out.layout.dims())?;
    b.check_dtype(OP, x.dtype)?;
    if x.layout.dims()[axis] == 0 && out.layout.numel() > 0 {
        return Err(gradus_backend::check::nothing_to_select(b, OP, index));
    }
    take_checked(b, OP, x, axis, index, out, (index, 1))
}

/// Gathers, and checks the indices. `given` are the indices in the order in which an error counts them, each of which is
/// `share` neighbours of `index`.
fn take_checked(
    b: &WgpuBackend,
    op: &str,
    x: View<'_>,
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
    (given, share): (View<'_>, usize),
) -> Result<()> {
    let size = x.layout.dims()[axis];
    let operands = [x, index, given, out.as_view()];
    if out.layout.numel() == 0 || !operands.iter().all(|v| b.fits(v.layout, v.dtype)) {
        let held = check_index(b, op, given, size, None)?;
        return take(b, held.awaited_by(op), (x, 0), axis, index, out);
    }
    check_index_dtype(op, index)?;
    let held = b.queue().hold(op, || Fault::index(op))?;
    let (call, slot) = (held.filled_by(op), held.slot);
    pick(b, call, (x, 0), axis, index, out, Some((slot, share)), &|launch| {
        check_part(b, call, slot, (given, 0), size, None, Some(launch))
    })
}

/// Gathers with indices that are checked elsewhere. `x` is a part of the indexed tensor, and starts at index `first`
/// along the axis. Where an index lies outside `x`, the element of `out` is left unchanged.
pub(crate) fn take(
    b: &WgpuBackend,
    call: Call<'_>,
    (x, first): (View<'_>, usize),
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (op, n, size) = (call.op, out.layout.numel(), x.layout.dims()[axis]);
    if n == 0 || size == 0 {
        return Ok(());
    }
    let operands = [(x.layout, x.dtype), (index.layout, index.dtype), (out.layout, out.dtype)];
    if let Some(which) = operands.iter().position(|&(l, d)| !b.fits(l, d)) {
        let Some((at, half)) = cut(operands[which].0, 0..out.layout.rank()) else {
            return Err(Error::new(ErrorKind::Unsupported, op, "an operand spans more than a kernel reaches"));
        };
        for (start, len) in [(0, half), (half, operands[which].0.dims()[at] - half)] {
            let part = |l: &Layout, cut: bool| if cut { l.narrow(at, start, len) } else { Ok(*l) };
            let (of_x, of_index) = (at != axis || which == 0, at != axis || which != 0);
            let (from, key, to) = (part(x.layout, of_x)?, part(index.layout, of_index)?, part(out.layout, of_index)?);
            let first = if at == axis && which == 0 { first + start } else { first };
            take(b, call, (x.with(&from), first), axis, index.with(&key), &mut out.with(&to))?;
        }
        return Ok(());
    }
    pick(b, call, (x, first), axis, index, out, None, &|launch| b.queue().launch(launch))
}

/// Launches the kernel of a gather by `run`, for operands that fit. With `check`, which is a fault slot and the number of
/// neighbours that are the same index, the kernel records the first index out of range.
fn pick(
    b: &WgpuBackend,
    call: Call<'_>,
    (x, first): (View<'_>, usize),
    axis: usize,
    index: View<'_>,
    out: &mut ViewMut<'_>,
    check: Option<(u32, usize)>,
    run: &dyn Fn(&Launch<'_>) -> Result<()>,
) -> Result<()> {
    let (op, n, size) = (call.op, out.layout.numel(), x.layout.dims()[axis]);
    let bits = bits_of(x.dtype);
    let (from, at) = (b.operand(op, "x", x.buffer, bits, x.layout, false)?, b.input(op, "index", index)?);
    let to = b.operand(op, "out", out.buffer, bits, out.layout, true)?;
    let base = held(&from.layout, axis, out.layout.dims()[axis])?;
    let mut axes = Axes::merged(&[&to.layout, &at.layout, &base], 0..out.layout.rank());
    let rank = axes.rank();
    let fixed = 9;
    // The positions in `x` and `out` count groups of four elements if an index selects whole groups.
    let mut places = [to.layout.offset() as isize, base.offset() as isize, from.layout.strides()[axis]];
    let quads = n >= FEWEST && bits != DType::U64 && in_groups(&axes) && places.iter().all(|p| p % 4 == 0);
    // So many groups that an index selects are computed by one invocation, which reads the index once.
    let mut times = 1;
    if quads {
        axes.dims[rank - 1] /= 4;
        let most = if n >= MANY { 4 } else { 1 };
        times = (1..=most).rev().find(|&t| axes.dims[rank - 1].is_multiple_of(t)).unwrap_or(1);
        axes.dims[rank - 1] /= times;
        places.iter_mut().for_each(|p| *p /= 4);
        [0, 2].iter().for_each(|&k| axes.steps[k][..rank - 1].iter_mut().for_each(|s| *s /= 4));
    }
    let each = if quads { 4 * times } else { 1 };
    let n = n / each;
    let [to_at, base_at, step] = places;
    let mut params = vec![n as u32, size as u32, step as u32, to_at as u32, at.layout.offset() as u32, base_at as u32];
    let (slot, share) = check.unwrap_or((0, 1));
    params.extend([first as u32, slot, share as u32]);
    params.extend(axes.dims.iter().map(|&d| d as u32));
    axes.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    let source = || {
        let steps = |k: usize| fixed + rank + k * rank;
        let mut text = Text::new(steps(3));
        if quads {
            text.quads("x", bits, false)
        } else {
            text.input("x", bits)
        }
        text.input("i", index.dtype);
        if quads {
            text.quads("y", bits, true)
        } else {
            text.output("y", bits)
        }
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", rank, fixed);
        let position = |k: usize| wgsl::position("c", rank, 3 + k, steps(k));
        text.line(format_args!("let v = load_i({});", position(1)));
        let picked = cast("v", index.dtype, DType::U32);
        if check.is_some() {
            text.fault(7);
            let place = format!("id * {each}u / {}", param(8));
            text.line(format_args!(
                "if ({}) {{ atomicMax(&faults[{} * 8u + 1u], ~({place})); return; }} let picked = {picked};",
                outside(index.dtype, &param(1)),
                param(7)
            ));
        } else {
            if index.dtype == DType::I64 {
                text.line("if (v.y != 0u || v.x == 0xffffffffu) { return; }");
            }
            // An index below `first` wraps to a number above every size.
            text.line(format_args!("let picked = {picked} - {}; if (picked >= {}) {{ return; }}", param(6), param(1)));
        }
        let four = if quads { "4" } else { "" };
        text.line(format_args!("let x_at = {} + picked * {}; let y_at = {};", position(2), param(2), position(0)));
        for t in 0..times {
            let next = if t == 0 { String::new() } else { format!(" + {t}u * {}", param(fixed + rank - 1)) };
            text.line(format_args!("store{four}_y(y_at{next}, load{four}_x(x_at{next}));"));
        }
        text.finish(GROUP)
    };
    run(&Launch {
        call,
        key: key(("gather", bits, index.dtype, rank, quads, times, check.is_some())),
        source: &source,
        binds: &[from.bind, at.bind, to.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// Whether four neighbours along the last axis are also neighbours in memory, aligned to four, and share an index. The
/// operands are the result, the indices, and what they select from.
fn in_groups(axes: &Axes) -> bool {
    let Some(last) = axes.rank().checked_sub(1) else { return false };
    let [to, at, base] = &axes.steps[..] else { return false };
    let aligned = |steps: &[isize]| steps[last] == 1 && steps[..last].iter().all(|s| s % 4 == 0);
    axes.dims[last].is_multiple_of(4) && at[last] == 0 && aligned(to) && aligned(base)
}

/// See [`Backend::scatter`](gradus_backend::Backend::scatter).
pub(crate) fn scatter(
    b: &WgpuBackend,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "scatter";
    check_axis(OP, axis, index.layout, src.layout, out.layout)?;
    b.expect(OP, "src", src, out.dtype, src.layout.dims())?;
    b.check_dtype(OP, src.dtype)?;
    if op == ScatterOp::Add && src.dtype == DType::Bool {
        return Err(Error::dtype(OP, src.dtype, "numbers"));
    }
    let held = check_index(b, OP, index, out.layout.dims()[axis], None)?;
    put(b, held.awaited_by(OP), op, axis, index, src, out)
}

/// Scatters with indices that are checked elsewhere. Each element of `out` collects its sources in order.
fn put(
    b: &WgpuBackend,
    call: Call<'_>,
    op: ScatterOp,
    axis: usize,
    index: View<'_>,
    src: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let count = src.layout.dims()[axis];
    if src.layout.numel() == 0 || out.layout.numel() == 0 {
        return Ok(());
    }
    // An output element may loop over all sources. If there are too many, or an operand is too large to bind, pieces of
    // the sources are scattered one after the other, so that the order is kept.
    let large = !b.fits(src.layout, src.dtype) || !b.fits(index.layout, index.dtype);
    if count > LOOP || large && count > 1 {
        let piece = if large { count / 2 } else { LOOP };
        for start in (0..count).step_by(piece) {
            let part = |l: &Layout| l.narrow(axis, start, piece.min(count - start));
            put(b, call, op, axis, index.with(&part(index.layout)?), src.with(&part(src.layout)?), out)?;
        }
        return Ok(());
    }
    if count <= LOOK_AT_ALL {
        return collect(b, call, op, axis, (index, None), src, (out, 0));
    }
    // Where the index is broadcast along an axis, it is sorted only once.
    let mut narrow = *index.layout;
    for a in (0..narrow.rank()).filter(|&a| a != axis && index.layout.strides()[a] == 0) {
        narrow = narrow.narrow(a, 0, 1)?;
    }
    let mut sorted = Temp::new(b, index.dtype, *narrow.shape())?;
    let mut order = Temp::new(b, DType::U32, *narrow.shape())?;
    crate::sort::sorted(b, call.op, index.with(&narrow), axis, false, &mut sorted.view_mut(), &mut order.view_mut())?;
    let (keys, places) = (sorted.layout.expand(*index.layout.shape())?, order.layout.expand(*index.layout.shape())?);
    let places = View { buffer: &order.buffer, dtype: DType::U32, layout: &places };
    let keys = View { buffer: &sorted.buffer, dtype: index.dtype, layout: &keys };
    collect(b, call, op, axis, (keys, Some(places)), src, (out, 0))
}

/// Queues the kernel of scatter. If `order` is given, `index` is sorted, and `order` holds the original position of
/// each index. `out` is a part of the output that starts at index `first` along the axis.
fn collect(
    b: &WgpuBackend,
    call: Call<'_>,
    op: ScatterOp,
    axis: usize,
    (index, order): (View<'_>, Option<View<'_>>),
    src: View<'_>,
    (out, first): (&mut ViewMut<'_>, usize),
) -> Result<()> {
    if !b.fits(out.layout, out.dtype)
        && let Some((at, half)) = cut(out.layout, 0..out.layout.rank())
    {
        for (start, len) in [(0, half), (half, out.layout.dims()[at] - half)] {
            let part = |l: &Layout| if at == axis { Ok(*l) } else { l.narrow(at, start, len) };
            let (keys, from, to) = (part(index.layout)?, part(src.layout)?, out.layout.narrow(at, start, len)?);
            let places = order.map(|o| part(o.layout)).transpose()?;
            let order = order.zip(places.as_ref()).map(|(o, l)| o.with(l));
            let first = if at == axis { first + start } else { first };
            collect(b, call, op, axis, (index.with(&keys), order), src.with(&from), (&mut out.with(&to), first))?;
        }
        return Ok(());
    }
    let (name, dtype) = (call.op, if op == ScatterOp::Set { bits_of(out.dtype) } else { out.dtype });
    let (rank, count, size) = (out.layout.rank(), src.layout.dims()[axis], out.layout.dims()[axis]);
    let (from, at) = (b.operand(name, "src", src.buffer, dtype, src.layout, false)?, b.input(name, "index", index)?);
    let places = order.map(|o| b.input(name, "order", o)).transpose()?;
    let to = b.operand(name, "out", out.buffer, dtype, out.layout, true)?;
    let mut layouts =
        vec![held(&to.layout, axis, size)?, held(&at.layout, axis, size)?, held(&from.layout, axis, size)?];
    layouts.extend(places.as_ref().map(|p| held(&p.layout, axis, size)).transpose()?);
    let refs: Vec<&Layout> = layouts.iter().collect();
    let axes = Axes::merged(&refs, (0..rank).filter(|&a| a != axis));
    let (rank, operands) = (axes.rank(), layouts.len());
    let n = axes.numel() * size;
    let fixed = 4 + 2 * 4;
    let mut params = vec![n as u32, count as u32, size as u32, first as u32];
    let mut each = vec![&to.layout, &at.layout, &from.layout];
    each.extend(places.as_ref().map(|p| &p.layout));
    let mut pairs: Vec<u32> = each.iter().flat_map(|l| [l.offset() as u32, l.strides()[axis] as u32]).collect();
    pairs.resize(8, 0);
    params.extend(pairs);
    params.extend(axes.dims.iter().map(|&d| d as u32));
    axes.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    let sorted = places.is_some();
    let source = || {
        let steps = |k: usize| fixed + rank + k * rank;
        let mut text = Text::new(steps(operands));
        text.input("s", dtype);
        text.input("i", index.dtype);
        if sorted {
            text.input("o", DType::U32);
        }
        text.output("y", dtype);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        text.line(format_args!("let mine = id % {}; let line = id / {};", param(2), param(2)));
        wgsl::coordinates(&mut text, "c", "line", rank, fixed);
        for (k, name) in ["y", "i", "s", "o"].iter().enumerate().take(operands) {
            text.line(format_args!("let {name}_at = {};", wgsl::position("c", rank, 4 + 2 * k, steps(k))));
        }
        let step = |k: usize| param(5 + 2 * k);
        // The comparison uses the dtype of the index, so that an index out of range matches no element.
        let key = format!("load_i(i_at + j * {})", step(1));
        let own = format!("(mine + {})", param(3));
        text.line(format_args!("let own = {};", cast(&own, DType::U32, index.dtype)));
        text.line(format_args!("let at = y_at + mine * {}; var hit = false;", step(0)));
        // The accumulator starts with the old value, which is kept if no source matches.
        text.line("var acc = load_y(at);");
        let from = if sorted { format!("load_o(o_at + j * {})", step(3)) } else { "j".to_owned() };
        let value = format!("load_s(s_at + {from} * {})", step(2));
        let sum =
            if op == ScatterOp::Set { value } else { wgsl::binary(ScalarOp::Add, dtype.compute(), "acc", &value) };
        let land = format!("acc = {sum};");
        let [less, same] = [ScalarOp::Lt, ScalarOp::Eq].map(|op| wgsl::binary(op, index.dtype, &key, "own"));
        if sorted {
            text.line(format_args!("var lo = 0u; var hi = {};", param(1)));
            text.line(format_args!(
                "while (lo < hi) {{ let j = (lo + hi) / 2u; if ({less}) {{ lo = j + 1u; }} else {{ hi = j; }} }}"
            ));
            text.line(format_args!(
                "for (var j = lo; j < {}; j = j + 1u) {{ if (!({same})) {{ break; }} {land} hit = true; }}",
                param(1)
            ));
        } else {
            text.line(format_args!(
                "for (var j = 0u; j < {}; j = j + 1u) {{ if ({same}) {{ {land} hit = true; }} }}",
                param(1)
            ));
        }
        text.line("if (hit) { store_y(at, acc); }");
        text.finish(GROUP)
    };
    let mut binds = vec![from.bind, at.bind];
    binds.extend(places.as_ref().map(|p| p.bind));
    binds.push(to.bind);
    b.queue().launch(&Launch {
        call,
        key: key(("scatter", op == ScatterOp::Set, dtype, index.dtype, rank, sorted)),
        source: &source,
        binds: &binds,
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// Checks the shapes and dtypes of a table `[v, d]`, of `index`, and of the rows that `index` selects from the table.
fn rows(
    b: &WgpuBackend,
    op: &str,
    (name, weight): (&str, View<'_>),
    index: View<'_>,
    (rows_name, rows): (&str, View<'_>),
) -> Result<()> {
    check_index_dtype(op, index)?;
    b.check_dtype(op, weight.dtype)?;
    let dims = weight.layout.dims();
    if dims.len() != 2 {
        return Err(Error::shape(op, format!("{name} must have 2 axes [v, d], not shape {}", weight.layout.shape())));
    }
    b.expect(op, rows_name, rows, weight.dtype, &[index.layout.dims(), &dims[1..]].concat())
}

/// Reshapes `x` to `shape`, in which the axes of the index are merged. If this needs a copy, `kept` holds it.
fn flat<'a>(b: &WgpuBackend, x: View<'a>, shape: Shape, kept: &'a mut Option<Temp>) -> Result<(View<'a>, Layout)> {
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
pub(crate) fn embedding(b: &WgpuBackend, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "embedding";
    rows(b, OP, ("weight", weight), index, ("out", out.as_view()))?;
    let (v, d, n) = (weight.layout.dims()[0], weight.layout.dims()[1], index.layout.numel());
    if v == 0 && n * d > 0 {
        return Err(gradus_backend::check::nothing_to_select(b, OP, index));
    }
    if n * d == 0 {
        return check_index(b, OP, index, v, None).map(drop);
    }
    let shape = Shape::new(&[n, d])?;
    let mut kept = None;
    let (rows, column) = flat(b, index, Shape::new(&[n, 1])?, &mut kept)?;
    let column = column.expand(shape)?;
    let (rows, given) = (rows.with(&column), (index, d));
    if let Some(layout) = out.layout.reshape(shape) {
        return take_checked(b, OP, weight, 0, rows, &mut out.with(&layout), given);
    }
    let mut copy = Temp::new(b, out.dtype, shape)?;
    take_checked(b, OP, weight, 0, rows, &mut copy.view_mut(), given)?;
    copy.layout = Layout::contiguous(*out.layout.shape());
    crate::map::copy_strided(b, copy.view(), out)
}

/// See [`Backend::embedding_backward`](gradus_backend::Backend::embedding_backward).
pub(crate) fn embedding_backward(
    b: &WgpuBackend,
    index: View<'_>,
    g: View<'_>,
    padding_index: Option<usize>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    rows(b, OP, ("dw", dw.as_view()), index, ("g", g))?;
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
    put(b, held.awaited_by(OP), ScatterOp::Add, 0, index.with(&column), g.with(&rows), dw)?;
    match padding_index {
        Some(p) => crate::map::fill(b, &mut dw.with(&dw.layout.narrow(0, p, 1)?), Scalar::Int(0)),
        None => Ok(()),
    }
}
