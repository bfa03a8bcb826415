//! The models, with the sizes for which they are compared.

use gradus_models::{
    Bert, BertConfig, BertForSequenceClassification, ConvNeXt, ConvNeXtConfig, Gpt2, Gpt2Config, Llama, LlamaConfig,
    MobileNetV2, MobileNetV2Config, MobileNetV3, MobileNetV3Config, ResNet, ResNetConfig, T5, T5Config, UNet,
    UNetConfig, ViT, ViTConfig,
};
use gradus_nn::{Forward, Gru, Linear, Lstm, Module, Nonlinearity, RecurrentConfig, Relu, Rnn};
use gradus_onnx::OnnxExportOptions;
use gradus_tensor::ops::AttentionOptions;
use gradus_tensor::{DType, Result, Tensor};

use crate::{Input, Kind, Zoo};

fn image(n: usize, size: usize) -> Vec<Input> {
    vec![Input { name: "image", shape: vec![n, 3, size, size], kind: Kind::Float }]
}

fn tokens(n: usize, length: usize) -> Vec<Input> {
    vec![Input { name: "tokens", shape: vec![n, length], kind: Kind::Tokens(50) }]
}

fn batch() -> OnnxExportOptions {
    OnnxExportOptions::new().dynamic("batch", &[("image", 0)]).outputs(&["logits"])
}

fn text() -> OnnxExportOptions {
    let options = OnnxExportOptions::new().dynamic("batch", &[("tokens", 0)]);
    options.dynamic_to("length", &[("tokens", 1)], 16).outputs(&["logits"])
}

fn forward<M: Forward>(model: &M, x: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![model.forward(&x[0])?])
}

pub(super) fn images(zoo: &mut Zoo) -> Result<()> {
    let two = [image(1, 96), image(6, 96)];
    let resnet = ResNetConfig { width: 8, num_classes: 10, ..ResNetConfig::resnet18() };
    let model = zoo.made(|i| ResNet::new(resnet, i))?;
    zoo.export("resnet18", model, &two, batch(), forward);
    let model =
        zoo.made(|i| ResNet::new(ResNetConfig { width: 16, num_classes: 10, ..ResNetConfig::resnet50() }, i))?;
    let sized = batch().dynamic_to("height", &[("image", 2)], 128).dynamic_to("width", &[("image", 3)], 128);
    zoo.export("resnet50", model, &[image(1, 96), image(6, 96), image(2, 70)], sized.clone(), forward);
    let model = zoo.made(|i| MobileNetV2::new(MobileNetV2Config { num_classes: 10, ..Default::default() }, i))?;
    zoo.export("mobilenet_v2", model, &two, batch(), forward);
    let model =
        zoo.made(|i| MobileNetV3::new(MobileNetV3Config { num_classes: 10, ..MobileNetV3Config::small() }, i))?;
    zoo.export("mobilenet_v3", model, &two, batch(), forward);
    let small = ConvNeXtConfig { channels: [8, 16, 24, 32], layers: [1; 4], num_classes: 10, ..ConvNeXtConfig::tiny() };
    let model = zoo.made(|i| ConvNeXt::new(small, i))?;
    zoo.export("convnext", model, &two, batch(), forward);
    let model = zoo.made(|i| ConvNeXt::new(small, i))?;
    zoo.export("convnext_opset13", model, &two, batch().opset(13), forward);
    let vit = ViTConfig {
        image_size: [96; 2],
        embed_dim: 48,
        depth: 2,
        num_heads: 3,
        mlp_dim: 96,
        num_classes: 10,
        ..ViTConfig::tiny()
    };
    let model = zoo.made(|i| ViT::new(vit, i))?;
    zoo.export("vit", model, &two, batch(), forward);
    let model = zoo.made(|i| ViT::new(vit, i))?;
    zoo.export("vit_opset17", model, &two, batch().opset(17), forward);
    for (name, bilinear) in [("unet", false), ("unet_bilinear", true)] {
        let model = zoo.made(|i| UNet::new(UNetConfig { width: 8, bilinear, ..Default::default() }, i))?;
        zoo.export(name, model, &two, batch(), forward);
    }
    let model = zoo.made(|i| UNet::new(UNetConfig { width: 8, ..Default::default() }, i))?;
    zoo.export("unet_sizes", model, &[image(1, 64), image(3, 96)], sized, forward);
    Ok(())
}

