//! The models of the training jobs.

use candle_core::{D, Device, Module, Result, Tensor, Var};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::{Conv2d, Embedding, Linear, Sequential};
use peer_harness::inputs::Parameters;

/// Creates parameters: variables if they are trained, plain tensors if not.
pub struct Source {
    values: Parameters,
    trained: bool,
    variables: Vec<Var>,
}

impl Source {
    pub fn new(trained: bool) -> Source {
        Source { values: Parameters::new(), trained, variables: Vec::new() }
    }

    pub fn variables(&self) -> Vec<Var> {
        self.variables.clone()
    }

    fn keep(&mut self, tensor: Tensor) -> Result<Tensor> {
        if !self.trained {
            return Ok(tensor);
        }
        let variable = Var::from_tensor(&tensor)?;
        self.variables.push(variable.clone());
        Ok(variable.into_inner())
    }

    fn next(&mut self, shape: &[usize], fan_in: usize) -> Result<Tensor> {
        let values = self.values.next(shape.iter().product(), fan_in);
        self.keep(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Result<Linear> {
        Ok(Linear::new(self.next(&[outputs, inputs], inputs)?, Some(self.next(&[outputs], inputs)?)))
    }

    fn conv(&mut self, inputs: usize, outputs: usize) -> Result<Conv2d> {
        let weight = self.next(&[outputs, inputs, 3, 3], inputs * 9)?;
        Ok(Conv2d::new(weight, Some(self.next(&[outputs], inputs * 9)?), Default::default()))
    }

    fn norm(&mut self, d: usize) -> Result<Norm> {
        let weight = self.keep(Tensor::ones(d, candle_core::DType::F32, &Device::Cpu)?)?;
        let bias = self.keep(Tensor::zeros(d, candle_core::DType::F32, &Device::Cpu)?)?;
        Ok(Norm { weight, bias, trained: self.trained })
    }
}

/// Layer normalisation. The fused function has no gradient, so training uses the slow one.
struct Norm {
    weight: Tensor,
    bias: Tensor,
    trained: bool,
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.trained {
            return candle_nn::ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5);
        }
        candle_nn::ops::layer_norm(x, &self.weight, &self.bias, 1e-5)
    }
}

pub fn mlp(source: &mut Source, features: usize, width: usize, outputs: usize) -> Result<Sequential> {
    let model = candle_nn::seq().add(source.linear(features, width)?).add_fn(|x| x.relu());
    let model = model.add(source.linear(width, width)?).add_fn(|x| x.relu());
    Ok(model.add(source.linear(width, outputs)?))
}

pub fn cnn(source: &mut Source) -> Result<Sequential> {
    let model = candle_nn::seq().add(source.conv(1, 32)?).add_fn(|x| x.relu());
    let model = model.add(source.conv(32, 64)?).add_fn(|x| x.relu()?.max_pool2d(2)?.flatten_from(1));
    let model = model.add(source.linear(9216, 128)?).add_fn(|x| x.relu());
    Ok(model.add(source.linear(128, 10)?))
}

/// A mask that is 0 where a query may attend to a key, and minus infinity elsewhere.
pub fn causal_mask(t: usize) -> Result<Tensor> {
    let mask: Vec<f32> = (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
    Tensor::from_vec(mask, (t, t), &Device::Cpu)
}

/// Causal attention over `[batch, heads, time, width]`. Without gradients it uses the fused function, which is faster.
/// With gradients, which the fused function lacks, it uses separate operations and a mask.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let scale = (q.dim(D::Minus1)? as f64).powf(-0.5);
    let Some(mask) = mask else {
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        return flash_attn::<f32>(&q, &k, &v, scale as f32, AttnMask::causal(), None, None);
    };
    let scores = (q.contiguous()?.matmul(&k.contiguous()?.t()?)? * scale)?.broadcast_add(mask)?;
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v.contiguous()?)
}

struct Block {
    heads: usize,
    mask: Option<Tensor>,
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (b, t, d) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let heads =
            |i: usize| qkv.narrow(D::Minus1, i * d, d)?.reshape((b, t, self.heads, d / self.heads))?.transpose(1, 2);
        let a = attention(&heads(0)?, &heads(1)?, &heads(2)?, self.mask.as_ref())?;
        let x = (x + self.proj.forward(&a.transpose(1, 2)?.reshape((b, t, d))?)?)?;
        &x + self.down.forward(&self.up.forward(&self.norm2.forward(&x)?)?.gelu()?)?
    }
}

pub struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

pub fn gpt(
    source: &mut Source,
    vocabulary: usize,
    context: usize,
    d: usize,
    layers: usize,
    heads: usize,
    t: usize,
) -> Result<Gpt> {
    let mask = if source.trained { Some(causal_mask(t)?) } else { None };
    let token = Embedding::new(source.next(&[vocabulary, d], 4)?, d);
    let position = Embedding::new(source.next(&[context, d], 4)?, d);
    let block = |source: &mut Source| {
        Ok(Block {
            heads,
            mask: mask.clone(),
            norm1: source.norm(d)?,
            qkv: source.linear(d, 3 * d)?,
            proj: source.linear(d, d)?,
            norm2: source.norm(d)?,
            up: source.linear(d, 4 * d)?,
            down: source.linear(4 * d, d)?,
        })
    };
    let blocks = (0..layers).map(|_| block(source)).collect::<Result<_>>()?;
    let norm = source.norm(d)?;
    Ok(Gpt { token, position, blocks, norm, head: Linear::new(source.next(&[vocabulary, d], d)?, None) })
}

impl Module for Gpt {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0u32, ids.dim(1)? as u32, &Device::Cpu)?;
        let mut x = self.token.forward(ids)?.broadcast_add(&self.position.forward(&positions)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}
