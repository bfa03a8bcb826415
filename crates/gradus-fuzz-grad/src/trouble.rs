//! Adds the parts of random programs that make gradients difficult: writes, hooks, blocks and backward passes.

use crate::generate::Maker;
use crate::model::{Handle, Kind, Need, Reference};
use crate::program::{NONE, Name, Slot, Statement, visit};
use crate::tables::{CURVES, MODES, SCALARS, WRITES};

impl Maker {
    /// Adds a write in place, usually through an alias.
    pub(crate) fn overwrite(&mut self) {
        let choice = self.random.below(100);
        let Some(mut to) = self.any(|h| if choice < 60 { h.tracked } else { !h.tracked }) else { return };
        let tracked = self.reference.handle(to).is_some_and(|h| h.tracked);
        if tracked && self.reference.mode.recording {
            let refused = self.random.chance(5);
            if !refused && self.random.chance(30) {
                // Write directly, in a block in which nothing is recorded.
                self.block(Name::NoGrad, |maker| {
                    maker.write_to(to);
                });
                return;
            }
            if !refused {
                let out = self.slot();
                self.add(Statement::new(Name::Detach, &[out], &[to], &[]));
                to = out;
            }
        }
        while self.random.chance(30) {
            let Some(view) = self.view_of(to) else { break };
            to = view;
        }
        self.write_to(to);
    }

    /// Adds a pass that needs every other row or column of a tensor, and a write to those in between.
    pub(crate) fn interleaved(&mut self) {
        let wide = |h: &Handle| h.shape.iter().any(|&n| n > 1) && h.at.len() > 2;
        if self.inside {
            return;
        }
        let Some(of) = self.any(wide) else { return };
        let shape = self.shape(of);
        let axes: Vec<usize> = (0..shape.len()).filter(|&k| shape[k] > 1).collect();
        let Some(axis) = self.random.pick(&axes) else { return };
        let first = self.random.below(2) as i64;
        let (size, axis) = (shape[axis] as i64, axis as i64);
        let (base, needed, between) = (self.slot(), self.slot(), self.slot());
        let half = |start| [axis, start, size, 2];
        let viewed = self.add(Statement::new(Name::Slice, &[needed], &[of], &half(first)))
            && self.add(Statement::new(Name::Detach, &[base], &[of], &[]))
            && self.add(Statement::new(Name::Slice, &[between], &[base], &half(1 - first)));
        if !viewed {
            return;
        }
        let shape: Vec<i64> = self.shape(needed).iter().map(|&n| n as i64).collect();
        let (leaf, out) = (self.fresh(Name::Leaf, &shape), self.slot());
        if self.add(Statement::new(Name::Mul, &[out], &[needed, leaf], &[])) {
            self.write_to(between);
            let name = if self.random.chance(30) { Name::GradCreate } else { Name::Grad };
            self.pass_from(name, out);
        }
    }

    fn write_to(&mut self, to: Slot) {
        for _ in 0..4 {
            let name = self.random.pick(WRITES).unwrap_or(Name::FillIn);
            let value = self.random.pick(SCALARS).unwrap_or(4);
            let shape = self.shape(to);
            let (size, axis) = (shape.first().copied().unwrap_or(0), self.random.below(shape.len().max(1)));
            let count = self.random.below(4);
            let numbers = match name {
                Name::AssignIn => {
                    let start = self.random.below(size);
                    vec![start as i64, (start + self.random.below(3)).min(size) as i64]
                }
                Name::IndexAddIn | Name::IndexCopyIn | Name::ScatterIn | Name::ScatterAddIn => {
                    vec![self.seed(), count as i64, axis as i64]
                }
                Name::IndexFillIn => vec![self.seed(), count as i64, axis as i64, value],
                Name::MaskedFillIn => vec![self.random.below(4096) as i64, value],
                Name::ClampIn => vec![-4, 6],
                Name::IndexPutIn => {
                    vec![self.seed(), 1 + self.random.below(3) as i64, self.random.below(2) as i64]
                }
                Name::FillIn | Name::ScaleIn => vec![value],
                _ => vec![],
            };
            let mut of = vec![to];
            if matches!(name, Name::IndexAddIn | Name::IndexCopyIn | Name::ScatterIn | Name::ScatterAddIn) {
                // A tensor with the shape of the index rarely exists, so make one.
                let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
                if let Some(at) = shape.get(axis).copied() {
                    let wanted: Vec<i64> = [&shape[..axis], &[count as i64], &shape[axis + 1..]].concat();
                    let wanted = if at == 0 { vec![] } else { wanted };
                    of.push(self.fresh(Name::Data, &wanted));
                }
            } else if name.reads_another() {
                let wide = self.reference.mode.recording;
                of.extend(self.any(|h| !(wide && h.tracked)));
            }
            if name == Name::DivIn && !self.in_domain(Name::Div, &of) {
                continue;
            }
            if self.add(Statement::new(name, &[], &of, &numbers)) {
                return;
            }
        }
    }

