//! Writes in place and checkpointed regions in the reference.

use gradus_tensor::Generator;

use crate::arrays::{at, broadcast, fits, numel, places, with};
use crate::model::{Ground, Guard, Handle, Kind, Origin, Outcome, Reference, Region, Writes};
use crate::program::{Name, Statement, indices, masked, visit};
use crate::views::view;

/// Part of the error message for a write over a value that a graph protects.
pub(crate) const GUARDED: &str = "which this would overwrite";

/// The elements of a tensor of this shape that a write changes, in order, and the shape of the values that are written.
fn targets(s: &Statement, shape: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
    let count = s.place(1);
    let axis = if s.name == Name::IndexPutIn { 0 } else { s.place(2) };
    let by_index = s.name.writes_some() && !matches!(s.name, Name::AssignIn | Name::MaskedFillIn);
    if by_index && (axis >= shape.len() || count > 8 || count > 0 && shape[axis] == 0) {
        return None;
    }
    let wide = || with(shape, axis, count);
    let picked = |n: usize| indices(s.number(0), n, shape[axis]);
    match s.name {
        Name::AssignIn => {
            let (from, to) = (s.place(0), s.place(1));
            let (&size, rest) = shape.split_first()?;
            let row = numel(rest);
            (from <= to && to <= size).then(|| ((from * row..to * row).collect(), [&[to - from], rest].concat()))
        }
        Name::IndexPutIn | Name::IndexAddIn | Name::IndexCopyIn | Name::IndexFillIn => {
            let index = picked(count);
            let one = |i: &Vec<usize>| at(shape, &with(i, axis, index[i[axis]]));
            Some((places(&wide()).iter().map(one).collect(), wide())).filter(|found| fits(&found.1))
        }
        Name::ScatterIn | Name::ScatterAddIn => {
            let (all, index) = (places(&wide()), picked(numel(&wide())));
            let one = |(i, &k): (&Vec<usize>, &usize)| at(shape, &with(i, axis, k));
            Some((all.iter().zip(&index).map(one).collect(), wide())).filter(|found| fits(&found.1))
        }
        Name::MaskedFillIn => Some(((0..numel(shape)).filter(|&i| masked(s.number(0), i)).collect(), shape.to_vec())),
        _ => Some(((0..numel(shape)).collect(), shape.to_vec())),
    }
}

/// The elements that the library assumes a write changes. For an index along an axis, these are all from the first to
/// the last; for a mask, all elements.
fn logged(s: &Statement, shape: &[usize], elements: &[usize]) -> Vec<usize> {
    let all = places(shape);
    match s.name {
        Name::MaskedFillIn => (0..all.len()).collect(),
        name if name.writes_some() && name != Name::AssignIn => {
            let axis = if name == Name::IndexPutIn { 0 } else { s.place(2) };
            let along = || elements.iter().map(|&e| all[e][axis]);
            let (Some(first), Some(last)) = (along().min(), along().max()) else { return vec![] };
            (0..all.len()).filter(|&e| (first..=last).contains(&all[e][axis])).collect()
        }
        _ => elements.to_vec(),
    }
}

/// The new value of an element, computed from the old value and the value to write.
fn written(s: &Statement, x: f64, v: f64) -> f64 {
    match s.name {
        Name::AddIn | Name::IndexAddIn | Name::ScatterAddIn => x + v,
        Name::IndexPutIn if s.number(2) != 0 => x + v,
        Name::SubIn => x - v,
        Name::MulIn | Name::ScaleIn => x * v,
        Name::DivIn => x / v,
        Name::ClampIn => x.max(s.scalar(0)).min(s.scalar(1)),
        _ => v,
    }
}

/// The number to write if there is no source tensor.
fn scalar(s: &Statement) -> f64 {
    match s.name {
        Name::ZeroIn => 0.0,
        Name::IndexFillIn => s.scalar(3),
        Name::MaskedFillIn => s.scalar(1),
        _ => s.scalar(0),
    }
}

