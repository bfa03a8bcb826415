//! Sorting. Each element is converted to a key, an unsigned integer, such that the keys have the order of the elements.
//! The keys are sorted in blocks by counting. The blocks are then merged by one invocation per element, which finds the
//! element's place by binary search. All steps are stable.

use gradus_backend::{DType, Error, ErrorKind, Layout, Result, ScalarOp, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::map::bits_of;
use crate::operand::cut;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, param, ty};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

/// The number of elements in a block, which is sorted by counting.
const BLOCK: usize = 32;

/// See [`Backend::sort`](gradus_backend::Backend::sort).
pub(crate) fn sort(
    b: &WgpuBackend,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "sort";
    if axis >= x.layout.rank() {
        return Err(Error::new(ErrorKind::InvalidAxis, OP, format!("axis {axis} of {}", x.layout.shape())));
    }
    b.check_dtype(OP, x.dtype)?;
    b.expect(OP, "values", values.as_view(), x.dtype, x.layout.dims())?;
    b.expect(OP, "indices", indices.as_view(), DType::I64, x.layout.dims())?;
    if x.layout.numel() == 0 {
        return Ok(());
    }
    sorted(b, OP, x, axis, descending, values, indices)
}

/// Sorts operands that have been checked and are not empty. `indices` may have any integer dtype.
pub(crate) fn sorted(
    b: &WgpuBackend,
    op: &str,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let rank = x.layout.rank();
    let fit = [(x.layout, x.dtype), (values.layout, values.dtype), (indices.layout, indices.dtype)];
    // The keys have up to 8 bytes.
    let keys = Layout::contiguous(*x.layout.shape());
    let wide = fit.into_iter().chain([(&keys, DType::U64)]).find(|&(l, d)| !b.fits(l, d));
    if let Some((axis_cut, half)) = wide.and_then(|(l, _)| cut(l, (0..rank).filter(|&a| a != axis))) {
        for (start, len) in [(0, half), (half, x.layout.dims()[axis_cut] - half)] {
            let part = |l: &Layout| l.narrow(axis_cut, start, len);
            let (from, v, i) = (part(x.layout)?, part(values.layout)?, part(indices.layout)?);
            sorted(b, op, x.with(&from), axis, descending, &mut values.with(&v), &mut indices.with(&i))?;
        }
        return Ok(());
    }
    let n = x.layout.dims()[axis];
    let total = x.layout.numel();
    let lines = total / n;
    let wide = x.dtype.size() == 8;
    let keys = if wide { DType::U64 } else { DType::U32 };
    let [less, same] = [ScalarOp::Lt, ScalarOp::Eq].map(|op| wgsl::binary(op, keys, "other", "own"));
    let shape = Shape::new(&[total])?;
    let flat = Layout::contiguous(shape);
    let mut from = (Temp::new(b, keys, shape)?, Temp::new(b, DType::U32, shape)?);
    let mut to = (Temp::new(b, keys, shape)?, Temp::new(b, DType::U32, shape)?);
    let groups = (total as u64).div_ceil(u64::from(GROUP));
    let dtype = x.dtype;
    {
        let at = b.input(op, "x", x)?;
        let axes = Axes::merged(&[&at.layout], (0..rank).filter(|&a| a != axis));
        let rank = axes.rank();
        let mut params = vec![total as u32, n as u32, at.layout.offset() as u32, at.layout.strides()[axis] as u32];
        params.extend(axes.dims.iter().map(|&d| d as u32));
        params.extend(axes.steps[0].iter().map(|&s| s as u32));
        let source = || {
            let mut text = Text::new(4 + 2 * rank);
            text.input("x", dtype);
            text.output("k", keys);
            text.output("i", DType::U32);
            text.declare(key_function(dtype, descending));
            text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
            text.line(format_args!("let n = {}; let line = id / n; let mine = id % n;", param(1)));
            wgsl::coordinates(&mut text, "c", "line", rank, 4);
            text.line(format_args!("let base = {};", wgsl::position("c", rank, 2, 4 + rank)));
            text.line(format_args!("let own = sort_key(load_x(base + mine * {}));", param(3)));
            text.line(format_args!(
                "let start = mine / {BLOCK}u * {BLOCK}u; let end = min(n, start + {BLOCK}u); var place = start;"
            ));
            text.line(format_args!(
                "for (var j = start; j < end; j = j + 1u) {{ let other = sort_key(load_x(base + j * {}));",
                param(3)
            ));
            text.line(format_args!("if ({less} || ({same} && j < mine)) {{ place = place + 1u; }} }}"));
            text.line("store_k(line * n + place, own); store_i(line * n + place, mine);");
            text.finish(GROUP)
        };
        let (k, i) = (&mut from.0, &mut from.1);
        let (k, i) = (k.view_mut(), i.view_mut());
        let binds = [at.bind, b.output(op, "keys", &k)?.bind, b.output(op, "indices", &i)?.bind];
        let key = key(("sort_blocks", dtype, descending, rank));
        b.queue().launch(&Launch { call: op.into(), key, source: &source, binds: &binds, params: &params, groups })?;
    }
    let mut run = BLOCK;
    while run < n {
        let source = || {
            let mut text = Text::new(3);
            text.input("k", keys);
            text.input("i", DType::U32);
            text.output("k2", keys);
            text.output("i2", DType::U32);
            text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
            text.line(format_args!(
                "let n = {}; let run = {}; let line = id / n * n; let mine = id % n;",
                param(1),
                param(2)
            ));
            text.line("let left = mine / (2u * run) * 2u * run; let middle = min(n, left + run); let right = min(n, middle + run);");
            text.line("let own = load_k(line + mine); let first = mine < middle;");
            text.line("var lo = select(left, middle, first); var hi = select(middle, right, first); let begin = lo;");
            text.line("while (lo < hi) { let m = (lo + hi) / 2u; let other = load_k(line + m);");
            text.line(format_args!("if ({less} || (!first && {same})) {{ lo = m + 1u; }} else {{ hi = m; }} }}"));
            text.line("let place = select(left + (mine - middle), mine, first) + (lo - begin);");
            text.line("store_k2(line + place, own); store_i2(line + place, load_i(id));");
            text.finish(GROUP)
        };
        let params = [total as u32, n as u32, run as u32];
        let (k, i) = (to.0.view_mut(), to.1.view_mut());
        let binds = [
            b.input(op, "keys", from.0.view())?.bind,
            b.input(op, "indices", from.1.view())?.bind,
            b.output(op, "keys", &k)?.bind,
            b.output(op, "indices", &i)?.bind,
        ];
        let key = key(("sort_merge", keys));
        b.queue().launch(&Launch { call: op.into(), key, source: &source, binds: &binds, params: &params, groups })?;
        std::mem::swap(&mut from, &mut to);
        run *= 2;
    }
    let bits = bits_of(dtype);
    let at = b.operand(op, "x", x.buffer, bits, x.layout, false)?;
    let v = b.operand(op, "values", values.buffer, bits, values.layout, true)?;
    let i = b.output(op, "indices", indices)?;
    let layouts = [&at.layout, &v.layout, &i.layout];
    let axes = Axes::merged(&layouts, (0..rank).filter(|&a| a != axis));
    let rank = axes.rank();
    debug_assert_eq!(axes.numel(), lines);
    let mut params = vec![total as u32, n as u32];
    params.extend(layouts.iter().flat_map(|l| [l.offset() as u32, l.strides()[axis] as u32]));
    params.extend(axes.dims.iter().map(|&d| d as u32));
    axes.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    let out = indices.dtype;
    let source = || {
        let steps = |k: usize| 8 + rank + k * rank;
        let mut text = Text::new(steps(3));
        text.input("x", bits);
        text.input("o", DType::U32);
        text.output("v", bits);
        text.output("i", out);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        text.line(format_args!("let line = id / {}; let mine = id % {}; let from_ = load_o(id);", param(1), param(1)));
        wgsl::coordinates(&mut text, "c", "line", rank, 8);
        let position = |k: usize| wgsl::position("c", rank, 2 + 2 * k, steps(k));
        text.line(format_args!(
            "store_v({} + mine * {}, load_x({} + from_ * {}));",
            position(1),
            param(5),
            position(0),
            param(3)
        ));
        text.line(format_args!(
            "store_i({} + mine * {}, {});",
            position(2),
            param(7),
            wgsl::cast("from_", DType::U32, out)
        ));
        text.finish(GROUP)
    };
    let order = View { buffer: &from.1.buffer, dtype: DType::U32, layout: &flat };
    let binds = [at.bind, b.input(op, "order", order)?.bind, v.bind, i.bind];
    let key = key(("sort_write", bits, out, rank));
    b.queue().launch(&Launch { call: op.into(), key, source: &source, binds: &binds, params: &params, groups })
}

