//! Attention: results compared with PyTorch and with attention in single steps, gradients compared with finite
//! differences.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, assert_like_pytorch, both, cpu, f64s, layouts, randn, sines};
use gradus_tensor::{AttentionOptions, BackwardOptions, Causal, DType, Generator, Result, Tensor, grad};

fn f(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn options<'a>() -> AttentionOptions<'a> {
    AttentionOptions::new()
}

fn bools(v: &[u8], shape: &[usize]) -> Tensor {
    Tensor::from_vec(v.iter().map(|&b| b == 1).collect::<Vec<_>>(), shape, &cpu()).unwrap()
}

/// `q [2, 4, 3, 2]`, `k [2, 2, 5, 2]`, `v [2, 2, 5, 3]`: two query heads per key head.
fn grouped() -> [Tensor; 3] {
    [sines(&[2, 4, 3, 2], 1.7, 0.3), sines(&[2, 2, 5, 2], 0.9, 0.2), sines(&[2, 2, 5, 3], 0.7, 0.1)]
}

#[test]
fn values_are_pytorchs() {
    let [q, k, v] = grouped();
    assert_like_pytorch("sdpa", &q.scaled_dot_product_attention(&k, &v, options()).unwrap());
    let mask = sines(&[3, 5], 0.77, 0.3);
    assert_like_pytorch("sdpam", &q.scaled_dot_product_attention(&k, &v, options().mask(&mask).scale(-0.7)).unwrap());
    // PyTorch aligns the causal mask at the top left.
    let o = options().causal(Causal::TopLeft);
    assert_like_pytorch("sdpac", &q.scaled_dot_product_attention(&k, &v, o).unwrap());
    let o = options().causal(Causal::BottomRight);
    assert_like_pytorch("sdpabr", &q.scaled_dot_product_attention(&k, &v, o).unwrap());
    // A causal mask together with a bool or float mask that hides nothing.
    for mask in [bools(&[1; 15], &[3, 5]), Tensor::zeros([3, 5], DType::F64, &cpu()).unwrap()] {
        let o = options().causal(Causal::TopLeft).mask(&mask);
        assert_like_pytorch("sdpac", &q.scaled_dot_product_attention(&k, &v, o).unwrap());
        let o = options().causal(Causal::BottomRight).mask(&mask);
        assert_like_pytorch("sdpabr", &q.scaled_dot_product_attention(&k, &v, o).unwrap());
    }
}

#[test]
fn rows_of_large_scores_have_pytorchs_gradients() {
    let leaves = grouped().map(|t| t.with_grad().unwrap());
    let refs: Vec<&Tensor> = leaves.iter().collect();
    let mask = f64s(&[-1e300, f64::MIN, 1e300], &[3, 1]);
    let y = leaves[0].scaled_dot_product_attention(&leaves[1], &leaves[2], options().mask(&mask)).unwrap();
    assert_like_pytorch("sdpal", &y);
    let loss = y.mul(sines(&[2, 4, 3, 3], 0.6, 0.2)).unwrap().sum_all().unwrap();
    for options in [BackwardOptions::new().retain_graph(), BackwardOptions::new().create_graph()] {
        let found = grad(&[&loss], &refs, None, options).unwrap();
        for (name, g) in ["sdpalq", "sdpalk", "sdpalv"].iter().zip(found) {
            assert_like_pytorch(name, &g.unwrap());
        }
    }
}

/// The gradient of attention is that of the matrix products and the softmax of which it consists, for masks of all sizes.
#[test]
fn rows_of_large_scores_have_the_gradients_of_single_steps() {
    for dtype in [DType::F32, DType::F64] {
        let of = |seed, shape: &[usize]| randn(shape, seed).to_dtype(dtype).unwrap().with_grad().unwrap();
        let (q, k, v, weights) = (of(1, &[2, 12, 4]), of(2, &[2, 70, 4]), of(3, &[2, 70, 3]), of(4, &[2, 12, 3]));
        let rows = [0.0, -65504.0, -1e9, f64::from(f32::MIN), 1e9, 3e38];
        // In the second half of the rows, only the last keys have the large number.
        let at = |i: usize| if i < 6 * 70 || i % 70 > 66 { rows[i / 70 % 6] } else { 0.0 };
        let mask = f64s(&(0..12 * 70).map(at).collect::<Vec<_>>(), &[12, 70]).to_dtype(dtype).unwrap();
        let fused = q.scaled_dot_product_attention(&k, &v, options().mask(&mask).scale(0.5)).unwrap();
        let scores = q.matmul(&k.transpose(-2, -1).unwrap()).unwrap().mul(0.5).unwrap().add(&mask).unwrap();
        let steps = scores.softmax(-1).unwrap().matmul(&v).unwrap();
        let gradients = |y: &Tensor| {
            let y = y.mul(&weights).unwrap().sum_all().unwrap();
            let found = grad(&[&y], &[&q, &k, &v], None, BackwardOptions::new()).unwrap();
            found.iter().flat_map(|g| f(g.as_ref().unwrap())).collect::<Vec<f64>>()
        };
        assert_close(&gradients(&fused), &gradients(&steps), if dtype == DType::F32 { 1e-5 } else { 1e-13 });
    }
}

// Mistake 13 of `gradus/tests/mistakes.rs`: documentation that divides by the scale where the code multiplies.
#[test]
fn the_scale_multiplies() {
    let (q, k, v) = (f64s(&[1.0], &[1, 1]), f64s(&[0.0, 1.0], &[2, 1]), f64s(&[0.0, 1.0], &[2, 1]));
    for scale in [2.0f64, 0.0, -3.0, 1e3] {
        let y = q.scaled_dot_product_attention(&k, &v, options().scale(scale)).unwrap();
        assert_close(&f(&y), &[1.0 / (1.0 + (-scale).exp())], 1e-14);
    }
    let y = q.scaled_dot_product_attention(&k, &v, options()).unwrap();
    assert_close(&f(&y), &[1.0 / (1.0 + (-1f64).exp())], 1e-14);
    assert!(q.scaled_dot_product_attention(&k, &v, options().scale(f64::INFINITY)).is_err());
}

// Mistake 13 of `gradus/tests/mistakes.rs`: fully masked rows must be 0, with a gradient of zero.
#[test]
fn fully_masked_rows_give_zero_with_zero_gradient() {
    let inf = f64::NEG_INFINITY;
    let hidden = [bools(&[0, 0, 1, 1], &[2, 2]), f64s(&[inf, inf, 0.0, 0.0], &[2, 2])];
    for mask in &hidden {
        let inputs = [randn(&[1, 1, 2, 3], 1), randn(&[1, 1, 2, 3], 2), randn(&[1, 1, 2, 3], 3)];
        let leaves = inputs.clone().map(|t| t.with_grad().unwrap());
        let (y, lse) = leaves[0].attention_with_lse(&leaves[1], &leaves[2], options().mask(mask)).unwrap();
        assert_eq!(f(&y)[..3], [0.0; 3]);
        assert_eq!(f(&lse)[0], inf);
        assert!(f(&lse)[1].is_finite());
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(f(g.get(&leaves[0]).unwrap())[..3], [0.0; 3]);
        assert!(leaves.iter().all(|l| f(g.get(l).unwrap()).iter().all(|v| v.is_finite())));
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options().mask(mask)), &inputs);
    }
    // More queries than keys: the first query sees no key.
    let inputs = [randn(&[1, 3, 2], 1), randn(&[1, 2, 2], 2), randn(&[1, 2, 2], 3)];
    let o = || options().causal(Causal::BottomRight);
    assert_eq!(f(&inputs[0].scaled_dot_product_attention(&inputs[1], &inputs[2], o()).unwrap())[..2], [0.0; 2]);
    both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], o()), &inputs);
    // There are no keys at all.
    let inputs = [randn(&[2, 3, 2], 1), randn(&[2, 0, 2], 2), randn(&[2, 0, 4], 3)];
    let (y, lse) = inputs[0].attention_with_lse(&inputs[1], &inputs[2], options()).unwrap();
    assert_eq!((f(&y), f(&lse)), (vec![0.0; 24], vec![inf; 6]));
    both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options()), &inputs);
}

