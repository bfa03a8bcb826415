//! The lines of `docs/book/src/from-pytorch.md` on modules and losses.

use gradus::prelude::*;

use crate::setup;

#[test]
fn sequences() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let attention = MultiheadAttention::new(8, 2, MultiheadAttentionConfig::default(), &mut init)?;
    let [tokens, memory] = [5, 7].map(|l| Tensor::ones([2, l, 8], DType::F32, &device));
    let (tokens, memory) = (tokens?, memory?);
    let [keep, keys] = [5, 2].map(|n| Tensor::full([n, 7], true, DType::Bool, &device));
    let (keep, keys) = (keep?, keys?);
    let masks = Masks { mask: Some(&keep), key_mask: Some(&keys), ..Default::default() };
    let (y, weights) = attention.attend_with_weights(&tokens, &memory, &memory, masks)?;
    assert_eq!((y.shape(), weights.shape()), (&[2, 5, 8][..], &[2, 5, 7][..]));

    let config = RecurrentConfig { num_layers: 2, batch_first: true, ..Default::default() };
    let lstm = Lstm::new(8, 6, config, &mut init)?;
    let (y, [h, c]) = lstm.run(&tokens, None, None)?;
    assert_eq!((y.shape(), h.shape(), c.shape()), (&[2, 5, 6][..], &[2, 2, 6][..], &[2, 2, 6][..]));
    let (padded, _) = lstm.run(&tokens, Some(&[5, 2]), None)?;
    assert_eq!(padded.select(0, 1)?.narrow(0, 2, 3)?.abs()?.max_all()?.item()?, 0.0);
    let projected = Lstm::new(8, 6, RecurrentConfig { proj_size: 3, ..Default::default() }, &mut init)?;
    assert_eq!(projected.forward(&tokens)?.shape(), [2, 5, 3]);
    let gru = Gru::new(8, 6, RecurrentConfig::default(), &mut init)?;
    let rnn = Rnn::new(8, 6, Nonlinearity::Tanh, RecurrentConfig::default(), &mut init)?;
    assert_eq!(gru.forward(&tokens)?.shape(), rnn.forward(&tokens)?.shape());
    let (token, state) = (tokens.select(1, 0)?, Tensor::zeros([2, 6], DType::F32, &device)?);
    assert_eq!(GruCell::new(8, 6, true, &mut init)?.step(&token, Some(&state))?.shape(), [2, 6]);

    let layer = TransformerEncoderLayer::new(8, 2, TransformerConfig::default(), &mut init)?;
    let encoder = TransformerEncoder::new(3, 8, 2, TransformerConfig::default(), true, &mut init)?;
    let y = layer.forward(&encoder.run(&tokens, Masks::causal(Causal::TopLeft))?)?;
    assert_eq!(y.shape(), [2, 5, 8]);
    let y = Transformer::new(8, 2, 1, 1, TransformerConfig::default(), &mut init)?.run(
        &memory,
        &tokens,
        TransformerMasks::default(),
    )?;
    assert_eq!(y.shape(), [2, 5, 8]);
    let lora = LoraConfig { alpha: 4.0, ..Default::default() };
    let layer = LoraLinear::new(Linear::new(8, 6, &mut init)?, 2, lora, &mut init)?;
    assert_eq!(layer.forward(&tokens)?.shape(), [2, 5, 6]);
    assert_eq!(layer.merge_and_unload()?.forward(&tokens)?.shape(), [2, 5, 6]);
    Ok(())
}

#[test]
fn many_classes_and_random_windows() -> Result<()> {
    let (device, mut rng) = setup()?;
    let x = Tensor::ones([2, 64], DType::F32, &device)?;
    let y = Tensor::from_vec([3i64, 700], [2], &device)?;
    let config = AdaptiveLogSoftmaxConfig::default();
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let (_, loss) = AdaptiveLogSoftmaxWithLoss::new(64, 1000, [10, 100], config, &mut init)?.run(&x, &y)?;
    assert!(loss.item()? > 1.0);
    let pool = FractionalMaxPool2d::by([2, 2], [0.6, 0.6], &mut rng)?;
    assert_eq!(pool.forward(&Tensor::ones([1, 1, 10, 10], DType::F32, &device)?)?.shape(), [1, 1, 6, 6]);
    Ok(())
}