/// The function `sort_key`, which converts an element to an unsigned integer. The integers have the order of the
/// elements, reversed if `descending`. NaN counts as the largest element, and both zeros are equal.
fn key_function(dtype: DType, descending: bool) -> String {
    let body = match dtype.compute() {
        DType::F32 => {
            "var k = 0xffffffffu; if (!is_nan_f32(x)) { let b = bitcast<u32>(select(x, 0.0f, x == 0.0f)); k = select(b | \
             0x80000000u, ~b, (b >> 31u) == 1u); }"
        }
        DType::F64 => {
            "var k = vec2<u32>(0xffffffffu); if (!is_nan_f64(x)) { let b = words_of(bitcast<u64>(select(x, 0.0lf, x == \
             0.0lf))); k = select(b | vec2<u32>(0u, 0x80000000u), ~b, (b.y >> 31u) == 1u); }"
        }
        DType::I64 => "var k = x ^ vec2<u32>(0u, 0x80000000u);",
        DType::Bool => "var k = select(0u, 1u, x);",
        d if d.is_signed() => "var k = bitcast<u32>(x) ^ 0x80000000u;",
        _ => "var k = x;",
    };
    let turn = if descending { "k = ~k;" } else { "" };
    let u = if dtype.size() == 8 { "vec2<u32>" } else { "u32" };
    format!("fn sort_key(x: {}) -> {u} {{ {body} {turn} return k; }}", ty(dtype))
}
