//! Tests that steady training creates no pipelines and no buffers, and that losses follow the CPU on every profile of
//! adapters.

mod common;
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../gradus/examples/small_gpt.rs"]
mod small_gpt;

use std::sync::Arc;

use gradus::data::digits;
use gradus::prelude::*;
use gradus_wgpu::Profile;

/// A network with the kinds of layers that `gradus train digits` uses.
#[derive(Module)]
struct Network {
    conv: Conv2d,
    norm: BatchNorm2d,
    pool: MaxPool2d,
    fc1: Linear,
    dropout: Dropout,
    fc2: Linear,
}

impl Network {
    fn new(device: &Device) -> Result<Network> {
        let base = Generator::new(5);
        let (mut weights, mut masks) = (base.fork(1), base.fork(2));
        let init = &mut Init::new(DType::F32, device, &mut weights);
        let config = Conv2dConfig { padding: [1, 1], bias: false, ..Default::default() };
        Ok(Network {
            conv: Conv2d::new(1, 8, [3, 3], config, init)?,
            norm: BatchNorm2d::new(8, BatchNormConfig::default(), init)?,
            pool: MaxPool2d::new([2, 2], [2, 2], [0, 0])?,
            fc1: Linear::new(8 * 4 * 4, 32, init)?,
            dropout: Dropout::new(0.1, &mut masks)?,
            fc2: Linear::new(32, 10, init)?,
        })
    }
}

impl Forward for Network {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.pool.forward(&self.norm.forward(&self.conv.forward(x)?)?.relu()?)?.flatten(1, -1)?;
        self.fc2.forward(&self.dropout.forward(&self.fc1.forward(&x)?.relu()?)?)
    }
}

/// Trains the network on some digits, one batch per call.
fn digits_step(device: &Device) -> impl FnMut(usize) -> Result<f64> {
    let images = digits::load().expect("the digits");
    let mut pixels = Vec::new();
    let mut labels = Vec::new();
    for i in 0..BATCH * BATCHES {
        let (image, label) = images.get(i).expect("an image");
        pixels.extend_from_slice(image.pixels());
        labels.push(label);
    }
    let model = Network::new(device).expect("a network");
    let config = AdamConfig { lr: 0.01, ..Default::default() };
    let mut optimizer = AdamW::new(model.named_parameters(), config).expect("an optimiser");
    move |step| {
        let (from, to) = (step % BATCHES * BATCH, (step % BATCHES + 1) * BATCH);
        let x = Tensor::from_vec(&pixels[from * 64..to * 64], [BATCH, 1, 8, 8], device)?;
        let y = Tensor::from_vec(&labels[from..to], [BATCH], device)?;
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        let value = loss.item()?;
        let gradients = loss.backward()?;
        optimizer.step(&gradients)?;
        Ok(value)
    }
}

const BATCH: usize = 64;
const BATCHES: usize = 8;

#[test]
fn steady_training_compiles_nothing_makes_no_buffer_and_learns() {
    let Some(backend) = common::opened() else { return };
    let backend = Arc::new(backend);
    let device = Device::from_backend(backend.clone());
    let mut step = digits_step(&device);
    let first = step(0).expect("a step");
    // Twice, because batches that come again are kept on the device.
    for at in 0..2 * BATCHES {
        step(at).expect("a step");
    }
    device.synchronize().expect("a device that works");
    let before = backend.counters();
    let mut last = first;
    for at in 0..4 * BATCHES {
        last = step(at).expect("a step");
    }
    device.synchronize().expect("a device that works");
    let after = backend.counters();
    assert!(last < first / 3.0, "the loss went from {first} to {last}");
    assert_eq!((after.pipelines, after.buffers), (before.pipelines, before.buffers), "{before:?} -> {after:?}");
}

/// The largest difference between the losses of the CPU and those of the device, relative to the CPU's.
fn apart(cpu: &[f64], device: &[f64]) -> f64 {
    assert_eq!(cpu.len(), device.len());
    cpu.iter().zip(device).map(|(c, d)| (c - d).abs() / c.abs()).fold(0.0, f64::max)
}

#[test]
fn losses_follow_the_cpu_on_every_profile() {
    let cnn = |device: &Device| (0..20).map(digits_step(device)).collect::<Result<Vec<_>>>().expect("steps");
    let text = include_str!("../../../README.md");
    let gpt = |device: &Device| small_gpt::run(text, 6, 0, device).expect("steps").0;
    let cpu = Device::cpu().expect("the CPU");
    let (of_cnn, of_gpt) = (cnn(&cpu), gpt(&cpu));
    for profile in Profile::ALL {
        let Some(backend) = common::opened_as(profile) else { return };
        let device = Device::from_backend(Arc::new(backend));
        let (cnn, gpt) = (apart(&of_cnn, &cnn(&device)), apart(&of_gpt, &gpt(&device)));
        eprintln!("{}: {cnn:.1e} and {gpt:.1e} from the CPU", profile.name());
        assert!(cnn < 1e-5 && gpt < 1e-5, "{}: {cnn:e} and {gpt:e} from the CPU", profile.name());
    }
}
