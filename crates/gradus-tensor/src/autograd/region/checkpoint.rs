//! [`checkpoint`]: a region that saves only its inputs and is computed again for its gradient.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use gradus_backend::{Error, ErrorKind, Here, Layout, Result};
use smallvec::SmallVec;

use crate::autograd::functions::functional::{Tensors, as_outputs};
use crate::autograd::graph::node::{Edge, Node, next_seq};
use crate::autograd::guard::packed::Packed;
use crate::autograd::mode::{GUARDS, NOTE_ACCESS, PACK, set_switches, switches};
use crate::autograd::pass::engine::{grad_of_edges, key};
use crate::autograd::region::access::{Access, Watch};
use crate::autograd::region::checksum::checksum;
use crate::autograd::region::draws::{Draws, NoteDraws, ReplayDraws, is_replay};
use crate::autograd::region::record::{Known, Record};
use crate::autograd::{BackwardOptions, Context, Nested, Saved, enable_grad_guard, guards_saved, is_grad_enabled};
use crate::ops::{Grads, Rule, same_device};
use crate::tensor::Spec;
use crate::{Attempt, Generator, Storage, Tensor};

/// Computes `f(inputs)`, but the graph saves only the inputs: the backward pass runs `f` again to get the values that
/// its gradients need. This trades time for memory; values inside the region live only while it is computed.
///
/// Tensors that `f` captures get gradients like those that are passed. The gradient is right or an error: `f` runs on
/// this thread and is a function of its inputs and of what it captured, and that is checked. An input or anything
/// captured that was overwritten since is refused, with both lines, and so is an `f` that writes into what outlives it
/// (the second run would write again), or whose second run reads tensors that the first did not (a tensor that was
/// exchanged, or made on another thread), uses other tracked tensors, draws other random numbers, gives other outputs,
/// be it in one bit, or comes to them by other operations, other parameters of these, or other small constants that it
/// makes. What is not compared: constants of more than 16 KiB that `f` makes, or makes in a region of its own, where no
/// output shows them, and what a [`CustomOp`](crate::autograd::CustomOp) holds.
///
/// Random numbers are those of the first run, whichever [`Generator`] they come from: dropout layers work as they are.
/// The second run does not advance any generator. Differentiable to any order. Without recording this is `f(inputs)`.
///
/// **Everything else that `f` does happens twice**: what it prints, counts or pushes to a list; [`once`] is for effects
/// of the forward pass alone. A tensor that `f` stores elsewhere instead of returning it belongs to the run that stored
/// it, and keeps that run's graph alive; a pass through the region frees what the second run left. No gradient of the
/// outputs goes there: to ask for one, or to register a hook, is an error. Hooks that `f` registers on what it computes
/// work as they do outside, for as long as the second run's handles live; on what is older they are refused.
///
/// Beyond the second run, the checks cost one pass over the outputs in each run (on a device, a copy to the host), and
/// about a microsecond for each operation. Where [`saved_tensors_hooks`](crate::autograd::saved_tensors_hooks) bring back inputs that
/// are not to the bit what they packed, the outputs and the way to them are not compared.
///
/// Regions may lie inside each other, fewer than [`MAX_NESTING`](crate::autograd::MAX_NESTING). The second run of one runs those within it
/// anew, and keeps as little of them: with the gradient, the innermost of `n` runs `n + 1` times, and all of them together
/// about `n * n / 2` times. Regions that follow one another run twice each, however many there are.
///
/// # Errors
/// Those of `f`; inputs, or outputs, on several devices; nesting beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
/// On an error, generators and the statistics of layers are as before.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let w = Tensor::from_vec(vec![2.0f64], [1], &device)?.with_grad()?;
/// let x = Tensor::from_vec(vec![3.0f64], [1], &device)?.with_grad()?;
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

/// Runs `effect` once, even inside a [`checkpoint`]: the first run of the region runs it, the second skips it. It is
/// meant for side effects of the forward pass, like running statistics, and may write into memory that outlives the
/// region. Its results must not enter the outputs of the region.
///
/// # Errors
/// Those of `effect`; nesting beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![3.0f64], [1], &device)?.with_grad()?;
/// let total = Tensor::zeros([1], DType::F64, &device)?;
/// let inside = total.clone();
/// let y = autograd::checkpoint(
///     move |x| {
///         autograd::once(|| inside.add_(&x[0].detach()))?;
///         x[0].square()
///     },
///     &[&x],
/// )?;
/// assert_eq!(y.backward()?.get(&x).unwrap().item()?, 6.0);
/// assert_eq!(total.item()?, 3.0);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn once(effect: impl FnOnce() -> Result<()>) -> Result<()> {
    if is_replay() {
        return Ok(());
    }
    let _nested = Nested::enter("once")?;
    let _unwatched = set_switches(NOTE_ACCESS, 0);
    effect()
}

