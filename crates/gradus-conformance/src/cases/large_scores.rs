//! Attention where scores are large: results, gradients, the two numbers that the forward pass writes of each row, and gradients
//! from numbers of rows that another implementation wrote.

use gradus_backend::host::{load, store};
use gradus_backend::{AttentionParams, Backend, DType, Kernel, Layout, MapArg, Result, Scalar, View, ViewMut};

use super::attention::{LARGE, Mask, both_passes, masked, with_stats};
use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Rng, Suite, shape, uploaded};

/// Sizes with rows of large scores.
const ROWS: [usize; 7] = [2, 4, 2, 9, 5, 8, 6];

/// How many powers of two there are in large scores, and what hides keys.
type Kind = (i32, Mask, bool);
const KINDS: [Kind; 4] =
    [(20, Mask::None, true), (33, Mask::Bool, true), (33, Mask::None, false), (20, Mask::Float, false)];

/// Heads of the usual sizes and of one that is no power of two.
const HEADS: [(DType, [usize; 2], Kind); 8] = [
    (DType::F16, [64, 64], KINDS[1]),
    (DType::BF16, [64, 64], KINDS[3]),
    (DType::F32, [64, 64], KINDS[0]),
    (DType::BF16, [128, 128], KINDS[0]),
    (DType::F16, [160, 136], KINDS[0]),
    (DType::BF16, [256, 256], KINDS[3]),
    (DType::F16, [256, 256], KINDS[1]),
    (DType::F32, [256, 256], KINDS[2]),
];

pub(super) fn run(s: &mut Suite<'_>) {
    for causal in [false, true] {
        for d in FLOATS {
            large_mask(s, d, ROWS, causal);
            large_scale(s, d, ROWS, causal);
        }
        for d in [DType::F32, DType::BF16] {
            large_mask(s, d, LARGE, causal);
            large_scale(s, d, LARGE, causal);
        }
    }
    for (i, d) in FLOATS.into_iter().enumerate() {
        for kind in [KINDS[i], KINDS[(i + 2) % 4]] {
            large_products(s, d, ROWS, kind);
        }
    }
    for (dtype, [d, dv], kind) in HEADS {
        large_products(s, dtype, [1, 2, 1, 19, 37, d, dv], kind);
    }
    for (dtype, d) in
        [(DType::F32, 64), (DType::F64, 8), (DType::F16, 64), (DType::BF16, 64), (DType::F16, 160), (DType::BF16, 256)]
    {
        rising_scores(s, dtype, [1, 2, 1, 6, 256, d, 8]);
    }
}

/// Rows whose scores grow from one quarter of the keys to the next, by steps of 4 or more, and whose magnitudes pass 64. All numbers
/// that make a score are even, and exact in every dtype.
fn rising_scores(s: &mut Suite<'_>, dtype: DType, [b, h, hk, lq, lk, d, dv]: [usize; 7]) {
    const QUARTERS: [[i64; 4]; 4] = [[40, 60, 70, 90], [-90, -70, -60, -40], [56, 60, 66, 70], [-70, -66, -62, -58]];
    let name = format!("{dtype}/{}/rising_scores", sizes(&[b, h, hk, lq, lk, d, dv]));
    let mut rng = s.rng(&name);
    // A query adds up two elements of the keys.
    let mut queries = vec![0.0; b * h * lq * d];
    for (i, query) in queries.chunks_exact_mut(d).enumerate() {
        query[i % lq % QUARTERS.len() * 2..][..2].fill(1.0);
    }
    let mut keys = vec![0.0; b * hk * lk * d];
    for (i, key) in keys.chunks_exact_mut(d).enumerate() {
        for (pair, quarters) in key.chunks_exact_mut(2).zip(QUARTERS) {
            let (score, part) = (quarters[i % lk * 4 / lk] - 2 * (i % 3) as i64, 2 * rng.int(-30, 30));
            pair.copy_from_slice(&[part as f64, (score - part) as f64]);
        }
    }
    // So small that the gradients of queries are finite in f16.
    let small = 2f64.powi(-8);
    let values: Vec<f64> = (0..b * hk * lk * dv).map(|_| rng.unit() * small).collect();
    let dims = [[b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]];
    let inputs = vec![
        Array::floats(dtype, &dims[0], &queries),
        Array::floats(dtype, &dims[1], &keys),
        Array::floats(dtype, &dims[2], &values),
    ];
    let params = AttentionParams { causal: false, scale: 1.0 };
    if dtype == dtype.compute() {
        return all_passes(s, &name, dtype, params, dims, inputs, small, &mut rng);
    }
    // In half precision, weights may be off by a common factor of a few millionths, which the sum of a row then has too. With the
    // sum of another implementation they would not add up to 1.
    let g: Vec<f64> = (0..b * h * lq * dv).map(|_| rng.unit() * small).collect();
    both_passes(s, &name, dtype, params, dims, inputs, Array::floats(dtype, &[b, h, lq, dv], &g));
}

