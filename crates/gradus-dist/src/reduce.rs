//! Element-wise reductions of the tensors of several ranks, in an order that depends on the number of ranks only.

use gradus_tensor::backend::Element;
use gradus_tensor::{DType, Error, Result, bf16, f16};

/// How the elements of several tensors become one. Integers wrap; f16 and bf16 are rounded after each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest; NaN if there is one. -0 is smaller than 0.
    Max,
    /// The smallest; NaN if there is one. -0 is smaller than 0.
    Min,
}

impl Reduce {
    pub(crate) const ALL: [Reduce; 4] = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min];

    /// `sum`, `prod`, `max` or `min`.
    pub fn name(self) -> &'static str {
        ["sum", "prod", "max", "min"][self as usize]
    }
}

#[cfg(all(feature = "nccl", unix))]
/// Who adds the tensors of several ranks, or reduces them otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Gradus, in the tree over ranks that every engine uses, from parts that NCCL moves: the bits are those of MPI and of
    /// threads, and training gives the same bits for any number of ranks. It takes as much traffic as a ring, and memory
    /// for up to one and a half more copies of the tensor.
    #[default]
    Tree,
    /// NCCL, in an order that it chooses, which depends on the number of ranks, on the machines and on its version: so the
    /// bits depend on these too. NaN may get lost in a maximum or minimum. i16 and u16, which NCCL does not reduce, are
    /// reduced as with [`Tree`](Reduction::Tree).
    Nccl,
}

/// A number that can be reduced.
trait Number: Element {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Number for $t {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
        }
    )*};
}
integers! { i64 i32 i16 i8 u64 u32 u16 u8 }

macro_rules! floats {
    ($($t:ty: $sum:expr, $prod:expr;)*) => {$(
        impl Number for $t {
            #[inline]
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }
            fn prod(self, other: Self) -> Self {
                $prod(self, other)
            }
            fn larger(self, other: Self) -> Self {
                if self.is_nan() || self > other || (self == other && other.is_sign_negative()) { self } else { other }
            }
            fn smaller(self, other: Self) -> Self {
                if self.is_nan() || self < other || (self == other && self.is_sign_negative()) { self } else { other }
            }
        }
    )*};
}
floats! {
    f64: |a, b| a + b, |a, b| a * b;
    f32: |a, b| a + b, |a, b| a * b;
    f16: |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32()), |a: f16, b: f16| f16::from_f32(a.to_f32() * b.to_f32());
    bf16: |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32()), |a: bf16, b: bf16| bf16::from_f32(a.to_f32() * b.to_f32());
}

/// `into[i] = into[i] op other[i]`.
fn combine<T: Number>(reduce: Reduce, into: &mut [T], other: &[T]) {
    let each = into.iter_mut().zip(other);
    match reduce {
        Reduce::Sum => each.for_each(|(a, &b)| *a = a.sum(b)),
        Reduce::Prod => each.for_each(|(a, &b)| *a = a.prod(b)),
        Reduce::Max => each.for_each(|(a, &b)| *a = a.larger(b)),
        Reduce::Min => each.for_each(|(a, &b)| *a = a.smaller(b)),
    }
}

/// Calls `$f::<T>` for the type `T` of the elements.
macro_rules! typed {
    ($op:expr, $dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F64 => $f::<f64>($($arg),*),
            DType::F32 => $f::<f32>($($arg),*),
            DType::F16 => $f::<f16>($($arg),*),
            DType::BF16 => $f::<bf16>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I16 => $f::<i16>($($arg),*),
            DType::I8 => $f::<i8>($($arg),*),
            DType::U64 => $f::<u64>($($arg),*),
            DType::U32 => $f::<u32>($($arg),*),
            DType::U16 => $f::<u16>($($arg),*),
            DType::U8 => $f::<u8>($($arg),*),
            DType::Bool => Err(Error::dtype($op, DType::Bool, "numbers; convert with to_dtype(DType::U8)?")),
        }
    };
}
pub(crate) use typed;

/// Reduces pieces of the same length into the first: neighbours first, then neighbours of the results, and so on. An
/// element's result depends on the order of the pieces only.
pub(crate) fn tree(reduce: Reduce, dtype: DType, pieces: &mut [&mut [u8]]) -> Result<()> {
    fn tree<T: Number>(reduce: Reduce, pieces: &mut [&mut [u8]]) -> Result<()> {
        let misaligned = || Error::argument("reduce", "bytes that are not aligned for their dtype");
        // No bytes may lie anywhere.
        let mut step = if pieces.iter().any(|piece| piece.is_empty()) { pieces.len() } else { 1 };
        while step < pieces.len() {
            for left in (0..pieces.len() - step).step_by(2 * step) {
                let (a, b) = pieces.split_at_mut(left + step);
                let into = T::slice_mut(a[left]).ok_or_else(misaligned)?;
                combine(reduce, into, T::slice(b[0]).ok_or_else(misaligned)?);
            }
            step *= 2;
        }
        Ok(())
    }
    typed!("reduce", dtype, tree(reduce, pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: Element>(reduce: Reduce, rows: &[&[T]]) -> Vec<T> {
        let mut rows: Vec<Vec<T>> = rows.iter().map(|row| row.to_vec()).collect();
        let mut pieces: Vec<&mut [u8]> = rows.iter_mut().map(|row| T::as_bytes_mut(row).unwrap()).collect();
        tree(reduce, T::DTYPE, &mut pieces).unwrap();
        rows.swap_remove(0)
    }

    #[test]
    fn pieces_are_added_in_a_tree() {
        // 1 is lost beside 2^24 and 2 is not, so each order has another sum.
        let big = 16_777_216.0f32;
        assert_eq!(reduced(Reduce::Sum, &[&[1.0], &[1.0], &[big], &[1.0]]), [(1.0 + 1.0) + (big + 1.0)]);
        assert_eq!(reduced(Reduce::Sum, &[&[big], &[1.0f32], &[1.0]]), [(big + 1.0) + 1.0]);
        let five = reduced(Reduce::Sum, &[&[big], &[1.0f32], &[1.0], &[1.0], &[1.0]]);
        assert_eq!(five, [((big + 1.0) + (1.0 + 1.0)) + 1.0]);
    }

    #[test]
    fn reductions_are_what_their_names_say() {
        assert_eq!(reduced(Reduce::Prod, &[&[3i32, i32::MAX], &[4, 2]]), [12, -2]);
        assert_eq!(reduced(Reduce::Max, &[&[3u8, 9], &[4, 2]]), [4, 9]);
        assert_eq!(reduced(Reduce::Min, &[&[3i64, 9], &[4, -2]]), [3, -2]);
        for reduce in [Reduce::Max, Reduce::Min] {
            let r = reduced(reduce, &[&[f32::NAN, 1.0], &[1.0, f32::NAN]]);
            assert!(r.iter().all(|x| x.is_nan()), "{r:?}");
        }
        // -0 is smaller than 0, on either side.
        let (zero, x) = (bf16::from_f32(0.0), bf16::from_f32(-0.0));
        let bits =
            |reduce| reduced(reduce, &[&[zero, x], &[x, zero]]).into_iter().map(bf16::to_bits).collect::<Vec<_>>();
        assert_eq!((bits(Reduce::Max), bits(Reduce::Min)), (vec![0; 2], vec![0x8000; 2]));
        let x = bf16::from_f32(1.0 / 3.0);
        assert_eq!(reduced(Reduce::Sum, &[&[x], &[x]])[0].to_f32(), 2.0 * x.to_f32());
    }
}
