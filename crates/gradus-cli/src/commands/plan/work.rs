//! [`Work`]: what a training step of a language model asks of a machine.

use gradus::models::Gpt2Config;
use gradus::prelude::*;
use gradus::tasks::text::Vocabulary;
use gradus::tasks::{self, Model};

/// Bytes of a number: parameters, gradients and values are f32.
pub(crate) const NUMBER: f64 = 4.0;

/// The models that have a name: layers, heads, width.
const NAMED: [(&str, [usize; 3]); 4] = [
    ("gpt2-124m", [12, 12, 768]),
    ("gpt2-355m", [24, 16, 1024]),
    ("gpt2-774m", [36, 20, 1280]),
    ("gpt2-1.5b", [48, 25, 1600]),
];

/// The shape of GPT-2 that this name, or this saved model, has.
pub(crate) fn shape_of(model: &str) -> Result<Gpt2Config> {
    model_of(model).map(|(shape, _)| shape)
}

/// The shape, and for a saved model the options with which `gradus train text` makes such a network.
pub(crate) fn model_of(model: &str) -> Result<(Gpt2Config, Option<String>)> {
    if let Some((_, [n_layer, n_head, n_embd])) = NAMED.iter().find(|(name, _)| *name == model) {
        let shape = Gpt2Config { n_layer: *n_layer, n_head: *n_head, n_embd: *n_embd, ..Gpt2Config::default() };
        return Ok((without_dropout(shape), None));
    }
    let path = crate::commands::model_file(model.as_ref());
    if !path.exists() {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        let e = Error::argument("plan", format!("there is no model `{model}`, neither by that name nor as a file"));
        return Err(e.help(format!("take one of {}, or a model of `gradus train text`", names.join(", "))));
    }
    match tasks::load(&path, &Device::cpu()?)? {
        Model::Text(text) => {
            let shape = *text.network().config();
            let Gpt2Config { n_layer, n_head, n_embd, n_positions, vocab_size, .. } = shape;
            let tokenizer = match &text.spec().tokenizer {
                Vocabulary::Bytes => " --tokenizer bytes".into(),
                Vocabulary::Bpe { .. } => format!(" --tokenizer bpe:{vocab_size}"),
                // Characters are the default.
                _ => String::new(),
            };
            let sizes = format!("--layers {n_layer} --heads {n_head} --width {n_embd} --context {n_positions}");
            Ok((shape, Some(sizes + &tokenizer)))
        }
        other => {
            let m = format!("{} is a model of the task {:?}", path.display(), other.task());
            let e = Error::new(ErrorKind::Unsupported, "plan", m);
            Err(e.help("only language models are planned; others fit on each rank: `gradus launch -n N -- train ..`"))
        }
    }
}

/// The same network, trained without dropout.
pub(crate) fn without_dropout(shape: Gpt2Config) -> Gpt2Config {
    Gpt2Config { resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, ..shape }
}

/// What a part of the model asks for, for one sequence where it depends on their number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Number of parameters.
    pub(crate) parameters: f64,
    /// Multiplications with an addition in the products of a forward pass.
    pub(crate) multiply_adds: f64,
    /// Numbers that elementwise operations pass over, in units of tokens times width of a block.
    pub(crate) elements: f64,
    /// Numbers that live when the backward pass begins; of the ends, also those that come and go while most live.
    pub(crate) kept: f64,
}

/// What a model asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// Attention heads, which ranks can divide.
    pub(crate) heads: usize,
    /// Numbers that go from a block to the next, for one sequence.
    pub(crate) between: f64,
    /// A block.
    pub(crate) block: Part,
    /// What comes before the first block and after the last one: tables, the last norm, the logits and the loss.
    pub(crate) ends: Part,
}

