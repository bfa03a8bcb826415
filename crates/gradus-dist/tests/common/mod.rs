//! A small GPT, whole and divided, and how tests compare the two.
#![allow(dead_code, clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::{
    ColumnLinear, Communicator, DataParallel, Mesh, ParallelAttention, ParallelEmbedding, RowLinear, SequenceParallel,
    ShardedOptimizer, parallel_cross_entropy, split_sequence,
};
use gradus_graph::capture;
use gradus_nn::{
    AdamConfig, AdamW, CrossEntropyLoss, Embedding, Forward, Init, LayerNorm, LayerNormConfig, Linear, Masks, Module,
    MultiheadAttention, MultiheadAttentionConfig, Optimizer, Parameter,
};
use gradus_tensor::{Causal, DType, Device, Generator, Result, Tensor};

pub(crate) const VOCABULARY: usize = 11;
pub(crate) const LENGTH: usize = 6;
pub(crate) const BATCH: usize = 8;
const STEPS: usize = 5;
const WIDTH: usize = 8;

pub(crate) fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// The largest difference of two tensors, which may be on two devices.
pub(crate) fn off(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let [a, b] = [a, b].map(|t| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap());
    a.iter().zip(&b).fold(0.0, |most, (a, b)| {
        let off = (a - b).abs();
        if off > most || off.is_nan() { off } else { most }
    })
}

/// In f64, where sums in another order differ by less than 1e-14 of values around 1.
#[track_caller]
pub(crate) fn near(a: &Tensor, b: &Tensor) {
    assert!(off(a, b) < 1e-9, "{}", off(a, b));
}

/// Compares all tensors of two modules with the same names.
#[track_caller]
pub(crate) fn near_all(a: &impl Module, b: &impl Module, tolerance: impl Fn(&str) -> f64) {
    let (a, b) = (a.state_dict().unwrap(), b.state_dict().unwrap());
    let names = |s: &gradus_nn::StateDict| s.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for (name, tensor) in a.iter() {
        let off = off(tensor, b.get(name).unwrap());
        assert!(off <= tolerance(name), "{name}: {off}");
    }
}

/// Subtracts its gradient from each parameter, so that the gradients of layers can be compared by their weights.
pub(crate) fn descend(model: &impl Module, gradients: &[Option<Tensor>]) -> Result<()> {
    for (parameter, gradient) in model.parameters().iter().zip(gradients) {
        if let Some(gradient) = gradient {
            parameter.set(&parameter.values().sub(gradient.detach())?)?;
        }
    }
    Ok(())
}

/// Pre-norm, with grouped heads and a head that shares the table of tokens.
#[derive(Module)]
pub(crate) struct Gpt {
    pub(crate) tokens: Embedding,
    pub(crate) positions: Parameter,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: LayerNorm,
}

#[derive(Module)]
pub(crate) struct Block {
    norm1: LayerNorm,
    attention: MultiheadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Gpt {
    pub(crate) fn new(dtype: DType, dropout: f64, device: &Device) -> Result<Gpt> {
        let mut rng = Generator::new(11);
        let mut init = Init::new(dtype, device, &mut rng);
        let norm = |init: &mut Init<'_>| LayerNorm::new([WIDTH], LayerNormConfig::default(), init);
        let config = MultiheadAttentionConfig { num_kv_heads: Some(2), dropout, ..Default::default() };
        let mut blocks = vec![];
        for _ in 0..2 {
            blocks.push(Block {
                norm1: norm(&mut init)?,
                attention: MultiheadAttention::new(WIDTH, 4, config, &mut init)?,
                norm2: norm(&mut init)?,
                up: Linear::new(WIDTH, 4 * WIDTH, &mut init)?,
                down: Linear::new(4 * WIDTH, WIDTH, &mut init)?,
            });
        }
        Ok(Gpt {
            tokens: Embedding::new(VOCABULARY, WIDTH, None, &mut init)?,
            positions: Parameter::new(init.normal([1, LENGTH, WIDTH], 0.0, 1.0)?)?,
            blocks,
            norm: norm(&mut init)?,
        })
    }

    pub(crate) fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let mut x = self.tokens.forward(tokens)?.add(self.positions.tensor())?;
        for block in &self.blocks {
            let h = block.norm1.forward(&x)?;
            x = x.add(&block.attention.attend_with(&h, &h, &h, Masks::causal(Causal::TopLeft))?)?;
            let h = block.up.forward(&block.norm2.forward(&x)?)?.gelu()?;
            x = x.add(&block.down.forward(&h)?)?;
        }
        let logits = self.norm.forward(&x)?.linear(&self.tokens.weight, None)?;
        logits.flatten(0, 1)?.cross_entropy(&targets.flatten(0, 1)?)
    }
}

