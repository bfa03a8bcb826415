//! Stable sorting along an axis.

use std::cmp::Ordering;

use gradus_backend::{DType, Result, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Float, Nest, Plain, check_axis, check_dtype, check_shape, with_any};
use crate::check::check_output;
use crate::parallel::Disjoint;

const OP: &str = "sort";
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 11;

/// A type with a total order in which NaN is the largest (and all NaN are equal).
trait Key: Plain {
    fn order(a: &Self, b: &Self) -> Ordering;
}

macro_rules! keys {
    ($($float:ty)*; $($int:ty)*) => {
        $(impl Key for $float {
            #[inline]
            fn order(a: &Self, b: &Self) -> Ordering {
                let (a, b) = (a.widen(), b.widen());
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
        })*
        $(impl Key for $int {
            #[inline]
            fn order(a: &Self, b: &Self) -> Ordering {
                a.cmp(b)
            }
        })*
    };
}
keys!(f64 f32 gradus_backend::f16 gradus_backend::bf16; i64 i32 i16 i8 u64 u32 u16 u8);

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
        let mut row: Vec<(T, i64)> = Vec::with_capacity(len);
        starts.for_each(range, |_, at| {
            let place = |k: usize, i: usize| at[k].wrapping_add_signed(steps[k].wrapping_mul(i as isize));
            row.clear();
            row.extend((0..len).map(|i| (x[place(0, i)], i as i64)));
            if descending {
                row.sort_by(|a, b| T::order(&b.0, &a.0));
            } else {
                row.sort_by(|a, b| T::order(&a.0, &b.0));
            }
            for (i, &(v, index)) in row.iter().enumerate() {
                // SAFETY: lanes of outputs that do not overlap themselves are apart, and each is one task's.
                unsafe {
                    values.write(place(1, i), v);
                    indices.write(place(2, i), index);
                }
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
