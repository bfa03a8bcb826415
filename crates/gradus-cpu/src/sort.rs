//! Stable sorting along an axis.

use gradus_backend::{DType, Result, View, ViewMut};

use crate::access::{check_axis, check_dtype, check_shape, with_word};
use crate::check::check_output;
use crate::nest::Nest;
use crate::order::{Order, Word};
use crate::parallel::Disjoint;
use crate::{CpuBackend, scratch};

const OP: &str = "sort";
/// The number of elements that a task should sort.
const TASK: usize = 1 << 11;

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
    cpu.check_view(OP, x.buffer, x.dtype, x.layout)?;
    cpu.check_out(OP, values)?;
    cpu.check_out(OP, indices)?;
    if x.layout.numel() == 0 {
        return Ok(());
    }
    let mut starts = layouts.map(|l| *l);
    for (s, l) in starts.iter_mut().zip(layouts) {
        *s = l.select(axis, 0)?;
    }
    let lanes = Lanes {
        starts: Nest::new(&starts.each_ref()[..]),
        len: x.layout.dims()[axis],
        steps: layouts.map(|l| l.strides()[axis]),
    };
    with_word!(x.dtype.size(), W => {
        let order = Order::<W>::new(x.dtype);
        let (x, values) = (cpu.words(OP, x)?, cpu.words_mut(OP, values)?);
        each_lane(cpu, &lanes, order, descending, x, values, cpu.slice_mut(OP, indices)?);
    });
    Ok(())
}

/// The lanes to sort: where they start in the input, the values and the indices, their length, and their strides in
/// each of the three.
struct Lanes {
    starts: Nest<3>,
    len: usize,
    steps: [isize; 3],
}

fn each_lane<W: Word>(
    cpu: &CpuBackend,
    lanes: &Lanes,
    order: Order<W>,
    descending: bool,
    x: &[W],
    values: &mut [W],
    indices: &mut [i64],
) {
    let (values, indices) = (Disjoint::new(values), Disjoint::new(indices));
    let Lanes { starts, len, steps } = lanes;
    cpu.parallel_for(starts.numel(), (TASK / len).max(1), |range| {
        starts.for_each(range, |_, at| {
            let place = |k: usize, i: usize| at[k].wrapping_add_signed(steps[k].wrapping_mul(i as isize));
            let key = |i: usize| -> u64 {
                let key = order.key(x[place(0, i)]);
                if descending { !key } else { key }.into()
            };
            let write = |i: usize, from: usize| {
                // SAFETY: the outputs do not overlap themselves, so their lanes are disjoint, and only one task writes
                // each lane.
                unsafe {
                    values.write(place(1, i), x[place(0, from)]);
                    indices.write(place(2, i), from as i64);
                }
            };
            // Each number combines a key with its index in the lower bits. No two are equal, so any sort is stable.
            let (lo, hi) = (0..*len).map(key).fold((u64::MAX, 0), |(lo, hi), k| (lo.min(k), hi.max(k)));
            if hi - lo <= u64::from(u32::MAX) && *len <= 1 << 32 {
                scratch::large(cpu, *len, |row: &mut [u64]| {
                    row.iter_mut().enumerate().for_each(|(i, r)| *r = (key(i) - lo) << 32 | i as u64);
                    row.sort_unstable();
                    row.iter().enumerate().for_each(|(i, &r)| write(i, (r & u64::from(u32::MAX)) as usize));
                });
            } else {
                scratch::large(cpu, *len, |row: &mut [u128]| {
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
