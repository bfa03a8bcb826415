//! Products of matrices by cuBLASLt, NVIDIA's library, where it is on this machine.
//!
//! Its functions are looked up once, and are called through pointers, so that a library that lacks one is not used. Matrices
//! are stored by columns here, as the library's are: see [`Matrix`].
//!
//! For each [`Problem`], the library's heuristic names an algorithm once, which all such products use from then on. It may
//! split sums only into parts that are kept and added in f32, in their order. The heuristic depends on the problem, the
//! library and the kind of GPU, and on nothing else, and one algorithm gives the same bits on every run.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys;
use gradus_backend::{DType, Error, ErrorKind, Result};
use libloading_09::Library;

use super::{Device, library};

/// The oldest version that is used, as major version.
const OLDEST: usize = 12;
/// The bytes of memory that an algorithm may use besides the matrices.
const WORKSPACE: usize = 32 << 20;
/// With more algorithms than these, all are forgotten. The heuristic names the same ones again.
const MOST_PLANS: usize = 4096;

/// What a function of the library returns.
type Status = u32;
/// An object of the library.
type Object = *mut c_void;

const SUCCESS: Status = 0;

/// The statuses of a call that has queued nothing: no memory, which may pass, and those of a problem that the library cannot
/// compute: not initialised, invalid or unsupported arguments, and a GPU that it does not know.
const NO_MEMORY: Status = 3;
const REFUSALS: [Status; 4] = [1, 7, 8, 15];

// Numbers of the library's interface, `cublasLt.h` and `library_types.h`.
const R_32F: i32 = 0;
const R_16F: i32 = 2;
const R_16BF: i32 = 14;
const COMPUTE_32F: i32 = 68;
const DESC_TRANSPOSE_A: u32 = 3;
const DESC_TRANSPOSE_B: u32 = 4;
const LAYOUT_BATCH_COUNT: u32 = 5;
const LAYOUT_BATCH_STEP: u32 = 6;
const PREFERENCE_WORKSPACE: u32 = 1;
const PREFERENCE_REDUCTIONS: u32 = 3;
/// That of the first matrix; those of B, C and D follow.
const PREFERENCE_ALIGNMENT_A: u32 = 5;
/// Parts of sums are kept in the type of sums, and added in a step of their own.
const REDUCTION_IN_COMPUTE_TYPE: u32 = 2;

/// An algorithm, as the library describes it.
type Algorithm = [u64; 8];

/// An answer of the heuristic.
#[repr(C)]
struct Answer {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

type Set = unsafe extern "C" fn(Object, u32, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Object) -> Status;
type Heuristic =
    unsafe extern "C" fn(Object, Object, Object, Object, Object, Object, Object, i32, *mut Answer, *mut i32) -> Status;
type Matmul = unsafe extern "C" fn(
    Object,
    Object,
    *const c_void,
    u64,
    Object,
    u64,
    Object,
    *const c_void,
    u64,
    Object,
    u64,
    Object,
    *const Algorithm,
    u64,
    usize,
    sys::CUstream,
) -> Status;

/// The functions of the library that this crate calls.
struct Functions {
    /// As major and minor version.
    version: (usize, usize),
    create: unsafe extern "C" fn(*mut Object) -> Status,
    destroy: Destroy,
    new_desc: unsafe extern "C" fn(*mut Object, i32, i32) -> Status,
    set_desc: Set,
    free_desc: Destroy,
    new_layout: unsafe extern "C" fn(*mut Object, i32, u64, u64, i64) -> Status,
    set_layout: Set,
    free_layout: Destroy,
    new_preference: unsafe extern "C" fn(*mut Object) -> Status,
    set_preference: Set,
    free_preference: Destroy,
    heuristic: Heuristic,
    matmul: Matmul,
}

/// A function of the library.
///
/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise.
    match unsafe { library.get::<F>(name) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(format!("it has no function {name}")),
    }
}

