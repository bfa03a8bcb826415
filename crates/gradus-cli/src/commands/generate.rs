//! `gradus generate`: writes text with a trained language model.

use std::io::{ErrorKind as IoKind, Write};
use std::time::Instant;

use gradus::models::{GenerateOptions, Sampling};
use gradus::prelude::*;
use gradus::tasks::{self, Model};

use crate::args::GenerateArgs;
use crate::output::say;

/// Prints the prompt, and each token as soon as it is drawn.
pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let path = super::model_file(&args.model);
    let model = tasks::load(&path, &device)?;
    let task = model.task();
    let Model::Text(mut text) = model else {
        let e = Error::argument("generate", format!("{} is a model of the task {task}", path.display()));
        return Err(e.help("give a model of `gradus train text`"));
    };
    let options = GenerateOptions {
        max_new_tokens: args.max_new_tokens,
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            repetition_penalty: args.repetition_penalty,
        },
        seed: args.seed,
        stop: Vec::new(),
    };
    let prompt = args.prompt.clone().unwrap_or_else(|| text.spec().start.clone());
    let start = Instant::now();
    let writing = text.write_on(&prompt, options)?;
    let mut is_open = true;
    if args.prompt.is_some() {
        is_open = put(&prompt)?;
    }
    let mut written = String::new();
    for piece in writing {
        let piece = piece?;
        written += &piece;
        is_open = is_open && put(&piece)?;
        if !is_open {
            return Ok(());
        }
    }
    say("")?;
    if args.common.json {
        let seconds = start.elapsed().as_secs_f64();
        let line = serde_json::json!({ "prompt": prompt, "text": written, "seconds": seconds, "seed": args.seed });
        say(&line.to_string())?;
    }
    Ok(())
}

/// Prints a piece of a line at once. Returns whether someone still reads.
fn put(piece: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == IoKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::io("output", "standard output", e)),
    }
}
