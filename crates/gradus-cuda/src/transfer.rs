//! Copies between the host and the device, and between buffers.

use gradus_backend::late::Access;
use gradus_backend::{Buffer, Error, Result};

use crate::CudaBackend;

fn check(op: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= buffer.bytes() => Ok(()),
        _ => {
            let m = format!("{bytes} bytes from byte {offset} leave the buffer of {} bytes", buffer.bytes());
            Err(Error::argument(op, m))
        }
    }
}

/// See [`Backend::upload`](gradus_backend::Backend::upload).
pub(crate) fn upload(b: &CudaBackend, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
    check("upload", dst, offset, bytes.len())?;
    if bytes.is_empty() {
        return Ok(());
    }
    let access = if bytes.len() == dst.bytes() { Access::Replace } else { Access::Write };
    b.queue().write(b.memory().block("upload", dst)?, offset, bytes, access)
}

/// See [`Backend::download`](gradus_backend::Backend::download).
pub(crate) fn download(b: &CudaBackend, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
    check("download", src, offset, bytes.len())?;
    if bytes.is_empty() {
        return b.queue().synchronize();
    }
    b.queue().read("download", b.memory().block("download", src)?, offset, bytes)
}

/// See [`Backend::copy_buffer`](gradus_backend::Backend::copy_buffer).
pub(crate) fn copy_buffer(
    b: &CudaBackend,
    src: &Buffer,
    src_offset: usize,
    dst: &mut Buffer,
    dst_offset: usize,
    bytes: usize,
) -> Result<()> {
    const OP: &str = "copy_buffer";
    check(OP, src, src_offset, bytes)?;
    check(OP, dst, dst_offset, bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    let (from, to) = (b.memory().block(OP, src)?, b.memory().block(OP, dst)?);
    b.queue().copy((from, src_offset), (to, dst_offset), bytes, bytes == dst.bytes())
}
