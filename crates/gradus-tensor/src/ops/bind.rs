//! `bind`, the one door: it alone runs the kernel of an operation. What else happens when one runs - the graph, observers,
//! the log of writes - happens here and nowhere else.

use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Layout, Result, View, ViewMut};
use smallvec::{SmallVec, smallvec};

use super::{Effect, InPlace, InputSpec, Op, Operation, Outputs, Spec, one};
use crate::autograd::{
    Edge, Node, Saved, after_write, before_write, guards_saved, is_grad_enabled, is_observed, note_view, notes_access,
    ran_operation,
};
use crate::locks::{Locks, of_device, with_read};
use crate::{Device, Storage, Tensor};

/// Results of an operation.
pub(crate) type Tensors = SmallVec<[Tensor; 1]>;

/// Where the results of an operation go.
#[derive(Clone, Copy)]
pub(crate) enum To<'a> {
    /// Into new memory of a device.
    New(&'a Device),
    /// Nowhere: they are views of its only input, with these layouts.
    Views(&'a [Layout]),
    /// Over a tensor that nobody reads again: [`Tensor::is_spare`] holds for it.
    Spare(&'a Tensor),
    /// Into these tensors of a device, in place, by the method that the user called.
    Written(InPlace, &'a Device, &'a [&'a Tensor]),
}

/// Runs an operation: infers its results, runs its kernel, tells who looks, and records it. Results that are written are
/// not given back.
///
/// Those that an operation [updates](Effect::Updates) are not among `inputs`, but before them where it infers.
#[track_caller]
pub(crate) fn bind<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor], to: To<'_>) -> Result<Tensors> {
    let device = match to {
        To::New(device) => device,
        To::Views(layouts) => return views(op, inputs, layouts),
        To::Spare(spare) => return Ok(smallvec![over(&op, inputs, spare)?]),
        To::Written(how, device, written) => {
            return write(op, inputs, how, device, written).map(|()| Tensors::new());
        }
    };
    // The usual numbers of inputs without a vector: small operations take 5 ns less. What was inferred is read where it was
    // made, and moved only to be recorded: a value that is moved right after it was written stalls.
    let inferred = match inputs {
        [a] => op.infer(&[a.as_input()]),
        [a, b] => op.infer(&[a.as_input(), b.as_input()]),
        more => op.infer(&specs_of(more)),
    };
    let specs = match &inferred {
        Ok(specs) => specs,
        Err(e) => return Err(shown(e.clone(), op.inputs(), inputs).here()),
    };
    // Before the inputs are read: a write in between then counts as later, which errs towards an error.
    let versions = if records(&op, inputs) { Some(versions(op.name(), inputs)?) } else { None };
    let mut results = match &specs[..] {
        [spec] => smallvec![new_one(&op, inputs, device, spec)?],
        several => new(&op, inputs, device, several)?,
    };
    if is_observed() {
        ran_operation(&op, inputs, &results).here()?;
    }
    if let Some(versions) = versions {
        record(op, inputs, &versions, &mut results, inferred?)?;
    }
    Ok(results)
}

/// [`bind`] with new results on the device that the inputs share.
#[track_caller]
pub(crate) fn apply<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<Tensors> {
    let device = same_device(op.name(), inputs)?;
    bind(op, inputs, To::New(device))
}

/// [`apply`] for an operation with one result.
#[inline]
#[track_caller]
pub(crate) fn apply_one<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    only(apply(op, inputs)?)
}

/// [`bind`] with views of `input`.
#[track_caller]
pub(crate) fn apply_views<O: Operation + Into<Op>>(op: O, input: &Tensor, layouts: &[Layout]) -> Result<Tensors> {
    bind(op, &[input], To::Views(layouts))
}

/// [`apply_views`] for one view.
#[track_caller]
pub(crate) fn apply_view<O: Operation + Into<Op>>(op: O, input: &Tensor, layout: Layout) -> Result<Tensor> {
    only(apply_views(op, input, &[layout])?)
}

/// The only one of some results.
#[inline]
#[track_caller]
pub(crate) fn only(mut results: Tensors) -> Result<Tensor> {
    results.pop().ok_or_else(|| Error::argument("bind", "the operation has no result"))
}

/// What operations see of these inputs before they run.
#[inline(always)]
fn specs_of<'a>(inputs: &[&'a Tensor]) -> SmallVec<[InputSpec<'a>; 4]> {
    let mut specs = SmallVec::new();
    for t in inputs {
        specs.push(t.as_input());
    }
    specs
}

