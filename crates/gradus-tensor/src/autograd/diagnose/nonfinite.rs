//! [`find_nonfinite`]: the first operation of a step that made a NaN or an infinity.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use gradus_backend::error::is_of_user;
use gradus_backend::{Error, ErrorKind, Here, Result};

use crate::autograd::Nested;
use crate::autograd::diagnose::observe::{Observer, Observing, Ran};
use crate::autograd::diagnose::range::ValueRange;
use crate::autograd::diagnose::spread::{Mark, Marks, Spread, Spreads};
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::graph::saved::Context;
use crate::ops::{Flow, Op};
use crate::{Storage, Tensor};

/// Runs `step` (a forward pass, a backward pass, an optimiser's step, or any mixture) with checks. Reports the first
/// operation that made a NaN or an infinity: in its result, in its gradient, or by a write in place. Returns `None` if
/// all values stayed finite.
///
/// This costs nothing unless it is called. If a step has gone wrong, run it again inside `find_nonfinite`, from the
/// same values. The step ends with an error at the first such operation. If that operation is a write, the other writes
/// still run, so that an optimiser's step is not left half done. Only float tensors and operations on this thread are
/// checked. Every result is read back from its device, so this is slow.
///
/// If a NaN existed before the step, or was in the numbers from which the step made a tensor, its origin is
/// [`Origin::Given`], and it is reported at the operation that first spread it. The same holds for an infinity, but it
/// is reported only if it reaches a single number (such as a loss) or a gradient, since the `-inf` of a mask is not a
/// mistake. An infinity that an operation makes usually is a mistake. If it is intended, use [`find_nan`], which
/// ignores infinities.
///
/// For elementwise operations, their gradients and reductions, the search distinguishes element by element between what
/// an operation made and what it spread. An operation that mixes elements, like a matrix product or the gradient of a
/// reduction, is reported as [`Origin::MadeOrSpread`] if its operands are not all finite.
///
/// An infinite scalar operand, as in `masked_fill(&mask, -inf)`, counts as intended. In a [`fused!`](crate::fused)
/// expression with such a scalar, the search cannot tell which infinities come from it, so all of them count as made.
///
/// # Errors
/// Any error of `step` itself; nesting beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_tensor::autograd::Origin;
///
/// let x = Tensor::from_vec(vec![4.0f32, 0.0, 1.0], [3], &device)?.with_grad()?;
/// // Every value is finite, and so is the loss; but the slope of the square root at 0 is infinite.
/// let found = find_nonfinite(|| x.sqrt()?.sum_all()?.backward())?.unwrap();
/// assert_eq!((found.op.as_str(), found.origin), ("sqrt", Origin::Gradient));
/// assert_eq!((found.outputs[0].infinite, found.outputs[0].first.as_deref()), (1, Some(&[1][..])));
/// println!("{found}");
/// // the gradient of sqrt made 1 infinity; sqrt was recorded at src/main.rs:9:32
/// //   input 0               [3]  f32  0 to 4
/// //   gradient of output 0  [3]  f32  1
/// //   gradient of input 0   [3]  f32  0.25 to 0.5  1 infinite, the first at [1]
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn find_nonfinite<T>(step: impl FnOnce() -> Result<T>) -> Result<Option<NonFiniteReport>> {
    search(step, true)
}

/// [`find_nonfinite`] for NaN only.
#[track_caller]
pub fn find_nan<T>(step: impl FnOnce() -> Result<T>) -> Result<Option<NonFiniteReport>> {
    search(step, false)
}

#[track_caller]
fn search<T>(step: impl FnOnce() -> Result<T>, infinities: bool) -> Result<Option<NonFiniteReport>> {
    let _nested = Nested::enter("find_nonfinite")?;
    let search = Search { infinities, found: None, given: HashMap::new(), inside: None };
    let observing = Observing::start(Observer::NonFinite(search));
    let result = step();
    if let Some(Observer::NonFinite(Search { found: Some(found), .. })) = observing.finish() {
        return Ok(Some((*found).clone()));
    }
    result.map(|_| None)
}

