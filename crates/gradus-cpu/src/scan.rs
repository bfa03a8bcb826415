//! Cumulative sums, products, extrema and log-sum-exp along an axis, from the first element to the last.

use gradus_backend::{Element, Error, Result, ScanOp, View, ViewMut};

use crate::CpuBackend;
use crate::access::{Float, Plain, check_axis, check_dtype, check_shape, with_float, with_word};
use crate::check::check_output;
use crate::gemm::Real;
use crate::nest::Nest;
use crate::order::Order;
use crate::parallel::Disjoint;
use crate::rows::Elementary;

/// The number of elements that a task should process.
const TASK: usize = 1 << 13;

fn name(op: ScanOp) -> &'static str {
    match op {
        ScanOp::Sum => "cumsum",
        ScanOp::Prod => "cumprod",
        ScanOp::Max => "cummax",
        ScanOp::Min => "cummin",
        ScanOp::LogSumExp => "logcumsumexp",
    }
}

/// See [`Backend::scan`](gradus_backend::Backend::scan).
pub(crate) fn scan(cpu: &CpuBackend, op: ScanOp, x: View<'_>, axis: usize, out: &mut ViewMut<'_>) -> Result<()> {
    let name = name(op);
    check_axis(name, axis, x.layout.dims())?;
    let dtype = if matches!(op, ScanOp::Sum | ScanOp::Prod) { x.dtype.accumulate() } else { x.dtype };
    check_dtype(name, "out", out.dtype, dtype)?;
    check_shape(name, "out", out.layout.dims(), x.layout.dims())?;
    check_output(name, "out", out.layout)?;
    if op == ScanOp::LogSumExp && !x.dtype.is_float() {
        return Err(Error::dtype(name, x.dtype, "f64, f32, f16 and bf16"));
    }
    cpu.check_view(name, x.buffer, x.dtype, x.layout)?;
    cpu.check_view(name, out.buffer, out.dtype, out.layout)?;
    if x.layout.numel() == 0 {
        return Ok(());
    }
    let lanes = Lanes {
        starts: Nest::new(&[&x.layout.select(axis, 0)?, &out.layout.select(axis, 0)?]),
        len: x.layout.dims()[axis],
        steps: [x.layout.strides()[axis], out.layout.strides()[axis]],
    };
    match op {
        ScanOp::LogSumExp => with_float!(name, x.dtype, T => {
            let (x, out) = (cpu.slice::<T>(name, x)?, cpu.slice_mut::<T>(name, out)?);
            run(cpu, &lanes, x, out, Running::new(), |s: &mut Running, v: T| T::narrow(s.push(v.widen())));
            Ok(())
        }),
        // Bool is stored as 0 and 1 in u8, so its sums and extrema are those of u8.
        ScanOp::Max | ScanOp::Min => with_word!(x.dtype.size(), W => {
            let order = Order::<W>::new(x.dtype);
            let order = if op == ScanOp::Max { order } else { order.falling() };
            let (x, out) = (cpu.words::<W>(name, x)?, cpu.words_mut::<W>(name, out)?);
            // Keeps the first element until an element with a larger key replaces it.
            run(cpu, &lanes, x, out, None, |best: &mut Option<(W, W)>, v: W| {
                let key = order.key(v);
                let (_, kept) = *best.insert(best.filter(|b| key <= b.0).unwrap_or((key, v)));
                kept
            });
            Ok(())
        }),
        _ if x.dtype.is_float() => with_float!(name, x.dtype, T => {
            let (x, out) = (cpu.slice::<T>(name, x)?, cpu.slice_mut::<T>(name, out)?);
            // Lanes are accumulated in f64. In f32, a running sum of ones would stop growing at 2^24, because each
            // further term would be too small to change it.
            let (lift, store) = (|v: T| Element::to_f64(v), |s: f64| <T as Element>::from_f64(s));
            match op {
                ScanOp::Sum => run(cpu, &lanes, x, out, 0.0, |s, v| {
                    *s += lift(v);
                    store(*s)
                }),
                _ => run(cpu, &lanes, x, out, 1.0, |s, v| {
                    *s *= lift(v);
                    store(*s)
                }),
            }
            Ok(())
        }),
        _ => with_word!(x.dtype.size(), W => {
            // Signed integers are sign-extended to u64. Wrapping arithmetic is the same for signed and unsigned
            // integers.
            let sign = if x.dtype.is_signed() { 1u64 << (W::BITS - 1) } else { 0 };
            #[allow(clippy::useless_conversion, reason = "one of the words is u64")]
            let lift = |v: W| (u64::from(v) ^ sign).wrapping_sub(sign);
            let (x, out) = (cpu.words::<W>(name, x)?, cpu.words_mut::<u64>(name, out)?);
            match op {
                ScanOp::Sum => run(cpu, &lanes, x, out, 0, |s: &mut u64, v| {
                    *s = s.wrapping_add(lift(v));
                    *s
                }),
                _ => run(cpu, &lanes, x, out, 1, |s: &mut u64, v| {
                    *s = s.wrapping_mul(lift(v));
                    *s
                }),
            }
            Ok(())
        }),
    }
}