pub(super) fn texts(zoo: &mut Zoo) -> Result<()> {
    let cases = [tokens(1, 8), tokens(3, 8), tokens(1, 13), tokens(2, 16)];
    let bert = BertConfig {
        vocab_size: 50,
        hidden_size: 24,
        num_hidden_layers: 2,
        intermediate_size: 48,
        max_position_embeddings: 16,
        num_attention_heads: 4,
        ..BertConfig::minilm()
    };
    let model = zoo.made(|i| Bert::new(bert, i))?;
    zoo.export("bert", model, &cases, text(), forward);
    let masked = |n, length| {
        let mut inputs = tokens(n, length);
        inputs.push(Input { name: "mask", shape: vec![n, length], kind: Kind::Mask });
        inputs
    };
    let both = OnnxExportOptions::new().dynamic("batch", &[("tokens", 0), ("mask", 0)]);
    let both = both.dynamic_to("length", &[("tokens", 1), ("mask", 1)], 16).outputs(&["logits"]);
    let masks = [masked(1, 8), masked(3, 8), masked(1, 13), masked(2, 16)];
    let model = zoo.made(|i| BertForSequenceClassification::new(bert, 3, i))?;
    zoo.export("bert_classifier", model, &masks, both.clone(), |m, x| Ok(vec![m.logits(&x[0], Some(&x[1]), None)?]));
    let model = zoo.made(|i| Bert::new(bert, i))?;
    zoo.export("bert_sentences", model, &masks, both.opset(17), |m, x| Ok(vec![m.sentence_embeddings(&x[0], &x[1])?]));
    let gpt2 = Gpt2Config { vocab_size: 50, n_positions: 16, n_embd: 24, n_layer: 2, n_head: 4, ..Default::default() };
    let model = zoo.made(|i| Gpt2::new(gpt2, i))?;
    zoo.export("gpt2", model, &cases, text(), forward);
    let model = zoo.made(|i| Gpt2::new(gpt2, i))?;
    zoo.export("gpt2_opset13", model, &cases, text().opset(13), forward);
    let llama = LlamaConfig {
        vocab_size: 50,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        max_position_embeddings: 64,
        ..Default::default()
    };
    let model = zoo.made(|i| Llama::new(llama, i))?;
    zoo.export("llama", model, &cases, text(), forward);
    let model = zoo.made(|i| Llama::new(llama, i))?;
    zoo.export("llama_opset13", model, &cases, text().opset(13), forward);
    let t5 =
        T5Config { vocab_size: 50, d_model: 24, d_kv: 6, d_ff: 48, num_layers: 2, num_heads: 4, ..Default::default() };
    let model = zoo.made(|i| T5::new(t5, i))?;
    let written = |n, length, after| {
        let mut inputs = tokens(n, length);
        inputs.push(Input { name: "written", shape: vec![n, after], kind: Kind::Tokens(50) });
        inputs
    };
    let options = OnnxExportOptions::new().dynamic("batch", &[("tokens", 0), ("written", 0)]);
    let options = options.dynamic("length", &[("tokens", 1)]).dynamic("after", &[("written", 1)]).outputs(&["logits"]);
    let cases = [written(1, 8, 5), written(3, 13, 7), written(2, 200, 170)];
    zoo.export("t5", model, &cases, options, |m, x| Ok(vec![m.logits(&x[0], None, &x[1])?]));
    Ok(())
}

#[derive(Debug, Module)]
struct Sequences<L> {
    layer: L,
    head: Linear,
}

pub(super) fn others(zoo: &mut Zoo) -> Result<()> {
    let steps = |t, n| vec![Input { name: "x", shape: vec![t, n, 6], kind: Kind::Float }];
    let cases = [steps(5, 1), steps(5, 3), steps(9, 2)];
    let options = OnnxExportOptions::new().dynamic("time", &[("x", 0)]).dynamic("batch", &[("x", 1)]);
    let config = RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
    let named = options.clone().outputs(&["logits", "last"]);
    let model = zoo.made(|i| Ok(Sequences { layer: Lstm::new(6, 8, config, i)?, head: Linear::new(16, 3, i)? }))?;
    zoo.export("lstm", model, &cases, named.clone(), |m, x| {
        let (y, [h, _]) = m.layer.run(&x[0], None, None)?;
        Ok(vec![m.head.forward(&y)?, h])
    });
    let model = zoo.made(|i| Ok(Sequences { layer: Gru::new(6, 8, config, i)?, head: Linear::new(16, 3, i)? }))?;
    zoo.export("gru", model, &cases, options.clone(), |m, x| {
        let (y, _) = m.layer.run(&x[0], None, None)?;
        Ok(vec![m.head.forward(&y)?])
    });
    let model = zoo.made(|i| {
        Ok(Sequences { layer: Rnn::new(6, 8, Nonlinearity::Relu, config, i)?, head: Linear::new(16, 3, i)? })
    })?;
    zoo.export("rnn", model, &cases, options, |m, x| {
        let (y, _) = m.layer.run(&x[0], None, None)?;
        Ok(vec![m.head.forward(&y)?])
    });
    // The first query sees no key.
    let heads = |n| vec![Input { name: "x", shape: vec![n, 2, 5, 4], kind: Kind::Float }];
    for (name, opset) in [("attention", 23), ("attention_opset13", 13)] {
        let options = OnnxExportOptions::new().dynamic("batch", &[("x", 0)]).opset(opset);
        zoo.export(name, Relu, &[heads(1), heads(3)], options, |_, x| {
            let place = Tensor::arange(0, 5, 1, DType::I64, x[0].device())?;
            let mask = place.unsqueeze(1)?.gt(&place)?;
            let y = x[0].scaled_dot_product_attention(&x[0], &x[0], AttentionOptions::new().mask(&mask))?;
            Ok(vec![y])
        });
    }
    Ok(())
}
