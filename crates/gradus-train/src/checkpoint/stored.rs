//! [`Stored`]: a checkpoint in its files, of which all or some is read.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind as IoKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gradus_nn::{SafetensorsIndex, StateDict, StoredElements};
use gradus_tensor::backend::BackendKind;
use gradus_tensor::backend::host_vec::check_room;
use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use super::file::{LOAD, Listed, Manifest, checksum, read_manifest};
use super::pack::{cut_of, is_cut, unpacked};
use super::state::{Checkpoint, Cut};

/// What is read of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it.
    Whole,
    /// Some elements, as a vector.
    Elements(Range<usize>),
    Nothing,
}

/// A checkpoint in its files.
pub(crate) struct Stored {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<SafetensorsIndex>,
    tensors: BTreeMap<String, Entry>,
}

/// A tensor, the elements of which may lie in several files.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Where the elements are, in their order: the file, the first element, and how many.
    pieces: Vec<(usize, usize, usize)>,
    /// Other names of the same tensor.
    also: Vec<String>,
}

impl Stored {
    /// Compares the checksums of those files of a checkpoint, by their place in the manifest, that are `wanted`, for which
    /// these are read. Errors are those of [`open`](Stored::open).
    #[track_caller]
    pub(crate) fn verify(folder: &Path, number: u64, wanted: impl Fn(usize) -> bool) -> Result<()> {
        let manifest = read_manifest(folder, number)?;
        for (_, listed) in manifest.files().enumerate().filter(|(i, _)| wanted(*i)) {
            check(&folder.join(&listed.file), listed, true)?;
        }
        Ok(())
    }

    /// Reads what a checkpoint holds, and compares the lengths of its files and their position. An error of kind `Format`
    /// means that it is damaged. An error of kind `Io` may be temporary, such as too many open files.
    #[track_caller]
    pub(crate) fn open(folder: &Path, number: u64, device: &Device) -> Result<Stored> {
        let manifest = read_manifest(folder, number)?;
        let mut files = vec![];
        for listed in manifest.files() {
            let path = folder.join(&listed.file);
            check(&path, listed, false)?;
            let index = SafetensorsIndex::open(&path, device)?;
            check_position(&path, &index, &manifest)?;
            files.push(index);
        }
        let path = folder.join(&manifest.first.file);
        let tensors = joined(&files).map_err(|m| wrong(&path, m)).here()?;
        Ok(Stored { path, manifest, files, tensors })
    }

    /// Whether it was the best when it was written.
    pub(super) fn is_best(&self) -> bool {
        self.manifest.best
    }

    /// The names of each tensor, and its shape.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (Vec<&str>, &[usize])> {
        self.tensors.values().map(|entry| (entry.names().collect(), &entry.shape[..]))
    }

    /// All texts, and what is wanted of the tensors. `wanted` receives a name and the shape of the whole tensor.
    #[track_caller]
    pub(crate) fn read(&self, device: &Device, wanted: impl Fn(&str, &[usize]) -> Wanted) -> Result<Checkpoint> {
        let mut plan: Vec<(&str, &Entry, Wanted)> = vec![];
        for entry in self.tensors.values() {
            for name in entry.names() {
                match wanted(name, &entry.shape) {
                    Wanted::Nothing => {}
                    some => plan.push((name, entry, some)),
                }
            }
        }
        let bytes = |(_, entry, wanted): &(&str, &Entry, Wanted)| entry.range(wanted).len() * entry.dtype.size();
        if device.backend().info().kind == BackendKind::Cpu {
            // All of them fit together, or none is allocated.
            check_room(device.backend(), LOAD, plan.iter().map(bytes).sum(), 1)?;
        }
        let mut all = StateDict::new();
        let mut before: Option<(*const Entry, Wanted, Tensor)> = None;
        for (name, entry, wanted) in plan {
            // Names of one tensor follow one another.
            let tensor = match before.take().filter(|(other, same, _)| std::ptr::eq(*other, entry) && *same == wanted) {
                Some((_, _, tensor)) => tensor,
                None => self.tensor(entry, &wanted, device)?,
            };
            all.insert(name, tensor.clone());
            before = Some((entry, wanted, tensor));
        }
        for (key, text) in
            self.files.iter().take(1).flat_map(SafetensorsIndex::metadata).filter(|(key, _)| !is_cut(key))
        {
            all.set_metadata(key.clone(), text.clone());
        }
        unpacked(&all).ok_or_else(|| wrong(&self.path, "it is no checkpoint of Gradus")).here()
    }

    #[track_caller]
    fn tensor(&self, entry: &Entry, wanted: &Wanted, device: &Device) -> Result<Tensor> {
        let range = entry.range(wanted);
        let shape = if *wanted == Wanted::Whole { entry.shape.clone() } else { vec![range.len()] };
        let size = entry.dtype.size();
        let (mut at, mut open) = (range.start, None::<(StoredElements, usize)>);
        Tensor::from_pieces(shape, entry.dtype, device, |mut piece| {
            while !piece.is_empty() {
                let (elements, left) = match &mut open {
                    Some((elements, left)) if *left > 0 => (elements, left),
                    _ => {
                        let (file, first, count) = self.piece(entry, at)?;
                        let next = (self.files[file].elements(&entry.name, first)?, count);
                        let (elements, left) = open.insert(next);
                        (elements, left)
                    }
                };
                let count = (piece.len() / size).min(*left);
                let (now, rest) = piece.split_at_mut(count * size);
                elements.read(now)?;
                (at, *left, piece) = (at + count, *left - count, rest);
            }
            Ok(())
        })
    }

    /// The file with element `at` of a tensor, the number of the element in it, and how many follow there.
    fn piece(&self, entry: &Entry, at: usize) -> Result<(usize, usize, usize)> {
        let found = entry.pieces.iter().find(|(_, start, count)| (*start..start + count).contains(&at));
        let missing = || wrong(&self.path, format!("no file has element {at} of {}", entry.name));
        found.map(|&(file, start, count)| (file, at - start, start + count - at)).ok_or_else(missing)
    }
}