/// What `op` gives of these inputs; an error shows them.
#[track_caller]
pub(crate) fn infer(op: &impl Operation, inputs: &[&Tensor]) -> Result<Outputs> {
    op.infer(&specs_of(inputs)).map_err(|e| shown(e, op.inputs(), inputs)).here()
}

/// The error with the inputs, by their names or numbers.
#[cold]
fn shown(e: Error, names: &[&str], inputs: &[&Tensor]) -> Error {
    inputs.iter().enumerate().fold(e, |e, (i, t)| match names.get(i) {
        Some(name) => t.describe(e, name),
        None => t.describe(e, &format!("input {i}")),
    })
}

/// Whether the results of `op` on these inputs become part of the graph. Where the first result carries no gradient, none does.
fn records(op: &impl Operation, inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad()) && op.differentiable(0)
}

/// The versions of the inputs' storages, none of which was written since its tensor was computed.
#[track_caller]
fn versions(op: &str, inputs: &[&Tensor]) -> Result<SmallVec<[u64; 4]>> {
    let mut versions = SmallVec::new();
    for t in inputs {
        versions.push(t.storage().version());
        t.check_current(op)?;
    }
    Ok(versions)
}

/// Makes `results` outputs of a new node of the graph; those that carry no gradient stay as they are.
#[track_caller]
fn record<O: Operation + Into<Op>>(
    op: O,
    inputs: &[&Tensor],
    versions: &[u64],
    results: &mut [Tensor],
    specs: Outputs,
) -> Result<()> {
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
    let node = Node::record(op.into(), inputs, specs, results[0].device(), saved);
    for (output, t) in results.iter_mut().enumerate().filter(|(i, _)| carries[*i]) {
        t.set_edge(Edge { node: node.clone(), output });
    }
    Ok(())
}

/// The kernel of an operation. Nothing else runs one.
#[inline(always)]
fn compute(op: &impl Operation, device: &Device, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
    op.forward(device.backend(), inputs, outputs)
}

/// The result of an operation in new memory. No kernel runs for an empty one.
#[inline]
#[track_caller]
fn new_one(op: &impl Operation, inputs: &[&Tensor], device: &Device, spec: &Spec) -> Result<Tensor> {
    let (numel, dtype) = (spec.shape.numel(), spec.dtype);
    let layout = Layout::contiguous(spec.shape);
    let mut allocated = device.backend().alloc(numel * dtype.size());
    if numel > 0
        && let Ok(buffer) = &mut allocated
    {
        let outs = &mut [ViewMut { buffer, dtype, layout: &layout }];
        with_read(inputs, |views| compute(op, device, views, outs))?;
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
fn new(op: &impl Operation, inputs: &[&Tensor], device: &Device, specs: &[Spec]) -> Result<Tensors> {
    let backend = device.backend();
    let alloc = |s: &Spec| Ok((backend.alloc(s.shape.numel() * s.dtype.size())?, Layout::contiguous(s.shape)));
    let mut outputs = of_device(specs.iter().map(alloc).collect::<Result<Vec<_>>>())?;
    if specs.iter().any(|s| s.shape.numel() > 0) {
        let out = |((buffer, layout), s): (_, &Spec)| ViewMut { buffer, dtype: s.dtype, layout };
        let mut outs: Vec<ViewMut<'_>> = outputs.iter_mut().map(|(b, l)| (b, &*l)).zip(specs).map(out).collect();
        with_read(inputs, |views| compute(op, device, views, &mut outs))?;
    }
    let tensor = |((buffer, layout), s): (_, &Spec)| {
        Tensor::computed(Arc::new(Storage::new(device.clone(), buffer)), layout, s.dtype, inputs)
    };
    Ok(outputs.into_iter().zip(specs).map(tensor).collect())
}

/// The input's storage under other layouts. No kernel runs, and nothing of the input is kept.
#[track_caller]
fn views<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor], layouts: &[Layout]) -> Result<Tensors> {
    let input = inputs[0];
    let view = |l: &Layout| Spec { shape: *l.shape(), dtype: input.dtype() };
    debug_assert!(
        infer(&op, inputs).is_ok_and(|specs| specs.iter().copied().eq(layouts.iter().map(view))),
        "{op:?} infers other shapes than {layouts:?}"
    );
    if !records(&op, inputs) {
        if notes_access() {
            note_view(input);
        }
        return Ok(layouts.iter().map(|&layout| input.view_at(layout, None)).collect());
    }
    input.check_current(op.name())?;
    let mut saved = Saved::default();
    if guards_saved() {
        saved = saved.guard(op.name(), inputs, &[input.storage().version()])?;
    }
    let specs = match layouts {
        [l] => one(*l.shape(), input.dtype()),
        _ => layouts.iter().map(view).collect(),
    };
    let node = Node::record(op.into(), inputs, specs, input.device(), saved);
    let tensor = |(output, &layout)| input.view_at(layout, Some(Edge { node: node.clone(), output }));
    Ok(layouts.iter().enumerate().map(tensor).collect())
}

