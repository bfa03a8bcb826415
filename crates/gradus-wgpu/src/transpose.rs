//! Copies that transpose matrices: the source is contiguous along one axis, and the copy along another. A work-group copies tiles of 32 by
//! 32 elements through shared memory, so that it reads and writes four neighbours at a time.

use gradus_backend::{DType, Layout, MergedAxes, Result, View, ViewMut};

use crate::WgpuBackend;
use crate::operand::{Bound, in_fours};
use crate::queue::{Bind, Launch};
use crate::wgsl::{self, Text, param};
use gradus_backend::key::key;
use gradus_backend::late::Access;

/// A tile is so many groups of four elements wide and high. An invocation moves a block of 4 by 4 elements.
const SIDE: u32 = 8;
/// The smallest size of both axes. Of smaller matrices, most of a tile would be empty.
const FEWEST: usize = 16;

/// Everything that the text depends on: the dtype, and the number of other axes.
#[derive(Debug, Hash)]
struct Plan {
    dtype: DType,
    others: usize,
}

/// The parameters: the sizes of the two axes in groups of four, the numbers of tiles along them, and the number of matrices; of the source
/// and the copy, the position and the step along the axis where their elements are apart; and of the other axes, the sizes, the steps of
/// the source and those of the copy. Positions and steps are in groups of four.
const TILES: usize = 2;
const MATRICES: usize = 4;
const POSITIONS: usize = 5;
const OTHERS: usize = POSITIONS + 4;

/// The axes of a copy that transposes matrices.
struct Transposed {
    axes: MergedAxes,
    /// The axis along which the source, and the one along which the copy is contiguous.
    near: [usize; 2],
}

impl Transposed {
    /// The axes of a copy from `x` to `out`, if it transposes matrices that are large enough and consist of whole groups of four.
    fn new(x: &Layout, out: &Layout) -> Option<Transposed> {
        let axes = MergedAxes::merged(&[x, out], 0..x.rank());
        let near = |steps: &[isize]| steps.iter().position(|&step| step == 1);
        let near = [near(&axes.steps[0])?, near(&axes.steps[1])?];
        let fits = |axis: usize| axes.dims[axis] >= FEWEST && axes.dims[axis].is_multiple_of(4);
        let even = [x, out].iter().zip(&axes.steps).zip(near).all(|((layout, steps), near)| {
            let mut steps = steps.clone();
            let last = steps.len() - 1;
            steps.swap(near, last);
            in_fours(layout, &steps)
        });
        (near[0] != near[1] && near.into_iter().all(fits) && even).then_some(Transposed { axes, near })
    }
}

/// Copies the elements as bits if the copy transposes matrices. Returns `false` if it does not, or if an operand is too large to bind.
pub(crate) fn copy(b: &WgpuBackend, x: View<'_>, out: &mut ViewMut<'_>) -> Result<bool> {
    let fits = b.fits(x.layout, x.dtype) && b.fits(out.layout, out.dtype);
    if x.dtype.size() > 4 || out.layout.numel() < FEWEST * FEWEST || !fits {
        return Ok(false);
    }
    // A bound part of a buffer begins at a multiple of 32 bytes, so groups of four stay aligned.
    let Some(transposed) = Transposed::new(x.layout, out.layout) else { return Ok(false) };
    let op = "copy_strided";
    let (from, to) = (b.input(op, "x", x)?, b.output(op, "out", out)?);
    let whole = out.layout.numel() * out.dtype.size() == out.buffer.bytes();
    let access = if whole { Access::Replace } else { Access::Write };
    launch(b, op, &transposed, x.dtype, &from, &Bound { bind: Bind { access, ..to.bind }, layout: to.layout })?;
    Ok(true)
}

