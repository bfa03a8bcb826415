//! [`CustomOp`]: user-defined operations with their own gradients.

use std::fmt;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Result};
use smallvec::SmallVec;

use crate::Tensor;
use crate::autograd::graph::node::{AtLineOf, Edge, Node, next_seq};
use crate::autograd::mode::{REFUSE_READS, set};
use crate::autograd::pass::engine::edges_across;
use crate::autograd::region::access::{Access, Watch};
use crate::autograd::{Context, Keep, Nested, Saved, guards_saved, is_grad_enabled, no_grad, no_grad_guard};
use crate::footprint::Footprint;
use crate::ops::{Grads, Rule, same_device};
use crate::storage::next_epoch;

/// A user-defined operation with its own gradient; [`apply_custom`] runs and records it.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_tensor::autograd::{Context, CustomOp, apply_custom, gradcheck};
///
/// /// `x^3`
/// struct Cube;
/// impl CustomOp for Cube {
///     fn name(&self) -> &str {
///         "cube"
///     }
///     fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
///         Ok(vec![x[0].pow(3.0)?])
///     }
///     fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
///         let Some(g) = &g[0] else { return Ok(vec![None]) };
///         Ok(vec![Some(ctx.input(0)?.square()?.mul(3.0)?.mul(g)?)])
///     }
/// }
///
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &device)?;
/// let cube = Arc::new(Cube);
/// gradcheck(|x| Ok(apply_custom(&cube, &[&x[0]])?.swap_remove(0)), &[x])?;
/// # Ok::<(), Error>(())
/// ```
pub trait CustomOp: Send + Sync + 'static {
    /// The name shown in errors and graphs.
    fn name(&self) -> &str;

    /// Computes the outputs, of which there must be at least one. The inputs carry no graph here, and nothing is
    /// recorded. The inputs must not be overwritten.
    ///
    /// Tensors that the operation owns are constants. Reading an owned tensor that is tracked is an error, since no
    /// gradient could reach it: pass it as an input, or hold `w.detach()` instead. It is also an error if memory read
    /// both here and in [`backward`](CustomOp::backward) is overwritten in between. Both errors are detected only while
    /// this thread records, and only for reads on this thread.
    fn forward(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// The inputs and outputs that [`backward`](CustomOp::backward) reads; only the first 64 of each can be saved.
    /// `needs` says which inputs require a gradient. The default is all inputs; to save memory, leave out those that
    /// are not read.
    fn keeps(&self, needs: &[bool]) -> Keep {
        Keep::inputs(0..needs.len())
    }

    /// Whether output `i` carries a gradient. Only outputs of a float dtype can.
    fn differentiable(&self, _output: usize) -> bool {
        true
    }

    /// Computes the gradients of the inputs, one for each, from those of the outputs; `None` stands for zero. `ctx`
    /// holds the saved values, which are checked for later writes, and says which gradients are wanted. The others may
    /// be `None`.
    ///
    /// To support gradients of gradients, build the result from `ctx.input(i)`, `ctx.output(i)` and `grads` with tensor
    /// operations. When this function is itself differentiated, reading the elements of tracked tensors (`to_vec`,
    /// `item`) is an error, and so is a gradient that does not depend on `grads`, unless the operation is
    /// [`once_differentiable`](CustomOp::once_differentiable). Detach tensors that are meant to be constants.
    fn backward(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>>;

    /// Whether the results of [`backward`](CustomOp::backward) cannot be differentiated again. If so, trying to
    /// differentiate them is an error.
    fn once_differentiable(&self) -> bool {
        false
    }
}

/// Runs `op` on `inputs`, which must be on one device, and records it if one of them is tracked.
///
/// # Errors
/// - `forward` fails or returns no output.
/// - The inputs, or the outputs of a recorded operation, are on several devices.
/// - `forward` has overwritten an input, or, while this thread records, has read a tracked tensor that is not an input.
/// - Calls are nested beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
#[track_caller]
pub fn apply_custom<O: CustomOp>(op: &Arc<O>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let name = op.name();
    if !inputs.is_empty() {
        same_device(name, inputs)?;
    }
    let versions: SmallVec<[u64; 4]> = inputs.iter().map(|t| t.storage().version()).collect();
    let watched = is_grad_enabled().then(|| (next_seq(), next_epoch(), Watch::new()));
    let outputs: Vec<Tensor> = {
        let _nested = Nested::enter(name)?;
        let _guard = no_grad_guard();
        let plain: Vec<Tensor> = inputs.iter().map(|t| t.detach()).collect();
        op.forward(&plain)?.iter().map(Tensor::detach).collect()
    };
    if let Some(spec) = watched.as_ref().and_then(|(before, _, watch)| watch.tracked(*before)) {
        let m =
            format!("the forward of {name} reads a captured tensor, {} {}, that is tracked", spec.shape, spec.dtype);
        let e = Error::new(ErrorKind::Autograd, name, m);
        return Err(e.help("pass it as an input; or capture w.detach(), if no gradient is to reach it"));
    }
    let tracked = inputs.iter().any(|t| t.requires_grad());
    let seen = watched.filter(|_| tracked).map_or_else(Vec::new, |(_, begun, watch)| {
        let (accesses, done) = (watch.finish(), next_epoch());
        accesses.into_iter().map(|a| Seen { since: if a.wrote() { done } else { begun }, access: a }).collect()
    });
    let Some(first) = outputs.first() else {
        return Err(Error::argument(name, "the forward of a custom operation gave no output"));
    };
    for (i, (t, &version)) in inputs.iter().zip(&versions).enumerate() {
        if let Some(write) = t.overwritten(version) {
            let m = format!("the forward of a custom operation overwrote input {i}");
            let e = Error::new(ErrorKind::Autograd, name, m).note(format!("{} wrote at {}", write.op, write.location));
            return Err(t.describe(e, "input").help("write into a copy"));
        }
    }
    let carries = |(i, t): (usize, &Tensor)| t.dtype().is_float() && op.differentiable(i);
    if !is_grad_enabled() || !tracked || !outputs.iter().enumerate().any(carries) {
        return Ok(outputs);
    }
    same_device(name, &outputs.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
    inputs.iter().try_for_each(|t| t.check_current(name)).here()?;
    let needs: SmallVec<[bool; 4]> = inputs.iter().map(|t| t.requires_grad()).collect();
    let keep = op.keeps(&needs);
    let kept_inputs = inputs.iter().enumerate().filter(|(i, _)| *i < 64 && keep.inputs >> i & 1 == 1);
    let kept_outputs = outputs.iter().enumerate().filter(|(i, _)| *i < 64 && keep.outputs >> i & 1 == 1);
    let mut saved = Saved::with_versions(
        kept_inputs.map(|(i, &t)| (i, t.clone(), versions[i])),
        kept_outputs.map(|(i, t)| (i, t.clone(), t.storage().version())),
    );
    if guards_saved() {
        saved = saved.guard(name, inputs, &versions)?;
    }
    let node = Node::rule(
        Arc::new(Custom { op: op.clone(), seen }),
        inputs.iter().map(|t| t.edge().cloned()),
        outputs.iter().map(Tensor::spec).collect(),
        first.device().clone(),
        saved,
    );
    let edge = |i: usize| Edge { node: node.clone(), output: i };
    let tracked = outputs.iter().enumerate();
    Ok(tracked.map(|(i, t)| if carries((i, t)) { t.with_edge(edge(i)) } else { t.clone() }).collect())
}

struct Custom<O> {
    op: Arc<O>,
    seen: Vec<Seen>,
}

/// A storage that `forward` read or wrote.
struct Seen {
    access: Access,
    /// The first epoch in which a write is an error.
    since: u64,
}

impl<O: CustomOp> fmt::Debug for Custom<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())
    }
}

