//! `bind` runs the kernel of every operation; only a replay (`replay.rs`) runs kernels too. `bind` also does everything
//! else that surrounds a kernel: recording, observation, tracing and the log of writes.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Layout, Result, View, ViewMut, with_line_of_call};
use smallvec::{SmallVec, smallvec};

use super::trace::{Traced, traced};
use super::{InPlace, InputSpec, Op, Operation, Outputs, Spec, one, source};
use crate::autograd::{
    Edge, Node, Saved, after_write, before_write, guards_saved, is_grad_enabled, is_observed, is_traced, is_watched,
    line, line_of_whole, note_view, notes_access, ran_operation,
};
use crate::limit::alloc;
use crate::locks::{Locks, of_device, with_read};
use crate::{Device, Storage, Tensor};

/// The largest number of inputs that an error shows.
const MOST_SHOWN: usize = 8;

/// The results of an operation.
pub(crate) type Several = SmallVec<[Tensor; 1]>;

/// The result of [`bind`]: a single tensor, which is never moved through a list; several tensors; or nothing, for a
/// write in place.
pub(crate) trait Results: Sized {
    fn one(result: Tensor) -> Self;
    fn all(results: Several) -> Result<Self>;
    fn as_slice(&mut self) -> &mut [Tensor];
}

impl Results for Tensor {
    fn one(result: Tensor) -> Self {
        result
    }

    fn all(mut results: Several) -> Result<Self> {
        results.pop().ok_or_else(|| Error::argument("bind", "the operation has no result"))
    }

    fn as_slice(&mut self) -> &mut [Tensor] {
        std::slice::from_mut(self)
    }
}

impl Results for Several {
    fn one(result: Tensor) -> Self {
        smallvec![result]
    }

    fn all(results: Several) -> Result<Self> {
        Ok(results)
    }

    fn as_slice(&mut self) -> &mut [Tensor] {
        self
    }
}

impl Results for () {
    fn one(_: Tensor) -> Self {}

    fn all(_: Several) -> Result<Self> {
        Ok(())
    }

    fn as_slice(&mut self) -> &mut [Tensor] {
        &mut []
    }
}

