//! [`checkpoint`]: a region that saves only its inputs and is computed a second time for its gradient.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use gradus_backend::{Error, ErrorKind, Here, Layout, Result};
use smallvec::SmallVec;

use crate::autograd::functions::functional::{Tensors, as_outputs};
use crate::autograd::graph::node::{Edge, Node, next_seq};
use crate::autograd::guard::packed::Packed;
use crate::autograd::mode::{AUTOCAST, GUARDS, NOTE_ACCESS, PACK, set_switches, switches};
use crate::autograd::pass::engine::{grad_of_edges, key};
use crate::autograd::region::access::{Access, Watch};
use crate::autograd::region::checksum::checksum;
use crate::autograd::region::draws::{Draws, NoteDraws, ReplayDraws, is_replay};
use crate::autograd::region::record::{Known, Record};
use crate::autograd::{BackwardOptions, Context, Nested, Saved, enable_grad_guard, guards_saved, is_grad_enabled};
use crate::ops::{Grads, Rule, same_device};
use crate::tensor::Spec;
use crate::{Attempt, Generator, Storage, Tensor};

/// Computes `f(inputs)` but saves only the inputs in the graph: the backward pass runs `f` again to get the values that
/// its gradients need. This trades time for memory, since the values inside the region exist only while it is computed.
///
/// Tensors that `f` captures get gradients just like the inputs. The second run draws the same random numbers as the
/// first, whichever [`Generator`] they come from, so dropout layers work unchanged, and it does not advance any
/// generator. The result can be differentiated to any order. If nothing is recorded, this is simply `f(inputs)`.
///
/// # What is checked
/// `f` must run on this thread and be a function of its inputs and of what it captures. This is checked, so a gradient
/// is either right or an error. It is an error
///
/// - if an input or a captured tensor has been overwritten since (the error names both lines);
/// - if `f` writes into memory that outlives it, since the second run would write again;
/// - if the second run reads a tensor that the first one did not, such as one that was replaced or was made on another
///   thread;
/// - if the second run uses other tracked tensors or draws other random numbers;
/// - if it returns other outputs, even if they differ only in a single bit;
/// - if it computes the outputs with other operations, with other parameters, or with other small constants that `f`
///   creates.
///
/// Some things are not compared, and a difference in them is noticed only if it changes an output: constants of more
/// than 16 KiB that `f` creates, constants that it creates in a nested region, and the state of a
/// [`CustomOp`](crate::autograd::CustomOp). If [`saved_tensors_hooks`](crate::autograd::saved_tensors_hooks) return
/// inputs that are not bit-identical to what they packed, neither the outputs nor the operations are compared.
///
/// Besides the second run itself, the checks cost one pass over the outputs in each run (on a device, a copy to the
/// host) and about a microsecond for each operation.
///
/// # Side effects
/// **Everything else that `f` does happens twice**, for example what it prints, counts or pushes to a list. Use
/// [`once`] for side effects that belong to the forward pass alone.
///
/// A tensor that `f` stores elsewhere instead of returning it belongs to the run that stored it, and keeps the graph of
/// that run alive. A backward pass through the region frees the graph that the second run left there. Gradients of the
/// outputs do not flow to such a tensor: asking for one, or registering a hook on it, is an error.
///
/// A hook that `f` registers on a tensor that it computes works as it does elsewhere, as long as the handle from the
/// second run exists. Registering a hook on an older tensor is an error.
///
/// # Nesting
/// Regions may be nested, to fewer than [`MAX_NESTING`](crate::autograd::MAX_NESTING) levels. The second run of a
/// region runs the regions inside it as regions again, so they still save only their inputs. With the backward pass,
/// the innermost of `n` nested regions runs `n + 1` times, and all of them together run about `n * n / 2` times.
/// Regions that follow one another run twice each, however many there are.
///
/// # Errors
/// The errors of `f`; inputs or outputs on several devices; nesting beyond
/// [`MAX_NESTING`](crate::autograd::MAX_NESTING). On an error, generators and the statistics of layers are left as they
/// were.
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

/// [`checkpoint`] for a function that takes a generator. The generator advances by the number of words that the first
/// run draws, and the second run draws the same numbers.
#[track_caller]
pub fn checkpoint_with<O: Tensors>(
    f: impl Fn(&[Tensor], &mut Generator) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
    generator: &mut Generator,
) -> Result<O> {
    run(f, inputs, generator)
}

/// Runs `effect` only once, even inside a [`checkpoint`]: the first run of the region runs it and the second run skips
/// it. It is meant for side effects of the forward pass, such as running statistics, and may write into memory that
/// outlives the region. Its results must not enter the outputs of the region.
///
/// # Errors
/// The errors of `effect`; nesting beyond [`MAX_NESTING`](crate::autograd::MAX_NESTING).
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

/// Runs the region for the first time, and records the node that will run it again.
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
    // This run is recorded to find out what `f` captures. The recorded graph is dropped right away, so nothing is
    // packed for it.
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
    let (guards, edges) = (switches(GUARDS | AUTOCAST), inputs.iter().map(|t| t.edge().cloned()).collect());
    let rule = Arc::new(Checkpoint { again, known, reads, draws, given, packed, edges, guards });
    let node = Node::rule(rule, behind, specs, device, saved);
    let edge = |i: usize| Edge { node: node.clone(), output: i };
    let results = plain.iter().zip(&tracked).enumerate();
    as_outputs("checkpoint", results.map(|(i, (t, &on))| if on { t.with_edge(edge(i)) } else { t.clone() }).collect())
}

