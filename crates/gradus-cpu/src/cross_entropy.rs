//! Cross-entropy with class indices, and its gradient. Both process one row of logits at a time, in the compute type.

use gradus_backend::{CrossEntropyParams, Error, ErrorKind, HostVec, Result, View, ViewMut};

use crate::access::{check_dtype, check_shape, with_float};
use crate::check::check_output;
use crate::index::Indices;
use crate::isa::{Isa, per_isa};
use crate::parallel::Disjoint;
use crate::rows::{Elementary, Rows, largest, sum, tree};
use crate::{CpuBackend, scratch};

/// The number of elements that a task should process.
const TASK: usize = 1 << 13;

/// The row kernels of a storage type.
trait CrossEntropyElement: Rows {
    /// Subtracts the shift, which is the largest element (or 0 if that is not finite), from `x` in place. Returns the
    /// shift and the logarithm of the sum of `e^(x - shift)`.
    fn log_sum_exp(isa: Isa, x: &mut [Self::Compute]) -> (Self::Compute, Self::Compute);
    /// Returns the sum of the elements.
    fn sum(isa: Isa, x: &[Self::Compute]) -> Self::Compute;
    /// Sets `dx = g * (e^(x - lse) - even)`.
    fn gradient(
        isa: Isa,
        x: &[Self::Compute],
        dx: &mut [Self::Compute],
        lse: Self::Compute,
        g: Self::Compute,
        even: Self::Compute,
    );
}

#[inline(always)]
fn log_sum_exp<T: Elementary>(x: &mut [T]) -> (T, T) {
    let m = largest(x);
    let shift = if m.is_finite() { m } else { T::ZERO };
    x.iter_mut().for_each(|v| *v = *v - shift);
    (shift, tree([x], T::ZERO, |[x], s| s + x.exp(), |a, b| a + b).ln())
}

#[inline(always)]
fn gradient<T: Elementary>(x: &[T], dx: &mut [T], lse: T, g: T, even: T) {
    dx.iter_mut().zip(x).for_each(|(d, &v)| *d = g * ((v - lse).exp() - even));
}

per_isa! {
    fn log_sum_exp_f32(x: &mut [f32]) -> (f32, f32) = log_sum_exp;
    fn log_sum_exp_f64(x: &mut [f64]) -> (f64, f64) = log_sum_exp;
    fn sum_f32(x: &[f32]) -> f32 = sum;
    fn sum_f64(x: &[f64]) -> f64 = sum;
    fn gradient_f32(x: &[f32], dx: &mut [f32], lse: f32, g: f32, even: f32) = gradient;
    fn gradient_f64(x: &[f64], dx: &mut [f64], lse: f64, g: f64, even: f64) = gradient;
}

macro_rules! kernel {
    ($($s:ty, $c:ty, $lse:ident, $sum:ident, $gradient:ident;)*) => {$(
        impl CrossEntropyElement for $s {
            fn log_sum_exp(isa: Isa, x: &mut [$c]) -> ($c, $c) {
                $lse(isa, x)
            }
            fn sum(isa: Isa, x: &[$c]) -> $c {
                $sum(isa, x)
            }
            fn gradient(isa: Isa, x: &[$c], dx: &mut [$c], lse: $c, g: $c, even: $c) {
                $gradient(isa, x, dx, lse, g, even)
            }
        }
    )*};
}
kernel! {
    f32, f32, log_sum_exp_f32, sum_f32, gradient_f32;
    f64, f64, log_sum_exp_f64, sum_f64, gradient_f64;
    gradus_backend::f16, f32, log_sum_exp_f32, sum_f32, gradient_f32;
    gradus_backend::bf16, f32, log_sum_exp_f32, sum_f32, gradient_f32;
}

