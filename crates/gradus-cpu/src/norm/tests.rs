//! Tests of normalisation against plain loops.

use gradus_backend::{Axes, Backend, DType, ErrorKind};

use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, noise};

fn axes(list: &[usize]) -> Axes {
    list.iter().fold(Axes::NONE, |set, &a| set.with(a))
}

/// Returns the group that each element belongs to, and the number of groups.
fn groups(dims: &[usize], reduced: Axes) -> (Vec<usize>, usize) {
    let kept: Vec<usize> = dims.iter().enumerate().map(|(a, &d)| if reduced.contains(a) { 1 } else { d }).collect();
    let group = |mut i: usize| {
        let mut index = vec![0; dims.len()];
        for a in (0..dims.len()).rev() {
            index[a] = i % dims[a];
            i /= dims[a];
        }
        index.iter().zip(&kept).fold(0, |g, (&i, &d)| g * d + i.min(d - 1))
    };
    ((0..dims.iter().product()).map(group).collect(), kept.iter().product())
}

type Case = (&'static [usize], &'static [usize], &'static [usize]);

/// Shapes, axes, and the shape of scale and shift.
const CASES: [Case; 8] = [
    (&[5, 33], &[1], &[33]),
    (&[3, 4, 6, 7], &[0, 2, 3], &[4, 1, 1]),
    (&[2, 3, 20], &[1, 2], &[3, 20]),
    (&[40, 6], &[0], &[6]),
    (&[2, 2500], &[1], &[2500]),
    (&[7], &[], &[1]),
    (&[3, 0, 2], &[2], &[2]),
    (&[3, 0], &[1], &[1]),
];

#[test]
fn forward_and_backward_agree_with_f64() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let types = [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 6e-2)];
    for (t, (dims, reduced, affine)) in CASES.into_iter().enumerate() {
        for (d, (dtype, tolerance)) in types.into_iter().enumerate() {
            for (rms, with_affine) in [(false, true), (true, true), (false, false)] {
                let lie = |i: usize| Lie::ALL[(t + d + i) % 4];
                let (set, eps) = (axes(reduced), 1e-3);
                let mut numbers = noise(1);
                let x = Tensor::new(&cpu, dtype, dims, lie(0), |i| 2.0 * numbers(i) + 0.5);
                let scale = Tensor::new(&cpu, dtype, affine, lie(1), noise(2));
                let shift = Tensor::new(&cpu, dtype, affine, lie(2), noise(3));
                let (a, b) = (with_affine.then(|| scale.view()), with_affine.then(|| shift.view()));
                let kept: Vec<usize> =
                    dims.iter().enumerate().map(|(a, &n)| if set.contains(a) { 1 } else { n }).collect();
                let mut out = Tensor::canary(&cpu, dtype, dims, lie(3));
                let mut mean = Tensor::canary(&cpu, dtype.compute(), &kept, lie(1));
                let mut rstd = Tensor::canary(&cpu, dtype.compute(), &kept, lie(2));
                let (o, m, r) = (&mut out.view_mut(), &mut mean.view_mut(), &mut rstd.view_mut());
                cpu.normalize(rms, set, eps, x.view(), a, b, o, m, r).unwrap();
                out.assert_gaps_untouched(&cpu);
                let g = Tensor::new(&cpu, dtype, dims, lie(1), noise(4));
                let mut dx = Tensor::canary(&cpu, dtype, dims, lie(0));
                cpu.normalize_backward(rms, set, g.view(), x.view(), a, mean.view(), rstd.view(), &mut dx.view_mut())
                    .unwrap();
                dx.assert_gaps_untouched(&cpu);

                let (xv, gv, (group, count)) = (x.values(&cpu), g.values(&cpu), groups(dims, set));
                let stretched = |t: &Tensor| -> Vec<f64> {
                    let v = t.layout.expand(*x.layout.shape()).unwrap();
                    Tensor { buffer: cpu_copy(&cpu, t), dtype, layout: v }.values(&cpu)
                };
                let (av, bv) = (stretched(&scale), stretched(&shift));
                let (mut want, mut want_dx) = (vec![0.0; xv.len()], vec![0.0; xv.len()]);
                let (mut means, mut rstds) = (vec![], vec![]);
                for k in 0..count {
                    let members: Vec<usize> = (0..xv.len()).filter(|&i| group[i] == k).collect();
                    let n = members.len() as f64;
                    let m = if rms { 0.0 } else { members.iter().map(|&i| xv[i]).sum::<f64>() / n };
                    let r = 1.0 / (members.iter().map(|&i| (xv[i] - m).powi(2)).sum::<f64>() / n + eps).sqrt();
                    means.push(m);
                    rstds.push(r);
                    let h = |i: usize| gv[i] * if with_affine { av[i] } else { 1.0 };
                    let norm = |i: usize| (xv[i] - m) * r;
                    let mh = if rms { 0.0 } else { members.iter().map(|&i| h(i)).sum::<f64>() / n };
                    let mhn = members.iter().map(|&i| h(i) * norm(i)).sum::<f64>() / n;
                    for &i in &members {
                        want[i] = if with_affine { norm(i) * av[i] + bv[i] } else { norm(i) };
                        want_dx[i] = r * (h(i) - mh - norm(i) * mhn);
                    }
                }
                assert_close(&mean.values(&cpu), &means, 1e-5);
                assert_close(&rstd.values(&cpu), &rstds, 1e-5);
                assert_close(&out.values(&cpu), &want, tolerance);
                assert_close(&dx.values(&cpu), &want_dx, tolerance);
            }
        }
    }
}

