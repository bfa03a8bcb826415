//! Well-known networks, with the parameter names of PyTorch, timm and transformers.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! Every network is a struct that is made from a plain config, and has the parameter names, shapes, defaults and initial
//! distributions of the library that its documentation names. Weights saved there load without renaming:
//!
//! ```
//! use gradus_models::{ResNet, ResNetConfig};
//! use gradus_nn::{Forward, Init, Module, Strict};
//! use gradus_tensor::{DType, Device, Generator, Result, Tensor};
//!
//! # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
//! let mut generator = Generator::new(0);
//! let mut init = Init::new(DType::F32, &device, &mut generator);
//! let config = ResNetConfig { width: 8, num_classes: 10, ..ResNetConfig::resnet18() };
//! let mut model = ResNet::new(config, &mut init)?;
//! let path = std::env::temp_dir().join("gradus-doc-resnet.safetensors");
//! # model.save_safetensors(&path)?;
//! model.load_safetensors(&path, &device, Strict::Yes)?; // a file of torchvision, if it had these widths
//! # std::fs::remove_file(path).unwrap();
//! model.eval();
//! let images = Tensor::zeros([2, 3, 64, 64], DType::F32, &device)?;
//! assert_eq!(model.forward(&images)?.shape(), [2, 10]);
//! # Ok::<(), gradus_tensor::Error>(())
//! ```
//!
//! To fine-tune a network for other classes, load the weights and replace its last layer, a public field:
//! `model.fc = Linear::new(512, 5, &mut init)?`. What is not a number of the architecture, such as a probability of
//! dropout, may differ from the config with which weights were saved.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bert;
mod checks;
mod conv_norm;
mod convnext;
mod generate;
mod gpt2;
mod heads;
mod llama;
mod mobilenet_v2;
mod mobilenet_v3;
mod new_layers;
mod resnet;
mod sampling;
mod t5;
mod tensor_parallel;
mod unet;
mod vit;

pub use bert::{
    Bert, BertAttention, BertConfig, BertEmbeddings, BertEncoder, BertForSequenceClassification, BertIntermediate,
    BertLayer, BertOutput, BertPooler, BertSelfAttention,
};
pub use convnext::{ConvNeXt, ConvNeXtBlock, ConvNeXtConfig};
pub use generate::{CausalLm, GenerateOptions, Generation, generate};
pub use gpt2::{
    Conv1D, Gpt2, Gpt2Activation, Gpt2Attention, Gpt2Block, Gpt2Config, Gpt2Embeddings, Gpt2Head, Gpt2Mlp, Gpt2Model,
};
pub use llama::{Llama, LlamaAttention, LlamaConfig, LlamaLayer, LlamaMlp, LlamaModel};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Block, MobileNetV2Config};
pub use mobilenet_v3::{MobileNetV3, MobileNetV3Block, MobileNetV3Config, SqueezeExcitation};
pub use resnet::{ResNet, ResNetBlock, ResNetConfig};
pub use sampling::Sampling;
pub use t5::{
    T5, T5Attention, T5Block, T5Config, T5CrossAttention, T5Dense, T5Feed, T5FeedForward, T5Layers, T5SelfAttention,
    T5Stack, T5Writer,
};
pub use unet::{UNet, UNetConfig, UNetConvs, UNetDown, UNetOut, UNetUp};
pub use vit::{ViT, ViTAttention, ViTBlock, ViTConfig, ViTMlp, ViTPatches};
