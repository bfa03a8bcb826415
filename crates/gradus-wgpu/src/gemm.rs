//! `gemm`: batched products of strided matrices. They are computed in tiles, or element by element if a matrix has few
//! rows or columns. A long inner axis is summed in parts, whose results are added in a fixed tree.

use gradus_backend::{
    DType, Error, ErrorKind, Kernel, KernelBuilder, Layout, MapArg, Result, Scalar, ScalarOp, Shape, View, ViewMut,
};

use crate::WgpuBackend;
use crate::map::{scalar_param, scalar_words};
use crate::queue::Launch;
use crate::reduce::sum_of_parts;
use crate::temp::Temp;
use crate::tile::{DEPTH, Factor, Product, Tile};
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

const OP: &str = "gemm";
/// Products with at most this many rows or columns use one invocation per element, because most of a tile would be
/// empty.
const SKINNY: usize = 8;
/// The number of elements along k that an invocation sums in such a product, unless the result has many elements.
const CHAIN: usize = 512;
/// With at least this many rows or columns in all, an invocation computes [`OWN`] of them.
const MANY: usize = 1 << 14;
const OWN: usize = 4;
/// The number of parameters before the sizes and strides of the batch: m, k, n, the number of matrices, tiles along n
/// and m, three positions, six strides, alpha and beta (two words each), parts along k, elements of a part, and the
/// distance between the results of two parts.
const FIXED: usize = 22;

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    dtype: DType,
    out: DType,
    batch: usize,
    /// `None` if there are too few rows or columns for tiles.
    tile: Option<Tile>,
    thin: Thin,
    a_along_k: bool,
    b_along_k: bool,
    scaled: bool,
    added: bool,
}

/// How a product with few rows or columns is divided: an invocation computes one element or, of a large result, a few
/// rows with all of their columns, or a few columns with all of their rows.
#[derive(Debug, Clone, Copy, Hash)]
struct Thin {
    /// Whether there are fewer columns than rows.
    by_rows: bool,
    /// The numbers of rows and columns of an invocation, the larger dimension of the result first.
    own: usize,
    all: usize,
    /// Whether the elements of the factor with the larger dimension are read four at a time along k.
    quads: bool,
}

/// See [`Backend::gemm`](gradus_backend::Backend::gemm).
pub(crate) fn gemm(
    b: &WgpuBackend,
    alpha: Scalar,
    x: View<'_>,
    y: View<'_>,
    beta: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (dx, dy, dz) = (x.layout.dims(), y.layout.dims(), out.layout.dims());
    let dtype = x.dtype;
    let wrong = |m: &str| {
        Err(Error::shape(OP, m).operand("a", dx, dtype, b.label()).operand("b", dy, y.dtype, b.label()).operand(
            "c",
            dz,
            out.dtype,
            b.label(),
        ))
    };
    b.check_dtype(OP, dtype)?;
    if dtype == DType::Bool {
        return Err(Error::dtype(OP, dtype, "floats and integers"));
    }
    let rank = dx.len();
    if rank < 2 || dy.len() != rank || dz.len() != rank {
        return wrong("the operands need one rank of at least 2");
    }
    let lead = rank - 2;
    let (m, k, n) = (dx[lead], dx[lead + 1], dy[lead + 1]);
    if dy[lead] != k || dz[lead] != m || dz[lead + 1] != n {
        return wrong("the operands are not [m, k], [k, n] and [m, n]");
    }
    if dx[..lead] != dz[..lead] || dy[..lead] != dz[..lead] {
        return wrong("the batch axes differ");
    }
    b.expect(OP, "b", y, dtype, dy)?;
    b.expect(OP, "c", out.as_view(), dtype, dz)?;
    for s in [alpha, beta] {
        s.check(dtype).map_err(|e| Error::argument(OP, e.message()))?;
    }
    if out.layout.numel() == 0 {
        return Ok(());
    }
    if k == 0 {
        if beta.to_f64() == 0.0 {
            return crate::map::fill(b, out, Scalar::Int(0));
        }
        let kernel = KernelBuilder::new(&[dtype, dtype.compute()]);
        let product = kernel.args()[0].cast(dtype.compute()) * kernel.args()[1];
        let kernel = kernel.finish(OP, &[(product, dtype)])?;
        let layout = out.layout;
        return crate::map::map(b, &kernel, &[MapArg::Output(0), MapArg::Scalar(beta)], &mut [out.with(layout)]);
    }
    let operands = [(x.layout, 0b01), (y.layout, 0b10), (out.layout, 0b11)];
    if let Some((_, uses)) = operands.into_iter().find(|(l, _)| !b.fits(l, dtype)) {
        return by_halves(b, alpha, x, y, beta, out, uses);
    }
    let count = dz[..lead].iter().product();
    let parts = match tile(dtype, count, m, n) {
        Some(tile) => tile.parts(count, m, k, n),
        None => k.div_ceil(if count * m * n < 1 << 14 { CHAIN } else { DEPTH }),
    };
    if parts == 1 {
        return launch(b, alpha, x, y, beta, out, 1);
    }
    if !dtype.is_float() {
        // Sums of integers wrap instead of rounding, so the halves can be added in the output itself.
        return if k > DEPTH {
            halves_along_k(b, alpha, x, y, beta, out)
        } else {
            launch(b, alpha, x, y, beta, out, 1)
        };
    }
    let mut partial = Temp::new(b, dtype.compute(), Shape::new(&[parts, out.layout.numel()])?)?;
    let layout = Layout::contiguous(*out.layout.shape());
    launch(b, alpha, x, y, Scalar::Int(0), &partial.view_mut().with(&layout), parts)?;
    if beta.to_f64() == 0.0 {
        return sum_of_parts(b, OP, partial, out);
    }
    let mut sum = Temp::new(b, dtype.compute(), *out.layout.shape())?;
    sum_of_parts(b, OP, partial, &mut sum.view_mut())?;
    let compute = dtype.compute();
    let kernel = Kernel::build(OP, &[dtype, compute, compute], |v| vec![v[0].cast(compute) * v[2] + v[1]])?;
    let (args, layout) = ([MapArg::Output(0), MapArg::View(sum.view()), MapArg::Scalar(beta)], out.layout);
    crate::map::map(b, &kernel, &args, &mut [out.with(layout)])
}

