//! The plug-in's side: the functions behind a [`Table`].
//!
//! The safety contract of every function: its pointers are valid as the [`Table`] states. The handle of a backend comes
//! from [`create`] and that of a buffer from [`alloc`], and neither has been released. A panic becomes an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::from_raw_parts;

use super::convert::*;
use super::table::*;
use crate::{Backend, Buffer, Error, ErrorKind, Kernel, Layout, MapArg, Result, View, ViewMut};

type Opened = Box<dyn Backend>;

/// A table of these functions, with `create` to open the backend.
pub const fn table(create: unsafe extern "C" fn(*mut Handle, *mut RawError) -> u32) -> Table {
    Table {
        header: Header::OURS,
        create,
        destroy,
        info,
        alloc,
        free,
        upload,
        download,
        copy_buffer,
        fill,
        synchronize,
        memory_stats,
        set_memory_budget,
        trim,
        map,
        reduce,
        arg_reduce,
        scan,
        gemm,
        unfold,
        fold,
        gather,
        scatter,
        sort,
        random,
        copy_strided,
    }
}

/// Converts a panic to an error.
fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    let e = Error::new(ErrorKind::Backend, "plugin", format!("the plug-in panicked: {}", text.unwrap_or("no message")));
    // Dropping the payload could panic again.
    std::mem::forget(payload);
    e
}

/// Runs `f`, which may panic. Returns 0 on success; otherwise writes the error to `error` and returns 1.
///
/// # Safety
/// `error` is valid for writes.
unsafe fn answer(error: *mut RawError, f: impl FnOnce() -> Result<()>) -> u32 {
    // An error from the plug-in may hold a source whose `Display` or `Drop` panics as well.
    let raw = catch_unwind(AssertUnwindSafe(|| f().err().map(|e| RawError::new(&e))));
    let Some(raw) = raw.unwrap_or_else(|payload| Some(RawError::new(&panicked(payload)))) else { return 0 };
    // SAFETY: the caller guarantees this.
    unsafe { error.write(raw) };
    1
}

/// Opens a backend for the program that loads the plug-in.
///
/// # Safety
/// `backend` and `error` are valid for writes.
pub unsafe fn create<B: Backend>(backend: *mut Handle, error: *mut RawError, open: impl FnOnce() -> Result<B>) -> u32 {
    let make = || {
        let opened: Opened = Box::new(open()?);
        // SAFETY: the caller guarantees this.
        unsafe { backend.write(Box::into_raw(Box::new(opened)).cast()) };
        Ok(())
    };
    // SAFETY: the caller guarantees this.
    unsafe { answer(error, make) }
}

/// The backend behind a handle.
///
/// # Safety
/// `handle` comes from [`create`] and is not destroyed during `'a`.
unsafe fn opened<'a>(handle: Handle) -> &'a dyn Backend {
    // SAFETY: `create` made the pointer from a box of this type, and the caller keeps the box alive.
    unsafe { &**handle.cast::<Opened>() }
}

/// The buffer behind a handle.
///
/// # Safety
/// `handle` comes from [`alloc`], and the buffer is neither freed nor written during `'a`.
unsafe fn buffer<'a>(handle: Handle) -> &'a Buffer {
    // SAFETY: `alloc` made the pointer from a box of this type, and the caller keeps the box alive and unchanged.
    unsafe { &*handle.cast::<Buffer>() }
}

/// The buffer behind a handle, for writing.
///
/// # Safety
/// `handle` comes from [`alloc`], and the buffer is not freed and not used by anything else during `'a`.
unsafe fn buffer_mut<'a>(handle: Handle) -> &'a mut Buffer {
    // SAFETY: `alloc` made the pointer from a box of this type, and the caller keeps the box alive and exclusive.
    unsafe { &mut *handle.cast::<Buffer>() }
}

/// A view before its buffer is borrowed.
struct Parts {
    raw: RawView,
    dtype: crate::DType,
    layout: Layout,
}

impl Parts {
    /// The dtype and the layout of a view, which is checked to lie inside its buffer.
    ///
    /// # Safety
    /// `raw.buffer` comes from [`alloc`], and is neither freed nor written during this call.
    unsafe fn new(raw: RawView) -> Result<Self> {
        // SAFETY: the caller guarantees this.
        let bytes = unsafe { buffer(raw.buffer) }.bytes();
        let (dtype, layout) = raw.parts(bytes)?;
        Ok(Parts { raw, dtype, layout })
    }

