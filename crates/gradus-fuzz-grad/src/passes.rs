//! Hooks and backward passes in the reference: the gradients that it expects of the library, and the errors that it
//! allows.

use crate::model::{Freed, Ground, Guard, Handle, Hooked, Kind, Need, Outcome, Read, Reference, Writes};
use crate::program::{NONE, Name, Slot, Statement};
use crate::scalar::{Bend, Bends, Id};

/// The expected outcome of a pass.
pub(crate) struct Expected {
    /// The gradient of each input; `None` if none reaches it.
    pub(crate) gradients: Vec<Option<Vec<f64>>>,
    /// The gradients as values on the tape, for a pass that is recorded.
    ids: Vec<Option<Vec<Id>>>,
    /// The tensors that the gradients belong to.
    pub(crate) inputs: Vec<Slot>,
    shapes: Vec<Vec<usize>>,
    /// Whether nodes that the pass needs were freed.
    pub(crate) freed: Freed,
    pub(crate) ground: Ground,
    /// Whether the pass needs a value that was overwritten but had been saved as a copy.
    pub(crate) spared: bool,
    /// Whether a write fell between the elements of a value that the pass needs.
    pub(crate) between: bool,
    /// Whether an input of a strict node was overwritten.
    pub(crate) strict: bool,
    /// Whether the numbers depend on a choice; see [`Reference::ambiguous`].
    pub(crate) ambiguous: bool,
    /// The nodes that may run, each with whether it certainly does.
    pub(crate) ran: Vec<(usize, bool)>,
    seeds: Vec<Slot>,
}

/// Roots with their seeds, and inputs.
type Ends = (Vec<(Handle, Slot)>, Vec<Slot>);

impl Reference {
    /// Registers or removes a hook.
    pub(crate) fn hook(&mut self, s: &Statement) -> Outcome {
        if s.name == Name::Unhook {
            let at = self.hooks.iter().position(|h| s.of.len() == 1 && h.slot == s.of[0] && s.outs.is_empty());
            let Some(at) = at else { return Outcome::Skip };
            self.hooks.remove(at);
            return Outcome::Done { may_refuse: false };
        }
        let ([out], [of]) = (&s.outs[..], &s.of[..]) else { return Outcome::Skip };
        let Some(h) = self.handle(*of).filter(|h| h.tracked && self.is_free(*out)) else { return Outcome::Skip };
        let visible = s.name == Name::Hook;
        let (Some(own), Some(node)) = (h.ids.clone(), h.node) else { return Outcome::Skip };
        if !visible && self.nodes[node].kind == Kind::Leaf {
            return Outcome::Skip;
        }
        let ids = if visible { own } else { self.nodes[node].outputs.clone() };
        let bend = match s.number(0) {
            1 => Some(Bend::Scale(s.scalar(1))),
            2 if visible => Some(Bend::Tanh),
            _ => None,
        };
        self.hooks.push(Hooked { slot: *out, ids, bend, visible });
        Outcome::Done { may_refuse: false }
    }

    /// The roots of a pass with their seeds, and its inputs; `None` if the pass is invalid.
    fn ends(&self, s: &Statement) -> Option<Ends> {
        let tracked = |&slot: &Slot| self.handle(slot).filter(|h| h.tracked && h.ids.is_some()).cloned();
        if matches!(s.name, Name::Backward | Name::BackwardRetain) {
            let [root] = &s.of[..] else { return None };
            let is_leaf = |h: &Handle| h.tracked && h.node.is_some_and(|n| self.nodes[n].kind == Kind::Leaf);
            let slots = 0..self.handles.len() as Slot;
            let leaves = slots.filter(|&slot| self.handle(slot).is_some_and(is_leaf)).collect();
            let root = tracked(root).filter(|h| h.at.len() == 1 && s.outs.is_empty())?;
            return Some((vec![(root, NONE)], leaves));
        }
        let count = s.place(0);
        let (roots, inputs) = s.of.split_at_checked(count.checked_mul(2)?)?;
        let mut from = vec![];
        for pair in roots.chunks(2) {
            let root = tracked(&pair[0])?;
            let fits = match pair[1] {
                NONE => root.at.len() == 1,
                seed => self.handle(seed)?.shape == root.shape,
            };
            from.push((root, pair[1]));
            if !fits {
                return None;
            }
        }
        if !inputs.iter().all(|i| tracked(i).is_some()) {
            return None;
        }
        let mut distinct = s.outs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let free = distinct.len() == s.outs.len() && s.outs.iter().all(|&o| self.is_free(o));
        (!from.is_empty() && inputs.len() == s.outs.len() && !inputs.is_empty() && free)
            .then(|| (from, inputs.to_vec()))
    }

