//! Convolution and its gradients as matrix products. The second operand of a product is read in place through the
//! window, so nothing is unfolded in memory.
//!
//! `K` is the number of elements of a kernel, `P` of window positions, `S` of spatial elements, and `n` of samples. `c`
//! and `k` are the numbers of channels and filters per group, and `g` is the gradient of the output. For each group:
//! * `out [k, P]` of a sample is `w [k, c * K] @ x under the window [c * K, P]`;
//! * `dx [c, S]` of a sample is `w^T [c, k * K] @ g over the window [k * K, S]`;
//! * `dw [k, c * K]` is `g [k, n * P] @ x under the window [n * P, c * K]`.
//!
//! Operands that are too large to bind are split along the samples. The default implementations handle operands that
//! are invalid or empty, and those that would first have to be copied into one of these forms.

use gradus_backend::{DType, Kernel, Layout, MapArg, Result, ScalarOp, Shape, View, ViewMut, Window, composite};

use crate::WgpuBackend;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::tile::{DEPTH, Factor, Product, Tile};
use crate::wgsl::{self, Text, param};
use gradus_backend::key::key;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Forward,
    Input,
    Weight,
}

impl Kind {
    fn name(self) -> &'static str {
        ["conv", "conv_backward_input", "conv_backward_weight"][self as usize]
    }
}

/// Everything that the kernel's text depends on.
#[derive(Debug, Hash)]
struct Plan {
    kind: Kind,
    dtype: DType,
    out: DType,
    rank: usize,
    tile: Tile,
    bias: bool,
    /// The sizes of the window and, for the gradient of the input, its strides; 1 elsewhere. Each element that is loaded divides by
    /// them, which is much faster by constants.
    kernel: [usize; 3],
    stride: [usize; 3],
}

/// The sizes of a convolution whose operands match each other.
struct Sizes {
    n: usize,
    groups: usize,
    /// The numbers of channels (`c`) and filters (`k`) per group.
    c: usize,
    k: usize,
    taps: usize,
    spatial: usize,
    positions: usize,
    counts: [usize; 3],
}

impl Sizes {
    /// The rows, inner elements and columns of a product, and the number of products.
    fn product(&self, kind: Kind) -> (usize, usize, usize, usize) {
        match kind {
            Kind::Forward => (self.k, self.c * self.taps, self.positions, self.n * self.groups),
            Kind::Input => (self.c, self.k * self.taps, self.spatial, self.n * self.groups),
            Kind::Weight => (self.k, self.n * self.positions, self.c * self.taps, self.groups),
        }
    }
}

/// The parameters are, first, m, k, n, the number of products, tiles along n and m, groups, channels and filters per
/// group, positions, parts along k, elements of a part, and the distance between the results of two parts. Next
/// come the position of `x` and its strides along samples and channels; the position of `w` and its strides along
/// filters, channels and taps; the position of `y` and its strides along samples, channels and positions; and the
/// position and stride of the bias. Last come, for each spatial axis, its size, stride, dilation, padding,
/// positions, and the stride of `x`.
const SIZES: usize = 13;
const X: usize = SIZES;
const W: usize = X + 3;
const Y: usize = W + 4;
const BIAS: usize = Y + 4;
const AXES: usize = BIAS + 2;
const PER_AXIS: usize = 6;

/// The sizes of `x [n, c, spatial..]`, `w [k, c / groups, kernel..]` and `y [n, k, positions..]`. `None` if an operand
/// is invalid, empty or too large to bind.
fn sizes(b: &WgpuBackend, window: &Window, groups: usize, x: View<'_>, w: View<'_>, y: View<'_>) -> Option<Sizes> {
    let rank = window.rank;
    let ranks = (1..=3).contains(&rank) && [x, w, y].iter().all(|v| v.layout.rank() == rank + 2);
    let dtypes = x.dtype == w.dtype && x.dtype == y.dtype && x.dtype != DType::Bool && b.missing(x.dtype).is_none();
    let fit = [x, w, y].iter().all(|v| v.layout.numel() > 0 && b.fits(v.layout, v.dtype));
    if !ranks || !dtypes || !fit || groups == 0 {
        return None;
    }
    let (xd, wd, yd) = (x.layout.dims(), w.layout.dims(), y.layout.dims());
    let counts = window.output("conv", &xd[2..]).ok()?;
    let fine = xd[1].is_multiple_of(groups)
        && wd[0].is_multiple_of(groups)
        && wd[1] == xd[1] / groups
        && wd[2..] == window.kernel[..rank]
        && yd[..2] == [xd[0], wd[0]]
        && yd[2..] == counts[..rank];
    fine.then(|| Sizes {
        n: xd[0],
        groups,
        c: xd[1] / groups,
        k: wd[0] / groups,
        taps: window.numel(),
        spatial: xd[2..].iter().product(),
        positions: yd[2..].iter().product(),
        counts,
    })
}

