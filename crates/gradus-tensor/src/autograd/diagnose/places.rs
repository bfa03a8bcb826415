//! The memory of tensors, and which of them share elements.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use gradus_backend::Layout;

use crate::footprint::Footprint;
use crate::{Storage, Tensor};

/// The elements of a storage that a tensor covers. The weak handle keeps the storage's address from being reused.
#[derive(Clone)]
pub(in crate::autograd) struct Place {
    storage: Weak<Storage>,
    layout: Layout,
    /// Bytes of an element.
    size: usize,
}

impl Place {
    pub(in crate::autograd) fn of(t: &Tensor) -> Place {
        Place { storage: Arc::downgrade(t.storage()), layout: *t.layout(), size: t.dtype().size() }
    }

    /// Whether two share an element; may say yes wrongly where the strides do not decide.
    fn meets(&self, other: &Place) -> bool {
        let bytes = |place: &Place| Footprint::new(&place.layout, place.size);
        Weak::ptr_eq(&self.storage, &other.storage) && bytes(self).meets(&bytes(other))
    }

    /// Whether it contains every element of another.
    pub(in crate::autograd) fn covers(&self, other: &Place) -> bool {
        let (a, b) = (self.layout.span(), other.layout.span());
        let same = || self.layout.strides() == other.layout.strides() && self.layout.dims() == other.layout.dims();
        Weak::ptr_eq(&self.storage, &other.storage)
            && self.size == other.size
            && a.start <= b.start
            && b.end <= a.end
            && (self.is_dense() || a == b && same())
    }

    /// Whether it contains all elements between its first and last.
    fn is_dense(&self) -> bool {
        self.layout.numel() == self.layout.span().len() && !self.layout.overlaps_itself()
    }
}

/// Places, each with a value.
pub(in crate::autograd) struct Places<T>(HashMap<*const Storage, Vec<(Place, T)>>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places(HashMap::new())
    }
}

impl<T> Places<T> {
    /// Adds a place; an existing place keeps its value.
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

    /// The values of the places that share an element with this one.
    pub(in crate::autograd) fn meeting<'p>(&'p self, place: &'p Place) -> impl Iterator<Item = &'p T> {
        let all = self.0.get(&place.storage.as_ptr()).into_iter().flatten();
        all.filter(|(p, _)| p.meets(place)).map(|(_, known)| known)
    }

    /// Removes the places that lie within this one.
    pub(in crate::autograd) fn remove_covered(&mut self, place: &Place) {
        if let Some(all) = self.0.get_mut(&place.storage.as_ptr()) {
            all.retain(|(p, _)| !place.covers(p));
        }
    }
}
