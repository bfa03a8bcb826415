//! Graphs: kernels, copies and fills that were listed once and are started by one call.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use gradus_backend::Result;

use super::{Device, Kernel, Product};

/// Work that is ready to be started.
pub(crate) struct Graph {
    raw: sys::CUgraphExec,
    device: Arc<Device>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

/// A stream whose work is listed instead of done.
pub(crate) struct Capture<'d> {
    device: &'d Device,
    stream: sys::CUstream,
}

impl Capture<'_> {
    /// Lists a kernel. The values of the arguments are copied.
    ///
    /// # Safety
    /// As for [`Device::launch`], at each start of the graph. If `shared` is above 48 KiB, a launch of the kernel with as
    /// much has succeeded before.
    pub(crate) unsafe fn launch(
        &self,
        op: &str,
        kernel: Kernel,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.device.launch_on(self.stream, op, kernel, (grid, block, shared), arguments) }
    }

    /// Lists a product of matrices.
    ///
    /// # Safety
    /// As for [`Product::run`], at each start of the graph.
    pub(crate) unsafe fn multiply(&self, op: &str, product: &Product) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { product.list(op, self.stream) }
    }

    /// Lists a copy between places on the device that do not overlap.
    ///
    /// # Safety
    /// Both are allocated for as many bytes at each start of the graph.
    pub(crate) unsafe fn copy(&self, op: &str, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that both places are allocated.
        self.device.check(op, unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) })
    }

    /// Lists filling memory with a byte.
    ///
    /// # Safety
    /// The memory is allocated for as many bytes at each start of the graph.
    pub(crate) unsafe fn fill(&self, op: &str, to: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that the memory is allocated.
        self.device.check(op, unsafe { sys::cuMemsetD8Async(to, byte, bytes, self.stream) })
    }
}

impl Device {
    /// Makes a graph of what `list` queues. Nothing of it is done yet. The list is made on a stream of its own, so other
    /// threads go on to use the device.
    pub(crate) fn capture(
        self: &Arc<Device>,
        op: &str,
        list: impl FnOnce(&Capture<'_>) -> Result<()>,
    ) -> Result<Graph> {
        self.enter(op)?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the function writes to this handle.
        self.check(op, unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        // Nothing that other threads call is refused meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream was made above.
        let begun = self.check(op, unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
        let made = begun.and_then(|()| {
            let listed = list(&Capture { device: self, stream });
            let mut graph = std::ptr::null_mut();
            // SAFETY: the stream is captured. The function writes to the handle, null if there is no graph.
            let ended = self.check(op, unsafe { sys::cuStreamEndCapture(stream, &mut graph) });
            let mut raw = std::ptr::null_mut();
            let made = listed.and(ended).and_then(|()| {
                // SAFETY: the graph was made above; the function writes to the handle.
                self.check(op, unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) })
            });
            if !graph.is_null() {
                // SAFETY: the graph was made above. What was instantiated of it does not need it.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            made.map(|()| Graph { raw, device: self.clone() })
        });
        // SAFETY: the stream was made above and has no work.
        let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
        made
    }

    /// Queues the work of a graph of this device.
    ///
    /// # Safety
    /// What the list promised of its memory is so.
    pub(crate) unsafe fn start(&self, op: &str, graph: &Graph) -> Result<()> {
        self.enter(op)?;
        // SAFETY: the graph lives; the caller promises that its memory does.
        self.check(op, unsafe { sys::cuGraphLaunch(graph.raw, self.stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.enter("free").is_ok() {
            // SAFETY: nobody else has the handle. Work that was started and is not done yet is not affected.
            let _ = self.device.check("free", unsafe { sys::cuGraphExecDestroy(self.raw) });
        }
    }
}
