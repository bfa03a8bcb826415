//! Attention and its gradients beyond one tile of scores, beside the CPU and the default body.

mod common;

use std::sync::Arc;

use gradus::AttentionOptions;
use gradus::prelude::*;
use gradus_backend::composite::attention as composite;
use gradus_backend::{AttentionParams, Backend, Buffer, Layout, Shape, View, ViewMut};
use gradus_wgpu::{Profile, WgpuBackend};

/// b, h, hk, lq, lk, d, dv.
type Sizes = [usize; 7];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    None,
    Bool,
    Float,
}

/// Irregular numbers between -1 and 1.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_769) | 1;
    let mut next = || {
        for (left, by) in [(true, 13), (false, 17), (true, 5)] {
            x ^= if left { x << by } else { x >> by };
        }
        x as f32 / 2_147_483_648.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The result, and the gradients of query, key and value for irregular weights of it.
fn pass(device: &Device, dtype: DType, sizes: Sizes, mask: Mask, causal: Causal) -> Result<Vec<Vec<f32>>> {
    let [b, h, hk, lq, lk, d, dv] = sizes;
    let make = |shape: [usize; 4], seed| {
        let values = noise(shape.iter().product(), seed);
        Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
    };
    // Strided: heads and rows are swapped in memory.
    let swapped = |[b, h, l, d]: [usize; 4], seed| make([b, l, h, d], seed)?.transpose(1, 2)?.with_grad();
    let (q, k, v) = (swapped([b, h, lq, d], 1)?, swapped([b, hk, lk, d], 2)?, swapped([b, hk, lk, dv], 3)?);
    // The first query sees no key.
    let seen = |v: f32, i: usize| v > -0.5 && i >= lk;
    let values = noise(lq * lk, 4);
    let mask = match mask {
        Mask::None => None,
        Mask::Bool => {
            let keep: Vec<bool> = values.iter().enumerate().map(|(i, &v)| seen(v, i)).collect();
            Some(Tensor::from_vec(keep, [lq, lk], device)?)
        }
        Mask::Float => {
            let hidden = f32::NEG_INFINITY;
            let add: Vec<f32> = values.iter().enumerate().map(|(i, &v)| if seen(v, i) { v } else { hidden }).collect();
            Some(Tensor::from_vec(add, [lq, lk], device)?)
        }
    };
    let options = AttentionOptions::new().causal(causal).scale(0.9);
    let options = if let Some(mask) = &mask { options.mask(mask) } else { options };
    let out = q.scaled_dot_product_attention(&k, &v, options)?;
    let gradients = (&out * make([b, h, lq, dv], 5)?)?.sum_all()?.backward()?;
    let gradient = |x: &Tensor| gradients.get(x).cloned().ok_or_else(|| Error::argument("pass", "there is none"));
    let all = [out.detach(), gradient(&q)?, gradient(&k)?, gradient(&v)?];
    all.iter().map(|t| t.to_dtype(DType::F32)?.to_vec::<f32>()).collect()
}

/// Asserts that both passes give the CPU's numbers, up to `error` times the largest of a tensor.
#[track_caller]
fn same(device: &Device, dtype: DType, sizes: Sizes, mask: Mask, causal: Causal, error: f32) {
    let cpu = Device::cpu().expect("the CPU");
    let [ours, theirs] = [device, &cpu].map(|device| pass(device, dtype, sizes, mask, causal).expect("both passes"));
    for (name, (ours, theirs)) in ["out", "dq", "dk", "dv"].iter().zip(ours.iter().zip(&theirs)) {
        let most = theirs.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
        let worst = ours.iter().zip(theirs).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
        let worst = worst.fold(0f32, |m, v| if m.is_nan() || m > v { m } else { v });
        assert!(worst <= error * most, "{name} of {dtype} {sizes:?} {mask:?} {causal:?}: {worst} beside {most}");
    }
}

const SHAPES: [Sizes; 10] = [
    [1, 2, 1, 40, 40, 1, 1],
    [2, 4, 2, 33, 70, 5, 7],
    [1, 2, 2, 130, 65, 64, 64],
    [1, 2, 1, 65, 130, 64, 64],
    [1, 1, 1, 70, 33, 128, 128],
    [1, 2, 1, 20, 40, 300, 140],
    [1, 1, 1, 35, 67, 24, 200],
    [2, 6, 2, 1, 100, 16, 16],
    [1, 2, 2, 100, 1, 16, 16],
    [1, 1, 1, 64, 64, 32, 32],
];

#[test]
fn both_passes_give_the_numbers_of_the_cpu() {
    let Some(backend) = common::opened_as(Profile::Core) else { return };
    let device = Device::from_backend(Arc::new(backend));
    for (i, sizes) in SHAPES.into_iter().enumerate() {
        let (mask, half) = if i % 2 == 0 { (Mask::Bool, DType::F16) } else { (Mask::Float, DType::BF16) };
        same(&device, DType::F32, sizes, Mask::None, Causal::BottomRight, 1e-5);
        same(&device, DType::F32, sizes, mask, Causal::No, 1e-5);
        same(&device, half, sizes, Mask::None, Causal::No, if half == DType::F16 { 4e-3 } else { 3e-2 });
    }
}

#[test]
fn both_passes_give_the_numbers_of_the_cpu_in_f64() {
    let Some(backend) = common::opened() else { return };
    let device = Device::from_backend(Arc::new(backend));
    if Tensor::zeros([1], DType::F64, &device).is_err() {
        return;
    }
    for sizes in SHAPES.into_iter().step_by(3) {
        same(&device, DType::F64, sizes, Mask::Float, Causal::BottomRight, 1e-6);
    }
}

/// A contiguous f32 tensor.
struct Plain {
    buffer: Buffer,
    layout: Layout,
}

impl Plain {
    fn new(b: &WgpuBackend, dims: &[usize], values: &[f32]) -> Plain {
        let layout = Layout::contiguous(Shape::new(dims).expect("a shape"));
        let mut buffer = b.alloc(4 * layout.numel()).expect("memory");
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        b.upload(&mut buffer, 0, &bytes).expect("an upload");
        Plain { buffer, layout }
    }

    fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: DType::F32, layout: &self.layout }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: DType::F32, layout: &self.layout }
    }

    fn values(&self, b: &WgpuBackend) -> Vec<f32> {
        let mut bytes = vec![0; 4 * self.layout.numel()];
        b.download(&self.buffer, 0, &mut bytes).expect("a download");
        bytes.chunks_exact(4).map(|c| f32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect()
    }
}

