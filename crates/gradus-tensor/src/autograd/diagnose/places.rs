//! The memory that tensors occupy, and which tensors share elements.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use gradus_backend::Layout;

use crate::footprint::Footprint;
use crate::{Storage, Tensor};

/// The elements of a storage that a tensor covers. The weak handle keeps the address of the storage from being reused.
#[derive(Clone)]
pub(in crate::autograd) struct Place {
    storage: Weak<Storage>,
    layout: Layout,
    /// The size of an element in bytes.
    size: usize,
}

impl Place {
    pub(in crate::autograd) fn of(t: &Tensor) -> Place {
        Place { storage: Arc::downgrade(t.storage()), layout: *t.layout(), size: t.dtype().size() }
    }

    /// Whether the two places share an element. May wrongly return `true` if the strides do not decide it.
    fn meets(&self, other: &Place) -> bool {
        let bytes = |place: &Place| Footprint::new(&place.layout, place.size);
        Weak::ptr_eq(&self.storage, &other.storage) && bytes(self).meets(&bytes(other))
    }

    /// Whether this place certainly contains every element of `other`. May be `false` even if it does.
    pub(in crate::autograd) fn covers(&self, other: &Place) -> bool {
        let (a, b) = (self.layout.span(), other.layout.span());
        let same = || self.layout.strides() == other.layout.strides() && self.layout.dims() == other.layout.dims();
        Weak::ptr_eq(&self.storage, &other.storage)
            && self.size == other.size
            && a.start <= b.start
            && b.end <= a.end
            && (self.is_dense() || a == b && same())
    }

    /// Whether the place contains every element between its first and its last.
    fn is_dense(&self) -> bool {
        self.layout.numel() == self.layout.span().len() && !self.layout.overlaps_itself()
    }
}

/// A collection of places, each with a value.
pub(in crate::autograd) struct Places<T>(HashMap<*const Storage, Vec<(Place, T)>>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places(HashMap::new())
    }
}

impl<T> Places<T> {
    /// Adds a place with its value. If the place is already there, it keeps its old value.
    pub(in crate::autograd) fn insert(&mut self, place: Place, known: T) {
        match self.0.entry(place.storage.as_ptr()) {
            Entry::Occupied(mut all) => {
                let new = |p: &Place| p.layout != place.layout || p.size != place.size;
                if all.get().iter().all(|(p, _)| new(p)) {
                    all.get_mut().push((place, known));
                }
            }
            Entry::Vacant(all) => {
                all.insert(vec![(place, known)]);
            }
        }
    }

    /// The values of the places that share an element with `place`.
    pub(in crate::autograd) fn meeting<'p>(&'p self, place: &'p Place) -> impl Iterator<Item = &'p T> {
        let all = self.0.get(&place.storage.as_ptr()).into_iter().flatten();
        all.filter(|(p, _)| p.meets(place)).map(|(_, known)| known)
    }

    /// Removes the places that lie within `place`.
    pub(in crate::autograd) fn remove_covered(&mut self, place: &Place) {
        if let Some(all) = self.0.get_mut(&place.storage.as_ptr()) {
            all.retain(|(p, _)| !place.covers(p));
        }
    }
}
