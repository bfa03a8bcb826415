//! [`Network`]: the networks for tables.

use gradus_nn::layers::*;
use gradus_nn::{Forward, Init, Module, Parameter, StateDict};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Here, Result, Tensor};

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
        let base = Generator::new(seed);
        let (mut weights, mut masks) = (base.fork(1), base.fork(2));
        Network::build(spec, &mut Init::new(DType::F32, device, &mut weights), &mut masks)
    }

    /// The network of `spec` with zeros, into which a state is loaded next. Errors if the state has fewer weights than
    /// the network, so that a damaged file does not allocate more than it holds.
    #[track_caller]
    pub(super) fn empty(spec: &Spec, state: &StateDict, device: &Device) -> Result<Network> {
        spec.check()?;
        let (has, needs) = (state.iter().map(|(_, tensor)| tensor.numel() as u128).sum(), weights(spec));
        if needs > has {
            let m = format!("the file has {has} weights, and its network {needs}");
            return Err(Error::new(ErrorKind::Format, "load", m));
        }
        let mut generator = Generator::new(0);
        let mut masks = generator.fork(2);
        Network::build(spec, &mut Init::new(DType::F32, device, &mut generator).skip(), &mut masks)
    }

    #[track_caller]
    fn build(spec: &Spec, init: &mut Init<'_>, masks: &mut Generator) -> Result<Network> {
        spec.check()?;
        let (numbers, categories) = spec.widths();
        match &spec.design {
            Design::Mlp { hidden, dropout } => {
                let mut body = Sequential::new();
                let mut width = numbers;
                for &next in hidden {
                    body = body.add(Linear::new(width, next, init)?).add(Relu).add(Dropout::new(*dropout, masks)?);
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

/// The number of weights of the network of `spec`, whose sizes are within the limits of [`Spec::check`].
fn weights(spec: &Spec) -> u128 {
    let (numbers, categories) = spec.widths();
    let linear = |inputs: u128, outputs: u128| (inputs + 1) * outputs;
    let (numbers, outputs) = (numbers as u128, spec.outputs() as u128);
    match &spec.design {
        Design::Mlp { hidden, .. } => {
            let (mut all, mut width) = (0, numbers);
            for &next in hidden {
                all += linear(width, next as u128);
                width = next as u128;
            }
            all + linear(width, outputs)
        }
        Design::FtTransformer { width, layers, .. } => {
            let width = *width as u128;
            let tables = width * categories.iter().map(|&count| count as u128).sum::<u128>();
            let tokens = (2 * numbers + categories.len() as u128 + 1) * width;
            // Attention (query, key, value, and their projection), the two linear layers, and two norms.
            let layer = 4 * linear(width, width) + linear(width, 2 * width) + linear(2 * width, width) + 4 * width;
            tables + tokens + *layers as u128 * layer + 2 * width + linear(width, outputs)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_data::{CsvOptions, Table};

    use super::*;
    use crate::tabular::Options;

    #[test]
    fn a_file_with_fewer_weights_than_its_network_is_refused_before_anything_is_allocated() {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let text = b"mass,sex,kind\n1,f,cat\n30,m,wolf\n2,m,cow\n35,f,wolf\n";
        let table = Table::from_csv(text, "pets.csv", &CsvOptions::default()).unwrap();
        for design in [Design::mlp(), Design::ft_transformer()] {
            let options = Options { design, ..Options::default() };
            let mut spec = Spec::fit(&table, "kind", options).unwrap();
            let network = Network::new(&spec, &device, 0).unwrap();
            let state = network.state_dict().unwrap();
            assert_eq!(weights(&spec), network.num_parameters() as u128, "{:?}", spec.design);
            Network::empty(&spec, &state, &device).unwrap();
            match &mut spec.design {
                Design::Mlp { hidden, .. } => *hidden = vec![1 << 14; 256],
                Design::FtTransformer { width, layers, .. } => (*width, *layers) = (1 << 14, 256),
            }
            let e = Network::empty(&spec, &state, &device).err().unwrap();
            assert!(e.to_string().contains("weights"), "{e}");
        }
    }
}
