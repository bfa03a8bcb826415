//! `unfold` and `fold`: one invocation per element of the result.

use gradus_backend::{DType, Error, KernelBuilder, Layout, MapArg, Result, Scalar, ScalarOp, View, ViewMut, Window};

use crate::WgpuBackend;
use crate::map::{scalar_param, scalar_words};
use crate::operand::{LOOP, cut};
use crate::queue::Launch;
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::key::key;

/// Checks the two operands of unfold or fold: `[n, c, spatial..]` and `[n, c, kernel.., positions..]`.
fn check(b: &WgpuBackend, op: &str, window: &Window, plain: View<'_>, unfolded: View<'_>) -> Result<()> {
    let rank = window.rank;
    if !(1..=3).contains(&rank) {
        return Err(Error::argument(op, format!("a window over {rank} axes; it has 1 to 3")));
    }
    let dims = plain.layout.dims();
    if dims.len() != rank + 2 {
        let m = format!("{} has not the {} axes [n, c, spatial..]", plain.layout.shape(), rank + 2);
        return Err(Error::shape(op, m));
    }
    let positions = window.output(op, &dims[2..])?;
    b.check_dtype(op, plain.dtype)?;
    let shape = [&dims[..2], &window.kernel[..rank], &positions[..rank]].concat();
    b.expect(op, "the unfolded tensor", unfolded, plain.dtype, &shape)
}

/// The position and the strides of an operand.
pub(crate) fn strides(params: &mut Vec<u32>, layout: &Layout) {
    params.push(layout.offset() as u32);
    params.extend(layout.strides().iter().map(|&s| s as u32));
}

/// Adds the parameters of a window: the sizes of the axes, the kernel, stride, dilation and padding, and the number of
/// positions, with `rank` numbers each.
pub(crate) fn shape(params: &mut Vec<u32>, window: &Window, spatial: &[usize], positions: &[usize]) {
    let parts = [&window.kernel, &window.stride, &window.dilation, &window.pad_before];
    params.extend(spatial.iter().map(|&v| v as u32));
    parts.iter().for_each(|part| params.extend(part[..window.rank].iter().map(|&v| v as u32)));
    params.extend(positions.iter().map(|&v| v as u32));
}

/// Whether the loops of a kernel, one inside the other with this many iterations each, take no more than [`LOOP`]
/// iterations together. An outer loop counts each of its iterations beside those of the loops within.
pub(crate) fn in_one_loop(sizes: impl Iterator<Item = usize>) -> bool {
    let counted = sizes.scan(1usize, |all, size| {
        *all = all.saturating_mul(size);
        Some(*all)
    });
    counted.fold(0usize, usize::saturating_add) <= LOOP
}

/// The axis at which to cut samples or channels, and its middle, if an operand is too large to bind.
pub(crate) fn too_large(b: &WgpuBackend, operands: &[(&Layout, DType)]) -> Option<(usize, usize)> {
    let &(layout, _) = operands.iter().find(|&&(l, d)| !b.fits(l, d))?;
    cut(layout, 0..2)
}