    pub(crate) fn hook(&mut self) {
        let Some(of) = self.any(|h| h.tracked) else { return };
        let name = [Name::Hook, Name::Hook, Name::Hook, Name::Before, Name::After][self.random.below(5)];
        let (out, kind) = (self.slot(), self.random.below(3) as i64);
        let factor = [-4, 4, 12, 16][self.random.below(4)];
        self.add(Statement::new(name, &[out], &[of], &[kind, factor]));
    }

    /// Adds a block whose body is the statements that `f` adds.
    pub(crate) fn block(&mut self, name: Name, f: impl FnOnce(&mut Self)) {
        let outer = std::mem::take(&mut self.statements);
        let before = self.reference.enter(name);
        f(self);
        self.reference.mode = before;
        let body = std::mem::replace(&mut self.statements, outer);
        if !body.is_empty() {
            self.statements.push(Statement { body, ..Statement::new(name, &[], &[], &[]) });
        }
    }

    pub(crate) fn no_grad(&mut self) {
        self.block(Name::NoGrad, |maker| {
            for _ in 0..1 + maker.random.below(3) {
                match maker.random.below(4) {
                    0 => maker.view(),
                    1 => maker.overwrite(),
                    _ => maker.operation(),
                }
            }
        });
    }

    /// Adds a part of the program under a switch for saved tensors.
    pub(crate) fn guarded(&mut self) {
        let name = self.random.pick(MODES).unwrap_or(Name::Packed);
        self.block(name, |maker| {
            for _ in 0..1 + maker.random.below(5) {
                maker.anything();
            }
        });
    }

    /// Adds a checkpointed region. Its statements are first made as plain statements, and then become its body.
    pub(crate) fn region(&mut self) {
        let before = self.reference.clone();
        let was_inside = std::mem::replace(&mut self.inside, true);
        let outer = std::mem::take(&mut self.statements);
        for _ in 0..1 + self.random.below(4) {
            match self.random.below(20) {
                0..=11 => self.operation(),
                12..=15 => self.view(),
                16 => {
                    let local = self.fresh(Name::Data, &[2]);
                    self.write_to(local);
                }
                17 if !was_inside => self.region(),
                18 => self.no_grad(),
                _ => {
                    if self.random.chance(20) {
                        self.overwrite();
                    }
                }
            }
        }
        self.inside = was_inside;
        let body = std::mem::replace(&mut self.statements, outer);
        self.reference = before;
        let mut defined = vec![];
        visit(&body, &mut |s| {
            if s.name != Name::Checkpoint {
                defined.extend(s.outs.iter().copied());
            }
        });
        let mut inner = vec![];
        body.iter().filter(|s| s.name == Name::Checkpoint).for_each(|s| {
            visit(&s.body, &mut |b| inner.extend(b.outs.iter().copied()));
            defined.extend(&s.outs);
        });
        defined.retain(|d| !inner.contains(d));
        let mut gives = vec![];
        for _ in 0..1 + self.random.below(2) {
            let (a, b) = (self.random.below(defined.len()), self.random.below(defined.len()));
            gives.extend(defined.get(a.max(b)));
        }
        let outs: Vec<Slot> = gives.iter().map(|_| self.slot()).collect();
        let mut of = vec![];
        for _ in 0..self.random.below(3) {
            of.extend(self.any(|h| h.tracked));
        }
        if !gives.is_empty() {
            let seed = self.seed();
            self.add(Statement { body, gives, ..Statement::new(Name::Checkpoint, &outs, &of, &[seed]) });
        }
    }

