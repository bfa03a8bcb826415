//! Sorting. Each element is converted to a key, an unsigned integer, such that the keys have the order of the elements.
//! The keys are sorted in blocks by counting. The blocks are then merged by one thread for each element, which finds the
//! element's place by binary search. All steps are stable.

use gradus_backend::key::key;
use gradus_backend::{DType, MergedAxes, Result, Shape, View, ViewMut};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::{self, THREADS, Text, compute, element};
use crate::map::{bits_of, blocks};
use crate::queue::Launch;
use crate::temp::Temp;

/// The number of elements in a block, which is sorted by counting.
const BLOCK: usize = 32;

/// See [`Backend::sort`](gradus_backend::Backend::sort).
pub(crate) fn sort(
    b: &CudaBackend,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    gradus_backend::check::sort(x, axis, values, indices)?;
    if x.layout.numel() == 0 {
        return Ok(());
    }
    sorted(b, "sort", x, axis, descending, values, indices)
}

/// Sorts operands that have been checked and are not empty.
pub(crate) fn sorted(
    b: &CudaBackend,
    op: &str,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let (n, total, dtype) = (x.layout.dims()[axis], x.layout.numel(), x.dtype);
    let keys = if dtype.size() == 8 { DType::U64 } else { DType::U32 };
    // The place of an element in its line, which is below 2^32 unless a line fills 64 GiB.
    let places = if n <= u32::MAX as usize { DType::U32 } else { DType::U64 };
    let shape = Shape::new(&[total])?;
    let mut from = (Temp::new(b, keys, shape)?, Temp::new(b, places, shape)?);
    sort_blocks(b, op, x, axis, descending, &mut from)?;
    let grid = blocks(op, total as u64)?;
    if n > BLOCK {
        let mut to = (Temp::new(b, keys, shape)?, Temp::new(b, places, shape)?);
        let mut run = BLOCK;
        while run < n {
            let (k, i) = (to.0.view_mut(), to.1.view_mut());
            let all = [
                b.input(op, "keys", from.0.view())?,
                b.input(op, "places", from.1.view())?,
                b.output(op, "keys", &k)?,
                b.output(op, "places", &i)?,
            ];
            let mut arguments = Arguments::new();
            all.iter().for_each(|o| _ = arguments.ptr(o.ptr));
            arguments.u64(total as u64).u64(n as u64).u64(run as u64);
            b.queue().launch(&Launch {
                call: op.into(),
                key: key(("sort_merge", keys, places)),
                entry: "gradus_sort_merge",
                source: &|| merge(keys, places),
                uses: &all.map(|o| o.used),
                arguments: &arguments,
                grid,
                block: [THREADS, 1, 1],
                shared: 0,
            })?;
            std::mem::swap(&mut from, &mut to);
            run *= 2;
        }
    }
    // Writes the elements and their places in order.
    let bits = bits_of(dtype);
    let order = b.input(op, "places", from.1.view())?;
    let (at, v, i) = (b.input(op, "x", x)?, b.output(op, "values", values)?, b.output(op, "indices", indices)?);
    let layouts = [at.layout, v.layout, i.layout];
    let axes = MergedAxes::merged(&layouts, (0..x.layout.rank()).filter(|&a| a != axis));
    let rank = axes.rank();
    let mut arguments = Arguments::new();
    arguments.ptr(at.ptr).ptr(order.ptr).ptr(v.ptr).ptr(i.ptr).u64(total as u64).u64(n as u64);
    arguments.longs(&layouts.map(|l| l.strides()[axis] as i64));
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    let source = || {
        let mut text = Text::new();
        text.parameter(format_args!("const {} *__restrict__ x", element(bits)));
        text.parameter(format_args!("const {} *__restrict__ order", element(places)));
        text.parameter(format_args!("{} *__restrict__ values", element(bits)));
        text.parameter("i64 *__restrict__ indices, const u64 total, const u64 n");
        text.longs("along", 3);
        if rank > 0 {
            text.longs("axes", rank * 4);
        }
        text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line("if (id >= total) return;");
        text.line("const u64 line = id / n; const i64 mine = id % n, place = order[id];");
        code::coordinates(&mut text, "u64", "c", "line", rank, "axes");
        let position = |k| code::position(false, "c", rank, "axes", k);
        text.line(format_args!(
            "values[{} + mine * along.v[1]] = x[{} + place * along.v[0]];",
            position(1),
            position(0)
        ));
        text.line(format_args!("indices[{} + mine * along.v[2]] = place;", position(2)));
        text.finish("gradus_sort_write", THREADS)
    };
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("sort_write", bits, places, rank)),
        entry: "gradus_sort_write",
        source: &source,
        uses: &[at.used, order.used, v.used, i.used],
        arguments: &arguments,
        grid,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// Computes the keys, and sorts each block of them by counting.
