//! Names and shapes of networks in full size beside those of torchvision, timm and transformers.

use gradus_models::{
    Bert, BertConfig, ConvNeXt, Gpt2, Gpt2Config, Llama, LlamaConfig, MobileNetV2, MobileNetV2Config, MobileNetV3,
    ResNet, T5, T5Config, UNet, UNetConfig, ViT,
};
use gradus_nn::{Init, Module};
use gradus_tensor::{DType, Generator, Result};

use crate::reference::device;

static NAMES: &str = include_str!("../reference/names.txt");

/// The lines below the heading of a network.
fn wanted(network: &str) -> Vec<&'static str> {
    let heading = format!("[{network}]");
    let lines = NAMES.lines().skip_while(|line| **line != *heading).skip(1);
    let mut lines: Vec<&str> = lines.take_while(|line| !line.starts_with('[')).collect();
    assert!(!lines.is_empty(), "the file has no {network}");
    lines.sort_unstable();
    lines
}

fn check<M: Module>(network: &str, new: impl FnOnce(&mut Init<'_>) -> Result<M>) {
    let device = device();
    // Without values and in half precision, because only the shapes count.
    let model = new(&mut Init::new(DType::BF16, &device, &mut Generator::new(1)).skip()).unwrap();
    let state = model.state_dict().unwrap();
    let shape = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let line = |(name, t): (&str, &gradus_tensor::Tensor)| format!("{name} {}", shape(t.shape())).trim_end().to_owned();
    let mut lines: Vec<String> = state.iter().map(line).collect();
    lines.sort_unstable();
    assert_eq!(lines, wanted(network), "{network}");
}

#[test]
fn vision() {
    check("resnet18", |init| ResNet::resnet18(1000, 3, init));
    check("resnet50", |init| ResNet::resnet50(1000, 3, init));
    check("mobilenet_v2", |init| MobileNetV2::new(MobileNetV2Config::default(), init));
    check("mobilenet_v3_small", |init| MobileNetV3::small(1000, 3, init));
    check("mobilenet_v3_large", |init| MobileNetV3::large(1000, 3, init));
    check("convnext_tiny", |init| ConvNeXt::tiny(1000, 3, init));
    check("vit_tiny", |init| ViT::tiny(1000, 3, init));
    check("unet", |init| UNet::new(UNetConfig::default(), init));
}

#[test]
fn language() {
    check("bert-base", |init| Bert::new(BertConfig::default(), init));
    check("gpt2", |init| Gpt2::new(Gpt2Config::default(), init));
    check("t5-small", |init| T5::new(T5Config::default(), init));
    let sizes =
        LlamaConfig { hidden_size: 768, intermediate_size: 3072, num_hidden_layers: 12, ..LlamaConfig::default() };
    let heads = LlamaConfig { num_attention_heads: 12, num_key_value_heads: Some(4), ..sizes };
    check("llama", |init| Llama::new(heads, init));
}
