//! Layers and losses that are composed of operations give the CPU's results and gradients, with all of an adapter and
//! with the least.

mod common;

use std::sync::Arc;

use gradus::nn::loss;
use gradus::prelude::*;
use gradus_wgpu::Profile;

/// Element i is `sin(1.7 i + 0.3)`.
fn values(shape: &[usize], device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| (1.7 * i as f32 + 0.3).sin()).collect();
    Tensor::from_vec(values, shape, device)
}

fn ints(values: &[i64], shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_vec(values, shape, device)
}

/// An output, and the sum of the gradients of the inputs and parameters, which has one number for each.
fn numbers(name: &str, y: &Tensor, leaves: &[Tensor]) -> Result<(String, Vec<f32>)> {
    let gradients = y.square()?.sum_all()?.backward()?;
    let mut all = y.to_vec::<f32>()?;
    for leaf in leaves {
        all.extend(gradients.get(leaf).map_or(Ok(vec![]), |g| g.to_vec::<f32>())?);
    }
    Ok((name.to_owned(), all))
}

fn results(device: &Device) -> Result<Vec<(String, Vec<f32>)>> {
    let mut generator = Generator::new(1);
    let mut random = generator.fork(7);
    let init = &mut Init::new(DType::F32, device, &mut generator);
    let mut found = vec![];
    let (index, flat) = (ints(&[1, 2, 2, 4, 0, 3], &[2, 3], device)?, ints(&[1, 2, 2, 4, 0, 3, 1], &[7], device)?);
    let offsets = ints(&[0, 3, 3, 5], &[4], device)?;
    for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
        let config = EmbeddingBagConfig { mode, padding_idx: Some(2), ..Default::default() };
        let bags = EmbeddingBag::new(5, 3, config, init)?;
        let leaves = [bags.weight.tensor().clone()];
        found.push(numbers(&format!("{bags}, equal"), &bags.forward(&index)?, &leaves)?);
        found.push(numbers(&format!("{bags}, offsets"), &bags.forward_bags(&flat, &offsets, None)?, &leaves)?);
    }
    let image = values(&[2, 4, 6, 6], device)?.with_grad()?;
    let same = Conv2dConfig { same: true, padding_mode: PaddingMode::Reflect, ..Default::default() };
    let tracked = InstanceNormConfig { track_running_stats: true, affine: true, ..Default::default() };
    let cumulative = BatchNormConfig { momentum: None, ..Default::default() };
    let layers: Vec<Box<dyn Forward>> = vec![
        Box::new(Conv2d::new(4, 3, [4, 3], same, init)?),
        Box::new(WeightNorm::new(Conv2d::new(4, 3, [2, 2], Conv2dConfig::default(), init)?, Some(0))?),
        Box::new(SpectralNorm::new(Linear::new(6, 3, init)?, 1, 1e-12, init)?),
        Box::new(LpPool2d::new(2.0, [2, 3], [2, 2])?),
        Box::new(AvgPool2d::new([2, 3], [2, 2], [1, 1], true)?.ceil_mode(true).divisor_override(3)?),
        Box::new(InstanceNorm2d::new(4, tracked, init)?),
        Box::new(BatchNorm2d::new(4, cumulative, init)?),
        Box::new(LocalResponseNorm::new(3)),
        Box::new(Softplus { beta: 2.0, threshold: 1.0 }),
        Box::new(PRelu::new(4, 0.25, init)?),
        Box::new(PixelShuffle { upscale_factor: 2 }),
        Box::new(Upsample::by([2.0, 1.5], Interpolation::Bilinear)),
        Box::new(Dropout2d::new(0.5, &mut random)?),
        Box::new(AlphaDropout::new(0.5, &mut random)?),
        Box::new(FeatureAlphaDropout::new(0.5, &mut random)?),
        Box::new(StochasticDepth::new(0.5, &mut random)?),
        Box::new(RRelu::new(0.1, 0.3, &mut random)?),
    ];
    for layer in layers {
        let leaves: Vec<Tensor> =
            layer.parameters().iter().map(|p| p.tensor().clone()).chain([image.clone()]).collect();
        found.push(numbers(&layer.tree().to_string(), &layer.forward(&image)?, &leaves)?);
    }
    let (pooled, at) = MaxPool2d::new([2, 2], [2, 2], [0, 0])?.forward_with_indices(&image)?;
    let y = MaxUnpool2d::new([2, 2], [2, 2], [0, 0])?.forward(&pooled, &at, None)?;
    found.push(numbers("max_unpool", &y, std::slice::from_ref(&image))?);

    let x = values(&[3, 4], device)?.with_grad()?;
    let each = std::slice::from_ref(&x);
    let none = Reduction::None;
    let classes = ints(&[2, 0, 3], &[3], device)?;
    found.push(numbers("multi_margin", &loss::multi_margin(&x, &classes, 2, 1.0, None, none)?, each)?);
    let labels = ints(&[1, 3, -1, 0, 0, -1, 1, 2, 3, 2, 0, 1], &[3, 4], device)?;
    found.push(numbers("multilabel_margin", &loss::multilabel_margin(&x, &labels, none)?, each)?);
    let binary = labels.gt(0)?.to_dtype(DType::F32)?;
    found.push(numbers("multilabel_soft_margin", &loss::multilabel_soft_margin(&x, &binary, None, none)?, each)?);
    Ok(found)
}

#[test]
fn composed_layers_and_losses_give_the_results_of_the_cpu() {
    let want = results(&Device::cpu().expect("a CPU")).expect("the results of the CPU");
    for (profile, backend) in [("full", common::opened()), ("core", common::opened_as(Profile::Core))] {
        let Some(backend) = backend else { return };
        let got = results(&Device::from_backend(Arc::new(backend))).unwrap_or_else(|e| panic!("{profile}: {e}"));
        assert_eq!(got.len(), want.len());
        for ((name, got), (_, want)) in got.iter().zip(&want) {
            assert_eq!(got.len(), want.len(), "{profile}, {name}");
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                assert!((g - w).abs() <= 1e-4 * (1.0 + w.abs()), "{profile}, {name}: element {i} is {g}, not {w}");
            }
        }
    }
}