    /// # Safety
    /// The conditions of [`buffer`] hold for as long as the borrow lasts.
    unsafe fn view(&self) -> View<'_> {
        // SAFETY: the caller guarantees this.
        View { buffer: unsafe { buffer(self.raw.buffer) }, dtype: self.dtype, layout: &self.layout }
    }

    /// # Safety
    /// The conditions of [`buffer_mut`] hold for as long as the borrow lasts.
    unsafe fn view_mut(&self) -> ViewMut<'_> {
        // SAFETY: the caller guarantees this.
        ViewMut { buffer: unsafe { buffer_mut(self.raw.buffer) }, dtype: self.dtype, layout: &self.layout }
    }
}

/// A slice of `count` elements; if `count` is 0, the pointer is not used.
///
/// # Safety
/// If `count` is above 0, `first` points to that many elements, which are not written during `'a`.
unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller guarantees this.
    if count == 0 { &[] } else { unsafe { from_raw_parts(first, count) } }
}

/// Builds a kernel from these parts.
///
/// # Safety
/// The pointers of `raw` are valid for as many elements as it states.
unsafe fn kernel(raw: RawKernel) -> Result<Kernel> {
    // SAFETY: the caller guarantees this.
    let (name, args, insts, outputs) = unsafe {
        let name = list(raw.name, raw.name_len);
        (name, list(raw.args, raw.args_len), list(raw.insts, raw.insts_len), list(raw.outputs, raw.outputs_len))
    };
    let args = args.iter().map(|&d| dtype(d.into())).collect::<Result<Vec<_>>>()?;
    let insts = insts.iter().map(RawInst::to_inst).collect::<Result<Vec<_>>>()?;
    let outputs = outputs.iter().map(|o| Ok((o.value, dtype(o.dtype.into())?))).collect::<Result<Vec<_>>>()?;
    Kernel::from_parts(&String::from_utf8_lossy(name), &args, insts, outputs)
}

/// Defines functions of the table. Each lists its backend, its arguments and its body, which runs in an `unsafe` block.
macro_rules! exports {
    ($($name:ident($backend:ident $(, $arg:ident: $type:ty)*) $body:block)*) => {$(
        /// # Safety
        /// The safety contract of the module.
        unsafe extern "C" fn $name($backend: Handle, $($arg: $type,)* error: *mut RawError) -> u32 {
            // SAFETY: the module's contract guarantees that the handles belong to a backend and to buffers that are
            // alive, that the pointers are valid, and that no view that is written shares its buffer with another
            // operand.
            unsafe {
                answer(error, || {
                    let $backend = opened($backend);
                    $body
                })
            }
        }
    )*};
}

/// # Safety
/// The safety contract of the module. In addition, `backend` has no buffers left and is not used afterwards.
unsafe extern "C" fn destroy(backend: Handle, error: *mut RawError) -> u32 {
    // SAFETY: `create` made the pointer from a box of this type, which is dropped here.
    unsafe {
        answer(error, || {
            drop(Box::from_raw(backend.cast::<Opened>()));
            Ok(())
        })
    }
}

/// # Safety
/// The safety contract of the module. In addition, `buffer` is not used afterwards.
unsafe extern "C" fn free(buffer: Handle, error: *mut RawError) -> u32 {
    // SAFETY: `alloc` made the pointer from a box of this type, which is dropped here.
    unsafe {
        answer(error, || {
            drop(Box::from_raw(buffer.cast::<Buffer>()));
            Ok(())
        })
    }
}