/// Computes the convolution or one of its gradients into `out`. Returns `false` if the kernel cannot do it: a layout
/// would need a copy, a size is too large, or a sum of integers is too long.
fn run(
    b: &WgpuBackend,
    kind: Kind,
    window: &Window,
    s: &Sizes,
    operands: [View<'_>; 2],
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<bool> {
    let (m, k, n, count) = s.product(kind);
    let parts = Tile::new(out.dtype, count, m, n).parts(count, m, k, n);
    if parts == 1 || !out.dtype.is_float() {
        return if k > DEPTH { Ok(false) } else { launch(b, kind, window, s, operands, bias, out, 1) };
    }
    let mut partial = Temp::new(b, out.dtype.compute(), Shape::new(&[parts, out.layout.numel()])?)?;
    let layout = Layout::contiguous(*out.layout.shape());
    let done = launch(b, kind, window, s, operands, bias, &partial.view_mut().with(&layout), parts)?;
    if done {
        crate::reduce::sum_of_parts(b, kind.name(), partial, out)?;
    }
    Ok(done)
}

/// Computes the product. If `parts` is more than 1, k is split into that many parts, whose results are written one
/// after the other. Returns `false` if a layout would need a copy or a size is too large.
fn launch(
    b: &WgpuBackend,
    kind: Kind,
    window: &Window,
    s: &Sizes,
    [first, second]: [View<'_>; 2],
    bias: Option<View<'_>>,
    out: &ViewMut<'_>,
    parts: usize,
) -> Result<bool> {
    let (rank, op) = (window.rank, kind.name());
    let [x, w, y] = match kind {
        Kind::Forward => [first, second, out.as_view()],
        Kind::Input => [out.as_view(), first, second],
        Kind::Weight => [first, out.as_view(), second],
    };
    let filters = Shape::new(&[s.groups * s.k, s.c, s.taps])?;
    let results = Shape::new(&[s.n, s.groups * s.k, s.positions])?;
    let from = b.operand(op, "x", x.buffer, x.dtype, x.layout, kind == Kind::Input)?;
    let by = b.operand(op, "w", w.buffer, w.dtype, w.layout, kind == Kind::Weight)?;
    let to = b.operand(op, "y", y.buffer, y.dtype, y.layout, kind == Kind::Forward)?;
    let x_layout = from.layout;
    let (Some(wl), Some(yl)) = (by.layout.reshape(filters), to.layout.reshape(results)) else { return Ok(false) };
    let (m, k, n, count) = s.product(kind);
    if m.max(k).max(n) > crate::operand::MOST {
        return Ok(false);
    }
    let tile = Tile::new(x.dtype, count, m, n);
    let kernel = std::array::from_fn(|a| if a < rank { window.kernel[a] } else { 1 });
    // Along an axis with only one position, the stride does not matter.
    let divides = |a: usize| a < rank && kind == Kind::Input && s.counts[a] > 1;
    let stride = std::array::from_fn(|a| if divides(a) { window.stride[a] } else { 1 });
    if stride.iter().any(|&stride| stride > crate::operand::MOST) {
        return Ok(false);
    }
    let plan = Plan { kind, dtype: first.dtype, out: out.dtype, rank, tile, bias: bias.is_some(), kernel, stride };
    let mut params = vec![m, k, n, count, tile.cover(n), tile.cover(m), s.groups, s.c, s.k, s.positions];
    params.extend([parts, k.div_ceil(parts), out.layout.numel()]);
    let steps = |l: &Layout, count: usize| l.strides()[..count].iter().map(|&v| v as usize).collect::<Vec<_>>();
    params.push(x_layout.offset());
    params.extend(steps(&x_layout, 2));
    params.push(wl.offset());
    params.extend(steps(&wl, 3));
    params.push(yl.offset());
    params.extend(steps(&yl, 3));
    let bias = bias.map(|v| b.input(op, "bias", v)).transpose()?;
    params.extend(bias.as_ref().map_or([0; 2], |v| [v.layout.offset(), v.layout.strides()[0] as usize]));
    for a in 0..rank {
        params.extend([x.layout.dims()[2 + a], window.stride[a], window.dilation[a], window.pad_before[a]]);
        params.extend([s.counts[a], x_layout.strides()[2 + a] as usize]);
    }
    let params: Vec<u32> = params.into_iter().map(|p| p as u32).collect();
    let mut binds = vec![from.bind, by.bind, to.bind];
    binds.extend(bias.as_ref().map(|v| v.bind));
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("conv", &plan)),
        source: &|| plan.source(),
        binds: &binds,
        params: &params,
        groups: parts as u64 * count as u64 * tile.cover(m) as u64 * tile.cover(n) as u64,
    })?;
    Ok(true)
}