impl<O: CustomOp> Rule for Custom<O> {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn differentiable(&self, output: usize) -> bool {
        self.op.differentiable(output)
    }

    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        if !ctx.create_graph() {
            return self.backward(ctx, grads);
        }
        if self.op.once_differentiable() {
            let plain: Vec<Option<Tensor>> = grads.iter().map(|g| g.as_ref().map(Tensor::detach)).collect();
            let found = no_grad(|| self.backward(ctx, &plain))?;
            return Ok(self.sealed(ctx, grads, found));
        }
        // The gradient is linear in the gradients of the outputs, so one of these must appear in its graph. If none
        // does, it was computed outside the graph. Untracked gradients get a stand-in node, which passes nothing on.
        let tracked: Vec<Option<Tensor>> = {
            let _line = AtLineOf::new(ctx.node);
            grads.iter().map(|g| g.as_ref().map(origin)).collect()
        };
        let begun = next_seq();
        let found = {
            let _guard = set(REFUSE_READS, true);
            let recorded = || format!("{} was recorded at {}", self.name(), ctx.node.location);
            self.backward(ctx, &tracked).map_err(|e| e.note(recorded()))?
        };
        let given = |e: &Edge| tracked.iter().flatten().filter_map(Tensor::edge).any(|g| g.is(e));
        for (i, g) in found.iter().enumerate() {
            let Some(g) = g.as_ref().filter(|_| ctx.needs(i)) else { continue };
            if !edges_across(g.edge(), begun).iter().any(given) {
                let m = format!(
                    "the gradient of {} for input {i} does not follow the gradients that it was given: it was computed outside of the graph",
                    self.name()
                );
                let e = Error::new(ErrorKind::Autograd, "backward", m).note(format!(
                    "{} recorded at {}",
                    self.name(),
                    ctx.node.location
                ));
                return Err(g.describe(e, "gradient").help(
                    "compute it from grads by tensor operations, give None for zero, or let once_differentiable() return true",
                ));
            }
        }
        Ok(found)
    }
}

