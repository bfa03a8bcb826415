//! Losses: values compared with PyTorch, gradients compared with finite differences up to second order, edge cases and
//! refused arguments.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, assert_close, both, cpu, f32s, f64s, i64s, layouts, randn};
use gradus_tensor::ops::Target;
use gradus_tensor::{DType, ErrorKind, Reduction, Result, Tensor};

use Reduction::{Mean, None as Each, Sum};

/// `1.5 sin(a i + b)` for element `i`, as in the script that computed the expected values.
fn wave(shape: &[usize], a: f64, b: f64) -> Tensor {
    let n: usize = shape.iter().product();
    f64s(&(0..n).map(|i| 1.5 * (i as f64 * a + b).sin()).collect::<Vec<_>>(), shape)
}

#[track_caller]
fn same(got: Result<Tensor>, want: &[f64]) {
    assert_close(&got.unwrap().to_vec::<f64>().unwrap(), want, 1e-10);
}

/// Runs [`both`] with the first input in every layout.
fn every_layout(shape: &[usize], others: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    for x in layouts(shape, 7) {
        let inputs: Vec<Tensor> = std::iter::once(x).chain(others.iter().cloned()).collect();
        both(&f, &inputs);
    }
}

/// Logits `[2, 3, 4]`, class weights, and targets `[2, 4]`.
fn classes() -> (Tensor, Tensor, Tensor) {
    let target = i64s(&[0, 2, -100, 1, 1, 1, 0, -100], &[2, 4]);
    (wave(&[2, 3, 4], 1.7, 0.3), f64s(&[0.5, 2.0, 1.25], &[3]), target)
}

const NLL: [f64; 8] =
    [0.867990680075, 2.315190845823, 0.0, 2.605757474874, 2.193590812102, 2.547952611429, 0.925050031256, 0.0];

#[test]
fn cross_entropy_with_weights_smoothing_and_ignored_rows() {
    let (x, w, t) = classes();
    let ce = |w, s, r| x.cross_entropy_with(&t, w, Some(-100), s, r);
    same(ce(Some(&w), 0.0, Each), &NLL);
    same(ce(Some(&w), 0.0, Mean), &[1.388549388553]);
    same(ce(Some(&w), 0.0, Sum), &[11.455532455558]);
    let smooth =
        [0.957137205562, 2.179680948978, 0.0, 2.367539113037, 2.071545578903, 2.360877547642, 1.022042444176, 0.0];
    same(ce(Some(&w), 0.2, Each), &smooth);
    same(ce(Some(&w), 0.2, Mean), &[1.328342162218]);
    same(ce(Some(&w), 0.2, Sum), &[10.958822838299]);
    same(ce(None, 0.2, Mean), &[1.456426769558]);
    same(ce(None, 0.2, Sum), &[8.738560617347]);
    let log = x.log_softmax(1).unwrap();
    same(log.nll_loss(&t, Some(&w), Some(-100), Each), &NLL);
    same(log.nll_loss(&t, Some(&w), Some(-100), Mean), &[1.388549388553]);
    same(log.nll_loss(&t, None, Some(-100), Mean), &[ce(None, 0.0, Mean).unwrap().item().unwrap()]);
    // Weights of 1 change nothing, and targets of every index dtype give the same loss.
    let ones = w.ones_like().unwrap();
    same(ce(Some(&ones), 0.2, Mean), &[1.456426769558]);
    let narrow = t.to_dtype(DType::I32).unwrap();
    same(x.cross_entropy_with(&narrow, Some(&w), Some(-100), 0.2, Mean), &[1.328342162218]);
}

#[test]
fn cross_entropy_of_probabilities() {
    let (x, w, _) = classes();
    let p = wave(&[2, 3, 4], 0.9, 1.1).softmax(1).unwrap();
    let rows = [
        0.960507085246,
        1.014860780084,
        1.479437646764,
        2.267911243148,
        1.93265919816,
        1.596062368169,
        0.919604672764,
        0.959115748316,
    ];
    let soft = |p: &Tensor, r| x.cross_entropy_with(Target::Probabilities(p), Some(&w), None, 0.1, r);
    same(soft(&p, Each), &rows);
    same(soft(&p, Mean), &[1.391269842832]);
    // A one-hot row gives the same loss as the class index, even if another class is impossible.
    let x = f64s(&[1.0, f64::NEG_INFINITY, 2.0], &[1, 3]).with_grad().unwrap();
    let hard = x.cross_entropy(&i64s(&[2], &[1])).unwrap().item().unwrap();
    let one_hot = f64s(&[0.0, 0.0, 1.0], &[1, 3]);
    let loss = x.cross_entropy_with(Target::Probabilities(&one_hot), None, None, 0.0, Mean).unwrap();
    assert_close(&[loss.item().unwrap()], &[hard], 1e-12);
    let g = loss.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap();
    assert!(g[1] == 0.0 && g.iter().all(|v| v.is_finite()), "{g:?}");
    assert!(soft(&p.narrow(1, 0, 2).unwrap(), Mean).is_err());
    let refused = x.cross_entropy_with(Target::Probabilities(&one_hot), None, Some(0), 0.0, Mean).unwrap_err();
    assert!(refused.to_string().contains("index to ignore"), "{refused}");
}