impl Plan {
    fn source(&self) -> String {
        let (kind, rank, tile) = (self.kind, self.rank, self.tile);
        let mut text = Text::new(AXES + rank * PER_AXIS);
        for (name, writer) in [("x", Kind::Input), ("w", Kind::Weight), ("y", Kind::Forward)] {
            if kind == writer { text.output(name, self.out) } else { text.input(name, self.dtype) }
        }
        if self.bias {
            text.input("bias", self.dtype);
        }
        let [m, k, n, count, tiles_n, tiles_m, groups, c, filters, positions] =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(param);
        let taps = format!("{}u", self.kernel.iter().product::<usize>());
        let axis = |a: usize, which: usize| match which {
            1 => format!("{}u", self.kernel[a]),
            2 if kind == Kind::Input => format!("{}u", self.stride[a]),
            // The window's size, number 1, is not among the parameters.
            _ => param(AXES + a * PER_AXIS + which.saturating_sub(1)),
        };
        let t = wgsl::ty(tile.dtype);
        // Splits a flat index into coordinates along the spatial axes. `which` selects the parameter that holds the
        // size of each axis.
        let split = |name: &str, of: &str, which: usize| {
            let mut lines = format!("var {name}_rest = {of};");
            for a in (0..rank).rev() {
                lines += &wgsl::divided(name, a, &axis(a, which));
            }
            lines
        };
        let w_at = |filter: &str, channel: &str, tap: &str| {
            format!(
                "{} + ({filter}) * {} + ({channel}) * {} + ({tap}) * {}",
                param(W),
                param(W + 1),
                param(W + 2),
                param(W + 3)
            )
        };
        let y_at = |sample: &str, filter: &str, position: &str| {
            format!(
                "{} + ({sample}) * {} + ({filter}) * {} + ({position}) * {}",
                param(Y),
                param(Y + 1),
                param(Y + 2),
                param(Y + 3)
            )
        };
        let spatial = |each: &dyn Fn(usize) -> String| (0..rank).map(each).collect::<String>();
        if kind == Kind::Input {
            // `q` is the place plus the padding, and `u` the distance of the tap from the start of the window.
            let mut body = "var position = 0u; var found = true;".to_owned();
            for a in 0..rank {
                let (stride, count) = (axis(a, 2), axis(a, 5));
                body += &format!(" let d{a} = q{a} - u{a}; let p{a} = d{a} / {stride};");
                // In front of the first position, the difference wraps around.
                body += &format!(" found = found && u{a} <= q{a} && p{a} < {count} && p{a} * {stride} == d{a};");
                body += &format!(" position = position * {count} + p{a};");
            }
            let (arguments, step) = (spatial(&|a| format!(", q{a}: u32, u{a}: u32")), param(Y + 3));
            text.declare("var<private> over_found: bool;");
            text.declare(format_args!(
                "fn over(at: u32{arguments}) -> {t} {{ {body} over_found = found; let v = load_y(select(0u, at + position \
                 * {step}, found)); return select({t}(0), v, found); }}"
            ));
        } else {
            // In front of the first element, a coordinate wraps around to a number above every size.
            let inside: Vec<_> = (0..rank).map(|a| format!("s{a} < {}", axis(a, 0))).collect();
            let (arguments, at) =
                (spatial(&|a| format!(", s{a}: u32")), spatial(&|a| format!(" + s{a} * {}", axis(a, 6))));
            text.declare(format_args!(
                "fn under(at: u32{arguments}) -> {t} {{ let found = {}; let v = load_x(select(0u, at{at}, found)); return \
                 select({t}(0), v, found); }}",
                inside.join(" && ")
            ));
        }
        text.line(format_args!(
            "let task = group / ({tiles_n} * {tiles_m}); let cell = group % ({tiles_n} * {tiles_m});"
        ));
        text.line(format_args!("let matrix = task % {count}; let part = task / {count};"));
        text.line(format_args!("if (part >= {}) {{ return; }}", param(10)));
        text.line(format_args!("let first = part * {}; let end = min({k}, first + {});", param(11), param(11)));
        let place = format!("part * {}", param(12));
        text.line(format_args!("let g = matrix % {groups}; let sample = matrix / {groups};"));
        let side = tile.side();
        text.line(format_args!("let row = (cell / {tiles_n}) * {side}u; let col = (cell % {tiles_n}) * {side}u;"));
        let (x_sample, x_channel, y_filter) = (param(X + 1), param(X + 2), param(Y + 2));
        let taps_of = |tap: &str, name: &str| split(name, tap, 1);
        // WGSL for the factors a and b: the statements that depend only on `k`, those for each lane, and the element of
        // b.
        type ByLane<'a> = Box<dyn Fn(&str) -> String + 'a>;
        let ([a_by_k, b_by_k], [a_by_lane, b_by_lane, b_element]): ([String; 2], [ByLane<'_>; 3]) = match kind {
            Kind::Forward => (
                [
                    format!("let at = {};", w_at("0u", &format!("k / {taps}"), &format!("k % {taps}"))),
                    format!(
                        "let at = {} + sample * {x_sample} + (g * {c} + k / {taps}) * {x_channel}; {}{}",
                        param(X),
                        taps_of(&format!("k % {taps}"), "t"),
                        spatial(&|a| format!(" let u{a} = t{a} * {};", axis(a, 3)))
                    ),
                ],
                [
                    Box::new(|l| format!("let at_{l} = (g * {filters} + n_{l}) * {};", param(W + 1))),
                    Box::new(|l| {
                        let start = |a| format!(" let q{a}_{l} = p_{l}_{a} * {} - {};", axis(a, 2), axis(a, 4));
                        split(&format!("p_{l}_"), &format!("n_{l}"), 5) + &spatial(&start)
                    }),
                    Box::new(|l| format!("under(at{})", spatial(&|a| format!(", q{a}_{l} + u{a}")))),
                ],
            ),
            Kind::Input => (
                [
                    format!("let at = {};", w_at(&format!("g * {filters} + k / {taps}"), "0u", &format!("k % {taps}"))),
                    format!(
                        "let at = {}; {}{}",
                        y_at("sample", &format!("g * {filters} + k / {taps}"), "0u"),
                        taps_of(&format!("k % {taps}"), "t"),
                        spatial(&|a| format!(" let u{a} = t{a} * {};", axis(a, 3)))
                    ),
                ],
                [
                    Box::new(|l| format!("let at_{l} = n_{l} * {};", param(W + 2))),
                    Box::new(|l| {
                        let place = |a| format!(" let q{a}_{l} = s_{l}_{a} + {};", axis(a, 4));
                        split(&format!("s_{l}_"), &format!("n_{l}"), 0) + &spatial(&place)
                    }),
                    Box::new(|l| format!("over(at{})", spatial(&|a| format!(", q{a}_{l}, u{a}")))),
                ],
            ),
            Kind::Weight => (
                [
                    format!("let at = {};", y_at(&format!("k / {positions}"), "0u", &format!("k % {positions}"))),
                    format!(
                        "let at = {} + k / {positions} * {x_sample}; {}{}",
                        param(X),
                        split("p", &format!("k % {positions}"), 5),
                        spatial(&|a| format!(" let u{a} = p{a} * {} - {};", axis(a, 2), axis(a, 4)))
                    ),
                ],
                [
                    Box::new(|l| format!("let at_{l} = (g * {filters} + n_{l}) * {y_filter};")),
                    Box::new(|l| {
                        let channel = format!("let at_{l} = (g * {c} + n_{l} / {taps}) * {x_channel}; ");
                        let tap = |a| format!(" let q{a}_{l} = t_{l}_{a} * {};", axis(a, 3));
                        channel + &taps_of(&format!("n_{l} % {taps}"), &format!("t_{l}_")) + &spatial(&tap)
                    }),
                    Box::new(|l| format!("under(at + at_{l}{})", spatial(&|a| format!(", q{a}_{l} + u{a}")))),
                ],
            ),
        };
        let first_of = if kind == Kind::Weight { "load_y" } else { "load_w" };
        let product = Product {
            first: "first",
            end: "end",
            a: Factor {
                size: &m,
                along_k: kind != Kind::Input,
                by_k: &a_by_k,
                by_lane: &a_by_lane,
                element: &|l| format!("{first_of}(at + at_{l})"),
            },
            b: Factor {
                size: &n,
                along_k: kind == Kind::Weight,
                by_k: &b_by_k,
                by_lane: &b_by_lane,
                element: &b_element,
            },
            found: (kind == Kind::Input).then_some("over_found"),
        };
        tile.multiply(&mut text, &product);
        tile.store(&mut text, &m, &n, |sum| match kind {
            Kind::Forward => {
                let bias = format!("load_bias({} + (g * {filters} + r) * {})", param(BIAS), param(BIAS + 1));
                let biased = wgsl::binary(ScalarOp::Add, tile.dtype, sum, &bias);
                let add = format!("if (part == 0u) {{ {sum} = {biased}; }} ");
                let add = if self.bias { add } else { String::new() };
                format!("{add}store_y({place} + {}, {sum});", y_at("sample", &format!("g * {filters} + r"), "s"))
            }
            Kind::Input => {
                let mut at = format!(
                    "{} var at = {} + sample * {} + (g * {c} + r) * {};",
                    split("o", "s", 0),
                    param(X),
                    param(X + 1),
                    param(X + 2)
                );
                for a in 0..rank {
                    at += &format!(" at = at + o{a} * {};", axis(a, 6));
                }
                format!("{at} store_x({place} + at, {sum});")
            }
            Kind::Weight => format!(
                "store_w({place} + {}, {sum});",
                w_at(&format!("g * {filters} + r"), &format!("s / {taps}"), &format!("s % {taps}"))
            ),
        });
        text.finish(tile.size())
    }
}

/// The two halves of the samples, each as `(start, length)`, if `x` or `y` is too large to bind. `None` if both can be
/// bound, if there is only one sample, or if the numbers of samples differ.
fn halves(b: &WgpuBackend, x: View<'_>, y: View<'_>) -> Option<[(usize, usize); 2]> {
    let large = [x, y].iter().any(|v| !b.fits(v.layout, v.dtype));
    let n = *x.layout.dims().first()?;
    (large && n > 1 && y.layout.dims().first() == Some(&n)).then(|| [(0, n / 2), (n / 2, n - n / 2)])
}

/// See [`Backend::conv`](gradus_backend::Backend::conv).
pub(crate) fn conv(
    b: &WgpuBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let biased = |s: &Sizes| bias.is_none_or(|v| v.dtype == x.dtype && v.layout.dims() == [s.groups * s.k]);
    if let Some(s) = sizes(b, window, groups, x, w, out.as_view()).filter(biased)
        && run(b, Kind::Forward, window, &s, [x, w], bias, out)?
    {
        return Ok(());
    }
    let Some(halves) = halves(b, x, out.as_view()) else {
        return composite::conv::forward(b, window, groups, x, w, bias, out);
    };
    for (start, len) in halves {
        let (from, to) = (x.layout.narrow(0, start, len)?, out.layout.narrow(0, start, len)?);
        conv(b, window, groups, x.with(&from), w, bias, &mut out.with(&to))?;
    }
    Ok(())
}

/// See [`Backend::conv_backward_input`](gradus_backend::Backend::conv_backward_input).
pub(crate) fn backward_input(
    b: &WgpuBackend,
    window: &Window,
    groups: usize,
    g: View<'_>,
    w: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    if let Some(s) = sizes(b, window, groups, dx.as_view(), w, g)
        && run(b, Kind::Input, window, &s, [w, g], None, dx)?
    {
        return Ok(());
    }
    let Some(halves) = halves(b, dx.as_view(), g) else {
        return composite::conv::backward_input(b, window, groups, g, w, dx);
    };
    for (start, len) in halves {
        let (from, to) = (g.layout.narrow(0, start, len)?, dx.layout.narrow(0, start, len)?);
        backward_input(b, window, groups, g.with(&from), w, &mut dx.with(&to))?;
    }
    Ok(())
}

/// See [`Backend::conv_backward_weight`](gradus_backend::Backend::conv_backward_weight).
pub(crate) fn backward_weight(
    b: &WgpuBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    g: View<'_>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    if let Some(s) = sizes(b, window, groups, x, dw.as_view(), g)
        && run(b, Kind::Weight, window, &s, [x, g], None, dw)?
    {
        return Ok(());
    }
    let Some([first, second]) = halves(b, x, g) else {
        return composite::conv::backward_weight(b, window, groups, x, g, dw);
    };
    let part = |l: &Layout, (start, len): (usize, usize)| l.narrow(0, start, len);
    backward_weight(b, window, groups, x.with(&part(x.layout, first)?), g.with(&part(g.layout, first)?), dw)?;
    let mut rest = Temp::new(b, dw.dtype, *dw.layout.shape())?;
    let (from, over) = (part(x.layout, second)?, part(g.layout, second)?);
    backward_weight(b, window, groups, x.with(&from), g.with(&over), &mut rest.view_mut())?;
    let sum = Kernel::build("conv_backward_weight", &[dw.dtype; 2], |v| vec![v[0] + v[1]])?;
    let layout = dw.layout;
    crate::map::map(b, &sum, &[MapArg::Output(0), MapArg::View(rest.view())], &mut [dw.with(layout)])
}
