//! A checkpoint as one list of tensors and texts: the contents of its safetensors file.
//!
//! Tensors are named `model.*`, `optimizer.*` and `states/NAME.*`. Texts are metadata. Their keys have a colon where the
//! names of tensors have a dot, so that no text has the name of a tensor. Where ranks write a part each, a tensor may be a
//! vector of some elements of the whole one, which the text `cut:NAME` describes.

use gradus_nn::StateDict;
use gradus_tensor::{Device, Error, ErrorKind, Generator, Result};

use super::state::{Checkpoint, Cut};
use crate::History;

const LOAD: &str = "load_checkpoint";

/// What the keys of the texts begin with that describe elements of tensors.
const CUT: &str = "cut:";

/// The contents of the safetensors file of a checkpoint.
#[track_caller]
pub(crate) fn to_bytes(checkpoint: &Checkpoint) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    packed(checkpoint).write_safetensors(&mut bytes)?;
    Ok(bytes)
}

/// The reverse of [`to_bytes`].
#[track_caller]
pub(crate) fn from_bytes(bytes: &[u8], device: &Device) -> Result<Checkpoint> {
    let state = StateDict::from_safetensors(bytes, device)?;
    unpacked(&state).ok_or_else(|| Error::new(ErrorKind::Format, LOAD, "the bytes are no checkpoint of Gradus"))
}

/// Packs a checkpoint into one list of tensors and texts.
pub(super) fn packed(checkpoint: &Checkpoint) -> StateDict {
    let mut all = StateDict::new();
    let mut add = |part: &str, state: &StateDict| {
        for (name, tensor) in state.iter() {
            all.insert(format!("{part}.{name}"), tensor.clone());
        }
        for (name, text) in state.iter_metadata() {
            all.set_metadata(format!("{part}:{name}"), text);
        }
    };
    add("model", &checkpoint.model);
    add("optimizer", &checkpoint.optimizer);
    for (name, state) in &checkpoint.states {
        add(&format!("states/{name}"), state);
    }
    // The names are stored as well, because a state may be empty.
    for name in checkpoint.states.keys() {
        all.set_metadata(format!("states:{name}"), "");
    }
    let at = |g: &Generator| format!("{} {}", g.seed(), g.offset());
    checkpoint.random.iter().for_each(|(name, g)| all.set_metadata(format!("random:{name}"), at(g)));
    checkpoint.generators.iter().for_each(|(name, g)| all.set_metadata(format!("generators:{name}"), at(g)));
    checkpoint.texts.iter().for_each(|(name, text)| all.set_metadata(format!("texts:{name}"), text));
    checkpoint.config.iter().for_each(|(name, text)| all.set_metadata(format!("config:{name}"), text));
    for (name, number) in [("step", checkpoint.step), ("epoch", checkpoint.epoch), ("batch", checkpoint.batch)] {
        all.set_metadata(format!("at:{name}"), number.to_string());
    }
    for (name, cut) in &checkpoint.cuts {
        let numbers: Vec<String> = [&[cut.start], &cut.shape[..]].concat().iter().map(usize::to_string).collect();
        all.set_metadata(format!("{CUT}{name}"), numbers.join(" "));
    }
    all.set_metadata("at:best", checkpoint.best.to_string());
    all.set_metadata("at:history", checkpoint.history.to_json());
    all
}

/// The reverse of [`packed`]; `None` if something is missing or is not what was written.
pub(super) fn unpacked(all: &StateDict) -> Option<Checkpoint> {
    let text = |name: &str| all.metadata(&format!("at:{name}"));
    let mut checkpoint = Checkpoint {
        step: text("step")?.parse().ok()?,
        epoch: text("epoch")?.parse().ok()?,
        batch: text("batch")?.parse().ok()?,
        best: text("best")?.parse().ok()?,
        history: History::from_json(text("history")?).ok()?,
        ..Checkpoint::default()
    };
    for (key, text) in all.iter_metadata() {
        let (part, name) = key.split_once(':')?;
        let (name, text) = (name.to_owned(), text.to_owned());
        match part {
            "model" => checkpoint.model.set_metadata(name, text),
            "optimizer" => checkpoint.optimizer.set_metadata(name, text),
            "random" => drop(checkpoint.random.insert(name, generator(&text)?)),
            "generators" => drop(checkpoint.generators.insert(name, generator(&text)?)),
            "texts" => drop(checkpoint.texts.insert(name, text)),
            "config" => drop(checkpoint.config.insert(name, text)),
            "states" => drop(checkpoint.states.insert(name, StateDict::new())),
            // The position was read above, the texts of states are read below, and what was cut is joined.
            _ => {}
        }
    }
    for (name, state) in &mut checkpoint.states {
        let (tensors, texts) = (format!("states/{name}."), format!("states/{name}:"));
        fill(state, all, &tensors);
        for (key, text) in all.iter_metadata() {
            if let Some(key) = key.strip_prefix(&texts) {
                state.set_metadata(key, text);
            }
        }
    }
    fill(&mut checkpoint.model, all, "model.");
    fill(&mut checkpoint.optimizer, all, "optimizer.");
    Some(checkpoint)
}

fn fill(state: &mut StateDict, all: &StateDict, prefix: &str) {
    for (name, tensor) in all.iter() {
        if let Some(name) = name.strip_prefix(prefix) {
            state.insert(name, tensor.clone());
        }
    }
}

fn generator(text: &str) -> Option<Generator> {
    let (seed, offset) = text.split_once(' ')?;
    Some(Generator::at(seed.parse().ok()?, offset.parse().ok()?))
}

/// The elements of a tensor that a file has, by its metadata; `None` if it has all of them.
pub(super) fn cut_of<'a>(text: impl Fn(&str) -> Option<&'a str>, name: &str) -> Option<Option<Cut>> {
    let Some(text) = text(&format!("{CUT}{name}")) else { return Some(None) };
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let start = numbers.next()??;
    Some(Some(Cut { start, shape: numbers.collect::<Option<_>>()? }))
}

/// Whether a text describes elements of a tensor.
pub(super) fn is_cut(key: &str) -> bool {
    key.starts_with(CUT)
}