#[test]
fn gradients_of_any_order_with_grouped_heads_in_every_layout() {
    let mask = bools(&[1, 0, 1, 1, 1, 0], &[2, 3]);
    for q in layouts(&[2, 4, 2, 3], 1) {
        let inputs = [q, randn(&[2, 2, 3, 3], 2).flip(2).unwrap(), randn(&[2, 2, 3, 2], 3)];
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options()), &inputs);
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options().mask(&mask).scale(1.3)), &inputs);
        let o = || options().causal(Causal::TopLeft);
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], o()), &inputs);
    }
    for k in layouts(&[2, 2, 3, 2], 2) {
        let inputs = [randn(&[2, 2, 2, 2], 1), k.clone(), k.transpose(0, 1).unwrap()];
        let o = || options().causal(Causal::BottomRight);
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], o()), &inputs);
    }
}

// Mistake 9 of `gradus/tests/mistakes.rs`: a mask argument that is ignored.
#[test]
fn a_float_mask_has_gradients_of_its_own_shape() {
    for shape in [&[3][..], &[2, 3], &[1, 3], &[2, 1, 1], &[2, 1, 2, 3]] {
        let inputs = [randn(&[2, 2, 2, 2], 1), randn(&[2, 2, 3, 2], 2), randn(&[2, 2, 3, 2], 3), randn(shape, 4)];
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options().mask(&x[3])), &inputs);
        let o = || options().causal(Causal::TopLeft);
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], o().mask(&x[3])), &inputs);
        let with = |m: &Tensor| inputs[0].scaled_dot_product_attention(&inputs[1], &inputs[2], options().mask(m));
        assert_ne!(f(&with(&inputs[3]).unwrap()), f(&with(&inputs[3].mul(2.0).unwrap()).unwrap()));
    }
}

