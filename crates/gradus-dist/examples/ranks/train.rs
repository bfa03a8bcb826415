//! Trains a small model on all ranks, and gives the hash of its weights, which does not depend on the number of ranks.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gradus_data::{DataLoader, digits};
use gradus_dist::{Communicator, DataParallel, Reduce, ShardedOptimizer};
use gradus_graph::Captured;
use gradus_models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use gradus_nn::{
    AdamConfig, AdamW, Conv2d, ConvConfig, Dropout, Flatten, Forward, Init, Linear, Module, Optimizer, Relu,
    Sequential, StateDict,
};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor};
use gradus_train::{Checkpoint, Checkpoints};

use super::{EMPTY, hash, line};

const BATCH: usize = 64;

/// How a model is trained.
pub(crate) struct How<'a> {
    /// Where the first half of the steps is saved, or where the second half goes on.
    pub(crate) save: Option<&'a Path>,
    pub(crate) resume: Option<&'a Path>,
    /// Whether gradients and the state of the optimiser are divided among the ranks (ZeRO 2), and whether parameters are
    /// too (ZeRO 3).
    pub(crate) divides: bool,
    pub(crate) shards: bool,
    /// Whether the steps are captured.
    pub(crate) captured: bool,
}

/// An optimiser of the whole model, or of this rank's part.
enum Either {
    Whole(AdamW),
    Divided(ShardedOptimizer<AdamW>),
}

impl Either {
    /// The whole state; the parameters of the model are there, too.
    fn state(&self) -> Result<StateDict> {
        match self {
            Either::Whole(optimizer) => optimizer.state_dict(),
            Either::Divided(optimizer) => optimizer.gather().and_then(|()| optimizer.state_dict()),
        }
    }
}

/// A batch of one step: inputs and targets.
type Batches = Vec<(Tensor, Tensor)>;

pub(crate) fn run(
    comm: &Arc<dyn Communicator>,
    device: &Device,
    model: &str,
    steps: usize,
    how: &How<'_>,
) -> Result<String> {
    // Ranks begin with different weights; those of rank 0 count.
    let mut rng = Generator::new(7 + comm.rank() as u64);
    let mut init = Init::new(DType::F32, device, &mut rng);
    match model {
        "digits" => {
            let model = Sequential::new()
                .add(Conv2d::new(1, 8, [3, 3], ConvConfig::default(), &mut init)?)
                .add(Relu)
                .add(Flatten::default())
                .add(Dropout::new(0.1, &mut Generator::new(2))?)
                .add(Linear::new(8 * 36, 10, &mut init)?);
            train(comm, device, model, &pictures(device, steps)?, steps, how)
        }
        "resnet" => {
            let config = ResNetConfig {
                layers: [1; 4],
                num_classes: 10,
                in_channels: 1,
                width: 8,
                small_images: true,
                ..ResNetConfig::resnet18()
            };
            train(comm, device, ResNet::new(config, &mut init)?, &pictures(device, steps)?, steps, how)
        }
        "gpt" => {
            let config = Gpt2Config {
                vocab_size: 32,
                n_positions: 16,
                n_embd: 32,
                n_layer: 2,
                n_head: 2,
                ..Gpt2Config::default()
            };
            let mut rng = Generator::new(3);
            let mut batches = vec![];
            for _ in 0..steps {
                let text = Tensor::randint(0, 32, [BATCH, 17], DType::I64, device, &mut rng)?;
                batches.push((text.narrow(1, 0, 16)?.contiguous()?, text.narrow(1, 1, 16)?.contiguous()?));
            }
            train(comm, device, Gpt2::new(config, &mut init)?, &batches, steps, how)
        }
        other => Err(Error::argument("ranks", format!("no model {other}"))),
    }
}

fn pictures(device: &Device, steps: usize) -> Result<Batches> {
    let loader = DataLoader::new(digits::load()?, device).batch_size(BATCH).shuffle(5).build()?;
    loader.epoch(0)?.take(steps).collect()
}

