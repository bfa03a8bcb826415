//! The reference side of the comparison: the meaning of a program in terms of scalars that never change.
//!
//! A tensor is a list of places in a memory of numbers. If it is tracked, it is also a list of values of the [`Tape`],
//! one per element. A write changes numbers in the memory and nothing on the tape. A later read of a tensor sees each
//! element's value on the tape, unless its memory was written since. In that case it sees the new number: for a leaf or
//! a view of a leaf, as the new value of the leaf itself; for any other tensor, as a constant.

use std::rc::Rc;

use gradus_tensor::Generator;

use crate::arrays::{Array, compute, dropout, fits, numel};
use crate::keeps::{ends_in_a_view, keeps_input, keeps_output};
use crate::library::mask;
use crate::model::{
    Freed, Ground, Guard, Handle, Kind, Need, Origin, Outcome, Read, Recorded, Reference, Storage, Writes,
};
use crate::program::{Name, Slot, Statement, values};
use crate::scalar::{Id, Tape};
use crate::views::is_strided;
use crate::views::view;

impl Reference {
    /// Whether writes since `stamp` fall between these places but on none of them.
    pub(crate) fn between(&self, storage: usize, at: &[usize], stamp: u32) -> bool {
        let (Some(&first), Some(&last)) = (at.iter().min(), at.iter().max()) else { return false };
        let written = &self.storages[storage].written[first..=last];
        written.iter().any(|&w| w > stamp) && self.touched(storage, at, stamp) == Ground::None
    }

    /// The values that a reader of the tensor sees now.
    pub(crate) fn read(&mut self, h: &Handle) -> Array {
        if self.is_stale(h) {
            self.may_refuse = true;
        }
        let storage = &self.storages[h.storage];
        let one = |(e, &p): (usize, &usize)| {
            let number = storage.numbers[p];
            match h.ids.as_ref().map(|ids| ids[e]) {
                Some(id) if storage.written[p] <= h.stamp => id,
                Some(id) if h.origin != Origin::Computed => self.tape.copy_with(id, number),
                _ => self.tape.constant(number),
            }
        };
        Array { shape: h.shape.clone(), ids: h.at.iter().enumerate().map(one).collect() }
    }

    /// Records in every current region that the bytes of a tensor were read.
    pub(crate) fn note(&mut self, h: &Handle) {
        let read = self.noted(h);
        let tracked = h.node.filter(|_| h.tracked);
        for region in &mut self.regions {
            if h.storage < region.storages {
                region.reads.push(read.clone());
            }
            region.inputs.extend(tracked.filter(|&n| n < region.nodes));
        }
    }

    pub(crate) fn noted(&self, h: &Handle) -> Read {
        // This value will be read again from its own memory, which a copy cannot replace. So a write over it may be
        // refused under either switch.
        let guard = if self.mode.writes == Writes::Checked { Guard::Never } else { Guard::Maybe };
        Read { storage: h.storage, at: h.at.clone(), stamp: self.clock, need: Need::Yes, guard }
    }

    /// Allocates memory with these numbers.
    pub(crate) fn allocate(&mut self, numbers: Vec<f64>) -> usize {
        let written = vec![0; numbers.len()];
        self.storages.push(Storage { numbers, logged: written.clone(), written });
        self.storages.len() - 1
    }

    /// A constant in new memory.
    pub(crate) fn constant(&mut self, shape: &[usize], numbers: Vec<f64>) -> Handle {
        let at = (0..numbers.len()).collect();
        let (storage, stamp) = (self.allocate(numbers), self.clock);
        let shape = shape.to_vec();
        Handle { shape, storage, at, ids: None, stamp, tracked: false, origin: Origin::Computed, node: None }
    }

