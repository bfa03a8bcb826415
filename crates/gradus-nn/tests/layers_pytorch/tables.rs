//! Linear layers, tables, and layers with a parametrised weight.

use gradus_nn::{
    AdaptiveLogSoftmaxConfig, AdaptiveLogSoftmaxWithLoss, BagMode, Bilinear, Conv1d, Conv1dConfig, ConvTranspose1d,
    ConvTransposeConfig, Embedding, EmbeddingBag, EmbeddingBagConfig, Linear, SpectralNorm, WeightNorm, Weighted,
};
use gradus_tensor::{DType, Tensor};

use crate::reference::Cases;

fn linear(t: &Cases) -> Linear {
    t.make(|init| Linear::new(4, 3, init))
}

fn conv(t: &Cases, padding: usize) -> Conv1d {
    t.make(|init| Conv1d::new(2, 3, [2], Conv1dConfig { padding: [padding], ..Default::default() }, init))
}

/// A layer with weight norm and with spectral norm.
fn normalised<L: Weighted + Clone>(t: &Cases, name: &str, layer: L, x: Tensor) {
    let norm = WeightNorm::new(layer.clone(), Some(0)).unwrap();
    t.layer_of(&format!("weight_norm_{name}"), norm, x.clone());
    let norm = t.make(|init| SpectralNorm::new(layer, 1, 1e-12, init));
    t.layer_of(&format!("spectral_norm_{name}"), norm, x);
}

#[test]
fn linear_layers_and_tables() {
    let t = Cases::of("linear");
    t.layer("linear", linear(&t), &[2, 3, 4]);
    t.layer("plain", t.make(|init| Linear::without_bias(4, 3, init)), &[2, 4]);
    let bilinear = |bias| t.make(|init| Bilinear::new(3, 2, 4, bias, init));
    let pair = [t.value(&[2, 3, 3], 0), t.value(&[2, 3, 2], 1)];
    t.check("bilinear", bilinear(true), &pair, |layer, x| layer.forward(&x[0], &x[1]));
    let pair = [t.value(&[5, 3], 0), t.value(&[5, 2], 1)];
    t.check("bilinear_plain", bilinear(false), &pair, |layer, x| layer.forward(&x[0], &x[1]));

    let index = t.ints(&[1, 2, 2, 4, 0, 3], &[2, 3]);
    let embedding = |padding| t.make(|init| Embedding::new(5, 3, padding, init));
    t.layer_of("embedding", embedding(None), index.clone());
    t.layer_of("embedding_padding", embedding(Some(2)), index.clone());

    let flat = t.ints(&[1, 2, 2, 4, 0, 3, 1], &[7]);
    let (offsets, ends) = (t.ints(&[0, 3, 3, 5], &[4]), t.ints(&[0, 3, 3, 7], &[4]));
    let bag = |config| t.make(|init| EmbeddingBag::new(5, 3, config, init));
    for (name, mode) in [("sum", BagMode::Sum), ("mean", BagMode::Mean), ("max", BagMode::Max)] {
        let config = EmbeddingBagConfig { mode, ..Default::default() };
        t.layer_of(&format!("bag_{name}"), bag(config), index.clone());
        let with_offsets = |case: String, config, offsets: &Tensor| {
            let inputs = [flat.clone(), offsets.clone()];
            t.check(&case, bag(config), &inputs, |bag, x| bag.forward_bags(&x[0], &x[1], None));
        };
        with_offsets(format!("bag_{name}_offsets"), config, &offsets);
        let padded = EmbeddingBagConfig { padding_idx: Some(2), ..config };
        with_offsets(format!("bag_{name}_padding"), padded, &offsets);
        let with_end = EmbeddingBagConfig { include_last_offset: true, ..config };
        with_offsets(format!("bag_{name}_last"), with_end, &ends);
    }
    let config = EmbeddingBagConfig { mode: BagMode::Sum, ..Default::default() };
    for (name, padding_idx) in [("", None), ("_padding", Some(1))] {
        let inputs = [flat.clone(), offsets.clone(), t.value(&[7], 0)];
        t.check(
            &format!("bag_weighted{name}"),
            bag(EmbeddingBagConfig { padding_idx, ..config }),
            &inputs,
            |bag, x| bag.forward_bags(&x[0], &x[1], Some(&x[2])),
        );
    }
    let inputs = [index.clone(), t.value(&[2, 3], 0)];
    t.check("bag_weighted_equal", bag(config), &inputs, |bag, x| bag.forward_weighted(&x[0], Some(&x[1])));

    normalised(&t, "linear", linear(&t), t.value(&[2, 4], 0));
    normalised(&t, "conv", conv(&t, 1), t.value(&[1, 2, 4], 0));
    let transpose = t.make(|init| ConvTranspose1d::new(2, 3, [2], ConvTransposeConfig::default(), init));
    normalised(&t, "transpose", transpose, t.value(&[1, 2, 4], 0));
    normalised(&t, "embedding", embedding(None), index);
    t.layer("weight_norm_axis", WeightNorm::new(conv(&t, 0), Some(1)).unwrap(), &[1, 2, 4]);
    t.layer("weight_norm_whole", WeightNorm::new(linear(&t), None).unwrap(), &[2, 4]);
    t.layer("spectral_norm_steps", t.make(|init| SpectralNorm::new(linear(&t), 3, 1e-12, init)), &[2, 4]);
    adaptive_softmax(&t);
    t.finish();
}

