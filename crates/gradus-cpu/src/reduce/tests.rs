//! Tests of reductions against plain loops in f64, over layouts, axes, threads and instruction sets.

use gradus_backend::*;

use super::{arg_reduce, reduce};
use crate::CpuBackend;
use crate::isa::Level;
use crate::testing::{Lie, Tensor, integers, noise};

fn backends() -> Vec<CpuBackend> {
    let mut all = vec![CpuBackend::with_threads(2).unwrap(), CpuBackend::with_threads(1).unwrap()];
    all.extend(Level::ALL.iter().filter_map(|l| CpuBackend::with_threads(3).unwrap().with_isa(l.name()).ok()));
    all
}

const OPS: [ReduceOp; 6] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Any, ReduceOp::All];

fn out_dtype(op: ReduceOp, d: DType) -> DType {
    match op {
        ReduceOp::Sum | ReduceOp::Prod => d.accumulate(),
        ReduceOp::Max | ReduceOp::Min => d,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    }
}

/// Returns, for each kept element, the elements that are reduced to it. Both are in row-major order.
fn groups(x: &[f64], dims: &[usize], axes: Axes) -> Vec<Vec<f64>> {
    let shape = Shape::new(dims).unwrap();
    let kept = Layout::contiguous(shape.reduced(axes, true));
    let mut out = vec![Vec::new(); kept.numel()];
    let places = kept.expand(shape).unwrap();
    for (&v, at) in x.iter().zip(places.positions()) {
        out[at].push(v);
    }
    out
}

fn naive(op: ReduceOp, x: &[f64]) -> f64 {
    let nan = x.iter().any(|v| v.is_nan());
    match op {
        ReduceOp::Sum => x.iter().sum(),
        ReduceOp::Prod => x.iter().product(),
        ReduceOp::Max | ReduceOp::Min if nan => f64::NAN,
        ReduceOp::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => x.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceOp::Any => f64::from(u8::from(x.iter().any(|&v| v != 0.0))),
        ReduceOp::All => f64::from(u8::from(x.iter().all(|&v| v != 0.0))),
    }
}

fn axes_of(mask: usize, rank: usize) -> Axes {
    (0..rank).filter(|a| mask >> a & 1 == 1).fold(Axes::NONE, Axes::with)
}

fn run(cpu: &CpuBackend, op: ReduceOp, x: &Tensor, axes: Axes, lie: Lie) -> Tensor {
    let dims = x.layout.shape().reduced(axes, true);
    let mut out = Tensor::canary(cpu, out_dtype(op, x.dtype), &dims, lie);
    reduce(cpu, op, x.view(), axes, &mut out.view_mut()).unwrap();
    out.assert_gaps_untouched(cpu);
    out
}

#[test]
fn every_op_dtype_axes_and_layout_agrees_with_a_plain_loop() {
    let cpu = &backends()[0];
    let dims = [3, 10, 12];
    for op in OPS {
        for dtype in DType::ALL {
            for (turn, mask) in (0..8).enumerate() {
                let axes = axes_of(mask, 3);
                let lie = Lie::ALL[turn % 4];
                // Small integers, so sums are exact in any order. The factors of products are powers of two, so
                // products are exact unless they wrap or leave the dtype's range.
                let x = match dtype {
                    DType::Bool => Tensor::new(cpu, dtype, &dims, lie, |i| f64::from(u8::from(i * 7 % 5 > 1))),
                    _ if op == ReduceOp::Prod => Tensor::new(cpu, dtype, &dims, lie, |i| {
                        [1.0, 2.0, 1.0, if dtype.is_float() { 0.5 } else { 1.0 }][i * 5 % 4]
                    }),
                    d if d.is_signed() => Tensor::new(cpu, dtype, &dims, lie, integers(3, 4)),
                    _ => Tensor::new(cpu, dtype, &dims, lie, |i| (i * 7 % 5) as f64),
                };
                let got = run(cpu, op, &x, axes, Lie::ALL[(turn + 1) % 4]).values(cpu);
                for (g, group) in got.iter().zip(groups(&x.values(cpu), &dims, axes)) {
                    let want = naive(op, &group);
                    let close =
                        *g == want || ((g - want).abs() <= want.abs() * 0.01 && dtype.size() == 2 && dtype.is_float());
                    let wrapped = op == ReduceOp::Prod && (dtype.is_int() || !(1e-4..65504.0).contains(&want));
                    assert!(close || wrapped, "{op:?} {dtype} {axes:?} {lie:?}: {g} for {want}");
                }
            }
        }
    }
}

