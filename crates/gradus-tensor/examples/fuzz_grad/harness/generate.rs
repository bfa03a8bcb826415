//! Random programs. Each is a function of a seed and a number; the reference runs along, so that what is made fits.

use super::arrays::numel;
use super::program::{NONE, Name, Program, Random, Slot, Statement};
use super::reference::{Handle, Outcome, Reference};

/// Program number `index` of a run.
pub(crate) fn program(seed: u64, index: u64) -> Program {
    let mut random = Random::new(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95));
    random.next();
    let mut maker = Maker { random, reference: Reference::new(), next: 1, statements: vec![], inside: false };
    let twice = maker.random.chance(3);
    maker.start();
    let count = 4 + maker.random.below(12);
    for _ in 0..count {
        maker.anything();
    }
    maker.finish();
    Program { statements: maker.statements, twice }
}

const UNARY: &[Name] = &[
    Name::Neg,
    Name::Sin,
    Name::Cos,
    Name::Tanh,
    Name::Exp,
    Name::Sigmoid,
    Name::Square,
    Name::Silu,
    Name::Softplus,
    Name::Relu,
    Name::Abs,
    Name::Sqrt,
    Name::Log,
    Name::Recip,
    Name::Cube,
    Name::Scale,
    Name::Shift,
    Name::Clamp,
    Name::MaskedFill,
    Name::Fused1,
    Name::Copy,
];
const BINARY: &[Name] = &[
    Name::Add,
    Name::Sub,
    Name::Mul,
    Name::Mul,
    Name::Mul,
    Name::Div,
    Name::Maximum,
    Name::Minimum,
    Name::Pow,
    Name::SiluMul,
    Name::Fused2,
    Name::Matmul,
    Name::Matmul,
    Name::Cat,
    Name::Stack,
    Name::ScatterAdd,
    Name::IndexAdd,
];
const REDUCE: &[Name] = &[Name::Sum, Name::Mean, Name::Prod, Name::Max, Name::Min, Name::LogSumExp, Name::Var];
const ROWS: &[Name] = &[
    Name::Softmax,
    Name::LogSoftmax,
    Name::Cumsum,
    Name::Cumprod,
    Name::LayerNorm,
    Name::RmsNorm,
    Name::Gather,
    Name::IndexSelect,
    Name::CrossEntropy,
];
const VIEWS: &[Name] = &[
    Name::Slice,
    Name::Slice,
    Name::Select,
    Name::Transpose,
    Name::Reshape,
    Name::Expand,
    Name::Flip,
    Name::Diagonal,
    Name::Squeeze,
    Name::Unsqueeze,
    Name::Windows,
];
const WRITES: &[Name] = &[
    Name::FillIn,
    Name::FillIn,
    Name::ScaleIn,
    Name::ScaleIn,
    Name::AddIn,
    Name::SubIn,
    Name::MulIn,
    Name::CopyIn,
    Name::ClampIn,
];
const SHAPES: &[&[i64]] = &[
    &[],
    &[1],
    &[2],
    &[3],
    &[4],
    &[2, 2],
    &[2, 3],
    &[3, 2],
    &[1, 3],
    &[3, 1],
    &[3, 3],
    &[2, 1, 2],
    &[1, 2, 3],
    &[2, 2, 2],
];

struct Maker {
    random: Random,
    reference: Reference,
    next: Slot,
    statements: Vec<Statement>,
    /// Whether a region is being made.
    inside: bool,
}

impl Maker {
    fn slot(&mut self) -> Slot {
        self.next += 1;
        self.next - 1
    }

    /// Adds a statement if it can be run.
    fn add(&mut self, s: Statement) -> bool {
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
                Outcome::Refuse => self.random.chance(15),
                _ => false,
            },
            name if name.is_pass() => match self.reference.expect(&s) {
                Some(expected) => {
                    let tracked = vec![s.name == Name::GradCreate; s.outs.len()];
                    self.reference.passed(&s, expected, &tracked);
                    true
                }
                None => false,
            },
            Name::Hook | Name::Before | Name::After | Name::Unhook => !matches!(self.reference.hook(&s), Outcome::Skip),
            _ => !matches!(self.reference.step(&s), Outcome::Skip),
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