#[test]
fn the_log_sum_exp_is_differentiable() {
    let inputs = [randn(&[1, 4, 2, 2], 1), randn(&[1, 2, 3, 2], 2), randn(&[1, 2, 3, 2], 3)];
    let mask = bools(&[1, 0, 1], &[3]);
    let lse = |x: &[Tensor]| -> Result<Tensor> {
        let (y, lse) = x[0].attention_with_lse(&x[1], &x[2], options().mask(&mask))?;
        lse.square()?.sum_all()?.add(&y.square()?.sum_all()?)
    };
    both(lse, &inputs);
    both(|x| Ok(x[0].attention_with_lse(&x[1], &x[2], options())?.1), &inputs);
    let (q, k) = (&inputs[0], inputs[1].index_select(1, &common::i64s(&[0, 0, 1, 1], &[4])).unwrap());
    let scores = q.matmul(&k.transpose(-2, -1).unwrap()).unwrap().mul(0.5).unwrap();
    let want = scores.exp().unwrap().sum(&[3], false).unwrap().log().unwrap();
    let got = q.attention_with_lse(&inputs[1], &inputs[2], options().scale(0.5)).unwrap().1;
    assert_eq!(got.shape(), [1, 4, 2]);
    assert_close(&f(&got), &f(&want), 1e-12);
}

