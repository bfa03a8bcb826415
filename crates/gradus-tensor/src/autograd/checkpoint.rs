//! [`checkpoint`]: a region that keeps its inputs only, and is computed again when its gradient is taken.

use std::fmt;
use std::sync::{Arc, Weak};

use gradus_backend::{Error, ErrorKind, Layout, Result};
use smallvec::SmallVec;

use super::access::{Access, Watch};
use super::checksum::checksum;
use super::draws::{Draws, NoteDraws, ReplayDraws};
use super::engine::{edges_across, grad_of_edges};
use super::functional::{Tensors, give};
use super::mode::{GUARDS, PACK, among, set_among};
use super::node::{Edge, Node, next_seq};
use super::packed::Packed;
use super::{BackwardOptions, Context, Saved, enable_grad, guards_saved, is_grad_enabled};
use crate::ops::{Grads, Rule, same_device};
use crate::tensor::Spec;
use crate::{Generator, Storage, Tensor};

/// `f(inputs)`, of which the graph keeps the inputs and nothing from inside: the backward pass runs `f` again to get the
/// values that its gradients need. Memory for time; a region's own values live only while it is computed.
///
/// Tensors that `f` captures get their gradients like those that are passed. The gradient is right or an error: `f` runs on
/// this thread and is a function of its inputs and of what it captured, and that is checked. An input or anything captured
/// that was overwritten since is refused, with both lines, and so is an `f` that writes into what outlives it (the second
/// run would write again), or whose second run reads tensors that the first did not (a tensor that was exchanged, or made
/// on another thread), uses other tracked tensors, draws other random numbers, or gives other outputs, be it in one bit.
///
/// Random numbers are those of the first run, whichever [`Generator`] they come from: dropout layers work as they are. In
/// the second run generators, whosever they are, stay where they are. Differentiable to any order. Without recording this
/// is `f(inputs)`.
///
/// Beyond the second run, the checks cost one pass over the outputs in each run (on a device, a copy to the host), and some
/// tens of nanoseconds for each operation. Where [`saved_tensors_hooks`](super::saved_tensors_hooks) bring back inputs that
/// are not to the bit what they packed, outputs are not compared.
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

/// [`checkpoint`] for a region that is given a generator: it moves on by what the first run draws from it, and the second
/// run draws the same.
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
    let (watch, noted) = (Watch::new(), NoteDraws::new());
    // Recorded, so that what is captured shows; the record is dropped at once, so nothing of it is worth packing.
    let unpacked = set_among(PACK, 0);
    let region = Region::run(inputs, |t| t.requires_grad(), |t| t.detach().require_grad(), |x| f(x, generator))?;
    let (outputs, captured) = (region.outputs, region.captured);
    let plain: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
    let tracked: Vec<bool> = outputs.iter().map(Tensor::requires_grad).collect();
    drop(outputs);
    drop(region.points);
    drop(unpacked);
    let packs = among(PACK) != 0 && Packed::hooked();
    let draws = noted.finish();
    let reads = settled(watch.finish(), region.before, if packs { inputs } else { &[] })?;
    if !tracked.contains(&true) {
        return give("checkpoint", plain);
    }
    let given = |(t, &on): (&Tensor, &bool)| if on { Given::new(t).map(Some) } else { Ok(None) };
    let given = plain.iter().zip(&tracked).map(given).collect::<Result<_>>()?;
    let as_read = |t: &&Tensor| Ok((checksum(t)?, *t.layout()));
    let packed = if packs { Some(inputs.iter().map(as_read).collect::<Result<_>>()?) } else { None };
    let kept = inputs.iter().enumerate().map(|(i, &t)| (i, t.clone(), versions[i]));
    let (specs, device) = (plain.iter().map(Tensor::spec).collect(), plain[0].device().clone());
    let behind: Vec<Option<Edge>> =
        inputs.iter().map(|t| t.edge().cloned()).chain(captured.iter().cloned().map(Some)).collect();
    let again = Box::new(move |x: &[Tensor]| Ok(f(x, &mut start.clone())?.into_tensors()));
    let mut saved = Saved::with_versions(kept, []);
    if guards_saved() {
        let sure = reads.iter().filter(|r| r.sure);
        let pins = sure.filter_map(|r| Some((r.access.storage()?.0, r.access.bytes().clone()))).collect();
        saved = saved.guard_pinned("checkpoint", inputs, &versions, pins)?;
    }
    let guards = among(GUARDS);
    let rule = Arc::new(Checkpoint { again, reads, draws, given, packed, passed: inputs.len(), guards });
    let node = Node::rule(rule, behind, specs, device, saved);
    let edge = |i: usize| Edge { node: node.clone(), output: i };
    let results = plain.iter().zip(&tracked).enumerate();
    give("checkpoint", results.map(|(i, (t, &on))| if on { t.with_edge(edge(i)) } else { t.clone() }).collect())
}

