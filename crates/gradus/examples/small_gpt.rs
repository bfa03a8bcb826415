//! A character-level GPT: it learns a text, then generates more of it one character at a time.
//!
//! ```sh
//! cargo run --release -p gradus --example small_gpt -- TEXT_FILE DEVICE
//! ```
//! The text defaults to the README of Gradus, and the device to the CPU. The device `wgpu` requires `--features wgpu`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;

use gradus::prelude::*;

/// The number of characters that the model sees at once.
const CONTEXT: usize = 64;
const WIDTH: usize = 96;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const BATCH: usize = 16;

/// A transformer block with the layer norms before the attention and the MLP, as in GPT-2.
#[derive(Module)]
struct Block {
    norm1: LayerNorm,
    attention: MultiheadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(init: &mut Init<'_>) -> Result<Block> {
        Ok(Block {
            norm1: LayerNorm::new([WIDTH], LayerNormConfig::default(), init)?,
            attention: MultiheadAttention::new(WIDTH, HEADS, MultiheadAttentionConfig::default(), init)?,
            norm2: LayerNorm::new([WIDTH], LayerNormConfig::default(), init)?,
            up: Linear::new(WIDTH, 4 * WIDTH, init)?,
            down: Linear::new(4 * WIDTH, WIDTH, init)?,
        })
    }
}

impl Forward for Block {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.norm1.forward(x)?;
        let x = (x + self.attention.attend(&h, &h, &h, None, Causal::TopLeft)?)?;
        let h = self.up.forward(&self.norm2.forward(&x)?)?.gelu()?;
        &x + self.down.forward(&h)?
    }
}

#[derive(Module)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn new(vocabulary: usize, device: &Device, rng: &mut Generator) -> Result<Gpt> {
        let init = &mut Init::new(DType::F32, device, rng);
        Ok(Gpt {
            tokens: Embedding::new(vocabulary, WIDTH, None, init)?,
            positions: Embedding::new(CONTEXT, WIDTH, None, init)?,
            blocks: (0..LAYERS).map(|_| Block::new(init)).collect::<Result<_>>()?,
            norm: LayerNorm::new([WIDTH], LayerNormConfig::default(), init)?,
            head: Linear::new(WIDTH, vocabulary, init)?,
        })
    }
}

impl Forward for Gpt {
    /// Maps tokens `[n, length]` to the logits of the next token at each position, `[n, length, vocabulary]`.
    fn compute(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0, tokens.shape()[1] as i64, 1, DType::I64, tokens.device())?;
        let mut x = (self.tokens.forward(tokens)? + self.positions.forward(&positions)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// Trains on `text` for `steps` steps. Returns the loss of each step, and `length` characters of new text.
pub(crate) fn run(text: &str, steps: u64, length: usize, device: &Device) -> Result<(Vec<f64>, String)> {
    let vocabulary: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let data: Vec<i64> = text.chars().flat_map(|c| vocabulary.binary_search(&c)).map(|token| token as i64).collect();
    if data.len() <= CONTEXT {
        return Err(Error::argument("small_gpt", format!("the text has at most {CONTEXT} characters")));
    }
    let mut rng = Generator::new(0);
    let model = Gpt::new(vocabulary.len(), device, &mut rng)?;
    println!("{} characters, {} of them distinct; {} parameters", data.len(), vocabulary.len(), model.num_parameters());

    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 3e-3, ..Default::default() })?;
    let schedule = Schedule::cosine(steps, 0.1)?.after_warmup(steps / 20);
    let mut losses = Vec::new();
    for step in 0..steps {
        // Windows of CONTEXT + 1 characters: each character but the last is an input, each but the first a target.
        let starts = (0..BATCH).map(|_| rng.below(data.len() - CONTEXT));
        let windows: Vec<i64> = starts.flat_map(|at| &data[at..=at + CONTEXT]).copied().collect();
        let windows = Tensor::from_vec(windows, [BATCH, CONTEXT + 1], device)?;
        let (input, target) = (windows.narrow(1, 0, CONTEXT)?, windows.narrow(1, 1, CONTEXT)?);

        let loss = model.forward(&input)?.flatten(0, 1)?.cross_entropy(&target.flatten(0, 1)?)?;
        let mut gradients = loss.backward()?;
        clip_grad_norm(&mut gradients, &model.parameters(), 1.0)?;
        schedule.apply(step, &mut optimizer)?;
        optimizer.step(&gradients)?;

        let loss = loss.item()?;
        if step % 100 == 0 || step + 1 == steps {
            println!("step {step}: loss {loss:.3}");
        }
        losses.push(loss);
    }

    // Generation starts with the first character of the text. Each further character is drawn from the predicted
    // probabilities.
    let mut tokens = vec![data[0]];
    for _ in 0..length {
        let seen = &tokens[tokens.len().saturating_sub(CONTEXT)..];
        let input = Tensor::from_vec(seen, [1, seen.len()], device)?;
        let logits = no_grad(|| model.forward(&input))?.select(1, -1)?;
        tokens.extend(logits.softmax(-1)?.multinomial(1, true, &mut rng)?.to_vec::<i64>()?);
    }
    Ok((losses, tokens[1..].iter().map(|&token| vocabulary[token as usize]).collect()))
}

fn main() -> Result<()> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| readme.to_owned());
    let device = Device::open(args.next().as_deref().unwrap_or("cpu"))?;
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("small_gpt", &path, e).help("give a text file"))?;
    let (_, sample) = run(&text, 1000, 400, &device)?;
    println!("{sample}");
    Ok(())
}
