//! The files of a checkpoint: tensors and texts in a safetensors file, and a small manifest with its length and
//! checksum. The manifest is written last, so a checkpoint exists exactly if its manifest does.
//!
//! In the safetensors file, tensors are named `model.*`, `optimizer.*` and `states/NAME.*`. Texts are in its metadata.
//! Their keys have a colon where the names of tensors have a dot, so that no text has the name of a tensor.

use std::fs::{self, File};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::path::Path;

use gradus_file::Disk;
use gradus_nn::StateDict;
use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Result};
use serde::{Deserialize, Serialize};

use super::state::Checkpoint;
use crate::History;

const SAVE: &str = "save_checkpoint";
const LOAD: &str = "load_checkpoint";

/// The version of the format. Files of a later version are not read.
const FORMAT: u32 = 1;

/// The largest length of a manifest, in bytes.
const MOST_MANIFEST: u64 = 1 << 16;

/// The largest header of a safetensors file, in bytes.
const MOST_HEADER: u64 = 100_000_000;

/// The contents of a manifest. The position is stored in the safetensors file too, where the checksum protects it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// The version of Gradus that wrote the checkpoint.
    gradus: String,
    step: u64,
    epoch: u64,
    batch: u64,
    pub(super) best: bool,
    file: String,
    bytes: u64,
    /// The CRC-32 of the file, as computed by zlib, in hexadecimal digits.
    crc32: String,
}

/// The file names of the tensors and of the manifest of checkpoint `number`.
pub(super) fn names(number: u64) -> [String; 2] {
    ["safetensors", "json"].map(|kind| format!("checkpoint-{number:06}.{kind}"))
}

/// The number of the checkpoint to which a file of this name belongs, and whether the file is its manifest.
pub(super) fn number(name: &str) -> Option<(u64, bool)> {
    let (stem, kind) = name.strip_prefix("checkpoint-")?.split_once('.')?;
    let number = stem.parse().ok()?;
    names(number).iter().any(|known| known == name).then_some((number, kind == "json"))
}

/// Counts the bytes that it passes on, computes their checksum, and keeps the kind of an error.
struct Summed<'a> {
    out: &'a mut dyn Write,
    failed: Option<std::io::ErrorKind>,
    bytes: u64,
    sum: crc32fast::Hasher,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = self.out.write(bytes).inspect_err(|e| self.failed = Some(e.kind()))?;
        self.bytes += done as u64;
        self.sum.update(&bytes[..done.min(bytes.len())]);
        Ok(done)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Writes a checkpoint. Its files must not exist.
#[track_caller]
pub(super) fn write(disk: &dyn Disk, folder: &Path, number: u64, checkpoint: &Checkpoint) -> Result<()> {
    let [data, manifest] = names(number);
    let path = folder.join(&data);
    let state = packed(checkpoint);
    let (mut bytes, mut crc32) = (0, String::new());
    gradus_file::write_on(disk, SAVE, &path, false, |out| {
        let mut out = Summed { out, failed: None, bytes: 0, sum: crc32fast::Hasher::new() };
        if let Err(e) = state.write_safetensors(&mut out) {
            // The error does not contain the path.
            return Err(out.failed.map_or(e, |kind| gradus_file::failed(SAVE, &path, kind.into())));
        }
        (bytes, crc32) = (out.bytes, format!("{:08x}", out.sum.finalize()));
        Ok(())
    })?;
    let contents = Manifest {
        format: FORMAT,
        gradus: env!("CARGO_PKG_VERSION").to_owned(),
        step: checkpoint.step,
        epoch: checkpoint.epoch,
        batch: checkpoint.batch,
        best: checkpoint.best,
        file: data,
        bytes,
        crc32,
    };
    let path = folder.join(manifest);
    let text = serde_json::to_string_pretty(&contents)
        .map_err(|e| Error::new(ErrorKind::Format, SAVE, e.to_string()).with_source(e))
        .here()?;
    gradus_file::write_on(disk, SAVE, &path, false, |out| {
        writeln!(out, "{text}").map_err(|e| gradus_file::failed(SAVE, &path, e))
    })
}

