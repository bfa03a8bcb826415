//! Random programs. Each is determined by a seed and a number. The reference runs alongside, so that every statement
//! fits its operands.

use crate::arrays::numel;
use crate::model::{Freed, Ground, Handle, Outcome, Reference};
use crate::passes::Expected;
use crate::program::{Name, Program, Random, Slot, Statement};
use crate::tables::{BINARY, MODES, REDUCE, ROWS, SCALARS, SHAPES, UNARY, VIEWS};

/// Program number `index` of a run.
pub(crate) fn program(seed: u64, index: u64) -> Program {
    let mut random = Random::new(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95));
    random.next();
    let mut maker =
        Maker { random, reference: Reference::new(), next: 1, statements: vec![], inside: false, compared: false };
    let twice = maker.random.chance(3);
    maker.start();
    let count = 4 + maker.random.below(12);
    let rest = |maker: &mut Maker| {
        (0..count).for_each(|_| maker.anything());
        maker.finish();
    };
    match maker.random.pick(MODES) {
        Some(name) if maker.random.chance(12) => maker.block(name, rest),
        _ => rest(&mut maker),
    }
    Program { statements: maker.statements, twice }
}

/// A program under construction.
pub(crate) struct Maker {
    pub(crate) random: Random,
    pub(crate) reference: Reference,
    next: Slot,
    pub(crate) statements: Vec<Statement>,
    /// Whether the statements belong to a checkpointed region.
    pub(crate) inside: bool,
    /// Whether a pass so far returned a nonzero gradient, and no error.
    pub(crate) compared: bool,
}

impl Maker {
    pub(crate) fn slot(&mut self) -> Slot {
        self.next += 1;
        self.next - 1
    }

    /// Adds a statement if it can be run.
    pub(crate) fn add(&mut self, s: Statement) -> bool {
        let delicate = matches!(
            s.name,
            Name::Relu
                | Name::Abs
                | Name::Clamp
                | Name::Maximum
                | Name::Minimum
                | Name::Max
                | Name::Min
                | Name::Checkpoint
        );
        let before = delicate.then(|| self.reference.clone());
        let done = match s.name {
            name if name.is_write() => match self.reference.check_write(&s) {
                Outcome::Done { .. } => {
                    self.reference.write(&s);
                    true
                }
                Outcome::Refuse(_) => self.random.chance(15),
                _ => false,
            },
            name if name.is_pass() => match self.reference.expect(&s) {
                Some(expected) => {
                    self.passed(&s, expected);
                    true
                }
                None => false,
            },
            Name::Hook | Name::Before | Name::After | Name::Unhook => !matches!(self.reference.hook(&s), Outcome::Skip),
            _ => match self.reference.step(&s) {
                Outcome::Skip => false,
                Outcome::Done { may_refuse: true } => {
                    s.outs.iter().for_each(|&out| self.reference.forget(out));
                    true
                }
                _ => true,
            },
        };
        match before {
            Some(before) if self.reference.tape.undecided || !done => {
                self.reference = before;
                return false;
            }
            _ => {}
        }
        if done {
            self.statements.push(s);
        }
        done
    }

    /// Applies a pass to the reference. If there is a reason for an error, the pass counts as failed.
    fn passed(&mut self, s: &Statement, e: Expected) {
        if e.ground != Ground::None || e.freed == Freed::Yes {
            return self.reference.failed(s, &e);
        }
        let nonzero = e.gradients.iter().flatten().flatten().any(|&v| v != 0.0);
        self.compared |= e.freed == Freed::No && !e.ambiguous && nonzero;
        let none = vec![false; s.outs.len()];
        let tracked = if s.name == Name::GradCreate { self.reference.moving(&e) } else { none };
        self.reference.passed(s, e, &tracked);
    }

    pub(crate) fn live(&self, wanted: impl Fn(&Handle) -> bool) -> Vec<Slot> {
        let slots = 0..self.reference.handles.len() as Slot;
        slots.filter(|&s| self.reference.handle(s).is_some_and(&wanted)).collect()
    }

    /// A random live tensor that fits. Recent ones are more likely.
    pub(crate) fn any(&mut self, wanted: impl Fn(&Handle) -> bool) -> Option<Slot> {
        let all = self.live(wanted);
        let (a, b) = (self.random.below(all.len()), self.random.below(all.len()));
        all.get(a.max(b)).copied()
    }

