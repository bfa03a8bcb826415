//! `gemm`: batched products of strided matrices.
//!
//! There are four kernels: tiles in registers (`tile.cu`), tiles on tensor cores for half precision (`mma.cu`) and, where
//! that was asked for, for f32 (`tf32.cu`), and sums without tiles if a matrix has few rows or columns (`thin.cu`). Where
//! a product has too few tiles to fill a GPU, or an inner axis too long for one sum, the inner axis is cut into parts,
//! whose results are added in their order (`sum.cu`). All choices depend on the operands only, so a product has the
//! same bits on every run.
//!
//! Where cuBLASLt is on the machine, it computes the products of half precision that it computes faster, as long as there is
//! memory for that: see `library.rs`.

mod library;
mod plan;

use gradus_backend::key::key;
use gradus_backend::late::Access;
use gradus_backend::{
    DType, Error, ErrorKind, KernelBuilder, Layout, MapArg, MergedAxes, Result, Scalar, Shape, View, ViewMut,
};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::THREADS;
use crate::operand::Operand;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::template::Record;
use plan::Form;

const OP: &str = "gemm";
/// The largest size of an axis: positions along it are 32-bit numbers, and a tile may reach past its end.
const LONGEST: usize = i32::MAX as usize - (1 << 16);
/// The largest number of blocks of a launch. A block goes on with the tile that many further on.
pub(crate) const BLOCKS: u64 = 1 << 30;

/// See [`Backend::gemm`](gradus_backend::Backend::gemm).
pub(crate) fn gemm(
    b: &CudaBackend,
    alpha: Scalar,
    x: View<'_>,
    y: View<'_>,
    beta: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    check(b, [alpha, beta], x, y, out)?;
    let (dtype, lead) = (x.dtype, out.layout.rank() - 2);
    let k = x.layout.dims()[lead + 1];
    if out.layout.numel() == 0 {
        return Ok(());
    }
    if k == 0 {
        return scaled(b, beta, out);
    }
    if let Some(&long) = out.layout.dims()[lead..].iter().chain([&k]).find(|&&n| n > LONGEST) {
        let m = format!("an axis of {long} elements is longer than the {LONGEST} that a product reaches");
        return Err(Error::new(ErrorKind::Overflow, OP, m).help("split the matrix along this axis"));
    }
    if let Some(copied) = library::to_copy(b, [alpha, beta], [x, y], out)?
        && with_copies(b, [alpha, beta], [x, y], out, copied)?
    {
        return Ok(());
    }
    let (p, q) = (b.input(OP, "a", x)?, b.input(OP, "b", y)?);
    let zero = beta.to_f64() == 0.0;
    let r = if zero { b.output(OP, "c", out)? } else { b.updated(OP, "c", out)? };
    let batch = MergedAxes::merged(&[p.layout, q.layout, r.layout], 0..lead);
    if library::gemm(b, OP, [alpha, beta], &[p, q, r], &batch)? {
        return Ok(());
    }
    let mut form = Form::of([&p, &q, &r], &batch, b.options().tf32);
    if form.parts == 1 {
        return launch(b, [alpha, beta], [p, q, r], &batch, &form);
    }
    let count = out.layout.numel();
    let shape = Shape::new(&[form.parts, count])?;
    let mut partial = Temp::new(b, dtype.compute(), shape)?;
    let layout = Layout::contiguous(*out.layout.shape());
    let mut parts = partial.view_mut();
    let parts = parts.with(&layout);
    let to = b.output(OP, "the parts", &parts)?;
    let batch = MergedAxes::merged(&[p.layout, q.layout, &layout], 0..lead);
    form.plan.batch = batch.rank();
    launch(b, [Scalar::Int(1), Scalar::Int(0)], [p, q, to], &batch, &form)?;
    sum(b, OP, [alpha, beta], (to, form.parts), r)
}