/// The origin of a NaN or an infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The operation made it: an infinity from finite values, or a NaN from values that are not NaN.
    Operation,
    /// The gradient of the operation made it.
    Gradient,
    /// It is the sum of finite gradients from several uses of the operation's result.
    Sum,
    /// A hook on the operation's result or gradient returned it, and no operation in the hook made it.
    Hook,
    /// The operation wrote it in place.
    Write,
    /// It was already in an operand of the operation: no operation of the step made it.
    Given,
    /// The operation or its gradient mixes elements and had an operand that was not finite, so it either made or spread
    /// the value.
    MadeOrSpread,
}

/// The first NaN or infinity of a step; see [`find_nonfinite`]. Its `Display` form is a few lines of text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NonFiniteReport {
    /// The operation, with its parameters.
    pub op: String,
    /// Where the NaN or infinity comes from.
    pub origin: Origin,
    /// The line that called the operation. If the gradient is at fault, this is the line that recorded the operation.
    pub location: &'static Location<'static>,
    /// The hook, or the gradient of a custom operation or checkpoint, in which the operation ran.
    pub inside: Option<String>,
    /// The operands of the operation.
    pub inputs: Vec<ValueRange>,
    /// The results of the operation or of its gradient.
    pub outputs: Vec<ValueRange>,
    /// The number of the output that contains the first element made by the operation, and its index. `None` if the
    /// operation made none, or if this is unknown.
    pub made_at: Option<(usize, Vec<usize>)>,
    /// For [`Origin::MadeOrSpread`]: where the infinity among the operands comes from, if this is known.
    pub source: Option<Box<NonFiniteReport>>,
    /// The numbers of NaN and of infinities that the operation made.
    made: (usize, usize),
}

impl fmt::Display for NonFiniteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = &self.op;
        // A trainer runs the operations of a task, whose lines are inside Gradus.
        let is_users = is_of_user(self.location);
        let at = if is_users { format!(", at {}", self.location) } else { String::new() };
        let recorded = if is_users { format!("; {op} was recorded at {}", self.location) } else { String::new() };
        let total = |ranges: &[ValueRange]| ranges.iter().fold((0, 0), |n, r| (n.0 + r.nan, n.1 + r.infinite));
        let gave = total(&self.outputs);
        // If the operation also spread some, the first value in the table below may be one of those.
        let which = match &self.made_at {
            Some((i, index)) if self.made != gave => {
                let of = if self.outputs.len() > 1 { format!(" of {}", self.outputs[*i].name) } else { String::new() };
                format!(" (the first at {index:?}{of})")
            }
            _ => String::new(),
        };
        let (made, given) = (counted(self.made) + &which, counted(total(&self.inputs)));
        match self.origin {
            Origin::Operation => write!(f, "{op} made {made}{at}")?,
            Origin::Gradient => write!(f, "the gradient of {op} made {made}{recorded}")?,
            Origin::Sum => write!(f, "gradients of the result of {op} add up to {made}{recorded}")?,
            Origin::Hook => write!(f, "a hook of {op} gave {made}{recorded}")?,
            Origin::Write => write!(f, "{op} wrote {made} in place{at}")?,
            Origin::Given if given.is_empty() => write!(f, "{op} was given a number that is not finite{at}")?,
            Origin::Given => write!(f, "{op} was given {given}{at}: no operation of this step made it")?,
            Origin::MadeOrSpread => {
                write!(f, "{op} made or spread {}{at}: it was given {given}", counted(gave))?;
            }
        }
        if let Some(inside) = &self.inside {
            write!(f, "\n  inside {inside}")?;
        }
        ValueRange::fmt_all(self.inputs.iter().chain(&self.outputs), f)?;
        match &self.source {
            Some(source) => write!(f, "\n{source}"),
            None => Ok(()),
        }
    }
}

