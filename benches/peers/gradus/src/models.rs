//! The models of the training jobs.

use gradus::prelude::*;
use peer_harness::inputs::Parameters;

/// Sets a model's parameters to those that all peers use. A weight of rank 1 and the bias that follows it belong to a
/// normalisation and stay ones and zeros.
pub fn set_parameters(model: &impl Module) -> Result<()> {
    let (mut source, mut fan_in, mut is_norm) = (Parameters::new(), 1, false);
    for (name, parameter) in model.named_parameters() {
        let own = name.rsplit('.').next().unwrap_or(&name);
        if !own.starts_with("bias") {
            is_norm = parameter.shape().len() == 1;
            fan_in = if name.contains("embedding") { 4 } else { parameter.numel() / parameter.shape()[0] };
        }
        if !is_norm {
            let values = source.next(parameter.numel(), fan_in);
            parameter.set(&Tensor::from_vec(values, parameter.shape(), &Device::cpu()?)?)?;
        }
    }
    Ok(())
}

pub fn mlp(features: usize, width: usize, outputs: usize) -> Result<Sequential> {
    let (device, mut generator) = (Device::cpu()?, Generator::new(0));
    let mut init = Init::new(DType::F32, &device, &mut generator);
    let model = Sequential::new().add(Linear::new(features, width, &mut init)?).add(Relu);
    let model = model.add(Linear::new(width, width, &mut init)?).add(Relu);
    Ok(model.add(Linear::new(width, outputs, &mut init)?))
}

#[derive(Module)]
pub struct Cnn {
    first: Conv2d,
    second: Conv2d,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    pub fn new() -> Result<Cnn> {
        let (device, mut generator) = (Device::cpu()?, Generator::new(0));
        let mut init = Init::new(DType::F32, &device, &mut generator);
        Ok(Cnn {
            first: Conv2d::new(1, 32, [3, 3], Conv2dConfig::default(), &mut init)?,
            second: Conv2d::new(32, 64, [3, 3], Conv2dConfig::default(), &mut init)?,
            hidden: Linear::new(9216, 128, &mut init)?,
            output: Linear::new(128, 10, &mut init)?,
        })
    }
}

impl Forward for Cnn {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.second.forward(&self.first.forward(x)?.relu()?)?.relu()?;
        let x = x.max_pool2d([2, 2], PoolOptions::new().stride([2, 2]))?.flatten(1, -1)?;
        self.output.forward(&self.hidden.forward(&x)?.relu()?)
    }
}

#[derive(Module)]
struct Block {
    heads: usize,
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Forward for Block {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let &[b, t, d] = x.shape() else { return Err(Error::shape("block", "the input is [batch, time, width]")) };
        let heads = |part: &Tensor| part.reshape([b, t, self.heads, d / self.heads])?.transpose(1, 2);
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?.split(d, -1)?;
        let (q, k, v) = (heads(&qkv[0])?, heads(&qkv[1])?, heads(&qkv[2])?);
        let a = q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().causal(Causal::TopLeft))?;
        let x = x.add(&self.proj.forward(&a.transpose(1, 2)?.reshape([b, t, d])?)?)?;
        x.add(&self.down.forward(&self.up.forward(&self.norm2.forward(&x)?)?.gelu_tanh()?)?)
    }
}

#[derive(Module)]
pub struct Gpt {
    token_embedding: Embedding,
    position_embedding: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    pub fn new(vocabulary: usize, context: usize, d: usize, layers: usize, heads: usize) -> Result<Gpt> {
        let (device, mut generator) = (Device::cpu()?, Generator::new(0));
        let mut init = Init::new(DType::F32, &device, &mut generator);
        let norm = |init: &mut Init<'_>| LayerNorm::new([d], LayerNormConfig::default(), init);
        let block = |init: &mut Init<'_>| {
            Ok(Block {
                heads,
                norm1: norm(init)?,
                qkv: Linear::new(d, 3 * d, init)?,
                proj: Linear::new(d, d, init)?,
                norm2: norm(init)?,
                up: Linear::new(d, 4 * d, init)?,
                down: Linear::new(4 * d, d, init)?,
            })
        };
        Ok(Gpt {
            token_embedding: Embedding::new(vocabulary, d, None, &mut init)?,
            position_embedding: Embedding::new(context, d, None, &mut init)?,
            blocks: (0..layers).map(|_| block(&mut init)).collect::<Result<_>>()?,
            norm: norm(&mut init)?,
            head: Linear::without_bias(d, vocabulary, &mut init)?,
        })
    }
}

impl Forward for Gpt {
    fn compute(&self, ids: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0, ids.size(1)? as i64, 1, DType::I64, ids.device())?;
        let mut x = self.token_embedding.forward(ids)?.add(&self.position_embedding.forward(&positions)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// An LSTM, and a linear layer from its last output to the classes.
#[derive(Module)]
pub struct Sequences {
    lstm: Lstm,
    head: Linear,
}

impl Sequences {
    pub fn new(features: usize, width: usize, layers: usize, classes: usize) -> Result<Sequences> {
        let (device, mut generator) = (Device::cpu()?, Generator::new(0));
        let mut init = Init::new(DType::F32, &device, &mut generator);
        let config = RecurrentConfig { num_layers: layers, batch_first: true, ..Default::default() };
        let lstm = Lstm::new(features, width, config, &mut init)?;
        Ok(Sequences { lstm, head: Linear::new(width, classes, &mut init)? })
    }
}

impl Forward for Sequences {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.lstm.run(x, None, None)?.0.select(1, -1)?)
    }
}
