//! Memory of the host that the GPU reaches by itself, so that copies need not be awaited.

use std::ffi::c_void;

use cudarc::driver::sys;
use gradus_backend::Result;

use super::Device;

/// Pinned memory, with an event that says when the work that uses it is done.
pub(crate) struct Pinned {
    ptr: *mut c_void,
    bytes: usize,
    event: sys::CUevent,
}

// SAFETY: this is ordinary memory, and the driver's handles may be used from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory was allocated with this size and zeroed; copies to it are awaited before it is read.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes) }
    }
}

impl Device {
    /// Allocates memory of the host.
    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.enter("alloc")?;
        let (mut ptr, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the function writes to this pointer.
        self.check("alloc", unsafe { sys::cuMemAllocHost_v2(&mut ptr, bytes) })?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the function writes to this handle.
        if let Err(e) = self.check("alloc", unsafe { sys::cuEventCreate(&mut event, flags) }) {
            // SAFETY: nothing uses the memory.
            let _ = unsafe { sys::cuMemFreeHost(ptr) };
            return Err(e);
        }
        // SAFETY: the memory was allocated with this size.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes) };
        Ok(Pinned { ptr, bytes, event })
    }

    /// Frees memory of the host, which no copy uses.
    pub(crate) fn free_pinned(&self, memory: Pinned) {
        if self.enter("free").is_ok() {
            // SAFETY: `pinned` made both, and this call owns them.
            let codes = unsafe { [sys::cuEventDestroy_v2(memory.event), sys::cuMemFreeHost(memory.ptr)] };
            codes.into_iter().for_each(|code| _ = self.check("free", code));
        }
    }

    /// Marks the end of the work that is queued now, and so of the copies that use this memory.
    pub(crate) fn mark(&self, op: &str, memory: &Pinned) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the event lives as long as the memory, and the stream as long as the device.
        self.check(op, unsafe { sys::cuEventRecord(memory.event, self.stream) })
    }

    /// Waits for the work before the latest mark.
    pub(crate) fn wait_for(&self, op: &str, memory: &Pinned) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the event lives as long as the memory.
        self.check(op, unsafe { sys::cuEventSynchronize(memory.event) })
    }
}
