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
/// The packs of each operand that a thread of all but the largest blocks keeps in registers: as many loads as keep memory busy.
const KEPT_PACKS: usize = 4;
/// The most packs that a thread of the largest blocks keeps.
const MOST_PACKS: usize = 6;
/// The threads of the largest blocks whose rows are neighbouring elements. With more, each has too few registers.
const MOST_THREADS: usize = 512;
/// The bytes of a pack.
const PACK: usize = 16;
/// The smallest number of packs of a line. For fewer, another kernel is not worth compiling.
const FEWEST_PACKS: usize = 32;
/// The smallest number of packs of a line that does not begin and end with a whole one.
const FEWEST_PEELED: usize = 256;

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
    /// Whether lines may begin and end in a pack.
    peeled: bool,
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
            (false, _) => (MOST_THREADS, MOST_THREADS),
        };
        let each = n.div_ceil(lanes).next_power_of_two();
        Shares { threads, lanes, columns, wide: 1, per: if each <= KEPT { each } else { 0 }, peeled: false }
    }

    /// For lines of `packs` packs of `wide` neighbouring elements. A warp has a line of its own, and a block for longer ones,
    /// where that lets each thread keep what it handles.
    fn of_packs(packs: usize, wide: usize, peeled: bool) -> Shares {
        let lanes = packs.div_ceil(KEPT_PACKS).next_power_of_two().clamp(32, MOST_THREADS);
        let each = packs.div_ceil(lanes);
        let threads = if lanes == 32 { 256 } else { lanes };
        let per = if each <= MOST_PACKS && !peeled { each } else { 0 };
        Shares { threads, lanes, columns: false, wide, per, peeled }
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
    /// The number of neighbouring lines of a thread. More than 1 needs what [`beside`] checks.
    beside: usize,
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
            beside: 1,
            held: None,
        }
    }
}

impl Rows<'_> {
    /// How threads share lines, and how many elements after a whole pack the first operand begins. Packs need lines of
    /// neighbouring elements that begin equally far from a whole pack in each of the operands.
    fn shares(&self, kept: &MergedAxes, inner: &MergedAxes) -> (Shares, usize) {
        let (first, layout) = &self.operands[0];
        let n = inner.numel();
        let plain = Shares::of(layout, self.axes, n.div_ceil(self.parts));
        if self.beside > 1 {
            return (Shares { threads: 256, lanes: 8, columns: true, per: 0, ..plain }, 0);
        }
        let (size, wide) = (first.dtype.size(), PACK / first.dtype.size());
        let skew = |at: usize| (self.operands[at].0.ptr as usize % PACK) / size;
        let together = |&at: &usize| {
            let mut steps = kept.steps[at].iter().zip(&kept.steps[0]);
            inner.steps[at] == [1]
                && skew(at) == skew(0)
                && steps.all(|(step, of_first)| (step - of_first) % wide as isize == 0)
        };
        if plain.columns || self.parts > 1 || self.packed.is_empty() || !self.packed.iter().all(together) {
            return (plain, 0);
        }
        let begins = |step: &isize| step.unsigned_abs().is_multiple_of(wide);
        let whole = skew(0) == 0 && n.is_multiple_of(wide) && kept.steps[0].iter().all(begins);
        let shares = match n / wide {
            packs if whole && packs >= FEWEST_PACKS => Shares::of_packs(packs, wide, false),
            packs if packs >= FEWEST_PEELED => Shares::of_packs(packs, wide, true),
            _ => plain,
        };
        (shares, skew(0))
    }

    fn run(&self, b: &CudaBackend) -> Result<()> {
        let layouts: Vec<&Layout> = self.operands.iter().map(|(_, layout)| layout).collect();
        let rank = layouts[0].rank();
        let mut kept = MergedAxes::merged(&layouts, (0..rank).filter(|&a| !self.axes.contains(a)));
        let inner = MergedAxes::merged(&layouts, self.axes.iter());
        if let (Some(last), true) = (kept.rank().checked_sub(1), self.beside > 1) {
            kept.dims[last] /= self.beside;
            kept.steps.iter_mut().for_each(|steps| steps[last] *= self.beside as isize);
        }
        let (lines, n) = (kept.numel(), inner.numel());
        let depth = n.div_ceil(self.parts);
        let (shares, skew) = self.shares(&kept, &inner);
        let dtype = self.operands[0].0.dtype;
        let compute = dtype.compute();

        let mut record = Record::new();
        record.i64(lines as i64).i32(n).i32(self.parts).i32(depth).i32(skew);
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

        let plan = (self.entry, dtype, self.index.0, self.constants, kept.rank(), inner.rank(), shares, self.beside);
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
                ("PEELED", usize::from(shares.peeled)),
                ("BESIDE", self.beside),
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

/// The number of neighbouring lines that a thread can handle together: their elements in `tensors` are neighbours and form
/// packs, and each of `vectors` has one element for all of them.
fn beside(axes: Axes, tensors: &[(u64, DType, &Layout)], vectors: &[&Layout]) -> usize {
    let wide = PACK / tensors[0].1.size();
    let layouts: Vec<&Layout> = tensors.iter().map(|(_, _, layout)| *layout).chain(vectors.iter().copied()).collect();
    let kept = MergedAxes::merged(&layouts, (0..layouts[0].rank()).filter(|&a| !axes.contains(a)));
    let inner = MergedAxes::merged(&layouts, axes.iter());
    let Some(last) = kept.rank().checked_sub(1) else { return 1 };
    let whole = |steps: &[isize]| steps.iter().all(|s| s % wide as isize == 0);
    let form_packs = |(at, (ptr, _, _)): (usize, &(u64, DType, &Layout))| {
        let (across, along) = (&kept.steps[at], &inner.steps[at]);
        across[last] == 1 && whole(&across[..last]) && whole(along) && ptr.is_multiple_of(PACK as u64)
    };
    let fits = kept.dims[last].is_multiple_of(wide)
        && tensors.iter().enumerate().all(form_packs)
        && kept.steps[tensors.len()..].iter().all(|across| across[last] == 0);
    if fits { wide } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_few_packs_each_while_a_block_has_enough_of_them() {
        let of = |n: usize, wide| {
            let shares = Shares::of_packs(n / wide, wide, false);
            (shares.threads, shares.lanes, shares.per)
        };
        assert_eq!([of(256, 8), of(768, 8), of(4096, 8)], [(256, 32, 1), (256, 32, 3), (128, 128, 4)]);
        assert_eq!([of(4096, 4), of(8192, 4), of(12_288, 4)], [(256, 256, 4), (512, 512, 4), (512, 512, 6)]);
        assert_eq!(of(12_292, 4), (512, 512, 0));
    }
}