#[test]
fn heads_and_leading_axes_are_what_they_say() {
    // A key head shared by several query heads acts like repeated key heads. Leading axes are batch axes. Without a
    // head axis there is one head.
    let [q, k, v] = grouped();
    let y = q.scaled_dot_product_attention(&k, &v, options()).unwrap();
    let repeat = |t: &Tensor| t.index_select(1, &common::i64s(&[0, 0, 1, 1], &[4])).unwrap();
    let full = q.scaled_dot_product_attention(&repeat(&k), &repeat(&v), options()).unwrap();
    assert_close(&f(&full), &f(&y), 1e-14);
    let mask = bools(&[1, 0, 0, 1, 1, 0, 1, 1, 1, 1], &[2, 1, 1, 5]);
    let masked = q.scaled_dot_product_attention(&k, &v, options().mask(&mask)).unwrap();
    let lead = |t: &Tensor| t.reshape([&[2, 1], &t.shape()[1..]].concat()).unwrap();
    let with = |m: &Tensor| lead(&q).scaled_dot_product_attention(&lead(&k), &lead(&v), options().mask(m));
    assert_eq!(f(&with(&mask.reshape([2, 1, 1, 1, 5]).unwrap()).unwrap()), f(&masked));
    assert_eq!(with(&mask.reshape([2, 1, 1, 1, 5]).unwrap()).unwrap().shape(), [2, 1, 4, 3, 3]);
    for (b, h) in [(0, 0), (1, 3)] {
        let part = |t: &Tensor, h| t.select(0, b).unwrap().select(0, h).unwrap();
        let m = mask.select(0, b).unwrap().reshape([1, 5]).unwrap();
        let one = part(&q, h).scaled_dot_product_attention(&part(&k, h / 2), &part(&v, h / 2), options().mask(&m));
        assert_close(&f(&one.unwrap()), &f(&part(&masked, h)), 1e-14);
    }
}

#[test]
fn what_is_masked_does_not_leak() {
    let inf = f64::INFINITY;
    for bad in [f64::NAN, inf] {
        let poison = |t: &Tensor| {
            let mut v = f(t);
            v[4..6].fill(bad); // key 2
            f64s(&v, t.shape()).with_grad().unwrap()
        };
        let (q, k, v) = (randn(&[1, 2, 2], 1), randn(&[1, 3, 2], 2), randn(&[1, 3, 2], 3));
        let leaves = [q.with_grad().unwrap(), poison(&k), poison(&v)];
        let mask = bools(&[1, 1, 0], &[3]);
        let y = leaves[0].scaled_dot_product_attention(&leaves[1], &leaves[2], options().mask(&mask)).unwrap();
        let two = |t: &Tensor| t.narrow(1, 0, 2).unwrap();
        let clean = q.scaled_dot_product_attention(&two(&k), &two(&v), options()).unwrap();
        assert_close(&f(&y), &f(&clean), 1e-14);
        let refs: Vec<&Tensor> = leaves.iter().collect();
        for options in [BackwardOptions::new().retain_graph(), BackwardOptions::new().create_graph()] {
            let loss = y.square().unwrap().sum_all().unwrap();
            for (i, g) in grad(&[&loss], &refs, None, options).unwrap().into_iter().enumerate() {
                let g = f(&g.unwrap());
                assert!(g.iter().all(|v| v.is_finite()), "{i} {g:?}");
                assert!(i == 0 || g[4..] == [0.0, 0.0]);
            }
        }
    }
}

#[test]
fn dropout_drops_weights_and_has_gradients() {
    let inputs = [randn(&[2, 2, 3, 2], 1), randn(&[2, 1, 4, 2], 2), randn(&[2, 1, 4, 3], 3)];
    let at = |p: f64, x: &[Tensor], g: &mut Generator| {
        x[0].scaled_dot_product_attention(&x[1], &x[2], options().dropout(p, g).causal(Causal::BottomRight))
    };
    for p in [0.3, 1.0] {
        both(|x| at(p, x, &mut Generator::new(7)), &inputs);
    }
    assert_eq!(f(&at(1.0, &inputs, &mut Generator::new(1)).unwrap()), [0.0; 36]);
    let mut generator = Generator::new(1);
    let plain = inputs[0].scaled_dot_product_attention(&inputs[1], &inputs[2], options().causal(Causal::BottomRight));
    assert_eq!(f(&at(0.0, &inputs, &mut generator).unwrap()), f(&plain.unwrap()));
    assert_eq!(generator.offset(), 0);
    // Averaged over many dropout masks, the result is that of attention without dropout.
    let (q, k, v) = (randn(&[1, 1, 2], 1), randn(&[1, 4, 2], 2), randn(&[1, 4, 1], 3));
    let many = |t: &Tensor| t.expand([&[4096], &t.shape()[1..]].concat()).unwrap();
    let dropped = many(&q).scaled_dot_product_attention(&many(&k), &many(&v), options().dropout(0.5, &mut generator));
    let mean = dropped.unwrap().mean_all().unwrap().item().unwrap();
    let plain = q.scaled_dot_product_attention(&k, &v, options()).unwrap().item().unwrap();
    assert!((mean - plain).abs() < 0.05, "{mean} {plain}");
}