/// The lanes along the axis: where they start in the input and the output, their length, and their strides in both.
struct Lanes {
    starts: Nest<2>,
    len: usize,
    steps: [isize; 2],
}

/// Applies `step` to the elements of every lane in order, with a state that begins as a copy of `start`.
fn run<T: Plain, U: Plain, S: Copy + Send + Sync>(
    cpu: &CpuBackend,
    lanes: &Lanes,
    x: &[T],
    out: &mut [U],
    start: S,
    step: impl Fn(&mut S, T) -> U + Sync,
) {
    let (out, [sx, so]) = (Disjoint::new(out), lanes.steps);
    cpu.parallel_for(lanes.starts.numel(), (TASK / lanes.len).max(1), |range| {
        lanes.starts.for_each(range, |_, [ax, ao]| {
            let mut state = start;
            for i in 0..lanes.len as isize {
                let value = step(&mut state, x[ax.wrapping_add_signed(sx.wrapping_mul(i))]);
                // SAFETY: no two elements of the output share a position, and each lane belongs to one task.
                unsafe { out.write(ao.wrapping_add_signed(so.wrapping_mul(i)), value) };
            }
        });
    });
}

/// The logarithm of a growing sum of exponentials, `largest + ln(sum)`, in f64.
#[derive(Clone, Copy)]
struct Running {
    largest: f64,
    sum: f64,
}

impl Running {
    fn new() -> Self {
        Running { largest: f64::NEG_INFINITY, sum: 0.0 }
    }