#[test]
fn gradients_of_class_losses() {
    let (_, w, t) = classes();
    for reduction in [Each, Mean, Sum] {
        for s in [0.0, 0.2] {
            let f = |v: &[Tensor]| v[0].cross_entropy_with(&t, Some(&v[1]), Some(-100), s, reduction);
            every_layout(&[2, 3, 4], std::slice::from_ref(&w), f);
        }
        every_layout(&[2, 3, 4], std::slice::from_ref(&w), |v| v[0].nll_loss(&t, Some(&v[1]), Some(-100), reduction));
    }
    let p = randn(&[2, 3, 4], 3).softmax(1).unwrap();
    every_layout(&[2, 3, 4], &[p, w], |v| {
        v[0].cross_entropy_with(Target::Probabilities(&v[1]), Some(&v[2]), None, 0.1, Mean)
    });
}

#[test]
fn rows_that_do_not_count_are_nothing_whatever_is_in_them() {
    let x = f64s(&[1.0, 2.0, f64::NAN, f64::INFINITY], &[2, 2]).with_grad().unwrap();
    let t = i64s(&[0, -100], &[2]);
    let w = f64s(&[f64::INFINITY, 1.0], &[2]);
    let first = f64s(&[1.0, 1.0], &[2]);
    for s in [0.0, 0.3] {
        for weight in [None, Some(&first)] {
            let loss = x.cross_entropy_with(&t, weight, Some(-100), s, Mean).unwrap();
            let g = loss.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap();
            assert!(g[0].abs() > 0.1 && g[2..] == [0.0, 0.0], "{g:?}");
        }
    }
    // The weight of class 0 is read for an ignored row, but must not affect the result.
    let ignored = x.detach().cross_entropy_with(&i64s(&[1, -100], &[2]), Some(&w), Some(-100), 0.0, Sum).unwrap();
    assert!(ignored.item().unwrap().is_finite());
    let none = i64s(&[-100, -100], &[2]);
    assert!(x.cross_entropy_with(&none, Some(&first), Some(-100), 0.0, Mean).unwrap().item().unwrap().is_nan());
    assert!(x.nll_loss(&none, None, Some(-100), Mean).unwrap().item().unwrap().is_nan());
    let empty = f64s(&[], &[0, 3]);
    assert!(empty.nll_loss(&i64s(&[], &[0]), None, None, Mean).unwrap().item().unwrap().is_nan());
    assert_eq!(empty.nll_loss(&i64s(&[], &[0]), None, None, Sum).unwrap().item().unwrap(), 0.0);
}

#[test]
fn class_losses_refuse_what_does_not_fit() {
    let (x, w, t) = classes();
    let out = i64s(&[0, 1, 2, 0, 1, 3, 0, 0], &[2, 4]);
    for e in [
        x.nll_loss(&out, None, None, Mean).unwrap_err(),
        x.cross_entropy_with(&out, Some(&w), None, 0.0, Mean).unwrap_err(),
        x.cross_entropy_with(&out, None, None, 0.0, Mean).unwrap_err(),
    ] {
        assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 5, index: 3, size: 3 }, "{e}");
    }
    let kinds = [
        x.nll_loss(&t.narrow(1, 0, 3).unwrap(), None, None, Mean).unwrap_err(),
        x.nll_loss(&t, Some(&f64s(&[1.0], &[1])), None, Mean).unwrap_err(),
        f64s(&[1.0], &[1]).nll_loss(&i64s(&[0], &[]), None, None, Mean).unwrap_err(),
    ];
    assert!(kinds.iter().all(|e| e.kind() == &ErrorKind::ShapeMismatch));
    assert!(x.nll_loss(&f64s(&[0.0; 8], &[2, 4]), None, None, Mean).is_err());
    assert!(t.nll_loss(&t, None, None, Mean).is_err());
    for s in [-0.1, 1.1, f64::NAN] {
        assert!(x.cross_entropy_with(&t, Some(&w), None, s, Mean).is_err());
    }
}

