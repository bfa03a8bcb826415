//! `unique`, `searchsorted`, `bucketize` and `bincount`: finding and counting values.

use gradus_backend::{DType, Error, HostVec, Result};

use crate::Tensor;

/// The results of [`Tensor::unique`].
#[derive(Debug, Clone)]
pub struct Unique {
    /// The distinct values, `[m]`.
    pub values: Tensor,
    /// The index (i64) in `values` of every element of the input, in the shape of the input; only on request.
    pub inverse: Option<Tensor>,
    /// The number of times that each value occurs (i64), `[m]`; only on request.
    pub counts: Option<Tensor>,
}

impl Tensor {
    /// The distinct values of all elements: in ascending order if `sorted`, otherwise in the order of their first
    /// occurrence. Every NaN is a value of its own, and comes last in ascending order. Zeros of both signs are equal.
    /// The gradient of a value goes to its first occurrence.
    #[track_caller]
    pub fn unique(&self, sorted: bool, return_inverse: bool, return_counts: bool) -> Result<Unique> {
        const OP: &str = "unique";
        let (n, device) = (self.numel(), self.device());
        let flat = self.reshape([n])?;
        let (ordered, order) = flat.detach().sort(0, false)?;
        let order = order.host::<i64>(OP)?;
        // Whether each element, except the first, differs from the one before it.
        let fresh = match n {
            0 => None,
            _ => Some(ordered.narrow(0, 1, n - 1)?.ne(&ordered.narrow(0, 0, n - 1)?)?.host::<bool>(OP)?),
        };
        // The position at which each value begins in ascending order. The sort is stable, so this is the first
        // occurrence of the value.
        let fresh = fresh.iter().flat_map(|f| f.iter());
        let begins = (0..n.min(1)).chain(fresh.enumerate().filter(|(_, new)| **new).map(|(k, _)| k + 1));
        let begins = HostVec::collect(device.backend(), OP, begins)?;
        let group = |g: usize| begins[g]..begins.get(g + 1).copied().unwrap_or(n);
        let mut ranks = HostVec::collect(device.backend(), OP, 0..begins.len())?;
        if !sorted {
            // No two first occurrences are the same, so an unstable sort, which allocates no memory, gives the same
            // order.
            ranks.sort_unstable_by_key(|&g| order[begins[g]]);
        }
        let list = |of: &dyn Fn(usize) -> i64| -> Result<Tensor> {
            let v = HostVec::collect(device.backend(), OP, ranks.iter().map(|&g| of(g)))?;
            Tensor::from_vec(&v[..], [v.len()], device)
        };
        let values = flat.index_select(0, &list(&|g| order[begins[g]])?)?;
        let counts = if return_counts { Some(list(&|g| group(g).len() as i64)?) } else { None };
        let inverse = if return_inverse {
            let mut inverse = HostVec::filled(device.backend(), OP, 0i64, n)?;
            for (rank, &g) in ranks.iter().enumerate() {
                for &place in &order[group(g)] {
                    inverse[place as usize] = rank as i64;
                }
            }
            Some(Tensor::from_vec(inverse, self.shape(), device)?)
        } else {
            None
        };
        Ok(Unique { values, inverse, counts })
    }

