//! [`OracleBackend`]: a reference implementation of the required primitives as plain loops, with which other backends
//! are compared.
//!
//! Every operation reads its operands into arrays of scalars in row-major order, computes element by element, and
//! writes its result with one rounding. Floats are computed in f64 with compensated sums, integers in i128. The
//! composites use the default bodies.

mod backend;
mod index;
mod map;
mod product;
mod reduce;
mod sum;
mod window;

use std::sync::Arc;

use gradus_backend::{HostMemory, Result, Scalar, View};

/// How sums and products over many elements are accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// With compensated summation in f64, rounded once.
    Exact,
    /// In the compute dtype, from first to last, rounded at every step, as in a naive implementation.
    Naive,
}

/// A slow reference backend: the required primitives are loops over scalars, floats are computed in f64 with
/// compensated sums, integers in i128, and the result is rounded once. The composites use the contract's default
/// bodies.
#[derive(Debug)]
pub struct OracleBackend {
    memory: Arc<HostMemory>,
    precision: Precision,
}

impl Default for OracleBackend {
    fn default() -> Self {
        OracleBackend::new()
    }
}

impl OracleBackend {
    /// Creates the oracle, which rounds a sum only once.
    pub fn new() -> Self {
        OracleBackend { memory: HostMemory::new(), precision: Precision::Exact }
    }

    /// Creates a backend that adds from first to last and rounds at every step. Its difference from the oracle is the
    /// error of a naive implementation, from which the suite derives the errors that it allows.
    pub fn naive() -> Self {
        OracleBackend { memory: HostMemory::new(), precision: Precision::Naive }
    }

    /// The elements of a float tensor.
    fn floats(&self, op: &str, x: View<'_>) -> Result<Vec<f64>> {
        Ok(self.memory.read(op, x)?.into_iter().map(Scalar::to_f64).collect())
    }
}
