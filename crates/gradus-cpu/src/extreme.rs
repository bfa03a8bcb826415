//! The larger and the smaller of two floats, without a branch: NaN wins, and -0 is smaller than +0.

use std::hint::select_unpredictable as select;

/// The two types that are compared: f32 and f64.
pub(crate) trait Extreme: Copy {
    /// Returns the larger of two numbers, or NaN if either is NaN.
    fn larger(self, other: Self) -> Self;
    /// Returns the smaller of two numbers, or NaN if either is NaN.
    fn smaller(self, other: Self) -> Self;
}

macro_rules! extreme {
    ($($t:ty)*) => {$(
        // Equal numbers have equal bits, except for zeros, which may differ in sign: the bitwise `and` yields the
        // larger zero and the `or` the smaller. If either number is NaN, the middle comparison yields `b`, which is
        // right unless `self` is NaN.
        #[allow(clippy::eq_op)]
        impl Extreme for $t {
            #[inline(always)]
            fn larger(self, b: $t) -> $t {
                let equal = <$t>::from_bits(self.to_bits() & b.to_bits());
                let r = select(self == b, equal, select(self > b, self, b));
                select(self != self, self, r)
            }
            #[inline(always)]
            fn smaller(self, b: $t) -> $t {
                let equal = <$t>::from_bits(self.to_bits() | b.to_bits());
                let r = select(self == b, equal, select(self < b, self, b));
                select(self != self, self, r)
            }
        }
    )*};
}
extreme!(f32 f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_ordered_and_nan_wins() {
        assert_eq!(0f32.larger(-0.0).to_bits(), 0);
        assert_eq!((-0f32).larger(0.0).to_bits(), 0);
        assert_eq!(0f64.smaller(-0.0).to_bits(), (-0f64).to_bits());
        assert!(f32::NAN.larger(1.0).is_nan() && 1f32.larger(f32::NAN).is_nan() && 1f32.smaller(f32::NAN).is_nan());
        assert_eq!((-3f32).larger(2.0), 2.0);
        assert_eq!((-3f32).smaller(f32::INFINITY), -3.0);
    }
}