/// Rows whose scores are all the same large number, which a mask adds. The weights of such a row are equal, however few
/// digits its scores have left.
fn large_mask(s: &mut Suite<'_>, dtype: DType, [b, h, hk, lq, lk, d, dv]: [usize; 7], causal: bool) {
    let name = format!("{dtype}/{}/large_mask/causal={causal}", sizes(&[b, h, hk, lq, lk, d, dv]));
    let mut rng = s.rng(&name);
    let of_row = |row: usize| [0.0, -1e9, -f64::from(f32::MAX), 1e9][row % 4];
    // Where the mask is large, the queries are 0, and so are the products with all keys.
    let queries = (0..b * h * lq * d).map(|i| if of_row(i / d % lq) == 0.0 { rng.unit() } else { 0.0 });
    let queries = Array::floats(dtype, &[b, h, lq, d], &queries.collect::<Vec<_>>());
    let [k, v] = [[b, hk, lk, d], [b, hk, lk, dv]].map(|dims| Array::random(dtype, &dims, &mut rng));
    let mask: Vec<f64> = (0..lq * lk).map(|i| of_row(i / lk)).collect();
    let mask = Array::floats(dtype.compute(), &[1, 1, lq, lk], &mask);
    let dims = [[b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]];
    all_passes(s, &name, dtype, AttentionParams { causal, scale: 0.5 }, dims, vec![queries, k, v, mask], 1.0, &mut rng);
}

/// Rows whose scores are all the same large number, which is the scale.
fn large_scale(s: &mut Suite<'_>, dtype: DType, [b, h, hk, lq, lk, d, dv]: [usize; 7], causal: bool) {
    let name = format!("{dtype}/{}/large_scale/causal={causal}", sizes(&[b, h, hk, lq, lk, d, dv]));
    let mut rng = s.rng(&name);
    // Queries are 1 in their first two elements and otherwise 0, and the first two elements of a key add up to 1.
    let queries: Vec<f64> = (0..b * h * lq * d).map(|i| if i % d < 2 { 1.0 } else { 0.0 }).collect();
    let mut keys: Vec<f64> = (0..b * hk * lk * d).map(|_| rng.unit()).collect();
    // Keys differ in each element: the gradient of a query would cancel where they are the same.
    for (i, key) in keys.chunks_exact_mut(d).enumerate() {
        let part = (i % lk) as f64 / 128.0;
        (key[0], key[1]) = (part, 1.0 - part);
    }
    let dims = [[b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]];
    let inputs = vec![
        Array::floats(dtype, &dims[0], &queries),
        Array::floats(dtype, &dims[1], &keys),
        Array::random(dtype, &dims[2], &mut rng),
    ];
    let params = AttentionParams { causal, scale: if causal { -1e7 } else { 1e7 } };
    let g = Array::random(dtype, &[b, h, lq, dv], &mut rng);
    both_passes(s, &name, dtype, params, dims, inputs, g);
}