/// [`Gpt`], divided, with parts of the sequence between the layers or without.
#[derive(Module)]
pub(crate) struct DividedGpt {
    tokens: ParallelEmbedding,
    pub(crate) positions: Parameter,
    blocks: Vec<DividedBlock>,
    norm: Norm,
    #[module(skip)]
    head: ColumnLinear,
    #[module(skip)]
    sequence: bool,
    #[module(skip)]
    comm: Arc<dyn Communicator>,
}

#[derive(Module)]
pub(crate) struct DividedBlock {
    norm1: Norm,
    attention: ParallelAttention,
    norm2: Norm,
    up: ColumnLinear,
    down: RowLinear,
}

#[derive(Module)]
enum Norm {
    Whole(LayerNorm),
    OnParts(SequenceParallel<LayerNorm>),
}

impl Norm {
    fn of(whole: LayerNorm, sequence: bool, comm: &Arc<dyn Communicator>) -> Result<Norm> {
        Ok(if sequence { Norm::OnParts(SequenceParallel::of(whole, comm)?) } else { Norm::Whole(whole) })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Norm::Whole(norm) => norm.forward(x),
            Norm::OnParts(norm) => norm.forward(x),
        }
    }

    fn whole(&self) -> LayerNorm {
        match self {
            Norm::Whole(norm) => norm.clone(),
            Norm::OnParts(norm) => (**norm).clone(),
        }
    }
}

impl DividedGpt {
    pub(crate) fn of(whole: Gpt, sequence: bool, comm: &Arc<dyn Communicator>) -> Result<DividedGpt> {
        let mut tokens = ParallelEmbedding::of(&whole.tokens, comm)?;
        let mut head = tokens.head()?;
        if sequence {
            (tokens, head) = (tokens.sequence(1), head.sequence(1));
        }
        let block = |block: Block| {
            let attention = ParallelAttention::of(&block.attention, comm)?;
            let (up, down) = (ColumnLinear::of(&block.up, comm)?, RowLinear::of(&block.down, comm)?);
            let (attention, up, down) = match sequence {
                true => (attention.sequence(1), up.sequence(1), down.sequence(1)),
                false => (attention, up, down),
            };
            let (norm1, norm2) = (Norm::of(block.norm1, sequence, comm)?, Norm::of(block.norm2, sequence, comm)?);
            Ok(DividedBlock { norm1, attention, norm2, up, down })
        };
        Ok(DividedGpt {
            tokens,
            positions: whole.positions,
            blocks: whole.blocks.into_iter().map(block).collect::<Result<_>>()?,
            norm: Norm::of(whole.norm, sequence, comm)?,
            head,
            sequence,
            comm: comm.clone(),
        })
    }

    pub(crate) fn whole(&self) -> Result<Gpt> {
        let block = |block: &DividedBlock| {
            Ok(Block {
                norm1: block.norm1.whole(),
                attention: block.attention.whole()?,
                norm2: block.norm2.whole(),
                up: block.up.whole()?,
                down: block.down.whole()?,
            })
        };
        Ok(Gpt {
            tokens: self.tokens.whole()?,
            positions: self.positions.clone(),
            blocks: self.blocks.iter().map(block).collect::<Result<_>>()?,
            norm: self.norm.whole(),
        })
    }

    pub(crate) fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let positions = match self.sequence {
            true => split_sequence(self.positions.tensor(), 1, &self.comm)?,
            false => self.positions.tensor().clone(),
        };
        let mut x = self.tokens.forward(tokens)?.add(&positions)?;
        for block in &self.blocks {
            let h = block.norm1.forward(&x)?;
            x = x.add(&block.attention.attend_with(&h, &h, &h, Masks::causal(Causal::TopLeft))?)?;
            let h = block.up.forward(&block.norm2.forward(&x)?)?.gelu()?;
            x = x.add(&block.down.forward(&h)?)?;
        }
        let logits = self.head.forward(&self.norm.forward(&x)?)?;
        let options = CrossEntropyLoss::default();
        parallel_cross_entropy(&logits.flatten(0, 1)?, &targets.flatten(0, 1)?, VOCABULARY, &self.comm, &options)
    }

    /// The bytes of the parameters that all ranks hold as a whole.
    pub(crate) fn replicated(&self) -> Result<Vec<u8>> {
        let mut bytes = self.positions.values().to_bytes()?;
        for block in &self.blocks {
            let biases = [block.attention.bias.clone(), block.down.linear.bias.clone()];
            for parameter in block.norm1.parameters().into_iter().chain(block.norm2.parameters()) {
                bytes.extend(parameter.values().to_bytes()?);
            }
            for parameter in biases.into_iter().flatten() {
                bytes.extend(parameter.values().to_bytes()?);
            }
        }
        for parameter in self.norm.parameters() {
            bytes.extend(parameter.values().to_bytes()?);
        }
        Ok(bytes)
    }
}