/// The tile for `count` products of `m` rows and `n` columns; `None` if they have too few rows or columns for tiles.
fn tile(dtype: DType, count: usize, m: usize, n: usize) -> Option<Tile> {
    (m.min(n) > SKINNY).then(|| Tile::new(dtype, count, m, n))
}

/// Computes the product. If `parts` is more than 1, k is split into that many parts, whose results are written one
/// after the other.
fn launch(
    b: &WgpuBackend,
    alpha: Scalar,
    x: View<'_>,
    y: View<'_>,
    beta: Scalar,
    out: &ViewMut<'_>,
    parts: usize,
) -> Result<()> {
    let (p, q, r) = (b.input(OP, "a", x)?, b.input(OP, "b", y)?, b.output(OP, "c", out)?);
    let (dtype, lead) = (x.dtype, out.layout.rank() - 2);
    let (m, k, n) = (x.layout.dims()[lead], x.layout.dims()[lead + 1], y.layout.dims()[lead + 1]);
    let batch = Axes::merged(&[&p.layout, &q.layout, &r.layout], 0..lead);
    let count = batch.numel();
    let steps = [&p, &q, &r].map(|o| [o.layout.strides()[lead], o.layout.strides()[lead + 1]]);
    let tile = tile(dtype, count, m, n);
    let by_rows = n <= m;
    let (long, short) = (m.max(n), m.min(n));
    let (own, all) = if tile.is_none() && count * long * parts >= MANY { (OWN, short) } else { (1, 1) };
    let (long_step, k_step) = if by_rows { (steps[0][0], steps[0][1]) } else { (steps[1][1], steps[1][0]) };
    let factor = usize::from(!by_rows);
    let at = [&p, &q][factor].layout.offset();
    let fours = |n: usize| n.is_multiple_of(4);
    let quads = dtype == DType::F32
        && k_step == 1
        && fours(at)
        && fours(k)
        && fours(k.div_ceil(parts))
        && batch.steps[factor].iter().chain([&long_step]).all(|s| fours(s.unsigned_abs()));
    let thin = Thin { by_rows, own, all, quads: quads && own > 1 };
    let plan = Plan {
        dtype,
        out: out.dtype,
        batch: batch.rank(),
        tile,
        thin,
        a_along_k: steps[0][1].unsigned_abs() <= steps[0][0].unsigned_abs(),
        b_along_k: steps[1][0].unsigned_abs() < steps[1][1].unsigned_abs(),
        scaled: alpha.to_f64() != 1.0,
        added: beta.to_f64() != 0.0,
    };
    let (tiles_m, tiles_n) = match tile {
        Some(tile) => (tile.cover(m), tile.cover(n)),
        None if by_rows => (m.div_ceil(own), n / all),
        None => (m / all, n.div_ceil(own)),
    };
    let tasks = parts as u64 * count as u64 * tiles_m as u64 * tiles_n as u64;
    let mut params: Vec<u32> = [m, k, n, count, tiles_n, tiles_m].map(|v| v as u32).to_vec();
    params.extend([&p, &q, &r].map(|o| o.layout.offset() as u32));
    params.extend(steps.as_flattened().iter().map(|&s| s as u32));
    for s in [alpha, beta] {
        let mut words = scalar_words(s, dtype.compute());
        words.resize(2, 0);
        params.extend(words);
    }
    params.extend([parts, k.div_ceil(parts), out.layout.numel()].map(|v| v as u32));
    params.extend(batch.dims.iter().map(|&d| d as u32));
    batch.steps.iter().for_each(|steps| params.extend(steps.iter().map(|&s| s as u32)));
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("gemm", &plan)),
        source: &|| plan.source(),
        binds: &[p.bind, q.bind, r.bind],
        params: &params,
        groups: if tile.is_some() { tasks } else { tasks.div_ceil(u64::from(GROUP)) },
    })
}

