//! Names and shapes of networks in full size beside those of torchvision, timm and transformers.

use gradus_models::{ConvNeXt, MobileNetV2, MobileNetV2Config, MobileNetV3, ResNet, ViT};
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
}