    fn live(&self, wanted: impl Fn(&Handle) -> bool) -> Vec<Slot> {
        let slots = 0..self.reference.handles.len() as Slot;
        slots.filter(|&s| self.reference.handle(s).is_some_and(&wanted)).collect()
    }

    /// One of the live tensors, later ones more often.
    fn any(&mut self, wanted: impl Fn(&Handle) -> bool) -> Option<Slot> {
        let all = self.live(wanted);
        let (a, b) = (self.random.below(all.len()), self.random.below(all.len()));
        all.get(a.max(b)).copied()
    }

    /// A tensor to compute with: tracked ones more often, none of large numbers.
    fn operand(&mut self) -> Option<Slot> {
        let tame = |r: &Reference, h: &Handle| r.numbers(h).iter().all(|v| v.abs() < 20.0);
        let all = self.live(|h| tame(&self.reference, h));
        let first = self.random.pick(&all)?;
        let second = self.random.pick(&all)?;
        let tracked = self.reference.handle(first).is_some_and(|h| h.tracked);
        Some(if tracked { first } else { first.max(second) })
    }

    fn shape(&self, slot: Slot) -> Vec<usize> {
        self.reference.handle(slot).map(|h| h.shape.clone()).unwrap_or_default()
    }

    fn seed(&mut self) -> i64 {
        self.random.below(100) as i64
    }