/// Returns a copy of a tensor's whole buffer.
fn cpu_copy(cpu: &CpuBackend, t: &Tensor) -> gradus_backend::Buffer {
    let mut to = cpu.alloc(t.buffer.bytes()).unwrap();
    cpu.copy_buffer(&t.buffer, 0, &mut to, 0, t.buffer.bytes()).unwrap();
    to
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    // The shapes have rows that are transposed, rows in chunks and long rows, and columns in one and in several units.
    // All are tested with and without a scale.
    let shapes = [([64, 130], 1), ([130, 64], 0), ([700, 9], 1), ([70, 24], 1), ([9, 700], 1), ([1030, 40], 1)];
    for (dtype, (dims, reduced), scaled) in [DType::F32, DType::F64, DType::BF16]
        .into_iter()
        .flat_map(|d| shapes.map(|s| [(d, s, false), (d, s, true)]))
        .flatten()
    {
        assert_same_bits(|cpu| {
            let (set, compute) = (axes(&[reduced]), dtype.compute());
            let [x, g] = [1, 2].map(|seed| Tensor::new(cpu, dtype, &dims, Lie::Contiguous, noise(seed)));
            let [mut kept, mut beside] = [dims, dims];
            (kept[reduced], beside[1 - reduced]) = (1, 1);
            let scale = Tensor::new(cpu, dtype, &beside, Lie::Contiguous, noise(3));
            let a = scaled.then(|| scale.view());
            let mut out = Tensor::canary(cpu, dtype, &dims, Lie::Contiguous);
            let [mut mean, mut rstd] = [0, 1].map(|_| Tensor::canary(cpu, compute, &kept, Lie::Contiguous));
            let (o, m, r) = (&mut out.view_mut(), &mut mean.view_mut(), &mut rstd.view_mut());
            cpu.normalize(false, set, 1e-5, x.view(), a, a, o, m, r).unwrap();
            let mut dx = Tensor::canary(cpu, dtype, &dims, Lie::Contiguous);
            let (x, g, m, r) = (x.view(), g.view(), mean.view(), rstd.view());
            cpu.normalize_backward(false, set, g, x, a, m, r, &mut dx.view_mut()).unwrap();
            let [mut dscale, mut dshift] = [0, 1].map(|_| Tensor::canary(cpu, compute, &beside, Lie::Contiguous));
            let (to_scale, to_shift) = (&mut dscale.view_mut(), &mut dshift.view_mut());
            cpu.normalize_affine_backward(g, x, m, r, to_scale, Some(to_shift)).unwrap();
            [out, mean, rstd, dx, dscale, dshift].map(|t| t.bytes(cpu)).concat()
        });
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let t = |dtype, dims: &[usize]| Tensor::new(&cpu, dtype, dims, Lie::Contiguous, |_| 1.0);
    let run = |set, eps, x: Tensor, scale: Tensor, mut mean: Tensor| {
        let mut out = t(x.dtype, &[4, 6]);
        let mut rstd = t(DType::F32, &[4, 1]);
        let (o, m, r) = (&mut out.view_mut(), &mut mean.view_mut(), &mut rstd.view_mut());
        cpu.normalize(false, set, eps, x.view(), Some(scale.view()), None, o, m, r).unwrap_err().kind().clone()
    };
    let (f, one) = (DType::F32, Axes::one(1));
    assert_eq!(run(one, 0.1, t(DType::I32, &[4, 6]), t(DType::I32, &[6]), t(f, &[4, 1])), ErrorKind::UnsupportedDType);
    assert_eq!(run(one, -0.1, t(f, &[4, 6]), t(f, &[6]), t(f, &[4, 1])), ErrorKind::InvalidArgument);
    assert_eq!(run(one, 0.1, t(f, &[4, 6]), t(f, &[5]), t(f, &[4, 1])), ErrorKind::Broadcast);
    assert_eq!(run(one, 0.1, t(f, &[4, 6]), t(f, &[6]), t(f, &[4, 6])), ErrorKind::ShapeMismatch);
    assert_eq!(run(Axes::one(2), 0.1, t(f, &[4, 6]), t(f, &[6]), t(f, &[4, 1])), ErrorKind::InvalidAxis);
}

/// Rows that are adjacent in memory are normalised in blocks, and other rows one by one.
#[test]
fn narrow_rows_have_the_bits_of_rows_that_lie_apart() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for len in [2, 3, 7, 8, 9, 15, 16, 17, 33, 127, 256] {
            for (rms, with_affine) in [(false, true), (true, true), (false, false)] {
                let (dims, set) = ([70, len], axes(&[1]));
                let both = [Lie::Contiguous, Lie::Spaced].map(|lie| {
                    let mut numbers = noise(1);
                    // The squares of one row overflow in f32.
                    let number = |i: usize| numbers(i) * if i / len == 40 { 1e20 } else { 1.0 };
                    let x = Tensor::new(&cpu, dtype, &dims, lie, number);
                    let g = Tensor::new(&cpu, dtype, &dims, lie, noise(4));
                    let scale = Tensor::new(&cpu, dtype, &[len], Lie::Contiguous, noise(2));
                    let shift = Tensor::new(&cpu, dtype, &[len], Lie::Contiguous, noise(3));
                    let (a, b) = (with_affine.then(|| scale.view()), with_affine.then(|| shift.view()));
                    let mut out = Tensor::canary(&cpu, dtype, &dims, Lie::Contiguous);
                    let [mut mean, mut rstd] =
                        [0, 1].map(|_| Tensor::canary(&cpu, dtype.compute(), &[70, 1], Lie::Contiguous));
                    let (o, m, r) = (&mut out.view_mut(), &mut mean.view_mut(), &mut rstd.view_mut());
                    cpu.normalize(rms, set, 1e-5, x.view(), a, b, o, m, r).unwrap();
                    let mut dx = Tensor::canary(&cpu, dtype, &dims, Lie::Contiguous);
                    let (m, r) = (mean.view(), rstd.view());
                    cpu.normalize_backward(rms, set, g.view(), x.view(), a, m, r, &mut dx.view_mut()).unwrap();
                    [out, mean, rstd, dx].map(|t| t.bytes(&cpu))
                });
                assert!(both[0] == both[1], "{dtype} {len} {rms} {with_affine}");
            }
        }
    }
}