    /// The expected outcome of a pass. Changes nothing except that it adds values to the tape.
    pub(crate) fn expect(&mut self, s: &Statement) -> Option<Expected> {
        let (roots, slots) = self.ends(s)?;
        let inputs: Vec<Handle> = slots.iter().filter_map(|&i| self.handle(i).cloned()).collect();
        let create = s.name == Name::GradCreate;
        let (ran, freed) = self.nodes_that_run(s, &roots, &inputs);
        let reads = ran.iter().flat_map(|r| &self.nodes[r.0].reads);
        let copied = reads.clone().filter(|r| r.need == Need::Copy);
        let spared = copied.filter(|r| self.touched(r.storage, &r.at, r.stamp) == Ground::Element).count() > 0;
        let reads = reads.filter(|r| r.need.matters());
        let strict = ran.iter().any(|&(n, certain)| certain && self.breaks_strict(n));
        let between = reads.clone().any(|r| self.between(r.storage, &r.at, r.stamp));
        // A pass also fails if a root was overwritten or, when the pass is recorded, if a seed was.
        let seeds = roots.iter().filter_map(|r| self.handle(r.1)).filter(|_| create);
        let stale = roots.iter().map(|r| &r.0).chain(seeds).filter(|h| self.is_stale(h));
        let stale = stale.map(|h| self.touched(h.storage, &h.at, h.stamp));
        let ground = reads.map(|r| self.ground(r)).chain(stale).chain(self.seeded(&ran, &roots));
        let ground = ground.fold(Ground::None, |a, b| if a < b { b } else { a });

        let ambiguous = self.ambiguous(&ran, &inputs);
        let before = self.tape.len();
        let mut weights: Vec<(Id, Id)> = vec![];
        for (root, seed) in &roots {
            let seed = match self.handle(*seed).cloned() {
                Some(h) => self.read(&h).ids,
                None => root.at.iter().map(|_| self.tape.constant(1.0)).collect(),
            };
            weights.extend(root.ids.iter().flatten().copied().zip(seed));
        }
        let mut bends = Bends::default();
        for h in &self.hooks {
            let list = if h.visible { &mut bends.visible } else { &mut bends.onwards };
            list.extend(h.bend.iter().flat_map(|&b| h.ids.iter().map(move |&id| (id, b))));
        }
        let found = self.tape.derivatives(&weights, &bends);
        let mut ids: Vec<Option<Vec<Id>>> = vec![];
        for input in &inputs {
            let own: Vec<Option<Id>> = input.ids.iter().flatten().map(|&id| found[id as usize]).collect();
            ids.push(if own.iter().all(Option::is_none) {
                None
            } else {
                Some(own.into_iter().map(|g| g.unwrap_or_else(|| self.tape.constant(0.0))).collect())
            });
        }
        let numbers = |ids: &Vec<Id>| ids.iter().map(|&g| self.tape.value(g)).collect();
        let gradients = ids.iter().map(|g| g.as_ref().map(numbers)).collect();
        if !create {
            self.tape.truncate(before);
        }
        let shapes = inputs.into_iter().map(|h| h.shape).collect();
        let seeds = roots.iter().map(|r| r.1).collect();
        Some(Expected {
            gradients,
            ids,
            inputs: slots,
            shapes,
            freed,
            ground,
            spared,
            between,
            strict,
            ambiguous,
            ran,
            seeds,
        })
    }

