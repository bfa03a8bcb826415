//! The files of a checkpoint: tensors and texts in a safetensors file, or in one of each rank, and a small manifest with
//! their lengths and checksums. The manifest is written last, so a checkpoint exists exactly if its manifest does.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use gradus_file::Disk;
use gradus_tensor::{Error, ErrorKind, Here, Result};
use serde::{Deserialize, Serialize};

use super::pack::packed;
use super::state::Checkpoint;

const SAVE: &str = "save_checkpoint";
pub(super) const LOAD: &str = "load_checkpoint";

/// The version of the format: 2 for the files of several ranks, and 1 for a single one, which earlier programs read too.
/// Files of a later version are not read.
const FORMAT: u32 = 2;

/// The largest length of a manifest, in bytes.
const MOST_MANIFEST: u64 = 1 << 20;

/// The largest header of a safetensors file, in bytes.
const MOST_HEADER: u64 = 100_000_000;

/// The contents of a manifest. The position is stored in the safetensors files too, where the checksums protect it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// The version of Gradus that wrote the checkpoint.
    gradus: String,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) batch: u64,
    pub(super) best: bool,
    /// The only file, or that of rank 0.
    #[serde(flatten)]
    pub(super) first: Listed,
    /// The files of the other ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) others: Vec<Listed>,
}

/// A file in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// The CRC-32 of the file, as computed by zlib, in hexadecimal digits.
    pub(super) crc32: String,
}

/// Which of the files of a checkpoint: that of a rank, and the number of ranks. `None` if there is only one.
pub(crate) type Part = Option<(usize, usize)>;

/// The name of a file with tensors of checkpoint `number`.
pub(crate) fn data_name(number: u64, part: Part) -> String {
    let part = part.map(|(rank, ranks)| format!(".part-{rank}-of-{ranks}")).unwrap_or_default();
    format!("checkpoint-{number:06}{part}.safetensors")
}

/// The name of the manifest of checkpoint `number`.
pub(super) fn manifest_name(number: u64) -> String {
    format!("checkpoint-{number:06}.json")
}

/// The number of the checkpoint to which a file of this name belongs, and whether the file is its manifest.
pub(super) fn number(name: &str) -> Option<(u64, bool)> {
    let (stem, kind) = name.strip_prefix("checkpoint-")?.split_once('.')?;
    let number = stem.parse().ok()?;
    let part = || {
        let (rank, ranks) = kind.strip_prefix("part-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
        Some((rank.parse().ok()?, ranks.parse().ok()?))
    };
    let known = if kind == "json" { manifest_name(number) } else { data_name(number, part()) };
    (known == name).then_some((number, kind == "json"))
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

/// Writes a checkpoint as one file. Its files must not exist.
#[track_caller]
pub(super) fn write(disk: &dyn Disk, folder: &Path, number: u64, checkpoint: &Checkpoint) -> Result<()> {
    let first = write_data(disk, folder, &data_name(number, None), checkpoint)?;
    write_manifest(disk, folder, number, checkpoint, vec![first])
}

/// Writes a file with tensors. It must not exist.
#[track_caller]
pub(crate) fn write_data(disk: &dyn Disk, folder: &Path, name: &str, checkpoint: &Checkpoint) -> Result<Listed> {
    let path = folder.join(name);
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
    Ok(Listed { file: name.to_owned(), bytes, crc32 })
}

/// Writes the manifest, with which a checkpoint begins to exist, of its files in the order of ranks. `at` has its position.
#[track_caller]
pub(super) fn write_manifest(
    disk: &dyn Disk,
    folder: &Path,
    number: u64,
    at: &Checkpoint,
    files: Vec<Listed>,
) -> Result<()> {
    let mut files = files.into_iter();
    let first = files.next().ok_or_else(|| Error::argument(SAVE, "a checkpoint of no file"))?;
    let format = if first.file == data_name(number, None) { 1 } else { FORMAT };
    let contents = Manifest {
        format,
        gradus: env!("CARGO_PKG_VERSION").to_owned(),
        step: at.step,
        epoch: at.epoch,
        batch: at.batch,
        best: at.best,
        first,
        others: files.collect(),
    };
    let path = folder.join(manifest_name(number));
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
    let path = folder.join(manifest_name(number));
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
    let ranks = 1 + found.others.len();
    let named = |(rank, listed): (usize, &Listed)| {
        listed.file == data_name(number, Some((rank, ranks))) || (ranks == 1 && listed.file == data_name(number, None))
    };
    if let Some((_, other)) = found.files().enumerate().find(|one| !named(*one)) {
        return Err(wrong(format!("the manifest names the file {:?}", other.file)));
    }
    Ok(found)
}

impl Manifest {
    /// The files with tensors, in the order of ranks.
    pub(super) fn files(&self) -> impl Iterator<Item = &Listed> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// The checksum of a file, as manifests have it.
#[track_caller]
pub(super) fn checksum(path: &Path) -> std::io::Result<String> {
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