    /// A scalar that depends on every element of a tensor, each with its own weight.
    fn scalar(&mut self, of: Slot) -> Option<Slot> {
        let shape: Vec<i64> = self.shape(of).iter().map(|&n| n as i64).collect();
        if shape.is_empty() || self.reference.handle(of).is_none_or(|h| self.reference.is_stale(h)) {
            return Some(of).filter(|_| shape.is_empty());
        }
        let weights = self.fresh(Name::Data, &shape);
        let (product, sum) = (self.slot(), self.slot());
        let bits = (1 << shape.len()) - 1;
        let done = self.add(Statement::new(Name::Mul, &[product], &[of, weights], &[]))
            && self.add(Statement::new(Name::Sum, &[sum], &[product], &[bits, 0]));
        done.then_some(sum)
    }

    /// Adds a pass and, if it is recorded, perhaps passes through its gradients.
    pub(crate) fn pass(&mut self, last: bool) {
        if self.inside {
            return;
        }
        let create = self.random.chance(if last { 40 } else { 20 });
        let name = match self.random.below(10) {
            _ if create => Name::GradCreate,
            0..=2 => Name::GradRetain,
            3..=4 => Name::Backward,
            5 => Name::BackwardRetain,
            _ if last => Name::Grad,
            6..=7 => Name::Grad,
            _ => Name::GradRetain,
        };
        let Some(s) = self.one_pass(name) else { return };
        if matches!(name, Name::Grad | Name::Backward) && self.random.chance(20) {
            // A second pass over a freed graph.
            let outs = s.outs.iter().map(|_| self.slot()).collect();
            self.add(Statement { outs, ..s });
        } else if create {
            // Gradients of gradients, up to the third order.
            let mut outs = s.outs;
            for _ in 0..2 {
                let tracked: Vec<Slot> = outs.iter().copied().filter(|&o| self.is_tracked(o)).collect();
                let Some(of) = self.random.pick(&tracked) else { return };
                if self.random.chance(10) {
                    self.overwrite();
                }
                let of = if self.random.chance(30) { self.curve(of) } else { of };
                let Some(root) = self.scalar(of) else { return };
                let name = if self.random.chance(30) { Name::GradCreate } else { Name::Grad };
                match self.pass_from(name, root) {
                    Some(s) if name == Name::GradCreate => outs = s.outs,
                    _ => return,
                }
            }
        }
    }

    fn is_tracked(&self, slot: Slot) -> bool {
        self.reference.handle(slot).is_some_and(|h| h.tracked)
    }

    /// Adds a nonlinear function of a tensor. Returns the tensor itself if no function fits.
    fn curve(&mut self, of: Slot) -> Slot {
        for _ in 0..4 {
            let name = self.random.pick(CURVES).unwrap_or(Name::Sin);
            let out = self.slot();
            let operands: &[Slot] = if name == Name::Mul { &[of, of] } else { &[of] };
            if self.in_domain(name, operands) && self.add(Statement::new(name, &[out], operands, &[])) {
                return out;
            }
        }
        of
    }

