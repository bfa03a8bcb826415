//! [`find_nonfinite`]: the first operation of a step that made a NaN or an infinity.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use gradus_backend::{Error, ErrorKind, Here, Result};

use crate::autograd::Nested;
use crate::autograd::diagnose::observe::{Observer, Observing, Ran};
use crate::autograd::diagnose::range::ValueRange;
use crate::autograd::diagnose::spread::{Mark, Marks, Spread, Spreads};
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::graph::saved::Context;
use crate::ops::{Flow, Op};
use crate::{Storage, Tensor};

/// Runs `step` (forward, backward, an optimiser's step, in any mixture) with checks, and reports the first operation
/// that made a NaN or an infinity: in its result, in its gradient, or by a write in place. `None` if all values stayed
/// finite.
///
/// It costs nothing when unused, so use it on the step that went wrong: run that step again inside, from the same
/// values. The step ends with an error at the operation that is found. If that is a write, the other writes still run,
/// so that a step of an optimiser is not left half done. Only float tensors and operations on this thread are checked.
/// Every result is read back from its device, so expect it to be slow.
///
/// A NaN that existed before, in a tensor that `step` was given or made from numbers, is [`Origin::Given`], reported at
/// the operation that first spread it. So is an infinity, but only where it reaches a single number (a loss) or a
/// gradient: the `-inf` of a mask is no mistake. An infinity that an operation makes is usually a mistake; where it is
/// intended, use [`find_nan`], which ignores infinities.
///
/// For elementwise operations, their gradients and reductions, what an operation made and what it spread is told apart
/// element by element. An operation that mixes elements, like a matrix product or the gradient of a reduction, is
/// [`Origin::MadeOrSpread`] if its operands are not all finite.
///
/// An infinite scalar operand, as in `masked_fill(&mask, -inf)`, is intended. In a formula made by
/// [`fused!`](crate::fused) with such a scalar, it is not known which infinities come from it, and all count as made.
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

/// [`find_nonfinite`] for NaN alone.
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

/// Where a NaN or an infinity comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The operation made it: an infinity from finite numbers, a NaN from numbers that are not NaN.
    Operation,
    /// The gradient of the operation made it.
    Gradient,
    /// The sum of finite gradients from several uses of the operation's result.
    Sum,
    /// A hook on the operation's result or gradient returned it, without an operation in the hook having made it.
    Hook,
    /// The operation wrote it in place.
    Write,
    /// It was there already, in an operand of the operation: no operation of the step made it.
    Given,
    /// The operation or its gradient mixes elements and had an operand that was not finite: it either made or spread
    /// it.
    MadeOrSpread,
}

/// The first NaN or infinity of a step; see [`find_nonfinite`]. Prints as a few lines.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NonFiniteReport {
    /// The operation, with its parameters.
    pub op: String,
    /// What about it.
    pub origin: Origin,
    /// The line that called the operation; of a gradient, the line that recorded it.
    pub location: &'static Location<'static>,
    /// The hook, or the gradient of a custom operation or checkpoint, inside which the operation ran.
    pub inside: Option<String>,
    /// The operands of the operation.
    pub inputs: Vec<ValueRange>,
    /// What it gave.
    pub outputs: Vec<ValueRange>,
    /// The output with the first element that the operation made, and its index. `None` if it made none, or if that is
    /// unknown.
    pub made_at: Option<(usize, Vec<usize>)>,
    /// For [`Origin::MadeOrSpread`]: where the infinity among the operands comes from, if known.
    pub source: Option<Box<NonFiniteReport>>,
    /// The NaN and infinities that the operation made.
    made: (usize, usize),
}

