//! Tests that compare attention with the composite in f64, and that repeat it in ways that must not change a single
//! bit.

use gradus_backend::composite::attention as composite;
use gradus_backend::{AttentionParams, Backend, DType, ErrorKind, View};

use super::problem::{QUERIES, SPAN};
use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_close, assert_same_bits, noise};

/// The sizes b, h, hk, lq, lk, d and dv.
type Sizes = [usize; 7];

/// How scores are masked.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    None,
    /// A bool mask of these sizes: a quarter of the keys is hidden, and the first query of each matrix sees none.
    Bool([usize; 4]),
    /// A float mask of these sizes that hides the same keys with -inf.
    Float(DType, [usize; 4]),
}

/// The operands and the results of both passes.
struct Case {
    params: AttentionParams,
    inputs: [Tensor; 4],
    mask: Option<Tensor>,
    /// The tensors out, stats, dq, dk and dv.
    outputs: [Tensor; 5],
}

impl Case {
    fn new(cpu: &CpuBackend, dtype: DType, sizes: Sizes, mask: Mask, causal: bool, lies: [Lie; 2]) -> Case {
        let [b, h, hk, lq, lk, d, dv] = sizes;
        let (q, k, v, out) = ([b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv], [b, h, lq, dv]);
        let mut seed = 0;
        let inputs = [q, k, v, out].map(|dims| {
            seed += 1;
            let mut n = noise(seed);
            Tensor::new(cpu, dtype, &dims, lies[0], |i| 1.5 * n(i))
        });
        let mut n = noise(9);
        let mut hidden = move |dims: [usize; 4], i: usize| {
            n(i) < -0.5 || (dims[2] > 1 && (i / dims[3].max(1)).is_multiple_of(dims[2]))
        };
        let mut values = noise(10);
        let mask = match mask {
            Mask::None => None,
            Mask::Bool(dims) => {
                let keep = |i| f64::from(u8::from(!hidden(dims, i)));
                Some(Tensor::new(cpu, DType::Bool, &dims, lies[1], keep))
            }
            Mask::Float(dtype, dims) => {
                let add = |i| if hidden(dims, i) { f64::NEG_INFINITY } else { values(i) };
                Some(Tensor::new(cpu, dtype, &dims, lies[1], add))
            }
        };
        let outputs = [(out.to_vec(), dtype), ([&out[..3], &[2]].concat(), dtype.compute())]
            .into_iter()
            .chain([q, k, v].map(|dims| (dims.to_vec(), dtype)))
            .map(|(dims, dtype)| Tensor::canary(cpu, dtype, &dims, lies[1]))
            .collect::<Vec<_>>();
        let outputs = outputs.try_into().unwrap_or_else(|_| unreachable!("five outputs"));
        let scale = if causal { -0.6 } else { 0.8 };
        Case { params: AttentionParams { causal, scale }, inputs, mask, outputs }
    }

    /// Returns the same case in f64.
    fn wide(&self, cpu: &CpuBackend) -> Case {
        let wide = |t: &Tensor| {
            let values = t.values(cpu);
            let dtype = if t.dtype == DType::Bool { DType::Bool } else { DType::F64 };
            Tensor::new(cpu, dtype, t.layout.dims(), Lie::Contiguous, |i| values[i])
        };
        Case {
            params: self.params,
            inputs: self.inputs.each_ref().map(wide),
            mask: self.mask.as_ref().map(wide),
            outputs: self.outputs.each_ref().map(|t| Tensor::canary(cpu, DType::F64, t.layout.dims(), Lie::Contiguous)),
        }
    }

    /// Runs both passes, with the native kernels or with the composites.
    fn run(mut self, cpu: &CpuBackend, native: bool) -> Case {
        let Case { params, inputs: [q, k, v, g], mask, outputs: [out, stats, dq, dk, dv] } = &mut self;
        let (q, k, v, g) = (q.view(), k.view(), v.view(), g.view());
        let mask: Option<View<'_>> = mask.as_ref().map(Tensor::view);
        if native {
            cpu.attention(params, q, k, v, mask, &mut out.view_mut(), &mut stats.view_mut()).unwrap();
        } else {
            composite::forward(cpu, params, q, k, v, mask, &mut out.view_mut(), &mut stats.view_mut()).unwrap();
        }
        let (out, stats) = (out.view(), stats.view());
        let (dq, dk, dv) = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
        if native {
            cpu.attention_backward(params, q, k, v, mask, out, stats, g, dq, dk, dv).unwrap();
        } else {
            composite::backward(cpu, params, q, k, v, mask, out, stats, g, dq, dk, dv).unwrap();
        }
        self
    }