/// Memory for a copy of a matrix, and the layout of the copy in it, whose rows or columns are aligned. `None` if memory is short.
fn place(b: &CudaBackend, dtype: DType, layout: &Layout) -> Result<Option<(Temp, Layout)>> {
    let lead = layout.rank() - 2;
    let (by_rows, mut dims) = (layout.strides()[lead + 1] == 1, layout.dims().to_vec());
    if !by_rows {
        dims.swap(lead, lead + 1);
    }
    let size = dims[lead + 1];
    dims[lead + 1] = size.next_multiple_of(128 / dtype.size());
    let shape = Shape::new(&dims)?;
    let buffer = match b.memory().spare(shape.numel() * dtype.size()) {
        Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => return Ok(None),
        buffer => buffer?,
    };
    let temp = Temp { buffer, dtype, layout: Layout::contiguous(shape) };
    let aligned = temp.layout.narrow(lead + 1, 0, size)?;
    let aligned = if by_rows { aligned } else { aligned.transpose(lead as isize, lead as isize + 1)? };
    Ok(Some((temp, aligned)))
}

/// Computes a product with aligned copies of those of x, y and the result that are `copied`. Returns whether there was memory for
/// them.
fn with_copies(
    b: &CudaBackend,
    factors: [Scalar; 2],
    [x, y]: [View<'_>; 2],
    out: &mut ViewMut<'_>,
    copied: [bool; 3],
) -> Result<bool> {
    let mut places = [None, None, None];
    for (i, layout) in [x.layout, y.layout, out.layout].into_iter().enumerate().filter(|(i, _)| copied[*i]) {
        places[i] = place(b, out.dtype, layout)?;
        if places[i].is_none() {
            return Ok(false);
        }
    }
    let [mut first, mut second, result] = places;
    for (to, from) in [(&mut first, x), (&mut second, y)] {
        if let Some((temp, layout)) = to {
            crate::map::copy_strided(b, from, &mut temp.view_mut().with(layout))?;
        }
    }
    let x = first.as_ref().map_or(x, |(temp, layout)| View { layout, ..temp.view() });
    let y = second.as_ref().map_or(y, |(temp, layout)| View { layout, ..temp.view() });
    let Some((mut temp, layout)) = result else {
        gemm(b, factors[0], x, y, factors[1], out)?;
        return Ok(true);
    };
    gemm(b, factors[0], x, y, factors[1], &mut temp.view_mut().with(&layout))?;
    crate::map::copy_strided(b, temp.view().with(&layout), out)?;
    Ok(true)
}

/// Checks dtypes, shapes and factors.
fn check(b: &CudaBackend, factors: [Scalar; 2], x: View<'_>, y: View<'_>, out: &ViewMut<'_>) -> Result<()> {
    let (dx, dy, dz) = (x.layout.dims(), y.layout.dims(), out.layout.dims());
    let dtype = x.dtype;
    let wrong = |m: &str| {
        let e = Error::shape(OP, m).operand("a", dx, dtype, b.label()).operand("b", dy, y.dtype, b.label());
        Err(e.operand("c", dz, out.dtype, b.label()))
    };
    if dtype == DType::Bool {
        return Err(Error::dtype(OP, dtype, "floats and integers"));
    }
    let rank = dx.len();
    if rank < 2 || dy.len() != rank || dz.len() != rank {
        return wrong("the operands need one rank of at least 2");
    }
    let lead = rank - 2;
    if dy[lead] != dx[lead + 1] || dz[lead] != dx[lead] || dz[lead + 1] != dy[lead + 1] {
        return wrong("the operands are not [m, k], [k, n] and [m, n]");
    }
    if dx[..lead] != dz[..lead] || dy[..lead] != dz[..lead] {
        return wrong("the batch axes differ");
    }
    b.expect(OP, "b", y, dtype, dy)?;
    b.expect(OP, "c", out.as_view(), dtype, dz)?;
    factors.iter().try_for_each(|s| s.check(dtype).map_err(|e| Error::argument(OP, e.message())))
}

/// The result of a product whose inner axis is empty: `beta * c`.
fn scaled(b: &CudaBackend, beta: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
    if beta.to_f64() == 0.0 {
        return crate::map::fill(b, out, Scalar::Int(0));
    }
    let dtype = out.dtype;
    let kernel = KernelBuilder::new(&[dtype, dtype.compute()]);
    let product = kernel.args()[0].cast(dtype.compute()) * kernel.args()[1];
    let kernel = kernel.finish(OP, &[(product, dtype)])?;
    let layout = out.layout;
    crate::map::map(b, &kernel, &[MapArg::Output(0), MapArg::Scalar(beta)], &mut [out.with(layout)])
}

/// The size of a tile, how many parts the inner axis is cut into, and how many elements of it a part has.
#[derive(Clone, Copy)]
struct Cut {
    rows: usize,
    cols: usize,
    parts: usize,
    depth: usize,
}

/// The parameters that the kernels share. `tasks` is the number of tiles, or of results.
fn record(
    [alpha, beta]: [Scalar; 2],
    ([p, q, r], dtype): (&[Operand<'_>; 3], DType),
    batch: &MergedAxes,
    cut: Cut,
    tasks: u64,
) -> Vec<u8> {
    let lead = r.layout.rank() - 2;
    let (m, n, k) = (r.layout.dims()[lead], r.layout.dims()[lead + 1], q.layout.dims()[lead]);
    let mut record = Record::new();
    record.i64(tasks as i64);
    for o in [p, q, r] {
        record.longs(o.layout.strides()[lead..].iter().copied(), 2);
    }
    record.i64(r.layout.numel() as i64);
    record.number(alpha, dtype).number(beta, dtype);
    for size in [m, n, k, m.div_ceil(cut.rows), n.div_ceil(cut.cols), cut.parts, cut.depth] {
        record.i32(size);
    }
    record.i32(usize::from(alpha.to_f64() != 1.0)).i32(usize::from(beta.to_f64() != 0.0));
    record.sizes(&batch.dims, batch.rank() + 1);
    for steps in &batch.steps {
        record.longs(steps.iter().copied(), batch.rank() + 1);
    }
    record.finish().to_vec()
}

/// Computes the product, or its parts one after the other.
fn launch(
    b: &CudaBackend,
    factors: [Scalar; 2],
    operands: [Operand<'_>; 3],
    batch: &MergedAxes,
    form: &Form,
) -> Result<()> {
    let plan = &form.plan;
    let lead = operands[2].layout.rank() - 2;
    let (m, n) = (operands[2].layout.dims()[lead], operands[2].layout.dims()[lead + 1]);
    let tiles = batch.numel() as u64 * m.div_ceil(plan.rows) as u64 * n.div_ceil(plan.cols) as u64;
    let tasks = tiles * form.parts as u64;
    let mut arguments = Arguments::new();
    operands.iter().for_each(|o| {
        arguments.ptr(o.ptr);
    });
    let cut = Cut { rows: plan.rows, cols: plan.cols, parts: form.parts, depth: form.depth };
    arguments.bytes(&record(factors, (&operands, plan.dtype), batch, cut, tasks));
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("gemm", plan)),
        entry: "gemm",
        source: &|| plan.source(),
        uses: &operands.map(|o| o.used),
        arguments: &arguments,
        grid: [tasks.min(BLOCKS) as u32, 1, 1],
        block: [plan.threads(), 1, 1],
        shared: plan.shared(),
    })
}

/// Adds the parts of a result, in their order: `to = alpha * sum + beta * to`. Each part is contiguous and has the shape
/// of `to`, which has at least two axes, and the type of sums of its dtype.
pub(crate) fn sum(
    b: &CudaBackend,
    op: &str,
    factors: [Scalar; 2],
    (parts, count_of_parts): (Operand<'_>, usize),
    to: Operand<'_>,
) -> Result<()> {
    let batch = MergedAxes::merged(&[to.layout; 3], 0..to.layout.rank() - 2);
    let count = to.layout.numel() as u64;
    let (dtype, rank) = (to.dtype, batch.rank());
    let cut = Cut { rows: 1, cols: 1, parts: count_of_parts, depth: 0 };
    let read = Operand { used: crate::queue::Use { access: Access::Read, ..parts.used }, ..parts };
    let mut arguments = Arguments::new();
    arguments.ptr(read.ptr).ptr(to.ptr).bytes(&record(factors, (&[read, read, to], dtype), &batch, cut, count));
    b.queue().launch(&Launch {
        call: op.into(),
        key: key(("gemm_sum", dtype, rank)),
        entry: "gemm_sum",
        source: &|| plan::sum_source(dtype, rank),
        uses: &[read.used, to.used],
        arguments: &arguments,
        grid: [count.div_ceil(u64::from(THREADS)).min(BLOCKS) as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
    })
}