/// Computes a product with an operand that is too large to bind. Splits a batch axis in two or, if there is none to
/// split, the rows of `a` (if bit 0 of `uses` is set), the columns of `b` (if bit 1 is set), or the inner axis.
fn by_halves(
    b: &WgpuBackend,
    alpha: Scalar,
    x: View<'_>,
    y: View<'_>,
    beta: Scalar,
    out: &mut ViewMut<'_>,
    uses: u32,
) -> Result<()> {
    let (dims, lead) = (out.layout.dims(), out.layout.rank() - 2);
    let k = y.layout.dims()[lead];
    let axis = (0..lead).find(|&a| dims[a] > 1);
    let axis = axis.or((uses & 1 == 1 && dims[lead] > 1).then_some(lead));
    let axis = axis.or((uses & 2 == 2 && dims[lead + 1] > 1).then_some(lead + 1));
    let Some(axis) = axis else {
        if k < 2 {
            return Err(Error::new(ErrorKind::Unsupported, OP, "an operand spans more than a kernel reaches"));
        }
        return halves_along_k(b, alpha, x, y, beta, out);
    };
    let half = dims[axis] / 2;
    for (start, len) in [(0, half), (half, dims[axis] - half)] {
        let p = if axis <= lead { x.layout.narrow(axis, start, len)? } else { *x.layout };
        let q = if axis == lead { *y.layout } else { y.layout.narrow(axis, start, len)? };
        let r = out.layout.narrow(axis, start, len)?;
        gemm(b, alpha, x.with(&p), y.with(&q), beta, &mut out.with(&r))?;
    }
    Ok(())
}

/// Computes the product over the first half of the inner axis, and adds the product over the second half to it.
fn halves_along_k(
    b: &WgpuBackend,
    alpha: Scalar,
    x: View<'_>,
    y: View<'_>,
    beta: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let lead = out.layout.rank() - 2;
    let k = y.layout.dims()[lead];
    for (start, len, beta) in [(0, k / 2, beta), (k / 2, k - k / 2, Scalar::Int(1))] {
        let (p, q) = (x.layout.narrow(lead + 1, start, len)?, y.layout.narrow(lead, start, len)?);
        let layout = out.layout;
        gemm(b, alpha, x.with(&p), y.with(&q), beta, &mut out.with(layout))?;
    }
    Ok(())
}

