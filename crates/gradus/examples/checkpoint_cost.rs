//! What asynchronous checkpoints cost a training step. Two networks train with and without checkpoints in turn, and the
//! bits of their weights are compared afterwards.
//!
//! With checkpoints, a state is copied and passed to the writing thread whenever that is not busy, as
//! `Trainer::save_every(1)` does: the most that a trainer saves by itself. `cargo run --release -p gradus --example
//! checkpoint_cost` prints the times.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use gradus::models::{Gpt2, Gpt2Config};
use gradus::prelude::*;
use gradus::train::{Checkpoint, Checkpoints};

/// What was found for a network.
#[derive(Debug)]
#[allow(dead_code, reason = "a reader sees what the test does not")]
pub(crate) struct Cost {
    /// The name of the network.
    pub(crate) name: &'static str,
    /// The median time of a step without checkpoints, over all rounds.
    pub(crate) without: Duration,
    /// The same with checkpoints.
    pub(crate) with: Duration,
    /// The median over the rounds of the time with checkpoints by the time without.
    pub(crate) ratio: f64,
    /// The time of copying one state.
    pub(crate) copy: Duration,
    /// The number of checkpoints.
    pub(crate) saved: usize,
    /// Whether the weights of both runs have the same bits.
    pub(crate) same: bool,
}

/// A model with its optimiser, and a batch.
struct Training<M> {
    model: M,
    optimizer: AdamW,
    input: Tensor,
    target: Tensor,
}

impl<M: Forward> Training<M> {
    fn of(model: M, input: Tensor, target: Tensor) -> Result<Self> {
        let optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
        Ok(Training { model, optimizer, input, target })
    }

    /// Makes steps, and passes on checkpoints if there is a folder. Returns the time of all, and the number of checkpoints.
    fn steps(&mut self, count: usize, folder: Option<&Checkpoints>) -> Result<(Duration, usize)> {
        let (start, mut saved) = (Instant::now(), 0);
        for _ in 0..count {
            let logits = self.model.forward(&self.input)?;
            let classes = logits.size(-1)?;
            let loss = logits.reshape([INFER, classes])?.cross_entropy(&self.target)?;
            self.optimizer.step(&loss.backward()?)?;
            if let Some(folder) = folder.filter(|folder| !folder.is_busy()) {
                folder.save(Checkpoint::of(&self.model, &self.optimizer)?)?;
                saved += 1;
            }
        }
        Ok((start.elapsed(), saved))
    }

    fn bits(&self) -> Result<Vec<Vec<u8>>> {
        self.model.parameters().iter().map(|p| p.to_bytes()).collect()
    }
}

/// The middle of some times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Trains two copies of a network in turn, `rounds` times for `steps` steps.
fn measured<M: Forward>(
    name: &'static str,
    make: impl Fn() -> Result<Training<M>>,
    rounds: usize,
    steps: usize,
) -> Result<Cost> {
    let dir = std::env::temp_dir().join(format!("gradus-checkpoint-cost-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| Error::io("checkpoint_cost", dir.display(), e))?;
    let folder = Checkpoints::open(&dir)?;
    let (mut plain, mut saving) = (make()?, make()?);
    // The first steps allocate.
    plain.steps(2, None)?;
    saving.steps(2, None)?;
    let (mut without, mut with, mut saved) = (vec![], vec![], 0);
    for round in 0..rounds {
        // Each comes first in turn.
        for second in [false, true] {
            if second == (round % 2 == 0) {
                let start = Instant::now();
                let (_, count) = saving.steps(steps, Some(&folder))?;
                // What is still being written belongs to these steps.
                folder.wait()?;
                with.push(start.elapsed() / steps as u32);
                saved += count;
            } else {
                without.push(plain.steps(steps, None)?.0 / steps as u32);
            }
        }
    }
    folder.wait()?;
    let start = Instant::now();
    let copy = Checkpoint::of(&saving.model, &saving.optimizer)?;
    let copied = start.elapsed();
    drop((copy, folder));
    let mut ratios: Vec<f64> = with.iter().zip(&without).map(|(a, b)| a.as_secs_f64() / b.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    let same = plain.bits()? == saving.bits()?;
    std::fs::remove_dir_all(&dir).map_err(|e| Error::io("checkpoint_cost", dir.display(), e))?;
    Ok(Cost { name, without: median(without), with: median(with), ratio, copy: copied, saved, same })
}

/// The network of `gradus train digits` in small, with a batch of 64.
fn digits(device: &Device) -> Result<Training<Sequential>> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let same = Conv2dConfig { padding: [1, 1], ..Default::default() };
    let model = Sequential::new()
        .add(Conv2d::new(1, 32, [3, 3], same, &mut init)?)
        .add(Relu)
        .add(Conv2d::new(32, 64, [3, 3], same, &mut init)?)
        .add(Relu)
        .add(MaxPool2d::new([2, 2], [2, 2], [0, 0])?)
        .add(Flatten::default())
        .add(Linear::new(64 * 16, 128, &mut init)?)
        .add(Relu)
        .add(Linear::new(128, 10, &mut init)?);
    let input = Tensor::randn([64, 1, 8, 8], DType::F32, device, &mut rng)?;
    let target = Tensor::randint(0, 10, [64], DType::I64, device, &mut rng)?;
    Training::of(model, input, target)
}

/// A GPT of the default shape of `gradus train text`: 4 blocks of 128 features, 8 sections of 128 tokens.
fn gpt(device: &Device) -> Result<Training<Gpt2>> {
    let mut rng = Generator::new(0);
    let config =
        Gpt2Config { vocab_size: 64, n_positions: 128, n_embd: 128, n_layer: 4, n_head: 4, ..Default::default() };
    let model = Gpt2::new(config, &mut Init::new(DType::F32, device, &mut rng))?;
    let input = Tensor::randint(0, 64, [8, 128], DType::I64, device, &mut rng)?;
    let target = Tensor::randint(0, 64, [8 * 128], DType::I64, device, &mut rng)?;
    Training::of(model, input, target)
}

/// Measures both networks.
pub(crate) fn run(rounds: usize, steps: usize) -> Result<Vec<Cost>> {
    let device = Device::cpu()?;
    Ok(vec![measured("digits", || digits(&device), rounds, steps)?, measured("gpt", || gpt(&device), rounds, steps)?])
}

#[allow(dead_code, reason = "the test calls `run`")]
fn main() -> Result<()> {
    for cost in run(7, 20)? {
        let (without, with) = (cost.without.as_secs_f64() * 1e3, cost.with.as_secs_f64() * 1e3);
        let more = 100.0 * (cost.ratio - 1.0);
        let copy = cost.copy.as_secs_f64() * 1e3;
        println!(
            "{}: a step takes {without:.2} ms, {with:.2} ms with checkpoints ({more:+.1} % in the middle of the rounds); {} were saved, a copy takes {copy:.2} ms; same bits: {}",
            cost.name, cost.saved, cost.same
        );
    }
    Ok(())
}