impl fmt::Display for NonFiniteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, at) = (&self.op, self.location);
        let total = |ranges: &[ValueRange]| ranges.iter().fold((0, 0), |n, r| (n.0 + r.nan, n.1 + r.infinite));
        let gave = total(&self.outputs);
        // Where it also spread some, the first in the table below may be one of those.
        let which = match &self.made_at {
            Some((i, index)) if self.made != gave => {
                let of = if self.outputs.len() > 1 { format!(" of {}", self.outputs[*i].name) } else { String::new() };
                format!(" (the first at {index:?}{of})")
            }
            _ => String::new(),
        };
        let (made, given) = (counted(self.made) + &which, counted(total(&self.inputs)));
        match self.origin {
            Origin::Operation => write!(f, "{op} made {made}, at {at}")?,
            Origin::Gradient => write!(f, "the gradient of {op} made {made}; {op} was recorded at {at}")?,
            Origin::Sum => write!(f, "gradients of the result of {op} add up to {made}; {op} was recorded at {at}")?,
            Origin::Hook => write!(f, "a hook of {op} gave {made}; {op} was recorded at {at}")?,
            Origin::Write => write!(f, "{op} wrote {made} in place, at {at}")?,
            Origin::Given if given.is_empty() => write!(f, "{op} was given a number that is not finite, at {at}")?,
            Origin::Given => write!(f, "{op} was given {given}, at {at}: no operation of this step made it")?,
            Origin::MadeOrSpread => {
                write!(f, "{op} made or spread {}, at {at}: it was given {given}", counted(gave))?;
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

/// NaN and infinities in words; empty if there are none.
fn counted((nan, infinite): (usize, usize)) -> String {
    let count = |n: usize, one: &str, many: &str| match n {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {many}")),
    };
    let counts = [count(nan, "NaN", "NaN"), count(infinite, "infinity", "infinities")];
    counts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// Storages that hold an infinity from before the step, with the operation that first spread it. The weak handle keeps
/// the address from being reused.
type Given = HashMap<*const Storage, (Weak<Storage>, Rc<NonFiniteReport>)>;

/// The search: what it looks for, and what it has found.
pub(in crate::autograd) struct Search {
    infinities: bool,
    found: Option<Rc<NonFiniteReport>>,
    given: Given,
    /// Whose gradient runs user code.
    pub(in crate::autograd) inside: Option<String>,
}

/// The values that a write in place reads, from before it.
pub(crate) struct Written {
    op: &'static str,
    spreads: Spreads,
    /// Whether the results depend on the old values.
    reads_outputs: bool,
    location: &'static Location<'static>,
    before: Looked,
    inputs: Looked,
    /// The sources of an infinity in the overwritten values, and of one in the operands.
    sources: [Option<Rc<NonFiniteReport>>; 2],
}

/// Tensors that were read back.
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

    /// The gradients of the inputs or outputs of a node.
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

/// An operation with results that are not finite.
struct Suspect {
    op: String,
    location: &'static Location<'static>,
    spreads: Spreads,
    /// Its origin if the operation made them.
    origin: Origin,
}

impl Search {
    /// Whether results need a check.
    fn suspicious(&self, outputs: &Looked) -> bool {
        outputs.ranges.iter().any(|r| r.nan > 0 || self.infinities && r.infinite > 0)
    }

    /// The report on an operation, and whether to end the step now: infinities that are passed on may be intended.
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

    /// Ends the step after a find that could not end its own operation.
    #[track_caller]
    fn stopped(&self) -> Result<()> {
        self.found.as_ref().map_or(Ok(()), |found| Err(stopped(found)))
    }

    /// Where the infinity in one of these tensors comes from, if that is known.
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
        // A given number is no mistake until something is computed from it.
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
        // Writes go on: ending the step at one of several writes that belong together would leave an optimiser's step
        // half done. What cannot be read now is not judged.
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
        // A tensor that cannot be read is not judged here; its next reader gets the error.
        let Ok(outputs) = Looked::at("after, tensor", written.iter().copied()) else { return };
        if !self.suspicious(&outputs) {
            return;
        }
        let Written { op, spreads, reads_outputs, location, before, mut inputs, sources: [old, read] } = before;
        // Values that are overwritten unread do not affect the result.
        let old = if reads_outputs { old } else { None };
        if reads_outputs {
            inputs.append(before);
        }
        let suspect = Suspect { op: op.to_owned(), location, spreads, origin: Origin::Write };
        // Neither is one for whose marks there is no memory.
        let Ok((report, ends)) = self.judge(suspect, inputs, outputs, read.or(old)) else { return };
        if ends {
            self.found = Some(report);
        } else {
            self.note(written.iter().copied(), &report);
        }
    }

    /// The gradients of a node's outputs are complete; some may be, or contain, `seeds`.
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

    /// Gradients that were finite before the node's hooks came from those hooks.
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
        // Not every value is saved.
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

/// A seed from the user, with the number of its node and output.
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
