//! The networks for images beside those of torchvision and timm.

use gradus_models::{
    ConvNeXt, ConvNeXtConfig, MobileNetV2, MobileNetV2Config, MobileNetV3, MobileNetV3Config, ResNet, ResNetConfig,
    UNet, UNetConfig, ViT, ViTConfig,
};
use gradus_nn::Forward;
use gradus_tensor::Tensor;

use crate::formula::floats;
use crate::reference::{check, device, make};

/// Runs a case with the first rows and columns of the images.
fn run<M: Forward>(
    case: &str,
    [height, width]: [usize; 2],
    new: impl FnOnce(&mut gradus_nn::Init<'_>) -> gradus_tensor::Result<M>,
) {
    let device = device();
    let image = floats("image", &[2, 3, 40, 33], &device);
    let image: Tensor = image.narrow(2, 0, height).unwrap().narrow(3, 0, width).unwrap();
    check(case, make(&device, new), |model| model.forward(&image));
}

#[test]
fn resnet() {
    let config = |layers| ResNetConfig { layers, width: 4, num_classes: 5, ..ResNetConfig::resnet18() };
    run("resnet", [40, 33], |init| ResNet::new(config([1, 2, 1, 1]), init));
    let small = ResNetConfig { small_images: true, ..config([1, 1, 1, 1]) };
    run("resnet_small_images", [16, 13], |init| ResNet::new(small, init));
    let bottleneck = ResNetConfig { bottleneck: true, ..config([1, 1, 2, 1]) };
    run("resnet_bottleneck", [40, 33], |init| ResNet::new(bottleneck, init));
}

#[test]
fn mobilenet_v2() {
    let config = MobileNetV2Config { width_mult: 0.2, num_classes: 5, dropout: 0.0, ..MobileNetV2Config::default() };
    run("mobilenet_v2", [40, 33], |init| MobileNetV2::new(config, init));
}

#[test]
fn mobilenet_v3() {
    for config in [MobileNetV3Config::small(), MobileNetV3Config::large()] {
        let case = if config.large { "mobilenet_v3_large" } else { "mobilenet_v3_small" };
        let config = MobileNetV3Config { width_mult: 0.2, num_classes: 5, dropout: 0.0, ..config };
        run(case, [40, 33], |init| MobileNetV3::new(config, init));
    }
}

#[test]
fn convnext() {
    let (channels, layers) = ([4, 6, 8, 10], [1, 1, 2, 1]);
    let config = ConvNeXtConfig { channels, layers, num_classes: 5, stochastic_depth: 0.0, ..ConvNeXtConfig::tiny() };
    run("convnext", [40, 33], |init| ConvNeXt::new(config, init));
}

#[test]
fn vit() {
    let (image_size, patch_size) = ([8, 12], 4);
    let config = ViTConfig { image_size, patch_size, num_classes: 5, embed_dim: 12, depth: 2, ..ViTConfig::tiny() };
    run("vit", [8, 12], |init| ViT::new(ViTConfig { mlp_dim: 24, ..config }, init));
}

#[test]
fn unet() {
    for (case, bilinear) in [("unet", false), ("unet_bilinear", true)] {
        let config = UNetConfig { in_channels: 3, num_classes: 2, width: 4, bilinear };
        run(case, [40, 33], |init| UNet::new(config, init));
    }
}