    /// Moves the elements of a new tensor to the places that the library chose. Does nothing if the tensor shares its
    /// memory.
    pub(crate) fn lay_out(&mut self, slot: Slot, places: impl Iterator<Item = usize>) {
        let places: Vec<usize> = places.collect();
        let Some(h) = self.handle(slot) else { return };
        let (storage, at) = (h.storage, h.at.clone());
        let alone = self.handles.iter().flatten().filter(|h| h.storage == storage).count() == 1;
        let own = alone && at.iter().enumerate().all(|(n, &p)| n == p);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if !own || sorted.len() != at.len() || at.is_empty() {
            return;
        }
        let old = self.storages[storage].clone();
        let span = sorted.last().map_or(0, |&p| p + 1);
        self.storages[storage].numbers = vec![0.0; span];
        self.storages[storage].written = vec![0; span];
        self.storages[storage].logged = vec![0; span];
        for (n, &p) in places.iter().enumerate() {
            self.storages[storage].numbers[p] = old.numbers[n];
            self.storages[storage].written[p] = old.written[n];
            self.storages[storage].logged[p] = old.logged[n];
        }
        let places: Rc<[usize]> = places.into();
        let noted = self.nodes.last_mut().into_iter().flat_map(|n| &mut n.reads);
        noted.filter(|r| r.storage == storage).for_each(|r| r.at = places.clone());
        if let Some(Some(h)) = self.handles.get_mut(slot as usize) {
            h.at = places;
        }
    }

    /// Records an operation and returns its number.
    pub(crate) fn record(&mut self, inputs: Vec<usize>, reads: Vec<Read>, kind: Kind) -> usize {
        self.nodes.push(Recorded {
            inputs,
            reads,
            outputs: vec![],
            kind,
            freed: Freed::No,
            by_output: false,
            custom: false,
        });
        self.nodes.len() - 1
    }

    /// Makes `h` an output of node `node`, with values of its own.
    pub(crate) fn made_by(&mut self, h: &mut Handle, node: usize, ids: &[Id]) {
        let own: Vec<Id> = ids.iter().map(|&a| self.tape.element(a)).collect();
        self.nodes[node].outputs.extend(&own);
        h.ids = Some(own);
        h.node = Some(node);
        h.stamp = self.clock;
    }

    fn leaf(&mut self, of: &Handle) -> Handle {
        let ids: Vec<Id> = self.numbers(of).iter().map(|&v| self.tape.leaf(v)).collect();
        let node = self.record(vec![], vec![], Kind::Leaf);
        self.nodes[node].outputs = ids.clone();
        let (stamp, node) = (self.clock, Some(node));
        Handle { ids: Some(ids), stamp, tracked: true, origin: Origin::Leaf, node, ..of.clone() }
    }

    /// Runs a statement that is neither a pass, nor a block of `no_grad`, nor a write.
    pub(crate) fn step(&mut self, s: &Statement) -> Outcome {
        self.may_refuse = false;
        let outcome = self.run(s);
        outcome.unwrap_or(Outcome::Skip)
    }

    pub(crate) fn run(&mut self, s: &Statement) -> Option<Outcome> {
        if s.outs.iter().any(|&o| !self.is_free(o)) {
            return None;
        }
        if s.name == Name::Checkpoint {
            return self.region(s);
        }
        let handles: Vec<Handle> = s.of.iter().map(|&h| self.handle(h).cloned()).collect::<Option<_>>()?;
        let inside = !self.regions.is_empty();
        if s.name == Name::Drop {
            let ([slot], false) = (&s.of[..], inside) else { return None };
            self.forget(*slot);
            return Some(Outcome::Done { may_refuse: false });
        }
        let [out] = s.outs[..] else { return None };
        let handle = match (s.name, &handles[..]) {
            (Name::Leaf | Name::Data, []) => {
                let shape: Vec<usize> = s.numbers.get(1..)?.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
                if !fits(&shape) || inside && s.name == Name::Leaf {
                    return None;
                }
                let plain = self.constant(&shape, values(s.number(0), numel(&shape)));
                if s.name == Name::Leaf { self.leaf(&plain) } else { plain }
            }
            (Name::Require, [h]) if !inside => self.leaf(h),
            (Name::Detach, [h]) => Handle { ids: None, tracked: false, node: None, ..h.clone() },
            (name, [h]) if name.is_view() => self.view(s, h)?,
            (_, []) => return None,
            (_, all) => self.operation(s, all)?,
        };
        self.define(out, handle);
        Some(Outcome::Done { may_refuse: self.may_refuse })
    }

