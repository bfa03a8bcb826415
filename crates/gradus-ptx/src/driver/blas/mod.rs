//! A library that stands in for cuBLASLt, as far as the CUDA backend calls it: products of matrices of half precision, summed
//! in f64 and rounded once.
//!
//! It is stricter than the real one. A call that the real one might answer with numbers that are wrong, or not at all, is
//! reported as a fault, and the device is lost.

mod api;
mod product;

pub(super) use product::Product;

use std::collections::HashMap;

use super::abi::{Code, Handle};

/// The codes of the library.
const INVALID_VALUE: Code = Code(7);
const EXECUTION_FAILED: Code = Code(13);

/// The bytes of the workspace of every algorithm.
const WORKSPACE: usize = 4096;

/// What the library keeps.
#[derive(Default)]
pub(super) struct Blas {
    objects: HashMap<Handle, Object>,
    /// What each algorithm was made for. An algorithm is the number of its entry.
    algorithms: Vec<Algorithm>,
}

/// An object of the library.
#[derive(Clone, Copy)]
enum Object {
    /// What a device needs.
    Library(usize),
    /// Whether each factor is transposed.
    Desc([bool; 2]),
    Layout(Layout),
    Preference(Preference),
}

/// A matrix stored by columns, or a batch of them.
#[derive(Clone, Copy, PartialEq)]
struct Layout {
    kind: i32,
    rows: u64,
    cols: u64,
    ld: i64,
    count: i32,
    step: i64,
}

/// What an algorithm may count on.
#[derive(Clone, Copy, PartialEq)]
struct Preference {
    workspace: u64,
    reductions: u32,
    /// Of A, B, C and D.
    alignments: [u32; 4],
}

/// A problem and the promised alignments.
#[derive(Clone, Copy, PartialEq)]
struct Algorithm {
    transposed: [bool; 2],
    /// Of A, B, C and D.
    layouts: [Layout; 4],
    alignments: [u32; 4],
}
