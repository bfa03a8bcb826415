//! What operations require of their operands: the axes of a scalar, sizes that broadcast, numbers in range.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, cpu, f64s, i64s, randn, values};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{AttentionOptions, BackwardOptions, DType, ErrorKind, Result, ScatterReduction, Tensor, grad};

type Along = fn(&Tensor, isize) -> Result<Vec<Tensor>>;

fn one(y: Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![y?])
}

fn two(y: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    let (a, b) = y?;
    Ok(vec![a, b])
}

/// A scalar that holds the index 0.
fn first() -> Tensor {
    i64s(&[0], &[])
}

/// Operations along an axis that keep the rank of a scalar.
const ALONG: &[(&str, Along)] = &[
    ("sum", |x, a| one(x.sum(&[a], true))),
    ("mean", |x, a| one(x.mean(&[a], true))),
    ("prod", |x, a| one(x.prod(&[a], true))),
    ("max", |x, a| one(x.max(&[a], true))),
    ("aminmax", |x, a| two(x.aminmax(&[a], true))),
    ("var", |x, a| one(x.var(&[a], 0, true))),
    ("std", |x, a| one(x.std(&[a], 0, true))),
    ("any", |x, a| one(x.any(&[a], true))),
    ("count_nonzero", |x, a| one(x.count_nonzero(&[a], true))),
    ("norm", |x, a| one(x.norm(3.0, &[a], true))),
    ("logsumexp", |x, a| one(x.logsumexp(&[a], true))),
    ("argmax", |x, a| one(x.argmax(a, true))),
    ("min_with_indices", |x, a| two(x.min_with_indices(a, true))),
    ("softmax", |x, a| one(x.softmax(a))),
    ("log_softmax", |x, a| one(x.log_softmax(a))),
    ("softmin", |x, a| one(x.softmin(a))),
    ("masked_softmax", |x, a| one(x.masked_softmax(&x.ne(0)?, a))),
    ("cumsum", |x, a| one(x.cumsum(a))),
    ("cumprod", |x, a| one(x.cumprod(a))),
    ("logcumsumexp", |x, a| one(x.logcumsumexp(a))),
    ("cummax", |x, a| two(x.cummax(a))),
    ("cummin", |x, a| two(x.cummin(a))),
    ("sort", |x, a| two(x.sort(a, true))),
    ("argsort", |x, a| one(x.argsort(a, false))),
    ("topk", |x, a| two(x.topk(1, a, true, false))),
    ("kthvalue", |x, a| two(x.kthvalue(1, a, true))),
    ("flip", |x, a| one(x.flip(a))),
    ("normalize", |x, a| one(x.normalize(2.0, a, 1e-12))),
    ("transpose", |x, a| one(x.transpose(a, a))),
    ("movedim", |x, a| one(x.movedim(&[a], &[a]))),
    ("index_select", |x, a| one(x.index_select(a, &first()))),
    ("index_add", |x, a| one(x.index_add(a, &first(), &x.mul(2.0)?))),
    ("index_copy", |x, a| one(x.index_copy(a, &first(), &x.mul(2.0)?))),
    ("index_fill", |x, a| one(x.index_fill(a, &first(), 5.0))),
    ("gather", |x, a| one(x.gather(a, &first().reshape(x.shape())?))),
    ("scatter", |x, a| one(x.scatter(a, &first().reshape(x.shape())?, &x.mul(2.0)?))),
    ("scatter_add", |x, a| one(x.scatter_add(a, &first().reshape(x.shape())?, x))),
    ("scatter_reduce", |x, a| one(x.scatter_reduce(a, &first().reshape(x.shape())?, x, ScatterReduction::Prod, true))),
];

/// The gradient of the sum of the float results, or zeros if there is none.
fn gradients(x: &Tensor, results: &[Tensor]) -> Vec<f64> {
    let tracked: Vec<&Tensor> = results.iter().filter(|y| y.requires_grad()).collect();
    if tracked.is_empty() {
        return vec![0.0];
    }
    let found = grad(&tracked, &[x], None, BackwardOptions::new()).unwrap().swap_remove(0);
    found.map_or(vec![0.0], |g| values(&g))
}

