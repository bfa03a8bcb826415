//! The CPU backend of Gradus: AVX-512, AVX2 and portable kernels, whose results are bit-identical on any number of
//! threads.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, the only one whose API is kept
//! stable between releases.
//!
//! [`CpuBackend`] implements [`Backend`](gradus_backend::Backend). Each operation, or family of operations, has its own
//! module. The other modules are shared: `memory` is the pool behind buffers, `parallel` is the only way to use
//! threads, `isa` chooses the instruction set, `access` turns views into slices, and `math` contains the elementary
//! functions for f32.

mod access;
mod attention;
mod backend;
mod check;
mod compute;
mod conv;
mod copy;
mod cross_entropy;
mod extreme;
mod gemm;
mod half_float;
mod halve;
mod index;
mod info;
mod isa;
mod joined;
mod lanes;
mod map;
mod math;
mod memory;
mod nest;
mod norm;
mod order;
mod parallel;
mod pooling;
mod random;
mod reduce;
mod rows;
mod scan;
mod scratch;
mod shortage;
mod softmax;
mod sort;
mod stored;
mod sum;
mod temp;
#[cfg(test)]
mod testing;
mod threads;
mod transposed;
#[cfg(any(unoptimized, test))]
mod unoptimized;
mod vectors;

use std::sync::Arc;

use gradus_backend::{Error, Modules, NativeFunction, Result};

use isa::Isa;
#[doc(hidden)]
pub use map::is_compiled;
use memory::Pool;
use threads::Threads;

/// The CPU as a device.
///
/// `GRADUS_NUM_THREADS` sets the number of threads (default: rayon's global pool). `GRADUS_CPU_ISA` sets the
/// instruction set: `avx512`, `avx2` or `portable` (default: the best that the machine has). Neither changes a single
/// bit of any result.
#[derive(Debug)]
pub struct CpuBackend {
    pool: Arc<Pool>,
    isa: Isa,
    threads: Threads,
    natives: Modules<NativeFunction>,
}

impl CpuBackend {
    /// Creates a backend with the number of threads and the instruction set that the environment variables specify.
    ///
    /// Returns an error if a variable has an invalid value or this machine lacks the instruction set.
    pub fn new() -> Result<Self> {
        let threads = match std::env::var("GRADUS_NUM_THREADS") {
            Err(std::env::VarError::NotPresent) => Threads::global(),
            Ok(v) if v.trim().is_empty() => Threads::global(),
            v => {
                let v = v.unwrap_or_default();
                let count = v.trim().parse().ok().filter(|c| (1..=1024).contains(c));
                Threads::own(count.ok_or_else(|| {
                    Error::argument("cpu", format!("GRADUS_NUM_THREADS is {v:?}"))
                        .help("it takes a number of threads from 1 to 1024")
                })?)?
            }
        };
        let isa = isa_from_environment()?;
        Ok(CpuBackend { pool: Pool::new(), isa, threads, natives: Modules::new() })
    }

    /// Creates a backend that runs on `count` threads (1 to 1024): the calling thread and `count - 1` workers of its
    /// own.
    pub fn with_threads(count: usize) -> Result<Self> {
        if !(1..=1024).contains(&count) {
            return Err(Error::argument("cpu", format!("{count} threads; it takes 1 to 1024")));
        }
        let (isa, threads) = (isa_from_environment()?, Threads::own(count)?);
        Ok(CpuBackend { pool: Pool::new(), isa, threads, natives: Modules::new() })
    }

    /// Switches the backend to another instruction set: `avx512`, `avx2` or `portable`. Returns an error if the machine
    /// lacks it.
    pub fn with_isa(self, name: &str) -> Result<Self> {
        Ok(CpuBackend { isa: Isa::named(name)?, ..self })
    }

    /// The instruction set to run on, which every `per_isa!` function takes as its first argument.
    #[inline]
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The native functions, which compute modules refer to by name.
    pub(crate) fn natives(&self) -> &Modules<NativeFunction> {
        &self.natives
    }

    #[inline]
    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }
}

fn isa_from_environment() -> Result<Isa> {
    match std::env::var("GRADUS_CPU_ISA") {
        Err(std::env::VarError::NotPresent) => Ok(Isa::best()),
        Ok(name) if name.is_empty() => Ok(Isa::best()),
        name => Isa::named(&name.unwrap_or_default()),
    }
}
