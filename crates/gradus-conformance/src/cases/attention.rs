//! Attention and its gradient.

use gradus_backend::{AttentionParams, Backend, DType, Result, View, ViewMut};

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
const LARGE: [usize; 7] = [1, 2, 1, 35, 67, 16, 16];

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
    let out = [b, h, lq, dv];
    let (q, k, v) = ([b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]);
    let mut inputs: Vec<_> = [q, k, v].iter().map(|dims| Array::random(dtype, dims, &mut rng)).collect();
    let scores = [b, h, lq, lk];
    inputs.extend(masked(mask, dtype, &scores, &mut rng));
    let masked = mask != Mask::None;

    let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [out, lse] = outs else { unreachable!("attention has two outputs") };
        b.attention(&params, ins[0], ins[1], ins[2], masked.then(|| ins[3]), out, lse)
    };
    let outputs = vec![fresh(dtype, &out), fresh(dtype.compute(), &out[..3])];
    s.case(&Case::new(format!("attention/{name}"), inputs.clone(), outputs, &forward).bound(Bound::Naive));

    // The gradient needs the log-sum-exp of the forward pass, so the forward pass runs first.
    inputs.push(Array::random(dtype, &out, &mut rng));
    let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [dq, dk, dv] = outs else { unreachable!("the gradient of attention has three outputs") };
        let (g, mask) = (ins[ins.len() - 1], masked.then(|| ins[3]));
        with_forward(b, &params, ins, mask, g, |out, lse| {
            b.attention_backward(&params, ins[0], ins[1], ins[2], mask, out, lse, g, dq, dk, dv)
        })
    };
    let outputs = [q, k, v].iter().map(|dims| fresh(dtype, dims)).collect();
    s.case(&Case::new(format!("attention_backward/{name}"), inputs, outputs, &backward).bound(Bound::NaiveStored));
}

/// A mask that hides random keys, and hides every key from the first query of each head.
fn masked(mask: Mask, dtype: DType, dims: &[usize; 4], rng: &mut Rng) -> Option<Array> {
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

/// Runs the forward pass into temporaries and passes them to `f`.
fn with_forward(
    b: &dyn Backend,
    params: &AttentionParams,
    ins: &[View<'_>],
    mask: Option<View<'_>>,
    like: View<'_>,
    f: impl FnOnce(View<'_>, View<'_>) -> Result<()>,
) -> Result<()> {
    let dims = like.layout.dims();
    let layouts = [dims, &dims[..3]].map(|d| gradus_backend::Layout::contiguous(crate::suite::shape(d)));
    let dtypes = [like.dtype, like.dtype.compute()];
    let mut out = b.alloc(layouts[0].numel() * dtypes[0].size())?;
    let mut lse = b.alloc(layouts[1].numel() * dtypes[1].size())?;
    {
        let mut out = ViewMut { buffer: &mut out, dtype: dtypes[0], layout: &layouts[0] };
        let mut lse = ViewMut { buffer: &mut lse, dtype: dtypes[1], layout: &layouts[1] };
        b.attention(params, ins[0], ins[1], ins[2], mask, &mut out, &mut lse)?;
    }
    f(
        View { buffer: &out, dtype: dtypes[0], layout: &layouts[0] },
        View { buffer: &lse, dtype: dtypes[1], layout: &layouts[1] },
    )
}