    /// The position (i64) of each of `values` in this ascending sequence: the number of elements that are below the
    /// value or, if `right`, not above it. NaN counts as the largest number.
    ///
    /// The sequence is `[n]` for values of any shape, or `[.., n]` for values `[.., m]` with the same leading axes. It
    /// is searched by bisection, and is not checked to be ascending.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let sequence = Tensor::from_vec(vec![1.0f32, 3.0, 3.0, 5.0], [4], &device)?;
    /// let values = Tensor::from_vec(vec![3.0f32, 0.0, 9.0], [3], &device)?;
    /// assert_eq!(sequence.searchsorted(&values, false)?.to_vec::<i64>()?, [1, 0, 4]);
    /// assert_eq!(sequence.searchsorted(&values, true)?.to_vec::<i64>()?, [3, 0, 4]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        let rank = self.rank();
        if rank == 1 && values.rank() != 1 {
            let found = self.searchsorted(&values.reshape([values.numel()])?, right)?;
            return found.reshape(values.shape());
        }
        if rank == 0 || rank != values.rank() || self.shape()[..rank - 1] != values.shape()[..rank - 1] {
            let e = Error::shape("searchsorted", "the sequence has one axis, or the leading axes of the values");
            return Err(values.describe(self.describe(e, "sequence"), "values"));
        }
        let (sequence, values) = (self.detach(), values.detach());
        let n = self.shape()[rank - 1];
        let mut found = Tensor::zeros(values.shape(), DType::I64, self.device())?;
        let nan = if values.dtype().is_float() { Some(values.isnan()?) } else { None };
        let end = i64::try_from(n).unwrap_or(i64::MAX);
        let mut step = if end == 0 { 0 } else { 1i64 << end.ilog2() };
        while step > 0 {
            let next = found.add(step)?;
            let inside = next.le(end)?;
            let probe = sequence.gather(-1, &next.sub(1)?.minimum(end - 1)?)?;
            let mut before = if right { probe.le(&values)? } else { probe.lt(&values)? };
            if let Some(nan) = &nan {
                let above = match (right, probe.dtype().is_float()) {
                    (false, true) => nan.logical_and(&probe.isnan()?.logical_not()?)?,
                    _ => nan.clone(),
                };
                before = before.logical_or(&above)?;
            }
            found = inside.logical_and(&before)?.where_(&next, &found)?;
            step /= 2;
        }
        Ok(found)
    }

    /// The bucket (i64) of each element among the ascending `boundaries [n]`: the number of boundaries that are below
    /// the element or, if `right`, not above it. See [`searchsorted`](Tensor::searchsorted).
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Result<Tensor> {
        if boundaries.rank() != 1 {
            return Err(boundaries.describe(Error::shape("bucketize", "the boundaries have one axis"), "boundaries"));
        }
        boundaries.searchsorted(self, right)
    }

    /// The number of times that each of 0, 1, 2, .. occurs among these integers `[n]`, as i64. With `weights [n]` it is
    /// the sum of the weights of these occurrences, in the dtype of the weights. The result has one element more than
    /// the largest integer, but at least `minlength` elements. Differentiable with respect to the weights. Fails if an
    /// integer is negative.
    #[track_caller]
    pub fn bincount(&self, weights: Option<&Tensor>, minlength: usize) -> Result<Tensor> {
        if !self.dtype().is_int() {
            return Err(self.describe(Error::dtype("bincount", self.dtype(), "integers"), "self"));
        }
        if self.rank() != 1 {
            return Err(self.describe(Error::shape("bincount", "the integers have one axis"), "self"));
        }
        let ones;
        let weights = match weights {
            Some(w) if w.shape() != self.shape() => {
                let e = Error::shape("bincount", "weights and integers have one shape");
                return Err(w.describe(self.describe(e, "self"), "weights"));
            }
            Some(w) => w,
            None => {
                ones = Tensor::ones(self.shape(), DType::I64, self.device())?;
                &ones
            }
        };
        let mut size = minlength;
        // A u64 that i64 cannot hold becomes negative here, and is refused like other negative numbers.
        let places = self.to_dtype(DType::I64)?;
        if self.numel() > 0 {
            let (lo, hi) = (places.min_all()?.to_scalar::<i64>()?, places.max_all()?.to_scalar::<i64>()?);
            if lo < 0 {
                let e = Error::argument("bincount", format!("{lo} among the integers, which count from 0"));
                return Err(self.describe(e, "self"));
            }
            size = size.max(usize::try_from(hi).unwrap_or(usize::MAX).saturating_add(1));
        }
        weights.summed_into(&places, size)
    }

    #[track_caller]
    fn summed_into(&self, places: &Tensor, size: usize) -> Result<Tensor> {
        let dtype = if self.dtype() == DType::Bool { DType::I64 } else { self.dtype() };
        Tensor::zeros([size], dtype, self.device())?.scatter_add(0, places, &self.to_dtype(dtype)?)
    }
}
