//! Random layers, layers over parametrised weights, and what layers and losses refuse.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, values, with_init};
use gradus_nn::{
    AlphaDropout, AvgPool2d, BagMode, BatchNorm, BatchNormConfig, Bilinear, Celu, ChannelShuffle, Conv1d, Conv2d,
    Conv2dConfig, ConvConfig, ConvTranspose1d, ConvTransposeConfig, CrossEntropyLoss, Dropout1d, Dropout2d, Embedding,
    EmbeddingBag, EmbeddingBagConfig, FeatureAlphaDropout, Fold, Forward, Glu, Hardtanh, InstanceNorm,
    InstanceNormConfig, Linear, LpPool2d, MaxPool2d, MaxUnpool2d, Module, MultiMarginLoss, Optimizer, PRelu,
    PaddingMode, Parameter, PixelShuffle, PixelUnshuffle, RRelu, ReflectionPad1d, Sgd, SgdConfig, Softmax2d, Softplus,
    SpectralNorm, StochasticDepth, TripletMarginWithDistanceLoss, Unflatten, Upsample, WeightNorm, loss,
};
use gradus_tensor::ops::Target;
use gradus_tensor::{DType, Generator, Interpolation, Reduction, Tensor};

fn numbers(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[test]
fn dropout_of_channels_drops_all_of_a_channel_or_nothing() {
    let d = device();
    let mut layer = Dropout2d::new(0.25, &mut Generator::new(3)).unwrap();
    let x = Tensor::ones([64, 16, 2, 3], DType::F64, &d).unwrap().with_grad().unwrap();
    let y = layer.forward(&x).unwrap();
    let gradient = y.sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone();
    assert_eq!(numbers(&y), numbers(&gradient));
    let y = numbers(&y);
    let mut dropped = 0;
    for channel in y.chunks(6) {
        assert!(
            channel.iter().all(|v| *v == channel[0]) && (channel[0] == 0.0 || (channel[0] - 4.0 / 3.0).abs() < 1e-12)
        );
        dropped += usize::from(channel[0] == 0.0);
    }
    // 1024 channels: 5 standard deviations of the number that is dropped are 69.
    assert!((256 - 69..256 + 69).contains(&dropped), "{dropped}");
    assert_ne!(numbers(&layer.forward(&x).unwrap()), y);
    layer.eval();
    assert_eq!(numbers(&layer.forward(&x).unwrap()), numbers(&x));
    let all = Dropout1d::new(1.0, &mut Generator::new(3)).unwrap();
    assert_eq!(numbers(&all.forward(&values(&[1, 2, 2], &d)).unwrap()), [0.0; 4]);
}

#[test]
fn stochastic_depth_drops_all_of_a_sample_or_nothing() {
    let d = device();
    let mut layer = StochasticDepth::new(0.25, &mut Generator::new(3)).unwrap();
    let x = Tensor::ones([1024, 2, 3], DType::F64, &d).unwrap().with_grad().unwrap();
    let y = layer.forward(&x).unwrap();
    let gradient = y.sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone();
    assert_eq!(numbers(&y), numbers(&gradient));
    let samples: Vec<Vec<f64>> = numbers(&y).chunks(6).map(<[f64]>::to_vec).collect();
    let dropped = samples.iter().filter(|sample| **sample == [0.0; 6]).count();
    let kept = samples.iter().filter(|sample| **sample == [1.0 / 0.75; 6]).count();
    // Of 1024 samples: 5 standard deviations of the number that is dropped are 69.
    assert!(dropped + kept == 1024 && (256 - 69..256 + 69).contains(&dropped), "{dropped}");
    layer.eval();
    assert_eq!(numbers(&layer.forward(&x).unwrap()), numbers(&x));
    let all = StochasticDepth::new(1.0, &mut Generator::new(3)).unwrap();
    assert_eq!(numbers(&all.forward(&values(&[2, 2], &d)).unwrap()), [0.0; 4]);
}

/// The formula of PyTorch: kept elements are `a x + b`, others `a (-1.7581) + b`, with `a = (q + 1.7581^2 q p)^-0.5` for
/// `q = 1 - p`, and `b = 1.7581 a p`.
#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    let d = device();
    let (p, limit) = (0.3f64, 1.758_099_340_847_376_6);
    let a = ((1.0 - p) * (1.0 + limit * limit * p)).powf(-0.5);
    let (shift, dropped) = (limit * a * p, limit * a * p - limit * a);
    let x = Tensor::randn([200, 100], DType::F64, &d, &mut Generator::new(1)).unwrap();
    let mut layer = AlphaDropout::new(p, &mut Generator::new(2)).unwrap();
    let y = layer.forward(&x).unwrap();
    let (mut count, pairs) = (0, numbers(&x).into_iter().zip(numbers(&y)));
    for (x, y) in pairs {
        count += usize::from((y - dropped).abs() < 1e-12);
        assert!((y - dropped).abs() < 1e-12 || (y - (a * x + shift)).abs() < 1e-12, "{x} became {y}");
    }
    // 20000 elements: 5 standard deviations are 324.
    assert!((6000 - 324..6000 + 324).contains(&count), "{count}");
    let (var, mean) = y.var_mean(&[0, 1], 1, false).unwrap();
    assert!(mean.item().unwrap().abs() < 0.04 && (var.item().unwrap() - 1.0).abs() < 0.06);
    layer.eval();
    assert_eq!(numbers(&layer.forward(&x).unwrap()), numbers(&x));

    let layer = FeatureAlphaDropout::new(0.5, &mut Generator::new(2)).unwrap();
    let y = numbers(&layer.forward(&Tensor::ones([50, 4, 3], DType::F64, &d).unwrap()).unwrap());
    assert!(y.chunks(3).all(|channel| channel.iter().all(|v| *v == channel[0])));
    assert!(y.iter().any(|v| *v < 0.0) && y.iter().any(|v| *v > 0.0));
}

