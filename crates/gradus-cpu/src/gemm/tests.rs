//! Tests that compare GEMM with plain loops, and that repeat it in ways that must not change a single bit.

use gradus_backend::{Backend, DType, ErrorKind, Layout, Scalar, Shape};

use super::Real;
use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, backends, float, integers, noise};

/// Computes `alpha * a @ b + beta * c` in f64, for one batch axis.
fn naive([s, m, n, k]: [usize; 4], alpha: f64, a: &[f64], b: &[f64], beta: f64, c: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for s in 0..s {
        for i in 0..m {
            for j in 0..n {
                let dot: f64 = (0..k).map(|p| a[(s * m + i) * k + p] * b[(s * k + p) * n + j]).sum();
                let old = if beta == 0.0 { 0.0 } else { beta * c[(s * m + i) * n + j] };
                out.push(alpha * dot + old);
            }
        }
    }
    out
}

const SIZES: [[usize; 4]; 15] = [
    [1, 1, 1, 1],
    [1, 4, 4, 4],
    [2, 1, 33, 5],
    [2, 37, 1, 9],
    [1, 7, 17, 2],
    [3, 5, 3, 1],
    [1, 13, 40, 50],
    [1, 2, 70, 400],
    [1, 70, 3, 390],
    [2, 50, 35, 31],
    [1, 100, 130, 64],
    [1, 200, 140, 40],
    [0, 3, 4, 5],
    [2, 0, 3, 4],
    [2, 3, 4, 0],
];

#[test]
fn small_integers_are_exact_in_every_dtype_and_layout() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let range = if dtype.size() == 1 { 1 } else { 3 };
        // f16 and bf16 hold sums of products exactly only while they are small.
        let sizes = SIZES.iter().filter(|s| dtype.size() > 2 || s[3] < 15);
        for (t, &size) in sizes.enumerate() {
            let [s, m, n, k] = size;
            for (l, lie) in Lie::ALL.into_iter().enumerate() {
                let signed = |seed| {
                    let mut f = integers(seed, range);
                    move |i| if dtype.is_signed() { f(i) } else { f(i).abs() }
                };
                let a = Tensor::new(&cpu, dtype, &[s, m, k], lie, signed(1));
                let b = Tensor::new(&cpu, dtype, &[s, k, n], Lie::ALL[(l + t) % 4], signed(2));
                let mut c = Tensor::new(&cpu, dtype, &[s, m, n], Lie::ALL[(l + t / 4) % 4], signed(3));
                let (av, bv, cv) = (a.values(&cpu), b.values(&cpu), c.values(&cpu));
                cpu.gemm(Scalar::Int(2), a.view(), b.view(), Scalar::Int(3), &mut c.view_mut()).unwrap();
                assert_eq!(c.values(&cpu), naive(size, 2.0, &av, &bv, 3.0, &cv), "{dtype} {size:?} {lie:?}");
                c.assert_gaps_untouched(&cpu);
            }
        }
    }
}

#[test]
fn random_products_agree_with_f64() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (dtype, eps) in [(DType::F64, 1e-13), (DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 1e-2)] {
        for (t, size) in SIZES.into_iter().enumerate() {
            let [s, m, n, k] = size;
            let a = Tensor::new(&cpu, dtype, &[s, m, k], Lie::ALL[t % 4], noise(1));
            let b = Tensor::new(&cpu, dtype, &[s, k, n], Lie::ALL[t / 2 % 4], noise(2));
            let mut c = Tensor::new(&cpu, dtype, &[s, m, n], Lie::ALL[t / 3 % 4], noise(3));
            let want = naive(size, -0.5, &a.values(&cpu), &b.values(&cpu), 0.25, &c.values(&cpu));
            cpu.gemm(float(-0.5), a.view(), b.view(), float(0.25), &mut c.view_mut()).unwrap();
            assert_close(&c.values(&cpu), &want, eps);
        }
    }
}