    fn bytes(&self, cpu: &CpuBackend) -> Vec<u8> {
        self.outputs.iter().flat_map(|t| t.bytes(cpu)).collect()
    }
}

/// Asserts that the native results agree with those of the composite in f64.
#[track_caller]
fn agrees(cpu: &CpuBackend, dtype: DType, sizes: Sizes, mask: Mask, causal: bool, lies: [Lie; 2]) {
    let case = Case::new(cpu, dtype, sizes, mask, causal, lies);
    let want = case.wide(cpu).run(cpu, false);
    let got = case.run(cpu, true);
    let (fine, rough): (f64, f64) = match dtype {
        DType::F64 => (1e-13, 1e-12),
        DType::F32 => (4e-6, 3e-5),
        DType::F16 => (2e-3, 4e-3),
        _ => (1.5e-2, 3e-2),
    };
    for (i, (got, want)) in got.outputs.iter().zip(&want.outputs).enumerate() {
        got.assert_gaps_untouched(cpu);
        let tolerance = if i == 1 {
            fine.min(4e-6)
        } else if i < 2 {
            fine
        } else {
            rough
        };
        let (got, want) = (got.values(cpu), want.values(cpu));
        // The values are sums of many terms, so the error is relative to the largest value.
        let largest = want.iter().filter(|v| v.is_finite()).fold(1.0, |m: f64, v| m.max(v.abs()));
        let scaled = |v: Vec<f64>| v.into_iter().map(|v| v / largest).collect::<Vec<_>>();
        assert_close(&scaled(got), &scaled(want), tolerance);
    }
}

const F: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

#[test]
fn both_passes_agree_with_the_composites_in_f64() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    let sizes = [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 4, 2, 3, 5, 4, 3],
        [1, 3, 1, 5, 2, 1, 2],
        [2, 2, 2, 1, 70, 8, 8],
        [1, 2, 1, 2, 150, 70, 140],
        [1, 1, 1, 3, 140, 16, 66],
        [1, 2, 1, 100, 130, 16, 33],
        [1, 1, 1, 200, 60, 20, 9],
        [1, 6, 2, 97, 97, 40, 40],
        [2, 2, 1, 13, 12, 0, 3],
        [1, 1, 1, 5, 7, 390, 0],
        [1, 1, 1, 4, 0, 2, 3],
        [1, 2, 1, 0, 3, 2, 2],
        [0, 2, 2, 2, 3, 4, 4],
        [2, 0, 0, 2, 3, 4, 4],
    ];
    for (n, sizes) in sizes.into_iter().enumerate() {
        let [b, h, _, lq, lk, ..] = sizes;
        let masks = [
            Mask::None,
            Mask::Bool([b, h, lq, lk]),
            Mask::Bool([b, 1, 1, lk]),
            Mask::Bool([1, 1, lq, 1]),
            Mask::Float(DType::F32, [1, h, lq, lk]),
            Mask::Float(DType::F64, [b, 1, 1, lk]),
            Mask::Float(DType::BF16, [1, 1, lq, lk]),
        ];
        for (m, mask) in masks.into_iter().enumerate() {
            for (d, dtype) in F.into_iter().enumerate() {
                let lies = [Lie::ALL[(n + m + d) % 4], Lie::ALL[(m + d) % 4]];
                agrees(cpu, dtype, sizes, mask, (n + m + d) % 2 == 0, lies);
            }
        }
    }
}

/// Beside the mask, the scores are lost to rounding, so the weights of a row are all the same.
#[test]
fn rows_of_large_scores_have_equal_weights() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    let (lq, lk, d, dv) = (5, SPAN + 9, 4, 3);
    for native in [true, false] {
        let mut case = Case::new(cpu, DType::F32, [1, 1, 1, lq, lk, d, dv], Mask::None, false, [Lie::Contiguous; 2]);
        let large = [-1e9, 1e9, f64::from(f32::MIN), f64::from(f32::MAX), -1e20];
        case.mask = Some(Tensor::new(cpu, DType::F32, &[1, 1, lq, 1], Lie::Contiguous, |i| large[i]));
        let case = case.run(cpu, native);
        let [_, k, v, g] = case.inputs.each_ref().map(|t| t.values(cpu));
        let [mut dq, mut dv_row] = [vec![0.0; lq * d], vec![0.0; dv]];
        for i in 0..lq {
            let g = &g[i * dv..][..dv];
            let slope = |j: usize| (0..dv).map(|c| g[c] * v[j * dv + c]).sum::<f64>();
            let mean = (0..lk).map(slope).sum::<f64>() / lk as f64;
            for (e, dq) in dq[i * d..][..d].iter_mut().enumerate() {
                let terms = (0..lk).map(|j| (slope(j) - mean) * k[j * d + e]);
                *dq = case.params.scale * terms.sum::<f64>() / lk as f64;
            }
            dv_row.iter_mut().zip(g).for_each(|(dv, g)| *dv += g / lk as f64);
        }
        assert_close(&case.outputs[2].values(cpu), &dq, 3e-6);
        assert_close(&case.outputs[4].values(cpu), &dv_row.repeat(lk), 3e-6);
    }
}