fn train<M: Module + Forward>(
    comm: &Arc<dyn Communicator>,
    device: &Device,
    mut model: M,
    batches: &Batches,
    steps: usize,
    how: &How<'_>,
) -> Result<String> {
    let parallel = DataParallel::new(comm.clone())?;
    let adam = |parameters| AdamW::new(parameters, AdamConfig { lr: 0.01, ..AdamConfig::default() });
    let mut optimizer = adam(model.named_parameters())?;
    parallel.synchronize(&model)?;
    let mut first = 0;
    if let Some(folder) = how.resume {
        // The folder is open for one rank at a time.
        for rank in 0..comm.size() {
            if rank == comm.rank() {
                let newest = Checkpoints::open(folder.join("checkpoints"))?.newest(device)?;
                newest.ok_or_else(|| Error::argument("ranks", "no checkpoint"))?.restore(&mut model, &mut optimizer)?;
            }
            comm.barrier(device)?;
        }
        first = steps / 2;
    }
    let mut optimizer = match how.shards || how.divides {
        false => Either::Whole(optimizer),
        true => {
            let state = optimizer.state_dict()?;
            let mut divided = match how.shards {
                true => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
                false => ShardedOptimizer::new(&parallel, &model, adam)?,
            };
            divided.load_state_dict(&state)?;
            Either::Divided(divided)
        }
    };
    let step = |optimizer: &mut Either, x: &Tensor, y: &Tensor| -> Result<Tensor> {
        let loss = |rows: Range<usize>| {
            let x = x.narrow(0, rows.start, rows.len())?;
            let y = y.narrow(0, rows.start, rows.len())?;
            let classes = model.forward(&x)?;
            let classes = classes.reshape([y.numel(), classes.size(-1)?])?;
            classes.cross_entropy(&y.reshape([y.numel()])?)
        };
        match optimizer {
            Either::Whole(optimizer) => {
                let (loss, gradients) = parallel.backward(&model, x.shape()[0], loss)?;
                optimizer.step(&gradients)?;
                Ok(loss)
            }
            Either::Divided(optimizer) => optimizer.step(&model, x.shape()[0], loss),
        }
    };
    let mut captured = Captured::strict();
    let (mut text, mut last) = (String::new(), f64::NAN);
    for (i, (x, y)) in batches.iter().enumerate().skip(first) {
        if let Some(folder) = how.save.filter(|_| i == steps / 2) {
            let mut checkpoint = Checkpoint::default();
            checkpoint.optimizer = optimizer.state()?;
            checkpoint.model = model.state_dict()?;
            checkpoint.random = model.named_random_states().into_iter().map(|(name, r)| (name, r.get())).collect();
            if comm.rank() == 0 {
                let checkpoints = Checkpoints::open(folder.join("checkpoints"))?;
                checkpoints.save(checkpoint)?;
                checkpoints.wait()?;
            }
            return Ok("saved\n".into());
        }
        let loss = match how.captured {
            true => captured.call(0, &[x, y], |_| Ok((vec![step(&mut optimizer, x, y)?], ())))?.0.pop(),
            false => Some(step(&mut optimizer, x, y)?),
        };
        last = loss.map_or(Ok(f64::NAN), |loss| loss.item())?;
    }
    if how.captured && captured.replays() == 0 {
        return Err(Error::argument("ranks", "no step was replayed"));
    }
    // Divided parameters are gathered here.
    let _state = optimizer.state()?;
    let mut bytes = vec![];
    for (name, tensor) in model.state_dict()?.iter() {
        bytes.extend(name.as_bytes());
        bytes.extend(tensor.to_bytes()?);
    }
    let mine = hash(EMPTY, &bytes);
    let all = comm.all_gather(&Tensor::from_vec(vec![mine], [1], device)?)?.to_vec::<u64>()?;
    if all.iter().any(|other| *other != mine) {
        return Err(Error::argument("ranks", format!("ranks have different weights: {all:x?}")));
    }
    line(&mut text, format_args!("{mine:016x} loss {last}"));
    comm.all_reduce(&Tensor::scalar(1.0f32, device)?, Reduce::Sum)?.item()?;
    Ok(text)
}
