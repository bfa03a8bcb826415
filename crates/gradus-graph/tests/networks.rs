//! Training steps of a convolutional network and of a small GPT: captured and eager ones, on one thread and on two, end with
//! the same bits.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_graph::capture;
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, Dropout, Embedding, Flatten, Forward, Init,
    LayerNorm, LayerNormConfig, Linear, MaxPool2d, Module, Optimizer, Relu, Sequential,
};
use gradus_tensor::{AttentionOptions, Causal, DType, Device, Generator, Result, Tensor};

const STEPS: u64 = 5;

/// Compares the losses of some steps, and all bits of the model and of its optimiser after them, on one thread and on two,
/// eager and captured.
fn runs<M: Module>(
    make: impl Fn(&mut Init<'_>) -> Result<M>,
    batch: impl Fn(u64, &Device) -> Result<[Tensor; 2]>,
    loss: impl Fn(&M, &Tensor, &Tensor) -> Result<Tensor>,
) {
    let mut found: Vec<Vec<Vec<u8>>> = vec![];
    for (threads, is_captured) in [(1, false), (1, true), (2, false), (2, true)] {
        let device = Device::from_backend(Arc::new(CpuBackend::with_threads(threads).unwrap()));
        let mut rng = Generator::new(7);
        let mut model = make(&mut Init::new(DType::F32, &device, &mut rng)).unwrap();
        model.train();
        let mut adam = AdamW::new(model.named_parameters(), AdamConfig::default()).unwrap();
        let mut bits: Vec<Vec<u8>> = vec![];
        let mut step = |x: &[Tensor]| -> Result<Vec<Tensor>> {
            let loss = loss(&model, &x[0], &x[1])?;
            adam.step(&loss.backward()?)?;
            Ok(vec![loss.detach()])
        };
        let batches = (0..STEPS).map(|i| batch(i, &device).unwrap());
        if is_captured {
            let mut step = capture(&mut step);
            batches.for_each(|[x, y]| bits.push(step.call(&[&x, &y]).unwrap()[0].to_bytes().unwrap()));
            // The first step makes the state of the optimiser, so that only the second and the third are alike.
            assert_eq!(step.replays(), STEPS - 3);
        } else {
            batches.for_each(|batch| bits.push(step(&batch).unwrap()[0].to_bytes().unwrap()));
        }
        let states = [model.state_dict().unwrap(), adam.state_dict().unwrap()];
        bits.extend(states.iter().flat_map(|state| state.iter().map(|(_, t)| t.to_bytes().unwrap())));
        found.push(bits);
    }
    assert!(found.iter().all(|bits| *bits == found[0]));
}

#[test]
fn a_convolutional_network_is_trained_to_the_same_bits() {
    let make = |init: &mut Init<'_>| {
        let padded = || Conv2dConfig { padding: [1, 1], ..Default::default() };
        Ok(Sequential::new()
            .add(Conv2d::new(3, 16, [3, 3], padded(), init)?)
            .add(BatchNorm2d::new(16, BatchNormConfig::default(), init)?)
            .add(Relu)
            .add(MaxPool2d::new([2, 2], [2, 2], [0, 0])?)
            .add(Conv2d::new(16, 24, [3, 3], padded(), init)?)
            .add(Relu)
            .add(Flatten::default())
            .add(Linear::new(24 * 36, 40, init)?)
            .add(Relu)
            .add(Linear::new(40, 10, init)?))
    };
    let batch = |i, device: &Device| {
        let mut rng = Generator::new(i);
        let x = Tensor::randn([20, 3, 12, 12], DType::F32, device, &mut rng)?;
        Ok([x, Tensor::randint(0, 10, [20], DType::I64, device, &mut rng)?])
    };
    runs(make, batch, |model, x, y| model.forward(x)?.cross_entropy(y));
}

const WIDTH: usize = 96;
const CONTEXT: usize = 40;

#[derive(Module)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    dropout: Dropout,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Gpt {
    fn new(init: &mut Init<'_>) -> Result<Gpt> {
        let norm = |init: &mut Init<'_>| LayerNorm::new([WIDTH], LayerNormConfig::default(), init);
        let block = |i: u64, init: &mut Init<'_>| {
            Ok(Block {
                norm1: norm(init)?,
                qkv: Linear::new(WIDTH, 3 * WIDTH, init)?,
                proj: Linear::new(WIDTH, WIDTH, init)?,
                dropout: Dropout::new(0.1, &mut Generator::new(i))?,
                norm2: norm(init)?,
                up: Linear::new(WIDTH, 4 * WIDTH, init)?,
                down: Linear::new(4 * WIDTH, WIDTH, init)?,
            })
        };
        Ok(Gpt {
            tokens: Embedding::new(50, WIDTH, None, init)?,
            positions: Embedding::new(CONTEXT, WIDTH, None, init)?,
            blocks: (0..2).map(|i| block(i, init)).collect::<Result<_>>()?,
            norm: norm(init)?,
            head: Linear::without_bias(WIDTH, 50, init)?,
        })
    }

    /// The logits `[n * length, 50]` of tokens `[n, length]`.
    fn logits(&self, tokens: &Tensor) -> Result<Tensor> {
        let (n, length) = (tokens.size(0)?, tokens.size(1)?);
        let positions = Tensor::arange(0, length as i64, 1, DType::I64, tokens.device())?;
        let mut x = self.tokens.forward(tokens)?.add(&self.positions.forward(&positions)?)?;
        for block in &self.blocks {
            let parts = block.qkv.forward(&block.norm1.forward(&x)?)?.split(WIDTH, -1)?;
            let part = |i: usize| parts[i].reshape([n, length, 4, WIDTH / 4])?.transpose(1, 2);
            let causal = AttentionOptions::new().causal(Causal::TopLeft);
            let a = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, causal)?;
            let a = a.transpose(1, 2)?.reshape([n, length, WIDTH])?;
            x = x.add(&block.dropout.forward(&block.proj.forward(&a)?)?)?;
            x = x.add(&block.down.forward(&block.up.forward(&block.norm2.forward(&x)?)?.gelu_tanh()?)?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)?.flatten(0, 1)
    }
}

#[test]
fn a_gpt_is_trained_to_the_same_bits() {
    let batch = |i, device: &Device| {
        let mut rng = Generator::new(i);
        let mut draw = || Tensor::randint(0, 50, [6, CONTEXT], DType::I64, device, &mut rng);
        let (x, y) = (draw()?, draw()?);
        Ok([x, y.flatten(0, -1)?])
    };
    runs(Gpt::new, batch, |model, x, y| model.logits(x)?.cross_entropy(y));
}
