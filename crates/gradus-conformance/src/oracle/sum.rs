//! Sums of floats, exact or naive.

use gradus_backend::DType;

use super::Precision;

/// A running sum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    precision: Precision,
    /// The dtype that a naive sum rounds to.
    dtype: DType,
    high: f64,
    /// The rounding error of `high` so far.
    low: f64,
}

/// `v` rounded to the compute dtype.
pub(super) fn rounded(v: f64, dtype: DType) -> f64 {
    if dtype.compute() == DType::F32 { f64::from(v as f32) } else { v }
}

impl Sum {
    /// An empty sum; `dtype` is that of the terms.
    pub(super) fn new(precision: Precision, dtype: DType) -> Self {
        Sum { precision, dtype, high: 0.0, low: 0.0 }
    }

    pub(super) fn add(&mut self, v: f64) {
        match self.precision {
            Precision::Naive => self.high = rounded(self.high + v, self.dtype),
            Precision::Exact => {
                // Knuth's TwoSum.
                let s = self.high + v;
                let t = s - self.high;
                self.low += (self.high - (s - t)) + (v - t);
                self.high = s;
            }
        }
    }

    pub(super) fn add_product(&mut self, a: f64, b: f64) {
        let p = a * b;
        match self.precision {
            Precision::Naive => self.add(rounded(p, self.dtype)),
            Precision::Exact => {
                self.add(p);
                // The product of two f32 values is exact in f64.
                if self.dtype == DType::F64 {
                    self.low += a.mul_add(b, -p);
                }
            }
        }
    }

    pub(super) fn value(self) -> f64 {
        let s = self.high + self.low;
        // Once the sum is infinite or NaN, its correction is meaningless (possibly another NaN or infinity) and is
        // ignored.
        if self.high.is_finite() { s } else { self.high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sums_keep_what_naive_ones_lose() {
        let mut exact = Sum::new(Precision::Exact, DType::F64);
        let mut naive = Sum::new(Precision::Naive, DType::F64);
        for v in [1e16, 1.0, -1e16] {
            exact.add(v);
            naive.add(v);
        }
        assert_eq!((exact.value(), naive.value()), (1.0, 0.0));
        exact.add(f64::INFINITY);
        exact.add(1.0);
        assert_eq!(exact.value(), f64::INFINITY);
    }
}
