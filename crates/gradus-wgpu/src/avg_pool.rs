//! `avg_pool` and its gradient. Each invocation computes one element of the result.

use gradus_backend::composite::pool::{avg_backward, avg_forward};
use gradus_backend::{DType, Layout, Result, View, ViewMut, Window};

use crate::WgpuBackend;
use crate::queue::Launch;
use crate::wgsl::{self, GROUP, Text, cast, param, ty};
use crate::window::{in_one_loop, shape, strides, too_large};
use gradus_backend::key::key;

/// Everything that the texts of the kernels depend on. Their parameters are the number of elements of the result, its
/// sizes, the positions and strides of both operands, and the window.
#[derive(Debug, Hash)]
struct Plan {
    dtype: DType,
    rank: usize,
    /// Whether padding counts towards the number of elements by which a sum is divided.
    padded: bool,
    /// Whether the dilation along any axis is more than 1.
    dilated: bool,
}

/// Whether a kernel can handle the operands. The default bodies handle operands that are invalid or empty, windows that
/// are too large for a loop, and sizes that are too large for 32-bit positions.
fn plain(op: &str, window: &Window, x: (&Layout, DType), y: (&Layout, DType)) -> bool {
    let rank = window.rank;
    if !(1..=3).contains(&rank) || [x, y].iter().any(|(l, _)| l.rank() != rank + 2 || l.numel() == 0) {
        return false;
    }
    let dims = x.0.dims();
    let Ok(positions) = window.output(op, &dims[2..]) else { return false };
    let reach = |a: usize| dims[2 + a] + window.pad_before[a] + window.pad_after[a];
    let span = |a: usize| (window.kernel[a] - 1) * window.dilation[a] + 1;
    let longest = |a: usize| reach(a).max(window.stride[a]).max(window.dilation[a]);
    x.1.is_float()
        && x.1 == y.1
        && y.0.dims() == [&dims[..2], &positions[..rank]].concat()
        && in_one_loop((0..rank).map(span))
        && (0..rank).all(|a| longest(a) <= i32::MAX as usize)
}

/// See [`Backend::avg_pool`](gradus_backend::Backend::avg_pool).
pub(crate) fn avg_pool(
    b: &WgpuBackend,
    window: &Window,
    count_include_pad: bool,
    x: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    if !plain(OP, window, (x.layout, x.dtype), (out.layout, out.dtype)) {
        return avg_forward(b, window, count_include_pad, x, out);
    }
    if let Some((axis, half)) = too_large(b, &[(x.layout, x.dtype), (out.layout, x.dtype)]) {
        for (start, len) in [(0, half), (half, x.layout.dims()[axis] - half)] {
            let (from, to) = (x.layout.narrow(axis, start, len)?, out.layout.narrow(axis, start, len)?);
            avg_pool(b, window, count_include_pad, x.with(&from), &mut out.with(&to))?;
        }
        return Ok(());
    }
    let plan = Plan::new(window, count_include_pad, x.dtype);
    plan.launch(b, OP, window, x, out, [x.layout, out.layout], &|| plan.forward())
}

/// See [`Backend::avg_pool_backward`](gradus_backend::Backend::avg_pool_backward).
pub(crate) fn avg_pool_backward(
    b: &WgpuBackend,
    window: &Window,
    count_include_pad: bool,
    g: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    if !plain(OP, window, (dx.layout, dx.dtype), (g.layout, g.dtype)) {
        return avg_backward(b, window, count_include_pad, g, dx);
    }
    if let Some((axis, half)) = too_large(b, &[(g.layout, g.dtype), (dx.layout, g.dtype)]) {
        for (start, len) in [(0, half), (half, g.layout.dims()[axis] - half)] {
            let (from, to) = (g.layout.narrow(axis, start, len)?, dx.layout.narrow(axis, start, len)?);
            avg_pool_backward(b, window, count_include_pad, g.with(&from), &mut dx.with(&to))?;
        }
        return Ok(());
    }
    let plan = Plan::new(window, count_include_pad, g.dtype);
    plan.launch(b, OP, window, g, dx, [dx.layout, g.layout], &|| plan.backward())
}

impl Plan {
    fn new(window: &Window, count_include_pad: bool, dtype: DType) -> Plan {
        let dilated = window.dilation[..window.rank].iter().any(|&d| d > 1);
        Plan { dtype, rank: window.rank, padded: count_include_pad, dilated }
    }

    /// Runs a kernel that reads `x` and writes `y`. `image` and `places` are the layouts of the pooling's input and of
    /// its result.
    fn launch(
        &self,
        b: &WgpuBackend,
        op: &'static str,
        window: &Window,
        x: View<'_>,
        y: &ViewMut<'_>,
        [image, places]: [&Layout; 2],
        source: &dyn Fn() -> String,
    ) -> Result<()> {
        let (from, to) = (b.input(op, "x", x)?, b.output(op, "y", y)?);
        let n = y.layout.numel();
        let mut params = vec![n as u32];
        params.extend(y.layout.dims().iter().map(|&d| d as u32));
        [&from, &to].iter().for_each(|o| strides(&mut params, &o.layout));
        shape(&mut params, window, &image.dims()[2..], &places.dims()[2..]);
        b.queue().launch(&Launch {
            call: op.into(),
            key: key((op, self)),
            source,
            binds: &[from.bind, to.bind],
            params: &params,
            groups: (n as u64).div_ceil(u64::from(GROUP)),
        })
    }

