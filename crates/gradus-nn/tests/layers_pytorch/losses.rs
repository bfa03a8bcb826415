//! Losses.

use gradus_nn::{
    BceLoss, BceWithLogitsLoss, Buffer, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, GaussianNllLoss,
    HingeEmbeddingLoss, HuberLoss, KlDivLoss, KlDivReduction, L1Loss, MarginRankingLoss, MseLoss, MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss, MultiMarginLoss, NllLoss, PoissonNllLoss, SmoothL1Loss, SoftMarginLoss,
    TripletMarginLoss, TripletMarginWithDistanceLoss,
};
use gradus_tensor::ops::Target;
use gradus_tensor::{DType, Reduction, Tensor};

use crate::reference::Cases;

#[test]
fn losses() {
    let t = Cases::of("loss");
    let (a, b, d) = (t.value(&[3, 4], 0), t.value(&[3, 4], 1), t.value(&[3, 4], 2));
    let (p, q) = (a.sigmoid().unwrap(), b.sigmoid().unwrap());
    let (log_a, log_b, soft_b) = (a.log_softmax(1).unwrap(), b.log_softmax(1).unwrap(), b.softmax(1).unwrap());
    let magnitude = |x: &Tensor| x.abs().unwrap();
    let buffer = |k| Some(Buffer::new(magnitude(&t.value(&[4], k))).unwrap());
    let (weight, pos_weight) = (buffer(4), buffer(3));
    let sign = t.ints(&[1, -1, 1, -1], &[4]);
    let (classes, some) = (t.ints(&[2, 0, 3], &[3]), t.ints(&[2, -100, 3], &[3]));
    let images = t.ints(&[1, 0, 2, 2, 0, 1, 1, 2], &[2, 2, 2]);
    let sparse = t.ints(&[1, 3, -1, 0, 0, -1, 1, 2, 3, 2, 0, 1], &[3, 4]);
    let labels = b.gt(0.0).unwrap().to_dtype(DType::I64).unwrap();
    for (suffix, reduction, kl) in [
        ("none", Reduction::None, KlDivReduction::None),
        ("mean", Reduction::Mean, KlDivReduction::Mean),
        ("sum", Reduction::Sum, KlDivReduction::Sum),
    ] {
        macro_rules! check {
            ($name:literal, $loss:expr, $($input:expr),+) => {
                t.check(&format!("{}_{suffix}", $name), $loss, &[$($input.clone()),+], |loss, x| check!(@ loss x $($input),+))
            };
            (@ $loss:ident $x:ident $a:expr, $b:expr) => { $loss.forward(&$x[0], &$x[1]) };
            (@ $loss:ident $x:ident $a:expr, $b:expr, $c:expr) => { $loss.forward(&$x[0], &$x[1], &$x[2]) };
        }
        check!("L1", L1Loss { reduction }, a, b);
        check!("MSE", MseLoss { reduction }, a, b);
        check!("SmoothL1", SmoothL1Loss { reduction, ..Default::default() }, a, b);
        check!("SmoothL1_beta", SmoothL1Loss { beta: 0.3, reduction }, a, b);
        check!("Huber", HuberLoss { reduction, ..Default::default() }, a, b);
        check!("Huber_delta", HuberLoss { delta: 0.3, reduction }, a, b);
        check!("BCE", BceLoss { reduction, ..Default::default() }, p, q);
        check!("BCE_weight", BceLoss { weight: weight.clone(), reduction }, p, q);
        check!("BCEWithLogits", BceWithLogitsLoss { reduction, ..Default::default() }, a, q);
        let (weights, pos_weight) = (weight.clone(), pos_weight.clone());
        check!("BCEWithLogits_weights", BceWithLogitsLoss { weight: weights, pos_weight, reduction }, a, q);
        check!("SoftMargin", SoftMarginLoss { reduction }, t.value(&[4], 0), sign);
        check!("KLDiv", KlDivLoss { reduction: kl, log_target: false }, log_a, soft_b);
        check!("KLDiv_log", KlDivLoss { reduction: kl, log_target: true }, log_a, log_b);
        let counts = magnitude(&b).mul(2.0).unwrap();
        check!("PoissonNLL", PoissonNllLoss { reduction, ..Default::default() }, a, counts);
        let loss = PoissonNllLoss { log_input: false, full: true, eps: 0.1, reduction };
        check!("PoissonNLL_rate", loss, magnitude(&a), counts);
        let var = magnitude(&d).add(0.1).unwrap();
        check!("GaussianNLL", GaussianNllLoss { reduction, ..Default::default() }, a, b, var);
        let loss = GaussianNllLoss { full: true, eps: 0.5, reduction };
        check!("GaussianNLL_full", loss, a, b, magnitude(&t.value(&[3, 1], 2)));
        let distance = magnitude(&t.value(&[4], 2));
        check!("HingeEmbedding", HingeEmbeddingLoss { reduction, ..Default::default() }, distance, sign);
        check!("HingeEmbedding_margin", HingeEmbeddingLoss { margin: 0.4, reduction }, distance, sign);
        let (x, y) = (t.value(&[4], 0), t.value(&[4], 1));
        check!("MarginRanking", MarginRankingLoss { reduction, ..Default::default() }, x, y, sign);
        check!("MarginRanking_margin", MarginRankingLoss { margin: 0.7, reduction }, x, y, sign);
        let (x, y) = (t.value(&[4, 3], 0), t.value(&[4, 3], 1));
        check!("CosineEmbedding", CosineEmbeddingLoss { reduction, ..Default::default() }, x, y, sign);
        check!("CosineEmbedding_margin", CosineEmbeddingLoss { margin: 0.2, reduction }, x, y, sign);
        check!("TripletMargin", TripletMarginLoss { reduction, ..Default::default() }, a, b, d);
        check!("TripletMargin_swap", TripletMarginLoss { margin: 2.0, p: 3.0, swap: true, reduction }, a, b, d);
        let triplet = [a.clone(), b.clone(), d.clone()];
        check!("TripletDistance", TripletMarginWithDistanceLoss { reduction, ..Default::default() }, a, b, d);
        let city = |x: &Tensor, y: &Tensor| x.sub(y)?.abs()?.sum(&[-1], false);
        let loss = TripletMarginWithDistanceLoss {
            margin: 3.0,
            swap: true,
            reduction,
            ..TripletMarginWithDistanceLoss::new(city)
        };
        t.function(&format!("TripletDistance_swap_{suffix}"), &triplet, |x| loss.forward(&x[0], &x[1], &x[2]));

        let plain = CrossEntropyLoss { reduction, ..Default::default() };
        check!("CrossEntropy", plain.clone(), a, classes);
        check!("CrossEntropy_ignored", plain.clone(), a, some);
        let (ignore_index, label_smoothing) = (3, 0.2);
        let loss = CrossEntropyLoss { weight: weight.clone(), ignore_index, label_smoothing, reduction };
        check!("CrossEntropy_settings", loss, a, classes);
        check!("CrossEntropy_images", plain, t.value(&[2, 3, 2, 2], 0), images);
        let loss = CrossEntropyLoss { weight: weight.clone(), label_smoothing, reduction, ..Default::default() };
        t.check(&format!("CrossEntropy_soft_{suffix}"), loss, &[a.clone(), soft_b.clone()], |loss, x| {
            loss.forward(&x[0], Target::Probabilities(&x[1]))
        });
        check!("NLL", NllLoss { reduction, ..Default::default() }, log_a, some);
        check!("NLL_settings", NllLoss { weight: weight.clone(), ignore_index: 3, reduction }, log_a, classes);
        check!("MultiMargin", MultiMarginLoss { reduction, ..Default::default() }, a, classes);
        let loss = MultiMarginLoss { p: 2, margin: 2.0, weight: weight.clone(), reduction };
        check!("MultiMargin_settings", loss, a, classes);
        let one = MultiMarginLoss { reduction, ..Default::default() };
        check!("MultiMargin_one", one, t.value(&[4], 0), t.ints(&[2], &[]));
        check!("MultiLabelMargin", MultiLabelMarginLoss { reduction }, a, sparse);
        let row = sparse.select(0, 0).unwrap();
        check!("MultiLabelMargin_one", MultiLabelMarginLoss { reduction }, t.value(&[4], 0), row);
        check!("MultiLabelSoftMargin", MultiLabelSoftMarginLoss { reduction, ..Default::default() }, a, labels);
        check!(
            "MultiLabelSoftMargin_weight",
            MultiLabelSoftMarginLoss { weight: weight.clone(), reduction },
            a,
            labels
        );

        let x = [t.value(&[5, 3, 4], 0)];
        let targets = t.ints(&[1, 2, 2, 3, 1, 1, 1, 1, 1], &[3, 3]);
        t.check(&format!("CTC_{suffix}"), CtcLoss { reduction, ..Default::default() }, &x, |loss, x| {
            loss.forward(&x[0].log_softmax(2)?, &targets, &[5, 4, 3], &[3, 2, 0])
        });
        let targets = t.ints(&[1, 2, 0, 0, 0], &[5]);
        t.check(&format!("CTC_zero_{suffix}"), CtcLoss { blank: 3, zero_infinity: true, reduction }, &x, |loss, x| {
            loss.forward(&x[0].log_softmax(2)?, &targets, &[5, 4, 2], &[2, 0, 3])
        });
    }
    let loss = KlDivLoss { reduction: KlDivReduction::BatchMean, log_target: false };
    t.check("KLDiv_batchmean", loss, &[log_a, soft_b], |loss, x| loss.forward(&x[0], &x[1]));
    t.finish();
}
