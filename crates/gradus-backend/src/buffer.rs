//! Device memory: [`Buffer`] owns it; [`View`] and [`ViewMut`] describe how a kernel reads and writes it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{DType, Layout, Scalar};

/// Frees the memory of a dropped [`Buffer`]. Usually this is the memory pool of a backend.
///
/// # Safety
/// `free` is called once for each buffer that was created with this owner, with the pointer and size it was created
/// with. The memory must stay valid until then and must be usable from any thread.
pub unsafe trait BufferOwner: Send + Sync + fmt::Debug {
    /// Frees the memory.
    ///
    /// # Safety
    /// `ptr` and `bytes` are those of a buffer created with this owner, and nothing uses that memory any more.
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize);
}

/// A block of device memory with a known size, freed on drop. Only its backend can interpret the pointer.
pub struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn BufferOwner>,
}

// SAFETY: the owner promises (`BufferOwner`) that the memory may be used from any thread. `Buffer` itself gives access
// to the memory only through the backend, which reads through `&Buffer` and writes through `&mut Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` permits reads only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Wraps memory that a backend allocated.
    ///
    /// # Safety
    /// `ptr` is valid for `bytes` bytes (in whatever sense the backend's pointers are valid), belongs to this buffer
    /// alone and stays valid until `owner.free(ptr, bytes)` is called.
    pub unsafe fn from_raw(ptr: NonNull<u8>, bytes: usize, owner: Arc<dyn BufferOwner>) -> Self {
        Buffer { ptr, bytes, owner }
    }

    /// The pointer with which the backend created this buffer.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The owner that frees the memory. Backends use it to recognise their own buffers.
    pub fn owner(&self) -> &Arc<dyn BufferOwner> {
        &self.owner
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `from_raw` received this pointer and size together with this owner, and nothing can use the memory
        // once the buffer is dropped.
        unsafe { self.owner.free(self.ptr, self.bytes) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// A readable strided tensor: an input of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// Type of the elements.
    pub dtype: DType,
    /// The positions of the elements, in units of `dtype`.
    pub layout: &'a Layout,
}

impl<'a> View<'a> {
    /// The same memory under another layout.
    #[must_use]
    pub fn with<'b>(&self, layout: &'b Layout) -> View<'b>
    where
        'a: 'b,
    {
        View { layout, ..*self }
    }
}

/// A writable strided tensor. No two elements share a memory location.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The memory.
    pub buffer: &'a mut Buffer,
    /// Type of the elements.
    pub dtype: DType,
    /// The positions of the elements, in units of `dtype`.
    pub layout: &'a Layout,
}

impl ViewMut<'_> {
    /// A read-only view of the same tensor.
    pub fn as_view(&self) -> View<'_> {
        View { buffer: self.buffer, dtype: self.dtype, layout: self.layout }
    }

    /// The same memory under another layout, for the duration of a borrow.
    pub fn with<'b>(&'b mut self, layout: &'b Layout) -> ViewMut<'b> {
        ViewMut { buffer: self.buffer, dtype: self.dtype, layout }
    }
}

/// Where one argument of an elementwise kernel comes from.
#[derive(Debug, Clone, Copy)]
pub enum MapArg<'a> {
    /// A tensor of the output's shape; a broadcast axis has stride 0.
    View(View<'a>),
    /// The previous contents of output number `.0`, for updates in place. The kernel reads and writes one element at a
    /// time, so an argument must not alias an output in any other way.
    Output(usize),
    /// One number for all elements, converted to the argument's dtype.
    Scalar(Scalar),
}

/// The operands of one call of [`map`](crate::Backend::map).
#[derive(Debug)]
pub struct MapOperands<'o, 'v> {
    /// The source of each argument of the kernel.
    pub args: &'o [MapArg<'o>],
    /// The outputs.
    pub outs: &'o mut [ViewMut<'v>],
}

/// A buffer bound to a compute module, with the module's access to it.
#[derive(Debug)]
pub enum Binding<'a> {
    /// Read only.
    Read(View<'a>),
    /// Written, or read and written.
    Write(ViewMut<'a>),
}