/// Writes the results of an operation over a tensor that nobody reads again.
#[track_caller]
fn over(op: &impl Operation, inputs: &[&Tensor], spare: &Tensor) -> Result<Tensor> {
    debug_assert!(fits(op, inputs, &[spare]), "{op:?} infers another result than {spare:?}");
    if spare.numel() > 0 {
        let mut buffer = spare.storage().rewrite();
        let outs = &mut [ViewMut { buffer: &mut buffer, dtype: spare.dtype(), layout: spare.layout() }];
        with_read(inputs, |views| compute(op, spare.device(), views, outs))?;
    }
    Ok(spare.clone())
}

/// Runs an operation that writes in place. It is not recorded: who calls has refused what would have to be
/// ([`Tensor::check_writable`]), and inputs that do not fit.
#[track_caller]
fn write<O: Operation + Into<Op>>(
    op: O,
    inputs: &[&Tensor],
    how: InPlace,
    device: &Device,
    written: &[&Tensor],
) -> Result<()> {
    let location = Location::caller();
    debug_assert!(fits(&op, inputs, written), "{op:?} infers other results than {written:?}");
    if how != InPlace::Dispatch && written.iter().all(|t| t.numel() == 0) {
        return Ok(());
    }
    // An input in the same storage is read into a copy first: it may overlap what is written.
    let mut sources: SmallVec<[Tensor; 3]> = SmallVec::new();
    for &t in inputs {
        let shares = written.iter().any(|w| Arc::ptr_eq(t.storage(), w.storage()));
        sources.push(if shares { t.detach().copy()? } else { t.clone() });
    }
    let sources: SmallVec<[&Tensor; 3]> = sources.iter().collect();
    let before = if is_observed() { before_write(&op, how, location, written, &sources) } else { None };
    let done = locked(&op, &sources, how, device, written, location);
    if let Some(before) = before {
        after_write(before, written);
    }
    done
}

/// The part of [`write`] that locks; nobody may be told of anything meanwhile.
#[track_caller]
fn locked(
    op: &impl Operation,
    sources: &[&Tensor],
    how: InPlace,
    device: &Device,
    written: &[&Tensor],
    location: &'static Location<'static>,
) -> Result<()> {
    let mut locks = Locks::write(written, sources, how.name(), location)?;
    // A function of the user runs meanwhile.
    let _held = (how == InPlace::Dispatch).then(|| locks.hold());
    let (mut outs, views) = locks.views(written, sources);
    of_device(compute(op, device, &views, &mut outs))
}

/// Whether the results of an operation are what these tensors are.
fn fits(op: &impl Operation, inputs: &[&Tensor], written: &[&Tensor]) -> bool {
    let updated = if op.effect() == Effect::Updates { written } else { &[] };
    let all: SmallVec<[&Tensor; 6]> = updated.iter().chain(inputs).copied().collect();
    infer(op, &all).is_ok_and(|specs| specs.iter().copied().eq(written.iter().map(|t| t.spec())))
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