#[test]
fn keys_of_several_spans_and_queries_of_several_blocks_agree() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    let lies = [Lie::Contiguous, Lie::Transposed];
    let (lq, lk) = (QUERIES + 5, 2 * SPAN + 77);
    for causal in [false, true] {
        agrees(cpu, DType::F32, [1, 1, 1, lq, lk, 8, 8], Mask::None, causal, lies);
        agrees(cpu, DType::BF16, [1, 2, 1, lq, lk, 8, 4], Mask::Bool([1, 1, lq, lk]), causal, lies);
        agrees(cpu, DType::F32, [1, 4, 2, 9 * QUERIES, 50, 8, 8], Mask::None, causal, lies);
        agrees(cpu, DType::F32, [1, 1, 1, lk, lk, 4, 4], Mask::None, causal, lies);
    }
    // The largest score is in the last span, after spans that a mask hides from some queries.
    let late = Mask::Float(DType::F32, [1, 1, 3, lk]);
    agrees(cpu, DType::F32, [1, 1, 1, 3, lk, 8, 8], late, false, lies);
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for (dtype, sizes, mask) in [
        (DType::F32, [2, 2, 1, 5 * QUERIES + 7, 300, 40, 24], Mask::None),
        (DType::F32, [1, 1, 1, 40, SPAN + 100, 16, 16], Mask::Bool([1, 1, 40, SPAN + 100])),
        (DType::F64, [1, 2, 2, 110, 130, 17, 9], Mask::Float(DType::F64, [1, 1, 110, 130])),
        (DType::BF16, [1, 2, 1, 110, 130, 17, 9], Mask::None),
        (DType::F32, [1, 2, 1, 1, 150, 64, 66], Mask::None),
        (DType::F64, [1, 2, 1, 3, 150, 64, 66], Mask::None),
    ] {
        for causal in [false, true] {
            assert_same_bits(|cpu| {
                let lies = [Lie::Contiguous; 2];
                Case::new(cpu, dtype, sizes, mask, causal, lies).run(cpu, true).bytes(cpu)
            });
        }
    }
}

/// Returns the contiguous tensor `x` without the first `skip` positions of an axis.
fn tail(cpu: &CpuBackend, x: &Tensor, axis: usize, skip: usize) -> Tensor {
    let part = x.layout.narrow(axis, skip, x.layout.dims()[axis] - skip).unwrap();
    let (values, positions) = (x.values(cpu), part.positions().collect::<Vec<_>>());
    Tensor::new(cpu, x.dtype, part.dims(), Lie::Contiguous, |i| values[positions[i]])
}

#[test]
fn a_sample_alone_has_the_bits_that_it_has_in_a_batch() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let sizes = [3, 2, 1, 100, 70, 16, 16];
        let all = Case::new(cpu, dtype, sizes, Mask::None, true, [Lie::Contiguous; 2]);
        let mut one = Case::new(cpu, dtype, [1, 2, 1, 100, 70, 16, 16], Mask::None, true, [Lie::Contiguous; 2]);
        one.inputs = all.inputs.each_ref().map(|t| tail(cpu, t, 0, 2));
        let (all, one) = (all.run(cpu, true), one.run(cpu, true));
        for (all, one) in all.outputs.iter().zip(&one.outputs) {
            assert_eq!(tail(cpu, all, 0, 2).bytes(cpu), one.bytes(cpu));
        }
    }
}