    /// A random operand. Tracked tensors are more likely, and tensors with large values are excluded.
    pub(crate) fn operand(&mut self) -> Option<Slot> {
        let tame = |r: &Reference, h: &Handle| r.numbers(h).iter().all(|v| v.abs() < 20.0);
        let all = self.live(|h| tame(&self.reference, h));
        let first = self.random.pick(&all)?;
        let second = self.random.pick(&all)?;
        let tracked = self.reference.handle(first).is_some_and(|h| h.tracked);
        Some(if tracked { first } else { first.max(second) })
    }

    pub(crate) fn shape(&self, slot: Slot) -> Vec<usize> {
        self.reference.handle(slot).map(|h| h.shape.clone()).unwrap_or_default()
    }

    pub(crate) fn seed(&mut self) -> i64 {
        self.random.below(100) as i64
    }

    pub(crate) fn fresh(&mut self, name: Name, shape: &[i64]) -> Slot {
        let (out, seed) = (self.slot(), self.seed());
        self.add(Statement::new(name, &[out], &[], &[&[seed], shape].concat()));
        out
    }

    fn start(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            let shape = self.random.pick(SHAPES).unwrap_or(&[]);
            self.fresh(Name::Leaf, shape);
        }
        for _ in 0..self.random.below(3) {
            let shape = self.random.pick(SHAPES).unwrap_or(&[]);
            self.fresh(Name::Data, shape);
        }
    }

    pub(crate) fn anything(&mut self) {
        match self.random.below(105) {
            104 => self.interleaved(),
            100.. => self.guarded(),
            0..=47 => self.operation(),
            48..=60 => self.view(),
            61..=78 => self.overwrite(),
            79..=82 => self.hook(),
            83..=86 => self.no_grad(),
            87..=92 => self.region(),
            93..=96 => self.pass(false),
            97 => {
                let (out, of) = (self.slot(), self.any(|_| true));
                of.map(|of| self.add(Statement::new(Name::Require, &[out], &[of], &[])));
            }
            98 => {
                if let Some(of) = self.any(|h| h.node.is_some()) {
                    self.add(Statement::new(Name::Drop, &[], &[of], &[]));
                }
            }
            _ => {
                if let Some(slot) = self.reference.hooks.first().map(|h| h.slot) {
                    self.add(Statement::new(Name::Unhook, &[], &[slot], &[]));
                }
            }
        }
    }

    /// Whether the operands stay away from the function's poles, and are small enough for moderate results.
    pub(crate) fn in_domain(&self, name: Name, of: &[Slot]) -> bool {
        let numbers = |i: usize| {
            of.get(i).and_then(|&s| self.reference.handle(s)).map(|h| self.reference.numbers(h)).unwrap_or_default()
        };
        let within = |i: usize, lo: f64, hi: f64| numbers(i).iter().all(|&v| lo < v && v < hi);
        match name {
            Name::Exp => within(0, -20.0, 3.0),
            Name::Sqrt | Name::Log => within(0, 0.1, 20.0),
            Name::Pow => within(0, 0.1, 4.0) && within(1, -3.0, 3.0),
            Name::Recip => numbers(0).iter().all(|v| v.abs() > 0.2),
            Name::Div => numbers(1).iter().all(|v| v.abs() > 0.2),
            Name::Cube | Name::Custom1 | Name::Square | Name::Prod | Name::Cumprod => within(0, -4.0, 4.0),
            Name::LogSumExp | Name::Softmax | Name::LogSoftmax | Name::CrossEntropy => within(0, -10.0, 10.0),
            _ => true,
        }
    }

    pub(crate) fn operation(&mut self) {
        for _ in 0..6 {
            let Some(first) = self.operand() else { return };
            let rank = self.shape(first).len();
            let (axis, seed) = (self.random.below(rank.max(1)) as i64, self.seed());
            let (name, numbers) = match self.random.below(100) {
                0..=34 => {
                    let name = self.random.pick(UNARY).unwrap_or(Name::Sin);
                    let value = self.random.pick(SCALARS).unwrap_or(4);
                    let numbers = match name {
                        Name::Scale | Name::Shift => vec![value],
                        Name::Dropout => vec![seed, 1 + seed % 7],
                        Name::Clamp => vec![-7, 9],
                        Name::MaskedFill => vec![1 + self.random.below(4094) as i64, value],
                        _ => vec![],
                    };
                    (name, numbers)
                }
                35..=69 => {
                    let name = self.random.pick(BINARY).unwrap_or(Name::Mul);
                    let numbers = match name {
                        Name::Cat | Name::Stack => vec![axis],
                        Name::ScatterAdd | Name::IndexAdd => vec![axis, seed],
                        _ => vec![],
                    };
                    (name, numbers)
                }
                70..=73 => (Name::Fused3, vec![]),
                74..=75 => (Name::Attention, vec![]),
                76..=86 if rank > 0 => {
                    let bits = 1 + self.random.below((1 << rank) - 1) as i64;
                    (self.random.pick(REDUCE).unwrap_or(Name::Sum), vec![bits, self.random.below(2) as i64, 0])
                }
                _ => {
                    let name = self.random.pick(ROWS).unwrap_or(Name::Softmax);
                    let numbers = match name {
                        Name::Gather => vec![axis, seed],
                        Name::IndexSelect => vec![axis, seed, seed / 2, seed / 3],
                        Name::LayerNorm | Name::RmsNorm => vec![],
                        Name::CrossEntropy => vec![seed],
                        _ => vec![axis],
                    };
                    (name, numbers)
                }
            };
            let mut of = vec![first];
            let more = match name {
                Name::Fused3 | Name::Attention => 2,
                name if BINARY.contains(&name) => 1,
                Name::LayerNorm => self.random.below(3),
                Name::RmsNorm => self.random.below(2),
                _ => 0,
            };
            for _ in 0..more {
                of.extend(self.operand());
            }
            let fresh = of.iter().filter_map(|&s| self.reference.handle(s)).all(|h| !self.reference.is_stale(h));
            if !self.in_domain(name, &of) || !fresh && self.random.chance(80) {
                continue;
            }
            let out = self.slot();
            if self.add(Statement::new(name, &[out], &of, &numbers)) {
                return;
            }
        }
    }

    /// Adds a view of a tensor, if a random one fits.
    pub(crate) fn view_of(&mut self, of: Slot) -> Option<Slot> {
        for _ in 0..4 {
            let shape = self.shape(of);
            let (rank, n) = (shape.len(), numel(&shape) as i64);
            let name = self.random.pick(VIEWS).unwrap_or(Name::Flip);
            let axis = self.random.below(rank.max(1));
            let other = self.random.below(rank.max(1));
            let size = shape.get(axis).copied().unwrap_or(1);
            let numbers: Vec<i64> = match name {
                Name::Slice => {
                    let start = self.random.below(size);
                    let least = usize::from(!self.random.chance(2));
                    let end = (start + least + self.random.below(size.saturating_sub(start))).min(size);
                    let step = 1 + self.random.below(2);
                    vec![axis as i64, start as i64, end as i64, step as i64]
                }
                Name::Select => vec![axis as i64, self.random.below(size) as i64],
                Name::Transpose => vec![axis as i64, other as i64],
                Name::Reshape => {
                    let half = if n % 2 == 0 { 2 } else { 1 };
                    self.random.pick(&[[n].as_slice(), &[half, n / half], &[n / half, half], &[1, n]])?.to_vec()
                }
                Name::Expand => {
                    let lead = 1 + self.random.below(2) as i64;
                    let stretched = shape.iter().map(|&d| if d == 1 { 2 } else { d as i64 });
                    if lead == 1 { stretched.collect() } else { std::iter::once(lead).chain(stretched).collect() }
                }
                Name::Diagonal => vec![self.random.below(3) as i64 - 1, axis as i64, other as i64],
                Name::Unsqueeze => vec![self.random.below(rank + 1) as i64],
                Name::Windows => vec![axis as i64, 1 + self.random.below(size) as i64, 1 + self.random.below(2) as i64],
                _ => vec![axis as i64],
            };
            let out = self.slot();
            if self.add(Statement::new(name, &[out], &[of], &numbers)) {
                return Some(out);
            }
        }
        None
    }

    pub(crate) fn view(&mut self) {
        let Some(mut of) = self.operand() else { return };
        for _ in 0..1 + self.random.below(2) {
            if self.reference.handle(of).is_none_or(|h| self.reference.is_stale(h)) {
                return;
            }
            let Some(view) = self.view_of(of) else { return };
            of = view;
        }
    }
}
