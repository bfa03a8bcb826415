//! [`StateDict`]: named tensors, taken from a module and loaded into one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use gradus_tensor::{DType, Device, Error, Result, Shape, Storage, Tensor, no_grad};

use crate::parameter::converts;
use crate::{Item, Module, Visitor, safetensors_file};

/// Tensors under names, and texts under names (metadata).
///
/// ```
/// # use gradus_nn::StateDict; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let mut state = StateDict::new();
/// state.insert("weight", Tensor::ones([2, 2], DType::F32, &device)?);
/// state.set_metadata("step", "100");
/// let path = std::env::temp_dir().join("gradus-doc-state.safetensors");
/// state.save_safetensors(&path)?;
/// let loaded = StateDict::load_safetensors(&path, &device)?;
/// assert_eq!(loaded.get("weight").unwrap().shape(), [2, 2]);
/// assert_eq!(loaded.metadata("step"), Some("100"));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Default)]
pub struct StateDict {
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
}

/// Whether names and shapes have to agree exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// Anything that does not fit is an error.
    Yes,
    /// What fits is loaded, the rest is reported.
    No,
}

/// What [`Module::load_state_dict`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names in the module that were loaded.
    pub loaded: Vec<String>,
    /// Names in the module that the state lacks.
    pub missing: Vec<String>,
    /// Names in the state that the module lacks.
    pub unexpected: Vec<String>,
    /// Names of another shape or dtype, with both.
    pub mismatched: Vec<String>,
}

impl LoadReport {
    /// Whether everything fitted.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

/// Keys that an error lists of each kind.
const LISTED: usize = 20;

/// One place in a module's memory, with all names that lead to it.
struct Slot {
    names: Vec<String>,
    tensor: Tensor,
}

/// The parameters and buffers of a module, in the order of its fields; each place once. One name for two places is an
/// error, in which `op` failed.
fn slots<M: Module + ?Sized>(module: &M, op: &str) -> Result<Vec<Slot>> {
    let mut named: HashMap<String, usize> = HashMap::new();
    let mut twice: Vec<String> = Vec::new();
    let mut slots: Vec<Slot> = Vec::new();
    let mut places: HashMap<*const Storage, Vec<usize>> = HashMap::new();
    module.visit(&mut Visitor::new(&mut |path, item| {
        let tensor = match item {
            Item::Parameter(p) => p.values(),
            Item::Buffer(b) => b.tensor(),
            _ => return,
        };
        let known = places.entry(Arc::as_ptr(tensor.storage())).or_default();
        let place = known.iter().copied().find(|&i| same_place(&slots[i].tensor, tensor)).unwrap_or_else(|| {
            known.push(slots.len());
            slots.push(Slot { names: Vec::new(), tensor: tensor.clone() });
            slots.len() - 1
        });
        match named.insert(path.to_owned(), place) {
            None => slots[place].names.push(path.to_owned()),
            Some(other) if other == place => {}
            Some(_) => twice.push(path.to_owned()),
        }
    }));
    if twice.is_empty() {
        return Ok(slots);
    }
    let m = format!("two tensors of the module have one name: {}", listed(&twice));
    Err(Error::argument(op, m).help("rename the field, or the key that contains a dot"))
}

/// The first names, and how many more there are.
fn listed(names: &[String]) -> String {
    let more = if names.len() > LISTED { format!(", and {} more", names.len() - LISTED) } else { String::new() };
    format!("{}{more}", names[..names.len().min(LISTED)].join(", "))
}

/// Whether two tensors are the same elements of the same storage.
pub(crate) fn same_place(a: &Tensor, b: &Tensor) -> bool {
    Arc::ptr_eq(a.storage(), b.storage()) && a.layout() == b.layout() && a.dtype() == b.dtype()
}

impl StateDict {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, outside of any graph, or replaces the one of this name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor.detach());
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Takes the tensor of this name out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.tensors.remove(name)
    }

    /// Names and tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, t)| (name.as_str(), t))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The text of this name.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// Sets the text of a name, which goes into files too.
    pub fn set_metadata(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.metadata.insert(name.into(), text.into());
    }

    /// Names and texts, sorted by name.
    pub fn iter_metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Writes a safetensors file. Tensors that are the same memory are stored once, under the first of their names;
    /// the metadata `gradus.tied`, a JSON object, maps the other names to it. The file appears when it is complete: it is
    /// written beside `path` and renamed, so that a crash leaves the old file or the new one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if it cannot be written, and
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) for metadata named `gradus.tied` or as a
    /// tensor is, and for a tensor named `__metadata__`.
    pub fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()> {
        safetensors_file::save(self, path.as_ref())
    }

    /// Writes to `out` what [`save_safetensors`](StateDict::save_safetensors) makes a file of.
    ///
    /// # Errors
    /// As there; those of `out` are [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io).
    pub fn write_safetensors(&self, out: &mut dyn Write) -> Result<()> {
        safetensors_file::write(self, out)
    }

    /// Reads a safetensors file onto `device`. Names that `gradus.tied` ties share one tensor; other metadata is only text.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if it cannot be read, and
    /// [`ErrorKind::Format`](gradus_tensor::ErrorKind::Format), with the file and what is wrong with it, if it is
    /// truncated, damaged, no safetensors file, or has a dtype that Gradus does not. Each says what to do.
    pub fn load_safetensors(path: impl AsRef<Path>, device: &Device) -> Result<StateDict> {
        safetensors_file::load(path.as_ref(), device)
    }

    /// The same names with every tensor on `device`. Names that share one tensor share one there too; what is there
    /// already is not copied.
    pub fn to_device(&self, device: &Device) -> Result<StateDict> {
        let mut moved: Vec<(&Tensor, Tensor)> = Vec::new();
        let mut places: HashMap<*const Storage, Vec<usize>> = HashMap::new();
        let mut state = StateDict { tensors: BTreeMap::new(), metadata: self.metadata.clone() };
        for (name, t) in &self.tensors {
            let known = places.entry(Arc::as_ptr(t.storage())).or_default();
            let at = match known.iter().copied().find(|&i| same_place(moved[i].0, t)) {
                Some(at) => at,
                None => {
                    known.push(moved.len());
                    moved.push((t, t.to_device(device)?));
                    moved.len() - 1
                }
            };
            state.tensors.insert(name.clone(), moved[at].1.clone());
        }
        Ok(state)
    }

    /// The memory of a module itself, not a copy.
    pub(crate) fn view_of<M: Module + ?Sized>(module: &M, op: &str) -> Result<StateDict> {
        let mut state = StateDict::new();
        for slot in slots(module, op)? {
            for name in slot.names {
                state.tensors.insert(name, slot.tensor.clone());
            }
        }
        Ok(state)
    }

    /// A copy of a module's state; names of one place share one copy.
    pub(crate) fn copy_of<M: Module + ?Sized>(module: &M) -> Result<StateDict> {
        let _guard = no_grad();
        let mut state = StateDict::new();
        for slot in slots(module, "state_dict")? {
            let copy = slot.tensor.copy()?;
            for name in slot.names {
                state.tensors.insert(name, copy.clone());
            }
        }
        Ok(state)
    }

    /// See [`Module::load_state_dict`].
    pub(crate) fn load_into<M: Module + ?Sized>(&self, module: &M, strict: Strict) -> Result<LoadReport> {
        let _guard = no_grad();
        let mut report = LoadReport::default();
        let mut known: HashMap<&str, ()> = HashMap::new();
        let mut writes: Vec<(&Tensor, Tensor)> = Vec::new();
        let slots = slots(module, "load_state_dict")?;
        let written: HashSet<*const Storage> = slots.iter().map(|s| Arc::as_ptr(s.tensor.storage())).collect();
        for slot in &slots {
            known.extend(slot.names.iter().map(|n| (n.as_str(), ())));
            let given: Vec<(&String, &Tensor)> =
                slot.names.iter().filter_map(|n| Some((n, self.tensors.get(n)?))).collect();
            let Some((&(first, source), others)) = given.split_first() else {
                report.missing.extend(slot.names.iter().cloned());
                continue;
            };
            let target = &slot.tensor;
            if let Some((name, t)) = given.iter().find(|(_, t)| !fits(target, t)) {
                report.mismatched.push(format!("{name} is {}, the module has {}", spec(t), spec(target)));
                continue;
            }
            if let Some((name, _)) = others.iter().find(|(_, t)| !same_values(source, t)) {
                report.mismatched.push(format!("{name} and {first} are one tensor in the module, but differ"));
                continue;
            }
            writes.push((target, prepared(source, target, &written)?));
            report.loaded.extend(slot.names.iter().cloned());
        }
        report.unexpected.extend(self.tensors.keys().filter(|n| !known.contains_key(n.as_str())).cloned());
        if strict == Strict::Yes && !report.is_complete() {
            return Err(mismatch(&report));
        }
        for (target, source) in writes {
            target.copy_(&source)?;
        }
        Ok(report)
    }
}