#[test]
fn sums_are_as_exact_as_a_tree_promises() {
    let cpu = &backends()[0];
    for dims in [[1, 300_000], [300_000, 1], [70_000, 9], [5, 70_000], [4097, 64], [130, 4096]] {
        let x = Tensor::new(cpu, DType::F32, &dims, Lie::Contiguous, noise(5));
        let values = x.values(cpu);
        for mask in 1..4 {
            let axes = axes_of(mask, 2);
            let got = run(cpu, ReduceOp::Sum, &x, axes, Lie::Contiguous).values(cpu);
            for (g, group) in got.iter().zip(groups(&values, &dims, axes)) {
                let want: f64 = group.iter().sum();
                let size: f64 = group.iter().map(|v| v.abs()).sum();
                // Each lane takes at most 64 additions, and then a tree combines the results.
                let steps = (group.len() as f64 / 64.0).min(64.0) + (group.len() as f64).log2() + 1.0;
                assert!((g - want).abs() <= size * steps * 2f64.powi(-24), "{dims:?} {axes:?}: {g} for {want}");
            }
        }
    }
}

#[test]
fn a_result_depends_on_its_own_elements_only() {
    // The same numbers are a row, a column, a strided row and part of a batch, on several numbers of threads and every
    // instruction set.
    for n in [1, 5, 63, 64, 65, 1000, 4096, 4097, 9000, 70_000, 200_001] {
        let mut first: Option<Vec<u8>> = None;
        for cpu in &backends() {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Prod] {
                if op != ReduceOp::Sum && n > 5000 {
                    continue;
                }
                let value = |i: usize| noise(9)(i) + if op == ReduceOp::Prod { 1.5 } else { 0.0 };
                let row = Tensor::new(cpu, DType::F32, &[n], Lie::Contiguous, value);
                let strided = Tensor::new(cpu, DType::F32, &[n], Lie::Spaced, value);
                let flipped = Tensor::new(cpu, DType::F32, &[n], Lie::Flipped, value);
                let columns = Tensor::new(cpu, DType::F32, &[n, 9], Lie::Contiguous, |i| value(i / 9) + (i % 9) as f64);
                let rows = if n <= 4096 { 21 } else { 3 };
                let batch = Tensor::new(cpu, DType::F32, &[rows, n], Lie::Contiguous, |i| value(i % n));
                let want = run(cpu, op, &row, Axes::one(0), Lie::Contiguous).bytes(cpu);
                assert_eq!(run(cpu, op, &strided, Axes::one(0), Lie::Contiguous).bytes(cpu), want, "{n} {op:?}");
                assert_eq!(run(cpu, op, &flipped, Axes::one(0), Lie::Contiguous).bytes(cpu), want, "{n} {op:?}");
                assert_eq!(run(cpu, op, &columns, Axes::one(0), Lie::Contiguous).bytes(cpu)[..4], want, "{n} {op:?}");
                let each = run(cpu, op, &batch, Axes::one(1), Lie::Contiguous).bytes(cpu);
                assert_eq!(each, want.repeat(rows), "{n} {op:?}");
                if op == ReduceOp::Sum {
                    assert_eq!(first.get_or_insert_with(|| want.clone()), &want, "{n} on {cpu:?}");
                }
            }
        }
    }
}

