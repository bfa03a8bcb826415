//! The program's side of a plug-in: a backend whose primitives are the functions of the plug-in's table.

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use gradus_backend::plugin::{self, Handle, Header, KernelParts, RawArg, RawError, RawInfo, RawStats, RawView, Table};
use gradus_backend::{
    ArgReduceOp, Axes, Backend, BackendInfo, Buffer, BufferOwner, DType, Distribution, Error, ErrorKind, Here, Kernel,
    MapArg, MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};
use libloading::Library;

use crate::{Refusal, elf};

fn refused(path: &Path, why: Refusal, more: Option<String>) -> Error {
    let e = Error::new(
        ErrorKind::Format,
        "load_plugin",
        format!("{} is no plug-in for this program: {why}", path.display()),
    );
    let e = more.into_iter().fold(e, Error::note).with_source(why);
    e.help("a plug-in is a cdylib with gradus_backend::export_plugin!, built from the version of Gradus that loads it")
}

/// Refuses a path that is not a regular file. Also refuses a truncated library, because reading beyond its end would
/// kill the process.
fn check_whole(path: &Path) -> Result<()> {
    let failed = |e| Error::io("load_plugin", path.display(), e);
    // Check this before opening the file: opening a pipe waits for its other end.
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(refused(path, Refusal::NotALibrary, Some("it is no file".into())));
    }
    let needed = elf::needed(&mut File::open(path).map_err(failed)?, found.len()).map_err(failed)?;
    match needed {
        Some(needed) if needed > found.len() => {
            Err(refused(path, Refusal::Truncated { found: found.len(), needed }, None))
        }
        _ => Ok(()),
    }
}

/// Opens the backend in the library at `path`.
///
/// # Safety
/// The conditions of [`LoadPlugin::load_plugin`](crate::LoadPlugin::load_plugin).
#[track_caller]
pub unsafe fn load(path: &Path) -> Result<Arc<dyn Backend>> {
    // The path must be absolute: a bare name would be searched for in other folders.
    let path = path.canonicalize().map_err(|e| Error::io("load_plugin", path.display(), e)).here()?;
    check_whole(&path).here()?;
    // SAFETY: the caller vouches for the code that runs when the library is loaded, and when it is unloaded if refused.
    let library = unsafe { Library::new(&path) };
    let library = library.map_err(|e| refused(&path, Refusal::NotALibrary, Some(e.to_string()))).here()?;
    // SAFETY: nothing is read through the symbol here; what it points to is checked below.
    let symbol = unsafe { library.get::<*const Header>(plugin::SYMBOL.as_bytes()) };
    let symbol = *symbol.map_err(|_| refused(&path, Refusal::NoTable, None)).here()?;
    // SAFETY: the caller vouches that whatever the library exports under this name is readable for the size of a
    // header. A header is plain data, so any bytes form a valid one.
    let header = unsafe { symbol.read_unaligned() };
    let expected = Header::OURS;
    let refusal = match header {
        h if h.magic != expected.magic => Some(Refusal::WrongMagic),
        h if h.fingerprint != expected.fingerprint => {
            Some(Refusal::WrongFingerprint { found: h.fingerprint, expected: expected.fingerprint })
        }
        h if h.size != expected.size => Some(Refusal::WrongSize { found: h.size, expected: expected.size }),
        _ => None,
    };
    if let Some(refusal) = refusal {
        return Err(refused(&path, refusal, None).here());
    }
    // The library is never unloaded: a buffer or a thread of the plug-in may outlive every handle known to this side.
    std::mem::forget(library);
    // SAFETY: magic, fingerprint and size are those of a `Table`, which is a static in a library that is never
    // unloaded.
    let table: &'static Table = unsafe { &*symbol.cast() };
    Proxy::open(table).map(|proxy| Arc::new(proxy) as Arc<dyn Backend>)
}