#[test]
fn the_last_queries_alone_have_the_bits_that_they_have_among_others() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    for (lq, lk) in [(150, 150), (30, SPAN + 30)] {
        for skip in [1, 17, lq - 3, lq - 2, lq - 1] {
            let all = Case::new(cpu, DType::F32, [1, 1, 1, lq, lk, 16, 8], Mask::None, true, [Lie::Contiguous; 2]);
            let sizes = [1, 1, 1, lq - skip, lk, 16, 8];
            let mut last = Case::new(cpu, DType::F32, sizes, Mask::None, true, [Lie::Contiguous; 2]);
            for i in [0, 3] {
                last.inputs[i] = tail(cpu, &all.inputs[i], 2, skip);
            }
            for i in [1, 2] {
                last.inputs[i] = tail(cpu, &all.inputs[i], 2, 0);
            }
            let (all, last) = (all.run(cpu, true), last.run(cpu, true));
            for i in [0, 1, 2] {
                assert_eq!(tail(cpu, &all.outputs[i], 2, skip).bytes(cpu), last.outputs[i].bytes(cpu));
            }
        }
    }
}

#[test]
fn a_query_that_sees_one_key_gives_its_value_and_has_no_gradient() {
    let cpu = &CpuBackend::with_threads(1).unwrap();
    for dtype in F {
        let case =
            Case::new(cpu, dtype, [1, 1, 1, 1, 1, 70, 70], Mask::None, false, [Lie::Contiguous; 2]).run(cpu, true);
        let values = |t: &Tensor| t.values(cpu);
        assert_eq!(values(&case.outputs[0]), values(&case.inputs[2]));
        assert_eq!((values(&case.outputs[2]), values(&case.outputs[3])), (vec![0.0; 70], vec![0.0; 70]));
        assert_eq!(values(&case.outputs[4]), values(&case.inputs[3]));
        // With causal attention, the first query sees only one key.
        let sizes = [1, 1, 1, 130, 130, 20, 20];
        let case = Case::new(cpu, dtype, sizes, Mask::None, true, [Lie::Contiguous; 2]).run(cpu, true);
        assert_eq!(values(&case.outputs[0])[..20], values(&case.inputs[2])[..20]);
        assert_eq!(values(&case.outputs[2])[..20], [0.0; 20]);
    }
}

#[test]
fn queries_without_keys_give_zero_and_take_no_part() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    // There are more queries than keys, aligned at the end, so the first 100 queries see no key.
    let case = Case::new(cpu, DType::F32, [1, 1, 1, 150, 50, 8, 8], Mask::None, true, [Lie::Contiguous; 2]);
    let case = case.run(cpu, true);
    assert_eq!(case.outputs[0].values(cpu)[..800], [0.0; 800]);
    assert_eq!(case.outputs[1].values(cpu)[..200], [f64::NEG_INFINITY, 0.0].repeat(100));
    assert_eq!(case.outputs[2].values(cpu)[..800], [0.0; 800]);
    assert!(case.outputs.iter().all(|t| t.values(cpu).iter().all(|v| !v.is_nan())));
}

#[test]
fn nan_and_infinity_stay_where_they_belong() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    let sizes = [1, 1, 1, 110, 40, 8, 8];
    for bad in [f64::NAN, f64::INFINITY] {
        // The bad number is in a key that a mask hides from every query, so its scores are not finite.
        let mut case = Case::new(cpu, DType::F32, sizes, Mask::None, false, [Lie::Contiguous; 2]);
        let mut n = noise(1);
        case.inputs[1] =
            Tensor::new(cpu, DType::F32, &[1, 1, 40, 8], Lie::Contiguous, |i| if i / 8 == 3 { bad } else { n(i) });
        case.mask =
            Some(Tensor::new(cpu, DType::Bool, &[1, 1, 1, 40], Lie::Contiguous, |i| f64::from(u8::from(i != 3))));
        let case = case.run(cpu, true);
        assert!(case.outputs[..2].iter().all(|t| t.values(cpu).iter().all(|v| v.is_finite())));
        // The bad number is in a query, so only the row of that query changes.
        let mut case = Case::new(cpu, DType::F32, sizes, Mask::None, false, [Lie::Contiguous; 2]);
        let mut n = noise(1);
        case.inputs[0] =
            Tensor::new(cpu, DType::F32, &[1, 1, 110, 8], Lie::Contiguous, |i| if i == 800 { bad } else { n(i) });
        let case = case.run(cpu, true);
        for (out, row) in [(&case.outputs[0], 8), (&case.outputs[1], 2)] {
            for (i, v) in out.values(cpu).iter().enumerate() {
                assert_eq!(!v.is_finite(), i / row == 100, "{bad} {i} {v}");
            }
        }
    }
}