/// The number of NaN and of infinities in words; empty if there are none.
fn counted((nan, infinite): (usize, usize)) -> String {
    let count = |n: usize, one: &str, many: &str| match n {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {many}")),
    };
    let counts = [count(nan, "NaN", "NaN"), count(infinite, "infinity", "infinities")];
    counts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// The storages that hold an infinity from before the step, each with a report on the operation that first spread it.
/// The weak handle keeps the address of the storage from being reused.
type Given = HashMap<*const Storage, (Weak<Storage>, Rc<NonFiniteReport>)>;

/// The state of the search: what it looks for and what it has found.
pub(in crate::autograd) struct Search {
    infinities: bool,
    found: Option<Rc<NonFiniteReport>>,
    given: Given,
    /// The gradient inside which user code is running, in words.
    pub(in crate::autograd) inside: Option<String>,
}

/// The data collected before a write in place, including the values that it reads.
pub(crate) struct Written {
    op: &'static str,
    spreads: Spreads,
    /// Whether the written values depend on the old ones.
    reads_outputs: bool,
    location: &'static Location<'static>,
    before: Looked,
    inputs: Looked,
    /// The source of an infinity in the old values, and of one in the operands.
    sources: [Option<Rc<NonFiniteReport>>; 2],
}

/// The value ranges and marks of tensors that were read back.
#[derive(Default)]
struct Looked {
    ranges: Vec<ValueRange>,
    marks: Vec<Marks>,
}

impl Looked {
    #[track_caller]
    fn push(&mut self, name: String, t: &Tensor) -> Result<()> {
        let (range, marks) = ValueRange::of(name, t)?;
        self.ranges.push(range);
        self.marks.push(marks);
        Ok(())
    }

    #[track_caller]
    fn at<'t>(name: &str, tensors: impl IntoIterator<Item = &'t Tensor>) -> Result<Looked> {
        let mut all = Looked::default();
        tensors.into_iter().enumerate().try_for_each(|(i, t)| all.push(format!("{name} {i}"), t)).here()?;
        Ok(all)
    }

    /// Reads the gradients of the inputs or outputs of a node.
    #[track_caller]
    fn gradients(of: &str, grads: &[Option<Tensor>]) -> Result<Looked> {
        let mut all = Looked::default();
        let some = grads.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?)));
        some.into_iter().try_for_each(|(i, g)| all.push(format!("gradient of {of} {i}"), g)).here()?;
        Ok(all)
    }

    fn append(&mut self, mut other: Looked) {
        self.ranges.append(&mut other.ranges);
        self.marks.append(&mut other.marks);
    }
}

/// An operation whose results are not all finite.
struct Suspect {
    op: String,
    location: &'static Location<'static>,
    spreads: Spreads,
    /// The origin to report if the operation made these values.
    origin: Origin,
}

impl Search {
    /// Whether the outputs contain values that the search looks for.
    fn suspicious(&self, outputs: &Looked) -> bool {
        outputs.ranges.iter().any(|r| r.nan > 0 || self.infinities && r.infinite > 0)
    }

    /// The report on an operation, and whether to end the step now. An infinity that is only passed on may be intended
    /// and does not end the step.
    #[track_caller]
    fn judge(
        &self,
        suspect: Suspect,
        inputs: Looked,
        outputs: Looked,
        source: Option<Rc<NonFiniteReport>>,
    ) -> Result<(Rc<NonFiniteReport>, bool)> {
        let Suspect { op, location, spreads, origin } = suspect;
        let Spread { made, first: made_at, passed } =
            Spread::judge(spreads, &inputs.marks, &outputs.marks, self.infinities)?;
        let ends = made_at.is_some() || passed == Mark::Nan;
        let (origin, source) = match (spreads.flow, source) {
            _ if made_at.is_some() => (origin, None),
            (Flow::Mixes, Some(source)) if !ends && source.origin == Origin::MadeOrSpread => {
                return Ok((source, false));
            }
            (Flow::Mixes, source) => (Origin::MadeOrSpread, source.map(|s| Box::new((*s).clone()))),
            (_, Some(source)) if !ends => return Ok((source, false)),
            _ => (Origin::Given, None),
        };
        let (inside, inputs, outputs) = (self.inside.clone(), inputs.ranges, outputs.ranges);
        let report = NonFiniteReport { op, origin, location, inside, inputs, outputs, made_at, source, made };
        Ok((Rc::new(report), ends))
    }

