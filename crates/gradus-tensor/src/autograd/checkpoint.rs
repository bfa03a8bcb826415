//! [`checkpoint`]: a region that keeps its inputs only, and is computed again when its gradient is taken.

use std::fmt;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::access::{Access, Watch};
use super::engine::{edges_across, grad_of_edges};
use super::functional::{Tensors, give};
use super::node::{Edge, Node, next_seq};
use super::{BackwardOptions, Context, Saved, enable_grad, is_grad_enabled};
use crate::ops::{Grads, Rule, same_device};
use crate::tensor::Spec;
use crate::{Generator, Tensor};

/// `f(inputs)`, of which the graph keeps the inputs and nothing from inside: the backward pass runs `f` again to get the
/// values that its gradients need. Memory for time; a region's own values live only while it is computed.
///
/// Tensors that `f` captures get their gradients like those that are passed. The gradient is right or an error: an input
/// or anything captured that was overwritten since is refused, with both lines, and so is an `f` that writes into what
/// outlives it (the second run would write again), or that gives other shapes or uses other tensors when run again. `f` runs
/// on this thread and is a function of its inputs and of what it captured; random numbers it draws from a generator that is
/// given to [`checkpoint_with`], where the second run draws the same (one hidden in what it captured is not replayed).
/// Differentiable to any order. Without recording this is `f(inputs)`.
///
/// # Errors
/// Those of `f`; inputs on several devices.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let w = Tensor::from_vec(vec![2.0f64], [1], &device)?.require_grad()?;
/// let x = Tensor::from_vec(vec![3.0f64], [1], &device)?.require_grad()?;
/// let inside = w.clone();
/// let y = autograd::checkpoint(move |x| x[0].square()?.mul(&inside), &[&x])?;
/// let gradients = y.backward()?;
/// assert_eq!(gradients.get(&x).unwrap().item()?, 12.0);
/// assert_eq!(gradients.get(&w).unwrap().item()?, 9.0);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn checkpoint<O: Tensors>(
    f: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<O> {
    run(move |x, _| f(x), inputs, &mut Generator::new(0))
}

/// [`checkpoint`] for a region that draws random numbers: from `generator` in the first run, which moves it on, and from
/// the same place of its stream in the second, which does not.
#[track_caller]
pub fn checkpoint_with<O: Tensors>(
    f: impl Fn(&[Tensor], &mut Generator) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
    generator: &mut Generator,
) -> Result<O> {
    run(f, inputs, generator)
}

#[track_caller]
fn run<O: Tensors>(
    f: impl Fn(&[Tensor], &mut Generator) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
    generator: &mut Generator,
) -> Result<O> {
    if !is_grad_enabled() {
        let plain: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
        return f(&plain, generator);
    }
    if !inputs.is_empty() {
        same_device("checkpoint", inputs)?;
    }
    inputs.iter().try_for_each(|t| t.check_current("checkpoint"))?;
    let versions: SmallVec<[u64; 4]> = inputs.iter().map(|t| t.storage().version()).collect();
    let start = generator.clone();
    let watch = Watch::new();
    // Recorded, so that what is captured shows; the record is dropped at once.
    let region = Region::run(inputs, |t| t.requires_grad(), |t| t.detach().require_grad(), |x| f(x, generator))?;
    let (outputs, captured) = (region.outputs, region.captured);
    let plain: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
    let tracked: Vec<bool> = outputs.iter().map(Tensor::requires_grad).collect();
    drop(outputs);
    drop(region.points);
    let accesses = settled(watch.finish(), &plain, inputs)?;
    if !tracked.contains(&true) {
        return give("checkpoint", plain);
    }
    let kept = inputs.iter().enumerate().map(|(i, &t)| (i, t.clone(), versions[i]));
    let (specs, device) = (plain.iter().map(Tensor::spec).collect(), plain[0].device().clone());
    let behind: Vec<Option<Edge>> =
        inputs.iter().map(|t| t.edge().cloned()).chain(captured.iter().cloned().map(Some)).collect();
    let again = Box::new(move |x: &[Tensor]| Ok(f(x, &mut start.clone())?.into_tensors()));
    let rule = Arc::new(Checkpoint { again, accesses, passed: inputs.len() });
    let node = Node::rule(rule, behind, specs, device, Saved::with_versions(kept, []));
    let edge = |i: usize| Edge { node: node.clone(), output: i };
    let results = plain.iter().zip(&tracked).enumerate();
    give("checkpoint", results.map(|(i, (t, &on))| if on { t.with_edge(edge(i)) } else { t.clone() }).collect())
}

/// The accesses, none of which wrote into what outlives the region: the second run would write again.
fn settled(accesses: Vec<Access>, outputs: &[Tensor], inputs: &[&Tensor]) -> Result<Vec<Access>> {
    let mut kept = vec![];
    for access in accesses {
        let Some((storage, version)) = access.storage() else { continue };
        let of = |t: &Tensor| Arc::ptr_eq(t.storage(), &storage);
        // An output that the region made and filled is its own affair.
        if outputs.iter().any(of) && version == 0 && !inputs.iter().any(|t| of(t)) {
            kept.push(access.at(storage.version()));
            continue;
        }
        if let Some(write) = storage.overwritten(version, access.bytes()).filter(|_| access.wrote()) {
            let m = format!("{} wrote into a tensor that outlives the region", write.op);
            let e = Error::new(ErrorKind::Autograd, "checkpoint", m);
            return Err(e
                .note(format!("{} wrote at {}", write.op, write.location))
                .help("the region is run twice: write outside of it, or into a tensor made inside"));
        }
        kept.push(access);
    }
    Ok(kept)
}

