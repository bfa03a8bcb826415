//! Configs and inputs that describe no network or do not fit one are errors that say what is wrong.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_models::*;
use gradus_nn::{Forward, Init, KvCache, Module};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, no_grad};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn with_init<T>(device: &Device, f: impl FnOnce(&mut Init<'_>) -> T) -> T {
    f(&mut Init::new(DType::F32, device, &mut Generator::new(0)).skip())
}

/// Making the model fails, and the error has this text.
#[track_caller]
fn refused<M: Module>(new: impl FnOnce(&mut Init<'_>) -> Result<M>, text: &str) {
    let error = with_init(&device(), new).err().expect("an error").to_string();
    assert!(error.contains(text), "{error}");
}

#[track_caller]
fn fails<T>(result: Result<T>, text: &str) {
    let error = result.err().expect("an error").to_string();
    assert!(error.contains(text), "{error}");
}

const HUGE: usize = usize::MAX;

#[test]
fn configs_of_no_network() {
    let resnet = ResNetConfig::resnet50();
    refused(|i| ResNet::new(ResNetConfig { width: 0, ..resnet }, i), "width is 0");
    refused(|i| ResNet::new(ResNetConfig { num_classes: HUGE, ..resnet }, i), "num_classes");
    refused(|i| ResNet::new(ResNetConfig { layers: [1, HUGE, 1, 1], ..resnet }, i), "a number of blocks");
    refused(|i| ResNet::new(ResNetConfig { groups: 1 << 16, ..resnet }, i), "bottleneck is 4194304");
    refused(|i| ResNet::new(ResNetConfig { width_per_group: HUGE, ..resnet }, i), "width_per_group");
    refused(|i| ResNet::new(ResNetConfig { groups: 2, ..ResNetConfig::resnet18() }, i), "only bottlenecks");
    let second = MobileNetV2Config::default();
    for width_mult in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        refused(|i| MobileNetV2::new(MobileNetV2Config { width_mult, ..second }, i), "width_mult");
        refused(|i| MobileNetV3::new(MobileNetV3Config { width_mult, ..MobileNetV3Config::small() }, i), "width_mult");
    }
    refused(|i| MobileNetV2::new(MobileNetV2Config { stem_stride: 0, ..second }, i), "stem_stride is 0");
    let narrow = MobileNetV2Config { width_mult: 0.1, ..second };
    refused(|i| MobileNetV2::new(MobileNetV2Config { dropout: 1.5, ..narrow }, i), "probability");
    let tiny = ConvNeXtConfig { channels: [2, 2, 2, 2], layers: [1, 1, 1, 1], ..ConvNeXtConfig::tiny() };
    refused(|i| ConvNeXt::new(ConvNeXtConfig { layers: [0, 1, 1, 1], ..tiny }, i), "a number of blocks is 0");
    refused(|i| ConvNeXt::new(ConvNeXtConfig { stochastic_depth: f64::NAN, ..tiny }, i), "stochastic_depth");
    let vit = ViTConfig { depth: 1, ..ViTConfig::tiny() };
    refused(
        |i| ViT::new(ViTConfig { image_size: [28, 32], ..vit }, i),
        "patch_size 16 does not divide the image height 28",
    );
    refused(|i| ViT::new(ViTConfig { num_heads: 5, ..vit }, i), "num_heads 5 does not divide embed_dim 192");
    refused(|i| ViT::new(ViTConfig { patch_size: 0, ..vit }, i), "patch_size is 0");
    refused(|i| ViT::new(ViTConfig { attention_dropout: -0.1, ..vit }, i), "probability");
    refused(|i| UNet::new(UNetConfig { width: 3, ..UNetConfig::default() }, i), "does not divide width 3");
    let bert = BertConfig { num_hidden_layers: 1, vocab_size: 10, ..BertConfig::minilm() };
    refused(|i| Bert::new(BertConfig { num_attention_heads: 7, ..bert }, i), "does not divide hidden_size 384");
    refused(|i| Bert::new(BertConfig { pad_token_id: Some(10), ..bert }, i), "padding index 10");
    refused(|i| Bert::new(BertConfig { layer_norm_eps: 0.0, ..bert }, i), "eps is 0");
    let llama = LlamaConfig { hidden_size: 12, num_attention_heads: 4, vocab_size: 10, ..LlamaConfig::default() };
    refused(|i| Llama::new(LlamaConfig { num_attention_heads: 0, ..llama }, i), "num_attention_heads is 0");
    refused(|i| Llama::new(LlamaConfig { num_key_value_heads: Some(3), ..llama }, i), "num_key_value_heads 3");
    refused(|i| Llama::new(llama, i), "3 features are no pairs");
    refused(|i| Llama::new(LlamaConfig { rope_theta: 0.0, head_dim: Some(2), ..llama }, i), "base");
    let t5 = T5Config { vocab_size: 10, d_model: 8, num_layers: 1, ..T5Config::default() };
    refused(|i| T5::new(T5Config { relative_attention_num_buckets: 3, ..t5 }, i), "num_buckets is 3");
    refused(|i| T5::new(T5Config { relative_attention_max_distance: 16, ..t5 }, i), "max_distance is 16");
    refused(|i| T5::new(T5Config { num_decoder_layers: Some(0), ..t5 }, i), "num_decoder_layers is 0");
}

#[test]
fn inputs_that_do_not_fit() {
    let device = &device();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device).unwrap();
    let resnet = with_init(device, |i| ResNet::new(ResNetConfig { width: 4, ..ResNetConfig::resnet18() }, i)).unwrap();
    fails(resnet.forward(&zeros(&[1, 1, 32, 32])), "the input is images [n, 3, h, w]");
    fails(resnet.forward(&zeros(&[3, 32, 32])), "the input is images [n, 3, h, w]");
    let sizes = ViTConfig { depth: 1, embed_dim: 12, image_size: [32, 32], ..ViTConfig::tiny() };
    let vit = with_init(device, |i| ViT::new(sizes, i)).unwrap();
    fails(vit.forward(&zeros(&[1, 3, 48, 32])), "the images are 32 x 32 pixels");
    let mut unet = with_init(device, |i| UNet::new(UNetConfig { width: 2, ..UNetConfig::default() }, i)).unwrap();
    unet.eval();
    fails(unet.forward(&zeros(&[1, 3, 8, 8])), "max_pool2d");

    let config = BertConfig {
        vocab_size: 10,
        hidden_size: 12,
        num_hidden_layers: 1,
        intermediate_size: 8,
        max_position_embeddings: 5,
        pooler: false,
        ..BertConfig::default()
    };
    let bert = with_init(device, |i| Bert::new(config, i)).unwrap();
    let tokens = |shape: &[usize]| Tensor::zeros(shape, DType::I64, device).unwrap();
    fails(bert.forward(&tokens(&[1, 6])), "6 tokens; the model has 5 positions");
    fails(bert.forward(&tokens(&[4])), "tokens are [n, length]");
    fails(bert.encode(&tokens(&[2, 4]), Some(&tokens(&[2, 3])), None), "a mask of the tokens is [2, 4]");
    fails(bert.encode(&tokens(&[2, 4]), None, Some(&tokens(&[4]))), "a kind for each token");
    fails(bert.pooled(&zeros(&[1, 4, 12])), "no pooler");
    let outside = Tensor::from_vec(vec![10i64], [1, 1], device).unwrap();
    let error = bert.forward(&outside).unwrap_err().to_string();
    assert!(error.contains("embeddings.word_embeddings"), "{error}");

    let sizes = LlamaConfig { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 2, ..LlamaConfig::default() };
    let config = LlamaConfig { vocab_size: 10, num_attention_heads: 2, max_position_embeddings: 5, ..sizes };
    let llama = with_init(device, |i| Llama::new(config, i)).unwrap();
    let mut cache = llama.new_cache();
    let _ = no_grad(|| llama.decode(&tokens(&[1, 4]), &mut cache)).unwrap();
    fails(no_grad(|| llama.decode(&tokens(&[1, 2]), &mut cache)), "2 tokens; the model has 1 positions");
    fails(no_grad(|| llama.decode(&outside, &mut cache)), "10");
    assert!(cache.iter().all(|cache| cache.len() == 4));
    fails(no_grad(|| llama.decode(&tokens(&[1, 1]), &mut [KvCache::new()])), "1 caches for 2 layers");

    let config = T5Config { vocab_size: 10, d_model: 8, d_kv: 4, d_ff: 8, num_layers: 1, ..T5Config::default() };
    let t5 = with_init(device, |i| T5::new(config, i)).unwrap();
    fails(t5.encode(&tokens(&[2, 3]), Some(&tokens(&[3, 3]))), "a mask of the tokens is [2, 3]");
    fails(t5.logits(&tokens(&[2, 3]), None, &tokens(&[3, 3])), "");
    fails(t5.decode(&zeros(&[3]), None, &tokens(&[2, 3])), "");
    assert_eq!(t5.forward(&tokens(&[2, 0])).unwrap().shape(), [2, 0, 8]);
}
