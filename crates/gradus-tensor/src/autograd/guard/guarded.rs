//! Saved values of nodes recorded under a switch: inputs that `strict` remembers, values that a write must check first,
//! and packed values.
//!
//! All of this hangs off [`Saved`](crate::autograd::Saved) by a single pointer, which is null unless the node was
//! recorded under such a switch. It lives only as long as the graph needs it, since storages refer to it weakly.
//!
//! **Invariant**: a tensor kept here has no edge. The edge is restored when a gradient reads the tensor.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use gradus_backend::{DType, Error, ErrorKind, Result};

use crate::autograd::graph::saved::{SavedTensor, Which, overwritten};
use crate::autograd::guard::packed::Packed;
use crate::autograd::mode::{self, COPY_ON_WRITE, PACK, REFUSE_WRITES, STRICT};
use crate::footprint::Footprint;
use crate::ops::InPlace;
use crate::tensor::Spec;
use crate::{Device, Storage, Tensor};

/// The data that a node recorded under a switch stores in addition to its saved values.
#[derive(Debug)]
pub(crate) struct Guarded {
    op: String,
    location: &'static Location<'static>,
    /// Snapshots of all inputs, if the node is strict.
    inputs: Vec<Snapshot>,
    pub(in crate::autograd) slots: Vec<Slot>,
}

/// One value that the gradient needs.
#[derive(Debug)]
pub(in crate::autograd) struct Slot {
    pub(in crate::autograd) what: Which,
    pub(in crate::autograd) value: Value,
}

#[derive(Debug)]
pub(in crate::autograd) enum Value {
    /// A tensor and the version of its storage. A write over it is either refused or, with `copies`, first replaces it
    /// with a copy.
    Kept { copies: bool, now: Mutex<(Tensor, u64)> },
    /// Memory that the gradient reads again in place. A write over it is refused.
    Pinned(Weak<Storage>),
    /// The value as a hook packed it, and the version that its storage had.
    Packed { packed: Packed, spec: Spec, version: u64 },
}

/// Memory that a gradient reads again in place.
pub(in crate::autograd) type Pin = (Arc<Storage>, Footprint);

fn lock(now: &Mutex<(Tensor, u64)>) -> MutexGuard<'_, (Tensor, u64)> {
    now.lock().unwrap_or_else(|e| e.into_inner())
}

impl Value {
    /// The tensor as it is saved now, with the version of its storage. `None` if it is pinned or packed.
    pub(in crate::autograd) fn kept(&self) -> Option<(Tensor, u64)> {
        match self {
            Value::Kept { now, .. } => Some(lock(now).clone()),
            Value::Pinned(_) | Value::Packed { .. } => None,
        }
    }
}

impl Guarded {
    /// Takes over the `values` that `op` saves, according to this thread's switches. `versions` are the versions of the
    /// inputs' storages from before the operation read them. `pins` is the memory that the gradient reads again in
    /// place. If there are pins, the saved values are read in place too, so a write must not replace them with copies.
    #[cold]
    #[track_caller]
    pub(in crate::autograd) fn new(
        op: &str,
        values: impl IntoIterator<Item = SavedTensor>,
        inputs: &[&Tensor],
        versions: &[u64],
        pins: Vec<Pin>,
    ) -> Result<Arc<Guarded>> {
        let location = Location::caller();
        let on = |switch| mode::is_set(switch);
        let mut made = Guarded { op: op.to_owned(), location, inputs: vec![], slots: vec![] };
        if on(STRICT) {
            made.inputs = inputs.iter().zip(versions).map(|(t, &version)| Snapshot::new(t, version)).collect();
        }
        let (asks, copies) = (on(REFUSE_WRITES | COPY_ON_WRITE), on(COPY_ON_WRITE) && pins.is_empty());
        let packs = on(PACK) && Packed::hooked();
        let mut places: Vec<(usize, Arc<Storage>, Footprint)> = vec![];
        for SavedTensor { what, tensor, version } in values {
            let value = if packs {
                let packed = Packed::new(op, location, what, &tensor, version)?;
                Value::Packed { packed, spec: tensor.spec(), version }
            } else {
                if asks {
                    places.push((made.slots.len(), tensor.storage().clone(), tensor.footprint()));
                }
                Value::Kept { copies, now: Mutex::new((tensor.detach(), version)) }
            };
            made.slots.push(Slot { what, value });
        }
        if asks {
            for (storage, place) in pins {
                let value = Value::Pinned(Arc::downgrade(&storage));
                places.push((made.slots.len(), storage, place));
                made.slots.push(Slot { what: Which::Read, value });
            }
        }
        let made = Arc::new(made);
        for (slot, storage, place) in places {
            storage.register(place, &made, slot);
        }
        Ok(made)
    }

    /// Whether the value of a slot lies in `storage`, so that a write there must check it first.
    pub(crate) fn lies_in(&self, slot: usize, storage: &Storage) -> bool {
        match self.slots.get(slot).map(|s| &s.value) {
            Some(Value::Kept { now, .. }) => std::ptr::eq(Arc::as_ptr(lock(now).0.storage()), storage),
            Some(Value::Pinned(at)) => std::ptr::eq(at.as_ptr(), storage),
            Some(Value::Packed { .. }) | None => false,
        }
    }

