//! [`StateDict`]: named tensors, copied from a module or to be loaded into one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use gradus_tensor::{DType, Device, Error, Here, Result, Shape, Storage, Tensor, no_grad_guard};

use crate::item::Walk;
use crate::load_report::listed;
use crate::parameter::converts;
use crate::places::{Places, same_place};
use crate::{Buffer, Item, LoadReport, Strict};

/// Named tensors, along with named texts (metadata).
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

/// A tensor of a module with all of its names.
struct Slot {
    names: Vec<String>,
    tensor: Tensor,
    /// The buffers that hold the tensor. Loading puts a new tensor into a buffer, but writes a parameter in place.
    buffers: Vec<Buffer>,
    is_parameter: bool,
}

/// The parameters and buffers of a module in field order, each tensor once. If two tensors have the same name, returns
/// an error of `op`.
#[track_caller]
fn slots(walk: Walk<'_>, op: &str) -> Result<Vec<Slot>> {
    let mut named: HashMap<String, usize> = HashMap::new();
    let mut twice: Vec<String> = Vec::new();
    let mut slots: Vec<Slot> = Vec::new();
    let mut places = Places::default();
    walk(&mut |path, item| {
        let tensor = match item {
            Item::Parameter(p) => p.values().clone(),
            Item::Buffer(b) => b.tensor(),
            _ => return,
        };
        let place = places.find(&tensor).copied().unwrap_or_else(|| {
            places.insert(&tensor, slots.len());
            slots.push(Slot { names: Vec::new(), tensor, buffers: Vec::new(), is_parameter: false });
            slots.len() - 1
        });
        let slot = &mut slots[place];
        match item {
            Item::Buffer(b) if slot.buffers.iter().all(|other| other.id() != b.id()) => slot.buffers.push(b.clone()),
            Item::Parameter(_) => slot.is_parameter = true,
            _ => {}
        }
        match named.insert(path.to_owned(), place) {
            None => slot.names.push(path.to_owned()),
            Some(other) if other == place => {}
            Some(_) => twice.push(path.to_owned()),
        }
    });
    if twice.is_empty() {
        return Ok(slots);
    }
    let m = format!("two tensors of the module have one name: {}", listed(&twice, ", "));
    Err(Error::argument(op, m).help("rename the field, or the key that contains a dot"))
}