impl Functions {
    /// Looks the functions up. `driver` is the newest CUDA version that the driver supports. Fails with the reason why the
    /// library cannot be used.
    fn of(library: &Library, driver: (u32, u32)) -> Result<Functions, String> {
        // SAFETY: these are the types of `cublasLt.h`, where enumerations are C's `int`, and `cudaStream_t` is `CUstream`.
        unsafe {
            let version = function::<unsafe extern "C" fn() -> usize>(library, "cublasLtGetVersion")?();
            let version = (version / 10_000, version % 10_000 / 100);
            if version.0 < OLDEST {
                return Err(format!("it is version {}.{}; version {OLDEST} or later is needed", version.0, version.1));
            }
            if version.0 > driver.0 as usize {
                let (major, minor) = driver;
                return Err(format!("it is of CUDA {}, and the driver supports CUDA {major}.{minor}", version.0));
            }
            Ok(Functions {
                version,
                create: function(library, "cublasLtCreate")?,
                destroy: function(library, "cublasLtDestroy")?,
                new_desc: function(library, "cublasLtMatmulDescCreate")?,
                set_desc: function(library, "cublasLtMatmulDescSetAttribute")?,
                free_desc: function(library, "cublasLtMatmulDescDestroy")?,
                new_layout: function(library, "cublasLtMatrixLayoutCreate")?,
                set_layout: function(library, "cublasLtMatrixLayoutSetAttribute")?,
                free_layout: function(library, "cublasLtMatrixLayoutDestroy")?,
                new_preference: function(library, "cublasLtMatmulPreferenceCreate")?,
                set_preference: function(library, "cublasLtMatmulPreferenceSetAttribute")?,
                free_preference: function(library, "cublasLtMatmulPreferenceDestroy")?,
                heuristic: function(library, "cublasLtMatmulAlgoGetHeuristic")?,
                matmul: function(library, "cublasLtMatmul")?,
            })
        }
    }

    /// Those of the library of this machine, which is looked for once; `None` if there is none that can be used.
    fn found(driver: (u32, u32)) -> Result<Option<&'static Functions>> {
        static FOUND: OnceLock<Result<Option<Functions>>> = OnceLock::new();
        match FOUND.get_or_init(|| library::cublaslt(|library| Functions::of(library, driver))) {
            Ok(found) => Ok(found.as_ref()),
            Err(e) => Err(e.clone()),
        }
    }
}

/// Fails if `GRADUS_CUBLASLT` names a library that cannot be used.
pub(crate) fn check_named(device: &Device) -> Result<()> {
    if library::names_cublaslt() { Functions::found(device.summary.driver).map(drop) } else { Ok(()) }
}

/// A matrix as the library describes it: element (row, column) is at `row + column * ld`. All sizes and distances count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    pub(crate) ld: i64,
    /// From one matrix of a batch to the next.
    pub(crate) step: i64,
    /// Whether the factor is the matrix the other way round.
    pub(crate) is_transposed: bool,
    /// A power of two that divides the address.
    pub(crate) alignment: u32,
}

/// The product of two factors, everything but the addresses: `c = alpha * a * b + beta * c` for each matrix of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    /// The dtype of all three: f16 or bf16.
    pub(crate) dtype: DType,
    pub(crate) batch: i32,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
}

/// An object of the library that is destroyed when it is dropped.
struct Owned(Object, Destroy);

impl Owned {
    /// What `make` makes; `None` if it fails.
    fn new(destroy: Destroy, make: impl FnOnce(*mut Object) -> Status) -> Option<Owned> {
        let mut object = std::ptr::null_mut();
        (make(&mut object) == SUCCESS).then(|| Owned(object, destroy))
    }

