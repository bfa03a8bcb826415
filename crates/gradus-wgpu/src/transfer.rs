//! Copies between the host and the device, and between buffers. The device copies whole words only; a kernel over bytes
//! does the rest.

use gradus_backend::{Buffer, DType, Error, Layout, Result, Shape, View, ViewMut};

use crate::WgpuBackend;
use crate::kept::LARGEST;
use crate::map::copy_strided;
use crate::queue::MOST_READ;
use gradus_backend::late::Access;

fn check(op: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= buffer.bytes() => Ok(()),
        _ => {
            let m = format!("{bytes} bytes from byte {offset} leave the buffer of {} bytes", buffer.bytes());
            Err(Error::argument(op, m))
        }
    }
}

fn bytes_at(offset: usize, bytes: usize) -> Result<Layout> {
    Layout::from_parts(Shape::new(&[bytes])?, &[1], offset, offset + bytes)
}

/// See [`Backend::upload`](gradus_backend::Backend::upload).
pub(crate) fn upload(b: &WgpuBackend, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
    check("upload", dst, offset, bytes.len())?;
    if bytes.is_empty() {
        return Ok(());
    }
    let block = b.pool().block("upload", dst)?;
    // Bytes after the end of a buffer are unused and may be overwritten.
    let ends = offset + bytes.len() == dst.bytes();
    if offset.is_multiple_of(4) && (ends || bytes.len().is_multiple_of(4)) {
        let access = if offset == 0 && ends { Access::Replace } else { Access::Write };
        let padded = |bytes: &[u8]| {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(4), 0); // at most `LARGEST + 3`
            padded
        };
        let (words, last) = bytes.split_at(bytes.len() / 4 * 4);
        if last.is_empty() {
            return b.queue().write(block, offset as u64, bytes, access);
        }
        // A table is uploaded in one piece, so that it can be kept.
        if bytes.len() <= LARGEST {
            return b.queue().write(block, offset as u64, &padded(bytes), access);
        }
        b.queue().write(block, offset as u64, words, access)?;
        return b.queue().write(block, (offset + words.len()) as u64, &padded(last), Access::Write);
    }
    let mut staged = b.allocate(bytes.len())?;
    upload(b, &mut staged, 0, bytes)?;
    let (from, to) = (bytes_at(0, bytes.len())?, bytes_at(offset, bytes.len())?);
    let x = View { buffer: &staged, dtype: DType::U8, layout: &from };
    copy_strided(b, x, &mut ViewMut { buffer: dst, dtype: DType::U8, layout: &to })
}

/// See [`Backend::download`](gradus_backend::Backend::download).
pub(crate) fn download(b: &WgpuBackend, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
    check("download", src, offset, bytes.len())?;
    if bytes.is_empty() {
        return b.queue().synchronize();
    }
    let block = b.pool().block("download", src)?;
    // Whole words are read, which takes up to 3 more bytes at either end.
    let most = MOST_READ - 8;
    for (piece, offset) in bytes.chunks_mut(most).zip((offset..).step_by(most)) {
        let start = offset / 4 * 4;
        let size = (offset + piece.len()).next_multiple_of(4) - start;
        b.queue().read(block, start as u64, size as u64, |read| {
            piece.copy_from_slice(&read[offset - start..][..piece.len()]);
        })?;
    }
    Ok(())
}

/// See [`Backend::copy_buffer`](gradus_backend::Backend::copy_buffer).
pub(crate) fn copy_buffer(
    b: &WgpuBackend,
    src: &Buffer,
    src_offset: usize,
    dst: &mut Buffer,
    dst_offset: usize,
    bytes: usize,
) -> Result<()> {
    check("copy_buffer", src, src_offset, bytes)?;
    check("copy_buffer", dst, dst_offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    if [src_offset, dst_offset, bytes].iter().all(|n| n.is_multiple_of(4)) {
        let (from, to) = (b.pool().block("copy_buffer", src)?, b.pool().block("copy_buffer", dst)?);
        let whole = bytes == dst.bytes();
        return b.queue().copy((from, src_offset as u64), (to, dst_offset as u64), bytes as u64, whole);
    }
    let (from, to) = (bytes_at(src_offset, bytes)?, bytes_at(dst_offset, bytes)?);
    let x = View { buffer: src, dtype: DType::U8, layout: &from };
    copy_strided(b, x, &mut ViewMut { buffer: dst, dtype: DType::U8, layout: &to })
}
