//! Convolution and its gradients: matrix products of which one factor is read through the window. Operands that are
//! invalid or empty are passed to the default implementations, which also report the errors.

use gradus_backend::key::key;
use gradus_backend::{DType, Layout, Result, Scalar, Shape, View, ViewMut, Window, composite};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::element;
use crate::operand::Operand;
use crate::product::{BLOCKS, sum};
use crate::queue::Launch;
use crate::temp::Temp;
use crate::template::{Record, source, sum_type};

/// The largest size along which positions are 32-bit numbers.
const LONGEST: usize = 1 << 30;
/// About as many blocks as a large GPU works on at a time. With fewer tiles, the sums of the weight's gradient are cut.
const BUSY: usize = 264;
/// The smallest and the largest number of elements of a part of these sums.
const SHORTEST: usize = 256;
const CHAIN: usize = 4096;

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

/// Everything that the text of the kernel depends on.
#[derive(Debug, Clone, Copy, Hash)]
struct Plan {
    kind: Kind,
    dtype: DType,
    rank: usize,
    /// The side of a tile.
    side: usize,
    is_part: bool,
    bias: bool,
    strided: bool,
}

impl Plan {
    fn is_mma(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
    }

    /// Warps along the rows and columns of a tile on tensor cores.
    fn warps(&self) -> [usize; 2] {
        match self.side {
            32 => [2, 2],
            _ => [2, 4],
        }
    }

    /// The number of elements of a thread along each side of a tile in registers.
    fn own(&self) -> usize {
        if self.side == 128 { 8 } else { 4 }
    }

    fn threads(&self) -> u32 {
        let [m, n] = self.warps();
        let side = self.side / self.own();
        (if self.is_mma() { m * n * 32 } else { side * side }) as u32
    }

    fn source(&self) -> String {
        let sum = sum_type(self.dtype);
        let t = element(self.dtype);
        let types = [("T", t), ("A", sum), ("C", if self.is_part { sum } else { t })];
        let flag = usize::from;
        let [m, n] = self.warps();
        let constants = [
            ("KIND", self.kind as usize),
            ("RANK", self.rank),
            ("BM", self.side),
            ("BN", self.side),
            ("BK", if self.is_mma() { 32 } else { 16 }),
            ("MMA", flag(self.is_mma())),
            ("WM", m),
            ("WN", n),
            ("TM", self.own()),
            ("TN", self.own()),
            ("BF16", flag(self.dtype == DType::BF16)),
            ("BIAS", flag(self.bias)),
            ("STRIDED", flag(self.strided)),
        ];
        let mma = if self.is_mma() { include_str!("../mma.cu") } else { "" };
        source(&types, &constants, &[mma, include_str!("conv.cu")])
    }
}

/// The sizes of a convolution whose operands match each other.
struct Sizes {
    n: usize,
    groups: usize,
    /// Channels and filters of a group.
    channels: usize,
    filters: usize,
    taps: usize,
    spatial: usize,
    positions: usize,
    counts: [usize; 3],
}