/// Reads the manifest of a checkpoint. An error of kind `Format` means that it is damaged.
#[track_caller]
pub(super) fn read_manifest(folder: &Path, number: u64) -> Result<Manifest> {
    let [data, manifest] = names(number);
    let path = folder.join(manifest);
    let wrong = |m: String| Error::new(ErrorKind::Format, LOAD, format!("{}: {m}", path.display()));
    let failed = |e| Error::io(LOAD, path.display(), e);
    // Opening a named pipe would block until a writer opens it.
    gradus_file::check_regular(LOAD, &path, &fs::metadata(&path).map_err(failed).here()?)?;
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MOST_MANIFEST).read_to_end(&mut text));
    read.map_err(failed).here()?;
    let text = String::from_utf8(text).map_err(|_| wrong("the manifest is not UTF-8".into())).here()?;
    // The version is checked first, because later versions may have other fields.
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string())).here()?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found > u64::from(FORMAT) => {
            let by = value.get("gradus").and_then(serde_json::Value::as_str).unwrap_or("a later version");
            let m = format!("{} has format {found}, which Gradus {by} wrote", path.display());
            return Err(Error::new(ErrorKind::Unsupported, LOAD, m)
                .note(format!("this is Gradus {}, which reads formats up to {FORMAT}", env!("CARGO_PKG_VERSION")))
                .help("go on with the version that wrote the checkpoint, or a later one"));
        }
        Some(1..) => {}
        _ => return Err(wrong("the manifest has no format".into())),
    }
    let found: Manifest = serde_json::from_value(value).map_err(|e| wrong(e.to_string())).here()?;
    if found.file != data {
        return Err(wrong(format!("the manifest names the file {:?}, not {data:?}", found.file)));
    }
    Ok(found)
}

/// Reads a checkpoint, and compares length, checksum and position. An error of kind `Format` means that it is damaged.
/// An error of kind `Io` may be temporary, such as too many open files.
#[track_caller]
pub(super) fn read(folder: &Path, number: u64, device: &Device) -> Result<Checkpoint> {
    let manifest = read_manifest(folder, number)?;
    let path = folder.join(&manifest.file);
    let failed = |e| Error::io(LOAD, path.display(), e);
    let wrong = |m: String| Error::new(ErrorKind::Format, LOAD, format!("{}: {m}", path.display()));
    let found = match fs::metadata(&path) {
        Err(e) if e.kind() == IoKind::NotFound => return Err(wrong(e.to_string())),
        found => found.map_err(failed).here()?,
    };
    gradus_file::check_regular(LOAD, &path, &found).map_err(|e| Error::new(ErrorKind::Format, LOAD, e.message()))?;
    if found.len() != manifest.bytes {
        return Err(wrong(format!("the file has {} bytes, and its manifest says {}", found.len(), manifest.bytes)));
    }
    let sum = checksum(&path).map_err(failed).here()?;
    if sum != manifest.crc32 {
        return Err(wrong(format!("the file's CRC-32 is {sum}, and its manifest says {}", manifest.crc32)));
    }
    let state = StateDict::load_safetensors(&path, device)?;
    let checkpoint = unpacked(&state).ok_or_else(|| wrong("it is no checkpoint of Gradus".into())).here()?;
    let (c, m) = (&checkpoint, &manifest);
    if (c.step, c.epoch, c.batch, c.best) != (m.step, m.epoch, m.batch, m.best) {
        return Err(wrong(format!(
            "the file is of step {} (epoch {}, batch {}, best {}), and its manifest says step {} (epoch {}, batch {}, best {})",
            c.step, c.epoch, c.batch, c.best, m.step, m.epoch, m.batch, m.best
        )));
    }
    Ok(checkpoint)
}

#[track_caller]
fn checksum(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut sum = crc32fast::Hasher::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:08x}", sum.finalize())),
            n => sum.update(&piece[..n.min(piece.len())]),
        }
    }
}

/// Whether the file holds the tensors of a checkpoint, according to its metadata.
pub(super) fn is_ours(path: &Path) -> bool {
    let read = || {
        gradus_file::check_regular(LOAD, path, &fs::metadata(path).ok()?).ok()?;
        let (mut file, mut length, mut header) = (File::open(path).ok()?, [0; 8], Vec::new());
        file.read_exact(&mut length).ok()?;
        file.take(u64::from_le_bytes(length).min(MOST_HEADER)).read_to_end(&mut header).ok()?;
        let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
        header.get("__metadata__").map(|texts| texts.get("at:step").is_some() && texts.get("at:history").is_some())
    };
    read().unwrap_or(false)
}

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
fn packed(checkpoint: &Checkpoint) -> StateDict {
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
    all.set_metadata("at:best", checkpoint.best.to_string());
    all.set_metadata("at:history", checkpoint.history.to_json());
    all
}

/// The reverse of [`packed`]; `None` if something is missing or is not what was written.
fn unpacked(all: &StateDict) -> Option<Checkpoint> {
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
            // The position was read above, and the texts of states are read below.
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