impl StateDict {
    /// Creates an empty state dict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, detached from its graph. It replaces any tensor already stored under this name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor.detach());
    }

    /// The tensor stored under `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Removes the tensor stored under `name` and returns it.
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

    /// The text stored under `name`.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// Stores a text under `name`. It is saved to files as well.
    pub fn set_metadata(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.metadata.insert(name.into(), text.into());
    }

    /// A number of the metadata. `None` if there is none of this name.
    #[track_caller]
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.metadata(name) else { return Ok(None) };
        let parsed = text.parse().map_err(|_| {
            Error::argument("load_state_dict", format!("metadata {name} is {text:?}, which is no number"))
        });
        parsed.map(Some).here()
    }

    /// A number that the metadata must have.
    #[track_caller]
    pub(crate) fn required_number<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let missing = || Error::argument("load_state_dict", format!("metadata {name} is missing"));
        self.number(name)?.ok_or_else(missing).here()
    }

    /// Names and texts, sorted by name.
    pub fn iter_metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Returns the same names with every tensor moved to `device`. Names that share a tensor share the moved one. A
    /// tensor already on `device` is not copied.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<StateDict> {
        self.mapped(|t| t.to_device(device))
    }

    /// Returns the same names with a copy of every tensor. Names that share a tensor share its copy.
    #[track_caller]
    pub(crate) fn copied(&self) -> Result<StateDict> {
        self.mapped(Tensor::copy)
    }

    /// Returns the same names with the result of `f` for every tensor. `f` is called once per distinct tensor.
    #[track_caller]
    fn mapped(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<StateDict> {
        let _guard = no_grad_guard();
        let mut made: Places<Tensor> = Places::default();
        let mut state = StateDict { tensors: BTreeMap::new(), metadata: self.metadata.clone() };
        for (name, t) in &self.tensors {
            let new = match made.find(t) {
                Some(new) => new.clone(),
                None => {
                    let new = f(t)?;
                    made.insert(t, new.clone());
                    new
                }
            };
            state.tensors.insert(name.clone(), new);
        }
        Ok(state)
    }

    /// Collects the tensors of a module without copying them.
    #[track_caller]
    pub(crate) fn view_of(walk: Walk<'_>, op: &str) -> Result<StateDict> {
        let mut state = StateDict::new();
        for slot in slots(walk, op)? {
            for name in slot.names {
                state.tensors.insert(name, slot.tensor.clone());
            }
        }
        Ok(state)
    }

    /// See [`Module::load_state_dict`](crate::Module::load_state_dict).
    #[track_caller]
    pub(crate) fn load_into(&self, walk: Walk<'_>, strict: Strict) -> Result<LoadReport> {
        let _guard = no_grad_guard();
        const OP: &str = "load_state_dict";
        let mut report = LoadReport::default();
        let mut known: HashMap<&str, ()> = HashMap::new();
        let mut writes: Vec<(&Slot, Tensor)> = Vec::new();
        let slots = slots(walk, OP)?;
        let written: HashSet<*const Storage> = slots.iter().map(|s| Arc::as_ptr(s.tensor.storage())).collect();
        for slot in &slots {
            known.extend(slot.names.iter().map(|n| (n.as_str(), ())));
            let given: Vec<(&String, &Tensor)> =
                slot.names.iter().filter_map(|n| Some((n, self.tensors.get(n)?))).collect();
            let target = &slot.tensor;
            if let Some(&(first, source)) = given.first() {
                if let Some((name, t)) = given.iter().find(|(_, t)| !fits(target, t)) {
                    report.mismatched.push(format!("{name} is {}, the module has {}", spec(t), spec(target)));
                } else if let Some((name, _)) = given.iter().find(|(_, t)| !same_values(source, t)) {
                    report.mismatched.push(format!("{name} and {first} are one tensor in the module, but differ"));
                } else {
                    writes.push((slot, prepared(source, slot, &written)?));
                    report.loaded.extend(slot.names.iter().cloned());
                    continue;
                }
            } else {
                report.missing.extend(slot.names.iter().cloned());
            }
            report.kept.extend(slot.names.iter().cloned());
        }
        report.unexpected.extend(self.tensors.keys().filter(|n| !known.contains_key(n.as_str())).cloned());
        if strict == Strict::Yes && !report.is_complete() {
            return Err(report.error(OP, "module"));
        }
        writes
            .iter()
            .filter(|(slot, _)| slot.is_parameter)
            .try_for_each(|(slot, _)| slot.tensor.prepare_write(OP))
            .here()?;
        let count = writes.len();
        for (done, (slot, source)) in writes.into_iter().enumerate() {
            let mut values = source;
            if slot.is_parameter {
                slot.tensor.copy_(&values).map_err(|e| {
                    let e = e.note(format!("the device failed while it copied tensor {} of {count}", done + 1));
                    e.help("the module is loaded in part: load it again, or do not use it")
                })?;
                values = slot.tensor.clone();
            }
            slot.buffers.iter().for_each(|buffer| buffer.put(values.clone()));
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

/// Moves a tensor to `device` and converts it to `dtype`. The conversion happens there, or before the move if `device`
/// does not support the tensor's dtype.
#[track_caller]
pub(crate) fn moved(t: &Tensor, device: &Device, dtype: DType) -> Result<Tensor> {
    if device.backend().supports(t.dtype()) {
        t.to_device(device)?.to_dtype(dtype)
    } else {
        t.to_dtype(dtype)?.to_device(device)
    }
}

/// Converts `source` to the dtype and device of the slot's tensor. This happens before the first write, so that a
/// failure changes nothing. The result is a copy if its storage is among those to be `written`, so that two layers can
/// be swapped, or if a buffer would otherwise share its storage with `source`.
#[track_caller]
fn prepared(source: &Tensor, slot: &Slot, written: &HashSet<*const Storage>) -> Result<Tensor> {
    let moved = moved(source, slot.tensor.device(), slot.tensor.dtype())?;
    let taken = !slot.buffers.is_empty();
    let shared = Arc::ptr_eq(moved.storage(), source.storage());
    match written.contains(&Arc::as_ptr(moved.storage())) || (taken && shared) {
        true => moved.copy(),
        false if taken => moved.contiguous(),
        false => Ok(moved),
    }
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

/// Names, shapes and dtypes, one entry per line in the `{:#?}` form.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.tensors.iter().map(|(name, t)| (name, spec(t)))).finish()
    }
}
