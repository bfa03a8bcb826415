//! One interface to floats of any storage type, which are read and written in their compute type.
//!
//! Code that works on blocks is compiled only for the two compute types, f32 and f64. It reaches the four storage types
//! through one virtual call per block.

use crate::access::Float;
use crate::gemm::{Mat, Pack};
use crate::isa::Isa;
use crate::parallel::Disjoint;
use crate::rows::Rows;

/// Elements that are read as `T`.
pub(crate) trait Source<T>: Sync {
    /// Calls [`Pack::rows`] for the matrix whose element `(i, j)` is element `at + i * strides[0] + j * strides[1]`.
    ///
    /// # Safety
    /// As for [`Pack::rows`].
    unsafe fn rows(&self, isa: Isa, at: usize, strides: [isize; 2], size: [usize; 2], lda: usize, out: &mut [T]);

    /// Calls [`Pack::panel`] for a matrix whose elements are located in the same way.
    ///
    /// # Safety
    /// As for [`Pack::panel`].
    unsafe fn panel(&self, isa: Isa, at: usize, strides: [isize; 2], size: [usize; 2], width: usize, out: &mut [T]);
}

/// Elements that are written as `T`.
pub(crate) trait Sink<T>: Sync {
    /// See [`Rows::write`].
    ///
    /// # Safety
    /// As for [`Rows::write`].
    unsafe fn write(&self, isa: Isa, at: usize, step: isize, work: &mut [T], make: &mut dyn FnMut(&mut [T]));
}

/// Elements of one storage type.
pub(crate) struct Stored<'a, S>(pub(crate) &'a [S]);

impl<S: Pack> Source<S::Compute> for Stored<'_, S> {
    unsafe fn rows(
        &self,
        isa: Isa,
        at: usize,
        [rs, cs]: [isize; 2],
        [rows, steps]: [usize; 2],
        lda: usize,
        out: &mut [S::Compute],
    ) {
        // SAFETY: the caller upholds the same contract.
        unsafe { S::rows(isa, Mat::new(self.0, at, rs, cs), rows, steps, lda, out) }
    }

    unsafe fn panel(
        &self,
        isa: Isa,
        at: usize,
        [rs, cs]: [isize; 2],
        [steps, columns]: [usize; 2],
        width: usize,
        out: &mut [S::Compute],
    ) {
        // SAFETY: the caller upholds the same contract.
        unsafe { S::panel(isa, Mat::new(self.0, at, rs, cs), steps, columns, width, out) }
    }
}

impl<S: Rows> Sink<S::Compute> for Disjoint<'_, S> {
    unsafe fn write(
        &self,
        isa: Isa,
        at: usize,
        step: isize,
        work: &mut [S::Compute],
        make: &mut dyn FnMut(&mut [<S as Float>::Compute]),
    ) {
        // SAFETY: the caller upholds the same contract.
        unsafe { S::write(isa, self, at, step, work, make) }
    }
}

/// A strided matrix of elements of any storage type.
pub(crate) struct Part<'a, T> {
    source: &'a dyn Source<T>,
    at: usize,
    strides: [isize; 2],
}

impl<T> Clone for Part<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Part<'_, T> {}

impl<'a, T> Part<'a, T> {
    /// Creates the matrix whose element `(i, j)` is element `at + i * strides[0] + j * strides[1]` of `source`.
    pub(crate) fn new(source: &'a dyn Source<T>, at: usize, strides: [isize; 2]) -> Self {
        Part { source, at, strides }
    }

    /// Returns the submatrix that starts at element `(i, j)`.
    pub(crate) fn from(&self, i: usize, j: usize) -> Self {
        let [rs, cs] = self.strides;
        let by = rs.wrapping_mul(i as isize).wrapping_add(cs.wrapping_mul(j as isize));
        Part { at: self.at.wrapping_add_signed(by), ..*self }
    }

    /// Returns the matrix with rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        let [rs, cs] = self.strides;
        Part { strides: [cs, rs], ..*self }
    }

    /// Calls [`Pack::rows`], where `size` holds the number of rows and the number of steps.
    ///
    /// # Safety
    /// As for [`Pack::rows`].
    pub(crate) unsafe fn rows(&self, isa: Isa, size: [usize; 2], lda: usize, out: &mut [T]) {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.source.rows(isa, self.at, self.strides, size, lda, out) }
    }

    /// Calls [`Pack::panel`], where `size` holds the number of steps and the number of columns.
    ///
    /// # Safety
    /// As for [`Pack::panel`].
    pub(crate) unsafe fn panel(&self, isa: Isa, size: [usize; 2], width: usize, out: &mut [T]) {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.source.panel(isa, self.at, self.strides, size, width, out) }
    }
}
