//! Maps numbers to unsigned integers of the same size and order, so that code that compares elements is compiled for
//! four sizes instead of for every dtype.

use std::hint::select_unpredictable as select;
use std::ops::{BitAnd, BitXor, Not};

use gradus_backend::DType;

use crate::access::Plain;

/// An unsigned integer that holds the bits of a number.
pub(crate) trait Word:
    Plain + Ord + BitAnd<Output = Self> + BitXor<Output = Self> + Not<Output = Self> + Into<u64>
{
    /// Returns the low bits of `bits` as this type.
    fn low(bits: u64) -> Self;
}

macro_rules! word {
    ($($t:ty)*) => {$(
        impl Word for $t {
            #[inline(always)]
            fn low(bits: u64) -> $t {
                bits as $t
            }
        }
    )*};
}
word!(u8 u16 u32 u64);

/// The order of a dtype, which maps the bits of an element to its *key*. Both zeros have the same key. All NaNs share
/// the largest key, whether keys rise or fall with the numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<W> {
    /// The sign bit; 0 if the dtype has none.
    sign: W,
    /// The mask that flips the other bits of a negative float, which is stored as sign and magnitude; 0 for integers.
    turn: W,
    /// The bits of -0; 0 if there is none.
    negative_zero: W,
    /// The bits of the largest magnitude that is not NaN.
    most: W,
    /// All ones if keys fall as numbers rise, and otherwise 0.
    falling: W,
}

impl<W: Word> Order<W> {
    /// Creates the order of a dtype, which must have the size of `W`.
    pub(crate) fn new(dtype: DType) -> Self {
        let (none, all) = (W::default(), !W::default());
        let sign = if dtype.is_signed() { W::low(1 << (8 * size_of::<W>() - 1)) } else { none };
        let infinity = match dtype {
            DType::F64 => f64::INFINITY.to_bits(),
            DType::F32 => f32::INFINITY.to_bits().into(),
            DType::F16 => gradus_backend::f16::INFINITY.to_bits().into(),
            DType::BF16 => gradus_backend::bf16::INFINITY.to_bits().into(),
            _ => return Order { sign, turn: none, negative_zero: none, most: all, falling: none },
        };
        Order { sign, turn: !sign, negative_zero: sign, most: W::low(infinity), falling: none }
    }

    /// Returns the same order with keys that fall as numbers rise.
    pub(crate) fn falling(self) -> Self {
        Order { falling: !W::default(), ..self }
    }

    /// Returns the key of an element. It has no branches, so loops over elements are vectorised.
    #[inline(always)]
    pub(crate) fn key(&self, bits: W) -> W {
        let none = W::default();
        let bits = select(bits == self.negative_zero, none, bits);
        let turn = select(bits & self.sign == none, none, self.turn);
        select(bits & !self.sign > self.most, !none, bits ^ self.sign ^ turn ^ self.falling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_the_numbers() {
        let inf = f32::INFINITY;
        let floats = [-inf, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, inf];
        let order = Order::<u32>::new(DType::F32);
        for order in [order, order.falling()] {
            let key = |x: f32| order.key(x.to_bits());
            let keys = floats.map(key);
            let falls = keys[0] > keys[1];
            assert_eq!(falls, order.falling != 0);
            assert!(keys.windows(2).all(|k| if falls { k[0] > k[1] } else { k[0] < k[1] }));
            assert!(
                key(-0.0) == key(0.0) && key(f32::NAN) == key(-f32::NAN) && keys.iter().all(|&k| k < key(f32::NAN))
            );
        }
        let (signed, unsigned) = (Order::<u8>::new(DType::I8), Order::<u8>::new(DType::U8));
        assert!(signed.key(-1i8 as u8) < signed.key(0) && unsigned.key(0) < unsigned.key(255));
        assert!(signed.falling().key(-1i8 as u8) > signed.falling().key(0));
    }
}
