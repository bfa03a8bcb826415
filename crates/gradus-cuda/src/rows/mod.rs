//! Kernels over lines of a tensor: softmax, normalisation and cross-entropy. Operands that are invalid or empty, or whose
//! lines are too long, are passed to the default implementations, which also report the errors.

mod cross_entropy;
mod norm;
mod softmax;

use gradus_backend::key::key;
use gradus_backend::{Axes, DType, Layout, MergedAxes, Result, Scalar};

pub(crate) use cross_entropy::{cross_entropy, cross_entropy_backward};
pub(crate) use norm::{normalize, normalize_affine_backward, normalize_backward};
pub(crate) use softmax::{softmax, softmax_backward};

use crate::CudaBackend;
use crate::arguments::Arguments;
use crate::code::element;
use crate::operand::Operand;
use crate::product::BLOCKS;
use crate::queue::{Held, Launch};
use crate::template::{Record, float_functions, source, sum_type};

/// The largest number of elements of a line.
const LONGEST: usize = 1 << 30;
/// The largest number of elements of a line that a thread keeps in registers if it handles them one by one.
const KEPT: usize = 8;
/// The largest number of registers that hold elements of a line if a thread handles packs.
const KEPT_OF_PACKS: usize = 16;
/// The bytes of a pack.
const PACK: usize = 16;
/// The smallest number of packs of a line. For fewer, another kernel is not worth compiling.
const FEWEST_PACKS: usize = 32;

/// How threads share lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shares {
    threads: usize,
    /// Threads that share a line.
    lanes: usize,
    /// Whether neighbouring threads have neighbouring lines.
    columns: bool,
    /// The number of neighbouring elements that a thread handles at a time: a pack.
    wide: usize,
    /// The number of packs that a thread keeps, or 0.
    per: usize,
}

impl Shares {
    /// For lines of `n` elements of a tensor with this layout, along `axes`.
    fn of(layout: &Layout, axes: Axes, n: usize) -> Shares {
        let fastest = (0..layout.rank())
            .filter(|&a| layout.dims()[a] > 1)
            .min_by_key(|&a| (layout.strides()[a].unsigned_abs(), std::cmp::Reverse(a)));
        let columns = fastest.is_some_and(|a| !axes.contains(a));
        let (threads, lanes) = match (columns, n) {
            (true, ..=1024) => (256, 8),
            (true, _) => (1024, 32),
            (false, ..=256) => (256, 32),
            (false, ..=2048) => (256, 256),
            (false, _) => (1024, 1024),
        };
        let each = n.div_ceil(lanes).next_power_of_two();
        Shares { threads, lanes, columns, wide: 1, per: if each <= KEPT { each } else { 0 } }
    }

    /// For lines of `packs` packs of `wide` neighbouring elements. Each thread has one pack while a block has enough threads.
    fn of_packs(packs: usize, wide: usize) -> Shares {
        let lanes = packs.next_power_of_two().clamp(32, 1024);
        let each = packs.div_ceil(lanes).next_power_of_two();
        let threads = if lanes == 32 { 256 } else { lanes };
        // Two elements of 16 bytes are f64, whose sums take two registers each.
        let registers = each * wide.max(4);
        Shares { threads, lanes, columns: false, wide, per: if registers <= KEPT_OF_PACKS { each } else { 0 } }
    }

    /// The number of lines of a block.
    fn lines(&self) -> usize {
        if self.columns { 32 } else { self.threads / self.lanes }
    }
}

/// A kernel over lines.
struct Rows<'a> {
    op: &'static str,
    /// The kernel's name in `file`.
    entry: &'static str,
    file: &'static str,
    axes: Axes,
    /// Each with a layout of the shape that all share. The first is a tensor of the element type.
    operands: &'a [(Operand<'a>, Layout)],
    /// The operands whose elements the file reads and writes by packs, where their layouts permit it.
    packed: &'a [usize],
    /// What the file wants to know.
    constants: &'a [(&'static str, usize)],
    numbers: [f64; 3],
    /// The type of indices, and the index to pass over.
    index: (DType, i64),
    /// The number of parts that lines are cut into.
    parts: usize,
    /// Where an index out of range is reported.
    held: Option<&'a Held<'a>>,
}

impl Default for Rows<'_> {
    fn default() -> Self {
        Rows {
            op: "",
            entry: "",
            file: "",
            axes: Axes::NONE,
            operands: &[],
            packed: &[],
            constants: &[],
            numbers: [0.0; 3],
            index: (DType::I64, 0),
            parts: 1,
            held: None,
        }
    }
}