impl Sizes {
    /// The sizes of `x [n, c, spatial..]`, `w [k, c / groups, kernel..]` and `y [n, k, positions..]`. `None` if an
    /// operand is invalid or empty, or a size too large.
    fn of(window: &Window, groups: usize, x: View<'_>, w: View<'_>, y: View<'_>) -> Option<Sizes> {
        let rank = window.rank;
        let ranks = (1..=3).contains(&rank) && [x, w, y].iter().all(|v| v.layout.rank() == rank + 2);
        let dtypes = x.dtype == w.dtype && x.dtype == y.dtype && x.dtype != DType::Bool;
        if !ranks || !dtypes || groups == 0 || [x, w, y].iter().any(|v| v.layout.numel() == 0) {
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
        let s = Sizes {
            n: xd[0],
            groups,
            channels: wd[1],
            filters: wd[0].checked_div(groups)?,
            taps: window.numel(),
            spatial: xd[2..].iter().product(),
            positions: yd[2..].iter().product(),
            counts,
        };
        let reach = |i: usize| {
            let most = [xd[2 + i], window.pad_before[i], counts[i].saturating_mul(window.stride[i])];
            most.iter().chain([&(window.kernel[i].saturating_mul(window.dilation[i]))]).all(|&v| v <= LONGEST / 4)
        };
        let products = [Kind::Forward, Kind::Input, Kind::Weight].iter().flat_map(|&kind| s.product(kind));
        (fine && (0..rank).all(reach) && products.into_iter().all(|n| n <= LONGEST)).then_some(s)
    }

    /// The rows, columns and inner elements of a product.
    fn product(&self, kind: Kind) -> [usize; 3] {
        let times = usize::saturating_mul;
        let (taps, n) = (self.taps, self.n);
        match kind {
            Kind::Forward => [self.filters, times(n, self.positions), times(self.channels, taps)],
            Kind::Input => [self.channels, times(n, self.spatial), times(self.filters, taps)],
            Kind::Weight => [self.filters, times(self.channels, taps), times(n, self.positions)],
        }
    }
}

/// The number of tiles of all products, each of `m` rows and `n` columns.
fn tiles(groups: usize, m: usize, n: usize, side: usize) -> usize {
    groups * m.div_ceil(side) * n.div_ceil(side)
}

/// The side of their tiles.
fn side(dtype: DType, groups: usize, m: usize, n: usize) -> usize {
    match () {
        // Larger elements would need more shared memory than every block may have.
        () if dtype.size() <= 4 && m.min(n) > 64 && tiles(groups, m, n, 128) >= BUSY / 2 => 128,
        () if m.max(n) > 32 => 64,
        () => 32,
    }
}

/// Computes the convolution or one of its gradients. `operands` are `x`, `w` and `y`; one of them is the result.
fn run(
    b: &CudaBackend,
    kind: Kind,
    window: &Window,
    s: &Sizes,
    operands: [Operand<'_>; 3],
    bias: Option<Operand<'_>>,
) -> Result<()> {
    let result = operands[[2, 0, 1][kind as usize]];
    let [m, n, k] = s.product(kind);
    let dtype = result.dtype;
    let tiles = |side: usize| tiles(s.groups, m, n, side);
    let side = side(dtype, s.groups, m, n);
    let parts = match kind {
        Kind::Weight if dtype.is_float() => {
            (BUSY / tiles(side)).min(k / SHORTEST).max(k.div_ceil(CHAIN).min(LONGEST / result.layout.numel())).max(1)
        }
        _ => 1,
    };
    let plan = Plan {
        kind,
        dtype,
        rank: window.rank,
        side,
        is_part: parts > 1,
        bias: bias.is_some(),
        strided: window.stride[..window.rank].iter().any(|&s| s > 1),
    };
    if parts == 1 {
        return launch(b, &plan, window, s, operands, bias, parts);
    }
    let mut partial = Temp::new(b, dtype.compute(), Shape::new(&[parts, result.layout.numel()])?)?;
    let layout = Layout::contiguous(*result.layout.shape());
    let mut written = partial.view_mut();
    let written = written.with(&layout);
    let to = b.output(kind.name(), "the parts", &written)?;
    let [x, _, y] = operands;
    launch(b, &plan, window, s, [x, to, y], bias, parts)?;
    sum(b, kind.name(), [Scalar::Int(1), Scalar::Int(0)], (to, parts), result)
}

fn launch(
    b: &CudaBackend,
    plan: &Plan,
    window: &Window,
    s: &Sizes,
    [x, w, y]: [Operand<'_>; 3],
    bias: Option<Operand<'_>>,
    parts: usize,
) -> Result<()> {
    let kind = plan.kind;
    let [m, n, k] = s.product(kind);
    let (tiles_m, tiles_n) = (m.div_ceil(plan.side), n.div_ceil(plan.side));
    let tasks = (s.groups * parts) as u64 * tiles_m as u64 * tiles_n as u64;
    let mut record = Record::new();
    record.i64(tasks as i64).i64(w.layout.numel() as i64);
    for o in [&x, &w, &y] {
        record.longs(o.layout.strides().iter().copied(), 2 + plan.rank);
    }
    record.i64(bias.map_or(0, |v| v.layout.strides()[0] as i64));
    for size in [m, n, k, tiles_m, tiles_n, parts, k.div_ceil(parts), s.channels, s.filters] {
        record.i32(size);
    }
    for sizes in
        [&x.layout.dims()[2..], &window.kernel, &window.stride, &window.dilation, &window.pad_before, &s.counts]
    {
        record.sizes(&sizes[..plan.rank], plan.rank);
    }
    let (first, second, to) = match kind {
        Kind::Forward => (w, x, y),
        Kind::Input => (w, y, x),
        Kind::Weight => (y, x, w),
    };
    let mut uses = vec![first.used, second.used, to.used];
    uses.extend(bias.map(|v| v.used));
    let mut arguments = Arguments::new();
    arguments.ptr(first.ptr).ptr(second.ptr).ptr(bias.map_or(first.ptr, |v| v.ptr)).ptr(to.ptr);
    arguments.bytes(record.finish());
    b.queue().launch(&Launch {
        call: kind.name().into(),
        key: key(("conv", plan)),
        entry: "conv",
        source: &|| plan.source(),
        uses: &uses,
        arguments: &arguments,
        grid: [tasks.min(BLOCKS) as u32, 1, 1],
        block: [plan.threads(), 1, 1],
        shared: 0,
    })
}

/// See [`Backend::conv`](gradus_backend::Backend::conv).
pub(crate) fn conv(
    b: &CudaBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let op = Kind::Forward.name();
    let fits = bias.is_none_or(|v| v.dtype == x.dtype && v.layout.dims() == &w.layout.dims()[..1]);
    let Some(s) = Sizes::of(window, groups, x, w, out.as_view()).filter(|_| fits) else {
        return composite::conv::forward(b, window, groups, x, w, bias, out);
    };
    let operands = [b.input(op, "x", x)?, b.input(op, "w", w)?, b.output(op, "the output", out)?];
    let bias = bias.map(|v| b.input(op, "bias", v)).transpose()?;
    run(b, Kind::Forward, window, &s, operands, bias)
}

/// See [`Backend::conv_backward_input`](gradus_backend::Backend::conv_backward_input).
pub(crate) fn backward_input(
    b: &CudaBackend,
    window: &Window,
    groups: usize,
    g: View<'_>,
    w: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let op = Kind::Input.name();
    let Some(s) = Sizes::of(window, groups, dx.as_view(), w, g) else {
        return composite::conv::backward_input(b, window, groups, g, w, dx);
    };
    let operands = [b.output(op, "dx", dx)?, b.input(op, "w", w)?, b.input(op, "g", g)?];
    run(b, Kind::Input, window, &s, operands, None)
}

/// See [`Backend::conv_backward_weight`](gradus_backend::Backend::conv_backward_weight).
pub(crate) fn backward_weight(
    b: &CudaBackend,
    window: &Window,
    groups: usize,
    x: View<'_>,
    g: View<'_>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    let op = Kind::Weight.name();
    let Some(s) = Sizes::of(window, groups, x, dw.as_view(), g) else {
        return composite::conv::backward_weight(b, window, groups, x, g, dw);
    };
    let operands = [b.input(op, "x", x)?, b.output(op, "dw", dw)?, b.input(op, "g", g)?];
    run(b, Kind::Weight, window, &s, operands, None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::template::check_text;

    #[test]
    fn the_texts_of_all_kernels_compile() {
        let forward = Plan {
            kind: Kind::Forward,
            dtype: DType::F32,
            rank: 1,
            side: 32,
            is_part: false,
            bias: true,
            strided: false,
        };
        let input = Plan { kind: Kind::Input, bias: false, rank: 2, strided: true, ..forward };
        let weight = Plan { kind: Kind::Weight, is_part: true, ..input };
        for plan in [forward, input, weight] {
            check_text("conv", &plan.source());
        }
        for (dtype, side) in [(DType::I16, 32), (DType::BF16, 64), (DType::F16, 32)] {
            check_text("conv", &Plan { dtype, side, rank: 3, ..forward }.source());
        }
        check_text("conv", &Plan { dtype: DType::BF16, ..weight }.source());
    }

    /// `check_text` fails where a kernel declares more shared memory than every block may have.
    #[test]
    fn the_kernels_compile_for_every_tile_of_every_dtype() {
        let sizes = [1, 48, 4096];
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
            let sides = sizes.map(|size| side(dtype, 1, size, size));
            assert_eq!(sides, [32, 64, if dtype.size() <= 4 { 128 } else { 64 }], "{dtype}");
        }
        // A dtype for each size of what is kept in shared memory. There, only the tiles of tensor cores depend on `kind`.
        for dtype in [DType::F64, DType::I64, DType::F32, DType::BF16] {
            for kind in [Kind::Forward, Kind::Weight].into_iter().take(if dtype == DType::BF16 { 2 } else { 1 }) {
                for side in BTreeSet::from(sizes.map(|size| side(dtype, 1, size, size))) {
                    let bias = kind == Kind::Forward;
                    let plan = Plan { kind, dtype, rank: 3, side, is_part: !bias, bias, strided: true };
                    check_text("conv", &plan.source());
                }
            }
        }
    }
}