/// The operands of both passes, and the results of the first.
struct Operands {
    params: AttentionParams,
    /// Query, key, value, and the gradient of the result.
    inputs: [Plain; 4],
    out: Plain,
    stats: Plain,
}

impl Operands {
    fn new(b: &WgpuBackend, sizes: Sizes, causal: bool, change: impl Fn(usize, &mut [f32])) -> Operands {
        let [n, h, hk, lq, lk, d, dv] = sizes;
        let mut index = 0;
        let inputs = [[n, h, lq, d], [n, hk, lk, d], [n, hk, lk, dv], [n, h, lq, dv]].map(|dims| {
            let mut values = noise(dims.iter().product(), 7 + index as u32);
            change(index, &mut values);
            index += 1;
            Plain::new(b, &dims, &values)
        });
        let [mut out, mut stats] =
            [&[n, h, lq, dv][..], &[n, h, lq, 2]].map(|dims| Plain::new(b, dims, &vec![0.0; dims.iter().product()]));
        let params = AttentionParams { causal, scale: 0.8 };
        let [q, k, v, _] = inputs.each_ref().map(Plain::view);
        b.attention(&params, q, k, v, None, &mut out.view_mut(), &mut stats.view_mut()).expect("a result");
        Operands { params, inputs, out, stats }
    }

    /// The result, and for each query its log-sum-exp, by the backend or by the default body.
    fn results(&self, b: &WgpuBackend, mask: Option<View<'_>>, own: bool) -> [Vec<f32>; 2] {
        let [q, k, v, _] = self.inputs.each_ref().map(Plain::view);
        let [mut out, mut stats] = [&self.out, &self.stats].map(|x| Plain::new(b, x.layout.dims(), &x.values(b)));
        let run = if own { WgpuBackend::attention } else { composite::forward::<WgpuBackend> };
        run(b, &self.params, q, k, v, mask, &mut out.view_mut(), &mut stats.view_mut()).expect("a result");
        let lse = stats.values(b).chunks_exact(2).map(|row| row[0] + row[1].ln()).collect();
        [out.values(b), lse]
    }