    fn fresh(&mut self, name: Name, shape: &[i64]) -> Slot {
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

    fn anything(&mut self) {
        match self.random.below(100) {
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

    /// Whether a function is far from its poles and kinks there.
    fn in_domain(&self, name: Name, of: &[Slot]) -> bool {
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
            Name::Cube | Name::Square | Name::Prod | Name::Cumprod => within(0, -4.0, 4.0),
            Name::LogSumExp | Name::Softmax | Name::LogSoftmax | Name::CrossEntropy => within(0, -10.0, 10.0),
            _ => true,
        }
    }

    fn operation(&mut self) {
        for _ in 0..6 {
            let Some(first) = self.operand() else { return };
            let rank = self.shape(first).len();
            let (axis, seed) = (self.random.below(rank.max(1)) as i64, self.seed());
            let (name, numbers) = match self.random.below(100) {
                0..=34 => {
                    let name = self.random.pick(UNARY).unwrap_or(Name::Sin);
                    let value = [-12, -4, 4, 6, 10, 12][self.random.below(6)];
                    let numbers = match name {
                        Name::Scale | Name::Shift => vec![value],
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
            if !self.in_domain(name, &of) || !fresh {
                continue;
            }
            let out = self.slot();
            if self.add(Statement::new(name, &[out], &of, &numbers)) {
                return;
            }
        }
    }

    /// A view of a tensor, if one can be had.
    fn view_of(&mut self, of: Slot) -> Option<Slot> {
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
                    let end = start + 1 + self.random.below(size - start);
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

    fn view(&mut self) {
        let Some(mut of) = self.operand() else { return };
        for _ in 0..1 + self.random.below(2) {
            if self.reference.handle(of).is_none_or(|h| self.reference.is_stale(h)) {
                return;
            }
            let Some(view) = self.view_of(of) else { return };
            of = view;
        }
    }

    /// A write in place, through an alias more often than not.
    fn overwrite(&mut self) {
        let choice = self.random.below(100);
        let Some(mut to) = self.any(|h| if choice < 60 { h.tracked } else { !h.tracked }) else { return };
        let tracked = self.reference.handle(to).is_some_and(|h| h.tracked);
        if tracked && self.reference.recording {
            let refused = self.random.chance(5);
            if !refused && self.random.chance(30) {
                // Directly, where nothing is recorded.
                self.block(|maker| {
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

    fn write_to(&mut self, to: Slot) {
        for _ in 0..4 {
            let name = self.random.pick(WRITES).unwrap_or(Name::FillIn);
            let value = [-9, 3, 5, 7, 11, 13][self.random.below(6)];
            let from = matches!(name, Name::AddIn | Name::SubIn | Name::MulIn | Name::CopyIn);
            let mut of = vec![to];
            if from {
                let wide = self.reference.recording;
                of.extend(self.any(|h| !(wide && h.tracked)));
            }
            let numbers = match name {
                Name::ClampIn => vec![-4, 6],
                Name::FillIn | Name::ScaleIn => vec![value],
                _ => vec![],
            };
            if self.add(Statement::new(name, &[], &of, &numbers)) {
                return;
            }
        }
    }

    fn hook(&mut self) {
        let Some(of) = self.any(|h| h.tracked) else { return };
        let name = [Name::Hook, Name::Hook, Name::Hook, Name::Before, Name::After][self.random.below(5)];
        let (out, kind) = (self.slot(), self.random.below(3) as i64);
        let factor = [-4, 4, 12, 16][self.random.below(4)];
        self.add(Statement::new(name, &[out], &[of], &[kind, factor]));
    }

    /// What `f` adds, as the body of a block of `no_grad`.
    fn block(&mut self, f: impl FnOnce(&mut Self)) {
        let outer = std::mem::take(&mut self.statements);
        let before = std::mem::replace(&mut self.reference.recording, false);
        f(self);
        self.reference.recording = before;
        let body = std::mem::replace(&mut self.statements, outer);
        if !body.is_empty() {
            self.statements.push(Statement { body, ..Statement::new(Name::NoGrad, &[], &[], &[]) });
        }
    }

    fn no_grad(&mut self) {
        self.block(|maker| {
            for _ in 0..1 + maker.random.below(3) {
                match maker.random.below(4) {
                    0 => maker.view(),
                    1 => maker.overwrite(),
                    _ => maker.operation(),
                }
            }
        });
    }

    /// A checkpointed region: made as plain statements, which are then its body.
    fn region(&mut self) {
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
        super::program::visit(&body, &mut |s| {
            if s.name != Name::Checkpoint {
                defined.extend(s.outs.iter().copied());
            }
        });
        let mut inner = vec![];
        body.iter().filter(|s| s.name == Name::Checkpoint).for_each(|s| {
            super::program::visit(&s.body, &mut |b| inner.extend(b.outs.iter().copied()));
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
            self.add(Statement { body, gives, ..Statement::new(Name::Checkpoint, &outs, &of, &[]) });
        }
    }

    /// A scalar that weighs every element of a tensor.
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

    /// Gradients of something, and if they are recorded, perhaps gradients of them.
    fn pass(&mut self, last: bool) {
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
            // Once more over what was freed.
            let outs = s.outs.iter().map(|_| self.slot()).collect();
            self.add(Statement { outs, ..s });
        } else if create && self.random.chance(75) {
            let Some(of) = self.random.pick(&s.outs) else { return };
            if self.random.chance(25) {
                self.overwrite();
            }
            let root = if self.random.chance(70) { self.scalar(of) } else { None };
            let Some(root) = root else { return };
            let name = if self.random.chance(20) { Name::GradCreate } else { Name::Grad };
            self.pass_from(name, root);
        }
    }

    fn one_pass(&mut self, name: Name) -> Option<Statement> {
        let root = self.any(|h| h.tracked && h.node.is_some())?;
        self.pass_from(name, root)
    }

    /// A pass from a root, as it was added.
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
            for _ in 0..1 + self.random.below(3) {
                let any = self.random.chance(25);
                let leaf = |r: &Reference, h: &Handle| h.node.is_some_and(|n| r.nodes[n].inputs.is_empty());
                let all = self.live(|h| h.tracked && (any || leaf(&self.reference, h)));
                inputs.extend(self.random.pick(&all));
            }
            let outs: Vec<Slot> = inputs.iter().map(|_| self.slot()).collect();
            of.extend(&inputs);
            let threads = if self.random.chance(4) { 2 } else { 1 };
            Statement::new(name, &outs, &of, &[count as i64, threads])
        };
        self.add(statement.clone()).then_some(statement)
    }

    /// What every program ends with: at least one gradient.
    fn finish(&mut self) {
        for _ in 0..1 + self.random.below(2) {
            self.pass(true);
        }
        if !self.statements.iter().any(|s| s.name.is_pass()) {
            self.one_pass(Name::Grad);
        }
    }
}