#[test]
fn modules() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let mut model =
        Sequential::new().add(Linear::new(4, 3, &mut init)?).add(Relu).add(Linear::without_bias(3, 2, &mut init)?);
    let same = Conv2dConfig { padding: [1, 1], ..Default::default() };
    let conv = Conv2d::new(1, 8, [3, 3], same, &mut init)?;
    let norm = BatchNorm2d::new(8, BatchNormConfig::default(), &mut init)?;
    let pool = MaxPool2d::new([2, 2], [2, 2], [0, 0])?;
    let layer_norm = LayerNorm::new([8], LayerNormConfig::default(), &mut init)?;
    let table = Embedding::new(10, 4, None, &mut init)?;
    let attention = MultiheadAttention::new(8, 2, MultiheadAttentionConfig::default(), &mut init)?;
    let images = Tensor::ones([2, 1, 6, 6], DType::F32, &device)?;
    let features = pool.forward(&norm.forward(&conv.forward(&images)?)?)?;
    assert_eq!(features.shape(), [2, 8, 3, 3]);
    assert_eq!(Flatten::default().forward(&features)?.shape(), [2, 72]);
    let tokens = Tensor::ones([2, 5, 8], DType::F32, &device)?;
    assert_eq!(layer_norm.forward(&attention.forward(&tokens)?)?.shape(), [2, 5, 8]);
    assert_eq!(table.forward(&Tensor::zeros([3], DType::I64, &device)?)?.shape(), [3, 4]);
    let mut dropout = Dropout::new(0.5, &mut rng)?;
    dropout.eval();
    assert_eq!(dropout.forward(&tokens)?.to_vec::<f32>()?, [1.0; 80]);
    let x = Tensor::ones([5, 4], DType::F32, &device)?;
    let y = model.forward(&x)?;
    assert_eq!(y.shape(), [5, 2]);
    model.train();
    model.eval();
    assert_eq!((model.parameters().len(), model.named_parameters()[0].0.as_str()), (3, "0.weight"));
    assert_eq!(model.num_parameters(), 4 * 3 + 3 + 3 * 2);
    model.to_device(&device)?;
    model.cast_parameters(DType::BF16)?;
    assert_eq!(model.parameters()[0].dtype(), DType::BF16);
    model.freeze();
    model.unfreeze();
    model.freeze_under("0")?;
    assert_eq!(model.parameters().iter().filter(|p| p.is_frozen()).count(), 2);
    let t = x.index(0)?;
    let p = Parameter::new(t.clone())?;
    let b = Buffer::new(t)?;
    assert_eq!((p.requires_grad(), b.tensor().requires_grad()), (true, false));
    Ok(())
}

#[test]
fn more_modules() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let same = Conv2dConfig { same: true, padding_mode: PaddingMode::Reflect, ..Default::default() };
    let images = Tensor::ones([2, 1, 6, 6], DType::F32, &device)?;
    let features = Conv2d::new(1, 8, [3, 3], same, &mut init)?.forward(&images)?;
    let features = ZeroPad2d::new([(3, 4), (1, 2)]).forward(&PixelShuffle { upscale_factor: 2 }.forward(&features)?)?;
    assert_eq!(features.shape(), [2, 2, 19, 15]);
    let up = Upsample::by([2.0, 2.0], Interpolation::Bilinear);
    assert_eq!(up.forward(&images)?.shape(), [2, 1, 12, 12]);
    let bags = EmbeddingBag::new(10, 4, EmbeddingBagConfig::default(), &mut init)?;
    let (indices, offsets) = (Tensor::arange(0, 5, 1, DType::I64, &device)?, Tensor::zeros([1], DType::I64, &device)?);
    assert_eq!(bags.forward_bags(&indices, &offsets, None)?.shape(), [1, 4]);
    let x = Tensor::ones([5, 4], DType::F32, &device)?;
    let weight = WeightNorm::new(Linear::new(4, 3, &mut init)?, Some(0))?;
    let spectral = SpectralNorm::new(Linear::new(4, 3, &mut init)?, 1, 1e-12, &mut init)?;
    assert_eq!((weight.forward(&x)?.shape(), spectral.forward(&x)?.shape()), (&[5, 3][..], &[5, 3][..]));
    let slopes = PRelu::new(1, 0.25, &mut init)?;
    let mut model = Sequential::new().add(slopes).add(Elu { alpha: 0.5 }).add(Glu::default());
    model.push(Tanh);
    model.insert(0, Tanh)?;
    println!("{}", summary(&model, [5, 4])?);
    assert!(model.get(0).is_some() && Sequential::new().add_named("act", Relu)?.get_named("act").is_some());
    let mut count = 0;
    for layer in &model {
        count += layer.num_parameters();
    }
    assert_eq!((count, model.len()), (1, 5));
    Ok(())
}