fn launch(b: &WgpuBackend, op: &str, t: &Transposed, dtype: DType, from: &Bound<'_>, to: &Bound<'_>) -> Result<()> {
    let (axes, near) = (&t.axes, t.near);
    let fours = near.map(|axis| axes.dims[axis] / 4);
    let tiles = fours.map(|size| size.div_ceil(SIDE as usize));
    let others: Vec<usize> = (0..axes.rank()).filter(|axis| !near.contains(axis)).collect();
    let matrices: usize = others.iter().map(|&axis| axes.dims[axis]).product();
    let mut params: Vec<u32> = fours.into_iter().chain(tiles).chain([matrices]).map(|size| size as u32).collect();
    for (i, layout) in [&from.layout, &to.layout].into_iter().enumerate() {
        params.extend([(layout.offset() / 4) as u32, (axes.steps[i][near[1 - i]] / 4) as u32]);
    }
    params.extend(others.iter().map(|&axis| axes.dims[axis] as u32));
    for steps in &axes.steps {
        params.extend(others.iter().map(|&axis| (steps[axis] / 4) as u32));
    }
    let plan = Plan { dtype, others: others.len() };
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("transpose", &plan)),
        source: &|| plan.source(),
        binds: &[from.bind, to.bind],
        params: &params,
        groups: (matrices * tiles[0] * tiles[1]) as u64,
    })
}

impl Plan {
    fn source(&self) -> String {
        let others = self.others;
        let mut text = Text::new(OTHERS + 3 * others);
        text.quads("x", self.dtype, false);
        text.quads("y", self.dtype, true);
        text.declare(format_args!("var<workgroup> tile: array<Block, {}>;", SIDE * SIDE));
        text.declare("struct Block { a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32> }");
        // `p` numbers the groups along the axis on which the source is contiguous, and `q` those on which the copy is.
        text.line(format_args!(
            "let cell = group % ({0} * {1}); let matrix = group / ({0} * {1});",
            param(TILES),
            param(TILES + 1)
        ));
        text.line(format_args!("if (matrix >= {}) {{ return; }}", param(MATRICES)));
        wgsl::coordinates(&mut text, "c", "matrix", others, OTHERS);
        let start = |i: usize| {
            let steps = (0..others).map(|axis| format!(" + c{axis} * {}", param(OTHERS + (1 + i) * others + axis)));
            format!("{}{}", param(POSITIONS + 2 * i), steps.collect::<String>())
        };
        text.line(format_args!("let p0 = cell % {0} * {SIDE}u; let q0 = cell / {0} * {SIDE}u;", param(TILES)));
        text.line(format_args!("let across = local % {SIDE}u; let down = local / {SIDE}u;"));
        let block = |p: &str, q: &str| {
            format!("let p = p0 + {p}; let q = q0 + {q}; if (p < {} && q < {}) {{", param(0), param(1))
        };
        let place = |start: String, near: &str, row: String, step: usize| {
            format!("{start} + {near} + ({row}) * {}", param(step))
        };
        text.line(format_args!("{{ {}", block("across", "down")));
        for k in 0..4 {
            let at = place(start(0), "p", format!("4u * q + {k}u"), POSITIONS + 1);
            text.line(format_args!("let v{k} = load4_x({at});"));
        }
        let column = |j: usize| format!("vec4<u32>(v0[{j}], v1[{j}], v2[{j}], v3[{j}])");
        text.line(format_args!(
            "tile[local] = Block({}, {}, {}, {}); }} }}",
            column(0),
            column(1),
            column(2),
            column(3)
        ));
        text.line("workgroupBarrier();");
        text.line(format_args!("{} let turned = tile[across * {SIDE}u + down];", block("down", "across")));
        for (k, row) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let at = place(start(1), "q", format!("4u * p + {k}u"), POSITIONS + 3);
            let [x, y, z, w] = ["x", "y", "z", "w"].map(|lane| format!("turned.{row}.{lane}"));
            text.line(format_args!("store4_y({at}, array<u32, 4>({x}, {y}, {z}, {w}));"));
        }
        text.line("}");
        text.finish(SIDE * SIDE)
    }
}