    /// Whether the numbers depend on how the gradient of softmax, `y (g - sum(g y))`, is differentiated again. The
    /// library differentiates it with respect to the output `y`, and from there to the input `x`. The reference
    /// differentiates it directly with respect to `x`. The gradients of `x` are the same, but those of `y`, and those
    /// that a hook on `y` sees, differ. Both are correct.
    fn ambiguous(&self, ran: &[(usize, bool)], inputs: &[Handle]) -> bool {
        let again = ran.iter().any(|r| self.nodes[r.0].kind == Kind::Pass);
        let bent = |id: &Id| self.hooks.iter().any(|h| h.bend.is_some() && h.ids.contains(id));
        let asked = |n: usize| inputs.iter().any(|h| h.node == Some(n)) || self.nodes[n].outputs.iter().any(bent);
        again && (0..self.nodes.len()).any(|n| self.nodes[n].by_output && asked(n))
    }

    /// The nodes that may run in a pass, each with whether it certainly does, and whether one of them was freed.
    fn nodes_that_run(
        &self,
        s: &Statement,
        roots: &[(Handle, Slot)],
        inputs: &[Handle],
    ) -> (Vec<(usize, bool)>, Freed) {
        let count = self.nodes.len();
        let (mut reached, mut certain) = (vec![false; count], vec![false; count]);
        for (h, _) in roots {
            h.node.into_iter().for_each(|n| (reached[n], certain[n]) = (true, true));
        }
        for n in (0..count).rev() {
            if reached[n] {
                self.nodes[n].inputs.iter().for_each(|&i| reached[i] = true);
            }
        }
        // Find the nodes that lead to an input. Perhaps only parts of a region or of a recorded pass do, so these are
        // not certain.
        let all = matches!(s.name, Name::Backward | Name::BackwardRetain);
        let (mut wanted, mut surely) = (vec![all; count], vec![all; count]);
        inputs.iter().filter_map(|h| h.node).for_each(|n| (wanted[n], surely[n]) = (true, true));
        for n in 0..count {
            let node = &self.nodes[n];
            wanted[n] = wanted[n] || node.inputs.iter().any(|&i| wanted[i]);
            surely[n] = surely[n] || node.kind == Kind::Operation && node.inputs.iter().any(|&i| surely[i]);
        }
        let mut ran = vec![];
        let mut freed = Freed::No;
        for n in (0..count).rev() {
            let node = &self.nodes[n];
            if node.kind == Kind::Leaf || !reached[n] || !node.inputs.iter().any(|&i| wanted[i]) {
                continue;
            }
            let runs = certain[n] && node.kind != Kind::Pass && (all || node.kind == Kind::Operation);
            let runs = runs && node.inputs.iter().any(|&i| surely[i]);
            ran.push((n, runs));
            freed = match (node.freed, runs) {
                (Freed::Yes, true) => Freed::Yes,
                (Freed::Yes | Freed::Maybe, _) if freed == Freed::No => Freed::Maybe,
                _ => freed,
            };
            if runs && node.kind == Kind::Operation {
                node.inputs.iter().for_each(|&i| certain[i] = true);
            }
        }
        (ran, freed)
    }

    /// A custom operation may receive a seed that shares memory with its operands. It then reads what was written
    /// there.
    fn seeded(&self, ran: &[(usize, bool)], roots: &[(Handle, Slot)]) -> Option<Ground> {
        let seeds = || roots.iter().filter_map(|r| self.handle(r.1)).map(|h| h.storage);
        let custom = ran.iter().map(|r| &self.nodes[r.0]).filter(|n| n.custom || n.kind == Kind::Pass);
        let mut reads = custom.flat_map(|n| &n.reads).filter(|r| seeds().any(|s| s == r.storage));
        reads.any(|r| self.ground(r) != Ground::None).then_some(Ground::Beside)
    }

