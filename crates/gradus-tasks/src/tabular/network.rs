//! [`Network`]: the networks for tables.

use gradus_nn::layers::*;
use gradus_nn::{Forward, Init, Module, Parameter};
use gradus_tensor::{DType, Device, Generator, Here, Result, Tensor};

use super::design::Design;
use super::spec::Spec;

/// A network for tables. It takes the [`inputs`](Spec::inputs) of a [`Spec`], `[n, features]`, and returns logits
/// `[n, classes]`, or one number a row `[n, 1]`.
#[derive(Module)]
#[non_exhaustive]
pub enum Network {
    /// Linear layers.
    Mlp(Mlp),
    /// A transformer over the columns.
    FtTransformer(FtTransformer),
}

impl Network {
    /// The network of `spec` with new random weights, determined by `seed`. Errors if its design has no or too many
    /// features or layers.
    #[track_caller]
    pub fn new(spec: &Spec, device: &Device, seed: u64) -> Result<Network> {
        spec.check()?;
        let base = Generator::new(seed);
        let (mut weights, mut masks) = (base.fork(1), base.fork(2));
        let init = &mut Init::new(DType::F32, device, &mut weights);
        let (numbers, categories) = spec.widths();
        match &spec.design {
            Design::Mlp { hidden, dropout } => {
                let mut body = Sequential::new();
                let mut width = numbers;
                for &next in hidden {
                    body = body.add(Linear::new(width, next, init)?).add(Relu).add(Dropout::new(*dropout, &mut masks)?);
                    width = next;
                }
                Ok(Network::Mlp(Mlp { body, head: Linear::new(width, spec.outputs(), init)? }))
            }
            Design::FtTransformer { width, layers, heads, dropout } => {
                let config = TransformerConfig {
                    dim_feedforward: 2 * width,
                    dropout: *dropout,
                    activation: TransformerActivation::Gelu,
                    norm_first: true,
                    ..TransformerConfig::default()
                };
                let bound = 1.0 / (*width as f64).sqrt();
                let tokens = numbers + categories.len();
                // At most one table for each column.
                let mut tables = Vec::new();
                for &count in &categories {
                    let table = init.uniform([count, *width], -bound, bound)?;
                    tables.push(Embedding::from_parameters(Parameter::new(table)?, None)?);
                }
                Ok(Network::FtTransformer(FtTransformer {
                    weight: Parameter::new(init.uniform([numbers, *width], -bound, bound)?)?,
                    bias: Parameter::new(init.uniform([tokens, *width], -bound, bound)?)?,
                    class_token: Parameter::new(init.uniform([1, 1, *width], -bound, bound)?)?,
                    categories: tables,
                    encoder: TransformerEncoder::new(*layers, *width, *heads, config, true, init)?,
                    head: Linear::new(*width, spec.outputs(), init)?,
                }))
            }
        }
    }
}

impl Forward for Network {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Network::Mlp(mlp) => mlp.forward(x),
            Network::FtTransformer(transformer) => transformer.forward(x),
        }
    }
}

/// Linear layers with ReLU and dropout between them.
#[derive(Module)]
pub struct Mlp {
    body: Sequential,
    head: Linear,
}

impl Forward for Mlp {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.body.forward(x)?)
    }
}

/// A transformer over the columns: each is a token, and a further token collects what the head reads.
#[derive(Module)]
pub struct FtTransformer {
    /// What a number is multiplied by, `[numbers, width]`.
    weight: Parameter,
    /// What is added to each column's token, `[columns, width]`.
    bias: Parameter,
    class_token: Parameter,
    categories: Vec<Embedding>,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Forward for FtTransformer {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, numbers) = (x.size(0)?, self.weight.tensor().size(0)?);
        let width = self.weight.tensor().size(1)?;
        let scaled = x.narrow(1, 0, numbers)?.unsqueeze(-1)?.mul(self.weight.tensor())?;
        let mut tokens = vec![scaled];
        for (at, table) in self.categories.iter().enumerate() {
            // Indices are whole numbers below 2^24, which f32 holds exactly.
            let index = x.narrow(1, numbers + at, 1)?.to_dtype(DType::I64)?;
            tokens.push(table.forward(&index)?);
        }
        let columns = Tensor::cat(&tokens.iter().collect::<Vec<_>>(), 1)?.add(self.bias.tensor())?;
        let class = self.class_token.tensor().expand([rows, 1, width])?;
        let encoded = self.encoder.run(&Tensor::cat(&[&class, &columns], 1)?, Masks::default())?;
        self.head.forward(&encoded.select(1, 0)?.relu()?).here()
    }
}