    fn view(&mut self, s: &Statement, h: &Handle) -> Option<Handle> {
        let (shape, from) = view(s, &h.shape)?;
        let at: Rc<[usize]> = from.iter().map(|&n| h.at[n]).collect();
        if s.name == Name::Reshape && !is_strided(&shape, &at) {
            return self.operation_with(s, &[h], |tape, x| {
                Some(Array { shape, ids: x[0].ids.iter().map(|&a| tape.copy(a)).collect() })
            });
        }
        let origin = if h.origin == Origin::Computed { Origin::Computed } else { Origin::ViewOfLeaf };
        let mut made = Handle { shape, at, origin, ids: None, tracked: false, node: None, ..h.clone() };
        if self.mode.recording && h.ids.is_some() {
            let seen = self.read(h);
            let ids: Vec<Id> = from.iter().map(|&n| seen.ids[n]).collect();
            let node = self.record(h.node.into_iter().collect(), self.checked(&[h]), Kind::Operation);
            self.made_by(&mut made, node, &ids);
            made.tracked = h.tracked;
            // A view reads no bytes, but a region that runs again uses the tensor again.
            self.note(h);
        }
        Some(made)
    }

    fn operation(&mut self, s: &Statement, handles: &[Handle]) -> Option<Handle> {
        let refs: Vec<&Handle> = handles.iter().collect();
        if let (Name::Dropout, [h]) = (s.name, handles) {
            let p = s.scalar(1);
            if !(0.0 < p && p < 1.0) {
                return None;
            }
            let mut own = Generator::new(s.number(0).unsigned_abs());
            let mask = mask(p, &h.shape, self.generator.as_mut().unwrap_or(&mut own)).ok()?;
            return self.operation_with(s, &refs, |tape, x| Some(dropout(tape, &x[0], &mask, p)));
        }
        self.operation_with(s, &refs, |tape, x| compute(tape, s, x))
    }

    fn operation_with(
        &mut self,
        s: &Statement,
        handles: &[&Handle],
        f: impl FnOnce(&mut Tape, &[Array]) -> Option<Array>,
    ) -> Option<Handle> {
        let arrays: Vec<Array> = handles.iter().map(|h| self.read(h)).collect();
        let found = f(&mut self.tape, &arrays)?;
        handles.iter().for_each(|h| self.note(h));
        let numbers = found.ids.iter().map(|&a| self.tape.value(a)).collect();
        let mut made = self.constant(&found.shape, numbers);
        if self.mode.recording && handles.iter().any(|h| h.ids.is_some()) {
            made.tracked = handles.iter().any(|h| h.tracked);
            let mut reads: Vec<Read> = handles
                .iter()
                .enumerate()
                .map(|(i, h)| self.kept(h, s.name, keeps_input(s.name, handles, i)))
                .collect();
            reads.extend(self.checked(handles));
            if self.mode.strict && ends_in_a_view(s.name) {
                reads.push(self.noted(&made));
            }
            reads.push(self.kept(&made, s.name, keeps_output(s.name)));
            let inputs = handles.iter().filter(|h| h.tracked).filter_map(|h| h.node).collect();
            let node = self.record(inputs, reads, Kind::Operation);
            self.nodes[node].by_output = matches!(s.name, Name::Softmax | Name::LogSoftmax);
            self.nodes[node].custom = matches!(s.name, Name::Custom1 | Name::Custom2);
            self.made_by(&mut made, node, &found.ids);
        }
        Some(made)
    }
}
