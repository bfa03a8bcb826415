//! Every network beside the one of torchvision, timm or transformers, in f64: names and shapes, outputs, gradients,
//! running statistics, and evaluation. `tests/reference/models.py` makes the values and says what is in the files.
#![allow(clippy::unwrap_used)]

mod first_values;
mod formula;
mod language;
mod names;
mod reference;
mod vision;

#[test]
fn all_cases_have_a_test() {
    let cases = [
        "bert",
        "bert_classifier",
        "bert_sentences",
        "convnext",
        "llama",
        "llama_tied",
        "mobilenet_v2",
        "mobilenet_v3_large",
        "mobilenet_v3_small",
        "resnet",
        "resnet_bottleneck",
        "resnet_small_images",
        "t5",
        "t5_gated",
        "unet",
        "unet_bilinear",
        "vit",
    ];
    assert_eq!(reference::cases(), cases);
}