impl Work {
    /// Of full sequences.
    pub(crate) fn of(config: &Gpt2Config) -> Work {
        let [tokens, width, vocabulary] = [config.n_positions, config.n_embd, config.vocab_size].map(|n| n as f64);
        let inner = config.n_inner.map_or(4.0 * width, |n| n as f64);
        let [residual, attention] = [config.resid_pdrop, config.attn_pdrop].map(|p| if p > 0.0 { 1.0 } else { 0.0 });
        let weights = attention * config.n_head as f64 * tokens * tokens;
        Work {
            blocks: config.n_layer,
            heads: config.n_head,
            between: tokens * width,
            block: Part {
                parameters: 4.0 * width * width + 2.0 * width * inner + 9.0 * width + inner,
                // Four products with the width, two with the inner width, scores and weighted values.
                multiply_adds: tokens * (4.0 * width * width + 2.0 * width * inner) + 2.0 * tokens * tokens * width,
                elements: tokens * width + DROPPED * weights,
                // The inputs of the norms and of the two products that follow them, queries, keys and values, and the
                // result of attention; what goes into GELU and what comes out of it. Dropout keeps masks of a byte each;
                // with that of attention its weights are kept, twice, with a mask.
                kept: tokens * (8.0 * width + 2.0 * inner) + residual * tokens * width / 2.0 + 2.5 * weights,
            },
            ends: Part {
                parameters: (vocabulary + tokens + 2.0) * width,
                multiply_adds: tokens * vocabulary * width,
                elements: LOSS * tokens * vocabulary,
                // The logits and their gradient with the inputs of norm and head, or gradients within the last block.
                kept: (tokens * (2.0 * vocabulary + 2.0 * width)).max(tokens * (width + inner) + 2.0 * weights),
            },
        }
    }

    /// Number of parameters.
    pub(crate) fn parameters(&self) -> f64 {
        self.blocks as f64 * self.block.parameters + self.ends.parameters
    }
}

/// The passes of the loss over its logits, beside those that a block makes over as many numbers.
const LOSS: f64 = 0.15;

/// The passes over the weights of attention where some are dropped, beside those of a block.
const DROPPED: f64 = 0.5;

#[cfg(test)]
mod tests {
    use gradus::models::Gpt2;
    use gradus::nn::Summary;
    use gradus::tasks::text::next_token_loss;

    use super::*;

    fn shapes() -> Vec<Gpt2Config> {
        let shape = |n_layer, n_head, n_embd, vocab_size, n_inner, p| Gpt2Config {
            n_layer,
            n_head,
            n_embd,
            n_positions: 64,
            vocab_size,
            n_inner,
            resid_pdrop: p,
            embd_pdrop: p,
            attn_pdrop: p,
            ..Gpt2Config::default()
        };
        vec![
            shape(3, 2, 64, 65, None, 0.0),
            shape(4, 4, 128, 512, None, 0.1),
            shape(2, 2, 96, 2000, Some(200), 0.0),
            shape(4, 8, 64, 65, None, 0.1),
        ]
    }

    #[test]
    fn parameters_and_products_are_those_of_the_model() -> Result<()> {
        let device = Device::cpu()?;
        for config in shapes() {
            let model = Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut Generator::new(0)))?;
            let tokens = Tensor::zeros([3, config.n_positions], DType::I64, &device)?;
            let (found, work) = (Summary::of(&model, &tokens)?, Work::of(&config));
            assert_eq!(work.parameters(), found.parameters as f64, "{config:?}");
            let products = work.blocks as f64 * work.block.multiply_adds + work.ends.multiply_adds;
            assert_eq!(3.0 * products, found.multiply_adds as f64, "{config:?}");
        }
        Ok(())
    }

    #[test]
    fn what_is_kept_is_within_a_tenth_of_a_step() -> Result<()> {
        // Other tests use that of the process.
        let device = Device::from_backend(std::sync::Arc::new(gradus::cpu::CpuBackend::new()?));
        for config in shapes() {
            let model = Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut Generator::new(0)))?;
            let (found, work) = (step_memory(&model, &device)?, Work::of(&config));
            let kept = ROWS as f64 * NUMBER * (work.blocks as f64 * work.block.kept + work.ends.kept);
            assert!((kept / found - 1.0).abs() < 0.1, "{kept} bytes, and {found} of {config:?}");
        }
        Ok(())
    }

    const ROWS: usize = 16;

    /// The most that lives during a pass, beside what did before it.
    fn step_memory(model: &Gpt2, device: &Device) -> Result<f64> {
        let tokens = Tensor::zeros([ROWS, model.config().n_positions], DType::I64, device)?;
        // Held, so that the pass raises the peak of the device's whole life.
        let stats = device.memory_stats();
        let _held = Tensor::zeros([stats.peak - stats.in_use], DType::U8, device)?;
        let before = device.memory_stats().in_use;
        let _gradients = next_token_loss(model, &(tokens.clone(), tokens))?.loss.backward()?;
        Ok((device.memory_stats().peak - before) as f64)
    }
}