#[test]
fn beta_zero_does_not_read_c_and_no_steps_scale_it() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let a = Tensor::new(&cpu, dtype, &[3, 4], Lie::Contiguous, noise(1));
        let b = Tensor::new(&cpu, dtype, &[4, 5], Lie::Contiguous, noise(2));
        let mut c = Tensor::new(&cpu, dtype, &[3, 5], Lie::Contiguous, |_| f64::NAN);
        cpu.gemm(float(1.0), a.view(), b.view(), float(0.0), &mut c.view_mut()).unwrap();
        assert!(c.values(&cpu).iter().all(|v| v.is_finite()));
        let a = Tensor::new(&cpu, dtype, &[3, 0], Lie::Contiguous, noise(1));
        let b = Tensor::new(&cpu, dtype, &[0, 5], Lie::Contiguous, noise(2));
        let mut c = Tensor::new(&cpu, dtype, &[3, 5], Lie::Contiguous, |i| i as f64);
        cpu.gemm(float(1.0), a.view(), b.view(), float(-2.0), &mut c.view_mut()).unwrap();
        assert_eq!(c.values(&cpu), (0..15).map(|i| -2.0 * i as f64).collect::<Vec<_>>());
        cpu.gemm(float(1.0), a.view(), b.view(), float(0.0), &mut c.view_mut()).unwrap();
        assert_eq!(c.values(&cpu), [0.0; 15]);
    }
}

#[test]
fn nan_and_infinity_are_not_skipped_by_zeros() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    for m in [1, 40] {
        let a = Tensor::new(&cpu, DType::F32, &[m, 3], Lie::Contiguous, |_| 0.0);
        let b = Tensor::new(&cpu, DType::F32, &[3, 2], Lie::Contiguous, |i| {
            [1.0, f64::NAN, 2.0, 1.0, 3.0, f64::INFINITY][i]
        });
        let mut c = Tensor::canary(&cpu, DType::F32, &[m, 2], Lie::Contiguous);
        cpu.gemm(float(1.0), a.view(), b.view(), float(0.0), &mut c.view_mut()).unwrap();
        for row in c.values(&cpu).chunks(2) {
            assert!(row[0] == 0.0 && row[1].is_nan());
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let sizes = [[1, 300, 500], [65, 67, 800], [200, 300, 70], [300, 5, 20]].map(|sizes| (sizes, Lie::Transposed));
        // Few rows, whose columns are read in place as far as they fill vectors.
        let thin = [1, 2, 3].map(|m| ([m, 250, 500], Lie::Contiguous));
        for ([m, n, k], lie) in sizes.into_iter().chain(thin) {
            assert_same_bits(|cpu| {
                let a = Tensor::new(cpu, dtype, &[m, k], Lie::Contiguous, noise(1));
                let b = Tensor::new(cpu, dtype, &[k, n], lie, noise(2));
                let mut c = Tensor::new(cpu, dtype, &[m, n], Lie::Contiguous, noise(3));
                cpu.gemm(float(0.3), a.view(), b.view(), float(0.7), &mut c.view_mut()).unwrap();
                c.bytes(cpu)
            });
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let k = 1000;
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for n in [1, 3, 8, 17, 100, 130, 144, 250] {
            for lie in [Lie::Contiguous, Lie::Transposed] {
                let b = Tensor::new(&cpu, dtype, &[k, n], lie, noise(2));
                let a = Tensor::new(&cpu, dtype, &[200, k], Lie::Contiguous, noise(1));
                let rows = |m: usize| {
                    let layout = a.layout.narrow(0, 0, m).unwrap();
                    let mut c = Tensor::new(&cpu, dtype, &[m, n], Lie::Contiguous, noise(3));
                    cpu.gemm(float(0.3), a.view().with(&layout), b.view(), float(0.7), &mut c.view_mut()).unwrap();
                    c.bytes(&cpu)
                };
                let all = rows(200);
                for m in [1, 2, 3, 4, 7, 32, 64, 199] {
                    assert!(all.starts_with(&rows(m)), "{dtype} {lie:?} m {m} n {n}");
                }
            }
        }
    }
}

#[test]
fn rows_that_compete_for_a_set_of_the_cache_have_the_same_bits() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let (m, n, k) = (40, 70, 500);
    let b = Tensor::new(&cpu, DType::F32, &[k, n], Lie::Contiguous, noise(2));
    // The same columns are multiplied twice: as parts of rows of 4 KiB, which are packed, and as parts of longer rows,
    // which are read in place.
    let product = |columns: usize| {
        let mut f = noise(1);
        let values: Vec<f64> = (0..m * k).map(&mut f).collect();
        let value = |i: usize| if i % columns < k { values[i / columns * k + i % columns] } else { 0.0 };
        let a = Tensor::new(&cpu, DType::F32, &[m, columns], Lie::Contiguous, value);
        let layout = a.layout.narrow(1, 0, k).unwrap();
        let mut c = Tensor::canary(&cpu, DType::F32, &[m, n], Lie::Contiguous);
        cpu.gemm(float(1.0), a.view().with(&layout), b.view(), float(0.0), &mut c.view_mut()).unwrap();
        c.bytes(&cpu)
    };
    assert_eq!(product(1024), product(1030));
}