#[test]
fn half_precision_computes_in_f32() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let [q, k, v] = grouped().map(|t| t.to_dtype(dtype).unwrap());
        let (y, lse) = q.attention_with_lse(&k, &v, options()).unwrap();
        assert_eq!((y.dtype(), lse.dtype()), (dtype, DType::F32));
        let [q64, k64, v64] = [&q, &k, &v].map(|t| t.to_dtype(DType::F64).unwrap());
        let (want, wanted_lse) = q64.attention_with_lse(&k64, &v64, options()).unwrap();
        assert_close(&f(&y), &f(&want), if dtype == DType::F32 { 1e-6 } else { 4e-3 });
        assert_close(&f(&lse), &f(&wanted_lse), 1e-6);
        let leaf = q.with_grad().unwrap();
        let mut generator = Generator::new(1);
        let y = leaf.scaled_dot_product_attention(&k, &v, options().dropout(0.5, &mut generator)).unwrap();
        assert_eq!(y.dtype(), dtype);
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&leaf).unwrap().dtype(), dtype);
    }
    // The scores are far above the range of f16.
    let q = Tensor::full([1, 2, 64], 60.0, DType::F16, &cpu()).unwrap();
    let y = q.scaled_dot_product_attention(&q, &q, options().scale(1.0)).unwrap();
    assert_eq!(f(&y), [60.0; 128]);
}

#[test]
fn tensors_of_no_elements() {
    for (b, h, hk, lq, lk, d) in [(0, 2, 1, 3, 4, 2), (2, 0, 0, 3, 4, 2), (1, 2, 1, 0, 4, 2), (1, 2, 1, 3, 4, 0)] {
        let inputs = [randn(&[b, h, lq, d], 1), randn(&[b, hk, lk, d], 2), randn(&[b, hk, lk, 2], 3)];
        let y = inputs[0].scaled_dot_product_attention(&inputs[1], &inputs[2], options()).unwrap();
        assert_eq!(y.shape(), [b, h, lq, 2]);
        both(|x| x[0].scaled_dot_product_attention(&x[1], &x[2], options()), &inputs);
    }
}

#[test]
fn masked_softmax_keeps_what_it_is_told() {
    let inf = f64::NEG_INFINITY;
    let x = f64s(&[1.0, 2.0, f64::NAN, 3.0, 3.0, inf, inf, inf, 1.0], &[3, 3]);
    let mask = bools(&[1, 1, 0, 0, 0, 0, 1, 1, 0], &[3, 3]);
    let e = 1f64.exp();
    assert_close(
        &f(&x.masked_softmax(&mask, 1).unwrap()),
        &[1.0 / (1.0 + e), e / (1.0 + e), 0., 0., 0., 0., 0., 0., 0.],
        1e-14,
    );
    let leaf = x.with_grad().unwrap();
    let y = leaf.masked_softmax(&mask, -1).unwrap().square().unwrap().sum_all().unwrap();
    let g = f(y.backward().unwrap().get(&leaf).unwrap());
    assert!(g.iter().all(|g| g.is_finite()) && g[2..] == [0.0; 7], "{g:?}");
    // NaN is the correct result here, because this mask keeps the NaN.
    assert!(f(&x.masked_softmax(&bools(&[0, 1, 1], &[3]), 1).unwrap())[1].is_nan());
    for x in layouts(&[3, 4], 1) {
        let mask = bools(&[1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0], &[3, 4]);
        for axis in [0, 1] {
            both(|x| x[0].masked_softmax(&mask, axis), std::slice::from_ref(&x));
        }
    }
    assert!(x.masked_softmax(&x, 1).unwrap_err().to_string().contains("bool"));
    assert!(x.masked_softmax(&bools(&[1, 1], &[2]), 1).is_err());
    assert!(x.masked_softmax(&mask, 2).is_err());
    assert_eq!(randn(&[0, 3], 1).masked_softmax(&mask.narrow(0, 0, 1).unwrap(), 1).unwrap().shape(), [0, 3]);
}

