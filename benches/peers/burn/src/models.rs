//! The models of the training jobs.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::module::{attention, max_pool2d};
use burn::tensor::ops::{AttentionModuleOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use peer_harness::inputs::{Parameters, transposed};

/// A model that returns logits, one row per sample.
pub trait Model: Module {
    type Input: Clone;
    fn logits(&self, input: Self::Input) -> Tensor<2>;
}

fn parameter<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

/// A layer with the parameters that all peers use. burn stores weights as `[in, out]`.
fn linear(source: &mut Parameters, inputs: usize, outputs: usize, bias: bool, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(inputs, outputs).with_bias(bias).init(device);
    layer.weight = parameter(transposed(&source.next(inputs * outputs, inputs), outputs), [inputs, outputs], device);
    if bias {
        layer.bias = Some(parameter(source.next(outputs, inputs), [outputs], device));
    }
    layer
}

fn conv(source: &mut Parameters, inputs: usize, outputs: usize, device: &Device) -> Conv2d {
    let mut layer = Conv2dConfig::new([inputs, outputs], [3, 3]).init(device);
    layer.weight = parameter(source.next(outputs * inputs * 9, inputs * 9), [outputs, inputs, 3, 3], device);
    layer.bias = Some(parameter(source.next(outputs, inputs * 9), [outputs], device));
    layer
}

fn embedding(source: &mut Parameters, rows: usize, d: usize, device: &Device) -> Embedding {
    let mut layer = EmbeddingConfig::new(rows, d).init(device);
    layer.weight = parameter(source.next(rows * d, 4), [rows, d], device);
    layer
}

/// The options of causal attention.
pub fn causal() -> AttentionModuleOptions {
    AttentionModuleOptions { is_causal: true, ..Default::default() }
}

#[derive(Module, Debug)]
pub struct Mlp {
    first: Linear,
    second: Linear,
    third: Linear,
}

pub fn mlp(device: &Device, features: usize, width: usize, outputs: usize) -> Mlp {
    let mut source = Parameters::new();
    Mlp {
        first: linear(&mut source, features, width, true, device),
        second: linear(&mut source, width, width, true, device),
        third: linear(&mut source, width, outputs, true, device),
    }
}

impl Model for Mlp {
    type Input = Tensor<2>;
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let x = activation::relu(self.first.forward(x));
        self.third.forward(activation::relu(self.second.forward(x)))
    }
}

#[derive(Module, Debug)]
pub struct Cnn {
    first: Conv2d,
    second: Conv2d,
    hidden: Linear,
    output: Linear,
}

pub fn cnn(device: &Device) -> Cnn {
    let mut source = Parameters::new();
    Cnn {
        first: conv(&mut source, 1, 32, device),
        second: conv(&mut source, 32, 64, device),
        hidden: linear(&mut source, 9216, 128, true, device),
        output: linear(&mut source, 128, 10, true, device),
    }
}

impl Model for Cnn {
    type Input = Tensor<4>;
    fn logits(&self, x: Tensor<4>) -> Tensor<2> {
        let x = activation::relu(self.second.forward(activation::relu(self.first.forward(x))));
        let x: Tensor<2> = max_pool2d(x, MaxPoolOptions::new([2, 2])).flatten(1, 3);
        self.output.forward(activation::relu(self.hidden.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Block {
    heads: usize,
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let heads = |part: Tensor<3>| part.reshape([b, t, self.heads, d / self.heads]).swap_dims(1, 2);
        let mut parts = self.qkv.forward(self.norm1.forward(x.clone())).chunk(3, 2).into_iter().map(heads);
        let mut next = || parts.next().unwrap_or_else(|| unreachable!("three chunks"));
        let a = attention(next(), next(), next(), None, None, causal());
        let x = x + self.proj.forward(a.swap_dims(1, 2).reshape([b, t, d]));
        let hidden = activation::gelu_approximate(self.up.forward(self.norm2.forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

#[derive(Module, Debug)]
pub struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

pub fn gpt(device: &Device, vocabulary: usize, context: usize, d: usize, layers: usize, heads: usize) -> Gpt {
    let source = &mut Parameters::new();
    let norm = || LayerNormConfig::new(d).init(device);
    let token = embedding(source, vocabulary, d, device);
    let position = embedding(source, context, d, device);
    let block = |_| Block {
        heads,
        norm1: norm(),
        qkv: linear(source, d, 3 * d, true, device),
        proj: linear(source, d, d, true, device),
        norm2: norm(),
        up: linear(source, d, 4 * d, true, device),
        down: linear(source, 4 * d, d, true, device),
    };
    let blocks = (0..layers).map(block).collect();
    Gpt { token, position, blocks, norm: norm(), head: linear(source, d, vocabulary, false, device) }
}

impl Model for Gpt {
    type Input = Tensor<2, Int>;
    fn logits(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let [_, t] = ids.dims();
        let positions = Tensor::<1, Int>::arange(0..t as i64, &ids.device()).reshape([1, t]);
        let x = self.token.forward(ids) + self.position.forward(positions);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.norm.forward(x)).flatten(0, 1)
    }
}