#[test]
fn random_slopes_lie_in_their_range() {
    let d = device();
    let layer = RRelu::new(0.2, 0.4, &mut Generator::new(0)).unwrap();
    let x = values(&[50, 20], &d).with_grad().unwrap();
    let y = layer.forward(&x).unwrap();
    let slopes = numbers(y.sum_all().unwrap().backward().unwrap().get(&x).unwrap());
    let mut sum = (0.0, 0.0);
    for ((x, y), slope) in numbers(&x).into_iter().zip(numbers(&y)).zip(slopes) {
        assert!((y - x * slope).abs() < 1e-12);
        if x <= 0.0 {
            assert!((0.2..0.4).contains(&slope), "{slope}");
            sum = (sum.0 + slope, sum.1 + 1.0);
        } else {
            assert_eq!(slope, 1.0);
        }
    }
    assert!((sum.0 / sum.1 - 0.3).abs() < 0.02);
}

#[test]
fn a_wrapped_layer_trains_and_unwraps() {
    let d = device();
    with_init(&d, |init| {
        let x = values(&[3, 4], &d);
        let plain = Linear::new(4, 2, init).unwrap();
        let before = numbers(&plain.forward(&x).unwrap());
        let layer = WeightNorm::new(plain, Some(0)).unwrap();
        common::assert_close(&layer.forward(&x).unwrap(), &before);
        let mut optimizer = Sgd::new(layer.named_parameters(), SgdConfig { lr: 0.1, ..Default::default() }).unwrap();
        let loss = layer.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
        optimizer.step(&loss.backward().unwrap()).unwrap();
        let after = numbers(&layer.forward(&x).unwrap());
        assert_ne!(before, after);
        assert_eq!(layer.to_string(), "WeightNorm(in_features=4, out_features=2)");
        common::assert_close(&layer.into_inner().unwrap().forward(&x).unwrap(), &after);

        let layer = SpectralNorm::new(Linear::without_bias(4, 3, init).unwrap(), 1, 1e-12, init).unwrap();
        for _ in 0..40 {
            let _ = layer.forward(&x).unwrap();
        }
        // The rows that the layer makes of the unit vectors are its weight. Its largest singular value is 1.
        let weight = layer.forward(&Tensor::eye(4, DType::F64, &d).unwrap()).unwrap().detach();
        let mut v = values(&[3], &d);
        for _ in 0..200 {
            v = weight.t().unwrap().matmul(&weight.matmul(&v).unwrap()).unwrap().normalize(2.0, 0, 1e-12).unwrap();
        }
        let sigma = weight.matmul(&v).unwrap().norm(2.0, &[0], false).unwrap().item().unwrap();
        assert!((sigma - 1.0).abs() < 1e-6, "{sigma}");
    });
}

/// The error has this word in its message.
#[track_caller]
fn refused<T>(result: gradus_tensor::Result<T>, word: &str) {
    let Err(e) = result else { panic!("no error that says {word:?}") };
    assert!(e.to_string().contains(word), "{e}");
    assert!(e.to_string().contains("tests/more_layers.rs"), "the line is not the caller's: {e}");
}

