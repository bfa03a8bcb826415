//! The training run that is killed.

use std::path::Path;
use std::sync::Arc;

use gradus::prelude::*;
use gradus::train::{Disk, EarlyStopping, Run};

/// The number of samples and the size of a batch: 13 steps an epoch, the last of a smaller batch.
const SAMPLES: (usize, usize) = (200, 16);

/// A network with running statistics and random masks.
fn network(device: &Device, hidden: usize) -> Result<Sequential> {
    let mut rng = Generator::new(3);
    let dropout = Dropout::new(0.2, &mut rng)?;
    let mut init = Init::new(DType::F32, device, &mut rng);
    Ok(Sequential::new()
        .add(Linear::new(8, hidden, &mut init)?)
        .add(BatchNorm2d::new(hidden, BatchNormConfig::default(), &mut init)?)
        .add(Relu)
        .add(dropout)
        .add(Linear::new(hidden, 3, &mut init)?))
}

/// Trains, or resumes from the checkpoints in `folder`, and returns all bits that the run determines. `disk` is where
/// checkpoints are written.
pub(crate) fn train(folder: &Path, disk: Arc<dyn Disk>, (hidden, epochs): (usize, usize)) -> Result<Vec<u8>> {
    let device = Device::cpu()?;
    let mut rng = Generator::new(1);
    let x = Tensor::randn([SAMPLES.0, 8], DType::F32, &device, &mut rng)?;
    let y = x.narrow(1, 0, 3)?.argmax(1, false)?;
    let data = TensorDataset::new(x, y)?;
    let loader = DataLoader::new(data.clone(), &device)
        .batch_size(SAMPLES.1)
        .shuffle(7)
        .augment(|(x, y): (Tensor, Tensor), rng| {
            let noise = Tensor::randn([8], DType::F32, x.device(), rng)?;
            Ok((x.add(&noise.mul(0.1)?)?, y))
        })
        .build()?;
    let test = DataLoader::new(data, &device).batch_size(64).build()?;

    let mut model = network(&device, hidden)?;
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.01, ..Default::default() })?;
    let steps = (epochs * loader.len()) as u64;
    let trainer = Trainer::new(epochs)?
        .schedule(Schedule::cosine(steps, 0.1)?.after_warmup(10))
        .clip_norm(1.0)?
        .early_stopping(EarlyStopping { patience: epochs, min_delta: 1e-4 })
        .resume(folder)
        .save_every(3)?
        .disk(disk);
    let run = trainer.fit(&mut model, &mut optimizer, &loader, Some(&test), &Classification::default(), &mut [])?;
    bits(&model, &optimizer, &run)
}

fn bits(model: &Sequential, optimizer: &AdamW, run: &Run) -> Result<Vec<u8>> {
    let mut bits = Vec::new();
    for state in [model.state_dict()?, optimizer.state_dict()?] {
        for (name, tensor) in state.iter() {
            bits.extend(name.bytes());
            bits.extend(tensor.to_bytes()?);
        }
        state.iter_metadata().for_each(|(name, text)| bits.extend(format!("{name} {text}").bytes()));
    }
    bits.extend(model.named_random_states().iter().flat_map(|(name, rng)| format!("{name} {rng:?}").into_bytes()));
    for epoch in &run.epochs {
        let numbers = (epoch.epoch, epoch.steps, epoch.samples, epoch.loss, epoch.accuracy, epoch.validation);
        bits.extend(format!("{numbers:?}").bytes());
    }
    Ok(bits)
}