/// Tokens and the tokens that follow them, `[batch, LENGTH]`.
pub(crate) fn batch(rows: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut rng = Generator::new(23);
    let text: Vec<i64> = (0..rows * (LENGTH + 1)).map(|_| rng.below(VOCABULARY) as i64).collect();
    let text = Tensor::from_vec(text, [rows, LENGTH + 1], device)?;
    Ok((text.narrow(1, 0, LENGTH)?.copy()?, text.narrow(1, 1, LENGTH)?.copy()?))
}

pub(crate) fn adam(parameters: Vec<(String, Parameter)>) -> Result<AdamW> {
    AdamW::new(parameters, AdamConfig { lr: 0.01, ..AdamConfig::default() })
}

/// The model after training in one process on whole batches.
pub(crate) fn alone(dtype: DType) -> Result<Gpt> {
    let device = device()?;
    let (tokens, targets) = batch(BATCH, &device)?;
    let model = Gpt::new(dtype, 0.0, &device)?;
    let mut optimizer = adam(model.named_parameters())?;
    for _ in 0..STEPS {
        optimizer.step(&model.loss(&tokens, &targets)?.backward()?)?;
    }
    Ok(model)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Zero {
    Off,
    Two,
    Three,
}

/// The same model after training on a mesh, the bytes of what all ranks hold as a whole, and of all.
pub(crate) fn on_mesh(
    comm: &Arc<dyn Communicator>,
    sizes: [usize; 2],
    dtype: DType,
    sequence: bool,
    zero: Zero,
    captured: bool,
) -> Result<(Gpt, Vec<u8>, Vec<u8>)> {
    let device = device()?;
    let (tokens, targets) = batch(BATCH, &device)?;
    let mesh = Mesh::new(comm, [("data", sizes[0]), ("tensor", sizes[1])])?;
    let model = DividedGpt::of(Gpt::new(dtype, 0.0, &device)?, sequence, &mesh.axis("tensor")?)?;
    let parallel = DataParallel::with_shards(mesh.axis("data")?, 4)?;
    let loss = |x: &[Tensor], rows: Range<usize>| {
        let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
        model.loss(&part(&x[0])?, &part(&x[1])?)
    };
    let run = |step: &mut dyn FnMut(&[Tensor]) -> Result<Tensor>| -> Result<()> {
        if !captured {
            return (0..STEPS).try_for_each(|_| step(&[tokens.clone(), targets.clone()]).map(drop));
        }
        let mut step = capture(step);
        (0..STEPS).try_for_each(|_| step.call::<Tensor>(&[&tokens, &targets]).map(drop))?;
        assert!(step.replays() > 0);
        Ok(())
    };
    match zero {
        Zero::Off => {
            let mut optimizer = adam(model.named_parameters())?;
            run(&mut |x| {
                let (loss, gradients) = parallel.backward(&model, BATCH, |rows| loss(x, rows))?;
                optimizer.step(&gradients)?;
                Ok(loss)
            })?;
        }
        Zero::Two => {
            let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
            run(&mut |x| optimizer.step(&model, BATCH, |rows| loss(x, rows)))?;
        }
        Zero::Three => {
            let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
            run(&mut |x| optimizer.step(&model, BATCH, |rows| loss(x, rows)))?;
            optimizer.gather()?;
        }
    }
    let mut all = vec![];
    for (_, tensor) in model.state_dict()?.iter() {
        all.extend(tensor.to_bytes()?);
    }
    Ok((model.whole()?, model.replicated()?, all))
}

/// How far a few steps of Adam with sums in another order may lead, in f64: sums of numbers around 1 differ by 1e-15. The
/// gradient of the bias of keys is mathematically 0, and what rounding leaves of it, 1e-17, Adam divides by 1e-8 more than
/// its own size. So such a bias moves by up to 1e-9 of what other parameters move.
pub(crate) fn tolerance(name: &str) -> f64 {
    if name.ends_with("in_proj_bias") { 1e-9 } else { 1e-12 }
}
