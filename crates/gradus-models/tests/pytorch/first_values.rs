//! The distributions of new parameters beside those of torchvision, timm and transformers.

use gradus_models::*;
use gradus_nn::{Init, Module};
use gradus_tensor::{DType, Generator, Result};

use crate::reference::{array, device};

/// Mean, standard deviation, and fourth moment over that of a parameter, which is 3 for normal and 1.8 for uniform values.
fn moments(values: &[f64]) -> [f64; 3] {
    let mean_of = |f: &dyn Fn(f64) -> f64| values.iter().map(|&x| f(x)).sum::<f64>() / values.len() as f64;
    let mean = mean_of(&|x| x);
    let std = mean_of(&|x| (x - mean).powi(2)).sqrt();
    // Equal values have a mean that is rounded.
    let std = if std > 1e-12 * mean.abs() { std } else { 0.0 };
    let fourth = if std > 0.0 { mean_of(&|x| ((x - mean) / std).powi(4)) } else { 0.0 };
    [mean, std, fourth]
}

fn check<M: Module>(network: &str, new: impl FnOnce(&mut Init<'_>) -> Result<M>) {
    let device = device();
    let model = new(&mut Init::new(DType::F64, &device, &mut Generator::new(1))).unwrap();
    let mut parameters = model.named_parameters();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    let wanted = array(&format!("first/{network}"));
    assert_eq!(wanted.len(), 3 * parameters.len(), "{network}");
    for ((name, parameter), wanted) in parameters.iter().zip(wanted.chunks_exact(3)) {
        let got = moments(&parameter.to_vec::<f64>().unwrap());
        let count = parameter.numel() as f64;
        // Both are samples of one distribution: six standard deviations of the difference of means, and of the logarithms
        // of the standard deviations. Small parameters may have any fourth moment.
        let near = (got[0] - wanted[0]).abs() <= 6.0 * wanted[1] * (2.0 / count).sqrt() + 1e-12 * wanted[0].abs();
        let spread = match (got[1] > 0.0, wanted[1] > 0.0) {
            (true, true) => (got[1] / wanted[1]).ln().abs() <= 6.0 / count.sqrt(),
            (got, wanted) => got == wanted,
        };
        let kind = count < 500.0 || (got[2] - wanted[2]).abs() < 0.9;
        assert!(near && spread && kind, "{network}: {name} of {count}: {got:?} is not like {wanted:?}");
    }
}

#[test]
fn images() {
    let resnet = ResNetConfig { layers: [1, 1, 1, 1], num_classes: 40, ..ResNetConfig::resnet18() };
    check("resnet", |init| ResNet::new(resnet, init));
    let second = MobileNetV2Config { width_mult: 0.2, num_classes: 40, ..MobileNetV2Config::default() };
    check("mobilenet_v2", |init| MobileNetV2::new(second, init));
    let third = MobileNetV3Config { width_mult: 0.5, num_classes: 40, ..MobileNetV3Config::small() };
    check("mobilenet_v3", |init| MobileNetV3::new(third, init));
    let (channels, layers) = ([16, 24, 32, 40], [1, 1, 1, 1]);
    check("convnext", |init| {
        ConvNeXt::new(ConvNeXtConfig { channels, layers, num_classes: 40, ..ConvNeXtConfig::tiny() }, init)
    });
    let sizes = ViTConfig { image_size: [32, 32], patch_size: 4, num_classes: 40, ..ViTConfig::tiny() };
    check("vit", |init| ViT::new(ViTConfig { embed_dim: 48, depth: 1, mlp_dim: 192, ..sizes }, init));
    check("unet", |init| UNet::new(UNetConfig { width: 4, ..UNetConfig::default() }, init));
}

#[test]
fn texts() {
    let sizes = BertConfig { vocab_size: 200, hidden_size: 48, num_hidden_layers: 1, ..BertConfig::default() };
    let bert = BertConfig { intermediate_size: 96, ..sizes };
    check("bert", |init| BertForSequenceClassification::new(bert, 30, init));
    let sizes = LlamaConfig { vocab_size: 200, hidden_size: 48, num_hidden_layers: 1, ..LlamaConfig::default() };
    let llama = LlamaConfig { intermediate_size: 96, num_attention_heads: 4, ..sizes };
    check("llama", |init| Llama::new(llama, init));
    let sizes = T5Config { vocab_size: 200, d_model: 48, d_kv: 16, d_ff: 96, ..T5Config::default() };
    check("t5", |init| T5::new(T5Config { num_heads: 4, num_layers: 1, ..sizes }, init));
}