fn sort_blocks(
    b: &CudaBackend,
    op: &str,
    x: View<'_>,
    axis: usize,
    descending: bool,
    (keys, places): &mut (Temp, Temp),
) -> Result<()> {
    let (n, total, dtype) = (x.layout.dims()[axis], x.layout.numel(), x.dtype);
    let at = b.input(op, "x", x)?;
    let axes = MergedAxes::merged(&[at.layout], (0..x.layout.rank()).filter(|&a| a != axis));
    let rank = axes.rank();
    let (key_type, place_type) = (keys.dtype, places.dtype);
    let (k, i) = (keys.view_mut(), places.view_mut());
    let (k, i) = (b.output(op, "keys", &k)?, b.output(op, "places", &i)?);
    let mut arguments = Arguments::new();
    arguments.ptr(at.ptr).ptr(k.ptr).ptr(i.ptr).u64(total as u64).u64(n as u64);
    arguments.i64(at.layout.strides()[axis] as i64);
    if rank > 0 {
        arguments.longs(&code::axes_longs(&axes));
    }
    let source = || {
        let mut text = Text::new();
        text.declare(key_function(dtype, descending));
        text.parameter(format_args!("const {} *__restrict__ x", element(dtype)));
        text.parameter(format_args!("{} *__restrict__ keys", element(key_type)));
        text.parameter(format_args!("{} *__restrict__ places", element(place_type)));
        text.parameter("const u64 total, const u64 n, const i64 step");
        if rank > 0 {
            text.longs("axes", rank * 2);
        }
        text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line("if (id >= total) return;");
        text.line("const u64 line = id / n; const i64 mine = id % n;");
        code::coordinates(&mut text, "u64", "c", "line", rank, "axes");
        text.line(format_args!("x += {};", code::position(false, "c", rank, "axes", 0)));
        text.line("const auto own = sort_key(wide(x[mine * step]));");
        text.line(format_args!(
            "const i64 start = mine / {BLOCK} * {BLOCK}, end = start + {BLOCK} < (i64)n ? start + {BLOCK} : (i64)n;"
        ));
        text.line("i64 place = start;");
        text.line("for (i64 j = start; j < end; ++j) {");
        text.line("const auto other = sort_key(wide(x[j * step]));");
        text.line("if (other < own || (other == own && j < mine)) ++place; }");
        text.line("keys[line * n + place] = own; places[line * n + place] = mine;");
        text.finish("gradus_sort_blocks", THREADS)
    };
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("sort_blocks", dtype, descending, rank, place_type)),
        entry: "gradus_sort_blocks",
        source: &source,
        uses: &[at.used, k.used, i.used],
        arguments: &arguments,
        grid: blocks(op, total as u64)?,
        block: [THREADS, 1, 1],
        shared: 0,
    })
}

/// The kernel that merges pairs of sorted runs.
fn merge(keys: DType, places: DType) -> String {
    let mut text = Text::new();
    text.parameter(format_args!("const {} *__restrict__ k", element(keys)));
    text.parameter(format_args!("const {} *__restrict__ p", element(places)));
    text.parameter(format_args!("{} *__restrict__ k2", element(keys)));
    text.parameter(format_args!("{} *__restrict__ p2", element(places)));
    text.parameter("const u64 total, const u64 n, const u64 run");
    text.line(format_args!("const u64 id = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
    text.line("if (id >= total) return;");
    text.line("const u64 line = id / n * n, mine = id % n, left = mine / (2 * run) * 2 * run;");
    text.line("const u64 middle = left + run < n ? left + run : n, right = middle + run < n ? middle + run : n;");
    text.line("const auto own = k[line + mine]; const bool first = mine < middle;");
    text.line("u64 lo = first ? middle : left, hi = first ? right : middle; const u64 begin = lo;");
    text.line("while (lo < hi) { const u64 m = (lo + hi) / 2; const auto other = k[line + m];");
    text.line("if (other < own || (!first && other == own)) lo = m + 1; else hi = m; }");
    text.line("const u64 place = line + (first ? mine : left + (mine - middle)) + (lo - begin);");
    text.line("k2[place] = own; p2[place] = p[id];");
    text.finish("gradus_sort_merge", THREADS)
}

/// The function `sort_key`, which converts an element to an unsigned integer. The integers have the order of the
/// elements, reversed if `descending`. NaN counts as the largest element, and both zeros are equal.
fn key_function(dtype: DType, descending: bool) -> String {
    let body = match dtype.compute() {
        DType::F32 => {
            "u32 k = 0xffffffffu; if (x == x) { const u32 b = __float_as_uint(x == 0 ? 0.0f : x); k = b >> 31 ? ~b : b | \
             0x80000000u; }"
        }
        DType::F64 => {
            "u64 k = ~0ull; if (x == x) { const u64 b = __double_as_longlong(x == 0 ? 0.0 : x); k = b >> 63 ? ~b : b | (1ull \
             << 63); }"
        }
        DType::I64 => "u64 k = (u64)x ^ (1ull << 63);",
        DType::U64 => "u64 k = x;",
        DType::Bool => "u32 k = x ? 1 : 0;",
        d if d.is_signed() => "u32 k = (u32)(i32)x ^ 0x80000000u;",
        _ => "u32 k = x;",
    };
    let turn = if descending { "k = ~k;" } else { "" };
    let u = if dtype.size() == 8 { "u64" } else { "u32" };
    format!("{u} sort_key({} x) {{ {body} {turn} return k; }}", compute(dtype))
}