#[test]
fn bad_settings_are_refused() {
    let d = device();
    let random = &mut Generator::new(0);
    with_init(&d, |init| {
        let same = Conv2dConfig { same: true, ..Default::default() };
        refused(Conv2d::new(1, 1, [3, 3], Conv2dConfig { stride: [1, 2], ..same }, init), "stride 1");
        refused(Conv2d::new(1, 1, [3, 3], Conv2dConfig { padding: [1, 0], ..same }, init), "padding 0");
        let plain = BatchNormConfig::default();
        refused(BatchNorm::new(2, BatchNormConfig { momentum: Some(1.5), ..plain }, init), "momentum is 1.5");
        let config = InstanceNormConfig { momentum: -0.1, ..Default::default() };
        refused(InstanceNorm::new(2, config, init), "momentum is -0.1");
        refused(PRelu::new(0, 0.25, init), "0 parameters");
        refused(Bilinear::new(0, 1, 1, true, init), "in1_features is 0");
        let config = EmbeddingBagConfig { padding_idx: Some(3), ..Default::default() };
        refused(EmbeddingBag::new(3, 2, config, init), "padding index 3");
        let vector = Parameter::new(values(&[3], &d)).unwrap();
        refused(Embedding::from_parameters(vector, None), "[num_embeddings, embedding_dim]");
        let matrix = Parameter::new(values(&[3, 2], &d)).unwrap();
        refused(Embedding::from_parameters(matrix, Some(3)), "padding index 3");
        let linear = || Linear::from_parameters(Parameter::new(values(&[3, 2], &d)).unwrap(), None).unwrap();
        refused(WeightNorm::new(linear(), Some(2)), "axis 2");
        refused(SpectralNorm::new(linear(), 0, 1e-12, init), "n_power_iterations is 0");
        refused(SpectralNorm::new(linear(), 1, 0.0, init), "eps is 0");
    });
    refused(AlphaDropout::new(1.1, random), "p is 1.1");
    refused(StochasticDepth::new(-0.1, random), "p is -0.1");
    refused(Dropout1d::new(f64::NAN, random), "p is NaN");
    refused(RRelu::new(0.4, 0.2, random), "in order");
    refused(LpPool2d::new(0.0, [2, 2], [2, 2]), "p is 0");
    refused(LpPool2d::new(2.0, [2, 0], [2, 2]), "at least 1");
    refused(MaxUnpool2d::new([2, 2], [0, 2], [0, 0]), "at least 1");
    refused(AvgPool2d::new([2, 2], [2, 2], [0, 0], true).unwrap().divisor_override(0), "divisor_override is 0");
}