    fn push<T: Elementary>(&mut self, x: T) -> T {
        let x = x.to_f64();
        if x.is_nan() || self.largest.is_nan() {
            self.largest = f64::NAN;
        } else if x > self.largest {
            // The sum is 0 for as long as every element is -inf.
            self.sum = if self.sum == 0.0 { 1.0 } else { self.sum * libm::exp(self.largest - x) + 1.0 };
            self.largest = x;
        } else if x == self.largest {
            self.sum += if x == f64::NEG_INFINITY { 0.0 } else { 1.0 };
        } else {
            self.sum += libm::exp(x - self.largest);
        }
        <T as Real>::from_f64(if self.largest.is_infinite() {
            self.largest
        } else {
            self.largest + libm::log(self.sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, DType, ErrorKind, ScanOp};

    use crate::CpuBackend;
    use crate::testing::{Lie, Tensor, assert_close, integers};

    #[test]
    fn every_op_runs_along_every_axis_in_every_dtype() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        for (t, (dims, axis)) in
            [(&[9][..], 0), (&[4, 6], 1), (&[6, 4], 0), (&[3, 5, 2], 1), (&[2, 0], 0)].into_iter().enumerate()
        {
            for (d, dtype) in DType::ALL.into_iter().enumerate() {
                for op in [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp] {
                    let mut draw = integers(t as u64, 2);
                    let number = |i: usize| match dtype {
                        DType::Bool => draw(i).rem_euclid(2.0),
                        _ if dtype.is_signed() => draw(i),
                        _ => draw(i).abs(),
                    };
                    let x = Tensor::new(&cpu, dtype, dims, Lie::ALL[(t + d) % 4], number);
                    let wide = matches!(op, ScanOp::Sum | ScanOp::Prod);
                    let stored = if wide { dtype.accumulate() } else { dtype };
                    let mut out = Tensor::canary(&cpu, stored, dims, Lie::ALL[(t + d + 1) % 4]);
                    let result = cpu.scan(op, x.view(), axis, &mut out.view_mut());
                    if op == ScanOp::LogSumExp && !dtype.is_float() {
                        assert_eq!(result.unwrap_err().kind(), &ErrorKind::UnsupportedDType);
                        continue;
                    }
                    result.unwrap();
                    out.assert_gaps_untouched(&cpu);
                    let mut want = x.values(&cpu);
                    let inner: usize = dims[axis + 1..].iter().product();
                    for lane in 0..want.len() / dims[axis].max(1) {
                        let at = |i: usize| (lane / inner * dims[axis] + i) * inner + lane % inner;
                        for i in 1..dims[axis] {
                            let (a, b) = (want[at(i - 1)], want[at(i)]);
                            want[at(i)] = match op {
                                ScanOp::Sum => a + b,
                                ScanOp::Prod => a * b,
                                ScanOp::Max => a.max(b),
                                ScanOp::Min => a.min(b),
                                ScanOp::LogSumExp => (a.exp() + b.exp()).ln(),
                            };
                        }
                    }
                    let tolerance = match dtype {
                        _ if op != ScanOp::LogSumExp => 0.0,
                        DType::F64 => 1e-14,
                        DType::F32 => 1e-6,
                        _ => 1e-2,
                    };
                    assert_close(&out.values(&cpu), &want, tolerance);
                }
            }
        }
    }

    #[test]
    fn nan_wins_and_stays_and_infinities_pass() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let inf = f64::INFINITY;
        let row = [-inf, 1.0, f64::NAN, 2.0];
        for op in [ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp, ScanOp::Sum] {
            let x = Tensor::new(&cpu, DType::F32, &[4], Lie::Contiguous, |i| row[i]);
            let mut out = Tensor::canary(&cpu, DType::F32, &[4], Lie::Contiguous);
            cpu.scan(op, x.view(), 0, &mut out.view_mut()).unwrap();
            let out = out.values(&cpu);
            assert!(out[0] == -inf && !out[1].is_nan() && out[2].is_nan() && out[3].is_nan(), "{op:?} {out:?}");
        }
        let x = Tensor::new(&cpu, DType::F32, &[3], Lie::Contiguous, |i| [-inf, -inf, inf][i]);
        let mut out = Tensor::canary(&cpu, DType::F32, &[3], Lie::Contiguous);
        cpu.scan(ScanOp::LogSumExp, x.view(), 0, &mut out.view_mut()).unwrap();
        assert_eq!(out.values(&cpu), [-inf, -inf, inf]);
    }

    #[test]
    fn running_sums_do_not_stand_still_in_any_float_dtype() {
        for (dtype, n, last) in
            [(DType::F32, (1 << 24) + 64, 16_777_280.0), (DType::BF16, 1000, 1000.0), (DType::F16, 4096, 4096.0)]
        {
            let bits: Vec<Vec<u64>> = [1, 3]
                .map(|threads| {
                    let cpu = CpuBackend::with_threads(threads).unwrap();
                    let x = Tensor::new(&cpu, dtype, &[n], Lie::Contiguous, |_| 1.0);
                    let mut out = Tensor::canary(&cpu, dtype, &[n], Lie::Contiguous);
                    cpu.scan(ScanOp::Sum, x.view(), 0, &mut out.view_mut()).unwrap();
                    out.values(&cpu).into_iter().map(f64::to_bits).collect()
                })
                .into();
            assert_eq!(f64::from_bits(bits[0][n - 1]), last, "{dtype}");
            assert!(bits[0] == bits[1], "{dtype}");
        }
    }

    #[test]
    fn products_come_back_from_beyond_the_dtype() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let x = Tensor::new(&cpu, DType::F32, &[4], Lie::Contiguous, |i| [1e30, 1e30, 1e-30, 1e-30][i]);
        let mut out = Tensor::canary(&cpu, DType::F32, &[4], Lie::Contiguous);
        cpu.scan(ScanOp::Prod, x.view(), 0, &mut out.view_mut()).unwrap();
        let out = out.values(&cpu);
        assert!(out[1] == f64::INFINITY && out[2] == f64::from(1e30f32) && (out[3] - 1.0).abs() < 1e-6, "{out:?}");
    }
}