/// Checks the shapes and parameters, and returns the class of each row, or `None` for a row that is ignored.
fn classes(
    cpu: &CpuBackend,
    op: &str,
    p: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    vectors: [(&str, View<'_>); 2],
) -> Result<HostVec<Option<usize>>> {
    if !(0.0..=1.0).contains(&p.label_smoothing) {
        return Err(Error::argument(op, format!("label smoothing {} is not between 0 and 1", p.label_smoothing)));
    }
    if !logits.dtype.is_float() {
        return Err(Error::dtype(op, logits.dtype, "f64, f32, f16 and bf16"));
    }
    let &[n, c] = logits.layout.dims() else {
        let m = format!("logits have shape {}, where [n, c] is needed", logits.layout.shape());
        return Err(Error::shape(op, m));
    };
    check_shape(op, "target", target.layout.dims(), &[n])?;
    for (name, v) in vectors {
        check_dtype(op, name, v.dtype, logits.dtype.compute())?;
        check_shape(op, name, v.layout.dims(), &[n])?;
    }
    let indices = Indices::new(cpu, op, target)?;
    let class = |(pos, at): (usize, usize)| {
        let index = indices.at(at);
        if p.ignore_index == Some(index) {
            return Ok(None);
        }
        usize::try_from(index).ok().filter(|&i| i < c).map(Some).ok_or_else(|| {
            let m = format!("target {index} of row {pos} is outside {c} classes");
            let e = Error::new(ErrorKind::IndexOutOfBounds { pos, index, size: c }, op, m);
            e.help("classes count from 0; pass ignore_index to leave rows out")
        })
    };
    let mut classes = HostVec::with_capacity(cpu, op, n)?;
    for place in target.layout.positions().enumerate() {
        classes.push(op, class(place)?)?;
    }
    Ok(classes)
}

/// See [`Backend::cross_entropy`](gradus_backend::Backend::cross_entropy).
pub(crate) fn cross_entropy(
    cpu: &CpuBackend,
    p: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    loss: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    check_output(OP, "loss", loss.layout)?;
    check_output(OP, "lse", lse.layout)?;
    let classes = classes(cpu, OP, p, logits, target, [("loss", loss.as_view()), ("lse", lse.as_view())])?;
    with_float!(OP, logits.dtype, T => forward::<T>(cpu, p, logits, &classes, loss, lse))
}

fn forward<S: CrossEntropyElement>(
    cpu: &CpuBackend,
    p: &CrossEntropyParams,
    logits: View<'_>,
    classes: &[Option<usize>],
    loss: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let (isa, layout, c) = (cpu.isa(), logits.layout, logits.layout.dims()[1]);
    let (row_stride, step) = (layout.strides()[0], layout.strides()[1]);
    let ([loss_step], [lse_step]) = ([loss.layout.strides()[0]], [lse.layout.strides()[0]]);
    let (loss_at, lse_at) = (loss.layout.offset(), lse.layout.offset());
    let x = cpu.slice::<S>(OP, logits)?;
    let loss = Disjoint::new(cpu.slice_mut::<S::Compute>(OP, loss)?);
    let lse = Disjoint::new(cpu.slice_mut::<S::Compute>(OP, lse)?);
    let from = |v: f64| <S::Compute as crate::gemm::Real>::from_f64(v);
    let e = p.label_smoothing;
    cpu.parallel_for(classes.len(), (TASK / c.max(1)).max(1), |rows| {
        scratch::large(cpu, c, |row: &mut [S::Compute]| {
            for r in rows {
                S::load(isa, x, at(layout.offset(), row_stride, r), step, row);
                let (shift, log) = S::log_sum_exp(isa, row);
                let value = match classes[r] {
                    None => from(0.0),
                    Some(t) if e == 0.0 => log - row[t],
                    Some(t) => log - from(1.0 - e) * row[t] - from(e / c as f64) * S::sum(isa, row),
                };
                // SAFETY: element `r` of each output belongs to this task, and no two elements share a position.
                unsafe {
                    loss.write(at(loss_at, loss_step, r), value);
                    lse.write(at(lse_at, lse_step, r), shift + log);
                }
            }
        });
    });
    Ok(())
}

/// See [`Backend::cross_entropy_backward`](gradus_backend::Backend::cross_entropy_backward).
pub(crate) fn cross_entropy_backward(
    cpu: &CpuBackend,
    p: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    lse: View<'_>,
    g: View<'_>,
    dlogits: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_backward";
    check_dtype(OP, "dlogits", dlogits.dtype, logits.dtype)?;
    check_shape(OP, "dlogits", dlogits.layout.dims(), logits.layout.dims())?;
    check_output(OP, "dlogits", dlogits.layout)?;
    let classes = classes(cpu, OP, p, logits, target, [("lse", lse), ("g", g)])?;
    with_float!(OP, logits.dtype, T => backward::<T>(cpu, p, logits, &classes, lse, g, dlogits))
}

fn backward<S: CrossEntropyElement>(
    cpu: &CpuBackend,
    p: &CrossEntropyParams,
    logits: View<'_>,
    classes: &[Option<usize>],
    lse: View<'_>,
    g: View<'_>,
    dlogits: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_backward";
    let (isa, layout, c, to) = (cpu.isa(), logits.layout, logits.layout.dims()[1], dlogits.layout);
    let x = cpu.slice::<S>(OP, logits)?;
    let (lse_layout, g_layout) = (lse.layout, g.layout);
    let (lse, g) = (cpu.slice::<S::Compute>(OP, lse)?, cpu.slice::<S::Compute>(OP, g)?);
    let out = Disjoint::new(cpu.slice_mut::<S>(OP, dlogits)?);
    let from = |v: f64| <S::Compute as crate::gemm::Real>::from_f64(v);
    let (even, share) = (p.label_smoothing / c.max(1) as f64, 1.0 - p.label_smoothing);
    cpu.parallel_for(classes.len(), (TASK / c.max(1)).max(1), |rows| {
        scratch::large(cpu, 2 * c, |both: &mut [S::Compute]| {
            let (x_row, d_row) = both.split_at_mut(c);
            for r in rows {
                let row =
                    S::read(isa, x, at(layout.offset(), layout.strides()[0], r), layout.strides()[1], &mut x_row[..]);
                let make = |dx: &mut [S::Compute]| {
                    let Some(t) = classes[r] else { return dx.fill(from(0.0)) };
                    let g = g[at(g_layout.offset(), g_layout.strides()[0], r)];
                    let lse = lse[at(lse_layout.offset(), lse_layout.strides()[0], r)];
                    S::gradient(isa, row, dx, lse, g, from(even));
                    dx[t] = g * ((row[t] - lse).exp() - (from(share) + from(even)));
                };
                // SAFETY: row `r` of the output belongs to this task, and no two elements share a position.
                unsafe { S::write(isa, &out, at(to.offset(), to.strides()[0], r), to.strides()[1], d_row, make) };
            }
        });
    });
    Ok(())
}

/// Returns the position of element `i` along a strided axis.
fn at(start: usize, step: isize, i: usize) -> usize {
    start.wrapping_add_signed(step.wrapping_mul(i as isize))
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, CrossEntropyParams, DType, ErrorKind};

    use crate::CpuBackend;
    use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, integers, noise};

    #[test]
    fn loss_and_gradient_agree_with_f64() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        let types = [(DType::F64, 1e-13), (DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)];
        for (n, c) in [(1, 1), (7, 10), (300, 33), (0, 4), (2, 1000)] {
            for (d, (dtype, tolerance)) in types.into_iter().enumerate() {
                for (ignore_index, label_smoothing) in [(None, 0.0), (Some(0), 0.0), (Some(-100), 0.1), (None, 1.0)] {
                    let p = CrossEntropyParams { ignore_index, label_smoothing };
                    let lie = |i: usize| Lie::ALL[(d + i) % 4];
                    let compute = dtype.compute();
                    let (mut numbers, mut draw) = (noise(1), integers(2, 9999));
                    let x = Tensor::new(&cpu, dtype, &[n, c], lie(0), |i| 6.0 * numbers(i));
                    let class = |i: usize| {
                        if ignore_index == Some(-100) && i % 3 == 1 { -100.0 } else { draw(i).abs() % c as f64 }
                    };
                    let target = Tensor::new(&cpu, DType::I64, &[n], lie(1), class);
                    let mut loss = Tensor::canary(&cpu, compute, &[n], lie(2));
                    let mut lse = Tensor::canary(&cpu, compute, &[n], lie(3));
                    cpu.cross_entropy(&p, x.view(), target.view(), &mut loss.view_mut(), &mut lse.view_mut()).unwrap();
                    let g = Tensor::new(&cpu, compute, &[n], lie(1), noise(5));
                    let mut dx = Tensor::canary(&cpu, dtype, &[n, c], lie(2));
                    cpu.cross_entropy_backward(&p, x.view(), target.view(), lse.view(), g.view(), &mut dx.view_mut())
                        .unwrap();
                    let (xv, tv, gv) = (x.values(&cpu), target.values(&cpu), g.values(&cpu));
                    let (mut want_loss, mut want_lse, mut want_dx) = (vec![], vec![], vec![]);
                    for r in 0..n {
                        let row = &xv[r * c..(r + 1) * c];
                        let l = row.iter().map(|v| v.exp()).sum::<f64>().ln();
                        let ignored = ignore_index == Some(tv[r] as i64);
                        let q = |j: usize| {
                            (1.0 - label_smoothing) * f64::from(u8::from(j as f64 == tv[r]))
                                + label_smoothing / c as f64
                        };
                        want_lse.push(l);
                        want_loss.push(if ignored { 0.0 } else { (0..c).map(|j| q(j) * (l - row[j])).sum() });
                        want_dx.extend((0..c).map(|j| if ignored { 0.0 } else { gv[r] * ((row[j] - l).exp() - q(j)) }));
                    }
                    let wide = if compute == DType::F32 { 4e-6 } else { tolerance };
                    assert_close(&lse.values(&cpu), &want_lse, wide);
                    assert_close(&loss.values(&cpu), &want_loss, wide);
                    assert_close(&dx.values(&cpu), &want_dx, tolerance);
                    loss.assert_gaps_untouched(&cpu);
                    dx.assert_gaps_untouched(&cpu);
                }
            }
        }
    }

    #[test]
    fn targets_outside_the_classes_are_named() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let p = CrossEntropyParams { ignore_index: Some(-1), label_smoothing: 0.0 };
        let x = Tensor::new(&cpu, DType::F32, &[3, 4], Lie::Contiguous, |_| 0.0);
        let mut loss = Tensor::canary(&cpu, DType::F32, &[3], Lie::Contiguous);
        let mut lse = Tensor::canary(&cpu, DType::F32, &[3], Lie::Contiguous);
        for (bad, index) in [(4.0, 4), (-2.0, -2)] {
            let target = Tensor::new(&cpu, DType::I64, &[3], Lie::Contiguous, |i| [-1.0, bad, bad][i]);
            let e = cpu.cross_entropy(&p, x.view(), target.view(), &mut loss.view_mut(), &mut lse.view_mut());
            assert_eq!(e.unwrap_err().kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index, size: 4 });
        }
        let target = Tensor::new(&cpu, DType::F32, &[3], Lie::Contiguous, |_| 0.0);
        let e = cpu.cross_entropy(&p, x.view(), target.view(), &mut loss.view_mut(), &mut lse.view_mut());
        assert_eq!(e.unwrap_err().kind(), &ErrorKind::UnsupportedDType);
        let p = CrossEntropyParams { label_smoothing: 1.5, ..p };
        let e = cpu.cross_entropy(&p, x.view(), target.view(), &mut loss.view_mut(), &mut lse.view_mut());
        assert_eq!(e.unwrap_err().kind(), &ErrorKind::InvalidArgument);
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        let p = CrossEntropyParams { ignore_index: None, label_smoothing: 0.1 };
        assert_same_bits(|cpu| {
            let x = Tensor::new(cpu, DType::F32, &[200, 130], Lie::Contiguous, noise(1));
            let target = Tensor::new(cpu, DType::I32, &[200], Lie::Contiguous, |i| (i % 130) as f64);
            let mut loss = Tensor::canary(cpu, DType::F32, &[200], Lie::Contiguous);
            let mut lse = Tensor::canary(cpu, DType::F32, &[200], Lie::Contiguous);
            cpu.cross_entropy(&p, x.view(), target.view(), &mut loss.view_mut(), &mut lse.view_mut()).unwrap();
            let mut dx = Tensor::canary(cpu, DType::F32, &[200, 130], Lie::Contiguous);
            let g = loss.view();
            cpu.cross_entropy_backward(&p, x.view(), target.view(), lse.view(), g, &mut dx.view_mut()).unwrap();
            [loss.bytes(cpu), lse.bytes(cpu), dx.bytes(cpu)].concat()
        });
    }
}