exports! {
    info(b, out: *mut RawInfo) {
        out.write(RawInfo::new(&b.info(), |d| b.supports(d)));
        Ok(())
    }
    alloc(b, bytes: usize, out: *mut Handle) {
        out.write(Box::into_raw(Box::new(b.alloc(bytes)?)).cast());
        Ok(())
    }
    upload(b, dst: Handle, offset: usize, bytes: *const u8, count: usize) {
        b.upload(buffer_mut(dst), offset, list(bytes, count))
    }
    download(b, src: Handle, offset: usize, bytes: *mut u8, count: usize) {
        let bytes = if count == 0 { &mut [] } else { std::slice::from_raw_parts_mut(bytes, count) };
        b.download(buffer(src), offset, bytes)
    }
    copy_buffer(b, src: Handle, from: usize, dst: Handle, to: usize, bytes: usize) {
        b.copy_buffer(buffer(src), from, buffer_mut(dst), to, bytes)
    }
    fill(b, out: *const RawView, value: RawScalar) {
        b.fill(&mut Parts::new(*out)?.view_mut(), value.to_scalar()?)
    }
    synchronize(b) {
        b.synchronize()
    }
    memory_stats(b, out: *mut RawStats) {
        out.write(b.memory_stats().into());
        Ok(())
    }
    set_memory_budget(b, limited: u32, bytes: usize) {
        b.set_memory_budget((limited != 0).then_some(bytes))
    }
    trim(b) {
        b.trim()
    }
    map(b, code: *const RawKernel, args: *const RawArg, arg_count: usize, outs: *const RawView, out_count: usize) {
        let kernel = kernel(*code)?;
        let raw = list(args, arg_count);
        let views = raw.iter().map(|a| if a.form == 0 { Parts::new(a.view).map(Some) } else { Ok(None) });
        let views = views.collect::<Result<Vec<_>>>()?;
        let outs = list(outs, out_count).iter().map(|&o| Parts::new(o)).collect::<Result<Vec<_>>>()?;
        let mut args = Vec::with_capacity(raw.len());
        for (a, view) in raw.iter().zip(&views) {
            args.push(match (a.form, view) {
                (_, Some(view)) => MapArg::View(view.view()),
                (1, None) => MapArg::Output(a.output),
                _ => MapArg::Scalar(a.scalar.to_scalar()?),
            });
        }
        let mut outs: Vec<_> = outs.iter().map(|o| o.view_mut()).collect();
        b.map(&kernel, &args, &mut outs)
    }
    reduce(b, op: u32, x: *const RawView, axes: u32, out: *const RawView) {
        b.reduce(reduce_op(op)?, Parts::new(*x)?.view(), axes_from_bits(axes)?, &mut Parts::new(*out)?.view_mut())
    }
    arg_reduce(b, op: u32, x: *const RawView, axis: usize, out: *const RawView) {
        b.arg_reduce(arg_reduce_op(op)?, Parts::new(*x)?.view(), axis, &mut Parts::new(*out)?.view_mut())
    }
    scan(b, op: u32, x: *const RawView, axis: usize, out: *const RawView) {
        b.scan(scan_op(op)?, Parts::new(*x)?.view(), axis, &mut Parts::new(*out)?.view_mut())
    }
    gemm(b, alpha: RawScalar, x: *const RawView, y: *const RawView, beta: RawScalar, out: *const RawView) {
        let (x, y, out) = (Parts::new(*x)?, Parts::new(*y)?, Parts::new(*out)?);
        b.gemm(alpha.to_scalar()?, x.view(), y.view(), beta.to_scalar()?, &mut out.view_mut())
    }
    unfold(b, window: *const RawWindow, x: *const RawView, pad: RawScalar, out: *const RawView) {
        let (x, out) = (Parts::new(*x)?, Parts::new(*out)?);
        b.unfold(&(*window).into(), x.view(), pad.to_scalar()?, &mut out.view_mut())
    }
    fold(b, window: *const RawWindow, x: *const RawView, out: *const RawView) {
        b.fold(&(*window).into(), Parts::new(*x)?.view(), &mut Parts::new(*out)?.view_mut())
    }
    gather(b, x: *const RawView, axis: usize, index: *const RawView, out: *const RawView) {
        let (x, index, out) = (Parts::new(*x)?, Parts::new(*index)?, Parts::new(*out)?);
        b.gather(x.view(), axis, index.view(), &mut out.view_mut())
    }
    scatter(b, op: u32, axis: usize, index: *const RawView, src: *const RawView, out: *const RawView) {
        let (index, src, out) = (Parts::new(*index)?, Parts::new(*src)?, Parts::new(*out)?);
        b.scatter(scatter_op(op)?, axis, index.view(), src.view(), &mut out.view_mut())
    }
    sort(b, x: *const RawView, axis: usize, descending: u32, values: *const RawView, indices: *const RawView) {
        let (x, values, indices) = (Parts::new(*x)?, Parts::new(*values)?, Parts::new(*indices)?);
        b.sort(x.view(), axis, descending != 0, &mut values.view_mut(), &mut indices.view_mut())
    }
    random(b, dist: RawDistribution, seed: u64, offset: u64, out: *const RawView) {
        b.random(dist.to_distribution()?, seed, offset, &mut Parts::new(*out)?.view_mut())
    }
    copy_strided(b, x: *const RawView, out: *const RawView) {
        b.copy_strided(Parts::new(*x)?.view(), &mut Parts::new(*out)?.view_mut())
    }
}