    /// The index of the parameter with the position of operand `k` (0 or 1). The operand's strides follow it.
    fn operand(&self, k: usize) -> usize {
        let all = self.rank + 2;
        1 + all + k * (1 + all)
    }

    /// The parameters of the window along an axis: the size of the image, taps, stride, dilation, padding, and places.
    fn window(&self, axis: usize) -> [String; 6] {
        [0, 1, 2, 3, 4, 5].map(|k| param(self.operand(2) + k * self.rank + axis))
    }

    /// The text that precedes the loops. `c0`, `c1`, .. are the coordinates of the element of the result, and `base` is
    /// the position of its channel in `x`. `taps_0(place)`, .. return the range of the taps of the window at `place`
    /// that are inside the image, as the first tap and the one after the last.
    fn open(&self) -> Text {
        let mut text = Text::new(self.operand(2) + 6 * self.rank);
        text.input("x", self.dtype);
        text.output("y", self.dtype);
        for a in 0..self.rank {
            let [size, taps, stride, dilation, before, _] = self.window(a);
            text.declare(format_args!("fn taps_{a}(place: u32) -> vec2<u32> {{"));
            text.declare(format_args!("  let left = max({before}, place * {stride}) - place * {stride};"));
            text.declare(format_args!("  let end = max({size} + {before}, place * {stride}) - place * {stride};"));
            let up = |v: &str| match self.dilated {
                true => format!("min({taps}, ({v} + {dilation} - 1u) / {dilation})"),
                false => format!("min({taps}, {v})"),
            };
            text.declare(format_args!("  return vec2<u32>({}, {});\n}}", up("left"), up("end")));
        }
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", self.rank + 2, 1);
        let from = self.operand(0);
        text.line(format_args!("let base = {} + c0 * {} + c1 * {};", param(from), param(from + 1), param(from + 2)));
        text.line(format_args!("var sum = {}(0);", ty(self.dtype)));
        text
    }

    /// The number of elements by which the sum of a window is divided. `t0`, `t1`, .. are the taps along each axis.
    fn count(&self) -> String {
        let axes =
            (0..self.rank).map(|a| if self.padded { self.window(a)[1].clone() } else { format!("(t{a}.y - t{a}.x)") });
        cast(&format!("({})", axes.collect::<Vec<_>>().join(" * ")), DType::U32, self.dtype.compute())
    }

    /// The position of the element with coordinates `NAME0`, `NAME1`, .. in the channel that begins at `base`.
    fn element(&self, name: &str) -> String {
        let step = |a: usize| param(self.operand(0) + 3 + a);
        (0..self.rank).fold("base".to_owned(), |sum, a| format!("{sum} + {name}{a} * {}", step(a)))
    }

    fn close(&self, mut text: Text, value: &str) -> String {
        let to = self.operand(1);
        text.line(format_args!("store_y({}, {value});", wgsl::position("c", self.rank + 2, to, to + 1)));
        text.finish(GROUP)
    }

    fn forward(&self) -> String {
        let mut text = self.open();
        (0..self.rank).for_each(|a| text.line(format_args!("let t{a} = taps_{a}(c{});", 2 + a)));
        for a in 0..self.rank {
            let [_, _, stride, dilation, before, _] = self.window(a);
            text.line(format_args!("for (var k{a} = t{a}.x; k{a} < t{a}.y; k{a} = k{a} + 1u) {{"));
            text.line(format_args!("let s{a} = c{} * {stride} + k{a} * {dilation} - {before};", 2 + a));
        }
        text.line(format_args!("sum = sum + load_x({});", self.element("s")));
        text.line("}".repeat(self.rank));
        let mean = format!("sum / {}", self.count());
        self.close(text, &mean)
    }

    fn backward(&self) -> String {
        let mut text = self.open();
        for a in 0..self.rank {
            let [_, taps, stride, dilation, before, places] = self.window(a);
            // The loop runs from the first window that reaches the element to the last that begins at or before it.
            text.line(format_args!("let d{a} = c{} + {before}; let span{a} = ({taps} - 1u) * {dilation};", 2 + a));
            text.line(format_args!("let first{a} = (max(d{a}, span{a}) - span{a} + {stride} - 1u) / {stride};"));
            text.line(format_args!("let end{a} = min({places}, d{a} / {stride} + 1u);"));
            text.line(format_args!("for (var p{a} = first{a}; p{a} < end{a}; p{a} = p{a} + 1u) {{"));
            if self.dilated {
                text.line(format_args!("if ((d{a} - p{a} * {stride}) % {dilation} != 0u) {{ continue; }}"));
            }
            if !self.padded {
                text.line(format_args!("let t{a} = taps_{a}(p{a});"));
            }
        }
        text.line(format_args!("sum = sum + load_x({}) / {};", self.element("p"), self.count()));
        text.line("}".repeat(self.rank));
        self.close(text, "sum")
    }
}