    fn one_pass(&mut self, name: Name) -> Option<Statement> {
        let mut root = self.any(|h| h.tracked && h.node.is_some())?;
        let create = name == Name::GradCreate;
        if create && self.random.chance(70) {
            let sound = self.live(|h| h.tracked && h.node.is_some() && !self.reference.is_stale(h));
            root = self.random.pick(&sound).unwrap_or(root);
            root = self.curve(root);
        }
        if self.random.chance(if create { 15 } else { 40 }) {
            root = self.scalar(root)?;
            self.spoil(root);
        }
        self.pass_from(name, root)
    }

    /// Overwrites something that a gradient of `root` needs.
    fn spoil(&mut self, root: Slot) {
        let mut stack: Vec<usize> = self.reference.handle(root).and_then(|h| h.node).into_iter().collect();
        let mut needed = vec![];
        while let (Some(n), true) = (stack.pop(), stack.len() < 100) {
            let node = &self.reference.nodes[n];
            needed.extend(node.reads.iter().filter(|r| r.need != Need::No).map(|r| r.storage));
            stack.extend(&node.inputs);
        }
        let Some(of) = self.any(|h| needed.contains(&h.storage)) else { return };
        let alias = self.slot();
        self.add(Statement::new(Name::Detach, &[alias], &[of], &[]));
        let view = if self.random.chance(40) { self.view_of(alias) } else { None };
        self.write_to(view.unwrap_or(alias));
    }

    /// Adds a pass from a root, and returns it.
    fn pass_from(&mut self, name: Name, root: Slot) -> Option<Statement> {
        let statement = if matches!(name, Name::Backward | Name::BackwardRetain) {
            Statement::new(name, &[], &[self.scalar(root)?], &[])
        } else {
            let mut of = vec![];
            let count = 1 + usize::from(self.random.chance(15));
            for k in 0..count {
                let root = if k == 0 { root } else { self.any(|h| h.tracked)? };
                let shape = self.shape(root);
                let fits = |r: &Reference, h: &Handle| h.shape == shape && !r.is_stale(h);
                let seeds = self.live(|h| fits(&self.reference, h));
                match self.random.pick(&seeds) {
                    Some(seed) if self.random.chance(25) => of.extend([root, seed]),
                    _ => of.extend([self.scalar(root)?, NONE]),
                }
            }
            let mut inputs = vec![];
            let above = self.above(of.iter().step_by(2));
            for _ in 0..1 + self.random.below(3) {
                let (any, apart) = (self.random.chance(25), self.random.chance(15));
                let leaf = |r: &Reference, n: usize| r.nodes[n].inputs.is_empty();
                let fits = |n: usize| (any || leaf(&self.reference, n)) && (apart || above[n]);
                let all = self.live(|h| h.tracked && h.node.is_some_and(fits));
                inputs.extend(self.random.pick(&all));
            }
            let outs: Vec<Slot> = inputs.iter().map(|_| self.slot()).collect();
            of.extend(&inputs);
            let threads = if self.random.chance(4) { 2 } else { 1 };
            Statement::new(name, &outs, &of, &[count as i64, threads])
        };
        self.add(statement.clone()).then_some(statement)
    }

    /// The nodes that some tensors were computed from.
    fn above<'a>(&self, of: impl Iterator<Item = &'a Slot>) -> Vec<bool> {
        let mut above = vec![false; self.reference.nodes.len()];
        of.filter_map(|&slot| self.reference.handle(slot)?.node).for_each(|n| above[n] = true);
        for n in (0..above.len()).rev().filter(|&n| self.reference.nodes[n].kind != Kind::Leaf) {
            if above[n] {
                self.reference.nodes[n].inputs.iter().for_each(|&i| above[i] = true);
            }
        }
        above
    }

    /// Ends the program with at least one gradient.
    pub(crate) fn finish(&mut self) {
        for _ in 0..1 + self.random.below(2) {
            self.pass(true);
        }
        for _ in 0..3 {
            if self.compared {
                return;
            }
            let leaf = self.fresh(Name::Leaf, &[2]);
            let root = self.curve(leaf);
            self.pass_from(Name::Grad, root);
        }
    }
}