/// What the second run may read where it is.
struct Read {
    access: Access,
    /// Whether it will, so that it has to be as it was.
    sure: bool,
}

impl Read {
    /// It is as it was.
    fn check(&self, node: &Node) -> Result<()> {
        let Some((storage, version)) = self.access.storage() else { return Ok(()) };
        let Some(write) = storage.overwritten(version, self.access.bytes()) else { return Ok(()) };
        let m = format!("the checkpointed region needs a value that it read, which {} overwrote", write.op);
        let e = Error::new(ErrorKind::Autograd, "backward", m);
        Err(e
            .note(format!("checkpoint was recorded at {}", node.location))
            .note(format!("{} wrote at {} (version {version} then)", write.op, write.location))
            .help("write before the forward pass, or write into a copy"))
    }
}

/// A tensor that the first run gave, without its values.
struct Given {
    storage: Weak<Storage>,
    layout: Layout,
    sum: u64,
}

impl Given {
    fn new(t: &Tensor) -> Result<Self> {
        Ok(Given { storage: Arc::downgrade(t.storage()), layout: *t.layout(), sum: checksum(t)? })
    }

    /// Whether the second run gave the same: a view of the same elements, whatever these are now, or the same values.
    fn is(&self, t: &Tensor) -> Result<bool> {
        if t.numel() == 0 {
            return Ok(true);
        }
        if self.storage.as_ptr() == Arc::as_ptr(t.storage()) {
            if self.layout == *t.layout() {
                return Ok(true);
            }
            // Axes of size 1 may have other strides.
            if self.layout.span() != t.layout().span() {
                return Ok(false);
            }
        }
        Ok(self.sum == checksum(t)?)
    }
}

/// The accesses to what is older than the region, which began with node `before`, and to what it left behind. What else it
/// made, the second run makes anew. Of inputs that are `packed` the second run reads what is unpacked.
fn settled(accesses: Vec<Access>, before: u64, packed: &[&Tensor]) -> Result<Vec<Read>> {
    let mut reads = vec![];
    for access in accesses {
        let Some((storage, _)) = access.storage() else { continue };
        if storage.born() > before {
            // An output, or a value that the function keeps for its next run: right there if it stays as it was read.
            reads.extend(access.final_read().map(|access| Read { access, sure: false }));
            continue;
        }
        not_written("checkpoint", &access, &storage)?;
        let sure = !packed.iter().any(|t| Arc::ptr_eq(t.storage(), &storage));
        reads.push(Read { access, sure });
    }
    Ok(reads)
}

/// A region writes into nothing that is older than it: the second run would write again.
fn not_written(op: &'static str, access: &Access, storage: &Storage) -> Result<()> {
    let version = access.storage().map_or(0, |(_, version)| version);
    let Some(write) = storage.overwritten(version, access.bytes()).filter(|_| access.wrote()) else { return Ok(()) };
    let m = format!("{} wrote into a tensor that outlives the region", write.op);
    Err(Error::new(ErrorKind::Autograd, op, m)
        .note(format!("{} wrote at {}", write.op, write.location))
        .help("the region is run twice: write outside of it, or into a tensor made inside"))
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
        // What was overwritten after it was computed is not what was recorded.
        outputs.iter().try_for_each(|t| t.check_current("checkpoint"))?;
        let own = |e: &Edge| points.iter().filter_map(Tensor::edge).any(|p| Arc::ptr_eq(&p.node, &e.node));
        let captured = edges_across(outputs.iter().filter_map(Tensor::edge), before);
        Ok(Region { captured: captured.into_iter().filter(|e| !own(e)).collect(), points, outputs, before })
    }
}