fn pair() -> (Tensor, Tensor) {
    (wave(&[2, 3], 1.7, 0.3), wave(&[2, 3], 0.9, 1.1))
}

#[test]
fn binary_losses() {
    let (a, b) = pair();
    let q = b.sigmoid().unwrap();
    let (w, pw) = (f64s(&[1.0, 0.5, 2.0], &[3]), f64s(&[3.0, 1.0, 0.25], &[3]));
    let want = [1.373513013583, 0.252676176991, 0.650245638287, 1.4211511578, 0.591467599693, 1.813978488926];
    same(a.bce_with_logits(&q, Some(&w), Some(&pw), Each), &want);
    same(a.bce_with_logits(&q, Some(&w), Some(&pw), Mean), &[1.017172012546]);
    let want = [0.588088506649, 0.252676176991, 1.681311307571, 0.603719497277, 0.591467599693, 1.959775606755];
    same(a.sigmoid().unwrap().binary_cross_entropy(&q, Some(&w), Each), &want);
    let (p, t) = (f64s(&[0.0, 1.0, 0.0, 1.0, 1e-50, 1.5, f64::NAN], &[7]), [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
    let edges = p.binary_cross_entropy(&f64s(&t, &[7]), None, Each).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(edges[..5], [0.0, 0.0, 100.0, 100.0, 100.0]);
    assert!(edges[5..].iter().all(|v| v.is_nan()));
    let p = f32s(&[0.0, 1.0, 0.0, 1.0], &[4]).with_grad().unwrap();
    let g = p.binary_cross_entropy(&f32s(&[0.0, 1.0, 1.0, 0.0], &[4]), None, Sum).unwrap().backward().unwrap();
    assert_eq!(g.get(&p).unwrap().to_vec::<f32>().unwrap(), [1.0, -1.0, 0.0, 0.0]);
    let want = [0.49587070021, 1.591599469816, 1.167484150824, 0.272888522725, 1.382427811825, 0.347746174054];
    same(a.soft_margin_loss(&signs(), Each), &want);

    let others = [q, w.add(0.2).unwrap(), pw];
    every_layout(&[2, 3], &others, |v| v[0].bce_with_logits(&v[1], Some(&v[2]), Some(&v[3]), Mean));
    every_layout(&[2, 3], &others, |v| v[0].sigmoid()?.binary_cross_entropy(&v[1], Some(&v[2]), Sum));
    every_layout(&[2, 3], &[signs()], |v| v[0].soft_margin_loss(&v[1], Each));

    let huge = f32s(&[1000.0, -1000.0], &[2]);
    assert_eq!(
        huge.bce_with_logits(&f32s(&[0.0, 1.0], &[2]), None, None, Each).unwrap().to_vec::<f32>().unwrap(),
        [1000.0, 1000.0]
    );
    // A weight must not broadcast the losses to a larger shape.
    let wide = f64s(&[1.0; 12], &[2, 2, 3]);
    assert!(a.bce_with_logits(&a, Some(&wide), None, Mean).is_err());
    assert!(a.bce_with_logits(&a, None, Some(&wide), Mean).unwrap_err().to_string().contains("pos_weight"));
}

fn signs() -> Tensor {
    f64s(&[1.0, -1.0, 1.0, -1.0, -1.0, 1.0], &[2, 3])
}

#[test]
fn distances() {
    let (a, b) = pair();
    same(a.l1_loss(&b, Each), &[0.8935307301, 0.0, 1.153628205184, 0.24135989492, 2.593338446535, 1.824275746146]);
    let smooth = [0.5435307301, 0.0, 0.803628205184, 0.041610427768, 2.243338446535, 1.474275746146];
    same(a.smooth_l1_loss(&b, 0.7, Each), &smooth);
    let huber = [0.38047151107, 0.0, 0.562539743629, 0.029127299438, 1.570336912574, 1.031993022302];
    same(a.huber_loss(&b, 0.7, Each), &huber);
    same(a.huber_loss(&b, 0.7, Mean), &[huber.iter().sum::<f64>() / 6.0]);
    same(a.smooth_l1_loss(&b, 0.0, Sum), &[a.l1_loss(&b, Sum).unwrap().item().unwrap()]);
    let other = [randn(&[2, 3], 11)];
    for reduction in [Each, Mean, Sum] {
        every_layout(&[2, 3], &other, |v| v[0].mse_loss(&v[1], reduction));
        every_layout(&[2, 3], &other, |v| v[0].l1_loss(&v[1], reduction));
        every_layout(&[2, 3], &other, |v| v[0].smooth_l1_loss(&v[1], 0.5, reduction));
        every_layout(&[2, 3], &other, |v| v[0].huber_loss(&v[1], 0.5, reduction));
    }
    // The second derivative at equality is 1, not 0 as for |d|. An infinite error has slope `delta`.
    both(|v| v[0].huber_loss(&v[1], 0.5, Sum), &[a.clone(), a.clone()]);
    let x = f64s(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN], &[3]).with_grad().unwrap();
    let loss = x.huber_loss(&f64s(&[0.0; 3], &[3]), 2.0, Sum).unwrap();
    let g = loss.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap();
    assert!(g[..2] == [2.0, -2.0] && g[2].is_nan(), "{g:?}");
    let empty = f64s(&[], &[0]);
    assert!(empty.l1_loss(&empty, Mean).unwrap().item().unwrap().is_nan());
    for parameter in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(a.huber_loss(&b, parameter, Mean).is_err() && a.smooth_l1_loss(&b, parameter, Mean).is_err());
    }
    assert!(a.huber_loss(&b, 0.0, Mean).is_err());
}