    /// Whether a strict operation has an input that was overwritten and whose memory still exists.
    fn breaks_strict(&self, n: usize) -> bool {
        let there = |storage| self.handles.iter().flatten().any(|h| h.storage == storage);
        let broken = |r: &Read| self.touched(r.storage, &r.at, r.stamp) == Ground::Element && there(r.storage);
        let node = &self.nodes[n];
        node.kind == Kind::Operation && node.reads.iter().any(|r| r.need == Need::Strict && broken(r))
    }

    /// Which gradients of a pass depend on a leaf. If the pass is recorded, these must be tracked.
    pub(crate) fn moving(&self, e: &Expected) -> Vec<bool> {
        let one = |ids: &Option<Vec<Id>>| ids.iter().flatten().any(|&id| self.tape.moves(id));
        e.ids.iter().map(one).collect()
    }

    /// Whether a pass visits nodes that an earlier pass recorded.
    pub(crate) fn goes_through_a_pass(&self, e: &Expected) -> bool {
        e.ran.iter().any(|r| self.nodes[r.0].kind == Kind::Pass)
    }

    /// Updates the state after a pass that returned gradients. `tracked` says which of them the library tracks.
    pub(crate) fn passed(&mut self, s: &Statement, e: Expected, tracked: &[bool]) {
        if matches!(s.name, Name::Grad | Name::Backward) {
            for &(n, certain) in &e.ran {
                let node = &mut self.nodes[n];
                node.freed = if certain || node.freed == Freed::Yes { Freed::Yes } else { Freed::Maybe };
            }
        }
        let seeds: Vec<Handle> = e.seeds.iter().filter_map(|&h| self.handle(h).cloned()).collect();
        let whole = (s.name == Name::GradCreate).then(|| {
            let inputs = e.ran.iter().flat_map(|r| self.nodes[r.0].inputs.iter().copied().chain([r.0]));
            let mut inputs: Vec<usize> = inputs.chain(seeds.iter().filter_map(|h| h.node)).collect();
            inputs.sort_unstable();
            inputs.dedup();
            let mut reads: Vec<_> = e.ran.iter().flat_map(|r| self.nodes[r.0].reads.clone()).collect();
            reads.extend(seeds.iter().map(|h| self.noted(h)));
            // A region that runs again, and a pass on another thread, have their own switches.
            let plain = e.ran.iter().all(|r| self.nodes[r.0].kind == Kind::Operation) && s.number(1) < 2;
            let need = if plain && self.keeps_copies() && !self.mode.strict { Need::Copy } else { Need::Yes };
            let least = if self.mode.writes == Writes::Checked { Guard::Never } else { Guard::Maybe };
            for r in &mut reads {
                let guard = if r.guard == Guard::Never { least } else { Guard::Maybe };
                (r.need, r.guard, r.stamp) = (need, guard, self.clock);
            }
            self.record(inputs, reads, Kind::Pass)
        });
        for (i, &out) in s.outs.iter().enumerate() {
            let shape = &e.shapes[i];
            let zeros = || vec![0.0; shape.iter().product()];
            let mut h = self.constant(shape, e.gradients[i].clone().unwrap_or_else(zeros));
            let tracked = tracked.get(i).copied().unwrap_or(false);
            let ids = match &e.ids[i] {
                _ if !tracked => None,
                Some(ids) => Some(ids.clone()),
                None => Some(h.at.iter().map(|_| self.tape.constant(0.0)).collect()),
            };
            if let (Some(whole), Some(ids)) = (whole, ids) {
                let node = self.record(vec![whole], vec![], Kind::Operation);
                self.made_by(&mut h, node, &ids);
                h.tracked = tracked;
            }
            self.define(out, h);
        }
    }

    /// Updates the state after a pass that returned an error. Which nodes it had freed by then is unknown.
    pub(crate) fn failed(&mut self, s: &Statement, e: &Expected) {
        if matches!(s.name, Name::Grad | Name::Backward) {
            for &(n, _) in &e.ran {
                let node = &mut self.nodes[n];
                node.freed = if node.freed == Freed::Yes { Freed::Yes } else { Freed::Maybe };
            }
        }
    }
}