#[test]
fn gradients_of_causal_attention_lose_no_number_that_is_not_finite() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    // The first shape has keys of several spans. The second has queries that see no key, and a mask.
    let shapes = [([1, 2, 1, 110, 2100, 8, 8], None), ([2, 2, 2, 130, 40, 8, 4], Some([1, 1, 130, 40]))];
    let bads = [(f64::NAN, DType::F32), (f64::INFINITY, DType::F32), (f64::INFINITY, DType::BF16)];
    let cases = shapes.into_iter().flat_map(|shape| bads.map(|bad| (shape, bad)));
    for (((sizes, mask), (bad, dtype)), operand) in cases.flat_map(|case| (0..4).map(move |i| (case, i))) {
        let mask = mask.map_or(Mask::None, Mask::Bool);
        let mut case = Case::new(cpu, dtype, sizes, mask, true, [Lie::Contiguous; 2]);
        let mut values = case.inputs[operand].values(cpu);
        // The bad number is near the end, so that some queries do not see the key.
        let at = values.len() - 11;
        values[at] = bad;
        let dims = case.inputs[operand].layout.dims().to_vec();
        case.inputs[operand] = Tensor::new(cpu, dtype, &dims, Lie::Contiguous, |i| values[i]);
        let case = case.run(cpu, false);
        let want: Vec<Vec<f64>> = case.outputs[2..].iter().map(|t| t.values(cpu)).collect();
        let Case { params, inputs: [q, k, v, g], mask, outputs: [out, stats, mut dq, mut dk, mut dv] } = case;
        let (q, k, v, g, mask) = (q.view(), k.view(), v.view(), g.view(), mask.as_ref().map(Tensor::view));
        let (out, stats) = (out.view(), stats.view());
        let to = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
        cpu.attention_backward(&params, q, k, v, mask, out, stats, g, to.0, to.1, to.2).unwrap();
        let near = if dtype == DType::F32 { 1e-4 } else { 0.1 };
        for (which, (got, want)) in [dq, dk, dv].iter().zip(&want).enumerate() {
            for (i, (got, want)) in got.values(cpu).iter().zip(want).enumerate() {
                let same = got.is_nan() == want.is_nan() && (got.is_nan() || got == want || (got - want).abs() < near);
                assert!(same, "{bad} in operand {operand}, gradient {which} at {i}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn scores_are_not_held() {
    let cpu = &CpuBackend::with_threads(2).unwrap();
    let n = 1500;
    for (causal, bad) in [(false, 0.0), (true, f64::NAN)] {
        let mut case = Case::new(cpu, DType::F32, [1, 2, 1, n, n, 4, 4], Mask::None, causal, [Lie::Contiguous; 2]);
        case.inputs[0] =
            Tensor::new(cpu, DType::F32, &[1, 2, n, 4], Lie::Contiguous, |i| if i == 9 { bad } else { 0.1 });
        // The gradients of keys and values need blocks of their own; two matrices of scores would take 18 MB.
        cpu.set_memory_budget(None).unwrap();
        cpu.trim().unwrap();
        cpu.set_memory_budget(Some(cpu.memory_stats().in_use + (4 << 20))).unwrap();
        case.run(cpu, true);
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = &CpuBackend::with_threads(1).unwrap();
    let Case { params, inputs: [q, k, v, g], outputs: [mut out, mut stats, mut dq, mut dk, mut dv], .. } =
        Case::new(cpu, DType::F32, [1, 2, 1, 3, 5, 4, 2], Mask::None, false, [Lie::Contiguous; 2]);
    let (q, k, v, g) = (q.view(), k.view(), v.view(), g.view());
    let infinite = AttentionParams { scale: f64::INFINITY, ..params };
    let mask = Tensor::new(cpu, DType::I32, &[3, 5], Lie::Contiguous, |_| 0.0);
    let wide = Tensor::new(cpu, DType::Bool, &[3, 4], Lie::Contiguous, |_| 0.0);
    let mut run = |p: &AttentionParams, v: View<'_>, m: Option<View<'_>>| {
        let e = cpu.attention(p, q, k, v, m, &mut out.view_mut(), &mut stats.view_mut()).unwrap_err();
        e.kind().clone()
    };
    assert_eq!(run(&infinite, v, None), ErrorKind::InvalidArgument);
    assert_eq!(run(&params, k, None), ErrorKind::ShapeMismatch);
    assert_eq!(run(&params, v, Some(mask.view())), ErrorKind::DTypeMismatch);
    assert_eq!(run(&params, v, Some(wide.view())), ErrorKind::Broadcast);
    let (dq, dk, dv) = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
    let e = cpu.attention_backward(&params, q, k, v, None, g, stats.view(), q, dq, dk, dv).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::ShapeMismatch);
}
