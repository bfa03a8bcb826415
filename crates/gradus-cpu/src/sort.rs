//! Stable sorting along an axis.

use gradus_backend::{DType, Result, View, ViewMut};

use crate::access::{Float, Nest, Plain, check_axis, check_dtype, check_shape, with_any};
use crate::check::check_output;
use crate::parallel::Disjoint;
use crate::{CpuBackend, scratch};

const OP: &str = "sort";
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 11;

/// A type with a total order in which NaN is the largest, all NaN are equal, and so are zeros.
trait Key: Plain {
    /// Numbers in that order; below 2^32 for types of up to four bytes.
    fn key(self) -> u64;
}

/// The key of a float from its bits, the highest of which is the sign.
macro_rules! float_key {
    ($v:ident, $float:ty, $bits:ty, $signed:ty) => {{
        const SIGN: $bits = 1 << (<$bits>::BITS - 1);
        // One zero and one NaN stand for all.
        let v = if $v == 0.0 { 0.0 } else { $v };
        let bits = if v.is_nan() { SIGN - 1 } else { v.to_bits() };
        // Negative numbers grow towards zero.
        u64::from(bits ^ ((bits as $signed >> (<$bits>::BITS - 1)) as $bits | SIGN))
    }};
}

macro_rules! keys {
    ($($narrow:ty)*; $($signed:ty, $unsigned:ty;)*) => {
        impl Key for f64 {
            #[inline]
            fn key(self) -> u64 {
                float_key!(self, f64, u64, i64)
            }
        }
        $(impl Key for $narrow {
            #[inline]
            fn key(self) -> u64 {
                let v: f32 = self.widen();
                float_key!(v, f32, u32, i32)
            }
        })*
        $(impl Key for $signed {
            #[inline]
            fn key(self) -> u64 {
                u64::from(self as $unsigned ^ (1 << (<$unsigned>::BITS - 1)))
            }
        }
        impl Key for $unsigned {
            #[inline]
            fn key(self) -> u64 {
                u64::from(self)
            }
        })*
    };
}
keys!(f32 gradus_backend::f16 gradus_backend::bf16; i64, u64; i32, u32; i16, u16; i8, u8;);

/// See [`Backend::sort`](gradus_backend::Backend::sort).
pub(crate) fn sort(
    cpu: &CpuBackend,
    x: View<'_>,
    axis: usize,
    descending: bool,
    values: &mut ViewMut<'_>,
    indices: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = x.layout.dims();
    check_axis(OP, axis, dims)?;
    check_dtype(OP, "values", values.dtype, x.dtype)?;
    check_dtype(OP, "indices", indices.dtype, DType::I64)?;
    check_shape(OP, "values", values.layout.dims(), dims)?;
    check_shape(OP, "indices", indices.layout.dims(), dims)?;
    check_output(OP, "values", values.layout)?;
    check_output(OP, "indices", indices.layout)?;
    let layouts = [x.layout, values.layout, indices.layout];
    with_any!(x.dtype, T => {
        let x = cpu.slice::<T>(OP, x)?;
        let (values, indices) = (cpu.slice_mut::<T>(OP, values)?, cpu.slice_mut::<i64>(OP, indices)?);
        if layouts[0].numel() == 0 {
            return Ok(());
        }
        let mut starts = layouts.map(|l| *l);
        for (s, l) in starts.iter_mut().zip(layouts) {
            *s = l.select(axis, 0)?;
        }
        let steps = layouts.map(|l| l.strides()[axis]);
        lanes(cpu, Nest::new(&starts.each_ref()[..]), layouts[0].dims()[axis], steps, descending, x, values, indices);
        Ok(())
    })
}