#[test]
fn bad_inputs_are_refused() {
    let d = device();
    let random = &mut Generator::new(0);
    let x = |shape: &[usize]| values(shape, &d);
    let ints = |v: &[i64]| Tensor::from_vec(v, [v.len()], &d).unwrap();
    refused(Celu { alpha: 0.0 }.forward(&x(&[2])), "must not be 0");
    refused(Softplus { beta: 0.0, threshold: 20.0 }.forward(&x(&[2])), "beta is 0");
    refused(Hardtanh { min_val: 1.0, max_val: 0.0 }.forward(&x(&[2])), "hardtanh");
    refused(Glu::default().forward(&x(&[2, 3])), "halves");
    refused(Softmax2d.forward(&x(&[2, 3])), "[n, c, h, w]");
    refused(Dropout2d::new(0.5, random).unwrap().forward(&x(&[2, 3, 4])), "2 more");
    refused(FeatureAlphaDropout::new(0.5, random).unwrap().forward(&x(&[4])), "[n, c, ..]");
    refused(StochasticDepth::new(0.5, random).unwrap().forward(&x(&[])), "[n, ..]");
    refused(PixelShuffle { upscale_factor: 2 }.forward(&x(&[1, 6, 2, 2])), "6 channels");
    refused(PixelShuffle { upscale_factor: 0 }.forward(&x(&[1, 4, 2, 2])), "square of 0");
    let empty = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device()).unwrap();
    let unshuffle = PixelUnshuffle { downscale_factor: 1 << 40 };
    refused(unshuffle.forward(&empty(&[1, 1, 0, 1 << 40])), "too many channels");
    refused(PixelUnshuffle { downscale_factor: 2 }.forward(&x(&[1, 1, 4, 3])), "width 3");
    refused(ChannelShuffle { groups: 2 }.forward(&x(&[1, 3, 2])), "2 groups");
    refused(Unflatten { axis: 1, sizes: vec![2, 2] }.forward(&x(&[1, 3])), "unflatten");
    refused(ReflectionPad1d::new([(3, 0)]).forward(&x(&[1, 3])), "mirrored");
    refused(Fold::new([4, 4], [2, 2]).forward(&x(&[1, 3, 9])), "multiple");
    refused(Upsample::to([3], Interpolation::Bilinear).forward(&x(&[1, 1, 2, 2])), "interpolate");
    with_init(&d, |init| {
        let config = ConvConfig { padding_mode: PaddingMode::Circular, padding: [1], ..Default::default() };
        refused(Conv1d::new(2, 2, [3], config, init).unwrap().forward(&x(&[2, 3])), "batch axis");
        let config = ConvTransposeConfig { stride: [2], ..Default::default() };
        let up = ConvTranspose1d::new(2, 2, [3], config, init).unwrap();
        refused(up.forward_sized(&x(&[1, 2, 3]), [9]), "from 7 to 8");
        refused(up.forward_sized(&x(&[2, 3]), [7]), "batch axis");
        let bilinear = Bilinear::new(2, 3, 1, true, init).unwrap();
        refused(bilinear.forward(&x(&[2, 2]), &x(&[1, 3])), "[.., 2] and [.., 3]");

        let mut bag = |config| EmbeddingBag::new(5, 2, config, init);
        let plain = EmbeddingBagConfig::default();
        let mean = bag(plain).unwrap();
        refused(mean.forward(&ints(&[1, 2])), "offsets");
        refused(mean.forward_bags(&ints(&[1, 7]), &ints(&[0]), None), "7");
        refused(mean.forward_bags(&ints(&[1, 2]), &ints(&[1]), None), "first offset is 1");
        refused(mean.forward_bags(&ints(&[1, 2]), &ints(&[0, 2, 1]), None), "do not fall");
        refused(mean.forward_bags(&ints(&[1, 2]), &ints(&[0, 3]), None), "beyond 2 indices");
        refused(mean.forward_bags(&ints(&[1, 2]), &ints(&[]), None), "in no bag");
        refused(mean.forward_bags(&ints(&[1, 2]), &ints(&[0]), Some(&x(&[2]))), "belong to the sum");
        assert_eq!(mean.forward_bags(&ints(&[]), &ints(&[]), None).unwrap().shape(), [0, 2]);
        let last = bag(EmbeddingBagConfig { include_last_offset: true, ..plain }).unwrap();
        refused(last.forward_bags(&ints(&[1, 2]), &ints(&[0, 1]), None), "last offset is 1");
        let sum = bag(EmbeddingBagConfig { mode: BagMode::Sum, ..plain }).unwrap();
        refused(sum.forward_bags(&ints(&[1, 2]), &ints(&[0]), Some(&x(&[3]))), "shape of the input");
        refused(
            sum.forward_weighted(&x(&[2, 2]).gt(9.0).unwrap().to_dtype(DType::I64).unwrap(), Some(&x(&[4]))),
            "shape",
        );
    });
    let (y, indices) = MaxPool2d::new([2, 2], [2, 2], [0, 0]).unwrap().forward_with_indices(&x(&[1, 1, 4, 4])).unwrap();
    let unpool = MaxUnpool2d::new([2, 2], [2, 2], [0, 0]).unwrap();
    refused(unpool.forward(&y, &indices, Some([2, 2])), "outside");
    refused(unpool.forward(&x(&[1, 1, 2, 1]), &indices, None), "one shape");
}

#[test]
fn bad_losses_are_refused() {
    let d = device();
    let x = values(&[3, 4], &d);
    let classes = Tensor::from_vec([0i64, 3, 1], [3], &d).unwrap();
    let beyond = Tensor::from_vec([0i64, 4, 1], [3], &d).unwrap();
    let (none, row) = (Reduction::None, values(&[4], &d));
    refused(MultiMarginLoss { p: 3, ..Default::default() }.forward(&x, &classes), "p is 3");
    refused(MultiMarginLoss { margin: f64::NAN, ..Default::default() }.forward(&x, &classes), "margin is NaN");
    refused(loss::multi_margin(&x, &beyond, 1, 1.0, None, none), "4");
    refused(loss::multi_margin(&x, &classes, 1, 1.0, Some(&values(&[3], &d)), none), "[c]");
    refused(loss::multi_margin(&x, &classes, 1, 1.0, Some(&values(&[3], &d)), none), "weight  [3]");
    refused(loss::multi_margin(&x, &x, 1, 1.0, None, none), "integers");
    refused(loss::multilabel_margin(&x, &classes, none), "one shape");
    let labels = Tensor::full([3, 4], 4, DType::I64, &d).unwrap();
    refused(loss::multilabel_margin(&x, &labels, none), "4");
    refused(loss::multilabel_soft_margin(&x, &row, None, none), "shapes differ");
    let triplet = TripletMarginWithDistanceLoss::default();
    refused(triplet.forward(&x, &x, &row), "shapes differ");
    refused(TripletMarginWithDistanceLoss { margin: 0.0, ..triplet }.forward(&x, &x, &x), "margin is 0");
    let probabilities = x.softmax(1).unwrap();
    let loss = CrossEntropyLoss { ignore_index: 2, ..Default::default() };
    refused(loss.forward(&x, Target::Probabilities(&probabilities)), "no index to ignore");
}