impl Rows<'_> {
    /// How threads share lines. Packs need lines of neighbouring elements that begin at whole packs in each of the operands.
    fn shares(&self, kept: &MergedAxes, inner: &MergedAxes) -> Shares {
        let (first, layout) = &self.operands[0];
        let n = inner.numel();
        let plain = Shares::of(layout, self.axes, n.div_ceil(self.parts));
        let wide = PACK / first.dtype.size();
        let fits = |&at: &usize| {
            let begins = |step: &isize| step.unsigned_abs().is_multiple_of(wide);
            let aligned = self.operands[at].0.ptr.is_multiple_of(PACK as u64);
            aligned && inner.steps[at] == [1] && kept.steps[at].iter().all(begins)
        };
        let whole = self.parts == 1 && n.is_multiple_of(wide) && n / wide >= FEWEST_PACKS;
        let packs = !plain.columns && whole && !self.packed.is_empty() && self.packed.iter().all(fits);
        if packs { Shares::of_packs(n / wide, wide) } else { plain }
    }

    fn run(&self, b: &CudaBackend) -> Result<()> {
        let layouts: Vec<&Layout> = self.operands.iter().map(|(_, layout)| layout).collect();
        let rank = layouts[0].rank();
        let kept = MergedAxes::merged(&layouts, (0..rank).filter(|&a| !self.axes.contains(a)));
        let inner = MergedAxes::merged(&layouts, self.axes.iter());
        let (lines, n) = (kept.numel(), inner.numel());
        let depth = n.div_ceil(self.parts);
        let shares = self.shares(&kept, &inner);
        let dtype = self.operands[0].0.dtype;
        let compute = dtype.compute();

        let mut record = Record::new();
        record.i64(lines as i64).i32(n).i32(self.parts).i32(depth);
        for axes in [&kept, &inner] {
            record.sizes(&axes.dims, axes.rank() + 1);
        }
        for axes in [&kept, &inner] {
            axes.steps.iter().for_each(|steps| {
                record.longs(steps.iter().copied(), axes.rank() + 1);
            });
        }
        self.numbers.iter().for_each(|&n| {
            record.number(Scalar::Float(n), compute);
        });
        record.i64(self.index.1);
        let mut arguments = Arguments::new();
        self.operands.iter().for_each(|(o, _)| {
            arguments.ptr(o.ptr);
        });
        self.held.iter().for_each(|held| {
            arguments.fault(held.address());
        });
        arguments.bytes(record.finish());

        let plan = (self.entry, dtype, self.index.0, self.constants, kept.rank(), inner.rank(), shares);
        let text = || {
            let types = [("T", element(dtype)), ("A", sum_type(dtype)), ("I", element(self.index.0))];
            let mut constants = vec![
                ("OPERANDS", self.operands.len()),
                ("KEPT", kept.rank()),
                ("INNER", inner.rank()),
                ("THREADS", shares.threads),
                ("LANES", shares.lanes),
                ("COLUMNS", usize::from(shares.columns)),
                ("WIDE", shares.wide),
                ("PER", shares.per),
            ];
            constants.extend_from_slice(self.constants);
            source(&types, &constants, &[&float_functions(compute), include_str!("line.cu"), self.file])
        };
        let blocks = lines.div_ceil(shares.lines()) as u64 * self.parts as u64;
        b.queue().launch(&Launch {
            call: self.held.map_or(self.op.into(), |held| held.call(self.op)),
            key: key(("rows", plan)),
            entry: self.entry,
            source: &text,
            uses: &self.operands.iter().map(|(o, _)| o.used).collect::<Vec<_>>(),
            arguments: &arguments,
            grid: [blocks.min(BLOCKS) as u32, 1, 1],
            block: [shares.threads as u32, 1, 1],
            shared: 0,
        })
    }
}

/// Whether a kernel can handle tensors of these dtypes and layouts: they have one shape, which is not empty, and one
/// float dtype, and lines along `axes` are not too long.
fn plain(axes: Axes, tensors: &[(DType, &Layout)]) -> bool {
    let (dtype, first) = tensors[0];
    let shape = first.shape();
    axes.iter().all(|a| a < shape.rank())
        && shape.numel() > 0
        && axes.iter().map(|a| shape[a]).product::<usize>() <= LONGEST
        && shape.iter().all(|&n| n <= LONGEST)
        && dtype.is_float()
        && tensors.iter().all(|(d, layout)| *d == dtype && layout.shape() == shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_one_pack_each_while_a_block_has_enough_of_them() {
        let of = |n: usize, wide| {
            let shares = Shares::of_packs(n / wide, wide);
            (shares.threads, shares.lanes, shares.per)
        };
        assert_eq!([of(256, 8), of(768, 8), of(4096, 8)], [(256, 32, 1), (128, 128, 1), (512, 512, 1)]);
        assert_eq!([of(4096, 4), of(8192, 4), of(32_768, 4)], [(1024, 1024, 1), (1024, 1024, 2), (1024, 1024, 0)]);
    }
}