#[test]
fn impossible_attention_is_refused_with_its_operands() {
    let [q, k, v] = grouped();
    let refused = |r: Result<Tensor>, part: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    };
    let o = options;
    refused(q.scaled_dot_product_attention(&k.narrow(3, 0, 1).unwrap(), &v, o()), "2 != 1");
    refused(q.scaled_dot_product_attention(&k, &v.narrow(2, 0, 4).unwrap(), o()), "[2, 2, 4, 3]");
    refused(q.narrow(1, 0, 3).unwrap().scaled_dot_product_attention(&k, &v, o()), "3 query heads");
    let three = Tensor::cat(&[&q, &q.narrow(0, 0, 1).unwrap()], 0).unwrap();
    refused(three.scaled_dot_product_attention(&k, &v, o()), "do not broadcast");
    refused(q.index((0, 0, 0)).unwrap().scaled_dot_product_attention(&k, &v, o()), "[.., h, l, d]");
    refused(q.scaled_dot_product_attention(&k, &v, o().scale(f64::NAN)), "NaN");
    refused(q.scaled_dot_product_attention(&k, &v, o().mask(&bools(&[1; 4], &[4]))), "mask");
    refused(q.scaled_dot_product_attention(&k, &v, o().mask(&common::i64s(&[1; 5], &[5]))), "i64");
    refused(q.scaled_dot_product_attention(&k, &v, o().dropout(1.5, &mut Generator::new(0))), "1.5");
    refused(q.scaled_dot_product_attention(&k, &v, o().dropout(f64::NAN, &mut Generator::new(0))), "NaN");
    let i = common::i64s(&[1, 2], &[1, 2]);
    refused(i.scaled_dot_product_attention(&i, &i, o()), "i64");
}

/// The class of each gradient: NaN (`N`), infinite (`+` or `-`), 0, or any other number (`.`).
fn kinds(t: &Tensor) -> String {
    let kind = |v: f64| match v {
        v if v.is_nan() => 'N',
        f64::INFINITY => '+',
        f64::NEG_INFINITY => '-',
        0.0 => '0',
        _ => '.',
    };
    f(t).into_iter().map(kind).collect()
}

#[test]
fn infinities_leave_the_same_nans_in_a_recorded_gradient() {
    for (causal, [lq, lk]) in [(Causal::No, [3, 4]), (Causal::BottomRight, [3, 4]), (Causal::BottomRight, [150, 150])] {
        for (d, which) in [1, 2].into_iter().flat_map(|d| [0, 1, 2].map(|which| (d, which))) {
            let base = [randn(&[1, 1, lq, d], 1), randn(&[1, 1, lk, d], 2), randn(&[1, 1, lk, 2], 3)];
            for v in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                for at in (0..base[which].numel()).step_by(if lq > 100 { 71 } else { 1 }) {
                    let mut x = base.clone();
                    let mut values = f(&x[which]);
                    values[at] = v;
                    x[which] = f64s(&values, x[which].shape());
                    let x = x.map(|t| t.with_grad().unwrap());
                    let y = x[0].scaled_dot_product_attention(&x[1], &x[2], options().causal(causal)).unwrap();
                    let y = y.sum_all().unwrap();
                    let run = |o: BackwardOptions| -> Vec<String> {
                        let found = grad(&[&y], &[&x[0], &x[1], &x[2]], None, o.retain_graph()).unwrap();
                        found.iter().map(|g| kinds(g.as_ref().unwrap())).collect()
                    };
                    let (fused, recorded) = (run(BackwardOptions::new()), run(BackwardOptions::new().create_graph()));
                    assert_eq!(fused, recorded, "{v} in {which} at {at}, {causal:?} {lq} {lk} {d}");
                    assert!(fused.iter().any(|s| s.contains('N')), "{v} in {which} at {at} is lost");
                }
            }
        }
    }
}