/// See [`Backend::unfold`](gradus_backend::Backend::unfold).
pub(crate) fn unfold(b: &WgpuBackend, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "unfold";
    check(b, OP, window, x, out.as_view())?;
    pad.check(x.dtype).map_err(|e| Error::argument(OP, e.message()))?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        return crate::map::fill(b, out, pad);
    }
    if let Some((axis, half)) = too_large(b, &[(x.layout, x.dtype), (out.layout, x.dtype)]) {
        for (start, len) in [(0, half), (half, x.layout.dims()[axis] - half)] {
            let (from, to) = (x.layout.narrow(axis, start, len)?, out.layout.narrow(axis, start, len)?);
            unfold(b, window, x.with(&from), pad, &mut out.with(&to))?;
        }
        return Ok(());
    }
    let (from, to) = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    let (rank, all, dtype) = (window.rank, out.layout.rank(), x.dtype);
    let mut params = vec![n as u32];
    let mut words = scalar_words(pad, dtype);
    words.resize(2, 0);
    params.extend(words);
    params.extend(out.layout.dims().iter().map(|&d| d as u32));
    strides(&mut params, &from.layout);
    strides(&mut params, &to.layout);
    shape(&mut params, window, &x.layout.dims()[2..], &[]);
    let source = || {
        let x_at = 3 + all;
        let y_at = x_at + 3 + rank;
        let shape = y_at + 1 + all;
        let mut text = Text::new(shape + 5 * rank);
        text.input("x", dtype);
        text.output("y", dtype);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", all, 3);
        text.line(format_args!(
            "var at = {} + c0 * {} + c1 * {}; var inside = true;",
            param(x_at),
            param(x_at + 1),
            param(x_at + 2)
        ));
        for a in 0..rank {
            let part = |k: usize| param(shape + k * rank + a);
            let (size, stride, dilation, before) = (part(0), part(2), part(3), part(4));
            // In front of the first element, the difference wraps to a number above every size.
            text.line(format_args!("let s{a} = c{} * {stride} + c{} * {dilation} - {before};", 2 + rank + a, 2 + a));
            text.line(format_args!("inside = inside && s{a} < {size}; at = at + s{a} * {};", param(x_at + 3 + a)));
        }
        text.line(format_args!("var v = {}; if (inside) {{ v = load_x(at); }}", scalar_param(1, dtype)));
        text.line(format_args!("store_y({}, v);", wgsl::position("c", all, y_at, y_at + 1)));
        text.finish(GROUP)
    };
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("unfold", dtype, rank)),
        source: &source,
        binds: &[from.bind, to.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// See [`Backend::fold`](gradus_backend::Backend::fold).
pub(crate) fn fold(b: &WgpuBackend, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    check(b, OP, window, out.as_view(), x)?;
    if x.dtype == DType::Bool {
        return Err(Error::dtype(OP, x.dtype, "numbers"));
    }
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if x.layout.numel() == 0 {
        return crate::map::fill(b, out, Scalar::Int(0));
    }
    if let Some((axis, half)) = too_large(b, &[(x.layout, x.dtype), (out.layout, x.dtype)]) {
        for (start, len) in [(0, half), (half, x.layout.dims()[axis] - half)] {
            let (from, to) = (x.layout.narrow(axis, start, len)?, out.layout.narrow(axis, start, len)?);
            fold(b, window, x.with(&from), &mut out.with(&to))?;
        }
        return Ok(());
    }
    let blocks = blocks_of_taps(window);
    if let [block] = blocks[..] {
        return fold_block(b, window, x, block, false, out);
    }
    let mut sum = Temp::new(b, x.dtype.compute(), *out.layout.shape())?;
    for (i, &block) in blocks.iter().enumerate() {
        fold_block(b, window, x, block, i > 0, &mut sum.view_mut())?;
    }
    let builder = KernelBuilder::new(&[x.dtype.compute()]);
    let kernel = builder.finish(OP, &[(builder.args()[0], x.dtype)])?;
    let layout = out.layout;
    crate::map::map(b, &kernel, &[MapArg::View(sum.view())], &mut [out.with(layout)])
}

/// A block of taps of a window: `(first, end)` along each axis.
type Block = [(usize, usize); 3];

/// Splits the taps of a window into blocks that are small enough for a loop.
fn blocks_of_taps(window: &Window) -> Vec<Block> {
    // Up to three loops, each with as many iterations as the block has taps.
    let (mut room, mut blocks) = (LOOP / 3, vec![[(0, 1); 3]]);
    for axis in (0..window.rank).rev() {
        let taps = window.kernel[axis];
        let most = taps.min(room);
        room = (room / most).max(1);
        let along = (0..taps).step_by(most).map(|first| (first, (first + most).min(taps)));
        let all = along.flat_map(|range| blocks.iter().map(move |block| (range, *block)));
        blocks = all
            .map(|(range, mut block)| {
                block[axis] = range;
                block
            })
            .collect();
    }
    blocks
}

/// Folds some taps of the window. If `again` is set, adds them to what the output holds.
fn fold_block(
    b: &WgpuBackend,
    window: &Window,
    x: View<'_>,
    taps: Block,
    again: bool,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "fold";
    let n = out.layout.numel();
    let (from, to) = (b.input(OP, "x", x)?, b.output(OP, "out", out)?);
    let (rank, all, dtype, sums) = (window.rank, out.layout.rank(), x.dtype, out.dtype);
    let mut params = vec![n as u32];
    params.extend(out.layout.dims().iter().map(|&d| d as u32));
    strides(&mut params, &from.layout);
    strides(&mut params, &to.layout);
    shape(&mut params, window, &out.layout.dims()[2..], &x.layout.dims()[2 + rank..]);
    params.extend(taps[..rank].iter().flat_map(|&(first, end)| [first as u32, end as u32]));
    let source = || {
        let x_at = 1 + all;
        let y_at = x_at + 3 + 2 * rank;
        let shape = y_at + 1 + all;
        let mut text = Text::new(shape + 8 * rank);
        text.input("x", dtype);
        text.output("y", sums);
        text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
        wgsl::coordinates(&mut text, "c", "id", all, 1);
        text.line(format_args!("let base = {} + c0 * {} + c1 * {};", param(x_at), param(x_at + 1), param(x_at + 2)));
        text.line(format_args!("let to = {};", wgsl::position("c", all, y_at, y_at + 1)));
        let zero = wgsl::constant(Scalar::Int(0), dtype.compute());
        text.line(format_args!("var acc = {};", if again { "load_y(to)" } else { &zero }));
        for a in 0..rank {
            let part = |k: usize| param(shape + k * rank + a);
            let (stride, dilation, before, positions) = (part(2), part(3), part(4), part(5));
            let (first, end) = (param(shape + 6 * rank + 2 * a), param(shape + 6 * rank + 2 * a + 1));
            text.line(format_args!("for (var k{a} = {first}; k{a} < {end}; k{a} = k{a} + 1u) {{"));
            // In front of the first position, the difference wraps to a number above every position.
            text.line(format_args!(
                "let d{a} = c{} + {before} - k{a} * {dilation}; let p{a} = d{a} / {stride};",
                2 + a
            ));
            text.line(format_args!(
                "if (k{a} * {dilation} > c{} + {before} || p{a} >= {positions} || p{a} * {stride} != d{a}) {{ continue; }}",
                2 + a
            ));
        }
        let terms: String = (0..rank)
            .map(|a| format!(" + k{a} * {} + p{a} * {}", param(x_at + 3 + a), param(x_at + 3 + rank + a)))
            .collect();
        let sum = wgsl::binary(ScalarOp::Add, dtype.compute(), "acc", &format!("load_x(base{terms})"));
        text.line(format_args!("acc = {sum};"));
        text.line("}".repeat(rank));
        text.line("store_y(to, acc);");
        text.finish(GROUP)
    };
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("fold", dtype, sums, rank, again)),
        source: &source,
        binds: &[from.bind, to.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_loops_stay_within_the_limit_of_all_loops() {
        for (sizes, fits) in [
            ([LOOP / 3, 1, 1], true),
            ([LOOP / 3 + 1, 1, 1], false),
            ([LOOP / 2, 1, 1], false),
            ([1, 1, LOOP - 2], true),
            ([1, 1, LOOP - 1], false),
            ([usize::MAX, usize::MAX, 2], false),
        ] {
            assert_eq!(in_one_loop(sizes.into_iter()), fits, "{sizes:?}");
        }
        for kernel in [[LOOP, 1, 1], [LOOP / 2, 1, 1], [3, 50, 400], [1, 7, 70_001], [30, 30, 30]] {
            let window =
                Window { rank: 3, kernel, stride: [1; 3], dilation: [1; 3], pad_before: [0; 3], pad_after: [0; 3] };
            let blocks = blocks_of_taps(&window);
            let sizes = |block: &Block| block.map(|(first, end)| end - first);
            assert!(blocks.iter().all(|block| in_one_loop(sizes(block).into_iter())), "{kernel:?}: {blocks:?}");
            let taps: usize = blocks.iter().map(|block| sizes(block).iter().product::<usize>()).sum();
            assert_eq!(taps, window.numel());
        }
    }
}
