//! Training steps of a transformer.

use gradus::models::{Gpt2, Gpt2Config};
use gradus::prelude::*;

use crate::{gpu, values};

const BATCH: usize = 2;
const LENGTH: usize = 12;

/// What some steps of a GPT with two layers give.
struct Steps {
    losses: Vec<f64>,
    /// The gradients of the first step, with the names of the parameters.
    gradients: Vec<(String, Vec<f64>)>,
}

fn steps(device: &Device, dtype: DType) -> Result<Steps> {
    // Heads of 32 are the smallest that run on tensor cores.
    let config =
        Gpt2Config { vocab_size: 50, n_positions: 16, n_embd: 64, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
    let config = Gpt2Config { resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, ..config };
    let mut rng = Generator::new(0);
    let model = Gpt2::new(config, &mut Init::new(dtype, device, &mut rng))?;
    let adam = AdamConfig { lr: 1e-3, weight_decay: 0.01, ..AdamConfig::default() };
    let mut adam = AdamW::new(model.named_parameters(), adam)?;
    let tokens: Vec<i64> = (0..BATCH * (LENGTH + 1)).map(|_| rng.below(config.vocab_size) as i64).collect();
    let tokens = Tensor::from_vec(tokens, [BATCH, LENGTH + 1], device)?;
    let x = tokens.narrow(1, 0, LENGTH)?.contiguous()?;
    let y = tokens.narrow(1, 1, LENGTH)?.flatten(0, 1)?;
    let mut all = Steps { losses: Vec::new(), gradients: Vec::new() };
    for step in 0..3 {
        let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y)?;
        let gradients = loss.backward()?;
        if step == 0 {
            let of = |(name, p): (String, Parameter)| Some((name, values(gradients.get(p.tensor())?)));
            all.gradients = model.named_parameters().into_iter().filter_map(of).collect();
        }
        adam.step(&gradients)?;
        all.losses.push(loss.item()?);
    }
    Ok(all)
}

/// Compares the steps with the CPU's: losses, and each gradient within a share of its largest number.
#[track_caller]
fn compare(dtype: DType, of_loss: f64, of_gradient: f64) {
    let Some(gpu) = gpu::opened() else { return };
    let (cpu, gpu) = (steps(&Device::cpu().unwrap(), dtype).unwrap(), steps(&gpu, dtype).unwrap());
    println!("{dtype}: losses {:?} on the CPU, {:?} on the GPU", cpu.losses, gpu.losses);
    assert!(cpu.losses[2] < cpu.losses[0], "the steps lower the loss: {:?}", cpu.losses);
    for (a, b) in cpu.losses.iter().zip(&gpu.losses) {
        assert!((a - b).abs() <= of_loss * a, "{dtype}: {:?} and {:?}", cpu.losses, gpu.losses);
    }
    assert_eq!(cpu.gradients.len(), gpu.gradients.len());
    assert!(cpu.gradients.len() > 24, "two layers have 12 parameters each");
    for ((name, a), (_, b)) in cpu.gradients.iter().zip(&gpu.gradients) {
        let scale = a.iter().fold(0.0f64, |most, a| most.max(a.abs()));
        assert!(scale > 0.0, "{dtype}, {name}: the gradient is 0");
        let off = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off <= of_gradient * scale, "{dtype}, {name}: off by {off}, where the largest is {scale}");
    }
}

#[test]
fn a_gpt_of_two_layers_learns_as_on_the_cpu() {
    compare(DType::F32, 1e-5, 1e-4);
}

#[test]
fn a_gpt_of_two_layers_learns_as_on_the_cpu_in_bf16() {
    compare(DType::BF16, 1e-2, 5e-2);
}
