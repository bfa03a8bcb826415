//! [`find_nonfinite`]: the first operation of a step that made a NaN or an infinity.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use gradus_backend::{Error, ErrorKind, Result};

use super::node::Node;
use super::observe::{Observer, Observing, Ran};
use super::range::ValueRange;
use super::saved::Context;
use crate::{Storage, Tensor};

/// Runs `step` (forward, backward, an optimiser's step, in any mixture) with checks, and tells the first operation that made
/// a NaN or an infinity: in its result, in its gradient, or by a write in place. `None` if all stayed finite.
///
/// It costs nothing where it is not used, so it is for the step that went wrong: run that again inside, from the same
/// values. The step ends with the operation that is found, which gives an error; nothing after it runs (an optimiser may have
/// stepped some of its parameters). Only float tensors are looked at; operations on other threads are not. Every result is
/// read back from its device, so expect it to be slow.
///
/// A NaN that was there before, in a tensor that `step` was given or made from numbers, is [`Origin::Given`], at the
/// operation that first spread it. So is an infinity, but that is found only where it reaches a single number (a loss) or a
/// gradient: the `-inf` of a mask is no mistake. Infinities that operations make are mistakes more often than not; where
/// they are meant, [`find_nan`] passes over all of them.
///
/// # Errors
/// Whatever `step` gives, if it fails for another reason.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_tensor::autograd::Origin;
///
/// let x = Tensor::from_vec(vec![4.0f32, 0.0, 1.0], [3], &device)?.require_grad()?;
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
pub fn find_nonfinite<T>(step: impl FnOnce() -> Result<T>) -> Result<Option<NonFiniteReport>> {
    search(step, true)
}

/// [`find_nonfinite`] for NaN alone.
pub fn find_nan<T>(step: impl FnOnce() -> Result<T>) -> Result<Option<NonFiniteReport>> {
    search(step, false)
}

fn search<T>(step: impl FnOnce() -> Result<T>, infinities: bool) -> Result<Option<NonFiniteReport>> {
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
    /// The operation made it from finite numbers.
    Operation,
    /// The gradient of the operation made it.
    Gradient,
    /// Finite gradients of the operation's result, from several uses of it, added up to it.
    Sum,
    /// The operation wrote it in place.
    Write,
    /// It was there already, in an operand of the operation.
    Given,
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
    /// The gradient, of a custom operation or a checkpoint, or the hook, that the operation ran in.
    pub inside: Option<String>,
    /// What the operation read.
    pub inputs: Vec<ValueRange>,
    /// What it gave.
    pub outputs: Vec<ValueRange>,
}

impl fmt::Display for NonFiniteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, at) = (&self.op, self.location);
        let shown = if self.origin == Origin::Given { &self.inputs } else { &self.outputs };
        let (nan, infinite) = shown.iter().fold((0, 0), |n, r| (n.0 + r.nan, n.1 + r.infinite));
        let count = |n: usize, one: &str, many: &str| match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {many}")),
        };
        let counts = [count(nan, "NaN", "NaN"), count(infinite, "infinity", "infinities")];
        let what = counts.into_iter().flatten().collect::<Vec<_>>().join(" and ");
        match self.origin {
            Origin::Operation => write!(f, "{op} made {what}, at {at}")?,
            Origin::Gradient => write!(f, "the gradient of {op} made {what}; {op} was recorded at {at}")?,
            Origin::Sum => write!(f, "gradients of the result of {op} add up to {what}; {op} was recorded at {at}")?,
            Origin::Write => write!(f, "{op} wrote {what} in place, at {at}")?,
            Origin::Given if what.is_empty() => write!(f, "{op} was given a number that is not finite, at {at}")?,
            Origin::Given => write!(f, "{op} was given {what}, at {at}: no operation of this step made it")?,
        }
        if let Some(inside) = &self.inside {
            write!(f, "\n  inside {inside}")?;
        }
        ValueRange::fmt_all(self.inputs.iter().chain(&self.outputs), f)
    }
}

/// Storages that hold an infinity which was given, with the operation that first spread it. The weak handle keeps the
/// address from being used again.
type Given = HashMap<*const Storage, (Weak<Storage>, Rc<NonFiniteReport>)>;

/// What is looked for, and what was found.
pub(super) struct Search {
    infinities: bool,
    found: Option<Rc<NonFiniteReport>>,
    given: Given,
    /// Whose gradient runs code of the user.
    pub(super) inside: Option<String>,
}