    #[track_caller]
    fn stop(&mut self, found: Rc<NonFiniteReport>) -> Result<()> {
        let e = stopped(&found);
        self.found = Some(found);
        Err(e)
    }

    /// Returns the error again if the search has already found an operation but the step went on.
    #[track_caller]
    fn stopped(&self) -> Result<()> {
        self.found.as_ref().map_or(Ok(()), |found| Err(stopped(found)))
    }

    /// A report on where the infinity in one of these tensors comes from, if this is known.
    fn source<'t>(
        &self,
        tensors: impl IntoIterator<Item = &'t Tensor>,
        looked: &Looked,
    ) -> Option<Rc<NonFiniteReport>> {
        let mut infinite = tensors.into_iter().zip(&looked.ranges).filter(|(_, r)| r.infinite > 0);
        infinite.find_map(|(t, _)| self.given.get(&Arc::as_ptr(t.storage()))).map(|g| g.1.clone())
    }

    fn note<'t>(&mut self, outputs: impl IntoIterator<Item = &'t Tensor>, source: &Rc<NonFiniteReport>) {
        for t in outputs {
            self.given.insert(Arc::as_ptr(t.storage()), (Arc::downgrade(t.storage()), source.clone()));
        }
    }

    #[track_caller]
    pub(in crate::autograd) fn on_operation(&mut self, ran: &Ran<'_>) -> Result<()> {
        self.stopped()?;
        // A number that the user supplied is not a mistake until something is computed from it.
        if ran.inputs.is_empty() {
            return Ok(());
        }
        let outputs = Looked::at("output", ran.outputs)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let inputs = Looked::at("input", ran.inputs.iter().copied())?;
        let source = self.source(ran.inputs.iter().copied(), &inputs);
        let single = ran.outputs.iter().zip(&outputs.ranges).any(|(t, r)| t.numel() == 1 && r.infinite > 0);
        let (op, location, spreads) = (format!("{:?}", ran.op), ran.location, ran.spreads);
        let suspect = Suspect { op, location, spreads, origin: Origin::Operation };
        let (report, ends) = self.judge(suspect, inputs, outputs, source)?;
        if ends || single {
            return self.stop(report);
        }
        self.note(ran.outputs, &report);
        Ok(())
    }

    pub(in crate::autograd) fn before_write(
        &mut self,
        name: &'static str,
        op: &Op,
        location: &'static Location<'static>,
        written: &[&Tensor],
        read: &[&Tensor],
    ) -> Option<Box<Written>> {
        // Writes must go on: ending the step at one of several writes that belong together would leave an optimiser's
        // step half done. Tensors that cannot be read now are not judged.
        if self.found.is_some() {
            return None;
        }
        let before = Looked::at("before, tensor", written.iter().copied()).ok()?;
        let inputs = Looked::at("operand", read.iter().copied()).ok()?;
        let sources = [self.source(written.iter().copied(), &before), self.source(read.iter().copied(), &inputs)];
        let (spreads, reads_outputs) = (Spreads::of(op), op.reads_outputs());
        Some(Box::new(Written { op: name, spreads, reads_outputs, location, before, inputs, sources }))
    }

    pub(in crate::autograd) fn after_write(&mut self, before: Written, written: &[&Tensor]) {
        // A tensor that cannot be read is not judged here; the next read of it returns the error.
        let Ok(outputs) = Looked::at("after, tensor", written.iter().copied()) else { return };
        if !self.suspicious(&outputs) {
            return;
        }
        let Written { op, spreads, reads_outputs, location, before, mut inputs, sources: [old, read] } = before;
        // Values that are overwritten without being read do not affect the result.
        let old = if reads_outputs { old } else { None };
        if reads_outputs {
            inputs.append(before);
        }
        let suspect = Suspect { op: op.to_owned(), location, spreads, origin: Origin::Write };
        // Nor is a tensor judged if there is no memory for its marks.
        let Ok((report, ends)) = self.judge(suspect, inputs, outputs, read.or(old)) else { return };
        if ends {
            self.found = Some(report);
        } else {
            self.note(written.iter().copied(), &report);
        }
    }

    /// Called when the gradients of a node's outputs are complete. Some of the gradients may be `seeds`, or sums that
    /// contain seeds.
    #[track_caller]
    pub(in crate::autograd) fn complete(
        &mut self,
        node: &Node,
        grads: &[Option<Tensor>],
        seeds: &[Seed],
    ) -> Result<()> {
        self.stopped()?;
        let outputs = Looked::gradients("output", grads)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let mut looked = outputs.marks.iter().zip(&outputs.ranges);
        for output in (0..grads.len()).filter(|&i| grads[i].is_some()) {
            let Some((marks, range)) = looked.next() else { break };
            let seeds = seeds.iter().filter(|s| (s.0, s.1) == (node.seq, output)).map(|s| s.2.clone());
            let given = Looked { ranges: vec![], marks: seeds.collect() };
            let sum = Looked { ranges: vec![range.clone()], marks: vec![marks.clone()] };
            if !self.suspicious(&sum) {
                continue;
            }
            let spreads = Flow::InPlace.into();
            let suspect = Suspect { op: name(node), location: node.location, spreads, origin: Origin::Sum };
            let (report, _) = self.judge(suspect, given, sum, None)?;
            if report.origin != Origin::Given {
                return self.stop(report);
            }
            let mut report = (*report).clone();
            report.inputs = std::mem::take(&mut report.outputs);
            return self.stop(Rc::new(report));
        }
        Ok(())
    }

    /// Called after a node's hooks have run. The gradients were finite before, so a value that is not finite came from
    /// a hook.
    #[track_caller]
    pub(in crate::autograd) fn hooked(&mut self, node: &Node, of: &str, grads: &[Option<Tensor>]) -> Result<()> {
        self.stopped()?;
        let outputs = Looked::gradients(of, grads)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let spreads = Flow::Mixes.into();
        let suspect = Suspect { op: name(node), location: node.location, spreads, origin: Origin::Hook };
        let (report, _) = self.judge(suspect, Looked::default(), outputs, None)?;
        self.stop(report)
    }

    #[track_caller]
    pub(in crate::autograd) fn gradients(
        &mut self,
        ctx: &Context<'_>,
        grads: &[Option<Tensor>],
        found: &[Option<Tensor>],
    ) -> Result<()> {
        self.stopped()?;
        let outputs = Looked::gradients("input", found)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let (mut inputs, mut kept) = (Looked::default(), vec![]);
        // Values that are not saved are skipped.
        let values = (0..ctx.input_count()).map(|i| (format!("input {i}"), ctx.input(i)));
        for (name, t) in values.chain((0..grads.len()).map(|i| (format!("output {i}"), ctx.output(i)))) {
            if let Ok(t) = t {
                inputs.push(name, &t)?;
                kept.push(t);
            }
        }
        let source = self.source(&kept, &inputs);
        inputs.append(Looked::gradients("output", grads)?);
        let (op, location, spreads) = (name(ctx.node), ctx.node.location, Spreads::of_gradient(ctx.node));
        let suspect = Suspect { op, location, spreads, origin: Origin::Gradient };
        let (report, _) = self.judge(suspect, inputs, outputs, source)?;
        self.stop(report)
    }
}

/// The marks of a seed from the user, with the numbers of its node and output.
pub(in crate::autograd) type Seed = (u64, usize, Marks);

#[track_caller]
pub(in crate::autograd) fn seeds(roots: &[(Edge, Tensor)]) -> Result<Vec<Seed>> {
    let seed = |(edge, t): &(Edge, Tensor)| Ok((edge.node.seq, edge.output, ValueRange::of(String::new(), t)?.1));
    roots.iter().map(seed).collect()
}

fn name(node: &Node) -> String {
    node.op().map_or_else(|| "leaf".to_owned(), |op| format!("{op:?}"))
}

#[cold]
#[track_caller]
fn stopped(found: &NonFiniteReport) -> Error {
    Error::new(ErrorKind::Autograd, "find_nonfinite", "the step ends at the first NaN or infinity")
        .note(found.to_string())
}