    /// Fails if the node is strict and one of its inputs was overwritten.
    #[track_caller]
    pub(in crate::autograd) fn check_inputs(&self) -> Result<()> {
        for (i, input) in self.inputs.iter().enumerate() {
            let Some(storage) = input.storage.upgrade() else { continue };
            let Some(write) = storage.overwritten_at(input.version, &input.place) else { continue };
            let (op, what) = (&self.op, Which::Input(i));
            let m = format!("{op} was recorded as strict, and {} overwrote its {what}", write.op);
            let e = Error::new(ErrorKind::Autograd, "backward", m);
            let e = e.operand(&what.to_string(), input.spec.shape.dims(), input.spec.dtype, &input.device);
            return Err(overwritten(e, op, self.location, what.to_string(), &write, input.version).help(
                "write before the forward pass or into a copy; outside of strict() only what is needed is checked",
            ));
        }
        Ok(())
    }

    /// The saved values as (what, shape, dtype, version).
    pub(in crate::autograd) fn describe(&self) -> impl Iterator<Item = (String, Vec<usize>, DType, u64)> {
        self.slots.iter().filter_map(|slot| match &slot.value {
            Value::Kept { now, .. } => {
                let now = lock(now);
                Some((slot.what.to_string(), now.0.shape().to_vec(), now.0.dtype(), now.1))
            }
            Value::Packed { spec, version, .. } => {
                Some((format!("{} (packed)", slot.what), spec.shape.dims().to_vec(), spec.dtype, *version))
            }
            Value::Pinned(_) => None,
        })
    }
}

/// The state of an input when the node was recorded. It keeps nothing alive.
#[derive(Debug)]
struct Snapshot {
    storage: Weak<Storage>,
    version: u64,
    place: Footprint,
    spec: Spec,
    device: Device,
}

impl Snapshot {
    fn new(t: &Tensor, version: u64) -> Self {
        let storage = Arc::downgrade(t.storage());
        Snapshot { storage, version, place: t.footprint(), spec: t.spec(), device: t.device().clone() }
    }
}

/// Called before `op` writes into `t`. Fails if a graph protects the old values. If a graph may use copies instead,
/// they are made here.
#[cold]
#[track_caller]
pub(crate) fn before_overwrite(t: &Tensor, op: &'static str) -> Result<()> {
    let found = t.storage().needed(&t.footprint());
    let slots = || found.iter().filter_map(|(by, slot)| Some((by, by.slots.get(*slot)?)));
    if let Some((by, slot)) = slots().find(|(_, slot)| !matches!(slot.value, Value::Kept { copies: true, .. })) {
        return Err(t.describe(by.needs(slot, op), "self").help(
            "write into a copy, or after the backward pass; allow_mutation_on_saved_tensors() leaves the graph a copy",
        ));
    }
    let _mode = mode::plain();
    let mut copies: Vec<(Tensor, Tensor)> = vec![];
    for (_, slot) in slots() {
        let Value::Kept { now, .. } = &slot.value else { continue };
        let (old, version) = lock(now).clone();
        let same = |o: &Tensor| Arc::ptr_eq(o.storage(), old.storage()) && o.layout() == old.layout();
        let copy = match copies.iter().find(|(o, _)| same(o) && o.dtype() == old.dtype()) {
            Some((_, copy)) => copy.clone(),
            None => {
                copies.push((old.clone(), old.copy()?));
                copies[copies.len() - 1].1.clone()
            }
        };
        // Only intact values are replaced by copies. A gradient that reads an overwritten value fails in any case.
        if old.overwritten(version).is_none() {
            let mut now = lock(now);
            if Arc::ptr_eq(now.0.storage(), old.storage()) {
                *now = (copy, 0);
            }
        }
    }
    Ok(())
}

impl Guarded {
    /// The error for a write by `op` over the value in `slot`.
    fn needs(&self, slot: &Slot, op: &str) -> Error {
        let m = format!("the gradient of {} needs its {}, which this would overwrite", self.op, slot.what);
        Error::new(ErrorKind::Autograd, op, m).note(format!("{} was recorded at {}", self.op, self.location))
    }

    /// Fails if this protects the value in slot number `slot`: it cannot be copied for the graph before a write by `op`.
    #[track_caller]
    pub(crate) fn refuse_change(&self, slot: usize, op: &str) -> Result<()> {
        let Some(slot) = self.slots.get(slot) else { return Ok(()) };
        Err(self.needs(slot, op).help("drop the graph first, or take its gradients"))
    }
}

impl Tensor {
    /// Fails if a write by `op` over the whole tensor would fail: because it would have to be recorded, because
    /// elements share memory, or because a graph protects the values
    /// ([`strict_inplace`](crate::autograd::strict_inplace)). Writes nothing. Before writing several tensors, call this
    /// for all of them, so that the writes do not stop half-way.
    #[track_caller]
    pub fn prepare_write(&self, op: &'static str) -> Result<()> {
        self.check_writable(InPlace::Update(op), &[])?;
        if self.storage().is_guarded() { before_overwrite(self, op) } else { Ok(()) }
    }
}
