//! `max_pool`: an invocation computes one element of each result or, with a small window over contiguous images, four.

use gradus_backend::{DType, Layout, Result, Scalar, ScalarOp, View, ViewMut, Window};

use crate::WgpuBackend;
use crate::operand::{Bound, in_fours};
use crate::queue::Launch;
use crate::wgsl::{self, GROUP, Text, param};
use crate::window::{in_one_loop, shape, strides, too_large};
use gradus_backend::key::key;

const OP: &str = "max_pool";
/// The largest number of elements of a window whose comparisons are written out.
const SMALL: usize = 16;

/// See [`Backend::max_pool`](gradus_backend::Backend::max_pool). The default body handles invalid operands, and windows
/// with more elements than a loop may have.
pub(crate) fn max_pool(
    b: &WgpuBackend,
    window: &Window,
    x: View<'_>,
    out: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let (rank, dims) = (window.rank, x.layout.dims());
    let well_formed = || {
        let ranks =
            (1..=3).contains(&rank) && [x.layout, out.layout, indices.layout].iter().all(|l| l.rank() == rank + 2);
        let dtypes = x.dtype == out.dtype && indices.dtype == DType::I64 && x.dtype != DType::Bool;
        if !ranks || !dtypes || x.layout.numel() == 0 || window.check_pool(OP, &dims[2..]).is_err() {
            return None;
        }
        let positions = window.output(OP, &dims[2..]).ok()?;
        let shape = [&dims[..2], &positions[..rank]].concat();
        (out.layout.dims() == shape && indices.layout.dims() == shape).then_some(())
    };
    if well_formed().is_none() || out.layout.numel() == 0 || !in_one_loop(window.kernel[..rank].iter().copied()) {
        return gradus_backend::composite::pool::max_forward(b, window, x, out, indices);
    }
    let operands = [(x.layout, x.dtype), (out.layout, x.dtype), (indices.layout, DType::I64)];
    if let Some((axis, half)) = too_large(b, &operands) {
        for (start, len) in [(0, half), (half, dims[axis] - half)] {
            let part = |l: &Layout| l.narrow(axis, start, len);
            let (from, to, at) = (part(x.layout)?, part(out.layout)?, part(indices.layout)?);
            max_pool(b, window, x.with(&from), &mut out.with(&to), &mut indices.with(&at))?;
        }
        return Ok(());
    }
    let (from, to, at) = (b.input(OP, "x", x)?, b.output(OP, "out", out)?, b.output(OP, "indices", indices)?);
    let (n, all, dtype) = (out.layout.numel(), rank + 2, x.dtype);
    let mut params = vec![n as u32];
    params.extend(out.layout.dims().iter().map(|&d| d as u32));
    [&from, &to, &at].iter().for_each(|o| strides(&mut params, &o.layout));
    shape(&mut params, window, &dims[2..], &[]);
    if let Some(quads) = Quads::new(window, (&from, dtype), &to, &at) {
        return quads.launch(b, &[from, to, at], params);
    }
    let source = || {
        let operand = |k: usize| 1 + all + k * (1 + all);
        let shape = operand(3);
        let mut text = Text::new(shape + 5 * rank);
        text.input("x", dtype);
        text.output("y", dtype);
        text.output("i", DType::I64);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", all, 1);
        let base = format!("{} + c0 * {} + c1 * {}", param(operand(0)), param(operand(0) + 1), param(operand(0) + 2));
        let zero = wgsl::constant(Scalar::Int(0), dtype.compute());
        text.line(format_args!("let base = {base}; var best = {zero}; var which = 0u; var seen = false;"));
        for a in 0..rank {
            let part = |k: usize| param(shape + k * rank + a);
            let (size, taps, stride, dilation, before) = (part(0), part(1), part(2), part(3), part(4));
            text.line(format_args!("for (var k{a} = 0u; k{a} < {taps}; k{a} = k{a} + 1u) {{"));
            text.line(format_args!("let s{a} = c{} * {stride} + k{a} * {dilation} - {before};", 2 + a));
            text.line(format_args!("if (s{a} >= {size}) {{ continue; }}"));
        }
        let terms: String = (0..rank).map(|a| format!(" + s{a} * {}", param(operand(0) + 3 + a))).collect();
        text.line(format_args!("let v = load_x(base{terms});"));
        let t = wgsl::ty(dtype);
        let nan = |v: &str| if dtype.is_float() { format!("is_nan_{t}({v})") } else { "false".to_owned() };
        text.line(format_args!(
            "if (!seen || (!{} && ({} || {}))) {{",
            nan("best"),
            nan("v"),
            wgsl::binary(ScalarOp::Gt, dtype.compute(), "v", "best")
        ));
        let place = (0..rank).fold("0u".to_owned(), |flat, a| format!("({flat} * {} + s{a})", param(shape + a)));
        text.line(format_args!("best = v; which = {place}; seen = true; }}"));
        text.line("}".repeat(rank));
        let position = |k: usize| wgsl::position("c", all, operand(k), operand(k) + 1);
        text.line(format_args!(
            "store_y({}, best); store_i({}, {});",
            position(1),
            position(2),
            wgsl::cast("which", DType::U32, DType::I64)
        ));
        text.finish(GROUP)
    };
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("max_pool", dtype, rank)),
        source: &source,
        binds: &[from.bind, to.bind, at.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// Everything that the text depends on if an invocation computes four neighbouring results: a window without padding,
/// which is not dilated along the last axis.
#[derive(Debug, Hash)]
struct Quads {
    dtype: DType,
    rank: usize,
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
}

impl Quads {
    /// `None` unless four neighbouring results are adjacent in memory and the elements under them are aligned.
    fn new(window: &Window, (x, dtype): (&Bound<'_>, DType), y: &Bound<'_>, i: &Bound<'_>) -> Option<Quads> {
        let Window { rank, kernel, stride, dilation, pad_before, pad_after } = *window;
        let last = rank - 1;
        let fits = dtype.size() <= 4
            && window.numel() <= SMALL
            && [pad_before, pad_after].iter().all(|pad| pad[..rank].iter().all(|&p| p == 0))
            && (dilation[last] == 1 || kernel[last] == 1)
            && stride[last] <= 4
            && y.layout.dims()[rank + 1].is_multiple_of(4)
            && [x, y, i].iter().all(|o| in_fours(&o.layout, o.layout.strides()));
        fits.then_some(Quads { dtype, rank, kernel, stride, dilation })
    }

    /// `params` are those of the kernel for single elements.
    fn launch(&self, b: &WgpuBackend, [x, y, i]: &[Bound<'_>; 3], mut params: Vec<u32>) -> Result<()> {
        params[0] /= 4;
        params[self.rank + 2] /= 4;
        b.queue().launch(&Launch {
            call: OP.into(),
            key: key(("max_pool of four", self)),
            source: &|| self.source(),
            binds: &[x.bind, y.bind, i.bind],
            params: &params,
            groups: u64::from(params[0]).div_ceil(u64::from(GROUP)),
        })
    }

    fn source(&self) -> String {
        let (rank, d, all) = (self.rank, self.dtype, self.rank + 2);
        let last = rank - 1;
        let operand = |k: usize| 1 + all + k * (1 + all);
        let sizes = operand(3);
        let mut text = Text::new(sizes + 5 * rank);
        text.quads("x", d, false);
        text.quads("y", d, true);
        // Each index is two words.
        text.quads("i", DType::U32, true);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", all, 1);
        // The coordinates along the other axes, with the position of an operand.
        let outer = |k: usize| wgsl::position("c", all - 1, operand(k), operand(k) + 1);
        let [at, step] = [operand(0), operand(0) + 1].map(param);
        text.line(format_args!("let base = {at} + c0 * {step} + c1 * {};", param(operand(0) + 2)));
        let (along, taps) = (self.stride[last], self.kernel[last]);
        let loads = (3 * along + taps).div_ceil(4);
        let rows: usize = self.kernel[..last].iter().product();
        for row in 0..rows {
            let (mut rest, mut position, mut place) = (row, String::new(), "0u".to_owned());
            let mut at = [0; 3];
            for a in (0..last).rev() {
                (at[a], rest) = (rest % self.kernel[a] * self.dilation[a], rest / self.kernel[a]);
            }
            for (a, at) in at.iter().enumerate().take(last) {
                let s = format!("(c{} * {}u + {at}u)", 2 + a, self.stride[a]);
                position += &format!(" + {s} * {}", param(operand(0) + 3 + a));
                place = format!("({place} * {} + {s})", param(sizes + a));
            }
            text.line(format_args!("let at_{row} = (base{position}) / 4u + c{} * {along}u;", all - 1));
            (0..loads).for_each(|l| text.line(format_args!("let x_{row}_{l} = load4_x(at_{row} + {l}u);")));
            let start = format!("{place} * {} + c{} * {}u", param(sizes + last), all - 1, 4 * along);
            text.line(format_args!("let place_{row} = {start};"));
        }
        let t = wgsl::ty(d);
        let nan = |v: &str| if d.is_float() { format!("is_nan_{t}({v})") } else { "false".to_owned() };
        text.line(format_args!("var best: array<{t}, 4>; var which: array<u32, 4>;"));
        for j in 0..4 {
            let taps = (0..rows).flat_map(|row| (0..taps).map(move |k| (row, j * along + k)));
            for (number, (row, e)) in taps.enumerate() {
                let (v, place) = (format!("x_{row}_{}[{}]", e / 4, e % 4), format!("place_{row} + {e}u"));
                if number == 0 {
                    text.line(format_args!("best[{j}] = {v}; which[{j}] = {place};"));
                    continue;
                }
                let best = format!("best[{j}]");
                let larger = wgsl::binary(ScalarOp::Gt, d.compute(), &v, &best);
                text.line(format_args!("let wins_{j}_{number} = !{} & ({} | {larger});", nan(&best), nan(&v)));
                text.line(format_args!("{best} = select({best}, {v}, wins_{j}_{number});"));
                text.line(format_args!("which[{j}] = select(which[{j}], {place}, wins_{j}_{number});"));
            }
        }
        text.line(format_args!("store4_y(({}) / 4u + c{}, best);", outer(1), all - 1));
        text.line(format_args!("let i_at = ({}) / 2u + c{} * 2u;", outer(2), all - 1));
        for half in 0..2 {
            let words = format!("which[{}], 0u, which[{}], 0u", 2 * half, 2 * half + 1);
            text.line(format_args!("store4_i(i_at + {half}u, array<u32, 4>({words}));"));
        }
        text.finish(GROUP)
    }
}