    /// The gradients of query, key and value, by the backend or by the default body.
    fn gradients(&self, b: &WgpuBackend, own: bool) -> [Vec<f32>; 3] {
        let [q, k, v, g] = self.inputs.each_ref().map(Plain::view);
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| Plain::new(b, x.layout.dims(), &vec![7.0; x.layout.numel()]));
        let (out, stats, p) = (self.out.view(), self.stats.view(), &self.params);
        {
            let (dq, dk, dv) = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
            let run = if own { WgpuBackend::attention_backward } else { composite::backward::<WgpuBackend> };
            run(b, p, q, k, v, None, out, stats, g, dq, dk, dv).expect("gradients");
        }
        [dq, dk, dv].map(|t| t.values(b))
    }
}

#[test]
fn numbers_that_are_not_finite_are_not_lost_where_the_causal_rule_hides_them() {
    let Some(b) = common::opened_as(Profile::Core) else { return };
    for (sizes, bad) in [([1, 2, 1, 70, 200, 8, 8], f32::NAN), ([1, 2, 1, 200, 70, 8, 4], f32::INFINITY)] {
        for operand in 0..4 {
            let spoil = |i: usize, values: &mut [f32]| {
                if i == operand {
                    // Near the end, so that some queries do not see the key.
                    let at = values.len() - 11;
                    values[at] = bad;
                }
            };
            let operands = Operands::new(&b, sizes, true, spoil);
            let what = format!("{bad} in operand {operand} of {sizes:?}");
            let [ours, theirs] = [true, false].map(|own| operands.results(&b, None, own));
            alike(&format!("{what}, result"), &ours, &theirs);
            let [ours, theirs] = [true, false].map(|own| operands.gradients(&b, own));
            alike(&format!("{what}, gradient"), &ours, &theirs);
        }
    }
}

/// Asserts that all lists have the same numbers, and NaN in the same places.
#[track_caller]
fn alike(what: &str, ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
    for (which, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let same = a.is_nan() == b.is_nan() && (a.is_nan() || a == b || (a - b).abs() < 1e-4);
            assert!(same, "{what} {which} at {i}: {a}, not {b}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_not_lost_where_more_keys_than_one_launch_takes_are_hidden() {
    let Some(b) = common::opened_as(Profile::Core) else { return };
    let (queries, keys, size) = (5, 13_000, 64);
    // The first query sees no key, the second none of the first half, and the third none of the second half.
    let sees = |i: usize| match i / keys {
        0 => false,
        1 => i % keys >= keys / 2 + 100,
        2 => i % keys < keys / 2 - 100,
        _ => true,
    };
    let bits: Vec<u8> = (0..queries * keys).map(|i| u8::from(sees(i))).collect();
    let mut buffer = b.alloc(bits.len()).expect("memory");
    b.upload(&mut buffer, 0, &bits).expect("an upload");
    let layout = Layout::contiguous(Shape::new(&[1, 1, queries, keys]).expect("a shape"));
    let mask = View { buffer: &buffer, dtype: DType::Bool, layout: &layout };
    for (row, bad) in [(usize::MAX, 0.0), (7, f32::NAN), (9, f32::INFINITY), (keys - 2, f32::NAN)] {
        let spoil = |i: usize, values: &mut [f32]| {
            if i == 2 && row < keys {
                values[row * size + 5] = bad;
            }
        };
        let operands = Operands::new(&b, [1, 1, 1, queries, keys, size, size], true, spoil);
        let [ours, theirs] = [true, false].map(|own| operands.results(&b, Some(mask), own));
        alike(&format!("{bad} in row {row}, result"), &ours, &theirs);
        assert_eq!(ours[1][0], f32::NEG_INFINITY);
    }
}

#[test]
fn a_query_with_one_key_has_gradient_0() {
    let Some(b) = common::opened_as(Profile::Core) else { return };
    let operands = Operands::new(&b, [2, 4, 2, 50, 1, 40, 24], false, |_, _| ());
    let [dq, dk, _] = operands.gradients(&b, true);
    assert!(dq.iter().chain(&dk).all(|&v| v == 0.0));
}

#[test]
fn the_matrix_of_scores_is_not_held() {
    let Some(b) = common::opened() else { return };
    let operands = Operands::new(&b, [1, 1, 1, 2048, 2048, 16, 16], true, |_, _| ());
    let before = b.memory_stats();
    // Gradients, and three numbers for each query.
    let own = operands.gradients(&b, true);
    let rise = b.memory_stats().peak - before.in_use;
    assert!(rise <= 1 << 20, "{rise} bytes beside a matrix of {}", 2048 * 2048 * 4);
    assert!(own.iter().flatten().all(|v| v.is_finite() && *v != 7.0));
}