impl Entry {
    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.also).map(String::as_str)
    }

    fn range(&self, wanted: &Wanted) -> Range<usize> {
        match wanted {
            Wanted::Whole => 0..self.shape.iter().product(),
            Wanted::Elements(range) => range.clone(),
            Wanted::Nothing => 0..0,
        }
    }
}

#[track_caller]
fn wrong(path: &Path, m: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Format, LOAD, format!("{}: {m}", path.display()))
}

/// Compares a file with what its manifest says.
#[track_caller]
fn check(path: &Path, listed: &Listed, verify: bool) -> Result<()> {
    let failed = |e| Error::io(LOAD, path.display(), e);
    let found = match fs::metadata(path) {
        Err(e) if e.kind() == IoKind::NotFound => return Err(wrong(path, e)),
        found => found.map_err(failed).here()?,
    };
    gradus_file::check_regular(LOAD, path, &found).map_err(|e| Error::new(ErrorKind::Format, LOAD, e.message()))?;
    if found.len() != listed.bytes {
        return Err(wrong(path, format!("the file has {} bytes, and its manifest says {}", found.len(), listed.bytes)));
    }
    if verify {
        let sum = checksum(path).map_err(failed).here()?;
        if sum != listed.crc32 {
            return Err(wrong(path, format!("the file's CRC-32 is {sum}, and its manifest says {}", listed.crc32)));
        }
    }
    Ok(())
}

/// Compares the position in a file with that in its manifest.
#[track_caller]
fn check_position(path: &Path, index: &SafetensorsIndex, manifest: &Manifest) -> Result<()> {
    let text = |name: &str| index.metadata().get(&format!("at:{name}")).map_or("", String::as_str);
    let found = ["step", "epoch", "batch", "best"].map(text);
    let m = manifest;
    let said = [m.step.to_string(), m.epoch.to_string(), m.batch.to_string(), m.best.to_string()];
    if found.contains(&"") {
        return Err(wrong(path, "it is no checkpoint of Gradus"));
    }
    if found.iter().zip(&said).any(|(found, said)| found != said) {
        let at =
            |[step, epoch, batch, best]: [&str; 4]| format!("step {step} (epoch {epoch}, batch {batch}, best {best})");
        let said = said.each_ref().map(String::as_str);
        return Err(wrong(path, format!("the file is of {}, and its manifest says {}", at(found), at(said))));
    }
    Ok(())
}

/// The tensors of all files. The error says what does not fit together.
fn joined(files: &[SafetensorsIndex]) -> Result<BTreeMap<String, Entry>, String> {
    let mut tensors: BTreeMap<String, Entry> = BTreeMap::new();
    let mut others: HashMap<&str, Vec<String>> = HashMap::new();
    for (i, file) in files.iter().enumerate() {
        for (name, stored) in file.tensors() {
            let text = |key: &str| file.metadata().get(key).map(String::as_str);
            let count = stored.shape.iter().product();
            let cut =
                cut_of(text, name).ok_or_else(|| format!("the elements of {name} that are there have no place"))?;
            let Cut { start, shape } = cut.unwrap_or_else(|| Cut { start: 0, shape: stored.shape.clone() });
            let new = || Entry {
                name: name.clone(),
                dtype: stored.dtype,
                shape: shape.clone(),
                pieces: vec![],
                also: vec![],
            };
            let entry = tensors.entry(name.clone()).or_insert_with(new);
            if entry.dtype != stored.dtype || entry.shape != shape {
                return Err(format!("its parts disagree on the dtype or the shape of {name}"));
            }
            entry.pieces.push((i, start, count));
        }
        for (name, stored) in file.tied() {
            others.entry(stored).or_default().push(name.clone());
        }
    }
    for (name, entry) in &mut tensors {
        entry.pieces.sort_by_key(|&(_, start, count)| (start, count));
        let end = entry.pieces.iter().try_fold(
            0usize,
            |end, &(_, start, count)| {
                if start == end { end.checked_add(count) } else { None }
            },
        );
        let numel = entry.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        if end.is_none() || end != numel {
            return Err(format!("its parts do not have each element of {name} once"));
        }
        entry.also = others.remove(name.as_str()).unwrap_or_default();
    }
    Ok(tensors)
}
