//! Moving elements: upload, download, fill, and copies between any two layouts.
//!
//! A strided copy visits the axes in the order in which the output lies in memory. Rows that are contiguous on both
//! sides are copied with plain memory copies. A transposition is done in tiles, so that both sides are accessed a whole
//! cache line at a time.

use gradus_backend::{Buffer, DType, Error, Layout, Result, Scalar, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Plain, check_dtype, check_shape};
use crate::gemm::transpose::Transpose;
use crate::isa::Isa;
use crate::nest::Nest;

/// The number of bytes that a task should move.
const GRAIN: usize = 256 << 10;
/// Side length of the tiles of a transposition.
const TILE: usize = 8;

/// See [`Backend::upload`](gradus_backend::Backend::upload).
pub(crate) fn upload(cpu: &CpuBackend, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
    check_range(cpu, "upload", dst, offset, bytes.len())?;
    let to = Ptr(dst.as_ptr().as_ptr().wrapping_add(offset));
    // SAFETY: the range lies in the buffer, which is borrowed mutably, so it cannot overlap `bytes`.
    unsafe { move_bytes(cpu, bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}

/// See [`Backend::download`](gradus_backend::Backend::download).
pub(crate) fn download(cpu: &CpuBackend, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
    check_range(cpu, "download", src, offset, bytes.len())?;
    let from = src.as_ptr().as_ptr().wrapping_add(offset);
    // SAFETY: the range lies in the buffer, and `bytes` is borrowed mutably, so the two cannot overlap.
    unsafe { move_bytes(cpu, from, Ptr(bytes.as_mut_ptr()), bytes.len()) };
    Ok(())
}

/// See [`Backend::copy_buffer`](gradus_backend::Backend::copy_buffer).
pub(crate) fn copy_buffer(
    cpu: &CpuBackend,
    src: &Buffer,
    src_offset: usize,
    dst: &mut Buffer,
    dst_offset: usize,
    bytes: usize,
) -> Result<()> {
    check_range(cpu, "copy_buffer", src, src_offset, bytes)?;
    check_range(cpu, "copy_buffer", dst, dst_offset, bytes)?;
    let from = src.as_ptr().as_ptr().wrapping_add(src_offset);
    // SAFETY: both ranges lie in their buffers, and the buffers are distinct because one is borrowed mutably.
    unsafe { move_bytes(cpu, from, Ptr(dst.as_ptr().as_ptr().wrapping_add(dst_offset)), bytes) };
    Ok(())
}

fn check_range(cpu: &CpuBackend, op: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    cpu.check_owner(op, buffer)?;
    if offset.checked_add(bytes).is_some_and(|end| end <= buffer.bytes()) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{bytes} bytes at {offset} leave a buffer of {} bytes", buffer.bytes())))
}

/// A pointer shared by tasks that each access a part of their own.
#[derive(Clone, Copy)]
struct Ptr<T>(*mut T);
// SAFETY: the code that shares a pointer among tasks ensures that they write parts that do not overlap.
unsafe impl<T: Send> Sync for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ptr<T> {}

impl<T> Ptr<T> {
    fn at(self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Copies bytes on all threads.
///
/// # Safety
/// `from` is readable and `to` writable for `n` bytes, and they do not overlap.
unsafe fn move_bytes(cpu: &CpuBackend, from: *const u8, to: Ptr<u8>, n: usize) {
    let from = Ptr(from.cast_mut());
    cpu.parallel_for(n, GRAIN, |r| {
        // SAFETY: the caller guarantees that both pointers are valid for `n` bytes and do not overlap. No two ranges
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.at(r.start).cast_const(), to.at(r.start), r.len()) };
    });
}

/// See [`Backend::fill`](gradus_backend::Backend::fill).
pub(crate) fn fill(cpu: &CpuBackend, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
    value.check(out.dtype)?;
    let bits = bits(value, out.dtype);
    match out.dtype.size() {
        1 => fill_with(cpu, out, bits as u8),
        2 => fill_with(cpu, out, bits as u16),
        4 => fill_with(cpu, out, bits as u32),
        _ => fill_with(cpu, out, bits),
    }
}

/// Returns the bits of a scalar as stored in a dtype that can represent it. They are in the low bytes of the result.
pub(crate) fn bits(value: Scalar, dtype: DType) -> u64 {
    let v = value.to_f64();
    match (dtype, value) {
        (DType::F64, _) => v.to_bits(),
        (DType::F32, _) => u64::from((v as f32).to_bits()),
        (DType::F16, _) => u64::from(gradus_backend::f16_from_f64(v).to_bits()),
        (DType::BF16, _) => u64::from(gradus_backend::bf16_from_f64(v).to_bits()),
        (DType::U64, Scalar::Float(v)) => v as u64,
        _ => value.to_i64() as u64,
    }
}

/// An unsigned integer type that stands for all elements of its size.
trait Word: Plain {
    /// Sets `to[p * step + r] = rows[r][p]` for `r` and `p` below [`TILE`].
    ///
    /// # Safety
    /// Each of `rows` points to [`TILE`] readable elements. For each `p`, `to + p * step` points to [`TILE`] writable
    /// elements that overlap none of the rows.
    unsafe fn tile(_: Isa, rows: [*const Self; TILE], to: *mut Self, step: usize) {
        for p in 0..TILE {
            for (r, row) in rows.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(p * step + r) = *row.add(p) };
            }
        }
    }
}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {
    unsafe fn tile(isa: Isa, rows: [*const u32; TILE], to: *mut u32, step: usize) {
        // SAFETY: guaranteed by the caller. A transposition moves bits without interpreting them.
        unsafe { f32::transpose8(isa, rows.map(|r| r.cast()), to.cast(), step) }
    }
}
impl Word for u64 {
    unsafe fn tile(isa: Isa, rows: [*const u64; TILE], to: *mut u64, step: usize) {
        // SAFETY: as above.
        unsafe { f64::transpose8(isa, rows.map(|r| r.cast()), to.cast(), step) }
    }
}