type Again = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// The region, ready to be run again. The node's first `passed` inputs are those of the function, then come the captured.
struct Checkpoint {
    again: Box<Again>,
    reads: Vec<Read>,
    draws: Arc<[Draws]>,
    /// The outputs that are tracked.
    given: Vec<Option<Given>>,
    /// What the inputs were, if hooks packed them.
    packed: Option<Vec<(u64, Layout)>>,
    passed: usize,
    /// The switches of the first run, which hold in the second too.
    guards: u16,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checkpoint")
    }
}

impl Checkpoint {
    /// Everything that the second run is going to read is as it was.
    fn check(&self, node: &Node) -> Result<()> {
        self.reads.iter().filter(|r| r.sure).try_for_each(|r| r.check(node))
    }

    /// The second run, of these inputs, read what the first had read, as it was, and wrote over nothing.
    fn check_accesses(&self, node: &Node, accesses: &[Access], inputs: &[Tensor], before: u64) -> Result<()> {
        for access in accesses {
            let Some((storage, _)) = access.storage().filter(|(s, _)| s.born() <= before) else { continue };
            not_written("backward", access, &storage)?;
            let bytes = access.bytes();
            let within = |start: usize, end: usize| start <= bytes.start && bytes.end <= end;
            let known = self.reads.iter().find(|r| r.access.is_to(&storage));
            if let Some(known) = known.filter(|r| within(r.access.bytes().start, r.access.bytes().end)) {
                known.check(node)?;
                continue;
            }
            let spans = inputs.iter().filter(|t| Arc::ptr_eq(t.storage(), &storage)).map(Tensor::byte_span);
            let passed = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
            if !passed.is_some_and(|p| within(p.start, p.end)) {
                let m = "read a tensor, or a part of one, that its first run had not read";
                let e = changed(node, m);
                return Err(
                    e.note(format!("it is older than that run, or made on another thread, on {}", storage.device()))
                );
            }
        }
        Ok(())
    }

    /// The second run of these inputs gave what the first gave, to the bit, unless hooks changed the inputs.
    fn check_outputs(&self, node: &Node, inputs: &[Tensor], outputs: &[Tensor]) -> Result<()> {
        for (t, (sum, layout)) in inputs.iter().zip(self.packed.iter().flatten()) {
            if t.layout() != layout || checksum(t)? != *sum {
                return Ok(());
            }
        }
        for (i, (y, given)) in outputs.iter().zip(&self.given).enumerate() {
            if y.requires_grad() != given.is_some() {
                return Err(changed(node, &format!("tracked output {i} otherwise")));
            }
            if let Some(given) = given
                && !given.is(y)?
            {
                return Err(y.describe(changed(node, &format!("gave other values in output {i}")), "output"));
            }
        }
        Ok(())
    }
}

fn changed(node: &Node, m: &str) -> Error {
    let e = Error::new(ErrorKind::Autograd, "backward", format!("a checkpointed region, run again, {m}"));
    e.note(format!("checkpoint was recorded at {}", node.location)).help(
        "it must be a function of its inputs and of captured values that do not change, on this thread; random numbers \
         are drawn again from any Generator",
    )
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
        let (region, accesses, same_draws) = {
            let _mode = set_among(GUARDS | PACK, self.guards);
            let (watch, replay) = (Watch::new(), ReplayDraws::new(self.draws.clone()));
            let region = Region::run(&inputs, Tensor::requires_grad, point, |x| (self.again)(x))?;
            (region, watch.finish(), replay.finish())
        };
        self.check(node)?;
        let same = |(t, want): (&Tensor, &Spec)| t.spec() == *want;
        if region.outputs.len() != node.outputs.len() || !region.outputs.iter().zip(&node.outputs).all(same) {
            return Err(changed(node, "gave outputs of other shapes or dtypes"));
        }
        let is = |e: &Edge, k: &Edge| Arc::ptr_eq(&e.node, &k.node) && e.output == k.output;
        let known: Vec<&Edge> = node.inputs.iter().skip(self.passed).flatten().collect();
        if region.captured.iter().any(|e| !known.iter().any(|k| is(e, k))) {
            return Err(changed(node, "used tracked tensors that it had not used before"));
        }
        if known.iter().any(|k| !region.captured.iter().any(|e| is(e, k))) {
            return Err(changed(node, "did not use tracked tensors that it had used before"));
        }
        if !same_draws {
            return Err(changed(node, "drew other random numbers"));
        }
        self.check_accesses(node, &accesses, &inputs, region.before)?;
        self.check_outputs(node, &inputs, &region.outputs)?;
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