#[test]
fn along_an_axis_a_scalar_is_a_vector_of_one_element() {
    for (name, call) in ALONG {
        for axis in [0, -1] {
            let (scalar, vector) = (f64s(&[0.7], &[]).with_grad().unwrap(), f64s(&[0.7], &[1]).with_grad().unwrap());
            let of_scalar = call(&scalar, axis).unwrap_or_else(|e| panic!("{name}: {e}"));
            let of_vector = call(&vector, axis).unwrap();
            assert_eq!(of_scalar.len(), of_vector.len());
            for (a, b) in of_scalar.iter().zip(&of_vector) {
                assert_eq!((a.shape(), b.shape(), a.dtype()), (&[][..], &[1][..], b.dtype()), "{name}");
                assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap(), "{name}");
            }
            assert_eq!(gradients(&scalar, &of_scalar), gradients(&vector, &of_vector), "{name}");
        }
        for axis in [1, -2, isize::MAX, isize::MIN] {
            let refused = call(&f64s(&[0.7], &[]), axis).unwrap_err();
            assert_eq!(refused.kind(), &ErrorKind::InvalidAxis, "{name} {axis}: {refused}");
        }
    }
}

#[test]
fn what_takes_an_axis_away_leaves_a_scalar() {
    let x = f64s(&[0.7], &[]);
    let all = [
        x.sum(&[0], false).unwrap(),
        x.argmin(-1, false).unwrap(),
        x.kthvalue(1, 0, false).unwrap().0,
        x.max_with_indices(0, false).unwrap().1,
        x.cosine_similarity(&x, 0, 1e-8).unwrap(),
        x.squeeze(0).unwrap(),
    ];
    assert!(all.iter().all(|y| y.shape().is_empty()));
    assert_eq!(x.flatten(0, -1).unwrap().shape(), [1]);
    assert_eq!(x.unfold_axis(0, 1, 1).unwrap().shape(), [1]);
    assert_eq!(x.sum(&[0, -1], false).unwrap_err().kind(), &ErrorKind::InvalidAxis);
}

#[test]
fn a_scalar_has_no_pieces() {
    let x = f64s(&[0.7], &[]);
    let refused: &[fn(&Tensor) -> Result<Tensor>] = &[
        |x| x.select(0, 0),
        |x| x.narrow(0, 0, 1),
        |x| x.slice(0, 0, 1, 1),
        |x| x.roll(&[1], &[0]),
        |x| x.glu(0),
        |x| x.repeat_interleave(2, 0),
        |x| Tensor::cat(&[x, x], 0),
        |x| x.unflatten(0, [1, 1]),
        |x| x.permute(&[0]),
        |x| x.diagonal(0, 0, -1),
        |x| x.rot90(1, [0, -1]),
        |x| x.tensordot(x, &[0], &[0]),
        |x| x.cross(x, 0),
        |x| x.split(1, 0).map(|mut parts| parts.remove(0)),
        |x| x.unbind(0).map(|mut parts| parts.remove(0)),
    ];
    for (i, call) in refused.iter().enumerate() {
        assert!(call(&x).is_err(), "{i}");
    }
    assert!(x.size(0).is_err());
}

#[test]
fn a_scalar_names_one_place() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let place = i64s(&[1], &[]);
    assert_eq!(x.index_select(1, &place).unwrap().shape(), [2, 1]);
    assert_eq!(values(&x.index_fill(0, &place, 0.0).unwrap()), [1.0, 2.0, 0.0, 0.0]);
    let vector = f64s(&[5.0, 6.0], &[2]);
    let picked = vector.gather(0, &place).unwrap();
    assert_eq!((picked.shape(), values(&picked)), (&[][..], vec![6.0]));
    assert_eq!(values(&vector.scatter(0, &place, f64s(&[9.0], &[])).unwrap()), [5.0, 9.0]);
    // Two slices cannot be selected from a scalar.
    let two = f64s(&[1.0], &[]).index_select(0, &i64s(&[0, 0], &[2]));
    assert_eq!(two.unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert!(matches!(vector.gather(0, &i64s(&[2], &[])).unwrap_err().kind(), ErrorKind::IndexOutOfBounds { .. }));
}