fn fits(target: &Tensor, source: &Tensor) -> bool {
    target.shape() == source.shape() && converts(source.dtype(), target.dtype())
}

fn spec(t: &Tensor) -> String {
    format!("{} {}", Shape::display(t.shape()), t.dtype())
}

fn same_values(a: &Tensor, b: &Tensor) -> bool {
    same_place(a, b) || (a.dtype() == b.dtype() && matches!((a.to_bytes(), b.to_bytes()), (Ok(a), Ok(b)) if a == b))
}

/// A tensor on `device` in `dtype`: converted there, or here if `device` lacks its dtype.
pub(crate) fn moved(t: &Tensor, device: &Device, dtype: DType) -> Result<Tensor> {
    if device.backend().supports(t.dtype()) {
        t.to_device(device)?.to_dtype(dtype)
    } else {
        t.to_dtype(dtype)?.to_device(device)
    }
}

/// The source in the dtype and on the device of the target: what can fail has failed before the first write. It is a copy
/// if it is in memory that will be `written`: two layers can be swapped.
fn prepared(source: &Tensor, target: &Tensor, written: &HashSet<*const Storage>) -> Result<Tensor> {
    let source = moved(source, target.device(), target.dtype())?;
    if written.contains(&Arc::as_ptr(source.storage())) { source.copy() } else { Ok(source) }
}

/// One error with everything that does not fit.
fn mismatch(report: &LoadReport) -> Error {
    let mut e = Error::argument("load_state_dict", "the state does not fit the module; nothing was loaded");
    for (what, keys) in [("missing", &report.missing), ("unexpected", &report.unexpected)] {
        if !keys.is_empty() {
            e = e.note(format!("{what} ({}): {}", keys.len(), listed(keys)));
        }
    }
    for m in report.mismatched.iter().take(LISTED) {
        e = e.note(format!("mismatched: {m}"));
    }
    if report.mismatched.len() > LISTED {
        e = e.note(format!("mismatched: and {} more", report.mismatched.len() - LISTED));
    }
    e.help("Strict::No loads what fits and reports the rest")
}

impl<S: Into<String>> FromIterator<(S, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (S, Tensor)>>(items: I) -> Self {
        let mut state = StateDict::new();
        for (name, tensor) in items {
            state.insert(name, tensor);
        }
        state
    }
}

/// Names, shapes and dtypes, one a line.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tensors.iter().map(|(name, t)| (name, spec(t)))).finish()
    }
}