/// An open backend of a plug-in. It is closed when neither the proxy nor any of its buffers is left.
#[derive(Debug)]
struct Opened {
    table: &'static Table,
    handle: Handle,
}

// SAFETY: the handle belongs to a `Backend`, which is `Send` and `Sync`, and the table states that its functions may be
// called from any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

/// Calls a function of the table with its arguments.
macro_rules! call {
    ($opened:expr, $function:ident($($arg:expr),*)) => {{
        let opened = $opened;
        answer(|error| {
            // SAFETY: the fingerprint shows that the table is of this version. The handle belongs to a backend that is
            // alive. Pointers come from references that outlive the call. The buffers of views were checked to belong
            // to this backend (`Proxy::view`), and those that are written are borrowed exclusively.
            unsafe { (opened.table.$function)(opened.handle, $($arg,)* error) }
        })
    }};
}

/// Calls a function of the table and converts its answer to a `Result`.
fn answer(f: impl FnOnce(*mut RawError) -> u32) -> Result<()> {
    let mut error = RawError::NONE;
    if f(&mut error) == 0 { Ok(()) } else { Err(error.to_error()) }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // There is nobody to report an error to.
        let _ = call!(&*self, destroy());
    }
}

// SAFETY: `free` releases, once, what `alloc` of the same table made. The plug-in's memory may be used from any thread.
unsafe impl BufferOwner for Opened {
    unsafe fn free(&self, ptr: NonNull<u8>, _: usize) {
        let _ = answer(|error| {
            // SAFETY: `ptr` is the handle of a buffer that `alloc` made, and nothing uses it any more.
            unsafe { (self.table.free)(ptr.as_ptr().cast(), error) }
        });
    }
}

/// The plug-in's backend as this program sees it.
#[derive(Debug)]
struct Proxy {
    opened: Arc<Opened>,
    info: BackendInfo,
    raw: RawInfo,
}

impl Proxy {
    fn open(table: &'static Table) -> Result<Self> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the fingerprint shows that the table is of this version, and both pointers are valid for writes.
        answer(|error| unsafe { (table.create)(&mut handle, error) })?;
        let opened = Arc::new(Opened { table, handle });
        let mut raw = RawInfo::NONE;
        call!(&*opened, info(&mut raw))?;
        Ok(Proxy { opened, info: raw.to_info()?, raw })
    }

    /// The handle of a buffer, which must belong to this backend.
    fn buffer(&self, op: &str, buffer: &Buffer) -> Result<Handle> {
        if std::ptr::addr_eq(Arc::as_ptr(buffer.owner()), Arc::as_ptr(&self.opened)) {
            return Ok(buffer.as_ptr().as_ptr().cast());
        }
        let m = "an operand lives on another device or backend instance";
        Err(Error::new(ErrorKind::DeviceMismatch, op, m).help("move it here first"))
    }

    fn view(&self, op: &str, x: View<'_>) -> Result<RawView> {
        self.buffer(op, x.buffer)?;
        Ok(RawView::new(x))
    }

    fn out(&self, op: &str, out: &mut ViewMut<'_>) -> Result<RawView> {
        self.view(op, out.as_view())
    }
}

impl Backend for Proxy {
    fn info(&self) -> BackendInfo {
        self.info.clone()
    }

    fn name(&self) -> &str {
        &self.info.name
    }

    fn supports(&self, dtype: DType) -> bool {
        self.raw.supports(dtype)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let mut handle: Handle = std::ptr::null_mut();
        call!(&*self.opened, alloc(bytes, &mut handle))?;
        let null = || Error::new(ErrorKind::Backend, "alloc", "the plug-in gave no buffer");
        let handle = NonNull::new(handle.cast::<u8>()).ok_or_else(null)?;
        // SAFETY: the handle is that of a buffer of this size, made for this call and valid until `Opened::free`
        // releases it.
        Ok(unsafe { Buffer::from_raw(handle, bytes, self.opened.clone()) })
    }