#[test]
fn likelihoods() {
    let (a, b) = pair();
    let (la, qb) = (a.log_softmax(1).unwrap(), b.softmax(1).unwrap());
    let kl = [0.19066345372, -0.186065538213, 0.11240290163, 0.779393296008, -0.190540214416, -0.035990131809];
    same(la.kl_div(&qb, false, Each), &kl);
    same(la.kl_div(&qb.log().unwrap(), true, Mean), &[0.111643961153]);
    same(la.kl_div_batch_mean(&qb, false), &[0.33493188346]);
    same(la.kl_div_batch_mean(&qb.log().unwrap(), true), &[0.33493188346]);
    // 0 ln(0 / 0) counts as 0, with finite slopes.
    let low = f64s(&[f64::NEG_INFINITY, -1.0], &[2]).with_grad().unwrap();
    for (target, log) in [([0.0, 1.0], false), ([f64::NEG_INFINITY, 0.0], true)] {
        let loss = low.kl_div(&f64s(&target, &[2]), log, Sum).unwrap();
        assert_eq!(loss.item().unwrap(), 1.0);
        assert_eq!(loss.backward().unwrap().get(&low).unwrap().to_vec::<f64>().unwrap(), [0.0, -1.0]);
    }
    let counts = f64s(&[0.0, 1.0, 2.0, 5.0, 3.0, 0.0], &[2, 3]);
    let full = [1.557808942558, 2.54765246247, 2.693007149431, 10.880334491232, 1.468284527703, 2.404581291753];
    same(a.poisson_nll_loss(&counts, true, true, 1e-8, Each), &full);
    let rates = [0.443280309992, 1.053564060894, 1.254198946652, 0.420725898134, 0.825430258944, 0.877375789338];
    same(a.abs().unwrap().poisson_nll_loss(&counts, false, false, 1e-8, Each), &rates);
    let normal = [1.439967055454, 0.494023783212, 4.24429090055, 0.528515643868, 15.390842033797, 4.774582052537];
    same(a.gaussian_nll_loss(&b, &qb, true, 1e-6, Each), &normal);
    let shared =
        [0.728675540559, -0.601986402163, 1.616110324163, 29120.39168259426, 3362695.241382914, 1663984.0912332216];
    same(a.gaussian_nll_loss(&b, &f64s(&[0.3, 1e-9], &[2, 1]), false, 1e-6, Each), &shared);
    let negative = a.gaussian_nll_loss(&b, &f64s(&[-0.3, 0.0], &[2, 1]), false, 1e-6, Each).unwrap();
    assert!(negative.to_vec::<f64>().unwrap()[0].is_nan() && negative.to_vec::<f64>().unwrap()[3].is_finite());

    let other = [qb, randn(&[2, 3], 5)];
    every_layout(&[2, 3], &other, |v| v[0].kl_div(&v[1], false, Mean));
    every_layout(&[2, 3], &other, |v| v[0].kl_div(&v[2], true, Each));
    every_layout(&[2, 3], &other, |v| v[0].kl_div_batch_mean(&v[1], false));
    every_layout(&[2, 3], &other, |v| v[0].poisson_nll_loss(&v[1].add(1.5)?, true, true, 1e-8, Sum));
    every_layout(&[2, 3], &other, |v| v[0].exp()?.poisson_nll_loss(&v[1], false, true, 1e-3, Sum));
    every_layout(&[2, 3], &other, |v| v[0].gaussian_nll_loss(&v[2], &v[1], true, 1e-6, Mean));
    assert!(f64s(&[1.0], &[]).kl_div_batch_mean(&f64s(&[1.0], &[]), false).is_err());
    assert!(a.gaussian_nll_loss(&b, &f64s(&[1.0], &[1]), false, 1e-6, Mean).is_err());
    assert!(a.gaussian_nll_loss(&b, &b, false, 0.0, Mean).is_err());
}