fn fill_with<T: Word>(cpu: &CpuBackend, out: &mut ViewMut<'_>, value: T) -> Result<()> {
    cpu.check_out("fill", out)?;
    let (rows, len, [stride]) = Nest::<1>::new(&[out.layout]).split_inner();
    let to = Ptr(out.buffer.as_ptr().as_ptr().cast::<T>());
    let grain = GRAIN / size_of::<T>();
    let parts = len.div_ceil(grain).max(1);
    cpu.parallel_for(rows.numel() * parts, (grain / len.max(1)).max(1), |units| {
        for u in units {
            let start = rows.at(u / parts)[0];
            let range = u % parts * grain..len.min((u % parts + 1) * grain);
            // SAFETY: the positions are those of a checked layout and all different, and each belongs to one task.
            unsafe {
                if stride == 1 {
                    std::slice::from_raw_parts_mut(to.at(start + range.start), range.len()).fill(value);
                } else {
                    range.for_each(|i| *to.at(start.wrapping_add_signed(stride * i as isize)) = value);
                }
            }
        }
    });
    Ok(())
}

/// See [`Backend::copy_strided`](gradus_backend::Backend::copy_strided).
pub(crate) fn copy_strided(cpu: &CpuBackend, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "copy";
    check_dtype(OP, "the output", out.dtype, x.dtype)?;
    check_shape(OP, "the output", out.layout.dims(), x.layout.dims())?;
    cpu.check_view(OP, x.buffer, x.dtype, x.layout)?;
    cpu.check_out(OP, out)?;
    if x.layout.numel() == 0 {
        return Ok(());
    }
    let to = out.buffer.as_ptr().as_ptr();
    let from = x.buffer.as_ptr().as_ptr();
    // SAFETY: both layouts have the same shape and lie in their buffers. No two elements of the output share a
    // position, and its buffer is borrowed mutably, so it is not the input's buffer.
    unsafe {
        match x.dtype.size() {
            1 => copy_layouts::<u8>(cpu, from.cast(), x.layout, Ptr(to.cast()), out.layout),
            2 => copy_layouts::<u16>(cpu, from.cast(), x.layout, Ptr(to.cast()), out.layout),
            4 => copy_layouts::<u32>(cpu, from.cast(), x.layout, Ptr(to.cast()), out.layout),
            _ => copy_layouts::<u64>(cpu, from.cast(), x.layout, Ptr(to.cast()), out.layout),
        }
    }
}

/// Returns both layouts with their axes sorted by the output's strides, largest first.
fn sorted(x: &Layout, out: &Layout) -> Result<(Layout, Layout)> {
    let mut axes = [0isize, 1, 2, 3, 4, 5, 6, 7];
    let axes = &mut axes[..out.rank()];
    axes.sort_by_key(|&a| std::cmp::Reverse(out.strides()[a as usize].unsigned_abs()));
    Ok((x.permute(axes)?, out.permute(axes)?))
}