/// One run of the function.
struct Region {
    points: Vec<Tensor>,
    outputs: Vec<Tensor>,
    captured: Vec<Edge>,
    /// Number of the last node recorded before the run.
    before: u64,
}

impl Region {
    /// Runs `f` on inputs of which the `wanted` ones are replaced by a point of their own.
    fn run<T: std::borrow::Borrow<Tensor>, O: Tensors>(
        inputs: &[T],
        wanted: impl Fn(&Tensor) -> bool,
        point: impl Fn(&Tensor) -> Result<Tensor>,
        f: impl FnOnce(&[Tensor]) -> Result<O>,
    ) -> Result<Region> {
        let _mode = enable_grad();
        let replaced = |t: &T| {
            let t: &Tensor = t.borrow();
            if wanted(t) { point(t) } else { Ok(t.clone()) }
        };
        let points: Vec<Tensor> = inputs.iter().map(replaced).collect::<Result<_>>()?;
        let before = next_seq();
        let outputs = f(&points)?.into_tensors();
        let own = |e: &Edge| points.iter().filter_map(Tensor::edge).any(|p| Arc::ptr_eq(&p.node, &e.node));
        let captured = edges_across(outputs.iter().filter_map(Tensor::edge), before);
        Ok(Region { captured: captured.into_iter().filter(|e| !own(e)).collect(), points, outputs, before })
    }
}

type Again = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// The region, ready to be run again. The node's first `passed` inputs are those of the function, then come the captured.
struct Checkpoint {
    again: Box<Again>,
    accesses: Vec<Access>,
    passed: usize,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checkpoint")
    }
}

impl Checkpoint {
    /// Everything that the first run read is as it was.
    fn check(&self, node: &Node) -> Result<()> {
        for access in &self.accesses {
            let Some((storage, version)) = access.storage() else { continue };
            if let Some(write) = storage.overwritten(version, access.bytes()) {
                let m = format!("the checkpointed region needs a value that it read, which {} overwrote", write.op);
                let e = Error::new(ErrorKind::Autograd, "backward", m);
                return Err(e
                    .note(format!("checkpoint was recorded at {}", node.location))
                    .note(format!("{} wrote at {} (version {version} then)", write.op, write.location))
                    .help("write before the forward pass, or write into a copy"));
            }
        }
        Ok(())
    }
}

impl Rule for Checkpoint {
    fn name(&self) -> &str {
        "checkpoint"
    }

    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let node = ctx.node;
        let inputs: Vec<Tensor> = (0..self.passed).map(|i| ctx.input(i)).collect::<Result<_>>()?;
        self.check(node)?;
        // With create_graph the points are views of the inputs, through which the next gradient goes on.
        let on = ctx.create_graph();
        let point = |t: &Tensor| if on { t.reshape(t.shape()) } else { t.detach().require_grad() };
        let region = Region::run(&inputs, Tensor::requires_grad, point, |x| (self.again)(x))?;
        self.check(node)?;
        let changed = |m: &str| {
            let e = Error::new(ErrorKind::Autograd, "backward", format!("a checkpointed region, run again, {m}"));
            e.note(format!("checkpoint was recorded at {}", node.location))
                .help("it must be a function of its inputs and of captured values that do not change")
        };
        let same = |(t, want): (&Tensor, &Spec)| t.spec() == *want;
        if region.outputs.len() != node.outputs.len() || !region.outputs.iter().zip(&node.outputs).all(same) {
            return Err(changed("gave outputs of other shapes or dtypes"));
        }
        let is = |e: &Edge, k: &Edge| Arc::ptr_eq(&e.node, &k.node) && e.output == k.output;
        let known: Vec<&Edge> = node.inputs.iter().skip(self.passed).flatten().collect();
        if region.captured.iter().any(|e| !known.iter().any(|k| is(e, k))) {
            return Err(changed("used tracked tensors that it had not used before"));
        }
        let mut places = vec![];
        let mut targets: Vec<&Edge> = vec![];
        for i in (0..ctx.input_count()).filter(|&i| ctx.needs(i)) {
            let edge = if i < self.passed { region.points[i].edge() } else { node.inputs[i].as_ref() };
            if let Some(edge) = edge {
                places.push(i);
                targets.push(edge);
            }
        }
        let mut roots = vec![];
        for (y, g) in region.outputs.iter().zip(grads) {
            if let (Some(edge), Some(g)) = (y.edge(), g) {
                roots.push((edge.clone(), g.clone()));
            }
        }
        let options = BackwardOptions::new();
        let options = if on { options.create_graph() } else { options };
        let mut out = Grads::from_elem(None, ctx.input_count());
        for (i, g) in places.into_iter().zip(grad_of_edges(roots, &targets, options, region.before)?) {
            out[i] = g;
        }
        Ok(out)
    }
}
