//! Times what large models spend their time on, and trains GPT-2. `scripts/gpu-check.sh` runs it beside PyTorch.
//!
//! ```sh
//! cargo run --release -p gradus --features cuda --example gpu_rows -- DEVICE full|small [PART OF A ROW'S NAME]
//! ```
//! Prints one line of JSON for each row: its name, seconds for one run, and what that is in the row's unit. `small` has the
//! same rows with sizes for a processor.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use gradus::models::{Gpt2, Gpt2Config};
use gradus::prelude::*;

/// How the rows are run.
struct Rows {
    device: Device,
    full: bool,
    wanted: String,
    rng: Generator,
    /// How many rows failed.
    failed: usize,
}

impl Rows {
    /// One of two sizes.
    fn size(&self, full: usize, small: usize) -> usize {
        if self.full { full } else { small }
    }

    fn randn(&mut self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::randn(shape, DType::F32, &self.device, &mut self.rng)?.to_dtype(dtype)
    }

    /// The time of one run: several in a row, after some that are not counted, and the best of three such series.
    fn time(&self, mut job: impl FnMut() -> Result<()>) -> Result<f64> {
        let runs = if self.full { 20 } else { 2 };
        for _ in 0..3.min(runs) {
            job()?;
        }
        self.device.synchronize()?;
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..runs {
                job()?;
            }
            self.device.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / runs as f64);
        }
        Ok(best)
    }

    /// Prints a row, if it is wanted: the time of `job`, and `work` divided by it. An error is a row too.
    fn row(&mut self, name: &str, (work, unit): (f64, &str), run: impl FnOnce(&mut Rows) -> Result<f64>) {
        if !name.contains(&self.wanted) {
            return;
        }
        match run(self) {
            Ok(seconds) => {
                println!(r#"{{"row":"{name}","seconds":{seconds:e},"rate":{:e},"unit":"{unit}"}}"#, work / seconds);
            }
            Err(e) => {
                println!(r#"{{"row":"{name}","error":{:?}}}"#, e.to_string());
                self.failed += 1;
            }
        }
    }
}

/// The bandwidth of operations that read and write much and compute little.
fn memory(rows: &mut Rows) {
    let n = rows.size(1 << 29, 1 << 12);
    let gib = 2.0 * n as f64;
    rows.row("copy_bf16", (2.0 * gib / 1e9, "GB/s"), |rows| {
        let x = rows.randn(&[n], DType::BF16)?;
        rows.time(|| x.copy().map(drop))
    });
    rows.row("add_bf16", (3.0 * gib / 1e9, "GB/s"), |rows| {
        let (x, y) = (rows.randn(&[n], DType::BF16)?, rows.randn(&[n], DType::BF16)?);
        rows.time(|| x.add(&y).map(drop))
    });
    rows.row("silu_mul_bf16", (3.0 * gib / 1e9, "GB/s"), |rows| {
        let (x, y) = (rows.randn(&[n], DType::BF16)?, rows.randn(&[n], DType::BF16)?);
        rows.time(|| x.silu_mul(&y).map(drop))
    });
    let width = rows.size(4096, 64);
    rows.row("layer_norm_bf16", (2.0 * gib / 1e9, "GB/s"), |rows| {
        let x = rows.randn(&[n / width, width], DType::BF16)?;
        let (w, b) = (rows.randn(&[width], DType::BF16)?, rows.randn(&[width], DType::BF16)?);
        rows.time(|| x.layer_norm(&[width], Some(&w), Some(&b), 1e-5).map(drop))
    });
}

fn products(rows: &mut Rows) {
    let n = rows.size(8192, 64);
    for dtype in [DType::BF16, DType::F32] {
        rows.row(&format!("matmul_{dtype}"), (2.0 * (n as f64).powi(3) / 1e12, "TFLOP/s"), |rows| {
            let (a, b) = (rows.randn(&[n, n], dtype)?, rows.randn(&[n, n], dtype)?);
            rows.time(|| a.matmul(&b).map(drop))
        });
    }
    gpt2_products(rows);
    for d in [64, 128] {
        let (batch, heads, length) = (rows.size(16, 1), rows.size(16, 1), rows.size(4096, 64));
        // Two products, of which the mask leaves a half.
        let flops = 2.0 * 2.0 * (batch * heads * length * length * d) as f64 / 2.0;
        let causal = || AttentionOptions::new().causal(Causal::TopLeft);
        rows.row(&format!("attention_d{d}_forward"), (flops / 1e12, "TFLOP/s"), |rows| {
            let shape = [batch, heads, length, d];
            let [q, k, v] =
                [rows.randn(&shape, DType::BF16)?, rows.randn(&shape, DType::BF16)?, rows.randn(&shape, DType::BF16)?];
            rows.time(|| q.scaled_dot_product_attention(&k, &v, causal()).map(drop))
        });
        rows.row(&format!("attention_d{d}_both"), (3.5 * flops / 1e12, "TFLOP/s"), |rows| {
            let shape = [batch, heads, length, d];
            let mut leaf = || rows.randn(&shape, DType::BF16)?.with_grad();
            let (q, k, v) = (leaf()?, leaf()?, leaf()?);
            let seed = rows.randn(&shape, DType::BF16)?;
            rows.time(|| {
                let y = q.scaled_dot_product_attention(&k, &v, causal())?;
                grad(&[&y], &[&q, &k, &v], Some(&[&seed]), BackwardOptions::new()).map(drop)
            })
        });
    }
}

/// The products of a GPT-2 of 124 million parameters and 16 sequences, forward and backward, and those of its heads.
fn gpt2_products(rows: &mut Rows) {
    let (tokens, width, words) = (rows.size(16 * 1024, 32), rows.size(768, 32), rows.size(50_257, 65));
    let (heads, length, head) = (rows.size(256, 2), rows.size(1024, 32), rows.size(64, 16));
    /// A name, and the shapes of the factors, of which the last axes are swapped where that is said.
    type Factors<'a> = (&'a str, [&'a [usize]; 2], [bool; 2]);
    let products: [Factors<'_>; 6] = [
        ("up", [&[tokens, width], &[width, 4 * width]], [false, false]),
        ("up_input", [&[tokens, 4 * width], &[width, 4 * width]], [false, true]),
        ("up_weight", [&[tokens, width], &[tokens, 4 * width]], [true, false]),
        ("logits", [&[tokens, width], &[words, width]], [false, true]),
        ("logits_plain", [&[tokens, width], &[width, words]], [false, false]),
        ("heads", [&[heads, length, head], &[heads, head, length]], [false, false]),
    ];
    for (name, [a, b], [swap_a, swap_b]) in products {
        let name = format!("matmul_bf16_{name}");
        let n = b[b.len() - if swap_b { 2 } else { 1 }];
        let flops = 2.0 * a.iter().product::<usize>() as f64 * n as f64;
        rows.row(&name, (flops / 1e12, "TFLOP/s"), |rows| {
            let mut factor = |shape: &[usize], swap: bool| {
                let x = rows.randn(shape, DType::BF16)?;
                if swap { x.transpose(-2, -1) } else { Ok(x) }
            };
            let (x, y) = (factor(a, swap_a)?, factor(b, swap_b)?);
            rows.time(|| x.matmul(&y).map(drop))
        });
    }
}

/// A step so small that what the host does is most of it.
fn mlp(rows: &mut Rows) {
    for captured in [false, true] {
        let name = if captured { "train_mlp_captured" } else { "train_mlp" };
        rows.row(name, (1.0, "steps/s"), |rows| {
            let (device, mut rng) = (rows.device.clone(), Generator::new(0));
            let mut init = Init::new(DType::F32, &device, &mut rng);
            let model = Sequential::new().add(Linear::new(784, 512, &mut init)?).add(Relu);
            let model = model.add(Linear::new(512, 512, &mut init)?).add(Relu).add(Linear::new(512, 10, &mut init)?);
            let batch = rows.size(128, 2);
            let x = rows.randn(&[batch, 784], DType::F32)?;
            let y = Tensor::from_vec((0..batch as i64).map(|i| i % 10).collect::<Vec<_>>(), [batch], &device)?;
            let mut adam = Adam::new(model.named_parameters(), AdamConfig::default())?;
            if !captured {
                return rows.time(|| adam.step(&model.forward(&x)?.cross_entropy(&y)?.backward()?).map(drop));
            }
            let mut step = capture(|x| {
                let loss = model.forward(&x[0])?.cross_entropy(&x[1])?;
                adam.step(&loss.backward()?)?;
                Ok(vec![loss.detach()])
            });
            rows.time(|| step.call(&[&x, &y]).map(drop))
        });
    }
}

/// GPT-2 with 124 million parameters, all in bf16: 50 steps on one batch, whose loss must fall.
fn gpt2(rows: &mut Rows) {
    for batch in if rows.full { vec![16, 32, 64] } else { vec![2] } {
        for end in ["", "_captured"] {
            let length = rows.size(1024, 8);
            rows.row(&format!("train_gpt2_b{batch}{end}"), ((batch * length) as f64, "tokens/s"), |rows| {
                gpt2_step(rows, batch, length, !end.is_empty())
            });
        }
    }
}

fn gpt2_step(rows: &mut Rows, batch: usize, length: usize, captured: bool) -> Result<f64> {
    let dropped = Gpt2Config { resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, ..Gpt2Config::default() };
    let small = Gpt2Config { vocab_size: 64, n_positions: 16, n_embd: 32, n_layer: 2, n_head: 2, ..dropped };
    let config = if rows.full { dropped } else { small };
    let (device, mut rng) = (rows.device.clone(), Generator::new(0));
    let model = Gpt2::new(config, &mut Init::new(DType::BF16, &device, &mut rng))?;
    let adam = AdamConfig { lr: 3e-4, weight_decay: 0.01, ..AdamConfig::default() };
    let mut adam = AdamW::new(model.named_parameters(), adam)?;
    let tokens = (0..batch * (length + 1)).map(|_| rng.below(config.vocab_size) as i64).collect::<Vec<_>>();
    let tokens = Tensor::from_vec(tokens, [batch, length + 1], &device)?;
    let x = tokens.narrow(1, 0, length)?.contiguous()?;
    let y = tokens.narrow(1, 1, length)?.flatten(0, 1)?;
    let mut eager = |x: &Tensor, y: &Tensor| {
        let loss = model.forward(x)?.flatten(0, 1)?.cross_entropy(y)?;
        adam.step(&loss.backward()?)?;
        Ok(loss.detach())
    };
    if captured {
        let mut step = capture(|x| eager(&x[0], &x[1]));
        time_of_steps(rows, || step.call(&[&x, &y]))
    } else {
        time_of_steps(rows, || eager(&x, &y))
    }
}

/// The time of one training step, of those after the first four. The loss must fall.
fn time_of_steps(rows: &Rows, mut step: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let steps = rows.size(50, 6);
    let first = step()?.item()?;
    for _ in 1..4 {
        let _ = step()?;
    }
    rows.device.synchronize()?;
    let start = Instant::now();
    let mut last = None;
    for _ in 4..steps {
        last = Some(step()?);
    }
    rows.device.synchronize()?;
    let seconds = start.elapsed().as_secs_f64() / (steps - 4) as f64;
    let last = last.map_or(Ok(f64::NAN), |loss| loss.item())?;
    eprintln!("loss {first:.4} to {last:.4} in {steps} steps");
    if last < first {
        Ok(seconds)
    } else {
        Err(Error::argument("gpt2", format!("the loss went from {first} to {last}")))
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Error::argument("gpu_rows", "usage: gpu_rows DEVICE full|small [PART OF A ROW'S NAME]");
    let (device, full, wanted) = match &words[..] {
        [device, size, rest @ ..] if rest.len() <= 1 && (size == "full" || size == "small") => {
            (Device::open(device)?, size == "full", rest.first().cloned().unwrap_or_default())
        }
        _ => return Err(usage()),
    };
    let mut rows = Rows { device, full, wanted, rng: Generator::new(0), failed: 0 };
    memory(&mut rows);
    products(&mut rows);
    mlp(&mut rows);
    gpt2(&mut rows);
    match rows.failed {
        0 => Ok(()),
        failed => Err(Error::argument("gpu_rows", format!("{failed} rows failed"))),
    }
}