/// Memory that the second run may read in place.
struct Read {
    access: Access,
    /// Whether the second run is certain to read it, so that it must be unchanged.
    sure: bool,
}

impl Read {
    /// Fails if anything that the first run accessed here has been overwritten.
    #[track_caller]
    fn check(&self, node: &Node) -> Result<()> {
        self.check_places(node, &self.access)
    }

    /// Fails if the places of another `access` to this storage have been overwritten since the first run.
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

    /// Whether output `t` of the second run is the same as this output of the first run. It is if it views the same
    /// elements, whatever their values, or has the same values.
    #[track_caller]
    fn is(&self, t: &Tensor) -> Result<bool> {
        if t.numel() == 0 {
            return Ok(true);
        }
        if self.storage.as_ptr() == Arc::as_ptr(t.storage()) {
            if self.layout == *t.layout() {
                return Ok(true);
            }
            // The layouts may differ only in the strides of axes of size 1.
            if self.layout.span() != t.layout().span() {
                return Ok(false);
            }
        }
        Ok(self.sum == checksum(t)?)
    }
}

/// The accesses that the second run may repeat in place. These are accesses to storages older than the region, which
/// began with node number `before`, and to storages that the first run created and that still exist. The second run
/// creates everything else again. `packed` lists the inputs that hooks have packed: the second run reads the unpacked
/// tensors instead of these.
#[track_caller]
fn reads_from_outside(accesses: Vec<Access>, before: u64, packed: &[&Tensor]) -> Result<Vec<Read>> {
    let mut reads = vec![];
    for access in accesses {
        let Some(storage) = access.storage() else { continue };
        if storage.born() > before {
            // This is an output, or a value that the function keeps for its next run. That is fine as long as what was
            // read stays unchanged.
            reads.extend(access.final_read().map(|access| Read { access, sure: false }));
            continue;
        }
        not_written("checkpoint", &access)?;
        let sure = !packed.iter().any(|t| Arc::ptr_eq(t.storage(), &storage));
        reads.push(Read { access, sure });
    }
    Ok(reads)
}

/// Fails if a region has written into memory older than itself, since the second run would write again.
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
    /// The number of the last node recorded before the run.
    before: u64,
    watch: Watch,
}

impl Region {
    /// Runs `f` on the inputs themselves, so that a tensor that leaves the region without being an output depends on
    /// them as usual.
    #[track_caller]
    fn run<O: Tensors>(inputs: &[Tensor], f: impl FnOnce(&[Tensor]) -> Result<O>) -> Result<Region> {
        let _mode = enable_grad_guard();
        let before = next_seq();
        let watch = Watch::region(before);
        let outputs = f(inputs).here()?.into_tensors();
        // An output that was overwritten after its computation no longer matches the graph.
        outputs.iter().try_for_each(|t| t.check_current("checkpoint")).here()?;
        Ok(Region { record: Record::new(&outputs, before)?, outputs, before, watch })
    }
}

type Again = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// A region that is ready to be run again.
struct Checkpoint {
    again: Box<Again>,
    known: Known,
    reads: Vec<Read>,
    draws: Arc<[Draws]>,
    /// The tracked outputs of the first run; `None` for outputs that are not tracked.
    given: Vec<Option<Given>>,
    /// The checksum and the layout of each input before packing, if hooks packed the inputs.
    packed: Option<Vec<(u64, Layout)>>,
    /// The edges of the function's inputs, including those of inputs that the outputs do not depend on.
    edges: Vec<Option<Edge>>,
    /// The switches of protection and autocast that were on in the first run. They are set again for the second run.
    guards: u16,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checkpoint")
    }
}

impl Checkpoint {
    /// Fails if anything that the second run is certain to read has been overwritten.
    #[track_caller]
    fn check(&self, node: &Node) -> Result<()> {
        self.reads.iter().filter(|r| r.sure).try_for_each(|r| r.check(node)).here()
    }

    /// Fails unless the second run read only memory that the first run had read, all of it unchanged, and wrote into
    /// no memory older than itself.
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
                // The second run may have read elements between those that the first run read. These must be unchanged,
                // too.
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

    /// Whether the inputs are those of the first run, bit for bit. Hooks may have unpacked different ones.
    #[track_caller]
    fn same_inputs(&self, inputs: &[Tensor]) -> Result<bool> {
        for (t, (sum, layout)) in inputs.iter().zip(self.packed.iter().flatten()) {
            if t.layout() != layout || checksum(t)? != *sum {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fails unless the second run computed the same outputs, bit for bit, with the same operations.
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
            let _mode = set_switches(GUARDS | PACK | AUTOCAST, self.guards);
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
        // At most one entry for each input of the node.
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
    /// Input `i` of the function, with its edge.
    #[track_caller]
    fn input(&self, ctx: &Context<'_>, i: usize) -> Result<Tensor> {
        let t = ctx.input(i)?;
        // A guarded value gets its edge from the node, which has none for inputs that the outputs do not depend on.
        Ok(match &self.edges[i] {
            Some(edge) if t.edge().is_none() => t.with_edge(edge.clone()),
            _ => t,
        })
    }
}