#[test]
fn stretched_batches_are_read_in_place() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let a = Tensor::new(&cpu, DType::F32, &[2, 3, 4, 5], Lie::Contiguous, integers(1, 4));
    let b = Tensor::new(&cpu, DType::F32, &[5, 6], Lie::Transposed, integers(2, 4));
    let stretched = b.layout.expand(Shape::new(&[2, 3, 5, 6]).unwrap()).unwrap();
    let mut c = Tensor::canary(&cpu, DType::F32, &[2, 3, 4, 6], Lie::Contiguous);
    cpu.gemm(float(1.0), a.view(), b.view().with(&stretched), float(0.0), &mut c.view_mut()).unwrap();
    let want = naive([1, 24, 6, 5], 1.0, &a.values(&cpu), &b.values(&cpu), 0.0, &[]);
    assert_eq!(c.values(&cpu), want);
    let mut c = Tensor::canary(&cpu, DType::F32, &[2, 3, 4, 6], Lie::Flipped);
    cpu.gemm(float(1.0), a.view(), b.view().with(&stretched), float(0.0), &mut c.view_mut()).unwrap();
    assert_eq!(c.values(&cpu), want);
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let t = |dtype, dims: &[usize]| Tensor::new(&cpu, dtype, dims, Lie::Contiguous, |_| 1.0);
    let run = |a: &Tensor, b: &Tensor, mut c: Tensor| {
        let e = cpu.gemm(float(1.0), a.view(), b.view(), float(0.0), &mut c.view_mut()).unwrap_err();
        e.kind().clone()
    };
    let f = DType::F32;
    assert_eq!(run(&t(f, &[2, 3]), &t(f, &[4, 5]), t(f, &[2, 5])), ErrorKind::ShapeMismatch);
    assert_eq!(run(&t(f, &[2, 3]), &t(f, &[3, 5]), t(f, &[2, 4])), ErrorKind::ShapeMismatch);
    assert_eq!(run(&t(f, &[1, 2, 3]), &t(f, &[2, 3, 5]), t(f, &[2, 2, 5])), ErrorKind::ShapeMismatch);
    assert_eq!(run(&t(f, &[3]), &t(f, &[3]), t(f, &[])), ErrorKind::ShapeMismatch);
    assert_eq!(run(&t(f, &[2, 3]), &t(DType::F64, &[3, 5]), t(f, &[2, 5])), ErrorKind::DTypeMismatch);
    let b = DType::Bool;
    assert_eq!(run(&t(b, &[2, 3]), &t(b, &[3, 5]), t(b, &[2, 5])), ErrorKind::UnsupportedDType);
    let mut c = t(f, &[2, 5]);
    c.layout = Layout::contiguous(Shape::new(&[1, 5]).unwrap()).expand(Shape::new(&[2, 5]).unwrap()).unwrap();
    assert_eq!(run(&t(f, &[2, 3]), &t(f, &[3, 5]), c), ErrorKind::InvalidArgument);
}

