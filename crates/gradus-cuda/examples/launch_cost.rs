//! Measures what a launch costs on the host besides the driver's call, over a driver whose launches do nothing.
//!
//! ```sh
//! cargo build --release -p gradus-ptx
//! GRADUS_PTX_NULL=1 GRADUS_CUDA_DRIVER=target/release/libgradus_ptx.so \
//!   cargo run --release -p gradus-cuda --example launch_cost
//! ```
//! An operation is `Backend::map` with two operands of 64 numbers: checks, the layout, the key of the kernel, the log of late
//! errors, and the launch. It is compared with `cuLaunchKernel` alone, which gets a kernel with as many parameters.
#![allow(clippy::print_stdout)]

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::time::Instant;

use gradus_backend::{Backend, DType, Error, Kernel, Layout, MapArg, Prepared, Result, Shape, View, ViewMut};
use gradus_cuda::CudaBackend;
use libloading_09::Library;

/// The launches of a series.
const LAUNCHES: u32 = 1000;
/// The operations of a graph.
const OF_GRAPH: u32 = 100;
/// The best series counts: everything else of the machine only adds time.
const SERIES: u32 = 300;

/// A kernel with the parameters of the operation: three addresses, two numbers, and the sizes of one axis.
const NOTHING: &[u8] = b".version 8.0
.target sm_80
.address_size 64
.visible .entry nothing(
  .param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n, .param .u64 threads, .param .align 8 .b8 axes[32]
) { ret; }
\0";

type Load = unsafe extern "C" fn(*mut usize, *const c_char) -> u32;
type Find = unsafe extern "C" fn(*mut usize, usize, *const c_char) -> u32;
type Launch =
    unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut *mut c_void, *mut *mut c_void) -> u32;

fn failed(what: impl std::fmt::Display) -> Error {
    Error::argument("launch_cost", what.to_string())
}

/// Seconds of one of the jobs that `series` does.
fn best(mut series: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..SERIES {
        let start = Instant::now();
        series()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best / f64::from(LAUNCHES))
}

/// An operation of the backend, and a graph of [`OF_GRAPH`] of them.
fn operation(backend: &CudaBackend) -> Result<[f64; 2]> {
    let kernel = Kernel::build("add", &[DType::F32; 2], |x| vec![x[0] + x[1]])?;
    let layout = Layout::contiguous(Shape::new(&[64])?);
    let (x, y, mut out) = (backend.alloc(256)?, backend.alloc(256)?, backend.alloc(256)?);
    let view = |buffer| MapArg::View(View { buffer, dtype: DType::F32, layout: &layout });
    let mut add = || {
        let mut outs = [ViewMut { buffer: &mut out, dtype: DType::F32, layout: &layout }];
        backend.map(&kernel, &[view(&x), view(&y)], &mut outs)
    };
    let one = best(|| {
        (0..LAUNCHES).try_for_each(|_| add())?;
        backend.synchronize()
    })?;
    let mut prepared = Prepared::default();
    let mut all = || backend.run_prepared(&mut prepared, true, &mut || (0..OF_GRAPH).try_for_each(|_| add()));
    // The first of these makes the graph.
    let graph = best(|| {
        (0..LAUNCHES).try_for_each(|_| all())?;
        backend.synchronize()
    })?;
    Ok([one, graph])
}

/// The driver's call alone. The context of the backend is current on this thread.
fn call(driver: &Path) -> Result<f64> {
    // SAFETY: the library is loaded already.
    let library = unsafe { Library::new(driver) }.map_err(failed)?;
    // SAFETY: these are the types of the driver's functions.
    let (load, find, launch) = unsafe {
        (
            library.get::<Load>(b"cuModuleLoadData").map_err(failed)?,
            library.get::<Find>(b"cuModuleGetFunction").map_err(failed)?,
            library.get::<Launch>(b"cuLaunchKernel").map_err(failed)?,
        )
    };
    let (mut module, mut function) = (0, 0);
    // SAFETY: the texts end with 0, and the functions write to the numbers.
    let codes =
        unsafe { [load(&mut module, NOTHING.as_ptr().cast()), find(&mut function, module, c"nothing".as_ptr())] };
    if codes != [0, 0] {
        return Err(failed(format!("the driver does not load a module: {codes:?}")));
    }
    let mut values = [0u64; 9];
    let mut parameters = [0, 1, 2, 3, 4, 5].map(|at| (&raw mut values[at]).cast::<c_void>());
    best(|| {
        for _ in 0..LAUNCHES {
            let none = std::ptr::null_mut();
            // SAFETY: there is a pointer for each parameter, the last of which has 32 bytes.
            let code = unsafe { launch(function, 1, 1, 1, 256, 1, 1, 0, 0, parameters.as_mut_ptr(), none) };
            if code != 0 {
                return Err(failed(format!("cuLaunchKernel: {code}")));
            }
        }
        Ok(())
    })
}

fn main() -> Result<()> {
    let set = |name: &str| std::env::var_os(name);
    let (Some(driver), Some(_)) = (set("GRADUS_CUDA_DRIVER"), set("GRADUS_PTX_NULL").filter(|value| value == "1"))
    else {
        return Err(failed("set GRADUS_CUDA_DRIVER to the path of libgradus_ptx.so, and GRADUS_PTX_NULL=1"));
    };
    let backend = CudaBackend::open(0)?;
    let ([whole, graph], call) = (operation(&backend)?.map(|seconds| seconds * 1e6), call(Path::new(&driver))? * 1e6);
    println!(
        "an operation takes {whole:.2} us, of which the driver's call is {call:.2} us: {:.2} us over it",
        whole - call
    );
    println!("a graph of {OF_GRAPH} of them takes {graph:.2} us");
    Ok(())
}