impl Plan {
    fn source(&self) -> String {
        let rank = self.batch;
        let steps = FIXED + rank;
        let mut text = Text::new(steps + 3 * rank);
        for (name, by_rows) in [("a", true), ("b", false)] {
            let quads = self.thin.quads && self.thin.by_rows == by_rows;
            if quads { text.quads(name, self.dtype, false) } else { text.input(name, self.dtype) }
        }
        text.output("c", self.out);
        let (tiles_n, tiles_m) = (param(4), param(5));
        let who = if self.tile.is_some() { "group" } else { "id" };
        text.line(format_args!(
            "let task = {who} / ({tiles_n} * {tiles_m}); let cell = {who} % ({tiles_n} * {tiles_m});"
        ));
        let (matrix, part) = match rank {
            0 => ("0u".to_owned(), "task".to_owned()),
            _ => (format!("task % {}", param(3)), format!("task / {}", param(3))),
        };
        text.line(format_args!("let matrix = {matrix}; let part = {part};"));
        text.line(format_args!("if (part >= {}) {{ return; }}", param(19)));
        text.line(format_args!(
            "let first = part * {}; let end = min({}, first + {});",
            param(20),
            param(1),
            param(20)
        ));
        wgsl::coordinates(&mut text, "q", "matrix", rank, FIXED);
        for (i, name) in ["a", "b", "c"].iter().enumerate() {
            let at = wgsl::position("q", rank, 6 + i, steps + i * rank);
            text.line(format_args!("let {name}_at = {at};"));
        }
        let (m, n) = (param(0), param(2));
        let compute = self.dtype.compute();
        let store = |sum: &str| {
            let mut value = sum.to_owned();
            let joined = |op, a: &str, b: &str| wgsl::binary(op, compute, a, b);
            if self.scaled {
                value = joined(ScalarOp::Mul, &value, &scalar_param(15, compute));
            }
            if self.added {
                let old = joined(ScalarOp::Mul, "load_c(at)", &scalar_param(17, compute));
                value = joined(ScalarOp::Add, &value, &old);
            }
            format!(
                "let at = c_at + part * {} + r * {} + s * {}; store_c(at, {value});",
                param(21),
                param(13),
                param(14)
            )
        };
        match self.tile {
            Some(tile) => {
                let side = tile.side();
                text.line(format_args!(
                    "let row = (cell / {tiles_n}) * {side}u; let col = (cell % {tiles_n}) * {side}u;"
                ));
                let steps = |of: usize| move |lane: &str| format!("let at_{lane} = n_{lane} * {};", param(of));
                let (a_at_k, b_at_k) =
                    (format!("let at = a_at + k * {};", param(10)), format!("let at = b_at + k * {};", param(11)));
                let product = Product {
                    first: "first",
                    end: "end",
                    a: Factor {
                        size: &m,
                        along_k: self.a_along_k,
                        by_k: &a_at_k,
                        by_lane: &steps(9),
                        element: &|lane| format!("load_a(at + at_{lane})"),
                    },
                    b: Factor {
                        size: &n,
                        along_k: self.b_along_k,
                        by_k: &b_at_k,
                        by_lane: &steps(12),
                        element: &|lane| format!("load_b(at + at_{lane})"),
                    },
                    found: None,
                };
                tile.multiply(&mut text, &product);
                tile.store(&mut text, &m, &n, store);
            }
            None => self.thin(&mut text, &store),
        }
        text.finish(self.tile.map_or(GROUP, |tile| tile.size()))
    }

    /// The text after the positions of the operands, for few rows or columns.
    fn thin(&self, text: &mut Text, store: &dyn Fn(&str) -> String) {
        let Thin { by_rows, own, all, quads } = self.thin;
        let compute = self.dtype.compute();
        // The parameters with the steps of a factor along the result and along k.
        let (a, b) = (("a", "r", 9, 10), ("b", "s", 12, 11));
        let ((long, i, long_step, long_k), (short, j, short_step, short_k)) = if by_rows { (a, b) } else { (b, a) };
        let size = param(if by_rows { 0 } else { 2 });
        text.line(format_args!("let row = cell / {}; let col = cell % {0};", param(4)));
        let (first, other) = if by_rows { ("row", "col") } else { ("col", "row") };
        // Neighbouring invocations have neighbouring rows or columns.
        let step = format!("(({size} + {}u) / {own}u)", own - 1);
        for o in 0..own {
            text.line(format_args!(
                "let {i}_{o} = {first} + {o}u * {step}; let at_{o} = min({i}_{o}, {size} - 1u) * {};",
                param(long_step)
            ));
        }
        for e in 0..all {
            text.line(format_args!("let {j}_{e} = {other} * {all}u + {e}u;"));
            (0..own).for_each(|o| {
                text.line(format_args!("var sum_{o}_{e} = {};", wgsl::constant(Scalar::Int(0), compute)))
            });
        }
        let width = if quads { 4 } else { 1 };
        text.line(format_args!("for (var k = first; k < end; k = k + {width}u) {{"));
        for o in 0..own {
            let at = format!("{long}_at + at_{o} + k");
            text.line(if quads {
                format!("let x_{o} = load4_{long}(({at}) / 4u);")
            } else {
                format!("let x_{o} = load_{long}({at} * {});", param(long_k))
            });
        }
        for w in 0..width {
            for e in 0..all {
                let at = format!("{short}_at + (k + {w}u) * {} + {j}_{e} * {}", param(short_k), param(short_step));
                text.line(format_args!("let y_{w}_{e} = load_{short}({at});"));
                for o in 0..own {
                    let x = if quads { format!("x_{o}[{w}]") } else { format!("x_{o}") };
                    let product = wgsl::binary(ScalarOp::Mul, compute, &x, &format!("y_{w}_{e}"));
                    let sum = wgsl::binary(ScalarOp::Add, compute, &format!("sum_{o}_{e}"), &product);
                    text.line(format_args!("sum_{o}_{e} = {sum};"));
                }
            }
        }
        text.line("}");
        for o in 0..own {
            text.line(format_args!("if ({i}_{o} < {size}) {{ let {i} = {i}_{o};"));
            (0..all)
                .for_each(|e| text.line(format_args!("{{ let {j} = {j}_{e}; {} }}", store(&format!("sum_{o}_{e}")))));
            text.line("}");
        }
    }
}