    /// Sets an attribute; `None` if the library refuses it.
    fn set<T>(&self, set: Set, which: u32, value: T) -> Option<()> {
        // SAFETY: the object lives, and the value has the size that is stated. The library checks the size of the attribute.
        let status = unsafe { set(self.0, which, std::ptr::from_ref(&value).cast(), size_of::<T>()) };
        (status == SUCCESS).then_some(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object was made, and is destroyed once. These objects belong to the host alone.
        unsafe { (self.1)(self.0) };
    }
}

/// The algorithm of a problem, with the library's description of it.
struct Plan {
    desc: Owned,
    layouts: [Owned; 3],
    algorithm: Algorithm,
    /// The bytes of the workspace that it needs.
    workspace: usize,
}

// SAFETY: after a plan is made, the library only reads its objects.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// The library, ready for one device.
pub(crate) struct CublasLt {
    functions: &'static Functions,
    handle: Object,
    /// The address of the workspace, which all products of the device share: their work runs in the order of one stream.
    workspace: u64,
    /// The plan of each problem; `None` if the library cannot solve it.
    plans: Mutex<HashMap<Problem, Option<Arc<Plan>>>>,
    device: Arc<Device>,
}

// SAFETY: a handle of the library may be used from any thread, and from several at a time.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Prepares the library for a device. `None` if there is none, if it does not work with this device, or if the device has
    /// no memory left for the workspace, even after `trim`.
    fn open(device: &Arc<Device>, trim: impl FnOnce()) -> Result<Option<CublasLt>> {
        device.enter("cuBLASLt")?;
        let Some(functions) = Functions::found(device.summary.driver)? else { return Ok(None) };
        let mut workspace = device.allocate(WORKSPACE)?;
        if workspace.is_none() {
            trim();
            workspace = device.allocate(WORKSPACE)?;
        }
        let Some(workspace) = workspace else { return Ok(None) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the function writes to the handle. The device's context is current.
        if unsafe { (functions.create)(&mut handle) } != SUCCESS {
            // SAFETY: the memory was allocated above, and nothing uses it.
            unsafe { device.free(workspace) };
            return Ok(None);
        }
        let device = device.clone();
        Ok(Some(CublasLt { functions, handle, workspace, plans: Mutex::default(), device }))
    }

    /// The major and minor version of the library.
    pub(crate) fn version(&self) -> (usize, usize) {
        self.functions.version
    }

    /// The product of matrices at these addresses, or `None` if the library cannot compute it. The factors are `alpha` and
    /// `beta`.
    pub(crate) fn product(
        self: &Arc<Self>,
        problem: &Problem,
        addresses: [u64; 3],
        factors: [f32; 2],
    ) -> Result<Option<Product>> {
        // The heuristic asks for the device of this thread.
        self.device.enter("cuBLASLt")?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MOST_PLANS {
            plans.clear();
        }
        let plan = plans.entry(*problem).or_insert_with(|| self.plan(problem).map(Arc::new)).clone();
        Ok(plan.map(|plan| Product { library: self.clone(), plan, problem: *problem, addresses, factors }))
    }

    fn plan(&self, problem: &Problem) -> Option<Plan> {
        let of = self.functions;
        let kind = if problem.dtype == DType::BF16 { R_16BF } else { R_16F };
        // SAFETY: these functions write to the handle that they are given.
        let desc = Owned::new(of.free_desc, |to| unsafe { (of.new_desc)(to, COMPUTE_32F, R_32F) })?;
        desc.set(of.set_desc, DESC_TRANSPOSE_A, i32::from(problem.a.is_transposed))?;
        desc.set(of.set_desc, DESC_TRANSPOSE_B, i32::from(problem.b.is_transposed))?;
        let layout = |m: &Matrix| {
            // SAFETY: as above.
            let one = Owned::new(of.free_layout, |to| unsafe { (of.new_layout)(to, kind, m.rows, m.cols, m.ld) })?;
            one.set(of.set_layout, LAYOUT_BATCH_COUNT, problem.batch)?;
            one.set(of.set_layout, LAYOUT_BATCH_STEP, m.step)?;
            Some(one)
        };
        let layouts = [layout(&problem.a)?, layout(&problem.b)?, layout(&problem.c)?];
        // SAFETY: as above.
        let preference = Owned::new(of.free_preference, |to| unsafe { (of.new_preference)(to) })?;
        preference.set(of.set_preference, PREFERENCE_WORKSPACE, WORKSPACE as u64)?;
        preference.set(of.set_preference, PREFERENCE_REDUCTIONS, REDUCTION_IN_COMPUTE_TYPE)?;
        for (at, matrix) in [problem.a, problem.b, problem.c, problem.c].iter().enumerate() {
            preference.set(of.set_preference, PREFERENCE_ALIGNMENT_A + at as u32, matrix.alignment)?;
        }
        let [a, b, c] = [&layouts[0], &layouts[1], &layouts[2]].map(|layout| layout.0);
        let mut answer = Answer { algorithm: [0; 8], workspace: 0, state: SUCCESS, waves: 0.0, reserved: [0; 4] };
        let mut count = 0;
        // SAFETY: the objects live, the device's context is current, and the function writes one answer and their number.
        let status =
            unsafe { (of.heuristic)(self.handle, desc.0, a, b, c, c, preference.0, 1, &mut answer, &mut count) };
        let is_found = status == SUCCESS && count == 1 && answer.state == SUCCESS && answer.workspace <= WORKSPACE;
        is_found.then_some(Plan { desc, layouts, algorithm: answer.algorithm, workspace: answer.workspace })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.device.enter("free").is_ok() {
            // SAFETY: nothing uses the handle any more. Memory is freed after all work that is queued.
            unsafe {
                (self.functions.destroy)(self.handle);
                self.device.free(self.workspace);
            }
        }
    }
}

/// The library of a device. It takes a while to load, so it is looked for at the first product that may use it, and whether it
/// is there is decided then, so that a product has the same bits again later.
#[derive(Default)]
pub(crate) struct FoundCublasLt(Mutex<Option<Option<Arc<CublasLt>>>>);

impl FoundCublasLt {
    fn lock(&self) -> MutexGuard<'_, Option<Option<Arc<CublasLt>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library, if it was found before.
    pub(crate) fn found(&self) -> Option<Arc<CublasLt>> {
        self.lock().clone().flatten()
    }

