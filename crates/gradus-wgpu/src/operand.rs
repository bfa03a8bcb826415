//! Turns views of the backend contract into operands of a kernel: binds buffers, and merges axes where all operands
//! allow it.

use gradus_backend::{Buffer, DType, Error, ErrorKind, Layout, Result, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::queue::Bind;
use gradus_backend::late::Access;

/// The largest number of elements that one launch handles. Positions are u32, and the last work-groups may run past the
/// end.
pub(crate) const MOST: usize = (1 << 32) - (1 << 26);

/// The largest number of iterations of all loops of an invocation together. Mesa's software driver leaves loops after
/// 65,535 iterations without an error, and other drivers end kernels that take too long.
pub(crate) const LOOP: usize = 1 << 15;

/// A checked operand.
#[derive(Clone)]
pub(crate) struct Bound<'a> {
    pub(crate) bind: Bind<'a>,
    /// The layout within the bound part of the buffer.
    pub(crate) layout: Layout,
}

impl WgpuBackend {
    /// Checks the dtype, the device and the bounds of an operand that is not empty, and binds its buffer. Of a large
    /// buffer, it binds only the part that the operand needs.
    pub(crate) fn operand<'a>(
        &self,
        op: &str,
        name: &str,
        buffer: &'a Buffer,
        dtype: DType,
        layout: &Layout,
        write: bool,
    ) -> Result<Bound<'a>> {
        self.check_dtype(op, dtype)?;
        let block = self.pool().block(op, buffer)?;
        let span = layout.span();
        let size = dtype.size() as u64;
        if span.end as u64 * size > buffer.bytes() as u64 {
            let m = format!("{name} reaches element {} of a buffer of {} bytes", span.end, buffer.bytes());
            return Err(Error::argument(op, m));
        }
        if layout.numel() > MOST || span.len() > MOST {
            let m = format!("{name} has more elements than positions of 32 bits can tell apart");
            return Err(Error::new(ErrorKind::Overflow, op, m).operand(name, layout.dims(), dtype, self.label()));
        }
        if write && layout.overlaps_itself() {
            return Err(Error::argument(op, format!("elements of the output {name} share memory: {layout:?}")));
        }
        let (mut offset, mut bytes) = (0, block.raw.size());
        if bytes > self.most_bound() {
            let align = u64::from(self.queue().limits.min_storage_buffer_offset_alignment.max(32));
            offset = span.start as u64 * size / align * align;
            bytes = (span.end as u64 * size).next_multiple_of(4) - offset;
            if bytes > self.most_bound() {
                let m = format!("{name} spans {bytes} bytes; a kernel of this device reaches {}", self.most_bound());
                return Err(Error::new(ErrorKind::Unsupported, op, m)
                    .operand(name, layout.dims(), dtype, self.label())
                    .help("split the tensor along its first axis"));
            }
        }
        let distinct = distinct(layout) as u64 * size;
        let shift = (offset / size) as usize;
        let elements = span.end - shift;
        let layout = Layout::from_parts(*layout.shape(), layout.strides(), layout.offset() - shift, elements)?;
        let access = if write { Access::Write } else { Access::Read };
        Ok(Bound { bind: Bind { block, access, offset, size: bytes, distinct }, layout })
    }

    pub(crate) fn input<'a>(&self, op: &str, name: &str, x: View<'a>) -> Result<Bound<'a>> {
        self.operand(op, name, x.buffer, x.dtype, x.layout, false)
    }

    pub(crate) fn output<'a>(&self, op: &str, name: &str, x: &'a ViewMut<'_>) -> Result<Bound<'a>> {
        self.operand(op, name, x.buffer, x.dtype, x.layout, true)
    }

    /// Checks the dtype and the shape of an operand.
    pub(crate) fn expect(&self, op: &str, name: &str, x: View<'_>, dtype: DType, shape: &[usize]) -> Result<()> {
        let dims = x.layout.dims();
        if x.dtype != dtype {
            let m = format!("{name} must be {dtype} here");
            return Err(Error::new(ErrorKind::DTypeMismatch, op, m).operand(name, dims, x.dtype, self.label()));
        }
        if dims != shape {
            let m = format!("{name} must have shape {}", Shape::display(shape));
            return Err(Error::shape(op, m).operand(name, dims, x.dtype, self.label()));
        }
        Ok(())
    }

    /// Whether a kernel can bind all elements of a view.
    pub(crate) fn fits(&self, layout: &Layout, dtype: DType) -> bool {
        // The bound part starts at an aligned position and ends with a whole word. This adds less than 512 bytes.
        let bytes = layout.span().len() as u64 * dtype.size() as u64;
        layout.numel() <= MOST && bytes <= self.most_bound() - 512
    }

    /// The largest part of a buffer that a kernel can bind.
    pub(crate) fn most_bound(&self) -> u64 {
        self.queue().limits.max_storage_buffer_binding_size & !31
    }
}

/// The number of distinct elements of a view. Elements that overlap in another way than by strides of 0 count as often as
/// the view has them, but no more than it spans.
fn distinct(layout: &Layout) -> usize {
    let axes = layout.dims().iter().zip(layout.strides());
    let count: usize = axes.filter(|(_, stride)| **stride != 0).map(|(size, _)| size).product();
    count.min(layout.span().len())
}

/// Whether the groups of four neighbours along the last axis start at multiples of four, with elements next to each other.
pub(crate) fn in_fours(layout: &Layout, steps: &[isize]) -> bool {
    let even = |steps: &[isize]| steps.iter().all(|step| step % 4 == 0);
    steps.split_last().is_some_and(|(&last, rest)| last == 1 && even(rest)) && layout.offset().is_multiple_of(4)
}

/// Where to cut a view that is too large: the axis among `axes` along which it spans the most memory, and the middle of
/// that axis.
pub(crate) fn cut(layout: &Layout, axes: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
    let reach = |axis: &usize| layout.strides()[*axis].unsigned_abs().max(1).saturating_mul(layout.dims()[*axis] - 1);
    let axis = axes.filter(|&a| layout.dims()[a] > 1).max_by_key(reach)?;
    Some((axis, layout.dims()[axis] / 2))
}