fn lanes<T: Key>(
    cpu: &CpuBackend,
    starts: Nest<3>,
    len: usize,
    steps: [isize; 3],
    descending: bool,
    x: &[T],
    values: &mut [T],
    indices: &mut [i64],
) {
    let (values, indices) = (Disjoint::new(values), Disjoint::new(indices));
    cpu.parallel_for(starts.numel(), (TASK / len).max(1), |range| {
        starts.for_each(range, |_, at| {
            let place = |k: usize, i: usize| at[k].wrapping_add_signed(steps[k].wrapping_mul(i as isize));
            let key = |i: usize| if descending { !x[place(0, i)].key() } else { x[place(0, i)].key() };
            let write = |i: usize, from: usize| {
                // SAFETY: lanes of outputs that do not overlap themselves are apart, and each is one task's.
                unsafe {
                    values.write(place(1, i), x[place(0, from)]);
                    indices.write(place(2, i), from as i64);
                }
            };
            // A key and the index below it, in one number: no two are equal, so that any sort is a stable one.
            let (lo, hi) = (0..len).map(key).fold((u64::MAX, 0), |(lo, hi), k| (lo.min(k), hi.max(k)));
            if hi - lo <= u64::from(u32::MAX) && len <= 1 << 32 {
                scratch::large(cpu, len, |row: &mut [u64]| {
                    row.iter_mut().enumerate().for_each(|(i, r)| *r = (key(i) - lo) << 32 | i as u64);
                    row.sort_unstable();
                    row.iter().enumerate().for_each(|(i, &r)| write(i, (r & u64::from(u32::MAX)) as usize));
                });
            } else {
                scratch::large(cpu, len, |row: &mut [u128]| {
                    row.iter_mut().enumerate().for_each(|(i, r)| *r = u128::from(key(i)) << 64 | i as u128);
                    row.sort_unstable();
                    row.iter().enumerate().for_each(|(i, &r)| write(i, r as u64 as usize));
                });
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, DType, ErrorKind};

    use crate::CpuBackend;
    use crate::testing::{Lie, Tensor, integers};

    #[test]
    fn every_dtype_is_sorted_stably_along_every_axis() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        for (t, (dims, axis)) in
            [(&[50][..], 0), (&[4, 30], 1), (&[30, 4], 0), (&[3, 20, 2], 1), (&[2, 0], 0)].into_iter().enumerate()
        {
            for (d, dtype) in DType::ALL.into_iter().enumerate() {
                for descending in [false, true] {
                    let mut draw = integers(t as u64, 5);
                    let number = |i: usize| match dtype {
                        DType::Bool => draw(i).rem_euclid(2.0),
                        _ if dtype.is_float() && i % 7 == 3 => f64::NAN,
                        _ if dtype.is_signed() => draw(i),
                        _ => draw(i).abs(),
                    };
                    let x = Tensor::new(&cpu, dtype, dims, Lie::ALL[(t + d) % 4], number);
                    let mut values = Tensor::canary(&cpu, dtype, dims, Lie::ALL[(t + d + 1) % 4]);
                    let mut indices = Tensor::canary(&cpu, DType::I64, dims, Lie::ALL[(t + d + 2) % 4]);
                    cpu.sort(x.view(), axis, descending, &mut values.view_mut(), &mut indices.view_mut()).unwrap();
                    values.assert_gaps_untouched(&cpu);
                    indices.assert_gaps_untouched(&cpu);
                    let (xv, vv, iv) = (x.values(&cpu), values.values(&cpu), indices.values(&cpu));
                    let inner: usize = dims[axis + 1..].iter().product();
                    let key = |v: f64| if v.is_nan() { f64::INFINITY } else { v };
                    for lane in 0..xv.len() / dims[axis].max(1) {
                        let at = |i: usize| (lane / inner * dims[axis] + i) * inner + lane % inner;
                        let mut want: Vec<usize> = (0..dims[axis]).collect();
                        want.sort_by(|&a, &b| {
                            let order = key(xv[at(a)]).partial_cmp(&key(xv[at(b)])).unwrap();
                            if descending { order.reverse() } else { order }
                        });
                        for (i, &w) in want.iter().enumerate() {
                            assert_eq!(iv[at(i)], w as f64, "{dtype} {dims:?}");
                            assert!(vv[at(i)] == xv[at(w)] || vv[at(i)].is_nan() && xv[at(w)].is_nan());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_values() {
        use super::Key;
        fn ascending<T: Key>(all: &[T]) {
            assert!(all.windows(2).all(|w| w[0].key() < w[1].key()));
        }
        ascending(&[i64::MIN, -1, 0, 1, i64::MAX]);
        ascending(&[0, 1, 1 << 32, u64::MAX]);
        ascending(&[i8::MIN, -1, 0, i8::MAX]);
        ascending(&[f64::NEG_INFINITY, f64::MIN, -5e-324, 0.0, 5e-324, f64::MAX, f64::INFINITY, f64::NAN]);
        ascending(&[f32::NEG_INFINITY, f32::MIN, -1e-45, 0.0, 1e-45, f32::MAX, f32::INFINITY, f32::NAN]);
        assert_eq!((0.0f32.key(), f32::NAN.key()), ((-0.0f32).key(), (-f32::NAN).key()));
        assert_eq!((0.0f64.key(), f64::NAN.key()), ((-0.0f64).key(), (-f64::NAN).key()));
        assert!((-f32::NAN).key() <= u64::from(u32::MAX));
    }

    #[test]
    fn integers_far_apart_are_sorted_stably() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let number = |i: usize| [0.0, -9e18, 9e18, 0.0, -9e18, 1.0][i];
        let x = Tensor::new(&cpu, DType::I64, &[6], Lie::Contiguous, number);
        let mut values = Tensor::canary(&cpu, DType::I64, &[6], Lie::Contiguous);
        let mut indices = Tensor::canary(&cpu, DType::I64, &[6], Lie::Contiguous);
        for (descending, want) in [(false, [1.0, 4.0, 0.0, 3.0, 5.0, 2.0]), (true, [2.0, 5.0, 0.0, 3.0, 1.0, 4.0])] {
            cpu.sort(x.view(), 0, descending, &mut values.view_mut(), &mut indices.view_mut()).unwrap();
            assert_eq!(indices.values(&cpu), want);
            assert_eq!(values.values(&cpu), want.map(|i| number(i as usize)));
        }
    }

    #[test]
    fn wrong_operands_are_typed_errors() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let x = Tensor::canary(&cpu, DType::F32, &[2, 3], Lie::Contiguous);
        let mut values = Tensor::canary(&cpu, DType::F32, &[2, 3], Lie::Contiguous);
        let mut indices = Tensor::canary(&cpu, DType::I32, &[2, 3], Lie::Contiguous);
        let e = cpu.sort(x.view(), 0, false, &mut values.view_mut(), &mut indices.view_mut()).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::DTypeMismatch);
        let e = cpu.sort(x.view(), 2, false, &mut values.view_mut(), &mut indices.view_mut()).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::InvalidAxis);
    }
}