#[test]
fn margins() {
    let (a, b) = pair();
    let c = wave(&[2, 3], 2.3, 0.7);
    same(a.cosine_embedding_loss(&b, &f64s(&[1.0, -1.0], &[2]), -0.9, Each), &[0.31966796442, 0.512716205037]);
    same(a.cosine_embedding_loss(&b, &i64s(&[1, 0], &[2]), -0.9, Sum), &[0.31966796442]);
    let row = |t: &Tensor| t.select(0, 0).unwrap();
    same(row(&a).cosine_embedding_loss(&row(&b), &f64s(&[1.0], &[]), 0.0, Each), &[0.31966796442]);
    for (p, swap, want) in [
        (1.0, false, [1.418197634297, 0.353470734675]),
        (1.0, true, [1.418197634297, 2.566174664003]),
        (2.0, false, [1.614914029992, 1.217739921358]),
        (2.0, true, [1.614914029992, 2.141189050969]),
        (3.0, false, [1.601308504469, 1.392707767919]),
        (3.0, true, [1.601308504469, 1.96022751475]),
        (f64::INFINITY, false, [1.501360077035, 1.482314207154]),
        (f64::INFINITY, true, [1.501360077035, 1.723674102074]),
    ] {
        same(a.triplet_margin_loss(&b, &c, 1.5, p, swap, Each), &want);
        let apart = [a.clone(), b.add(0.03).unwrap(), c.clone()];
        both(|v| v[0].triplet_margin_loss(&v[1], &v[2], 1.5, p, swap, Mean), &apart);
    }
    same(
        a.hinge_embedding_loss(&signs(), 0.8, Each),
        &[0.443280309992, 0.0, -0.794754211363, 1.959146731334, 0.0, 0.877375789338],
    );
    same(
        a.margin_ranking_loss(&b, &signs(), 0.3, Each),
        &[1.1935307301, 0.3, 1.453628205184, 0.05864010508, 2.893338446535, 0.0],
    );
    let other = [randn(&[2, 3], 5)];
    // Stay away from the origin, where the cosine changes too fast for finite differences.
    let y = f64s(&[1.0, -1.0], &[2]);
    every_layout(&[2, 3], &other, |v| v[0].add(2.0)?.cosine_embedding_loss(&v[1], &y, -0.99, Mean));
    every_layout(&[2, 3], &other, |v| v[0].margin_ranking_loss(&v[1], &signs(), 0.3, Sum));
    every_layout(&[2, 3], &other, |v| v[0].hinge_embedding_loss(&signs(), 0.8, Sum));
    every_layout(&[2, 3], &[b.clone(), c.clone()], |v| v[0].triplet_margin_loss(&v[1], &v[2], 9.0, 2.0, true, Sum));
    // Vectors whose product of lengths overflows, and points at distance 0.
    let far = f32s(&[1e15, 0.0], &[1, 2]);
    assert!(far.cosine_embedding_loss(&far, &f32s(&[1.0], &[1]), 0.0, Sum).unwrap().item().unwrap().abs() < 1e-6);
    let x = f64s(&[0.0, 0.0], &[1, 2]).with_grad().unwrap();
    let shifted = f64s(&[1e-6, 1e-6], &[1, 2]);
    let loss = x.triplet_margin_loss(&shifted, &f64s(&[3.0, 4.0], &[1, 2]), 9.0, 2.0, false, Sum).unwrap();
    assert!(loss.backward().unwrap().get(&x).unwrap().to_vec::<f64>().unwrap().iter().all(|g| g.is_finite()));
    assert!(a.triplet_margin_loss(&b, &c, 0.0, 2.0, false, Mean).is_err());
    assert!(a.triplet_margin_loss(&b, &c, 1.0, 0.0, false, Mean).is_err());
    assert!(a.cosine_embedding_loss(&b, &f64s(&[1.0], &[1]), 0.0, Mean).is_err());
}

