//! The functions of the library's C interface.

use std::sync::Arc;

use super::product::{Factor, Product};
use super::{Algorithm, EXECUTION_FAILED, INVALID_VALUE, Layout, Object, Preference, WORKSPACE};
use crate::driver::abi::{Code, Handle, Host, Out};
use crate::driver::call::{call, exported};
use crate::driver::machine::Driver;
use crate::driver::work::Work;

/// Numbers of the interface: f32, f16 and bf16; sums in f32; the one way to add parts of sums that keeps their bits.
const R_32F: i32 = 0;
const HALVES: [i32; 2] = [2, 14];
const COMPUTE_32F: i32 = 68;
const REDUCTION_IN_COMPUTE_TYPE: u32 = 2;
/// The first word of every algorithm.
const MARK: u64 = u64::from_le_bytes(*b"gradus-l");

/// An answer of the heuristic.
#[repr(C)]
struct Answer {
    algorithm: [u64; 8],
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [i32; 4],
}

/// The value of an attribute: an integer of 4 or 8 bytes.
fn value(from: Host, bytes: usize, size: usize) -> Result<i64, Code> {
    if from.0.is_null() || bytes != size {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller has so many initialised bytes there.
    let bytes = unsafe { from.bytes(bytes) };
    match bytes.try_into() {
        Ok(bytes) => Ok(i64::from_ne_bytes(bytes)),
        Err(_) => bytes.try_into().map(|bytes| i64::from(i32::from_ne_bytes(bytes))).map_err(|_| INVALID_VALUE),
    }
}

fn make(driver: &mut Driver, to: Out<Handle>, object: Object) -> Result<(), Code> {
    let handle = driver.handle();
    to.put(handle)?;
    driver.blas.objects.insert(handle, object);
    Ok(())
}

fn drop_object(driver: &mut Driver, handle: Handle, is_kind: impl Fn(&Object) -> bool) -> Result<(), Code> {
    match driver.blas.objects.get(&handle) {
        Some(object) if is_kind(object) => {
            driver.blas.objects.remove(&handle);
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

fn layout(driver: &Driver, handle: Handle) -> Result<Layout, Code> {
    match driver.blas.objects.get(&handle) {
        Some(Object::Layout(layout)) => Ok(*layout),
        _ => Err(INVALID_VALUE),
    }
}

/// Reports a call that the real library might answer in any way. The device is lost.
fn mistake(driver: &mut Driver, device: usize, text: &str) -> Code {
    driver.counts.report(&format!("cuBLASLt: {text}"));
    driver.devices[device].lost.get_or_insert(crate::driver::abi::LAUNCH_FAILED);
    EXECUTION_FAILED
}

/// The device of a handle, whose context must be current, and what a description says.
fn begun(driver: &mut Driver, library: Handle, desc: Handle) -> Result<(usize, [bool; 2]), Code> {
    let device = driver.current().map_err(|_| EXECUTION_FAILED)?;
    match (driver.blas.objects.get(&library), driver.blas.objects.get(&desc)) {
        (Some(Object::Library(own)), Some(Object::Desc(transposed))) if *own == device => Ok((device, *transposed)),
        (Some(Object::Library(_)), Some(Object::Desc(_))) => {
            Err(mistake(driver, device, "the context of another device is current"))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Whether elements of a batch may share memory: along each axis, a step must reach past all axes with smaller steps.
fn overlaps_itself(of: &Layout) -> bool {
    let mut axes = [(of.ld, of.cols as i64), (of.step, i64::from(of.count))];
    axes.sort();
    let mut end = of.rows as i64;
    axes.iter().filter(|(_, size)| *size > 1).any(|(step, size)| {
        let is_within = *step < end;
        end += step * (size - 1);
        is_within
    })
}

/// What is wrong with a problem, if anything is.
fn refused(asked: &Algorithm) -> Option<&'static str> {
    let [a, b, c, d] = asked.layouts;
    let sizes = |of: Layout, transposed: bool| if transposed { (of.cols, of.rows) } else { (of.rows, of.cols) };
    let ((m, k), (inner, n)) = (sizes(a, asked.transposed[0]), sizes(b, asked.transposed[1]));
    let is_within = |of: &Layout| of.ld >= of.rows as i64 && of.rows > 0 && of.cols > 0 && of.count > 0 && of.step >= 0;
    match () {
        () if !HALVES.contains(&a.kind) || [b, c, d].iter().any(|of| of.kind != a.kind) => Some("the dtypes differ"),
        () if !asked.layouts.iter().all(is_within) => Some("a layout has no room for its matrix"),
        () if c != d => Some("the result is not where the old one is"),
        () if k != inner || (c.rows, c.cols) != (m, n) => Some("the sizes do not fit"),
        () if [b, c].iter().any(|of| of.count != a.count) => Some("the batches differ"),
        () if overlaps_itself(&c) => Some("results overlap"),
        () if asked.alignments.iter().any(|&one| !one.is_power_of_two() || !(2..=256).contains(&one)) => {
            Some("an alignment is none")
        }
        () => None,
    }
}

/// As a number of the real library's: major version times 10000, and so on.
// SAFETY: the name is that of the library's interface, so no other library of the process has a function of the name unless
// it is the library itself.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    let mut version = 0;
    call("cublasLtGetVersion", |driver| {
        version = driver.settings.cublaslt_version;
        Ok(())
    });
    version
}

exported! {
    fn cublasLtCreate(driver, to: Out<Handle>) {
        let device = driver.current().map_err(|_| EXECUTION_FAILED)?;
        make(driver, to, Object::Library(device))
    }

    fn cublasLtDestroy(driver, handle: Handle) {
        drop_object(driver, handle, |object| matches!(object, Object::Library(_)))
    }

    fn cublasLtMatmulDescCreate(driver, to: Out<Handle>, compute: i32, scale: i32) {
        if (compute, scale) != (COMPUTE_32F, R_32F) {
            return Err(INVALID_VALUE);
        }
        make(driver, to, Object::Desc([false; 2]))
    }

    fn cublasLtMatmulDescSetAttribute(driver, handle: Handle, which: u32, from: Host, bytes: usize) {
        let set = value(from, bytes, 4)?;
        match (driver.blas.objects.get_mut(&handle), which) {
            (Some(Object::Desc(transposed)), 3 | 4) if (0..=1).contains(&set) => {
                transposed[which as usize - 3] = set == 1;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn cublasLtMatmulDescDestroy(driver, handle: Handle) {
        drop_object(driver, handle, |object| matches!(object, Object::Desc(_)))
    }

    fn cublasLtMatrixLayoutCreate(driver, to: Out<Handle>, kind: i32, rows: u64, cols: u64, ld: i64) {
        make(driver, to, Object::Layout(Layout { kind, rows, cols, ld, count: 1, step: 0 }))
    }

    fn cublasLtMatrixLayoutSetAttribute(driver, handle: Handle, which: u32, from: Host, bytes: usize) {
        match (driver.blas.objects.get_mut(&handle), which) {
            (Some(Object::Layout(layout)), 5) => layout.count = value(from, bytes, 4)? as i32,
            (Some(Object::Layout(layout)), 6) => layout.step = value(from, bytes, 8)?,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cublasLtMatrixLayoutDestroy(driver, handle: Handle) {
        drop_object(driver, handle, |object| matches!(object, Object::Layout(_)))
    }

    fn cublasLtMatmulPreferenceCreate(driver, to: Out<Handle>) {
        make(driver, to, Object::Preference(Preference { workspace: 0, reductions: 7, alignments: [256; 4] }))
    }

    fn cublasLtMatmulPreferenceSetAttribute(driver, handle: Handle, which: u32, from: Host, bytes: usize) {
        match (driver.blas.objects.get_mut(&handle), which) {
            (Some(Object::Preference(preference)), 1) => preference.workspace = value(from, bytes, 8)? as u64,
            (Some(Object::Preference(preference)), 3) => preference.reductions = value(from, bytes, 4)? as u32,
            (Some(Object::Preference(preference)), 5..=8) => {
                preference.alignments[which as usize - 5] = value(from, bytes, 4)? as u32;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cublasLtMatmulPreferenceDestroy(driver, handle: Handle) {
        drop_object(driver, handle, |object| matches!(object, Object::Preference(_)))
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        driver,
        library: Handle,
        desc: Handle,
        a: Handle,
        b: Handle,
        c: Handle,
        d: Handle,
        preference: Handle,
        wanted: i32,
        to: Out<Answer>,
        count: Out<i32>,
    ) {
        let (device, transposed) = begun(driver, library, desc)?;
        let layouts = [layout(driver, a)?, layout(driver, b)?, layout(driver, c)?, layout(driver, d)?];
        let Some(Object::Preference(preference)) = driver.blas.objects.get(&preference).copied() else {
            return Err(INVALID_VALUE);
        };
        if wanted < 1 || preference.workspace < WORKSPACE as u64 {
            return Err(INVALID_VALUE);
        }
        let asked = Algorithm { transposed, layouts, alignments: preference.alignments };
        if let Some(why) = refused(&asked) {
            return Err(mistake(driver, device, why));
        }
        if preference.reductions != REDUCTION_IN_COMPUTE_TYPE {
            return Err(mistake(driver, device, "parts of sums could be rounded, or be added in any order"));
        }
        let algorithms = &mut driver.blas.algorithms;
        algorithms.push(asked);
        let algorithm = [MARK, algorithms.len() as u64 - 1, 0, 0, 0, 0, 0, 0];
        to.put(Answer { algorithm, workspace: WORKSPACE, state: 0, waves: 1.0, reserved: [0; 4] })?;
        count.put(1)
    }

    fn cublasLtMatmul(
        driver,
        library: Handle,
        desc: Handle,
        alpha: Out<f32>,
        a: u64,
        a_layout: Handle,
        b: u64,
        b_layout: Handle,
        beta: Out<f32>,
        c: u64,
        c_layout: Handle,
        d: u64,
        d_layout: Handle,
        algorithm: Out<[u64; 8]>,
        workspace: u64,
        workspace_bytes: usize,
        stream: Handle,
    ) {
        let (device, transposed) = begun(driver, library, desc)?;
        let layouts = [a_layout, b_layout, c_layout, d_layout];
        let [of_a, of_b, of_c, of_d] = layouts.map(|handle| layout(driver, handle));
        let layouts = [of_a?, of_b?, of_c?, of_d?];
        let stream = driver.stream(stream).map_err(|_| EXECUTION_FAILED)?;
        let [mark, number, ..] = algorithm.get()?;
        let known = driver.blas.algorithms.get(number as usize).copied().filter(|_| mark == MARK);
        let is_for = |known: &Algorithm| known.transposed == transposed && known.layouts == layouts;
        let Some(known) = known.filter(is_for) else {
            return Err(mistake(driver, device, "the algorithm is not one for this product"));
        };
        let aligned = [a, b, c, d].iter().zip(known.alignments).all(|(at, one)| at.is_multiple_of(u64::from(one)));
        if !aligned || c != d {
            return Err(mistake(driver, device, "an address is not aligned as was promised"));
        }
        if driver.streams[&stream].device != device || workspace_bytes < WORKSPACE || !workspace.is_multiple_of(16) {
            return Err(mistake(driver, device, "the stream is another device's, or the workspace is too small"));
        }
        let (alpha, beta) = (alpha.get()?, beta.get()?);
        if alpha == 0.0 {
            return Err(mistake(driver, device, "with a factor of 0, the matrices are not read, and NaN in them is lost"));
        }
        let factor = |at: usize, address| Factor { layout: layouts[at], is_transposed: transposed[at], address };
        let product = Product { a: factor(0, a), b: factor(1, b), to: (layouts[2], c), alpha, beta, workspace };
        driver.give(stream, Work::Product(Arc::new(product))).map_err(|_| EXECUTION_FAILED)
    }
}