#[test]
fn nothing_sums_to_zero_and_has_no_largest() {
    let cpu = &backends()[0];
    let x = Tensor::new(cpu, DType::F32, &[3, 0, 2], Lie::Contiguous, |_| 0.0);
    for (op, want) in [(ReduceOp::Sum, 0.0), (ReduceOp::Prod, 1.0), (ReduceOp::Any, 0.0), (ReduceOp::All, 1.0)] {
        assert_eq!(run(cpu, op, &x, Axes::one(1), Lie::Contiguous).values(cpu), [want; 6]);
        assert_eq!(run(cpu, op, &x, Axes::one(1).with(2), Lie::Contiguous).values(cpu), [want; 3]);
        assert!(run(cpu, op, &x, Axes::one(0), Lie::Contiguous).values(cpu).is_empty());
    }
    let mut out = Tensor::canary(cpu, DType::F32, &[3, 1, 2], Lie::Contiguous);
    let e = reduce(cpu, ReduceOp::Max, x.view(), Axes::one(1), &mut out.view_mut()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::InvalidArgument);
    let mut index = Tensor::canary(cpu, DType::I64, &[3, 1, 2], Lie::Contiguous);
    assert!(arg_reduce(cpu, ArgReduceOp::Max, x.view(), 1, &mut index.view_mut()).is_err());
}

#[test]
fn nan_wins_in_extremes() {
    let cpu = &backends()[0];
    for dims in [[1, 300], [300, 1], [300, 20]] {
        let x = Tensor::new(cpu, DType::F32, &dims, Lie::Contiguous, |i| if i == 200 { f64::NAN } else { i as f64 });
        for op in [ReduceOp::Max, ReduceOp::Min] {
            assert!(run(cpu, op, &x, Axes::all(2), Lie::Contiguous).values(cpu)[0].is_nan());
        }
    }
    let zeros = Tensor::new(cpu, DType::F32, &[2], Lie::Contiguous, |i| [-0.0, 0.0][i]);
    assert_eq!(run(cpu, ReduceOp::Max, &zeros, Axes::one(0), Lie::Contiguous).bytes(cpu), 0f32.to_ne_bytes());
    assert_eq!(run(cpu, ReduceOp::Min, &zeros, Axes::one(0), Lie::Contiguous).bytes(cpu), (-0f32).to_ne_bytes());
}

#[test]
fn positions_of_extremes_are_the_first_and_nan_wins() {
    let cpu = &backends()[0];
    let dims = [4, 33, 70];
    for dtype in DType::ALL {
        for lie in Lie::ALL {
            let x = Tensor::new(cpu, dtype, &dims, lie, |i| match i {
                300 | 5000 if dtype.is_float() => f64::NAN,
                _ if dtype == DType::Bool => f64::from(u8::from(i % 3 == 1)),
                _ => ((i * 7919 % 1009) / 10) as f64,
            });
            let values = x.values(cpu);
            for axis in 0..3 {
                for (op, sign) in [(ArgReduceOp::Max, 1.0), (ArgReduceOp::Min, -1.0)] {
                    let shape = x.layout.shape().with(axis, 1).unwrap();
                    let mut out = Tensor::canary(cpu, DType::I64, &shape, lie);
                    arg_reduce(cpu, op, x.view(), axis, &mut out.view_mut()).unwrap();
                    out.assert_gaps_untouched(cpu);
                    for (g, group) in out.values(cpu).iter().zip(groups(&values, &dims, Axes::one(axis))) {
                        let mut best = 0;
                        for (i, v) in group.iter().enumerate() {
                            let beats = v * sign > group[best] * sign || (v.is_nan() && !group[best].is_nan());
                            best = if beats { i } else { best };
                        }
                        assert_eq!(*g, best as f64, "{dtype} {lie:?} {op:?} {axis}");
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = &backends()[0];
    let x = Tensor::new(cpu, DType::I32, &[2, 3], Lie::Contiguous, |i| i as f64);
    let mut out = Tensor::canary(cpu, DType::I32, &[2, 1], Lie::Contiguous);
    let mut kind = |op, axes, x: View<'_>| reduce(cpu, op, x, axes, &mut out.view_mut()).unwrap_err().kind().clone();
    assert_eq!(kind(ReduceOp::Sum, Axes::one(1), x.view()), ErrorKind::DTypeMismatch);
    assert_eq!(kind(ReduceOp::Max, Axes::one(0), x.view()), ErrorKind::ShapeMismatch);
    assert_eq!(kind(ReduceOp::Max, Axes::one(5), x.view()), ErrorKind::InvalidAxis);
    assert!(arg_reduce(cpu, ArgReduceOp::Max, x.view(), 1, &mut out.view_mut()).is_err());
    assert!(arg_reduce(cpu, ArgReduceOp::Max, x.view(), 2, &mut out.view_mut()).is_err());
}