#[track_caller]
fn run<O: Tensors>(
    f: impl Fn(&[Tensor], &mut Generator) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
    generator: &mut Generator,
) -> Result<O> {
    let _nested = Nested::enter("checkpoint")?;
    let attempt = Attempt::begin();
    let mut moved = generator.clone();
    let outputs = attempt.end(recorded(f, inputs, &mut moved))?;
    *generator = moved;
    Ok(outputs)
}

/// The first run, and the node that runs again.
#[track_caller]
fn recorded<O: Tensors>(
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
    inputs.iter().try_for_each(|t| t.check_current("checkpoint")).here()?;
    let versions: SmallVec<[u64; 4]> = inputs.iter().map(|t| t.storage().version()).collect();
    let start = generator.clone();
    let noted = NoteDraws::new();
    // Recorded, to find out what is captured; the record is dropped at once, so nothing is packed.
    let unpacked = set_switches(PACK, 0);
    let passed: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    let Region { outputs, record, before, watch } = Region::run(&passed, |x| f(x, generator))?;
    let plain: Vec<Tensor> = outputs.iter().map(Tensor::detach).collect();
    let tracked: Vec<bool> = outputs.iter().map(Tensor::requires_grad).collect();
    drop(outputs);
    record.left_behind().for_each(|node| node.leave_region());
    drop(unpacked);
    let packs = switches(PACK) != 0 && Packed::hooked();
    let draws = noted.finish();
    let reads = reads_from_outside(watch.finish(), before, if packs { inputs } else { &[] })?;
    if !tracked.contains(&true) {
        return as_outputs("checkpoint", plain);
    }
    same_device("checkpoint", &plain.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
    let (known, behind) = Known::new(record, inputs, before);
    let given = |(t, &on): (&Tensor, &bool)| if on { Given::new(t).map(Some) } else { Ok(None) };
    let given = plain.iter().zip(&tracked).map(given).collect::<Result<_>>().here()?;
    let as_read = |t: &&Tensor| Ok((checksum(t)?, *t.layout()));
    let packed = if packs { Some(inputs.iter().map(as_read).collect::<Result<_>>().here()?) } else { None };
    let kept = inputs.iter().enumerate().map(|(i, &t)| (i, t.clone(), versions[i]));
    let (specs, device) = (plain.iter().map(Tensor::spec).collect(), plain[0].device().clone());
    let again = Box::new(move |x: &[Tensor]| Ok(f(x, &mut start.clone())?.into_tensors()));
    let mut saved = Saved::with_versions(kept, []);
    if guards_saved() {
        let sure = reads.iter().filter(|r| r.sure);
        let held = sure.filter_map(|r| Some((r.access.storage()?, r.access.places())));
        let pins =
            held.flat_map(|(storage, places)| places.iter().map(move |p| (storage.clone(), p.clone()))).collect();
        saved = saved.guard_pinned("checkpoint", inputs, &versions, pins)?;
    }
    let (guards, edges) = (switches(GUARDS), inputs.iter().map(|t| t.edge().cloned()).collect());
    let rule = Arc::new(Checkpoint { again, known, reads, draws, given, packed, edges, guards });
    let node = Node::rule(rule, behind, specs, device, saved);
    let edge = |i: usize| Edge { node: node.clone(), output: i };
    let results = plain.iter().zip(&tracked).enumerate();
    as_outputs("checkpoint", results.map(|(i, (t, &on))| if on { t.with_edge(edge(i)) } else { t.clone() }).collect())
}

/// What the second run may read in place.
struct Read {
    access: Access,
    /// Whether the second run will read it, so that it must be unchanged.
    sure: bool,
}

impl Read {
    /// It is as it was.
    #[track_caller]
    fn check(&self, node: &Node) -> Result<()> {
        self.check_places(node, &self.access)
    }

    /// Errors if what an access to this storage read has been overwritten.
    #[track_caller]
    fn check_places(&self, node: &Node, access: &Access) -> Result<()> {
        let version = self.access.version();
        let Some(write) = access.overwritten(version) else { return Ok(()) };
        let m = format!("the checkpointed region needs a value that it read, which {} overwrote", write.op);
        let e = Error::new(ErrorKind::Autograd, "backward", m);
        let value = "captured value".to_owned();
        Err(e
            .with_version_mismatch(write.mismatch("checkpoint", value, version, node.location))
            .note(format!("checkpoint was recorded at {}", node.location))
            .note(format!("{} wrote at {} (version {version} then)", write.op, write.location))
            .help("write before the forward pass, or write into a copy"))
    }
}

/// An output of the first run, without its values.
struct Given {
    storage: Weak<Storage>,
    layout: Layout,
    sum: u64,
}

impl Given {
    #[track_caller]
    fn new(t: &Tensor) -> Result<Self> {
        Ok(Given { storage: Arc::downgrade(t.storage()), layout: *t.layout(), sum: checksum(t)? })
    }

    /// Whether the second run gave the same: a view of the same elements, whatever their values, or the same values.
    #[track_caller]
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
#[track_caller]
fn reads_from_outside(accesses: Vec<Access>, before: u64, packed: &[&Tensor]) -> Result<Vec<Read>> {
    let mut reads = vec![];
    for access in accesses {
        let Some(storage) = access.storage() else { continue };
        if storage.born() > before {
            // An output, or a value that the function keeps for its next run; this is fine as long as what was read
            // stays unchanged.
            reads.extend(access.final_read().map(|access| Read { access, sure: false }));
            continue;
        }
        not_written("checkpoint", &access)?;
        let sure = !packed.iter().any(|t| Arc::ptr_eq(t.storage(), &storage));
        reads.push(Read { access, sure });
    }
    Ok(reads)
}

/// Errors if a region writes into memory older than itself: the second run would write again.
#[track_caller]
fn not_written(op: &'static str, access: &Access) -> Result<()> {
    let written = if access.wrote() { access.overwritten(access.version()) } else { None };
    let Some(write) = written else { return Ok(()) };
    let m = format!("{} wrote into a tensor that outlives the region", write.op);
    Err(Error::new(ErrorKind::Autograd, op, m)
        .note(format!("{} wrote at {}", write.op, write.location))
        .help("the region is run twice: write outside of it, or into a tensor made inside"))
}

/// One run of the function.
struct Region {
    outputs: Vec<Tensor>,
    record: Record,
    /// Number of the last node recorded before the run.
    before: u64,
    watch: Watch,
}

impl Region {
    /// Runs `f` on the inputs themselves: what leaves the region other than as an output depends on them like anything else.
    #[track_caller]
    fn run<O: Tensors>(inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> Result<O>) -> Result<Region> {
        let _mode = enable_grad_guard();
        let before = next_seq();
        let watch = Watch::region(before);
        let outputs = f(inputs).here()?.into_tensors();
        // A value overwritten after it was computed is no longer what was recorded.
        outputs.iter().try_for_each(|t| t.check_current("checkpoint")).here()?;
        Ok(Region { record: Record::new(&outputs, before)?, outputs, before, watch })
    }
}

type Again = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// The region, ready to be run again.
struct Checkpoint {
    again: Box<Again>,
    known: Known,
    reads: Vec<Read>,
    draws: Arc<[Draws]>,
    /// The outputs that are tracked.
    given: Vec<Option<Given>>,
    /// The inputs before packing, if hooks packed them.
    packed: Option<Vec<(u64, Layout)>>,
    /// The places of the function's inputs, those too that the outputs do not depend on.
    edges: Vec<Option<Edge>>,
    /// The switches of the first run, which hold in the second too.
    guards: u16,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checkpoint")
    }
}

impl Checkpoint {
    /// Errors if anything that the second run is going to read has been overwritten.
    #[track_caller]
    fn check(&self, node: &Node) -> Result<()> {
        self.reads.iter().filter(|r| r.sure).try_for_each(|r| r.check(node)).here()
    }

    /// Errors unless the second run read what the first had read, unchanged, and overwrote nothing.
    #[track_caller]
    fn check_accesses(&self, node: &Node, accesses: &[Access], inputs: &[Tensor], before: u64) -> Result<()> {
        let reads: HashMap<*const Storage, &Read> = self.reads.iter().map(|r| (r.access.address(), r)).collect();
        for access in accesses {
            let Some(storage) = access.storage().filter(|s| s.born() <= before) else { continue };
            not_written("backward", access)?;
            let bytes = access.span();
            let within = |all: Range<usize>| all.start <= bytes.start && bytes.end <= all.end;
            if let Some(known) = reads.get(&access.address()).filter(|r| within(r.access.span())) {
                known.check(node)?;
                // Between the places of the first run lies what it would have read there.
                known.check_places(node, access)?;
                continue;
            }
            let spans = inputs.iter().filter(|t| Arc::ptr_eq(t.storage(), &storage)).map(Tensor::byte_span);
            let passed = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
            if !passed.is_some_and(within) {
                let m = "read a tensor, or a part of one, that its first run had not read";
                let e = changed(node, m);
                return Err(
                    e.note(format!("it is older than that run, or made on another thread, on {}", storage.device()))
                );
            }
        }
        Ok(())
    }

    /// Whether the inputs are unchanged: hooks may have unpacked others.
    #[track_caller]
    fn same_inputs(&self, inputs: &[Tensor]) -> Result<bool> {
        for (t, (sum, layout)) in inputs.iter().zip(self.packed.iter().flatten()) {
            if t.layout() != layout || checksum(t)? != *sum {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Errors unless the second run gave the same bits as the first, by the same operations.
    #[track_caller]
    fn check_outputs(&self, node: &Node, outputs: &[Tensor], record: &Record, before: u64) -> Result<()> {
        for (i, (y, given)) in outputs.iter().zip(&self.given).enumerate() {
            if let Some(given) = given
                && !given.is(y)?
            {
                return Err(y.describe(changed(node, &format!("gave other values in output {i}")), "output"));
            }
        }
        if self.known.is(record, &node.inputs, before) {
            return Ok(());
        }
        Err(changed(node, "computed its outputs in another way"))
    }
}

#[track_caller]
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

    fn identity(&self) -> u64 {
        self.known.identity()
    }

    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let node = ctx.node;
        let inputs: Vec<Tensor> = (0..self.edges.len()).map(|i| self.input(ctx, i)).collect::<Result<_>>().here()?;
        self.check(node)?;
        let (Region { outputs, record, before, watch }, same_draws) = {
            let _mode = set_switches(GUARDS | PACK, self.guards);
            let replay = ReplayDraws::new(self.draws.clone());
            (Region::run(&inputs, |x| (self.again)(x))?, replay.finish())
        };
        let accesses = watch.finish();
        self.check(node)?;
        let same = |(t, want): (&Tensor, &Spec)| t.spec() == *want;
        if outputs.len() != node.outputs.len() || !outputs.iter().zip(&node.outputs).all(same) {
            return Err(changed(node, "gave outputs of other shapes or dtypes"));
        }
        let tracked = outputs.iter().zip(&self.given).position(|(y, given)| y.requires_grad() != given.is_some());
        if let Some(i) = tracked {
            return Err(changed(node, &format!("tracked output {i} otherwise")));
        }
        let known: HashSet<(u64, usize)> = node.inputs.iter().flatten().map(key).collect();
        let used = record.across.iter().filter(|e| e.node.seq <= before).map(key).collect::<HashSet<_>>();
        if !used.is_subset(&known) {
            return Err(changed(node, "used tracked tensors that it had not used before"));
        }
        if known.len() > used.len() {
            return Err(changed(node, "did not use tracked tensors that it had used before"));
        }
        if !same_draws {
            return Err(changed(node, "drew other random numbers"));
        }
        self.check_accesses(node, &accesses, &inputs, before)?;
        if self.same_inputs(&inputs)? {
            self.check_outputs(node, &outputs, &record, before)?;
        }
        // At most one for each input of the region.
        let places: Vec<usize> = (0..ctx.input_count()).filter(|&i| ctx.needs(i)).collect();
        let targets: Vec<&Edge> = places.iter().filter_map(|&i| node.inputs[i].as_ref()).collect();
        let mut roots = vec![];
        for (y, g) in outputs.iter().zip(grads) {
            if let (Some(edge), Some(g)) = (y.edge(), g) {
                roots.push((edge.clone(), g.clone()));
            }
        }
        let options = BackwardOptions::new();
        let options = if ctx.create_graph() { options.create_graph() } else { options };
        let mut out = Grads::from_elem(None, ctx.input_count());
        for (i, g) in places.into_iter().zip(grad_of_edges(roots, &targets, options, before)?) {
            out[i] = g;
        }
        if !ctx.create_graph() {
            drop(outputs);
            record.left_behind().for_each(|node| node.leave_region());
        }
        Ok(out)
    }
}

impl Checkpoint {
    /// Input `i` of the function, with its edge in the graph.
    #[track_caller]
    fn input(&self, ctx: &Context<'_>, i: usize) -> Result<Tensor> {
        let t = ctx.input(i)?;
        // What is guarded has only the places that the node's gradients go to.
        Ok(match &self.edges[i] {
            Some(edge) if t.edge().is_none() => t.with_edge(edge.clone()),
            _ => t,
        })
    }
}