/// Rows whose scores are near `2^exponent`, which is the product of a query and a key times a small scale, and rows of small scores.
/// All products and scores are exact in f32. Up to an exponent of 20, those of a row differ by multiples of a half; above, they are equal.
fn large_products(
    s: &mut Suite<'_>,
    dtype: DType,
    [b, h, hk, lq, lk, d, dv]: [usize; 7],
    (exponent, mask, causal): Kind,
) {
    let of = sizes(&[b, h, hk, lq, lk, d, dv]);
    let name = format!("{dtype}/{of}/large_products/2^{exponent}/{mask:?}/causal={causal}");
    let mut rng = s.rng(&name);
    let large = 2f64.powi((exponent - 3) / 2);
    let scale = 2f64.powi(exponent) / (large * large) * if causal { -1.0 } else { 1.0 };
    let few = |rng: &mut Rng| rng.int(-2, 2) as f64 / 2.0;
    // The first two elements of a query are equal, and those of a key add up to `large`.
    let of_row = |row: usize| [41.0 / 32.0, 0.0, 27.0 / 16.0, 5.0 / 8.0][row % 4];
    let mut queries = vec![0.0; b * h * lq * d];
    for (i, query) in queries.chunks_exact_mut(d).enumerate() {
        query[..2].fill(of_row(i % lq) * large);
        if exponent <= 20 {
            query[2..].iter_mut().take(6).for_each(|x| *x = few(&mut rng) / (8.0 * large));
        }
    }
    let mut keys: Vec<f64> = (0..b * hk * lk * d).map(|_| few(&mut rng) * large).collect();
    for (i, key) in keys.chunks_exact_mut(d).enumerate() {
        let part = (i % lk) as f64 / 128.0;
        (key[0], key[1]) = (part * large, (1.0 - part) * large);
    }
    // So small that the gradients of queries and keys are finite in f16.
    let small = 2f64.powi(-8);
    let values: Vec<f64> = (0..b * hk * lk * dv).map(|_| rng.unit() * small).collect();
    let dims = [[b, h, lq, d], [b, hk, lk, d], [b, hk, lk, dv]];
    let mut inputs = vec![
        Array::floats(dtype, &dims[0], &queries),
        Array::floats(dtype, &dims[1], &keys),
        Array::floats(dtype, &dims[2], &values),
    ];
    inputs.extend(masked(mask, dtype, &[b, h, lq, lk], &mut rng).map(|mut mask| {
        // What is added is 0 or infinite: a score that large has no digits for less.
        mask.data.iter_mut().for_each(|v| {
            if let Scalar::Float(v) = v
                && v.is_finite()
            {
                *v = 0.0;
            }
        });
        mask
    }));
    all_passes(s, &name, dtype, AttentionParams { causal, scale }, dims, inputs, small, &mut rng);
}

/// Both passes, the numbers of the rows, and the gradient from given numbers, for scores that are exact in f32 where they are
/// large. The gradient of the result is `slope` times random numbers.
fn all_passes(
    s: &mut Suite<'_>,
    name: &str,
    dtype: DType,
    params: AttentionParams,
    dims: [[usize; 4]; 3],
    inputs: Vec<Array>,
    slope: f64,
    rng: &mut Rng,
) {
    let [q, k, v] = dims;
    let out = [q[0], q[1], q[2], v[3]];
    let mut g = Array::random(dtype, &out, rng);
    g.data.iter_mut().for_each(|x| {
        if let Scalar::Float(x) = x {
            *x *= slope;
        }
    });
    both_passes(s, name, dtype, params, dims, inputs.clone(), g.clone());
    let masked = inputs.len() > 3;

    let rows = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [sums, outside] = outs else { unreachable!("a row has two numbers") };
        let mask = masked.then(|| ins[3]);
        let layout = Layout::contiguous(shape(&out));
        let mut out = b.alloc(layout.numel() * ins[0].dtype.size())?;
        let out = &mut ViewMut { buffer: &mut out, dtype: ins[0].dtype, layout: &layout };
        with_stats(b, &params, ins, mask, out, |_, stats| {
            let (dtype, layout) = (stats.dtype, Layout::contiguous(*sums.layout.shape()));
            let tops: Vec<f64> = Loops::new(b, &params, ins, mask)?.rows.iter().map(|row| row.top).collect();
            let tops = uploaded(b, &bytes(dtype, &tops))?;
            let columns = [stats.layout.narrow(3, 0, 1)?, stats.layout.narrow(3, 1, 1)?];
            let [shift, sum] = columns.each_ref().map(|column| MapArg::View(stats.with(column)));
            let args = [shift, sum, MapArg::View(View { buffer: &tops, dtype, layout: &layout })];
            // The difference comes first: the logarithm of the sum would be lost in a large shift.
            let kernel = Kernel::build("numbers_of_rows", &[dtype; 3], |v| {
                let below = v[2] - v[0];
                let hidden = v[1].eq(0.0);
                let outside = (below - 6.0).max(0.0) + (-below - 1e-3).max(0.0);
                vec![hidden.select(-1.0, v[1].log() - below), hidden.select(v[0], outside)]
            })?;
            b.map(&kernel, &args, &mut [sums.with(sums.layout), outside.with(outside.layout)])
        })
    };
    let one = [out[0], out[1], out[2], 1];
    let outputs = vec![fresh(dtype.compute(), &one), fresh(dtype.compute(), &one)];
    s.case(&Case::new(format!("attention/{name}/rows"), inputs.clone(), outputs, &rows).bound(Bound::Naive));

    let inputs = [inputs, vec![g]].concat();
    let given = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [dq, dk, dv] = outs else { unreachable!("the gradient of attention has three outputs") };
        let (g, mask) = (ins[ins.len() - 1], masked.then(|| ins[3]));
        let (dtype, compute) = (g.dtype, g.dtype.compute());
        let loops = Loops::new(b, &params, ins, mask)?;
        let stats = loops.rows.iter().enumerate().flat_map(|(i, row)| {
            // A shift may be less than the largest score. It is that score where one key has all the weight, which is exactly 1 then,
            // and the gradient of the scores 0.
            let less = if row.sum < 1.5 { 0.0 } else { [0.0, 2.5, 5.0][i % 3] };
            let shift = f64::from((row.top - less) as f32).max(f64::from(f32::MIN));
            let hidden = row.top == f64::NEG_INFINITY;
            if hidden { [row.top, 0.0] } else { [shift, row.sum * (row.top - shift).exp()] }
        });
        let stats = uploaded(b, &bytes(compute, &stats.collect::<Vec<_>>()))?;
        let layout = Layout::contiguous(shape(&[out[0], out[1], out[2], 2]));
        let stats = View { buffer: &stats, dtype: compute, layout: &layout };
        let layout = Layout::contiguous(shape(&out));
        let out = uploaded(b, &bytes(dtype, &loops.out))?;
        let out = View { buffer: &out, dtype, layout: &layout };
        b.attention_backward(&params, ins[0], ins[1], ins[2], mask, out, stats, g, dq, dk, dv)
    };
    let outputs = [q, k, v].iter().map(|dims| fresh(dtype, dims)).collect();
    let name = format!("attention_backward/{name}/given");
    s.case(&Case::new(name, inputs, outputs, &given).bound(Bound::NaiveStored));
}