    fn upload(&self, dst: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let dst = self.buffer("upload", dst)?;
        call!(&*self.opened, upload(dst, offset, bytes.as_ptr(), bytes.len()))
    }

    fn download(&self, src: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let src = self.buffer("download", src)?;
        call!(&*self.opened, download(src, offset, bytes.as_mut_ptr(), bytes.len()))
    }

    fn copy_buffer(&self, src: &Buffer, from: usize, dst: &mut Buffer, to: usize, bytes: usize) -> Result<()> {
        let (src, dst) = (self.buffer("copy_buffer", src)?, self.buffer("copy_buffer", dst)?);
        call!(&*self.opened, copy_buffer(src, from, dst, to, bytes))
    }

    fn fill(&self, out: &mut ViewMut<'_>, value: Scalar) -> Result<()> {
        let out = self.out("fill", out)?;
        call!(&*self.opened, fill(&out, value.into()))
    }

    fn synchronize(&self) -> Result<()> {
        call!(&*self.opened, synchronize())
    }

    fn memory_stats(&self) -> MemoryStats {
        let mut stats = RawStats::from(MemoryStats::default());
        // If the plug-in cannot report its counters, they stay 0.
        let _ = call!(&*self.opened, memory_stats(&mut stats));
        stats.into()
    }

    fn set_memory_budget(&self, bytes: Option<usize>) -> Result<()> {
        call!(&*self.opened, set_memory_budget(u32::from(bytes.is_some()), bytes.unwrap_or(0)))
    }

    fn trim(&self) -> Result<()> {
        call!(&*self.opened, trim())
    }

    fn map(&self, kernel: &Kernel, args: &[MapArg<'_>], outs: &mut [ViewMut<'_>]) -> Result<()> {
        let op = kernel.name();
        for arg in args {
            if let MapArg::View(x) = arg {
                self.buffer(op, x.buffer)?;
            }
        }
        let args: Vec<RawArg> = args.iter().map(|&a| RawArg::new(a)).collect();
        let outs = outs.iter_mut().map(|out| self.out(op, out)).collect::<Result<Vec<_>>>()?;
        let parts = KernelParts::new(kernel);
        let code = parts.raw(op);
        call!(&*self.opened, map(&code, args.as_ptr(), args.len(), outs.as_ptr(), outs.len()))
    }

    fn reduce(&self, op: ReduceOp, x: View<'_>, axes: Axes, out: &mut ViewMut<'_>) -> Result<()> {
        let (x, out) = (self.view("reduce", x)?, self.out("reduce", out)?);
        call!(&*self.opened, reduce(op as u32, &x, plugin::axes_to_bits(axes), &out))
    }

    fn arg_reduce(&self, op: ArgReduceOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        let (x, out) = (self.view("arg_reduce", x)?, self.out("arg_reduce", out)?);
        call!(&*self.opened, arg_reduce(op as u32, &x, axis, &out))
    }

    fn scan(&self, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
        let (x, out) = (self.view("scan", x)?, self.out("scan", out)?);
        call!(&*self.opened, scan(op as u32, &x, axis, &out))
    }

    fn gemm(&self, alpha: Scalar, a: View<'_>, b: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        let (a, b, c) = (self.view("gemm", a)?, self.view("gemm", b)?, self.out("gemm", c)?);
        call!(&*self.opened, gemm(alpha.into(), &a, &b, beta.into(), &c))
    }

    fn unfold(&self, window: &Window, x: View<'_>, pad: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
        let (window, x, out) = (window.into(), self.view("unfold", x)?, self.out("unfold", out)?);
        call!(&*self.opened, unfold(&window, &x, pad.into(), &out))
    }

    fn fold(&self, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let (window, x, out) = (window.into(), self.view("fold", x)?, self.out("fold", out)?);
        call!(&*self.opened, fold(&window, &x, &out))
    }