/// Copies between two layouts of the same shape.
///
/// # Safety
/// Every position of the layouts lies within its memory, the output's positions are all different, and the two areas do
/// not overlap.
unsafe fn copy_layouts<T: Word>(cpu: &CpuBackend, from: *const T, x: &Layout, to: Ptr<T>, out: &Layout) -> Result<()> {
    if x.is_contiguous() && out.is_contiguous() {
        let (a, b) = (from.wrapping_add(x.offset()), to.at(out.offset()));
        // SAFETY: both layouts are contiguous, so this copies exactly their elements, starting at the first one.
        unsafe { move_bytes(cpu, a.cast(), Ptr(b.cast()), x.numel() * size_of::<T>()) };
        return Ok(());
    }
    let (x, out) = sorted(x, out)?;
    let nest = Nest::<2>::new(&[&x, &out]);
    let rank = nest.dims().len();
    let grain = GRAIN / size_of::<T>();
    let from = Ptr(from.cast_mut());
    // The axis along which `x` is contiguous, if it is not the output's innermost axis. The copy is then a
    // transposition.
    let across = (0..rank.saturating_sub(1)).rev().find(|&a| nest.strides(a)[0] == 1 && nest.dims()[a] >= TILE);
    if let Some(axis) = across
        && nest.strides(rank - 1)[0].unsigned_abs() > 1
        && nest.strides(rank - 1)[1] == 1
        && nest.dims()[rank - 1] >= TILE
    {
        let isa = cpu.isa();
        let (rows, width, [_, step_out]) = nest.clone().without(axis);
        let (rows, height, [step_x, _]) = rows.split_inner();
        // The output is copied in strips of `depth` lines along `axis`. Each line covers the whole inner axis.
        let depth = (grain / height).next_multiple_of(TILE).clamp(TILE, width.next_multiple_of(TILE));
        let parts = width.div_ceil(depth);
        let together = (grain / (depth * height)).max(1);
        cpu.parallel_for(rows.numel() * parts, together, |units| {
            for u in units {
                let [a, b] = rows.at(u / parts);
                let first = u % parts * depth;
                let n = depth.min(width - first);
                let (a, b) = (a + first, b.wrapping_add_signed(step_out * first as isize));
                // SAFETY: all positions belong to the layouts, and strips do not overlap.
                unsafe { transpose(isa, from.at(a), step_x, to.at(b), step_out, n, height) };
            }
        });
        return Ok(());
    }
    let (rows, len, [sx, so]) = nest.split_inner();
    let parts = len.div_ceil(grain);
    cpu.parallel_for(rows.numel() * parts, (grain / len).max(1), |units| {
        for u in units {
            let [a, b] = rows.at(u / parts);
            let range = u % parts * grain..len.min((u % parts + 1) * grain);
            let (a, b) =
                (a.wrapping_add_signed(sx * range.start as isize), b.wrapping_add_signed(so * range.start as isize));
            // SAFETY: all positions belong to the layouts, and parts do not overlap.
            unsafe { copy_row(from.at(a), sx, to.at(b), so, range.len()) };
        }
    });
    Ok(())
}

/// Copies `n` elements between two strided rows.
///
/// # Safety
/// All elements of both rows are valid, and the rows do not overlap.
unsafe fn copy_row<T: Word>(from: *const T, sx: isize, to: *mut T, so: isize, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (sx, so) {
            (1, 1) => std::ptr::copy_nonoverlapping(from, to, n),
            (0, 1) => std::slice::from_raw_parts_mut(to, n).fill(*from),
            _ => (0..n as isize).for_each(|i| *to.offset(i * so) = *from.offset(i * sx)),
        }
    }
}

/// Copies `n` lines of `height` elements: `to[j * step_to + i] = from[i * step_from + j]`.
///
/// # Safety
/// All positions are valid, and the two areas do not overlap.
unsafe fn transpose<T: Word>(
    isa: Isa,
    from: *const T,
    step_from: isize,
    to: *mut T,
    step_to: isize,
    n: usize,
    height: usize,
) {
    // Tiles require a positive step in the output.
    let wide = if step_to > 0 { n / TILE * TILE } else { 0 };
    // SAFETY: the caller guarantees that every access is valid.
    unsafe {
        let one =
            |i: usize, j: usize| *to.offset(j as isize * step_to).add(i) = *from.offset(i as isize * step_from).add(j);
        let whole = height / TILE * TILE;
        // Tiles are copied in squares of `line` by `line` elements, so that whole cache lines are used on both sides.
        let line = (64 / size_of::<T>()).max(TILE);
        for i0 in (0..whole).step_by(line) {
            let i1 = whole.min(i0 + line);
            for j0 in (0..wide).step_by(line) {
                for j in (j0..wide.min(j0 + line)).step_by(TILE) {
                    for i in (i0..i1).step_by(TILE) {
                        let rows = std::array::from_fn(|r| from.offset((i + r) as isize * step_from).add(j));
                        T::tile(isa, rows, to.offset(j as isize * step_to).add(i), step_to as usize);
                    }
                }
            }
            (wide..n).for_each(|j| (i0..i1).for_each(|i| one(i, j)));
        }
        (0..n).for_each(|j| (whole..height).for_each(|i| one(i, j)));
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
