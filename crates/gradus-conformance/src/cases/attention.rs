//! Attention and its gradient.

use gradus_backend::{AttentionParams, Backend, DType, Kernel, Layout, MapArg, Result, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Rng, Suite};

/// The sizes b, h, hk, lq, lk, d and dv of each case.
const SIZES: [[usize; 7]; 9] = [
    [1, 1, 1, 3, 3, 4, 4],
    [2, 4, 2, 3, 5, 4, 3],
    [1, 3, 1, 5, 2, 1, 2],
    [2, 2, 2, 1, 7, 8, 8],
    [1, 1, 1, 4, 0, 2, 3],
    [1, 2, 1, 0, 3, 2, 2],
    [0, 2, 2, 2, 3, 4, 4],
    [1, 2, 2, 3, 3, 4, 0],
    // With one key, the gradients of query and key are exactly 0: the two terms of a score's gradient are equal.
    [1, 2, 1, 9, 1, 24, 20],
];

/// Sizes that exceed the blocks of a tiled algorithm.
pub(super) const LARGE: [usize; 7] = [1, 2, 1, 35, 67, 16, 16];

/// Several tiles of queries and of keys on tensor cores, for heads of sizes that are no powers of two, and of the usual ones.
const UNEVEN: [usize; 7] = [1, 2, 1, 130, 67, 80, 72];
const HEADS_OF_64: [usize; 7] = [1, 2, 1, 129, 150, 64, 64];
const HEADS_OF_128: [usize; 7] = [1, 1, 1, 70, 67, 128, 128];

/// How rows are masked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mask {
    None,
    Bool,
    Float,
}

pub(super) fn run(s: &mut Suite<'_>) {
    for d in FLOATS {
        for size in SIZES {
            for (mask, causal) in
                [(Mask::None, false), (Mask::None, true), (Mask::Bool, false), (Mask::Float, false), (Mask::Bool, true)]
            {
                attention(s, d, size, mask, causal);
            }
        }
    }
    attention(s, DType::F32, LARGE, Mask::None, true);
    attention(s, DType::F32, LARGE, Mask::Bool, false);
    attention(s, DType::BF16, LARGE, Mask::None, false);
    for d in [DType::F16, DType::BF16] {
        attention(s, d, UNEVEN, Mask::None, true);
        attention(s, d, HEADS_OF_64, Mask::None, true);
    }
    attention(s, DType::BF16, HEADS_OF_128, Mask::None, false);
    attention(s, DType::BF16, HEADS_OF_64, Mask::Bool, true);
}

pub(super) fn attention(
    s: &mut Suite<'_>,
    dtype: DType,
    [b, h, hk, lq, lk, d, dv]: [usize; 7],
    mask: Mask,
    causal: bool,
) {
    let name = format!("{dtype}/{}/{mask:?}/causal={causal}", sizes(&[b, h, hk, lq, lk, d, dv]));
    let mut rng = s.rng(&name);
    let params = AttentionParams { causal, scale: if causal { -0.75 } else { 1.25 } };
    let dims = [[b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]];
    let mut inputs: Vec<_> = dims.iter().map(|dims| Array::random(dtype, dims, &mut rng)).collect();
    let scores = [b, h, lq, lk];
    inputs.extend(masked(mask, dtype, &scores, &mut rng));
    let g = Array::random(dtype, &[b, h, lq, dv], &mut rng);
    both_passes(s, &name, dtype, params, dims, inputs, g);
}

/// Both passes with these inputs: query, key and value, which have the sizes `dims`, and the mask, if there is one. `g` is the
/// gradient of the result.
pub(super) fn both_passes(
    s: &mut Suite<'_>,
    name: &str,
    dtype: DType,
    params: AttentionParams,
    [q, k, v]: [[usize; 4]; 3],
    mut inputs: Vec<Array>,
    g: Array,
) {
    let masked = inputs.len() > 3;
    let out = [q[0], q[1], q[2], v[3]];

    let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [out, lse] = outs else { unreachable!("attention has two outputs") };
        with_stats(b, &params, ins, masked.then(|| ins[3]), out, |_, stats| {
            // Only the log-sum-exp is the same whatever the scores are shifted by.
            let columns = [stats.layout.narrow(3, 0, 1)?, stats.layout.narrow(3, 1, 1)?];
            let args = columns.each_ref().map(|column| MapArg::View(stats.with(column)));
            let kernel = Kernel::build("log_sum_exp", &[stats.dtype; 2], |v| vec![v[0] + v[1].log()])?;
            b.map(&kernel, &args, &mut [lse.with(lse.layout)])
        })
    };
    let outputs = vec![fresh(dtype, &out), fresh(dtype.compute(), &[out[0], out[1], out[2], 1])];
    s.case(&Case::new(format!("attention/{name}"), inputs.clone(), outputs, &forward).bound(Bound::Naive));

    // The gradient needs the outputs of the forward pass, so the forward pass runs first.
    inputs.push(g);
    let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [dq, dk, dv] = outs else { unreachable!("the gradient of attention has three outputs") };
        let (g, mask) = (ins[ins.len() - 1], masked.then(|| ins[3]));
        let layout = Layout::contiguous(*g.layout.shape());
        let mut out = b.alloc(layout.numel() * g.dtype.size())?;
        let out = &mut ViewMut { buffer: &mut out, dtype: g.dtype, layout: &layout };
        with_stats(b, &params, ins, mask, out, |out, stats| {
            b.attention_backward(&params, ins[0], ins[1], ins[2], mask, out, stats, g, dq, dk, dv)
        })
    };
    let outputs = [q, k, v].iter().map(|dims| fresh(dtype, dims)).collect();
    s.case(&Case::new(format!("attention_backward/{name}"), inputs, outputs, &backward).bound(Bound::NaiveStored));
}

/// A mask that hides random keys, and hides every key from the first query of each head.
pub(super) fn masked(mask: Mask, dtype: DType, dims: &[usize; 4], rng: &mut Rng) -> Option<Array> {
    let [_, _, lq, lk] = *dims;
    let n: usize = dims.iter().product();
    let hidden = |i: usize, v: f64| (i / lk.max(1)).is_multiple_of(lq) || v < -0.2;
    let values: Vec<f64> = (0..n).map(|_| rng.unit()).collect();
    match mask {
        Mask::None => None,
        Mask::Bool => {
            let keep: Vec<i64> = values.iter().enumerate().map(|(i, &v)| i64::from(!hidden(i, v))).collect();
            Some(Array::ints(DType::Bool, dims, &keep))
        }
        Mask::Float => {
            let add = values.iter().enumerate().map(|(i, &v)| if hidden(i, v) { f64::NEG_INFINITY } else { v });
            Some(Array::floats(dtype, dims, &add.collect::<Vec<_>>()))
        }
    }
}

/// Runs the forward pass, and passes `out` and the numbers of its rows to `f`.
pub(super) fn with_stats(
    b: &dyn Backend,
    params: &AttentionParams,
    ins: &[View<'_>],
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    f: impl FnOnce(View<'_>, View<'_>) -> Result<()>,
) -> Result<()> {
    let dims = [&out.layout.dims()[..3], &[2]].concat();
    let (dtype, layout) = (out.dtype.compute(), Layout::contiguous(crate::suite::shape(&dims)));
    let mut stats = b.alloc(layout.numel() * dtype.size())?;
    b.attention(
        params,
        ins[0],
        ins[1],
        ins[2],
        mask,
        out,
        &mut ViewMut { buffer: &mut stats, dtype, layout: &layout },
    )?;
    f(out.as_view(), View { buffer: &stats, dtype, layout: &layout })
}