/// The destination of an operation's results.
#[derive(Clone, Copy)]
pub(crate) enum To<'a> {
    /// Into newly allocated memory on a device.
    New(&'a Device),
    /// No memory is needed: they are views of the only input, with these layouts.
    Views(&'a [Layout]),
    /// Into the memory of a tensor that is not read again. [`Tensor::is_spare`] holds for it.
    Spare(&'a Tensor),
    /// Into these tensors of a device, in place. The first field names the method that the user called.
    Written(InPlace, &'a Device, &'a [&'a Tensor]),
}

/// An operation behind a vtable, so that cold code is compiled once rather than once per operation.
trait AnyOperation: fmt::Debug {
    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs>;
    fn updates(&self) -> bool;
    fn to_op(&self) -> Op;
    /// Runs the kernel. Besides a replay, this is the only place that does so.
    fn run(&self, device: &Device, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()>;
}

impl<O: Operation + Into<Op>> AnyOperation for O {
    #[track_caller]
    fn infer(&self, inputs: &[&Tensor]) -> Result<Outputs> {
        infer(self, inputs)
    }

    fn updates(&self) -> bool {
        self.effect().updates()
    }

    fn to_op(&self) -> Op {
        self.clone().into()
    }

    #[inline]
    fn run(&self, device: &Device, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        self.forward(device.backend(), inputs, outputs)
    }
}

/// Runs an operation: infers its results, runs its kernel, reports it to observers, and records it.
///
/// The tensors that an operation [updates](super::Effect::Updates) are not among `inputs`. They are given as [`To::Written`].
// `to` is a constant at every call, so the other cases are not compiled there.
#[inline(always)]
#[track_caller]
pub(crate) fn bind<O: Operation + Into<Op>, R: Results>(op: O, inputs: &[&Tensor], to: To<'_>) -> Result<R> {
    let device = match to {
        To::New(device) => device,
        To::Views(layouts) => {
            debug_assert!(views_fit(&op, inputs, layouts), "{op:?} infers other shapes than {layouts:?}");
            let traced = is_traced().then(|| op.clone().into());
            let records = needs_gradient(inputs) && op.differentiable(0);
            let views = if records { recorded_views(op.into(), inputs, layouts)? } else { views(inputs[0], layouts) };
            if let Some(op) = traced {
                trace(&op, inputs, &refs(&views), false, false);
            }
            return R::all(views);
        }
        To::Spare(spare) => return over(&op, inputs, spare).map(R::one),
        To::Written(how, device, written) => {
            write(&op, inputs, how, device, written)?;
            return R::all(Several::new());
        }
    };
    // One or two inputs, the usual case, need no vector, which saves small operations 5 ns. The inferred specs are read
    // in place and moved only to be recorded, since moving a value that was just written stalls the processor.
    let inferred = match inputs {
        [a] => op.infer(&[a.as_input()]),
        [a, b] => op.infer(&[a.as_input(), b.as_input()]),
        more => op.infer(&specs_of(more)),
    };
    let specs = match &inferred {
        Ok(specs) => specs,
        Err(e) => return Err(shown(e.clone(), op.input_names(), inputs).here()),
    };
    // If the first result carries no gradient, none of them does. The versions are taken before the inputs are read, so
    // a write in between counts as later, which errs on the safe side.
    let records = needs_gradient(inputs) && op.differentiable(0);
    let versions = if records { Some(versions(op.name(), inputs)?) } else { None };
    let mut results = match &specs[..] {
        [spec] => R::one(new_one(&op, inputs, device, spec)?),
        several => R::all(new(&op, inputs, device, several)?)?,
    };
    if is_watched() {
        return watched(op.into(), inputs, versions, results, inferred?);
    }
    if let Some(versions) = versions {
        record(op.into(), inputs, &versions, results.as_slice(), inferred?)?;
    }
    Ok(results)
}

/// The end of [`bind`] for new results while an observer or tracer is active. If the observer returns an error, so does
/// the operation.
#[cold]
#[track_caller]
fn watched<R: Results>(
    op: Op,
    inputs: &[&Tensor],
    versions: Option<SmallVec<[u64; 4]>>,
    mut results: R,
    specs: Outputs,
) -> Result<R> {
    if is_observed() {
        ran_operation(&op, inputs, results.as_slice()).here()?;
    }
    let traced = is_traced().then(|| op.clone());
    if let Some(versions) = versions {
        record(op, inputs, &versions, results.as_slice(), specs)?;
    }
    if let Some(op) = traced {
        let results = refs(results.as_slice());
        trace(&op, inputs, &results, false, results.iter().any(|t| t.numel() > 0));
    }
    Ok(results)
}

fn refs(tensors: &[Tensor]) -> SmallVec<[&Tensor; 4]> {
    tensors.iter().collect()
}

/// Reports an operation to the tracer.
#[cold]
#[track_caller]
fn trace(op: &Op, inputs: &[&Tensor], outputs: &[&Tensor], in_place: bool, kernel: bool) {
    let source = source::current();
    traced(&Traced {
        op,
        inputs,
        outputs,
        in_place,
        kernel,
        location: line_of_whole().unwrap_or(line(Location::caller())),
        source: source.as_ref(),
    });
}

/// [`bind`] with new results, on the device that the inputs share.
#[track_caller]
pub(crate) fn apply<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<Several> {
    let device = same_device(op.name(), inputs)?;
    bind(op, inputs, To::New(device))
}

/// [`apply`] for an operation with one result.
#[inline]
#[track_caller]
pub(crate) fn apply_one<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let device = same_device(op.name(), inputs)?;
    bind(op, inputs, To::New(device))
}

/// [`bind`] whose results are views of `input`.
#[track_caller]
pub(crate) fn apply_views<O: Operation + Into<Op>>(op: O, input: &Tensor, layouts: &[Layout]) -> Result<Several> {
    bind(op, &[input], To::Views(layouts))
}

/// [`apply_views`] for one view.
#[track_caller]
pub(crate) fn apply_view<O: Operation + Into<Op>>(op: O, input: &Tensor, layout: Layout) -> Result<Tensor> {
    bind(op, &[input], To::Views(&[layout]))
}

/// The specs of these inputs, in the form that operations read.
#[inline(always)]
fn specs_of<'a>(inputs: &[&'a Tensor]) -> SmallVec<[InputSpec<'a>; 4]> {
    let mut specs = SmallVec::new();
    for t in inputs {
        specs.push(t.as_input());
    }
    specs
}

/// The specs of the results of `op` for these inputs. An error shows the inputs.
#[track_caller]
pub(crate) fn infer(op: &impl Operation, inputs: &[&Tensor]) -> Result<Outputs> {
    op.infer(&specs_of(inputs)).map_err(|e| shown(e, op.input_names(), inputs)).here()
}

/// Adds the first few inputs to an error, by name or number.
#[cold]
fn shown(e: Error, names: &[&str], inputs: &[&Tensor]) -> Error {
    let e = inputs.iter().enumerate().take(MOST_SHOWN).fold(e, |e, (i, t)| match names.get(i) {
        Some(name) => t.describe(e, name),
        None => t.describe(e, &format!("input {i}")),
    });
    match inputs.len().saturating_sub(MOST_SHOWN) {
        0 => e,
        more => e.note(format!("{more} more inputs are not shown")),
    }
}

/// Whether an operation on these inputs is recorded, provided that its results carry gradients.
fn needs_gradient(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// The versions of the inputs' storages. Fails if an input has been overwritten since it was computed.
#[track_caller]
fn versions(op: &str, inputs: &[&Tensor]) -> Result<SmallVec<[u64; 4]>> {
    let mut versions = SmallVec::new();
    for t in inputs {
        versions.push(t.storage().version());
        t.check_current(op)?;
    }
    Ok(versions)
}

/// Makes `results` the outputs of a new node of the graph. Results that carry no gradient stay as they are.
#[track_caller]
fn record(op: Op, inputs: &[&Tensor], versions: &[u64], results: &mut [Tensor], specs: Outputs) -> Result<()> {
    let mut carries: SmallVec<[bool; 8]> = SmallVec::new();
    for (i, spec) in specs.iter().enumerate() {
        carries.push(spec.dtype.is_float() && op.differentiable(i));
    }
    if !carries.contains(&true) {
        return Ok(());
    }
    let mut needs: SmallVec<[bool; 8]> = SmallVec::new();
    for t in inputs {
        needs.push(t.requires_grad());
    }
    let mut saved = Saved::new(op.keeps(&needs), inputs, versions, results);
    if guards_saved() {
        saved = saved.guard(op.name(), inputs, versions)?;
    }
    let node = Node::record(op, inputs, specs, results[0].device(), saved);
    for (output, t) in results.iter_mut().enumerate().filter(|(i, _)| carries[*i]) {
        t.set_edge(Edge { node: node.clone(), output });
    }
    Ok(())
}

/// Runs an operation with one result in newly allocated memory. No kernel runs if the result is empty.
#[inline]
#[track_caller]
fn new_one(op: &impl AnyOperation, inputs: &[&Tensor], device: &Device, spec: &Spec) -> Result<Tensor> {
    let (numel, dtype) = (spec.shape.numel(), spec.dtype);
    let layout = Layout::contiguous(spec.shape);
    let mut allocated = alloc(device, numel * dtype.size());
    if numel > 0
        && let Ok(buffer) = &mut allocated
    {
        let outs = &mut [ViewMut { buffer, dtype, layout: &layout }];
        with_read(inputs, |views| op.run(device, views, outs))?;
    }
    let buffer = match allocated {
        Ok(buffer) => buffer,
        Err(mut e) => {
            e.relocate(Location::caller());
            return Err(e);
        }
    };
    Ok(Tensor::computed(Arc::new(Storage::new(device.clone(), buffer)), layout, dtype, inputs))
}

/// [`new_one`] for several results.
#[track_caller]
fn new(op: &dyn AnyOperation, inputs: &[&Tensor], device: &Device, specs: &[Spec]) -> Result<Several> {
    let output = |s: &Spec| Ok((alloc(device, s.shape.numel() * s.dtype.size())?, Layout::contiguous(s.shape)));
    let mut outputs = of_device(specs.iter().map(output).collect::<Result<Vec<_>>>())?;
    if specs.iter().any(|s| s.shape.numel() > 0) {
        let out = |((buffer, layout), s): (_, &Spec)| ViewMut { buffer, dtype: s.dtype, layout };
        let mut outs: Vec<ViewMut<'_>> = outputs.iter_mut().map(|(b, l)| (b, &*l)).zip(specs).map(out).collect();
        with_read(inputs, |views| op.run(device, views, &mut outs))?;
    }
    let tensor = |((buffer, layout), s): (_, &Spec)| {
        Tensor::computed(Arc::new(Storage::new(device.clone(), buffer)), layout, s.dtype, inputs)
    };
    Ok(outputs.into_iter().zip(specs).map(tensor).collect())
}

/// The specs of views of a tensor with these layouts.
fn specs_of_views(input: &Tensor, layouts: &[Layout]) -> Outputs {
    let dtype = input.dtype();
    match layouts {
        [l] => one(*l.shape(), dtype),
        _ => layouts.iter().map(|l| Spec { shape: *l.shape(), dtype }).collect(),
    }
}

/// Whether views with these layouts have the specs that the operation infers.
fn views_fit(op: &dyn AnyOperation, inputs: &[&Tensor], layouts: &[Layout]) -> bool {
    op.infer(inputs).is_ok_and(|specs| specs == specs_of_views(inputs[0], layouts))
}

/// Views of a tensor with these layouts.
fn views(input: &Tensor, layouts: &[Layout]) -> Several {
    if notes_access() {
        note_view(input);
    }
    layouts.iter().map(|&layout| input.view_at(layout, None)).collect()
}

/// [`views`] of a tracked tensor, recorded in the graph. Their gradient needs no saved tensors.
#[track_caller]
fn recorded_views(op: Op, inputs: &[&Tensor], layouts: &[Layout]) -> Result<Several> {
    let input = inputs[0];
    input.check_current(op.name())?;
    let mut saved = Saved::default();
    if guards_saved() {
        saved = saved.guard(op.name(), inputs, &[input.storage().version()])?;
    }
    let node = Node::record(op, inputs, specs_of_views(input, layouts), input.device(), saved);
    let tensor = |(output, &layout)| input.view_at(layout, Some(Edge { node: node.clone(), output }));
    Ok(layouts.iter().enumerate().map(tensor).collect())
}

/// Writes the result of an operation into the memory of a tensor that is not read again.
#[track_caller]
fn over(op: &dyn AnyOperation, inputs: &[&Tensor], spare: &Tensor) -> Result<Tensor> {
    debug_assert!(fits(op, inputs, &[spare]), "{op:?} infers another result than {spare:?}");
    if spare.numel() > 0 {
        let mut buffer = spare.storage().rewrite()?;
        let outs = &mut [ViewMut { buffer: &mut buffer, dtype: spare.dtype(), layout: spare.layout() }];
        with_read(inputs, |views| op.run(spare.device(), views, outs))?;
    }
    if is_traced() {
        trace(&op.to_op(), &operands(op, inputs, &[spare]), &[spare], true, spare.numel() > 0);
    }
    Ok(spare.clone())
}

/// Runs an operation that writes in place. It is not recorded: the caller has already refused inputs that do not fit
/// and writes that would have to be recorded ([`Tensor::check_writable`]).
#[track_caller]
fn write(op: &dyn AnyOperation, inputs: &[&Tensor], how: InPlace, device: &Device, written: &[&Tensor]) -> Result<()> {
    let location = Location::caller();
    debug_assert!(fits(op, inputs, written), "{op:?} infers other results than {written:?}");
    if how != InPlace::Dispatch && written.iter().all(|t| t.numel() == 0) {
        if is_traced() {
            trace(&op.to_op(), &operands(op, inputs, written), written, true, false);
        }
        return Ok(());
    }
    // An input that shares a storage with a written tensor is copied first, since their memory may overlap.
    let mut sources: SmallVec<[Tensor; 3]> = SmallVec::new();
    for &t in inputs {
        let shares = written.iter().any(|w| Arc::ptr_eq(t.storage(), w.storage()));
        sources.push(if shares { t.detach().copy()? } else { t.clone() });
    }
    let sources: SmallVec<[&Tensor; 3]> = sources.iter().collect();
    let mut before = None;
    let accepted = || {
        if is_observed() {
            before = before_write(&op.to_op(), how, location, written, &sources);
        }
    };
    let done = locked(op, &sources, how, device, written, location, accepted);
    if let Some(before) = before {
        after_write(before, written);
    }
    if is_traced() && done.is_ok() {
        trace(&op.to_op(), &operands(op, &sources, written), written, true, true);
    }
    done
}

/// The part of [`write`] that holds locks. Nothing may be reported to observers or tracers while they are held.
#[track_caller]
fn locked(
    op: &dyn AnyOperation,
    sources: &[&Tensor],
    how: InPlace,
    device: &Device,
    written: &[&Tensor],
    location: &'static Location<'static>,
    accepted: impl FnOnce(),
) -> Result<()> {
    let mut locks = Locks::write(written, sources, how.name(), location, accepted)?;
    // A user function runs while the locks are held.
    let _held = (how == InPlace::Dispatch).then(|| locks.hold());
    let (mut outs, views) = locks.views(written, sources);
    let done = with_line_of_call(location, || op.run(device, &views, &mut outs));
    // An error from the user's function keeps its own line.
    if how == InPlace::Dispatch { done.here() } else { of_device(done) }
}

/// The tensors from whose specs an in-place operation infers its results: the tensors that it updates, then the inputs.
fn operands<'t>(op: &dyn AnyOperation, inputs: &[&'t Tensor], written: &[&'t Tensor]) -> SmallVec<[&'t Tensor; 6]> {
    let updated = if op.updates() { written } else { &[] };
    updated.iter().chain(inputs).copied().collect()
}

/// Whether the results of an operation would have the specs of the tensors in `written`.
fn fits(op: &dyn AnyOperation, inputs: &[&Tensor], written: &[&Tensor]) -> bool {
    op.infer(&operands(op, inputs, written))
        .is_ok_and(|specs| specs.iter().copied().eq(written.iter().map(|t| t.spec())))
}

/// The device that all inputs share.
#[track_caller]
pub(crate) fn same_device<'a>(op: &str, inputs: &[&'a Tensor]) -> Result<&'a Device> {
    let device = inputs[0].device();
    for t in &inputs[1..] {
        if t.device() != device {
            let e = Error::new(ErrorKind::DeviceMismatch, op, "operands live on different devices");
            let e = device.tell_apart(t.device(), shown(e, &[], inputs));
            return Err(e.help("move one of them explicitly; nothing is copied between devices behind your back"));
        }
    }
    Ok(device)
}
