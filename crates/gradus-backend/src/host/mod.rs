//! [`HostMemory`]: ordinary memory of this process behind [`Buffer`]s, with safe access to bytes and elements.
//!
//! It is for backends that need neither a pool nor special memory: reference implementations, wrappers and tests. Every
//! buffer is a separate, zeroed allocation, aligned for every dtype.

mod value;

use std::alloc;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::host_vec::vec_of;
use crate::{Buffer, BufferOwner, Claim, ClaimCount, Error, ErrorKind, MemoryStats, Result, Scalar, View, ViewMut};

pub use value::{converted, load, store, wide};

const ALIGN: usize = 64;

/// An allocator that keeps count of its buffers.
#[derive(Debug)]
pub struct HostMemory {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    stats: MemoryStats,
    budget: Option<usize>,
}

impl Counts {
    /// The bytes in use after adding `bytes` more, or the reason why this is not possible.
    fn with(&self, bytes: usize) -> Result<usize, String> {
        let total = self.stats.in_use.checked_add(bytes).ok_or("are too many")?;
        match self.budget {
            Some(budget) if total > budget => {
                Err(format!("do not fit: {} of a budget of {budget} are in use", self.stats.in_use))
            }
            _ => Ok(total),
        }
    }
}

impl HostMemory {
    /// Creates a memory without buffers and without a budget.
    pub fn new() -> Arc<Self> {
        Arc::new(HostMemory { counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Allocates a zeroed buffer of `bytes` bytes; 0 is legal. Returns [`ErrorKind::OutOfMemory`] if the budget would
    /// be exceeded or the system has no more memory.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let refused = |why: &str| {
            let m = format!("{bytes} bytes {why}");
            Error::new(ErrorKind::OutOfMemory { requested: bytes }, "alloc", m)
        };
        let mut counts = self.counts();
        let total = counts.with(bytes).map_err(|why| refused(&why))?;
        let ptr = if bytes == 0 {
            NonNull::dangling()
        } else {
            let layout = alloc::Layout::from_size_align(bytes, ALIGN).map_err(|_| refused("are too many"))?;
            // SAFETY: the layout has a size above 0.
            NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(|| refused("are not to be had"))?
        };
        let stats = &mut counts.stats;
        stats.in_use = total;
        stats.peak = stats.peak.max(total);
        stats.buffers += 1;
        stats.system_allocations += 1;
        // SAFETY: the memory was allocated above for this buffer alone, and lives until `free` below.
        Ok(unsafe { Buffer::from_raw(ptr, bytes, self.clone()) })
    }

    /// Whether this memory allocated the buffer.
    pub fn owns(self: &Arc<Self>, buffer: &Buffer) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(buffer.owner()), Arc::as_ptr(self))
    }

    /// The bytes of a buffer; `None` if this memory did not allocate it.
    pub fn bytes<'a>(self: &Arc<Self>, buffer: &'a Buffer) -> Option<&'a [u8]> {
        // SAFETY: `alloc` created the buffer, so its memory is valid, initialised and not shared. The borrow keeps it
        // from being written or freed.
        self.owns(buffer).then(|| unsafe { std::slice::from_raw_parts(buffer.as_ptr().as_ptr(), buffer.bytes()) })
    }

    /// The writable bytes of a buffer; `None` if this memory did not allocate it.
    pub fn bytes_mut<'a>(self: &Arc<Self>, buffer: &'a mut Buffer) -> Option<&'a mut [u8]> {
        // SAFETY: as for `bytes`, and the borrow is exclusive.
        self.owns(buffer).then(|| unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr().as_ptr(), buffer.bytes()) })
    }

    /// Copies `bytes` into `dst`, starting at byte `offset`, as in [`Backend::upload`](crate::Backend::upload).
    pub fn upload(self: &Arc<Self>, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let dst = self.bytes_mut(dst).ok_or_else(|| foreign("upload"))?;
        let range = range("upload", dst.len(), offset, bytes.len())?;
        dst[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Fills `bytes` with the contents of `src`, starting at byte `offset`, as in
    /// [`Backend::download`](crate::Backend::download).
    pub fn download(self: &Arc<Self>, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let src = self.bytes(src).ok_or_else(|| foreign("download"))?;
        bytes.copy_from_slice(&src[range("download", src.len(), offset, bytes.len())?]);
        Ok(())
    }

    /// Copies between two buffers of this memory, as in [`Backend::copy_buffer`](crate::Backend::copy_buffer).
    pub fn copy(self: &Arc<Self>, src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()> {
        const OP: &str = "copy_buffer";
        let src = self.bytes(src).ok_or_else(|| foreign(OP))?;
        let dst = self.bytes_mut(dst).ok_or_else(|| foreign(OP))?;
        let (from, to) = (range(OP, src.len(), from, bytes)?, range(OP, dst.len(), to, bytes)?);
        dst[to].copy_from_slice(&src[from]);
        Ok(())
    }

    /// The elements of a view in row-major order, each as [`load`] returns it. Fails if another memory allocated the
    /// buffer or if the layout exceeds the buffer.
    pub fn read(self: &Arc<Self>, op: &str, x: View<'_>) -> Result<Vec<Scalar>> {
        let bytes = self.bytes(x.buffer).ok_or_else(|| foreign(op))?;
        inside(op, &x)?;
        let mut values = vec_of(op, x.layout.numel())?;
        values.extend(x.layout.positions().map(|p| load(bytes, x.dtype, p)));
        Ok(values)
    }

    /// Stores `values`, in row-major order, as the elements of a view, converting each as [`store`] does. Fails if
    /// another memory allocated the buffer, if the layout exceeds the buffer or maps two elements to one memory
    /// location, or if the number of values differs from the number of elements.
    pub fn write(self: &Arc<Self>, op: &str, out: &mut ViewMut<'_>, values: &[Scalar]) -> Result<()> {
        let (dtype, layout) = (out.dtype, out.layout);
        inside(op, &out.as_view())?;
        if layout.overlaps_itself() {
            return Err(Error::argument(op, format!("the output layout {layout:?} has two elements in one place")));
        }
        if values.len() != layout.numel() {
            let m = format!("{} values for the {} elements of {layout:?}", values.len(), layout.numel());
            return Err(Error::shape(op, m));
        }
        let bytes = self.bytes_mut(out.buffer).ok_or_else(|| foreign(op))?;
        for (position, &value) in layout.positions().zip(values) {
            store(bytes, dtype, position, value);
        }
        Ok(())
    }

    /// A claim of 0 bytes, as in [`Backend::host_claim`](crate::Backend::host_claim).
    pub fn claim(self: &Arc<Self>) -> Claim {
        Claim::new(Some(self.clone()))
    }

    /// The counts of live buffers and claims; nothing is ever cached.
    pub fn stats(&self) -> MemoryStats {
        self.counts().stats
    }

    /// Sets the maximum number of bytes that buffers and [claims](HostMemory::claim) may hold; `None` lifts the limit.
    /// Live buffers and claims are kept.
    pub fn set_budget(&self, bytes: Option<usize>) {
        self.counts().budget = bytes;
    }
}

/// The error for a buffer that another memory allocated.
fn foreign(op: &str) -> Error {
    let m = "an operand lives on another device or backend instance";
    Error::new(ErrorKind::DeviceMismatch, op, m).help("move it here first")
}

/// The range `offset..offset + len`, checked to lie within `size` bytes.
fn range(op: &str, size: usize, offset: usize, len: usize) -> Result<Range<usize>> {
    let end = offset.checked_add(len).filter(|&end| end <= size);
    let outside = || Error::argument(op, format!("{len} bytes from {offset} do not lie within a buffer of {size}"));
    end.map(|end| offset..end).ok_or_else(outside)
}

/// Checks that every element lies inside the buffer.
fn inside(op: &str, x: &View<'_>) -> Result<()> {
    let room = x.buffer.bytes() / x.dtype.size();
    if x.layout.numel() > 0 && x.layout.span().end > room {
        let m = format!("the layout {:?} of {} leaves its buffer of {} bytes", x.layout, x.dtype, x.buffer.bytes());
        return Err(Error::argument(op, m));
    }
    Ok(())
}

impl ClaimCount for HostMemory {
    fn claim(&self, op: &str, bytes: usize) -> Result<()> {
        let mut counts = self.counts();
        let refused = |why| Error::new(ErrorKind::OutOfMemory { requested: bytes }, op, format!("{bytes} bytes {why}"));
        let total = counts.with(bytes).map_err(refused)?;
        counts.stats.in_use = total;
        counts.stats.peak = counts.stats.peak.max(total);
        Ok(())
    }

    fn release(&self, bytes: usize) {
        self.counts().stats.in_use -= bytes;
    }
}

// SAFETY: `free` deallocates the memory with the layout with which `alloc` allocated it. The memory is ordinary memory,
// not tied to any thread.
unsafe impl BufferOwner for HostMemory {
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let mut counts = self.counts();
        counts.stats.in_use -= bytes;
        counts.stats.buffers -= 1;
        if let Ok(layout) = alloc::Layout::from_size_align(bytes, ALIGN)
            && bytes > 0
        {
            // SAFETY: `alloc` allocated `ptr` with this layout, and nothing uses it any more.
            unsafe { alloc::dealloc(ptr.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout, Shape};

    #[test]
    fn bytes_are_reachable_only_through_the_memory_that_made_them() {
        let (a, b) = (HostMemory::new(), HostMemory::new());
        let mut buffer = a.alloc(3).unwrap();
        a.bytes_mut(&mut buffer).unwrap()[2] = 7;
        assert_eq!(a.bytes(&buffer).unwrap(), [0, 0, 7]);
        assert!(b.bytes(&buffer).is_none());
        assert_eq!(a.bytes(&a.alloc(0).unwrap()).unwrap(), []);
    }

    #[test]
    fn elements_are_read_and_written_through_views_that_stay_inside() {
        let memory = HostMemory::new();
        let mut buffer = memory.alloc(12).unwrap();
        let layout = Layout::contiguous(Shape::new(&[2, 3]).unwrap());
        let values: Vec<_> = (0..6).map(Scalar::Int).collect();
        let mut out = ViewMut { buffer: &mut buffer, dtype: DType::U16, layout: &layout };
        memory.write("set", &mut out, &values).unwrap();
        assert!(memory.write("set", &mut out, &values[1..]).is_err());
        assert!(
            memory
                .write("set", &mut out.with(&layout.narrow(0, 0, 1).unwrap().expand(*layout.shape()).unwrap()), &values)
                .is_err()
        );
        let swapped = layout.flip(1).transpose(0, 1).unwrap();
        let x = View { buffer: &buffer, dtype: DType::U16, layout: &swapped };
        assert_eq!(memory.read("get", x).unwrap(), [2, 5, 1, 4, 0, 3].map(Scalar::Int));
        assert!(memory.read("get", View { dtype: DType::U32, ..x }).is_err());
        assert_eq!(HostMemory::new().read("get", x).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
    }

    #[test]
    fn counts_follow_and_the_budget_holds() {
        let memory = HostMemory::new();
        memory.set_budget(Some(10));
        let one = memory.alloc(8).unwrap();
        assert_eq!(memory.alloc(3).unwrap_err().kind(), &ErrorKind::OutOfMemory { requested: 3 });
        drop(one);
        assert!(memory.alloc(10).is_ok());
        assert!(memory.alloc(usize::MAX).is_err());
        let s = memory.stats();
        assert_eq!((s.in_use, s.peak, s.buffers, s.system_allocations), (0, 10, 0, 2));
    }
}