fn adaptive_softmax(t: &Cases) {
    let (x, classes) = (t.value(&[6, 8], 0), t.ints(&[0, 5, 2, 9, 3, 3], &[6]));
    let plain = AdaptiveLogSoftmaxConfig::default();
    for (name, cutoffs, config) in [
        ("adaptive", &[4][..], plain),
        ("adaptive_bias", &[3, 6], AdaptiveLogSoftmaxConfig { div_value: 2.0, head_bias: true }),
    ] {
        let make = || t.make(|init| AdaptiveLogSoftmaxWithLoss::new(8, 10, cutoffs, config, init));
        let pair = [x.clone(), classes.clone()];
        t.check(name, make(), &pair, |layer, x| Ok(layer.run(&x[0], &x[1])?.0));
        t.check(&format!("{name}_loss"), make(), &pair, |layer, x| Ok(layer.run(&x[0], &x[1])?.1));
        t.check(&format!("{name}_all"), make(), &pair[..1], |layer, x| layer.log_prob(&x[0]));
        t.check(&format!("{name}_predict"), make(), &pair[..1], |layer, x| layer.predict(&x[0])?.to_dtype(DType::F64));
        let one = [t.value(&[8], 0), t.ints(&[7], &[])];
        t.check(&format!("{name}_one"), make(), &one, |layer, x| Ok(layer.run(&x[0], &x[1])?.0));
        for wrong in [t.ints(&[0, 5, 2, 10, 3, 3], &[6]), t.ints(&[0, -1, 0, 0, 0, 0], &[6]), t.ints(&[0], &[1])] {
            assert!(make().run(&x, &wrong).is_err());
        }
        assert!(make().run(&x, &x).is_err() && make().log_prob(&t.value(&[6, 7], 0)).is_err());
    }
    let refused = |cutoffs: &[usize], config| {
        t.make(|init| Ok(AdaptiveLogSoftmaxWithLoss::new(8, 10, cutoffs, config, init).is_err()))
    };
    assert!([&[][..], &[0], &[10], &[3, 3], &[5, 3]].into_iter().all(|cutoffs| refused(cutoffs, plain)));
    assert!(refused(&[2, 4, 6], plain) && refused(&[4], AdaptiveLogSoftmaxConfig { div_value: 0.0, ..plain }));
}