#[test]
fn losses_broadcast_nothing_and_keep_to_one_device() {
    let (a, row) = (f64s(&[1.0; 6], &[2, 3]), f64s(&[1.0; 3], &[3]));
    for e in [
        a.mse_loss(&row, Mean),
        a.l1_loss(&row, Mean),
        a.smooth_l1_loss(&row, 1.0, Mean),
        a.huber_loss(&row, 1.0, Mean),
        a.bce_with_logits(&row, None, None, Mean),
        a.binary_cross_entropy(&row, None, Mean),
        a.soft_margin_loss(&row, Mean),
        a.kl_div(&row, false, Mean),
        a.poisson_nll_loss(&row, true, false, 1e-8, Mean),
        a.gaussian_nll_loss(&row, &a, false, 1e-6, Mean),
        a.hinge_embedding_loss(&row, 1.0, Mean),
        a.margin_ranking_loss(&row, &a, 1.0, Mean),
        a.margin_ranking_loss(&a, &row, 1.0, Mean),
        a.triplet_margin_loss(&row, &a, 1.0, 2.0, false, Mean),
        a.triplet_margin_loss(&a, &row, 1.0, 2.0, false, Mean),
        a.cosine_embedding_loss(&row, &f64s(&[1.0, 1.0], &[2]), 0.0, Mean),
    ] {
        let e = e.unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::ShapeMismatch, "{e}");
        assert!(e.to_string().contains("[3]"), "{e}");
    }
    let elsewhere = Tensor::ones([2, 3], DType::F64, &another_cpu()).unwrap();
    assert_eq!(a.l1_loss(&elsewhere, Mean).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
}

#[test]
fn losses_in_half_precision_compute_in_f32() {
    let half = |v: &[f32], shape: &[usize]| f32s(v, shape).to_dtype(DType::F16).unwrap();
    let (x, y) = (half(&[300.0, -2.0], &[2]), half(&[0.0, 1.0], &[2]));
    // 300^2 is above the largest f16, but the Huber loss is not.
    assert_eq!(x.huber_loss(&y, 1.0, Sum).unwrap().item().unwrap(), 302.0);
    let logits = half(&[4.0, 0.0, 1.0, 1.0], &[2, 2]);
    let t = i64s(&[0, 1], &[2]);
    let w = f32s(&[1.0, 3.0], &[2]);
    let loss = logits.cross_entropy_with(&t, Some(&w), None, 0.1, Mean).unwrap();
    assert_eq!(loss.dtype(), DType::F32);
    let wide = logits.to_dtype(DType::F32).unwrap().cross_entropy_with(&t, Some(&w), None, 0.1, Mean).unwrap();
    assert_close(&[loss.item().unwrap()], &[wide.item().unwrap()], 1e-6);
    let leaf = logits.with_grad().unwrap();
    let g = leaf.cross_entropy_with(&t, Some(&w), None, 0.1, Mean).unwrap().backward().unwrap();
    assert_eq!(g.get(&leaf).unwrap().dtype(), DType::F16);
    let lp = Tensor::full([3, 1, 2], 0.5f64.ln(), DType::BF16, &cpu()).unwrap();
    assert_eq!(lp.ctc_loss(&i64s(&[1], &[1]), &[3], &[1], 0, false, Mean).unwrap().dtype(), DType::F32);
}

#[test]
fn bounds_beyond_the_dtype_choose_one_branch() {
    let (x, t) = (f32s(&[3.0, -1.0], &[2]), f32s(&[1.0, -1.0], &[2]));
    let values = |r: Result<Tensor>| r.unwrap().to_vec::<f32>().unwrap();
    assert_eq!(values(x.huber_loss(&t, 1e300, Each)), [2.0, 0.0]);
    assert_eq!(values(x.smooth_l1_loss(&t, 1e300, Each)), [0.0, 0.0]);
    assert_eq!(values(x.smooth_l1_loss(&t, 1e-50, Each)), [2.0, 0.0]);
}