/// The largest score of a row, which is -inf if the row sees no key, and the sum of the exponentials relative to it.
struct Row {
    top: f64,
    sum: f64,
}

/// Attention in loops over f64.
struct Loops {
    rows: Vec<Row>,
    out: Vec<f64>,
}

impl Loops {
    fn new(b: &dyn Backend, params: &AttentionParams, ins: &[View<'_>], mask: Option<View<'_>>) -> Result<Self> {
        let [q, k, v] = [numbers(b, ins[0])?, numbers(b, ins[1])?, numbers(b, ins[2])?];
        let [of_q, of_k, of_v] = [0, 1, 2].map(|i| ins[i].layout.dims());
        let (heads, shared, lq, lk) = (of_q[0] * of_q[1], of_q[1] / of_k[1], of_q[2], of_k[2]);
        let (d, dv) = (of_q[3], of_v[3]);
        let expanded = match mask {
            Some(m) => Some((m, m.layout.expand(shape(&[of_q[0], of_q[1], lq, lk]))?)),
            None => None,
        };
        let added = match &expanded {
            Some((m, layout)) => Some((m.dtype, numbers(b, m.with(layout))?)),
            None => None,
        };
        let (mut rows, mut out) = (Vec::new(), Vec::new());
        for row in 0..heads * lq {
            let (head, i) = (row / lq, row % lq);
            let query = &q[row * d..][..d];
            let score = |j: usize| {
                let key = &k[(head / shared * lk + j) * d..][..d];
                let score = params.scale * query.iter().zip(key).map(|(x, y)| x * y).sum::<f64>();
                match &added {
                    _ if params.causal && j + lq > i + lk => f64::NEG_INFINITY,
                    Some((DType::Bool, keeps)) if keeps[row * lk + j] == 0.0 => f64::NEG_INFINITY,
                    Some((DType::Bool, _)) | None => score,
                    Some((_, add)) => score + add[row * lk + j],
                }
            };
            let scores: Vec<f64> = (0..lk).map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let hidden = top == f64::NEG_INFINITY;
            let weights: Vec<f64> = scores.iter().map(|s| if hidden { 0.0 } else { (s - top).exp() }).collect();
            let sum = weights.iter().sum::<f64>();
            rows.push(Row { top, sum });
            out.extend((0..dv).map(|e| {
                let terms = weights.iter().enumerate().map(|(j, w)| w * v[(head / shared * lk + j) * dv + e]);
                if hidden { 0.0 } else { terms.sum::<f64>() / sum }
            }));
        }
        Ok(Loops { rows, out })
    }
}

/// The numbers of a tensor, in row-major order.
fn numbers(b: &dyn Backend, x: View<'_>) -> Result<Vec<f64>> {
    let mut bytes = vec![0; x.buffer.bytes()];
    b.download(x.buffer, 0, &mut bytes)?;
    Ok(x.layout.positions().map(|p| load(&bytes, x.dtype, p).to_f64()).collect())
}

/// The bytes of a contiguous tensor.
fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.size()];
    values.iter().enumerate().for_each(|(i, &v)| store(&mut bytes, dtype, i, Scalar::Float(v)));
    bytes
}