#[test]
fn panels_of_a_matrix_give_the_bits_of_the_matrix() {
    let shape = |dims: &[usize]| Shape::new(dims).unwrap();
    for cpu in &backends() {
        for (m, panels, k) in [(1, 1, 3), (1, 4, 400), (2, 3, 17), (3, 9, 40), (7, 5, 800), (16, 66, 64), (200, 10, 90)]
        {
            for (dtype, batch) in [(DType::F32, 1), (DType::F32, 2), (DType::F64, 1), (DType::F16, 1)] {
                let width = if dtype == DType::F64 { f64::panel(cpu.isa()) } else { f32::panel(cpu.isa()) };
                let n = panels * width;
                let a = Tensor::new(cpu, dtype, &[batch, m, k], Lie::Contiguous, noise(1));
                let b = Tensor::new(cpu, dtype, &[batch, k, n], Lie::Contiguous, noise(2));
                // [batch, panels, k, width], and C as [batch, panels, m, width].
                let split = b.layout.reshape(shape(&[batch, k, panels, width])).unwrap().transpose(1, 2).unwrap();
                let mut packed = Tensor::new(cpu, dtype, &[batch, panels, k, width], Lie::Contiguous, noise(3));
                cpu.copy_strided(b.view().with(&split), &mut packed.view_mut()).unwrap();
                let every = a.layout.reshape(shape(&[batch, 1, m, k])).unwrap();
                let every = every.expand(shape(&[batch, panels, m, k])).unwrap();
                for beta in [0.0, 1.0] {
                    let mut want = Tensor::new(cpu, dtype, &[batch, m, n], Lie::Contiguous, noise(4));
                    let mut got = Tensor::new(cpu, dtype, &[batch, m, n], Lie::Contiguous, noise(4));
                    let to = got.layout.reshape(shape(&[batch, m, panels, width])).unwrap().transpose(1, 2).unwrap();
                    let (one, beta) = (Scalar::Int(1), Scalar::Float(beta));
                    cpu.gemm(one, a.view(), b.view(), beta, &mut want.view_mut()).unwrap();
                    cpu.gemm(one, a.view().with(&every), packed.view(), beta, &mut got.view_mut().with(&to)).unwrap();
                    assert_eq!(got.values(cpu), want.values(cpu), "{dtype} {m} {panels} {k}");
                }
            }
        }
    }
}

#[test]
fn integers_of_8_and_16_bits_are_summed_exactly_and_wrap() {
    let dtypes = [DType::I8, DType::U8, DType::I16];
    // Large sizes make several tasks; the last products leave i32.
    let large = [[1, 70, 300, 1030], [1, 1, 1030, 270], [2, 3, 9, 33_030], [1, 5, 11, 150]];
    for cpu in &backends() {
        for (t, size) in SIZES.into_iter().chain(large).enumerate() {
            let [s, m, n, k] = size;
            let da = dtypes[t % 3];
            let ends = |dtype: DType| match dtype {
                DType::I8 => [-128.0, 127.0, 5.0],
                DType::U8 => [255.0, 254.0, 0.0],
                _ => [-32_768.0, -32_767.0, 32_767.0],
            };
            // Every fourth number is one of the ends, and at the end all are.
            let fill = |seed, d: DType| {
                let mut f = integers(seed, 120);
                move |i: usize| match i % 4 {
                    0 => ends(d)[i / 4 % 3],
                    _ if k > 30_000 => ends(d)[0],
                    _ => {
                        if d == DType::U8 {
                            f(i).abs()
                        } else {
                            f(i)
                        }
                    }
                }
            };
            // Large products have all pairs of dtypes.
            let all = t >= SIZES.len();
            let pairs =
                (0..if all { 9 } else { 1 }).flat_map(|p| Lie::ALL.into_iter().enumerate().map(move |l| (p, l)));
            for (p, (l, lie)) in pairs {
                let (da, db) = if all { (dtypes[p % 3], dtypes[p / 3]) } else { (da, dtypes[(t + l) % 3]) };
                let a = Tensor::new(cpu, da, &[s, m, k], Lie::ALL[t % 4], fill(1, da));
                let b = Tensor::new(cpu, db, &[s, k, n], lie, fill(2, db));
                let mut c = Tensor::canary(cpu, DType::I32, &[s, m, n], Lie::ALL[t / 4 % 4]);
                cpu.gemm_i32(a.view(), b.view(), &mut c.view_mut()).unwrap();
                // f64 has all sums here, which stay below 2^46.
                let sums = naive(size, 1.0, &a.values(cpu), &b.values(cpu), 0.0, &[]);
                let want: Vec<f64> = sums.into_iter().map(|sum| f64::from(sum as i64 as i32)).collect();
                assert_eq!(c.values(cpu), want, "{da} {db} {size:?} {lie:?}");
                c.assert_gaps_untouched(cpu);
            }
        }
    }
}