    /// The library, if there is one. `trim` gives back memory that is kept for reuse.
    pub(crate) fn get(&self, device: &Arc<Device>, trim: impl FnOnce()) -> Result<Option<Arc<CublasLt>>> {
        let mut found = self.lock();
        if let Some(found) = &*found {
            return Ok(found.clone());
        }
        let opened = CublasLt::open(device, trim)?.map(Arc::new);
        Ok(found.insert(opened).clone())
    }
}

/// A product that is ready to be queued.
#[derive(Clone)]
pub(crate) struct Product {
    library: Arc<CublasLt>,
    plan: Arc<Plan>,
    problem: Problem,
    addresses: [u64; 3],
    factors: [f32; 2],
}

impl Product {
    /// Queues the product on the device's stream. Returns whether it did: if it did not, the library cannot compute it.
    ///
    /// # Safety
    /// The matrices that the problem describes lie in memory that is allocated, and `c` overlaps neither factor.
    pub(crate) unsafe fn run(&self, op: &str) -> Result<bool> {
        let device = &self.library.device;
        // SAFETY: the caller's promise.
        match unsafe { self.queue_on(device.stream) } {
            SUCCESS => Ok(true),
            NO_MEMORY => Ok(false),
            status if REFUSALS.contains(&status) => {
                self.library.plans.lock().unwrap_or_else(PoisonError::into_inner).insert(self.problem, None);
                Ok(false)
            }
            status => {
                // What went wrong may be known to the driver, also that the device is lost.
                device.wait(op)?;
                Err(failed(op, &device.label, status))
            }
        }
    }

    /// Lists the product on a stream whose work is captured.
    ///
    /// # Safety
    /// As for [`run`](Self::run), at each start of the graph.
    pub(super) unsafe fn list(&self, op: &str, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { self.queue_on(stream) } {
            SUCCESS => Ok(()),
            status => Err(failed(op, &self.library.device.label, status)),
        }
    }

    /// # Safety
    /// As for [`run`](Self::run). The device's context is current.
    unsafe fn queue_on(&self, stream: sys::CUstream) -> Status {
        let (CublasLt { functions, handle, workspace, .. }, Plan { desc, layouts, algorithm, workspace: bytes }) =
            (&*self.library, &*self.plan);
        let ([a, b, c], [alpha, beta]) = (self.addresses, &self.factors);
        let [of_a, of_b, of_c] = [&layouts[0], &layouts[1], &layouts[2]].map(|layout| layout.0);
        let (alpha, beta) = (std::ptr::from_ref(alpha).cast(), std::ptr::from_ref(beta).cast());
        // SAFETY: the objects live. The factors are f32, as the description says. The caller promises that the matrices are
        // allocated, and the workspace has as many bytes as the algorithm needs; all that uses it runs in the order of the
        // device's stream, graphs too.
        unsafe {
            (functions.matmul)(
                *handle, desc.0, alpha, a, of_a, b, of_b, beta, c, of_c, c, of_c, algorithm, *workspace, *bytes, stream,
            )
        }
    }
}

#[cold]
fn failed(op: &str, label: &str, status: Status) -> Error {
    let what = match status {
        11 => "CUBLAS_STATUS_MAPPING_ERROR".to_owned(),
        13 => "CUBLAS_STATUS_EXECUTION_FAILED".to_owned(),
        14 => "CUBLAS_STATUS_INTERNAL_ERROR".to_owned(),
        16 => "CUBLAS_STATUS_LICENSE_ERROR".to_owned(),
        _ => format!("status {status}"),
    };
    let m = format!("{label}: cuBLASLt fails with {what}");
    Error::new(ErrorKind::Backend, op, m).help("with GRADUS_CUBLASLT set to nothing, products use kernels of Gradus")
}