impl<O: CustomOp> Custom<O> {
    /// Computes the gradients, one for each input, and checks that the memory that `forward` read is unchanged.
    #[track_caller]
    fn backward(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let watch = Watch::new();
        let found = self.op.backward(ctx, grads)?;
        for access in watch.finish() {
            let Some(storage) = access.storage() else { continue };
            let Some(seen) = self.seen.iter().find(|s| s.access.is_to(&storage)) else { continue };
            // Writes by `backward` itself do not count.
            let last = if access.wrote() { access.version() } else { u64::MAX };
            let then = |now| seen.access.places().iter().filter_map(move |then: &Footprint| then.common(now));
            let mut both = access.places().iter().flat_map(then);
            let Some(write) = both.find_map(|place| storage.overwritten_since(seen.since, last, &place)) else {
                continue;
            };
            let m = format!("the gradient of {} reads a value that {} overwrote", self.name(), write.op);
            return Err(Error::new(ErrorKind::Autograd, "backward", m)
                .note(format!("{} was recorded at {}", self.name(), ctx.node.location))
                .note(format!("{} wrote at {}", write.op, write.location))
                .help("write before the forward pass, or write into a copy"));
        }
        let (got, want) = (found.len(), ctx.input_count());
        if got == want {
            return Ok(found.into());
        }
        let m = format!("the gradient of {} gave {got} gradients for {want} inputs", self.name());
        Err(Error::new(ErrorKind::Autograd, "backward", m).help("give one for each input; None is zero"))
    }

    /// Attaches the gradients to a node that cannot be differentiated.
    fn sealed(&self, ctx: &Context<'_>, grads: &[Option<Tensor>], found: Grads) -> Grads {
        let inputs = ctx.node.inputs.iter().cloned().chain(grads.iter().flatten().map(|g| g.edge().cloned()));
        let inputs: Vec<Option<Edge>> = inputs.collect();
        let seal = Arc::new(Seal(format!("backward of {}", self.name())));
        let specs: Vec<usize> = (0..found.len()).filter(|&i| found[i].is_some()).collect();
        let outputs = specs.iter().filter_map(|&i| found[i].as_ref().map(Tensor::spec)).collect();
        let _line = AtLineOf::new(ctx.node);
        let device = found.iter().flatten().next().map_or(&ctx.node.device, Tensor::device).clone();
        let node = Node::rule(seal, inputs, outputs, device, Saved::default());
        let edge = |i: usize| specs.iter().position(|&s| s == i).map(|output| Edge { node: node.clone(), output });
        let sealed = |g: &Tensor, i: usize| edge(i).map_or_else(|| g.detach(), |e| g.with_edge(e));
        found.iter().enumerate().map(|(i, g)| g.as_ref().map(|g| sealed(g, i))).collect()
    }
}

/// A rule whose gradient is an error. It stands between values and the tensors from which they were computed outside
/// the graph.
struct Seal(String);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Rule for Seal {
    fn name(&self) -> &str {
        &self.0
    }

    fn vjp(&self, _: &Context<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        let m = format!("{} is not differentiable again", self.0);
        let e = Error::new(ErrorKind::Autograd, "backward", m);
        Err(e.help("the operation says so by once_differentiable(); write its gradient in tensor operations"))
    }
}

/// The tensor itself if it is tracked, otherwise the same values with an edge to a node without inputs.
fn origin(g: &Tensor) -> Tensor {
    if g.requires_grad() {
        return g.clone();
    }
    let seed = Arc::new(Seal("seed".into()));
    let outputs = SmallVec::from_elem(g.spec(), 1);
    let node = Node::rule(seed, [], outputs, g.device().clone(), Saved::default());
    g.with_edge(Edge { node, output: 0 })
}