#[test]
fn an_index_above_all_integers_of_i64_is_out_of_bounds() {
    let huge = Tensor::from_vec([u64::MAX], [1], &cpu()).unwrap();
    let refused = f64s(&[1.0, 2.0], &[2]).index_select(0, &huge).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::IndexOutOfBounds { .. }), "{refused}");
}

#[test]
fn a_source_in_place_keeps_the_dtype() {
    let x = Tensor::zeros([3], DType::F32, &cpu()).unwrap();
    let (index, half) = (i64s(&[1], &[1]), Tensor::ones([1], DType::F16, &cpu()).unwrap());
    x.scatter_(0, &index, &half).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0]);
    for refused in [
        x.scatter_(0, &index, f64s(&[1.0], &[1])),
        x.index_add_(0, &index, &f64s(&[1.0], &[1])),
        x.index_put_(&[&index], &f64s(&[1.0], &[1]), false),
    ] {
        assert_eq!(refused.unwrap_err().kind(), &ErrorKind::DTypeMismatch);
    }
}

#[test]
fn one_output_is_a_weight_of_one_axis() {
    let (x, w, b) = (randn(&[2, 3, 4], 1), randn(&[4], 2), randn(&[], 3));
    let want = x.linear(&w.reshape([1, 4]).unwrap(), Some(&b.reshape([1]).unwrap())).unwrap();
    let got = x.linear(&w, Some(&b)).unwrap();
    assert_eq!(got.shape(), [2, 3]);
    assert_eq!(values(&got), values(&want));
    assert_eq!(randn(&[4], 1).linear(&w, None).unwrap().shape(), [0usize; 0]);
    gradcheck(|x| x[0].linear(&x[1], Some(&x[2])), &[x.clone(), w.clone(), b]).unwrap();
    assert_eq!(x.linear(&w, Some(&randn(&[1], 1))).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
}

#[test]
fn sizes_of_1_stretch_in_tensordot_and_cross() {
    let (a, b) = (randn(&[2, 1, 3], 1), randn(&[4, 3, 5], 2));
    let want = a.expand([2, 4, 3]).unwrap().tensordot(&b, &[1, 2], &[0, 1]).unwrap();
    assert_close(&values(&a.tensordot(&b, &[1, 2], &[0, 1]).unwrap()), &values(&want), 1e-12);
    gradcheck(|x| x[0].tensordot(&x[1], &[1, 2], &[0, 1]), &[a.clone(), b.clone()]).unwrap();
    assert_eq!(a.tensordot(&b, &[0], &[0]).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    let (a, b) = (randn(&[2, 1, 3], 1), randn(&[1, 4, 3], 2));
    let want = a.expand([2, 4, 3]).unwrap().cross(&b.expand([2, 4, 3]).unwrap(), 2).unwrap();
    assert_eq!(values(&a.cross(&b, -1).unwrap()), values(&want));
    gradgradcheck(|x| x[0].cross(&x[1], -1), &[a.clone(), b]).unwrap();
    assert_eq!(a.cross(&randn(&[1, 1], 1), -1).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert_eq!(a.cross(&randn(&[3, 4, 3], 1), -1).unwrap_err().kind(), &ErrorKind::Broadcast);
}

#[test]
fn the_axes_before_the_heads_broadcast_in_attention() {
    let attend = |x: &[Tensor]| x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions::new());
    // In turn: a batch of one, no batch axis, one head, and no head axis.
    for (q, k, v) in [
        (&[3, 2, 4, 5][..], &[1, 2, 6, 5][..], &[3, 2, 6, 7][..]),
        (&[2, 4, 5], &[3, 2, 6, 5], &[3, 1, 6, 7]),
        (&[3, 1, 4, 5], &[2, 6, 5], &[3, 2, 6, 7]),
        (&[4, 5], &[3, 2, 6, 5], &[3, 2, 6, 7]),
        (&[2, 1, 2, 4, 5], &[3, 2, 6, 5], &[2, 1, 1, 6, 7]),
    ] {
        let x = [randn(q, 1), randn(k, 2), randn(v, 3)];
        let got = attend(&x).unwrap();
        // The same attention in single steps broadcasts by itself.
        let scores = x[0].matmul(&x[1].transpose(-2, -1).unwrap()).unwrap().mul(0.2f64.sqrt()).unwrap();
        let want = scores.softmax(-1).unwrap().matmul(&x[2]).unwrap();
        assert_eq!(got.shape(), want.shape());
        assert_close(&values(&got), &values(&want), 1e-12);
        gradcheck(attend, &x).unwrap();
    }
    let refused = attend(&[randn(&[2, 1, 4, 5], 1), randn(&[3, 1, 6, 5], 2), randn(&[3, 1, 6, 5], 3)]).unwrap_err();
    assert_eq!(refused.kind(), &ErrorKind::Broadcast);
}

#[test]
fn norms_of_order_below_0() {
    let x = f64s(&[1.0, -2.0, 4.0, 0.0, 3.0, 5.0], &[2, 3]);
    for p in [-0.5, -1.0, -2.0] {
        let want = (1f64.powf(p) + 2f64.powf(p) + 4f64.powf(p)).powf(1.0 / p);
        assert_close(&values(&x.norm(p, &[1], false).unwrap()), &[want, 0.0], 1e-14);
        // If one element is 0, all slopes are 0, including its own.
        let point = x.with_grad().unwrap();
        let y = point.norm(p, &[1], false).unwrap().sum_all().unwrap();
        let g = grad(&[&y], &[&point], None, BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap();
        assert_eq!(values(&g)[3..], [0.0; 3]);
        let again = grad(&[&g.square().unwrap().sum_all().unwrap()], &[&point], None, BackwardOptions::new()).unwrap();
        assert_eq!(values(again[0].as_ref().unwrap())[3..], [0.0; 3]);
        let smooth = f64s(&[1.0, -2.0, 4.0], &[3]);
        gradcheck(|x| x[0].norm(p, &[0], false), std::slice::from_ref(&smooth)).unwrap();
        gradgradcheck(|x| x[0].norm(p, &[0], false), &[smooth]).unwrap();
        assert_eq!(f64s(&[], &[0]).norm(p, &[0], false).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        assert!(x.pairwise_distance(&x.neg().unwrap(), p, 1e-6, false).is_ok());
        assert_eq!(x.cdist(&x, p).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    }
    assert_eq!(x.cdist(&x, f64::NEG_INFINITY).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(x.norm(f64::NAN, &[0], false).unwrap_err().kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn numbers_of_activations_are_checked() {
    let x = randn(&[3], 1);
    let refused = [
        x.hardtanh(0.5, -0.5),
        x.hardtanh(f64::NAN, 1.0),
        x.softshrink(-0.5),
        x.softshrink(f64::NAN),
        x.celu(0.0),
        x.leaky_relu(f64::INFINITY),
    ];
    for y in refused {
        let e = y.unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
    }
    assert!(x.hardtanh(0.5, 0.5).is_ok() && x.softshrink(0.0).is_ok() && x.hardshrink(-1.0).is_ok());
}

#[test]
fn an_index_that_i64_cannot_hold_is_outside_of_every_axis() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let last = Tensor::from_vec([u64::MAX], [1], &cpu()).unwrap();
    let outside = |result: Result<Tensor>| {
        let kind = result.unwrap_err().kind().clone();
        assert!(matches!(kind, ErrorKind::IndexOutOfBounds { .. }), "{kind:?}");
    };
    outside(x.gather(0, &last));
    outside(x.index_select(0, &last));
    outside(x.index(&last));
}