/// What a write in place reads, before it.
pub(crate) struct Written {
    op: &'static str,
    location: &'static Location<'static>,
    before: Vec<ValueRange>,
    inputs: Vec<ValueRange>,
    source: Option<Rc<NonFiniteReport>>,
}

/// What a result says about its operation.
enum Verdict {
    /// Nothing, or infinities that are passed over.
    Fine,
    Made,
    /// It spread a NaN or an infinity of its operands.
    Spread {
        nan: bool,
    },
}

impl Search {
    fn ranges<'t>(name: &str, tensors: impl IntoIterator<Item = &'t Tensor>) -> Result<Vec<ValueRange>> {
        let all: Vec<&Tensor> = tensors.into_iter().collect();
        let named = |i: usize| format!("{name} {i}");
        all.iter().enumerate().map(|(i, t)| ValueRange::of(named(i), t)).collect()
    }

    /// Whether results are worth a look.
    fn suspicious(&self, outputs: &[ValueRange]) -> bool {
        outputs.iter().any(|r| r.nan > 0 || self.infinities && r.infinite > 0)
    }

    /// `op` as it prints: a parameter may be what is spread.
    fn verdict(&self, op: &str, inputs: &[ValueRange], outputs: &[ValueRange]) -> Verdict {
        let nan = |all: &[ValueRange]| all.iter().any(|r| r.nan > 0);
        let any = |all: &[ValueRange]| all.iter().any(|r| r.nan > 0 || r.infinite > 0);
        match () {
            // The number that a tensor is filled with does not print.
            () if nan(outputs) && (nan(inputs) || has_parameter(op, &["NaN", "fill_"])) => {
                Verdict::Spread { nan: true }
            }
            () if nan(outputs) => Verdict::Made,
            () if !self.infinities || !any(outputs) => Verdict::Fine,
            () if any(inputs) || has_parameter(op, &["inf", "NaN", "fill_"]) => Verdict::Spread { nan: false },
            () => Verdict::Made,
        }
    }

    fn stop(&mut self, found: Rc<NonFiniteReport>) -> Result<()> {
        let e = stopped(&found);
        self.found = Some(found);
        Err(e)
    }

    /// Ends what comes after a find that could not end its own operation.
    fn stopped(&self) -> Result<()> {
        self.found.as_ref().map_or(Ok(()), |found| Err(stopped(found)))
    }

    /// Where the infinity of one of these operands comes from, if that is known.
    fn source<'t>(&self, inputs: impl IntoIterator<Item = &'t Tensor>) -> Option<Rc<NonFiniteReport>> {
        inputs.into_iter().find_map(|t| self.given.get(&Arc::as_ptr(t.storage()))).map(|g| g.1.clone())
    }

    fn note<'t>(&mut self, outputs: impl IntoIterator<Item = &'t Tensor>, source: &Rc<NonFiniteReport>) {
        for t in outputs {
            self.given.insert(Arc::as_ptr(t.storage()), (Arc::downgrade(t.storage()), source.clone()));
        }
    }

    pub(super) fn ran(&mut self, ran: &Ran<'_>) -> Result<()> {
        self.stopped()?;
        let outputs = Search::ranges("output", ran.outputs)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let inputs = Search::ranges("input", ran.inputs.iter().copied())?;
        let op = format!("{:?}", ran.op);
        let verdict = self.verdict(&op, &inputs, &outputs);
        let report = |origin| {
            let inside = self.inside.clone();
            let (inputs, outputs) = (inputs.clone(), outputs.clone());
            Rc::new(NonFiniteReport { op: op.clone(), origin, location: ran.location, inside, inputs, outputs })
        };
        match verdict {
            Verdict::Fine => Ok(()),
            Verdict::Made => self.stop(report(Origin::Operation)),
            Verdict::Spread { nan: true } => self.stop(report(Origin::Given)),
            Verdict::Spread { nan: false } => {
                let source = self.source(ran.inputs.iter().copied()).unwrap_or_else(|| report(Origin::Given));
                if ran.outputs.iter().zip(&outputs).any(|(t, r)| t.numel() == 1 && r.infinite > 0) {
                    return self.stop(source);
                }
                self.note(ran.outputs, &source);
                Ok(())
            }
        }
    }

    pub(super) fn before_write(
        &mut self,
        op: &'static str,
        location: &'static Location<'static>,
        written: &[&Tensor],
        read: &[&Tensor],
    ) -> Result<Box<Written>> {
        self.stopped()?;
        let before = Search::ranges("before, tensor", written.iter().copied())?;
        let inputs = Search::ranges("operand", read.iter().copied())?;
        let source = self.source(read.iter().chain(written).copied());
        Ok(Box::new(Written { op, location, before, inputs, source }))
    }

    pub(super) fn after_write(&mut self, before: Written, written: &[&Tensor]) {
        // A tensor that cannot be read now cannot be judged; whoever reads it next gets that error.
        let Ok(outputs) = Search::ranges("after, tensor", written.iter().copied()) else { return };
        if !self.suspicious(&outputs) {
            return;
        }
        let Written { op, location, before, inputs, source } = before;
        // What is overwritten whole says nothing about what it becomes.
        let replaces = matches!(op, "copy_" | "fill_");
        let inputs: Vec<ValueRange> = if replaces { inputs } else { inputs.into_iter().chain(before).collect() };
        let verdict = self.verdict(op, &inputs, &outputs);
        let report = |origin| {
            let (inside, op) = (self.inside.clone(), op.to_owned());
            Rc::new(NonFiniteReport { op, origin, location, inside, inputs: inputs.clone(), outputs: outputs.clone() })
        };
        match verdict {
            Verdict::Fine => {}
            Verdict::Made => self.found = Some(report(Origin::Write)),
            Verdict::Spread { nan: true } => self.found = Some(report(Origin::Given)),
            Verdict::Spread { nan: false } => {
                let source = source.unwrap_or_else(|| report(Origin::Given));
                self.note(written.iter().copied(), &source);
            }
        }
    }

    pub(super) fn complete(&mut self, node: &Node, grads: &[Option<Tensor>], given: bool) -> Result<()> {
        self.stopped()?;
        let outputs = gradients("output", grads)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let (origin, op) = (if given { Origin::Given } else { Origin::Sum }, name(node));
        let (inputs, outputs) = if given { (outputs, vec![]) } else { (vec![], outputs) };
        let inside = self.inside.clone();
        self.stop(Rc::new(NonFiniteReport { op, origin, location: node.location, inside, inputs, outputs }))
    }

    pub(super) fn gradients(
        &mut self,
        ctx: &Context<'_>,
        grads: &[Option<Tensor>],
        found: &[Option<Tensor>],
    ) -> Result<()> {
        self.stopped()?;
        let outputs = gradients("input", found)?;
        if !self.suspicious(&outputs) {
            return Ok(());
        }
        let (mut inputs, mut kept) = (vec![], vec![]);
        for i in 0..ctx.input_count() {
            // Not every value is kept.
            if let Ok(t) = ctx.input(i) {
                inputs.push(ValueRange::of(format!("input {i}"), &t)?);
                kept.push(t);
            }
        }
        for i in 0..grads.len() {
            if let Ok(t) = ctx.output(i) {
                inputs.push(ValueRange::of(format!("output {i}"), &t)?);
                kept.push(t);
            }
        }
        inputs.extend(gradients("output", grads)?);
        kept.extend(grads.iter().flatten().cloned());
        let op = name(ctx.node);
        let verdict = self.verdict(&op, &inputs, &outputs);
        let origin = if let Verdict::Made = verdict { Origin::Gradient } else { Origin::Given };
        let (location, inside) = (ctx.node.location, self.inside.clone());
        let report = Rc::new(NonFiniteReport { op, origin, location, inside, inputs, outputs });
        match verdict {
            Verdict::Fine => Ok(()),
            Verdict::Spread { nan: false } => {
                let source = self.source(&kept).unwrap_or(report);
                self.stop(source)
            }
            _ => self.stop(report),
        }
    }
}

fn gradients(of: &str, grads: &[Option<Tensor>]) -> Result<Vec<ValueRange>> {
    let some = grads.iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?)));
    some.map(|(i, g)| ValueRange::of(format!("gradient of {of} {i}"), g)).collect()
}

fn name(node: &Node) -> String {
    node.op().map_or_else(|| "leaf".to_owned(), |op| format!("{op:?}"))
}

/// Whether one of these words is among those that an operation prints: its name and its parameters.
fn has_parameter(op: &str, words: &[&str]) -> bool {
    op.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| words.contains(&word))
}

#[cold]
fn stopped(found: &NonFiniteReport) -> Error {
    Error::new(ErrorKind::Autograd, "find_nonfinite", "the step ends at the first NaN or infinity")
        .note(found.to_string())
}