impl Reference {
    /// Whether a write is possible: `Skip`, `Refuse` (with text that the error must contain) or `Done`. Changes
    /// nothing.
    pub(crate) fn check_write(&self, s: &Statement) -> Outcome {
        let Some(to) = s.of.first().and_then(|&h| self.handle(h)) else { return Outcome::Skip };
        let needs_source = s.name.reads_another();
        let from = s.of.get(1).and_then(|&h| self.handle(h));
        let Some((elements, wanted)) = targets(s, &to.shape) else { return Outcome::Skip };
        // Most indexed writes require a source of exactly this shape. All other writes broadcast their source.
        let stretches = !s.name.writes_some() || matches!(s.name, Name::AssignIn | Name::IndexPutIn);
        let fits = |f: &Handle| broadcast(&[&wanted, &f.shape]).as_ref() == Some(&wanted);
        let fits = from.is_none_or(|f| f.shape == wanted || stretches && fits(f));
        let given = s.of.len() == if needs_source { 2 } else { 1 } && from.is_some() == needs_source;
        let ordered = s.name != Name::ClampIn || s.number(0) <= s.number(1);
        if !given || !fits || !ordered || !s.outs.is_empty() {
            return Outcome::Skip;
        }
        let mut places = to.at.to_vec();
        places.sort_unstable();
        let shared = places.windows(2).any(|w| w[0] == w[1]);
        if self.mode.recording && (to.tracked || from.is_some_and(|f| f.tracked)) {
            return Outcome::Refuse("a write in place is not recorded");
        }
        if shared {
            return Outcome::Refuse("share one place in memory");
        }
        let at = |elements: &[usize]| -> Vec<usize> { elements.iter().map(|&e| to.at[e]).collect() };
        match self.guard_of(to.storage, &at(&logged(s, &to.shape, &elements)), &at(&elements)) {
            Guard::Surely => Outcome::Refuse(GUARDED),
            guard => Outcome::Done { may_refuse: guard == Guard::Maybe },
        }
    }

    /// Performs a write that [`check_write`](Reference::check_write) allows.
    pub(crate) fn write(&mut self, s: &Statement) {
        let Some(to) = s.of.first().and_then(|&h| self.handle(h).cloned()) else { return };
        let source = s.of.get(1).and_then(|&h| self.handle(h).cloned());
        let Some((elements, wanted)) = targets(s, &to.shape) else { return };
        let operands: Vec<f64> = match &source {
            Some(f) => {
                self.note(f);
                let sizes: Vec<i64> = wanted.iter().map(|&n| n as i64).collect();
                let stretched = Statement::new(Name::Expand, &[], &[], &sizes);
                let from = view(&stretched, &f.shape).map_or_else(|| (0..numel(&wanted)).collect(), |v| v.1);
                let numbers = self.numbers(f);
                from.iter().map(|&n| numbers[n]).collect()
            }
            None => vec![scalar(s); elements.len()],
        };
        self.note(&to);
        let logged = logged(s, &to.shape, &elements);
        if logged.is_empty() {
            return;
        }
        self.clock += 1;
        let storage = &mut self.storages[to.storage];
        for (&e, v) in elements.iter().zip(operands) {
            let p = to.at[e];
            storage.numbers[p] = written(s, storage.numbers[p], v);
            storage.written[p] = self.clock;
        }
        logged.iter().for_each(|&e| storage.logged[to.at[e]] = self.clock);
        if let Some(region) = self.regions.last_mut() {
            region.outlived |= to.storage < region.storages;
        }
    }

