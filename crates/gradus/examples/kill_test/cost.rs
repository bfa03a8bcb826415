//! Measures what a checkpoint after every step adds to the time of a step.

use std::path::Path;
use std::time::Instant;

use gradus::prelude::*;
use gradus::train::{Checkpoint, Checkpoints};

/// Steps that are measured, in rounds with and without checkpoints by turns.
const STEPS: usize = 300;
const ROUNDS: usize = 25;

/// The lower quartiles of the time of a step in milliseconds, without checkpoints and with one after every step, and of
/// the number of steps for which there was time to save one. (Other programs make some rounds slow.)
pub(crate) fn measure(folder: &Path, [input, hidden, batch]: [usize; 3]) -> Result<[f64; 3]> {
    let (device, mut rng) = (Device::cpu()?, Generator::new(0));
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let mut model = Sequential::new()
        .add(Linear::new(input, hidden, &mut init)?)
        .add(Relu)
        .add(Linear::new(hidden, 10, &mut init)?);
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
    let x = Tensor::randn([batch, input], DType::F32, &device, &mut rng)?;
    let y = Tensor::zeros([batch], DType::I64, &device)?;
    let checkpoints = Checkpoints::open(folder)?;
    let mut times = [vec![], vec![], vec![]];
    model.train();
    for _ in 0..ROUNDS {
        for with in [false, true] {
            let (start, mut saved) = (Instant::now(), 0);
            for _ in 0..STEPS {
                let loss = model.forward(&x)?.cross_entropy(&y)?;
                optimizer.step(&loss.backward()?)?;
                loss.item()?;
                if with && !checkpoints.is_busy() {
                    checkpoints.save(Checkpoint::of(&model, &optimizer)?)?;
                    saved += 1;
                }
            }
            times[usize::from(with)].push(start.elapsed().as_secs_f64() * 1e3 / STEPS as f64);
            if with {
                times[2].push(f64::from(saved));
                checkpoints.wait()?;
            }
        }
    }
    Ok(times.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 4]
    }))
}
