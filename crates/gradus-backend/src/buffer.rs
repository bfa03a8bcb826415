//! Device memory: [`Buffer`] owns it, [`View`] and [`ViewMut`] say how a kernel reads and writes it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{DType, Layout, Scalar};

/// Frees the memory of a dropped [`Buffer`]: usually the pool of a backend.
///
/// # Safety
/// `free` is called once for each buffer that was made with this owner, with the pointer and size it was made with. The
/// memory must stay valid until then, and may be used from any thread.
pub unsafe trait BufferOwner: Send + Sync + fmt::Debug {
    /// Takes the memory back.
    ///
    /// # Safety
    /// `ptr` and `bytes` are those of a buffer made with this owner, and nothing uses that memory any more.
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize);
}

/// Memory of one device. It knows its size and is freed when it is dropped. Only its backend can interpret the pointer.
pub struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn BufferOwner>,
}

// SAFETY: the owner promises (`BufferOwner`) that the memory may be used from any thread, and `Buffer` itself gives
// access to it only through the backend, which reads behind `&Buffer` and writes behind `&mut Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` permits reads only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer over memory that a backend allocated.
    ///
    /// # Safety
    /// `ptr` is valid for `bytes` bytes (in whatever sense the backend gives its pointers), belongs to this buffer alone
    /// and stays valid until `owner.free(ptr, bytes)`.
    pub unsafe fn from_raw(ptr: NonNull<u8>, bytes: usize, owner: Arc<dyn BufferOwner>) -> Self {
        Buffer { ptr, bytes, owner }
    }

    /// The pointer that the backend made this buffer with.
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
        // SAFETY: `from_raw` was given this pointer and size with this owner, and the last handle goes away here.
        unsafe { self.owner.free(self.ptr, self.bytes) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// A readable strided tensor: what a kernel takes.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// Type of the elements.
    pub dtype: DType,
    /// Where they lie, in elements of `dtype`.
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

/// A writable strided tensor. No two elements share a position.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The memory.
    pub buffer: &'a mut Buffer,
    /// Type of the elements.
    pub dtype: DType,
    /// Where they lie, in elements of `dtype`.
    pub layout: &'a Layout,
}

impl ViewMut<'_> {
    /// The same memory, readable.
    pub fn as_view(&self) -> View<'_> {
        View { buffer: self.buffer, dtype: self.dtype, layout: self.layout }
    }

    /// The same memory under another layout, for the time of a borrow.
    pub fn with<'b>(&'b mut self, layout: &'b Layout) -> ViewMut<'b> {
        ViewMut { buffer: self.buffer, dtype: self.dtype, layout }
    }
}

/// Where one argument of an elementwise kernel comes from.
#[derive(Debug, Clone, Copy)]
pub enum MapArg<'a> {
    /// A tensor of the output's shape (stretched axes have stride 0).
    View(View<'a>),
    /// What output number `.0` held before: the way to update in place. Read and written element by element, so no
    /// argument aliases an output in any other way.
    Output(usize),
    /// One number for all elements, converted to the argument's dtype.
    Scalar(Scalar),
}

/// A buffer bound to a compute module, with the access that the module has.
#[derive(Debug)]
pub enum Binding<'a> {
    /// Read only.
    Read(View<'a>),
    /// Written, or read and written.
    Write(ViewMut<'a>),
}