/// The names of the page's lists: that this compiles is the test.
#[test]
fn layers_and_losses_have_these_names() {
    macro_rules! types {
        ($($name:ty),*) => { [$(size_of::<$name>()),*].len() };
    }
    let windows = types![
        Conv1d,
        Conv2d,
        Conv3d,
        ConvTranspose1d,
        ConvTranspose2d,
        ConvTranspose3d,
        MaxPool1d,
        AvgPool1d,
        LpPool1d,
        MaxUnpool1d,
        AdaptiveAvgPool1d,
        AdaptiveMaxPool1d,
        MaxPool3d,
        AvgPool3d,
        LpPool3d,
        MaxUnpool3d,
        AdaptiveAvgPool3d,
        AdaptiveMaxPool3d,
        FractionalMaxPool2d,
        FractionalMaxPool3d
    ];
    let norms = types![
        BatchNorm1d,
        BatchNorm3d,
        InstanceNorm1d,
        InstanceNorm3d,
        GroupNorm,
        LayerNorm,
        RmsNorm,
        LocalResponseNorm,
        Dropout,
        Dropout1d,
        Dropout3d,
        AlphaDropout,
        FeatureAlphaDropout,
        StochasticDepth
    ];
    let functions = types![
        Relu,
        Relu6,
        LeakyRelu,
        PRelu,
        RRelu,
        Elu,
        Selu,
        Celu,
        Gelu,
        GeluTanh,
        Silu,
        Mish,
        Sigmoid,
        LogSigmoid,
        Hardsigmoid,
        Hardswish,
        Hardtanh,
        Tanh,
        Tanhshrink,
        Softshrink,
        Hardshrink,
        Softsign,
        Softplus,
        Threshold,
        Glu,
        Softmax,
        Softmax2d,
        Softmin,
        LogSoftmax
    ];
    let moves = types![
        ZeroPad1d, ConstantPad1d, ReflectionPad1d, ReplicationPad1d, CircularPad1d, ZeroPad3d, ConstantPad3d,
        ReflectionPad3d, ReplicationPad3d, CircularPad3d, Flatten, Unflatten, Unfold, Fold, PixelShuffle,
        PixelUnshuffle, ChannelShuffle, Upsample, Identity, Linear, Bilinear, Embedding, EmbeddingBag, CosineSimilarity,
        PairwiseDistance, Vec<Linear>, std::collections::BTreeMap<String, Linear>
    ];
    let losses = types![
        L1Loss,
        SmoothL1Loss,
        HuberLoss,
        MseLoss,
        NllLoss,
        BceLoss,
        BceWithLogitsLoss,
        CtcLoss,
        MultiMarginLoss,
        MultiLabelMarginLoss,
        MultiLabelSoftMarginLoss,
        SoftMarginLoss,
        KlDivLoss,
        PoissonNllLoss,
        GaussianNllLoss,
        HingeEmbeddingLoss,
        MarginRankingLoss,
        CosineEmbeddingLoss,
        TripletMarginLoss,
        TripletMarginWithDistanceLoss
    ];
    assert_eq!([windows, norms, functions, moves, losses], [20, 14, 29, 27, 20]);
}

#[test]
fn losses() -> Result<()> {
    let (device, _) = setup()?;
    let logits = Tensor::from_vec(vec![2.0f32, 0.0, 1.0, 1.0], [2, 2], &device)?;
    let target = Tensor::from_vec(vec![0i64, 1], [2], &device)?;
    let loss = logits.cross_entropy(&target)?;
    let smooth = logits.cross_entropy_with(&target, None, Some(-100), 0.1, Reduction::Mean)?;
    assert!(smooth.item()? > loss.item()?);
    let (a, b) = (logits.sigmoid()?, logits.zeros_like()?);
    assert!(a.mse_loss(&b, Reduction::Mean)?.item()? > 0.0);
    assert!((a.l1_loss(&b, Reduction::Sum)? - a.sum_all()?)?.item()?.abs() < 1e-6);
    assert!(a.huber_loss(&b, 1.0, Reduction::Mean)?.item()? > 0.0);
    assert!(logits.bce_with_logits(&b, None, None, Reduction::Mean)?.item()? > 0.0);
    let criterion = CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() };
    assert_eq!(criterion.forward(&logits, &target)?.item()?, smooth.item()?);
    assert!(MseLoss { reduction: Reduction::Sum }.forward(&a, &b)?.item()? > 0.0);
    assert!(gradus::nn::loss::multi_margin(&a, &target, 1, 1.0, None, Reduction::Mean)?.item()? > 0.0);
    Ok(())
}