    fn gather(&self, x: View<'_>, axis: usize, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let (x, index, out) = (self.view("gather", x)?, self.view("gather", index)?, self.out("gather", out)?);
        call!(&*self.opened, gather(&x, axis, &index, &out))
    }

    fn scatter(&self, op: ScatterOp, axis: usize, index: View<'_>, src: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let (index, src, out) = (self.view("scatter", index)?, self.view("scatter", src)?, self.out("scatter", out)?);
        call!(&*self.opened, scatter(op as u32, axis, &index, &src, &out))
    }

    fn sort(
        &self,
        x: View<'_>,
        axis: usize,
        descending: bool,
        values: &mut ViewMut<'_>,
        indices: &mut ViewMut<'_>,
    ) -> Result<()> {
        let (x, values, indices) = (self.view("sort", x)?, self.out("sort", values)?, self.out("sort", indices)?);
        call!(&*self.opened, sort(&x, axis, u32::from(descending), &values, &indices))
    }

    fn random(&self, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
        let out = self.out("random", out)?;
        call!(&*self.opened, random(dist.into(), seed, offset, &out))
    }

    fn copy_strided(&self, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        let (x, out) = (self.view("copy_strided", x)?, self.out("copy_strided", out)?);
        call!(&*self.opened, copy_strided(&x, &out))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use gradus_backend::{Layout, Shape, Watched};
    use gradus_conformance::OracleBackend;

    use super::*;

    /// The number of open backends created by [`panicking`].
    static OPEN: AtomicUsize = AtomicUsize::new(0);

    #[derive(Debug)]
    struct Count;

    impl Drop for Count {
        fn drop(&mut self) {
            OPEN.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A backend that panics after each `fill`.
    fn panicking() -> Result<Watched> {
        OPEN.fetch_add(1, Ordering::SeqCst);
        let count = Count;
        Ok(Watched::new(Arc::new(OracleBackend::new()), move |call| {
            let _ = &count;
            assert!(call.name != "fill", "spilled");
        }))
    }

    fn refusing() -> Result<OracleBackend> {
        Err(Error::new(ErrorKind::Unsupported, "open", "no such hardware"))
    }

    /// # Safety
    /// Both pointers are valid for writes.
    unsafe extern "C" fn create_panicking(backend: *mut Handle, error: *mut RawError) -> u32 {
        // SAFETY: the caller guarantees this.
        unsafe { plugin::create(backend, error, panicking) }
    }

    /// # Safety
    /// Both pointers are valid for writes.
    unsafe extern "C" fn create_refusing(backend: *mut Handle, error: *mut RawError) -> u32 {
        // SAFETY: the caller guarantees this.
        unsafe { plugin::create(backend, error, refusing) }
    }

    static PANICKING: Table = plugin::table(create_panicking);
    static REFUSING: Table = plugin::table(create_refusing);

    #[test]
    fn panics_of_the_other_side_are_errors_and_the_last_buffer_closes_it() {
        let proxy = Proxy::open(&PANICKING).unwrap();
        let mut buffer = proxy.alloc(8).unwrap();
        let layout = Layout::contiguous(Shape::new(&[2]).unwrap());
        let mut out = ViewMut { buffer: &mut buffer, dtype: DType::F32, layout: &layout };
        let e = proxy.fill(&mut out, Scalar::Float(1.0)).unwrap_err();
        assert_eq!((e.kind(), e.message()), (&ErrorKind::Backend, "the plug-in panicked: spilled"));
        // The backend still works, and stays open until the buffer is dropped.
        proxy.upload(&mut buffer, 0, &[1; 8]).unwrap();
        drop(proxy);
        assert_eq!(OPEN.load(Ordering::SeqCst), 1);
        drop(buffer);
        assert_eq!(OPEN.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_backend_that_does_not_open_says_why() {
        let e = Proxy::open(&REFUSING).unwrap_err();
        assert_eq!((e.kind(), e.op(), e.message()), (&ErrorKind::Unsupported, "open", "no such hardware"));
    }
}
