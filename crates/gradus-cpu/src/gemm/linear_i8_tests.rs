//! Tests that compare products with rounded floats with plain loops, for tails of every size.

use gradus_backend::{Backend, DType};

use crate::CpuBackend;
use crate::testing::{Lie, Tensor, backends, integers, noise};

/// The operands of a product: `x`, `w`, `sums`, `scale` and `bias`.
struct Operands([Tensor; 5]);

impl Operands {
    /// With `adjacent`, the columns of `w` are contiguous; otherwise operands lie in several ways.
    fn new(
        cpu: &CpuBackend,
        [g, m, n, k]: [usize; 4],
        adjacent: bool,
        x: impl FnMut(usize) -> f64,
        largest: u32,
    ) -> Operands {
        let lie = |i: usize| if adjacent { Lie::Contiguous } else { Lie::ALL[(i + m + n) % 4] };
        let mut w = match adjacent {
            true => Tensor::new(cpu, DType::I8, &[g, n, k], Lie::Contiguous, integers(2, largest)),
            false => Tensor::new(cpu, DType::I8, &[g, k, n], lie(1), integers(2, largest)),
        };
        if adjacent {
            w.layout = w.layout.transpose(1, 2).unwrap();
        }
        let of_w = w.values(cpu);
        let sum = |i: usize| (0..k).map(|p| of_w[(i / n * k + p) * n + i % n]).sum::<f64>();
        Operands([
            Tensor::new(cpu, DType::F32, &[g, m, k], lie(0), x),
            w,
            Tensor::new(cpu, DType::I32, &[g, n], lie(2), sum),
            Tensor::new(cpu, DType::F32, &[g, n], lie(3), |i| 0.001 * (i % 7 + 1) as f64),
            Tensor::new(cpu, DType::F32, &[g, n], lie(1), noise(3)),
        ])
    }

    fn product(&self, cpu: &CpuBackend, add: bool, out: &mut Tensor) {
        let [x, w, sums, scale, bias] = self.0.each_ref().map(Tensor::view);
        cpu.linear_i8(add, x, w, sums, scale, bias, &mut out.view_mut()).unwrap();
    }

    /// The product by a plain loop, which rounds to f32 where the definition has an operation.
    fn expected(&self, cpu: &CpuBackend, [g, m, n, k]: [usize; 4], old: Option<&[f64]>) -> Vec<f64> {
        let floats = |t: &Tensor| t.values(cpu).into_iter().map(|v| v as f32).collect::<Vec<f32>>();
        let [x, _, _, scale, bias] = self.0.each_ref().map(floats);
        let w = self.0[1].values(cpu);
        let mut out = Vec::new();
        for g in 0..g {
            let x = &x[g * m * k..(g + 1) * m * k];
            let nan = x.iter().any(|v| v.is_nan());
            let lo = x.iter().fold(0f32, |lo, &v| lo.min(v));
            let hi = x.iter().fold(0f32, |hi, &v| hi.max(v));
            let x_scale = if nan { f32::NAN } else { (hi - lo) / 255.0 };
            let x_scale = if x_scale == 0.0 { 1.0 } else { x_scale };
            let zero = (-lo / x_scale).round_ties_even().clamp(0.0, 255.0);
            for i in 0..m {
                let row = &x[i * k..(i + 1) * k];
                let row: Vec<i64> = row
                    .iter()
                    .map(|v| ((v / x_scale).round_ties_even() + zero).clamp(0.0, 255.0) as i64 - zero as i64)
                    .collect();
                for j in 0..n {
                    let sum: i64 = (0..k).map(|p| row[p] * w[(g * k + p) * n + j] as i64).sum();
                    let y = sum as f32 * (x_scale * scale[g * n + j]) + bias[g * n + j];
                    out.push(f64::from(match old {
                        Some(old) => old[out.len()] as f32 + y,
                        None => y,
                    }));
                }
            }
        }
        out
    }
}

#[track_caller]
fn check(backends: &[CpuBackend], size: [usize; 4], adjacent: bool, x: impl Fn(usize) -> f64, largest: u32) {
    let [g, m, n, _] = size;
    for cpu in backends {
        let operands = Operands::new(cpu, size, adjacent, &x, largest);
        for add in [false, true] {
            let lie = if adjacent { Lie::Contiguous } else { Lie::ALL[(m + n) % 4] };
            let mut out = Tensor::new(cpu, DType::F32, &[g, m, n], lie, noise(5));
            let old = out.values(cpu);
            let expected = operands.expected(cpu, size, add.then_some(&old));
            operands.product(cpu, add, &mut out);
            let same = |(a, b): (f64, f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let got = out.values(cpu);
            assert!(got.iter().copied().zip(expected).all(same), "{size:?} adjacent {adjacent} add {add}");
        }
    }
}

fn floats(i: usize) -> f64 {
    f64::from((noise(7)(i) * 3.0 + 0.4) as f32)
}

#[test]
fn products_with_tails_of_every_size_have_the_bits_of_a_plain_loop() {
    let all = backends();
    for k in 1..=130 {
        check(&all, [2, 5, 19, k], true, floats, 127);
    }
    for n in 1..=36 {
        for m in [1, 3, 4, 6] {
            check(&all, [1, m, n, 70], true, floats, 127);
        }
    }
    // Several tasks.
    for size in [[2, 1, 1030, 300], [1, 70, 200, 130], [3, 150, 40, 64]] {
        check(&all, size, true, floats, 127);
    }
}

#[test]
fn operands_may_lie_in_any_way_and_be_empty() {
    let all = backends();
    for size in [[2, 3, 5, 9], [1, 4, 6, 70], [2, 1, 17, 33], [3, 2, 2, 1], [0, 2, 3, 4], [2, 0, 3, 4], [2, 3, 0, 4]] {
        check(&all, size, false, floats, 127);
    }
    for adjacent in [false, true] {
        check(&all, [2, 3, 4, 0], adjacent, floats, 127);
    }
}

#[test]
fn every_range_is_rounded_as_it_is_defined() {
    let all = backends();
    let ranges: [fn(usize) -> f64; 9] = [
        |_| 0.0,
        |i| -(i as f64) - 1.0,
        |i| i as f64 + 1.0,
        |i| if i == 17 { f64::NAN } else { i as f64 },
        |i| if i == 40 { f64::INFINITY } else { -1.0 },
        |i| if i == 40 { f64::NEG_INFINITY } else { i as f64 },
        |i| if i % 2 == 0 { f64::from(f32::MAX) } else { f64::from(f32::MIN) },
        |i| 1e-44 * (i % 5) as f64,
        // Halves between two integers, if a group has the ends -127.5 and 127.5.
        |i| (i % 256) as f64 - 127.5,
    ];
    for x in ranges {
        for adjacent in [false, true] {
            check(&all, [1, 8, 9, 64], adjacent, x, 128);
        }
    }
}