    /// Runs the statements of a checkpointed region, and records one node for all of them.
    pub(crate) fn region(&mut self, s: &Statement) -> Option<Outcome> {
        let passed: Vec<Handle> = s.of.iter().map(|&h| self.handle(h).cloned()).collect::<Option<_>>()?;
        let mut defined = vec![];
        visit(&s.body, &mut |b| defined.extend(&b.outs));
        let given = s.gives.iter().all(|g| defined.contains(g));
        let mut distinct = s.outs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let fits = s.outs.len() == s.gives.len() && !s.outs.is_empty() && distinct.len() == s.outs.len();
        if !fits
            || !given
            || s.outs.iter().any(|o| defined.contains(o))
            || !self.regions.is_empty() && !self.mode.recording
        {
            return None;
        }
        let mut writes = false;
        visit(&s.body, &mut |b| writes |= b.name.is_write());
        if writes && self.mode.writes == Writes::Refused {
            // Under `strict_inplace`, a region that overwrites its own values is refused only when it runs again. Skip
            // it.
            return None;
        }
        let untouched = self.clone();
        let outermost = self.generator.is_none();
        self.generator.get_or_insert_with(|| Generator::new(s.number(0).unsigned_abs()));
        if self.mode.recording {
            let inputs = passed.iter().filter(|h| h.tracked).filter_map(|h| h.node).collect();
            let reads = passed.iter().map(|h| self.noted(h)).collect();
            let (storages, nodes) = (self.storages.len(), self.nodes.len());
            self.regions.push(Region { storages, nodes, reads, inputs, outlived: false });
        }
        let mut body = vec![];
        let mut may_refuse = self.mode.recording && passed.iter().any(|h| self.is_stale(h));
        let mut outlived = false;
        for b in &s.body {
            body.extend(self.inside(b, &mut may_refuse, &mut outlived));
        }
        self.generator.take_if(|_| outermost);
        let inner: Option<Vec<Handle>> = s.gives.iter().map(|&g| self.handle(g).cloned()).collect();
        let mut made = vec![];
        visit(&body, &mut |b| made.extend(&b.outs));
        made.iter().for_each(|&slot| self.forget(slot));
        let region = if self.mode.recording { self.regions.pop() } else { None };
        let Some(inner) = inner else {
            // An output is missing, so the region is not run.
            *self = untouched;
            return None;
        };
        may_refuse |= region.is_some() && inner.iter().any(|h| self.is_stale(h));
        let refuse = outlived || region.as_ref().is_some_and(|r| r.outlived);
        if refuse {
            return Some(Outcome::Region { body, refuse, may_refuse });
        }
        let node = region.map(|mut r| {
            for outer in &mut self.regions {
                outer.reads.extend(r.reads.iter().filter(|x| x.storage < outer.storages).cloned());
                outer.inputs.extend(r.inputs.iter().filter(|&&n| n < outer.nodes));
            }
            r.inputs.sort_unstable();
            r.inputs.dedup();
            // If the region overwrote a value that one of its operations needs, it does so again in its second run.
            // Such reads count as reads of the region.
            let inner = self.nodes[r.nodes..].iter().flat_map(|n| &n.reads).filter(|x| x.need.matters());
            r.reads.extend(inner.filter(|x| self.touched(x.storage, &x.at, x.stamp) != Ground::None).cloned());
            self.record(r.inputs, r.reads, Kind::Region)
        });
        for (&out, mut h) in s.outs.iter().zip(inner) {
            if let (Some(node), Some(_)) = (node, &h.ids) {
                let seen = self.read(&h);
                self.made_by(&mut h, node, &seen.ids);
                h.origin = Origin::Computed;
            } else {
                h.ids = None;
                (h.tracked, h.node) = (false, None);
            }
            self.define(out, h);
        }
        Some(Outcome::Region { body, refuse, may_refuse })
    }

    /// Runs one statement of a region. Returns the part of it that could be run.
    fn inside(&mut self, s: &Statement, may_refuse: &mut bool, outlived: &mut bool) -> Option<Statement> {
        if s.name == Name::NoGrad {
            let before = self.enter(s.name);
            let body = s.body.iter().filter_map(|b| self.inside(b, may_refuse, outlived)).collect();
            self.mode = before;
            return Some(Statement { body, ..s.clone() });
        }
        if s.name.is_write() {
            let Outcome::Done { may_refuse: false } = self.check_write(s) else { return None };
            self.write(s);
            return Some(s.clone());
        }
        if s.name.is_pass()
            || s.name.is_mode()
            || matches!(s.name, Name::Hook | Name::Before | Name::After | Name::Unhook)
        {
            return None;
        }
        self.may_refuse = false;
        let outcome = self.run(s)?;
        match outcome {
            Outcome::Done { may_refuse: m } => {
                *may_refuse |= m;
                Some(s.clone())
            }
            Outcome::Region { body, refuse, may_refuse: m } => {
                *may_refuse |= m;
                *outlived |= refuse;
                Some(Statement { body, ..s.clone() })
            }
            Outcome::Refuse(_) | Outcome::Skip => None,
        }
    }
}
